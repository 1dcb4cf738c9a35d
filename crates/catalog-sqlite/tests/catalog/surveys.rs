//! Reading everything, and cutting maps.

use crate::common::{MAIN, create, new_file};
use larder_catalog_sqlite::ChangeSet;
use larder_catalog_sqlite::format::{Extent, Ino, SegmentIndex};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(SegmentIndex(0), start, count)
}

#[test]
fn surveys_see_everything() {
    let (_dir, catalog) = create();
    for ino in 2..7 {
        catalog.commit(&new_file(ino, &format!("f{ino}"))).unwrap();
    }
    let page = |after, limit| -> Vec<u64> {
        let rows = catalog
            .survey()
            .inodes(MAIN, after, limit)
            .unwrap()
            .into_iter();
        rows.map(|row| row.ino.0).collect()
    };
    assert_eq!(page(None, 3), [1, 2, 3]);
    assert_eq!(page(Some(Ino(3)), 3), [4, 5, 6]);
    assert_eq!(catalog.survey().inode_count(MAIN).unwrap(), 6);
    let space = ChangeSet {
        allocated: vec![(extent(0, 9), MAIN, Ino(2))],
        ..ChangeSet::default()
    };
    catalog.commit(&space).unwrap();
    catalog
        .commit(&ChangeSet {
            retired: vec![(extent(0, 4), MAIN, Ino(2))],
            ..ChangeSet::default()
        })
        .unwrap();
    assert_eq!(catalog.survey().extent_totals().unwrap(), (5, 4));
    let (session, _) = catalog.sessions().begin((1, 0), "x", 0).unwrap();
    for _ in 0..2 {
        catalog
            .sessions()
            .add_holder(MAIN, Ino(2), session)
            .unwrap();
    }
    assert_eq!(
        catalog.sessions().holders().unwrap(),
        vec![(MAIN, Ino(2), session)]
    );
}

#[test]
fn a_cut_comes_before_the_pages_of_the_same_set() {
    let (_dir, catalog) = create();
    let page = |index, byte| (MAIN, Ino(2), index, Some(vec![byte]));
    let first = ChangeSet {
        map_pages: vec![page(0, 1), page(1, 1), page(2, 1)],
        ..ChangeSet::default()
    };
    catalog.commit(&first).unwrap();
    let second = ChangeSet {
        map_cuts: vec![(MAIN, Ino(2), 1)],
        map_pages: vec![page(2, 9)],
        ..ChangeSet::default()
    };
    catalog.commit(&second).unwrap();
    assert_eq!(
        catalog.tables().map_pages(MAIN, Ino(2), 0, 9).unwrap(),
        [(0, vec![1]), (2, vec![9])]
    );
}
