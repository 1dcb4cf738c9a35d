//! Files by safe write, and a row in SQLite for each: the papers' file store. On any filesystem.

use crate::backend::place::Place;
use crate::backend::spec::Spec;
use crate::backend::sqlite::Pool;
use crate::backend::{Backend, Put};
use crate::error::{Error, Kind, Result, Said};
use crate::measure::fiemap;
use crate::measure::layout::Layout;
use larder::AlignedBuf;
use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// A directory of files.
pub struct Directory {
    objects: PathBuf,
    rows: Option<Pool>,
}

impl Directory {
    /// A new store.
    pub fn create(place: &Place, spec: &Spec) -> Result<Directory> {
        Directory::create_at(&place.data, &place.log, spec.is_bare)
    }

    /// A new store of files below `data`, with its rows, if it has some, in `log`.
    pub fn create_at(data: &Path, log: &Path, is_bare: bool) -> Result<Directory> {
        let objects = data.join("objects");
        fs::create_dir(&objects).said(|| objects.display().to_string())?;
        let rows = match is_bare {
            true => None,
            false => {
                let rows = Pool::new(log.join("rows.db"), None, false)?;
                rows.with(|connection| {
                    connection.execute_batch(
                        "CREATE TABLE object (key INTEGER PRIMARY KEY, path TEXT NOT NULL, bytes \
                         INTEGER NOT NULL)",
                    )?;
                    Ok(())
                })?;
                Some(rows)
            }
        };
        Ok(Directory { objects, rows })
    }

    fn path(&self, key: u64) -> PathBuf {
        self.objects.join(format!("{key:08}"))
    }

    fn write(&self, path: &Path, content: &[u8], how: &Put) -> Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        if how.is_size_known && !content.is_empty() {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, content.len() as u64) {
                // A filesystem without it cannot be told.
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                other => other?,
            }
        }
        for part in content.chunks(how.request_bytes.max(1)) {
            file.write_all(part)?;
        }
        file.sync_all()?;
        Ok(())
    }

    fn sync_names(&self) -> Result<()> {
        Ok(File::open(&self.objects)?.sync_all()?)
    }
}

impl Backend for Directory {
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()> {
        let path = self.path(key);
        let put = || {
            if !how.is_replacing {
                self.write(&path, content, how)?;
                return self.sync_names();
            }
            let young = path.with_extension("new");
            if let Err(error) = self.write(&young, content, how) {
                if error.kind == Kind::NoSpace {
                    fs::remove_file(&young)?;
                }
                return Err(error);
            }
            fs::rename(&young, &path)?;
            self.sync_names()
        };
        put().said(|| format!("writing '{}'", path.display()))?;
        let Some(rows) = &self.rows else {
            return Ok(());
        };
        rows.with(|connection| {
            let mut statement = connection.prepare_cached(
                "INSERT OR REPLACE INTO object (key, path, bytes) VALUES (?1, ?2, ?3)",
            )?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            statement.execute((key as i64, name, content.len() as i64))?;
            Ok(())
        })
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        let path = match &self.rows {
            None => self.path(key),
            Some(rows) => {
                let name: String = rows.with(|connection| {
                    let mut statement =
                        connection.prepare_cached("SELECT path FROM object WHERE key = ?1")?;
                    Ok(statement.query_row([key as i64], |row| row.get(0))?)
                })?;
                self.objects.join(name)
            }
        };
        let mut get = || {
            let mut file = File::open(&path)?;
            let len = file.metadata()?.len() as usize;
            if !into.try_resize(len) {
                return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory));
            }
            file.read_exact(into)
        };
        get().map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::UnexpectedEof => Kind::Lost,
                _ => Kind::Failed,
            };
            Error::new(kind, format!("reading '{}': {error}", path.display()))
        })
    }

    fn delete(&self, key: u64) -> Result<()> {
        if let Some(rows) = &self.rows {
            rows.with(|connection| {
                let mut statement =
                    connection.prepare_cached("DELETE FROM object WHERE key = ?1")?;
                statement.execute([key as i64])?;
                Ok(())
            })?;
        }
        let path = self.path(key);
        fs::remove_file(&path).said(|| format!("removing '{}'", path.display()))?;
        self.sync_names()
    }

    fn close(&mut self) -> Result<()> {
        match &mut self.rows {
            Some(rows) => rows.close(),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> Result<()> {
        Ok(())
    }

    fn layouts(&self, keys: &[u64]) -> Result<Option<(&'static str, Vec<Layout>)>> {
        let mut layouts = Vec::with_capacity(keys.len());
        for key in keys {
            match fiemap::layout(&self.path(*key))? {
                Some(layout) => layouts.push(layout),
                None => return Ok(None),
            }
        }
        Ok(Some(("fiemap", layouts)))
    }
}
