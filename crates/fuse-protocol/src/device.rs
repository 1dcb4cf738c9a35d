//! The device of a mount: one descriptor of `/dev/fuse`, and clones of it.

use crate::errno::Errno;
use crate::wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

const IOC_CLONE: Opcode = opcode::read::<u32>(wire::IOC_GROUP, 0);
const IOC_BACKING_OPEN: Opcode = opcode::write::<wire::BackingMap>(wire::IOC_GROUP, 1);
const IOC_BACKING_CLOSE: Opcode = opcode::write::<u32>(wire::IOC_GROUP, 2);

/// The kernel's end of one mount. Cheap to clone; the mount ends when it is unmounted, and dies
/// when all devices of it are closed.
#[derive(Debug, Clone)]
pub struct Device {
    fd: Arc<OwnedFd>,
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Device {
        Device { fd: Arc::new(fd) }
    }

    /// A device with a queue of its own for the requests in work, so that many threads do not meet
    /// at one lock. It needs permission to open `/dev/fuse`.
    pub(crate) fn clone_queue(&self) -> Result<Device, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(DEVICE_PATH, flags, Mode::empty())?;
        // SAFETY: FUSE_DEV_IOC_CLONE reads a u32 through the pointer, the descriptor of the mount.
        unsafe {
            ioctl(
                &fd,
                Setter::<IOC_CLONE, u32>::new(self.fd.as_raw_fd() as u32),
            )
        }?;
        Ok(Device::new(fd))
    }

    /// Reads of it, and of those who share it, do not block from now on.
    pub(crate) fn set_nonblocking(&self) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        Ok(rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?)
    }

    /// Whether the mount has neither ended nor been aborted.
    pub(crate) fn is_connected(&self) -> bool {
        let mut device = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec::default();
        match poll(&mut device, Some(&now)) {
            Ok(_) => !device[0].revents().contains(PollFlags::ERR),
            Err(_) => true, // A signal came, or there is no memory: nothing says that it has ended.
        }
    }

    /// One request. Blocks until there is one.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// One reply or notification, whole.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        match rustix::io::write(&self.fd, bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}

impl From<OwnedFd> for Device {
    /// A device that was opened and mounted elsewhere.
    fn from(fd: OwnedFd) -> Device {
        Device::new(fd)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file that the kernel reads and writes in place of the filesystem: name it in
/// [`crate::Opened::backing_id`], with `FopenFlags::PASSTHROUGH`. Only root may.
#[derive(Debug)]
pub struct Backing {
    device: Device,
    id: i32,
}

impl Backing {
    /// Makes `file` known to the mount. After the session has negotiated `PASSTHROUGH`.
    pub fn open(device: &Device, file: BorrowedFd<'_>) -> Result<Backing, Errno> {
        let open = BackingOpen(wire::BackingMap {
            fd: file.as_raw_fd(),
            flags: 0,
            padding: 0,
        });
        // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads a `fuse_backing_map` through the pointer.
        let id = unsafe { ioctl(device, open) }?;
        Ok(Backing {
            device: device.clone(),
            id,
        })
    }

    /// Its number, greater than 0.
    pub fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads a u32 through the pointer.
        let closed = unsafe {
            ioctl(
                &self.device,
                Setter::<IOC_BACKING_CLOSE, u32>::new(self.id as u32),
            )
        };
        if let Err(error) = closed {
            tracing::debug!("backing file {}: {error}; it goes with the mount", self.id);
        }
    }
}

/// The ioctl that answers with a number.
struct BackingOpen(wire::BackingMap);

// SAFETY: the opcode is that of FUSE_DEV_IOC_BACKING_OPEN, which reads a `fuse_backing_map` through
// the pointer, changes nothing, and returns the number.
unsafe impl Ioctl for BackingOpen {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        IOC_BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}
