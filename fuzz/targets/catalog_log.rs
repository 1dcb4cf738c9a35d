//! The log of a catalog, before SQLite reads it (`SCAN-2`, `SCAN-3`). The fuzzer cannot guess a
//! chain of checksums, so they are also set right.
#![no_main]

use larder_catalog_sqlite::fuzzing::scan_log;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

const HEAD_BYTES: usize = 32;
const FRAME_HEAD_BYTES: usize = 24;

fn directory() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("larder-fuzz-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        fs::write(path.join("catalog.db"), [0; 8192]).expect("a catalog");
        path
    })
}

/// Continues a checksum of words in the order of the machine (docs of SQLite's format).
fn add(sum: &mut (u32, u32), bytes: &[u8]) {
    for pair in bytes.as_chunks::<8>().0 {
        let word =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        sum.0 = sum.0.wrapping_add(word(0)).wrapping_add(sum.1);
        sum.1 = sum.1.wrapping_add(word(4)).wrapping_add(sum.0);
    }
}

fn put(bytes: &mut [u8], sum: (u32, u32)) {
    bytes[..4].copy_from_slice(&sum.0.to_be_bytes());
    bytes[4..8].copy_from_slice(&sum.1.to_be_bytes());
}

/// Frames of 512 bytes whose chain fits, but for those that `bad` names.
fn mend(bytes: &mut [u8], bad: u64) {
    if bytes.len() < HEAD_BYTES {
        return;
    }
    bytes[..4].copy_from_slice(&0x377f_0682_u32.to_be_bytes());
    bytes[8..12].copy_from_slice(&512_u32.to_be_bytes());
    let mut sum = (0, 0);
    add(&mut sum, &bytes[..24]);
    put(&mut bytes[24..32], sum);
    let (head, frames) = bytes.split_at_mut(HEAD_BYTES);
    for (number, frame) in frames.chunks_exact_mut(FRAME_HEAD_BYTES + 512).enumerate() {
        frame[8..16].copy_from_slice(&head[16..24]);
        add(&mut sum, &frame[..8]);
        add(&mut sum, &frame[FRAME_HEAD_BYTES..]);
        if bad >> (number % 64) & 1 == 0 {
            put(&mut frame[16..24], sum);
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: (bool, u64, Vec<u8>)| {
    let (is_mended, bad, mut bytes) = input;
    if is_mended {
        mend(&mut bytes, bad);
    }
    let path = directory().join("catalog.db-wal");
    fs::write(&path, &bytes).expect("a log");
    scan_log(directory()).expect("SCAN-3: a regular file can be read");
    // It changes nothing.
    assert_eq!(fs::read(&path).expect("a log"), bytes, "SCAN-2");
});
