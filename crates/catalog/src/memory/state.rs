//! The state of a catalog in memory: ordered maps of rows.

use super::space::Space;
use crate::{
    CatalogError, ContentRow, DatabaseInfo, InodeRow, RedoRow, Result, SessionRow, StoreRow,
};
use larder_format::{CommitSeq, FileKind, Ino, Name, SessionId, StoreId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// All that a database holds.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// With the newest commit, and what was ever retired.
    pub(super) info: DatabaseInfo,
    pub(super) schema_version: i64,
    pub(super) stores: BTreeMap<StoreId, Store>,
    pub(super) next_store: u32,
    /// By the store that owns them.
    pub(super) tables: BTreeMap<StoreId, Tables>,
    pub(super) space: Space,
    pub(super) sessions: BTreeMap<SessionId, SessionRow>,
    pub(super) next_session: u64,
    pub(super) orphans: BTreeMap<(StoreId, Ino), CommitSeq>,
    pub(super) holders: BTreeSet<(StoreId, Ino, SessionId)>,
}

/// The table set of one store.
#[derive(Debug, Clone, Default)]
pub(super) struct Tables {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// By directory.
    pub(super) dirents: BTreeMap<Ino, BTreeMap<(Rank, Name), Ino>>,
    pub(super) contents: BTreeMap<Ino, ContentRow>,
    pub(super) maps: BTreeMap<Ino, Pages>,
    pub(super) xattrs: BTreeMap<Ino, Xattrs>,
    pub(super) pieces: BTreeMap<Ino, Pages>,
    /// Oldest first.
    pub(super) redo_rows: BTreeMap<Ino, Vec<RedoRow>>,
}

/// Extended attributes by name.
pub(super) type Xattrs = BTreeMap<(Rank, Vec<u8>), Vec<u8>>;

/// Encoded pages by number.
pub(super) type Pages = BTreeMap<u64, Vec<u8>>;

/// Whether a name is no UTF-8: those sort behind all others (`CATALOG-6`).
pub(super) type Rank = bool;

/// An inode, and what its row says beside the attributes.
#[derive(Debug, Clone)]
pub(super) struct Inode {
    pub(super) row: InodeRow,
    pub(super) since: CommitSeq,
    /// The number of the file that it is, unless that is its own (`SAVE-1`).
    pub(super) first_ino: Option<i64>,
}

impl Inode {
    pub(super) fn file_id(&self) -> i64 {
        self.first_ino.unwrap_or(self.row.ino.0 as i64)
    }
}

pub(super) fn rank(name: &[u8]) -> Rank {
    std::str::from_utf8(name).is_err()
}

/// A store, and what only its owner's row says.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) row: StoreRow,
    pub(super) next_ino: u64,
    /// Saves keep what is attached to files.
    pub(super) keeps: bool,
}

/// The root directory of a new store.
pub(super) fn root_inode(now_ns: i64, mode: u32, uid: u32, gid: u32) -> InodeRow {
    InodeRow {
        ino: Ino::ROOT,
        kind: FileKind::Directory,
        mode,
        uid,
        gid,
        nlink: 2,
        size_bytes: 0,
        block_count: 0,
        atime_ns: now_ns,
        mtime_ns: now_ns,
        ctime_ns: now_ns,
        btime_ns: now_ns,
        rdev: 0,
    }
}

impl State {
    /// Adds a store that shows the tables of `shown`, or has tables of its own with this root.
    pub(super) fn add_store(
        &mut self,
        (name, provider, mount): (&str, &str, &str),
        shown: Option<StoreId>,
        root: InodeRow,
        since: CommitSeq,
    ) -> StoreRow {
        let store = StoreId(self.next_store);
        self.next_store += 1; // CATALOG-4
        let row = StoreRow {
            store,
            name: name.into(),
            provider: provider.into(),
            mount: mount.into(),
            table_store: shown.unwrap_or(store),
        };
        let added = Store {
            row: row.clone(),
            next_ino: Ino::ROOT.0 + 1,
            keeps: true,
        };
        self.stores.insert(store, added);
        if shown.is_none() {
            self.tables.insert(store, Tables::with_root(root, since));
            self.schema_version += 1;
        }
        row
    }

    /// Whether saves keep what users attached to the files of a store.
    pub(super) fn keeps(&self, store: StoreId) -> Result<bool> {
        Ok(self.store(self.owner(store)?)?.keeps)
    }

    pub(super) fn store_mut(&mut self, store: StoreId) -> Result<&mut Store> {
        let found = self.stores.get_mut(&store);
        found.ok_or_else(|| CatalogError::not_found(format!("store {store}")))
    }

    /// Moves the pin of a session that must be there.
    pub(super) fn move_pin(&mut self, session: SessionId, seq: CommitSeq) -> Result<()> {
        let found = self.sessions.get_mut(&session);
        let row = found.ok_or_else(|| CatalogError::not_found(format!("session {session}")))?;
        row.pin_seq = seq;
        Ok(())
    }
}

impl Tables {
    pub(super) fn with_root(root: InodeRow, since: CommitSeq) -> Tables {
        let mut tables = Tables::default();
        let root = Inode {
            row: root,
            since,
            first_ino: None,
        };
        tables.inodes.insert(Ino::ROOT, root);
        tables
    }
}

impl State {
    pub(super) fn store(&self, store: StoreId) -> Result<&Store> {
        let found = self.stores.get(&store);
        found.ok_or_else(|| CatalogError::not_found(format!("store {store}")))
    }

    /// The store whose tables this one shows.
    pub(super) fn owner(&self, store: StoreId) -> Result<StoreId> {
        Ok(self.store(store)?.row.table_store)
    }

    pub(super) fn tables_of(&self, store: StoreId) -> Result<&Tables> {
        Ok(&self.tables[&self.owner(store)?])
    }

    pub(super) fn tables_mut(&mut self, store: StoreId) -> Result<&mut Tables> {
        let owner = self.owner(store)?;
        let found = self.tables.get_mut(&owner);
        found.ok_or_else(|| CatalogError::not_found(format!("store {owner}")))
    }
}

impl Tables {
    pub(super) fn dirents_after<'t>(
        &'t self,
        parent: Ino,
        after: Option<&Name>,
    ) -> impl Iterator<Item = (&'t Name, Ino)> {
        let from = match after {
            Some(name) => Bound::Excluded((rank(name.as_bytes()), name.clone())),
            None => Bound::Unbounded,
        };
        let names = self.dirents.get(&parent).into_iter();
        let names = names.flat_map(move |names| names.range((from.clone(), Bound::Unbounded)));
        names.map(|((_, name), ino)| (name, *ino))
    }

    pub(super) fn names_of(&self, ino: Ino) -> impl Iterator<Item = (Ino, &Name)> {
        let all = self.dirents.iter();
        let all = all.flat_map(|(parent, names)| names.iter().map(|name| (*parent, name)));
        all.filter(move |(_, (_, named))| **named == ino)
            .map(|(parent, ((_, name), _))| (parent, name))
    }
}

/// At most `limit` pages from `from_page` on.
pub(super) fn pages_from(
    maps: &BTreeMap<Ino, Pages>,
    ino: Ino,
    from_page: u64,
    limit: usize,
) -> Vec<(u64, Vec<u8>)> {
    let pages = maps.get(&ino).into_iter();
    let pages = pages.flat_map(|pages| pages.range(from_page..)).take(limit);
    pages.map(|(page, bytes)| (*page, bytes.clone())).collect()
}

pub(super) fn page_of(maps: &BTreeMap<Ino, Pages>, ino: Ino, page: u64) -> Option<Vec<u8>> {
    maps.get(&ino)?.get(&page).cloned()
}

/// Blocks that a redo row holds.
pub(super) fn redo_block_count(row: &RedoRow) -> u64 {
    row.bytes.as_ref().map_or(0, |_| row.blocks.len() as u64)
}

pub(super) fn is_directory(row: &InodeRow) -> bool {
    row.kind == FileKind::Directory
}
