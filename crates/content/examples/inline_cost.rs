//! What content costs that lies in the catalog: `cargo run --release -p larder --example
//! inline_cost [DIR]`.
//!
//! Writes 20,000 files of 200 bytes in groups of 1,000, closes the database, opens it again and
//! reads them all; prints µs per file for both.

use larder::{CreateOptions, Database, DatabaseOptions};
use std::error::Error;
use std::time::Instant;

const FILES: u32 = 20_000;
const GROUP: u32 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let above = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    let path = above.join(format!("larder-inline-cost-{}", std::process::id()));
    Database::create(&path, &CreateOptions::default())?;
    let content = [7; 200];
    let began = Instant::now();
    let database = Database::open(&path, DatabaseOptions::default())?;
    for number in 0..FILES {
        database.files().write(format!("/{number}"), content)?;
        if (number + 1) % GROUP == 0 {
            database.sync()?;
        }
    }
    let written = began.elapsed();
    database.close()?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    let began = Instant::now();
    for number in 0..FILES {
        if database.files().read(format!("/{number}"))? != content {
            return Err(format!("/{number} has other bytes").into());
        }
    }
    let read = began.elapsed();
    database.close()?;
    std::fs::remove_dir_all(&path)?;
    let per_file = |time: std::time::Duration| time.as_secs_f64() * 1e6 / f64::from(FILES);
    println!("write {:.2} read {:.2}", per_file(written), per_file(read));
    Ok(())
}
