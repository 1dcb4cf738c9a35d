//! Catalogs of every kind, and short forms of rows.

use larder_catalog::format::{FileKind, Ino, Name, StoreId};
use larder_catalog::{Catalog, CatalogOptions, ChangeSet, DatabaseInit, InodeChange, InodeRow};
use larder_directory::DatabaseDir;
use tempfile::TempDir;

pub const MAIN: StoreId = StoreId::MAIN;

/// Where a catalog lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Memory,
}

pub const KINDS: [Kind; 2] = [Kind::Sqlite, Kind::Memory];

/// A database of a kind, with an empty catalog.
pub struct Place {
    kind: Kind,
    directory: TempDir,
}

impl Place {
    /// The history of what it commits is kept so long, nanoseconds.
    pub fn create(kind: Kind, retention_ns: i64) -> (Place, Catalog) {
        let directory = tempfile::tempdir().unwrap();
        let init = init(retention_ns);
        let catalog = match kind {
            Kind::Memory => Catalog::create_in_memory(&init),
            Kind::Sqlite => {
                let directory = DatabaseDir::open(directory.path()).unwrap();
                Catalog::create_in(&directory, &CatalogOptions::default(), &init).unwrap()
            }
        };
        (Place { kind, directory }, catalog)
    }

    /// The same catalog after its process has ended; what is in memory never ends.
    pub fn reopen(&self, catalog: Catalog) -> Catalog {
        match self.kind {
            Kind::Memory => catalog,
            Kind::Sqlite => {
                drop(catalog);
                Catalog::open(self.directory.path(), &CatalogOptions::default()).unwrap()
            }
        }
    }
}

fn init(retention_ns: i64) -> DatabaseInit {
    DatabaseInit {
        database_id: *b"0123456789abcdef",
        capacity_bytes: 1 << 30,
        retention_ns,
        now_ns: 1_000,
        root_mode: 0o755,
        root_uid: 1,
        root_gid: 2,
    }
}

pub fn name(bytes: impl AsRef<[u8]>) -> Name {
    Name::new(bytes.as_ref()).unwrap()
}

pub fn inode(ino: u64, kind: FileKind) -> InodeRow {
    InodeRow {
        ino: Ino(ino),
        kind,
        mode: 0o644,
        uid: 10,
        gid: 20,
        nlink: 1,
        size_bytes: 0,
        block_count: 0,
        atime_ns: 1,
        mtime_ns: 2,
        ctime_ns: 3,
        btime_ns: 4,
        rdev: 0,
    }
}

/// A change set that creates one file under the root.
pub fn new_file(ino: u64, file_name: &str) -> ChangeSet {
    ChangeSet {
        inodes: vec![(MAIN, InodeChange::Insert(inode(ino, FileKind::File)))],
        dirents: vec![(MAIN, Ino::ROOT, name(file_name), Some(Ino(ino)))],
        ..ChangeSet::default()
    }
}
