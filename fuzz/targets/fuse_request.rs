//! What a kernel sends (`PROTOCOL-1`).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    larder_fuse_protocol::fuzzing::read_request(bytes);
    larder_fuse_protocol::fuzzing::read_entry(bytes);
});
