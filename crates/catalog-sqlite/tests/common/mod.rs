//! What the suites share: a database in a scratch directory, and short forms of rows.
#![allow(dead_code)] // Each suite uses its part.

pub mod pages;

use larder_catalog_sqlite::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use larder_catalog_sqlite::{
    CatalogOptions, ChangeSet, DatabaseInit, InodeChange, InodeRow, SqliteCatalog,
};
use std::path::Path;
use tempfile::TempDir;

pub const MAIN: StoreId = StoreId::MAIN;

pub fn init() -> DatabaseInit {
    DatabaseInit {
        database_id: *b"0123456789abcdef",
        capacity_bytes: 1 << 30,
        retention_ns: 3_600_000_000_000,
        now_ns: 1_000,
        root_mode: 0o755,
        root_uid: 1,
        root_gid: 2,
    }
}

pub fn create() -> (TempDir, SqliteCatalog) {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init()).unwrap();
    (dir, catalog)
}

pub fn open(dir: &Path) -> SqliteCatalog {
    SqliteCatalog::open(dir, &CatalogOptions::default()).unwrap()
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

/// Blocks that any commit has retired, and none reclaimed.
pub fn retired_blocks(catalog: &SqliteCatalog) -> u64 {
    catalog
        .space()
        .retired_blocks(CommitSeq(u64::MAX >> 1))
        .unwrap()
}

/// A connection such as any program would open, without settings of ours.
pub fn plain(dir: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.join(larder_catalog_sqlite::CATALOG_FILE)).unwrap()
}

/// xorshift64*
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}
