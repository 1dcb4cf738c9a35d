//! What comes out of a tracer's pipe, and lines of the table of mounts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    larder_fuse::fuzzing::read_events(bytes);
    larder_fuse::fuzzing::read_mount(bytes);
});
