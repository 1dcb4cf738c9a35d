//! SQLite on the mount: writers in several processes, in WAL and rollback modes, through kill -9.
//!
//! Each writer is an unmodified `sqlite3` that inserts numbered rows and counts them in a shared
//! row, one transaction each, and says so when a transaction has ended. After the kill, the
//! database must be sound, each writer's rows must be numbered without a gap, at least as many as
//! it said, and the shared count must be their number.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::judge::Cases;
use super::run::{self, Started};
use super::site::Site;
use xtask::Tally;

const PATIENCE: Duration = Duration::from_secs(120);
const WRITERS: usize = 4;
/// More than a writer gets done.
const TRANSACTIONS: usize = 60_000;

/// Kills in each journal mode.
pub fn run(site: &Site) -> Result<Tally, String> {
    let (modes, rounds, delay_ms) = site.length.choose(
        (&["wal", "delete"][..], 1, 1000),
        (&["wal", "delete", "truncate", "persist"][..], 3, 5000),
    );
    let mut cases = Cases::default();
    for mode in modes {
        for round in 0..rounds {
            let database = site.mountpoint().join(format!("{mode}-{round}.db"));
            let delay = Duration::from_millis(delay_ms + 137 * round);
            cases.run(
                &format!("{WRITERS} writers, {mode}, kill -9 after {delay:?}"),
                || kill_and_check(site, mode, &database, delay),
            );
        }
    }
    cases.run("clean afterwards", || site.check());
    Ok(cases.tally())
}

fn kill_and_check(site: &Site, mode: &str, database: &Path, delay: Duration) -> Result<(), String> {
    let mount = site.mount()?;
    let setup = format!(
        "PRAGMA journal_mode = {mode}; CREATE TABLE rows (writer, n, filler, PRIMARY KEY (writer, \
         n)); \
         CREATE TABLE total (n); INSERT INTO total VALUES (0)"
    );
    sqlite3(database, &setup)?;
    let writers: Vec<Started> = (0..WRITERS)
        .map(|writer| start(site, database, mode, writer))
        .collect::<Result<_, _>>()?;
    thread::sleep(delay);
    mount.kill()?;
    let mut acknowledged = Vec::new();
    for writer in writers {
        let text = writer.wait(PATIENCE)?.text;
        let acks = text.lines().filter_map(|line| line.strip_prefix("done "));
        acknowledged.push(
            acks.filter_map(|n| n.parse::<u64>().ok())
                .max()
                .unwrap_or(0),
        );
    }

    let mount = site.mount()?;
    let sound = sqlite3(database, "PRAGMA integrity_check")?;
    if sound.trim() != "ok" {
        return Err(format!("integrity_check: {sound}"));
    }
    let total: u64 = number(&sqlite3(database, "SELECT n FROM total")?)?;
    let mut counted = 0;
    for (writer, &acknowledged) in acknowledged.iter().enumerate() {
        let query =
            format!("SELECT count(*), coalesce(max(n), 0) FROM rows WHERE writer = {writer}");
        let answer = sqlite3(database, &query)?;
        let (count, last) = answer
            .trim()
            .split_once('|')
            .ok_or_else(|| format!("not two numbers: {answer}"))?;
        let (count, last): (u64, u64) = (number(count)?, number(last)?);
        if count != last || last < acknowledged {
            return Err(format!(
                "writer {writer}: {count} rows, the last is {last}, {acknowledged} were \
                 acknowledged"
            ));
        }
        counted += count;
    }
    if counted != total || acknowledged.iter().sum::<u64>() == 0 {
        return Err(format!(
            "{counted} rows, the shared count says {total}, acknowledged were {acknowledged:?}"
        ));
    }
    println!("        {counted} transactions");
    mount.unmount()
}

/// A process that writes until the mount is gone.
fn start(site: &Site, database: &Path, mode: &str, writer: usize) -> Result<Started, String> {
    let script = script(site, mode, writer)?;
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec stdbuf -oL sqlite3 -bail \"$1\" < \"$2\"", "sh"])
        .arg(database)
        .arg(script);
    Started::new(&mut command)
}

fn script(site: &Site, mode: &str, writer: usize) -> Result<PathBuf, String> {
    let path = site.scratch().join(format!("writer-{mode}-{writer}.sql"));
    if path.exists() {
        return Ok(path);
    }
    // A connection's own: only WAL is kept in the file. With FULL the name of a deleted journal may
    // come back after a failure, and undo the last transaction; that is so on every filesystem.
    let mut text =
        format!(".timeout 60000\nPRAGMA journal_mode = {mode};\nPRAGMA synchronous = EXTRA;\n");
    for n in 1..=TRANSACTIONS {
        writeln!(
            text,
            "BEGIN IMMEDIATE; INSERT INTO rows VALUES ({writer}, {n}, randomblob({})); \
             UPDATE total SET n = n + 1; COMMIT; SELECT 'done {n}';",
            50 + (n * 37) % 3000
        )
        .expect("writing to a string");
    }
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn sqlite3(database: &Path, sql: &str) -> Result<String, String> {
    let mut command = Command::new("sqlite3");
    command
        .args(["-cmd", ".timeout 10000"])
        .arg(database)
        .arg(sql);
    run::succeed(&mut command, PATIENCE)
}

fn number(text: &str) -> Result<u64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("no number: {text}"))
}
