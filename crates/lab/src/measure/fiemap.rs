//! Where a filesystem says that a file lies: `FS_IOC_FIEMAP`
//! (Documentation/filesystems/fiemap.rst).

use crate::error::{Result, Said};
use crate::measure::layout::Layout;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// Extents that one call brings.
const EXTENT_COUNT: usize = 256;
/// Write what is dirty first.
const FLAG_SYNC: u32 = 1;
/// The last extent of the file.
const EXTENT_LAST: u32 = 1;
/// Its place is not known, or it does not lie in blocks of its own: unknown, delayed, inline, in a
/// tail.
const EXTENT_NOT_PLACED: u32 = 0x2 | 0x4 | 0x200 | 0x400;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Extents {
    start: u64,
    length: u64,
    flags: u32,
    mapped_count: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENT_COUNT],
}

/// The call, with what it reads and fills.
struct Fiemap<'a>(&'a mut Extents);

/// What the number of the call counts: the structure without extents.
const HEAD_BYTES: usize = 32;

// SAFETY: the opcode is that of `FS_IOC_FIEMAP`, `_IOWR('f', 11, struct fiemap)`; the kernel reads
// the head and writes at most `extent_count` extents behind it, and there is room for as many.
unsafe impl Ioctl for Fiemap<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::from_components(rustix::ioctl::Direction::ReadWrite, b'f', 11, HEAD_BYTES)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// The places of a file on its device, or `None` where the filesystem does not tell.
pub fn layout(path: &Path) -> Result<Option<Layout>> {
    let file = File::open(path).said(|| path.display().to_string())?;
    let mut layout = Layout::default();
    let mut start = 0;
    loop {
        let mut request = Extents {
            start,
            length: u64::MAX - start,
            flags: FLAG_SYNC,
            mapped_count: 0,
            extent_count: EXTENT_COUNT as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENT_COUNT],
        };
        // SAFETY: see the implementation of `Ioctl`.
        match unsafe { rustix::ioctl::ioctl(file.as_fd(), Fiemap(&mut request)) } {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOTTY) => return Ok(None),
            other => other.said(|| format!("FIEMAP of '{}'", path.display()))?,
        }
        let extents = &request.extents[..request.mapped_count as usize];
        for extent in extents {
            if extent.flags & EXTENT_NOT_PLACED == 0 {
                layout.push(extent.physical, extent.length);
            }
        }
        match extents.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(Some(layout)),
        }
    }
}
