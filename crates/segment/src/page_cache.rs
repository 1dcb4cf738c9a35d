//! What the host's kernel is asked about its page cache. Both are hints: where a kernel does not
//! know them, speed is all that is lost.

use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;

/// `cachestat` of Linux 6.5, whose number is the same everywhere.
const CACHESTAT: libc::c_long = 451;

/// Has the device begin with what was written at `offset_bytes` and on, `len_bytes` of it, and does
/// not wait: a flush finds it on its way, or done.
pub(crate) fn start_transfer(file: &File, offset_bytes: u64, len_bytes: u64) {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: no memory is referred to. What a transfer runs into, the flush reports.
    unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            offset_bytes as i64,
            len_bytes as i64,
            flags,
        )
    };
}

/// Whether the page cache has all of `len_bytes` at `offset_bytes`; `None`: the kernel does not
/// say (before Linux 6.5, or of a stranger's file).
pub(crate) fn has_all(file: &File, offset_bytes: u64, len_bytes: u64) -> Option<bool> {
    /// `struct cachestat_range`.
    #[repr(C)]
    struct Range {
        offset_bytes: u64,
        len_bytes: u64,
    }
    /// `struct cachestat`, pages each.
    #[repr(C)]
    #[derive(Default)]
    struct Found {
        cached: u64,
        dirty: u64,
        in_transfer: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = Range {
        offset_bytes,
        len_bytes,
    };
    let mut found = Found::default();
    let (from, to) = (&raw const range, &raw mut found);
    // SAFETY: both are as the kernel lays them out, and outlive the call; it reads the one and
    // writes the other.
    let outcome = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), from, to, 0) };
    let page_bytes = rustix::param::page_size() as u64;
    let end = (offset_bytes + len_bytes).div_ceil(page_bytes);
    (outcome == 0).then_some(found.cached == end - offset_bytes / page_bytes)
}

/// Whether the page cache has the page with `offset_bytes`, for kernels that tell no more. Asking
/// has the kernel fetch one that is absent.
pub(crate) fn has_page(file: &File, offset_bytes: u64) -> bool {
    let mut byte = [0];
    let slices = &mut [IoSliceMut::new(&mut byte)];
    preadv2(file, slices, offset_bytes, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_in_memory_is_told_from_what_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true);
        let file = file.open(path).unwrap();
        file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        start_transfer(&file, 0, 1 << 20);
        let Some(is_there) = has_all(&file, 4096, 100_000) else {
            return println!("not run: this kernel does not tell (Linux 6.5)");
        };
        assert!(is_there);
        assert_eq!(has_all(&file, 1 << 20, 1), Some(false), "behind the end");
        assert_eq!(
            has_all(&file, (1 << 20) - 1, 4096),
            Some(false),
            "a part is"
        );
        file.sync_data().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        assert_eq!(has_all(&file, 0, 1 << 20), Some(false));
        assert!(!has_page(&file, 700_000) && !has_page(&file, 1 << 20));
        fadvise(&file, 0, None, Advice::Random).unwrap();
        file.read_exact_at(&mut [0; 4096], 8192).unwrap();
        assert_eq!(has_all(&file, 8192, 4096), Some(true));
        assert!(has_page(&file, 8192) && !has_page(&file, 1 << 20));
        assert_eq!(has_all(&file, 8191, 4096), Some(false));
    }
}
