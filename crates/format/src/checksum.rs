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

/// The same of several parts, as if one stood behind the other.
pub fn crc32c_of(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_crc_32c() {
        // The check value of the CRC catalogue, and RFC 3720 B.4 for the zeros.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "FORMAT-4");
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa, "FORMAT-4");
        assert_eq!(block_checksum(&[0; 4096]), crc32c(&[0; 4096]), "FORMAT-4");
        for parts in [
            &[&b"1234"[..], b"", b"56789"][..],
            &[b"123456789"],
            &[b"", b"123456789"],
        ] {
            assert_eq!(crc32c_of(parts), 0xe306_9283, "FORMAT-4");
        }
        assert_eq!(crc32c_of(&[]), crc32c(&[]), "FORMAT-4");
    }
}
