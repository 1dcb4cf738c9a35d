//! An open database: stores, dispatch of paths and nodes, and the verbs of its upkeep.

use crate::active_transaction::{ActiveTransaction, Pool};
use crate::environment::joined;
use crate::files::provide_files;
use crate::path::split_path;
use crate::provider::{FileHandle, ProviderFactory, Source};
use crate::readonly::ReadonlyProvider;
use crate::stores::Stores;
use crate::types::{Attr, Caller, InodeFlags, NewNode, NodeId, RenameMode, SetAttr, XattrMode};
use larder_object::format::limits::{SYMLINK_BYTES_MAX, SYMLINK_FOLLOW_MAX};
use larder_object::format::{FileKind, Ino, Name};
use larder_object::{
    AccessRule, AlignedBuf, AsOf, Engine, EngineOptions, Error, ErrorKind, InitOptions, Result,
    View,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// How long a new database keeps history, unless it is told: one hour.
pub const RETENTION_NS_DEFAULT: i64 = 3_600_000_000_000;

/// How a database is created.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Bytes of content it may hold, ≥ 16 MiB; `None`: what the filesystem has.
    pub capacity_bytes: Option<u64>,
    /// How long what was superseded stays readable, nanoseconds, as long as there is space; 0: not
    /// at all; `None`: [`RETENTION_NS_DEFAULT`].
    pub retention_ns: Option<i64>,
    /// Mode, owner and group of the root directory; `None`: 0755 and this process's.
    pub root: Option<(u32, Caller)>,
    /// A group whose members share the database, and its files on the host; `None`: its owner alone
    /// has it.
    pub group: Option<u32>,
}

/// How a database is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// What the session is, for people who list sessions: `mount ./photos`.
    pub label: String,
    /// Own providers by name, beside `files` and `readonly`.
    pub providers: HashMap<String, ProviderFactory>,
    /// Engine settings; the default suits everyone but tests.
    pub engine: EngineOptions,
}

/// An open database. Cheap to clone; the last clone to go closes it.
#[derive(Clone)]
pub struct Database {
    pub(crate) shared: Arc<Shared>,
}

/// What all clones of a database share.
pub(crate) struct Shared {
    pub(crate) shown: Shown,
    pub(crate) factories: Arc<HashMap<String, ProviderFactory>>,
    pub(crate) stores: Stores,
    pub(crate) pool: Arc<Pool>,
}

/// What a database shows, and so what can be done with it.
pub(crate) enum Shown {
    /// The present, which the last one to have it closes.
    Present(Arc<Engine>),
    /// What a transaction sees. Each call goes through the active transaction; none: it has entered
    /// it.
    Transaction(Arc<Engine>, Option<Arc<ActiveTransaction>>),
    /// A moment of the past.
    Past(Arc<AsOf>),
}

impl Shown {
    /// For reading.
    pub(crate) fn view(&self) -> &View {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => engine,
            Shown::Past(past) => past,
        }
    }

    /// For changes; [`ErrorKind::ReadOnly`] of the past.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => Ok(engine),
            Shown::Past(_) => Err(Error::new(
                ErrorKind::ReadOnly,
                "the past cannot be changed; write to the database without '@'",
            )),
        }
    }

    /// A moment of the past; [`ErrorKind::InvalidInput`] otherwise.
    pub(crate) fn past(&self) -> Result<&Arc<AsOf>> {
        match self {
            Shown::Past(past) => Ok(past),
            Shown::Present(_) | Shown::Transaction(..) => Err(Error::new(
                ErrorKind::InvalidInput,
                "the present has no past of its own; open a moment with 'as_of'",
            )),
        }
    }

    pub(crate) fn active(&self) -> Option<&Arc<ActiveTransaction>> {
        match self {
            Shown::Transaction(_, active) => active.as_ref(),
            Shown::Present(_) | Shown::Past(_) => None,
        }
    }

    /// The same for a call that has entered the active transaction, and does not close it.
    pub(crate) fn inside(&self) -> Shown {
        match self.source() {
            Source::Present(engine) => Shown::Transaction(engine, None),
            Source::Past(past) => Shown::Past(past),
        }
    }

    /// For a provider.
    pub(crate) fn source(&self) -> Source {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => {
                Source::Present(Arc::clone(engine))
            }
            Shown::Past(past) => Source::Past(Arc::clone(past)),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Shown::Present(engine) = &self.shown else {
            return;
        };
        self.pool.clear();
        if let Err(error) = engine.close() {
            tracing::error!("closing a database: {error}");
        }
    }
}

impl Database {
    /// Creates the directory `path` and an empty database in it; [`ErrorKind::Exists`] if there is
    /// something already.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<()> {
        Engine::create(path, &init_options(options), &EngineOptions::default())
    }

    /// The same on other storage; used by tests that simulate devices.
    pub fn create_with(path: &Path, options: &CreateOptions, engine: &EngineOptions) -> Result<()> {
        Engine::create(path, &init_options(options), engine)
    }

    /// Opens the database in directory `path` and recovers what a crash left (cost: independent of
    /// the size of files). Errors: [`ErrorKind::NotFound`], [`ErrorKind::NotADatabase`],
    /// [`ErrorKind::NewerFormat`], [`ErrorKind::Corrupt`], [`ErrorKind::ReadOnly`]. Where the
    /// environment names a long transaction of this database
    /// ([`TRANSACTION_VARIABLE`](crate::TRANSACTION_VARIABLE)), its view is opened.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Database> {
        match joined(path)? {
            Some(workspace) => Database::open_here(&workspace, options),
            None => Database::open_here(path, options),
        }
    }

    /// The same, whatever the environment says.
    pub(crate) fn open_here(path: &Path, options: OpenOptions) -> Result<Database> {
        let engine = Engine::open(path, &options.label, &options.engine)?;
        let mut factories = options.providers;
        factories.insert("files".into(), Arc::new(provide_files));
        factories.insert(
            "readonly".into(),
            Arc::new(|context| Arc::new(ReadonlyProvider::new(provide_files(context)))),
        );
        let shared = Shared {
            shown: Shown::Present(engine),
            factories: Arc::new(factories),
            stores: Stores::default(),
            pool: Arc::default(),
        };
        let database = Database {
            shared: Arc::new(shared),
        };
        database.follow_stores();
        database.reload_stores()?;
        Ok(database)
    }

    /// Whether this process cannot write the database: it is shown as it was when it was opened,
    /// and reads of its content fail ([`ErrorKind::Stopped`]) once somebody else changes it.
    pub fn is_readonly(&self) -> bool {
        self.shared.shown.view().is_readonly()
    }

    /// Commits everything, gives back what may be reclaimed, and ends the session. Handles that
    /// are still open answer [`ErrorKind::Stopped`] afterwards.
    pub fn close(self) -> Result<()> {
        match &self.shared.shown {
            Shown::Past(_) => Ok(()), // What it keeps goes with its last clone.
            Shown::Present(_) | Shown::Transaction(..) => self.whole()?.close(),
        }
    }

    /// Returns after the commit that holds every operation that ended before (`CONTENT-5`).
    pub fn sync(&self) -> Result<()> {
        match &self.shared.shown {
            Shown::Present(engine) | Shown::Transaction(engine, _) => engine.sync(),
            Shown::Past(_) => Ok(()),
        }
    }

    // ---- paths ----------------------------------------------------------------------------

    /// The node that an absolute path names; a final symbolic link is followed if `follow`.
    /// Cost: one lookup per component.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr> {
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
            Place::Node(attr) if self.shared.shown.active().is_some() => self.attr(attr.node),
            Place::Node(attr) => Ok(attr),
            Place::Directory(node) => self.attr(node),
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
    fn descend(&self, dir: NodeId, parts: &[&[u8]]) -> Result<(Attr, usize)> {
        let names: Vec<Name> = parts
            .iter()
            .take_while(|part| **part != b"..")
            .map(|part| Ok(Name::new(part)?))
            .collect::<Result<_>>()?;
        match self.find_mount(dir, &names[0]) {
            Some(store) => {
                let node = NodeId {
                    store,
                    ino: Ino::ROOT,
                };
                Ok((self.attr(node)?, 1))
            }
            None => self.shared_provider(dir.store)?.descend(dir.ino, &names),
        }
    }

    /// The directory that `names`, which all lead to directories, name from `dir` on.
    fn directory_of(&self, dir: NodeId, names: &[&[u8]]) -> Result<NodeId> {
        let mut links_left = 0;
        self.walk(dir, names, false, &mut links_left)?
            .into_directory(b"")
    }

    // ---- whole files ------------------------------------------------------------------------

    /// The content of the file that `path` names. [`ErrorKind::TooBig`] when it does not fit in
    /// memory.
    pub fn get(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut buffer = AlignedBuf::default();
        self.get_into(path, &mut buffer)?;
        Ok(buffer.to_vec())
    }

    /// The same into `buffer`, which then has the length of the file. Devices fill it without a
    /// copy, and one that is used again costs no new memory.
    pub fn get_into(&self, path: &[u8], buffer: &mut AlignedBuf) -> Result<()> {
        // Where nothing is mounted and nothing but names leads there, one step of the provider
        // does.
        let parts = split_path(path)?;
        let main = NodeId::ROOT;
        if !parts.is_empty()
            && path.last() != Some(&b'/')
            && !self.has_mounts()
            && self
                .shared_provider(main.store)?
                .read_named(main.ino, &parts, buffer)?
        {
            return Ok(());
        }
        let node = self.resolve(path, true)?.node;
        self.shared_provider(node.store)?
            .read_whole(node.ino, buffer)
    }

    /// Makes `bytes` the content of the file `path`, in one step: nobody sees part of it, and a
    /// crash leaves the old content or the new. A new file has mode 0644 and this process's owner;
    /// an existing one keeps inode, names, attributes and user columns. A symbolic link is not
    /// followed: [`ErrorKind::InvalidInput`]. Durable after [`Database::sync`]. Memory: a copy of
    /// `bytes` until the commit.
    pub fn put(&self, path: &[u8], bytes: &[u8]) -> Result<Attr> {
        let (parent, name) = self.resolve_parent(path)?;
        if self.find_mount(parent, &name).is_some() {
            return Err(Error::new(
                ErrorKind::IsADirectory,
                format!("a store is mounted at '{name}'"),
            ));
        }
        self.shared_provider(parent.store)?
            .put(parent.ino, &name, bytes, 0o644, Caller::current())
    }

    // ---- one call per POSIX primitive -------------------------------------------------------

    /// The attributes of the entry `name` of directory `parent`.
    pub fn lookup(&self, parent: NodeId, name: &Name) -> Result<Attr> {
        match self.find_mount(parent, name) {
            Some(store) => self.attr(NodeId {
                store,
                ino: Ino::ROOT,
            }),
            None => self.shared_provider(parent.store)?.lookup(parent.ino, name),
        }
    }

    /// The attributes of a node.
    pub fn attr(&self, node: NodeId) -> Result<Attr> {
        self.shared_provider(node.store)?.attr(node.ino)
    }

    /// Sets the flags of a file or directory (chattr(1)).
    pub fn set_flags(&self, node: NodeId, flags: InodeFlags) -> Result<()> {
        self.shared_provider(node.store)?.set_flags(node.ino, flags)
    }

    /// Notes that a directory was listed or a symbolic link read, if `rule` counts that; says
    /// whether its time of access is another one now. For files: [`FileHandle::note_access`].
    pub fn note_access(&self, node: NodeId, rule: AccessRule) -> Result<bool> {
        self.shared_provider(node.store)?
            .note_access(node.ino, rule)
    }

    /// Changes attributes; returns the new ones.
    pub fn set_attr(&self, node: NodeId, change: &SetAttr) -> Result<Attr> {
        self.shared_provider(node.store)?.set_attr(node.ino, change)
    }

    /// The parent of a directory; the root of the database is its own.
    pub fn parent(&self, node: NodeId) -> Result<NodeId> {
        if node.ino == Ino::ROOT {
            let host = self
                .read_stores()
                .iter()
                .find(|s| s.row.store == node.store)
                .and_then(|s| s.place.clone());
            return Ok(host.map_or(NodeId::ROOT, |(store, _)| NodeId {
                store,
                ino: Ino::ROOT,
            }));
        }
        let ino = self.shared_provider(node.store)?.parent(node.ino)?;
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
    ) -> Result<Attr> {
        if self.find_mount(parent, name).is_some() {
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
        self.shared_provider(parent.store)?
            .create_node(parent.ino, name, new, mode, caller)
    }

    /// Makes a regular file without a name, as it would be made in directory `parent`, and opens it
    /// for writing (`O_TMPFILE`). It goes with its last handle or in a crash, unless
    /// [`Database::link`] gives it a name first, which `is_linkable` allows.
    pub fn create_anonymous(
        &self,
        parent: NodeId,
        mode: u32,
        is_linkable: bool,
        caller: Caller,
    ) -> Result<(Attr, Box<dyn FileHandle>)> {
        self.shared_provider(parent.store)?
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
    ) -> Result<(Attr, Box<dyn FileHandle>)> {
        if self.find_mount(parent, name).is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists: a store is mounted there"),
            ));
        }
        self.shared_provider(parent.store)?
            .create_file(parent.ino, name, mode, caller, write)
    }

    /// Gives a node that is not a directory another name.
    pub fn link(&self, node: NodeId, parent: NodeId, name: &Name) -> Result<Attr> {
        if node.store != parent.store {
            return Err(Error::new(
                ErrorKind::CrossStore,
                "a hard link cannot cross stores; copy instead",
            ));
        }
        if self.find_mount(parent, name).is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("'{name}' exists: a store is mounted there"),
            ));
        }
        self.shared_provider(node.store)?
            .link(node.ino, parent.ino, name)
    }

    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, parent: NodeId, name: &Name) -> Result<()> {
        self.refuse_mount(parent, name)?;
        self.shared_provider(parent.store)?.unlink(parent.ino, name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, parent: NodeId, name: &Name) -> Result<()> {
        self.refuse_mount(parent, name)?;
        self.shared_provider(parent.store)?
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
        self.refuse_mount(parent, name)?;
        self.refuse_mount(new_parent, new_name)?;
        if parent.store != new_parent.store {
            return Err(Error::new(
                ErrorKind::CrossStore,
                "a rename cannot cross stores; copy and remove instead",
            ));
        }
        self.shared_provider(parent.store)?
            .rename(parent.ino, name, new_parent.ino, new_name, mode)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        self.shared_provider(node.store)?.read_link(node.ino)
    }

    /// Opens a regular file; `write` asks for a handle that can change it.
    pub fn open_file(&self, node: NodeId, write: bool) -> Result<Box<dyn FileHandle>> {
        self.shared_provider(node.store)?.open(node.ino, write)
    }

    /// The names of a node's extended attributes.
    pub fn xattrs(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.shared_provider(node.store)?.xattrs(node.ino)
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.shared_provider(node.store)?.xattr(node.ino, name)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.shared_provider(node.store)?
            .set_xattr(node.ino, name, value, mode)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.shared_provider(node.store)?
            .remove_xattr(node.ino, name)
    }

    // ---- upkeep -----------------------------------------------------------------------------
}

fn init_options(options: &CreateOptions) -> InitOptions {
    let (root_mode, owner) = options.root.unwrap_or((0o755, Caller::current()));
    InitOptions {
        capacity_bytes: options.capacity_bytes,
        retention_ns: options.retention_ns.unwrap_or(RETENTION_NS_DEFAULT),
        root_mode,
        root_uid: owner.uid,
        root_gid: owner.gid,
        group: options.group,
    }
}

/// Where a walk is.
enum Place {
    /// At a directory; more was not asked yet.
    Directory(NodeId),
    /// At something.
    Node(Attr),
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
