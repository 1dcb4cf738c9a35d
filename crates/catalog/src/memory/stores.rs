//! Stores and sessions of a catalog in memory.

use super::constraints::{require, require_attributes};
use super::state::root_inode;
use super::{MemorySessions, MemoryStores};
use crate::{AccessTime, CatalogError, Result, SessionRow, StoreRow, check_store_name};
use larder_format::limits::STORES_MAX;
use larder_format::{CommitSeq, Extent, Ino, SessionId, StoreId};

/// How the provider of a store begins that shows a snapshot; here there are none.
const AS_OF: &str = "asof=";

/// A provider, and a mount.
fn require_words(provider: &str, mount: &str) -> Result<()> {
    require(!provider.is_empty(), "stores: provider <> ''")?;
    require(mount.starts_with('/'), "stores: a mount begins with /")
}

impl MemoryStores<'_> {
    /// All stores, by id.
    pub fn rows(&self) -> Result<Vec<StoreRow>> {
        self.0.read(|state| {
            Ok(state
                .stores
                .values()
                .map(|store| store.row.clone())
                .collect())
        })
    }

    /// Forgets what is remembered of stores: nothing is.
    pub fn forget(&self) {}

    /// Creates a store with an empty root directory; with `table_store`, one that shows the tables
    /// of that store instead (root attributes are then not used). The name follows
    /// [`check_store_name`] and is unique without regard to case; a database has at most
    /// [`STORES_MAX`]. One that has tables of its own is made by a commit.
    #[allow(clippy::too_many_arguments)] // They are the columns of two rows.
    pub fn create(
        &self,
        name: &str,
        provider: &str,
        mount: &str,
        table_store: Option<StoreId>,
        now_ns: i64,
        root_mode: u32,
        uid: u32,
        gid: u32,
    ) -> Result<StoreRow> {
        check_store_name(name)?;
        self.0.write(|state| {
            let has = |is_same: &dyn Fn(&StoreRow) -> bool| {
                state.stores.values().any(|store| is_same(&store.row))
            };
            let exists = |what: String| Err(CatalogError::Exists { what });
            if has(&|row| row.name.eq_ignore_ascii_case(name)) {
                return exists(format!("a store with name '{name}'"));
            }
            if has(&|row| row.mount == mount) {
                return exists(format!("a store with mount '{mount}'"));
            }
            if state.stores.len() >= STORES_MAX {
                return Err(CatalogError::invalid(format!(
                    "the database has {STORES_MAX} stores, which is the most it can have"
                )));
            }
            if let Some(other) = table_store
                && state.owner(other)? != other
            {
                return Err(CatalogError::invalid(format!(
                    "store {other} shows another store itself; name the one that it shows"
                )));
            }
            require_words(provider, mount)?;
            let root = root_inode(now_ns, root_mode, uid, gid);
            let mut since = state.info.commit_seq;
            if table_store.is_none() {
                require_attributes(&root)?;
                since = state.next_seq();
            }
            if let Some(snapshot) = provider.strip_prefix(AS_OF) {
                return Err(CatalogError::not_found(format!("snapshot '{snapshot}'")));
            }
            Ok(state.add_store((name, provider, mount), table_store, root, since))
        })
    }

    /// Changes provider or mount of a store; what is `None` stays.
    pub fn set(&self, store: StoreId, provider: Option<&str>, mount: Option<&str>) -> Result<()> {
        self.0.write(|state| {
            let row = &mut state.store_mut(store)?.row;
            row.provider = provider.unwrap_or(&row.provider).into();
            row.mount = mount.unwrap_or(&row.mount).into();
            require_words(&row.provider, &row.mount)?;
            let mount = row.mount.clone();
            let same = state.stores.values().filter(|one| one.row.mount == mount);
            require(same.count() == 1, "stores: store mounts are unique")
        })
    }

    /// Exchanges the mounts of two stores.
    pub fn exchange_mounts(&self, one: StoreId, other: StoreId) -> Result<()> {
        self.0.write(|state| {
            let first = state.store(one)?.row.mount.clone();
            let second = std::mem::replace(&mut state.store_mut(other)?.row.mount, first);
            state.store_mut(one)?.row.mount = second;
            Ok(())
        })
    }

    /// Destroys a store and its tables, and retires all it holds, as one commit, whose number is
    /// returned. Refuses `main`, and a store that another one shows.
    pub fn destroy(&self, store: StoreId, _now_ns: i64) -> Result<CommitSeq> {
        if store == StoreId::MAIN {
            return Err(CatalogError::invalid(
                "store 'main' cannot be destroyed; remove its files instead",
            ));
        }
        self.0.write(|state| {
            let owner = state.owner(store)?;
            let mut others = state.stores.values().map(|other| &other.row);
            if let Some(other) = others.find(|row| row.table_store == store && row.store != store) {
                return Err(CatalogError::invalid(format!(
                    "store {store} is shown by store '{}'; destroy that one first",
                    other.name
                )));
            }
            if owner == store {
                state.tables.remove(&store);
                state.schema_version += 1;
            }
            state.stores.remove(&store);
            state.orphans.retain(|(of, _), _| *of != store);
            state.holders.retain(|(of, ..)| *of != store);
            let seq = state.next_seq();
            let gone = state.space.retire_store(seq, store);
            state.space.note_changed(seq, &gone);
            state.info.retired_bytes_total += gone.iter().map(Extent::len_bytes).sum::<u64>();
            Ok(seq)
        })
    }

    /// More than the highest inode number that the store ever had (`CATALOG-4`).
    pub fn next_ino(&self, store: StoreId) -> Result<Ino> {
        self.0
            .read(|state| Ok(Ino(state.store(state.owner(store)?)?.next_ino)))
    }

    /// Whether saves keep what users attached to the files of a store.
    pub fn save_keeps(&self, store: StoreId) -> Result<bool> {
        self.0.read(|state| state.keeps(store))
    }

    /// The inode that is now the file that inode `ino` was first. What file it was after commit
    /// `seq`, if that was another one, only a history knows.
    pub fn saved_as(&self, store: StoreId, ino: Ino, _seq: CommitSeq) -> Result<Option<Ino>> {
        self.0
            .read_tables(store, |tables| tables.find_given(ino.0 as i64))
    }

    /// Changes whether saves keep what users attached.
    pub fn set_save_keeps(&self, store: StoreId, keeps: bool) -> Result<()> {
        self.0.write(|state| {
            let owner = state.owner(store)?;
            state.store_mut(owner)?.keeps = keeps;
            Ok(())
        })
    }
}

impl MemorySessions<'_> {
    /// Registers a process, its id and its user; returns its session and the commit that it pins:
    /// the newest one.
    pub fn begin(
        &self,
        (pid, _uid): (u32, u32),
        label: &str,
        now_ns: i64,
    ) -> Result<(SessionId, CommitSeq)> {
        self.0.write(|state| {
            let session = SessionId(state.next_session);
            state.next_session += 1; // CATALOG-4
            let row = SessionRow {
                session,
                pid,
                label: label.into(),
                started_ns: now_ns,
                pin_seq: state.info.commit_seq,
            };
            state.sessions.insert(session, row);
            Ok((session, state.info.commit_seq))
        })
    }

    /// Removes a session, its pin, and its holds on orphans. Ending it twice is no error.
    pub fn end(&self, session: SessionId) -> Result<()> {
        self.end_all(&[session])
    }

    /// The same for several.
    pub fn end_all(&self, sessions: &[SessionId]) -> Result<()> {
        self.0.write(|state| {
            state
                .sessions
                .retain(|session, _| !sessions.contains(session));
            state
                .holders
                .retain(|(.., session)| !sessions.contains(session));
            Ok(())
        })
    }

    /// All sessions, oldest first.
    pub fn rows(&self) -> Result<Vec<SessionRow>> {
        self.0
            .read(|state| Ok(state.sessions.values().cloned().collect()))
    }

    /// Moves a session's pin, outside a commit.
    pub fn set_pin(&self, session: SessionId, seq: CommitSeq) -> Result<()> {
        self.0.write(|state| state.move_pin(session, seq))
    }

    /// Inodes without a name that live on, and the commit since when.
    pub fn orphans(&self) -> Result<Vec<(StoreId, Ino, CommitSeq)>> {
        self.orphans_after(None, usize::MAX)
    }

    /// Whether there is any.
    pub fn has_orphans(&self) -> Result<bool> {
        Ok(!self.orphans_after(None, 1)?.is_empty())
    }

    /// At most so many of them, behind one.
    pub fn orphans_after(
        &self,
        after: Option<(StoreId, Ino)>,
        count_max: usize,
    ) -> Result<Vec<(StoreId, Ino, CommitSeq)>> {
        self.0.read(|state| {
            let all = state.orphans.iter();
            let later = all.filter(|(orphan, _)| after.is_none_or(|after| **orphan > after));
            let rows = later.map(|((store, ino), seq)| (*store, *ino, *seq));
            Ok(rows.take(count_max).collect())
        })
    }

    /// Which session has which orphan open.
    pub fn holders(&self) -> Result<Vec<(StoreId, Ino, SessionId)>> {
        self.0
            .read(|state| Ok(state.holders.iter().copied().collect()))
    }

    /// The session has this orphan open, at once.
    pub fn add_holder(&self, store: StoreId, ino: Ino, session: SessionId) -> Result<()> {
        self.0.write(|state| {
            state.holders.insert((store, ino, session));
            Ok(())
        })
    }

    /// Notes when inodes were read (`ATIME-1`); those that are gone are passed over. Always `true`:
    /// nobody else is writing.
    pub fn note_access(&self, times: &[AccessTime]) -> Result<bool> {
        self.0.write(|state| {
            for (store, ino, at_ns) in times {
                if let Some(inode) = state.tables_mut(*store)?.inodes.get_mut(ino) {
                    inode.row.atime_ns = *at_ns;
                }
            }
            Ok(true)
        })
    }
}
