//! A database as a side of a copy, and small steps that several verbs take in a database.

use crate::address::DbAddress;
use crate::error::{At, Failure, Result};
use crate::side::{Carry, Content, Found, Side};
use larder::{
    Attr, Caller, Database, DirEntry, ErrorKind, FileHandle, FileKind, Name, NewNode, NodeId,
    SeekTarget, SetAttr, SetTime, XattrMode,
};

/// Directory entries that are fetched at a time.
const PAGE_ENTRIES: usize = 1000;

/// What an address leads to. Cost: one lookup per component.
pub(crate) fn resolve(database: &Database, address: &DbAddress, follow: bool) -> Result<Attr> {
    database
        .resolve(&address.path, follow)
        .at(|| address.to_string())
}

/// The same, when nothing there is no failure.
pub(crate) fn find(database: &Database, path: &[u8], follow: bool) -> larder::Result<Option<Attr>> {
    match database.resolve(path, follow) {
        Ok(attr) => Ok(Some(attr)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls `visit` for each entry of a directory, in the directory's order. Entries that are removed
/// meanwhile do no harm. Memory: one page.
pub(crate) fn for_each_entry(
    database: &Database,
    directory: NodeId,
    mut visit: impl FnMut(DirEntry) -> Result<()>,
) -> Result<()> {
    let mut after: Option<Name> = None;
    loop {
        let page = database.read_dir(directory, after.as_ref(), PAGE_ENTRIES)?;
        let is_last = page.len() < PAGE_ENTRIES;
        after = page.last().map(|entry| entry.name.clone());
        page.into_iter().try_for_each(&mut visit)?;
        if is_last {
            return Ok(());
        }
    }
}

/// The creation mask of this process.
pub(crate) fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

/// A database.
pub(crate) struct Inside {
    pub(crate) database: Database,
    /// As the user wrote it, for messages.
    pub(crate) address: DbAddress,
}

impl Inside {
    fn attr(&self, path: &[u8], follow: bool) -> Result<Attr> {
        self.database.resolve(path, follow).at(|| self.show(path))
    }

    fn parent(&self, path: &[u8]) -> Result<(NodeId, Name)> {
        self.database.resolve_parent(path).at(|| self.show(path))
    }
}

impl Side for Inside {
    fn show(&self, path: &[u8]) -> String {
        self.address.with_path(path.to_vec()).to_string()
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>> {
        Ok(find(&self.database, path, follow)
            .at(|| self.show(path))?
            .map(|attr| found(&attr)))
    }

    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let directory = self.attr(path, true)?.node;
        let mut names = Vec::new();
        for_each_entry(&self.database, directory, |entry| {
            names.push(entry.name.as_bytes().to_vec());
            Ok(())
        })?;
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.database
            .read_link(self.attr(path, false)?.node)
            .at(|| self.show(path))
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn Content>> {
        let node = self.attr(path, follow)?.node;
        let handle = self
            .database
            .open_file(node, false)
            .at(|| self.show(path))?;
        Ok(Box::new(InsideFile {
            handle,
            shown: self.show(path),
        }))
    }

    fn create_file(&self, path: &[u8], mode: u32) -> Result<Box<dyn Content>> {
        let (parent, name) = self.parent(path)?;
        let made = self
            .database
            .create_node(parent, &name, NewNode::File, mode, Caller::current());
        let node = made.at(|| self.show(path))?.node;
        let handle = self.database.open_file(node, true).at(|| self.show(path))?;
        Ok(Box::new(InsideFile {
            handle,
            shown: self.show(path),
        }))
    }

    fn overwrite(&self, path: &[u8]) -> Result<Box<dyn Content>> {
        let node = self.attr(path, true)?.node;
        let handle = self.database.open_file(node, true).at(|| self.show(path))?;
        handle.set_len(0).at(|| self.show(path))?;
        Ok(Box::new(InsideFile {
            handle,
            shown: self.show(path),
        }))
    }

    fn create_node(&self, path: &[u8], new: NewNode<'_>, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.database
            .create_node(parent, &name, new, mode, Caller::current())
            .at(|| self.show(path))?;
        Ok(())
    }

    fn link(&self, path: &[u8], new_path: &[u8]) -> Result<()> {
        let node = self.attr(path, false)?.node;
        let (parent, name) = self.parent(new_path)?;
        self.database
            .link(node, parent, &name)
            .at(|| self.show(new_path))?;
        Ok(())
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.database.unlink(parent, &name).at(|| self.show(path))
    }

    fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.database
            .remove_dir(parent, &name)
            .at(|| self.show(path))
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let node = self.attr(path, false)?.node;
        let names = self.database.xattrs(node).at(|| self.show(path))?;
        let value_of = |name: Vec<u8>| match self.database.xattr(node, &name) {
            Ok(value) => Some(Ok((name, value))),
            // Removed since the names were listed.
            Err(error) if error.kind() == ErrorKind::NoAttribute => None,
            Err(error) => Some(Err(Failure::Larder(error.context(self.show(path))))),
        };
        names.into_iter().filter_map(value_of).collect()
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let node = self.attr(path, false)?.node;
        let what = || {
            format!(
                "{}: attribute {}",
                self.show(path),
                String::from_utf8_lossy(name)
            )
        };
        self.database
            .set_xattr(node, name, value, XattrMode::Set)
            .at(what)
    }

    fn set_attr(&self, path: &[u8], carry: &Carry) -> Result<()> {
        let attr = self.attr(path, false)?;
        let change = SetAttr {
            mode: carry.mode.filter(|_| attr.kind != FileKind::Symlink),
            uid: carry.owner.map(|(uid, _)| uid),
            gid: carry.owner.map(|(_, gid)| gid),
            atime: carry.times_ns.map(|(atime_ns, _)| SetTime::At(atime_ns)),
            mtime: carry.times_ns.map(|(_, mtime_ns)| SetTime::At(mtime_ns)),
            ..SetAttr::default()
        };
        self.database
            .set_attr(attr.node, &change)
            .at(|| self.show(path))?;
        Ok(())
    }

    fn sync(&self, path: &[u8]) -> Result<()> {
        self.database
            .sync()
            .at(|| format!("cannot make '{}' durable", self.show(path)))
    }
}

fn found(attr: &Attr) -> Found {
    Found {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink.into(),
        size_bytes: attr.size_bytes,
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        rdev: attr.rdev,
        identity: (attr.node.store.0.into(), attr.node.ino.0),
    }
}

struct InsideFile {
    handle: Box<dyn FileHandle>,
    shown: String,
}

impl Content for InsideFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self
                .handle
                .read_at(offset + done as u64, &mut buffer[done..])
                .at(|| self.shown.clone())?
            {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.handle.write_at(offset, data).at(|| self.shown.clone())
    }

    fn expect_len(&self, size_bytes: u64) -> Result<()> {
        self.handle.expect_len(size_bytes).at(|| self.shown.clone())
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.handle.set_len(size_bytes).at(|| self.shown.clone())
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let Some(begin) = self
            .handle
            .seek(SeekTarget::Data, offset)
            .at(|| self.shown.clone())?
        else {
            return Ok(None);
        };
        let end = self
            .handle
            .seek(SeekTarget::Hole, begin)
            .at(|| self.shown.clone())?;
        // No end: the file was cut meanwhile.
        Ok(end.map(|end| (begin, end)))
    }
}
