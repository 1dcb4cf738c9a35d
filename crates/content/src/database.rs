//! An open database: how it is made, opened and closed, and what it shows. What can be done with
//! it stands in its rooms ([`rooms`](crate::rooms)).

use crate::active_transaction::{ActiveTransaction, Pool};
use crate::environment::joined;
use crate::files::provide_files;
use crate::provider::{ProviderFactory, Source};
use crate::readonly::ReadonlyProvider;
use crate::stores::KnownStores;
use crate::types::Caller;
use larder_object::{AsOf, Engine, EngineOptions, Error, ErrorKind, InitOptions, Result, View};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// How long a new database keeps history, unless it is told: one hour.
pub const RETENTION_NS_DEFAULT: i64 = 3_600_000_000_000;

/// How a database is created.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Bytes of content it may hold, ≥ 16 MiB; `None`: what the filesystem has.
    pub capacity_bytes: Option<u64>,
    /// How long what was superseded stays readable, nanoseconds, as long as there is space; 0: not
    /// at all; `None`: [`RETENTION_NS_DEFAULT`].
    pub retention_ns: Option<i64>,
    /// Mode, owner and group of the root directory; `None`: 0755 and this process's.
    pub root: Option<(u32, Caller)>,
    /// A group whose members share the database, and its files on the host; `None`: its owner alone
    /// has it.
    pub group: Option<u32>,
}

/// How a database is opened.
#[derive(Clone, Default)]
pub struct DatabaseOptions {
    /// What the session is, for people who list sessions: `mount ./photos`.
    pub label: String,
    /// Own providers by name, beside `files` and `readonly`.
    pub providers: HashMap<String, ProviderFactory>,
    /// Engine settings; the default suits everyone but tests.
    pub engine: EngineOptions,
}

/// An open database. Cheap to clone; the last clone to go closes it.
#[derive(Clone)]
pub struct Database {
    pub(crate) shared: Arc<Shared>,
}

/// What all clones of a database share.
pub(crate) struct Shared {
    pub(crate) shown: Shown,
    pub(crate) factories: Arc<HashMap<String, ProviderFactory>>,
    pub(crate) stores: KnownStores,
    pub(crate) pool: Arc<Pool>,
}

/// What a database shows, and so what can be done with it.
pub(crate) enum Shown {
    /// The present, which the last one to have it closes.
    Present(Arc<Engine>),
    /// What a transaction sees. Each call goes through the active transaction; none: it has entered
    /// it.
    Transaction(Arc<Engine>, Option<Arc<ActiveTransaction>>),
    /// A moment of the past.
    Past(Arc<AsOf>),
}

impl Shown {
    /// For reading.
    pub(crate) fn view(&self) -> &View {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => engine,
            Shown::Past(past) => past,
        }
    }

    /// For changes; [`ErrorKind::ReadOnly`] of the past.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => Ok(engine),
            Shown::Past(_) => Err(Error::new(
                ErrorKind::ReadOnly,
                "the past cannot be changed; write to the database without '@'",
            )),
        }
    }

    /// A moment of the past; [`ErrorKind::InvalidInput`] otherwise.
    pub(crate) fn past(&self) -> Result<&Arc<AsOf>> {
        match self {
            Shown::Past(past) => Ok(past),
            Shown::Present(_) | Shown::Transaction(..) => Err(Error::new(
                ErrorKind::InvalidInput,
                "the present has no past of its own; open a moment with 'as_of'",
            )),
        }
    }

    pub(crate) fn active(&self) -> Option<&Arc<ActiveTransaction>> {
        match self {
            Shown::Transaction(_, active) => active.as_ref(),
            Shown::Present(_) | Shown::Past(_) => None,
        }
    }

    /// The same for a call that has entered the active transaction, and does not close it.
    pub(crate) fn inside(&self) -> Shown {
        match self.source() {
            Source::Present(engine) => Shown::Transaction(engine, None),
            Source::Past(past) => Shown::Past(past),
        }
    }

    /// For a provider.
    pub(crate) fn source(&self) -> Source {
        match self {
            Shown::Present(engine) | Shown::Transaction(engine, _) => {
                Source::Present(Arc::clone(engine))
            }
            Shown::Past(past) => Source::Past(Arc::clone(past)),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Shown::Present(engine) = &self.shown else {
            return;
        };
        self.pool.clear();
        if let Err(error) = engine.close() {
            tracing::error!("closing a database: {error}");
        }
    }
}

impl Database {
    /// Creates the directory `path` and an empty database in it; [`ErrorKind::Exists`] if there is
    /// something already.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<()> {
        Engine::create(path, &init_options(options), &EngineOptions::default())
    }

    /// The same on other storage; used by tests that simulate devices.
    pub fn create_with(path: &Path, options: &CreateOptions, engine: &EngineOptions) -> Result<()> {
        Engine::create(path, &init_options(options), engine)
    }

    /// Opens the database in directory `path` and recovers what a crash left (cost: independent of
    /// the size of files). Errors: [`ErrorKind::NotFound`], [`ErrorKind::NotADatabase`],
    /// [`ErrorKind::NewerFormat`], [`ErrorKind::Corrupt`], [`ErrorKind::ReadOnly`]. Where the
    /// environment names a long transaction of this database
    /// ([`TRANSACTION_VARIABLE`](crate::TRANSACTION_VARIABLE)), its view is opened.
    pub fn open(path: &Path, options: DatabaseOptions) -> Result<Database> {
        match joined(path)? {
            Some(workspace) => Database::open_here(&workspace, options),
            None => Database::open_here(path, options),
        }
    }

    /// The same, whatever the environment says.
    pub(crate) fn open_here(path: &Path, options: DatabaseOptions) -> Result<Database> {
        let engine = Engine::open(path, &options.label, &options.engine)?;
        let mut factories = options.providers;
        factories.insert("files".into(), Arc::new(provide_files));
        factories.insert(
            "readonly".into(),
            Arc::new(|context| Arc::new(ReadonlyProvider::new(provide_files(context)))),
        );
        let shared = Shared {
            shown: Shown::Present(engine),
            factories: Arc::new(factories),
            stores: KnownStores::default(),
            pool: Arc::default(),
        };
        let database = Database {
            shared: Arc::new(shared),
        };
        database.follow_stores();
        database.reload_stores()?;
        Ok(database)
    }

    /// The directory of the database, or of the workspace that [`Database::open`] went to.
    pub fn path(&self) -> &Path {
        self.shared.shown.view().path()
    }

    /// The same, open: what is in it on the host is reached from there.
    pub fn directory(&self) -> &crate::directory::DatabaseDir {
        self.shared.shown.view().directory()
    }

    /// Whether this process cannot write the database: it is shown as it was when it was opened,
    /// and reads of its content fail ([`ErrorKind::Stopped`]) once somebody else changes it.
    pub fn is_readonly(&self) -> bool {
        self.shared.shown.view().is_readonly()
    }

    /// Commits everything, gives back what may be reclaimed, and ends the session. Handles that
    /// are still open answer [`ErrorKind::Stopped`] afterwards.
    pub fn close(self) -> Result<()> {
        match &self.shared.shown {
            Shown::Past(_) => Ok(()), // What it keeps goes with its last clone.
            Shown::Present(_) | Shown::Transaction(..) => self.whole()?.close(),
        }
    }

    /// Returns after the commit that holds every operation that ended before (`CONTENT-5`).
    pub fn sync(&self) -> Result<()> {
        match &self.shared.shown {
            Shown::Present(engine) | Shown::Transaction(engine, _) => engine.commits().sync(),
            Shown::Past(_) => Ok(()),
        }
    }
}

fn init_options(options: &CreateOptions) -> InitOptions {
    let (root_mode, owner) = options.root.unwrap_or((0o755, Caller::current()));
    InitOptions {
        capacity_bytes: options.capacity_bytes,
        retention_ns: options.retention_ns.unwrap_or(RETENTION_NS_DEFAULT),
        root_mode,
        root_uid: owner.uid,
        root_gid: owner.gid,
        group: options.group,
    }
}
