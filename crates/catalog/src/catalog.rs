//! The catalog that a database has, and what only some of them can do.

use crate::{
    CatalogClient, CatalogError, CatalogFeed, CatalogForeign, CatalogHistory, CatalogLog,
    CatalogOptions, CatalogPast, CatalogRetention, CatalogRules, CatalogSql, CatalogTemporal,
    CatalogTransaction, CatalogWorkspace, ChangeSet, CommitOutcome, DatabaseInit, Feature, Grants,
    MemoryCatalog, Result, SqliteCatalog,
};
use larder_directory::DatabaseDir;
use larder_format::SessionId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An open catalog. Dropping it closes it.
#[derive(Debug)]
pub enum Catalog {
    /// In an SQLite database, `catalog.db`.
    Sqlite(Box<SqliteCatalog>),
    /// In memory, gone when it is dropped: a model, for tests.
    Memory(Box<MemoryCatalog>),
}

impl From<SqliteCatalog> for Catalog {
    fn from(catalog: SqliteCatalog) -> Catalog {
        Catalog::Sqlite(Box::new(catalog))
    }
}

impl Catalog {
    /// As [`SqliteCatalog::create_in`].
    pub fn create_in(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        init: &DatabaseInit,
    ) -> Result<Catalog> {
        SqliteCatalog::create_in(directory, options, init).map(Catalog::from)
    }

    /// An empty catalog in memory, with a store `main` whose root directory is inode 1.
    pub fn create_in_memory(init: &DatabaseInit) -> Catalog {
        Catalog::Memory(Box::new(MemoryCatalog::create(init)))
    }

    /// As [`SqliteCatalog::open`].
    pub fn open(dir: &Path, options: &CatalogOptions) -> Result<Catalog> {
        SqliteCatalog::open(dir, options).map(Catalog::from)
    }

    /// As [`SqliteCatalog::open_in`].
    pub fn open_in(directory: &DatabaseDir, options: &CatalogOptions) -> Result<Catalog> {
        SqliteCatalog::open_in(directory, options).map(Catalog::from)
    }

    /// As [`SqliteCatalog::open_in_within`].
    pub fn open_in_within(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        wait_max: Duration,
    ) -> Result<Catalog> {
        SqliteCatalog::open_in_within(directory, options, wait_max).map(Catalog::from)
    }

    /// As [`SqliteCatalog::open_private_in`].
    pub fn open_private_in(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        is_shell: bool,
    ) -> Result<Catalog> {
        SqliteCatalog::open_private_in(directory, options, is_shell).map(Catalog::from)
    }

    /// Applies a change set, as a whole or not at all, as the next commit. Errors: what does not
    /// fit the catalog is [`CatalogError::Corrupt`], and an outcome that nobody knows
    /// [`CatalogError::CommitUnknown`]; after that nothing is written any more. Cost: that of the
    /// catalog; in SQLite 10 µs per new file, and one sync.
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        match self {
            Catalog::Sqlite(catalog) => catalog.commit(changes),
            Catalog::Memory(catalog) => catalog.commit(changes),
        }
    }

    /// Whether it is another program's connection ([`Catalog::client`]).
    pub fn is_clients(&self) -> bool {
        matches!(self, Catalog::Sqlite(catalog) if catalog.client().is_clients())
    }

    /// Lets go of what was learned of the client's transaction, if there is one.
    pub fn forget_client_moment(&self) {
        if let Catalog::Sqlite(catalog) = self {
            catalog.client().forget_client_moment();
        }
    }

    /// Lets go of the statements that were compiled on a client's connection, if it is one.
    pub fn forget_compiled(&self) {
        if let Catalog::Sqlite(catalog) = self {
            catalog.client().forget_compiled();
        }
    }

    /// Whether its owner's transaction is open ([`Catalog::transaction`]).
    pub fn is_in_transaction(&self) -> bool {
        matches!(self, Catalog::Sqlite(catalog) if catalog.transaction().is_in_transaction())
    }

    /// Takes back the owner's transaction, if one is open.
    pub fn roll_back(&self) -> Result<()> {
        match self {
            Catalog::Sqlite(catalog) => catalog.transaction().roll_back(),
            Catalog::Memory(_) => Ok(()),
        }
    }

    /// What others have been given of the space: nothing, where there are no workspaces.
    pub fn grants(&self) -> Arc<Grants> {
        match self {
            Catalog::Sqlite(catalog) => catalog.workspace().grants(),
            Catalog::Memory(_) => Arc::default(),
        }
    }

    /// Commits are this session's from now on.
    pub fn set_session(&self, session: SessionId) {
        match self {
            Catalog::Sqlite(catalog) => catalog.foreign().set_session(session),
            Catalog::Memory(_) => {}
        }
    }

    /// From now on what writes waits so long for others; `None`: as it was opened.
    pub fn wait_at_most(&self, wait_max: Option<Duration>) {
        match self {
            Catalog::Sqlite(catalog) => catalog.wait_at_most(wait_max),
            Catalog::Memory(_) => {}
        }
    }

    /// The catalog in SQLite, for what only that one can do.
    fn sqlite(&self, feature: Feature) -> Result<&SqliteCatalog> {
        match self {
            Catalog::Sqlite(catalog) => Ok(catalog),
            Catalog::Memory(_) => Err(CatalogError::Unsupported { feature }),
        }
    }
}

/// Features: each is a part as a whole, or [`CatalogError::Unsupported`] (`INTERFACE-2`).
macro_rules! features {
    ($($(#[$doc:meta])* $name:ident $part:ident $feature:ident)*) => {
        impl Catalog {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Result<$part<'_>> {
                    Ok(self.sqlite(Feature::$feature)?.$name())
                }
            )*
        }
    };
}

features! {
    /// The owner's transaction, and when commits are durable.
    transaction CatalogTransaction Transactions
    /// What the user's rules accept.
    rules CatalogRules Rules
    /// How long history is kept.
    retention CatalogRetention Retention
    /// What is kept of the past, and snapshots.
    history CatalogHistory History
    /// Moments of the past, and catalogs that show one.
    past CatalogPast Past
    /// Users' tables and columns that have a past.
    temporal CatalogTemporal Temporal
    /// The feed of changes.
    feed CatalogFeed Feed
    /// SQL of users.
    sql CatalogSql Sql
    /// The connection of another program.
    client CatalogClient Client
    /// The workspace of a long transaction.
    workspace CatalogWorkspace Workspaces
    /// What others have committed.
    foreign CatalogForeign ForeignChanges
    /// The log (WAL), and how it gets into the database file.
    log CatalogLog Log
}
