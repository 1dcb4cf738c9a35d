//! Moments as people write them, and times.
#![no_main]

use larder::{Moment, parse_moment, utc};

libfuzzer_sys::fuzz_target!(|input: (i64, &str)| {
    let (now_ns, text) = input;
    if let Ok(Moment::At(at_ns)) = parse_moment(text, now_ns) {
        let _ = utc::show(at_ns);
    }
    let _ = utc::parse(text);
});
