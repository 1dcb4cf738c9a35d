//! Readers, writers and checkpoints side by side, in one process and in several connections.

use crate::common;

use crate::common::{MAIN, create, new_file, open};
use larder_catalog_sqlite::CheckpointKind;
use larder_catalog_sqlite::format::{CommitSeq, Ino};

#[test]
fn a_checkpoint_bounds_the_log() {
    let (_dir, catalog) = create();
    for ino in 2..30 {
        catalog.commit(&new_file(ino, &format!("f{ino}"))).unwrap();
    }
    let grown = catalog.log().wal_bytes().unwrap();
    assert!(grown > 100_000, "auto-checkpoint is off: {grown}");
    let pending = catalog.log().log_use().unwrap().pending_bytes;
    assert!(
        pending > 100_000 && pending <= grown,
        "{pending} of {grown}"
    );
    assert!(
        catalog
            .log()
            .checkpoint(CheckpointKind::Passive)
            .unwrap()
            .is_complete
    );
    assert_eq!(catalog.log().log_use().unwrap().pending_bytes, 0);
    catalog.commit(&new_file(30, "f30")).unwrap();
    let pending = catalog.log().log_use().unwrap().pending_bytes;
    assert!(pending > 0 && pending < grown, "{pending}");
    assert_eq!(
        catalog.log().wal_bytes().unwrap(),
        grown,
        "the log is used again from its start"
    );
    assert!(
        catalog
            .log()
            .checkpoint(CheckpointKind::Truncate)
            .unwrap()
            .is_complete
    );
    assert_eq!(catalog.log().wal_bytes().unwrap(), 0);
    catalog.commit(&new_file(31, "f31")).unwrap();
    assert!(catalog.tables().inode(MAIN, Ino(31)).unwrap().is_some());
}

#[test]
fn readers_do_not_wait_for_the_writer() {
    let (dir, catalog) = create();
    let other = common::plain(dir.path());
    other
        .execute_batch("BEGIN IMMEDIATE; UPDATE main SET mode = 0")
        .unwrap();
    assert_eq!(
        catalog
            .tables()
            .inode(MAIN, Ino::ROOT)
            .unwrap()
            .unwrap()
            .mode,
        0o755
    );
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| catalog.commit(&new_file(2, "f")));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!commit.is_finished(), "the commit waits for the lock");
        assert!(catalog.tables().inode(MAIN, Ino(2)).unwrap().is_none());
        other.execute_batch("COMMIT").unwrap();
        commit.join().unwrap().unwrap();
    });
    assert_eq!(
        catalog
            .tables()
            .inode(MAIN, Ino::ROOT)
            .unwrap()
            .unwrap()
            .mode,
        0
    );
}

#[test]
fn threads_and_processes_share_a_catalog_without_errors() {
    let (dir, catalog) = create();
    let second = open(dir.path());
    let third = catalog
        .stores()
        .create("other", "files", "/other", None, 0, 0, 0, 0)
        .unwrap()
        .store;
    let commit = |catalog: &larder_catalog_sqlite::SqliteCatalog, store, ino: u64| {
        let mut changes = new_file(ino, &format!("f{ino}"));
        changes.inodes[0].0 = store;
        changes.dirents[0].0 = store;
        catalog.commit(&changes).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (2..60).for_each(|ino| commit(&catalog, MAIN, ino)));
        scope.spawn(|| (2..60).for_each(|ino| commit(&second, third, ino)));
        scope.spawn(|| {
            for _ in 0..30 {
                catalog.log().checkpoint(CheckpointKind::Passive).unwrap();
                catalog.log().checkpoint(CheckpointKind::Truncate).unwrap();
                second.foreign().foreign_change().unwrap();
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    // One statement sees one moment: every entry has its inode.
                    catalog
                        .tables()
                        .dirents(MAIN, Ino::ROOT, None, 100)
                        .unwrap();
                    second
                        .tables()
                        .dirents(third, Ino::ROOT, None, 100)
                        .unwrap();
                }
            });
        }
    });
    // And the store.
    assert_eq!(catalog.tables().commit_seq().unwrap(), CommitSeq(117));
    assert_eq!(
        catalog
            .tables()
            .dirents(MAIN, Ino::ROOT, None, 100)
            .unwrap()
            .len(),
        58
    );
    assert_eq!(
        second
            .tables()
            .dirents(third, Ino::ROOT, None, 100)
            .unwrap()
            .len(),
        58
    );
    assert_eq!(second.survey().check().unwrap(), Vec::<String>::new());
}
