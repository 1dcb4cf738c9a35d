//! A value in a column of a catalog, read as each of our types.
#![no_main]

use rusqlite::Connection;
use rusqlite::types::Value;

thread_local! {
    static CONNECTION: Connection = Connection::open_in_memory().expect("a connection");
}

libfuzzer_sys::fuzz_target!(|input: (u8, i64, Vec<u8>)| {
    let (kind, number, bytes) = input;
    let value = match kind % 5 {
        0 => Value::Null,
        1 => Value::Integer(number),
        2 => Value::Real(f64::from_bits(number as u64)),
        3 => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        _ => Value::Blob(bytes),
    };
    CONNECTION.with(|connection| {
        larder_catalog_sqlite::fuzzing::read_value(connection, &value).expect("SQLite");
    });
});
