//! The root record of a segment (`FORMAT-2`, `FORMAT-3`), and that of format 1. The fuzzer cannot guess a checksum, so it
//! is also set right.
#![no_main]

use larder_format::checksum::crc32c;
use larder_format::superblock::{SUPERBLOCK_BYTES, UnverifiedSuperblock};

/// Where the checksum lies (docs/format.md).
const CHECKSUM_AT: usize = 12;

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| {
    let (copy, bytes) = (usize::from(input.0 % 2), input.1);
    let mut raw = [0; SUPERBLOCK_BYTES];
    let length = bytes.len().min(SUPERBLOCK_BYTES);
    raw[..length].copy_from_slice(&bytes[..length]);
    raw[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32c(&raw).to_le_bytes();
    raw[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum);
    larder_format_one::superblock::choose([&raw, &raw]);
    if let Ok(superblock) = UnverifiedSuperblock::new(copy, &raw).verify() {
        let again = superblock.encode();
        assert_eq!(
            UnverifiedSuperblock::new(copy, &again).verify().as_ref(),
            Ok(&superblock),
            "FORMAT-3"
        );
    }
});
