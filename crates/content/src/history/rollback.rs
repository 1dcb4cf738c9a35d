//! Going back: all stores, or one, become what they were at a moment, as one commit (`ROLLBACK-2`).
//!
//! ```text
//!  what became of each inode since then ─▶ inodes and names back, content back ─▶ rows back
//!     └── a dry run ends here                ─▶ what came since goes, attributes back ─▶ commit
//! ```
//!
//! A restore works by paths and makes files anew; this works by inodes, which keep their numbers or
//! get them again (`ROLLBACK-1`), so that what refers to them does so as before. Rows come between:
//! what they refer to is there before they come back, and what they referred to goes after they
//! went.

use crate::copy::copy_differences;
use crate::database::Database;
use crate::handle::{Handle, PastHandle};
use crate::history::columns::{ColumnsPair, Giving, give_columns};
use crate::history::diff::{DiffChange, diff_of};
use crate::history::net_change::{State, state};
use crate::history::restore::WRITER_LOCK_MAX;
use crate::history::rows::{RestoreRows, RowsReport};
use crate::transaction::{Transaction, TransactionOptions};
use crate::types::NodeId;
use larder_object::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use larder_object::{
    Engine, Error, ErrorKind, HistoryReader, InodeRow, Moment, Result, SqlValue, View, WriteGuard,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// As of now.
const NOW: CommitSeq = CommitSeq(i64::MAX as u64);
/// How often it is tried while history gives way to it.
const TRIES_MAX: u32 = 10;
/// Inodes that are changed at once; others who read wait meanwhile.
const BATCH: usize = 1000;

/// What a rollback did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RollbackReport {
    /// The commit after which it was so.
    pub seq: u64,
    /// Its time, nanoseconds since 1970.
    pub at_ns: i64,
    /// The newest commit before: going back to that one takes the rollback back.
    pub before_seq: u64,
    /// The stores that it is about, by name.
    pub stores: Vec<String>,
    /// Inodes that came back.
    pub revived_count: u64,
    /// Inodes that went.
    pub removed_count: u64,
    /// Inodes that stayed and became what they were, directories left out that only got their
    /// times.
    pub changed_count: u64,
    /// Content that was written, bytes.
    pub content_bytes: u64,
    /// Of a dry run: where the paths differ, from now to then.
    pub changes: Vec<DiffChange>,
    /// What was done to rows, by table.
    pub rows: Vec<RowsReport>,
    /// What has no past, and stays as it is: one sentence each.
    pub left: Vec<String>,
}

/// What `History::rollback` does.
pub(super) fn rollback(
    database: &Database,
    moment: &Moment,
    path: Option<&[u8]>,
    is_dry: bool,
) -> Result<RollbackReport> {
    let engine = database.whole()?;
    engine.history().refuse_beside_long_transactions()?;
    // What plain SQL has changed gets a commit, so that this state can be gone back to.
    drop(database.as_of(&Moment::At(database.now_ns()))?);
    let past = database.as_of(moment)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let since = engine.expiry().early_expiries();
        match try_rollback(database, &past, path, is_dry) {
            // History gives way, twice as much each time; not what is gone back to, which is
            // open.
            Err(error)
                if error.kind() == ErrorKind::NoSpace
                    && tries < TRIES_MAX
                    && engine.expiry().expire_early_again(tries - 1, since)? => {}
            outcome => return outcome,
        }
    }
}

fn try_rollback(
    database: &Database,
    past: &Database,
    path: Option<&[u8]>,
    is_dry: bool,
) -> Result<RollbackReport> {
    let (scope, root) = scope(database, past, path)?;
    let mut changes = Vec::new();
    if is_dry {
        // Below a root other stores are mounted, whose history may begin later.
        let is_meant = |store| scope.stores.contains_key(&database.table_of(store));
        changes = diff_of((database, root), (past, root), &is_meant)?.changes;
    }
    let transaction = database.transactions().begin_with(&TransactionOptions {
        is_immediate: !is_dry,
        writer_lock_max: WRITER_LOCK_MAX,
    })?;
    database
        .whole()?
        .history()
        .refuse_beside_long_transactions()?;
    let report = past.shared.shown.view().moment().read_history(|reader| {
        let mut rollback = Rollback::find((past, &transaction), reader, &scope)?;
        rollback.report.left = scope.left.clone();
        rollback.report.stores = scope.stores.values().cloned().collect();
        rollback.report.changes = changes;
        if !is_dry {
            rollback.bring_back(reader)?;
        }
        rollback.restore_all_rows(path.is_none(), is_dry)?;
        if !is_dry {
            rollback.finish()?;
        }
        rollback.name_what_is_left(reader, path.is_none())?;
        Ok(rollback.report)
    })?;
    if !is_dry {
        transaction.commit()?;
    }
    Ok(report)
}

/// Which stores are gone back in, and the path of what is compared.
fn scope<'p>(
    database: &Database,
    past: &Database,
    path: Option<&'p [u8]>,
) -> Result<(Scope, &'p [u8])> {
    let mut scope = Scope::default();
    let wanted = match path {
        None => None,
        Some(path) => {
            let node = database.nodes().resolve(path, false)?.node;
            if node.ino != Ino::ROOT {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "'{}' is not where a store is mounted; a rollback is of a store or of \
                         all of the database, \
                         'larder restore --exact' brings back a directory",
                        String::from_utf8_lossy(path)
                    ),
                ));
            }
            let table = database.table_of(node.store);
            if table != node.store {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "'{}' only shows another store, which a rollback would change; name \
                         the place of that one",
                        String::from_utf8_lossy(path)
                    ),
                ));
            }
            Some(table)
        }
    };
    let then: BTreeSet<StoreId> = (past.read_stores().iter())
        .map(|store| store.row.table_store)
        .collect();
    for store in database.read_stores().iter() {
        let row = &store.row;
        if row.table_store != row.store || wanted.is_some_and(|wanted| wanted != row.store) {
            continue;
        }
        match then.contains(&row.store) {
            true => drop(scope.stores.insert(row.store, row.name.clone())),
            false => scope.left.push(format!(
                "store '{}' was made later and stays as it is",
                row.name
            )),
        }
    }
    for store in scope.stores.keys() {
        past.shared
            .shown
            .view()
            .moment()
            .require_reach(*store)
            .map_err(|error| {
                let hint = match (error.kind(), path) {
                    (ErrorKind::InvalidInput, None) => {
                        "; a rollback of a single store names its place"
                    }
                    _ => "",
                };
                Error::new(error.kind(), format!("{error}{hint}"))
            })?;
    }
    if wanted.is_some() && scope.stores.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the store was made later; ask for a moment at which it was there",
        ));
    }
    Ok((scope, path.unwrap_or(b"/")))
}

/// What a rollback is about.
#[derive(Default)]
struct Scope {
    stores: BTreeMap<StoreId, String>,
    left: Vec<String>,
}

/// An inode that is another one than it was.
struct Work {
    store: StoreId,
    ino: Ino,
    was: Option<State>,
    is: Option<State>,
    /// Names, content or extended attributes were changed on the way back.
    is_changed: bool,
}

impl Work {
    fn names(state: &Option<State>) -> &[(Ino, Name)] {
        state.as_ref().map_or(&[], |state| &state.names)
    }

    /// The names that it has and had not, or had and has not.
    fn names_only_in<'s>(
        one: &'s Option<State>,
        other: &'s Option<State>,
    ) -> impl Iterator<Item = &'s (Ino, Name)> {
        let others = Work::names(other);
        (Work::names(one).iter()).filter(move |name| !others.contains(name))
    }
}

struct Rollback<'d> {
    past: &'d Database,
    transaction: &'d Transaction,
    work: Vec<Work>,
    report: RollbackReport,
}

impl<'d> Rollback<'d> {
    // ---- finding out ------------------------------------------------------------------------

    fn find(
        (past, transaction): (&'d Database, &'d Transaction),
        reader: &HistoryReader<'_>,
        scope: &Scope,
    ) -> Result<Rollback<'d>> {
        let (seq, at_ns) = past.history().shown().unwrap_or_default();
        let then = CommitSeq(seq);
        let newest = reader.commits_before(None, 1)?;
        let mut inodes: BTreeSet<(StoreId, Ino)> = (reader.touches(then, NOW)?.iter())
            .filter(|touch| scope.stores.contains_key(&touch.store))
            .map(|touch| (touch.store, touch.ino))
            .collect();
        let mut work = Vec::new();
        let mut directories = BTreeSet::new();
        while !inodes.is_empty() {
            for (store, ino) in std::mem::take(&mut inodes) {
                let was = state(reader, (store, ino), then)?;
                let is = state(reader, (store, ino), NOW)?;
                if was.is_none() && is.is_none() {
                    continue;
                }
                let changed =
                    (Work::names_only_in(&was, &is)).chain(Work::names_only_in(&is, &was));
                directories.extend(changed.map(|(parent, _)| (store, *parent)));
                work.push(Work {
                    store,
                    ino,
                    was,
                    is,
                    is_changed: false,
                });
            }
            // What is put into a directory moves its times.
            let known: BTreeSet<(StoreId, Ino)> =
                work.iter().map(|work| (work.store, work.ino)).collect();
            inodes.extend(std::mem::take(&mut directories).difference(&known));
        }
        Ok(Rollback {
            past,
            transaction,
            work,
            report: RollbackReport {
                seq,
                at_ns,
                before_seq: newest.first().map_or(seq, |commit| commit.seq.0),
                ..RollbackReport::default()
            },
        })
    }

    /// What stays as it is, since nobody knows how it was.
    fn name_what_is_left(&mut self, reader: &HistoryReader<'_>, is_whole: bool) -> Result<()> {
        let (past, transaction) = (self.past, self.transaction);
        let (then, _) = past.history().shown().unwrap_or_default();
        for store in transaction.read_stores().iter() {
            if store.row.table_store != store.row.store
                || !self.report.stores.contains(&store.row.name)
            {
                continue;
            }
            let columns = transaction.enter(|engine| engine.user_columns(store.row.store))?;
            let is_known = self.is_tracked_since(store.row.store)?;
            if !columns.is_empty() && !is_known {
                self.report.left.push(format!(
                    "columns of your own of '{}' ({}) are not tracked since then: they stay, and \
                     are empty in files that came back",
                    store.row.name,
                    columns.join(", ")
                ));
            }
        }
        let tracked = past.shared.shown.view().moment().temporal_tables()?;
        let tables = texts(
            transaction,
            "SELECT name FROM main.sqlite_schema AS t WHERE type = 'table' \
             AND name NOT LIKE 'larder\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
             AND NOT EXISTS (SELECT 1 FROM larder_store AS s WHERE t.name IN (s.name, s.name || \
             '_dirent', \
             s.name || '_content', s.name || '_map', s.name || '_xattr')) ORDER BY name",
        )?;
        if !is_whole {
            if !tables.is_empty() {
                let names = tables.join(", ");
                let left = format!("rows of tables ({names}) stay: the rollback is of one store");
                self.report.left.push(left);
            }
            return Ok(());
        }
        for table in tables {
            let since = (tracked.iter())
                .find(|one| one.name == table)
                .map(|one| one.since.0);
            match since {
                Some(since) if since <= then => {}
                Some(since) => self.report.left.push(format!(
                    "table '{table}' is tracked since commit {since} only: its rows stay"
                )),
                None => self.report.left.push(format!(
                    "table '{table}' is not tracked ('larder track'): its rows stay"
                )),
            }
        }
        let destroyed = reader.destroyed_since(CommitSeq(then))?;
        self.report.left.extend(
            destroyed
                .into_iter()
                .map(|store| format!("store {store} was destroyed since: it does not come back")),
        );
        Ok(())
    }

    // ---- doing it ---------------------------------------------------------------------------

    fn engine(&self) -> Result<&Arc<Engine>> {
        self.transaction.shared.shown.engine()
    }

    /// Inodes, names and content as they were. What came since has no names then, and is there
    /// still.
    fn bring_back(&mut self, reader: &HistoryReader<'_>) -> Result<()> {
        let transaction = self.transaction;
        transaction.enter(|engine| {
            self.revive(engine)?;
            self.set_files(engine, reader)?;
            self.set_names(engine)
        })?;
        let then = CommitSeq(self.report.seq);
        for index in 0..self.work.len() {
            let work = &self.work[index];
            let (store, ino) = (work.store, work.ino);
            let Some(was) = &work.was else { continue };
            // A file that only became longer has no row about that but its own.
            let size = |state: &State| state.row.size_bytes;
            let has_other_size = work.is.as_ref().map(size) != Some(was.row.size_bytes);
            let is_written = was.row.kind == FileKind::File
                && (has_other_size || reader.is_content_touched(store, ino, then, NOW)?);
            if !is_written {
                continue;
            }
            let written = transaction.enter(|_| self.write_content((store, ino)))?;
            self.report.content_bytes += written;
            self.work[index].is_changed |= written > 0 || has_other_size;
        }
        Ok(())
    }

    fn revive(&mut self, engine: &Engine) -> Result<()> {
        let past = self.past.shared.shown.view();
        for batch in self.work.chunks_mut(BATCH) {
            let change = engine.namespace().write_guard()?;
            for work in batch {
                let (Some(was), None) = (&work.was, &work.is) else {
                    continue;
                };
                let mut target = None;
                if was.row.kind == FileKind::Symlink {
                    let look = past.lookup().begin();
                    target = Some(look.target(&*look.node(work.store, work.ino)?)?);
                }
                change.revive(work.store, &was.row, target.as_deref())?;
                work.is_changed = true;
                self.report.revived_count += 1;
            }
            change.commit()?;
        }
        Ok(())
    }

    /// Inodes are the files that they were: what was saved since then goes back, with all that is
    /// attached to it (`SAVE-2`).
    fn set_files(&self, engine: &Engine, reader: &HistoryReader<'_>) -> Result<()> {
        let then = CommitSeq(self.report.seq);
        let mut holders: HashMap<(StoreId, i64), Ino> = HashMap::new();
        for work in self.work.iter().filter(|work| work.is.is_some()) {
            if let Some(id) = reader.file_id(work.store, work.ino, NOW)? {
                holders.insert((work.store, id), work.ino);
            }
        }
        let mut others = Vec::new();
        for batch in self.work.chunks(BATCH) {
            let change = engine.namespace().write_guard()?;
            for work in batch.iter().filter(|work| work.was.is_some()) {
                let Some(id) = reader.file_id(work.store, work.ino, then)? else {
                    continue;
                };
                let node = |ino| change.node(work.store, ino);
                match holders.get(&(work.store, id)) {
                    Some(holder) if *holder == work.ino => {}
                    Some(holder) => change.save_back(&node(*holder)?, &node(work.ino)?)?,
                    None => others.push((work.store, work.ino, id)),
                }
            }
            change.commit()?;
        }
        for batch in others.chunks(BATCH) {
            let change = engine.namespace().write_guard()?;
            for &(store, ino, id) in batch {
                change.set_file_id(&change.node(store, ino)?, id)?;
            }
            change.commit()?;
        }
        Ok(())
    }

    fn set_names(&mut self, engine: &Engine) -> Result<()> {
        // Names away first: another inode may have had them.
        for is_back in [false, true] {
            for batch in self.work.chunks_mut(BATCH) {
                let change = engine.namespace().write_guard()?;
                for work in batch {
                    let (one, other) = match is_back {
                        true => (&work.was, &work.is),
                        false => (&work.is, &work.was),
                    };
                    let kind = one.as_ref().map(|state| state.row.kind);
                    let target = kind.filter(|_| is_back).map(|kind| (work.ino, kind));
                    let mut is_changed = false;
                    for (parent, name) in Work::names_only_in(one, other) {
                        let directory = change.node(work.store, *parent)?;
                        change.set_entry(&directory, name, target)?;
                        is_changed = true;
                    }
                    work.is_changed |= is_changed;
                }
                change.commit()?;
            }
        }
        Ok(())
    }

    /// Makes the content of a file what it was; returns how many bytes were written.
    fn write_content(&self, (store, ino): (StoreId, Ino)) -> Result<u64> {
        let past = self.past.shared.shown.past()?;
        let was = past.lookup().begin().node(store, ino)?;
        let engine = self.engine()?;
        let node = engine.lookup().begin().node(store, ino)?;
        engine.content().open_node(&node, true)?;
        copy_differences(
            &PastHandle::new(Arc::clone(past), store, was),
            &Handle::new(Arc::clone(engine), store, node, true),
        )
    }

    /// Whether the user's columns of a store are tracked since then.
    fn is_tracked_since(&self, store: StoreId) -> Result<bool> {
        let tables = self.past.shared.shown.view().moment().temporal_tables()?;
        let mut tables = tables.iter();
        Ok(tables.any(|one| one.store == Some(store) && one.since.0 <= self.report.seq))
    }

    /// Rows of tables, and then, since they may refer to those, the user's columns of files.
    fn restore_all_rows(&mut self, is_whole: bool, is_dry: bool) -> Result<()> {
        for table in self.past.shared.shown.view().moment().temporal_tables()? {
            if table.since.0 > self.report.seq || table.store.is_some() || !is_whole {
                continue;
            }
            let wanted = RestoreRows {
                table: table.name,
                filter: None,
            };
            let done = self
                .transaction
                .restore_rows(self.past, &wanted, (true, is_dry), &[])
                .map_err(|error| error.context(format!("table '{}'", wanted.table)))?;
            self.report.rows.push(done);
        }
        let work = self.work.iter().filter(|work| work.was.is_some());
        let pairs: Vec<ColumnsPair> = work
            .map(|work| {
                let node = NodeId {
                    store: work.store,
                    ino: work.ino,
                };
                ColumnsPair {
                    was: node,
                    is: Some(node),
                    is_new: work.is.is_none(),
                }
            })
            .collect();
        let done = give_columns(
            self.transaction,
            self.past,
            &pairs,
            &[],
            Giving::restored(is_dry),
        )?;
        self.report.rows.extend(done);
        Ok(())
    }

    /// What came since goes, and what was is as it was to the last attribute.
    fn finish(&mut self) -> Result<()> {
        let transaction = self.transaction;
        let past = self.past.shared.shown.view();
        transaction.enter(|engine| {
            for batch in self.work.chunks_mut(BATCH) {
                let change = engine.namespace().write_guard()?;
                for work in batch.iter().filter(|work| work.was.is_none()) {
                    change.let_go(&change.node(work.store, work.ino)?)?;
                    self.report.removed_count += 1;
                }
                change.commit()?;
            }
            for batch in self.work.chunks_mut(BATCH) {
                let change = engine.namespace().write_guard()?;
                for work in batch {
                    let Some(was) = &work.was else { continue };
                    work.is_changed |= set_xattrs(past, &change, (work.store, work.ino))?;
                    let has_other_row = match &work.is {
                        Some(is) => differs(&was.row, &is.row),
                        None => true,
                    };
                    if !has_other_row && !work.is_changed {
                        continue;
                    }
                    let node = change.node(work.store, work.ino)?;
                    change.set_row(&node, &was.row)?;
                    let is_more = work.is_changed || was.row.kind != FileKind::Directory;
                    self.report.changed_count += u64::from(work.is.is_some() && is_more);
                }
                change.commit()?;
            }
            Ok(())
        })
    }
}

/// Whether attributes that a rollback sets differ.
fn differs(was: &InodeRow, is: &InodeRow) -> bool {
    let of = |row: &InodeRow| InodeRow {
        block_count: 0,
        ..row.clone()
    };
    of(was) != of(is)
}

/// Makes the extended attributes of an inode what they were, as they are stored; says whether any
/// were other ones.
fn set_xattrs(past: &View, change: &WriteGuard<'_>, (store, ino): (StoreId, Ino)) -> Result<bool> {
    let was: BTreeMap<Vec<u8>, Vec<u8>> = {
        let look = past.lookup().begin();
        look.xattrs(&*look.node(store, ino)?)?.into_iter().collect()
    };
    let node = change.node(store, ino)?;
    let is: BTreeMap<Vec<u8>, Vec<u8>> = change.xattrs(&node)?.into_iter().collect();
    for name in is.keys().filter(|name| !was.contains_key(*name)) {
        change.set_xattr(&node, name, None)?;
    }
    for (name, value) in was
        .iter()
        .filter(|(name, value)| is.get(*name) != Some(value))
    {
        change.set_xattr(&node, name, Some(value))?;
    }
    Ok(was != is)
}

/// The first values of all rows.
fn texts(transaction: &Transaction, sql: &str) -> Result<Vec<String>> {
    let result = transaction.sql(sql, &[])?;
    let texts = result
        .rows
        .into_iter()
        .filter_map(|row| match row.values.into_iter().next() {
            Some(SqlValue::Text(text)) => Some(text),
            _ => None,
        });
    Ok(texts.collect())
}
