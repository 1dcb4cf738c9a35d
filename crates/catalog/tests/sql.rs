//! SQL sessions.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod common;

use common::{create, name, new_file};
use larder_catalog::format::Ino;
use larder_catalog::{CatalogError, SqlRow, SqlSession, SqlValue};
use std::ops::ControlFlow;

fn run(session: &mut SqlSession, sql: &str) -> Result<(Vec<SqlRow>, u64), CatalogError> {
    let mut rows = Vec::new();
    let changed = session.execute(sql, &mut |row| {
        rows.push(row);
        ControlFlow::Continue(())
    })?;
    Ok((rows, changed))
}

#[test]
fn statements_give_columns_values_and_counts() {
    let (_dir, catalog) = create();
    catalog.commit(&new_file(2, "f")).unwrap();
    let mut session = catalog.sql_session(false).unwrap();
    let (rows, changed) = run(
        &mut session,
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
    let (_, changed) = run(&mut session, "SELECT 1; CREATE TABLE t(x); SELECT 2").unwrap();
    assert_eq!(changed, 0, "an old count is not counted again");
    let (rows, changed) = run(&mut session, "INSERT INTO t VALUES (1), (2) RETURNING x").unwrap();
    assert_eq!((rows.len(), changed), (2, 2));
    let mut seen = 0;
    let mut stop = |_| {
        seen += 1;
        ControlFlow::Break(())
    };
    session
        .execute("SELECT x FROM t; SELECT x FROM t", &mut stop)
        .unwrap();
    assert_eq!(seen, 1, "a break ends it all");
}

#[test]
fn names_that_are_not_utf8_are_shown() {
    let (_dir, catalog) = create();
    let mut changes = new_file(2, "f");
    changes.dirents[0].2 = name(b"a\xff");
    catalog.commit(&changes).unwrap();
    let (rows, _) = run(
        &mut catalog.sql_session(true).unwrap(),
        "SELECT path FROM main_path WHERE ino = 2",
    )
    .unwrap();
    assert_eq!(rows[0].values, [SqlValue::Text("/a\u{fffd}".into())]);
}

#[test]
fn mistakes_have_a_place() {
    let (_dir, catalog) = create();
    let mut session = catalog.sql_session(false).unwrap();
    let line = |session: &mut SqlSession, sql: &str| run(session, sql).unwrap_err().to_string();
    assert_eq!(
        line(&mut session, "SELECT 1;\nSELECT nowhere FROM main"),
        "line 2 column 8: no such column: nowhere"
    );
    assert_eq!(
        line(&mut session, "SELEC 1"),
        "line 1 column 1: near \"SELEC\": syntax error"
    );
    assert_eq!(line(&mut session, "SELECT * FROM"), "incomplete input");
    let refused = line(&mut session, "DELETE FROM main");
    assert_eq!(
        refused,
        "a row of main is a file; delete it through the mount or the larder command"
    );
    let refused = run(&mut session, "UPDATE main SET mode = 9999").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "main: CHECK constraint failed: main.mode is 0 to 4095 (octal 7777)"
    );
}

#[test]
fn a_read_only_session_changes_nothing() {
    let (_dir, catalog) = create();
    let mut session = catalog.sql_session(true).unwrap();
    for sql in [
        "UPDATE main SET mode = 0",
        "PRAGMA query_only = 0; CREATE TABLE t(x)",
    ] {
        let refused = run(&mut session, sql).unwrap_err();
        assert!(
            matches!(refused, CatalogError::ReadOnly { .. }),
            "{refused}"
        );
    }
    assert_eq!(
        catalog
            .inode(larder_catalog::format::StoreId::MAIN, Ino::ROOT)
            .unwrap()
            .unwrap()
            .mode,
        0o755
    );
}

#[test]
fn a_dropped_session_rolls_back() {
    let (_dir, catalog) = create();
    let mut session = catalog.sql_session(false).unwrap();
    run(&mut session, "BEGIN; UPDATE main SET mode = 0").unwrap();
    assert!(session.is_in_transaction());
    drop(session);
    catalog.commit(&new_file(2, "f")).unwrap();
    assert_eq!(
        catalog
            .inode(larder_catalog::format::StoreId::MAIN, Ino::ROOT)
            .unwrap()
            .unwrap()
            .mode,
        0o755
    );
}
