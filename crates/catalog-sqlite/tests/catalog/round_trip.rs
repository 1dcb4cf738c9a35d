//! What a commit writes, reads give back; also after reopening.

use crate::common;

use crate::common::{MAIN, create, init, inode, name, new_file, open, retired_blocks};
use larder_catalog_sqlite::format::{CommitSeq, Extent, FileKind, Ino, SegmentIndex, StoreId};
use larder_catalog_sqlite::{
    AgRow, AttrMask, CatalogError, ChangeSet, ContentRow, InodeChange, InodeRow, RetentionHorizons,
    SCHEMA_VERSION, dirent_order,
};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(SegmentIndex(0), start, count)
}

#[test]
fn a_new_database_has_main_and_its_root() {
    let (dir, catalog) = create();
    let info = catalog.tables().info().unwrap();
    assert_eq!(info.database_id, init().database_id);
    assert_eq!(
        (info.capacity_bytes, info.retention_ns),
        (1 << 30, 3_600_000_000_000)
    );
    assert_eq!(
        (info.commit_seq, info.format_version),
        (CommitSeq(0), SCHEMA_VERSION)
    );
    let root = catalog.tables().inode(MAIN, Ino::ROOT).unwrap().unwrap();
    assert_eq!(
        (root.kind, root.mode, root.uid, root.gid),
        (FileKind::Directory, 0o755, 1, 2)
    );
    assert_eq!((root.nlink, root.btime_ns), (2, 1_000));
    assert_eq!(catalog.stores().next_ino(MAIN).unwrap(), Ino(2));
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    let plain = common::plain(dir.path());
    let pragma = |name: &str| {
        plain
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!(pragma("page_size"), 4096);
    assert_eq!(pragma("application_id"), 0x4C41_5244);
    assert_eq!(pragma("user_version"), i64::from(SCHEMA_VERSION));
}

#[test]
fn everything_of_a_file_comes_back() {
    let (dir, catalog) = create();
    let file = InodeRow {
        size_bytes: 5,
        block_count: 7,
        rdev: 0xfff_ffff,
        atime_ns: -9,
        ..inode(2, FileKind::File)
    };
    let mut changes = ChangeSet {
        inodes: vec![
            (MAIN, InodeChange::Insert(file.clone())),
            (MAIN, InodeChange::Insert(inode(3, FileKind::Symlink))),
        ],
        dirents: vec![
            (MAIN, Ino::ROOT, name("f"), Some(Ino(2))),
            (MAIN, Ino::ROOT, name(b"\xff"), Some(Ino(3))),
        ],
        contents: vec![(MAIN, Ino(3), Some(ContentRow::Target(b"f\xfe".to_vec())))],
        map_pages: vec![
            (MAIN, Ino(2), 0, Some(vec![1])),
            (MAIN, Ino(2), 1 << 40, Some(vec![2; 9000])),
        ],
        xattrs: vec![
            (MAIN, Ino(2), b"user.a".to_vec(), Some(b"1".to_vec())),
            (MAIN, Ino(2), b"user.\xf0".to_vec(), Some(vec![])),
        ],
        retired_bytes: 77,
        ..ChangeSet::default()
    };
    assert_eq!(catalog.commit(&changes).unwrap().seq, CommitSeq(1));
    drop(catalog);
    let catalog = open(dir.path());
    assert_eq!(catalog.tables().inode(MAIN, Ino(2)).unwrap(), Some(file));
    assert_eq!(catalog.tables().inode(MAIN, Ino(9)).unwrap(), None);
    assert_eq!(catalog.tables().inode(MAIN, Ino(u64::MAX)).unwrap(), None);
    assert_eq!(
        catalog
            .tables()
            .dirent(MAIN, Ino::ROOT, &name("f"))
            .unwrap(),
        Some(Ino(2))
    );
    assert_eq!(
        catalog
            .tables()
            .dirent(MAIN, Ino::ROOT, &name(b"\xff"))
            .unwrap(),
        Some(Ino(3))
    );
    assert_eq!(
        catalog.tables().parents(MAIN, Ino(3)).unwrap(),
        vec![(Ino::ROOT, name(b"\xff"))]
    );
    assert_eq!(
        catalog.tables().content(MAIN, Ino(3)).unwrap(),
        Some(ContentRow::Target(b"f\xfe".to_vec()))
    );
    assert_eq!(
        catalog.tables().map_page(MAIN, Ino(2), 1 << 40).unwrap(),
        Some(vec![2; 9000])
    );
    assert_eq!(
        catalog.tables().map_pages(MAIN, Ino(2), 1, 10).unwrap(),
        vec![(1 << 40, vec![2; 9000])]
    );
    assert_eq!(
        catalog.tables().map_pages(MAIN, Ino(2), 0, 1).unwrap(),
        vec![(0, vec![1])]
    );
    let xattrs = catalog.tables().xattrs(MAIN, Ino(2)).unwrap();
    assert_eq!(
        xattrs,
        vec![
            (b"user.a".to_vec(), b"1".to_vec()),
            (b"user.\xf0".to_vec(), vec![])
        ]
    );
    assert_eq!(catalog.tables().info().unwrap().retired_bytes_total, 77);
    let next_ino = catalog.stores().next_ino(MAIN).unwrap();
    assert!(next_ino >= Ino(4), "CATALOG-4");

    changes = ChangeSet {
        inodes: vec![
            (MAIN, InodeChange::Delete(Ino(2))),
            (MAIN, InodeChange::Delete(Ino(3))),
        ],
        dirents: vec![
            (MAIN, Ino::ROOT, name("f"), None),
            (MAIN, Ino::ROOT, name(b"\xff"), None),
        ],
        ..ChangeSet::default()
    };
    catalog.commit(&changes).unwrap();
    let left = catalog.tables().dirents(MAIN, Ino::ROOT, None, 1).unwrap();
    assert_eq!(left, []);
    assert_eq!(
        catalog.tables().map_pages(MAIN, Ino(2), 0, 10).unwrap(),
        vec![]
    );
    assert_eq!(catalog.tables().xattrs(MAIN, Ino(2)).unwrap(), vec![]);
    assert_eq!(catalog.tables().content(MAIN, Ino(3)).unwrap(), None);
    assert_eq!(
        catalog.stores().next_ino(MAIN).unwrap(),
        next_ino,
        "CATALOG-4"
    );
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
}

#[test]
fn an_update_keeps_what_is_outside_its_mask() {
    let (dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    common::plain(dir.path())
        .execute("UPDATE main SET mode = 0, uid = 99", [])
        .unwrap();
    let row = InodeRow {
        size_bytes: 3,
        block_count: 1,
        mtime_ns: 50,
        uid: 5,
        ..inode(2, FileKind::File)
    };
    let mask = AttrMask {
        size: true,
        mtime: true,
        ..AttrMask::default()
    };
    let update = |mask, row: &InodeRow| ChangeSet {
        inodes: vec![(MAIN, InodeChange::Update(row.clone(), mask))],
        ..ChangeSet::default()
    };
    catalog.commit(&update(mask, &row)).unwrap();
    let found = catalog.tables().inode(MAIN, Ino(2)).unwrap().unwrap();
    assert_eq!(
        (
            found.mode,
            found.uid,
            found.size_bytes,
            found.block_count,
            found.mtime_ns
        ),
        (0, 99, 3, 1, 50)
    );
    let all = AttrMask {
        mode: true,
        owner: true,
        nlink: true,
        size: true,
        atime: true,
        mtime: true,
        ctime: true,
        flags: true,
    };
    catalog.commit(&update(all, &row)).unwrap();
    assert_eq!(catalog.tables().inode(MAIN, Ino(2)).unwrap().unwrap(), row);
    let missing = InodeRow {
        ino: Ino(44),
        ..row
    };
    let refused = catalog.commit(&update(all, &missing)).unwrap_err();
    assert!(matches!(refused, CatalogError::Corrupt { .. }), "{refused}");
}

#[test]
fn extents_are_joined_cut_retired_and_reclaimed() {
    let (_dir, catalog) = create();
    let allocate = |list: &[(Extent, u64)]| ChangeSet {
        allocated: list
            .iter()
            .map(|&(extent, ino)| (extent, MAIN, Ino(ino)))
            .collect(),
        ..ChangeSet::default()
    };
    let rows = || -> Vec<(u64, u64, u64, Option<u64>)> {
        let rows = catalog.space().extents(None, 100).unwrap().into_iter();
        rows.map(|row| {
            (
                row.extent.start_block,
                row.extent.end_block(),
                row.ino.0,
                row.retired_seq.map(|s| s.0),
            )
        })
        .collect()
    };
    catalog
        .commit(&allocate(&[(extent(0, 10), 2), (extent(20, 10), 2)]))
        .unwrap();
    catalog
        .commit(&allocate(&[(extent(10, 10), 2), (extent(30, 5), 3)]))
        .unwrap();
    assert_eq!(rows(), vec![(0, 30, 2, None), (30, 35, 3, None)]);
    for taken in [extent(29, 1), extent(0, 40), extent(33, 9), extent(34, 1)] {
        let refused = catalog
            .commit(&allocate(&[(extent(100, 1), 2), (taken, 4)]))
            .unwrap_err();
        assert!(refused.to_string().contains("CATALOG-1"), "{refused}");
    }
    let retire = |list: &[(Extent, u64)]| ChangeSet {
        retired: list
            .iter()
            .map(|&(extent, ino)| (extent, MAIN, Ino(ino)))
            .collect(),
        ..ChangeSet::default()
    };
    let parts = [(extent(5, 5), 2), (extent(28, 2), 2), (extent(30, 2), 3)];
    assert_eq!(catalog.commit(&retire(&parts)).unwrap().seq, CommitSeq(3));
    assert_eq!(
        rows(),
        vec![
            (0, 5, 2, None),
            (5, 10, 2, Some(3)),
            (10, 28, 2, None),
            (28, 30, 2, Some(3)),
            (30, 32, 3, Some(3)),
            (32, 35, 3, None)
        ]
    );
    for (gone, ino) in [
        (extent(5, 1), 2),
        (extent(4, 2), 2),
        (extent(34, 2), 3),
        (extent(90, 1), 2),
    ] {
        let refused = catalog.commit(&retire(&[(gone, ino)])).unwrap_err();
        assert!(refused.to_string().contains("CATALOG-1"), "{refused}");
    }
    assert_eq!(retired_blocks(&catalog), 9);
    assert!(
        catalog.space().has_retired(CommitSeq(3)).unwrap()
            && !catalog.space().has_retired(CommitSeq(2)).unwrap()
    );
    let reclaim = |horizon| ChangeSet {
        reclaim_horizon: Some(RetentionHorizons::even(CommitSeq(horizon))),
        ..ChangeSet::default()
    };
    assert_eq!(catalog.commit(&reclaim(2)).unwrap().reclaimed, vec![]);
    let reclaimed = catalog.commit(&reclaim(3)).unwrap().reclaimed;
    assert_eq!(reclaimed, vec![extent(5, 5), extent(28, 2), extent(30, 2)]);
    assert_eq!(
        rows(),
        vec![(0, 5, 2, None), (10, 28, 2, None), (32, 35, 3, None)]
    );
}

#[test]
fn groups_are_stamped_and_never_crossed() {
    let (_dir, catalog) = create();
    let ag = larder_catalog_sqlite::format::limits::AG_BLOCKS;
    let changes = ChangeSet {
        allocated: vec![
            (extent(ag - 4, 4), MAIN, Ino(2)),
            (extent(ag, 4), MAIN, Ino(2)),
        ],
        ..ChangeSet::default()
    };
    catalog.commit(&changes).unwrap();
    assert_eq!(catalog.space().extents(None, 10).unwrap().len(), 2);
    assert_eq!(
        catalog
            .space()
            .extents_in_ag(SegmentIndex(0), 1)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        catalog
            .space()
            .extents(Some((SegmentIndex(0), ag - 4)), 10)
            .unwrap()[0]
            .extent,
        extent(ag, 4)
    );
    // A map may name both in one run, so they may be retired as one.
    catalog
        .commit(&ChangeSet {
            retired: vec![(extent(ag - 1, 2), MAIN, Ino(2))],
            ..ChangeSet::default()
        })
        .unwrap();
    assert_eq!(retired_blocks(&catalog), 2);
    let counts = |used_blocks, retired_blocks| {
        [0, 1].map(|ag_index| AgRow {
            segment: SegmentIndex(0),
            ag_index,
            used_blocks,
            retired_blocks,
        })
    };
    assert_eq!(
        catalog.space().ags_changed_since(CommitSeq(0)).unwrap(),
        counts(4, 1),
        "CATALOG-8"
    );
    assert_eq!(
        catalog
            .space()
            .ags_changed_since(CommitSeq(1))
            .unwrap()
            .len(),
        2,
        "other sessions must know what waits for reclaim"
    );
    catalog
        .commit(&ChangeSet {
            reclaim_horizon: Some(RetentionHorizons::even(CommitSeq(2))),
            ..ChangeSet::default()
        })
        .unwrap();
    assert_eq!(
        catalog.space().ags_changed_since(CommitSeq(2)).unwrap(),
        counts(3, 0),
        "CATALOG-8"
    );
    let crossing = ChangeSet {
        allocated: vec![(extent(2 * ag - 1, 2), MAIN, Ino(2))],
        ..ChangeSet::default()
    };
    let refused = catalog.commit(&crossing).unwrap_err();
    assert!(
        matches!(&refused, CatalogError::Constraint { table, constraint }
            if table == "larder_extent" && constraint.contains("one allocation group")),
        "{refused}"
    );
}

#[test]
fn pages_of_a_directory_are_complete_and_in_catalog_order() {
    let (_dir, catalog) = create();
    let names = [
        b"b".to_vec(),
        b"a".to_vec(),
        b"\x80".to_vec(),
        b"z\xff".to_vec(),
        "\u{10ffff}".into(),
        b"aa".to_vec(),
        b"1".to_vec(),
    ];
    let mut changes = ChangeSet::default();
    for (at, bytes) in names.iter().enumerate() {
        let ino = at as u64 + 2;
        changes
            .inodes
            .push((MAIN, InodeChange::Insert(inode(ino, FileKind::File))));
        changes
            .dirents
            .push((MAIN, Ino::ROOT, name(bytes), Some(Ino(ino))));
    }
    catalog.commit(&changes).unwrap();
    let mut expected: Vec<_> = names.iter().map(name).collect();
    expected.sort_by(dirent_order);
    for limit in [1, 2, 3, 100] {
        let mut found = Vec::new();
        loop {
            let page = catalog
                .tables()
                .dirents(MAIN, Ino::ROOT, found.last(), limit)
                .unwrap();
            if page.is_empty() {
                break;
            }
            assert!(page.iter().all(|row| row.kind == FileKind::File));
            found.extend(page.into_iter().map(|row| row.name));
        }
        assert_eq!(found, expected, "CATALOG-6");
    }
}

#[test]
fn a_refused_set_leaves_nothing_and_a_clean_connection() {
    let (dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    common::plain(dir.path())
        .execute_batch(
            "ALTER TABLE main ADD COLUMN tag TEXT; CREATE UNIQUE INDEX one_size ON \
            main(size) WHERE size > 0",
        )
        .unwrap();
    let mut changes = new_file(3, "g");
    changes
        .inodes
        .push((MAIN, InodeChange::Insert(inode(2, FileKind::File))));
    let refused = catalog.commit(&changes).unwrap_err();
    assert!(
        matches!(&refused, CatalogError::Constraint { table, .. } if table == "main"),
        "{refused}"
    );
    let sized = |ino| {
        InodeChange::Insert(InodeRow {
            size_bytes: 9,
            ..inode(ino, FileKind::File)
        })
    };
    let twice = ChangeSet {
        inodes: vec![(MAIN, sized(4)), (MAIN, sized(5))],
        ..ChangeSet::default()
    };
    let refused = catalog.commit(&twice).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "main: UNIQUE constraint failed: main.size"
    );
    let huge = ChangeSet {
        map_pages: vec![(MAIN, Ino(2), u64::MAX, Some(vec![1]))],
        ..ChangeSet::default()
    };
    let refused = catalog.commit(&huge).unwrap_err();
    assert!(
        matches!(&refused, CatalogError::Constraint { table, .. } if table == "main_map"),
        "{refused}"
    );
    assert_eq!(
        catalog.tables().inode(MAIN, Ino(3)).unwrap(),
        None,
        "CATALOG-2"
    );
    assert_eq!(catalog.tables().commit_seq().unwrap(), CommitSeq(1));
    let next_ino = catalog.stores().next_ino(MAIN).unwrap();
    assert!(next_ino >= Ino(3), "CATALOG-4");
    catalog.commit(&new_file(3, "g")).unwrap();
    assert_eq!(catalog.tables().commit_seq().unwrap(), CommitSeq(2));
}

#[test]
fn sessions_pin_and_hold() {
    let (_dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    let (first, pin) = catalog.sessions().begin((7, 0), "mount x", 5).unwrap();
    assert_eq!(pin, CommitSeq(1));
    let (second, _) = catalog.sessions().begin((8, 0), "put", 6).unwrap();
    assert_ne!(first, second);
    let orphan = ChangeSet {
        inodes: vec![(
            MAIN,
            InodeChange::Update(
                InodeRow {
                    nlink: 0,
                    ..inode(2, FileKind::File)
                },
                AttrMask {
                    nlink: true,
                    ..AttrMask::default()
                },
            ),
        )],
        dirents: vec![(MAIN, Ino::ROOT, name("f"), None)],
        orphans_added: vec![(MAIN, Ino(2))],
        holders_added: vec![(MAIN, Ino(2), first), (MAIN, Ino(2), second)],
        pin: Some((first, CommitSeq(1))),
        ..ChangeSet::default()
    };
    catalog.commit(&orphan).unwrap();
    assert_eq!(
        catalog.sessions().orphans().unwrap(),
        vec![(MAIN, Ino(2), CommitSeq(2))]
    );
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    catalog.sessions().end(second).unwrap();
    assert_eq!(
        catalog.sessions().holders().unwrap(),
        vec![(MAIN, Ino(2), first)]
    );
    catalog.sessions().set_pin(first, CommitSeq(2)).unwrap();
    let sessions = catalog.sessions().rows().unwrap();
    assert_eq!(
        (
            sessions.len(),
            sessions[0].pin_seq,
            sessions[0].label.as_str()
        ),
        (1, CommitSeq(2), "mount x")
    );
    assert!(matches!(
        catalog.sessions().set_pin(second, CommitSeq(2)),
        Err(CatalogError::NotFound { .. })
    ));
    let gone = ChangeSet {
        inodes: vec![(MAIN, InodeChange::Delete(Ino(2)))],
        orphans_removed: vec![(MAIN, Ino(2))],
        ..ChangeSet::default()
    };
    catalog.commit(&gone).unwrap();
    assert_eq!(
        (
            catalog.sessions().orphans().unwrap(),
            catalog.sessions().holders().unwrap()
        ),
        (vec![], vec![])
    );
    let (third, _) = catalog.sessions().begin((9, 0), "again", 7).unwrap();
    assert!(third > second, "CATALOG-4");
}

#[test]
fn stores_have_tables_of_their_own() {
    let (dir, catalog) = create();
    let photos = catalog
        .stores()
        .create("photos", "files", "/photos", None, 9, 0o700, 3, 4)
        .unwrap();
    let view = catalog
        .stores()
        .create(
            "album",
            "readonly",
            "/album",
            Some(photos.store),
            9,
            0,
            0,
            0,
        )
        .unwrap();
    for (name, mount) in [("PHOTOS", "/x"), ("y", "/photos")] {
        let refused = catalog
            .stores()
            .create(name, "files", mount, None, 9, 0, 0, 0)
            .unwrap_err();
        assert!(
            matches!(
                refused,
                CatalogError::Exists { .. } | CatalogError::Constraint { .. }
            ),
            "{refused}"
        );
    }
    common::plain(dir.path())
        .execute_batch("CREATE TABLE Music_Map(x)")
        .unwrap();
    let refused = catalog
        .stores()
        .create("music", "files", "/music", None, 9, 0, 0, 0)
        .unwrap_err();
    assert!(refused.to_string().contains("music_map"), "{refused}");
    let file = ChangeSet {
        inodes: vec![(photos.store, InodeChange::Insert(inode(2, FileKind::File)))],
        dirents: vec![(photos.store, Ino::ROOT, name("p"), Some(Ino(2)))],
        piece_pages: vec![(photos.store, Ino(2), 0, Some(vec![5]))],
        allocated: vec![
            (extent(0, 3), photos.store, Ino(2)),
            (extent(3, 1), MAIN, Ino(7)),
        ],
        segments: vec![(SegmentIndex(0), 100)],
        ..ChangeSet::default()
    };
    catalog.commit(&file).unwrap();
    assert_eq!(
        catalog.tables().inode(view.store, Ino(2)).unwrap(),
        catalog.tables().inode(photos.store, Ino(2)).unwrap()
    );
    let next_ino = catalog.stores().next_ino(view.store).unwrap();
    assert_eq!(next_ino, catalog.stores().next_ino(photos.store).unwrap());
    assert!(next_ino >= Ino(3), "CATALOG-4");
    assert_eq!(catalog.tables().inode(MAIN, Ino(2)).unwrap(), None);
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    catalog.stores().set(view.store, None, Some("/a")).unwrap();
    let listed = catalog.stores().rows().unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|row| row.mount.as_str())
            .collect::<Vec<_>>(),
        ["/", "/photos", "/a"]
    );
    assert!(matches!(
        catalog.stores().destroy(MAIN, 1),
        Err(CatalogError::Invalid { .. })
    ));
    assert!(
        catalog
            .stores()
            .destroy(photos.store, 1)
            .unwrap_err()
            .to_string()
            .contains("'album'")
    );
    assert_eq!(
        catalog.maps().piece_page(view.store, Ino(2), 0).unwrap(),
        Some(vec![5])
    );
    catalog.stores().destroy(view.store, 1).unwrap();
    let seq = catalog.stores().destroy(photos.store, 1).unwrap();
    assert_eq!(catalog.tables().commit_seq().unwrap(), seq);
    assert_eq!(retired_blocks(&catalog), 3);
    assert_eq!(
        catalog.tables().info().unwrap().retired_bytes_total,
        3 * 4096
    );
    assert!(matches!(
        catalog.tables().inode(photos.store, Ino(2)),
        Err(CatalogError::NotFound { .. })
    ));
    let again = catalog
        .stores()
        .create("photos", "files", "/photos", None, 9, 0o700, 3, 4)
        .unwrap();
    assert!(again.store > view.store, "CATALOG-4");
    assert!(matches!(
        catalog.tables().inode(StoreId(99), Ino(1)),
        Err(CatalogError::NotFound { .. })
    ));
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
}
