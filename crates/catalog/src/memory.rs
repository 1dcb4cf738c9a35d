//! A catalog in memory: what the SQLite catalog says of the present, as ordered maps.
//!
//! It is a model: the SQLite catalog is compared with it, call by call, and so will others be.
//!
//! # Words
//! The *state* is all that one database holds. A *table set* is what one store owns: its inodes,
//! names, contents, maps, attributes, pieces and redo rows; a store that shows another one has
//! none of its own. A *place* is where an extent row begins.
//!
//! # Invariants
//! * `MEMORY-1` Whatever the SQLite catalog answers to the same calls, this one does: the same
//!   rows, in the same order, and errors of the same kind. *Guard*: the test `same` makes the same
//!   random calls to both.
//! * `MEMORY-2` What writes is applied as a whole or not at all (`CATALOG-2`). *Guard*: it changes
//!   a copy of the state, which takes its place when all of it fits.
//!
//! What can be derived is not stored: counts of groups and of sharers, stored pages.
//!
//! # What differs
//! It keeps no history: superseded rows are gone, whatever retention it is created with, and so
//! [`ChangeSet::pre_images`](crate::ChangeSet::pre_images) and
//! [`ChangeSet::moves`](crate::ChangeSet::moves) are passed over, as are
//! [`ChangeSet::map_shares`](crate::ChangeSet::map_shares) (each map has pages of its own),
//! [`ChangeSet::now_ns`](crate::ChangeSet::now_ns) and
//! [`ChangeSet::user`](crate::ChangeSet::user). A reclaim takes all that may go in one step. There
//! are no columns, triggers or rules of users. Numbers are below 2⁶³. It counts no shared pages,
//! and its `check` knows the rules that the test names. An error has the kind of SQLite's, not its
//! words.
//!
//! # Concurrency
//! One lock around the state; a writer has it while it copies and changes the state.
//!
//! # Cost
//! A read: O(log rows). What writes: O(all rows), for the copy.

mod apply;
mod check;
mod constraints;
mod extents;
mod space;
mod state;
mod stores;
mod survey;
mod tables;

use crate::{ChangeSet, CommitOutcome, DatabaseInfo, DatabaseInit, Result, SCHEMA_VERSION, Tuning};
use larder_format::{CommitSeq, StoreId};
use space::Space;
use state::{State, Tables, root_inode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

/// A catalog that lives as long as the value. Its parts are those of [`Catalog`](crate::Catalog).
#[derive(Debug)]
pub struct MemoryCatalog {
    state: RwLock<State>,
}

/// The parts of the interface, each a reference to the catalog.
macro_rules! parts {
    ($($name:ident $part:ident)*) => {
        $(
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $part<'c>(&'c MemoryCatalog);
        )*

        impl MemoryCatalog {
            $(
                pub(crate) fn $name(&self) -> $part<'_> {
                    $part(self)
                }
            )*
        }
    };
}

parts! {
    tables MemoryTables
    maps MemoryMaps
    space MemorySpace
    stores MemoryStores
    sessions MemorySessions
    survey MemorySurvey
}

impl MemoryCatalog {
    /// A database with an empty store `main`, whose root directory is inode 1. Its retention is 0,
    /// whatever `init` says.
    pub fn create(init: &DatabaseInit) -> MemoryCatalog {
        let root = root_inode(init.now_ns, init.root_mode, init.root_uid, init.root_gid);
        let mut state = State {
            info: DatabaseInfo {
                database_id: init.database_id,
                format_version: SCHEMA_VERSION,
                capacity_bytes: init.capacity_bytes,
                retention_ns: 0,
                is_guaranteed: false,
                created_ns: init.now_ns,
                commit_seq: CommitSeq(0),
                retired_bytes_total: 0,
                tuning: Tuning::default(),
            },
            schema_version: 0,
            stores: BTreeMap::new(),
            next_store: StoreId::MAIN.0,
            tables: BTreeMap::new(),
            space: Space::default(),
            sessions: BTreeMap::new(),
            next_session: 1,
            orphans: BTreeMap::new(),
            holders: BTreeSet::new(),
        };
        state.add_store(("main", "files", "/"), None, root, CommitSeq(0));
        MemoryCatalog {
            state: RwLock::new(state),
        }
    }

    /// Applies `changes` as a whole, as the next commit; any error leaves everything as it was.
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.write(|state| state.apply(changes))
    }

    fn read<T>(&self, body: impl FnOnce(&State) -> T) -> T {
        body(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `body` on a copy of the state; what it returns an error for changes nothing
    /// (`MEMORY-2`).
    fn write<T>(&self, body: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = state.clone();
        let value = body(&mut next)?;
        *state = next;
        Ok(value)
    }

    /// The same of what one store shows.
    fn read_tables<T>(&self, store: StoreId, body: impl FnOnce(&Tables) -> T) -> Result<T> {
        self.read(|state| Ok(body(state.tables_of(store)?)))
    }
}
