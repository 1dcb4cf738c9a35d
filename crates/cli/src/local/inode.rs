//! Attributes of what a descriptor holds. Of a regular file the descriptor is open; of everything
//! else it only names the inode (`O_PATH`), and what the kernel does not offer for such a one goes
//! by way of `/proc`.

use crate::error::{At, Failure, Result};
use crate::side::{Carry, Found};
use larder::{FileKind, limits};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, StatxFlags, Timespec, Timestamps, XattrFlags, makedev,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// What has a name in a directory, or what a descriptor holds.
pub(super) fn stat_at(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: AtFlags,
) -> rustix::io::Result<Found> {
    let stat = rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS)?;
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => FileKind::File,
    };
    let ns = |time: rustix::fs::StatxTimestamp| {
        let seconds = time.tv_sec.saturating_mul(1_000_000_000);
        seconds.saturating_add(time.tv_nsec.into())
    };
    Ok(Found {
        kind,
        mode: u32::from(stat.stx_mode) & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink.into(),
        size_bytes: stat.stx_size,
        atime_ns: ns(stat.stx_atime),
        mtime_ns: ns(stat.stx_mtime),
        rdev: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        identity: (
            makedev(stat.stx_dev_major, stat.stx_dev_minor),
            stat.stx_ino,
        ),
    })
}

/// What a descriptor holds.
pub(super) struct Held<'a> {
    held: BorrowedFd<'a>,
    /// It only names the inode.
    is_path: bool,
    shown: &'a [u8],
}

impl<'a> Held<'a> {
    /// Of an open file.
    pub(super) fn file(held: BorrowedFd<'a>, shown: &'a [u8]) -> Held<'a> {
        Held {
            held,
            is_path: false,
            shown,
        }
    }

    /// Of a descriptor that only names an inode.
    pub(super) fn path(held: BorrowedFd<'a>, shown: &'a [u8]) -> Held<'a> {
        Held {
            held,
            is_path: true,
            shown,
        }
    }

    /// The way of `/proc` to the inode itself, which is none that somebody could change.
    fn magic(&self) -> String {
        format!("/proc/self/fd/{}", self.held.as_raw_fd())
    }

    /// That `/proc` is missing is not to be taken for a missing file.
    fn explain<T>(&self, result: rustix::io::Result<T>, what: &str) -> Result<T> {
        let what = || format!("cannot {what} of '{}'", lossy(self.shown));
        match result {
            Err(Errno::NOENT) if self.is_path => Err(Failure::Other(format!(
                "{}: /proc is not mounted; mount it",
                what()
            ))),
            result => result.at(what),
        }
    }

    /// The attributes.
    pub(super) fn found(&self) -> Result<Found> {
        stat_at(self.held, b"", AtFlags::EMPTY_PATH)
            .at(|| format!("cannot examine '{}'", lossy(self.shown)))
    }

    /// The extended attributes.
    pub(super) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let what = "read the attributes";
        let listed = read_whole(|buffer| match self.is_path {
            true => rustix::fs::listxattr(self.magic(), buffer),
            false => rustix::fs::flistxattr(self.held, buffer),
        });
        let list = match listed {
            // The filesystem has none at all.
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            listed => self.explain(listed, what)?,
        };
        let names = list
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty());
        let value_of = |name: &[u8]| {
            let read = read_whole(|buffer| match self.is_path {
                true => rustix::fs::getxattr(self.magic(), OsStr::from_bytes(name), buffer),
                false => rustix::fs::fgetxattr(self.held, OsStr::from_bytes(name), buffer),
            });
            match read {
                Ok(value) => Some(Ok((name.to_vec(), value))),
                // Removed since the names were listed.
                Err(Errno::NODATA) => None,
                Err(errno) => Some(self.explain(Err(errno), what)),
            }
        };
        names.filter_map(value_of).collect()
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let flags = XattrFlags::empty();
        let key = OsStr::from_bytes(name);
        let set = match self.is_path {
            true => rustix::fs::setxattr(self.magic(), key, value, flags),
            false => rustix::fs::fsetxattr(self.held, key, value, flags),
        };
        self.explain(set, &format!("set the attribute {}", lossy(name)))
    }

    /// Changes attributes.
    pub(super) fn set_attr(&self, carry: &Carry) -> Result<()> {
        let what = "change the attributes";
        if let Some((uid, gid)) = carry.owner {
            let (uid, gid) = (
                rustix::fs::Uid::from_raw(uid),
                rustix::fs::Gid::from_raw(gid),
            );
            let given =
                rustix::fs::chownat(self.held, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
            self.explain(given, what)?;
        }
        // After the owner: a change of owner clears setuid and setgid.
        if let Some(mode) = carry.mode
            && !(self.is_path && self.found()?.kind == FileKind::Symlink)
        {
            let mode = Mode::from_raw_mode(mode);
            let set = match self.is_path {
                true => rustix::fs::chmod(self.magic(), mode),
                false => rustix::fs::fchmod(self.held, mode),
            };
            self.explain(set, what)?;
        }
        if let Some((atime_ns, mtime_ns)) = carry.times_ns {
            let times = Timestamps {
                last_access: timespec(atime_ns),
                last_modification: timespec(mtime_ns),
            };
            let set = match self.is_path {
                true => rustix::fs::utimensat(self.held, "", &times, AtFlags::EMPTY_PATH),
                false => rustix::fs::futimens(self.held, &times),
            };
            let set = match set {
                // Kernels before 5.8 do not know the flag.
                Err(Errno::INVAL) if self.is_path => {
                    rustix::fs::utimensat(CWD, self.magic(), &times, AtFlags::empty())
                }
                set => set,
            };
            self.explain(set, what)?;
        }
        Ok(())
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(1_000_000_000),
        tv_nsec: ns.rem_euclid(1_000_000_000),
    }
}

/// Reads a value of any length that Linux knows (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
fn read_whole(
    read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; limits::XATTR_VALUE_BYTES_MAX];
    let length = read(&mut value)?;
    value.truncate(length);
    Ok(value)
}

/// A path in messages.
pub(super) fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
