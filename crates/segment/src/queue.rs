//! Several requests in flight at once: the write side of a commit, and long reads.
//!
//! # Words
//! A *request* is what one call of the device transfers: at most [`REQUEST_BLOCKS`]. A *worker* takes
//! one request after the other until none is left; one worker's checksums are computed while
//! another's request is in flight.
//!
//! # Concurrency
//! The caller is the first worker; the others live as long as the call. How many are useful is the
//! device's word ([`Device::requests_in_flight_max`](crate::Device::requests_in_flight_max)); with
//! one, requests go to the device in order, from the calling thread.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_format::limits::BLOCK_BYTES;
use larder_format::{Checksum, block_checksum};

use crate::error::SegmentError;
use crate::segment::Segment;

/// Blocks in one request at most (512 KiB): fewer cost more per byte, more are not faster and leave
/// nothing to overlap. Measured: docs/decisions/0011-direct-io.md.
pub(crate) const REQUEST_BLOCKS: u64 = 128;
/// From so many blocks on (2 MiB) a thread costs less than it saves.
pub(crate) const PARALLEL_BLOCKS_MIN: u64 = 512;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Contiguous blocks to write.
pub struct BlockWrite<'a> {
    /// Where to.
    pub segment: Arc<Segment>,
    /// The first block.
    pub start_block: u64,
    /// The bytes, one buffer behind the other; each is whole blocks long. Memory that begins at a
    /// multiple of 4096 ([`AlignedBuf`](crate::AlignedBuf)) is written without a copy.
    pub buffers: Vec<&'a [u8]>,
}

/// A part of a [`BlockWrite`].
struct Request<'a> {
    segment: &'a Segment,
    /// Index of its write.
    write: usize,
    start_block: u64,
    slices: Vec<IoSlice<'a>>,
    checksums: OnceLock<Vec<Checksum>>,
}

/// Writes all of `writes`, several requests in flight at once where the device profits, and returns
/// the checksums of each write's blocks, in order. Durable after the next [`Segment::flush`] of each
/// segment. The first failure poisons its segment (`SEGMENT-4`) and is returned; the other writes
/// may have happened or not.
pub fn write_all(writes: &[BlockWrite<'_>]) -> Result<Vec<Vec<Checksum>>, SegmentError> {
    let requests: Vec<Request<'_>> = writes
        .iter()
        .enumerate()
        .flat_map(|(index, write)| cut(index, write))
        .collect();
    let block_count: usize = requests.iter().map(Request::block_count).sum();
    let in_flight = match block_count as u64 >= PARALLEL_BLOCKS_MIN {
        true => writes
            .iter()
            .map(|write| write.segment.requests_in_flight_max())
            .max(),
        false => None,
    };
    run_parallel(requests.len(), in_flight.unwrap_or(1), |at| {
        let request = &requests[at];
        // Computed right before the bytes leave, by the thread that waits for the device next.
        request.checksums.get_or_init(|| request.checksum());
        request
            .segment
            .write_slices(request.start_block, &request.slices)
    })?;
    let mut checksums: Vec<Vec<Checksum>> = writes.iter().map(|_| Vec::new()).collect();
    for request in requests {
        let part = request.checksums.into_inner().unwrap_or_default();
        match &mut checksums[request.write] {
            whole if whole.is_empty() => *whole = part,
            whole => whole.extend(part),
        }
    }
    Ok(checksums)
}

impl Request<'_> {
    fn block_count(&self) -> usize {
        self.slices.iter().map(|slice| slice.len() / BLOCK).sum()
    }

    fn checksum(&self) -> Vec<Checksum> {
        let mut checksums = Vec::with_capacity(self.block_count());
        for slice in &self.slices {
            checksums.extend(slice.chunks_exact(BLOCK).map(block_checksum));
        }
        checksums
    }
}

/// Cuts a write into requests.
fn cut<'a>(index: usize, write: &'a BlockWrite<'_>) -> Vec<Request<'a>> {
    let mut requests: Vec<Request<'a>> = Vec::new();
    let mut next_block = write.start_block;
    let mut room = 0;
    for buffer in &write.buffers {
        assert!(
            buffer.len().is_multiple_of(BLOCK),
            "only whole blocks are written"
        );
        let mut rest: &'a [u8] = buffer;
        while !rest.is_empty() {
            if room == 0 {
                room = REQUEST_BLOCKS as usize * BLOCK;
                requests.push(Request {
                    segment: &write.segment,
                    write: index,
                    start_block: next_block,
                    slices: Vec::new(),
                    checksums: OnceLock::new(),
                });
            }
            let (part, behind) = rest.split_at(rest.len().min(room));
            if let Some(request) = requests.last_mut() {
                request.slices.push(IoSlice::new(part));
            }
            next_block += (part.len() / BLOCK) as u64;
            room -= part.len();
            rest = behind;
        }
    }
    requests
}

/// Cuts buffers into requests of `request_blocks` blocks; the last may be shorter.
pub(crate) fn cut_slices<'b>(
    bufs: &'b mut [IoSliceMut<'_>],
    request_blocks: usize,
) -> Vec<Vec<IoSliceMut<'b>>> {
    let mut requests: Vec<Vec<IoSliceMut<'b>>> = Vec::new();
    let mut room = 0;
    for buf in bufs {
        let mut rest: &'b mut [u8] = buf;
        while !rest.is_empty() {
            if room == 0 {
                room = request_blocks * BLOCK;
                requests.push(Vec::new());
            }
            let (part, behind) = rest.split_at_mut(rest.len().min(room));
            room -= part.len();
            rest = behind;
            if let Some(request) = requests.last_mut() {
                request.push(IoSliceMut::new(part));
            }
        }
    }
    requests
}

/// Runs `work(0)` to `work(count - 1)`, `in_flight` at once, until all are done or one fails; returns
/// the first failure.
pub(crate) fn run_parallel(
    count: usize,
    in_flight: usize,
    work: impl Fn(usize) -> Result<(), SegmentError> + Sync,
) -> Result<(), SegmentError> {
    if in_flight.min(count) <= 1 {
        return (0..count).try_for_each(work);
    }
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<SegmentError>> = Mutex::new(None);
    let worker = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            if let Err(error) = work(at) {
                // Nobody begins anything more.
                next.store(count, Ordering::Relaxed);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..in_flight.min(count) {
            scope.spawn(worker);
        }
        worker();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
