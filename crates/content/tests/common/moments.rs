//! Databases with a history, and the moments in it.

use larder::{CreateOptions, Database, DatabaseOptions, Moment, Retention};
use larder_object::EngineOptions;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// When clocks begin, nanoseconds since 1970: 2027-01-15T08:00:00Z.
pub const BEGIN_NS: i64 = 1_800_000_000_000_000_000;
pub const MILLISECOND: i64 = 1_000_000;
pub const SECOND: i64 = 1000 * MILLISECOND;
pub const MINUTE: i64 = 60 * SECOND;
pub const HOUR: i64 = 60 * MINUTE;

/// A clock that goes when it is told.
#[derive(Clone)]
pub struct Clock {
    now_ns: Arc<AtomicI64>,
    /// See [`EngineOptions::redo_bytes_max`].
    redo_bytes_max: u64,
}

impl Clock {
    pub fn new() -> Clock {
        Clock::applying_redo_at(EngineOptions::default().redo_bytes_max)
    }

    /// Of sessions with room for so many bytes of redo rows: with little, redo rows are applied now
    /// and then.
    pub fn applying_redo_at(redo_bytes_max: u64) -> Clock {
        Clock {
            now_ns: Arc::new(AtomicI64::new(BEGIN_NS)),
            redo_bytes_max,
        }
    }

    pub fn now(&self) -> i64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    pub fn set(&self, now_ns: i64) {
        self.now_ns.store(now_ns, Ordering::SeqCst);
    }

    pub fn pass(&self, ns: i64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }

    /// Of a session by this clock that commits when the test says so.
    pub fn engine(&self) -> EngineOptions {
        let clock = self.clone();
        EngineOptions {
            has_background: false,
            redo_bytes_max: self.redo_bytes_max,
            clock: Some(Arc::new(move || clock.now())),
            ..EngineOptions::default()
        }
    }

    /// A database of `mib` MiB.
    pub fn create(&self, dir: &Path, mib: u64, retention_ns: i64) -> Database {
        let options = CreateOptions {
            capacity_bytes: Some(mib << 20),
            retention_ns: Some(retention_ns),
            ..CreateOptions::default()
        };
        Database::create_with(&dir.join("t.larder"), &options, &self.engine()).unwrap();
        self.open(dir)
    }

    pub fn open(&self, dir: &Path) -> Database {
        open_with(dir, self.engine())
    }

    /// Puts and commits; the moment of that, a second before the next.
    pub fn put(&self, database: &Database, path: &[u8], bytes: &[u8]) -> i64 {
        database.files().write(path, bytes).unwrap();
        database.sync().unwrap();
        let at_ns = self.now();
        self.pass(SECOND);
        at_ns
    }

    /// Beside others a session needs a background, to give the writer lock on.
    pub fn open_with(&self, dir: &Path, has_background: bool) -> Database {
        let engine = EngineOptions {
            has_background,
            ..self.engine()
        };
        open_with(dir, engine)
    }
}

fn open_with(dir: &Path, engine: EngineOptions) -> Database {
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// A database of `mib` MiB with an hour of history and stores `a` and `b`.
pub fn two_stores(clock: &Clock, dir: &Path, mib: u64) -> Database {
    let database = clock.create(dir, mib, HOUR);
    for store in ["a", "b"] {
        database
            .stores()
            .create(store, "files", None, None)
            .unwrap();
    }
    database
}

/// A retention while there is space.
pub fn keep(retention_ns: i64) -> Retention {
    Retention {
        retention_ns,
        is_guaranteed: false,
    }
}

pub fn as_of(database: &Database, at_ns: i64) -> larder::Result<Database> {
    database.as_of(&Moment::At(at_ns))
}

/// A database with an hour of history and the clock of the machine; commits are made when the test
/// says so.
pub fn create(dir: &Path, mib: u64) -> Database {
    let options = CreateOptions {
        retention_ns: Some(HOUR),
        capacity_bytes: Some(mib << 20),
        ..CreateOptions::default()
    };
    Database::create(&dir.join("t.larder"), &options).unwrap();
    open(dir)
}

pub fn open(dir: &Path) -> Database {
    let engine = EngineOptions {
        has_background: false,
        ..EngineOptions::default()
    };
    open_with(dir, engine)
}

/// The newest moment, with everything in it, rows too.
pub fn newest(db: &Database) -> Moment {
    db.sync().unwrap();
    // What SQL did beside the commits gets one.
    drop(db.as_of(&Moment::At(db.now_ns())).unwrap());
    Moment::Seq(db.history().resolve(&Moment::At(db.now_ns())).unwrap().0)
}

/// The newest commit that changed files, with everything in it.
pub fn now(db: &Database) -> Moment {
    db.sync().unwrap();
    let mut newest = 0;
    db.history()
        .log(None, Some(1), &mut |commit| {
            newest = commit.seq;
            ControlFlow::Continue(())
        })
        .unwrap();
    Moment::Seq(newest)
}
