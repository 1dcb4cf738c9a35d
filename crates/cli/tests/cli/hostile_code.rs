//! What a stranger's schema may run for others: nothing that is not larder's own (`SAFE-4`).

use crate::hostile::damage::full;
use crate::hostile_catalog::{Figures, hostile, run};
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::FileExt;

/// A check evaluates indexes, constraints and generated columns of every table; what a stranger has
/// on his own is named and not run, and what compiles for ever ends.
#[test]
fn a_check_runs_no_code_of_strangers_on_tables_of_their_own() {
    let place = full();
    let mut figures = Figures::default();
    let doubled: String = (1..60)
        .map(|n| format!(", c{n} AS (c{} + c{0})", n - 1))
        .collect();
    // Making such a table would not end either.
    let doubling = format!(
        "CREATE TABLE evil (c0); UPDATE sqlite_schema SET sql = \
         'CREATE TABLE evil (c0{doubled}, CHECK (c59 > 0))' WHERE name = 'evil'"
    );
    for (sql, named) in [
        (&*doubling, "'c1' of 'evil'"),
        (
            "CREATE TABLE evil (a); CREATE INDEX theirs ON evil (hex(a))",
            "'theirs'",
        ),
        (
            "CREATE TABLE evil (a); CREATE INDEX theirs ON evil (a) WHERE a > 1",
            "'theirs'",
        ),
        (
            "CREATE TABLE evil (size CHECK (json_valid(size)))",
            "json_valid()",
        ),
        (
            "CREATE TABLE evil (size CHECK (size NOT LIKE '%a%b'))",
            "like()",
        ),
        (
            "CREATE TABLE evil (a, size AS (a || a))",
            "'size' of 'evil'",
        ),
        (
            "CREATE VIRTUAL TABLE evil USING fts5 (a)",
            "virtual table 'evil'",
        ),
    ] {
        hostile(&place, |owner| owner.execute_batch(sql).unwrap());
        let verb = ["check", "x.larder", "--untrusted"];
        run(&place, &verb, sql, &mut figures).assert_failed(1, named, sql);
        run(&place, &["check", "x.larder"], sql, &mut figures);
        let done = run(&place, &["ls", "x.larder:/"], sql, &mut figures);
        assert_eq!(done.code, Some(0), "SAFE-4: {sql}");
    }
    // Nor where it does not open for its damage.
    let mut at_bytes: u32 = 0;
    hostile(&place, |owner| {
        owner.execute_batch(&doubling).unwrap();
        let sql = "SELECT (rootpage - 1) * page_size FROM sqlite_schema, pragma_page_size WHERE \
                   name = 'larder_store'";
        at_bytes = owner.query_row(sql, [], |row| row.get(0)).unwrap();
    });
    let catalog = fs::File::options()
        .write(true)
        .open(place.path("x.larder/catalog.db"));
    catalog
        .unwrap()
        .write_all_at(&[0xFF; 200], at_bytes.into())
        .unwrap();
    let verb = ["check", "x.larder", "--untrusted"];
    let done = run(&place, &verb, "damage", &mut figures);
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(told.contains("damaged at larder_store"), "SAFE-4: {done:?}");
    // Tables without code are data.
    hostile(&place, |owner| {
        let sql = "CREATE TABLE own (a TEXT NOT NULL, b DEFAULT 1, UNIQUE (a, b), CHECK (b > 0));
                   CREATE INDEX i ON own (b)";
        owner.execute_batch(sql).unwrap();
    });
    place.ok(&["check", "x.larder", "--untrusted"]);
    figures.assert_bounded();
}

/// What a stranger's database may not bring along.
#[test]
fn code_of_strangers_is_refused_by_name() {
    let place = full();
    let mut figures = Figures::default();
    for (sql, named) in [
        (
            "CREATE TRIGGER theirs AFTER UPDATE ON main BEGIN SELECT 1; END",
            "'theirs'",
        ),
        ("ALTER TABLE main ADD COLUMN g AS (mode + 1)", "'g'"),
        ("CREATE INDEX theirs ON main (hex(rating))", "'theirs'"),
        (
            "CREATE INDEX theirs ON main (rating) WHERE rating > 1",
            "'theirs'",
        ),
        (
            "ALTER TABLE main ADD COLUMN c CHECK (instr(c, 'x') > 0)",
            "instr()",
        ),
        (
            "ALTER TABLE main ADD COLUMN c CHECK (c GLOB '*a*b')",
            "glob()",
        ),
        // What foreign keys lead to.
        (
            "CREATE TABLE refers (ino REFERENCES main (ino) ON DELETE CASCADE);
             CREATE TRIGGER theirs AFTER DELETE ON refers BEGIN SELECT 1; END",
            "'theirs'",
        ),
        (
            "CREATE TABLE near (id INTEGER PRIMARY KEY, ino REFERENCES \"MAIN\" ON UPDATE CASCADE);
             CREATE TABLE far (near REFERENCES near, g AS (upper(near)) STORED)",
            "'g'",
        ),
        (
            "CREATE TABLE refers (ino REFERENCES main (ino) ON DELETE SET NULL);
             CREATE INDEX theirs ON refers (hex(ino))",
            "'theirs'",
        ),
        (
            "CREATE TABLE refers (
               ino DEFAULT (randomblob(9)) REFERENCES main ON DELETE SET DEFAULT)",
            "randomblob()",
        ),
    ] {
        hostile(&place, |owner| owner.execute_batch(sql).unwrap());
        let told = place.run(&["check", "x.larder", "--untrusted"]);
        told.assert_failed(1, named, sql);
        assert_eq!(
            place.run(&["ls", "x.larder:/"]).code,
            Some(0),
            "SAFE-4: {sql}"
        );
        if rustix::process::geteuid().is_root() {
            let theirs = place.path("x.larder/catalog.db");
            std::os::unix::fs::chown(theirs, Some(4711), Some(4711)).unwrap();
            let done = run(&place, &["ls", "x.larder:/"], sql, &mut figures);
            done.assert_failed(1, "user 4711", sql);
            let trusting = place
                .command(&["ls", "x.larder:/"])
                .env("LARDER_TRUST", "anybody")
                .output();
            assert!(trusting.unwrap().status.success(), "SAFE-4: {sql}");
        }
    }
    for word in ["Nobody", " nobody", "x"] {
        let mut command = place.command(&["ls", "x.larder:/"]);
        let done = command.env("LARDER_TRUST", word).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(
            told.contains("it may be 'anybody', 'nobody', or not set"),
            "{word}: {told}"
        );
        assert_eq!(done.status.code(), Some(1), "{word}");
    }
    // Columns, indexes and constraints without code are data.
    hostile(&place, |owner| {
        let data = "ALTER TABLE main ADD COLUMN stars INTEGER DEFAULT 3 CHECK (stars IN (1, 2, \
            3)); \
                    CREATE INDEX by_stars ON main (stars); CREATE VIEW mine AS SELECT * FROM album;
                    CREATE TABLE refers (ino REFERENCES main (ino) ON DELETE CASCADE, note TEXT);
                    CREATE INDEX by_note ON refers (note);
                    CREATE TRIGGER mine_alone AFTER UPDATE ON album BEGIN SELECT 1; END";
        owner.execute_batch(data).unwrap();
    });
    place.ok(&["check", "x.larder", "--untrusted"]);
    figures.assert_bounded();
}

/// What larder itself puts on a table of the owner's that refers to files is nobody's code; a
/// trigger that only has its name is.
#[test]
fn tables_that_larder_tracks_and_watches_may_refer_to_files() {
    let place = full();
    hostile(&place, |owner| {
        let tables = "CREATE TABLE note (id INTEGER PRIMARY KEY, ino INTEGER REFERENCES main (ino)
              ON DELETE CASCADE, text TEXT);
            CREATE TABLE \"Odd name\" (ino REFERENCES main ON UPDATE CASCADE, PRIMARY KEY (ino))
              WITHOUT ROWID";
        owner.execute_batch(tables).unwrap();
    });
    for table in ["note", "Odd name"] {
        place.ok(&["track", "x.larder", table]);
    }
    place.ok(&["watch", "x.larder", "--enable", "--table", "note", "--once"]);
    let stranger = |verb: &[&str]| {
        let mut command = place.command(verb);
        command.env("LARDER_TRUST", "nobody").output().unwrap()
    };
    place.ok(&["check", "x.larder", "--untrusted"]);
    let done = stranger(&["ls", "x.larder:/"]);
    assert!(done.status.success(), "SAFE-4: {done:?}");
    let owner = Connection::open(place.path("x.larder/catalog.db")).unwrap();
    let names = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'note'";
    let mut find = owner.prepare(names).unwrap();
    let triggers: Vec<String> = (find.query_map([], |row| row.get(0)).unwrap())
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    assert!(triggers.len() > 5, "{triggers:?}");
    drop(find);
    for name in &triggers {
        let sql: String = owner
            .query_row(
                "SELECT sql FROM sqlite_schema WHERE name = ?1",
                [name],
                |row| row.get(0),
            )
            .unwrap();
        let other = format!(
            "{} SELECT randomblob(9); END",
            sql.strip_suffix("END").unwrap()
        );
        let swap = |sql: &str| owner.execute_batch(&format!("DROP TRIGGER {name}; {sql}"));
        swap(&other).unwrap();
        let done = stranger(&["ls", "x.larder:/"]);
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(
            !done.status.success() && told.contains(name),
            "SAFE-4: {told}"
        );
        swap(&sql).unwrap();
    }
    assert!(stranger(&["ls", "x.larder:/"]).status.success(), "SAFE-4");
}

/// A change of the schema is its owner's.
#[test]
fn sql_of_others_changes_no_schema() {
    let place = full();
    hostile(&place, |_| ());
    let before = place.ok(&["sql", "x.larder", "SELECT count(*) FROM sqlite_schema"]);
    for sql in [
        "CREATE TRIGGER theirs AFTER INSERT ON main BEGIN SELECT 1; END",
        "ALTER TABLE album ADD COLUMN m",
        "CREATE INDEX theirs ON album (n)",
        "DROP TABLE album",
    ] {
        let mut command = place.command(&["sql", "x.larder", sql]);
        let done = command.env("LARDER_TRUST", "nobody").output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(
            told.contains("the schema is not changed"),
            "SAFE-4: {sql}: {told}"
        );
        assert_eq!(done.status.code(), Some(1), "{sql}");
    }
    place.ok(&["sql", "x.larder", "INSERT INTO album (n) VALUES (7)"]);
    let after = place.ok(&["sql", "x.larder", "SELECT count(*) FROM sqlite_schema"]);
    assert_eq!(before, after);
    place.assert_clean("x.larder");
}
