//! `bench txn`: durable transactions over one row and one file of 10 KB, beside SQLite alone with
//! the same bytes as a blob, and beside what programs do without transactions over both: a safe
//! write of the file (write, fsync, rename, fsync of the directory), then the row in SQLite. And
//! what a read-only transaction costs.

mod abort;
mod processes;

pub use abort::{WRITE, write};
pub use processes::{COUNT, count};

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder::{
    CreateOptions, Database, DatabaseOptions, Name, NewNode, NodeId, SqlValue, TransactionOptions,
};
use rusqlite::{Connection, params};

use super::content;
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate};
use xtask::{Outcome, explain};

const FILE_BYTES: usize = 10_000;

/// One way to make a row and a file durable together, or one after the other.
trait Way: Sync {
    /// One thread's part: `count` transactions, numbered from `first` on.
    fn run(&self, first: u64, count: u64) -> Outcome;
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    if let Some(count) = setting.options.processes {
        return processes::run(setting, count);
    }
    if setting.options.is_abort {
        return abort::run(setting);
    }
    let rounds = setting.options.rounds.unwrap_or(5);
    let count = setting.options.choose(200, 800, 2000);
    let mut report = Report::new(
        "txn",
        &format!(
            "{} {rounds} rounds, sides in turns, medians; per round {count} transactions of 1 row \
             and 1 file of 10 KB, each \
             durable when it returns. SQLite: WAL, synchronous = FULL, one connection per thread, \
             BEGIN IMMEDIATE.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    let larder = Larder::create(&place.path().join("t.larder"))?;
    let blobs = Blobs::create(&place.path().join("blobs.sqlite"))?;
    let files = SafeWrites::create(&place.path().join("files"))?;
    let ways: [&dyn Way; 3] = [&larder, &blobs, &files];
    let (mut against_blobs, mut against_files) = (Vec::new(), Vec::new());
    let mut first = 0;
    for threads in [1, 8] {
        let mut rates: [Samples; 3] = Default::default();
        alternate(rounds, 3, |_, index| {
            rates[index]
                .0
                .push(rate(ways[index], first, count, threads)?);
            first += count;
            Ok(())
        })?;
        let [ours, blobs, files] = rates;
        let what = |rival: &str| format!("transactions, {threads} threads, against {rival}");
        against_blobs.push(Comparison {
            what: what("SQLite alone"),
            ours: ours.clone(),
            rivals: vec![("SQLite alone", blobs)],
            limits: Vec::new(),
            goal: Some(Goal::AtLeast(1.5)),
        });
        against_files.push(Comparison {
            what: what("safe write + SQLite"),
            ours,
            rivals: vec![("safe write + SQLite", files)],
            limits: Vec::new(),
            goal: Some(Goal::AtLeast(2.0)),
        });
    }
    report.compare("Larder", "transactions/s", &against_blobs);
    report.compare("Larder", "transactions/s", &against_files);
    let mut extra = Samples::default();
    for _ in 0..rounds {
        extra.0.push(larder.read_only_extra_us(2000)?);
    }
    report.verdict(
        "a read-only transaction, beside the same read without one, µs",
        extra,
        Goal::AtMost(20.0),
    );
    larder.close()?;
    Ok(report)
}

/// Transactions per second.
fn rate(way: &dyn Way, first: u64, count: u64, threads: u64) -> Result<f64, String> {
    let started = Instant::now();
    let each = count / threads;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || way.run(first + thread * each, each)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
            thread.join().unwrap_or(Err("a thread panicked".into()))
        };
        running.into_iter().try_for_each(join)
    })?;
    Ok((each * threads) as f64 / started.elapsed().as_secs_f64())
}

struct Larder {
    database: Database,
}

impl Larder {
    fn create(path: &Path) -> Result<Larder, String> {
        Database::create(path, &CreateOptions::default()).map_err(explain)?;
        let database = Database::open(path, DatabaseOptions::default()).map_err(explain)?;
        let name = Name::new(b"files").map_err(explain)?;
        database
            .nodes()
            .create_node(
                NodeId::ROOT,
                &name,
                NewNode::Directory,
                0o755,
                larder::Caller::current(),
            )
            .map_err(explain)?;
        let mut sql = database.sql().open(false).map_err(explain)?;
        sql.execute(
            "CREATE TABLE document (id INTEGER PRIMARY KEY, path TEXT, note TEXT)",
            &mut |_| Ok(()),
        )
        .map_err(explain)?;
        Ok(Larder { database })
    }

    fn one(&self, id: u64, bytes: &[u8]) -> larder::Result<()> {
        let options = TransactionOptions {
            is_immediate: true,
            ..TransactionOptions::default()
        };
        let txn = self.database.transactions().begin_with(&options)?;
        let path = format!("/files/{id}");
        txn.files().write(path.as_bytes(), bytes)?;
        txn.sql(
            "INSERT INTO document VALUES (?1, ?2, ?3)",
            &[
                SqlValue::Integer(id as i64),
                SqlValue::Text(path),
                SqlValue::Text(format!("document {id}")),
            ],
        )?;
        txn.commit()
    }

    /// How much longer a read in a transaction of its own takes, µs.
    fn read_only_extra_us(&self, count: u32) -> Result<f64, String> {
        self.database.sync().map_err(explain)?;
        let path = b"/files/0";
        let timed = |run: &dyn Fn() -> larder::Result<()>| -> Result<Duration, String> {
            let started = Instant::now();
            for _ in 0..count {
                run().map_err(explain)?;
            }
            Ok(started.elapsed())
        };
        let plain = timed(&|| self.database.nodes().resolve(path, true).map(drop))?;
        let within = timed(&|| {
            let txn = self.database.transactions().begin()?;
            txn.nodes().resolve(path, true)?;
            txn.commit()
        })?;
        Ok(within.saturating_sub(plain).as_secs_f64() * 1e6 / f64::from(count))
    }

    fn close(self) -> Outcome {
        self.database.close().map_err(explain)
    }
}

impl Way for Larder {
    fn run(&self, first: u64, count: u64) -> Outcome {
        let mut bytes = content::noise(first, FILE_BYTES);
        for id in first..first + count {
            content::stamp(&mut bytes, id, 0);
            self.one(id, &bytes).map_err(explain)?;
        }
        Ok(())
    }
}

struct Blobs {
    path: PathBuf,
}

impl Blobs {
    fn create(path: &Path) -> Result<Blobs, String> {
        let blobs = Blobs { path: path.into() };
        let create =
            "CREATE TABLE document (id INTEGER PRIMARY KEY, path TEXT, note TEXT, content BLOB)";
        connect(&blobs.path)
            .and_then(|connection| connection.execute_batch(create))
            .map_err(explain)?;
        Ok(blobs)
    }
}

impl Way for Blobs {
    fn run(&self, first: u64, count: u64) -> Outcome {
        let connection = connect(&self.path).map_err(explain)?;
        let mut bytes = content::noise(first, FILE_BYTES);
        for id in first..first + count {
            content::stamp(&mut bytes, id, 0);
            insert(&connection, id, Some(&bytes)).map_err(explain)?;
        }
        Ok(())
    }
}

struct SafeWrites {
    directory: PathBuf,
    path: PathBuf,
}

impl SafeWrites {
    fn create(directory: &Path) -> Result<SafeWrites, String> {
        fs::create_dir(directory).map_err(explain)?;
        let rows = Blobs::create(&directory.with_extension("sqlite"))?;
        Ok(SafeWrites {
            directory: directory.into(),
            path: rows.path,
        })
    }

    fn write(&self, id: u64, bytes: &[u8]) -> std::io::Result<()> {
        let temporary = self.directory.join(format!(".{id}"));
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, self.directory.join(id.to_string()))?;
        fs::File::open(&self.directory)?.sync_all()
    }
}

impl Way for SafeWrites {
    fn run(&self, first: u64, count: u64) -> Outcome {
        let connection = connect(&self.path).map_err(explain)?;
        let mut bytes = content::noise(first, FILE_BYTES);
        for id in first..first + count {
            content::stamp(&mut bytes, id, 0);
            self.write(id, &bytes).map_err(explain)?;
            insert(&connection, id, None).map_err(explain)?;
        }
        Ok(())
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    Ok(connection)
}

fn insert(connection: &Connection, id: u64, content: Option<&[u8]>) -> rusqlite::Result<()> {
    let run = |sql: &str| connection.prepare_cached(sql)?.execute([]).map(drop);
    run("BEGIN IMMEDIATE")?;
    connection
        .prepare_cached("INSERT INTO document VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            id as i64,
            format!("/files/{id}"),
            format!("document {id}"),
            content
        ])?;
    run("COMMIT")
}
