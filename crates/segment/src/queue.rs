//! The writes of a commit: cut into requests, each on its way to the device while the next one is
//! checksummed and copied.

use std::io::IoSlice;
use std::sync::Arc;

use larder_format::limits::BLOCK_BYTES;
use larder_format::{Checksum, block_checksum};

use crate::error::SegmentError;
use crate::parallel::REQUEST_BLOCKS;
use crate::segment::Segment;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Contiguous blocks to write.
pub struct BlockWrite<'a> {
    /// Where to.
    pub segment: Arc<Segment>,
    /// The first block.
    pub start_block: u64,
    /// The bytes, one buffer behind the other; each is whole blocks long.
    pub buffers: Vec<&'a [u8]>,
}

/// Writes all of `writes`, new content that stays in memory where the host can, and returns the
/// checksums of each write's blocks, in order. Durable after the next [`Segment::flush`] of each
/// segment. The first failure poisons its segment (`SEGMENT-4`) and is returned; the other writes
/// may have happened or not.
pub fn write_all(writes: &[BlockWrite<'_>]) -> Result<Vec<Vec<Checksum>>, SegmentError> {
    writes.iter().map(write_one).collect()
}

fn write_one(write: &BlockWrite<'_>) -> Result<Vec<Checksum>, SegmentError> {
    let mut checksums = Vec::new();
    for request in cut(&write.buffers) {
        let start_block = write.start_block + checksums.len() as u64;
        let blocks = request.iter().flat_map(|slice| slice.chunks_exact(BLOCK));
        // Right before they are copied: the processor's cache has them for that.
        checksums.extend(blocks.map(block_checksum));
        write.segment.write_cached(start_block, &request)?;
    }
    Ok(checksums)
}

/// Cuts buffers into requests.
fn cut<'a>(buffers: &[&'a [u8]]) -> Vec<Vec<IoSlice<'a>>> {
    let mut requests: Vec<Vec<IoSlice<'a>>> = Vec::new();
    let mut room = 0;
    for buffer in buffers {
        assert!(
            buffer.len().is_multiple_of(BLOCK),
            "only whole blocks are written"
        );
        let mut rest: &'a [u8] = buffer;
        while !rest.is_empty() {
            if room == 0 {
                room = REQUEST_BLOCKS as usize * BLOCK;
                requests.push(Vec::new());
            }
            let (part, behind) = rest.split_at(rest.len().min(room));
            if let Some(request) = requests.last_mut() {
                request.push(IoSlice::new(part));
            }
            room -= part.len();
            rest = behind;
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, FileStorage, Storage};
    use larder_format::SegmentIndex;
    use std::io::IoSliceMut;

    fn segment(place: &std::path::Path, blocks: u64) -> Arc<Segment> {
        let storage = FileStorage::new(larder_directory::DatabaseDir::open(place).unwrap());
        let device = storage.create_segment(SegmentIndex(0)).unwrap();
        let segment = Segment::create(device, [7; 16], SegmentIndex(0), 1).unwrap();
        segment.grow(blocks).unwrap();
        Arc::new(segment)
    }

    fn pattern(blocks: usize, seed: u8) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(blocks * BLOCK);
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (i / 7) as u8 ^ (i >> 12) as u8 ^ seed;
        }
        bytes
    }

    #[test]
    fn many_writes_arrive_with_their_checksums() {
        let place = tempfile::tempdir().unwrap();
        let segment = segment(place.path(), 1500);
        let parts: Vec<AlignedBuf> = [1, 300, 128, 5, 700, 2]
            .into_iter()
            .zip(1..)
            .map(|(blocks, seed)| pattern(blocks, seed))
            .collect();
        let write = |start_block, buffers: &[usize]| BlockWrite {
            segment: segment.clone(),
            start_block,
            buffers: buffers.iter().map(|&part| &parts[part][..]).collect(),
        };
        let writes = [write(3, &[0, 1, 2]), write(600, &[4]), write(1400, &[3, 5])];
        let checksums = write_all(&writes).unwrap();
        assert!(write_all(&[]).unwrap().is_empty());
        let mut wrong = checksums[1].clone();
        wrong[650] ^= 1;
        // From the device, several requests at once; through the page cache; and from memory.
        for _ in 0..3 {
            let mut found = vec![0; 700 * BLOCK];
            let refused = segment.read(600, &mut found, &wrong).unwrap_err();
            assert!(
                matches!(refused, SegmentError::Checksum { block: 1250, .. }),
                "SEGMENT-3: {refused}"
            );
        }
        for (write, sums) in writes.iter().zip(&checksums) {
            let expected = write.buffers.concat();
            let by_block: Vec<Checksum> = expected.chunks(BLOCK).map(block_checksum).collect();
            assert_eq!(sums, &by_block);
            // SEGMENT-3: the read verifies too, in parallel where it is long.
            let mut found = vec![0; expected.len()];
            segment.read(write.start_block, &mut found, sums).unwrap();
            assert!(found == expected);
            let (mut head, mut rest) = (vec![0; BLOCK], vec![0; expected.len() - BLOCK]);
            let mut bufs = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)];
            segment
                .read_vectored(write.start_block, &mut bufs, sums)
                .unwrap();
            assert!([head, rest].concat() == expected);
        }
    }
}
