//! `bench txn --processes N`: so many processes count together on one database, beside one process
//! that counts alone.
//!
//! A *small transaction* reads a row and a file that hold the same number, and writes the next
//! number into both. In the end the number is that of the transactions: none failed, and no update
//! was lost. The processes wait for a line on their standard input, so that opening the database is
//! not measured.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use larder::{CreateOptions, Database, DatabaseOptions, SqlValue, Transaction, TransactionOptions};

use super::super::report::{Goal, Report, Samples};
use super::super::setting::Setting;
use xtask::{Outcome, explain};

/// The verb of `xtask` that is one of the processes.
pub const COUNT: &str = "bench-count";

const FILE: &[u8] = b"/count";
/// In lines between the processes.
const READY: &str = "ready";

/// Measures.
pub fn run(setting: &mut Setting, processes: u64) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(1);
    let each = setting.options.choose(200, 1000, 10_000);
    let mut report = Report::new(
        "txn",
        &format!(
            "{} {rounds} rounds; {processes} processes × {each} transactions that read a row and \
             a file of one database \
             and write both, durable each; before and after them one process alone.",
            setting.machine()?
        ),
    );
    let (mut alone, mut together, mut ratios) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..rounds {
        let before = rate(setting, 1, each)?;
        let shared = rate(setting, processes, each)?;
        let after = rate(setting, 1, each)?;
        alone.0.extend([before, after]);
        together.0.push(shared);
        ratios.0.push(2.0 * shared / (before + after));
    }
    report.note(&format!(
        "Transactions/s of one process: {}; of {processes} in all: {}. No error, no lost update.",
        alone.text(0),
        together.text(0)
    ));
    let what = format!("throughput of {processes} processes, to that of one");
    report.verdict(&what, ratios, Goal::AtLeast(0.8));
    Ok(report)
}

/// Transactions per second of all processes on a new database.
fn rate(setting: &Setting, processes: u64, each: u64) -> Result<f64, String> {
    let place = setting.directory()?;
    let path = place.path().join("count.larder");
    found(&path)?;
    let mut running = (0..processes)
        .map(|_| Counter::start(&path, each))
        .collect::<Result<Vec<_>, _>>()?;
    for counter in &mut running {
        counter.expect_ready()?;
    }
    let started = Instant::now();
    for counter in &mut running {
        counter.go()?;
    }
    for counter in &mut running {
        counter.finish()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let database = Database::open(&path, DatabaseOptions::default()).map_err(explain)?;
    let txn = database.transactions().begin().map_err(explain)?;
    let counted = number(&txn).map_err(explain)?;
    drop(txn);
    let report = database
        .maintenance()
        .check(true, &mut |_, _| {})
        .map_err(explain)?;
    database.close().map_err(explain)?;
    if counted != processes * each || !report.findings.is_empty() {
        return Err(format!(
            "{processes} processes counted to {counted} in {} transactions; check: {:?}",
            processes * each,
            report.findings
        ));
    }
    Ok((processes * each) as f64 / seconds)
}

fn found(path: &Path) -> Outcome {
    Database::create(path, &CreateOptions::default()).map_err(explain)?;
    let database = Database::open(path, DatabaseOptions::default()).map_err(explain)?;
    let made = database.transactions().run(|txn| {
        txn.sql("CREATE TABLE state (n INTEGER)", &[])?;
        txn.sql("INSERT INTO state VALUES (0)", &[])?;
        txn.files().write(FILE, b"0").map(drop)
    });
    made.map_err(explain)?;
    database.close().map_err(explain)
}

/// What row and file say.
fn number(txn: &Transaction) -> larder::Result<u64> {
    let rows = txn.sql("SELECT n FROM state", &[])?.rows;
    let bytes = txn.files().read(FILE)?;
    let file = std::str::from_utf8(&bytes).ok();
    let file = file.and_then(|text| text.parse::<u64>().ok());
    match (rows.first().and_then(|row| row.values.first()), file) {
        (Some(&SqlValue::Integer(row)), Some(file)) if row as u64 == file => Ok(file),
        (row, file) => Err(larder::Error::new(
            larder::ErrorKind::Corrupt,
            format!("the row says {row:?} and the file {file:?}"),
        )),
    }
}

/// The part of one process: `DATABASE COUNT`.
pub fn count(database: &str, count: &str) -> Outcome {
    let count: u64 = count
        .parse()
        .map_err(|_| format!("'{count}' is not a number"))?;
    let database =
        Database::open(Path::new(database), DatabaseOptions::default()).map_err(explain)?;
    println!("{READY}");
    std::io::stdin()
        .lines()
        .next()
        .transpose()
        .map_err(explain)?;
    let options = TransactionOptions {
        is_immediate: true,
        ..TransactionOptions::default()
    };
    for _ in 0..count {
        let txn = database
            .transactions()
            .begin_with(&options)
            .map_err(explain)?;
        let next = number(&txn).map_err(explain)? + 1;
        txn.sql("UPDATE state SET n = ?1", &[SqlValue::Integer(next as i64)])
            .map_err(explain)?;
        txn.files()
            .write(FILE, next.to_string().as_bytes())
            .map_err(explain)?;
        txn.commit().map_err(explain)?;
    }
    database.close().map_err(explain)
}

/// One of the processes; killed when dropped.
struct Counter {
    process: Child,
}

impl Counter {
    fn start(database: &Path, count: u64) -> Result<Counter, String> {
        let program = std::env::current_exe().map_err(explain)?;
        let process = Command::new(program)
            .arg(COUNT)
            .arg(database)
            .arg(count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(explain)?;
        Ok(Counter { process })
    }

    fn expect_ready(&mut self) -> Outcome {
        let mut line = String::new();
        let output = self.process.stdout.as_mut().ok_or("no standard output")?;
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(explain)?;
        match line.trim() == READY {
            true => Ok(()),
            false => Err(format!(
                "a process said '{}' and not '{READY}'",
                line.trim()
            )),
        }
    }

    fn go(&mut self) -> Outcome {
        let mut input = self.process.stdin.take().ok_or("no standard input")?;
        writeln!(input, "go").map_err(explain)
    }

    fn finish(&mut self) -> Outcome {
        let status = self.process.wait().map_err(explain)?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("a process that counts ended: {status}")),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
