//! Memory in whole pages, beside the allocator: what is given back is the kernel's again at once,
//! whatever lies around it.
//!
//! An allocator keeps freed memory for itself while anything near it is in use, and one arena for
//! each of several threads; of many short-lived buffers more would stay resident than all of them
//! ever held at one time.

use crate::aligned::ALIGN_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// The kernel is asked for so much at once: address space that holds nothing until it is written.
const SLAB_BYTES: usize = 1 << 20;
/// How many zeros there are to be written.
const ZERO_BYTES: usize = 4 << 20;

/// Bytes in memory that begins at a multiple of 4096. It has a fixed room; dropping it without
/// keeping it for somebody else loses its address space until the process ends.
#[derive(Debug, Default)]
pub struct PageBuf {
    memory: &'static mut [u8],
    len_bytes: usize,
}

impl PageBuf {
    /// Empty buffers with room for `capacity_bytes` each, a power of two from 4096 to 1 MiB: as
    /// many as fit into 1 MiB. They take no memory until they are written. Ends the process where
    /// the kernel has no address space for them, as the allocator does.
    pub fn carve(capacity_bytes: usize) -> Vec<PageBuf> {
        assert!(
            capacity_bytes.is_power_of_two()
                && (ALIGN_BYTES..=SLAB_BYTES).contains(&capacity_bytes)
        );
        let Ok(slab) = map(SLAB_BYTES) else {
            out_of_memory(SLAB_BYTES)
        };
        let pieces = slab.chunks_exact_mut(capacity_bytes);
        let empty = |memory| PageBuf {
            memory,
            len_bytes: 0,
        };
        pieces.map(empty).collect()
    }

    /// How long it can become, bytes; what it takes of memory once it was that long.
    pub fn capacity_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Adds `bytes` at the end, where they have room.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.len_bytes + bytes.len();
        self.memory[self.len_bytes..end].copy_from_slice(bytes);
        self.len_bytes = end;
    }

    /// Cuts to `len_bytes`, or fills up to them with zeros, which have room.
    pub fn resize(&mut self, len_bytes: usize) {
        if let Some(new) = self.memory[..len_bytes].get_mut(self.len_bytes..) {
            new.fill(0);
        }
        self.len_bytes = len_bytes;
    }

    /// Empties it, and gives the kernel its memory back; the room stays.
    pub fn release(&mut self) {
        self.len_bytes = 0;
        if self.memory.is_empty() {
            return;
        }
        let (start, len) = (self.memory.as_mut_ptr(), self.memory.len());
        // SAFETY: the range is this buffer's alone, whole pages of a private anonymous map that is
        // never unmapped: it reads as zeros afterwards, and stays initialised.
        let outcome = unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) };
        // A kernel with larger pages refuses parts of one: then they stay resident.
        debug_assert!(outcome.is_ok() || rustix::param::page_size() > len);
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len_bytes]
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len_bytes]
    }
}

/// Memory for one large request, which is the kernel's again when it is dropped. An allocator that
/// has seen it would keep as much in every arena from then on.
#[derive(Debug)]
pub struct MappedBuf {
    memory: &'static mut [u8],
}

impl MappedBuf {
    /// `len_bytes` zeros that begin at a multiple of 4096.
    pub fn zeroed(len_bytes: usize) -> MappedBuf {
        let memory = match map(len_bytes.max(1)) {
            Ok(memory) => memory,
            Err(_) => out_of_memory(len_bytes),
        };
        MappedBuf { memory }
    }
}

impl Drop for MappedBuf {
    fn drop(&mut self) {
        let (start, len) = (self.memory.as_mut_ptr(), self.memory.len());
        self.memory = &mut [];
        // SAFETY: the whole of what `map` gave, to which nothing refers any more. If the kernel
        // refuses, it stays mapped, and nobody uses it.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

impl Deref for MappedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory
    }
}

impl DerefMut for MappedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory
    }
}

/// Zeros that begin at a multiple of 4096, and take no memory: nobody has ever written them, so
/// that the kernel shows one page of its own in place of each.
pub(crate) fn zeros() -> &'static [u8] {
    static ZEROS: OnceLock<&'static [u8]> = OnceLock::new();
    ZEROS.get_or_init(|| match map(ZERO_BYTES) {
        Ok(zeros) => zeros,
        Err(_) => out_of_memory(ZERO_BYTES),
    })
}

/// Ends the process as the allocator does.
fn out_of_memory(len_bytes: usize) -> ! {
    match Layout::from_size_align(len_bytes, ALIGN_BYTES) {
        Ok(layout) => handle_alloc_error(layout),
        Err(_) => std::process::abort(),
    }
}

/// New zeros from the kernel, until somebody unmaps them.
fn map(len_bytes: usize) -> rustix::io::Result<&'static mut [u8]> {
    // SAFETY: no address is asked for, so that nothing that is mapped is replaced.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len_bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // A huge page would be resident for the sake of one buffer in it. A kernel that has none
    // refuses, and there is nothing to do then.
    // SAFETY: the range was just mapped; the advice changes nothing that can be read.
    let _ = unsafe { madvise(start, len_bytes, Advice::LinuxNoHugepage) };
    // SAFETY: `len_bytes` of zeros that nobody else knows of; only `MappedBuf` unmaps its own.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_empty_again_when_they_are_released() {
        let mut buffers = PageBuf::carve(16 << 10);
        assert_eq!(buffers.len(), 64);
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.is_empty() && buffer.capacity_bytes() == 16 << 10);
            assert!(crate::aligned::is_aligned(&buffer.memory[..]));
            buffer.extend_from_slice(&[number as u8; 5000]);
            buffer.resize(6000);
            buffer.resize(5500);
        }
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.len(), 5500);
            assert!(buffer[..5000].iter().all(|&byte| byte == number as u8));
            assert!(buffer[5000..].iter().all(|&byte| byte == 0));
        }
        buffers[3].release();
        assert!(buffers[3].is_empty() && buffers[3].memory.iter().all(|&byte| byte == 0));
        assert_eq!(buffers[4][0], 4);
        let mut mapped = MappedBuf::zeroed(10_000);
        assert!(crate::aligned::is_aligned(&mapped) && mapped.iter().all(|&byte| byte == 0));
        mapped.fill(7);
        drop(mapped);
        assert!(zeros().len() == ZERO_BYTES && zeros().iter().all(|&byte| byte == 0));
        let mut none = PageBuf::default();
        none.release();
        assert!(none.is_empty() && none.capacity_bytes() == 0);
    }
}
