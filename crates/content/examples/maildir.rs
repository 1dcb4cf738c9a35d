//! A maildir whose index cannot drift from it: mail arrives, and is read, together with its row.
//!
//! `cargo run -p larder --example maildir -- DIR` (default: `mail.larder` in the temporary
//! directory)

use larder::{
    Caller, CreateOptions, Database, DatabaseOptions, Name, NewNode, NodeId, RenameMode, Result,
    SqlValue,
};
use std::path::Path;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let default = || std::env::temp_dir().join("mail.larder").into();
    let path = std::env::args_os().nth(1).unwrap_or_else(default);
    let (new, read) = run(Path::new(&path))?;
    println!("{new} new, {read} read");
    Ok(())
}

/// Delivers three messages and reads one; returns how many are new, and how many are read.
pub fn run(path: &Path) -> Result<(i64, i64)> {
    Database::create(path, &CreateOptions::default())?;
    let database = Database::open(path, DatabaseOptions::default())?;
    for folder in ["tmp", "new", "cur"] {
        let name = Name::new(folder.as_bytes())?;
        let owner = Caller::current();
        database
            .nodes()
            .create_node(NodeId::ROOT, &name, NewNode::Directory, 0o700, owner)?;
    }
    // `file_id` stays when the file is renamed or saved anew; the row goes with its file.
    let table = "CREATE UNIQUE INDEX main_file ON main (file_id); \
                 CREATE TABLE message (subject TEXT, \
                 file_id INTEGER REFERENCES main (file_id) ON DELETE CASCADE)";
    database
        .sql()
        .open(false)?
        .execute(table, &mut |_| Ok(()))?;

    for (name, subject) in [("1", "Hello"), ("2", "Invoice"), ("3", "Hello again")] {
        deliver(&database, name, subject)?;
    }
    read(&database, "2")?;
    database.sync()?; // A statement of its own sees what is committed.

    let count = |folder: &str| -> Result<i64> {
        let mut found = 0;
        let question = format!(
            "SELECT count(*) FROM message JOIN main USING (file_id) JOIN main_path USING (ino) \
             WHERE path GLOB '/{folder}/*'"
        );
        database.sql().open(true)?.execute(&question, &mut |row| {
            if let [SqlValue::Integer(count)] = row.values[..] {
                found = count;
            }
            Ok(())
        })?;
        Ok(found)
    };
    let counts = (count("new")?, count("cur")?);
    database.close()?;
    Ok(counts)
}

/// The message and its row: both, or neither.
fn deliver(database: &Database, name: &str, subject: &str) -> Result<()> {
    let text = format!("Subject: {subject}\n\nBody of {name}\n");
    database.transactions().run(|txn| {
        let file = txn
            .files()
            .write(format!("/new/{name}").as_bytes(), text.as_bytes())?;
        let insert = "INSERT INTO message SELECT ?1, file_id FROM main WHERE ino = ?2";
        let ino = SqlValue::Integer(file.node.ino.0 as i64);
        txn.sql(insert, &[SqlValue::Text(subject.to_owned()), ino])?;
        Ok(())
    })
}

/// Moves it to the messages that were read.
fn read(database: &Database, name: &str) -> Result<()> {
    let (from, old) = database
        .nodes()
        .resolve_parent(format!("/new/{name}").as_bytes())?;
    let seen = format!("/cur/{name}:2,S");
    let (to, new) = database.nodes().resolve_parent(seen.as_bytes())?;
    database
        .nodes()
        .rename(from, &old, to, &new, RenameMode::NoReplace)
}
