//! Memory that is mapped: what an io_uring shares with the kernel, and what requests come in.

use crate::errno::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Whole pages, zeroed, of which those cost something that were used.
#[derive(Debug)]
pub(super) struct Memory(Mapping);

impl Memory {
    /// At least so many bytes.
    pub(super) fn new(len_bytes: usize) -> Result<Memory, Errno> {
        let len_bytes = len_bytes.next_multiple_of(rustix::param::page_size());
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap_anonymous(null_mut(), len_bytes, PROTECTION, flags) }?;
        let memory = Mapping::of(at, len_bytes)?;
        // Else a small request might cost 2 MiB, and a dump of this process hold what users wrote.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontDump] {
            // SAFETY: neither changes what the memory holds.
            match unsafe { madvise(at, len_bytes, advice) } {
                Ok(()) => {}
                Err(error) => tracing::debug!("{advice:?} is not obeyed: {error}"),
            }
        }
        Ok(Memory(memory))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it was mapped with this length, is borrowed from here alone, and what the kernel
        // writes there it writes in calls of the one who has it (`ring`).
        unsafe { std::slice::from_raw_parts_mut(self.0.at.as_ptr().cast(), self.0.len_bytes) }
    }

    /// Where it begins: for the kernel.
    pub(super) fn start(&self) -> NonNull<c_void> {
        self.0.at
    }

    /// The `T` at so many bytes from its beginning.
    pub(super) fn place<T>(&self, offset: usize) -> NonNull<T> {
        let end = offset + size_of::<T>();
        assert!(end <= self.0.len_bytes, "beyond the mapping: {end}");
        // SAFETY: it is within the mapping, as was just looked at.
        let place = unsafe { self.0.at.byte_add(offset) }.cast();
        assert!(place.is_aligned(), "not aligned: {offset}");
        place
    }
}

/// Unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    len_bytes: usize,
}

// SAFETY: memory of this process, which any thread may use; who has it has it alone.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(at: *mut c_void, len_bytes: usize) -> Result<Mapping, Errno> {
        let at = NonNull::new(at).ok_or(Errno::ENOMEM)?;
        Ok(Mapping { at, len_bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        let mut memory = Memory::new(3 * 4096).unwrap();
        assert!(memory.bytes().iter().all(|&byte| byte == 0));
        memory.bytes().fill(7);
        assert_eq!(memory.bytes().len(), 3 * 4096);
        assert_eq!(memory.bytes().as_ptr().addr() % 4096, 0, "PROTOCOL-2");
    }

    #[test]
    fn memory_of_users_is_not_dumped_and_not_huge() {
        let mut memory = Memory::new(3 * 4096).unwrap();
        let at = memory.bytes().as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let bounds = |line: &str| {
            let (first, rest) = line.split_once('-')?;
            let end = rest.split(' ').next()?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some(number(first)?..number(end)?)
        };
        let mut lines = maps.lines();
        assert!(lines.any(|line| bounds(line).is_some_and(|range| range.contains(&at))));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" dd"), "{flags}");
        let has_huge = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert!(!has_huge || flags.contains(" nh"), "{flags}");
    }
}
