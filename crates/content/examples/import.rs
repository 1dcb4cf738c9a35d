//! An atomic import: a folder of files and a row for each, all of it or nothing.
//!
//! `cargo run -p larder --example import -- DATABASE FOLDER`

use larder::{Database, DatabaseOptions, SqlValue};
use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(database), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: import DATABASE FOLDER".into());
    };
    let count = run(Path::new(&database), Path::new(&folder))?;
    println!("{count} files imported");
    Ok(())
}

/// Copies the files of a folder to `/imported`, with a row in table `source` that says where each
/// is from; returns how many. An error, or a crash, leaves the database as it was.
pub fn run(path: &Path, folder: &Path) -> Result<usize, Box<dyn Error>> {
    let database = Database::open(path, DatabaseOptions::default())?;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    // Long: nobody waits for it, and it sees the database as it was when it began.
    let transaction = database.transactions().begin()?;
    transaction.sql(
        "CREATE TABLE IF NOT EXISTS source (ino INTEGER, path TEXT)",
        &[],
    )?;
    for file in &files {
        let name = file.file_name().ok_or("a file without a name")?;
        let target = [b"/imported-", name.as_encoded_bytes()].concat();
        let made = transaction.files().write(&target, &fs::read(file)?)?;
        let row = [
            SqlValue::Integer(made.node.ino.0 as i64),
            SqlValue::Text(file.display().to_string()),
        ];
        transaction.sql("INSERT INTO source VALUES (?1, ?2)", &row)?;
    }
    transaction.commit()?;
    database.close()?;
    Ok(files.len())
}
