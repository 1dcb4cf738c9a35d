//! A page of an extent map (`FORMAT-2`, `FORMAT-3`).
#![no_main]

use larder_format::MapPage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(page) = MapPage::decode(bytes) {
        assert_eq!(
            MapPage::decode(&page.encode()).as_ref(),
            Ok(&page),
            "FORMAT-3"
        );
    }
});
