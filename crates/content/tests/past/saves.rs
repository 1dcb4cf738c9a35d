//! Saving a file keeps what users attached to it (`SAVE-1` to `SAVE-3`).
use crate::common;

use crate::common::columns::{integer, text};
use crate::common::temporal::{Client, client, create, moment, query};
use crate::common::{assert_clean, folder, kind, name, pattern, put};
use larder::{Database, ErrorKind, NodeId, RenameMode, SqlValue};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;

/// A database with a rated file `f`, an album that refers to it in every way, and another program's
/// eyes on it.
pub(crate) fn rated(dir: &std::path::Path) -> (Database, Client) {
    let db = create(dir);
    let other = client(dir);
    put(&db, R, "f", b"old");
    db.sync().unwrap();
    other.run(
        "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 1 AND 5);
         ALTER TABLE main ADD COLUMN tag TEXT DEFAULT none;
         UPDATE main SET rating = 5, tag = 'sea' WHERE ino = (SELECT ino FROM main_path WHERE \
         path = '/f');",
    );
    (db, other)
}

/// Writes a new file and renames it over `to`; with a sync after each step these are commits of
/// their own.
pub(crate) fn save(db: &Database, to: &str, bytes: &[u8], is_synced: bool) {
    let sync = || {
        if is_synced {
            db.sync().unwrap();
        }
    };
    put(db, R, "f.tmp", bytes);
    sync();
    rename(db, "f.tmp", to, RenameMode::Replace);
    sync();
}

pub(crate) fn rename(db: &Database, from: &str, to: &str, mode: RenameMode) {
    db.nodes()
        .rename(R, &name(from), R, &name(to), mode)
        .unwrap();
}

pub(crate) fn ino(db: &Database, path: &str) -> i64 {
    db.nodes()
        .resolve(path.as_bytes(), false)
        .unwrap()
        .node
        .ino
        .0 as i64
}

/// `rating`, `tag` and `file_id` of a path.
pub(crate) fn attached(db: &Database, path: &str) -> Vec<SqlValue> {
    db.sync().unwrap();
    let sql = format!(
        "SELECT rating, tag, file_id FROM main JOIN main_path USING (ino) WHERE path = '{path}'"
    );
    query(db, &sql).concat()
}

/// What others commit is noticed a moment later.
fn when(is_it: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_it() {
        assert!(Instant::now() < end, "it is never noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn user_columns_and_file_id_go_along() {
    for is_synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (db, _) = rated(dir.path());
        let first = ino(&db, "/f");
        for round in 0..3_u8 {
            save(&db, "f", &[round], is_synced);
            let now = ino(&db, "/f");
            assert_ne!(now, first, "st_ino is that of the new file");
            assert_eq!(
                attached(&db, "/f"),
                [integer(5), text("sea"), integer(first)],
                "SAVE-2, round {round}"
            );
            assert_eq!(db.files().read(b"/f").unwrap(), [round]);
        }
        // Chains in one group: the second replaces what is in no commit yet.
        for round in 0..4_u8 {
            save(&db, "f", &[round, round], false);
        }
        assert_eq!(
            attached(&db, "/f"),
            [integer(5), text("sea"), integer(first)]
        );
        let ids = "SELECT count(*) - count(DISTINCT file_id) FROM main";
        assert_eq!(query(&db, ids).concat(), [integer(0)], "SAVE-1");
        assert_clean(&db);
    }
}

#[test]
fn a_file_of_its_own_stays_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    put(&db, R, "own", b"own");
    put(&db, R, "named", b"named");
    db.sync().unwrap();
    other.run(
        "UPDATE main SET rating = 1 WHERE ino = (SELECT ino FROM main_path WHERE path = '/own');
         CREATE TABLE note (file INTEGER REFERENCES main (ino) ON DELETE CASCADE, text);
         INSERT INTO note SELECT ino, path FROM main_path WHERE path IN ('/named', '/f');",
    );
    let named = ino(&db, "/named");
    rename(&db, "named", "f", RenameMode::Replace);
    assert_eq!(
        attached(&db, "/f")[2],
        integer(named),
        "SAVE-2: both or none"
    );
    let notes = "SELECT text FROM note";
    assert_eq!(query(&db, notes).concat(), [text("/named")]);
    let own = ino(&db, "/own");
    put(&db, R, "g", b"g");
    db.sync().unwrap();
    other.run(
        "UPDATE main SET rating = 2 WHERE ino = (SELECT ino FROM main_path WHERE path = '/g')",
    );
    rename(&db, "own", "g", RenameMode::Replace);
    assert_eq!(
        attached(&db, "/g"),
        [integer(1), text("none"), integer(own)]
    );
    assert_clean(&db);
}

#[test]
fn hard_links_exchanges_directories_and_stores() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _) = rated(dir.path());
    let f = db.nodes().resolve(b"/f", false).unwrap().node;
    let first = f.ino.0 as i64;
    // The other name keeps its own.
    db.nodes().link(f, R, &name("other")).unwrap();
    save(&db, "f", b"new", true);
    assert_eq!(
        attached(&db, "/other"),
        [integer(5), text("sea"), integer(first)]
    );
    let new = ino(&db, "/f");
    assert_eq!(
        attached(&db, "/f"),
        [SqlValue::Null, text("none"), integer(new)]
    );
    // What is exchanged goes with its inode.
    rename(&db, "f", "other", RenameMode::Exchange);
    assert_eq!(
        attached(&db, "/f"),
        [integer(5), text("sea"), integer(first)]
    );
    // A hard link of the new file does not matter.
    let tmp = put(&db, R, "tmp", b"tmp");
    db.nodes().link(tmp, R, &name("tmp2")).unwrap();
    rename(&db, "tmp", "f", RenameMode::Replace);
    assert_eq!(attached(&db, "/f")[0], integer(5));
    assert_eq!(attached(&db, "/tmp2")[2], integer(first), "one inode");
    // Directories and links are no saves.
    folder(&db, R, "d");
    folder(&db, R, "e");
    let (d, e) = (ino(&db, "/d"), ino(&db, "/e"));
    query(&db, &format!("UPDATE main SET rating = 3 WHERE ino = {e}"));
    rename(&db, "d", "e", RenameMode::Replace);
    assert_eq!(
        attached(&db, "/e"),
        [SqlValue::Null, text("none"), integer(d)]
    );
    // Across stores there is no rename, so no save.
    db.stores().create("raw", "files", None, None).unwrap();
    let raw = db.nodes().resolve(b"/raw", false).unwrap().node;
    put(&db, raw, "x", b"x");
    let moved = db
        .nodes()
        .rename(raw, &name("x"), R, &name("f"), RenameMode::Replace);
    assert_eq!(kind(moved), ErrorKind::CrossStore);
    // What is removed and made anew is another file.
    db.nodes().unlink(R, &name("f")).unwrap();
    put(&db, R, "f", b"another");
    assert_eq!(attached(&db, "/f")[0], SqlValue::Null);
    assert_clean(&db);
}

/// Whatever a foreign key would do to its rows when the inode went.
#[test]
fn rows_that_refer_to_the_file_follow() {
    for action in [
        "ON DELETE CASCADE",
        "ON DELETE SET NULL",
        "ON DELETE RESTRICT",
        "ON UPDATE RESTRICT ON DELETE CASCADE",
        "DEFERRABLE INITIALLY DEFERRED",
        "",
    ] {
        for is_synced in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (db, other) = rated(dir.path());
            let first = ino(&db, "/f");
            other.run(&format!(
                "CREATE UNIQUE INDEX file ON main (file_id);
                 CREATE TABLE album (id INTEGER PRIMARY KEY, photo INTEGER REFERENCES main (ino) \
                 {action},
                   file INTEGER REFERENCES main (file_id) {action});
                 CREATE TABLE star (ino INTEGER PRIMARY KEY REFERENCES main {action}, n);
                 ALTER TABLE main ADD COLUMN cover INTEGER REFERENCES main (ino) {action};
                 CREATE UNIQUE INDEX tags ON main (tag) WHERE tag <> 'none';
                 PRAGMA foreign_keys = 1;
                 INSERT INTO album (photo, file) VALUES ({first}, {first}), (1, 1);
                 INSERT INTO star VALUES ({first}, 9);
                 UPDATE main SET cover = {first} WHERE ino IN (1, {first});"
            ));
            for round in 0..3_u8 {
                save(&db, "f", &[round], is_synced);
            }
            let now = ino(&db, "/f");
            assert_eq!(
                attached(&db, "/f"),
                [integer(5), text("sea"), integer(first)]
            );
            assert_eq!(
                query(&db, "SELECT photo, file FROM album ORDER BY id"),
                [[integer(now), integer(first)], [integer(1), integer(1)]],
                "{action}"
            );
            let stars = "SELECT ino, n FROM star";
            assert_eq!(query(&db, stars), [[integer(now), integer(9)]], "{action}");
            let covers = "SELECT ino FROM main WHERE cover = (SELECT ino FROM star) ORDER BY ino";
            assert_eq!(
                query(&db, covers),
                [[integer(1)], [integer(now)]],
                "{action}"
            );
            let broken = "SELECT count(*) FROM pragma_foreign_key_check";
            assert_eq!(query(&db, broken).concat(), [integer(0)]);
            assert_clean(&db);
            // And then its actions act, as ever.
            if action == "ON DELETE CASCADE" {
                query(&db, "UPDATE main SET cover = NULL");
                db.nodes().unlink(R, &name("f")).unwrap();
                db.sync().unwrap();
                assert_eq!(query(&db, "SELECT id FROM album"), [[integer(2)]]);
            }
        }
    }
}

/// Somebody has the old file open: its row stays, and takes nothing of what went over.
#[test]
fn an_open_file_that_is_replaced_gives_all_away() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    other.run("CREATE UNIQUE INDEX tags ON main (tag) WHERE tag <> 'none'");
    let first = ino(&db, "/f");
    let open = db
        .nodes()
        .open(db.nodes().resolve(b"/f", false).unwrap().node, false);
    save(&db, "f", b"new", true);
    assert_eq!(
        attached(&db, "/f"),
        [integer(5), text("sea"), integer(first)]
    );
    let orphan = format!("SELECT rating, tag, file_id FROM main WHERE ino = {first}");
    assert_eq!(
        query(&db, &orphan).concat(),
        [SqlValue::Null, text("none"), integer(-first)],
        "SAVE-1"
    );
    assert_clean(&db);
    drop(open);
    db.sync().unwrap();
    db.close().unwrap();
    let db = common::open(dir.path());
    assert_eq!(
        attached(&db, "/f"),
        [integer(5), text("sea"), integer(first)]
    );
    assert_clean(&db);
}

#[test]
fn a_store_can_keep_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _) = rated(dir.path());
    assert!(db.stores().save_keeps("main").unwrap());
    db.stores().set_save_keeps("main", false).unwrap();
    save(&db, "f", b"new", false);
    let new = ino(&db, "/f");
    assert_eq!(
        attached(&db, "/f"),
        [SqlValue::Null, text("none"), integer(new)]
    );
    db.stores().set_save_keeps("main", true).unwrap();
    query(
        &db,
        &format!("UPDATE main SET rating = 4 WHERE ino = {new}"),
    );
    save(&db, "f", b"newer", false);
    assert_eq!(
        attached(&db, "/f"),
        [integer(4), text("none"), integer(new)]
    );
    assert_eq!(
        kind(db.stores().set_save_keeps("absent", true)),
        ErrorKind::NotFound
    );
}

/// What the new file must not have refuses the save before it is answered, and nothing is lost.
#[test]
fn a_constraint_may_refuse_a_save() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    other.run(
        "CREATE TRIGGER mine BEFORE UPDATE OF rating ON main WHEN NEW.rating = 5 AND NEW.size > 100
         BEGIN SELECT RAISE(ABORT, 'too long for five stars'); END",
    );
    put(&db, R, "long", &pattern(5000, 1));
    db.sync().unwrap();
    db.close().unwrap();
    let db = common::open(dir.path()); // It knows of the trigger.
    let refused = db
        .nodes()
        .rename(R, &name("long"), R, &name("f"), RenameMode::Replace);
    assert_eq!(kind(refused), ErrorKind::NotPermitted);
    assert_eq!(db.files().read(b"/f").unwrap(), b"old");
    save(&db, "f", b"short", true);
    assert_eq!(attached(&db, "/f")[0], integer(5));
    assert_clean(&db);
}

#[test]
fn the_past_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    db.sql().track_table("main").unwrap();
    other.run(
        "CREATE TABLE album (id INTEGER PRIMARY KEY, photo INTEGER REFERENCES main (ino) ON \
         DELETE CASCADE)",
    );
    db.sql().track_table("album").unwrap();
    let first = ino(&db, "/f");
    query(&db, &format!("INSERT INTO album (photo) VALUES ({first})"));
    let before = moment(&db, 1);
    save(&db, "f", b"new", true);
    let after = moment(&db, 2);
    let now = ino(&db, "/f");
    query(
        &db,
        &format!("UPDATE main SET rating = 1 WHERE ino = {now}"),
    );
    let later = moment(&db, 3);
    save(&db, "f", b"newer", false);
    moment(&db, 4);
    let asked = |at: &larder::Moment| {
        let sql =
            "SELECT rating, file_id, ino FROM main JOIN main_path USING (ino) WHERE path = '/f'";
        common::columns::asked(&db, at, sql).concat()
    };
    assert_eq!(
        asked(&before),
        [integer(5), integer(first), integer(first)],
        "SAVE-3"
    );
    assert_eq!(
        asked(&after),
        [integer(5), integer(first), integer(now)],
        "SAVE-3"
    );
    assert_eq!(
        asked(&later),
        [integer(1), integer(first), integer(now)],
        "SAVE-3"
    );
    let photo = |at| common::temporal::as_of(&db, at, "album")[0][1].clone();
    assert_eq!(photo(&before), integer(first), "TEMPORAL-1");
    assert_eq!(photo(&after), integer(now), "TEMPORAL-1");
    assert_clean(&db);
}

fn seq(at: &larder::Moment) -> u64 {
    match at {
        larder::Moment::Seq(seq) => *seq,
        other => panic!("{other:?}"),
    }
}

/// The log of a path, newest first: path and event.
fn log(db: &Database, path: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    db.history()
        .log(path.map(str::as_bytes), None, &mut |commit| {
            let told = commit.changes.iter().map(|change| {
                let path = String::from_utf8_lossy(&change.path).into_owned();
                format!("{path} {:?}", change.event)
            });
            lines.extend(told.filter(|line| !line.starts_with("/moment")));
            ControlFlow::Continue(())
        })
        .unwrap();
    lines
}

#[test]
fn a_log_goes_through_saves() {
    for is_synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let db = create(dir.path());
        put(&db, R, "f", b"0");
        moment(&db, 0);
        for round in 1..4_u8 {
            save(&db, "f", &[round], is_synced);
            moment(&db, round.into());
        }
        rename(&db, "f", "g", RenameMode::Replace);
        moment(&db, 9);
        db.files().write(b"/g", b"in place").unwrap();
        let last = moment(&db, 10);
        let renamed = "/g Renamed { from: [47, 102] }";
        // A commit may come between a file and its content.
        let once = |lines: Vec<String>| {
            let mut lines: Vec<String> = lines;
            let count = lines.len();
            lines.dedup();
            (lines, count)
        };
        let (told, count) = once(log(&db, Some("/g")));
        assert_eq!(
            told,
            ["/g Content", renamed, "/f Content", "/f Created"],
            "one file"
        );
        assert!(count >= 6, "each save is told: {count}");
        let (of_tmp, of_f) = log(&db, None)
            .into_iter()
            .partition::<Vec<String>, _>(|line| line.starts_with("/f.tmp"));
        assert_eq!(of_f, log(&db, Some("/g")));
        // A commit of their own made the new files under their first names.
        assert!(!is_synced || of_tmp.len() >= 6, "{of_tmp:?}");
        // When it is gone the road is the same.
        db.nodes().unlink(R, &name("g")).unwrap();
        moment(&db, 11);
        let gone = log(&db, Some("/g"));
        assert_eq!(gone[0], "/g Removed");
        assert_eq!(gone[1..], of_f);
        // A diff sees one file that has other content.
        let past = db.as_of(&last).unwrap();
        assert_eq!(
            larder::diff((&past, b"/"), (&db, b"/"))
                .unwrap()
                .changes
                .len(),
            2
        );
    }
}

#[test]
fn an_undone_save_leaves_the_file_what_it_is() {
    for is_synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (db, other) = rated(dir.path());
        let first = ino(&db, "/f");
        other.run(&format!(
            "CREATE UNIQUE INDEX file ON main (file_id);
             CREATE TABLE album (photo INTEGER REFERENCES main (ino) ON DELETE CASCADE,
               file INTEGER REFERENCES main (file_id) ON DELETE CASCADE);
             PRAGMA foreign_keys = 1; INSERT INTO album VALUES ({first}, {first});"
        ));
        let before = moment(&db, 1);
        put(&db, R, "f.tmp", &pattern(300_000, 3));
        if is_synced {
            db.sync().unwrap();
        }
        rename(&db, "f.tmp", "f", RenameMode::Replace);
        db.sync().unwrap();
        let saved = query(
            &db,
            "SELECT value FROM larder_meta WHERE key = 'commit_seq'",
        )
        .concat();
        let [SqlValue::Integer(saved)] = saved[..] else {
            panic!("{saved:?}");
        };
        moment(&db, 2);
        let is_whole = |now: i64| {
            assert_eq!(
                attached(&db, "/f"),
                [integer(5), text("sea"), integer(first)]
            );
            let albums = query(&db, "SELECT photo, file FROM album");
            assert_eq!(albums, [[integer(now), integer(first)]]);
            assert_clean(&db);
        };
        is_whole(ino(&db, "/f"));
        db.history().undo(saved as u64, false).unwrap();
        assert_eq!(db.files().read(b"/f").unwrap(), b"old");
        is_whole(ino(&db, "/f"));
        // The new file is there again if it was committed before the save.
        let left = db.files().read(b"/f.tmp");
        match is_synced {
            true => {
                assert!(left.unwrap() == pattern(300_000, 3));
                db.nodes().unlink(R, &name("f.tmp")).unwrap();
            }
            false => assert_eq!(left.unwrap_err().kind(), ErrorKind::NotFound),
        }
        // A restore writes over the file that it is now; a rollback makes it the inode that it was.
        save(&db, "f", b"again", is_synced);
        let past = db.as_of(&before).unwrap();
        let options = larder::RestoreOptions::default();
        db.history().restore(&past, Some(b"/f"), &options).unwrap();
        assert_eq!(db.files().read(b"/f").unwrap(), b"old");
        is_whole(ino(&db, "/f"));
        save(&db, "f", b"once more", is_synced);
        let forth = moment(&db, 3);
        let then = ino(&db, "/f");
        db.history().rollback(&before, None, false).unwrap();
        assert_eq!(db.files().read(b"/f").unwrap(), b"old");
        assert_eq!(ino(&db, "/f"), first, "ROLLBACK-1");
        is_whole(first);
        db.history().rollback(&forth, None, false).unwrap();
        assert_eq!(db.files().read(b"/f").unwrap(), b"once more");
        is_whole(then);
        // What is removed and restored is the same file to who knows it by its number.
        query(&db, "DELETE FROM album");
        db.nodes().unlink(R, &name("f")).unwrap();
        moment(&db, 4);
        let past = db.as_of(&larder::Moment::Seq(seq(&forth))).unwrap();
        db.history().restore(&past, Some(b"/f"), &options).unwrap();
        assert_eq!(attached(&db, "/f")[2], integer(first), "SAVE-1");
        assert_clean(&db);
    }
}

/// A long transaction is merged by rows.
#[test]
fn a_long_transaction_saves_too() {
    use crate::common::workspace::{begin, conflicts};
    for is_open in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (db, other) = rated(dir.path());
        db.sql().track_table("main").unwrap();
        let first = ino(&db, "/f");
        other.run(&format!(
            "CREATE UNIQUE INDEX file ON main (file_id);
             CREATE UNIQUE INDEX tags ON main (tag) WHERE tag <> 'none';
             CREATE TABLE album (id INTEGER PRIMARY KEY, photo INTEGER REFERENCES main (ino) ON \
             DELETE CASCADE,
               file INTEGER REFERENCES main (file_id) ON DELETE CASCADE);
             PRAGMA foreign_keys = 1; INSERT INTO album VALUES (1, {first}, {first});"
        ));
        let before = moment(&db, 1);
        let node = db.nodes().resolve(b"/f", false).unwrap().node;
        let open = is_open.then(|| db.nodes().open(node, false).unwrap());
        let txn = begin(&dir.path().join("t.larder"));
        let own = txn.database().unwrap();
        save(own, "f", b"one", true);
        save(own, "f", b"two", false);
        own.sync().unwrap();
        let told = conflicts(txn.commit().unwrap());
        assert_eq!(told, Vec::<String>::new());
        when(|| db.files().read(b"/f").unwrap() == b"two");
        let now = ino(&db, "/f");
        assert_ne!(now, first);
        assert_eq!(
            attached(&db, "/f"),
            [integer(5), text("sea"), integer(first)]
        );
        let albums = query(&db, "SELECT photo, file FROM album");
        assert_eq!(albums, [[integer(now), integer(first)]]);
        assert_clean(&db);
        drop(open);
        moment(&db, 2);
        let sql =
            "SELECT rating, file_id, ino FROM main JOIN main_path USING (ino) WHERE path = '/f'";
        let asked = common::columns::asked(&db, &before, sql).concat();
        assert_eq!(
            asked,
            [integer(5), integer(first), integer(first)],
            "SAVE-3"
        );
        assert_eq!(attached(&db, "/f")[0], integer(5));
        // Who rates the file meanwhile is in conflict with who replaces it.
        let txn = begin(&dir.path().join("t.larder"));
        save(txn.database().unwrap(), "f", b"three", true);
        query(
            &db,
            &format!("UPDATE main SET rating = 1 WHERE ino = {now}"),
        );
        let told = conflicts(txn.commit().unwrap()).concat();
        assert!(told.contains("changed there and removed here"), "{told}");
        assert_eq!(
            attached(&db, "/f"),
            [integer(1), text("sea"), integer(first)]
        );
        assert_clean(&db);
    }
}

#[test]
fn a_short_transaction_saves_or_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let first = ino(&db, "/f");
    other.run(&format!(
        "CREATE TABLE album (photo INTEGER REFERENCES main (ino) ON DELETE CASCADE);
         PRAGMA foreign_keys = 1; INSERT INTO album VALUES ({first});"
    ));
    for commits in [false, true] {
        let txn = db.transactions().begin().unwrap();
        txn.files().write(b"/tmp", b"new").unwrap();
        txn.nodes()
            .rename(R, &name("tmp"), R, &name("f"), RenameMode::Replace)
            .unwrap();
        let seen = "SELECT rating, file_id FROM main JOIN main_path USING (ino) WHERE path = '/f'";
        let row = txn.sql(seen, &[]).unwrap().rows.remove(0).values;
        assert_eq!(row, [integer(5), integer(first)], "its own SQL sees it");
        match commits {
            true => txn.commit().unwrap(),
            false => txn.abort(),
        }
        assert_eq!(
            attached(&db, "/f"),
            [integer(5), text("sea"), integer(first)]
        );
        let photo = query(&db, "SELECT photo FROM album").concat();
        assert_eq!(photo, [integer(ino(&db, "/f"))]);
        assert_eq!(ino(&db, "/f") == first, !commits);
        assert_clean(&db);
    }
}
