//! What plain SQL may and may not do (`CATALOG-3`), by a connection without our settings and by the
//! system's `sqlite3` shell.

use crate::common::{MAIN, create, inode, name, new_file, open, plain};
use larder_catalog_sqlite::format::{Extent, FileKind, Ino, SegmentIndex};
use larder_catalog_sqlite::{
    AttrMask, CatalogError, CatalogOptions, ChangeSet, ContentRow, InodeChange, InodeRow,
    SqliteCatalog,
};
use std::path::Path;
use std::process::Command;

/// Statements that the guards refuse.
const REFUSED: &[&str] = &[
    "INSERT INTO main (ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, \
     ctime_ns, btime_ns)
       VALUES (9, 'file', 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)",
    "INSERT OR REPLACE INTO main (ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, \
     mtime_ns, ctime_ns, btime_ns) \
     SELECT ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, ctime_ns, \
     btime_ns FROM main",
    "DELETE FROM main WHERE ino = 2",
    "UPDATE main SET ino = 9 WHERE ino = 2",
    "UPDATE OR REPLACE main SET ino = 2 WHERE ino = 1",
    "UPDATE main SET kind = 'dir' WHERE ino = 2",
    "UPDATE main SET nlink = nlink + 1",
    "UPDATE main SET rowid = 99 WHERE ino = 1",
    "UPDATE main SET _rowid_ = 99 WHERE ino = 1",
    "UPDATE main SET size = 99 WHERE ino = 2",
    "UPDATE main SET blocks = 99 WHERE ino = 2",
    "UPDATE main SET btime_ns = 0 WHERE ino = 2",
    "UPDATE main SET rdev = 7 WHERE ino = 2",
    "UPDATE main SET first_ino = 1 WHERE ino = 2",
    "UPDATE main SET mode = 0, size = 99 WHERE ino = 2",
    "INSERT INTO main_dirent (parent, name, ino) VALUES (1, 'x', 2)",
    "REPLACE INTO main_dirent (parent, name, ino) VALUES (1, 'f', 1)",
    "UPDATE main_dirent SET name = 'x'",
    "DELETE FROM main_dirent",
    "INSERT INTO main_content (ino, inline, target) VALUES (9, x'00', NULL)",
    "UPDATE main_content SET inline = x'00'",
    "DELETE FROM main_content",
    "INSERT INTO main_map (ino, page, runs) VALUES (2, 0, x'00')",
    "UPDATE main_map SET runs = x'00'",
    "DELETE FROM main_map",
    "INSERT INTO main_xattr (ino, name, value) VALUES (2, 'a', x'00')",
    "UPDATE main_xattr SET value = x'00'",
    "DELETE FROM main_xattr",
    "INSERT INTO larder_extent VALUES (0, 500, 1, 0, 2, 0, NULL, 0)",
    "INSERT INTO larder_shared VALUES (0, 500, 0, 2)",
    "INSERT INTO larder_map_page (number, reference, bytes) VALUES (1, zeroblob(14), zeroblob(32))",
    "INSERT INTO larder_map_page_use (number, row_count) VALUES (1, 1)",
    "UPDATE larder_extent SET ino = 3",
    "DELETE FROM larder_extent",
    "UPDATE larder_meta SET value = 0 WHERE key = 'commit_seq'",
    "DELETE FROM larder_meta",
    "INSERT INTO larder_store VALUES (5, 'x', 'files', '/x', 5, 2, 'none')",
    "UPDATE larder_store SET save_keeps = 'none'",
    "UPDATE larder_store SET next_ino = 2",
    "DELETE FROM larder_store",
    "INSERT INTO larder_segment VALUES (7, 1)",
    "UPDATE larder_segment SET block_count = 0",
    "DELETE FROM larder_ag",
    "INSERT INTO larder_session VALUES (7, 1, '', 0, 0, 0)",
    "INSERT INTO larder_orphan VALUES (0, 2, 1)",
    "INSERT INTO larder_holder VALUES (0, 2, 1)",
    "INSERT INTO larder_piece (store, ino, page, entries) VALUES (0, 2, 9, x'01')",
    "UPDATE larder_piece SET entries = x'02'",
    "DELETE FROM larder_piece",
    "UPDATE main SET since_seq = 9 WHERE ino = 2",
    "UPDATE larder_history SET until_seq = 9",
    "DELETE FROM larder_history",
    "INSERT INTO larder_history (until_seq, what, key, since_seq) VALUES (2, 'commit', 0, 1)",
    "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq) VALUES (99, \
     'inode', 0, 2, 0, 1)",
    "INSERT INTO larder_pre_image VALUES (0, 0, 1, 1, 0, 0)",
    "INSERT INTO larder_snapshot VALUES ('s', 0, 0, 0)",
    "INSERT INTO larder_hold VALUES ('s', 't')",
    "INSERT INTO larder_as_of (session, seq) VALUES (1, 0)",
    "INSERT INTO larder_author (session, pid, uid, label, since_seq) VALUES (9, 1, 1, '', 0)",
    "INSERT INTO larder_seal (number, snapshot, seq, at_ns, sealed_ns, state, previous, link) \
     VALUES (1, 's', 0, 0, 0, zeroblob(32), zeroblob(32), zeroblob(32))",
    "INSERT INTO larder_sealed (seal, what, store, number, from_seq, name, columns, entry_count, \
     digest, hints) \
     VALUES (1, 'store', 0, 0, 0, '', '', 0, zeroblob(32), x'')",
    "INSERT INTO larder_guard_switch VALUES (1, 1)",
    "DELETE FROM larder_guard_switch",
];

/// Has a row in every guarded table, so that UPDATE and DELETE have something to refuse.
fn furnish(catalog: &SqliteCatalog) {
    let (session, _) = catalog.sessions().begin((1, 0), "test", 0).unwrap();
    let mut changes = new_file(2, "f");
    changes.inodes.push((
        MAIN,
        InodeChange::Insert(InodeRow {
            nlink: 0,
            ..inode(3, FileKind::File)
        }),
    ));
    changes.contents = vec![(MAIN, Ino(3), Some(ContentRow::Inline(vec![1])))];
    changes.map_pages = vec![(MAIN, Ino(2), 0, Some(vec![1]))];
    changes.piece_pages = vec![(MAIN, Ino(2), 0, Some(vec![1]))];
    changes.xattrs = vec![(MAIN, Ino(2), b"user.a".to_vec(), Some(vec![1]))];
    let extent = Extent::new(SegmentIndex(0), 0, 4);
    changes.allocated = vec![(extent, MAIN, Ino(2))];
    changes.segments = vec![(extent.segment, 100)];
    changes.orphans_added = vec![(MAIN, Ino(3))];
    changes.holders_added = vec![(MAIN, Ino(3), session)];
    catalog.commit(&changes).unwrap();
}

fn now_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64
}

/// Runs the system's shell on the catalog; its output, or its error text.
fn shell(dir: &Path, sql: &str) -> Result<String, String> {
    let tool = Path::new("/usr/bin/sqlite3");
    assert!(
        tool.exists(),
        "/usr/bin/sqlite3 is missing; install it (apt-get install sqlite3) to run this test"
    );
    let output = Command::new(tool)
        .arg("-batch")
        .arg(dir.join("catalog.db"))
        .arg(sql)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_string()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn a_plain_connection_is_refused_what_the_engine_keeps() {
    let (dir, catalog) = create();
    furnish(&catalog);
    let before = catalog.space().extents(None, 10).unwrap();
    let other = plain(dir.path());
    for sql in REFUSED {
        let refused = other.execute_batch(sql).expect_err(sql).to_string();
        assert!(
            refused.contains("kept by the engine") || refused.contains("through the mount"),
            "CATALOG-3: {sql}: {refused}"
        );
        assert!(!refused.contains('\n'), "one line: {refused}");
    }
    assert_eq!(catalog.space().extents(None, 10).unwrap(), before);
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
}

#[test]
fn the_shell_is_refused_what_the_engine_keeps() {
    let (dir, catalog) = create();
    furnish(&catalog);
    for sql in REFUSED {
        let refused = shell(dir.path(), sql).expect_err(sql);
        assert!(
            refused.contains("kept by the engine") || refused.contains("through the mount"),
            "CATALOG-3: {sql}: {refused}"
        );
    }
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
}

/// What no guard in the schema sees: SQLite runs no trigger for a row that REPLACE deletes unless
/// the connection asks for it. The check finds what is left of the file.
#[test]
fn a_row_that_a_plain_shell_replaces_is_found_missing() {
    let (dir, catalog) = create();
    furnish(&catalog);
    shell(
        dir.path(),
        "ALTER TABLE main ADD COLUMN tag; CREATE UNIQUE INDEX by_tag ON main (tag);
         UPDATE main SET tag = 'a' WHERE ino = 2",
    )
    .unwrap();
    let replace = "UPDATE OR REPLACE main SET tag = 'a' WHERE ino = 3";
    let asked = format!("PRAGMA recursive_triggers = ON; {replace}");
    let refused = shell(dir.path(), &asked).expect_err(&asked);
    assert!(
        refused.contains("through the mount"),
        "CATALOG-3: {refused}"
    );
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    shell(dir.path(), replace).unwrap();
    let findings = catalog.survey().check().unwrap();
    let is_found = |finding: &String| finding.contains("names inode 2, which does not exist");
    assert!(findings.iter().any(is_found), "{findings:?}");
}

#[test]
fn attributes_and_user_columns_may_change_in_the_shell() {
    let (dir, catalog) = create();
    furnish(&catalog);
    shell(
        dir.path(),
        "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating < 6)",
    )
    .unwrap();
    shell(dir.path(), "ALTER TABLE main ADD COLUMN note").unwrap();
    shell(dir.path(), "CREATE INDEX by_rating ON main(rating)").unwrap();
    shell(
        dir.path(),
        "UPDATE main SET rating = 5, size = size WHERE ino = 2",
    )
    .unwrap();
    assert_eq!(
        catalog
            .tables()
            .inode(MAIN, Ino(2))
            .unwrap()
            .unwrap()
            .ctime_ns,
        3,
        "no attribute changed"
    );
    let before = now_ns();
    shell(
        dir.path(),
        "UPDATE main SET mode = 384, uid = 7, mtime_ns = 55 WHERE ino = 2",
    )
    .unwrap();
    let row = catalog.tables().inode(MAIN, Ino(2)).unwrap().unwrap();
    assert_eq!(
        (row.mode, row.uid, row.gid, row.mtime_ns),
        (0o600, 7, 20, 55)
    );
    let skew = row.ctime_ns - before;
    assert!(
        (-1_000_000..10_000_000_000).contains(&skew),
        "ctime is now: {skew} ns"
    );
    for bad in [
        "mode = 4096",
        "mode = -1",
        "mode = 'rw'",
        "uid = 4294967296",
        "mtime_ns = 1.5",
        "gid = NULL",
        "rating = 9",
    ] {
        let refused =
            shell(dir.path(), &format!("UPDATE main SET {bad} WHERE ino = 2")).expect_err(bad);
        assert!(refused.contains("constraint failed"), "{bad}: {refused}");
    }
    shell(dir.path(), "ALTER TABLE main RENAME COLUMN note TO remark").unwrap();
    assert_eq!(
        catalog.temporal().user_columns(MAIN).unwrap(),
        ["rating", "remark"]
    );
    shell(dir.path(), "ALTER TABLE main DROP COLUMN remark").unwrap();
    assert_eq!(catalog.temporal().user_columns(MAIN).unwrap(), ["rating"]);
    // The engine goes on with its compiled statements, and keeps the user's values.
    let size = InodeChange::Update(
        InodeRow {
            size_bytes: 8,
            ..inode(2, FileKind::File)
        },
        AttrMask {
            size: true,
            ..AttrMask::default()
        },
    );
    catalog
        .commit(&ChangeSet {
            inodes: vec![(MAIN, size)],
            ..ChangeSet::default()
        })
        .unwrap();
    catalog.commit(&new_file(4, "g")).unwrap();
    assert_eq!(
        shell(
            dir.path(),
            "SELECT ino, size, rating FROM main WHERE ino IN (2, 4)"
        )
        .unwrap(),
        "2|8|5\n4|0|"
    );
    assert_eq!(
        catalog
            .tables()
            .inode(MAIN, Ino(2))
            .unwrap()
            .unwrap()
            .ctime_ns,
        row.ctime_ns,
        "the engine sets ctime itself"
    );
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
}

#[test]
fn paths_are_readable_in_the_shell() {
    let (dir, catalog) = create();
    let dir_row = |ino| {
        InodeChange::Insert(InodeRow {
            nlink: 2,
            ..inode(ino, FileKind::Directory)
        })
    };
    let mut changes = new_file(4, "f");
    changes
        .inodes
        .extend([(MAIN, dir_row(2)), (MAIN, dir_row(3))]);
    changes.dirents.extend([
        (MAIN, Ino::ROOT, name("d"), Some(Ino(2))),
        (MAIN, Ino(2), name(b"\xff\xfe"), Some(Ino(3))),
        (MAIN, Ino(3), name("again"), Some(Ino(4))),
    ]);
    catalog.commit(&changes).unwrap();
    let found = shell(
        dir.path(),
        "SELECT ino, parent, name, hex(path) FROM main_path WHERE ino <> 3 ORDER BY ino, path",
    )
    .unwrap();
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect::<String>()
    };
    let expected = format!(
        "1|||{}\n2|1|d|{}\n4|3|again|{}\n4|1|f|{}",
        hex(b"/"),
        hex(b"/d"),
        hex(b"/d/\xff\xfe/again"),
        hex(b"/f")
    );
    assert_eq!(found, expected);
    let plan = shell(
        dir.path(),
        "EXPLAIN QUERY PLAN SELECT path FROM main JOIN main_path USING (ino) WHERE ino = 4",
    )
    .unwrap();
    assert!(
        !plan.contains("SCAN main") && !plan.contains("MATERIALIZE"),
        "a path costs only itself: {plan}"
    );
}

#[test]
fn user_columns_go_both_ways() {
    let (dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    let other = plain(dir.path());
    other
        .execute_batch(
            "ALTER TABLE main ADD COLUMN rating INTEGER; \
             ALTER TABLE main ADD COLUMN \"odd \"\"name\"; \
             ALTER TABLE main ADD COLUMN twice AS (rating * 2)",
        )
        .unwrap();
    assert_eq!(
        catalog.temporal().user_columns(MAIN).unwrap(),
        ["rating", "odd \"name", "twice"]
    );
    let set = |column: &str, value: Option<&[u8]>| {
        catalog
            .temporal()
            .set_user_column(MAIN, Ino(2), column, value)
    };
    let get = |column: &str| {
        catalog
            .temporal()
            .user_column(MAIN, Ino(2), column)
            .unwrap()
    };
    assert_eq!(get("rating"), None);
    set("Rating", Some(b"5")).unwrap();
    set("odd \"name", Some(b"\xff\x00")).unwrap();
    assert_eq!(get("rating"), Some(b"5".to_vec()));
    assert_eq!(get("twice"), Some(b"10".to_vec()));
    assert_eq!(get("odd \"name"), Some(b"\xff\x00".to_vec()));
    let kinds: (String, String) = other
        .query_row(
            "SELECT typeof(rating), typeof(\"odd \"\"name\") FROM main WHERE ino = 2",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(kinds, ("integer".into(), "blob".into()));
    set("rating", None).unwrap();
    assert_eq!(get("rating"), None);
    for column in ["size", "rowid", "missing"] {
        assert!(
            matches!(set(column, None), Err(CatalogError::NotFound { .. })),
            "{column}"
        );
        assert!(
            matches!(
                catalog.temporal().user_column(MAIN, Ino(2), column),
                Err(CatalogError::NotFound { .. })
            ),
            "{column}"
        );
    }
    assert!(matches!(
        catalog
            .temporal()
            .set_user_column(MAIN, Ino(9), "rating", None),
        Err(CatalogError::NotFound { .. })
    ));
    assert!(set("twice", Some(b"1")).is_err());
}

#[test]
fn foreign_commits_are_noticed_and_ours_are_not() {
    let (dir, catalog) = create();
    assert!(!catalog.foreign().foreign_change().unwrap());
    catalog.commit(&new_file(2, "f")).unwrap();
    catalog.sessions().begin((1, 0), "x", 0).unwrap();
    assert!(!catalog.foreign().foreign_change().unwrap(), "our own");
    plain(dir.path())
        .execute_batch("UPDATE main SET mode = 0 WHERE ino = 2")
        .unwrap();
    assert!(catalog.foreign().foreign_change().unwrap());
    assert!(!catalog.foreign().foreign_change().unwrap(), "told once");
    shell(dir.path(), "UPDATE main SET mode = 1 WHERE ino = 2").unwrap();
    catalog.commit(&new_file(3, "g")).unwrap();
    assert!(
        catalog.foreign().foreign_change().unwrap(),
        "also when a commit of ours came after"
    );
    let second = open(dir.path());
    second.commit(&new_file(4, "h")).unwrap();
    assert!(catalog.foreign().foreign_change().unwrap());
    let options = CatalogOptions::default();
    let session = SqliteCatalog::open_private(dir.path(), &options, true).unwrap();
    let update = "UPDATE main SET mode = 2";
    let statement = session.sql().inspect(update, 0).unwrap().unwrap();
    let (changed, _) = session
        .sql()
        .run(update, &statement, &[], None, &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(changed > 0);
    assert!(
        catalog.foreign().foreign_change().unwrap(),
        "an SQL session is another connection"
    );
    shell(dir.path(), "SELECT count(*) FROM main").unwrap();
    assert!(
        !catalog.foreign().foreign_change().unwrap(),
        "reading is no change"
    );
}

#[test]
fn users_triggers_and_foreign_keys_take_part() {
    let (dir, catalog) = create();
    plain(dir.path())
        .execute_batch(
            "CREATE TABLE log(ino, what); CREATE TABLE album(photo INTEGER REFERENCES main(ino) \
             DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER seen AFTER INSERT ON main BEGIN INSERT INTO log VALUES (NEW.ino, \
             'new'); END;",
        )
        .unwrap();
    catalog.commit(&new_file(2, "f")).unwrap();
    plain(dir.path())
        .execute_batch("INSERT INTO album VALUES (2)")
        .unwrap();
    let gone = ChangeSet {
        inodes: vec![(MAIN, InodeChange::Delete(Ino(2)))],
        dirents: vec![(MAIN, Ino::ROOT, name("f"), None)],
        ..ChangeSet::default()
    };
    let refused = catalog.commit(&gone).unwrap_err();
    assert!(
        matches!(
            &refused,
            CatalogError::Constraint { constraint, .. } if constraint.contains("FOREIGN KEY")
        ),
        "{refused}"
    );
    assert!(
        catalog.tables().inode(MAIN, Ino(2)).unwrap().is_some(),
        "CATALOG-2"
    );
    plain(dir.path())
        .execute_batch("DELETE FROM album")
        .unwrap();
    catalog.commit(&gone).unwrap();
    assert_eq!(shell(dir.path(), "SELECT * FROM log").unwrap(), "2|new");
}

#[test]
fn triggers_come_and_go_between_commits() {
    let (dir, catalog) = create();
    let user = plain(dir.path());
    user.execute_batch("CREATE TABLE log(ino); ALTER TABLE main ADD COLUMN note")
        .unwrap();
    let trigger =
        "CREATE TRIGGER seen AFTER INSERT ON main BEGIN INSERT INTO log VALUES (NEW.ino); END";
    let mut seen = Vec::new();
    for round in 0..12u64 {
        let ino = 2 + round;
        catalog.commit(&new_file(ino, &format!("f{ino}"))).unwrap();
        if round % 4 >= 2 {
            seen.push(ino.to_string());
        }
        // The engine's own writes in the user's name leave the guards standing, and it passes them
        // again.
        catalog
            .temporal()
            .set_user_column(MAIN, Ino(ino), "note", Some(b"x"))
            .unwrap();
        for sql in ["UPDATE main SET size = 99", "DELETE FROM larder_meta"] {
            let refused = user.execute_batch(sql).unwrap_err().to_string();
            assert!(refused.contains("engine"), "CATALOG-3: {sql}: {refused}");
        }
        match round % 4 {
            1 => user.execute_batch(trigger).unwrap(),
            3 => user.execute_batch("DROP TRIGGER seen").unwrap(),
            _ => {}
        }
    }
    assert_eq!(
        shell(dir.path(), "SELECT * FROM log").unwrap(),
        seen.join("\n")
    );
    assert_eq!(
        shell(dir.path(), "SELECT open FROM larder_guard_switch").unwrap(),
        "0"
    );
    assert!(catalog.survey().check().unwrap().is_empty());
}

#[test]
fn check_finds_what_went_round_the_guards() {
    let clean = |sql: &str, expected: &[&str]| {
        let (dir, catalog) = create();
        furnish(&catalog);
        let other = plain(dir.path());
        other
            .execute_batch(&format!(
                "PRAGMA ignore_check_constraints = 1; UPDATE larder_guard_switch SET open = 1; \
                {sql}"
            ))
            .unwrap();
        if !sql.contains("stays open") {
            other
                .execute_batch("UPDATE larder_guard_switch SET open = 0")
                .unwrap();
        }
        let findings = catalog.survey().check().unwrap();
        for part in expected {
            assert!(
                findings.iter().any(|finding| finding.contains(part)),
                "{sql}: {part}: {findings:?}"
            );
        }
        assert!(!findings.is_empty());
    };
    clean(
        "INSERT INTO larder_piece (store, ino, page, entries) VALUES (0, 77, 0, x'01')",
        &["there is no file 77 of main"],
    );
    clean(
        "INSERT INTO larder_piece (store, ino, page, entries) VALUES (9, 2, 0, x'01')",
        &["pieces of store 9"],
    );
    clean(
        "INSERT INTO larder_piece (store, ino, page, entries) VALUES (0, 3, 1, x'01')",
        &[
            "inode 3 of main has inline content",
            "inode 3 of main has no root",
        ],
    );
    clean(
        "SELECT 'the guard switch stays open'",
        &["the guard switch is open"],
    );
    clean(
        "INSERT INTO main_dirent (parent, name, ino) VALUES (1, 'x', 77)",
        &["names inode 77, which does not exist"],
    );
    clean(
        "INSERT INTO main_dirent (parent, name, ino) VALUES (2, 'x', 2)",
        &["lies in inode 2, which is a file", "nlink 1 and 2 names"],
    );
    clean(
        "DELETE FROM main_dirent",
        &["inode 2 has nlink 1 and 0 names"],
    );
    clean(
        "UPDATE main SET nlink = 5 WHERE ino = 1",
        &["directory 1 has nlink 5, expected 2"],
    );
    clean(
        "UPDATE main SET nlink = 1 WHERE ino = 3",
        &["inode 3 of main has nlink 1"],
    );
    clean(
        "DELETE FROM larder_orphan",
        &["inode 3 has no name and is no orphan", "which is no orphan"],
    );
    clean("DELETE FROM larder_session", &["which does not exist"]);
    clean(
        "UPDATE main_content SET inline = x'00'",
        &["main_content: that of inode 3 has the checksum"],
    );
    clean(
        "UPDATE main_content SET checksum = NULL",
        &["main_content: that of inode 3 has the checksum none"],
    );
    clean(
        "INSERT INTO larder_redo_row (seq, store, ino, block_count, blocks, bytes, checksum) \
         VALUES (1, 0, 2, 1, zeroblob(8), zeroblob(4096), 7)",
        &["a redo row of inode 2 of store 0 has the checksum 00000007"],
    );
    clean(
        "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value, kind, \
         checksum) VALUES (2, 'content', 0, 3, 0, 1, x'61', 'file', 5)",
        &["content of inode 3 of store 0 until commit 2 has the checksum 00000005"],
    );
    clean(
        "UPDATE main_content SET ino = 70",
        &["main_content: there is no inode 70"],
    );
    clean(
        "UPDATE main_content SET ino = 2",
        &["has inline content as well"],
    );
    clean(
        "UPDATE main_map SET ino = 70",
        &["main_map: there is no file 70"],
    );
    clean(
        "UPDATE main_xattr SET ino = 70",
        &["main_xattr: there is no inode 70"],
    );
    clean(
        "UPDATE main SET kind = 'symlink' WHERE ino = 2",
        &["has no target"],
    );
    clean(
        "INSERT INTO larder_extent VALUES (0, 3, 4, 0, 2, 0, NULL, 0)",
        &["overlap the row at 3"],
    );
    clean(
        "UPDATE larder_extent SET shared_count = 2 WHERE retired_seq IS NULL",
        &["is shared by 2 objects, and larder_shared names 0 (SHARE-1)"],
    );
    clean(
        "INSERT INTO larder_shared VALUES (0, 77, 0, 9)",
        &["no extent row begins at segment 0 block 77, which inode 9 of store 0 shares (SHARE-3)"],
    );
    clean(
        "UPDATE larder_segment SET block_count = 3",
        &["lie beyond the segment, which has 3 blocks"],
    );
    clean(
        "DELETE FROM larder_segment",
        &["lie beyond the segment, which has no row"],
    );
    clean(
        "UPDATE larder_extent SET store = 8",
        &["held by store 8, which does not exist"],
    );
    clean(
        "UPDATE larder_extent SET retired_seq = 80",
        &["retired by commit 80"],
    );
    clean(
        "UPDATE larder_store SET next_ino = 2",
        &["not below next_ino"],
    );
    clean(
        "DELETE FROM larder_meta WHERE key = 'retention_ns'",
        &["retention_ns is missing"],
    );
    clean(
        "DELETE FROM larder_meta WHERE key = 'commit_seq'",
        &["commit_seq is missing"],
    );
    clean(
        "DROP TRIGGER larder_main_guard",
        &["trigger larder_main_guard is missing"],
    );
    clean("DROP VIEW main_path", &["view main_path is missing"]);
    clean("DROP TABLE main_xattr", &["table main_xattr is missing"]);
    clean(
        "INSERT INTO main (ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, \
         ctime_ns, btime_ns)
           VALUES (8, 'dir', 0, 0, 0, 3, 0, 0, 0, 0, 0, 0), (9, 'dir', 0, 0, 0, 3, 0, 0, 0, 0, 0, \
           0);
         INSERT INTO main_dirent (parent, name, ino) VALUES (8, 'a', 9), (9, 'b', 8)",
        &[
            "directory 8 cannot be reached",
            "directory 9 cannot be reached",
        ],
    );
}
