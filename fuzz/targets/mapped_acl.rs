//! Access control lists that users of a mount set, under ids that the mount translates.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: (Vec<(u32, u32, u32)>, Vec<u8>, Vec<u8>)| {
    let (ranges, acl, old) = input;
    larder_fuse::fuzzing::map_acl(&ranges, &acl, &old);
});
