//! What the statements of a commit cost, as SQLite plans them.

use crate::open::tests::INIT;
use crate::types::changes::{AttrMask, ChangeSet, InodeChange};
use crate::types::rows::{ContentRow, InodeRow};
use crate::{CatalogOptions, SqliteCatalog, lock};
use larder_format::{Extent, FileKind, Ino, MapPage, MapRun, Name, SegmentIndex, StoreId};
use rusqlite::{Connection, ffi};
use std::ffi::CStr;

/// The statements that a connection keeps.
fn statements(connection: &Connection) -> Vec<String> {
    let mut found = Vec::new();
    let mut statement = std::ptr::null_mut();
    loop {
        // SAFETY: the connection is open, nobody else uses it, and no statement ends meanwhile.
        let text = unsafe {
            statement = ffi::sqlite3_next_stmt(connection.handle(), statement);
            if statement.is_null() {
                return found;
            }
            CStr::from_ptr(ffi::sqlite3_sql(statement))
        };
        found.push(text.to_str().unwrap().to_owned());
    }
}

fn row(ino: u64) -> InodeRow {
    InodeRow {
        ino: Ino(ino),
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        nlink: 1,
        size_bytes: 4096,
        block_count: 1,
        atime_ns: 1,
        mtime_ns: 1,
        ctime_ns: 1,
        btime_ns: 1,
        rdev: 0,
    }
}

#[test]
fn statements_for_new_and_changed_files_make_no_tables_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap();
    let name = |text: &str| Name::new(text.as_bytes()).unwrap();
    let (block, other) = (
        Extent::new(SegmentIndex(0), 8, 1),
        Extent::new(SegmentIndex(0), 9, 1),
    );
    let page = |extent| {
        let mut page = MapPage::default();
        page.insert(MapRun {
            logical_block: 0,
            extent,
            checksums: vec![1],
        });
        Some(page.encode())
    };
    let new = ChangeSet {
        inodes: vec![
            (StoreId::MAIN, InodeChange::Insert(row(2))),
            (StoreId::MAIN, InodeChange::Insert(row(3))),
        ],
        dirents: vec![
            (StoreId::MAIN, Ino::ROOT, name("a"), Some(Ino(2))),
            (StoreId::MAIN, Ino::ROOT, name("b"), Some(Ino(3))),
        ],
        contents: vec![(StoreId::MAIN, Ino(3), Some(ContentRow::Inline(vec![7; 9])))],
        map_pages: vec![(StoreId::MAIN, Ino(2), 0, page(block))],
        allocated: vec![(block, StoreId::MAIN, Ino(2))],
        xattrs: vec![(
            StoreId::MAIN,
            Ino(2),
            b"user.a".to_vec(),
            Some(b"1".to_vec()),
        )],
        ..ChangeSet::default()
    };
    let mask = AttrMask {
        size: true,
        mtime: true,
        ctime: true,
        ..AttrMask::default()
    };
    let changed = ChangeSet {
        inodes: vec![(StoreId::MAIN, InodeChange::Update(row(2), mask))],
        dirents: vec![
            (StoreId::MAIN, Ino::ROOT, name("a"), None),
            (StoreId::MAIN, Ino::ROOT, name("c"), Some(Ino(2))),
            (StoreId::MAIN, Ino::ROOT, name("b"), Some(Ino(3))),
        ],
        map_pages: vec![(StoreId::MAIN, Ino(2), 0, page(other))],
        allocated: vec![(other, StoreId::MAIN, Ino(2))],
        ..ChangeSet::default()
    };
    for changes in [new, changed] {
        catalog.commit(&changes).unwrap();
    }
    let writer = lock(&catalog.writer);
    let mut looked_at = 0;
    for text in statements(&writer.connection) {
        if !["INSERT", "UPDATE", "DELETE"]
            .iter()
            .any(|verb| text.starts_with(verb))
        {
            continue;
        }
        looked_at += 1;
        let mut explain = writer
            .connection
            .prepare(&format!("EXPLAIN {text}"))
            .unwrap();
        let mut steps = explain.raw_query();
        while let Some(step) = steps.next().unwrap() {
            let code: String = step.get(1).unwrap();
            let is_table = ["OpenEphemeral", "OpenAutoindex", "SorterOpen"].contains(&&*code);
            assert!(!is_table, "{code}: {text}");
        }
    }
    assert!(looked_at >= 10, "{looked_at}");
}
