//! The local filesystem as a side of a copy.

use crate::error::{At, Result};
use crate::side::{Carry, Content, Found, Side};
use larder::{FileKind, NewNode, limits};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown,
    symlink,
};
use std::path::Path;

/// The local filesystem.
pub(crate) struct Local;

fn to_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

impl Side for Local {
    fn show(&self, path: &[u8]) -> String {
        String::from_utf8_lossy(path).into_owned()
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>> {
        let path = to_path(path);
        let metadata = if follow {
            path.metadata()
        } else {
            path.symlink_metadata()
        };
        match metadata {
            Ok(metadata) => Ok(Some(found(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at(|| format!("cannot examine '{}'", path.display())),
        }
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let path = to_path(path);
        let list = || -> io::Result<Vec<Vec<u8>>> {
            std::fs::read_dir(path)?
                .map(|entry| Ok(entry?.file_name().into_vec()))
                .collect()
        };
        list().at(|| format!("cannot list '{}'", path.display()))
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let path = to_path(path);
        let target = path
            .read_link()
            .at(|| format!("cannot read the link '{}'", path.display()))?;
        Ok(target.into_os_string().into_vec())
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn Content>> {
        let shown = self.show(path);
        let flags = if follow {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        // A pipe in place of the file must not hang the copy.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((flags | OFlags::NONBLOCK).bits().cast_signed())
            .open(to_path(path))
            .at(|| format!("cannot open '{shown}'"))?;
        Ok(Box::new(LocalFile { file, shown }))
    }

    fn create_file(&self, path: &[u8], mode: u32) -> Result<Box<dyn Content>> {
        let shown = self.show(path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode & 0o777)
            .open(to_path(path))
            .at(|| format!("cannot create '{shown}'"))?;
        Ok(Box::new(LocalFile { file, shown }))
    }

    fn overwrite(&self, path: &[u8]) -> Result<Box<dyn Content>> {
        let shown = self.show(path);
        let file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(to_path(path))
            .at(|| format!("cannot write '{shown}'"))?;
        Ok(Box::new(LocalFile { file, shown }))
    }

    fn create_node(&self, path: &[u8], new: NewNode<'_>, mode: u32) -> Result<()> {
        let at = to_path(path);
        let node = |kind, rdev| {
            rustix::fs::mknodat(CWD, at, kind, Mode::from_raw_mode(mode & 0o777), rdev)
                .map_err(io::Error::from)
        };
        let made = match new {
            NewNode::File => File::create_new(at).map(drop),
            NewNode::Directory => std::fs::DirBuilder::new().mode(mode & 0o777).create(at),
            NewNode::Symlink(target) => symlink(OsStr::from_bytes(target), at),
            NewNode::Fifo => node(rustix::fs::FileType::Fifo, 0),
            NewNode::Socket => node(rustix::fs::FileType::Socket, 0),
            NewNode::CharDevice(rdev) => node(rustix::fs::FileType::CharacterDevice, rdev),
            NewNode::BlockDevice(rdev) => node(rustix::fs::FileType::BlockDevice, rdev),
        };
        made.at(|| format!("cannot create '{}'", self.show(path)))
    }

    fn link(&self, path: &[u8], new_path: &[u8]) -> Result<()> {
        let what = || {
            format!(
                "cannot link '{}' to '{}'",
                self.show(new_path),
                self.show(path)
            )
        };
        std::fs::hard_link(to_path(path), to_path(new_path)).at(what)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        std::fs::remove_file(to_path(path)).at(|| format!("cannot remove '{}'", self.show(path)))
    }

    fn remove_dir(&self, path: &[u8]) -> Result<()> {
        std::fs::remove_dir(to_path(path)).at(|| format!("cannot remove '{}'", self.show(path)))
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let what = || format!("cannot read the attributes of '{}'", self.show(path));
        let at = to_path(path);
        let list = match read_whole(|buffer| rustix::fs::llistxattr(at, buffer)) {
            // The filesystem has none at all.
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            list => list.at(what)?,
        };
        let names = list
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty());
        let value_of = |name: &[u8]| {
            match read_whole(|buffer| rustix::fs::lgetxattr(at, OsStr::from_bytes(name), buffer)) {
                Ok(value) => Some(Ok((name.to_vec(), value))),
                // Removed since the names were listed.
                Err(Errno::NODATA) => None,
                Err(errno) => Some(Err(errno).at(what)),
            }
        };
        names.filter_map(value_of).collect()
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let what = || {
            format!(
                "{}: attribute {}",
                self.show(path),
                String::from_utf8_lossy(name)
            )
        };
        rustix::fs::lsetxattr(
            to_path(path),
            OsStr::from_bytes(name),
            value,
            XattrFlags::empty(),
        )
        .at(what)
    }

    fn set_attr(&self, path: &[u8], carry: &Carry) -> Result<()> {
        let what = || format!("cannot change the attributes of '{}'", self.show(path));
        let at = to_path(path);
        if let Some((uid, gid)) = carry.owner {
            lchown(at, Some(uid), Some(gid)).at(what)?;
        }
        // After the owner: a change of owner clears setuid and setgid.
        if let Some(mode) = carry.mode
            && !at.symlink_metadata().at(what)?.is_symlink()
        {
            std::fs::set_permissions(at, PermissionsExt::from_mode(mode)).at(what)?;
        }
        if let Some((atime_ns, mtime_ns)) = carry.times_ns {
            let times = Timestamps {
                last_access: timespec(atime_ns),
                last_modification: timespec(mtime_ns),
            };
            rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).at(what)?;
        }
        Ok(())
    }

    fn sync(&self, path: &[u8]) -> Result<()> {
        let what = || format!("cannot make '{}' durable", self.show(path));
        // What was copied may be a link or a device; its directory can always be opened.
        let at = to_path(path);
        let directory = match at.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) => Path::new("."),
            None => at,
        };
        rustix::fs::syncfs(File::open(directory).at(what)?).at(what)
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(1_000_000_000),
        tv_nsec: ns.rem_euclid(1_000_000_000),
    }
}

fn found(metadata: &std::fs::Metadata) -> Found {
    let file_type = metadata.file_type();
    let kind = match () {
        () if file_type.is_dir() => FileKind::Directory,
        () if file_type.is_symlink() => FileKind::Symlink,
        () if file_type.is_fifo() => FileKind::Fifo,
        () if file_type.is_socket() => FileKind::Socket,
        () if file_type.is_char_device() => FileKind::CharDevice,
        () if file_type.is_block_device() => FileKind::BlockDevice,
        () => FileKind::File,
    };
    let ns = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    Found {
        kind,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        nlink: metadata.nlink(),
        size_bytes: metadata.size(),
        atime_ns: ns(metadata.atime(), metadata.atime_nsec()),
        mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        rdev: metadata.rdev(),
        identity: (metadata.dev(), metadata.ino()),
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

struct LocalFile {
    file: File,
    shown: String,
}

impl Content for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).at(|| format!("cannot read '{}'", self.shown)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file
            .write_all_at(data, offset)
            .at(|| format!("cannot write '{}'", self.shown))
    }

    fn expect_len(&self, _: u64) -> Result<()> {
        // Local filesystems are not asked to preallocate: many copy the zeros.
        Ok(())
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.file
            .set_len(size_bytes)
            .at(|| format!("cannot write '{}'", self.shown))
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let seek = |target| match rustix::fs::seek(&self.file, target) {
            Ok(position) => Ok(Some(position)),
            Err(Errno::NXIO) => Ok(None),
            // Files of the kernel (/proc) have no holes, and no length either: read to the end.
            Err(Errno::INVAL) => Ok(Some(u64::MAX)),
            Err(errno) => Err(errno).at(|| format!("cannot read '{}'", self.shown)),
        };
        match seek(SeekFrom::Data(offset))? {
            None => Ok(None),
            Some(u64::MAX) => Ok(Some((offset, u64::MAX))),
            Some(begin) => Ok(seek(SeekFrom::Hole(begin))?.map(|end| (begin, end))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_links_and_holes_are_seen_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).into_os_string().into_vec();
        let file = Local.create_file(&at("a"), 0o640).unwrap();
        file.write_at(1 << 20, b"end").unwrap();
        Local
            .create_node(&at("l"), NewNode::Symlink(b"a"), 0o777)
            .unwrap();
        Local.link(&at("a"), &at("b")).unwrap();
        Local.set_xattr(&at("a"), b"user.note", b"noted").unwrap();
        assert_eq!(
            Local.xattrs(&at("b")).unwrap(),
            [(b"user.note".to_vec(), b"noted".to_vec())]
        );

        let carry = Carry {
            mode: Some(0o4711),
            owner: None,
            times_ns: Some((-5, 1_000_000_007)),
        };
        Local.set_attr(&at("a"), &carry).unwrap();
        let a = Local.find(&at("a"), false).unwrap().unwrap();
        assert_eq!(
            (a.kind, a.mode, a.nlink, a.size_bytes),
            (FileKind::File, 0o4711, 2, (1 << 20) + 3)
        );
        assert_eq!((a.atime_ns, a.mtime_ns), (-5, 1_000_000_007));
        assert_eq!(
            Local.find(&at("b"), false).unwrap().unwrap().identity,
            a.identity
        );
        assert_eq!(
            Local.find(&at("l"), true).unwrap().unwrap().identity,
            a.identity
        );
        let link = Local.find(&at("l"), false).unwrap().unwrap();
        assert_eq!(
            (link.kind, Local.read_link(&at("l")).unwrap()),
            (FileKind::Symlink, b"a".to_vec())
        );
        assert_eq!(Local.find(&at("none"), false).unwrap(), None);

        let file = Local.open(&at("a"), false).unwrap();
        let (begin, end) = file.next_data(0).unwrap().unwrap();
        assert!(begin <= 1 << 20 && end == (1 << 20) + 3);
        assert_eq!(file.next_data(end).unwrap(), None);
        assert!(
            Local.open(&at("l"), false).is_err(),
            "a link is not followed unasked"
        );
        let mut buffer = [1; 8];
        assert_eq!(file.read_at((1 << 20) - 1, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"\0end");
    }
}
