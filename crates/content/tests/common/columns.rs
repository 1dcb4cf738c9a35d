//! A store whose user columns are tracked, and what is in them.

use super::temporal::{Client, client, create, query};
use larder::{Database, ErrorKind, Moment, NodeId, RestoreOptions, SqlSession, SqlValue};

pub const R: NodeId = NodeId::ROOT;
pub const RATING: &[u8] = b"user.column.rating";

/// A database whose store `main` has the columns `rating` and `tag`, and is tracked.
pub fn rated(dir: &std::path::Path) -> (Database, Client) {
    let db = create(dir);
    let other = client(dir);
    other.run("ALTER TABLE main ADD COLUMN rating; ALTER TABLE main ADD COLUMN tag TEXT;");
    db.sql().track_table("MAIN").unwrap();
    (db, other)
}

pub fn integer(value: i64) -> SqlValue {
    SqlValue::Integer(value)
}

pub fn text(value: &str) -> SqlValue {
    SqlValue::Text(value.into())
}

pub fn session_rows(session: &mut SqlSession, sql: &str) -> Vec<Vec<SqlValue>> {
    let mut found = Vec::new();
    session
        .execute(sql, &mut |row| {
            found.push(row.values);
            Ok(())
        })
        .unwrap();
    found
}

/// The rows of a query as of a moment.
pub fn asked(db: &Database, moment: &Moment, sql: &str) -> Vec<Vec<SqlValue>> {
    session_rows(&mut db.sql().open_as_of(moment).unwrap(), sql)
}

pub fn records(db: &Database) -> i64 {
    let rows = query(db, "SELECT count(*) FROM larder_history WHERE what = 'row'");
    match rows[0][0] {
        SqlValue::Integer(count) => count,
        ref other => panic!("{other:?}"),
    }
}

pub fn set(db: &Database, sql: &str) {
    query(db, sql);
}

pub fn restore(db: &Database, moment: &Moment, path: &str, options: RestoreOptions) -> u64 {
    let past = db.as_of(moment).unwrap();
    let dry = RestoreOptions {
        is_dry: true,
        ..options.clone()
    };
    let planned = db
        .history()
        .restore(&past, Some(path.as_bytes()), &dry)
        .unwrap();
    let done = db
        .history()
        .restore(&past, Some(path.as_bytes()), &options)
        .unwrap();
    assert_eq!(planned, done.planned(), "a dry run tells what is done");
    done.rows.iter().map(|rows| rows.updated_count).sum()
}

pub fn rating(db: &Database, path: &str) -> Option<Vec<u8>> {
    let node = db.nodes().resolve(path.as_bytes(), false).unwrap().node;
    match db.attributes().get(node, RATING) {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoAttribute, "{error}");
            None
        }
    }
}
