//! Patterns and names, and paths.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: (&[u8], &[u8])| {
    let (pattern, name) = input;
    let _ = larder::matches_glob(pattern, name);
    if let Ok(names) = larder::split_path(pattern) {
        assert!(
            names
                .iter()
                .all(|name| !name.is_empty() && !name.contains(&b'/'))
        );
    }
    if !pattern.iter().any(|byte| b"*?[\\".contains(byte)) {
        assert_eq!(larder::matches_glob(pattern, name), pattern == name);
    }
});
