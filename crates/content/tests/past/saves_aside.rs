//! Saves by way of a backup (`SAVE-4`), saves after a crash, and what they cost.
use crate::common;

use crate::common::columns::{integer, text};
use crate::common::temporal::{create, query};
use crate::common::{assert_clean, put};
use crate::saves::{attached, ino, rated, rename, save};
use larder::{NodeId, RenameMode, SqlValue};
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;

/// Editors that set the old file aside (`SAVE-4`).
#[test]
fn a_file_that_is_set_aside_comes_back_as_the_new_one() {
    for is_synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (db, other) = rated(dir.path());
        let first = ino(&db, "/f");
        other.run(
            "CREATE UNIQUE INDEX file ON main (file_id);
             CREATE UNIQUE INDEX tags ON main (tag) WHERE tag <> 'none'",
        );
        let sync = || {
            if is_synced {
                db.sync().unwrap();
            }
        };
        let aside = |to: &str| {
            rename(&db, "f", to, RenameMode::Replace);
            sync();
        };
        let is_it = |what: &str| {
            assert_eq!(
                attached(&db, "/f"),
                [integer(5), text("sea"), integer(first)],
                "{what}"
            );
            let ids = "SELECT count(*) - count(DISTINCT file_id) FROM main";
            assert_eq!(query(&db, ids).concat(), [integer(0)], "SAVE-1, {what}");
            assert_clean(&db);
        };
        // vim, backupcopy=no: the backup goes at the end.
        aside("f~");
        put(&db, R, "f", b"vim");
        sync();
        is_it("while the backup is there");
        db.nodes().unlink(R, &common::name("f~")).unwrap();
        sync();
        is_it("vim");
        // emacs: it stays, and goes with the next one.
        for round in 0..3_u8 {
            aside("f~");
            put(&db, R, "f", &[round]);
            sync();
            is_it("emacs");
            assert_eq!(attached(&db, "/f~")[..2], [SqlValue::Null, text("none")]);
        }
        // A save that fails puts the backup back.
        aside("f~");
        put(&db, R, "f", b"half");
        sync();
        rename(&db, "f~", "f", RenameMode::Replace);
        sync();
        is_it("put back");
        aside("f~");
        rename(&db, "f~", "f", RenameMode::NoReplace);
        is_it("put back at once");
        // Whatever it is called, when it goes; the new file was renamed to its place.
        aside("f.old");
        put(&db, R, "f.new", b"new");
        rename(&db, "f.new", "f", RenameMode::NoReplace);
        sync();
        assert_eq!(
            attached(&db, "/f")[0],
            SqlValue::Null,
            "not before the old one goes"
        );
        db.nodes().unlink(R, &common::name("f.old")).unwrap();
        is_it("by three names");
        // A backup of another name stays what it is.
        aside("f.1");
        put(&db, R, "f", b"a log that is rotated");
        sync();
        assert_eq!(attached(&db, "/f.1")[2], integer(first));
        assert_eq!(attached(&db, "/f")[0], SqlValue::Null);
        assert_clean(&db);
    }
}

/// Programs that copy extended attributes, user columns among them, to the new file.
#[test]
fn a_new_file_with_the_same_columns_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _) = rated(dir.path());
    let first = ino(&db, "/f");
    let tmp = put(&db, R, "tmp", b"new");
    let set = |value: &[u8]| {
        let mode = larder::XattrMode::Set;
        db.attributes()
            .set(tmp, common::columns::RATING, value, mode)
            .unwrap();
    };
    set(b"5");
    rename(&db, "tmp", "f", RenameMode::Replace);
    assert_eq!(
        attached(&db, "/f"),
        [integer(5), text("sea"), integer(first)]
    );
    assert_clean(&db);
}

/// What a crash leaves is a save as a whole, or none of it.
#[test]
fn a_crash_leaves_whole_saves() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let first = ino(&db, "/f");
    other.run(&format!(
        "CREATE TABLE album (photo INTEGER REFERENCES main (ino) ON DELETE CASCADE);
         PRAGMA foreign_keys = 1; INSERT INTO album VALUES ({first});"
    ));
    for round in 0..12_u8 {
        // Some of it may be committed by now, or nothing.
        save(&db, "f", &[round], round % 3 == 0);
        std::thread::sleep(Duration::from_millis(15));
        let copy = tempfile::tempdir().unwrap();
        common::crash(dir.path(), copy.path());
        let after = common::open(copy.path());
        let told = attached(&after, "/f");
        assert_eq!(told, [integer(5), text("sea"), integer(first)], "SAVE-2");
        let photo = query(&after, "SELECT photo FROM album").concat();
        assert_eq!(photo, [integer(ino(&after, "/f"))]);
        assert_clean(&after);
    }
}

/// What saves cost in a store without anything attached, and what they would without that.
#[test]
#[ignore = "a measurement: cargo test -p larder --test past saves_cost_little -- --ignored \
    --nocapture"]
fn saves_cost_little() {
    let dir = common::scratch();
    let db = create(dir.path());
    let round = |keeps: bool| {
        db.stores().set_save_keeps("main", keeps).unwrap();
        let began = Instant::now();
        for at in 0..5000 {
            put(&db, R, "tmp", b"x");
            rename(&db, "tmp", &format!("f{}", at % 500), RenameMode::Replace);
        }
        db.sync().unwrap();
        began.elapsed() / 5000
    };
    round(true);
    let mut best = [Duration::MAX; 2];
    for _ in 0..7 {
        for (best, keeps) in best.iter_mut().zip([false, true]) {
            *best = round(keeps).min(*best);
        }
    }
    println!(
        "a save: {:?} without, {:?} with what is attached",
        best[0], best[1]
    );
}
