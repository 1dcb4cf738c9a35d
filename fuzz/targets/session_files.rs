//! Names and content of files in the directory of a database: sessions, requests, tracers,
//! transactions.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    larder::fuzzing::object::read_text(text);
    larder::fuzzing::object::read_name(text);
    larder_fuse::fuzzing::read_tracer_name(text);
});
