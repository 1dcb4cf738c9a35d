//! What the first open and the close of a database cost in a process:
//! `cargo run --release -p larder --example open_cost [DIR]`.
//!
//! Starts itself again and again, since what a process finds out it keeps, and prints the times of
//! a small database, µs.

use larder::{CreateOptions, Database, DatabaseOptions};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const PROCESSES: usize = 51;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    if let (Some("one"), Some(path)) = (first.as_deref().and_then(|s| s.to_str()), arguments.next())
    {
        return one(path.as_ref());
    }
    let place = first.map_or_else(std::env::temp_dir, Into::into);
    let dir = place.join(format!("larder-open-cost-{}", std::process::id()));
    Database::create(&dir, &CreateOptions::default())?;
    let measured = measure(&dir);
    std::fs::remove_dir_all(&dir)?;
    measured
}

/// Prints the times of the first open, its close, and both again in the same process.
fn one(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut start = Instant::now();
    let mut step = || {
        let micros = start.elapsed().as_micros();
        start = Instant::now();
        print!("{micros} ");
    };
    for _ in 0..2 {
        let database = Database::open(path, DatabaseOptions::default())?;
        step();
        database.close()?;
        step();
    }
    Ok(())
}

fn measure(dir: &Path) -> Result<(), Box<dyn Error>> {
    let database = Database::open(dir, DatabaseOptions::default())?;
    database.files().write(b"/a", b"some bytes")?;
    database.close()?;
    let mut columns: [Vec<u64>; 4] = Default::default();
    for _ in 0..PROCESSES {
        let run = Command::new(std::env::current_exe()?)
            .arg("one")
            .arg(dir)
            .output()?;
        let told = String::from_utf8(run.stdout)?;
        for (column, micros) in columns.iter_mut().zip(told.split_whitespace()) {
            column.push(micros.parse()?);
        }
    }
    for (column, name) in columns
        .iter_mut()
        .zip(["first open", "close", "next open", "close"])
    {
        column.sort_unstable();
        let median = column
            .get(column.len() / 2)
            .ok_or("no process ended well")?;
        println!("{name}: median {median} µs, best {} µs", column[0]);
    }
    Ok(())
}
