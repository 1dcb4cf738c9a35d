//! The superblock of a segment in format 1: two copies of 4096 bytes at the start of the segment,
//! generation `g` in copy `g mod 2`.
//!
//! ```text
//!  0        8         12         16           24            40        44            48
//!  | magic  | version | checksum | generation | database_id | segment | block_bytes | ag_blocks |
//!  56            64           72
//!  | block_count | created_ns | zero …
//! ```

use larder_format::SegmentIndex;
use larder_format::checksum::crc32c;
use larder_format::limits::{AG_BLOCKS, BLOCK_BYTES};
use larder_format::superblock::{BLOCK_COUNT_MAX, COPY_COUNT, MAGIC, SUPERBLOCK_BYTES};

/// `version`.
pub const VERSION: u32 = 1;

/// What a superblock of format 1 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Counts the superblock writes of this segment.
    pub generation: u64,
    /// The database that owns the segment.
    pub database_id: [u8; 16],
    /// The index of the segment in its database.
    pub segment: SegmentIndex,
    /// Usable data blocks.
    pub block_count: u64,
    /// When the segment was created, ns since 1970 UTC.
    pub created_ns: i64,
}

/// The newest of the two copies that is whole; `None`: neither is of format 1 and whole.
pub fn choose(copies: [&[u8; SUPERBLOCK_BYTES]; COPY_COUNT]) -> Option<Superblock> {
    (0..COPY_COUNT)
        .filter_map(|copy| decode(copy, copies[copy]))
        .max_by_key(|superblock| superblock.generation)
}

fn decode(copy: usize, raw: &[u8; SUPERBLOCK_BYTES]) -> Option<Superblock> {
    let u32_at = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let mut unsummed = *raw;
    unsummed[12..16].fill(0);
    let found = Superblock {
        generation: u64_at(16),
        database_id: std::array::from_fn(|index| raw[24 + index]),
        segment: SegmentIndex(u32_at(40)),
        block_count: u64_at(56),
        created_ns: u64_at(64) as i64,
    };
    let is_whole = raw[..8] == MAGIC
        && u32_at(8) == VERSION
        && u32_at(12) == crc32c(&unsummed)
        && found.generation % COPY_COUNT as u64 == copy as u64
        && u64::from(u32_at(44)) == BLOCK_BYTES
        && u64_at(48) == AG_BLOCKS
        && found.block_count <= BLOCK_COUNT_MAX
        && raw[72..].iter().all(|&byte| byte == 0);
    is_whole.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Vec<u8> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/v1/segments/00000.seg"
        );
        std::fs::read(path).unwrap()
    }

    #[test]
    fn the_newest_whole_copy_counts() {
        let bytes = golden();
        let mut copies = [[0; SUPERBLOCK_BYTES]; COPY_COUNT];
        for (copy, raw) in copies.iter_mut().enumerate() {
            raw.copy_from_slice(&bytes[copy * SUPERBLOCK_BYTES..][..SUPERBLOCK_BYTES]);
        }
        let newest = choose([&copies[0], &copies[1]]).expect("FORMAT1-1");
        assert_eq!(newest.segment, SegmentIndex(0));
        for at in [0, 8, 12, 16, 24, 40, 44, 48, 56, 64, 72, 4095] {
            let of_newest = (newest.generation % 2) as usize;
            let mut damaged = copies;
            damaged[of_newest][at] ^= 1;
            let older = choose([&damaged[0], &damaged[1]]).expect("the other copy");
            assert_eq!(older.generation + 1, newest.generation, "byte {at}");
            damaged[1 - of_newest][at] ^= 1;
            assert_eq!(choose([&damaged[0], &damaged[1]]), None, "byte {at}");
        }
        assert_eq!(choose([&copies[1], &copies[0]]), None, "each in its place");
    }
}
