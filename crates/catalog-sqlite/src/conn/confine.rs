//! What code in a catalog may do while our statements run: settings and limits of every connection
//! of ours.
//!
//! # Invariants
//! * `SAFE-5` No connection of ours attaches another file, but for a merge and the SQL of a person
//!   who says ATTACH; loads a library, makes a virtual table, or writes the schema as a table; and
//!   one that reads changes nothing. *Guard*: [`confine`], by SQLite's own switches and limits, and
//!   [`refuse`], while a statement is compiled. `place` is the only file that opens a connection to
//!   a file, and `open` the only one that asks it; [`scratch`] makes those in memory. `cargo xtask
//!   tidy` sees to it.
//!
//! The engine's connections also bound what one value, one expression and one program may be:
//! expressions of generated columns and constraints have no loops, so these bounds are theirs.

use crate::error::{At, Result, require_ok};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ffi};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::str::Utf8Error;

/// The longest value that the engine's statements handle, bytes.
pub(crate) const VALUE_BYTES_MAX: i32 = 128 << 20;
/// The longest text of a statement or an object of the schema for the engine, bytes.
const SQL_BYTES_MAX: i32 = 4 << 20;
/// The longest program of a statement, operations of 24 bytes: generated columns of which each has
/// the one before twice would fill the memory while they are compiled. A check of 10,000 tables of
/// ten columns needs a quarter of it.
const PROGRAM_MAX: i32 = 4 << 20;
/// How deep triggers run triggers.
const TRIGGER_DEPTH_MAX: i32 = 100;
/// How deep expressions are, SQLite's own bound: it is parsed with a stack.
const EXPRESSION_DEPTH_MAX: i32 = 1000;

/// What a connection of ours is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The engine's statements that read only: readers, checkpoints, the flush of the log.
    Reader,
    /// The engine's statements only.
    Engine,
    /// The engine's statements that merge a workspace, which they attach.
    Merge,
    /// A user's statements too, whose values may be as long as SQLite's.
    User,
    /// A person's, who may also ATTACH.
    Shell,
}

/// Settings of every connection of ours (`SAFE-5`), and its functions of text (`SAFE-9`). 5 µs.
pub(crate) fn confine(connection: &Connection, purpose: Use) -> Result<()> {
    // In an extension they are those of the program, as on its own connection.
    #[cfg(feature = "bundled")]
    crate::conn::text_functions::register(connection)?;
    for (switch, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    ] {
        connection.set_db_config(switch, on).at("the limits")?;
    }
    // SQLite's own bounds where a user's statements run; each is set, since the connection may have
    // had others.
    let (attached, value_bytes, sql_bytes) = match purpose {
        Use::Reader | Use::Engine => (0, VALUE_BYTES_MAX, SQL_BYTES_MAX),
        Use::Merge => (1, VALUE_BYTES_MAX, SQL_BYTES_MAX),
        Use::User => (0, i32::MAX, i32::MAX),
        Use::Shell => (i32::MAX, i32::MAX, i32::MAX),
    };
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, TRIGGER_DEPTH_MAX),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, EXPRESSION_DEPTH_MAX),
        (Limit::SQLITE_LIMIT_ATTACHED, attached),
        (Limit::SQLITE_LIMIT_LENGTH, value_bytes),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, sql_bytes),
        (Limit::SQLITE_LIMIT_VDBE_OP, PROGRAM_MAX),
    ] {
        connection.set_limit(limit, value).at("the limits")?;
    }
    // Where users' statements run, their own authorizer looks at them (`user_sql`).
    let rules: Option<&'static Rules> = match purpose {
        Use::Reader => Some(&Rules {
            attaches: false,
            writes: false,
        }),
        Use::Engine => Some(&Rules {
            attaches: false,
            writes: true,
        }),
        Use::Merge => Some(&Rules {
            attaches: true,
            writes: true,
        }),
        Use::User | Use::Shell => None,
    };
    // SAFETY: an open connection; the rules are static, and `refuse` only reads them.
    require_ok(unsafe {
        ffi::sqlite3_set_authorizer(
            connection.handle(),
            rules.map(|_| refuse as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
            rules.map_or(std::ptr::null_mut(), |rules| {
                std::ptr::from_ref(rules).cast_mut().cast()
            }),
        )
    })
}

/// A database in memory, to learn what a schema looks like.
pub(crate) fn scratch() -> Result<Connection> {
    let connection = Connection::open_in_memory().at("a scratch database")?;
    confine(&connection, Use::Engine)?;
    Ok(connection)
}

/// What statements of ours may do on a connection.
struct Rules {
    attaches: bool,
    writes: bool,
}

/// Whether a statement does what none of ours ever needs.
pub(crate) fn is_never_ours(code: c_int, first: Option<&str>, second: Option<&str>) -> bool {
    let is = |text: Option<&str>, names: &[&str]| {
        text.is_some_and(|text| names.iter().any(|name| name.eq_ignore_ascii_case(text)))
    };
    match code {
        ffi::SQLITE_CREATE_VTABLE => true,
        ffi::SQLITE_FUNCTION => is(second, &["load_extension", "fts3_tokenizer"]),
        ffi::SQLITE_PRAGMA if second.is_some() => is(
            first,
            &[
                "writable_schema",
                "trusted_schema",
                "temp_store_directory",
                "data_store_directory",
            ],
        ),
        _ => false,
    }
}

/// Whether a statement changes rows or the schema of the catalog, by its action.
fn changes(code: c_int) -> bool {
    matches!(
        code,
        ffi::SQLITE_INSERT
            | ffi::SQLITE_UPDATE
            | ffi::SQLITE_DELETE
            | ffi::SQLITE_CREATE_TABLE
            | ffi::SQLITE_CREATE_INDEX
            | ffi::SQLITE_CREATE_TRIGGER
            | ffi::SQLITE_CREATE_VIEW
            | ffi::SQLITE_DROP_TABLE
            | ffi::SQLITE_DROP_INDEX
            | ffi::SQLITE_DROP_TRIGGER
            | ffi::SQLITE_DROP_VIEW
            | ffi::SQLITE_DROP_VTABLE
            | ffi::SQLITE_ALTER_TABLE
            | ffi::SQLITE_REINDEX
            | ffi::SQLITE_ANALYZE
    )
}

/// SQLite asks whether a statement of ours may do something.
unsafe extern "C" fn refuse(
    rules: *mut c_void,
    code: c_int,
    first: *const c_char,
    second: *const c_char,
    _database: *const c_char,
    _accessor: *const c_char,
) -> c_int {
    // SAFETY: `confine` has given static rules.
    let rules = unsafe { &*rules.cast::<Rules>() };
    // SAFETY: texts that SQLite passes for this call.
    let (Ok(first), Ok(second)) = (unsafe { text(first) }, unsafe { text(second) }) else {
        return ffi::SQLITE_DENY; // A name that is no text is none of ours.
    };
    let attaches = matches!(code, ffi::SQLITE_ATTACH | ffi::SQLITE_DETACH);
    // Older versions of SQLite ask this of the columns of a virtual table, and write nothing;
    // the schema is not to be written anyway (`SAFE-5`).
    let is_declared = code == ffi::SQLITE_UPDATE
        && first.is_some_and(|table| table.eq_ignore_ascii_case("sqlite_master"));
    match attaches && !rules.attaches
        || changes(code) && !is_declared && !rules.writes
        || is_never_ours(code, first, second)
    {
        true => ffi::SQLITE_DENY,
        false => ffi::SQLITE_OK,
    }
}

/// A text that SQLite passes to a callback.
///
/// # Safety
/// Null, or a C string that lives as long as the call.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
) -> std::result::Result<Option<&'a str>, Utf8Error> {
    match text.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => unsafe { CStr::from_ptr(text) }.to_str().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guards::trigger_watch::TRIGGER_TIME_MAX;
    use crate::open::tests::INIT;
    use crate::{CheckpointKind, SqliteCatalog, lock};
    use std::time::Instant;

    /// What none of our connections does, whatever a catalog's names or triggers say.
    const FOREIGN: [&str; 8] = [
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema",
        "PRAGMA trusted_schema = ON",
        "PRAGMA temp_store_directory = '/'",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('x')",
        "CREATE VIRTUAL TABLE temp.t USING fts5(x)",
    ];

    fn require_confined(connection: &Connection, what: &str) {
        for sql in FOREIGN {
            // `prepare`: it is refused before it runs.
            let refused = connection.execute_batch(sql).is_err();
            let is_on: bool = connection
                .pragma_query_value(None, "trusted_schema", |row| row.get(0))
                .unwrap();
            assert!(refused && !is_on, "SAFE-5: {what}: {sql}");
        }
        let limit = |limit| connection.limit(limit).unwrap();
        assert_eq!(limit(Limit::SQLITE_LIMIT_ATTACHED), 0, "SAFE-5: {what}");
        assert_eq!(limit(Limit::SQLITE_LIMIT_LENGTH), VALUE_BYTES_MAX, "{what}");
        let depths = [
            (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, TRIGGER_DEPTH_MAX),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, EXPRESSION_DEPTH_MAX),
            (Limit::SQLITE_LIMIT_VDBE_OP, PROGRAM_MAX),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, SQL_BYTES_MAX),
        ];
        for (of, most) in depths {
            assert_eq!(limit(of), most, "SAFE-5: {what}");
        }
    }

    #[test]
    fn a_connection_of_ours_attaches_nothing_and_writes_no_schema() {
        for purpose in [Use::Reader, Use::Engine, Use::User] {
            let connection = Connection::open_in_memory().unwrap();
            confine(&connection, purpose).unwrap();
            for sql in [FOREIGN[0], FOREIGN[2], FOREIGN[5]] {
                assert!(
                    connection.execute_batch(sql).is_err(),
                    "SAFE-5: {purpose:?}: {sql}"
                );
            }
        }
        require_confined(&scratch().unwrap(), "a scratch database");
    }

    /// What no progress handler can end, since it is one step of SQLite's machine, is bounded by
    /// the length of a value: what is longer is refused before it is made.
    #[test]
    fn one_call_of_a_function_makes_no_endless_value() {
        let connection = scratch().unwrap();
        let began = Instant::now();
        for call in [
            "randomblob(1000000000)",
            "zeroblob(1000000000)",
            "hex(zeroblob(100000000))",
            "printf('%*c', 1000000000, 'x')",
            "replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))",
        ] {
            let sql = format!("SELECT length({call})");
            let told = connection.query_row(&sql, [], |row| row.get::<_, i64>(0));
            let told = told.unwrap_err().to_string();
            assert!(told.contains("too big"), "SAFE-7: {call}: {told}");
        }
        let longest = format!("SELECT length(randomblob({VALUE_BYTES_MAX}))");
        let length: i64 = connection
            .query_row(&longest, [], |row| row.get(0))
            .unwrap();
        assert_eq!(length, VALUE_BYTES_MAX.into());
        println!("all in {:?}", began.elapsed());
        assert!(began.elapsed() < 4 * TRIGGER_TIME_MAX, "SAFE-7");
    }

    #[test]
    fn every_connection_of_an_open_catalog_is_confined() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = SqliteCatalog::create(dir.path(), &Default::default(), &INIT).unwrap();
        catalog.transaction().open_flusher().unwrap();
        let reader = catalog.connect_reader().unwrap();
        let (checkpointer, flusher) = (lock(&catalog.checkpointer), lock(&catalog.flusher));
        let reading = [
            (&reader, "a reader"),
            (&*checkpointer, "the checkpointer"),
            (flusher.as_ref().unwrap(), "the flusher"),
        ];
        for (connection, what) in reading {
            require_confined(connection, what);
            for sql in [
                "UPDATE larder_meta SET value = 1",
                "INSERT INTO larder_meta VALUES ('a', 1)",
                "DELETE FROM main",
                "CREATE TABLE mine (x)",
                "DROP TABLE larder_meta",
                "ALTER TABLE main ADD COLUMN mine",
                "REINDEX",
            ] {
                let told = connection.prepare(sql).unwrap_err().to_string();
                assert!(
                    told.contains("not authorized"),
                    "SAFE-5: {what}: {sql}: {told}"
                );
            }
        }
        require_confined(&lock(&catalog.writer).connection, "the writer");
        drop((checkpointer, flusher));
        catalog.log().checkpoint(CheckpointKind::Truncate).unwrap();
        catalog.transaction().flush_log().unwrap();
    }
}
