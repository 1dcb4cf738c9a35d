//! The log of the mounts of a database: what processes say that have no terminal.

use larder::directory::{Access, DatabaseDir};
use std::fs::File;
use std::io;

/// Its name in the directory of the database.
pub(crate) const LOG: &str = "mount.log";
const OLD_LOG: &str = "mount.log.old";
/// A longer log is put aside when the next mount begins; one old one is kept.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Opens it, to append.
pub(crate) fn open_log(database: &DatabaseDir) -> io::Result<File> {
    if database.file_bytes(LOG)? > LOG_BYTES_MAX {
        database.rename(LOG, OLD_LOG)?;
    }
    database.open_file(LOG, Access::Append)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mount.log");
        let database = DatabaseDir::open(dir.path()).unwrap();
        std::fs::write(&path, vec![b'x'; LOG_BYTES_MAX as usize]).unwrap();
        drop(open_log(&database).unwrap());
        assert_eq!(path.metadata().unwrap().len(), LOG_BYTES_MAX, "not yet");
        std::fs::write(&path, vec![b'x'; LOG_BYTES_MAX as usize + 1]).unwrap();
        drop(open_log(&database).unwrap());
        assert_eq!(path.metadata().unwrap().len(), 0);
        let old = dir.path().join("mount.log.old").metadata().unwrap();
        assert_eq!(old.len(), LOG_BYTES_MAX + 1);
    }
}
