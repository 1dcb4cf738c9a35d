//! Files as rows: user columns and constraints, stores, and several sessions at once.

use crate::common::*;
use larder::{ErrorKind, NewNode, NodeId, RenameMode, SetAttr, SqlValue, XattrMode};
use std::time::{Duration, Instant};

#[test]
fn attributes_and_user_columns_show_as_xattrs_and_rows() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = put(&db, NodeId::ROOT, "photo.jpg", b"jpeg");
    db.attributes()
        .set(node, b"user.note", b"hello", XattrMode::Create)
        .unwrap();
    assert_eq!(
        kind(
            db.attributes()
                .set(node, b"user.note", b"x", XattrMode::Create)
        ),
        ErrorKind::Exists
    );
    assert_eq!(
        kind(
            db.attributes()
                .set(node, b"user.none", b"x", XattrMode::Replace)
        ),
        ErrorKind::NoAttribute
    );
    assert_eq!(
        kind(
            db.attributes()
                .set(node, b"user.column.place", b"x", XattrMode::Set)
        ),
        ErrorKind::NoAttribute
    );
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    sql.execute(
        "ALTER TABLE main ADD COLUMN place TEXT; UPDATE main SET place = 'Split', mode = \
        384 WHERE kind = 'file'",
        &mut |_| Ok(()),
    )
    .unwrap();
    let patience = Instant::now();
    while db.nodes().metadata(node).unwrap().mode != 0o600 {
        assert!(
            patience.elapsed() < Duration::from_secs(2),
            "a foreign chmod is seen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        db.attributes().get(node, b"user.column.place").unwrap(),
        b"Split"
    );
    db.attributes()
        .set(node, b"user.column.place", b"Zadar", XattrMode::Replace)
        .unwrap();
    let mut places = Vec::new();
    sql.execute(
        "SELECT path, place FROM main JOIN main_path USING (ino) WHERE place IS NOT NULL",
        &mut |row| {
            places.push(row.values.clone());
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(
        places,
        [[
            SqlValue::Text("/photo.jpg".into()),
            SqlValue::Text("Zadar".into())
        ]]
    );
    let mut names = db.attributes().list(node).unwrap();
    names.sort();
    assert_eq!(
        names,
        [b"user.column.place".to_vec(), b"user.note".to_vec()]
    );
    let refused = sql
        .execute("UPDATE main SET size = 7", &mut |_| Ok(()))
        .unwrap_err();
    assert!(refused.to_string().contains("size"), "{refused}");
    assert_clean(&db);
}

#[test]
fn stores_are_dispatched_by_the_longest_mount() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.stores().create("photos", "files", None, None).unwrap();
    db.stores()
        .create("raw", "files", Some("/photos/raw"), None)
        .unwrap();
    db.stores()
        .create("shown", "readonly", None, Some("photos"))
        .unwrap();
    assert_eq!(
        kind(db.stores().create("x", "files", Some("/a/b"), None)),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(db.stores().create("x", "magic", None, None)),
        ErrorKind::InvalidInput
    );
    let photos = db.nodes().resolve(b"/photos", true).unwrap().node;
    put(&db, photos, "a.jpg", b"a");
    let raw = db.nodes().resolve(b"/photos/raw", true).unwrap().node;
    assert_ne!(raw.store, photos.store);
    put(&db, raw, "a.raw", b"r");
    assert_eq!(db.nodes().parent(raw).unwrap(), photos);
    let listed: Vec<String> = db
        .nodes()
        .read_dir(photos, None, 100)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.to_string())
        .collect();
    assert_eq!(listed, ["a.jpg", "raw"], "CONTENT-1");
    let shown = db.nodes().resolve(b"/shown/a.jpg", true).unwrap();
    assert_eq!(content(&db, shown.node), b"a");
    assert_eq!(
        kind(db.nodes().open(shown.node, true).map(drop)),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(db.nodes().set_attr(shown.node, &SetAttr::default())),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(
            db.nodes()
                .create_node(NodeId::ROOT, &name("photos"), NewNode::File, 0, OWNER)
        ),
        ErrorKind::Exists
    );
    assert_eq!(
        kind(db.nodes().rename(
            photos,
            &name("a.jpg"),
            NodeId::ROOT,
            &name("b"),
            RenameMode::Replace
        )),
        ErrorKind::CrossStore,
        "CONTENT-2"
    );
    assert_clean(&db);
    assert_eq!(kind(db.stores().destroy("main")), ErrorKind::InvalidInput);
    db.stores().destroy("raw").unwrap();
    assert_eq!(
        kind(db.nodes().resolve(b"/photos/raw", true)),
        ErrorKind::NotFound
    );
    assert_clean(&db);
}

#[test]
fn two_sessions_see_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let one = create_without_history(dir.path(), None);
    let two = open(dir.path());
    let data = pattern(100_000, 5);
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        put(from, NodeId::ROOT, &format!("r{round}"), &data);
        from.sync().unwrap();
        let patience = Instant::now();
        let seen = loop {
            match to.nodes().resolve(format!("/r{round}").as_bytes(), true) {
                Ok(attr) => break attr,
                Err(error) => assert!(patience.elapsed() < Duration::from_secs(30), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(content(to, seen.node) == data, "round {round}");
        if round % 3 == 2 {
            to.nodes()
                .unlink(NodeId::ROOT, &name(&format!("r{round}")))
                .unwrap();
        }
    }
    // Both write at the same time, and one unlinks what the other has open.
    std::thread::scope(|scope| {
        for (who, db) in [("a", &one), ("b", &two)] {
            let data = &data;
            scope.spawn(move || {
                for index in 0..60 {
                    put(db, NodeId::ROOT, &format!("{who}{index}"), data);
                    if index % 4 == 0 {
                        db.nodes()
                            .unlink(NodeId::ROOT, &name(&format!("{who}{index}")))
                            .unwrap();
                    }
                }
                db.sync().unwrap();
            });
        }
    });
    let held = one.nodes().resolve(b"/a1", true).unwrap().node;
    let handle = one.nodes().open(held, false).unwrap();
    two.nodes().unlink(NodeId::ROOT, &name("a1")).unwrap();
    for index in 0..40 {
        put(
            &two,
            NodeId::ROOT,
            &format!("more{index}"),
            &pattern(100_000, index),
        );
        two.sync().unwrap();
    }
    let mut bytes = vec![0; data.len()];
    handle.read_at(0, &mut bytes).unwrap();
    assert!(
        bytes == data,
        "SESSION-2, SESSION-3: what one has open the other does not reuse"
    );
    drop(handle);
    assert_clean(&one);
    two.close().unwrap();
    assert_clean(&one);
    one.close().unwrap();
    let db = open(dir.path());
    assert_clean(&db);
    let space = db.maintenance().space().unwrap();
    assert_eq!(space.retired_bytes, 0, "{space:?}");
}

#[test]
fn a_foreign_key_of_the_users_refuses_unlink_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let kept = put(&db, NodeId::ROOT, "kept", b"contract");
    put(&db, NodeId::ROOT, "free", b"draft");
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    sql.execute(
        "CREATE TABLE deal (id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES main \
        (ino) ON DELETE RESTRICT)",
        &mut |_| Ok(()),
    )
    .unwrap();
    sql.execute(
        &format!("INSERT INTO deal (file) VALUES ({})", kept.ino),
        &mut |_| Ok(()),
    )
    .unwrap();
    // The schema change is a foreign commit: noticed within a tick of 20 ms.
    std::thread::sleep(Duration::from_millis(200));
    db.nodes()
        .rename(
            NodeId::ROOT,
            &name("kept"),
            NodeId::ROOT,
            &name("kept2"),
            RenameMode::Replace,
        )
        .unwrap();
    let refused = db.nodes().unlink(NodeId::ROOT, &name("kept2")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    assert!(refused.to_string().contains("FOREIGN KEY"), "{refused}");
    let replace = |from: &str| {
        let (from, to) = (name(from), name("kept2"));
        db.nodes()
            .rename(NodeId::ROOT, &from, NodeId::ROOT, &to, RenameMode::Replace)
    };
    // Where a save keeps nothing it is a removal too; else the row follows.
    db.stores().set_save_keeps("main", false).unwrap();
    let refused = replace("free").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    db.stores().set_save_keeps("main", true).unwrap();
    let new = put(&db, NodeId::ROOT, "new", b"contract");
    replace("new").unwrap();
    db.sync().unwrap();
    let mut file = Vec::new();
    sql.execute("SELECT file FROM deal", &mut |row| {
        file.extend(row.values);
        Ok(())
    })
    .unwrap();
    assert_eq!(
        file,
        [larder::SqlValue::Integer(new.ino.0 as i64)],
        "SAVE-2"
    );
    assert_eq!(
        db.nodes()
            .unlink(NodeId::ROOT, &name("kept2"))
            .unwrap_err()
            .kind(),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        content(&db, db.nodes().resolve(b"/kept2", true).unwrap().node),
        b"contract"
    );
    db.nodes().unlink(NodeId::ROOT, &name("free")).unwrap();
    sql.execute("DELETE FROM deal", &mut |_| Ok(())).unwrap();
    db.nodes().unlink(NodeId::ROOT, &name("kept2")).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}
