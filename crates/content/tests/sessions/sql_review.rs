//! What a strict reader found wrong with the guards of SQL; each test failed before its mend.

use crate::common::others::{plain, settle};
use crate::common::{assert_clean, create, open, put, sql};
use larder::{Database, ErrorKind, NodeId, SqlValue};

fn integer(db: &Database, text: &str) -> i64 {
    let mut session = db.sql().open(false).unwrap();
    match &sql::run(&mut session, text).unwrap()[..] {
        [SqlValue::Integer(value)] => *value,
        other => panic!("{other:?}"),
    }
}

/// A user's trigger that changes its own table runs once, whatever else says `replace`.
#[test]
fn who_says_replace_and_means_the_function_starts_no_recursion() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut session = db.sql().open(false).unwrap();
    sql::run(
        &mut session,
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text, changed INTEGER NOT NULL DEFAULT 0);
         CREATE TRIGGER counts AFTER UPDATE ON notes
         BEGIN UPDATE notes SET changed = changed + 1 WHERE id = NEW.id; END;
         INSERT INTO notes (text) VALUES ('please replace it')",
    )
    .unwrap();
    let set = "UPDATE notes SET text = replace(text, 'it', 'that')";
    sql::run(&mut session, set).unwrap();
    assert_eq!(integer(&db, "SELECT changed FROM notes"), 1);
    sql::run(&mut session, "UPDATE notes SET text = 'OR REPLACE'").unwrap();
    assert_eq!(integer(&db, "SELECT changed FROM notes"), 2);
    // Triggers of ours, which call the function.
    db.sql().track_table("notes").unwrap();
    sql::run(&mut session, "UPDATE notes SET text = 'c'").unwrap();
    db.transactions()
        .run(|txn| txn.sql("UPDATE notes SET text = 'd'", &[]).map(drop))
        .unwrap();
    assert_eq!(integer(&db, "SELECT changed FROM notes"), 4);
    drop(session);
    assert_clean(&db);
}

/// The session knows whether deletes by REPLACE are seen: its user does not change that behind its
/// back.
#[test]
fn no_setting_hides_from_the_guards_what_replace_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let [a, b] = ["a", "b"].map(|text| put(&db, NodeId::ROOT, text, b"content").ino);
    db.sync().unwrap();
    let mut session = db.sql().open(false).unwrap();
    sql::run(
        &mut session,
        &format!(
            "ALTER TABLE main ADD COLUMN tag; CREATE UNIQUE INDEX by_tag ON main (tag);
             UPDATE main SET tag = 'a' WHERE ino = {a}; CREATE TABLE n (n PRIMARY KEY);
             INSERT OR REPLACE INTO n VALUES (1)"
        ),
    )
    .unwrap();
    for setting in [
        "PRAGMA recursive_triggers = OFF",
        "PRAGMA main.Recursive_Triggers(0)",
        "PRAGMA recursive_triggers = ON",
    ] {
        let replace = format!("UPDATE OR REPLACE main SET tag = 'a' WHERE ino = {b}");
        let told = sql::told(&mut session, &format!("{setting}; {replace}"));
        assert!(told.contains("leave out"), "CATALOG-3: {setting}: {told}");
        let told = sql::told(&mut session, &replace);
        assert!(told.contains("through the mount"), "CATALOG-3: {told}");
    }
    // To ask is allowed.
    sql::run(&mut session, "PRAGMA recursive_triggers").unwrap();
    drop(session);
    assert_clean(&db);
}

/// SQLite keeps the names of triggers apart from those of tables, views and indexes (`SAFE-3`).
#[test]
fn a_trigger_may_have_the_name_of_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.stores().create("other", "files", None, None).unwrap();
    plain(
        dir.path(),
        "CREATE TABLE idle (x); CREATE TRIGGER other AFTER UPDATE ON main BEGIN \
         INSERT INTO idle VALUES (NEW.ino); END; \
         CREATE TRIGGER larder_store AFTER INSERT ON idle BEGIN SELECT 1; END",
    );
    let all = [db.clone()];
    settle(dir.path(), &all);
    db.files().write(b"/other/n1", b"content").unwrap();
    db.sync().unwrap();
    let fresh = open(dir.path());
    assert_eq!(fresh.files().read(b"/other/n1").unwrap(), b"content");
    fresh.close().unwrap();
    assert_clean(&db);
    // One that exists already keeps a store from its name.
    let taken = db.stores().create("idle", "files", None, None).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Exists);
}
