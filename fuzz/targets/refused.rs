//! What was refused after it was answered, as a file of the database describes it.
#![no_main]

libfuzzer_sys::fuzz_target!(|about: &[u8]| {
    larder::fuzzing::object::read_refused(about);
});
