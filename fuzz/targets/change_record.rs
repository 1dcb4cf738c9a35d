//! What the feed of changes keeps of a commit (`FORMAT-2`, `FORMAT-3`).
#![no_main]

use larder_format::change_record::{decode_changes, encode_changes};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(changes) = decode_changes(bytes) {
        let again = decode_changes(&encode_changes(&changes));
        assert_eq!(again.as_ref(), Ok(&changes), "FORMAT-3");
    }
});
