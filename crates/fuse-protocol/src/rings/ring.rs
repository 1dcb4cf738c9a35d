//! One io_uring, for one thread: it has commands for the device in flight, and watches whether the
//! session is over. What is raw about the transport is here and in [`super::memory`].
//!
//! Its memory is ours, and the kernel keeps its pages (`NO_MMAP`). A mapping of the descriptor
//! would keep the io_uring, and with it the device, until the last thread of a killed server has
//! ended, which may wait for an answer of that very server (`FUSE-12` of `fuse`).
//!
//! The kernel fills memory of ours only while the thread that has the ring is in [`Ring::submit`]
//! or [`Ring::wait`] (`DEFER_TASKRUN`).

use super::memory::Memory;
use crate::device::Device;
use crate::errno::Errno;
use crate::stop::Stop;
use crate::wire;
use rustix::io_uring::{
    IoringEnterFlags, IoringOp, IoringRegisterOp, IoringSetupFlags, io_uring_enter,
    io_uring_params, io_uring_ptr, io_uring_register, io_uring_setup,
};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{NonNull, null};
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the watch; commands have 32 bits.
const WATCH: u64 = u64::MAX;

/// Before the completions of a ring, at most.
const INDICES_BYTES: usize = 1024;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The command of this name has ended: 0, or the negative number of an error.
    Command { name: u32, result: i32 },
    /// The session is over.
    Stopped,
}

/// See the module. Made by any thread, used by the one that enables it.
#[derive(Debug)]
pub(super) struct Ring {
    // First, so that it is closed before its memory goes.
    fd: OwnedFd,
    indices: Memory,
    entries: Memory,
    sq_tail_at: usize,
    cq_head_at: usize,
    cq_tail_at: usize,
    cqes_at: usize,
    sq_mask: u32,
    cq_mask: u32,
}

impl Ring {
    /// For so many commands in flight.
    pub(super) fn new(command_max: u32) -> Result<Ring, Errno> {
        let mut params = io_uring_params::default();
        let entry_count = (command_max as usize + 1).next_power_of_two();
        let indices = Memory::new(INDICES_BYTES + 2 * entry_count * size_of::<Cqe>())?;
        let entries = Memory::new(entry_count * size_of::<Sqe>())?;
        params.cq_off.user_addr = io_uring_ptr::new(indices.start().as_ptr());
        params.sq_off.user_addr = io_uring_ptr::new(entries.start().as_ptr());
        params.flags = IoringSetupFlags::NO_MMAP
            | IoringSetupFlags::SQE128
            | IoringSetupFlags::NO_SQARRAY
            | IoringSetupFlags::R_DISABLED
            | IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN;
        // SAFETY: the flags name no other descriptor (ATTACH_WQ), and both pieces of memory have
        // room for as many as the kernel makes: a power of two, and twice as many.
        let fd = unsafe { io_uring_setup(command_max + 1, &mut params) }?;
        let is_as_expected = params.sq_entries as usize == entry_count
            && params.cq_entries as usize == 2 * entry_count
            && params.cq_off.cqes as usize <= INDICES_BYTES;
        if !is_as_expected {
            return Err(Errno::EPROTO);
        }
        Ok(Ring {
            fd,
            indices,
            entries,
            sq_tail_at: params.sq_off.tail as usize,
            cq_head_at: params.cq_off.head as usize,
            cq_tail_at: params.cq_off.tail as usize,
            cqes_at: params.cq_off.cqes as usize,
            sq_mask: params.sq_entries - 1,
            cq_mask: params.cq_entries - 1,
        })
    }

    /// The calling thread has the ring from now on, and no other may use it.
    pub(super) fn enable(&mut self) -> Result<(), Errno> {
        let operation = IoringRegisterOp::RegisterEnableRings;
        // SAFETY: this operation takes no argument.
        unsafe { io_uring_register(&self.fd, operation, null(), 0) }?;
        Ok(())
    }

    /// [`Event::Stopped`] comes when `stop` is set. `stop` outlives the ring.
    pub(super) fn watch(&mut self, stop: &Stop) -> Result<(), Errno> {
        self.submit(&Sqe {
            opcode: IoringOp::PollAdd as u8,
            fd: stop.as_fd().as_raw_fd(),
            op_flags: libc::POLLIN as u32,
            user_data: WATCH,
            ..Sqe::default()
        })
    }

    /// Gives the kernel an entry of `queue`: `parts` are its headers, and room for content.
    ///
    /// # Safety
    /// Both, and `parts` itself, stay where they are while the ring is there, and meanwhile nobody
    /// uses them but the thread that has the ring, between a command that has ended and the next
    /// one.
    pub(super) unsafe fn register(
        &mut self,
        device: &Device,
        (queue, name): (u16, u32),
        parts: NonNull<[libc::iovec; 2]>,
    ) -> Result<(), Errno> {
        self.submit(&Sqe {
            cmd_op: wire::URING_REGISTER,
            addr: parts.addr().get() as u64,
            len: 2,
            ..Sqe::command(device, (queue, name), 0)
        })
    }

    /// Asks to take an entry of `queue` that is none: the kernel refuses, and gives up the rings of
    /// a mount that are not complete.
    pub(super) fn register_nothing(&mut self, device: &Device, queue: u16) -> Result<(), Errno> {
        self.submit(&Sqe {
            cmd_op: wire::URING_REGISTER,
            ..Sqe::command(device, (queue, 0), 0)
        })
    }

    /// Hands over the reply in the entry of the request `commit_id`, and asks for the next one; the
    /// entry is this ring's from now on, whoever had it before.
    pub(super) fn commit(
        &mut self,
        device: &Device,
        (queue, name): (u16, u32),
        commit_id: u64,
    ) -> Result<(), Errno> {
        self.submit(&Sqe {
            cmd_op: wire::URING_COMMIT_AND_FETCH,
            ..Sqe::command(device, (queue, name), commit_id)
        })
    }

    fn submit(&mut self, sqe: &Sqe) -> Result<(), Errno> {
        let tail = self.index(self.sq_tail_at).load(Ordering::Relaxed);
        let at = (tail & self.sq_mask) as usize * size_of::<Sqe>();
        // SAFETY: it is in the mapping and aligned, and the kernel has read all that were submitted
        // before, each in a call of its own.
        unsafe { self.entries.place::<Sqe>(at).write(*sqe) };
        let next = tail.wrapping_add(1);
        self.index(self.sq_tail_at).store(next, Ordering::Release);
        loop {
            // SAFETY: what the entries refer to is there, see those who make them.
            match unsafe { io_uring_enter(&self.fd, 1, 0, IoringEnterFlags::empty()) } {
                Ok(_) => return Ok(()),
                // The kernel has no memory for it at this moment, or a signal came.
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Why the command of this name has ended with an error, if it has; other events may have come
    /// before. They all stay.
    pub(super) fn refusal(&self, of: u32) -> Option<Errno> {
        self.events().find_map(|event| match event {
            Event::Command { name, result } if name == of && result < 0 => {
                Some(Errno::from_code(-result))
            }
            _ => None,
        })
    }

    /// What has happened and was not waited for, the oldest first.
    fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let head = self.index(self.cq_head_at).load(Ordering::Relaxed);
        let tail = self.index(self.cq_tail_at).load(Ordering::Acquire);
        (0..tail.wrapping_sub(head)).map(move |count| self.event(head.wrapping_add(count)))
    }

    fn event(&self, index: u32) -> Event {
        let at = self.cqes_at + (index & self.cq_mask) as usize * size_of::<Cqe>();
        // SAFETY: it is in the mapping and aligned, and the kernel has filled it.
        let cqe = unsafe { self.indices.place::<Cqe>(at).read() };
        match cqe.user_data {
            WATCH => Event::Stopped,
            name => Event::Command {
                name: name as u32,
                result: cqe.result,
            },
        }
    }

    /// Waits for what happens next.
    pub(super) fn wait(&mut self) -> Result<Event, Errno> {
        loop {
            if let Some(event) = self.events().next() {
                let head = self.index(self.cq_head_at).load(Ordering::Relaxed);
                let next = head.wrapping_add(1);
                self.index(self.cq_head_at).store(next, Ordering::Release);
                return Ok(event);
            }
            // SAFETY: nothing is submitted.
            match unsafe { io_uring_enter(&self.fd, 0, 1, IoringEnterFlags::GETEVENTS) } {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: it is in the mapping, which lives as long as `self`, and aligned; both sides use
        // it as an atomic one.
        unsafe { AtomicU32::from_ptr(self.indices.place(at).as_ptr()) }
    }
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// `struct io_uring_sqe` of 128 bytes, with what a command for the device has at its end.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    cmd_op: u32,
    padding: u32,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    file_index: u32,
    request: wire::UringCmdReq,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<Cqe>() == 16);
const _: () = assert!(size_of::<Sqe>() == 128);
const _: () = assert!(offset_of!(Sqe, cmd_op) == 8 && offset_of!(Sqe, addr) == 16);
const _: () = assert!(offset_of!(Sqe, len) == 24 && offset_of!(Sqe, op_flags) == 28);
const _: () = assert!(offset_of!(Sqe, user_data) == 32 && offset_of!(Sqe, request) == 48);

impl Sqe {
    fn command(device: &Device, (queue, name): (u16, u32), commit_id: u64) -> Sqe {
        Sqe {
            opcode: IoringOp::UringCmd as u8,
            fd: device.as_fd().as_raw_fd(),
            user_data: u64::from(name),
            request: wire::UringCmdReq {
                commit_id,
                qid: queue,
                ..wire::UringCmdReq::default()
            },
            ..Sqe::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::IoUringSupport;
    use crate::transport::is_refused;

    #[test]
    fn a_ring_is_told_of_the_end_and_of_refusals() {
        if is_refused(IoUringSupport::detect()) {
            println!("not run: this process is permitted no io_uring");
            return;
        }
        let mut ring = Ring::new(1).unwrap();
        let stop = Stop::new().unwrap();
        ring.enable().unwrap();
        ring.watch(&stop).unwrap();
        assert_eq!(ring.events().next(), None);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(
            !maps.contains("io_uring"),
            "RING-5: it would outlive its descriptor"
        );
        // No device of a mount.
        let device = Device::from(OwnedFd::from(tempfile::tempfile().unwrap()));
        ring.register_nothing(&device, 0).unwrap();
        assert!(ring.refusal(0).is_some() && ring.refusal(1).is_none());
        let refused = ring.events().next();
        assert_eq!(ring.wait().ok(), refused);
        assert_eq!(ring.events().next(), None);
        stop.set();
        assert_eq!(ring.wait(), Ok(Event::Stopped), "RING-5");
        // The end is told first, and hides no refusal.
        ring.watch(&stop).unwrap();
        ring.register_nothing(&device, 0).unwrap();
        assert_eq!(ring.events().next(), Some(Event::Stopped));
        assert!(ring.refusal(0).is_some(), "RING-4");
    }
}
