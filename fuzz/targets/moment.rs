//! Moments and patterns, as they stand in addresses and mount options.
#![no_main]

use larder::{matches_glob, parse_moment};

libfuzzer_sys::fuzz_target!(|input: (&str, &[u8], &[u8], i64)| {
    let (moment, pattern, name, now_ns) = input;
    drop(parse_moment(moment, now_ns));
    // What is too long for a name is not asked for.
    if pattern.len() <= 255 && name.len() <= 255 {
        matches_glob(pattern, name);
    }
});
