//! SQL sessions.

use crate::common::pages::{page, two};
use crate::common::{MAIN, create, name, new_file};
use larder_catalog_sqlite::format::Ino;
use larder_catalog_sqlite::{
    CatalogError, CatalogOptions, ChangeSet, SqlRow, SqlValue, SqliteCatalog,
};
use std::ops::ControlFlow;
use std::path::Path;

/// The catalog as an SQL session has it.
fn session(dir: &Path) -> SqliteCatalog {
    SqliteCatalog::open_private(dir, &CatalogOptions::default(), true).unwrap()
}

fn run_until(
    session: &SqliteCatalog,
    sql: &str,
    on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
) -> Result<u64, CatalogError> {
    let (mut at, mut changed_count) = (0, 0);
    while let Some(statement) = session.sql().inspect(sql, at)? {
        at = statement.end;
        let (changed, flow) = session.sql().run(sql, &statement, &[], None, on_row)?;
        changed_count += changed;
        if flow.is_break() {
            break;
        }
    }
    Ok(changed_count)
}

fn run(session: &SqliteCatalog, sql: &str) -> Result<(Vec<SqlRow>, u64), CatalogError> {
    let mut rows = Vec::new();
    let changed = run_until(session, sql, &mut |row| {
        rows.push(row);
        ControlFlow::Continue(())
    })?;
    Ok((rows, changed))
}

#[test]
fn sql_of_the_past_shows_pages_of_maps_that_are_shared() {
    let (dir, catalog) = two(500);
    let then = catalog.tables().commit_seq().unwrap();
    // One of them has its reference in the history by now.
    let set = ChangeSet {
        map_pages: vec![(MAIN, Ino(3), 0, None)],
        ..ChangeSet::default()
    };
    catalog.commit(&set).unwrap();
    let session = session(dir.path());
    session.sql().show_past(then, i64::MIN).unwrap();
    let (rows, _) = run(
        &session,
        "SELECT ino, page, runs FROM main_map ORDER BY ino",
    )
    .unwrap();
    let found: Vec<_> = rows.iter().map(|row| row.values.clone()).collect();
    let expected = [2, 3].map(|ino| {
        vec![
            SqlValue::Integer(ino),
            SqlValue::Integer(0),
            SqlValue::Blob(page(1, 500)),
        ]
    });
    assert!(found == expected, "SHARE-8: {found:?}");
}

#[test]
fn statements_give_columns_values_and_counts() {
    let (dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    let session = session(dir.path());
    let (rows, changed) = run(
        &session,
        "ALTER TABLE main ADD COLUMN tag; -- a comment;\n UPDATE main SET tag = x'ff', mode = 1;\n
         SELECT ino, tag AS \"the tag\", 1.5, 'text', NULL FROM main WHERE ino = 2; ;",
    )
    .unwrap();
    assert_eq!(changed, 2, "what triggers changed is not counted");
    assert_eq!(rows.len(), 1);
    assert_eq!(
        *rows[0].columns,
        ["ino", "the tag", "1.5", "'text'", "NULL"]
    );
    let expected = vec![
        SqlValue::Integer(2),
        SqlValue::Blob(vec![0xff]),
        SqlValue::Real(1.5),
        SqlValue::Text("text".into()),
        SqlValue::Null,
    ];
    assert_eq!(rows[0].values, expected);
    let (_, changed) = run(&session, "SELECT 1; CREATE TABLE t(x); SELECT 2").unwrap();
    assert_eq!(changed, 0, "an old count is not counted again");
    let (rows, changed) = run(&session, "INSERT INTO t VALUES (1), (2) RETURNING x").unwrap();
    assert_eq!((rows.len(), changed), (2, 2));
    let mut seen = 0;
    let mut stop = |_| {
        seen += 1;
        ControlFlow::Break(())
    };
    run_until(&session, "SELECT x FROM t; SELECT x FROM t", &mut stop).unwrap();
    assert_eq!(seen, 1, "a break ends it all");
}

#[test]
fn names_that_are_not_utf8_are_shown() {
    let (dir, catalog) = create();
    let mut changes = new_file(2, "f");
    changes.dirents[0].2 = name(b"a\xff");
    catalog.commit(&changes).unwrap();
    let (rows, _) = run(
        &session(dir.path()),
        "SELECT path FROM main_path WHERE ino = 2",
    )
    .unwrap();
    assert_eq!(rows[0].values, [SqlValue::Text("/a\u{fffd}".into())]);
}

#[test]
fn mistakes_have_a_place() {
    let (dir, _catalog) = create();
    let session = session(dir.path());
    let line = |session: &SqliteCatalog, sql: &str| run(session, sql).unwrap_err().to_string();
    assert_eq!(
        line(&session, "SELECT 1;\nSELECT nowhere FROM main"),
        "line 2 column 8: no such column: nowhere"
    );
    assert_eq!(
        line(&session, "SELEC 1"),
        "line 1 column 1: near \"SELEC\": syntax error"
    );
    assert_eq!(line(&session, "SELECT * FROM"), "incomplete input");
    let refused = line(&session, "DELETE FROM main");
    assert_eq!(
        refused,
        "a row of main is a file; delete it through the mount or the larder command"
    );
    let refused = run(&session, "UPDATE main SET mode = 9999").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "main: CHECK constraint failed: main.mode is 0 to 4095 (octal 7777)"
    );
}

#[test]
fn a_statement_is_known_before_it_runs() {
    let (dir, _catalog) = create();
    let session = session(dir.path());
    let known = |sql: &str| session.sql().inspect(sql, 0).unwrap().unwrap();
    assert!(
        session
            .sql()
            .inspect(" -- nothing\n /* at all */ ; ;", 0)
            .unwrap()
            .is_none()
    );
    let select = known("  SELECT 1; SELECT 2");
    assert!(select.is_read_only && !select.writes() && !select.uses_files);
    assert_eq!((select.start, select.end), (0, 11));
    assert!(known("UPDATE main SET mode = 1").writes());
    assert!(known("SELECT Content('/a')").uses_files);
    assert!(known("SELECT * FROM files('/*')").uses_files);
    let write = known("SELECT WRITE_content('/a', 'x')");
    assert!(write.is_read_only && write.writes_files && write.writes());
    let controls = [
        "BEGIN",
        "END",
        "ROLLBACK",
        "SAVEPOINT a",
        "RELEASE a",
        "ROLLBACK TO a",
    ]
    .map(|sql| format!("{:?}", known(sql).control.unwrap()));
    assert_eq!(
        controls,
        [
            "Begin",
            "Commit",
            "Rollback",
            "Savepoint(\"a\")",
            "Release(\"a\")",
            "RollbackTo(\"a\")"
        ]
    );
    // Nobody answers, so nothing is told.
    let refused = run(&session, "SELECT larder_time()").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "files are reached in a transaction only"
    );
}
