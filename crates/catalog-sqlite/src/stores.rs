//! Stores: listing, creating, changing and destroying them.

use crate::commit::redo_rows;
use crate::conn::meta::{add_meta, find_meta, has_stores, next_commit_seq};
use crate::error::{At, CatalogError, Result};
use crate::history::retention;
use crate::history::retention::stores;
use crate::history::snapshot_stores;
use crate::schema::statements::StoreSql;
use crate::schema::statements::insert_inode;
use crate::space::holders;
use crate::space::map_pages;
use crate::temporal::unsequenced::settle_unsequenced;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::names::StoreName;
use crate::types::rows::{InodeRow, StoreRow};
use crate::{CatalogStores, feed, history, schema, temporal};
use larder_format::limits::STORES_MAX;
use larder_format::{CommitSeq, FileKind, Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashSet;
use std::sync::PoisonError;

const SELECT: &str = "SELECT id, name, provider, mount, table_store FROM larder_store";

impl CatalogStores<'_> {
    /// All stores, by id.
    pub fn rows(&self) -> Result<Vec<StoreRow>> {
        let stores = self.catalog.read(|reader| {
            rows(reader, &format!("{SELECT} ORDER BY id"), [], store_row).at("larder_store")
        })?;
        // Another process may have destroyed some.
        let mut known = self
            .catalog
            .stores
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let there: HashSet<StoreId> = stores.iter().map(|row| row.store).collect();
        known.retain(|id, _| there.contains(id));
        Ok(stores)
    }

    /// Forgets what is known of stores: a transaction was taken back, and another one may give the
    /// number of a store that it made to another name.
    pub fn forget(&self) {
        let mut known = self
            .catalog
            .stores
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        known.clear();
    }

    /// Creates a store with an empty root directory; with `table_store`, one that shows the tables
    /// of that store instead (root attributes are then not used). The name follows
    /// [`check_store_name`](crate::check_store_name) and is unique without regard to case; a
    /// database has at most [`STORES_MAX`]. One that
    /// has tables of its own is made by a commit, or a step of the transaction: as of the commits
    /// before it is not there.
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
        crate::types::names::check_store_name(name)?;
        let root = root_inode(now_ns, root_mode, uid, gid);
        let is_step = self.catalog.user.is_some() || self.catalog.client().is_clients();
        let is_commit = table_store.is_none();
        let made = self.catalog.write(|txn| {
            if is_commit && !is_step {
                settle_unsequenced(txn, now_ns)?; // HISTORY-6
            }
            for (column, value) in [("name", name), ("mount", mount)] {
                let sql = format!("SELECT 1 FROM larder_store WHERE {column} = ?1");
                if txn
                    .prepare(&sql)
                    .and_then(|mut find| find.exists([value]))
                    .at("larder_store")?
                {
                    return Err(CatalogError::Exists {
                        what: format!("a store with {column} '{value}'"),
                    });
                }
            }
            if has_stores(txn, STORES_MAX)? {
                return Err(CatalogError::invalid(format!(
                    "the database has {STORES_MAX} stores, which is the most it can have; destroy \
                     one, or create another database"
                )));
            }
            let store = insert_store(txn, name, provider, mount, table_store, &root)?;
            snapshot_stores::begin(txn, name, provider)?;
            feed::watch_stores(txn)?;
            if is_commit && !is_step {
                let seq = CommitSeq(find_meta(txn, "commit_seq")? as u64);
                let keeper = history::Keeper::begin(txn, seq, now_ns)?;
                keeper.by(self.catalog.sessions().author(None)).end(txn)?;
            }
            Ok(store)
        })?;
        if is_commit && is_step {
            *crate::lock(&self.catalog.moment_ns) = Some(now_ns);
        }
        Ok(made)
    }

    /// Changes provider or mount of a store; what is `None` stays.
    pub fn set(&self, store: StoreId, provider: Option<&str>, mount: Option<&str>) -> Result<()> {
        self.catalog.write(|txn| {
            let changed = txn
                .execute(
                    "UPDATE larder_store SET provider = coalesce(?2, provider), \
                     mount = coalesce(?3, mount) WHERE id = ?1",
                    params![store.0, provider, mount],
                )
                .at("larder_store")?;
            match changed {
                1 => Ok(()),
                _ => Err(CatalogError::not_found(format!("store {store}"))),
            }
        })
    }

    /// Exchanges the mounts of two stores.
    pub fn exchange_mounts(&self, one: StoreId, other: StoreId) -> Result<()> {
        self.catalog.write(|txn| {
            let (first, second) = (find_store(txn, one)?, find_store(txn, other)?);
            // Mounts are unique: one steps aside, to where no store can be.
            let aside = format!("//{}", first.mount);
            for (store, mount) in [(one, &aside), (other, &first.mount), (one, &second.mount)] {
                txn.execute(
                    "UPDATE larder_store SET mount = ?2 WHERE id = ?1",
                    params![store.0, mount],
                )
                .at("larder_store")?;
            }
            Ok(())
        })
    }

    /// Destroys a store: drops its tables, the user's columns with them, and retires all it holds,
    /// as one commit, made at `now_ns`, whose number is returned. Refuses `main`, and a store that
    /// another one shows. Scans all extent rows.
    pub fn destroy(&self, store: StoreId, now_ns: i64) -> Result<CommitSeq> {
        if store == StoreId::MAIN {
            return Err(CatalogError::invalid(
                "store 'main' cannot be destroyed; remove its files instead",
            ));
        }
        let seq = self.catalog.write(|txn| {
            settle_unsequenced(txn, now_ns)?; // HISTORY-6
            let row = find_store(txn, store)?;
            let shown_by: Option<String> = txn
                .query_row(
                    "SELECT name FROM larder_store WHERE table_store = ?1 AND id <> ?1 LIMIT 1",
                    [store.0],
                    |row| row.get(0),
                )
                .optional()
                .at("larder_store")?;
            if let Some(other) = shown_by {
                return Err(CatalogError::invalid(format!(
                    "store '{}' is shown by store '{other}'; destroy that one first",
                    row.name
                )));
            }
            snapshot_stores::end(txn, &row.name, &row.provider)?;
            let mut since = None;
            if row.table_store == store {
                since = Some(history::store_since(txn, store, &row.name)?);
                // Of the commit that is made below.
                let seq = CommitSeq(find_meta(txn, "commit_seq")? as u64 + 1);
                let references = map_pages::ReferenceSql::new(&row.name);
                map_pages::let_go(txn, seq, &references.all, &[])?;
                temporal::forget_table(txn, &row.name, seq)?;
                schema::drop_store_tables(txn, &row.name)?;
            }
            for table in ["larder_orphan", "larder_holder", "larder_piece"] {
                txn.execute(&format!("DELETE FROM {table} WHERE store = ?1"), [store.0])
                    .at(table)?;
            }
            redo_rows::delete_store(txn, store)?;
            stores::forget_store(txn, store)?;
            retention::forget_store(txn, store, now_ns)?;
            history::forget_store(txn, store)?;
            txn.execute("DELETE FROM larder_store WHERE id = ?1", [store.0])
                .at("larder_store")?;
            let seq = holders::retire_store(txn, store)?;
            // What is made of the present from here on is of after it.
            let keeper = history::Keeper::begin(txn, seq, now_ns)?;
            keeper.by(self.catalog.sessions().author(None)).end(txn)?;
            if let Some(since) = since {
                history::note_destroyed(txn, seq, (store, &row.name, since))?;
            }
            Ok(seq)
        })?;
        self.catalog
            .stores
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&store);
        Ok(seq)
    }

    /// One more than the highest inode number that the store ever had (`CATALOG-4`).
    pub fn next_ino(&self, store: StoreId) -> Result<Ino> {
        let owner = self.catalog.store_sql(store)?.table_store;
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT next_ino FROM larder_store WHERE id = ?1")
                .and_then(|mut find| find.query_row([owner.0], |row| unsigned(row, 0)))
                .map(Ino)
                .at("larder_store")
        })
    }
}

/// Inserts the store's row and, unless it shows another store, its tables and root directory.
pub(crate) fn insert_store(
    txn: &Connection,
    name: &str,
    provider: &str,
    mount: &str,
    table_store: Option<StoreId>,
    root: &InodeRow,
) -> Result<StoreRow> {
    let next = add_meta(txn, "next_store", 1)? - 1; // CATALOG-4
    let store = StoreId(u32::try_from(next).map_err(|_| {
        CatalogError::invalid("all 2^32 store ids are used; create a new database")
    })?);
    if let Some(other) = table_store {
        let shown = find_store(txn, other)?;
        if shown.table_store != other {
            return Err(CatalogError::invalid(format!(
                "store '{}' shows another store itself; name the one that it shows",
                shown.name
            )));
        }
    }
    let row = StoreRow {
        store,
        name: name.into(),
        provider: provider.into(),
        mount: mount.into(),
        table_store: table_store.unwrap_or(store),
    };
    txn.execute(
        "INSERT INTO larder_store (id, name, provider, mount, table_store, next_ino) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            store.0,
            name,
            provider,
            mount,
            row.table_store.0,
            signed(Ino::ROOT.0) + 1
        ],
    )
    .at("larder_store")?;
    if table_store.is_none() {
        let since = match store {
            // It is there from the beginning.
            StoreId::MAIN => CommitSeq(0),
            _ => next_commit_seq(txn)?,
        };
        schema::create_store_tables(txn, store, name)?;
        txn.prepare(&StoreSql::new(store, name).inode_insert)
            .and_then(|mut insert| insert_inode(&mut insert, root, since))
            .at(name)?;
    }
    Ok(row)
}

/// The root directory of a new store.
pub(crate) fn root_inode(now_ns: i64, mode: u32, uid: u32, gid: u32) -> InodeRow {
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

fn find_store(txn: &Connection, store: StoreId) -> Result<StoreRow> {
    txn.query_row(&format!("{SELECT} WHERE id = ?1"), [store.0], store_row)
        .optional()
        .at("larder_store")?
        .ok_or_else(|| CatalogError::not_found(format!("store {store}")))
}

fn store_row(row: &Row<'_>) -> rusqlite::Result<StoreRow> {
    Ok(StoreRow {
        store: StoreId(row.get(0)?),
        name: row.get::<_, StoreName>(1)?.into(),
        provider: row.get(2)?,
        mount: row.get(3)?,
        table_store: StoreId(row.get(4)?),
    })
}
