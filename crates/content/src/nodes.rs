//! One call per POSIX primitive, dispatched to the provider of the store.

use crate::path::split_path;
use crate::provider::FileHandle;
use crate::rooms::{Attributes, Nodes};
use crate::types::{Caller, InodeFlags, Metadata, NewNode, NodeId, RenameMode, SetAttr, XattrMode};
use larder_object::format::limits::{SYMLINK_BYTES_MAX, SYMLINK_FOLLOW_MAX};
use larder_object::format::{FileKind, Ino, Name};
use larder_object::{AccessRule, Error, ErrorKind, Result};

impl Nodes<'_> {
    /// The node that an absolute path names; a final symbolic link is followed if `follow`.
    /// Cost: one lookup per component.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Metadata> {
        let mut links_left = SYMLINK_FOLLOW_MAX;
        let parts = split_path(path)?;
        let trailing_slash = path.last() == Some(&b'/');
        let found = self.walk(
            NodeId::ROOT,
            &parts,
            follow || trailing_slash,
            &mut links_left,
        )?;
        match found {
            // In a transaction: a name on the way is not yet what a caller was told.
            Place::Node(attr) if self.database.shared.shown.active().is_some() => {
                self.metadata(attr.node)
            }
            Place::Node(attr) => Ok(attr),
            Place::Directory(node) => self.metadata(node),
        }
    }

    /// The directory that holds the last component of `path`, and that component.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(NodeId, Name)> {
        let parts: Vec<&'p [u8]> = split_path(path)?;
        let Some((last, parents)) = parts.split_last() else {
            return Err(Error::new(
                ErrorKind::Busy,
                "the root directory has no name and no parent",
            ));
        };
        let mut links_left = SYMLINK_FOLLOW_MAX;
        let parent = self.walk(NodeId::ROOT, parents, true, &mut links_left)?;
        Ok((parent.into_directory(path)?, Name::new(last)?))
    }

    /// Follows `parts` from directory `start`.
    fn walk(
        &self,
        start: NodeId,
        parts: &[&[u8]],
        follow: bool,
        links_left: &mut u32,
    ) -> Result<Place> {
        let mut at = Place::Directory(start);
        let mut rest = parts;
        while let Some(part) = rest.first() {
            let dir = at.into_directory(part)?;
            if *part == b".." {
                at = Place::Directory(self.parent(dir)?);
                rest = &rest[1..];
                continue;
            }
            let (next, used) = self.descend(dir, rest)?;
            rest = &rest[used..];
            if next.kind != FileKind::Symlink || (rest.is_empty() && !follow) {
                at = Place::Node(next);
                continue;
            }
            if *links_left == 0 {
                return Err(Error::new(
                    ErrorKind::TooManySymlinks,
                    "more than 40 symbolic links on one path; is there a cycle?",
                ));
            }
            *links_left -= 1;
            let target = self.read_link(next.node)?;
            let from = if target.first() == Some(&b'/') {
                NodeId::ROOT
            } else {
                // A link is the last of the names that led to it: its directory is theirs.
                self.directory_of(dir, &parts[parts.len() - rest.len() - used..][..used - 1])?
            };
            let hops: Vec<&[u8]> = target
                .split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .collect();
            at = self.walk(from, &hops, true, links_left)?;
        }
        Ok(at)
    }

    /// Follows the names before the next `..`, as many as the provider takes at once. Mounts hang
    /// in roots of stores only, so only the first name can be one (`CONTENT-1`).
    fn descend(&self, dir: NodeId, parts: &[&[u8]]) -> Result<(Metadata, usize)> {
        let names: Vec<Name> = parts
            .iter()
            .take_while(|part| **part != b"..")
            .map(|part| Ok(Name::new(part)?))
            .collect::<Result<_>>()?;
        match self.database.find_mount(dir, &names[0]) {
            Some(store) => {
                let node = NodeId {
                    store,
                    ino: Ino::ROOT,
                };
                Ok((self.metadata(node)?, 1))
            }
            None => self
                .database
                .shared_provider(dir.store)?
                .descend(dir.ino, &names),
        }
    }

    /// The directory that `names`, which all lead to directories, name from `dir` on.
    fn directory_of(&self, dir: NodeId, names: &[&[u8]]) -> Result<NodeId> {
        let mut links_left = 0;
        self.walk(dir, names, false, &mut links_left)?
            .into_directory(b"")
    }

    /// The attributes of the entry `name` of directory `parent`.
    pub fn lookup(&self, parent: NodeId, name: &Name) -> Result<Metadata> {
        match self.database.find_mount(parent, name) {
            Some(store) => self.metadata(NodeId {
                store,
                ino: Ino::ROOT,
            }),
            None => self
                .database
                .shared_provider(parent.store)?
                .lookup(parent.ino, name),
        }
    }

    /// The attributes of a node.
    pub fn metadata(&self, node: NodeId) -> Result<Metadata> {
        self.database
            .shared_provider(node.store)?
            .metadata(node.ino)
    }

    /// Changes attributes; returns the new ones.
    pub fn set_attr(&self, node: NodeId, change: &SetAttr) -> Result<Metadata> {
        self.database
            .shared_provider(node.store)?
            .set_attr(node.ino, change)
    }

    /// The parent of a directory; the root of the database is its own.
    pub fn parent(&self, node: NodeId) -> Result<NodeId> {
        if node.ino == Ino::ROOT {
            let host = self
                .database
                .read_stores()
                .iter()
                .find(|s| s.row.store == node.store)
                .and_then(|s| s.place.clone());
            return Ok(host.map_or(NodeId::ROOT, |(store, _)| NodeId {
                store,
                ino: Ino::ROOT,
            }));
        }
        let ino = self
            .database
            .shared_provider(node.store)?
            .parent(node.ino)?;
        Ok(NodeId {
            store: node.store,
            ino,
        })
    }

    /// Makes a node; [`ErrorKind::Exists`] if the name is taken.
    pub fn create_node(
        &self,
        parent: NodeId,
        name: &Name,
        new: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<Metadata> {
        if self.database.find_mount(parent, name).is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists: a store is mounted there"),
            ));
        }
        if let NewNode::Symlink(target) = new {
            if target.is_empty() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "a symbolic link needs a target of at least one byte",
                ));
            }
            if target.len() > SYMLINK_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::NameTooLong,
                    "the target of a symbolic link has at most 4095 bytes",
                ));
            }
        }
        self.database
            .shared_provider(parent.store)?
            .create_node(parent.ino, name, new, mode, caller)
    }

    /// Makes a regular file without a name, as it would be made in directory `parent`, and opens it
    /// for writing (`O_TMPFILE`). It goes with its last handle or in a crash, unless
    /// [`Nodes::link`] gives it a name first, which `is_linkable` allows.
    pub fn create_anonymous(
        &self,
        parent: NodeId,
        mode: u32,
        is_linkable: bool,
        caller: Caller,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        self.database
            .shared_provider(parent.store)?
            .create_anonymous(parent.ino, mode, is_linkable, caller)
    }

    /// Makes a regular file and opens it, in one step; [`ErrorKind::Exists`] if the name is taken.
    /// `write` asks for a handle that can change it.
    pub fn create_file(
        &self,
        parent: NodeId,
        name: &Name,
        mode: u32,
        caller: Caller,
        write: bool,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        if self.database.find_mount(parent, name).is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists: a store is mounted there"),
            ));
        }
        self.database
            .shared_provider(parent.store)?
            .create_file(parent.ino, name, mode, caller, write)
    }

    /// Gives a node that is not a directory another name.
    pub fn link(&self, node: NodeId, parent: NodeId, name: &Name) -> Result<Metadata> {
        if node.store != parent.store {
            return Err(Error::new(
                ErrorKind::CrossStore,
                "a hard link cannot cross stores; copy instead",
            ));
        }
        if self.database.find_mount(parent, name).is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists: a store is mounted there"),
            ));
        }
        self.database
            .shared_provider(node.store)?
            .link(node.ino, parent.ino, name)
    }

    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, parent: NodeId, name: &Name) -> Result<()> {
        self.database.refuse_mount(parent, name)?;
        self.database
            .shared_provider(parent.store)?
            .unlink(parent.ino, name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, parent: NodeId, name: &Name) -> Result<()> {
        self.database.refuse_mount(parent, name)?;
        self.database
            .shared_provider(parent.store)?
            .remove_dir(parent.ino, name)
    }

    /// Renames, in one commit.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &Name,
        new_parent: NodeId,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        self.database.refuse_mount(parent, name)?;
        self.database.refuse_mount(new_parent, new_name)?;
        if parent.store != new_parent.store {
            return Err(Error::new(
                ErrorKind::CrossStore,
                "a rename cannot cross stores; copy and remove instead",
            ));
        }
        self.database.shared_provider(parent.store)?.rename(
            parent.ino,
            name,
            new_parent.ino,
            new_name,
            mode,
        )
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        self.database
            .shared_provider(node.store)?
            .read_link(node.ino)
    }

    /// Opens a regular file; `write` asks for a handle that can change it.
    pub fn open(&self, node: NodeId, write: bool) -> Result<Box<dyn FileHandle>> {
        self.database
            .shared_provider(node.store)?
            .open(node.ino, write)
    }
}

impl Attributes<'_> {
    /// Sets the flags of a file or directory (chattr(1)).
    pub fn set_flags(&self, node: NodeId, flags: InodeFlags) -> Result<()> {
        self.database
            .shared_provider(node.store)?
            .set_flags(node.ino, flags)
    }

    /// Notes that a directory was listed or a symbolic link read, if `rule` counts that; says
    /// whether its time of access is another one now. For files: [`FileHandle::note_access`].
    pub fn note_access(&self, node: NodeId, rule: AccessRule) -> Result<bool> {
        self.database
            .shared_provider(node.store)?
            .note_access(node.ino, rule)
    }

    /// The names of a node's extended attributes.
    pub fn list(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.database.shared_provider(node.store)?.xattrs(node.ino)
    }

    /// The value of an extended attribute.
    pub fn get(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.database
            .shared_provider(node.store)?
            .xattr(node.ino, name)
    }

    /// Sets an extended attribute.
    pub fn set(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.database
            .shared_provider(node.store)?
            .set_xattr(node.ino, name, value, mode)
    }

    /// Removes an extended attribute.
    pub fn remove(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.database
            .shared_provider(node.store)?
            .remove_xattr(node.ino, name)
    }
}

/// Where a walk is.
enum Place {
    /// At a directory; more was not asked yet.
    Directory(NodeId),
    /// At something.
    Node(Metadata),
}

impl Place {
    /// The directory, which what follows at `path` needs.
    fn into_directory(self, path: &[u8]) -> Result<NodeId> {
        match self {
            Place::Directory(node) => Ok(node),
            Place::Node(attr) if attr.kind == FileKind::Directory => Ok(attr.node),
            Place::Node(_) => Err(Error::new(
                ErrorKind::NotADirectory,
                format!(
                    "a component before '{}' is not a directory",
                    String::from_utf8_lossy(path)
                ),
            )),
        }
    }
}
