//! One segment: open and create, read and write blocks, grow, flush.
//!
//! The life of a block: not there → `grow` writes and syncs zeros → counted by the superblock →
//! `write` and `read`, any number of times. Invariants: see the crate's header.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_format::limits::BLOCK_BYTES;
use larder_format::superblock::{
    BLOCK_COUNT_MAX, COPY_COUNT, ChosenSuperblock, DATA_OFFSET_BYTES, SUPERBLOCK_BYTES,
    choose_superblock, copy_offset_bytes,
};
use larder_format::{Checksum, Member, SegmentIndex, Superblock, SuperblockError, block_checksum};

use crate::device::Device;
use crate::error::SegmentError;
use crate::pages;
use crate::parallel::{
    PARALLEL_BLOCKS_MIN, REQUEST_BLOCKS, VERIFIED_BLOCKS, cut_slices, run_parallel,
};

/// Growth flushes this often, so that a commit's flush never waits for gigabytes of its zeros.
const ZERO_FLUSH_BYTES: u64 = 64 << 20;

/// Where a read may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The device or its host's memory.
    Any,
    /// The device.
    Device,
}

/// An open segment. Shared freely between threads; see the crate's header for concurrency.
pub struct Segment {
    index: SegmentIndex,
    database_id: [u8; 16],
    device: Arc<dyn Device>,
    /// As some session has put it into the superblock. Changed with `counting` held.
    block_count: AtomicU64,
    counting: Mutex<()>,
    poisoned: AtomicBool,
    /// Held by the one thread that grows or shrinks. Taken before `flushing`.
    growth: Mutex<()>,
    /// Held during a flush: two at once could leave one of them to miss the error (`SEGMENT-4`).
    flushing: Mutex<()>,
}

impl Segment {
    /// Makes an empty device into a segment without blocks, durably. What is on the device is
    /// overwritten. Fails with [`SegmentError::NoSpace`] or [`SegmentError::Io`]. Cost: 1 MiB
    /// written, one flush.
    pub fn create(
        device: Arc<dyn Device>,
        database_id: [u8; 16],
        index: SegmentIndex,
        created_ns: i64,
    ) -> Result<Segment, SegmentError> {
        let segment = Segment::new(device, database_id, index);
        let mut head = vec![0; DATA_OFFSET_BYTES as usize];
        for generation in 0..COPY_COUNT as u64 {
            let superblock = Superblock {
                generation,
                database_id,
                segment: index,
                block_count: 0,
                created_ns,
                member: Member::ALONE,
            };
            let at = superblock.offset_bytes() as usize;
            head[at..at + SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
        }
        segment
            .device
            .write_at(0, &head)
            .map_err(|error| match is_full(&error) {
                true => SegmentError::NoSpace {
                    segment: index,
                    wanted_bytes: DATA_OFFSET_BYTES,
                },
                false => segment.io("create", error),
            })?;
        segment.flush()?;
        Ok(segment)
    }

    /// Opens the segment `index` of database `database_id`, and says precisely why when the device
    /// holds anything else. One damaged superblock copy is survived, and logged. Cost: one read.
    pub fn open(
        device: Arc<dyn Device>,
        database_id: [u8; 16],
        index: SegmentIndex,
    ) -> Result<Segment, SegmentError> {
        let segment = Segment::new(device, database_id, index);
        let chosen = segment.read_superblock()?;
        if let Some(damage) = chosen.damaged_copy {
            tracing::warn!(segment = index.0, %damage, "one superblock copy is damaged, the other \
                is used");
        }
        segment.publish(chosen.superblock.block_count);
        Ok(segment)
    }

    fn new(device: Arc<dyn Device>, database_id: [u8; 16], index: SegmentIndex) -> Segment {
        Segment {
            index,
            database_id,
            device,
            block_count: AtomicU64::new(0),
            counting: Mutex::new(()),
            poisoned: AtomicBool::new(false),
            growth: Mutex::new(()),
            flushing: Mutex::new(()),
        }
    }

    /// Which segment of its database this is.
    pub fn index(&self) -> SegmentIndex {
        self.index
    }

    /// Data blocks the segment is known to have. Another session may have grown or shrunk it since:
    /// see [`Segment::refresh`].
    pub fn block_count(&self) -> u64 {
        self.block_count.load(Ordering::Acquire)
    }

    /// Reads the superblock again, and returns the block count that the last session left.
    pub fn refresh(&self) -> Result<u64, SegmentError> {
        // An older count must not replace the one that growth publishes meanwhile.
        let _counting = hold(&self.counting);
        let found = self.read_superblock()?.superblock.block_count;
        self.block_count.store(found, Ordering::Release);
        Ok(found)
    }

    /// What is wrong with one of the two superblock copies, if the other one alone carries the
    /// segment. For `larder check`.
    pub fn check_superblock(&self) -> Result<Option<SuperblockError>, SegmentError> {
        Ok(self.read_superblock()?.damaged_copy)
    }

    /// Fills `buf` from `start_block` on, and verifies each block against its checksum
    /// (`SEGMENT-3`): one that fails is [`SegmentError::Checksum`]. `buf` holds one block per
    /// checksum. One request; from 768 KiB on, several at once where the device profits; more of
    /// them, one after the other, where it has the bytes in memory.
    pub fn read(
        &self,
        start_block: u64,
        buf: &mut [u8],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        self.read_vectored(start_block, &mut [IoSliceMut::new(buf)], checksums)
    }

    /// The same into several buffers, one behind the other, each whole blocks long.
    pub fn read_vectored(
        &self,
        start_block: u64,
        bufs: &mut [IoSliceMut<'_>],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        self.read_from(Source::Any, start_block, bufs, checksums)
    }

    /// The same as [`Segment::read`], from the device itself where the host can: for who looks
    /// whether everything is still there.
    pub fn read_past_cache(
        &self,
        start_block: u64,
        buf: &mut [u8],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        let bufs = &mut [IoSliceMut::new(buf)];
        self.read_from(Source::Device, start_block, bufs, checksums)
    }

    fn read_from(
        &self,
        source: Source,
        start_block: u64,
        bufs: &mut [IoSliceMut<'_>],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        let block_count = checksums.len() as u64;
        let len_bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        assert_eq!(
            len_bytes as u64,
            block_count * BLOCK_BYTES,
            "one checksum per block read"
        );
        self.check_range(start_block, block_count)?;
        let most = self.requests_in_flight_max();
        if most == 1 || block_count < PARALLEL_BLOCKS_MIN {
            return match self.has_in_memory(source, start_block, checksums.len()) {
                true => self.read_from_memory(start_block, bufs, checksums),
                false => self.read_verified(source, start_block, bufs, checksums),
            };
        }
        // Requests of equal length, so that all of them are long.
        let request_blocks = block_count.div_ceil(block_count.div_ceil(REQUEST_BLOCKS)) as usize;
        let requests: Vec<Mutex<Vec<IoSliceMut<'_>>>> = cut_slices(bufs, request_blocks)
            .into_iter()
            .map(Mutex::new)
            .collect();
        let start_of = |at: usize| start_block + (at * request_blocks) as u64;
        let is_there: Vec<bool> = (checksums.chunks(request_blocks).enumerate())
            .map(|(at, part)| self.has_in_memory(source, start_of(at), part.len()))
            .collect();
        // A thread more would cost what it copies.
        let in_flight = match is_there.contains(&false) {
            true => most,
            false => 1,
        };
        run_parallel(requests.len(), in_flight, |at| {
            let mut slices = requests[at].lock().unwrap_or_else(PoisonError::into_inner);
            let first = at * request_blocks;
            let checksums = &checksums[first..checksums.len().min(first + request_blocks)];
            match is_there[at] {
                true => self.read_from_memory(start_of(at), &mut slices, checksums),
                false => self.read_verified(source, start_of(at), &mut slices, checksums),
            }
        })
    }

    fn has_in_memory(&self, source: Source, start_block: u64, block_count: usize) -> bool {
        let (at, len_bytes) = (block_offset(start_block), block_count as u64 * BLOCK_BYTES);
        source == Source::Any && self.device.is_in_memory(at, len_bytes)
    }

    /// Reads and verifies part by part.
    fn read_from_memory(
        &self,
        start_block: u64,
        bufs: &mut [IoSliceMut<'_>],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        let parts = cut_slices(bufs, VERIFIED_BLOCKS).into_iter();
        for (at, mut part) in parts.enumerate() {
            let first = at * VERIFIED_BLOCKS;
            let end = checksums.len().min(first + VERIFIED_BLOCKS);
            let start_block = start_block + first as u64;
            let checksums = &checksums[first..end];
            self.read_verified(Source::Any, start_block, &mut part, checksums)?;
        }
        Ok(())
    }

    fn read_verified(
        &self,
        source: Source,
        start_block: u64,
        bufs: &mut [IoSliceMut<'_>],
        checksums: &[Checksum],
    ) -> Result<(), SegmentError> {
        let offset_bytes = block_offset(start_block);
        let read = match source {
            Source::Any => self.device.read_vectored_at(offset_bytes, bufs),
            Source::Device => self.device.read_past_cache_at(offset_bytes, bufs),
        };
        read.map_err(|error| {
            let block_count = checksums.len() as u64;
            self.shortened(start_block + block_count)
                .unwrap_or_else(|| {
                    self.io(
                        format!("read of {block_count} blocks at block {start_block}"),
                        error,
                    )
                })
        })?;
        let blocks = bufs
            .iter()
            .flat_map(|buf| buf.chunks_exact(BLOCK_BYTES as usize));
        for (i, (block, &expected)) in blocks.zip(checksums).enumerate() {
            let found = block_checksum(block);
            if found != expected {
                let block = start_block + i as u64;
                return Err(SegmentError::Checksum {
                    segment: self.index,
                    block,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// Asks the device for blocks that will be read soon; only a hint.
    pub fn prefetch(&self, start_block: u64, block_count: u64) {
        let offset_bytes = DATA_OFFSET_BYTES + start_block * BLOCK_BYTES;
        self.device
            .prefetch(offset_bytes, block_count * BLOCK_BYTES);
    }

    /// Writes `buffers`, one behind the other, from `start_block` on, in one request where the
    /// device can. Each buffer is whole blocks long. Durable after the next [`Segment::flush`]. A
    /// failure poisons the segment (`SEGMENT-4`).
    pub fn write(&self, start_block: u64, buffers: &[&[u8]]) -> Result<(), SegmentError> {
        let slices: Vec<IoSlice<'_>> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
        self.write_by(start_block, &slices, |at| {
            self.device.write_vectored_at(at, &slices)
        })
    }

    /// The same of new content, which stays in memory where the host can.
    pub(crate) fn write_cached(
        &self,
        start_block: u64,
        slices: &[IoSlice<'_>],
    ) -> Result<(), SegmentError> {
        self.write_by(start_block, slices, |at| {
            self.device.write_cached_at(at, slices)
        })
    }

    fn write_by(
        &self,
        start_block: u64,
        slices: &[IoSlice<'_>],
        write: impl FnOnce(u64) -> io::Result<()>,
    ) -> Result<(), SegmentError> {
        let len_bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        assert!(
            slices
                .iter()
                .all(|slice| (slice.len() as u64).is_multiple_of(BLOCK_BYTES)),
            "only whole blocks are written"
        );
        let block_count = len_bytes / BLOCK_BYTES;
        self.check_range(start_block, block_count)?;
        self.check_poison()?;
        write(block_offset(start_block)).map_err(|error| {
            self.poison(
                format!("write of {block_count} blocks at block {start_block}"),
                error,
            )
        })
    }

    /// How many requests at once the device profits from.
    pub(crate) fn requests_in_flight_max(&self) -> usize {
        self.device.requests_in_flight_max()
    }

    /// Makes every completed write durable. A failure poisons the segment (`SEGMENT-4`).
    pub fn flush(&self) -> Result<(), SegmentError> {
        let _flushing = hold(&self.flushing);
        self.check_poison()?;
        self.device
            .flush()
            .map_err(|error| self.poison("flush", error))
    }

    /// Grows the segment to `new_block_count` blocks of zeros, durably, and returns the count it
    /// has then: more than asked for when another session grew it further. May run in the
    /// background of reads and writes. A full host is [`SegmentError::NoSpace`]; then the segment
    /// keeps its size and what was written goes back to the host. Cost: the growth written once, in
    /// large requests.
    pub fn grow(&self, new_block_count: u64) -> Result<u64, SegmentError> {
        assert!(
            new_block_count <= BLOCK_COUNT_MAX,
            "a segment of {new_block_count} blocks"
        );
        let _growth = hold(&self.growth);
        self.check_poison()?;
        self.device.lock().map_err(|error| self.io("lock", error))?;
        let grown = self.grow_locked(new_block_count);
        let unlocked = self
            .device
            .unlock()
            .map_err(|error| self.io("unlock", error));
        grown.and(unlocked)?;
        Ok(self.block_count())
    }

    fn grow_locked(&self, new_block_count: u64) -> Result<(), SegmentError> {
        // SEGMENT-6: begin with what other sessions left.
        let mut superblock = self.read_superblock()?.superblock;
        if new_block_count > superblock.block_count {
            let old_bytes = superblock.segment_bytes();
            superblock.block_count = new_block_count;
            self.write_zeros(old_bytes, superblock.segment_bytes())?;
            // SEGMENT-2 holds from here on.
            self.write_superblock(&mut superblock)?;
        }
        self.publish(superblock.block_count);
        Ok(())
    }

    /// Writes and flushes one copy, then the other (`SEGMENT-5`).
    fn write_superblock(&self, superblock: &mut Superblock) -> Result<(), SegmentError> {
        for _ in 0..COPY_COUNT {
            superblock.generation += 1;
            self.device
                .write_at(superblock.offset_bytes(), &superblock.encode())
                .map_err(|error| self.poison("superblock write", error))?;
            self.flush()?;
        }
        Ok(())
    }

    /// Cuts the segment to `new_block_count` blocks, durably, and gives the space
    /// behind them back to the host; nothing happens when it is not longer. The caller has made
    /// sure that nothing durable, retained or pinned lies there, and that no session will write
    /// there (`SEGMENT-7`). A device that cannot be cut is [`SegmentError::Io`]; the count is lower
    /// all the same, and the bytes behind it wait for the next growth. Cost: two flushes.
    pub fn shrink(&self, new_block_count: u64) -> Result<(), SegmentError> {
        let _growth = hold(&self.growth);
        self.check_poison()?;
        self.device.lock().map_err(|error| self.io("lock", error))?;
        let cut = self.shrink_locked(new_block_count);
        let unlocked = self
            .device
            .unlock()
            .map_err(|error| self.io("unlock", error));
        cut.and(unlocked)
    }

    fn shrink_locked(&self, new_block_count: u64) -> Result<(), SegmentError> {
        let mut superblock = self.read_superblock()?.superblock;
        if new_block_count > superblock.block_count {
            self.publish(superblock.block_count);
            return Ok(());
        }
        // Also when it is no longer already: of an interrupted shrinking one copy may be left
        // behind.
        superblock.block_count = new_block_count;
        self.write_superblock(&mut superblock)?;
        self.publish(new_block_count);
        // SEGMENT-7: from here on neither copy counts what goes.
        self.device
            .truncate(superblock.segment_bytes())
            .map_err(|error| self.io("cut to its new length", error))
    }

    /// Writes zeros from byte `from` to byte `to` and flushes them, or gives the space back.
    fn write_zeros(&self, from: u64, to: u64) -> Result<(), SegmentError> {
        self.try_write_zeros(from, to).inspect_err(|_| {
            if let Err(error) = self.device.truncate(from) {
                tracing::warn!(segment = self.index.0, %error, "space behind the segment stays \
                    taken until it grows");
            }
        })
    }

    fn try_write_zeros(&self, from: u64, to: u64) -> Result<(), SegmentError> {
        let failed = |error: io::Error| match is_full(&error) {
            true => SegmentError::NoSpace {
                segment: self.index,
                wanted_bytes: to - from,
            },
            false => self.poison("growth write", error),
        };
        self.device.preallocate(from, to - from).map_err(failed)?;
        let zeros = pages::zeros();
        let mut at = from;
        while at < to {
            let len_bytes = (zeros.len() as u64).min(to - at);
            self.device
                .write_vectored_at(at, &[IoSlice::new(&zeros[..len_bytes as usize])])
                .map_err(failed)?;
            at += len_bytes;
            if at == to || (at - from).is_multiple_of(ZERO_FLUSH_BYTES) {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Reads both superblock copies, and believes one only if this is the expected segment and the
    /// device is as long as it says (`SEGMENT-1`).
    fn read_superblock(&self) -> Result<ChosenSuperblock, SegmentError> {
        match self.try_read_superblock() {
            // Another session may have changed the length between the two looks.
            Err(SegmentError::Truncated { .. }) => self.try_read_superblock(),
            read => read,
        }
    }

    fn try_read_superblock(&self) -> Result<ChosenSuperblock, SegmentError> {
        let found_bytes = self
            .device
            .len_bytes()
            .map_err(|error| self.io("length query", error))?;
        let mut copies = [[0; SUPERBLOCK_BYTES]; COPY_COUNT];
        for (copy, raw) in copies.iter_mut().enumerate() {
            // A device too short leaves zeros, which are no superblock.
            let offset = copy_offset_bytes(copy);
            let len = found_bytes
                .saturating_sub(offset)
                .min(SUPERBLOCK_BYTES as u64) as usize;
            self.device
                .read_at(offset, &mut raw[..len])
                .map_err(|error| self.io("superblock read", error))?;
        }
        let segment = self.index;
        let is_blank = copies.as_flattened().iter().all(|&byte| byte == 0);
        let truncated = |expected_bytes| SegmentError::Truncated {
            segment,
            expected_bytes,
            found_bytes,
        };
        let chosen =
            choose_superblock([&copies[0], &copies[1]]).map_err(|damage| match damage {
                SuperblockError::NewerFormat { found, known } => SegmentError::NewerFormat {
                    segment,
                    found,
                    known,
                },
                SuperblockError::OlderFormat { found, known } => SegmentError::OlderFormat {
                    segment,
                    found,
                    known,
                },
                _ if is_blank && found_bytes < DATA_OFFSET_BYTES => truncated(DATA_OFFSET_BYTES),
                damage if damage.is_foreign() => SegmentError::NotASegment { segment },
                damage => SegmentError::TornSuperblock { segment, damage },
            })?;
        let superblock = &chosen.superblock;
        if superblock.database_id != self.database_id {
            let (expected, found) = (self.database_id, superblock.database_id);
            return Err(SegmentError::WrongDatabase {
                segment,
                expected,
                found,
            });
        }
        if superblock.member != Member::ALONE {
            return Err(SegmentError::HasCopies { segment }); // SUPER-6
        }
        if superblock.segment != segment {
            return Err(SegmentError::WrongSegment {
                segment,
                found: superblock.segment,
            });
        }
        if found_bytes < superblock.segment_bytes() {
            return Err(truncated(superblock.segment_bytes()));
        }
        Ok(chosen)
    }

    fn publish(&self, block_count: u64) {
        let _counting = hold(&self.counting);
        self.block_count.store(block_count, Ordering::Release);
    }

    /// `SEGMENT-1`. Blocks beyond the known ones may be those another session added.
    fn check_range(&self, start_block: u64, block_count: u64) -> Result<(), SegmentError> {
        let end = start_block.checked_add(block_count);
        let is_inside = |segment_blocks| end.is_some_and(|end| end <= segment_blocks);
        if is_inside(self.block_count()) {
            return Ok(());
        }
        let segment_blocks = self.refresh()?;
        if is_inside(segment_blocks) {
            return Ok(());
        }
        Err(SegmentError::OutOfRange {
            segment: self.index,
            start_block,
            block_count,
            segment_blocks,
        })
    }

    /// The truncation that explains a failed read before `end_block`, if the device was cut.
    fn shortened(&self, end_block: u64) -> Option<SegmentError> {
        let (expected_bytes, found_bytes) =
            (block_offset(end_block), self.device.len_bytes().ok()?);
        (found_bytes < expected_bytes).then_some(SegmentError::Truncated {
            segment: self.index,
            expected_bytes,
            found_bytes,
        })
    }

    fn check_poison(&self) -> Result<(), SegmentError> {
        match self.poisoned.load(Ordering::Acquire) {
            true => Err(SegmentError::Poisoned {
                segment: self.index,
            }),
            false => Ok(()),
        }
    }

    fn poison(&self, action: impl Into<String>, source: io::Error) -> SegmentError {
        self.poisoned.store(true, Ordering::Release);
        self.io(action, source)
    }

    fn io(&self, action: impl Into<String>, source: io::Error) -> SegmentError {
        SegmentError::Io {
            segment: self.index,
            action: action.into(),
            source,
        }
    }
}

fn block_offset(block: u64) -> u64 {
    DATA_OFFSET_BYTES + block * BLOCK_BYTES
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Takes a mutex that guards no data, so a panic of its last holder broke nothing.
fn hold(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
