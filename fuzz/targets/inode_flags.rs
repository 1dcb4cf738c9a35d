//! Flags of inodes, as programs set them by ioctl.
#![no_main]

/// `FS_IOC_SETFLAGS` of 64 and of 32 bits, `FS_IOC_FSSETXATTR`.
const COMMANDS: [u32; 3] = [0x4008_6602, 0x4004_6602, 0x401c_5820];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for command in COMMANDS {
        larder_fuse::fuzzing::read_flags(command, data);
    }
});
