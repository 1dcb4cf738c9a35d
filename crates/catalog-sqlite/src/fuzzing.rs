//! The decoders of this crate that `cargo xtask fuzz` calls: of what a catalog's owner can write.
//! Only built by it.

use crate::conn::log_scan;
use crate::types::codec;
use crate::types::names::{StoreName, check_store_name, shown};
use crate::types::sql_text;
use rusqlite::Connection;
use rusqlite::types::Value;
use std::path::Path;

/// Looks through `catalog.db-wal` in a directory (`SCAN-2`, `SCAN-3`); whether it has lost commits.
pub fn scan_log(directory: &Path) -> std::io::Result<bool> {
    log_scan::scan(&directory.join("catalog.db-wal")).map(|damage| damage.is_some())
}

/// What the text of a schema makes and calls (`SAFE-3`, `SAFE-4`).
pub fn read_schema_text(sql: &str) {
    let count = sql_text::tokens(sql).count();
    assert!(count <= sql.len(), "a token has a byte");
    let _ = sql_text::made(sql);
    let called = sql_text::called(sql);
    assert!(called.len() <= count, "a call has a token");
}

/// A name of a store (`SAFE-1`), and how it is told.
pub fn read_store_name(name: &str) {
    if check_store_name(name).is_ok() {
        assert!(
            !name.contains(['"', '\'', '\n', ';', '\0']),
            "SAFE-1: {name:?}"
        );
    }
    assert!(!shown(name).contains(char::is_control), "SAFE-1: {name:?}");
}

/// A value of a catalog as each column may be read.
pub fn read_value(connection: &Connection, value: &Value) -> rusqlite::Result<()> {
    connection
        .prepare_cached("SELECT ?1")?
        .query_row([value], |row| {
            if let Ok(number) = codec::unsigned(row, 0) {
                assert_eq!(Value::Integer(codec::signed(number)), *value);
            }
            if let Ok(name) = codec::name(row, 0) {
                assert!(!name.as_bytes().contains(&b'/'));
            }
            let _ = codec::bytes(row, 0);
            let _ = codec::kind(row, 0);
            let _ = row.get::<_, StoreName>(0);
            Ok(())
        })
}

/// A connection in memory as ours are, with our functions of text (`SAFE-9`).
pub fn scratch() -> crate::Result<Connection> {
    crate::conn::confine::scratch()
}
