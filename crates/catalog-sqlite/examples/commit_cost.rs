//! What a commit costs: `cargo run --release -p larder-catalog-sqlite --example commit_cost [DIR]`.
//!
//! Commits groups of 1000 new files of one extent each (inode, entry, map page, extent row) and
//! prints the time per file: all of it, and without the sync (in a second directory on `/dev/shm`).

use larder_catalog_sqlite::format::{
    Extent, FileKind, Ino, MapPage, MapRun, Name, SegmentIndex, StoreId,
};
use larder_catalog_sqlite::{
    CatalogOptions, ChangeSet, CheckpointKind, DatabaseInit, InodeChange, InodeRow, SqliteCatalog,
};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const FILES: u64 = 1000;
const GROUPS: u64 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let disk = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    for place in [disk.as_path(), Path::new("/dev/shm")] {
        let dir = place.join(format!("larder-commit-cost-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let measured = measure(&dir);
        std::fs::remove_dir_all(&dir)?;
        measured?;
    }
    Ok(())
}

fn measure(dir: &Path) -> Result<(), Box<dyn Error>> {
    let init = DatabaseInit {
        database_id: [0; 16],
        capacity_bytes: 0,
        retention_ns: 0,
        now_ns: 0,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
    };
    let catalog = SqliteCatalog::create(dir, &CatalogOptions::default(), &init)?;
    let groups: Vec<ChangeSet> = (0..GROUPS).map(group).collect::<Result<_, _>>()?;
    let mut times = Vec::new();
    for changes in &groups {
        let start = Instant::now();
        catalog.commit(changes)?;
        times.push(start.elapsed());
        catalog.log().checkpoint(CheckpointKind::Passive)?;
    }
    times.sort_unstable();
    let micros = |at: usize| times[at].as_secs_f64() * 1e6 / FILES as f64;
    let last = times.len() - 1;
    println!(
        "{}: {FILES} files per commit, {GROUPS} commits",
        dir.display()
    );
    println!(
        "  µs per file: median {:.1}, best {:.1}, worst {:.1}",
        micros(last / 2),
        micros(0),
        micros(last)
    );

    let start = Instant::now();
    for ino in 2..=FILES * GROUPS {
        let name = Name::new(format!("file-{ino:08}").as_bytes())?;
        let found = catalog
            .tables()
            .dirent(StoreId::MAIN, Ino::ROOT, &name)?
            .ok_or("a name is missing")?;
        catalog
            .tables()
            .inode(StoreId::MAIN, found)?
            .ok_or("an inode is missing")?;
    }
    println!(
        "  µs per lookup and inode: {:.1}",
        start.elapsed().as_secs_f64() * 1e6 / (FILES * GROUPS) as f64
    );
    let one = ChangeSet {
        retired_bytes: 1,
        ..ChangeSet::default()
    };
    let start = Instant::now();
    for _ in 0..100 {
        catalog.commit(&one)?;
    }
    println!(
        "  µs per almost empty commit: {:.1}",
        start.elapsed().as_secs_f64() * 1e6 / 100.0
    );
    Ok(())
}

fn group(index: u64) -> Result<ChangeSet, Box<dyn Error>> {
    let mut changes = ChangeSet::default();
    for at in 0..FILES {
        let ino = 2 + index * FILES + at;
        let row = InodeRow {
            ino: Ino(ino),
            kind: FileKind::File,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            nlink: 1,
            size_bytes: 10_000,
            block_count: 3,
            atime_ns: 1_790_000_000_000_000_000,
            mtime_ns: 1_790_000_000_000_000_000,
            ctime_ns: 1_790_000_000_000_000_000,
            btime_ns: 1_790_000_000_000_000_000,
            rdev: 0,
        };
        changes
            .inodes
            .push((StoreId::MAIN, InodeChange::Insert(row)));
        let name = Name::new(format!("file-{ino:08}").as_bytes())?;
        changes
            .dirents
            .push((StoreId::MAIN, Ino::ROOT, name, Some(Ino(ino))));
        let extent = Extent::new(SegmentIndex(0), ino * 4, 3);
        let mut page = MapPage::default();
        page.insert(MapRun {
            logical_block: 0,
            extent,
            checksums: vec![1, 2, 3],
        });
        changes
            .map_pages
            .push((StoreId::MAIN, Ino(ino), 0, Some(page.encode())));
        changes.allocated.push((extent, StoreId::MAIN, Ino(ino)));
    }
    Ok(changes)
}
