//! Access control lists that users of a mount set (`ACL-1`).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    larder::fuzzing::read_acl(bytes);
});
