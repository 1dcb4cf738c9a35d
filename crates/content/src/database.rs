//! An open database: stores, dispatch of paths and nodes, and the verbs of its upkeep.

use crate::files::FilesProvider;
use crate::path::split_path;
use crate::provider::{FileHandle, ProviderContext, ProviderFactory, StoreProvider};
use crate::readonly::ReadonlyProvider;
use crate::types::{Attr, Caller, DirEntry, NewNode, NodeId, RenameMode, SetAttr, XattrMode};
use larder_object::format::limits::{SYMLINK_BYTES_MAX, SYMLINK_FOLLOW_MAX};
use larder_object::format::{FileKind, Ino, Name, NameError, StoreId};
use larder_object::{
    CheckReport, Engine, EngineOptions, Error, ErrorKind, FragReport, InitOptions, Result,
    SpaceReport, SqlSession, StoreRow,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, RwLock};

/// How a database is created.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Bytes of content it may hold, ≥ 16 MiB; `None`: what the filesystem has.
    pub capacity_bytes: Option<u64>,
    /// How long superseded content stays readable, nanoseconds; `None`: one hour. Recorded; the
    /// time machine that uses it comes with a later version.
    pub retention_ns: Option<i64>,
    /// Mode, owner and group of the root directory; `None`: 0755 and this process's.
    pub root: Option<(u32, Caller)>,
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

/// A store as `larder store list` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreInfo {
    /// Its id.
    pub store: StoreId,
    /// Its name; also the name of its table unless it shows another store's.
    pub name: String,
    /// `files`, `readonly`, or the name of a provider of your own.
    pub provider: String,
    /// Where it is mounted.
    pub mount: String,
    /// The name of the store whose table it shows.
    pub table: String,
}

#[derive(Clone)]
struct MountedStore {
    row: StoreRow,
    /// `None`: this program does not have the provider.
    provider: Option<Arc<dyn StoreProvider>>,
    /// Where the mount hangs: the root of this store, under this name; `None` for `main`.
    place: Option<(StoreId, Name)>,
}

/// An open database. Cheap to clone; the last clone to go closes it.
#[derive(Clone)]
pub struct Database {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Arc<Engine>,
    factories: HashMap<String, ProviderFactory>,
    stores: RwLock<Vec<MountedStore>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.engine.close() {
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
    /// [`ErrorKind::NewerFormat`], [`ErrorKind::Corrupt`], [`ErrorKind::ReadOnly`].
    pub fn open(path: &Path, options: OpenOptions) -> Result<Database> {
        let engine = Engine::open(path, &options.label, &options.engine)?;
        let mut factories = options.providers;
        factories.insert(
            "files".into(),
            Arc::new(|context| Arc::new(FilesProvider::new(context))),
        );
        factories.insert(
            "readonly".into(),
            Arc::new(|context| {
                Arc::new(ReadonlyProvider::new(Arc::new(FilesProvider::new(context))))
            }),
        );
        let shared = Shared {
            engine,
            factories,
            stores: RwLock::default(),
        };
        let database = Database {
            shared: Arc::new(shared),
        };
        database.reload_stores()?;
        Ok(database)
    }

    /// Commits everything, gives back what may be reclaimed, and ends the session. Handles that
    /// are still open answer [`ErrorKind::Stopped`] afterwards.
    pub fn close(self) -> Result<()> {
        self.shared.engine.close()
    }

    /// Returns after the commit that holds every operation that ended before (`CONTENT-5`).
    pub fn sync(&self) -> Result<()> {
        self.shared.engine.sync()
    }

    /// Calls `observer` after another session or an SQL client has changed the database, within
    /// 100 ms of its commit. The engine's own caches are fresh by then.
    pub fn on_foreign_change(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.shared.engine.on_foreign_change(observer);
    }

    // ---- stores ---------------------------------------------------------------------------

    /// All stores, `main` first.
    pub fn stores(&self) -> Result<Vec<StoreInfo>> {
        self.reload_stores()?;
        let stores = self.read_stores();
        let name_of = |id: StoreId| {
            stores
                .iter()
                .find(|s| s.row.store == id)
                .map(|s| s.row.name.clone())
                .unwrap_or_default()
        };
        Ok(stores
            .iter()
            .map(|s| StoreInfo {
                store: s.row.store,
                name: s.row.name.clone(),
                provider: s.row.provider.clone(),
                mount: s.row.mount.clone(),
                table: name_of(s.row.table_store),
            })
            .collect())
    }

    /// Creates a store, mounted at `mount` (default: `/NAME`). `shows` names the store whose table
    /// it presents, for providers that are views.
    pub fn create_store(
        &self,
        name: &str,
        provider: &str,
        mount: Option<&str>,
        shows: Option<&str>,
    ) -> Result<StoreInfo> {
        self.factory(provider)?;
        let mount = mount.map_or_else(|| format!("/{name}"), str::to_owned);
        let shows = shows.map(|other| self.find_store(other)).transpose()?;
        let (parent, entry) = self.mount_place(&mount)?;
        self.require_free(parent, &entry, &mount)?;
        let owner = Caller::current();
        let row = self
            .shared
            .engine
            .create_store(name, provider, &mount, shows, 0o755, owner.uid, owner.gid)?;
        self.reload_stores()?;
        self.stores()?
            .into_iter()
            .find(|info| info.store == row.store)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("store '{name}' vanished while it was created"),
                )
            })
    }

    /// Destroys a store with all its files and rows. `main` stays.
    pub fn destroy_store(&self, name: &str) -> Result<()> {
        let store = self.find_store(name)?;
        self.shared.engine.destroy_store(store)?;
        self.reload_stores()
    }

    /// Changes where a store is mounted or which provider serves it.
    pub fn set_store(&self, name: &str, provider: Option<&str>, mount: Option<&str>) -> Result<()> {
        let store = self.find_store(name)?;
        if let Some(provider) = provider {
            self.factory(provider)?;
        }
        if let Some(mount) = mount {
            let (host, entry) = self.mount_place(mount)?;
            if store == StoreId::MAIN {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "store 'main' is always mounted at '/'; mount the others where you like",
                ));
            }
            if self.is_below(host, store) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("'{mount}' lies inside store '{name}' itself; choose a place outside"),
                ));
            }
            self.require_free(host, &entry, mount)?;
        }
        self.shared.engine.set_store(store, provider, mount)?;
        self.reload_stores()
    }

    /// A mount hides what is under it: nothing may be there.
    fn require_free(&self, host: StoreId, entry: &Name, mount: &str) -> Result<()> {
        let root = NodeId {
            store: host,
            ino: Ino::ROOT,
        };
        match self.lookup(root, entry) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::new(
                ErrorKind::Exists,
                format!("'{mount}' exists in the tree; remove it or choose another --mount"),
            )),
        }
    }

    /// Whether `store` is `ancestor`, or is mounted somewhere in it.
    fn is_below(&self, store: StoreId, ancestor: StoreId) -> bool {
        let stores = self.read_stores();
        let mut at = Some(store);
        while let Some(store) = at {
            if store == ancestor {
                return true;
            }
            let place = stores
                .iter()
                .find(|s| s.row.store == store)
                .and_then(|s| s.place.as_ref());
            at = place.map(|(host, _)| *host);
        }
        false
    }

    fn find_store(&self, name: &str) -> Result<StoreId> {
        self.read_stores()
            .iter()
            .find(|s| s.row.name == name)
            .map(|s| s.row.store)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("there is no store '{name}'; 'larder store list' names them"),
                )
            })
    }

    fn factory(&self, provider: &str) -> Result<&ProviderFactory> {
        self.shared.factories.get(provider).ok_or_else(|| {
            let mut known: Vec<&str> = self.shared.factories.keys().map(String::as_str).collect();
            known.sort_unstable();
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "there is no provider '{provider}'; choose one of: {}",
                    known.join(", ")
                ),
            )
        })
    }

    /// The store whose root holds the mount point `mount`, and the name there.
    fn mount_place(&self, mount: &str) -> Result<(StoreId, Name)> {
        let bad = |why: &str| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("'{mount}' is no place for a store: {why}"),
            )
        };
        let (parent, name) = mount
            .rsplit_once('/')
            .ok_or_else(|| bad("begin it with '/'"))?;
        let name = Name::new(name.as_bytes()).map_err(|error| bad(&error.to_string()))?;
        let parent = if parent.is_empty() { "/" } else { parent };
        let stores = self.read_stores();
        let Some(host) = stores.iter().find(|s| s.row.mount == parent) else {
            return Err(bad("its parent must be '/' or the mount of another store"));
        };
        Ok((host.row.store, name))
    }

    fn read_stores(&self) -> std::sync::RwLockReadGuard<'_, Vec<MountedStore>> {
        self.shared
            .stores
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn reload_stores(&self) -> Result<()> {
        let mut rows = self.shared.engine.stores()?;
        rows.sort_by_key(|row| row.mount.len());
        let mut mounted: Vec<MountedStore> = Vec::with_capacity(rows.len());
        let known = self.read_stores().clone();
        for row in rows {
            let place = if row.store == StoreId::MAIN {
                None
            } else {
                let Some((parent, name)) = row.mount.rsplit_once('/') else {
                    continue;
                };
                let parent = if parent.is_empty() { "/" } else { parent };
                let host = mounted
                    .iter()
                    .find(|s| s.row.mount == parent)
                    .map(|s| s.row.store);
                // A mount whose host went away is not reachable until `store set --mount`.
                host.and_then(|host| Name::new(name.as_bytes()).ok().map(|name| (host, name)))
            };
            let provider = match known.iter().find(|s| s.row == row) {
                Some(store) => store.provider.clone(),
                None => self.shared.factories.get(&row.provider).map(|factory| {
                    factory(ProviderContext {
                        engine: self.shared.engine.clone(),
                        store: row.store,
                        table_store: row.table_store,
                    })
                }),
            };
            mounted.push(MountedStore {
                row,
                provider,
                place,
            });
        }
        mounted.sort_by_key(|s| s.row.store);
        *self
            .shared
            .stores
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = mounted;
        Ok(())
    }

    fn shared_provider(&self, store: StoreId) -> Result<Arc<dyn StoreProvider>> {
        let stores = self.read_stores();
        let found = stores
            .iter()
            .find(|s| s.row.store == store)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("store {store} is gone")))?;
        found.provider.clone().ok_or_else(|| {
            let (name, provider) = (&found.row.name, &found.row.provider);
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "store '{name}' needs provider '{provider}', which this program does not have"
                ),
            )
        })
    }

    /// The store mounted in `parent` under `name`, if any (`CONTENT-1`).
    fn find_mount(&self, parent: NodeId, name: &Name) -> Option<StoreId> {
        if parent.ino != Ino::ROOT {
            return None;
        }
        let stores = self.read_stores();
        if stores.len() == 1 {
            return None;
        }
        stores
            .iter()
            .find(|s| {
                s.place
                    .as_ref()
                    .is_some_and(|(host, at)| *host == parent.store && at == name)
            })
            .map(|s| s.row.store)
    }

    fn refuse_mount(&self, parent: NodeId, name: &Name) -> Result<()> {
        match self.find_mount(parent, name) {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Busy,
                format!("a store is mounted at '{name}'; use 'larder store' to change it"),
            )),
        }
    }

    // ---- paths ----------------------------------------------------------------------------

    /// The node that an absolute path names; a final symbolic link is followed if `follow`.
    /// Cost: one lookup per component.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr> {
        let mut links_left = SYMLINK_FOLLOW_MAX;
        let parts = split_path(path)?;
        let trailing_slash = path.last() == Some(&b'/');
        self.walk(
            self.attr(NodeId::ROOT)?,
            &parts,
            follow || trailing_slash,
            &mut links_left,
        )
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
        let parent = self.walk(self.attr(NodeId::ROOT)?, parents, true, &mut links_left)?;
        require_directory(&parent, path)?;
        Ok((parent.node, name_of(last)?))
    }

    fn walk(
        &self,
        start: Attr,
        parts: &[&[u8]],
        follow: bool,
        links_left: &mut u32,
    ) -> Result<Attr> {
        let mut at = start;
        for (index, part) in parts.iter().enumerate() {
            require_directory(&at, part)?;
            if *part == b".." {
                at = self.attr(self.parent(at.node)?)?;
                continue;
            }
            let next = self.lookup(at.node, &name_of(part)?)?;
            let is_last = index + 1 == parts.len();
            if next.kind != FileKind::Symlink || (is_last && !follow) {
                at = next;
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
                self.attr(NodeId::ROOT)?
            } else {
                at
            };
            let hops: Vec<&[u8]> = target
                .split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .collect();
            at = self.walk(from, &hops, true, links_left)?;
        }
        Ok(at)
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

    /// Changes attributes; returns the new ones.
    pub fn set_attr(&self, node: NodeId, change: &SetAttr) -> Result<Attr> {
        self.shared_provider(node.store)?.set_attr(node.ino, change)
    }

    /// At most `limit` entries after `after` (`None`: from the start). Fewer than `limit` only at
    /// the end. Stores mounted here come last.
    pub fn read_dir(
        &self,
        node: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        let mounts: Vec<(Name, StoreId)> = if node.ino == Ino::ROOT {
            let stores = self.read_stores();
            let here = |s: &MountedStore| match &s.place {
                Some((host, name)) if *host == node.store => Some((name.clone(), s.row.store)),
                _ => None,
            };
            stores.iter().filter_map(here).collect()
        } else {
            Vec::new()
        };
        let past_entries =
            after.and_then(|name| mounts.iter().position(|(mount, _)| mount == name));
        let mut entries = match past_entries {
            Some(_) => Vec::new(),
            None => self
                .shared_provider(node.store)?
                .read_dir(node.ino, after, limit)?,
        };
        for (name, store) in mounts.into_iter().skip(past_entries.map_or(0, |at| at + 1)) {
            if entries.len() < limit {
                let node = NodeId {
                    store,
                    ino: Ino::ROOT,
                };
                entries.push(DirEntry {
                    name,
                    node,
                    kind: FileKind::Directory,
                });
            }
        }
        Ok(entries)
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

    /// How full the database is.
    pub fn space(&self) -> Result<SpaceReport> {
        self.shared.engine.space_report()
    }

    /// How fragmented it is, counted from the extent maps. Cost: reads every map.
    pub fn frag(&self) -> Result<FragReport> {
        self.shared.engine.frag_report()
    }

    /// Proves that catalog and segments agree; with `read_content` also reads every block.
    /// `progress(done_bytes, total_bytes)` is called now and then.
    pub fn check(
        &self,
        read_content: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        self.shared.engine.check(read_content, progress)
    }

    /// An SQL session on the catalog, beside the engine: it sees what is committed.
    pub fn sql(&self, read_only: bool) -> Result<SqlSession> {
        self.shared.engine.sql_session(read_only)
    }
}

fn init_options(options: &CreateOptions) -> InitOptions {
    let (root_mode, owner) = options.root.unwrap_or((0o755, Caller::current()));
    InitOptions {
        capacity_bytes: options.capacity_bytes,
        retention_ns: options.retention_ns.unwrap_or(3_600_000_000_000),
        root_mode,
        root_uid: owner.uid,
        root_gid: owner.gid,
    }
}

fn name_of(part: &[u8]) -> Result<Name> {
    Name::new(part).map_err(|error| {
        let kind = match error {
            NameError::TooLong => ErrorKind::NameTooLong,
            NameError::Empty | NameError::Reserved | NameError::Forbidden => {
                ErrorKind::InvalidInput
            }
        };
        Error::new(kind, error.to_string())
    })
}

fn require_directory(attr: &Attr, path: &[u8]) -> Result<()> {
    if attr.kind == FileKind::Directory {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotADirectory,
        format!(
            "a component before '{}' is not a directory",
            String::from_utf8_lossy(path)
        ),
    ))
}
