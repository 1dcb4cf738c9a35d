//! The stores of an open database: creating, placing, finding them (`CONTENT-1`); what it asks of
//! the engine.

mod known;

use crate::as_of::parse_moment;
use crate::database::{Database, Shown};
use crate::provider::{ProviderFactory, StoreProvider};
use crate::readonly::AS_OF;
use crate::rooms::{Maintenance, Stores};
use crate::types::{Caller, NodeId};
pub use known::StoreInfo;
pub(crate) use known::{KnownStores, MountedStore};
use larder_object::format::{Ino, Name, StoreId};
use larder_object::{Error, ErrorKind, ForeignChange, Moment, Result, Tuning, View, own_snapshot};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard};

impl Database {
    /// From now on stores that others make, move or destroy are noticed here: who looks for a mount
    /// next reads them again.
    pub(crate) fn follow_stores(&self) {
        let shared = Arc::downgrade(&self.shared);
        self.sessions().on_foreign_changes(Box::new(move |change| {
            // What is said of single inodes says nothing of stores (`FOREIGN-1`).
            if let (Some(shared), ForeignChange::Everything) = (shared.upgrade(), change) {
                shared.stores.change_count.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }

    /// Reads the stores again if others may have changed them. The caller has no guard of
    /// [`Database::read_stores`].
    pub(crate) fn refresh_stores(&self) {
        let stores = &self.shared.stores;
        let count = stores.change_count.load(Ordering::SeqCst);
        if stores.known_count.load(Ordering::SeqCst) >= count {
            return;
        }
        // Whoever comes meanwhile waits: what it said would be of before.
        let one = &stores.one_at_a_time;
        let _one_at_a_time = one.lock().unwrap_or_else(PoisonError::into_inner);
        if stores.known_count.load(Ordering::SeqCst) >= count {
            return;
        }
        match self.reload_stores() {
            Ok(()) => drop(stores.known_count.fetch_max(count, Ordering::SeqCst)),
            Err(error) => tracing::warn!("what stores there are is not known anew: {error}"),
        }
    }

    /// The store whose table a store shows.
    pub(crate) fn table_of(&self, store: StoreId) -> StoreId {
        let stores = self.read_stores();
        let shown = stores.iter().find(|one| one.row.store == store);
        shown.map_or(store, |one| one.row.table_store)
    }

    /// The store of which a store shows a snapshot; `None`: it shows none.
    pub(crate) fn snapshot_table(&self, store: StoreId) -> Option<StoreId> {
        let stores = self.read_stores();
        let shown = stores.iter().find(|one| one.row.store == store)?;
        (shown.row.provider.starts_with(AS_OF)).then_some(shown.row.table_store)
    }

    /// The snapshot that a store shows.
    pub(crate) fn snapshot_of(&self, store: StoreId) -> Option<String> {
        let stores = self.read_stores();
        let shown = stores.iter().find(|one| one.row.store == store)?;
        shown.row.provider.strip_prefix(AS_OF).map(str::to_owned)
    }

    /// Opens the stores that show snapshots: who does that first makes a commit, which has to come
    /// before a transaction that may look into them with the write lock in hand. What fails is told
    /// to whoever looks.
    pub(crate) fn look_into_snapshots(&self) {
        let stores = self.read_stores();
        let shown = stores
            .iter()
            .filter(|store| store.row.provider.starts_with(AS_OF));
        let shown: Vec<_> = shown.filter_map(|store| store.provider.clone()).collect();
        drop(stores);
        for provider in shown {
            if let Err(error) = provider.metadata(Ino::ROOT) {
                tracing::debug!("a store that shows a snapshot: {error}");
            }
        }
    }

    /// A mount hides what is under it: nothing may be there.
    fn require_free(&self, host: StoreId, entry: &Name, mount: &str) -> Result<()> {
        let root = NodeId {
            store: host,
            ino: Ino::ROOT,
        };
        match self.nodes().lookup(root, entry) {
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

    pub(crate) fn note_stores(&self) {
        if let Some(active) = self.shared.shown.active() {
            active.note_stores();
        }
    }

    pub(crate) fn find_store(&self, name: &str) -> Result<StoreId> {
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

    pub(crate) fn read_stores(&self) -> RwLockReadGuard<'_, Vec<MountedStore>> {
        let list = &self.shared.stores.list;
        list.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reload_stores(&self) -> Result<()> {
        let mut rows = self.read(View::stores)?;
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
                None => self.shared.make_provider(&row, None),
            };
            mounted.push(MountedStore {
                row,
                provider,
                place,
            });
        }
        if let Shown::Past(past) = &self.shared.shown {
            // A store that came later is not there; its row is.
            let mut found = Vec::with_capacity(mounted.len());
            for store in mounted {
                let is_of_snapshot = store.row.provider.starts_with(AS_OF);
                let asked = store.provider.as_ref().filter(|_| !is_of_snapshot);
                match asked.map(|one| one.metadata(Ino::ROOT)) {
                    Some(Err(error)) if error.kind() == ErrorKind::NotFound => {}
                    Some(Err(error)) => {
                        let table = store.row.table_store;
                        if past.is_behind(table)? {
                            found.push(store); // It is there, and says so to whoever looks into it.
                        } else if past.moment().require_reach(table).is_ok() {
                            return Err(error);
                        }
                    }
                    Some(Ok(_)) | None => found.push(store),
                }
            }
            mounted = found;
        }
        mounted.sort_by_key(|s| s.row.store);
        self.shared.stores.set(mounted);
        Ok(())
    }

    pub(crate) fn shared_provider(&self, store: StoreId) -> Result<Arc<dyn StoreProvider>> {
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
    pub(crate) fn find_mount(&self, parent: NodeId, name: &Name) -> Option<StoreId> {
        if parent.ino != Ino::ROOT {
            return None;
        }
        self.refresh_stores();
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

    /// Whether any store is mounted below the root.
    pub(crate) fn has_mounts(&self) -> bool {
        self.refresh_stores();
        self.read_stores().len() > 1
    }

    pub(crate) fn refuse_mount(&self, parent: NodeId, name: &Name) -> Result<()> {
        match self.find_mount(parent, name) {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Busy,
                format!("a store is mounted at '{name}'; use 'larder store' to change it"),
            )),
        }
    }
}

impl Maintenance<'_> {
    /// What was chosen for the database in place of the engine's defaults.
    pub fn tuning(&self) -> Result<Tuning> {
        self.database.shared.shown.view().tuning()
    }

    /// Chooses for the database, durably; what is out of bounds is refused. Sessions that are open,
    /// this one too, go on as they are; whoever opens it later obeys.
    pub fn set_tuning(&self, tuning: &Tuning) -> Result<()> {
        self.database.whole()?.set_tuning(tuning)
    }
}

impl Stores<'_> {
    /// All stores, `main` first.
    pub fn list(&self) -> Result<Vec<StoreInfo>> {
        self.database.reload_stores()?;
        let stores = self.database.read_stores();
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
    /// it presents, for providers that are views. The provider `asof=MOMENT` presents it (default:
    /// `main`) as it was at a moment ([`parse_moment`]): a snapshot, which the store holds from
    /// then on; for any other moment one is made, `store-NAME`, which goes with the store.
    pub fn create(
        &self,
        name: &str,
        provider: &str,
        mount: Option<&str>,
        shows: Option<&str>,
    ) -> Result<StoreInfo> {
        let mount = mount.map_or_else(|| format!("/{name}"), str::to_owned);
        let mut shows = shows
            .map(|other| self.database.find_store(other))
            .transpose()?;
        let (mut provider, mut is_own) = (provider.to_owned(), false);
        match provider.strip_prefix(AS_OF) {
            None => drop(self.database.factory(&provider)?),
            Some(moment) => {
                let engine = self.database.whole()?;
                let moment = parse_moment(moment, engine.now_ns())?;
                shows = shows.or(Some(StoreId::MAIN));
                // Checked before a snapshot is made for it.
                larder_object::check_store_name(name)?;
                let snapshot = match moment {
                    Moment::Snapshot(name) => name,
                    moment => {
                        is_own = true;
                        engine
                            .past()
                            .snapshot_moment(&own_snapshot(name), &moment)?
                            .name
                    }
                };
                provider = format!("{AS_OF}{snapshot}");
            }
        }
        let made = self
            .database
            .mount_place(&mount)
            .and_then(|(parent, entry)| {
                self.database.require_free(parent, &entry, &mount)?;
                let owner = Caller::current();
                self.database.enter(|engine| {
                    engine
                        .namespace()
                        .create_store(name, &provider, &mount, shows, 0o755, owner.uid, owner.gid)
                })
            });
        if made.is_err() && is_own {
            self.database
                .whole()?
                .past()
                .destroy_snapshot(&own_snapshot(name))?;
        }
        let row = made?;
        self.database.note_stores();
        self.database.reload_stores()?;
        self.list()?
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
    pub fn destroy(&self, name: &str) -> Result<()> {
        let store = self.database.find_store(name)?;
        self.database.whole()?.namespace().destroy_store(store)?;
        self.database.reload_stores()
    }

    /// Changes where a store is mounted or which provider serves it.
    pub fn set(&self, name: &str, provider: Option<&str>, mount: Option<&str>) -> Result<()> {
        let store = self.database.find_store(name)?;
        if let Some(provider) = provider {
            let known =
                |one: &MountedStore| one.row.store == store && one.row.provider.starts_with(AS_OF);
            if provider.starts_with(AS_OF) || self.database.read_stores().iter().any(known) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "a store shows a snapshot from its beginning to its end; create another \
                     store, or destroy this one",
                ));
            }
            self.database.factory(provider)?;
        }
        if let Some(mount) = mount {
            let (host, entry) = self.database.mount_place(mount)?;
            if store == StoreId::MAIN {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "store 'main' is always mounted at '/'; mount the others where you like",
                ));
            }
            if self.database.is_below(host, store) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("'{mount}' lies inside store '{name}' itself; choose a place outside"),
                ));
            }
            self.database.require_free(host, &entry, mount)?;
        }
        self.database
            .enter(|engine| engine.namespace().set_store(store, provider, mount))?;
        self.database.note_stores();
        self.database.reload_stores()
    }

    /// Whether a file that is saved, which means that a program renames another one over it, keeps
    /// what users attached to it: their columns, its `file_id`, rows that refer to it. A store that
    /// shows another one does as that one. 10 µs.
    pub fn save_keeps(&self, name: &str) -> Result<bool> {
        let store = self.database.find_store(name)?;
        self.database.read(|view| view.save_keeps(store))
    }

    /// Changes that, for saves from here on.
    pub fn set_save_keeps(&self, name: &str, keeps: bool) -> Result<()> {
        let store = self.database.find_store(name)?;
        self.database
            .enter(|engine| engine.namespace().set_save_keeps(store, keeps))
    }
}
