//! The schema: its version, the steps that lead to it, and the tables of a store.

pub(crate) mod attachments;
pub(crate) mod expected;
pub(crate) mod read;
pub(crate) mod statements;

use crate::error::{At, CatalogError, Result};
use crate::types::names::{
    SUFFIXES, StoreName, execute_all, execute_one, execute_template, quoted,
};
use larder_format::StoreId;
use larder_format::limits::{AG_BLOCKS, INLINE_BYTES_MAX, MAP_REFERENCE_BYTES, SYMLINK_BYTES_MAX};
use rusqlite::{Connection, TransactionBehavior};

// The schema files spell these out.
const _: () =
    assert!(AG_BLOCKS == 262_144 && INLINE_BYTES_MAX == 2048 && SYMLINK_BYTES_MAX == 4095);
const _: () = assert!(MAP_REFERENCE_BYTES == 14);

/// `PRAGMA application_id`: `LARD`.
pub(crate) const APPLICATION_ID: u32 = 0x4C41_5244;

/// One step from a version to the next: SQL, and the tables that get guard triggers.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) sql: &'static str,
    /// The same for the tables of each store.
    pub(crate) store_sql: Option<&'static str>,
    pub(crate) guarded: &'static [&'static str],
}

/// A format: versions of the schema that steps lead to, one from the other.
pub(crate) struct Format<'s> {
    /// The version that the first step begins with.
    base: u32,
    pub(crate) steps: &'s [Step],
    /// The tables, view and triggers of a store, before the steps that add to them.
    store: &'static [&'static str],
    /// The triggers of a table that only the engine may change.
    guard: &'static str,
}

impl Format<'_> {
    /// The version that its steps lead to.
    pub(crate) fn newest(&self) -> u32 {
        self.base + self.steps.len() as u32
    }

    /// The same, as far as `version`.
    pub(crate) fn up_to(&self, version: u32) -> Format<'_> {
        Format {
            steps: &self.steps[..version.saturating_sub(self.base) as usize],
            ..*self
        }
    }
}

/// Step `n` leads from version `BASE + n` to the next. Released steps never change.
const STEPS: &[Step] = &[Step {
    sql: include_str!("schema/system.sql"),
    store_sql: None,
    guarded: &[
        "larder_meta",
        "larder_store",
        "larder_segment",
        "larder_extent",
        "larder_shared",
        "larder_ag",
        "larder_piece",
        "larder_map_page",
        "larder_map_page_use",
        "larder_redo_row",
        "larder_session",
        "larder_orphan",
        "larder_holder",
        "larder_transaction",
        "larder_grant",
        "larder_pre_image",
        "larder_snapshot",
        "larder_hold",
        "larder_as_of",
        "larder_temporal",
        "larder_seal",
        "larder_sealed",
        "larder_author",
    ],
}];

/// The newest version of format 1; a new catalog begins behind it.
const BASE: u32 = larder_format_one::SCHEMA_VERSION;

/// The version this build writes: `PRAGMA user_version`.
pub const SCHEMA_VERSION: u32 = BASE + STEPS.len() as u32;

/// The tables of a store.
pub(crate) const STORE: &str = include_str!("schema/store.sql");

/// The format that this build reads and writes.
pub(crate) const TWO: Format<'static> = Format {
    base: BASE,
    steps: STEPS,
    store: &[STORE, include_str!("schema/store_code.sql")],
    guard: include_str!("schema/guard.sql"),
};

/// Format 1, which only an upgrade reads.
pub(crate) const ONE: Format<'static> = Format {
    base: 0,
    steps: &{
        let mut steps = [STEPS[0]; BASE as usize];
        let mut at = 0;
        while at < steps.len() {
            let step = &larder_format_one::STEPS[at];
            steps[at] = Step {
                sql: step.sql,
                store_sql: step.store_sql,
                guarded: step.guarded,
            };
            at += 1;
        }
        steps
    },
    store: &[larder_format_one::STORE],
    guard: larder_format_one::GUARD,
};

/// The columns of a store table that are ours; all others are the user's.
pub(crate) const ENGINE_COLUMNS: [&str; 16] = [
    "ino", "kind", "mode", "uid", "gid", "nlink", "size", "blocks", "atime_ns", "mtime_ns",
    "ctime_ns", "btime_ns", "rdev", SINCE, FIRST_INO, FILE_ID,
];

/// The column that says which inode a file had first (`SAVE-1`).
pub(crate) const FIRST_INO: &str = "first_ino";
/// The number of a file, computed of that.
pub(crate) const FILE_ID: &str = "file_id";

/// The column that says which commit wrote a row.
pub(crate) const SINCE: &str = "since_seq";

/// Brings the schema from the version found to the newest of its format, and then calls `after`, in
/// one transaction; an interrupted upgrade leaves the old version. Refuses another format.
pub(crate) fn upgrade(
    connection: &Connection,
    format: &Format<'_>,
    after: impl FnOnce(&Connection) -> Result<()>,
) -> Result<()> {
    let known = format.newest();
    if version(connection)? == known {
        return Ok(());
    }
    let txn = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
        .at("the start of an upgrade")?;
    // Read again: another process may just have upgraded.
    let found = version(&txn)?;
    if found > 0 {
        require_format(found, format)?;
    }
    apply(&txn, format, found)?;
    after(&txn)?;
    txn.commit().at("the commit of an upgrade")
}

/// Refuses a version of another format than that.
pub(crate) fn require_format(found: u32, format: &Format<'_>) -> Result<()> {
    let known = format.newest();
    match found {
        0 => Err(CatalogError::corrupt("the catalog's schema has no version")),
        _ if found > known => Err(CatalogError::NewerFormat { found, known }),
        _ if found <= format.base => Err(CatalogError::OlderFormat { found, known }),
        _ => Ok(()),
    }
}

/// Applies the steps after version `found`; the caller holds the transaction. 0: all of them.
pub(crate) fn apply(connection: &Connection, format: &Format<'_>, found: u32) -> Result<()> {
    for step in &format.steps[found.saturating_sub(format.base) as usize..] {
        execute_all(connection, step.sql).at("the schema")?;
        for table in step.guarded {
            guard(connection, format, table)?;
        }
        if let Some(store_sql) = step.store_sql {
            for (id, name) in stores_with_tables(connection)? {
                require_free_columns(connection, store_sql, &name)?;
                add_to_store(connection, store_sql, id, &name)?;
            }
        }
    }
    connection
        .pragma_update(None, "user_version", format.newest())
        .at("the schema version")
}

/// The stores that have tables of their own.
pub(crate) fn stores_with_tables(connection: &Connection) -> Result<Vec<(StoreId, StoreName)>> {
    connection
        .prepare("SELECT id, name FROM larder_store WHERE table_store = id ORDER BY id")
        .and_then(|mut list| {
            list.query_map([], |row| Ok((StoreId(row.get(0)?), row.get(1)?)))?
                .collect()
        })
        .at("larder_store")
}

/// Refuses a step that adds a column to a store whose table has one of the user's with its name.
fn require_free_columns(connection: &Connection, store_sql: &str, name: &str) -> Result<()> {
    let of_table = "ALTER TABLE \"{name}\" ADD COLUMN ";
    let added = store_sql.split(of_table).skip(1);
    for column in added.filter_map(|rest| rest.split_whitespace().next()) {
        let is_taken = connection
            .prepare("SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE")
            .and_then(|mut find| find.exists([name, column]))
            .at(name)?;
        if is_taken {
            return Err(CatalogError::invalid(format!(
                "this version needs the column name '{column}' of table '{name}', which is one of \
                 yours; rename yours \
                 first: sqlite3 catalog.db 'ALTER TABLE {name} RENAME COLUMN {column} TO \
                 my_{column}'"
            )));
        }
    }
    Ok(())
}

/// Runs SQL with the name and the number of a store in it.
pub(crate) fn add_to_store(
    connection: &Connection,
    sql: &'static str,
    id: StoreId,
    name: &str,
) -> Result<()> {
    let id = id.0.to_string();
    execute_template(connection, sql, &[("{name}", name), ("{id}", &id)])
}

/// Refuses what was upgraded since this process opened it. In the transaction that begins a
/// session.
pub(crate) fn require_known(txn: &Connection) -> Result<()> {
    match version(txn)? {
        SCHEMA_VERSION => Ok(()),
        found if found > SCHEMA_VERSION => Err(CatalogError::NewerFormat {
            found,
            known: SCHEMA_VERSION,
        }),
        found => Err(CatalogError::corrupt(format!(
            "its format became {found} while it was opened by one of format {SCHEMA_VERSION}"
        ))),
    }
}

pub(crate) fn version(connection: &Connection) -> Result<u32> {
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .at("the schema version")
}

fn guard(connection: &Connection, format: &Format<'_>, table: &str) -> Result<()> {
    execute_template(connection, format.guard, &[("{table}", table)])
}

/// Creates the tables, view and triggers of a store. Refuses when any of the names is taken.
pub(crate) fn create_store_tables(connection: &Connection, id: StoreId, name: &str) -> Result<()> {
    create_store_tables_of(connection, &TWO, id, name)
}

/// The same as a catalog of that format has them.
pub(crate) fn create_store_tables_of(
    connection: &Connection,
    format: &Format<'_>,
    id: StoreId,
    name: &str,
) -> Result<()> {
    for object in store_objects(name) {
        let taken = connection
            .prepare_cached("SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE")
            .and_then(|mut find| find.exists([&object]))
            .at("sqlite_schema")?;
        if taken {
            return Err(CatalogError::Exists {
                what: format!("a table, view, index or trigger '{object}'"),
            });
        }
    }
    let later = format.steps.iter().filter_map(|step| step.store_sql);
    for sql in format.store.iter().copied().chain(later) {
        add_to_store(connection, sql, id, name)?;
    }
    guard_sides(connection, format, name)
}

/// Guards the side tables of a store.
pub(crate) fn guard_sides(connection: &Connection, format: &Format<'_>, name: &str) -> Result<()> {
    let sides = ["_dirent", "_content", "_map", "_xattr"];
    (sides.iter()).try_for_each(|side| guard(connection, format, &format!("{name}{side}")))
}

/// Makes the view and the guards of a store in format 2, whose tables are there.
pub(crate) fn add_store_code(connection: &Connection, id: StoreId, name: &str) -> Result<()> {
    add_to_store(connection, TWO.store[1], id, name)?;
    guard_sides(connection, &TWO, name)
}

/// Drops what [`create_store_tables`] created; triggers and indexes go with their tables.
pub(crate) fn drop_store_tables(connection: &Connection, name: &str) -> Result<()> {
    let view = quoted(&format!("{name}_path"));
    execute_one(connection, &format!("DROP VIEW {view}")).at(name)?;
    for suffix in ["_dirent", "_content", "_map", "_xattr", ""] {
        let table = quoted(&format!("{name}{suffix}"));
        execute_one(connection, &format!("DROP TABLE {table}")).at(name)?;
    }
    Ok(())
}

/// The names that a store's tables, view and index take.
pub(crate) fn store_objects(name: &str) -> Vec<String> {
    let suffixes = SUFFIXES.iter().chain(&["", "_dirent_ino"]);
    suffixes.map(|suffix| format!("{name}{suffix}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::names::check_store_name;
    use larder_format::limits::STORE_NAME_BYTES_MAX;

    #[test]
    fn store_names_follow_the_rule() {
        for good in ["main", "Photos2026", "a", "road_map2", "order", "mapping"] {
            assert!(check_store_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(STORE_NAME_BYTES_MAX + 1);
        for bad in [
            "", "2a", "_a", "a-b", "a b", "a\"b", "é", "Larder_x", "SQLITE_x", "road_MAP",
            "a_path", &long,
        ] {
            assert!(
                matches!(check_store_name(bad), Err(CatalogError::Invalid { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn steps_apply_in_order_and_whole() {
        const NEXT: Step = Step {
            sql: "ALTER TABLE larder_segment ADD COLUMN extra INTEGER",
            store_sql: None,
            guarded: &[],
        };
        const BROKEN: Step = Step {
            sql: "CREATE TABLE half(x); nonsense",
            store_sql: None,
            guarded: &[],
        };
        let (broken, next) = ([STEPS[0], BROKEN], [STEPS[0], NEXT]);
        let [broken, next] = [&broken, &next].map(|steps| Format { steps, ..TWO });
        let connection = Connection::open_in_memory().unwrap();
        upgrade(&connection, &TWO, |_| Ok(())).unwrap();
        assert_eq!(version(&connection).unwrap(), SCHEMA_VERSION);
        upgrade(&connection, &broken, |_| Ok(())).unwrap_err();
        assert_eq!(version(&connection).unwrap(), SCHEMA_VERSION);
        connection.prepare("SELECT * FROM half").unwrap_err();
        upgrade(&connection, &next, |_| Ok(())).unwrap();
        assert_eq!(version(&connection).unwrap(), SCHEMA_VERSION + 1);
        connection
            .prepare("SELECT extra FROM larder_segment")
            .unwrap();
        let refused = upgrade(&connection, &TWO, |_| Ok(())).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "written by a newer larder (format 14, this one knows \u{2264} 13); upgrade larder"
        );
        let older = Connection::open_in_memory().unwrap();
        upgrade(&older, &ONE, |_| Ok(())).unwrap();
        let refused = upgrade(&older, &TWO, |_| Ok(())).unwrap_err();
        let told = refused.to_string();
        assert!(
            matches!(refused, CatalogError::OlderFormat { found: BASE, .. }),
            "{told}"
        );
        assert!(told.contains("larder upgrade OLD NEW"), "{told}");
    }
}
