//! SQL of the past: sessions that see one moment against a model, and the functions that read other
//! moments.
use crate::support;

use crate::common::moments::{BEGIN_NS, Clock, HOUR, MILLISECOND};
use crate::common::sql::{blob, integer, one, run, text, told};
use crate::common::{kind, pattern};
use crate::support::ContentTree;
use larder::{ErrorKind, Moment, SqlSession, SqlValue, StoreId};
use larder_testkit::{Entry, EntryKind, Mix, Rng, Script, Tree, explain_difference};
use std::collections::BTreeMap;
use std::path::Path;

/// A new database with an hour of retention, whose clock goes when it is told.
fn create(dir: &Path) -> (ContentTree, Clock) {
    let clock = Clock::new();
    (ContentTree::new(clock.create(dir, 256, HOUR)), clock)
}

fn rows(session: &mut SqlSession, sql: &str) -> Vec<Vec<SqlValue>> {
    let mut all = Vec::new();
    session
        .execute(sql, &mut |row| {
            all.push(row.values);
            Ok(())
        })
        .unwrap();
    all
}

fn number(value: &SqlValue) -> u64 {
    match value {
        SqlValue::Integer(number) => *number as u64,
        other => panic!("{other:?}"),
    }
}

fn string(value: &SqlValue) -> String {
    match value {
        SqlValue::Text(text) => text.clone(),
        SqlValue::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// The whole tree, by SQL alone.
fn walk(session: &mut SqlSession) -> Tree {
    let mut xattrs: BTreeMap<u64, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for row in rows(session, "SELECT ino, name, value FROM main_xattr") {
        let SqlValue::Blob(value) = &row[2] else {
            panic!("{row:?}")
        };
        let of_node = xattrs.entry(number(&row[0])).or_default();
        of_node.insert(string(&row[1]), value.clone());
    }
    let query = "SELECT path, mode, ino, kind, nlink, size, target, iif(kind = 'file', \
        content(ino), NULL) \
                 FROM main_path JOIN main USING (ino) LEFT JOIN main_content USING (ino) WHERE \
                 ino <> 1";
    let entries = rows(session, query).into_iter().map(|row| Entry {
        path: string(&row[0]),
        mode: number(&row[1]) as u32,
        inode: number(&row[2]),
        kind: match string(&row[3]).as_str() {
            "dir" => EntryKind::Directory,
            "symlink" => EntryKind::Symlink(string(&row[6])),
            _ => EntryKind::File {
                nlink: number(&row[4]) as u32,
                len_bytes: number(&row[5]),
                content: match &row[7] {
                    SqlValue::Blob(bytes) => Tree::hash_content(bytes),
                    other => panic!("{other:?}"),
                },
            },
        },
        xattrs: xattrs.get(&number(&row[2])).cloned().unwrap_or_default(),
    });
    Tree {
        entries: entries.collect(),
    }
}

const MIX: Mix = Mix {
    entries_max: 30,
    file_bytes_max: 200 << 10,
    write_bytes_max: 50 << 10,
    sync_percent: 10,
    overwrite_percent: 20,
    fragment_percent: 10,
};

#[test]
fn sessions_and_functions_of_the_past_say_what_the_model_says() {
    for seed in 1..=3 {
        let dir = support::scratch();
        let (mut tree, clock) = create(dir.path());
        let script = Script::generate(seed, 250, MIX);
        let mut rng = Rng::new(seed ^ 0x7157);
        let mut moments: Vec<(i64, usize)> = Vec::new();
        for (index, op) in script.ops.iter().enumerate() {
            tree.apply(op)
                .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
            if rng.chance(30) {
                tree.database().sync().unwrap();
                moments.push((clock.now(), index + 1));
                clock.pass(MILLISECOND);
            }
        }
        let database = tree.database();
        let mut present = database.sql().open(true).unwrap();
        for _ in 0..60 {
            let (at_ns, made) = *rng.pick(&moments);
            let mut session = database.sql().open_as_of(&Moment::At(at_ns)).unwrap();
            let found = walk(&mut session);
            // PASTSQL-1
            assert!(
                script.find_prefix(&found, made, made).is_some(),
                "seed {seed}, after {made} operations: {}",
                explain_difference(&script.tree(made), &found)
            );
            // The functions, from a session of the present.
            let by_session = "SELECT CAST(path AS BLOB), ino, kind, mode, size, content(ino) \
                              FROM main_path JOIN main USING (ino) WHERE kind = 'file' ORDER BY 1";
            let by_functions = format!(
                "SELECT CAST(path AS BLOB), ino, kind, mode, size, content_as_of({at_ns}, path) \
                 FROM files_as_of({at_ns}) WHERE kind = 'file' ORDER BY 1"
            );
            let expected = rows(&mut session, by_session);
            assert_eq!(rows(&mut present, &by_functions), expected, "seed {seed}");
            // The table of the moment is told by the session too.
            let names =
                "SELECT path FROM files('/**') WHERE kind = 'file' ORDER BY CAST(path AS BLOB)";
            assert_eq!(rows(&mut session, names).len(), expected.len());
        }
        assert_eq!(tree.findings().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn moments_are_joined_with_the_present_and_with_one_another() {
    let dir = support::scratch();
    let (tree, clock) = create(dir.path());
    let db = tree.database();
    let old = pattern(300_000, 1);
    db.files().write(b"/a", &old).unwrap();
    db.files().write(b"/b.txt", b"one").unwrap();
    let ino = db.files().write(b"/gone", b"soon gone").unwrap().node.ino.0;
    db.stores().create("raw", "files", None, None).unwrap();
    db.files().write(b"/raw/r", b"in a store").unwrap();
    db.snapshots().create("first").unwrap();
    clock.pass(1000 * MILLISECOND);
    db.files().write(b"/a", pattern(200_000, 2)).unwrap();
    db.files().write(b"/b.txt", b"two!").unwrap();
    let (root, name) = db.nodes().resolve_parent(b"/gone").unwrap();
    db.nodes().unlink(root, &name).unwrap();
    db.files().write(b"/raw/r", b"changed").unwrap();
    let mut sql = db.sql().open(false).unwrap();
    run(&mut sql, "CREATE TABLE wanted (path, moment)").unwrap();
    run(
        &mut sql,
        "INSERT INTO wanted VALUES ('/a', 'first'), ('/b.txt', '-0s'), ('/gone', \
        'first'), ('/gone', '-0s')",
    )
    .unwrap();
    let found = run(
        &mut sql,
        "SELECT length(content_as_of(moment, path)) FROM wanted ORDER BY wanted.rowid",
    );
    assert_eq!(
        found.unwrap(),
        [integer(300_000), integer(4), integer(9), SqlValue::Null]
    );
    assert_eq!(
        one(
            &mut sql,
            &format!("SELECT CAST(content_as_of('first', {ino}, 5, 4) AS TEXT)")
        ),
        text("gone")
    );
    assert_eq!(
        one(&mut sql, "SELECT content_as_of('first', '/a')"),
        blob(&old)
    );
    let deleted = "SELECT was.path FROM files_as_of('first', '/**') AS was LEFT JOIN files('/**') \
        AS now USING (path) \
                   WHERE now.path IS NULL";
    assert_eq!(one(&mut sql, deleted), text("/gone"));
    let changed = "SELECT path FROM files_as_of('-1s', '/*.txt') \
                   WHERE content(path) <> content_as_of('-1s', path)";
    assert_eq!(one(&mut sql, changed), text("/b.txt"));
    let by_rows = "SELECT count(*) FROM wanted, files_as_of(wanted.moment, wanted.path)";
    assert_eq!(one(&mut sql, by_rows), integer(3));
    let stores = "SELECT group_concat(path || ':' || store) FROM files_as_of('first', '/raw/*')";
    assert_eq!(one(&mut sql, stores), text("/raw/r:raw"));
    for nothing in [
        "SELECT count(*) FROM files_as_of(NULL)",
        "SELECT count(*) FROM files_as_of('first', NULL)",
    ] {
        assert_eq!(one(&mut sql, nothing), integer(0), "{nothing}");
    }
    assert_eq!(
        one(&mut sql, "SELECT content_as_of(NULL, '/a')"),
        SqlValue::Null
    );
    // More moments than are open at a time, in one statement.
    for round in 0..20 {
        db.files()
            .write(b"/n", format!("{round}").as_bytes())
            .unwrap();
        db.sync().unwrap();
        clock.pass(1000 * MILLISECOND);
    }
    let many = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 20) \
                SELECT group_concat(CAST(content_as_of('-' || n || 's', '/n') AS TEXT)) FROM s";
    let expected: Vec<String> = (0..20).rev().map(|round: i32| round.to_string()).collect();
    assert_eq!(one(&mut sql, many), text(&expected.join(",")));
    // Where something may be written it is refused; in a session that only reads, a transaction may
    // ask too.
    let told_why = |outcome: Result<Vec<SqlValue>, larder::Error>| {
        let refused = outcome.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("that may write"), "{refused}");
    };
    run(&mut sql, "BEGIN").unwrap();
    told_why(run(&mut sql, "SELECT content_as_of('first', '/a')"));
    run(&mut sql, "INSERT INTO wanted VALUES ('x', 'y')").unwrap();
    told_why(run(&mut sql, "SELECT count(*) FROM files_as_of('first')"));
    run(&mut sql, "ROLLBACK").unwrap();
    told_why(run(
        &mut sql,
        "INSERT INTO wanted SELECT path, '' FROM files_as_of('first')",
    ));
    assert_eq!(one(&mut sql, "SELECT count(*) FROM wanted"), integer(4));
    let txn = db.transactions().begin().unwrap();
    let refused = txn
        .sql("SELECT content_as_of('first', '/b.txt')", &[])
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let mut reading = db.sql().open(true).unwrap();
    run(&mut reading, "BEGIN").unwrap();
    let found = one(
        &mut reading,
        "SELECT count(*) FROM files_as_of('first', '/gone')",
    );
    assert_eq!(found, integer(1));
    run(&mut reading, "COMMIT").unwrap();
    // Mistakes.
    for (statement, why) in [
        ("SELECT content_as_of('nobody', '/a')", "snapshot 'nobody'"),
        ("SELECT content_as_of('-1y', '/a')", "history begins"),
        ("SELECT content_as_of('-1x', '/a')", "is no moment"),
        ("SELECT content_as_of('2999-01-01', '/a')", "in the future"),
        ("SELECT content_as_of(1.5, '/a')", "the moment is text"),
        ("SELECT content_as_of('first', '/')", "it is a dir"),
        ("SELECT * FROM files_as_of('nobody')", "snapshot 'nobody'"),
        ("SELECT * FROM files_as_of", "give it a moment"),
        (
            "SELECT * FROM files_as_of('first', 7)",
            "the pattern is text",
        ),
        ("SELECT * FROM files_as_of('first', 'a')", "absolute"),
    ] {
        let told = told(&mut sql, statement);
        assert!(told.contains(why), "{statement}: {told}");
    }
    drop((txn, sql, reading));
    assert_eq!(tree.findings().unwrap(), Vec::<String>::new());
}

#[test]
fn a_session_of_the_past_shows_nothing_else_and_changes_nothing() {
    let dir = support::scratch();
    let (tree, clock) = create(dir.path());
    let db = tree.database();
    db.files().write(b"/f", b"old").unwrap();
    let mut sql = db.sql().open(false).unwrap();
    run(
        &mut sql,
        "CREATE TABLE docs (id); INSERT INTO docs VALUES (1)",
    )
    .unwrap();
    run(
        &mut sql,
        "CREATE VIEW names AS SELECT name FROM main_dirent",
    )
    .unwrap();
    db.snapshots().create("s").unwrap();
    clock.pass(MILLISECOND);
    db.files().write(b"/f", b"newer").unwrap();
    db.files().write(b"/g", b"").unwrap();
    db.sync().unwrap(); // A store is there since the newest commit.
    db.stores().create("later", "files", None, None).unwrap();
    let moment = Moment::Snapshot("s".into());
    let mut past = db.sql().open_as_of(&moment).unwrap();
    let see = |past: &mut SqlSession| {
        assert_eq!(one(past, "SELECT count(*) FROM main_dirent"), integer(1));
        assert_eq!(
            one(
                past,
                "SELECT size FROM main JOIN main_path USING (ino) WHERE path = '/f'"
            ),
            integer(3)
        );
        assert_eq!(one(past, "SELECT CAST(content('/f') AS TEXT)"), text("old"));
        assert_eq!(one(past, "SELECT path(ino('/f'))"), text("/f"));
        assert_eq!(one(past, "SELECT ino('/g')"), SqlValue::Null);
        assert_eq!(
            one(past, "SELECT group_concat(path) FROM files('/*')"),
            text("/f")
        );
        assert_eq!(
            one(past, "SELECT CAST(content_as_of('-0s', '/f') AS TEXT)"),
            text("newer")
        );
        assert_eq!(one(past, "SELECT count(*) FROM later"), integer(0));
        assert_eq!(
            one(past, "SELECT sum(value) FROM json_each('[1,2]')"),
            integer(3)
        );
        assert!(number(&one(past, "SELECT count(*) FROM sqlite_schema")) > 5);
        assert!(number(&one(past, "SELECT count(*) FROM pragma_table_info('main')")) > 5);
    };
    see(&mut past);
    run(&mut past, "BEGIN").unwrap();
    see(&mut past);
    // What has no past is not shown as if it had one.
    for (statement, name) in [
        ("SELECT * FROM docs", "docs"),
        ("SELECT * FROM names", "names"),
        ("SELECT * FROM main.main", "main"),
        ("SELECT * FROM main.main_path", "main_path"),
        (
            "WITH x AS (SELECT id FROM docs) SELECT count(*) FROM x",
            "docs",
        ),
        ("SELECT (SELECT count(*) FROM docs)", "docs"),
        ("SELECT count(*) FROM larder_extent", "larder_extent"),
    ] {
        let told = told(&mut past, statement);
        let why = format!("'{name}' cannot be read as of a moment");
        assert!(told.contains(&why), "PASTSQL-1: {statement}: {told}");
    }
    run(&mut past, "COMMIT").unwrap();
    for statement in [
        "INSERT INTO docs VALUES (2)",
        "UPDATE main.main SET mode = 0",
        "SELECT write_content('/h', 'x')",
        "CREATE TABLE t (a)",
        "BEGIN IMMEDIATE",
    ] {
        let outcome = run(&mut past, statement);
        assert_eq!(kind(outcome), ErrorKind::ReadOnly, "{statement}");
    }
    // It keeps its moment.
    for round in 0..4 {
        clock.pass(HOUR);
        if round == 1 {
            db.snapshots().destroy("s").unwrap();
        }
        db.files()
            .write(b"/f", format!("round {round}").as_bytes())
            .unwrap();
        db.sync().unwrap();
    }
    let mut again = db.sql().open(true).unwrap();
    assert_eq!(
        one(&mut again, "SELECT CAST(content('/f') AS TEXT)"),
        text("round 3")
    );
    assert_eq!(
        one(&mut past, "SELECT CAST(content('/f') AS TEXT)"),
        text("old"),
        "CONTENT-9"
    );
    assert_eq!(
        one(&mut past, "SELECT size FROM main WHERE ino = ino('/f')"),
        integer(3)
    );
    drop(past);
    let gone = db.sql().open_as_of(&moment).map(drop);
    assert_eq!(kind(gone), ErrorKind::NotFound);
    let unknown = db.sql().open_as_of(&Moment::At(BEGIN_NS - 1)).map(drop);
    assert_eq!(kind(unknown), ErrorKind::InvalidInput);
    assert_eq!(db.stores().list().unwrap()[0].store, StoreId::MAIN);
}
