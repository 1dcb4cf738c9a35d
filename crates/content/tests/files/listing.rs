//! Listings with attributes say what listings and attributes say, whatever is committed already;
//! and a file that is created open is an ordinary one.

use crate::common::*;
use larder::{Database, DirEntry, ErrorKind, Metadata, Name, NewNode, NodeId, RenameMode};

/// All pages of `limit` entries, with attributes.
fn list_plus(db: &Database, dir: NodeId, limit: usize) -> Vec<(DirEntry, Metadata)> {
    let mut found: Vec<(DirEntry, Metadata)> = Vec::new();
    loop {
        let after: Option<Name> = found.last().map(|(entry, _)| entry.name.clone());
        let page = db
            .nodes()
            .read_dir_plus(dir, after.as_ref(), limit)
            .unwrap();
        let is_last = page.len() < limit;
        found.extend(page);
        if is_last {
            return found;
        }
    }
}

fn list(db: &Database, dir: NodeId, limit: usize) -> Vec<DirEntry> {
    let mut found: Vec<DirEntry> = Vec::new();
    loop {
        let after = found.last().map(|entry| entry.name.clone());
        let page = db.nodes().read_dir(dir, after.as_ref(), limit).unwrap();
        let is_last = page.len() < limit;
        found.extend(page);
        if is_last {
            return found;
        }
    }
}

#[test]
fn a_listing_with_attributes_is_a_listing_and_the_attributes() {
    for seed in 1..=4 {
        let dir = tempfile::tempdir().unwrap();
        let mut db = create(dir.path(), None);
        let mut state = seed;
        let mut dice = |below: u64| {
            state = u64::from_le_bytes(pattern(8, state).try_into().unwrap());
            state % below
        };
        for step in 0..300 {
            let (one, other) = (dice(40), dice(40));
            let text = |index: u64| match index % 3 {
                0 => Name::new(&[b'f', 0xff, index as u8 + 1]).unwrap(), // Sorts behind all UTF-8.
                _ => name(&format!("f{index}")),
            };
            let (one, other) = (text(one), text(other));
            let outcome = match dice(6) {
                0 => db.nodes().unlink(NodeId::ROOT, &one),
                1 => db.nodes().rename(
                    NodeId::ROOT,
                    &one,
                    NodeId::ROOT,
                    &other,
                    RenameMode::Replace,
                ),
                2 => db
                    .nodes()
                    .lookup(NodeId::ROOT, &one)
                    .and_then(|attr| db.nodes().open(attr.node, true))
                    .and_then(|file| file.write_at(0, &pattern(dice(9000) as usize, step))),
                _ => db
                    .nodes()
                    .create_file(NodeId::ROOT, &one, 0o640, OWNER, true)
                    .and_then(|(_, file)| file.write_at(0, &pattern(dice(9000) as usize, step))),
            };
            if let Err(error) = outcome {
                let is_expected = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Exists);
                assert!(is_expected, "{error}");
            }
            match dice(20) {
                0 => db.sync().unwrap(),
                1 => {
                    db.close().unwrap();
                    db = open(dir.path());
                }
                _ => {}
            }
            if dice(4) == 0 {
                let limit = 1 + dice(12) as usize;
                let listed = list_plus(&db, NodeId::ROOT, limit);
                let entries = list(&db, NodeId::ROOT, 1 + dice(12) as usize);
                assert_eq!(
                    listed
                        .iter()
                        .map(|(entry, _)| entry.clone())
                        .collect::<Vec<_>>(),
                    entries,
                    "seed {seed} step {step}"
                );
                for (entry, attr) in listed {
                    let looked_up = db.nodes().lookup(NodeId::ROOT, &entry.name).unwrap();
                    assert_eq!(looked_up, attr, "seed {seed} step {step} {}", entry.name);
                    assert_eq!((entry.node, entry.kind), (attr.node, attr.kind));
                }
            }
        }
        assert_clean(&db);
    }
}

#[test]
fn stores_that_are_mounted_are_listed_with_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    put(&db, NodeId::ROOT, "a", b"1");
    for store in ["one", "two"] {
        db.stores().create(store, "files", None, None).unwrap();
    }
    for limit in 1..5 {
        let names: Vec<String> = list_plus(&db, NodeId::ROOT, limit)
            .into_iter()
            .map(|(entry, attr)| {
                assert_eq!(attr, db.nodes().lookup(NodeId::ROOT, &entry.name).unwrap());
                entry.name.to_string()
            })
            .collect();
        assert_eq!(names, ["a", "one", "two"], "{limit}");
    }
}

#[test]
fn a_file_created_open_is_held_and_written_by_its_handle() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let (attr, file) = db
        .nodes()
        .create_file(NodeId::ROOT, &name("f"), 0o604, OWNER, true)
        .unwrap();
    assert_eq!(
        (attr.mode, attr.uid, attr.gid, attr.nlink),
        (0o604, 1, 2, 1)
    );
    let again = db
        .nodes()
        .create_file(NodeId::ROOT, &name("f"), 0o600, OWNER, true);
    assert_eq!(
        again.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::Exists)
    );
    file.write_at(0, b"abc").unwrap();
    // CONTENT-4: it is open.
    db.nodes().unlink(NodeId::ROOT, &name("f")).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 3);
    drop(file);
    let (_, file) = db
        .nodes()
        .create_file(NodeId::ROOT, &name("f"), 0o600, OWNER, false)
        .unwrap();
    assert_eq!(
        file.write_at(0, b"x").map_err(|e| e.kind()),
        Err(ErrorKind::ReadOnly)
    );
    drop(file);
    let kind = db
        .nodes()
        .create_node(NodeId::ROOT, &name("d"), NewNode::Directory, 0o755, OWNER);
    let in_file = db.nodes().create_file(
        db.nodes().lookup(NodeId::ROOT, &name("f")).unwrap().node,
        &name("g"),
        0o600,
        OWNER,
        true,
    );
    assert_eq!(
        in_file.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::NotADirectory)
    );
    kind.unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}
