//! The decoders of this crate that `cargo xtask fuzz` calls. Only built by it.

use crate::mountinfo;
use crate::trace;

/// A line of the kernel's table of mounts, in which users choose names.
pub fn read_mount(line: &[u8]) {
    mountinfo::read_line(line);
}

/// What a mount writes into a tracer's pipe (`TRACE-1`), which its owner can write, too.
pub fn read_events(mut bytes: &[u8]) {
    while let Ok(Some(len_bytes)) = trace::read_message(bytes) {
        assert!(len_bytes > 0 && len_bytes <= bytes.len(), "TRACE-1");
        bytes = &bytes[len_bytes..];
    }
}

/// The name of a tracer's pipe.
pub fn read_tracer_name(name: &str) {
    trace::read_name(name);
}
