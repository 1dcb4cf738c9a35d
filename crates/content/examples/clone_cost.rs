//! What a clone of a tree costs: time, and bytes of the catalog.
//!
//! `cargo run --release -p larder --example clone_cost -- DIR [FILES] [MIB_PER_FILE]` (default:
//! 1280 files of 8 MiB, 10 GiB) makes a database in DIR, which must not exist, and clones a tree of
//! these files three times.

use larder::{CreateOptions, Database, DatabaseOptions, SqlValue};
use std::path::PathBuf;
use std::time::Instant;

const MIB: usize = 1 << 20;

type Done<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Done<()> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(
        arguments
            .next()
            .ok_or("usage: clone_cost DIR [FILES] [MIB_PER_FILE]")?,
    );
    let files: usize = arguments.next().map_or(Ok(1280), |text| text.parse())?;
    let mib: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    Database::create(&path, &CreateOptions::default())?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    database.stores().create("tree", "files", None, None)?;
    let mut bytes = vec![0; mib * MIB];
    for file in 0..files {
        for (at, word) in bytes.chunks_mut(4096).enumerate() {
            word[..8].copy_from_slice(&((file * 100_000 + at) as u64).to_le_bytes());
        }
        database
            .files()
            .write(format!("/tree/f{file}").as_bytes(), &bytes)?;
    }
    database.sync()?;
    for round in 0..3 {
        let before = (database.maintenance().space()?, catalog_bytes(&database)?);
        let began = Instant::now();
        let to = format!("/clone{round}");
        let report = database.files().clone_path(None, b"/tree", to.as_bytes())?;
        let took = began.elapsed();
        let after = (database.maintenance().space()?, catalog_bytes(&database)?);
        println!(
            "{} files, {} MiB: {} ms; content +{} bytes ({} copied), catalog +{} KiB",
            report.file_count,
            report.content_bytes >> 20,
            took.as_millis(),
            after.0.live_bytes - before.0.live_bytes,
            report.copied_bytes,
            (after.1 - before.1) >> 10
        );
    }
    let findings = database
        .maintenance()
        .check(false, &mut |_, _| {})?
        .findings;
    println!("check: {} findings", findings.len());
    Ok(database.close()?)
}

/// What is in use of it: pages that are free do not count.
fn catalog_bytes(database: &Database) -> Done<i64> {
    let mut used = 0;
    let sql = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, \
        pragma_freelist_count, \
               pragma_page_size";
    let mut session = database.sql().open(false)?;
    session.execute(sql, &mut |row| {
        if let SqlValue::Integer(bytes) = row.values[0] {
            used = bytes;
        }
        Ok(())
    })?;
    Ok(used)
}
