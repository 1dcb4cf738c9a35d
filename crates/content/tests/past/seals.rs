//! Sealed snapshots: they verify whatever the engine does, and every change that it did not make is
//! found and named.
use crate::common;

use crate::common::moments::{Clock, HOUR, SECOND};
use crate::common::{OWNER, content, crash, folder, kind, name, pattern, put};
use larder::format::{MapPage, block_checksum};
use larder::{
    Database, DefragOptions, ErrorKind, Moment, NewNode, NodeId, PruneCut, PublicKey,
    RestoreOptions, SetAttr, SigningKey, VerifyOptions, VerifyReport, XattrMode,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const R: NodeId = NodeId::ROOT;
/// So that redo rows are applied now and then.
const REDO_BYTES_MAX: u64 = 256 << 10;
/// Where the blocks of a segment begin.
const DATA_OFFSET_BYTES: u64 = 1 << 20;

fn verify(db: &Database) -> VerifyReport {
    db.snapshots().verify(&VerifyOptions::default()).unwrap()
}

/// All findings, one line each.
fn findings(report: &VerifyReport) -> Vec<String> {
    let seals = report.seals.iter().flat_map(|seal| &seal.findings);
    let all = report.chain.iter().chain(seals);
    all.map(|one| match &one.path {
        Some(path) => format!("{}: {}", String::from_utf8_lossy(path), one.what),
        None => one.what.clone(),
    })
    .collect()
}

fn assert_sealed(db: &Database, when: &str) {
    let report = verify(db);
    assert_eq!(findings(&report), Vec::<String>::new(), "SEAL-3, {when}");
    assert!(report.is_clean());
}

fn sqlite(dir: &Path, text: &str) -> String {
    let done = Command::new("sqlite3")
        .arg(dir.join("t.larder/catalog.db"))
        .arg(text)
        .output()
        .expect("the sqlite3 shell is needed; install it");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}: {told}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// A statement that no guard refuses: somebody who knows how.
fn tamper(dir: &Path, text: &str) {
    let before = "UPDATE larder_guard_switch SET open = 1";
    sqlite(
        dir,
        &format!("{before}; {text}; UPDATE larder_guard_switch SET open = 0"),
    );
}

fn sql(db: &Database, text: &str) {
    db.sql()
        .open(false)
        .unwrap()
        .execute(text, &mut |_| Ok(()))
        .unwrap();
}

/// Something of everything.
fn furnish(db: &Database) {
    let a = folder(db, R, "a");
    let b = folder(db, a, "b");
    put(db, b, "big", &pattern(3 << 20, 1));
    put(db, b, "inline", b"a few bytes");
    let linked = put(db, a, "one name", &pattern(9000, 2));
    db.nodes().link(linked, b, &name("another name")).unwrap();
    db.attributes()
        .set(linked, b"user.author", b"somebody", XattrMode::Set)
        .unwrap();
    db.nodes()
        .create_node(a, &name("link"), NewNode::Symlink(b"b/big"), 0o777, OWNER)
        .unwrap();
    let sparse = put(db, a, "sparse", &pattern(70_000, 3));
    let file = db.nodes().open(sparse, true).unwrap();
    file.write_at(20 << 20, &pattern(100_000, 4)).unwrap();
    file.set_len(30 << 20).unwrap();
    folder(db, a, "empty");
    db.stores().create("other", "files", None, None).unwrap();
    db.files().write(b"/other/file", pattern(5000, 5)).unwrap();
    db.sync().unwrap();
    sql(
        db,
        "CREATE TABLE album (path TEXT PRIMARY KEY, title TEXT, year REAL, cover BLOB)",
    );
    db.sql().track_table("album").unwrap();
    sql(
        db,
        "INSERT INTO album VALUES ('/a', 'The sea', 1.5, x'00ff'), ('/b', NULL, -0.0, NULL), \
         ('/c', 'x', 2, 'text')",
    );
    db.sync().unwrap();
}

#[test]
fn a_seal_verifies_whatever_the_engine_does() {
    let dir = common::scratch();
    let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
    let mut db = clock.create(dir.path(), 256, HOUR);
    furnish(&db);
    clock.pass(SECOND);
    db.snapshots().create("first").unwrap();
    let report = db.snapshots().seal("FIRST", None).unwrap();
    assert_eq!(report.seal.number, 1);
    assert_eq!(report.file_count, 6, "a linked file is one");
    assert!(
        report.content_bytes < 12 << 20,
        "holes are not read: {report:?}"
    );
    assert_sealed(&db, "at once");
    let first = db
        .history()
        .resolve(&Moment::Snapshot("first".into()))
        .unwrap();

    // Everything is changed, in place too, and goes.
    let big = db.nodes().resolve(b"/a/b/big", false).unwrap().node;
    let before = content(&db, big);
    for index in 0..40u64 {
        let file = db.nodes().open(big, true).unwrap();
        file.write_at(index * 65_536, &pattern(4096, 100 + index))
            .unwrap();
        file.sync().unwrap();
        clock.pass(SECOND);
    }
    assert_sealed(&db, "with redo rows");
    db.nodes()
        .rename(R, &name("a"), R, &name("z"), larder::RenameMode::Replace)
        .unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(big, &mode).unwrap();
    sql(
        &db,
        "UPDATE album SET title = 'other'; DELETE FROM album WHERE path = '/c'",
    );
    sql(&db, "INSERT INTO album VALUES ('/d', 'new', 9, x'01')");
    sql(&db, "ALTER TABLE album ADD COLUMN rating INTEGER DEFAULT 7");
    sql(&db, "UPDATE main SET mode = 320 WHERE kind = 'file'");
    sql(&db, "ALTER TABLE album RENAME TO albums");
    db.sync().unwrap();
    assert_sealed(&db, "changed, SEAL-2");
    db.snapshots().create("second").unwrap();
    db.snapshots().seal("second", None).unwrap();
    db.snapshots().seal("first", None).unwrap(); // Again, and later than a newer one.
    assert_sealed(&db, "three seals");
    for path in [&b"/z/b/big"[..], b"/z/sparse", b"/other/file"] {
        let (parent, last) = db.nodes().resolve_parent(path).unwrap();
        db.nodes().unlink(parent, &last).unwrap();
    }
    db.sync().unwrap();
    clock.pass(10 * SECOND);
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    put(&db, R, "more", &pattern(4 << 20, 77));
    db.sync().unwrap();
    assert_sealed(&db, "moved");
    // A kill.
    let left = common::scratch();
    crash(dir.path(), left.path());
    let found = clock.open(left.path());
    assert_sealed(&found, "after a crash");
    found.close().unwrap();
    // Reopened, restored, undone.
    db.close().unwrap();
    db = clock.open(dir.path());
    assert_sealed(&db, "reopened");
    let past = db.as_of(&Moment::Snapshot("first".into())).unwrap();
    db.history()
        .restore(&past, Some(b"/a"), &RestoreOptions::default())
        .unwrap();
    drop(past);
    let back = db.nodes().resolve(b"/a/b/big", false).unwrap().node;
    assert_eq!(content(&db, back), before);
    put(&db, R, "undone", b"x");
    db.sync().unwrap();
    let mut newest = 0;
    db.history()
        .log(None, Some(1), &mut |commit| {
            newest = commit.seq;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    db.history().undo(newest, false).unwrap();
    assert_eq!(
        kind(db.nodes().resolve(b"/undone", false)),
        ErrorKind::NotFound
    );
    assert_sealed(&db, "restored and undone");
    // The retention passes: what snapshots hold stays, and what was before the first is pruned.
    clock.pass(2 * HOUR);
    db.history().prune(PruneCut::All, None, false).unwrap();
    put(&db, R, "after", b"prune");
    db.sync().unwrap();
    let report = verify(&db);
    assert_eq!(findings(&report), Vec::<String>::new(), "pruned");
    assert!(
        report.seals[0]
            .pruned
            .is_some_and(|(_, last)| last == first.0)
    );
    assert_eq!(
        report.seals[1].pruned, None,
        "held by the first: {report:?}"
    );
    // Without the first, the history of the second goes as well.
    db.snapshots().destroy("first").unwrap();
    db.history().prune(PruneCut::All, None, false).unwrap();
    let report = verify(&db);
    assert_eq!(findings(&report), Vec::<String>::new(), "destroyed");
    let is_destroyed = report.seals.iter().map(|one| one.seal.is_destroyed);
    assert_eq!(is_destroyed.collect::<Vec<_>>(), [true, false, true]);
    assert!(report.seals[1].pruned.is_some());
    let of = |name: &str| VerifyOptions {
        snapshot: Some(name.into()),
        ..VerifyOptions::default()
    };
    assert!(db.snapshots().verify(&of("second")).unwrap().is_clean());
    assert_eq!(
        kind(db.snapshots().verify(&of("nobody"))),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(db.snapshots().seal("first", None)),
        ErrorKind::NotFound
    );
    // The name may be used again.
    db.snapshots().create("first").unwrap();
    db.snapshots().seal("first", None).unwrap();
    assert_sealed(&db, "a new one of that name");
    common::assert_clean(&db);
}

/// The block of a file's first page, and what the catalog has of that page.
fn first_page(dir: &Path, path: &str) -> (u64, MapPage) {
    let ino = sqlite(
        dir,
        &format!("SELECT ino FROM main_path WHERE path = '{path}'"),
    );
    let runs = sqlite(
        dir,
        &format!("SELECT hex(runs) FROM main_map WHERE ino = {ino} AND page = 0"),
    );
    let bytes: Vec<u8> = (0..runs.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&runs[at..at + 2], 16).unwrap())
        .collect();
    (ino.parse().unwrap(), MapPage::decode(&bytes).unwrap())
}

/// Flips a bit of a block of a file; with `is_clever` the checksums are made right.
fn flip_content(dir: &Path, path: &str, block: usize, is_clever: bool) {
    let (ino, page) = first_page(dir, path);
    let run = page.find_run(block as u64).unwrap().clone();
    let at = block as u64 - run.logical_block;
    let segment = dir.join(format!("t.larder/segments/{:05}.seg", run.extent.segment.0));
    let file = File::options()
        .read(true)
        .write(true)
        .open(segment)
        .unwrap();
    let offset = DATA_OFFSET_BYTES + (run.extent.start_block + at) * 4096;
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes[1234] ^= 4;
    file.write_all_at(&bytes, offset).unwrap();
    if is_clever {
        let mut run = run;
        run.checksums[at as usize] = block_checksum(&bytes);
        let mut page = page;
        page.insert(run);
        let hex: String = page
            .encode()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        tamper(
            dir,
            &format!("UPDATE main_map SET runs = x'{hex}' WHERE ino = {ino} AND page = 0"),
        );
    }
}

#[test]
fn every_change_behind_a_seal_is_found_and_named() {
    let dir = common::scratch();
    let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
    let db = clock.create(dir.path(), 256, HOUR);
    furnish(&db);
    // Some history between the two.
    db.snapshots().create("first").unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let first = db.snapshots().seal("first", Some(&key)).unwrap().seal;
    db.files().write(b"/a/b/inline", b"other bytes").unwrap();
    db.sync().unwrap();
    sql(&db, "UPDATE album SET title = 'newer' WHERE path = '/a'");
    clock.pass(SECOND);
    db.snapshots().create("second").unwrap();
    let second = db.snapshots().seal("second", Some(&key)).unwrap().seal;
    clock.pass(SECOND);
    db.files().write(b"/later", b"later").unwrap();
    db.close().unwrap();

    type Case<'c> = (&'c str, Box<dyn Fn(&Path) + 'c>, &'c [&'c str]);
    let sql_case =
        |text: &'static str| -> Box<dyn Fn(&Path)> { Box::new(move |at| tamper(at, text)) };
    let cases: Vec<Case<'_>> = vec![
        (
            "a byte of content, its checksum made right",
            Box::new(|at| flip_content(at, "/a/b/big", 700, true)),
            &["/a/b/big: its content differs"],
        ),
        (
            "a byte of content",
            Box::new(|at| flip_content(at, "/a/b/big", 3, false)),
            &["/a/b/big: cannot be read: "],
        ),
        (
            "a byte of a file with two names",
            Box::new(|at| flip_content(at, "/a/one name", 1, true)),
            &[
                "/a/one name: its content differs",
                "/a/b/another name: its content differs",
            ],
        ),
        (
            "inline content",
            sql_case(
                "UPDATE main_content SET inline = CAST('fther bytes' AS BLOB) WHERE inline IS NOT \
                 NULL AND length(inline) = 11",
            ),
            &["/a/b/inline: its content differs"],
        ),
        (
            "a name",
            sql_case("UPDATE main_dirent SET name = 'bag' WHERE name = 'big'"),
            &[
                "/a/b/bag: has a name that was not sealed",
                "/a/b: one of the names that were sealed in it is missing",
            ],
        ),
        (
            "a name that is gone",
            sql_case("DELETE FROM main_dirent WHERE name = 'sparse'"),
            &["/a: one of the names that were sealed in it is missing"],
        ),
        (
            "a mode",
            sql_case(
                "UPDATE main SET mode = 511 WHERE ino = (SELECT ino FROM main_dirent WHERE name = \
                 'inline')",
            ),
            &["/a/b/inline: its attributes differ"],
        ),
        (
            "a time of a directory",
            sql_case(
                "UPDATE main SET mtime_ns = mtime_ns - 1 WHERE ino = (SELECT ino FROM main_dirent \
                 WHERE name = 'empty')",
            ),
            &["/a/empty: its attributes differ"],
        ),
        (
            "the root's owner",
            sql_case(
                "UPDATE larder_history SET uid = 77 WHERE what = 'inode' AND store = 0 AND ino = 1",
            ),
            &["/: its attributes differ"],
        ),
        (
            "an extended attribute",
            sql_case("UPDATE main_xattr SET value = CAST('nobody' AS BLOB)"),
            &["/a/one name: its attributes differ"],
        ),
        (
            "a target",
            sql_case(
                "UPDATE main_content SET target = CAST('b/bag' AS BLOB) WHERE target IS NOT NULL",
            ),
            &["/a/link: its content differs"],
        ),
        (
            "another store",
            sql_case("UPDATE other SET uid = 5 WHERE ino = 2"),
            &["/other/file: its attributes differ"],
        ),
        (
            "a row",
            sql_case(
                "DROP TRIGGER larder_temporal_1_bu; DROP TRIGGER larder_temporal_1_au; \
                 UPDATE album SET cover = x'00fe' WHERE path = '/a'",
            ),
            &["table 'album': row '/a' differs"],
        ),
        (
            "a row that is gone",
            sql_case(
                "DROP TRIGGER larder_temporal_1_bd; DELETE FROM album WHERE path = '/c'; \
                      CREATE TRIGGER larder_temporal_1_bd BEFORE DELETE ON album BEGIN SELECT 1; \
                      END",
            ),
            &["table 'album': 1 of the rows that were sealed are missing"],
        ),
        (
            "a state between the two",
            sql_case(
                "UPDATE larder_history SET value = CAST('A few bytes' AS BLOB) WHERE what = \
                 'content'",
            ),
            &[
                "/a/b/inline: its content differs",
                "the history of store 'main' in commits ",
            ],
        ),
        (
            "the history of rows",
            sql_case(
                "UPDATE larder_history SET value = replace(value, 'sea', 'see') WHERE what = \
                 'row' AND value IS NOT NULL",
            ),
            &[
                "table 'album': row '/a' differs",
                "the history of tracked tables in commits ",
            ],
        ),
        (
            "when a commit was",
            sql_case(
                "UPDATE larder_history SET key = key - 1 WHERE what = 'commit' AND until_seq = \
                 (SELECT seq FROM larder_snapshot WHERE name = 'first')",
            ),
            &["the times of commits "],
        ),
        (
            "a snapshot's commit",
            sql_case("UPDATE larder_snapshot SET seq = seq - 1 WHERE name = 'second'"),
            &["its snapshot names commit "],
        ),
        (
            "a snapshot that is gone",
            sql_case("DELETE FROM larder_snapshot WHERE name = 'first'"),
            &["its snapshot is gone, and was not destroyed by larder"],
        ),
        (
            "a state digest",
            sql_case("UPDATE larder_seal SET state = randomblob(32) WHERE number = 2"),
            &[
                "link 2 (snapshot 'second') is not the digest of what it says",
                "its digest is not that of its parts",
            ],
        ),
        (
            "a link",
            sql_case("UPDATE larder_seal SET link = randomblob(32) WHERE number = 1"),
            &[
                "link 1 (snapshot 'first') is not the digest of what it says",
                "link 1 (snapshot 'first'): the signature is wrong",
                "link 2 (snapshot 'second') does not follow from the link before",
            ],
        ),
        (
            "a link that is gone",
            sql_case("DELETE FROM larder_seal WHERE number = 1"),
            &["link 2 (snapshot 'second') does not follow link 0"],
        ),
        (
            "when it was sealed",
            sql_case("UPDATE larder_seal SET sealed_ns = sealed_ns + 1 WHERE number = 2"),
            &["link 2 (snapshot 'second') is not the digest of what it says"],
        ),
        (
            "a signature",
            sql_case("UPDATE larder_seal SET signature = zeroblob(64) WHERE number = 2"),
            &["link 2 (snapshot 'second'): the signature is wrong"],
        ),
        (
            "a signature that is gone",
            sql_case("UPDATE larder_seal SET signature = NULL, public_key = NULL WHERE number = 2"),
            &["it is not signed"],
        ),
        (
            "what says where differences are",
            sql_case(
                "UPDATE larder_sealed SET hints = zeroblob(length(hints)) WHERE what = \
                 'directory' AND seal = 1",
            ),
            &[
                "what it shows is as it was sealed, but 'larder_sealed', which says where \
                 differences are, was changed",
            ],
        ),
        (
            "the table of parts",
            sql_case(
                "UPDATE larder_sealed SET digest = zeroblob(32) WHERE what = 'store' AND store = \
                 0 AND seal = 1",
            ),
            &[
                "what it shows is as it was sealed, but 'larder_sealed', which says where \
                 differences are, was changed",
            ],
        ),
    ];
    let options = VerifyOptions {
        public_key: Some(key.public_key()),
        expected: Some(second.link),
        ..VerifyOptions::default()
    };
    for (what, change, expected) in cases {
        let at = common::scratch();
        crash(dir.path(), at.path());
        change(at.path());
        let db = clock.open(at.path());
        let report = db.snapshots().verify(&options).unwrap();
        let found = findings(&report);
        assert!(!report.is_clean(), "{what}");
        for wanted in expected {
            let is_there = found.iter().any(|line| line.starts_with(wanted));
            assert!(is_there, "SEAL-4, {what}: '{wanted}' is not in {found:#?}");
        }
        assert!(
            found.len() <= 2 * expected.len().max(2),
            "{what}: {found:#?}"
        );
        db.close().unwrap();
    }
    // And nothing is found where nothing was done.
    let db = clock.open(dir.path());
    assert_eq!(
        findings(&db.snapshots().verify(&options).unwrap()),
        Vec::<String>::new()
    );
    // The newest links are cut off, and all is made anew: only who knows better can tell.
    db.close().unwrap();
    tamper(dir.path(), "DELETE FROM larder_seal WHERE number = 2");
    let db = clock.open(dir.path());
    assert_sealed(&db, "cut off");
    let cut = db.snapshots().verify(&options).unwrap();
    assert!(findings(&cut)[0].starts_with("the chain does not have the link that is expected"));
    db.close().unwrap();
    tamper(
        dir.path(),
        "DELETE FROM larder_seal; DELETE FROM larder_sealed",
    );
    let db = clock.open(dir.path());
    let (other, _) = SigningKey::generate().unwrap();
    db.snapshots().seal("first", Some(&other)).unwrap();
    assert_sealed(&db, "made anew");
    let only_key = VerifyOptions {
        public_key: Some(key.public_key()),
        ..VerifyOptions::default()
    };
    let anew = db.snapshots().verify(&only_key).unwrap();
    assert_eq!(findings(&anew), ["it is signed with another key"]);
    let own = VerifyOptions {
        public_key: Some(PublicKey(other.public_key().0)),
        expected: Some(first.link),
        ..VerifyOptions::default()
    };
    assert_eq!(findings(&db.snapshots().verify(&own).unwrap()).len(), 1);
}

#[test]
fn what_is_let_go_is_told() {
    let dir = common::scratch();
    let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
    let db = clock.create(dir.path(), 256, HOUR);
    furnish(&db);
    db.snapshots().create("s").unwrap();
    db.snapshots().seal("s", None).unwrap();
    sql(&db, "ALTER TABLE album DROP COLUMN cover");
    let found = findings(&verify(&db));
    assert!(
        found.len() == 1 && found[0].contains("column 'cover' of table 'album'"),
        "{found:?}"
    );
    db.sql().untrack_table("album").unwrap();
    let found = findings(&verify(&db));
    assert!(
        found[0].contains("table 'album' is not tracked any more"),
        "{found:?}"
    );
    db.stores().destroy("other").unwrap();
    let found = findings(&verify(&db));
    assert!(
        found[0].contains("store 'other' is not there any more"),
        "{found:?}"
    );
}

#[test]
fn without_a_snapshot_or_history_there_is_nothing_to_seal() {
    let dir = common::scratch();
    let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
    let db = clock.create(dir.path(), 256, HOUR);
    assert_eq!(kind(db.snapshots().seal("none", None)), ErrorKind::NotFound);
    assert_eq!(
        kind(db.snapshots().verify(&VerifyOptions::default())),
        ErrorKind::NotFound
    );
    assert_eq!(db.snapshots().seals().unwrap(), Vec::new());
    let transaction = db.transactions().begin().unwrap();
    assert_eq!(
        kind(transaction.snapshots().seals()),
        ErrorKind::Unsupported
    );
}
