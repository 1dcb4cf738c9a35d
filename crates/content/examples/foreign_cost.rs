//! What the commits of another process cost one that reads cached files:
//! `cargo run --release -p larder --example foreign_cost [FILES]`.
//!
//! One process reads files at random, all of which it knows (their rows, names and small content);
//! another one creates 100 files per second in a directory of its own, in the commits that the
//! engine makes by itself, or durably one by one. Every foreign commit makes the reader forget what
//! it knows (`notice_foreign`). Rounds in turns.

use larder::{CreateOptions, Database, DatabaseOptions};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(4);
const PERIOD: Duration = Duration::from_millis(10);
/// How a process learns that it is the one that writes.
const WRITES: &str = "write";

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, path, directory, is_durable] = &arguments[..]
        && verb == WRITES
    {
        return write(Path::new(path), directory, is_durable == "true");
    }
    let files: u64 = arguments.first().map_or(Ok(100_000), |text| text.parse())?;
    let place = tempfile::tempdir()?;
    let path = place.path().join("foreign.larder");
    Database::create(&path, &CreateOptions::default())?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    for number in 0..files {
        if number % 1000 == 0 {
            let directory = format!("/{}", number / 1000);
            let (parent, name) = database.nodes().resolve_parent(directory.as_bytes())?;
            let kind = larder::NewNode::Directory;
            database
                .nodes()
                .create_node(parent, &name, kind, 0o755, larder::Caller::current())?;
        }
        database
            .files()
            .write(path_of(number).as_bytes(), [7; 1000])?;
    }
    database.sync()?;
    println!(
        "{files} files, reads of random ones, {ROUNDS} rounds of {} s",
        ROUND.as_secs()
    );
    println!("| beside | reads/s | median µs | 99 % µs | longest ms |");
    println!("|---|---:|---:|---:|---:|");
    for round in 0..ROUNDS {
        for beside in [None, Some(false), Some(true)] {
            let mut writer = beside
                .map(|is_durable| start(&path, round, is_durable))
                .transpose()?;
            let what = match beside {
                None => "nothing",
                Some(false) => "100 files/s",
                Some(true) => "100 files/s, durable each",
            };
            measure(&database, files, what)?;
            if let Some(writer) = &mut writer {
                writer.kill()?;
                writer.wait()?;
            }
        }
    }
    Ok(database.close()?)
}

fn path_of(number: u64) -> String {
    format!("/{}/{number}", number / 1000)
}

fn start(path: &Path, round: usize, is_durable: bool) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(WRITES)
        .arg(path)
        .arg(format!("/new-{round}-{is_durable}"))
        .arg(is_durable.to_string())
        .spawn()
}

/// Until it is killed.
fn write(path: &Path, directory: &str, is_durable: bool) -> Outcome {
    let database = Database::open(path, DatabaseOptions::default())?;
    let (parent, name) = database.nodes().resolve_parent(directory.as_bytes())?;
    let kind = larder::NewNode::Directory;
    database
        .nodes()
        .create_node(parent, &name, kind, 0o755, larder::Caller::current())?;
    let started = Instant::now();
    for number in 0_u32.. {
        database
            .files()
            .write(format!("{directory}/{number}").as_bytes(), [1; 10_000])?;
        if is_durable {
            database.sync()?;
        }
        std::thread::sleep((PERIOD * number).saturating_sub(started.elapsed()));
    }
    Ok(())
}

fn measure(database: &Database, files: u64, what: &str) -> Outcome {
    // All of them are known before.
    for number in 0..files {
        database.files().read(path_of(number).as_bytes())?;
    }
    let (mut latencies, mut state) = (Vec::new(), 88_172_645_463_325_252_u64);
    let started = Instant::now();
    while started.elapsed() < ROUND {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let path = path_of(state % files);
        let begun = Instant::now();
        database.files().read(path.as_bytes())?;
        latencies.push(begun.elapsed());
    }
    let seconds = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let us = |of: Duration| of.as_secs_f64() * 1e6;
    let at = |percent: usize| us(latencies[(latencies.len() - 1) * percent / 100]);
    println!(
        "| {what} | {:.0} | {:.1} | {:.1} | {:.1} |",
        latencies.len() as f64 / seconds,
        at(50),
        at(99),
        at(100) / 1000.0
    );
    Ok(())
}
