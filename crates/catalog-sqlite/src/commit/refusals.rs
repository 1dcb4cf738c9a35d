//! Which rows of a change set the user's rules refuse, found one by one when the set was refused as
//! a whole.
//!
//! # Words
//! A *rule* is what a user has put on a store's tables: a trigger, a CHECK, a UNIQUE index, a
//! foreign key. A *refusal* is a row of the set that cannot be written with all the others, and
//! why.
//!
//! # Invariants
//! * `CONSTRAINT-1` A set without the rows of its refusals, and without what depends on them, is
//!   accepted by the rules as they are. *Guard*: each row is written under a savepoint, in the
//!   order of the commit; one that is refused is taken back alone. Of a foreign key that is
//!   deferred it is the row after which SQLite counts violations until the end.
//!
//! # Cost
//! Nothing for a commit that is accepted. Else the rows of the set are written once more, and again
//! for each row that a deferred key, or a rule that rolls the transaction back, refuses.

use crate::commit::saves;
use crate::commit::transaction::{Stage, as_step};
use crate::commit::unique_order::{Kept, Rows, write_in_any_order};
use crate::commit::{apply_rows, apply_sides};
use crate::error::{At, CatalogError, Result};
use crate::guards::Guards;
use crate::history::Keeper;
use crate::schema::statements::{StoreSql, Stores};
use crate::types::changes::{ChangeSet, InodeChange, Save};
use crate::types::codec::{TextOrBlob, rows, signed, unsigned};
use crate::types::names::quoted;
use crate::{CatalogRules, Writer, lock};
use larder_format::{Ino, Name, StoreId};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, ffi, params};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A row of a change set that a rule of the user's refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The store of the inode.
    pub store: StoreId,
    /// The inode.
    pub ino: Ino,
    /// The table that the rule is on.
    pub table: String,
    /// The rule, in SQLite's words.
    pub constraint: String,
}

impl CatalogRules<'_> {
    /// The rows of `changes` that the user's rules refuse now; none if all would be accepted.
    /// Changes nothing. Takes the write lock for as long as it takes to write the rows.
    pub fn find_refusals(&self, changes: &ChangeSet) -> Result<Vec<Refusal>> {
        let stores = self.catalog.stores_of(changes)?;
        let mut writer = lock(&self.catalog.writer);
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = &mut *writer;
        if *stage != Stage::Idle {
            return Ok(Vec::new()); // A transaction is refused as a whole.
        }
        let mut found: Vec<Refusal> = Vec::new();
        loop {
            let txn = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
                .at("the start of a trial")?;
            guards.open(&txn)?;
            let next = Pass::new(&txn, &stores, guards, &found).run(changes)?;
            if !txn.is_autocommit() {
                txn.rollback().at("the end of a trial")?;
            }
            let is_last = next.is_last;
            found.extend(next.found);
            if is_last {
                return Ok(found);
            }
        }
    }
}

/// An inode, of all stores.
type Id = (StoreId, Ino);

/// What a pass over the rows found.
struct Found {
    found: Vec<Refusal>,
    /// All others were accepted.
    is_last: bool,
}

/// One pass over the rows of a set.
struct Pass<'p> {
    txn: &'p Connection,
    stores: &'p Stores,
    guards: &'p Guards,
    refused: HashSet<Id>,
    found: Vec<Refusal>,
    /// The row after which deferred keys are violated.
    violating: Option<Id>,
}

impl<'p> Pass<'p> {
    fn new(
        txn: &'p Connection,
        stores: &'p Stores,
        guards: &'p Guards,
        found: &[Refusal],
    ) -> Pass<'p> {
        Pass {
            txn,
            stores,
            guards,
            refused: found.iter().map(|one| (one.store, one.ino)).collect(),
            found: Vec::new(),
            violating: None,
        }
    }

    fn run(mut self, changes: &ChangeSet) -> Result<Found> {
        let stays =
            |(_, change): &(StoreId, InodeChange)| !matches!(change, InodeChange::Delete(_));
        let has_saves = !changes.saves.is_empty() || !changes.file_ids.is_empty();
        let inodes = &changes.inodes;
        let (made, gone) = match has_saves {
            true => inodes.split_at(inodes.partition_point(stays)),
            false => (&inodes[..], &[][..]),
        };
        let is_through = self.apply_inodes(changes, made)?
            && self.apply_saves(changes)?
            && self.apply_inodes(changes, gone)?
            && self.apply_sides(changes)?;
        if !is_through {
            return Ok(self.end(false));
        }
        let Some((store, ino)) = self.violating else {
            return Ok(self.end(true));
        };
        let table = &self.stores[&store].table;
        let named = name_keys(self.txn, table, ino)?;
        let failed = "FOREIGN KEY constraint failed".to_owned();
        let (table, constraint) = match named {
            Some(CatalogError::Constraint { table, constraint }) => (table, constraint),
            _ => (table.clone(), failed),
        };
        self.refuse((store, ino), table, constraint);
        Ok(self.end(false))
    }

    fn end(self, is_last: bool) -> Found {
        Found {
            found: self.found,
            is_last,
        }
    }

    fn refuse(&mut self, (store, ino): (StoreId, Ino), table: String, constraint: String) {
        self.refused.insert((store, ino));
        self.found.push(Refusal {
            store,
            ino,
            table,
            constraint,
        });
    }

    fn apply_inodes(
        &mut self,
        changes: &ChangeSet,
        inodes: &[(StoreId, InodeChange)],
    ) -> Result<bool> {
        for change in inodes {
            let (id, one) = ((change.0, ino_of(&change.1)), std::slice::from_ref(change));
            let refused = self.attempt(id, |step, stores| {
                apply_rows(step, stores, (changes, one), &Keeper::off())
            })?;
            if refused.is_some_and(|error| !self.refuse_by(id, error)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes names or extended attributes as the commit does (`CONSTRAINT-7`).
    fn apply_in_any_order(
        &mut self,
        parts: &[(Id, ChangeSet)],
        table: impl Fn(&StoreSql) -> &String,
    ) -> Result<bool> {
        let (txn, stores) = (self.txn, self.stores);
        for of_store in parts.chunk_by(|a, b| a.0.0 == b.0.0) {
            let table = table(&stores[&of_store[0].0.0]);
            match write_in_any_order((txn, table), of_store, self) {
                Err(_) if txn.is_autocommit() => return Ok(false),
                outcome => outcome?,
            }
        }
        Ok(true)
    }

    fn apply_each(&mut self, parts: impl IntoIterator<Item = (Id, ChangeSet)>) -> Result<bool> {
        for (id, part) in parts {
            let refused = self.attempt_sides(id, &part)?;
            if refused.is_some_and(|error| !self.refuse_by(id, error)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn attempt_sides(&mut self, id: Id, part: &ChangeSet) -> Result<Option<CatalogError>> {
        // A page that is shared is written as one of its own, as the rules see it.
        self.attempt(id, |step, stores| {
            apply_sides(step, stores, part, &Keeper::off())
        })
    }

    /// `false`: the transaction is over with it.
    fn refuse_by(&mut self, id: Id, error: CatalogError) -> bool {
        let table = &self.stores[&id.0].table;
        let (table, constraint) = match error {
            CatalogError::Constraint { table, constraint } => (table, constraint),
            other => (table.clone(), other.to_string()),
        };
        self.refuse(id, table, constraint);
        !self.txn.is_autocommit()
    }

    /// A save is refused with the inode that goes, or if it stays with the new one: all that led to
    /// it depends on either.
    fn apply_saves(&mut self, changes: &ChangeSet) -> Result<bool> {
        if changes.saves.is_empty() && changes.file_ids.is_empty() {
            return Ok(true);
        }
        let rows: HashMap<Id, &InodeChange> = (changes.inodes.iter())
            .map(|(store, change)| ((*store, ino_of(change)), change))
            .collect();
        let alone = |saves: &[Save], file_ids: &[(StoreId, Ino, i64)], ids: &[Id]| ChangeSet {
            saves: saves.to_vec(),
            file_ids: file_ids.to_vec(),
            inodes: (ids.iter())
                .filter_map(|id| Some((id.0, (*rows.get(id)?).clone())))
                .collect(),
            ..ChangeSet::default()
        };
        let purpose = saves::Purpose::Commit;
        for save in &changes.saves {
            let (from, to) = ((save.store, save.from), (save.store, save.to));
            if self.refused.contains(&from) || self.refused.contains(&to) {
                continue;
            }
            let goes = match rows.get(&from) {
                Some(InodeChange::Insert(row) | InodeChange::Update(row, _)) => row.nlink == 0,
                Some(InodeChange::Delete(_)) => true,
                None => false,
            };
            let one = alone(std::slice::from_ref(save), &[], &[from, to]);
            let id = if goes { from } else { to };
            let refused = self.attempt(id, |step, stores| {
                saves::apply(step, stores, &one, &Keeper::off(), purpose)
            })?;
            if refused.is_some_and(|error| !self.refuse_by(id, error)) {
                return Ok(false);
            }
        }
        for file_id in &changes.file_ids {
            let one = alone(&[], std::slice::from_ref(file_id), &[]);
            let id = (file_id.0, file_id.1);
            let refused = self.attempt(id, |step, stores| {
                saves::apply(step, stores, &one, &Keeper::off(), purpose)
            })?;
            if refused.is_some_and(|error| !self.refuse_by(id, error)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rows of side tables: names one by one, the rest of each inode.
    fn apply_sides(&mut self, changes: &ChangeSet) -> Result<bool> {
        let mut names: Vec<(Id, ChangeSet)> = Vec::new();
        for entry in &changes.dirents {
            let one = ChangeSet {
                dirents: vec![entry.clone()],
                ..ChangeSet::default()
            };
            let (store, dir, name, target) = entry;
            if self.refused.contains(&(*store, *dir)) {
                continue;
            }
            let ino = match target {
                Some(ino) => Some(*ino),
                None => self.find_entry(*store, *dir, name)?,
            };
            names.push(((*store, ino.unwrap_or(*dir)), one));
        }
        let mut others: BTreeMap<Id, ChangeSet> = BTreeMap::new();
        for content in &changes.contents {
            let of = others.entry((content.0, content.1)).or_default();
            of.contents.push(content.clone());
        }
        for cut in &changes.map_cuts {
            others
                .entry((cut.0, cut.1))
                .or_default()
                .map_cuts
                .push(*cut);
        }
        for page in &changes.map_pages {
            let of = others.entry((page.0, page.1)).or_default();
            of.map_pages.push(page.clone());
        }
        let xattrs = changes.xattrs.iter().map(|xattr| {
            let one = ChangeSet {
                xattrs: vec![xattr.clone()],
                ..ChangeSet::default()
            };
            ((xattr.0, xattr.1), one)
        });
        let mut xattrs: Vec<(Id, ChangeSet)> = xattrs.collect();
        xattrs.sort_by_key(|(id, _)| id.0);
        Ok(self.apply_in_any_order(&names, |sql| &sql.table_dirent)?
            && self.apply_each(others)?
            && self.apply_in_any_order(&xattrs, |sql| &sql.table_xattr)?)
    }

    /// Where a name leads, as far as the rows are written.
    fn find_entry(&self, store: StoreId, dir: Ino, name: &Name) -> Result<Option<Ino>> {
        let sql = &self.stores[&store];
        self.txn
            .prepare_cached(&sql.dirent)
            .and_then(|mut find| {
                let key = params![signed(dir.0), TextOrBlob(name.as_bytes())];
                find.query_row(key, |row| unsigned(row, 0)).optional()
            })
            .at(&sql.table_dirent)
            .map(|found| found.map(Ino))
    }

    /// Writes something of an inode; the error, if a rule refuses it.
    fn attempt(
        &mut self,
        id: Id,
        write: impl FnOnce(&Connection, &Stores) -> Result<()>,
    ) -> Result<Option<CatalogError>> {
        if self.refused.contains(&id) {
            return Ok(None);
        }
        let outcome = as_step(self.txn, |step| write(step, self.stores));
        match outcome.map_err(|error| self.guards.explain(error)) {
            Ok(()) => {}
            Err(error) if error.is_of_a_rule() => return Ok(Some(error)),
            Err(error) => return Err(error),
        }
        match (has_deferred_violations(self.txn)?, self.violating) {
            (true, None) => self.violating = Some(id),
            (false, Some(_)) => self.violating = None,
            _ => {}
        }
        Ok(None)
    }
}

/// Parts of a set, each a name or an extended attribute.
impl Rows for Pass<'_> {
    type Row = (Id, ChangeSet);

    fn write(&mut self, (id, part): &Self::Row, _: &mut Kept) -> Result<()> {
        self.attempt_sides(*id, part)?.map_or(Ok(()), Err)
    }

    fn clear(&mut self, (id, part): &Self::Row, _: &mut Kept) -> Result<usize> {
        let mut removal = part.clone();
        (removal.dirents.iter_mut()).for_each(|entry| entry.3 = None);
        (removal.xattrs.iter_mut()).for_each(|xattr| xattr.3 = None);
        let before = self.txn.total_changes();
        self.attempt_sides(*id, &removal)?.map_or(Ok(()), Err)?;
        Ok(usize::from(self.txn.total_changes() > before))
    }

    fn refuse(&mut self, (id, _): &Self::Row, error: CatalogError) -> Result<()> {
        if !error.is_of_a_rule() {
            return Err(error);
        }
        self.refuse_by(*id, error);
        match self.txn.is_autocommit() {
            // It ends the pass.
            true => Err(CatalogError::Constraint {
                table: "the transaction".into(),
                constraint: "a rule has rolled it back".into(),
            }),
            false => Ok(()),
        }
    }
}

/// The inode of a change.
pub(crate) fn ino_of(change: &InodeChange) -> Ino {
    match change {
        InodeChange::Insert(row) | InodeChange::Update(row, _) => row.ino,
        InodeChange::Delete(ino) => *ino,
    }
}

/// Whether a COMMIT now would be refused by foreign keys that are deferred.
pub(crate) fn has_deferred_violations(txn: &Connection) -> Result<bool> {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the connection is open, and both numbers outlive the call.
    let code = unsafe {
        ffi::sqlite3_db_status(
            txn.handle(),
            ffi::SQLITE_DBSTATUS_DEFERRED_FKS,
            &mut current,
            &mut highest,
            0,
        )
    };
    match code {
        ffi::SQLITE_OK => Ok(current != 0),
        code => {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).at("deferred keys")
        }
    }
}

/// SQLite does not say which foreign key failed: looks for those that keep an inode.
pub(crate) fn name_keys(
    connection: &Connection,
    table: &str,
    ino: Ino,
) -> Result<Option<CatalogError>> {
    type Key = (String, i64, String, Option<String>);
    let keys: Vec<Key> = rows(
        connection,
        "SELECT t.name, f.id, f.\"from\", f.\"to\" \
         FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS f \
         WHERE t.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE \
           AND f.on_delete IN ('RESTRICT', 'NO ACTION') ORDER BY t.name, f.id, f.seq",
        [table],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )
    .at(table)?;
    for columns in keys.chunk_by(|one, other| (&one.0, one.1) == (&other.0, other.1)) {
        let child = &columns[0].0;
        let pairs: Vec<String> = (columns.iter())
            .map(|(_, _, from, to)| {
                let to = to.as_deref().unwrap_or("ino");
                format!("child.{} = parent.{}", quoted(from), quoted(to))
            })
            .collect();
        let count = format!(
            "SELECT count(*) FROM {} AS child JOIN {} AS parent ON {} WHERE parent.ino = ?1",
            quoted(child),
            quoted(table),
            pairs.join(" AND ")
        );
        let count: i64 = connection
            .query_row(&count, [signed(ino.0)], |row| row.get(0))
            .at(child)?;
        if count > 0 {
            let names: Vec<&str> = columns.iter().map(|column| column.2.as_str()).collect();
            return Ok(Some(CatalogError::Constraint {
                table: child.clone(),
                constraint: format!(
                    "FOREIGN KEY constraint failed: inode {ino} of {table} is referenced by {} of \
                     {count} rows",
                    names.join(", ")
                ),
            }));
        }
    }
    Ok(None)
}
