//! Whether another process has the catalog open.
//!
//! SQLite itself says so: a connection to a database with a write-ahead log holds a shared lock on
//! one byte of the `-shm` file, the *attachment byte*, as long as it is open; `fcntl` locks are
//! those of a process, and who asks is told of others' only.
//!
//! To close any descriptor of a file gives up all `fcntl` locks that the process has on it,
//! SQLite's among them. So the descriptors that are asked here are closed only when the file has no
//! name any more: then its last connection in the world has closed.

use larder_catalog::CATALOG_FILE;
use larder_segment::directory::{Access, DatabaseDir};
use rustix::fd::OwnedFd;
use rustix::fs::fstat;
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};
use std::sync::{Arc, Mutex, PoisonError};

/// `UNIX_SHM_DMS` of SQLite: behind 120 bytes of header and the eight locks.
const ATTACHMENT_BYTE: u64 = 128;

/// All that were opened and whose files have names.
static OPEN: Mutex<Vec<Arc<OwnedFd>>> = Mutex::new(Vec::new());

/// The shared memory of a catalog, to be asked who else is there.
pub(crate) struct Attachments {
    file: Arc<OwnedFd>,
}

impl Attachments {
    /// Of the catalog in `database`, which this process has open.
    pub fn open(database: &DatabaseDir) -> std::io::Result<Attachments> {
        let name = format!("{CATALOG_FILE}-shm");
        let named = (database.identity_of(&name)?).ok_or(std::io::ErrorKind::NotFound)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // One that this process holds elsewhere too is only forgotten here.
        open.retain(|file| fstat(&**file).map_or(true, |found| found.st_nlink > 0));
        let is_it = |file: &&Arc<OwnedFd>| {
            fstat(&***file).is_ok_and(|found| (found.st_dev, found.st_ino) == named)
        };
        if let Some(file) = open.iter().find(is_it) {
            let file = Arc::clone(file);
            return Ok(Attachments { file });
        }
        let file = Arc::new(OwnedFd::from(database.open_file(&name, Access::ReadWrite)?));
        open.push(Arc::clone(&file));
        Ok(Attachments { file })
    }

    /// Whether a connection of another process is open now. 1 µs. What cannot be found out counts
    /// as one.
    pub fn has_others(&self) -> bool {
        let wanted = Flock {
            start: ATTACHMENT_BYTE,
            length: 1,
            offset_type: FlockOffsetType::Set,
            ..Flock::from(FlockType::WriteLock)
        };
        !matches!(fcntl_getlk(&*self.file, &wanted), Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn an_idle_shell_of_another_process_is_seen_and_connections_of_this_one_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = crate::EngineOptions::default();
        let init = crate::InitOptions {
            capacity_bytes: None,
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        crate::Engine::create(&path, &init, &options).unwrap();
        let host = crate::Engine::open(&path, "host", &options).unwrap();
        let catalog = path.join(larder_catalog::CATALOG_FILE);
        let database = DatabaseDir::open(&path).unwrap();
        let attachments = Attachments::open(&database).unwrap();
        let beside = crate::Engine::open(&path, "beside", &options).unwrap();
        assert!(!attachments.has_others());
        let mut shell = Command::new("sqlite3")
            .arg(&catalog)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        writeln!(input, "SELECT count(*) FROM larder_store;").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "1");
        assert!(attachments.has_others(), "FLUSH-2");
        drop(input);
        shell.wait().unwrap();
        assert!(!attachments.has_others());
        // Asking again, and letting go, takes no lock from SQLite.
        drop(Attachments::open(&database).unwrap());
        drop(attachments);
        let mut shm = catalog.into_os_string();
        shm.push("-shm");
        let inode = std::fs::metadata(std::path::Path::new(&shm)).unwrap().ino();
        let held = format!(":{inode} {ATTACHMENT_BYTE} {ATTACHMENT_BYTE}");
        // In one read: between two, locks of others come and go, and one of these is passed over.
        let mut locks = vec![0; 1 << 20];
        let mut file = std::fs::File::open("/proc/locks").unwrap();
        let length = file.read(&mut locks).unwrap();
        let locks = String::from_utf8_lossy(&locks[..length]);
        assert!(locks.contains(&held), "{held}: {locks}");
        beside.close().unwrap();
        host.close().unwrap();
    }
}
