//! CRC-32C of blocks. Detects damage; says nothing about identity.

use crate::limits::BLOCK_BYTES;

/// CRC-32C (Castagnoli) of one block, zero padding included (`FORMAT-4`).
pub type Checksum = u32;

/// The checksum of one 4 KiB block. Panics unless `block` is exactly one block long: a caller that
/// checksums something else has a bug. Cost ≈ 0.1 µs.
pub fn block_checksum(block: &[u8]) -> Checksum {
    assert_eq!(
        block.len() as u64,
        BLOCK_BYTES,
        "checksums are taken of whole blocks"
    );
    crc32c(block)
}

/// CRC-32C of any bytes; used for superblocks and map pages.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
