//! A page of a list of pieces (`FORMAT-2`, `FORMAT-3`).
#![no_main]

use larder_format::PiecePage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(page) = PiecePage::decode(bytes) {
        assert_eq!(
            PiecePage::decode(&page.encode()).as_ref(),
            Ok(&page),
            "FORMAT-3"
        );
    }
});
