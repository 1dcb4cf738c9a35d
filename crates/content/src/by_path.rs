//! Files and directories by their paths: what `std::fs` has, on a database.
//!
//! A path is absolute and in bytes; strings do as well. Symbolic links on the way are followed.

use crate::database::Database;
use crate::file::{File, OpenOptions};
use crate::path::split_path;
use crate::rooms::Files;
use crate::types::{Caller, DirEntry, Metadata, NewNode, NodeId, RenameMode};
use larder_object::format::Name;
use larder_object::{AlignedBuf, Error, ErrorKind, Result};
use std::collections::VecDeque;

/// Entries that are read at once.
const PAGE: usize = 256;

impl<'d> Files<'d> {
    /// Opens the file for reading.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.options().read(true).open(path)
    }

    /// Opens the file for writing, empty; makes it where there is none.
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
    }

    /// How a file is to be opened: nothing is chosen yet.
    pub fn options(&self) -> OpenOptions<'d> {
        OpenOptions::new(*self)
    }

    /// The content of the file. [`ErrorKind::TooBig`] when it does not fit in memory.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let mut buffer = AlignedBuf::default();
        self.read_into(path, &mut buffer)?;
        Ok(buffer.to_vec())
    }

    /// The same into `buffer`, which then has the length of the file. Devices fill it without a
    /// copy, and one that is used again costs no new memory.
    pub fn read_into(&self, path: impl AsRef<[u8]>, buffer: &mut AlignedBuf) -> Result<()> {
        let path = path.as_ref();
        // Where nothing is mounted and nothing but names leads there, one step of the provider
        // does.
        let parts = split_path(path)?;
        let main = NodeId::ROOT;
        if !parts.is_empty() && path.last() != Some(&b'/') && !self.database.has_mounts() {
            let provider = self.database.shared_provider(main.store)?;
            match provider.read_named(main.ino, &parts, buffer) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {} // As in `at`.
                Err(error) => return Err(error),
            }
        }
        self.at(path, |node| {
            self.database
                .shared_provider(node.store)?
                .read_whole(node.ino, buffer)
        })
    }

    /// Does something with what the path names. What is removed meanwhile, since another file was
    /// given its name, is looked for again: a name that is always there is always found.
    pub(crate) fn at<T>(&self, path: &[u8], mut act: impl FnMut(NodeId) -> Result<T>) -> Result<T> {
        let mut node = self.metadata(path)?.node;
        loop {
            match act(node) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let found = self.metadata(path)?.node;
                    if found == node {
                        return Err(error);
                    }
                    node = found;
                }
                done => return done,
            }
        }
    }

    /// Makes `bytes` the content of the file `path`, in one step: nobody sees part of it, and a
    /// crash leaves the old content or the new. A new file has mode 0644 and this process's owner;
    /// an existing one keeps inode, names, attributes and user columns. A symbolic link is not
    /// followed: [`ErrorKind::InvalidInput`]. Durable after [`Database::sync`]. Memory: a copy of
    /// `bytes` until the commit.
    pub fn write(&self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> Result<Metadata> {
        let (parent, name) = self.database.nodes().resolve_parent(path.as_ref())?;
        if self.database.find_mount(parent, &name).is_some() {
            return Err(Error::new(
                ErrorKind::IsADirectory,
                format!("a store is mounted at '{name}'"),
            ));
        }
        let (bytes, caller) = (bytes.as_ref(), Caller::current());
        self.database
            .shared_provider(parent.store)?
            .put(parent.ino, &name, bytes, 0o644, caller)
    }

    /// The attributes of what the path names; a symbolic link is followed.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.database.nodes().resolve(path.as_ref(), true)
    }

    /// The same of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.database.nodes().resolve(path.as_ref(), false)
    }

    /// The entries of a directory, read as they are asked for. Entries that come or go meanwhile
    /// may be told or not; all others are told once.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<ReadDir> {
        self.at(path.as_ref(), |node| {
            let mut entries = ReadDir {
                node,
                database: self.database.clone(),
                page: VecDeque::new(),
                after: None,
                is_last_page: false,
            };
            entries.read_page()?;
            Ok(entries)
        })
    }

    /// Makes a directory of mode 0755 and this process's owner.
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.create_node(path.as_ref(), NewNode::Directory, 0o755)
    }

    /// The same with all directories that lead there; what is there already stays.
    pub fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let mut at = Vec::new();
        for part in split_path(path.as_ref())? {
            at.push(b'/');
            at.extend_from_slice(part);
            match self.create_dir(&at) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
        match self.metadata(&path)?.is_dir() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotADirectory,
                format!(
                    "'{}' is not a directory",
                    String::from_utf8_lossy(path.as_ref())
                ),
            )),
        }
    }

    /// Makes a symbolic link at `path` that leads to `target`, which need not be there.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.create_node(path.as_ref(), NewNode::Symlink(target.as_ref()), 0o777)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let node = self.symlink_metadata(path)?.node;
        self.database.nodes().read_link(node)
    }

    /// Gives the file `original` another name, in the same store.
    pub fn hard_link(
        &self,
        original: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Metadata> {
        let node = self.symlink_metadata(original)?.node;
        let (parent, name) = self.database.nodes().resolve_parent(path.as_ref())?;
        self.database.nodes().link(node, parent, &name)
    }

    /// Gives what `from` names the name `to`, in one commit. What has that name is replaced; of a
    /// file that is replaced by another the user's columns stay, unless the store was told
    /// otherwise ([`crate::Stores::set_save_keeps`]).
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let nodes = self.database.nodes();
        let (parent, name) = nodes.resolve_parent(from.as_ref())?;
        let (new_parent, new_name) = nodes.resolve_parent(to.as_ref())?;
        nodes.rename(parent, &name, new_parent, &new_name, RenameMode::Replace)
    }

    /// Removes a name of something that is not a directory.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.database.nodes().resolve_parent(path.as_ref())?;
        self.database.nodes().unlink(parent, &name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.database.nodes().resolve_parent(path.as_ref())?;
        self.database.nodes().remove_dir(parent, &name)
    }

    fn create_node(&self, path: &[u8], new: NewNode<'_>, mode: u32) -> Result<Metadata> {
        let (parent, name) = self.database.nodes().resolve_parent(path)?;
        let caller = Caller::current();
        self.database
            .nodes()
            .create_node(parent, &name, new, mode, caller)
    }
}

/// The entries of a directory: [`Files::read_dir`].
pub struct ReadDir {
    database: Database,
    node: NodeId,
    page: VecDeque<DirEntry>,
    after: Option<Name>,
    is_last_page: bool,
}

impl ReadDir {
    fn read_page(&mut self) -> Result<()> {
        let nodes = self.database.nodes();
        let page = nodes.read_dir(self.node, self.after.as_ref(), PAGE)?;
        self.is_last_page = page.len() < PAGE;
        self.after = page.last().map(|entry| entry.name.clone());
        self.page = page.into();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.page.is_empty()
            && !self.is_last_page
            && let Err(error) = self.read_page()
        {
            self.is_last_page = true;
            return Some(Err(error));
        }
        self.page.pop_front().map(Ok)
    }
}
