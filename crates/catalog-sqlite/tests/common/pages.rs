//! Pages of extent maps, and files that share them.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use super::{MAIN, create, new_file};
use larder_catalog_sqlite::format::{Extent, Ino, MapPage, MapRun, SegmentIndex};
use larder_catalog_sqlite::{MapShare, SqliteCatalog};
use tempfile::TempDir;

/// A page of so many blocks, like no other one.
pub fn page(number: u64, blocks: u64) -> Vec<u8> {
    let mut page = MapPage::default();
    page.insert(MapRun {
        logical_block: 0,
        extent: Extent::new(SegmentIndex(0), number * 1000, blocks),
        checksums: (0..blocks).map(|at| (number * 7 + at) as u32).collect(),
    });
    page.encode()
}

/// A page of the map of `ino` is that of `from`.
pub fn share(ino: u64, page: u64, from: u64) -> MapShare {
    MapShare {
        store: MAIN,
        ino: Ino(ino),
        page,
        from_store: MAIN,
        from_ino: Ino(from),
        from_page: page,
    }
}

/// Files 2 and 3 with one page, number 1, of so many blocks.
pub fn two(blocks: u64) -> (TempDir, SqliteCatalog) {
    let (dir, catalog) = create();
    for ino in [2, 3] {
        let mut set = new_file(ino, &format!("f{ino}"));
        set.map_pages = vec![(MAIN, Ino(ino), 0, Some(page(1, blocks)))];
        if ino == 3 {
            set.map_shares.push(share(3, 0, 2));
        }
        catalog.commit(&set).unwrap();
    }
    (dir, catalog)
}
