//! History: what a commit supersedes is kept, in the commit's own transaction, until the horizon
//! passes it.
//!
//! # Words
//! A row *was there* at commit S if `since_seq <= S < until_seq`; one that is still there if
//! `since_seq <= S`. A *moment* is the time of a whole commit. *Pruning* up to H deletes what no
//! state from H on has.
//!
//! # Invariants
//! * `HISTORY-1` While the database keeps history, a row of a store table (its user columns
//!   excepted), of its side tables, of `larder_piece` or `larder_redo_row` is changed or deleted by
//!   commit S only after it was copied into `larder_history` with `until_seq` = S, unless S itself
//!   wrote it. *Guard*: all of it happens in [`SqliteCatalog::commit`], the merge of a workspace,
//!   and the triggers of plain SQL; model tests of the layers above.
//! * `HISTORY-2` The rows of `larder_history` are in the order of `until_seq`, so what the horizon
//!   passes is a prefix. *Guard*: commit numbers only grow; `check` compares neighbours.
//! * `HISTORY-3` The state of every whole commit from `history_begins_seq` on can be read, of
//!   stores whose own history does not begin later (`HISTORY-7`). *Guard*: pruning, reclaim and
//!   raising the number are one transaction; extents are reclaimed with the same horizon; who reads
//!   a state pins it in a transaction that looks at the number ([`CatalogPast::pin_past`]), and
//!   reclaim looks at the pins in its own; what was read counts only if the pin outlived it.
//! * `HISTORY-4` What the targets of redo rows held before they were written over can be read where
//!   their pre-images say (`pre_images`): for commit S the row with the lowest `until_seq` > S
//!   counts. *Guard*: the row is durable before its target is written over; the copy is an extent
//!   that is retired by the same commit.
//! * `HISTORY-5` What lay in the old place of a move made by commit M can be read, for commits
//!   before M, where its pre-image says, and from there on as of M, since that may have moved
//!   again. So the old place is needed by nobody but those who read it now. *Guard*: the rows are
//!   written by M itself; the old place is reclaimed only behind the pins of all sessions.
//!
//! Stores may keep history for different times: their invariants are those of `retention/stores`.
//! Redo rows whose targets hold the same content once they are applied need no copy
//! (`ChangeSet::redo_applied`), unless they hide older ones that are in the history: a state
//! that has those needs these as well. A transaction of several steps has one moment, its end:
//! nobody reads a step. What plain SQL changes by itself has none before the next commit: who names
//! or reads the present makes one ([`CatalogTemporal::commit_unsequenced_changes`]).
//!
//! # Cost
//! One row per superseded row, and one per commit. A new file supersedes nothing but the times of
//! its directory.

mod look;
pub(crate) mod pre_images;
pub(crate) mod retention;
pub(crate) mod seals;
pub(crate) mod snapshot_stores;
pub(crate) mod versions;

use crate::authors::Author;
use crate::conn::meta::{find_meta, of_store};
use crate::error::{At, CatalogError, Result};
use crate::space::map_pages;
use crate::types::codec::{signed, unsigned};
use crate::types::utc;
use larder_format::{CommitSeq, Extent, Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use std::cell::Cell;

const TABLE: &str = "larder_history";
/// The commit up to which somebody has given history up (`larder_meta`).
pub(crate) const GIVEN_UP: &str = "history_given_up_seq";
/// Where the history begins; of a store, where that is later (`HISTORY-7`).
pub(crate) const BEGINS: &str = "history_begins_seq";
/// No pre-image has more blocks, so a look for one is short (`pre_images_over`).
pub(crate) const PRE_IMAGE_BLOCKS_MAX: u64 = 1024;

/// Keeps one page of a list of pieces: `store`, `ino`, `page`.
pub(crate) const KEEP_PIECE: &str = "INSERT INTO larder_history (until_seq, what, store, ino, \
    key, since_seq, value) \
     SELECT ?1, 'piece', store, ino, page, since_seq, entries FROM larder_piece \
     WHERE store = ?2 AND ino = ?3 AND page = ?4 AND since_seq < ?1";
/// The same for the whole list: `store`, `ino`.
pub(crate) const KEEP_PIECES: &str = "INSERT INTO larder_history (until_seq, what, store, ino, \
    key, since_seq, value) \
     SELECT ?1, 'piece', store, ino, page, since_seq, entries FROM larder_piece \
     WHERE store = ?2 AND ino = ?3 AND since_seq < ?1";
/// Keeps the redo rows of an object up to a commit: `store`, `ino`, the commit.
pub(crate) const KEEP_REDO_ROWS: &str = "INSERT INTO larder_history (until_seq, what, store, ino, \
    key, since_seq, value, extra, checksum) \
     SELECT ?1, 'redo', store, ino, id, seq, bytes, blocks, checksum FROM larder_redo_row \
     WHERE store = ?2 AND ino = ?3 AND seq <= ?4 AND seq < ?1 ORDER BY id";

/// The statements that keep rows of one store's tables. `?1` is the commit; keys follow.
pub(crate) struct KeepSql {
    /// `ino`
    pub(crate) inode: String,
    /// `parent`, `name`
    pub(crate) name: String,
    /// `ino`
    pub(crate) content: String,
    /// `ino`, `page`
    pub(crate) page: String,
    /// `ino`, the first page
    pub(crate) pages_from: String,
    /// `ino`
    pages: String,
    /// `ino`, `name`
    pub(crate) xattr: String,
    /// `ino`
    xattrs: String,
    /// For which rows, instead of one: the text of a condition.
    templates: [(&'static str, String); 5],
}

impl KeepSql {
    /// For the tables of store `name`, which `store` owns.
    pub(crate) fn new(store: StoreId, name: &str) -> KeepSql {
        let inode = format!(
            "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value, \
             kind, mode, uid, gid, \
             nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev) \
             SELECT ?1, 'inode', {store}, ino, 0, since_seq, first_ino, kind, mode, uid, gid, \
             nlink, size, blocks, \
             atime_ns, mtime_ns, ctime_ns, btime_ns, rdev FROM main.\"{name}\" WHERE since_seq < \
             ?1 AND "
        );
        let side = |what: &str, columns: &str, suffix: &str| {
            format!(
                "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value, \
                 kind, checksum) \
                 SELECT ?1, '{what}', {store}, {columns} \
                 FROM main.\"{name}_{suffix}\" WHERE since_seq < ?1 AND "
            )
        };
        let entry = side("name", "parent, name, since_seq, ino, NULL, NULL", "dirent");
        let content = side(
            "content",
            "ino, 0, since_seq, coalesce(target, inline), iif(target IS NULL, 'file', 'symlink'), \
             checksum",
            "content",
        );
        let map = side("map", "ino, page, since_seq, runs, NULL, NULL", "map");
        let xattr = side("xattr", "ino, name, since_seq, value, NULL, NULL", "xattr");
        let one = |text: &str| format!("{text}ino = ?2");
        KeepSql {
            inode: one(&inode),
            name: format!("{entry}parent = ?2 AND name = ?3"),
            content: one(&content),
            page: format!("{map}ino = ?2 AND page = ?3"),
            pages_from: format!("{map}ino = ?2 AND page >= ?3"),
            pages: one(&map),
            xattr: format!("{xattr}ino = ?2 AND name = ?3"),
            xattrs: one(&xattr),
            templates: [
                ("", inode),
                ("_dirent", entry),
                ("_content", content),
                ("_map", map),
                ("_xattr", xattr),
            ],
        }
    }

    /// What keeps an inode with all that goes with it, but its names, pieces and redo rows: `ino`.
    pub(crate) fn all(&self) -> [&str; 4] {
        [&self.inode, &self.content, &self.pages, &self.xattrs]
    }

    /// What keeps all rows of the table with that suffix for which `condition` holds.
    pub(crate) fn where_(&self, suffix: &str, condition: &str) -> Option<String> {
        let (_, text) = self.templates.iter().find(|(of, _)| *of == suffix)?;
        Some(format!("{text}({condition})"))
    }
}

/// Keeps what one commit supersedes (`HISTORY-1`).
pub(crate) struct Keeper {
    /// The commit.
    pub(crate) seq: CommitSeq,
    is_on: bool,
    /// Its moment.
    at_ns: i64,
    /// Who makes it.
    author: Author,
    /// Any page of a map is shared; asked for when it is needed.
    has_shared_pages: Cell<Option<bool>>,
}

impl Keeper {
    /// Of commit `seq`, which is made at `now_ns`.
    pub(crate) fn begin(txn: &Connection, seq: CommitSeq, now_ns: i64) -> Result<Keeper> {
        let is_on = find_meta(txn, "retention_ns")? > 0;
        let mut at_ns = now_ns;
        if is_on {
            at_ns = follow_clock(txn, now_ns)?;
        }
        Ok(Keeper {
            seq,
            is_on,
            at_ns,
            author: Author::default(),
            has_shared_pages: Cell::new(None),
        })
    }

    /// Of a commit that is a step of a transaction: it has no moment, and does not look back over
    /// the steps before.
    pub(crate) fn begin_step(txn: &Connection, seq: CommitSeq) -> Result<Keeper> {
        Ok(Keeper {
            seq,
            is_on: find_meta(txn, "retention_ns")? > 0,
            at_ns: 0,
            author: Author::default(),
            has_shared_pages: Cell::new(None),
        })
    }

    /// One that keeps nothing, for what is taken back.
    pub(crate) fn off() -> Keeper {
        Keeper {
            seq: CommitSeq(0),
            is_on: false,
            at_ns: 0,
            author: Author::default(),
            has_shared_pages: Cell::new(None),
        }
    }

    /// Who makes the commit is noted with its moment.
    pub(crate) fn by(self, author: Author) -> Keeper {
        Keeper { author, ..self }
    }

    /// Whether history is kept.
    pub(crate) fn keeps(&self) -> bool {
        self.is_on
    }

    /// Runs a statement that keeps rows.
    pub(crate) fn keep(&self, txn: &Connection, text: &str, keys: &[&dyn ToSql]) -> Result<()> {
        if !self.is_on {
            return Ok(());
        }
        let run = || {
            let mut keep = txn.prepare_cached(text)?;
            keep.raw_bind_parameter(1, signed(self.seq.0))?;
            for (index, key) in keys.iter().enumerate() {
                keep.raw_bind_parameter(index + 2, key)?;
            }
            keep.raw_execute()
        };
        run().at(TABLE).map(drop)
    }

    /// Counts that rows of a map go, or are written over, that may refer to shared pages
    /// (`SHARE-7`); `text` finds them. How many do. Where no page is shared: one look for each
    /// commit.
    pub(crate) fn let_go_pages(
        &self,
        txn: &Connection,
        text: &str,
        keys: &[&dyn ToSql],
    ) -> Result<usize> {
        let has_shared = match self.has_shared_pages.get() {
            Some(has_shared) => has_shared,
            None => map_pages::is_any(txn)?,
        };
        self.has_shared_pages.set(Some(has_shared));
        match has_shared {
            true => map_pages::let_go(txn, self.seq, text, keys),
            false => Ok(0),
        }
    }

    /// This commit has just shared a page.
    pub(crate) fn note_shared_page(&self) {
        self.has_shared_pages.set(Some(true));
    }

    /// Notes the moment of the commit.
    pub(crate) fn end(&self, txn: &Connection) -> Result<()> {
        if !self.is_on {
            return Ok(());
        }
        txn.prepare_cached(
            "INSERT INTO larder_history (until_seq, what, key, since_seq, value, uid) \
             VALUES (?1, 'commit', ?2, ?1, ?3, ?4)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                signed(self.seq.0),
                self.at_ns,
                self.author.session.map(|session| signed(session.0)),
                self.author.user
            ])
        })
        .at(TABLE)
        .map(drop)
    }
}

/// The time of a moment that is made when the clock says `now_ns`. Moments do not go back: they are
/// searched. So where the newest one is later, the clock was ahead, and the moments of that time
/// are taken to be of now; else none would expire before the clock gets there again. But a clock
/// that says a time before the database was made is wrong now, and is not followed: all history
/// would look as old. O(moments that were ahead).
fn follow_clock(txn: &Connection, now_ns: i64) -> Result<i64> {
    let newest_ns = newest_moment(txn)?.map_or(i64::MIN, |(_, at_ns)| at_ns);
    if newest_ns <= now_ns {
        return Ok(now_ns);
    }
    if now_ns < find_meta(txn, "created_ns")? {
        return Ok(newest_ns);
    }
    let mut find = txn
        .prepare_cached(
            "SELECT id, key FROM larder_history WHERE what = 'commit' AND id <= ?1 ORDER BY id \
             DESC LIMIT 1",
        )
        .at(TABLE)?;
    let mut set = txn
        .prepare_cached("UPDATE larder_history SET key = ?2 WHERE id = ?1")
        .at(TABLE)?;
    let mut before = last_before(None);
    loop {
        let found: Option<(i64, i64)> = find
            .query_row([before], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .at(TABLE)?;
        match found {
            Some((id, at_ns)) if at_ns > now_ns => {
                set.execute([id, now_ns]).at(TABLE)?;
                before = last_before(Some(id));
            }
            _ => break,
        }
    }
    txn.prepare_cached(
        "UPDATE larder_meta SET value = ?1 WHERE key = 'history_begins_ns' AND value > ?1",
    )
    .and_then(|mut lower| lower.execute([now_ns]))
    .at("larder_meta")?;
    tracing::warn!("the clock was ahead: moments after the present are taken to be of now");
    Ok(now_ns)
}

/// The newest moment that is kept.
pub(crate) fn newest_moment(connection: &Connection) -> Result<Option<(CommitSeq, i64)>> {
    connection
        .prepare_cached(
            "SELECT until_seq, key FROM larder_history WHERE what = 'commit' ORDER BY id DESC \
             LIMIT 1",
        )
        .and_then(|mut find| {
            find.query_row([], |row| Ok((CommitSeq(unsigned(row, 0)?), row.get(1)?)))
                .optional()
        })
        .at(TABLE)
}

/// The newest commit that anything was kept of.
pub(crate) fn newest_until(connection: &Connection) -> Result<CommitSeq> {
    connection
        .prepare_cached("SELECT until_seq FROM larder_history ORDER BY id DESC LIMIT 1")
        .and_then(|mut find| find.query_row([], |row| unsigned(row, 0)).optional())
        .map(|found| CommitSeq(found.unwrap_or(0)))
        .at(TABLE)
}

/// Notes where the content of targets is that will be written over (`HISTORY-4`).
pub(crate) fn add_pre_images(
    txn: &Connection,
    seq: CommitSeq,
    pre_images: &[(Extent, Extent)],
) -> Result<()> {
    let mut insert = txn
        .prepare_cached(
            "INSERT INTO larder_pre_image \
             (segment, start_block, until_seq, block_count, copy_segment, copy_block) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .at("larder_pre_image")?;
    for (target, copy) in pre_images {
        for skip in (0..target.block_count).step_by(PRE_IMAGE_BLOCKS_MAX as usize) {
            let count = PRE_IMAGE_BLOCKS_MAX.min(target.block_count - skip);
            insert
                .execute(params![
                    target.segment.0,
                    signed(target.start_block + skip),
                    signed(seq.0),
                    signed(count),
                    copy.segment.0,
                    signed(copy.start_block + skip)
                ])
                .at("larder_pre_image")?;
        }
    }
    Ok(())
}

/// Notes where content lies that was in another place before the commit (`HISTORY-5`).
pub(crate) fn add_moves(
    txn: &Connection,
    keeper: &Keeper,
    moves: &[(Extent, Extent)],
) -> Result<()> {
    match keeper.is_on {
        true => add_pre_images(txn, keeper.seq, moves),
        false => Ok(()),
    }
}

/// From which commit on a store is known to be there; 0: from before what its history says.
pub(crate) fn store_since(txn: &Connection, store: StoreId, name: &str) -> Result<CommitSeq> {
    // A row of its root that is gone was superseded where its history begins or before, and so the
    // next one is as old.
    let oldest: Option<i64> = txn
        .query_row(
            &format!(
                "SELECT min(since_seq) FROM (SELECT since_seq FROM main.\"{name}\" WHERE ino = ?2 \
                 UNION ALL \
                 SELECT since_seq FROM {TABLE} WHERE store = ?1 AND ino = ?2 AND what = 'inode')"
            ),
            params![store.0, signed(Ino::ROOT.0)],
            |row| row.get(0),
        )
        .at(name)?;
    let oldest = CommitSeq(oldest.unwrap_or(0) as u64);
    Ok(match oldest > begins_of(txn, store)? {
        true => oldest,
        false => CommitSeq(0),
    })
}

/// Notes with the moment of commit `seq`, if history is kept, that it destroyed a store that was
/// there since another one.
pub(crate) fn note_destroyed(
    txn: &Connection,
    seq: CommitSeq,
    (store, name, since): (StoreId, &str, CommitSeq),
) -> Result<()> {
    txn.execute(
        "UPDATE larder_history SET kind = 'destroy', rdev = ?2, extra = ?3, size = ?4 \
         WHERE id = (SELECT max(id) FROM larder_history WHERE what = 'commit') AND until_seq = ?1",
        params![signed(seq.0), store.0, name.as_bytes(), signed(since.0)],
    )
    .at(TABLE)
    .map(drop)
}

/// The history of a store ends with it.
pub(crate) fn forget_store(txn: &Connection, store: StoreId) -> Result<()> {
    txn.execute("DELETE FROM larder_history WHERE store = ?1", [store.0])
        .at(TABLE)
        .map(drop)
}

/// A page of an extent map that was superseded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupersededMap {
    /// Its row in the history.
    pub row: i64,
    /// The store that owns the map.
    pub store: StoreId,
    /// The inode.
    pub ino: Ino,
    /// The number of the page.
    pub page: u64,
    /// Its bytes.
    pub runs: Vec<u8>,
    /// The commit that superseded it.
    pub until: CommitSeq,
}

/// Up to which commit somebody has given history up: of one store, or of what is of none.
pub(crate) fn given_up(connection: &Connection, store: Option<StoreId>) -> Result<CommitSeq> {
    let own = of_store(GIVEN_UP, store);
    connection
        .prepare_cached("SELECT max(value) FROM larder_meta WHERE key IN (?1, ?2)")
        .and_then(|mut find| {
            find.query_row(params![GIVEN_UP, own], |row| row.get::<_, Option<i64>>(0))
        })
        .map(|found| CommitSeq(found.unwrap_or(0) as u64))
        .at("larder_meta")
}

/// The oldest commit that a snapshot or a reader of the past needs (`HISTORY-3`).
pub(crate) fn held(connection: &Connection) -> Result<Option<CommitSeq>> {
    connection
        .prepare_cached(
            "SELECT min(seq) FROM (SELECT min(seq) AS seq FROM larder_snapshot UNION ALL \
             SELECT min(seq) FROM larder_as_of)",
        )
        .and_then(|mut find| find.query_row([], |row| row.get::<_, Option<i64>>(0)))
        .map(|found| found.map(|seq| CommitSeq(seq as u64)))
        .at("larder_snapshot")
}

/// The oldest commit whose state can be read, and its time.
pub(crate) fn history_begins(connection: &Connection) -> Result<(CommitSeq, i64)> {
    let seq = find_meta(connection, BEGINS)?;
    Ok((
        CommitSeq(seq as u64),
        find_meta(connection, "history_begins_ns")?,
    ))
}

/// The commit at which the history of a store begins: of the state after it, and of all later ones.
pub(crate) fn begins_of(connection: &Connection, store: StoreId) -> Result<CommitSeq> {
    let all = find_meta(connection, BEGINS)?;
    let own: Option<i64> = connection
        .prepare_cached("SELECT value FROM larder_meta WHERE key = ?1")
        .and_then(|mut find| {
            find.query_row([of_store(BEGINS, Some(store))], |row| row.get(0))
                .optional()
        })
        .at("larder_meta")?;
    Ok(CommitSeq(own.map_or(all, |own| own.max(all)) as u64))
}

/// The first whole commit of a store's history, and its time. O(log commits).
pub(crate) fn reach_of(connection: &Connection, store: StoreId) -> Result<(CommitSeq, i64)> {
    let begins = begins_of(connection, store)?;
    let of_all = history_begins(connection)?;
    if begins <= of_all.0 {
        return Ok(of_all);
    }
    let (before, first) = search_moments(connection, |seq, _| seq < begins)?;
    Ok(first.unwrap_or((begins, before.map_or(of_all.1, |(_, at_ns)| at_ns))))
}

/// Refuses to read a store as of a commit that its history does not reach any more (`HISTORY-7`).
pub(crate) fn require_reach(
    connection: &Connection,
    store: StoreId,
    name: &str,
    seq: CommitSeq,
) -> Result<()> {
    if seq >= begins_of(connection, store)? {
        return Ok(());
    }
    let (begins, at_ns) = reach_of(connection, store)?;
    Err(CatalogError::invalid(format!(
        "history of store '{name}' begins at {} (commit {begins}); ask for that or later",
        utc::show(at_ns)
    )))
}

pub(crate) fn find_moment(connection: &Connection, at_ns: i64) -> Result<Option<(CommitSeq, i64)>> {
    let begins = history_begins(connection)?;
    let (found, _) = search_moments(connection, |_, at| at <= at_ns)?;
    Ok(found.or((begins.1 <= at_ns).then_some(begins)))
}

/// The number and the time of a whole commit.
type MomentRow = (CommitSeq, i64);

/// The newest moment for which `is_before` holds, as it does for all older ones, and the one after
/// it. O(log commits) looks, each past the rows of one commit at most.
pub(crate) fn search_moments(
    connection: &Connection,
    is_before: impl Fn(CommitSeq, i64) -> bool,
) -> Result<(Option<MomentRow>, Option<MomentRow>)> {
    let ends = |text: &str| -> Result<Option<i64>> {
        connection
            .prepare_cached(text)
            .and_then(|mut find| find.query_row([], |row| row.get(0)))
            .at(TABLE)
    };
    let (Some(low), Some(high)) = (
        ends("SELECT min(id) FROM larder_history")?,
        ends("SELECT max(id) FROM larder_history")?,
    ) else {
        return Ok((None, None));
    };
    let mut next = connection
        .prepare_cached(
            "SELECT id, until_seq, key FROM larder_history WHERE what = 'commit' AND id >= ?1 \
             ORDER BY id LIMIT 1",
        )
        .at(TABLE)?;
    let mut from = |id: i128| {
        let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(i64, MomentRow)> {
            Ok((row.get(0)?, (CommitSeq(unsigned(row, 1)?), row.get(2)?)))
        };
        match i64::try_from(id) {
            Ok(id) => next.query_row([id], row).optional().at(TABLE),
            Err(_) => Ok(None), // behind the last one that there can be
        }
    };
    let mut found = None;
    let end = bisect(low, high, |id| {
        let at_or_after = from(id)?.filter(|(_, (seq, at))| is_before(*seq, *at));
        found = at_or_after.map(|(_, moment)| moment).or(found);
        Ok(at_or_after.map(|(id, _)| id))
    })?;
    Ok((found, from(end)?.map(|(_, moment)| moment)))
}

/// The number behind the last row that `find` accepts, of rows from `low` to `high`. For a number
/// `find` looks at the first row at or behind it, and gives that row's if it accepts it; it accepts
/// all rows before one that it accepts. A stranger's numbers lie anywhere in 64 bits, so their
/// distance and what follows them do not.
pub(crate) fn bisect(
    low: i64,
    high: i64,
    mut find: impl FnMut(i128) -> Result<Option<i64>>,
) -> Result<i128> {
    let (mut low, mut end) = (i128::from(low), i128::from(high) + 1);
    while low < end {
        let middle = low + (end - low) / 2;
        match find(middle)? {
            Some(id) => low = i128::from(id) + 1,
            None => end = middle,
        }
    }
    Ok(low)
}

/// The last number that a row before row `first` can have; before none, the last that there can be.
/// `None`: there is no such number; as a bound in SQL it is NULL, and nothing is at or before that.
/// (A stranger's row may have the last number, so no number is behind all rows.)
pub(crate) fn last_before(first: Option<i64>) -> Option<i64> {
    match first {
        Some(first) => first.checked_sub(1),
        None => Some(i64::MAX),
    }
}

/// The oldest commit at or after `from` that a snapshot or a reader of the past needs.
/// O(snapshots).
pub(crate) fn held_since(connection: &Connection, from: CommitSeq) -> Result<Option<CommitSeq>> {
    connection
        .prepare_cached(
            "SELECT min(seq) FROM (SELECT min(seq) AS seq FROM larder_snapshot WHERE seq >= ?1 \
             UNION ALL \
             SELECT min(seq) FROM larder_as_of WHERE seq >= ?1)",
        )
        .and_then(|mut find| find.query_row([signed(from.0)], |row| row.get::<_, Option<i64>>(0)))
        .map(|found| found.map(|seq| CommitSeq(seq as u64)))
        .at("larder_snapshot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::versions::first_row_after;

    #[test]
    fn moments_are_found_whatever_a_strangers_numbers_are() {
        let catalog = Connection::open_in_memory().unwrap();
        catalog
            .execute(
                "CREATE TABLE larder_history (id INTEGER PRIMARY KEY, what, until_seq, key)",
                [],
            )
            .unwrap();
        for (id, seq) in [(i64::MIN, 1), (-2, 2), (7, 3), (i64::MAX, 4)] {
            catalog
                .execute(
                    "INSERT INTO larder_history VALUES (?1, 'commit', ?2, 10 * ?2)",
                    [id, seq],
                )
                .unwrap();
        }
        let moment = |seq: u64| (CommitSeq(seq), 10 * seq as i64);
        for bound in 0..6 {
            let found = search_moments(&catalog, |seq, _| seq.0 <= bound).unwrap();
            let before = (bound >= 1).then(|| moment(bound.min(4)));
            let after = (bound < 4).then(|| moment(bound + 1));
            assert_eq!(found, (before, after), "{bound}");
        }
    }

    #[test]
    fn rows_are_found_whatever_a_strangers_numbers_are() {
        let catalog = Connection::open_in_memory().unwrap();
        catalog
            .execute(
                "CREATE TABLE larder_history (id INTEGER PRIMARY KEY, until_seq)",
                [],
            )
            .unwrap();
        let first = |after: u64| first_row_after(&catalog, CommitSeq(after)).unwrap();
        assert_eq!(first(0), None, "there are no rows");
        let numbers = [i64::MIN, -2, 7, i64::MAX];
        for (id, seq) in numbers.into_iter().zip(1..) {
            catalog
                .execute("INSERT INTO larder_history VALUES (?1, ?2)", [id, seq])
                .unwrap();
        }
        let count = |condition: &str, bound: Option<i64>| -> usize {
            let text = format!("SELECT count(*) FROM larder_history WHERE {condition}");
            let count: i64 = catalog.query_row(&text, [bound], |row| row.get(0)).unwrap();
            count as usize
        };
        for after in 0..6 {
            let row = numbers.get(after as usize).copied();
            assert_eq!(first(after), row, "{after}");
            let before = numbers.len().min(after as usize);
            assert_eq!(count("id <= ?1", last_before(row)), before, "{after}");
            let left = numbers.len() - before;
            assert_eq!(count("id >= ?1", row), left, "{after}");
        }
    }
}
