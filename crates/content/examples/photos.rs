//! Photos with ratings: a file and the facts about it change in one commit.
//!
//! `cargo run -p larder --example photos -- DIR` (default: `photos.larder` in the temporary
//! directory)

use larder::{CreateOptions, Database, DatabaseOptions, SqlValue};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let default = || std::env::temp_dir().join("photos.larder").into();
    let path = std::env::args_os().nth(1).unwrap_or_else(default);
    for line in run(Path::new(&path))? {
        println!("{line}");
    }
    Ok(())
}

/// Makes a database, and returns the best photos, one line each.
pub fn run(path: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    Database::create(path, &CreateOptions::default())?;
    let database = Database::open(path, DatabaseOptions::default())?;

    // A column of one's own in the table that lists the files.
    let add = "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 1 AND 5)";
    database.sql().open(false)?.execute(add, &mut |_| Ok(()))?;

    for (name, rating) in [("beach.jpg", 5), ("thumb.jpg", 1), ("hill.jpg", 4)] {
        let bytes = vec![rating as u8; 300_000];
        database.transactions().run(|txn| {
            let file = txn.files().write(format!("/{name}").as_bytes(), &bytes)?;
            let set = "UPDATE main SET rating = ?1 WHERE ino = ?2";
            let ino = SqlValue::Integer(file.node.ino.0 as i64);
            txn.sql(set, &[SqlValue::Integer(rating), ino])?;
            Ok(())
        })?;
    }

    // What the rule refuses leaves nothing: neither the file nor the rating.
    let refused = database.transactions().run(|txn| {
        txn.files().write(b"/six-stars.jpg", b"...")?;
        txn.sql("UPDATE main SET rating = 6 WHERE rating IS NULL", &[])
    });
    assert!(refused.is_err() && database.nodes().resolve(b"/six-stars.jpg", true).is_err());

    let mut best = Vec::new();
    let question = "SELECT path, size, rating FROM main JOIN main_path USING (ino) \
                    WHERE rating >= 4 ORDER BY rating DESC";
    database.sql().open(true)?.execute(question, &mut |row| {
        if let [
            SqlValue::Text(path),
            SqlValue::Integer(size),
            SqlValue::Integer(rating),
        ] = &row.values[..]
        {
            best.push(format!("{path}: {size} bytes, {rating} stars"));
        }
        Ok(())
    })?;
    database.close()?;
    Ok(best)
}
