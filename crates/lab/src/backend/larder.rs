//! Larder: by its API, and by a mount.

use crate::backend::directory::Directory;
use crate::backend::place::{Place, free_bytes};
use crate::backend::spec::Spec;
use crate::backend::{Backend, Put};
use crate::error::{Error, Result, Said};
use crate::measure::holes::{self, Histogram};
use crate::measure::layout::Layout;
use crate::process::{self, Server};
use larder::format::limits::BLOCK_BYTES;
use larder::{
    AlignedBuf, Caller, CreateOptions, Database, DatabaseOptions, Name, NodeId, RenameMode, Tuning,
};
use rustix::process::Signal;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const OWNER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// How far apart segments are in the addresses of a layout, bytes: farther than a segment is long.
const SEGMENT_STRIDE_BYTES: u64 = 1 << 50;

/// A database by its API.
pub struct Larder {
    path: PathBuf,
    /// `None` while it is closed.
    database: Option<Database>,
}

impl Larder {
    /// A new database; without a capacity it may take what the volume has.
    pub fn create(place: &Place, capacity_bytes: Option<u64>, tuning: &Tuning) -> Result<Larder> {
        let path = create_database(place, capacity_bytes, tuning)?;
        let mut larder = Larder {
            path,
            database: None,
        };
        larder.open()?;
        Ok(larder)
    }

    fn database(&self) -> Result<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| Error::failed("the Larder database is closed"))
    }
}

/// What was replaced is not kept: the others do not keep it either.
fn create_database(place: &Place, capacity_bytes: Option<u64>, tuning: &Tuning) -> Result<PathBuf> {
    let path = place.data.join("lab.larder");
    let options = CreateOptions {
        capacity_bytes,
        retention_ns: Some(0),
        ..CreateOptions::default()
    };
    Database::create(&path, &options).said(|| "creating the Larder database".to_owned())?;
    if *tuning != Tuning::default() {
        let database = Database::open(&path, DatabaseOptions::default())?;
        database.maintenance().set_tuning(tuning)?;
        database.close()?;
    }
    Ok(path)
}

fn path_of(key: u64) -> String {
    format!("/{key:08}")
}

fn name_of(text: &str) -> Result<Name> {
    Name::new(text.as_bytes()).map_err(|error| Error::failed(format!("'{text}': {error}")))
}

impl Backend for Larder {
    /// With a known length in one call, else in parts to another name, which then takes the
    /// object's.
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()> {
        let database = self.database()?;
        if how.is_size_known {
            database.files().write(path_of(key).as_bytes(), content)?;
            return Ok(database.sync()?);
        }
        let name = name_of(&path_of(key)[1..])?;
        let young = name_of(&format!("{key:08}.new"))?;
        let written = if how.is_replacing { &young } else { &name };
        let root = NodeId::ROOT;
        let write = || -> Result<()> {
            let (_, handle) = database
                .nodes()
                .create_file(root, written, 0o644, OWNER, true)?;
            let mut at = 0;
            for part in content.chunks(how.request_bytes.max(1)) {
                handle.write_at(at, part)?;
                at += part.len() as u64;
            }
            Ok(())
        };
        if let Err(error) = write() {
            database.nodes().unlink(root, written)?;
            return Err(error);
        }
        if how.is_replacing {
            database
                .nodes()
                .rename(root, &young, root, &name, RenameMode::Replace)?;
        }
        Ok(database.sync()?)
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        Ok(self
            .database()?
            .files()
            .read_into(path_of(key).as_bytes(), into)?)
    }

    fn delete(&self, key: u64) -> Result<()> {
        let database = self.database()?;
        database
            .nodes()
            .unlink(NodeId::ROOT, &name_of(&path_of(key)[1..])?)?;
        Ok(database.sync()?)
    }

    fn close(&mut self) -> Result<()> {
        match self.database.take() {
            Some(database) => Ok(database.close()?),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> Result<()> {
        let options = DatabaseOptions {
            label: "lab".to_owned(),
            ..DatabaseOptions::default()
        };
        self.database = Some(Database::open(&self.path, options)?);
        Ok(())
    }

    fn available_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(
            self.database()?.maintenance().space()?.available_bytes,
        ))
    }

    fn holes(&self) -> Result<Option<Histogram>> {
        let mut histogram = Histogram::new();
        for (bytes, count) in self.database()?.maintenance().frag()?.hole_histogram {
            holes::add(&mut histogram, bytes, count);
        }
        Ok(Some(histogram))
    }

    fn layouts(&self, keys: &[u64]) -> Result<Option<(&'static str, Vec<Layout>)>> {
        let database = self.database()?;
        let mut index_of = HashMap::new();
        for (index, key) in keys.iter().enumerate() {
            let attr = database
                .nodes()
                .lookup(NodeId::ROOT, &name_of(&path_of(*key)[1..])?)?;
            index_of.insert(attr.node, index);
        }
        let mut layouts = vec![Layout::default(); keys.len()];
        database.maintenance().layouts(&mut |node, extents| {
            if let Some(index) = index_of.get(&node) {
                for extent in extents {
                    let base_bytes = u64::from(extent.segment.0) * SEGMENT_STRIDE_BYTES;
                    let offset_bytes = base_bytes + extent.start_block * BLOCK_BYTES;
                    layouts[*index].push(offset_bytes, extent.len_bytes());
                }
            }
        })?;
        Ok(Some(("own", layouts)))
    }
}

/// Files on a mount of a database.
pub struct Mounted {
    program: PathBuf,
    database: PathBuf,
    mountpoint: PathBuf,
    /// `None` while it is not mounted.
    server: Option<Server>,
    files: Directory,
}

/// A new database on a volume, mounted, with files in it.
pub fn mounted(place: &Place, program: &Path, spec: &Spec) -> Result<Mounted> {
    let database = create_database(place, None, &spec.tuning)?;
    let mountpoint = place.mounts.join("larder");
    fs::create_dir_all(&mountpoint).said(|| mountpoint.display().to_string())?;
    let server = serve(program, &database, &mountpoint)?;
    let files = Directory::create_at(&mountpoint, &place.log, spec.is_bare)?;
    Ok(Mounted {
        program: program.to_owned(),
        database,
        mountpoint,
        server: Some(server),
        files,
    })
}

fn serve(program: &Path, database: &Path, mountpoint: &Path) -> Result<Server> {
    let mut command = Command::new(program);
    command.arg("mount").args([database, mountpoint]);
    let device = || fs::metadata(mountpoint).map(|found| found.dev());
    let before = device()?;
    let mut server = Server::start(command, Signal::TERM)?;
    server.wait_until(|| Ok(device()? != before))?;
    Ok(server)
}

impl Backend for Mounted {
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()> {
        self.files.put(key, content, how)
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        self.files.get(key, into)
    }

    fn delete(&self, key: u64) -> Result<()> {
        self.files.delete(key)
    }

    /// What the mount says, not the volume below it: there, what the database has taken ahead is
    /// gone already.
    fn available_bytes(&self) -> Result<Option<u64>> {
        free_bytes(&self.mountpoint).map(Some)
    }

    fn close(&mut self) -> Result<()> {
        self.files.close()?;
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        let program = self.program.to_string_lossy();
        process::output(&program, &[OsStr::new("umount"), self.mountpoint.as_ref()])?;
        server.wait()
    }

    fn open(&mut self) -> Result<()> {
        self.server = Some(serve(&self.program, &self.database, &self.mountpoint)?);
        self.files.open()
    }
}
