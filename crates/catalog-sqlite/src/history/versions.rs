//! What the history says of single inodes: when they changed, and how they were.
//!
//! # Words
//! A *touch* is a commit that wrote or superseded the row of an inode or one of its names. All that
//! changes a file touches it so, since it moves `ctime_ns`; what moves its content to another place
//! does not. So does a commit that changes the user's columns of it, where they are kept. A commit
//! inside of a transaction is a *step*: nobody sees a state between two *whole* commits.
//!
//! # Concurrency
//! A [`HistoryReader`] sees one committed state of the catalog, history included, for as long as it
//! lives. It keeps the log from being emptied, so it should not wait for people.

use crate::CatalogHistory;
use crate::authors::{self, CommitAuthor};
use crate::conn::meta::{find_meta, of_stores};
use crate::error::no_history;
use crate::error::{At, CatalogError, Result};
use crate::history::{BEGINS, bisect, history_begins, last_before, search_moments};
use crate::schema::read::inode_row;
use crate::temporal::ColumnsText;
use crate::types::codec::{self, TextOrBlob, row_limit, rows, signed, unsigned};
use crate::types::names::StoreName;
use crate::types::rows::InodeRow;
use larder_format::{CommitSeq, Ino, Name, StoreId};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;

const TABLE: &str = "larder_history";
const ATTRIBUTES: &str =
    "kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev";

/// A whole commit that the history knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholeCommit {
    /// Its number.
    pub seq: CommitSeq,
    /// Its time, nanoseconds since 1970.
    pub at_ns: i64,
    /// Where it stands in the history.
    row: i64,
}

/// An inode, and a step that touched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    /// The step.
    pub step: CommitSeq,
    /// The store that owns the table.
    pub store: StoreId,
    /// The inode.
    pub ino: Ino,
}

/// Reads the history of a database, all at one committed state.
pub struct HistoryReader<'c> {
    connection: &'c Connection,
    stores: Vec<Texts>,
    /// Where the histories of stores begin that begin later than that of the database
    /// (`HISTORY-7`).
    begins: Vec<(StoreId, CommitSeq)>,
}

/// The statements about one store's tables.
struct Texts {
    store: StoreId,
    inode: String,
    file_id: String,
    inodes_of_file: String,
    names: String,
    touches: String,
    named_since: String,
    content: String,
    written: String,
    xattrs: String,
    entry: String,
    /// Of the user's columns, where they are kept.
    columns: Option<ColumnsText>,
}

impl Texts {
    fn new(store: StoreId, name: &str, columns: Option<ColumnsText>) -> Texts {
        let of = |what: &str| format!("larder_history WHERE store = {store} AND what = '{what}'");
        let within = "until_seq > ?2 AND until_seq <= ?3 OR since_seq > ?2 AND since_seq <= ?3";
        let superseded = |what: &str| {
            format!(
                "EXISTS (SELECT 1 FROM {} AND ino = ?1 AND ({within}))",
                of(what)
            )
        };
        let present = |table: &str| {
            format!(
                "EXISTS (SELECT 1 FROM {table} ino = ?1 AND since_seq > ?2 AND since_seq <= ?3)"
            )
        };
        let side = |suffix: &str| present(&format!("main.\"{name}_{suffix}\" WHERE"));
        Texts {
            store,
            inode: format!(
                "SELECT ino, {ATTRIBUTES} FROM main.\"{name}\" WHERE ino = ?1 AND since_seq <= ?2 \
                 UNION ALL SELECT ino, {ATTRIBUTES} FROM (SELECT * FROM {} AND ino = ?1 AND key = \
                 0 \
                 AND until_seq > ?2 ORDER BY until_seq LIMIT 1) WHERE since_seq <= ?2",
                of("inode")
            ),
            file_id: format!(
                "SELECT file_id FROM main.\"{name}\" WHERE ino = ?1 AND since_seq <= ?2 \
                 UNION ALL SELECT coalesce(value, ino) FROM (SELECT * FROM {} AND ino = ?1 AND \
                 key = 0 \
                 AND until_seq > ?2 ORDER BY until_seq LIMIT 1) WHERE since_seq <= ?2",
                of("inode")
            ),
            inodes_of_file: format!(
                "SELECT ?1 UNION SELECT ino FROM main.\"{name}\" WHERE first_ino = ?1 \
                 UNION SELECT ino FROM {} AND value = ?1 AND value IS NOT NULL",
                of("inode")
            ),
            names: format!(
                "SELECT parent, name FROM main.\"{name}_dirent\" WHERE ino = ?1 AND since_seq <= \
                 ?2 \
                 UNION ALL SELECT ino, key FROM {} AND value = ?1 AND until_seq > ?2 AND \
                 since_seq <= ?2 \
                 ORDER BY 1, 2",
                of("name")
            ),
            touches: format!(
                "SELECT since_seq FROM main.\"{name}\" WHERE ino = ?1 \
                 UNION SELECT since_seq FROM main.\"{name}_dirent\" WHERE ino = ?1 \
                 UNION SELECT until_seq FROM {inode} AND ino = ?1 AND key = 0 \
                 UNION SELECT since_seq FROM {inode} AND ino = ?1 AND key = 0 \
                 UNION SELECT until_seq FROM {named} AND value = ?1 \
                 UNION SELECT since_seq FROM {named} AND value = ?1 {columns} ORDER BY 1 DESC",
                inode = of("inode"),
                named = of("name"),
                columns = columns.as_ref().map_or(String::new(), |columns| format!(
                    "UNION SELECT until_seq FROM larder_history WHERE what = 'row' AND ino = {} \
                     AND key = +?1",
                    columns.id
                ))
            ),
            named_since: format!(
                "SELECT ino, since_seq FROM main.\"{name}_dirent\" WHERE since_seq > ?1 AND \
                 since_seq <= ?2"
            ),
            content: format!(
                "SELECT {} OR {} OR {} OR EXISTS (SELECT 1 FROM {} AND ino = ?1 AND since_seq > ?2 \
                 AND since_seq <= ?3) OR {} OR {} OR {} OR EXISTS (SELECT 1 FROM larder_redo_row \
                 WHERE store = {store} AND ino = ?1 AND seq > ?2 AND seq <= ?3)",
                superseded("content"),
                superseded("map"),
                superseded("piece"),
                of("redo"),
                side("content"),
                side("map"),
                present(&format!("larder_piece WHERE store = {store} AND"))
            ),
            written: written(store, name),
            xattrs: format!("SELECT {} OR {}", superseded("xattr"), side("xattr")),
            entry: format!(
                "SELECT ino, 9223372036854775807 FROM main.\"{name}_dirent\" WHERE parent = ?1 \
                 AND name = ?2 \
                 UNION ALL SELECT value, until_seq FROM {} AND ino = ?1 AND key = ?2 ORDER BY 2 \
                 DESC",
                of("name")
            ),
            columns,
        }
    }
}

/// Whether a commit wrote both the row of an inode and rows of its content: `?1` the inode, after
/// `?2`, up to `?3`.
fn written(store: StoreId, name: &str) -> String {
    let present = |table: &str, seq: &str, condition: &str| {
        format!(
            "SELECT {seq} FROM {table} WHERE {condition}ino = ?1 AND {seq} > ?2 AND {seq} <= ?3"
        )
    };
    let past = |kinds: &str, seq: &str| {
        let of = format!("store = {store} AND what IN ({kinds}) AND ");
        present("larder_history", seq, &of)
    };
    let side = |suffix: &str| present(&format!("main.\"{name}_{suffix}\""), "since_seq", "");
    let of_store = format!("store = {store} AND ");
    let content = "'content', 'map', 'piece', 'redo'";
    format!(
        "SELECT EXISTS (SELECT * FROM ({} UNION ALL {}) INTERSECT SELECT * FROM ({}))",
        present(&format!("main.\"{name}\""), "since_seq", ""),
        past("'inode'", "since_seq"),
        [
            side("content"),
            side("map"),
            present("larder_piece", "since_seq", &of_store),
            present("larder_redo_row", "seq", &of_store),
            past(content, "since_seq"),
            past(content, "until_seq"),
        ]
        .join(" UNION ALL ")
    )
}

impl CatalogHistory<'_> {
    /// Calls `work` with a reader of the history. [`CatalogError::Invalid`] where there is none,
    /// and in a transaction.
    pub fn read_history<T, E: From<CatalogError>>(
        &self,
        work: impl FnOnce(&HistoryReader<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if self.catalog.user.is_some() || self.catalog.client.is_some() {
            let why = "a transaction has no history of its own; ask the database beside it";
            return Err(CatalogError::invalid(why).into());
        }
        self.catalog.read(|connection| {
            let state = connection.unchecked_transaction().at(TABLE)?;
            if find_meta(&state, "retention_ns")? <= 0 {
                return Err(no_history());
            }
            let stores: Vec<(u32, StoreName)> = rows(
                &state,
                "SELECT id, name FROM larder_store WHERE table_store = id ORDER BY id",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .at("larder_store")?;
            let stores = stores.iter();
            let mut columns = ColumnsText::find(&state)?;
            let mut columns_of = |store: StoreId| {
                let at = columns.iter().position(|(one, _)| *one == store)?;
                Some(columns.swap_remove(at).1)
            };
            let begun = of_stores(&state, BEGINS)?.into_iter();
            let begins = begun.filter_map(|(store, at)| Some((store?, CommitSeq(at as u64))));
            let reader = HistoryReader {
                begins: begins.collect(),
                connection: &state,
                stores: stores
                    .map(|(id, name)| Texts::new(StoreId(*id), name, columns_of(StoreId(*id))))
                    .collect(),
            };
            Ok(work(&reader))
        })?
    }
}

impl HistoryReader<'_> {
    /// The oldest commit whose state can be read, and its time.
    pub fn begins(&self) -> Result<(CommitSeq, i64)> {
        history_begins(self.connection)
    }

    /// The oldest commit of a store whose state can be read.
    pub fn begins_of(&self, store: StoreId) -> Result<CommitSeq> {
        let all = self.begins()?.0;
        let own = self.begins.iter().find(|(one, _)| *one == store);
        Ok(own.map_or(all, |(_, own)| all.max(*own)))
    }

    /// Stores whose history does not reach a commit, by name, and where it begins; but those that
    /// were made after `at_ns`.
    pub fn stores_behind(&self, seq: CommitSeq, at_ns: i64) -> Result<Vec<(String, CommitSeq)>> {
        let behind = self.begins.iter().filter(|(_, begins)| *begins > seq);
        let mut named = Vec::new();
        for (store, begins) in behind {
            let name: Option<StoreName> = self
                .connection
                .prepare_cached("SELECT name FROM larder_store WHERE id = ?1")
                .and_then(|mut find| find.query_row([store.0], |row| row.get(0)).optional())
                .at("larder_store")?;
            let Some(name) = name else { continue };
            let is_later = self
                .connection
                .prepare(&format!(
                    "SELECT 1 FROM main.\"{name}\" WHERE ino = ?1 AND btime_ns > ?2"
                ))
                .and_then(|mut find| find.exists([signed(Ino::ROOT.0), at_ns]))
                .at(&name)?;
            if !is_later {
                named.push((name.into(), *begins));
            }
        }
        Ok(named)
    }

    /// Stores with tables that were there after commit `seq` and have been destroyed since, for
    /// people. (Those that a version without such notes has destroyed are known by their numbers,
    /// and only while blocks of theirs wait.) O(commits since).
    pub fn destroyed_since(&self, seq: CommitSeq) -> Result<Vec<String>> {
        let noted: Vec<(u32, Vec<u8>, u64)> = rows(
            self.connection,
            "SELECT rdev, extra, size FROM larder_history \
             WHERE what = 'commit' AND id >= ?1 AND kind = 'destroy' ORDER BY id",
            [first_row_after(self.connection, seq)?],
            |row| Ok((row.get(0)?, row.get(1)?, unsigned(row, 2)?)),
        )
        .at(TABLE)?;
        let numbers: Vec<u32> = rows(
            self.connection,
            "SELECT DISTINCT store FROM larder_extent \
             WHERE retired_seq > ?1 AND store NOT IN (SELECT id FROM larder_store) ORDER BY store",
            [signed(seq.0)],
            |row| row.get(0),
        )
        .at("larder_extent")?;
        let unnoted = numbers
            .iter()
            .filter(|number| noted.iter().all(|(store, ..)| store != *number));
        let unnoted = unnoted.map(|number| format!("number {number}"));
        let was_there = noted.iter().filter(|(_, _, since)| *since <= seq.0);
        let named = was_there.map(|(_, name, _)| format!("'{}'", String::from_utf8_lossy(name)));
        Ok(named.chain(unnoted).collect())
    }

    /// At most `limit` whole commits before `before` (`None`: the newest), newest first.
    pub fn commits_before(
        &self,
        before: Option<&WholeCommit>,
        limit: usize,
    ) -> Result<Vec<WholeCommit>> {
        rows(
            self.connection,
            "SELECT id, until_seq, key FROM larder_history WHERE what = 'commit' AND id <= ?1 \
             ORDER BY id DESC LIMIT ?2",
            params![
                last_before(before.map(|commit| commit.row)),
                row_limit(limit)
            ],
            |row| {
                Ok(WholeCommit {
                    row: row.get(0)?,
                    seq: CommitSeq(unsigned(row, 1)?),
                    at_ns: row.get(2)?,
                })
            },
        )
        .at(TABLE)
    }

    /// The whole commits around a step: the one before it, as of which its transaction read, and
    /// the one that it is in, with its time; `None`: it is not whole yet. O(log commits).
    pub fn around(&self, step: CommitSeq) -> Result<(CommitSeq, Option<(CommitSeq, i64)>)> {
        let (before, whole) = search_moments(self.connection, |seq, _| seq < step)?;
        let before = match before {
            Some((seq, _)) => seq,
            None => self.begins()?.0,
        };
        Ok((before, whole))
    }

    /// What touched inodes after the state of `after` and up to that of `upto`, sorted; of stores
    /// whose history begins later what came after that. Cost: one pass over the names of all
    /// stores, and over the history from there on.
    pub fn touches(&self, after: CommitSeq, upto: CommitSeq) -> Result<Vec<Touch>> {
        let bounds = [signed(after.0), signed(upto.0)];
        let is_within = |step: u64| step > after.0 && step <= upto.0;
        let mut found = BTreeSet::new();
        for texts in &self.stores {
            let mut list = self
                .connection
                .prepare_cached(&texts.named_since)
                .at(TABLE)?;
            let mut rows = list.query(bounds).at(TABLE)?;
            while let Some(row) = rows.next().at(TABLE)? {
                found.insert(Touch {
                    step: CommitSeq(unsigned(row, 1).at(TABLE)?),
                    store: texts.store,
                    ino: Ino(unsigned(row, 0).at(TABLE)?),
                });
            }
        }
        let mut list = self
            .connection
            .prepare_cached(
                "SELECT store, iif(what = 'name', value, ino), since_seq, until_seq FROM \
                 larder_history \
                 WHERE id >= ?1 AND what IN ('inode', 'name') \
                 AND (until_seq <= ?3 OR since_seq > ?2 AND since_seq <= ?3)",
            )
            .at(TABLE)?;
        let mut rows = list
            .query(params![
                first_row_after(self.connection, after)?,
                bounds[0],
                bounds[1]
            ])
            .at(TABLE)?;
        while let Some(row) = rows.next().at(TABLE)? {
            let store = StoreId(row.get(0).at(TABLE)?);
            let ino = Ino(unsigned(row, 1).at(TABLE)?);
            for column in [2, 3] {
                let step = unsigned(row, column).at(TABLE)?;
                if is_within(step) {
                    let step = CommitSeq(step);
                    found.insert(Touch { step, store, ino });
                }
            }
        }
        self.touch_columns(after, upto, &mut found)?;
        let is_whole = |touch: &Touch| {
            let own = self.begins.iter().find(|(one, _)| *one == touch.store);
            own.is_none_or(|(_, begins)| touch.step > *begins) // HISTORY-7
        };
        Ok(found.into_iter().filter(is_whole).collect())
    }

    /// Adds those that changed columns of the user's.
    fn touch_columns(
        &self,
        after: CommitSeq,
        upto: CommitSeq,
        found: &mut BTreeSet<Touch>,
    ) -> Result<()> {
        if self.stores.iter().all(|texts| texts.columns.is_none()) {
            return Ok(());
        }
        let first = first_row_after(self.connection, after)?;
        let mut list = self
            .connection
            .prepare_cached(
                "SELECT ino, key, until_seq FROM larder_history WHERE id >= ?1 AND what = 'row' \
                 AND until_seq <= ?2 \
                 AND typeof(key) = 'integer'",
            )
            .at(TABLE)?;
        let mut rows = list.query(params![first, signed(upto.0)]).at(TABLE)?;
        while let Some(row) = rows.next().at(TABLE)? {
            let table: i64 = row.get(0).at(TABLE)?;
            let is_it = |columns: &ColumnsText| columns.id == table;
            let mut stores = self.stores.iter();
            let Some(texts) = stores.find(|texts| texts.columns.as_ref().is_some_and(is_it)) else {
                continue;
            };
            found.insert(Touch {
                step: CommitSeq(unsigned(row, 2).at(TABLE)?),
                store: texts.store,
                ino: Ino(unsigned(row, 1).at(TABLE)?),
            });
        }
        Ok(())
    }

    /// Whether the user's columns of a store are kept since a commit at or before `seq`.
    pub fn keeps_columns(&self, store: StoreId, seq: CommitSeq) -> Result<bool> {
        let columns = &self.texts(store)?.columns;
        Ok(columns.as_ref().is_some_and(|columns| columns.since <= seq))
    }

    /// Whether the user's columns of an inode have other values after `upto` than after `after`, as
    /// far as they are kept. 10 µs.
    pub fn are_columns_changed(
        &self,
        store: StoreId,
        ino: Ino,
        after: CommitSeq,
        upto: CommitSeq,
    ) -> Result<bool> {
        match &self.texts(store)?.columns {
            Some(columns) => self.ask(&columns.changed, (ino, after, upto)),
            None => Ok(false),
        }
    }

    /// The steps that touched one inode, of those that the history knows, newest first. O(touches).
    pub fn touches_of(&self, store: StoreId, ino: Ino) -> Result<Vec<CommitSeq>> {
        let begins = self.begins_of(store)?;
        let steps = rows(
            self.connection,
            &self.texts(store)?.touches,
            [signed(ino.0)],
            |row| Ok(CommitSeq(unsigned(row, 0)?)),
        )
        .at(TABLE)?;
        Ok(steps.into_iter().filter(|step| *step > begins).collect())
    }

    /// Who made a whole commit; `None`: plain SQL, or an older version. O(log commits).
    pub fn author(&self, seq: CommitSeq) -> Result<Option<CommitAuthor>> {
        let before = CommitSeq(seq.0.saturating_sub(1));
        authors::find(self.connection, first_row_after(self.connection, before)?)
    }

    /// The attributes of an inode after commit `seq`. 5 µs.
    pub fn inode(&self, store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Option<InodeRow>> {
        self.connection
            .prepare_cached(&self.texts(store)?.inode)
            .and_then(|mut find| {
                find.query_row([signed(ino.0), signed(seq.0)], inode_row)
                    .optional()
            })
            .at(TABLE)
    }

    /// Which file an inode was after commit `seq`: its `file_id` (`SAVE-1`). 5 µs.
    pub fn file_id(&self, store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Option<i64>> {
        self.connection
            .prepare_cached(&self.texts(store)?.file_id)
            .and_then(|mut find| {
                find.query_row([signed(ino.0), signed(seq.0)], |row| row.get(0))
                    .optional()
            })
            .at(TABLE)
    }

    /// The inodes that a file is or was, as far as the history knows: one for each save. O(those).
    pub fn inodes_of_file(&self, store: StoreId, file_id: i64) -> Result<Vec<Ino>> {
        rows(
            self.connection,
            &self.texts(store)?.inodes_of_file,
            [file_id],
            |row| Ok(Ino(unsigned(row, 0)?)),
        )
        .at(TABLE)
    }

    /// The names of an inode after commit `seq`, with their directories. 5 µs.
    pub fn names(&self, store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Vec<(Ino, Name)>> {
        rows(
            self.connection,
            &self.texts(store)?.names,
            [signed(ino.0), signed(seq.0)],
            |row| Ok((Ino(unsigned(row, 0)?), codec::name(row, 1)?)),
        )
        .at(TABLE)
    }

    /// Whether anything that says what the content of an inode is, or where, was written or
    /// superseded after `after`, up to `upto`. If not, it is the same. 10 µs.
    pub fn is_content_touched(
        &self,
        store: StoreId,
        ino: Ino,
        after: CommitSeq,
        upto: CommitSeq,
    ) -> Result<bool> {
        self.ask(&self.texts(store)?.content, (ino, after, upto))
    }

    /// Whether somebody wrote or cut content of an inode after `after`, up to `upto`: a commit that
    /// changed it wrote the inode's row as well. Work in the background, which moves content or
    /// writes redo rows in place, does not, and the times alone do not tell: the clock may stand
    /// still, or be set back. Not told: a file that only became longer, or shorter by what was
    /// never written; its size does. Cost: the history of the inode.
    pub fn is_content_written(
        &self,
        store: StoreId,
        ino: Ino,
        after: CommitSeq,
        upto: CommitSeq,
    ) -> Result<bool> {
        self.ask(&self.texts(store)?.written, (ino, after, upto))
    }

    /// What [`Self::is_content_touched`] says, of its extended attributes.
    pub fn are_xattrs_touched(
        &self,
        store: StoreId,
        ino: Ino,
        after: CommitSeq,
        upto: CommitSeq,
    ) -> Result<bool> {
        self.ask(&self.texts(store)?.xattrs, (ino, after, upto))
    }

    /// Everything that `name` ever named in a directory, newest first.
    pub fn find_ever(&self, store: StoreId, parent: Ino, name: &Name) -> Result<Vec<Ino>> {
        let mut found = rows(
            self.connection,
            &self.texts(store)?.entry,
            params![signed(parent.0), TextOrBlob(name.as_bytes())],
            |row| Ok(Ino(unsigned(row, 0)?)),
        )
        .at(TABLE)?;
        let mut seen = BTreeSet::new();
        found.retain(|ino| seen.insert(*ino));
        Ok(found)
    }

    /// Whether rows of temporal tables were changed after `after`, up to `upto`; the user's columns
    /// of files do not count. Cost: the history between the two.
    pub fn are_rows_touched(&self, after: CommitSeq, upto: CommitSeq) -> Result<bool> {
        let first = first_row_after(self.connection, after)?;
        let columns = self
            .stores
            .iter()
            .filter_map(|texts| texts.columns.as_ref());
        let ids: Vec<String> = columns.map(|columns| columns.id.to_string()).collect();
        self.connection
            .prepare_cached(&format!(
                "SELECT EXISTS (SELECT 1 FROM larder_history WHERE id >= ?1 AND what = 'row' AND \
                 until_seq <= ?2 \
                 AND ino NOT IN ({}))",
                ids.join(", ")
            ))
            .and_then(|mut ask| ask.query_row(params![first, signed(upto.0)], |row| row.get(0)))
            .at(TABLE)
    }

    fn ask(&self, text: &str, (ino, after, upto): (Ino, CommitSeq, CommitSeq)) -> Result<bool> {
        let upto = signed(upto.0.min(i64::MAX as u64));
        self.connection
            .prepare_cached(text)
            .and_then(|mut ask| {
                ask.query_row([signed(ino.0), signed(after.0), upto], |row| row.get(0))
            })
            .at(TABLE)
    }

    fn texts(&self, store: StoreId) -> Result<&Texts> {
        let found = self.stores.iter().find(|texts| texts.store == store);
        found.ok_or_else(|| CatalogError::not_found(format!("store {store}")))
    }
}

/// The first row of the history whose `until_seq` is later than `after` (`HISTORY-2`). `None`: no
/// row is; as a bound in SQL it is NULL, and nothing is at or after that. O(log rows).
pub(crate) fn first_row_after(connection: &Connection, after: CommitSeq) -> Result<Option<i64>> {
    let ends: (Option<i64>, Option<i64>) = connection
        .query_row(
            "SELECT (SELECT min(id) FROM larder_history), (SELECT max(id) FROM larder_history)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(TABLE)?;
    let (Some(low), Some(high)) = ends else {
        return Ok(None);
    };
    let mut next = connection
        .prepare_cached(
            "SELECT id, until_seq FROM larder_history WHERE id >= ?1 ORDER BY id LIMIT 1",
        )
        .at(TABLE)?;
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(i64, u64)> {
        Ok((row.get(0)?, unsigned(row, 1)?))
    };
    let first = bisect(low, high, |id| {
        let Ok(id) = i64::try_from(id) else {
            return Ok(None);
        };
        let found = next.query_row([id], row).optional().at(TABLE)?;
        Ok(found.and_then(|(id, until)| (until <= after.0).then_some(id)))
    })?;
    let Ok(first) = i64::try_from(first) else {
        return Ok(None); // behind the last number that there can be
    };
    let found = next.query_row([first], row).optional().at(TABLE)?;
    Ok(found.map(|(id, _)| id))
}
