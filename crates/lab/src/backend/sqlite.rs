//! BLOBs in SQLite, one row each. Its write-ahead log lies beside the volume (`BACKEND-2`): the
//! database file on the volume is bound to a name on the volume of logs, where SQLite looks for the
//! log.

use crate::backend::place::Place;
use crate::backend::spec::{Spec, Where};
use crate::backend::{Backend, Put};
use crate::error::{Error, Result, Said};
use crate::measure::markers::Pages;
use crate::volume;
use larder::AlignedBuf;
use rusqlite::Connection;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a writer waits for another.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connections to one database, as many as there are threads at work.
pub struct Pool {
    path: PathBuf,
    page_bytes: Option<u32>,
    is_rollback: bool,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// Makes or opens the database `path`.
    pub fn new(path: PathBuf, page_bytes: Option<u32>, is_rollback: bool) -> Result<Pool> {
        let pool = Pool {
            path,
            page_bytes,
            is_rollback,
            idle: Mutex::default(),
        };
        pool.with(|_| Ok(()))?;
        Ok(pool)
    }

    /// Lends a connection.
    pub fn with<T>(&self, work: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let done = work(&mut connection).said(|| format!("SQLite on '{}'", self.path.display()));
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
        done
    }

    /// Closes all connections; the last one empties the log.
    pub fn close(&mut self) -> Result<()> {
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        for connection in idle {
            connection
                .close()
                .map_err(|(_, error)| Error::from(error))?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<Connection> {
        let connect = || {
            let connection = Connection::open(&self.path)?;
            connection.busy_timeout(PATIENCE)?;
            if let Some(bytes) = self.page_bytes {
                connection.pragma_update(None, "page_size", bytes)?;
            }
            let journal = if self.is_rollback { "delete" } else { "wal" };
            connection.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |row| {
                row.get::<_, String>(0)
            })?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            Ok::<_, rusqlite::Error>(connection)
        };
        connect().said(|| format!("SQLite on '{}'", self.path.display()))
    }
}

/// BLOBs in SQLite.
pub struct Sqlite {
    /// On the volume.
    file: PathBuf,
    /// The name under which SQLite knows it, if it is another one.
    bound: Option<PathBuf>,
    page_bytes: Option<u32>,
    is_rollback: bool,
    /// `None` while it is closed.
    pool: Option<Pool>,
}

impl Sqlite {
    /// A new database.
    pub fn create(place: &Place, spec: &Spec) -> Result<Sqlite> {
        let file = place.data.join("objects.db");
        let bound = matches!(spec.place, Where::Volume(_)).then(|| place.log.join("objects.db"));
        for path in [Some(&file), bound.as_ref()].into_iter().flatten() {
            File::create(path).said(|| path.display().to_string())?;
        }
        let mut sqlite = Sqlite {
            file,
            bound,
            page_bytes: spec.page_bytes,
            is_rollback: spec.is_rollback,
            pool: None,
        };
        sqlite.open()?;
        sqlite.pool()?.with(|connection| {
            connection.execute_batch(
                "CREATE TABLE object (key INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, content \
                 BLOB NOT NULL)",
            )?;
            Ok(())
        })?;
        Ok(sqlite)
    }

    fn pool(&self) -> Result<&Pool> {
        self.pool
            .as_ref()
            .ok_or_else(|| Error::failed("the SQLite database is closed"))
    }

    fn path(&self) -> &Path {
        self.bound.as_deref().unwrap_or(&self.file)
    }
}

impl Backend for Sqlite {
    /// The whole value in one statement: SQLite's interface takes no parts of a value whose length
    /// it does not know.
    fn put(&self, key: u64, content: &[u8], _how: &Put) -> Result<()> {
        self.pool()?.with(|connection| {
            let mut statement = connection.prepare_cached(
                "INSERT INTO object (key, bytes, content) VALUES (?1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET bytes = excluded.bytes, content = \
                 excluded.content",
            )?;
            statement.execute((key as i64, content.len() as i64, content))?;
            Ok(())
        })
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        self.pool()?.with(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT content FROM object WHERE key = ?1")?;
            let mut rows = statement.query([key as i64])?;
            let row = rows
                .next()?
                .ok_or_else(|| Error::lost(format!("there is no row {key}")))?;
            let content = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            into.resize(0, 0);
            into.extend_from_slice(content);
            Ok(())
        })
    }

    fn delete(&self, key: u64) -> Result<()> {
        self.pool()?.with(|connection| {
            connection
                .prepare_cached("DELETE FROM object WHERE key = ?1")?
                .execute([key as i64])?;
            Ok(())
        })
    }

    fn close(&mut self) -> Result<()> {
        if let Some(mut pool) = self.pool.take() {
            pool.close()?;
        }
        match &self.bound {
            Some(bound) => volume::unmount(bound),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> Result<()> {
        if let Some(bound) = &self.bound {
            rustix::mount::mount_bind(&self.file, bound).said(|| bound.display().to_string())?;
        }
        self.pool = Some(Pool::new(
            self.path().to_owned(),
            self.page_bytes,
            self.is_rollback,
        )?);
        Ok(())
    }

    /// An overflow page of SQLite begins with the number of the next one.
    fn pages(&self) -> Pages {
        let bytes = u64::from(self.page_bytes.unwrap_or(4096));
        Pages {
            back_bytes: bytes,
            ahead_bytes: bytes,
        }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        if self.pool.is_some()
            && let Err(error) = self.close()
        {
            tracing::warn!("{error}");
        }
    }
}
