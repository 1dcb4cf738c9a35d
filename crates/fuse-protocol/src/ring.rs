//! One io_uring with one request of the kernel's in it: the raw side of the transport by ring.
//!
//! ```text
//!   register ──→ waits ──→ request here ──→ commit ─┐
//!                  ↑                                │ the reply goes, and the next request is
//!                  └────────────────────────────────┘ asked for by the same command
//! ```

use crate::device::Device;
use crate::errno::Errno;
use crate::wire::{self, Wire};
use rustix::io_uring::{
    IORING_OFF_SQES, IoringEnterFlags, IoringSetupFlags, io_uring_enter, io_uring_params,
    io_uring_setup,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const OP_URING_CMD: u8 = 46;
const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;
const PAGE_BYTES: usize = 4096;

/// A ring of one entry, for the thread that makes it.
#[derive(Debug)]
pub(crate) struct Ring {
    fd: OwnedFd,
    indices: Mapping,
    entries: Mapping,
    sq_tail: usize,
    cq_head: usize,
    cq_tail: usize,
    cqes: usize,
    sq_mask: u32,
    cq_mask: u32,
}

impl Ring {
    pub(crate) fn new() -> Result<Ring, Errno> {
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::SQE128
            | IoringSetupFlags::NO_SQARRAY
            | IoringSetupFlags::SINGLE_ISSUER;
        if std::env::var_os("RING_NO_DEFER").is_none() {
            params.flags |= IoringSetupFlags::DEFER_TASKRUN;
        }
        // SAFETY: nothing is submitted by it.
        let fd = unsafe { io_uring_setup(1, &mut params) }?;
        let cq_end = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let indices = Mapping::new(&fd, cq_end.max(params.sq_off.array as usize), 0)?;
        let entries_bytes = params.sq_entries as usize * size_of::<Sqe>();
        let entries = Mapping::new(&fd, entries_bytes, IORING_OFF_SQES)?;
        Ok(Ring {
            fd,
            indices,
            entries,
            sq_tail: params.sq_off.tail as usize,
            cq_head: params.cq_off.head as usize,
            cq_tail: params.cq_off.tail as usize,
            cqes: params.cq_off.cqes as usize,
            sq_mask: params.sq_entries - 1,
            cq_mask: params.cq_entries - 1,
        })
    }

    pub(crate) fn register(
        &mut self,
        device: &Device,
        queue: u16,
        vectors: &[libc::iovec; 2],
    ) -> Result<(), Errno> {
        self.submit(&Sqe {
            opcode: OP_URING_CMD,
            fd: device.raw(),
            cmd_op: CMD_REGISTER,
            addr: vectors.as_ptr().addr() as u64,
            len: 2,
            queue,
            ..Sqe::default()
        })
    }

    pub(crate) fn commit(
        &mut self,
        device: &Device,
        queue: u16,
        commit_id: u64,
    ) -> Result<(), Errno> {
        self.submit(&Sqe {
            opcode: OP_URING_CMD,
            fd: device.raw(),
            cmd_op: CMD_COMMIT_AND_FETCH,
            commit_id,
            queue,
            ..Sqe::default()
        })
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of an aligned u32 in this mapping.
        unsafe { AtomicU32::from_ptr(self.indices.at.as_ptr().byte_add(at).cast()) }
    }

    fn submit(&mut self, sqe: &Sqe) -> Result<(), Errno> {
        let tail = self.index(self.sq_tail).load(Ordering::Relaxed);
        // SAFETY: there are as many entries as the mask says, and none is with the kernel.
        unsafe {
            let slot = self.entries.at.cast::<Sqe>();
            slot.add((tail & self.sq_mask) as usize).write(*sqe);
        }
        self.index(self.sq_tail).store(tail.wrapping_add(1), Ordering::Release);
        loop {
            // SAFETY: what the entry points to lives as long as the ring.
            match unsafe { io_uring_enter(&self.fd, 1, 0, IoringEnterFlags::empty()) } {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The result of the command.
    pub(crate) fn wait(&mut self) -> Result<i32, Errno> {
        loop {
            let head = self.index(self.cq_head).load(Ordering::Relaxed);
            if head != self.index(self.cq_tail).load(Ordering::Acquire) {
                let at = self.cqes + (head & self.cq_mask) as usize * size_of::<Cqe>();
                // SAFETY: the kernel has filled it.
                let cqe = unsafe { self.indices.at.as_ptr().byte_add(at).cast::<Cqe>().read() };
                self.index(self.cq_head).store(head.wrapping_add(1), Ordering::Release);
                return Ok(cqe.result);
            }
            // SAFETY: nothing is submitted.
            match unsafe { io_uring_enter(&self.fd, 0, 1, IoringEnterFlags::GETEVENTS) } {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    len_bytes: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, len_bytes: usize, offset: u64) -> Result<Mapping, Errno> {
        let len_bytes = len_bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe {
            mmap(
                null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                offset,
            )
        }?;
        NonNull::new(at).map(|at| Mapping { at, len_bytes }).ok_or(Errno::EIO)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr(), self.len_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    cmd_op: u32,
    padding0: u32,
    addr: u64,
    len: u32,
    cmd_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    splice: u32,
    fuse_flags: u64,
    commit_id: u64,
    queue: u16,
    padding1: [u16; 3],
    padding2: [u64; 7],
}
const _: () = assert!(size_of::<Sqe>() == 128);

/// What the kernel and we write beside the payload.
#[repr(C, align(4096))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headers {
    pub(crate) in_out: [u8; 128],
    pub(crate) fixed: [u8; 128],
    pub(crate) flags: u64,
    pub(crate) commit_id: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) padding: u32,
    pub(crate) reserved: u64,
}

impl Headers {
    pub(crate) fn new() -> Box<Headers> {
        Box::new(Headers {
            in_out: [0; 128],
            fixed: [0; 128],
            flags: 0,
            commit_id: 0,
            payload_bytes: 0,
            padding: 0,
            reserved: 0,
        })
    }

    pub(crate) fn put<T: Wire>(&mut self, header: &T) {
        self.in_out[..size_of::<T>()].copy_from_slice(wire::bytes_of(header));
    }
}

/// The queues that the kernel wants.
pub(crate) fn queue_count() -> Option<u16> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    list.trim().split(',').try_fold(0, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}
