//! Functions of text, which give what SQLite's own give (`SAFE-9`).
#![no_main]

use larder_catalog_sqlite::fuzzing::scratch;
use rusqlite::Connection;
use rusqlite::types::Value;

/// The three arguments, each a text of any bytes or a blob; what the functions give of them.
const SQL: &str = "
    WITH given AS (SELECT iif(?4 & 1, ?1, CAST(?1 AS TEXT)) AS a,
                          iif(?4 & 2, ?2, CAST(?2 AS TEXT)) AS b,
                          iif(?4 & 4, ?3, CAST(?3 AS TEXT)) AS c)
    SELECT instr(a, b), hex(replace(a, b, c)), hex(trim(a)), hex(trim(a, b)), hex(ltrim(a, b)),
           hex(rtrim(a, b)), hex(unhex(a)), hex(unhex(a, b)) FROM given";

thread_local! {
    static BOTH: [Connection; 2] = [
        scratch().expect("a connection of ours"),
        Connection::open_in_memory().expect("a connection"),
    ];
}

libfuzzer_sys::fuzz_target!(|input: (u8, Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (kinds, a, b, c) = input;
    let ask = |connection: &Connection| -> Vec<Value> {
        let mut statement = connection.prepare_cached(SQL).expect("a statement");
        let asked = statement.query_row((&a, &b, &c, kinds), |row| {
            (0..8).map(|column| row.get(column)).collect()
        });
        asked.expect("a row")
    };
    BOTH.with(|[ours, sqlite]| assert_eq!(ask(ours), ask(sqlite), "SAFE-9"));
});
