//! Tables of users whose rows have a past, and another program that writes to them.

use super::open;
use larder::{CreateOptions, Database, Error, Moment, RestoreOptions, RestoreRows, SqlValue};
use std::path::{Path, PathBuf};
use std::process::Command;

const HOUR_NS: i64 = 3_600_000_000_000;

pub fn create(dir: &Path) -> Database {
    let options = CreateOptions {
        retention_ns: Some(HOUR_NS),
        capacity_bytes: Some(64 << 20),
        ..CreateOptions::default()
    };
    Database::create(&dir.join("t.larder"), &options).unwrap();
    open(dir)
}

/// Another program: it knows nothing of us, and its own SQLite.
pub struct Client(pub PathBuf);

impl Client {
    pub fn try_run(&self, sql: &str) -> Result<(), String> {
        let output = Command::new("sqlite3")
            .args(["-bail", "-cmd", ".timeout 30000"])
            .arg(&self.0)
            .arg(sql)
            .output()
            .expect("the sqlite3 shell is needed; install it");
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// What it answers, if it need not wait.
    pub fn ask(&self, sql: &str) -> String {
        let output = Command::new("sqlite3").arg(&self.0).arg(sql).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub fn run(&self, sql: &str) {
        self.try_run(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

pub fn client(dir: &Path) -> Client {
    Client(dir.join("t.larder/catalog.db"))
}

/// A commit of a file: all that came before is of another moment.
pub fn moment(db: &Database, salt: u64) -> Moment {
    db.files().write(b"/moment", salt.to_le_bytes()).unwrap();
    db.sync().unwrap();
    let rows = query(db, "SELECT value FROM larder_meta WHERE key = 'commit_seq'");
    let SqlValue::Integer(seq) = rows[0][0] else {
        panic!("{rows:?}")
    };
    Moment::Seq(seq as u64)
}

pub fn query(db: &Database, sql: &str) -> Vec<Vec<SqlValue>> {
    let mut found = Vec::new();
    let mut session = db.sql().open(false).unwrap();
    session
        .execute(sql, &mut |row| {
            found.push(row.values);
            Ok(())
        })
        .unwrap();
    found
}

pub fn as_of(db: &Database, moment: &Moment, table: &str) -> Vec<Vec<SqlValue>> {
    let past = db.as_of(moment).unwrap();
    let found = db.sql().rows_as_of(&past, table, None).unwrap();
    let mut rows: Vec<_> = found.rows.into_iter().map(|row| row.values).collect();
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

pub fn present(db: &Database, table: &str) -> Vec<Vec<SqlValue>> {
    let mut rows = query(db, &format!("SELECT * FROM {table}"));
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

pub fn restore_rows(
    db: &Database,
    moment: &Moment,
    table: &str,
    filter: Option<&str>,
    is_exact: bool,
) -> Result<(u64, u64, u64), Error> {
    let past = db.as_of(moment)?;
    let mut options = RestoreOptions {
        rows: vec![RestoreRows {
            table: table.into(),
            filter: filter.map(str::to_owned),
        }],
        is_exact,
        is_dry: true,
        ..RestoreOptions::default()
    };
    let planned = db.history().restore(&past, None, &options)?;
    options.is_dry = false;
    let done = db.history().restore(&past, None, &options)?;
    assert_eq!(planned, done.planned(), "a dry run tells what is done");
    let rows = &done.rows[0];
    Ok((rows.inserted_count, rows.updated_count, rows.deleted_count))
}

/// Time that passes, for what has times to the millisecond.
pub fn wait_ms(ms: u64) {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(ms);
    while std::time::Instant::now() < until {
        std::thread::yield_now();
    }
}
