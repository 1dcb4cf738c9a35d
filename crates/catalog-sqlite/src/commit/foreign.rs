//! Which inodes others have changed since a session looked last, where the history says that
//! exactly.
//!
//! # Words
//! A *look* reads the history backwards, in one state of the catalog, to where the look before it
//! ended; a *mark* is what it leaves for the next one. *What sessions remember* of an inode: its
//! row, target, content, map, pieces, redo rows and extended attributes, of a directory its
//! entries, and where it is itself. The user's columns are always read.
//!
//! # Invariants
//! * `FOREIGN-1` A look names every inode of whose remembered rows a transaction that was committed
//!   between two looks has changed one; or it says that it does not know. It may name more: those
//!   that the session changed itself.
//! * `FOREIGN-2` A commit that adds to an inode which was there before supersedes a row of that
//!   inode, while history is kept. So what is only created shows in the history too: a name in the
//!   row of its directory, a page, a redo row or an attribute in that of its file. *Guard*: debug
//!   builds look after each commit.
//!
//! # Why the history is enough
//! * What is changed or deleted was copied there first (`HISTORY-1`), under the store and the
//!   inode, with the number of the commit, at the end (`HISTORY-2`). What plain SQL changes has the
//!   number of the next commit. So a look goes back to the number that the catalog had at the look
//!   before, and not to what the session has committed itself since then.
//! * What a session has changed itself it knows. A commit notes which rows of the history it has
//!   added, in its own transaction, so nobody else's are among them, and a look passes them over.
//! * Redo rows may go without a trace when their place holds the same content. The catalog says
//!   that some have gone since the mark, and not whose: who remembers redo rows of an inode reads
//!   them again.
//! * A directory's place changes when the name goes that it had: the inode in that row counts as
//!   changed.
//!
//! # When it does not know
//! * Without history, and where some of it has gone that is younger than the mark: every number in
//!   `larder_meta` that says up to where history has gone counts (its key has `history` in it, and
//!   no `_ns`), but those of what destroyed stores have left: without a store there is nothing to
//!   remember.
//! * When the schema or a store is another one, or a provider is the user's.
//! * Where triggers or foreign keys of the user's may change rows of ours in the engine's commits
//!   (`FOREIGN-5`): what these do is not kept. Triggers of one connection only are not seen by
//!   others: who commits with them leaves a *gap*.
//! * When inode numbers have come back (`ROLLBACK-1`): such rows supersede nothing, so that commit
//!   leaves a gap too.
//! * When guards are missing, and when it would be more than the caller's bound.
//!
//! # Concurrency
//! A look is one read transaction on a connection for reading. 30 µs, and the rows that it reads.

use crate::commit::redo_rows;
use crate::conn::generation::LogIndex;
use crate::conn::meta::{data_version, find_meta};
use crate::error::{At, Result};
use crate::guards::trigger_effects;
use crate::history::last_before;
use crate::lock;
use crate::schema::expected::expected_objects;
use crate::schema::statements::StoreSql;
use crate::types::changes::ChangeSet;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::names::StoreName;
use crate::{CatalogForeign, SqliteCatalog};
use larder_format::{CommitSeq, Ino, StoreId};
use rusqlite::{Connection, params};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const TABLE: &str = "larder_history";
/// The newest commit that may have changed what the history does not say (`larder_meta`).
const GAP: &str = "history_gap_seq";
/// Providers whose stores show tables of the catalog, and nothing else.
const PROVIDERS: [&str; 2] = ["files", "readonly"];
const PROVIDER_AS_OF: &str = "asof=";

/// Where a look ended, and what it found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    seq: CommitSeq,
    schema_version: i64,
    /// All that is changed can be found in the history, by the schema.
    is_told: bool,
    stores: Vec<Store>,
}

/// The store that owns the table, and the inode.
type Key = (u32, i64);

/// A row of `larder_store`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Store {
    id: u32,
    name: String,
    provider: String,
    mount: String,
    table_store: u32,
}

/// What a look has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignLook {
    /// The newest commit.
    pub seq: CommitSeq,
    /// What was changed since the mark, as every store that shows it; `None`: anything.
    pub changed: Option<Vec<(StoreId, Ino)>>,
    /// Redo rows of any inodes may have gone, which changes no content.
    pub have_redo_rows_gone: bool,
    /// For the next look; `None`: there can be none.
    pub mark: Option<Mark>,
}

impl CatalogForeign<'_> {
    /// What commits here is an engine, which promises `FOREIGN-2`; change sets that are made by
    /// hand need not.
    pub fn announce_changes(&self) {
        self.catalog.tells.store(true, Ordering::Relaxed);
    }

    /// Whether another connection (any process, or an SQL session) committed since the last call,
    /// or since opening. Our own commits do not count. Waits for a commit that is running; else 1
    /// µs.
    pub fn foreign_change(&self) -> Result<bool> {
        let mut writer = lock(&self.catalog.writer);
        let seen = data_version(&writer.connection)?;
        Ok(std::mem::replace(&mut writer.data_version, seen) != seen)
    }

    pub(crate) fn tells(&self) -> bool {
        self.catalog.tells.load(Ordering::Relaxed)
    }

    /// A commit of this session has added the rows of the history after `before`, up to `last`.
    pub(crate) fn note_own_rows(&self, (before, last): (i64, i64)) {
        if !self.tells() || last == before {
            return;
        }
        let mut own = crate::lock(&self.catalog.own_rows);
        match own.last_mut() {
            Some((_, end)) if *end == before => *end = last,
            _ => own.push((before + 1, last)),
        }
    }

    /// What others have changed since the look that left `before` (`FOREIGN-1`). At most `rows_max`
    /// rows of the history are read; of more, nothing is known. This session must not commit
    /// meanwhile.
    pub fn look_at_changes(&self, before: Option<&Mark>, rows_max: usize) -> Result<ForeignLook> {
        if self.catalog.user.is_some()
            || self.catalog.client.is_some()
            || self.catalog.as_of.is_some()
        {
            return Ok(ForeignLook {
                seq: self.catalog.tables().commit_seq()?,
                changed: None,
                have_redo_rows_gone: true,
                mark: None,
            });
        }
        self.catalog.read(|connection| {
            let state = connection.unchecked_transaction().at(TABLE)?;
            let found = look(self.catalog, &state, before, rows_max)?;
            crate::lock(&self.catalog.own_rows).clear();
            Ok(found)
        })
    }
}

fn look(
    catalog: &SqliteCatalog,
    state: &Connection,
    before: Option<&Mark>,
    rows_max: usize,
) -> Result<ForeignLook> {
    let seq = CommitSeq(find_meta(state, "commit_seq")? as u64);
    let schema_version = read_schema_version(state)?;
    let stores = read_stores(state)?;
    let same_schema =
        before.filter(|mark| mark.schema_version == schema_version && mark.stores == stores);
    let is_told = match same_schema {
        Some(mark) => mark.is_told,
        None => is_told(catalog, state, schema_version, &stores)?,
    };
    let mark = Mark {
        seq,
        schema_version,
        is_told,
        stores,
    };
    let since = before.map_or(CommitSeq(0), |mark| mark.seq);
    let is_known = is_told && gone_up_to(state)? <= since.0;
    let changed = match same_schema {
        Some(before) if is_known && find_meta(state, "retention_ns")? > 0 => {
            read_history(state, before.seq, &crate::lock(&catalog.own_rows), rows_max)?
        }
        _ => None,
    };
    Ok(ForeignLook {
        seq,
        changed: changed.map(|keys| mark.show(&keys)),
        have_redo_rows_gone: redo_rows::gone_seq(state)? > since,
        mark: Some(mark),
    })
}

impl Mark {
    /// The inodes, as every store that shows them.
    fn show(&self, keys: &BTreeSet<Key>) -> Vec<(StoreId, Ino)> {
        let shown = |&(owner, ino): &Key| {
            let stores = self.stores.iter();
            stores
                .filter(move |store| store.table_store == owner)
                .map(move |store| (StoreId(store.id), Ino(ino as u64)))
        };
        keys.iter().flat_map(shown).collect()
    }
}

fn read_schema_version(state: &Connection) -> Result<i64> {
    state
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
        .at("the schema version")
}

/// The newest row of the history; 0: there is none. 1 µs.
pub(crate) fn newest_row(state: &Connection) -> Result<i64> {
    state
        .prepare_cached("SELECT coalesce(max(id), 0) FROM larder_history")
        .and_then(|mut find| find.query_row([], |row| row.get(0)))
        .at(TABLE)
}

fn read_stores(state: &Connection) -> Result<Vec<Store>> {
    rows(
        state,
        "SELECT id, name, provider, mount, table_store FROM larder_store ORDER BY id",
        [],
        |row| {
            Ok(Store {
                id: row.get(0)?,
                name: row.get::<_, StoreName>(1)?.into(),
                provider: row.get(2)?,
                mount: row.get(3)?,
                table_store: row.get(4)?,
            })
        },
    )
    .at("larder_store")
}

/// The newest commit of whose changes the history may lack some.
fn gone_up_to(state: &Connection) -> Result<u64> {
    state
        .prepare_cached(
            "SELECT coalesce(max(value), 0) FROM larder_meta \
             WHERE instr(key, 'history') > 0 AND instr(key, '_ns') = 0 AND key NOT LIKE '%:gone'",
        )
        .and_then(|mut find| find.query_row([], |row| unsigned(row, 0)))
        .at("larder_meta")
}

/// Whether all that is changed can be found in the history, as far as the schema and the stores
/// have a say.
fn is_told(
    catalog: &SqliteCatalog,
    state: &Connection,
    schema_version: i64,
    stores: &[Store],
) -> Result<bool> {
    let are_ours = stores.iter().all(|store| {
        PROVIDERS.contains(&store.provider.as_str()) || store.provider.starts_with(PROVIDER_AS_OF)
    });
    if !are_ours {
        return Ok(false);
    }
    let owners = stores.iter().filter(|store| store.id == store.table_store);
    let names: Vec<String> = owners.map(|store| store.name.clone()).collect();
    if trigger_effects::is_reached(catalog, state, schema_version, &names)? {
        return Ok(false);
    }
    let there: HashSet<String> = state
        .prepare_cached("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        .and_then(|mut list| list.query_map([], |row| row.get(0))?.collect())
        .at("the triggers")?;
    for (kind, name) in expected_objects(&names)?.iter() {
        if kind == "trigger" && !there.contains(name) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What rows of the history say that were kept after commit `since`, by the one after it and later
/// ones, but for those in the ranges of `own`, the newest last; `None`: they are too many, or not
/// in order.
fn read_history(
    state: &Connection,
    since: CommitSeq,
    own: &[(i64, i64)],
    rows_max: usize,
) -> Result<Option<BTreeSet<Key>>> {
    let mut list = state
        .prepare_cached(
            "SELECT id, until_seq, store, ino, iif(what = 'name', value, NULL) FROM larder_history \
             WHERE id <= ?1 ORDER BY id DESC",
        )
        .at(TABLE)?;
    let mut own = own.iter().rev().peekable();
    let mut found = BTreeSet::new();
    let (mut row_count, mut newer, mut upto) = (0, u64::MAX, last_before(None));
    loop {
        let mut rows = list.query([upto]).at(TABLE)?;
        loop {
            let Some(row) = rows.next().at(TABLE)? else {
                return Ok(Some(found));
            };
            let id: i64 = row.get(0).at(TABLE)?;
            while own.next_if(|(first, _)| id < *first).is_some() {}
            if let Some((first, _)) = own.next_if(|(_, last)| id <= *last) {
                upto = last_before(Some(*first));
                break;
            }
            let until = unsigned(row, 1).at(TABLE)?;
            if until <= since.0 {
                return Ok(Some(found));
            }
            row_count += 1;
            if row_count > rows_max || until > newer {
                return Ok(None);
            }
            newer = until;
            let Some(store) = row.get::<_, Option<u32>>(2).at(TABLE)? else {
                continue; // A moment, or a row of a table of the user's.
            };
            found.insert((store, row.get(3).at(TABLE)?));
            if let Some(named) = row.get::<_, Option<i64>>(4).at(TABLE)? {
                found.insert((store, named));
            }
        }
    }
}

/// Whether triggers may run in commits of this connection that nobody else sees.
pub(crate) fn has_hidden_triggers(txn: &Connection) -> Result<bool> {
    txn.prepare_cached("SELECT 1 FROM sqlite_temp_schema WHERE type = 'trigger' LIMIT 1")
        .and_then(|mut find| find.exists([]))
        .at("the temporary triggers")
}

/// Commit `seq` may change what the history does not tell.
pub(crate) fn note_gap(txn: &Connection, seq: CommitSeq) -> Result<()> {
    txn.prepare_cached(
        "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
         ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
    )
    .and_then(|mut set| set.execute(params![GAP, signed(seq.0)]))
    .at("larder_meta")
    .map(drop)
}

/// An inode to which commit `seq` added something that the history does not tell of (`FOREIGN-2`).
/// For debug builds.
pub(crate) fn find_untold(
    txn: &Connection,
    stores: &HashMap<StoreId, Arc<StoreSql>>,
    changes: &ChangeSet,
    seq: CommitSeq,
) -> Result<Option<(StoreId, Ino)>> {
    let mut added: BTreeSet<(StoreId, Ino)> = BTreeSet::new();
    added.extend(
        changes
            .dirents
            .iter()
            .map(|(store, ino, ..)| (*store, *ino)),
    );
    added.extend(
        changes
            .contents
            .iter()
            .map(|(store, ino, _)| (*store, *ino)),
    );
    added.extend(
        changes
            .map_pages
            .iter()
            .map(|(store, ino, ..)| (*store, *ino)),
    );
    added.extend(
        changes
            .piece_pages
            .iter()
            .map(|(store, ino, ..)| (*store, *ino)),
    );
    added.extend(
        changes
            .redo_rows
            .iter()
            .map(|(store, ino, _)| (*store, *ino)),
    );
    added.extend(changes.xattrs.iter().map(|(store, ino, ..)| (*store, *ino)));
    for (store, ino) in added {
        let sql = &stores[&store];
        let text = format!(
            "SELECT NOT EXISTS (SELECT 1 FROM main.\"{}\" WHERE ino = ?1) \
             OR EXISTS (SELECT 1 FROM main.\"{}\" WHERE ino = ?1 AND since_seq = ?2) \
             OR EXISTS (SELECT 1 FROM larder_history WHERE store = ?3 AND ino = ?1 AND until_seq \
             = ?2)",
            sql.table, sql.table
        );
        let is_told: bool = txn
            .prepare_cached(&text)
            .and_then(|mut ask| {
                ask.query_row(
                    params![signed(ino.0), signed(seq.0), sql.table_store.0],
                    |row| row.get(0),
                )
            })
            .at(TABLE)?;
        if !is_told {
            return Ok(Some((store, ino)));
        }
    }
    Ok(None)
}

impl CatalogForeign<'_> {
    /// A number that is another one after each commit of anybody, ours too; `None`: this catalog
    /// has none, and [`CatalogForeign::foreign_change`] is to be asked. A few nanoseconds.
    pub fn generation(&self) -> Option<u64> {
        let find = || {
            let is_shared = self.catalog.user.is_none()
                && self.catalog.client.is_none()
                && self.catalog.as_of.is_none();
            let found = || LogIndex::find(&lock(&self.catalog.checkpointer));
            is_shared.then(found).flatten()
        };
        self.catalog
            .log_index
            .get_or_init(find)
            .map(LogIndex::generation)
    }
}
