//! Files and names through the Content API: one test per promise.

use crate::common::*;
use larder::{AllocateMode, ErrorKind, Name, NewNode, NodeId, RenameMode, SeekTarget, limits};

#[test]
fn content_of_every_size_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [
        0,
        1,
        2047,
        2048,
        2049,
        4095,
        4096,
        4097,
        100_000,
        1 << 20,
        (9 << 20) + 5,
    ];
    let db = create(dir.path(), None);
    for (index, &size) in sizes.iter().enumerate() {
        put(
            &db,
            NodeId::ROOT,
            &format!("f{index}"),
            &pattern(size, index as u64),
        );
    }
    for round in 0..2 {
        for (index, &size) in sizes.iter().enumerate() {
            let attr = db
                .nodes()
                .resolve(format!("/f{index}").as_bytes(), true)
                .unwrap();
            assert_eq!(attr.size_bytes, size as u64);
            assert_eq!((attr.uid, attr.gid), (1, 2));
            assert!(
                content(&db, attr.node) == pattern(size, index as u64),
                "size {size} round {round}"
            );
        }
        db.sync().unwrap();
    }
    assert_clean(&db);
    db.close().unwrap();
    let db = open(dir.path());
    for (index, &size) in sizes.iter().enumerate() {
        let attr = db
            .nodes()
            .resolve(format!("/f{index}").as_bytes(), true)
            .unwrap();
        assert!(
            content(&db, attr.node) == pattern(size, index as u64),
            "size {size} reopened"
        );
    }
    let frag = db.maintenance().frag().unwrap();
    assert_eq!(frag.fragments_per_object_mean, 1.0);
    let mut layouts = Vec::new();
    db.maintenance()
        .layouts(&mut |node, extents| layouts.push((node, extents.to_vec())))
        .unwrap();
    assert_eq!(layouts.len() as u64, frag.object_count);
    for (node, extents) in layouts {
        let blocks: u64 = extents.iter().map(|extent| extent.block_count).sum();
        let attr = db.nodes().metadata(node).unwrap();
        assert_eq!(blocks * limits::BLOCK_BYTES, attr.allocated_bytes);
        assert!(attr.allocated_bytes >= attr.size_bytes);
    }
    assert_clean(&db);
}

#[test]
fn overwrites_at_any_offset_match_an_array() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = make(&db, NodeId::ROOT, "f");
    let handle = db.nodes().open(node, true).unwrap();
    let mut model: Vec<u8> = Vec::new();
    let mut state = 42u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for step in 0..400 {
        let offset = random(300_000) as usize;
        let len = 1 + random(if step % 7 == 0 { 200_000 } else { 9_000 }) as usize;
        match random(10) {
            0..=5 => {
                let data = pattern(len, step);
                handle.write_at(offset as u64, &data).unwrap();
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&data);
            }
            6 => {
                handle.set_len(offset as u64).unwrap();
                model.resize(offset, 0);
            }
            7 => {
                handle
                    .allocate(AllocateMode::PunchHole, offset as u64, len as u64)
                    .unwrap();
                let end = (offset + len).min(model.len());
                if offset < end {
                    model[offset..end].fill(0);
                }
            }
            8 => {
                let data = pattern(len, step);
                assert_eq!(handle.append(&data).unwrap(), model.len() as u64);
                model.extend(data);
            }
            _ => match random(3) {
                0 => db.sync().unwrap(),
                1 => handle.sync().unwrap(),
                _ => {
                    handle
                        .allocate(
                            AllocateMode::ZeroRange { keep_size: false },
                            offset as u64,
                            len as u64,
                        )
                        .unwrap();
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].fill(0);
                }
            },
        }
        let mut bytes = vec![0; model.len() + 10];
        assert_eq!(handle.read_at(0, &mut bytes).unwrap(), model.len());
        assert!(
            bytes[..model.len()] == model,
            "step {step}: NODE-1, GATHER-2"
        );
    }
    drop(handle);
    assert_clean(&db);
    db.close().unwrap();
    let db = open(dir.path());
    assert!(content(&db, node) == model);
}

#[test]
fn a_file_without_a_name_lives_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), None);
    let data = pattern(50_000, 1);
    let node = put(&db, NodeId::ROOT, "f", &data);
    db.sync().unwrap();
    let handle = db.nodes().open(node, true).unwrap();
    db.nodes().unlink(NodeId::ROOT, &name("f")).unwrap();
    assert_eq!(kind(db.nodes().resolve(b"/f", true)), ErrorKind::NotFound);
    db.sync().unwrap();
    let mut bytes = vec![0; data.len()];
    assert_eq!(handle.read_at(0, &mut bytes).unwrap(), data.len());
    assert!(bytes == data, "CONTENT-4");
    handle.write_at(0, b"still here").unwrap();
    assert_eq!(handle.metadata().unwrap().nlink, 0);
    drop(handle);
    assert_eq!(kind(db.nodes().metadata(node)), ErrorKind::NotFound);
    db.sync().unwrap();
    assert_clean(&db);
    assert_eq!(db.maintenance().space().unwrap().live_bytes, 0);
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(
        db.maintenance().space().unwrap().retired_bytes,
        0,
        "closing reclaims"
    );
}

#[test]
fn names_obey_posix() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let sub = db
        .nodes()
        .create_node(NodeId::ROOT, &name("d"), NewNode::Directory, 0o755, OWNER)
        .unwrap()
        .node;
    let file = put(&db, sub, "a", b"one");
    put(&db, sub, "b", b"two");
    assert_eq!(db.nodes().metadata(NodeId::ROOT).unwrap().nlink, 3);
    assert_eq!(
        kind(
            db.nodes()
                .create_node(sub, &name("a"), NewNode::File, 0, OWNER)
        ),
        ErrorKind::Exists
    );
    assert_eq!(
        kind(db.nodes().remove_dir(NodeId::ROOT, &name("d"))),
        ErrorKind::NotEmpty
    );
    assert_eq!(
        kind(db.nodes().unlink(NodeId::ROOT, &name("d"))),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        kind(db.nodes().lookup(file, &name("x"))),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind(db.nodes().rename(
            NodeId::ROOT,
            &name("d"),
            sub,
            &name("d"),
            RenameMode::Replace
        )),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(
            db.nodes()
                .rename(sub, &name("a"), sub, &name("b"), RenameMode::NoReplace)
        ),
        ErrorKind::Exists
    );
    db.nodes()
        .rename(sub, &name("a"), sub, &name("b"), RenameMode::Exchange)
        .unwrap();
    assert_eq!(
        content(&db, db.nodes().resolve(b"/d/a", true).unwrap().node),
        b"two"
    );
    db.nodes()
        .rename(
            sub,
            &name("b"),
            NodeId::ROOT,
            &name("c"),
            RenameMode::Replace,
        )
        .unwrap();
    db.nodes()
        .rename(
            sub,
            &name("a"),
            NodeId::ROOT,
            &name("c"),
            RenameMode::Replace,
        )
        .unwrap();
    assert_eq!(
        content(&db, db.nodes().resolve(b"/c", true).unwrap().node),
        b"two"
    );
    assert_eq!(kind(db.nodes().metadata(file)), ErrorKind::NotFound);
    db.nodes()
        .link(
            db.nodes().resolve(b"/c", true).unwrap().node,
            sub,
            &name("hard"),
        )
        .unwrap();
    assert_eq!(db.nodes().resolve(b"/d/hard", true).unwrap().nlink, 2);
    db.nodes()
        .create_node(
            NodeId::ROOT,
            &name("soft"),
            NewNode::Symlink(b"d/../d/hard"),
            0,
            OWNER,
        )
        .unwrap();
    assert_eq!(
        content(&db, db.nodes().resolve(b"/soft", true).unwrap().node),
        b"two"
    );
    db.nodes()
        .create_node(
            NodeId::ROOT,
            &name("loop"),
            NewNode::Symlink(b"loop"),
            0,
            OWNER,
        )
        .unwrap();
    assert_eq!(
        kind(db.nodes().resolve(b"/loop", true)),
        ErrorKind::TooManySymlinks
    );
    db.nodes().unlink(sub, &name("hard")).unwrap();
    db.nodes().remove_dir(NodeId::ROOT, &name("d")).unwrap();
    assert_eq!(db.nodes().metadata(NodeId::ROOT).unwrap().nlink, 2);
    assert_clean(&db);
}

#[test]
fn directories_list_committed_and_uncommitted_entries_in_one_order() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for index in 0..500 {
        let text: Vec<u8> = if index % 10 == 0 {
            [&[0xff, 0xfe], format!("{index}").as_bytes()].concat()
        } else {
            format!("n{index}").into_bytes()
        };
        db.nodes()
            .create_node(
                NodeId::ROOT,
                &Name::new(&text).unwrap(),
                NewNode::File,
                0o600,
                OWNER,
            )
            .unwrap();
        expected.push(text);
        if index % 170 == 0 {
            db.sync().unwrap();
        }
        if index % 3 == 0 {
            let gone = expected.remove(expected.len() / 2);
            db.nodes()
                .unlink(NodeId::ROOT, &Name::new(&gone).unwrap())
                .unwrap();
        }
    }
    for limit in [1, 7, 1000] {
        let mut listed = Vec::new();
        let mut after: Option<Name> = None;
        loop {
            let page = db
                .nodes()
                .read_dir(NodeId::ROOT, after.as_ref(), limit)
                .unwrap();
            let is_last = page.len() < limit;
            after = page.last().map(|entry| entry.name.clone()).or(after);
            listed.extend(page.into_iter().map(|entry| entry.name.as_bytes().to_vec()));
            if is_last {
                break;
            }
        }
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "pages of {limit}");
    }
}

#[test]
fn a_full_database_refuses_at_write_and_recovers_by_deleting() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(32 << 20));
    let chunk = pattern(1 << 20, 3);
    let mut names = Vec::new();
    let refused = loop {
        let text = format!("f{}", names.len());
        let node = make(&db, NodeId::ROOT, &text);
        names.push(text);
        assert!(names.len() < 40, "the capacity is 32 MiB");
        if let Err(error) = db.nodes().open(node, true).unwrap().write_at(0, &chunk) {
            break error;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(names.len() > 28, "only {} MiB fit", names.len());
    db.sync().unwrap();
    for text in &names[..names.len() - 1] {
        assert!(
            content(
                &db,
                db.nodes()
                    .resolve(format!("/{text}").as_bytes(), true)
                    .unwrap()
                    .node
            ) == chunk
        );
    }
    for (round, text) in names.iter().enumerate().take(3) {
        db.nodes().unlink(NodeId::ROOT, &name(text)).unwrap();
        put(&db, NodeId::ROOT, &format!("again{round}"), &chunk);
    }
    db.sync().unwrap();
    assert_clean(&db);
}

#[test]
fn truncated_pages_of_the_map_never_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = make(&db, NodeId::ROOT, "f");
    let handle = db.nodes().open(node, true).unwrap();
    let mut model: Vec<u8> = Vec::new();
    // Map pages cover 8 MiB: cut inside one, between two, and write behind the cut again.
    for (step, len) in [
        20 << 20,
        9 << 20,
        17 << 20,
        8 << 20,
        8 << 20,
        30 << 20,
        1,
        12 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        handle.set_len(len as u64).unwrap();
        model.resize(len, 0);
        let tail = pattern(10_000.min(len), step as u64);
        handle.write_at((len - tail.len()) as u64, &tail).unwrap();
        model[len - tail.len()..].copy_from_slice(&tail);
        if step % 3 != 1 {
            handle.sync().unwrap();
        }
        assert!(content(&db, node) == model, "MAP-4, step {step}");
    }
    drop(handle);
    db.close().unwrap();
    let db = open(dir.path());
    assert!(content(&db, node) == model, "MAP-4");
    assert_clean(&db);
}

#[test]
fn sparse_files_take_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(32 << 20));
    let node = make(&db, NodeId::ROOT, "sparse");
    let handle = db.nodes().open(node, true).unwrap();
    handle.set_len(20 << 30).unwrap();
    handle.write_at(10 << 30, &pattern(4096, 9)).unwrap();
    handle.sync().unwrap();
    assert_eq!(handle.metadata().unwrap().allocated_bytes, 4096);
    assert_eq!(handle.seek(SeekTarget::Data, 0).unwrap(), Some(10 << 30));
    assert_eq!(
        handle.seek(SeekTarget::Hole, 10 << 30).unwrap(),
        Some((10 << 30) + 4096)
    );
    assert_eq!(
        handle.seek(SeekTarget::Data, (10 << 30) + 4096).unwrap(),
        None
    );
    let mut bytes = vec![1; 8192];
    handle.read_at((10 << 30) - 4096, &mut bytes).unwrap();
    assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..] == pattern(4096, 9));
    handle.set_len(1).unwrap();
    handle.sync().unwrap();
    assert_eq!(handle.metadata().unwrap().allocated_bytes, 0);
    drop(handle);
    assert_clean(&db);
}
