//! Transactions: file operations in any stores and SQL on any tables, of which all or nothing
//! happens.
//!
//! # Words
//! A *short* transaction reads one moment of the database, its *snapshot*. With its first change it
//! takes the writer lock (docs/decisions/0002-turn.md): from then on nobody else changes anything
//! until it ends, so it is for moments, not minutes. Every call goes through its *active
//! transaction*, which lets one in at a time, and none after the end.
//!
//! ```text
//!  begin ──▶ open ──commit──▶ committed
//!             ├──abort, drop──▶ aborted
//!             ├── what it read was changed by others, at its first change ──▶ aborted: conflict
//!             └── it keeps the writer lock for too long ──▶ aborted
//! ```
//!
//! # Invariants
//! * `CONTENT-6` A transaction happens as a whole or not at all, for every reader and every crash;
//!   it reads one moment and its own changes; and of two that cannot both have happened one after
//!   the other, the later one to change something fails with [`ErrorKind::Conflict`] and has no
//!   effect.
//! * `CONTENT-7` After the end of a transaction its handles, and everything else of it, answer an
//!   error.

use crate::active_transaction::{ActiveTransaction, Pool, lock};
use crate::database::{Database, Shared, Shown};
use crate::guarded::GuardedProvider;
use crate::provider::{FileHandle, ProviderContext, StoreProvider};
use crate::readonly::{AS_OF, ReadonlyProvider};
use crate::rooms::Transactions;
use crate::sql::{self, SqlResult};
use crate::stores::{KnownStores, MountedStore};
use larder_object::{
    Engine, Error, ErrorKind, Result, Savepoint, SqlValue, StoreRow, View, enter_writers,
};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often [`Transactions::run`] runs a transaction that meets conflicts.
const TRIES_MAX: u32 = 10;

/// How a transaction is begun.
#[derive(Debug, Clone)]
pub struct TransactionOptions {
    /// Takes the writer lock at the beginning instead of at the first change: no conflict can
    /// follow, and others wait from the beginning. For transactions that read what they are going
    /// to change.
    pub is_immediate: bool,
    /// How long it may keep the writer lock. After that its next operation fails, and when somebody
    /// else waits for the writer lock it is rolled back even without one. Default: 10 s.
    pub writer_lock_max: Duration,
}

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        TransactionOptions {
            is_immediate: false,
            writer_lock_max: Duration::from_secs(10),
        }
    }
}

/// A short transaction over files and rows. It has the operations of a [`Database`], which see its
/// own changes; nobody else does before [`Transaction::commit`]. Dropping it aborts it.
///
/// Content is written while the transaction has the writer lock: what takes long to write keeps
/// others waiting, but by [`Transaction::write_file`].
///
/// One operation runs at a time; others wait. `sync` in it does nothing: the commit is durable.
/// What is for the whole database (`check`, `defrag`, `shrink`, …) answers
/// [`ErrorKind::Unsupported`].
pub struct Transaction {
    view: Database,
    active: Arc<ActiveTransaction>,
    host: Database,
    /// Files that were written beside it, open until its end (`staging`).
    staged: Mutex<Vec<Box<dyn FileHandle>>>,
}

impl Transactions<'_> {
    /// Begins a short transaction. Costs 5 to 10 µs; the first one of a thread at a time opens the
    /// catalog once more, 2 ms. Its snapshot is taken by its first operation, and holds all that
    /// ended before in this process. Errors: [`ErrorKind::Stopped`] after the end of the database.
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_with(&TransactionOptions::default())
    }

    /// The same with options.
    pub fn begin_with(&self, options: &TransactionOptions) -> Result<Transaction> {
        self.begin_in(&self.database.shared.pool, options)
    }

    /// The same with an engine of `pool`.
    pub(crate) fn begin_in(
        &self,
        pool: &Arc<Pool>,
        options: &TransactionOptions,
    ) -> Result<Transaction> {
        if self.database.shared.shown.active().is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a transaction cannot hold another one; use a savepoint",
            ));
        }
        let engine = self.database.shared.shown.engine()?;
        if let Err(error) = engine.expiry().expire_early_if_missed(options.is_immediate) {
            tracing::warn!("no space is made for transactions: {error}"); // It may need none.
        }
        self.database.look_into_snapshots();
        // First a place, then the engine: the last one to have it has just given back one that
        // knows the present.
        let ticket = (options.is_immediate).then(|| enter_writers(engine));
        let engine = pool.take(engine)?;
        if let Some(ticket) = ticket {
            engine.short_transaction().use_ticket(ticket)?;
        }
        let active = ActiveTransaction::new(
            engine,
            Arc::clone(pool),
            Arc::clone(&self.database.shared) as _,
            options.writer_lock_max,
        );
        let active = Arc::new(active);
        let view = Database {
            shared: Arc::new(Shared {
                shown: Shown::Transaction(Arc::clone(active.engine()), Some(Arc::clone(&active))),
                factories: Arc::clone(&self.database.shared.factories),
                stores: KnownStores::default(),
                pool: Arc::default(),
            }),
        };
        let stores = self.database.read_stores();
        let mine = stores.iter().map(|store| MountedStore {
            row: store.row.clone(),
            provider: (view.shared).make_provider(&store.row, store.provider.as_ref()),
            place: store.place.clone(),
        });
        view.shared.stores.set(mine.collect());
        drop(stores);
        let host = self.database.clone();
        let transaction = Transaction {
            view,
            active,
            host,
            staged: Mutex::default(),
        };
        if options.is_immediate {
            transaction.active.lock_writer()?;
        }
        Ok(transaction)
    }

    /// Runs `body` in a short transaction and commits it; an error of `body` aborts it. After a
    /// conflict it runs again, with the writer lock from the beginning, so that it meets no other;
    /// and so it does where there was no room, once the oldest history has given way. Ten times at
    /// most. `body` must not do what cannot be repeated.
    pub fn run<T>(&self, mut body: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            let options = TransactionOptions {
                is_immediate: tries > 1,
                ..TransactionOptions::default()
            };
            let transaction = self.begin_with(&options)?;
            let since = self
                .database
                .shared
                .shown
                .engine()?
                .expiry()
                .early_expiries();
            let outcome = body(&transaction).and_then(|value| {
                transaction.commit()?;
                Ok(value)
            });
            drop(transaction);
            match outcome {
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES_MAX => {}
                // History gives way, twice as much each time.
                Err(error)
                    if error.kind() == ErrorKind::NoSpace
                        && tries < TRIES_MAX
                        && self
                            .database
                            .whole()?
                            .expiry()
                            .expire_early_again(tries - 1, since)? => {}
                outcome => return outcome,
            }
        }
    }
}

impl Database {
    /// The engine, for what is not part of a transaction.
    pub(crate) fn whole(&self) -> Result<&Arc<Engine>> {
        match self.shared.shown.active() {
            None => self.shared.shown.engine(),
            Some(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "this is about the whole database; ask it beside the transaction, not in it",
            )),
        }
    }

    /// Reads what passes no provider.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&View) -> Result<T>) -> Result<T> {
        let view = self.shared.shown.view();
        match self.shared.shown.active() {
            None => work(view),
            Some(active) => active.enter(|| work(view)),
        }
    }

    /// Runs an operation that passes no provider.
    pub(crate) fn enter<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let engine = self.shared.shown.engine()?;
        match self.shared.shown.active() {
            None => work(engine),
            Some(active) => active.enter(|| work(engine)),
        }
    }
}

impl Shared {
    /// The provider of a store, guarded in a transaction; `None`: this program does not have it.
    /// `host`: that of the database outside. What shows a snapshot is the same for all.
    pub(crate) fn make_provider(
        &self,
        row: &StoreRow,
        host: Option<&Arc<dyn StoreProvider>>,
    ) -> Option<Arc<dyn StoreProvider>> {
        if let Some(snapshot) = row.provider.strip_prefix(AS_OF) {
            let present = match &self.shown {
                Shown::Present(engine) => Some(engine),
                Shown::Past(past) => Some(past.present()),
                Shown::Transaction(..) => None,
            };
            return host.cloned().or_else(|| {
                let made = ReadonlyProvider::of_snapshot(Arc::clone(present?), row, snapshot);
                Some(Arc::new(made))
            });
        }
        let factory = self.factories.get(&row.provider)?;
        let provider = factory(ProviderContext {
            source: self.shown.source(),
            store: row.store,
            table_store: row.table_store,
        });
        Some(match self.shown.active() {
            Some(active) => Arc::new(GuardedProvider::new(
                provider,
                row.table_store,
                Arc::clone(active),
            )),
            None => provider,
        })
    }
}

impl Transaction {
    /// Runs SQL in the transaction, with the rights of an `sqlite3` shell: it sees what the
    /// transaction has done to files, and they see what it does. Several statements are separated
    /// by `;`; `parameters` (`?1`, …) are those of a single one. An error names its place, and
    /// takes back the statement that failed; those before it stay, and so does the transaction.
    /// Refused: statements that begin or end transactions, ATTACH, settings, temporary tables. The
    /// functions about files are those of docs/semantics.md, "SQL over content".
    pub fn sql(&self, sql: &str, parameters: &[SqlValue]) -> Result<SqlResult> {
        let place = sql::Place {
            view: &self.view,
            host: None,
            past: None,
        };
        self.active
            .enter(|| sql::run_text(&place, self.active.engine(), sql, parameters))
    }

    /// What the session runs a statement in.
    pub(crate) fn parts(&self) -> (&Database, &Arc<ActiveTransaction>) {
        (&self.view, &self.active)
    }

    /// The database beside the transaction.
    pub(crate) fn host(&self) -> &Database {
        &self.host
    }

    /// Files that were written beside the transaction, open until its end.
    pub(crate) fn staged(&self) -> &Mutex<Vec<Box<dyn FileHandle>>> {
        &self.staged
    }

    /// A moment to go back to.
    pub fn savepoint(&self) -> Result<Savepoint> {
        self.active
            .enter(|| self.active.engine().short_transaction().set_savepoint())
    }

    /// Takes back everything since the savepoint, which stays; later ones are gone. Handles stay
    /// open. [`ErrorKind::InvalidInput`] when it is gone itself.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<()> {
        self.active.enter(|| {
            self.active
                .engine()
                .short_transaction()
                .roll_back_to(savepoint)
        })
    }

    /// Forgets the savepoint and later ones; what was done since stays.
    pub fn release(&self, savepoint: Savepoint) -> Result<()> {
        self.active.enter(|| {
            self.active
                .engine()
                .short_transaction()
                .release_savepoint(savepoint)
        })
    }

    /// Commits, durably; handles of the transaction are closed. Then everything is seen through the
    /// database, and by others as any commit is. An error leaves nothing of it: [`ErrorKind::Sql`]
    /// when a deferred constraint refuses it. [`ErrorKind::Stopped`]: nobody knows before the
    /// database is opened again. Cost: a flush of the catalog's log, and one of each segment that
    /// was written to, which new files of at most 64 KiB in all are not; nothing when nothing was
    /// changed.
    pub fn commit(&self) -> Result<()> {
        let outcome = self.active.commit();
        lock(&self.staged).clear();
        match outcome? {
            true => self.host.reload_stores(),
            false => Ok(()),
        }
    }

    /// Takes everything back. Nothing of the transaction is left, and its space is free.
    /// Idempotent.
    pub fn abort(&self) {
        self.active.abort();
        lock(&self.staged).clear();
    }
}

impl Deref for Transaction {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.view
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // The files that were staged go before the database may.
        self.abort();
    }
}
