//! Making a workspace: the copy of the catalog, and what makes it one.

use super::{InoRange, TransactionRow, set_ino_ranges};
use crate::CatalogWorkspace;
use crate::conn::confine::Use;
use crate::conn::connect::connect;
use crate::conn::meta::{find_meta, set_guard_switch};
use crate::conn::place::{CATALOG_FILE, CatalogOptions, Place};
use crate::error::{At, CatalogError, Result};
use crate::schema::statements::StoreSql;
use crate::space::holders;
use crate::space::map_pages;
use crate::types::codec;
use crate::types::codec::rows;
use crate::types::names::{StoreName, execute_all};
use larder_directory::{Access, DatabaseDir};
use larder_format::{CommitSeq, StoreId};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use std::io;

/// The copy, until it is whole.
const HALF_MADE: &str = "catalog.new";

impl CatalogWorkspace<'_> {
    /// Copies this catalog, as it is at one moment at or after the pin of `row`, into directory
    /// `dir`, and makes it a workspace. Nobody is kept waiting. A crash leaves no `catalog.db` in
    /// `dir`, or a whole and durable one. Cost: the pages of the catalog, and a scan of its extent
    /// rows.
    pub fn copy_to_workspace(
        &self,
        dir: &DatabaseDir,
        row: &TransactionRow,
        ranges: &[InoRange],
    ) -> Result<()> {
        let place = Place::named(dir, HALF_MADE);
        let source = self.catalog.connect_reader()?;
        let options = CatalogOptions {
            wait_max: self.catalog.options.wait_max,
            ..CatalogOptions::default()
        };
        let mut copy = connect(&place, &options, OpenFlags::SQLITE_OPEN_CREATE, Use::Engine)?;
        // Durable at once, at the end.
        copy.pragma_update(None, "synchronous", "OFF")
            .at("the copy")?;
        {
            let backup = Backup::new(&source, &mut copy).at("the copy")?;
            // All in one step, which is one moment of the source.
            match backup.step(-1).at("the copy")? {
                StepResult::Done => {}
                _ => {
                    return Err(CatalogError::Busy {
                        waited: self.catalog.options.wait_max(),
                        why: None,
                    });
                }
            }
        }
        drop(source);
        copy.pragma_update_and_check(None, "journal_mode", "MEMORY", |_| Ok(()))
            .at("the copy")?;
        prepare(&copy, row, ranges)?;
        copy.close().map_err(|(_, error)| error).at("the copy")?;
        make_durable(dir).map_err(|error| {
            CatalogError::invalid(format!(
                "the workspace in {} cannot be written ({error}); free some space there",
                dir.path().display()
            ))
        })
    }
}

fn make_durable(dir: &DatabaseDir) -> io::Result<()> {
    dir.open_file(HALF_MADE, Access::Read)?.sync_all()?;
    dir.rename(HALF_MADE, CATALOG_FILE)?;
    dir.sync()
}

fn prepare(copy: &Connection, row: &TransactionRow, ranges: &[InoRange]) -> Result<()> {
    copy.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)
        .at("the copy")?;
    copy.pragma_update(None, "foreign_keys", false)
        .at("the copy")?;
    let txn = Transaction::new_unchecked(copy, TransactionBehavior::Immediate).at("the copy")?;
    let base_seq = find_meta(&txn, "commit_seq")?;
    if (base_seq as u64) < row.pin_seq.0 {
        return Err(CatalogError::corrupt(format!(
            "the copy is of commit {base_seq}, before the pin {} (WORKSPACE-2)",
            row.pin_seq
        )));
    }
    set_guard_switch(&txn, true)?;
    remove_orphans(&txn, CommitSeq(base_seq as u64))?;
    execute_all(
        &txn,
        "DELETE FROM larder_session;
         DELETE FROM larder_holder;
         DELETE FROM larder_orphan;
         DELETE FROM larder_transaction;
         DELETE FROM larder_grant;
         DELETE FROM larder_history;
         DELETE FROM larder_pre_image;
         DELETE FROM larder_hold;
         DELETE FROM larder_as_of;
         DELETE FROM larder_snapshot;
         DELETE FROM larder_author;
         DELETE FROM larder_seal;
         DELETE FROM larder_sealed;
         DELETE FROM larder_map_page
           WHERE number IN (SELECT number FROM larder_map_page_use WHERE row_count = 0);
         DELETE FROM larder_map_page_use WHERE row_count = 0;
         UPDATE larder_meta SET value = 0 WHERE key = 'retention_ns';
         DELETE FROM larder_extent WHERE retired_seq IS NOT NULL;
         DELETE FROM larder_extent WHERE store = 4294967295;
         DELETE FROM larder_ag;
         INSERT INTO larder_ag (segment, ag, changed_seq, used_blocks, retired_blocks)
           SELECT segment, start_block / 262144, (SELECT value FROM larder_meta WHERE key = \
           'commit_seq'),
             sum(block_count), 0
           FROM larder_extent GROUP BY segment, start_block / 262144;",
    )
    .at("the copy")?;
    for (key, value) in [("workspace", codec::signed(row.id)), ("base_seq", base_seq)] {
        txn.execute(
            "INSERT INTO larder_meta (key, value) VALUES (?1, ?2)",
            params![key, value],
        )
        .at("larder_meta")?;
    }
    set_ino_ranges(&txn, ranges)?;
    crate::temporal::tracking::install(&txn)?;
    set_guard_switch(&txn, false)?;
    txn.commit().at("the copy")
}

/// What has no name in the parent is open there, not here.
fn remove_orphans(txn: &Connection, base: CommitSeq) -> Result<()> {
    let orphans: Vec<(u32, i64)> = rows(txn, "SELECT store, ino FROM larder_orphan", [], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
    .at("larder_orphan")?;
    if orphans.is_empty() {
        return Ok(());
    }
    for (store, ino) in orphans {
        let name: StoreName = txn
            .query_row(
                "SELECT owner.name FROM larder_store AS store \
                 JOIN larder_store AS owner ON owner.id = store.table_store WHERE store.id = ?1",
                [store],
                |row| row.get(0),
            )
            .at("larder_store")?;
        let sql = StoreSql::new(StoreId(store), &name);
        let (references, key) = (&sql.map_references.pages, params![ino]);
        let let_go = map_pages::let_go(txn, base, references, key)?;
        for text in &sql.inode_delete {
            txn.execute(text, [ino]).at(&name)?;
        }
        map_pages::require_gone(txn, let_go, references, key, &sql.table_map)?;
        for table in ["larder_piece", "larder_redo_row"] {
            txn.execute(
                &format!("DELETE FROM {table} WHERE store = ?1 AND ino = ?2"),
                params![store, ino],
            )
            .at(table)?;
        }
    }
    holders::let_go_where(txn, holders::ORPHANS, [])?;
    txn.execute(
        "DELETE FROM larder_extent WHERE (store, ino) IN (SELECT store, ino FROM larder_orphan)",
        [],
    )
    .at("larder_extent")
    .map(drop)
}
