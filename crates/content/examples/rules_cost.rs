//! What a user's rules and columns cost those who have none, and those who have them:
//! `cargo run --release -p larder --example rules_cost [DIR]`.
//!
//! Five databases take turns, in another order each round. A step puts a file of 1 KB under a name
//! of its own, or renames it over an older file, as a program does that saves; a turn ends with a
//! sync. Prints medians, µs per step, and the median of the ratios to the database without
//! anything.

use larder::{CreateOptions, Database, DatabaseOptions, RenameMode};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const FILES: usize = 400;
const ROUNDS: usize = 15;

/// Its name, and what is said to it before.
const DATABASES: [(&str, &[&str]); 5] = [
    ("nothing", &[]),
    (
        "a rule on another store",
        &["CREATE INDEX other_rule ON other (mode)", CHECK_OTHER],
    ),
    ("a rule on this store", &[CHECK_MAIN]),
    (
        "two columns",
        &[COLUMN, "ALTER TABLE main ADD COLUMN title TEXT"],
    ),
    (
        "two columns, all set",
        &[
            COLUMN,
            "ALTER TABLE main ADD COLUMN title TEXT DEFAULT 'none'",
        ],
    ),
];
const CHECK_OTHER: &str =
    "ALTER TABLE other ADD COLUMN rule INTEGER CHECK (rule IS NULL OR size < 1e9)";
const CHECK_MAIN: &str =
    "ALTER TABLE main ADD COLUMN rule INTEGER CHECK (rule IS NULL OR size < 1e9)";
const COLUMN: &str = "ALTER TABLE main ADD COLUMN rating INTEGER";

fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    let dir = place.join(format!("larder-rules-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let measured = measure(&dir);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut databases = Vec::new();
    for (index, (_, statements)) in DATABASES.iter().enumerate() {
        databases.push(open(&dir.join(index.to_string()), statements)?);
    }
    let mut puts = vec![Vec::new(); databases.len()];
    let mut saves = puts.clone();
    for round in 0..ROUNDS {
        for turn in 0..databases.len() {
            let index = (turn + round) % databases.len();
            let database = &databases[index];
            puts[index].push(micros_each(database, |file| {
                database
                    .files()
                    .write(format!("/new-{file}").as_bytes(), [7; 1000])?;
                Ok(())
            })?);
            saves[index].push(micros_each(database, |file| {
                let (from, old) = database
                    .nodes()
                    .resolve_parent(b"/x")
                    .map(|(root, _)| (root, larder::Name::new(format!("new-{file}").as_bytes())))?;
                let new = larder::Name::new(format!("file-{file}").as_bytes())?;
                Ok(database
                    .nodes()
                    .rename(from, &old?, from, &new, RenameMode::Replace)?)
            })?);
            if index == 4 {
                let mut sql = database.sql().open(false)?;
                sql.execute("UPDATE main SET rating = 3, title = 'x'", &mut |_| Ok(()))?;
            }
        }
    }
    println!("µs per step (ratio to nothing): put, save");
    for (index, (name, _)) in DATABASES.iter().enumerate() {
        let told = [&puts, &saves].map(|times| {
            let ratios = times[index].iter().zip(&times[0]);
            let ratio = median(ratios.map(|(one, bare)| one / bare).collect());
            format!("{:.1} ({ratio:.2})", median(times[index].clone()))
        });
        println!("  {name}: {}", told.join(", "));
    }
    for database in databases {
        database.close()?;
    }
    Ok(())
}

fn open(path: &Path, statements: &[&str]) -> Result<Database, Box<dyn Error>> {
    Database::create(path, &CreateOptions::default())?;
    let database = Database::open(path, DatabaseOptions::default())?;
    database.stores().create("other", "files", None, None)?;
    for statement in statements {
        database
            .sql()
            .open(false)?
            .execute(statement, &mut |_| Ok(()))?;
    }
    Ok(database)
}

/// Does each file and syncs; returns µs per file.
fn micros_each(
    database: &Database,
    mut step: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let started = Instant::now();
    (0..FILES).try_for_each(&mut step)?;
    database.sync()?;
    Ok(started.elapsed().as_secs_f64() * 1e6 / FILES as f64)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
