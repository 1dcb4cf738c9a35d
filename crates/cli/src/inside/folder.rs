//! Directories, files and other nodes of a database, held by their numbers: those stay the same
//! whatever names lead to them (`CLI-40`).

use super::entries::{for_each_entry, lookup};
use crate::address::{DbAddress, join};
use crate::error::{At, Failure, Result};
use crate::side::{Carry, Content, Folder, Found, Inode, SELF, replaced};
use larder::{
    Caller, Database, ErrorKind, FileHandle, FileKind, Ino, Metadata, Name, NewNode, NodeId,
    SeekTarget, SetAttr, SetTime, StoreId, XattrMode,
};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

pub(super) fn found(attr: &Metadata) -> Found {
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

/// A directory of a database.
pub(super) struct InsideFolder {
    pub(super) database: Database,
    /// For messages only.
    pub(super) address: DbAddress,
    pub(super) node: NodeId,
}

impl InsideFolder {
    fn path_of(&self, name: &[u8]) -> DbAddress {
        match name {
            SELF => self.address.clone(),
            name => self.address.with_path(join(&self.address.path, name)),
        }
    }

    fn name(&self, name: &[u8]) -> Result<Name> {
        Name::new(name)
            .map_err(|error| Failure::Other(format!("'{}': {error}; rename it", self.show(name))))
    }

    /// The node that was `found` under this name, if it still has it (`CLI-40`).
    fn node(&self, name: &[u8], was: &Found) -> Result<InsideNode> {
        let node = match name {
            SELF => Some(self.node),
            name => lookup(&self.database, self.node, &self.name(name)?)
                .at(|| self.show(name))?
                .filter(|attr| found(attr).is(was))
                .map(|attr| attr.node),
        };
        let node = node.ok_or_else(|| replaced(&self.show(name)))?;
        Ok(self.node_at(node, name))
    }

    fn node_at(&self, node: NodeId, name: &[u8]) -> InsideNode {
        InsideNode {
            database: self.database.clone(),
            node,
            shown: self.show(name),
        }
    }

    fn make(&self, name: &[u8], new: NewNode<'_>, mode: u32) -> Result<NodeId> {
        let key = self.name(name)?;
        let made = self
            .database
            .nodes()
            .create_node(self.node, &key, new, mode, Caller::current())
            .at(|| self.show(name))?;
        Ok(made.node)
    }

    fn file(&self, node: NodeId, name: &[u8], is_written: bool) -> Result<InsideFile> {
        let handle = self
            .database
            .nodes()
            .open(node, is_written)
            .at(|| self.show(name))?;
        let node = self.node_at(node, name);
        Ok(InsideFile { handle, node })
    }

    fn folder(&self, node: NodeId, name: &[u8]) -> Rc<dyn Folder> {
        Rc::new(InsideFolder {
            database: self.database.clone(),
            address: self.path_of(name),
            node,
        })
    }

    fn own(&self) -> InsideNode {
        self.node_at(self.node, SELF)
    }
}

impl Inode for InsideFolder {
    fn found(&self) -> Result<Found> {
        self.own().found()
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.own().xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.own().set_xattr(name, value)
    }

    fn set_attr(&self, carry: &Carry) -> Result<()> {
        self.own().set_attr(carry)
    }
}

impl Folder for InsideFolder {
    fn show(&self, name: &[u8]) -> String {
        self.path_of(name).to_string()
    }

    fn find(&self, name: &[u8]) -> Result<Option<Found>> {
        let what = || self.show(name);
        let attr = match name {
            SELF => Some(self.database.nodes().metadata(self.node).at(what)?),
            name => lookup(&self.database, self.node, &self.name(name)?).at(what)?,
        };
        Ok(attr.map(|attr| found(&attr)))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for_each_entry(&self.database, self.node, |entry| {
            names.push(entry.name.as_bytes().to_vec());
            Ok(())
        })?;
        Ok(names)
    }

    fn enter(&self, name: &[u8], found: &Found) -> Result<Rc<dyn Folder>> {
        Ok(self.folder(self.node(name, found)?.node, name))
    }

    fn hold(&self, name: &[u8], found: &Found) -> Result<Box<dyn Inode>> {
        Ok(Box::new(self.node(name, found)?))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        let what = || self.show(name);
        let attr = lookup(&self.database, self.node, &self.name(name)?).at(what)?;
        match attr.filter(|attr| attr.kind == FileKind::Symlink) {
            Some(link) => self.database.nodes().read_link(link.node).at(what),
            None => Err(replaced(&self.show(name))),
        }
    }

    fn open(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>> {
        let node = self.node(name, found)?.node;
        Ok(Box::new(self.file(node, name, false)?))
    }

    fn overwrite(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>> {
        let node = self.node(name, found)?.node;
        let file = self.file(node, name, true)?;
        file.set_len(0)?;
        Ok(Box::new(file))
    }

    fn create_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn Content>> {
        let node = self.make(name, NewNode::File, mode)?;
        Ok(Box::new(self.file(node, name, true)?))
    }

    fn create_folder(&self, name: &[u8], mode: u32) -> Result<Rc<dyn Folder>> {
        let node = self.make(name, NewNode::Directory, mode)?;
        Ok(self.folder(node, name))
    }

    fn create_node(&self, name: &[u8], new: NewNode<'_>, mode: u32) -> Result<Box<dyn Inode>> {
        let node = self.make(name, new, mode)?;
        Ok(Box::new(self.node_at(node, name)))
    }

    fn link(&self, name: &[u8], _: &dyn Folder, _: &[u8], found: &Found) -> Result<()> {
        let (store, ino) = found.identity;
        let Ok(store) = store.try_into() else {
            unreachable!("identities of this side are made of its numbers")
        };
        let node = NodeId {
            store: StoreId(store),
            ino: Ino(ino),
        };
        self.database
            .nodes()
            .link(node, self.node, &self.name(name)?)
            .at(|| self.show(name))?;
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.database
            .nodes()
            .unlink(self.node, &self.name(name)?)
            .at(|| self.show(name))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.database
            .nodes()
            .remove_dir(self.node, &self.name(name)?)
            .at(|| self.show(name))
    }

    fn sync(&self) -> Result<()> {
        self.database
            .sync()
            .at(|| format!("cannot make '{}' durable", self.address))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Anything in a database.
struct InsideNode {
    database: Database,
    node: NodeId,
    shown: String,
}

impl Inode for InsideNode {
    fn found(&self) -> Result<Found> {
        let attr = self
            .database
            .nodes()
            .metadata(self.node)
            .at(|| self.shown.clone())?;
        Ok(found(&attr))
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = self
            .database
            .attributes()
            .list(self.node)
            .at(|| self.shown.clone())?;
        let value_of = |name: Vec<u8>| match self.database.attributes().get(self.node, &name) {
            Ok(value) => Some(Ok((name, value))),
            // Removed since the names were listed.
            Err(error) if error.kind() == ErrorKind::NoAttribute => None,
            Err(error) => Some(Err(Failure::Larder(error.context(self.shown.clone())))),
        };
        names.into_iter().filter_map(value_of).collect()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let attribute = String::from_utf8_lossy(name);
        self.database
            .attributes()
            .set(self.node, name, value, XattrMode::Set)
            .at(|| format!("{}: attribute {attribute}", self.shown))
    }

    fn set_attr(&self, carry: &Carry) -> Result<()> {
        let is_link = carry.mode.is_some() && self.found()?.kind == FileKind::Symlink;
        let change = SetAttr {
            mode: carry.mode.filter(|_| !is_link),
            uid: carry.owner.map(|(uid, _)| uid),
            gid: carry.owner.map(|(_, gid)| gid),
            atime: carry.times_ns.map(|(atime_ns, _)| SetTime::At(atime_ns)),
            mtime: carry.times_ns.map(|(_, mtime_ns)| SetTime::At(mtime_ns)),
            ..SetAttr::default()
        };
        self.database
            .nodes()
            .set_attr(self.node, &change)
            .at(|| self.shown.clone())?;
        Ok(())
    }
}

/// An open regular file of a database.
struct InsideFile {
    handle: Box<dyn FileHandle>,
    node: InsideNode,
}

impl Inode for InsideFile {
    fn found(&self) -> Result<Found> {
        self.node.found()
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.node.xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.node.set_xattr(name, value)
    }

    fn set_attr(&self, carry: &Carry) -> Result<()> {
        self.node.set_attr(carry)
    }
}

impl InsideFile {
    fn shown(&self) -> String {
        self.node.shown.clone()
    }
}

impl Content for InsideFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let read = self
                .handle
                .read_at(offset + done as u64, &mut buffer[done..]);
            match read.at(|| self.shown())? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.handle.write_at(offset, data).at(|| self.shown())
    }

    fn expect_len(&self, size_bytes: u64) -> Result<()> {
        self.handle.expect_len(size_bytes).at(|| self.shown())
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.handle.set_len(size_bytes).at(|| self.shown())
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let seek = |target, offset| self.handle.seek(target, offset).at(|| self.shown());
        let Some(begin) = seek(SeekTarget::Data, offset)? else {
            return Ok(None);
        };
        // No end: the file was cut meanwhile.
        Ok(seek(SeekTarget::Hole, begin)?.map(|end| (begin, end)))
    }
}
