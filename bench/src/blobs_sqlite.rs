//! SQLite with content in rows: the bundled library, WAL, `synchronous = FULL`.

use larder::AlignedBuf;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::blob_store::BlobStore;
use super::content;
use xtask::Outcome;

/// SQLite's own measurements favour pages of 8 and 16 KiB for blobs
/// (sqlite.org/intern-v-extern-blob.html).
const PAGE_BYTES: u32 = 16_384;
const CACHE_KIB: u32 = 256 << 10;

/// A database file.
pub struct Sqlite {
    path: PathBuf,
    connection: Connection,
}

impl Sqlite {
    /// Makes the database.
    pub fn create(directory: &Path) -> Result<Sqlite, String> {
        let path = directory.join("blobs.sqlite");
        let connection = open(&path).map_err(explain)?;
        Ok(Sqlite { path, connection })
    }

    fn insert(
        &self,
        place: &str,
        ids: std::ops::Range<u64>,
        content: &mut [u8],
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.unchecked_transaction()?;
        let mut insert = self
            .connection
            .prepare_cached(&format!("INSERT INTO {place}(id, content) VALUES (?1, ?2)"))?;
        for id in ids {
            content::stamp(content, id, 0);
            insert.execute(params![id as i64, &*content])?;
        }
        transaction.commit()
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         PRAGMA cache_size = -{CACHE_KIB}; PRAGMA mmap_size = 4294967296; PRAGMA \
         wal_autocheckpoint = 4000;"
    ))?;
    Ok(connection)
}

fn explain(error: rusqlite::Error) -> String {
    format!("SQLite: {error}")
}

impl BlobStore for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn make(&mut self, place: &str) -> Outcome {
        self.connection
            .execute_batch(&format!(
                "CREATE TABLE {place}(id INTEGER PRIMARY KEY, content BLOB NOT NULL)"
            ))
            .map_err(explain)
    }

    fn put(&mut self, place: &str, ids: std::ops::Range<u64>, content: &mut [u8]) -> Outcome {
        self.insert(place, ids, content).map_err(explain)
    }

    fn get(&mut self, place: &str, id: u64, buffer: &mut AlignedBuf) -> Result<usize, String> {
        self.connection
            .prepare_cached(&format!("SELECT content FROM {place} WHERE id = ?1"))
            .and_then(|mut find| {
                find.query_row([id as i64], |row| {
                    let content = row.get_ref(0)?.as_blob()?;
                    buffer.resize(buffer.len().max(content.len()), 0);
                    buffer[..content.len()].copy_from_slice(content);
                    Ok(content.len())
                })
            })
            .map_err(explain)
    }

    fn settle(&mut self) -> Outcome {
        self.connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .map_err(explain)
    }

    fn remove(&mut self, place: &str) -> Outcome {
        self.connection
            .execute_batch(&format!("DROP TABLE {place}"))
            .map_err(explain)?;
        self.settle()
    }

    fn forget(&mut self) -> Outcome {
        self.connection = open(&self.path).map_err(explain)?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome {
        let Sqlite { path, connection } = *self;
        connection.close().map_err(|(_, error)| explain(error))?;
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))
    }
}
