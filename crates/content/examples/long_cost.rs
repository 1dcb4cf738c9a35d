//! What a long transaction costs: `cargo run --release -p larder --example long_cost [FILES]`.
//! Makes a database of FILES files (default 100,000) and prints the time to begin, and to commit
//! one change.

use larder::{CreateOptions, Database, DatabaseOptions, LongTransaction, TransactionOutcome};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 100_000,
    };
    let dir = tempfile::tempdir_in(".")?;
    let path = dir.path().join("a.larder");
    Database::create(&path, &CreateOptions::default())?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    for at in 0..count {
        database
            .files()
            .write(format!("/f{at}").as_bytes(), [at as u8; 5000])?;
    }
    database.sync()?;
    println!(
        "{count} files, catalog of {} MiB",
        database.maintenance().space()?.catalog_bytes >> 20
    );
    for _ in 0..3 {
        let began = Instant::now();
        let transaction = LongTransaction::begin(&path, DatabaseOptions::default())?;
        let begun = began.elapsed();
        let view = transaction.database()?;
        for at in 0..100 {
            view.files()
                .write(format!("/f{at}").as_bytes(), [7; 9000])?;
        }
        view.sync()?;
        let began = Instant::now();
        let outcome = transaction.commit()?;
        assert_eq!(outcome, TransactionOutcome::Committed);
        println!(
            "begin {begun:.1?}, commit of 100 changed files {:.1?}",
            began.elapsed()
        );
    }
    Ok(())
}
