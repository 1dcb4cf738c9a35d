//! A database of each format that was ever released reads as it was written: `tests/golden/vN`.
//!
//! It is what a kill left: its log not copied, small overwrites not written in place, and most of
//! what a database may hold. Beside it stands what is in it, as people see it. What a later version
//! does not read as it was is a new format.
use crate::common;
use crate::common::moments::{Clock, HOUR, SECOND};
use crate::common::sql::integer;
use crate::common::temporal::{as_of, client, present, query};
use crate::common::{OWNER, assert_clean, crash, folder, name, put};
use crate::world::see;
use larder::{
    Database, DefragOptions, ErrorKind, Moment, NewNode, NodeId, RenameMode, SetAttr, SetTime,
    VerifyOptions, XattrMode,
};
use larder_testkit::EntryKind;
use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const R: NodeId = NodeId::ROOT;
const SEGMENT: &str = "segments/00000.seg";
const SNAPSHOTS: [&str; 3] = ["first", "second", "third"];

fn golden(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/golden/v{format}"))
}

/// Bytes that no two blocks have in common, and that take little room in an archive.
fn lines(len_bytes: usize, salt: u64) -> Vec<u8> {
    let line = |number: u64| format!("{salt:07} {number:07}\n").into_bytes();
    (0..).flat_map(line).take(len_bytes).collect()
}

/// FNV-1a: the same for ever, other than the standard library's.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn run(db: &Database, text: &str) {
    query(db, text);
}

/// Everything that a database may hold, in three moments and a present.
fn furnish(clock: &Clock, dir: &Path) -> Database {
    let db = clock.create(dir, 64, HOUR);
    let step = || {
        db.sync().unwrap();
        clock.pass(SECOND);
    };
    let docs = folder(&db, R, "docs");
    let deep = folder(&db, docs, "größer 漢字");
    put(&db, deep, "inline", b"a few bytes");
    put(&db, docs, "empty", b"");
    let large = put(&db, docs, "large", &lines(2 << 20, 1));
    let spliced = put(&db, docs, "spliced", &lines(1 << 20, 2));
    let sparse = put(&db, docs, "sparse", &lines(70_000, 3));
    let file = db.nodes().open(sparse, true).unwrap();
    file.write_at(20 << 20, &lines(100_000, 4)).unwrap();
    file.set_len(30 << 20).unwrap();
    drop(file);
    let linked = put(&db, docs, "one name", &lines(9000, 5));
    db.nodes()
        .link(linked, deep, &name("another name"))
        .unwrap();
    db.attributes()
        .set(linked, b"user.author", b"somebody", XattrMode::Set)
        .unwrap();
    db.nodes()
        .create_node(
            docs,
            &name("link"),
            NewNode::Symlink(b"large"),
            0o777,
            OWNER,
        )
        .unwrap();
    db.stores().create("mail", "files", None, None).unwrap();
    db.files().write(b"/mail/letter", lines(5000, 6)).unwrap();
    db.files().write(b"/mail/note", b"short").unwrap();
    step();
    let owner = client(dir);
    owner.run(
        "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 1 AND 5);
         CREATE TABLE album (id INTEGER PRIMARY KEY, title TEXT, year REAL, cover BLOB,
           UNIQUE (title));
         CREATE TABLE page (album INTEGER REFERENCES album (id) ON DELETE CASCADE, number INTEGER);
         CREATE INDEX album_year ON album (year);
         CREATE VIEW titles AS SELECT title FROM album;
         CREATE TABLE sent (ino INTEGER, at TEXT DEFAULT 'then');
         CREATE TRIGGER mail_sent AFTER INSERT ON mail BEGIN
           INSERT INTO sent (ino) VALUES (new.ino); END",
    );
    db.sql().track_table("album").unwrap();
    run(
        &db,
        "INSERT INTO album VALUES (1, 'The sea', 1.5, x'00ff'), (2, NULL, -0.0, NULL),
           (9007199254740993, 'x', 2, 'text'); INSERT INTO page VALUES (1, 1), (1, 2)",
    );
    db.sql().track_table("main").unwrap();
    run(&db, "UPDATE main SET rating = 4 WHERE kind = 'file'");
    step();
    db.snapshots().create("first").unwrap();
    db.snapshots().seal("first", None).unwrap();

    // What is in the middle, and what shares.
    let file = db.nodes().open(spliced, true).unwrap();
    file.insert_range(500_001, b"in the middle").unwrap();
    file.delete_range(700_000, 123_456).unwrap();
    file.insert_hole(300_000, 70_000).unwrap();
    drop(file);
    db.files().clone_path(None, b"/docs", b"/copy").unwrap();
    step();
    let file = db.nodes().open(large, true).unwrap();
    file.write_at(1 << 20, &lines(300_000, 7)).unwrap();
    drop(file);
    db.nodes()
        .rename(
            docs,
            &name("one name"),
            R,
            &name("renamed"),
            RenameMode::Replace,
        )
        .unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        uid: Some(1234),
        mtime: Some(SetTime::At(-1)),
        ..SetAttr::default()
    };
    db.nodes().set_attr(large, &mode).unwrap();
    run(
        &db,
        "UPDATE album SET title = 'other' WHERE id = 1; DELETE FROM album WHERE id = 2",
    );
    run(
        &db,
        "UPDATE main SET rating = 5 WHERE rating = 4 AND size > 100000",
    );
    db.files().write(b"/mail/later", lines(3000, 8)).unwrap();
    step();
    db.snapshots().create("second").unwrap();
    db.snapshots().seal("second", None).unwrap();

    // What goes, and what moves.
    for path in [&b"/docs/empty"[..], b"/mail/note", b"/copy/large"] {
        let (parent, last) = db.nodes().resolve_parent(path).unwrap();
        db.nodes().unlink(parent, &last).unwrap();
    }
    step();
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    let past = db.as_of(&Moment::Snapshot("first".into())).unwrap();
    db.files()
        .clone_path(Some(&past), b"/docs", b"/then")
        .unwrap();
    drop(past);
    step();
    db.snapshots().create("third").unwrap();
    db.snapshots().hold("third", "auditor").unwrap();
    // Small overwrites that wait to be written in place.
    for index in 0..8 {
        let file = db.nodes().open(large, true).unwrap();
        file.write_at(index * 200_000, &lines(4096, 100 + index))
            .unwrap();
        file.sync().unwrap();
        clock.pass(SECOND);
    }
    db
}

/// What people see of the database, at each moment.
fn describe(db: &Database) -> String {
    let mut out = String::new();
    let moments = SNAPSHOTS.map(|name| (name, Some(Moment::Snapshot(name.into()))));
    for (title, moment) in moments.into_iter().chain([("present", None)]) {
        writeln!(out, "== {title}").unwrap();
        let past = moment.as_ref().map(|moment| db.as_of(moment).unwrap());
        let shown = past.as_ref().unwrap_or(db);
        for (path, seen) in see(shown, "/").unwrap() {
            let (uid, gid) = seen.owner;
            let what = match &seen.entry.kind {
                EntryKind::Directory => "directory".to_owned(),
                EntryKind::Symlink(target) => format!("link to {target}"),
                EntryKind::File {
                    nlink, len_bytes, ..
                } => {
                    let bytes = shown.files().read(path.as_bytes()).unwrap();
                    let hash = fnv(&bytes);
                    format!("file, {nlink} names, {len_bytes} bytes, {hash:016x}")
                }
            };
            writeln!(
                out,
                "{path}/ {} {:o} {uid}:{gid} {what}; {} {} {} {:?}",
                seen.entry.inode,
                seen.entry.mode,
                seen.mtime_ns,
                seen.ctime_ns,
                seen.btime_ns,
                seen.entry.xattrs
            )
            .unwrap();
        }
        let rows = match &moment {
            Some(moment) => as_of(db, moment, "album"),
            None => present(db, "album"),
        };
        rows.iter()
            .for_each(|row| writeln!(out, "album: {row:?}").unwrap());
    }
    writeln!(out, "== rows").unwrap();
    for table in ["page", "titles", "sent", "main_path"] {
        let rows = present(db, table);
        rows.iter()
            .for_each(|row| writeln!(out, "{table}: {row:?}").unwrap());
    }
    let objects = "SELECT type, name, tbl_name, sql FROM sqlite_schema
                   WHERE name NOT LIKE 'larder%' AND sql IS NOT NULL
                     AND (tbl_name IN ('album', 'page', 'titles', 'sent')
                       OR name = 'mail_sent') ORDER BY name";
    for row in query(db, objects) {
        writeln!(out, "schema: {row:?}").unwrap();
    }
    writeln!(out, "== database").unwrap();
    for store in db.stores().list().unwrap() {
        writeln!(
            out,
            "store: {} {} {}",
            store.name, store.provider, store.mount
        )
        .unwrap();
    }
    for row in db.snapshots().list().unwrap() {
        let holds = row.holds.join(", ");
        writeln!(
            out,
            "snapshot: {} {} {} [{holds}]",
            row.name, row.seq, row.at_ns
        )
        .unwrap();
    }
    db.history()
        .log(None, None, &mut |commit| {
            let paths: Vec<_> = (commit.changes.iter())
                .map(|change| String::from_utf8_lossy(&change.path).into_owned())
                .collect();
            writeln!(
                out,
                "commit: {} {} {}",
                commit.seq,
                commit.at_ns,
                paths.join(" ")
            )
            .unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    out
}

fn clock() -> Clock {
    let clock = Clock::new();
    clock.pass(100 * SECOND);
    clock
}

/// A copy of the database of that format in `place`, and what is in it.
fn unpack(format: u32, place: &Path) -> String {
    fs::create_dir_all(place.join("segments")).unwrap();
    for file in ["catalog.db", "catalog.db-wal", SEGMENT] {
        let bytes = fs::read(golden(format).join(file)).unwrap();
        fs::write(place.join(file), bytes).unwrap();
    }
    let expected = fs::read_to_string(golden(format).join("content.txt")).unwrap();
    let (length, expected) = expected.split_once('\n').unwrap();
    // What follows is zero: it is not in the tree.
    let segment = fs::File::options().write(true).open(place.join(SEGMENT));
    segment.unwrap().set_len(length.parse().unwrap()).unwrap();
    expected.to_owned()
}

/// It is as it was written, and goes on: everything in it is changed, moved, and let go.
fn require_whole(dir: &Path, expected: &str) {
    let db = clock().open(dir);
    let waiting = query(&db, "SELECT count(*) FROM larder_redo_row");
    assert_ne!(
        waiting,
        [[integer(0)]],
        "overwrites wait to be written in place"
    );
    let found = describe(&db);
    for (at, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(expected, found, "line {}", at + 2);
    }
    assert_eq!(expected, found.as_str());
    assert_clean(&db);
    let seals = db.snapshots().verify(&VerifyOptions::default()).unwrap();
    assert!(seals.is_clean() && seals.seals.len() == 2, "{seals:?}");

    let large = db.nodes().resolve(b"/docs/large", false).unwrap().node;
    let file = db.nodes().open(large, true).unwrap();
    file.insert_range(12_345, &lines(5000, 9)).unwrap();
    file.sync().unwrap();
    drop(file);
    db.files().write(b"/mail/new", b"more").unwrap();
    let past = db.as_of(&Moment::Snapshot("second".into())).unwrap();
    db.files()
        .clone_path(Some(&past), b"/copy", b"/again")
        .unwrap();
    drop(past);
    db.sync().unwrap();
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    assert_clean(&db);
    db.close().unwrap();
    let db = clock().open(dir);
    let moment = Moment::Snapshot("first".into());
    let first = see(&db.as_of(&moment).unwrap(), "/docs").unwrap();
    let then = see(&db, "/then").unwrap();
    assert!(first.keys().eq(then.keys()));
    for (path, seen) in &first {
        let (was, is) = (&seen.entry.kind, &then[path].entry.kind);
        assert_eq!(was, is, "{path}");
    }
    db.close().unwrap();
}

#[test]
fn a_golden_database_reads_as_it_was_written_and_goes_on() {
    let dir = common::scratch();
    let expected = unpack(2, &dir.path().join("t.larder"));
    require_whole(dir.path(), &expected);
}

fn convert(old: &Path, new: &Path) -> larder::Result<larder::UpgradeReport> {
    larder::upgrade(old, new, larder::Trust::default(), &mut |_| {})
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for file in ["catalog.db", "catalog.db-wal", SEGMENT] {
        found.push((file.into(), fs::read(dir.join(file)).unwrap()));
    }
    found
}

#[test]
fn a_golden_database_of_format_1_is_converted_whole() {
    let (from, dir) = (common::scratch(), common::scratch());
    let (old, new) = (from.path().join("t.larder"), dir.path().join("t.larder"));
    let expected = unpack(1, &old);
    let before = files(&old);
    let refused = Database::open(&old, larder::DatabaseOptions::default())
        .err()
        .unwrap();
    assert_eq!(refused.kind(), ErrorKind::OlderFormat, "{refused}");
    assert!(
        refused.to_string().contains("larder upgrade OLD NEW"),
        "{refused}"
    );
    let report = convert(&old, &new).unwrap();
    assert_eq!(report.segment_count, 1);
    assert_eq!(files(&old), before, "UPGRADE-1, CONVERT-1");
    require_whole(dir.path(), &expected);
    // What is there already is not written over.
    let again = convert(&old, &new).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists, "{again}");
    let twice = convert(&new, &dir.path().join("other")).unwrap_err();
    assert!(
        twice.to_string().contains("of this format already"),
        "{twice}"
    );
    assert!(!dir.path().join("other").exists(), "nothing is left of it");
}

/// What an attempt has made before all else.
fn begin_attempt(old: &Path, new: &Path) {
    fs::create_dir_all(new.join("segments")).unwrap();
    let id = &fs::read(old.join(SEGMENT)).unwrap()[24..40];
    fs::write(new.join("upgrade.lock"), id).unwrap();
}

/// Wherever an attempt ended: before the segment, in it, behind it, before the catalog's name.
#[test]
fn a_conversion_goes_on_where_it_ended() {
    let from = common::scratch();
    let old = from.path().join("t.larder");
    let expected = unpack(1, &old);
    let whole = fs::read(old.join(SEGMENT)).unwrap();
    for (end, left) in [
        ("before", None),
        ("an empty file", Some(0)),
        ("in the head", Some(9000)),
        ("in the blocks", Some(3 << 20)),
        ("before the superblock", Some(whole.len())),
    ] {
        let dir = common::scratch();
        let new = dir.path().join("t.larder");
        begin_attempt(&old, &new);
        fs::write(new.join("catalog.new"), b"half").unwrap();
        if let Some(len) = left {
            // Of the old one, with its superblock: that is no superblock of the new one.
            fs::write(new.join(SEGMENT), &whole[..len]).unwrap();
        }
        convert(&old, &new).unwrap();
        let (old, new) = (fs::read(old.join(SEGMENT)), fs::read(new.join(SEGMENT)));
        let (old, new) = (old.unwrap(), new.unwrap());
        assert!(old[1 << 20..] == new[1 << 20..], "CONVERT-3: {end}");
        require_whole(dir.path(), &expected);
    }
}

/// A segment that is copied is written again only if the old one was changed meanwhile.
#[test]
fn what_was_copied_before_is_compared() {
    let (from, dir) = (common::scratch(), common::scratch());
    let (old, new) = (from.path().join("t.larder"), dir.path().join("t.larder"));
    let expected = unpack(1, &old);
    convert(&old, &new).unwrap();
    let again = || {
        fs::remove_file(new.join("catalog.db")).unwrap();
        begin_attempt(&old, &new);
        convert(&old, &new).unwrap();
        fs::metadata(new.join(SEGMENT)).unwrap().modified().unwrap()
    };
    let made = fs::metadata(new.join(SEGMENT)).unwrap().modified();
    assert_eq!(made.unwrap(), again(), "CONVERT-2");
    let mut segment = fs::read(new.join(SEGMENT)).unwrap();
    let whole = segment.clone();
    segment[(2 << 20) + 5] ^= 1;
    fs::write(new.join(SEGMENT), &segment).unwrap();
    again();
    assert!(fs::read(new.join(SEGMENT)).unwrap() == whole, "CONVERT-3");
    require_whole(dir.path(), &expected);
}

/// What was refused and kept goes along, and what belongs to a group stays the group's.
#[test]
fn what_lies_beside_the_catalog_goes_along() {
    use std::os::unix::fs::PermissionsExt;
    let (from, dir) = (common::scratch(), common::scratch());
    let (old, new) = (from.path().join("t.larder"), dir.path().join("t.larder"));
    unpack(1, &old);
    fs::create_dir(old.join("refused")).unwrap();
    fs::write(
        old.join("refused/3"),
        "at_ns 1\nstore 0\nino 5\nsize 4\nwhy CHECK\npath /docs/a",
    )
    .unwrap();
    fs::write(old.join("refused/3.content"), b"kept").unwrap();
    let shared = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    shared(&old, 0o2770);
    begin_attempt(&old, &new); // Goes on.
    fs::remove_dir(new.join("segments")).unwrap();
    convert(&old, &new).unwrap();
    let listed = larder::list_refused(&new).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(fs::read(new.join("refused/3.content")).unwrap(), b"kept");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&new), 0o2770, "UPGRADE-6");
    for file in ["catalog.db", SEGMENT, "refused/3"] {
        assert_eq!(mode(&new.join(file)), 0o660, "UPGRADE-6: {file}");
    }
    assert!(!new.join("upgrade.lock").exists());
}

#[test]
fn nothing_is_converted_onto_something_else() {
    let (from, dir) = (common::scratch(), common::scratch());
    let old = from.path().join("t.larder");
    unpack(1, &old);
    let refused = |new: &Path| convert(&old, new).unwrap_err();
    fs::write(dir.path().join("file"), b"x").unwrap();
    refused(&dir.path().join("file"));
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("letter"), b"x").unwrap();
    let told = refused(&full);
    assert_eq!(told.kind(), ErrorKind::Exists, "{told}");
    assert!(told.to_string().contains("has 'letter' in it"), "{told}");
    for inside in [old.clone(), old.join("new"), old.join("segments/a/b")] {
        let told = refused(&inside);
        assert_eq!(told.kind(), ErrorKind::Exists, "{told}");
    }
    // Of another database, or somebody's own.
    let other = dir.path().join("other");
    begin_attempt(&old, &other);
    fs::write(other.join("upgrade.lock"), [7; 16]).unwrap();
    let told = refused(&other).to_string();
    assert!(
        told.contains("left of another database"),
        "UPGRADE-5: {told}"
    );
    fs::remove_file(other.join("upgrade.lock")).unwrap();
    let told = refused(&other).to_string();
    assert!(told.contains("has 'segments' in it"), "{told}");
    // Of an attempt that lives.
    begin_attempt(&old, &other);
    let living = fs::File::open(other.join("upgrade.lock")).unwrap();
    living.lock().unwrap();
    let told = refused(&other);
    assert_eq!(told.kind(), ErrorKind::Busy, "{told}");
    let missing = convert(&dir.path().join("none"), &dir.path().join("x")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
}

/// For a new format only: `LARDER_GOLDEN=DIR` takes the database and what is in it.
#[test]
#[ignore = "it writes a golden database, once for each format"]
fn write_a_golden_database() {
    let target = PathBuf::from(std::env::var("LARDER_GOLDEN").unwrap());
    let (dir, left) = (common::scratch(), common::scratch());
    let db = furnish(&Clock::new(), dir.path());
    crash(dir.path(), left.path());
    db.close().unwrap();
    let left = left.path().join("t.larder");
    let mut segment = fs::read(left.join(SEGMENT)).unwrap();
    let length = segment.len();
    segment.truncate(segment.iter().rposition(|&byte| byte != 0).unwrap() + 1);
    fs::create_dir_all(target.join("segments")).unwrap();
    fs::write(target.join(SEGMENT), segment).unwrap();
    for file in ["catalog.db", "catalog.db-wal"] {
        fs::copy(left.join(file), target.join(file)).unwrap();
    }
    let text = {
        let copy = common::scratch();
        crash(left.parent().unwrap(), copy.path());
        describe(&clock().open(copy.path()))
    };
    fs::write(target.join("content.txt"), format!("{length}\n{text}")).unwrap();
}
