//! The merge: what a workspace changed becomes one commit of its parent, or nothing does
//! (`WORKSPACE-4`).
//!
//! The workspace's catalog is attached as `ws`. Everything is applied in one transaction on the
//! parent; where something does not fit, that is noted and the rest goes on, so that all conflicts
//! are found; then the transaction is rolled back. Triggers and foreign keys are off meanwhile:
//! what they did in the workspace is in its rows. Foreign keys are checked at the end.

use super::end;
use super::files::Files;
use super::findings::{Conflict, Findings};
use super::rows::{merge_table, shadow_conflict};
use super::superseded;
use crate::conn::confine::Use;
use crate::conn::connect::{configure, connect};
use crate::conn::meta::{add_meta, next_commit_seq, set_guard_switch};
use crate::conn::place::Place;
use crate::error::{At, CatalogError, Result};
use crate::history::Keeper;
use crate::space::extents::{self, AgChanges};
use crate::space::grants::Grants;
use crate::space::holders;
use crate::temporal::tracking::images::Shape;
use crate::temporal::tracking::{Tracked, tracked};
use crate::temporal::unsequenced::settle_unsequenced;
use crate::types::changes::Held;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::names::{StoreName, quoted};
use crate::{CatalogWorkspace, feed, temporal};
use larder_directory::DatabaseDir;
use larder_format::{CommitSeq, Extent, Ino, StoreId};
use rusqlite::config::DbConfig;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// What came of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// It is durable, as this commit, and the transaction has ended.
    Done(CommitSeq),
    /// Nothing was changed; all that is in the way, sorted.
    Conflicts(Vec<Conflict>),
}

impl CatalogWorkspace<'_> {
    /// Merges the workspace in `dir` of transaction `id` into this catalog, its parent. The caller
    /// has the parent's writer lock with nothing uncommitted, and nobody has the workspace open.
    /// Cost: what was touched, and where foreign keys may be concerned the tables that have them.
    pub fn merge_workspace(&self, dir: &DatabaseDir, id: u64, now_ns: i64) -> Result<Merged> {
        Place::of(dir).attach(&self.catalog.options, |path| {
            self.merge(dir, path, id, now_ns)
        })
    }

    fn merge(&self, dir: &DatabaseDir, path: &Path, id: u64, now_ns: i64) -> Result<Merged> {
        let none = OpenFlags::empty();
        let merger = connect(&self.catalog.place, &self.catalog.options, none, Use::Merge)?;
        configure(&merger)?;
        merger
            .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)
            .and_then(|_| merger.pragma_update(None, "foreign_keys", false))
            .at("the merge")?;
        let path = path.to_str().ok_or_else(|| {
            CatalogError::invalid(format!("{} is no UTF-8; rename it", path.display()))
        })?;
        merger
            .execute("ATTACH ?1 AS ws", [path])
            .at("the workspace")?;
        let found: i64 = merger
            .query_row(
                "SELECT value FROM ws.larder_meta WHERE key = 'workspace'",
                [],
                |row| row.get(0),
            )
            .at("the workspace")?;
        if found != signed(id) {
            return Err(CatalogError::corrupt(format!(
                "{} is the workspace of transaction {found}, not of {id}",
                dir.path().display()
            )));
        }
        let txn = Transaction::new_unchecked(&merger, TransactionBehavior::Immediate)
            .at("the start of the merge")?;
        set_guard_switch(&txn, true)?;
        settle_unsequenced(&txn, now_ns)?; // HISTORY-6
        let seq = next_commit_seq(&txn)?;
        let mut findings = Findings::default();
        let keeper = Keeper::begin(&txn, seq, now_ns)?.by(self.catalog.sessions().author(None));
        match apply(&txn, &keeper, &mut findings) {
            // Of a rule that came meanwhile, on rows that are merged together.
            Err(CatalogError::Constraint { table, constraint }) => {
                findings.conflict(format!("table {table}"), constraint);
            }
            applied => applied?,
        }
        if !findings.conflicts.is_empty() {
            txn.rollback().at("the end of the merge")?;
            return Ok(Merged::Conflicts(findings.conflicts.into_iter().collect()));
        }
        settle_space(&txn, id, seq, findings.retired)?;
        feed::append_gap(&txn)?;
        keeper.end(&txn)?;
        set_guard_switch(&txn, false)?;
        txn.commit()
            .map_err(|error| self.catalog.sort_commit(error))?;
        Ok(Merged::Done(seq))
    }
}

fn apply(txn: &Connection, keeper: &Keeper, findings: &mut Findings) -> Result<()> {
    let seq = keeper.seq;
    let grants = Grants::new(
        rows(
            txn,
            "SELECT segment, start_block, block_count FROM ws.larder_grant",
            [],
            extents::extent,
        )
        .at("larder_grant")?,
    );
    own_schema_conflicts(txn, findings)?;
    let all = tracked(txn)?;
    let tables: HashMap<&str, &Tracked> = all
        .iter()
        .map(|tracked| (tracked.name.as_str(), tracked))
        .collect();
    let mut touched: BTreeSet<&str> = BTreeSet::new();
    for tracked in &all {
        if is_touched(txn, tracked)? && fits(txn, tracked, findings)? {
            new_triggers(txn, &tracked.name, findings)?;
            touched.insert(&tracked.name);
        }
    }
    if !findings.conflicts.is_empty() {
        return Ok(()); // The tables are not alike: nothing below could be asked.
    }
    let stores: Vec<(u32, StoreName, String)> = rows(
        txn,
        "SELECT id, name, mount FROM ws.larder_base_store WHERE table_store = id ORDER BY id",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )
    .at("larder_store")?;
    let mut of_stores: BTreeSet<String> = ["larder_piece", "larder_redo_row"]
        .map(str::to_owned)
        .into();
    for (id, name, mount) in &stores {
        let names =
            ["", "_dirent", "_content", "_map", "_xattr"].map(|suffix| format!("{name}{suffix}"));
        let is_touched = names.iter().any(|name| touched.contains(name.as_str()));
        of_stores.extend(names);
        if is_touched {
            let mut files = Files::new(txn, StoreId(*id), name, mount, &tables, &grants, keeper)?;
            superseded::keep(txn, keeper, StoreId(*id), name, &tables)?;
            files.merge(findings)?;
            superseded::mark(txn, seq, StoreId(*id), name, &tables)?;
        }
    }
    for tracked in &all {
        if !touched.contains(tracked.name.as_str()) || of_stores.contains(&tracked.name) {
            continue;
        }
        let shape = Shape::read(txn, "ws", &tracked.name)?;
        match tracked.is_shadow {
            true => shadow_conflict(txn, &shape, tracked, findings)?,
            false => {
                let touched = (&shape.keys[..], tracked.old_table.as_str());
                temporal::keep_merged(txn, seq, &tracked.name, touched, false)?;
                merge_table(txn, &shape, tracked, findings)?;
                temporal::keep_merged(txn, seq, &tracked.name, touched, true)?;
            }
        }
    }
    check_foreign_keys(txn, findings)
}

fn is_touched(txn: &Connection, tracked: &Tracked) -> Result<bool> {
    txn.query_row(
        &format!("SELECT EXISTS (SELECT 1 FROM ws.{})", tracked.old_table),
        [],
        |row| row.get(0),
    )
    .at(&tracked.old_table)
}

/// Whether the parent's table is as it was when the workspace began.
fn fits(txn: &Connection, tracked: &Tracked, findings: &mut Findings) -> Result<bool> {
    let sql = |schema: &str| -> Result<Option<String>> {
        txn.query_row(
            &format!("SELECT sql FROM {schema} WHERE type = 'table' AND name = ?1"),
            [&tracked.name],
            |row| row.get(0),
        )
        .optional()
        .at("sqlite_schema")
    };
    let (base, theirs) = (sql("ws.larder_base_schema")?, sql("main.sqlite_schema")?);
    if base == theirs {
        return Ok(true);
    }
    let why = match theirs {
        Some(_) => "altered there, and rows of it were changed here",
        None => "dropped there, and rows of it were changed here",
    };
    findings.conflict(format!("table {}", tracked.name), why);
    Ok(false)
}

/// A trigger of the user's that the parent's table has got meanwhile would have run here.
fn new_triggers(txn: &Connection, table: &str, findings: &mut Findings) -> Result<()> {
    let of = |schema: &str| {
        format!(
            "SELECT name, sql FROM {schema} WHERE type = 'trigger' AND tbl_name = ?1 COLLATE \
             NOCASE AND name NOT LIKE 'larder\\_%' ESCAPE '\\'"
        )
    };
    let sql = format!(
        "SELECT name FROM ({} EXCEPT {}) ORDER BY name",
        of("main.sqlite_schema"),
        of("ws.larder_base_schema")
    );
    let names: Vec<String> = rows(txn, &sql, [table], |row| row.get(0)).at("the triggers")?;
    for name in names {
        findings.conflict(
            format!("trigger {name} on {table}"),
            "made there, and rows of the table were changed here",
        );
    }
    Ok(())
}

/// The schema and the stores of the workspace are those of its base.
fn own_schema_conflicts(txn: &Connection, findings: &mut Findings) -> Result<()> {
    const OBJECTS: &str = "SELECT type, name, tbl_name, sql FROM ws.sqlite_schema \
        WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'larder\\_track%' ESCAPE \
        '\\' \
          AND name NOT LIKE 'larder\\_old\\_%' ESCAPE '\\' AND name NOT LIKE 'larder\\_base\\_%' \
          ESCAPE '\\'";
    const BASE: &str = "SELECT type, name, tbl_name, sql FROM ws.larder_base_schema";
    let differing = format!(
        "SELECT DISTINCT type, name FROM (SELECT * FROM ({OBJECTS} EXCEPT {BASE}) \
         UNION ALL SELECT * FROM ({BASE} EXCEPT {OBJECTS})) ORDER BY 1, 2"
    );
    let objects: Vec<(String, String)> =
        rows(txn, &differing, [], |row| Ok((row.get(0)?, row.get(1)?))).at("the schema")?;
    for (kind, name) in objects {
        findings.conflict(
            format!("{kind} {name}"),
            "made, altered or dropped here; change the schema outside of a long transaction",
        );
    }
    let stores: Vec<String> = rows(
        txn,
        "SELECT DISTINCT name FROM (
           SELECT * FROM (SELECT id, name, provider, mount, table_store FROM ws.larder_store
             EXCEPT SELECT * FROM ws.larder_base_store)
           UNION ALL SELECT * FROM (SELECT * FROM ws.larder_base_store
             EXCEPT SELECT id, name, provider, mount, table_store FROM ws.larder_store)) ORDER BY \
             1",
        [],
        |row| row.get(0),
    )
    .at("larder_store")?;
    for name in stores {
        findings.conflict(
            format!("store {name}"),
            "made, changed or destroyed here; do that outside of a long transaction",
        );
    }
    Ok(())
}

/// Rows that refer to what is not there, in the tables that have foreign keys and are concerned.
fn check_foreign_keys(txn: &Connection, findings: &mut Findings) -> Result<()> {
    let keys: Vec<(String, String, String, Option<String>)> = rows(
        txn,
        "SELECT t.name, f.\"table\", f.\"from\", f.\"to\" FROM main.sqlite_schema AS t, \
           pragma_foreign_key_list(t.name, 'main') AS f WHERE t.type = 'table'",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )
    .at("foreign keys")?;
    let is_changed = |findings: &Findings, name: &str| {
        findings
            .changed_tables
            .iter()
            .any(|changed| changed.eq_ignore_ascii_case(name))
    };
    let concerned: BTreeSet<&str> = keys
        .iter()
        .filter(|(child, parent, ..)| is_changed(findings, child) || is_changed(findings, parent))
        .map(|(child, ..)| child.as_str())
        .collect();
    for child in concerned {
        let broken: Vec<(Option<i64>, String)> = rows(
            txn,
            "SELECT rowid, parent FROM pragma_foreign_key_check(?1, 'main')",
            [child],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(child)?;
        for (rowid, parent) in broken {
            let row = rowid.map_or_else(|| "a row".to_owned(), |rowid| format!("row {rowid}"));
            findings.conflict(
                format!("{child}, {row}"),
                format!("refers to a row of {parent} that the other side removed"),
            );
        }
    }
    // A removed file keeps its row until nobody has it open.
    for (table, ino) in findings.removed.clone() {
        for (child, parent, from, to) in &keys {
            let is_ino = to
                .as_deref()
                .is_none_or(|to| to.eq_ignore_ascii_case("ino"));
            if !parent.eq_ignore_ascii_case(&table) || !is_ino {
                continue;
            }
            let (child_name, from) = (quoted(child), quoted(from));
            let refers: bool = txn
                .prepare_cached(&format!(
                    "SELECT 1 FROM main.{child_name} WHERE {from} = ?1 LIMIT 1"
                ))
                .and_then(|mut find| find.exists([ino]))
                .at(child)?;
            if refers {
                findings.conflict(
                    format!("{child}, {from} {ino}"),
                    format!("refers to a file of {table} that was removed here"),
                );
            }
        }
    }
    Ok(())
}

/// The grants end; what the workspace used of them is its objects', what it dropped is retired.
fn settle_space(txn: &Connection, id: u64, seq: CommitSeq, retired: Vec<Held>) -> Result<()> {
    let mut ags = AgChanges::default();
    let used = used_of_grants(txn)?;
    end(txn, id, &mut ags)?;
    let allocated = extents::coalesce(&used);
    extents::allocate(txn, seq, &allocated)?;
    let retired = holders::retire(txn, seq, &retired)?;
    ags.allocate(allocated.iter().map(|(extent, ..)| extent));
    ags.retire(&retired);
    ags.apply(txn, seq)?; // CATALOG-8
    let retired_bytes = retired.iter().map(Extent::len_bytes).sum::<u64>();
    add_meta(txn, "retired_bytes_total", retired_bytes).map(drop)
}

/// The live extents inside of the grants, of inodes that have a name.
fn used_of_grants(txn: &Connection) -> Result<Vec<(Extent, StoreId, Ino)>> {
    let grants: Vec<Extent> = rows(
        txn,
        "SELECT segment, start_block, block_count FROM ws.larder_grant",
        [],
        extents::extent,
    )
    .at("larder_grant")?;
    let names: HashMap<u32, StoreName> = rows(
        txn,
        "SELECT store.id, owner.name FROM ws.larder_store AS store \
         JOIN ws.larder_store AS owner ON owner.id = store.table_store",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at("larder_store")?
    .into_iter()
    .collect();
    let mut used = Vec::new();
    for grant in &grants {
        // A row that began in the base may reach into the grant; it ends in its allocation group.
        let held: Vec<(Extent, u32, u64)> = rows(
            txn,
            "SELECT segment, start_block, block_count, store, ino FROM ws.larder_extent \
             WHERE segment = ?1 AND start_block > ?2 - 262144 AND start_block < ?3 \
               AND start_block + block_count > ?2 AND retired_seq IS NULL",
            params![
                grant.segment.0,
                signed(grant.start_block),
                signed(grant.end_block())
            ],
            |row| Ok((extents::extent(row)?, row.get(3)?, unsigned(row, 4)?)),
        )
        .at("larder_extent")?;
        for (extent, store, ino) in held {
            let Some(table) = names.get(&store) else {
                return Err(CatalogError::corrupt(format!(
                    "{extent} of the workspace is held by store {store}, which does not exist"
                )));
            };
            let has_name: bool = txn
                .prepare_cached(&format!(
                    "SELECT 1 FROM ws.\"{table}\" WHERE ino = ?1 AND nlink > 0"
                ))
                .and_then(|mut find| find.exists([signed(ino)]))
                .at(table)?;
            if !has_name {
                continue;
            }
            let start = extent.start_block.max(grant.start_block);
            let end = extent.end_block().min(grant.end_block());
            let part = Extent::new(extent.segment, start, end - start);
            used.push((part, StoreId(store), Ino(ino)));
        }
    }
    Ok(used)
}
