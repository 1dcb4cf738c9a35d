//! How far names, links, offsets and listings go.

use crate::common::*;
use larder::{AllocateMode, ErrorKind, NewNode, NodeId, RenameMode, SeekTarget, limits};
use std::collections::BTreeSet;

#[test]
fn files_reach_the_largest_offset_and_not_beyond() {
    const MAX: u64 = limits::FILE_BYTES_MAX;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let file = make(&db, NodeId::ROOT, "f");
    let handle = db.nodes().open(file, true).unwrap();
    handle.write_at(MAX - 3, b"end").unwrap();
    handle.write_at(0, b"start").unwrap();
    assert_eq!(
        kind(handle.write_at(MAX - 2, b"end")),
        ErrorKind::FileTooLarge
    );
    assert_eq!(kind(handle.append(b"x")), ErrorKind::FileTooLarge);
    assert_eq!(
        kind(handle.write_at(u64::MAX, b"x")),
        ErrorKind::FileTooLarge
    );
    assert_eq!(kind(handle.set_len(MAX + 1)), ErrorKind::FileTooLarge);
    for mode in [
        AllocateMode::Allocate { keep_size: true },
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange { keep_size: true },
    ] {
        assert_eq!(kind(handle.allocate(mode, MAX, 1)), ErrorKind::FileTooLarge);
        assert_eq!(
            kind(handle.allocate(mode, 1, u64::MAX)),
            ErrorKind::FileTooLarge
        );
        assert_eq!(kind(handle.allocate(mode, 1, 0)), ErrorKind::InvalidInput);
    }
    for _ in 0..2 {
        db.sync().unwrap();
        assert_eq!(handle.metadata().unwrap().size_bytes, MAX);
        let mut bytes = [0; 8];
        assert_eq!(handle.read_at(MAX - 5, &mut bytes).unwrap(), 5);
        assert_eq!(&bytes, b"\0\0end\0\0\0");
        assert_eq!(handle.read_at(MAX, &mut bytes).unwrap(), 0);
        assert_eq!(handle.read_at(u64::MAX, &mut bytes).unwrap(), 0);
        let last = (MAX - 3) / limits::BLOCK_BYTES * limits::BLOCK_BYTES;
        assert_eq!(handle.seek(SeekTarget::Data, 4096).unwrap(), Some(last));
        assert_eq!(handle.seek(SeekTarget::Hole, last).unwrap(), Some(MAX));
        assert_eq!(handle.seek(SeekTarget::Data, MAX).unwrap(), None);
        assert!(handle.metadata().unwrap().allocated_bytes <= 8192);
    }
    handle
        .allocate(AllocateMode::PunchHole, 1, MAX - 1)
        .unwrap();
    assert_eq!(handle.seek(SeekTarget::Data, 4096).unwrap(), None);
    handle.set_len(5).unwrap();
    assert_eq!(content(&db, file), b"s\0\0\0\0");
    drop(handle);
    assert_clean(&db);
}

#[test]
fn links_are_limited_and_subdirectories_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let file = make(&db, NodeId::ROOT, "f");
    let many = |what: &str| {
        let made = NewNode::Directory;
        db.nodes()
            .create_node(NodeId::ROOT, &name(what), made, 0o755, OWNER)
            .unwrap()
            .node
    };
    let (links, below) = (many("links"), many("below"));
    for index in 1..limits::LINK_COUNT_MAX {
        db.nodes()
            .link(file, links, &name(&index.to_string()))
            .unwrap();
    }
    assert_eq!(
        kind(db.nodes().link(file, links, &name("last"))),
        ErrorKind::TooManyLinks
    );
    for index in 0..limits::LINK_COUNT_MAX + 2 {
        let made = NewNode::Directory;
        db.nodes()
            .create_node(below, &name(&index.to_string()), made, 0o755, OWNER)
            .unwrap();
    }
    assert_eq!(
        db.nodes().metadata(below).unwrap().nlink,
        limits::LINK_COUNT_MAX + 4
    );
    assert_clean(&db);
}

#[test]
fn a_listing_of_100_000_entries_is_stable_while_others_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    const COUNT: usize = 100_000;
    let stays = |index: usize| index.is_multiple_of(3);
    for index in 0..COUNT {
        make(&db, NodeId::ROOT, &format!("{index:07}"));
    }
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for index in (0..COUNT).filter(|&index| !stays(index)) {
                let old = name(&format!("{index:07}"));
                match index % 3 {
                    1 => db.nodes().unlink(NodeId::ROOT, &old).unwrap(),
                    _ => {
                        let new = name(&format!("{index:07}.new"));
                        let mode = RenameMode::NoReplace;
                        db.nodes()
                            .rename(NodeId::ROOT, &old, NodeId::ROOT, &new, mode)
                            .unwrap();
                    }
                }
            }
        });
        loop {
            let is_last = changer.is_finished();
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = db
                    .nodes()
                    .read_dir(NodeId::ROOT, after.as_ref(), 512)
                    .unwrap();
                let Some(last) = page.last() else { break };
                after = Some(last.name.clone());
                seen.extend(page.into_iter().map(|entry| entry.name));
            }
            let set: BTreeSet<_> = seen.iter().collect();
            assert_eq!(set.len(), seen.len(), "an entry came twice");
            for index in (0..COUNT).filter(|&index| stays(index)) {
                assert!(
                    set.contains(&name(&format!("{index:07}"))),
                    "{index} was missed"
                );
            }
            if is_last {
                assert_eq!(seen.len(), COUNT - COUNT / 3);
                break;
            }
        }
    });
}
