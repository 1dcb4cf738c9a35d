//! Lists of pieces: what a commit writes, reads give back.

use crate::common::{MAIN, create, name, new_file};
use larder_catalog_sqlite::format::Ino;
use larder_catalog_sqlite::{ChangeSet, InodeChange};

#[test]
fn lists_of_pieces_come_back_and_go_with_their_inode() {
    let (dir, catalog) = create();
    let commit = |changes: ChangeSet| catalog.commit(&changes).unwrap();
    commit(new_file(2, "f"));
    commit(new_file(3, "g"));
    let page = |ino, page, bytes: Option<&[u8]>| (MAIN, Ino(ino), page, bytes.map(<[u8]>::to_vec));
    let set = |pages| ChangeSet {
        piece_pages: pages,
        ..ChangeSet::default()
    };
    commit(set(vec![
        page(2, 0, Some(b"root")),
        page(2, 1, Some(b"x")),
        page(2, 7, Some(b"y")),
        page(3, 0, Some(b"other")),
    ]));
    commit(set(vec![page(2, 1, None), page(2, 7, Some(b"z"))]));
    let root = || {
        catalog
            .maps()
            .file_content(MAIN, Ino(2))
            .unwrap()
            .piece_root
    };
    assert_eq!(root(), Some(b"root".to_vec()));
    assert_eq!(catalog.maps().piece_page(MAIN, Ino(2), 1).unwrap(), None);
    assert_eq!(
        catalog.maps().piece_pages(MAIN, Ino(2), 1, 9).unwrap(),
        vec![(7, b"z".to_vec())]
    );
    assert_eq!(
        catalog.maps().piece_pages(MAIN, Ino(2), 0, 1).unwrap(),
        vec![(0, b"root".to_vec())]
    );
    commit(ChangeSet {
        piece_drops: vec![(MAIN, Ino(2))],
        piece_pages: vec![page(2, 0, Some(b"new"))],
        ..ChangeSet::default()
    });
    assert_eq!(root(), Some(b"new".to_vec()), "drops come first");
    assert_eq!(catalog.maps().piece_page(MAIN, Ino(2), 7).unwrap(), None);
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    commit(ChangeSet {
        inodes: vec![(MAIN, InodeChange::Delete(Ino(2)))],
        dirents: vec![(MAIN, Ino::ROOT, name("f"), None)],
        ..ChangeSet::default()
    });
    assert_eq!(root(), None);
    assert!(
        catalog
            .maps()
            .piece_page(MAIN, Ino(3), 0)
            .unwrap()
            .is_some()
    );
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    drop(dir);
}
