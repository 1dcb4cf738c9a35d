//! Where a page of an extent map lies (`FORMAT-2`, `FORMAT-3`).
#![no_main]

use larder_format::MapReference;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(reference) = MapReference::decode(bytes) {
        assert_eq!(
            MapReference::decode(&reference.encode()),
            Ok(reference),
            "FORMAT-3"
        );
    }
});
