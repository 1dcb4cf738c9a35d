//! The schema: its version, the steps that lead to it, and the tables of a store.

pub(crate) mod attachments;
pub(crate) mod expected;
pub(crate) mod read;
pub(crate) mod statements;

use crate::error::{At, CatalogError, Result};
use crate::schema::statements::StoreSql;
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
pub(crate) struct Step {
    pub(crate) sql: &'static str,
    /// The same for the tables of each store.
    pub(crate) store_sql: Option<&'static str>,
    pub(crate) guarded: &'static [&'static str],
}

/// Step `n` leads from version `n` to `n + 1`. Released steps never change.
pub(crate) const STEPS: &[Step] = &[
    Step {
        sql: include_str!("schema/v1.sql"),
        store_sql: None,
        guarded: &[
            "larder_meta",
            "larder_store",
            "larder_segment",
            "larder_extent",
            "larder_ag",
            "larder_session",
            "larder_orphan",
            "larder_holder",
        ],
    },
    Step {
        sql: include_str!("schema/v2.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v3.sql"),
        store_sql: None,
        guarded: &["larder_piece"],
    },
    Step {
        sql: include_str!("schema/v4.sql"),
        store_sql: None,
        guarded: &["larder_patch"],
    },
    Step {
        sql: include_str!("schema/v5.sql"),
        store_sql: None,
        guarded: &["larder_transaction", "larder_grant"],
    },
    Step {
        sql: include_str!("schema/v6.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v7.sql"),
        store_sql: Some(include_str!("schema/v7_store.sql")),
        guarded: &[
            "larder_home",
            "larder_snapshot",
            "larder_hold",
            "larder_past",
        ],
    },
    Step {
        sql: include_str!("schema/v8.sql"),
        store_sql: None,
        guarded: &["larder_temporal"],
    },
    Step {
        sql: include_str!("schema/v9.sql"),
        store_sql: None,
        guarded: &[
            "larder_author",
            "larder_seal",
            "larder_sealed",
            "larder_shared",
        ],
    },
    Step {
        sql: include_str!("schema/v10.sql"),
        store_sql: None,
        guarded: &["larder_map_page", "larder_map_page_use"],
    },
    Step {
        sql: include_str!("schema/v11.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v12.sql"),
        store_sql: Some(include_str!("schema/v12_store.sql")),
        guarded: &[],
    },
];

/// The version this build writes: `PRAGMA user_version`.
pub const SCHEMA_VERSION: u32 = STEPS.len() as u32;

const GUARD: &str = include_str!("schema/guard.sql");
pub(crate) const STORE: &str = include_str!("schema/store.sql");

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

/// Brings the schema from the version found to `steps.len()`, and then calls `after`, in one
/// transaction; an interrupted upgrade leaves the old version. Refuses what is newer.
pub(crate) fn upgrade(
    connection: &Connection,
    steps: &[Step],
    after: impl FnOnce(&Connection) -> Result<()>,
) -> Result<()> {
    let known = steps.len() as u32;
    if version(connection)? == known {
        return Ok(());
    }
    let txn = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
        .at("the start of an upgrade")?;
    // Read again: another process may just have upgraded.
    let found = version(&txn)?;
    if found > known {
        return Err(CatalogError::NewerFormat { found, known });
    }
    apply(&txn, steps, found)?;
    after(&txn)?;
    txn.commit().at("the commit of an upgrade")
}

/// Applies the steps after version `found`; the caller holds the transaction.
pub(crate) fn apply(connection: &Connection, steps: &[Step], found: u32) -> Result<()> {
    for step in &steps[found as usize..] {
        execute_all(connection, step.sql).at("the schema")?;
        for table in step.guarded {
            guard(connection, table)?;
        }
        if let Some(store_sql) = step.store_sql {
            for (id, name) in stores_with_tables(connection)? {
                require_free_columns(connection, store_sql, &name)?;
                add_to_store(connection, store_sql, id, &name)?;
            }
        }
    }
    connection
        .pragma_update(None, "user_version", steps.len() as u32)
        .at("the schema version")
}

fn stores_with_tables(connection: &Connection) -> Result<Vec<(StoreId, StoreName)>> {
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

fn add_to_store(connection: &Connection, sql: &'static str, id: StoreId, name: &str) -> Result<()> {
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

fn guard(connection: &Connection, table: &str) -> Result<()> {
    execute_template(connection, GUARD, &[("{table}", table)])
}

/// Creates the tables, view and triggers of a store. Refuses when any of the names is taken.
pub(crate) fn create_store_tables(connection: &Connection, id: StoreId, name: &str) -> Result<()> {
    create_store_tables_of(connection, SCHEMA_VERSION, id, name)
}

/// The same as a catalog of format `version` has them.
pub(crate) fn create_store_tables_of(
    connection: &Connection,
    version: u32,
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
    execute_template(connection, STORE, &[("{name}", name)])?;
    let steps = &STEPS[..version as usize];
    for sql in steps.iter().filter_map(|step| step.store_sql) {
        add_to_store(connection, sql, id, name)?;
    }
    let sql = StoreSql::new(StoreId::MAIN, name);
    for table in [
        &sql.table_dirent,
        &sql.table_content,
        &sql.table_map,
        &sql.table_xattr,
    ] {
        guard(connection, table)?;
    }
    Ok(())
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
    use crate::schema::expected::expected_objects;
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
        let v1 = || Step {
            sql: STEPS[0].sql,
            store_sql: None,
            guarded: STEPS[0].guarded,
        };
        let connection = Connection::open_in_memory().unwrap();
        upgrade(&connection, &[v1()], |_| Ok(())).unwrap();
        assert_eq!(version(&connection).unwrap(), 1);
        upgrade(&connection, &[v1(), BROKEN], |_| Ok(())).unwrap_err();
        assert_eq!(version(&connection).unwrap(), 1);
        connection.prepare("SELECT * FROM half").unwrap_err();
        upgrade(&connection, &[v1(), NEXT], |_| Ok(())).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);
        connection
            .prepare("SELECT extra FROM larder_segment")
            .unwrap();
        let refused = upgrade(&connection, &[v1()], |_| Ok(())).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "written by a newer larder (format 2, this one knows \u{2264} 1); upgrade larder"
        );
    }

    #[test]
    fn version_2_counts_the_extents_that_are_there() {
        let connection = Connection::open_in_memory().unwrap();
        upgrade(&connection, &STEPS[..1], |_| Ok(())).unwrap();
        connection
            .execute_batch(
                "UPDATE larder_gate SET open = 1;
                 INSERT INTO larder_meta VALUES ('commit_seq', 9);
                 INSERT INTO larder_ag VALUES (0, 0, 3), (0, 5, 4);
                 INSERT INTO larder_extent VALUES (0, 10, 4, 0, 2, NULL), (0, 262140, 4, 0, 2, 7),
                   (0, 262144, 8, 0, 2, NULL), (1, 0, 1, 0, 2, 8);
                 UPDATE larder_gate SET open = 0;",
            )
            .unwrap();
        upgrade(&connection, STEPS, |_| Ok(())).unwrap();
        let mut list = connection
            .prepare("SELECT segment, ag, changed_seq, used_blocks, retired_blocks FROM larder_ag")
            .unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            Ok([0, 1, 2, 3, 4].map(|index| row.get::<_, i64>(index).unwrap()))
        };
        let found: Vec<[i64; 5]> = list
            .query_map([], row)
            .unwrap()
            .map(|row| row.unwrap())
            .collect();
        assert_eq!(
            found,
            [
                [0, 0, 3, 8, 4],
                [0, 1, 9, 8, 0],
                [0, 5, 4, 0, 0],
                [1, 0, 9, 1, 1]
            ],
            "CATALOG-8"
        );
        let is_open: i64 = connection
            .query_row("SELECT open FROM larder_gate", [], |row| row.get(0))
            .unwrap();
        assert_eq!(is_open, 0, "CATALOG-3");
    }

    /// A database of an older format with a store, a file and, from 7 on, history.
    fn old(version: usize) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        upgrade(&connection, &STEPS[..version], |_| Ok(())).unwrap();
        let batch = |sql: &str| connection.execute_batch(sql).unwrap();
        batch(
            "UPDATE larder_gate SET open = 1;
             INSERT OR REPLACE INTO larder_meta VALUES ('commit_seq', 9), ('retention_ns', 5);
             INSERT INTO larder_store (id, name, provider, mount, table_store, next_ino)
               VALUES (0, 'main', 'files', '/', 0, 7);",
        );
        batch(&STORE.replace("{name}", "main"));
        for sql in STEPS[..version].iter().filter_map(|step| step.store_sql) {
            add_to_store(&connection, sql, StoreId::MAIN, "main").unwrap();
        }
        for suffix in ["_dirent", "_content", "_map", "_xattr"] {
            guard(&connection, &format!("main{suffix}")).unwrap();
        }
        batch(
            "INSERT INTO main (ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, \
             mtime_ns, ctime_ns, btime_ns)
               VALUES (1, 'dir', 493, 0, 0, 2, 0, 0, 1, 2, 3, 4);",
        );
        batch("INSERT INTO larder_session VALUES (4, 123, 'mount x', 5, 9)");
        if version >= 7 {
            batch(
                "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value) \
                 VALUES
                   (5, 'name', 0, 1, 'a', 2, 3), (5, 'name', 0, 1, x'ff', 2, 4);
                 INSERT INTO larder_history (until_seq, what, key, since_seq) VALUES (5, \
                 'commit', 1234567890123, 5);
                 INSERT INTO larder_history (id, until_seq, what, store, ino, key, since_seq, \
                 value, extra) VALUES
                   (77, 9, 'patch', 0, 1, 8, 3, x'0102', x'03');",
            );
        }
        batch("UPDATE larder_gate SET open = 0");
        connection
    }

    fn text(connection: &Connection, sql: &str) -> Vec<String> {
        let mut list = connection.prepare(sql).unwrap();
        let rows = list.query_map([], |row| row.get(0)).unwrap();
        rows.map(|row| row.unwrap()).collect()
    }

    #[test]
    fn later_versions_keep_the_history_and_take_rows() {
        const HISTORY: &str = "SELECT printf('%s|%s|%s|%s|%s|%s|%s|%s|%s', id, until_seq, what, \
            store, ino, quote(key), \
             since_seq, quote(value), quote(extra)) FROM larder_history ORDER BY id";
        for version in [6, 7, 8, 9, 10, 11] {
            let connection = old(version);
            let before = match version {
                6 => Vec::new(),
                _ => text(&connection, HISTORY),
            };
            upgrade(&connection, STEPS, |_| Ok(())).unwrap();
            assert_eq!(text(&connection, HISTORY), before, "from {version}");
            let objects: std::collections::BTreeSet<(String, String)> = {
                let sql = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' \
                    ESCAPE '\\'";
                let mut list = connection.prepare(sql).unwrap();
                let rows = list.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
                rows.unwrap().map(|row| row.unwrap()).collect()
            };
            let expected = expected_objects(&["main".to_owned()]).unwrap();
            assert_eq!(
                objects,
                expected.iter().cloned().collect(),
                "from {version}"
            );
            let authors = "SELECT session || ' ' || pid || ' ' || label FROM larder_author";
            if version < 9 {
                assert_eq!(text(&connection, authors), ["4 123 mount x"], "AUTHOR-1");
            }
            // Attributes by plain SQL are kept as before, rows too, and nothing else.
            let keep = "UPDATE main SET mode = 448 WHERE ino = 1";
            connection.execute_batch(keep).unwrap();
            let insert = |columns: &str, values: &str| {
                connection.execute_batch(&format!(
                    "INSERT INTO larder_history ({columns}) VALUES ({values})"
                ))
            };
            let row = "until_seq, what, ino, key, since_seq";
            insert(row, "10, 'row', 1, 7, 0").unwrap();
            insert(row, "11, 'row', 1, 8, 0").unwrap_err();
            insert(row, "10, 'name', 1, 8, 0").unwrap_err();
            insert(&format!("id, {row}"), "-5, 10, 'row', 1, 8, 0").unwrap_err();
            insert(&format!("id, {row}"), "99, 10, 'row', 1, 8, 0").unwrap_err();
            let kept = text(
                &connection,
                "SELECT what FROM larder_history WHERE until_seq = 10 ORDER BY id",
            );
            assert_eq!(kept, ["inode", "row"], "HISTORY-2, from {version}");
            for sql in [
                "UPDATE larder_history SET key = 1",
                "DELETE FROM larder_history",
                "INSERT INTO larder_temporal (name, since_seq) VALUES ('t', 1)",
            ] {
                connection.execute_batch(sql).unwrap_err();
            }
        }
    }

    #[test]
    fn version_12_knows_files_by_their_inodes_and_takes_no_column_away() {
        let connection = old(11);
        let mine = "ALTER TABLE main ADD COLUMN File_Id TEXT; UPDATE main SET file_id = 'mine'";
        connection.execute_batch(mine).unwrap();
        let refused = upgrade(&connection, STEPS, |_| Ok(())).unwrap_err();
        assert!(
            refused.to_string().contains("RENAME COLUMN file_id"),
            "{refused}"
        );
        assert_eq!(version(&connection).unwrap(), 11, "nothing was done");
        let rename = "ALTER TABLE main RENAME COLUMN file_id TO my_file_id";
        connection.execute_batch(rename).unwrap();
        upgrade(&connection, STEPS, |_| Ok(())).unwrap();
        let row = "SELECT file_id || ' ' || (first_ino IS NULL) || ' ' || my_file_id FROM main";
        assert_eq!(text(&connection, row), ["1 1 mine"], "SAVE-1");
        let keeps = "SELECT save_keeps FROM larder_store";
        assert_eq!(text(&connection, keeps), ["columns"]);
        // What plain SQL changes is kept with its file.
        connection
            .execute_batch(
                "UPDATE larder_gate SET open = 1; UPDATE main SET first_ino = 7; UPDATE \
                 larder_gate SET open = 0;
                 UPDATE main SET mode = 448",
            )
            .unwrap();
        let kept = "SELECT '' || value FROM larder_history WHERE what = 'inode' AND until_seq = 10";
        assert_eq!(text(&connection, kept), ["7"], "SAVE-3");
        let parent = "CREATE UNIQUE INDEX mine ON main (file_id);
             CREATE TABLE child (file REFERENCES main (file_id)); INSERT INTO child VALUES (7)";
        connection.execute_batch(parent).unwrap();
    }

    #[test]
    fn version_9_shares_nothing_at_first() {
        let connection = old(8);
        connection
            .execute_batch(
                "UPDATE larder_gate SET open = 1;
                 INSERT INTO larder_extent VALUES (0, 10, 4, 0, 2, NULL), (0, 20, 4, 0, 2, 7);
                 UPDATE larder_gate SET open = 0;",
            )
            .unwrap();
        upgrade(&connection, STEPS, |_| Ok(())).unwrap();
        let rows = "SELECT printf('%d %d', start_block, shared_count) FROM larder_extent";
        assert_eq!(text(&connection, rows), ["10 0", "20 0"], "SHARE-1");
        let guarded = connection.execute_batch("INSERT INTO larder_shared VALUES (0, 10, 0, 3)");
        assert!(
            guarded.unwrap_err().to_string().contains("larder_shared"),
            "CATALOG-3"
        );
        let retired = "UPDATE larder_gate SET open = 1; UPDATE larder_extent SET shared_count = 1 \
            WHERE start_block = 20";
        connection.execute_batch(retired).unwrap_err();
    }

    #[test]
    fn version_10_begins_without_shared_pages() {
        let connection = old(9);
        let page = "INSERT INTO main_map (ino, page, runs) VALUES (2, 0, zeroblob(99))";
        let open = "UPDATE larder_gate SET open = 1";
        connection
            .execute_batch(&format!("{open}; {page}; UPDATE larder_gate SET open = 0"))
            .unwrap();
        upgrade(&connection, STEPS, |_| Ok(())).unwrap();
        let pages = "SELECT page || ' ' || length(runs) FROM main_map";
        assert_eq!(text(&connection, pages), ["0 99"], "SHARE-7");
        let page = |values: &str| {
            connection.execute_batch(&format!(
                "INSERT INTO larder_map_page (reference, bytes) VALUES ({values})"
            ))
        };
        let in_use = |values: &str| {
            connection.execute_batch(&format!(
                "INSERT INTO larder_map_page_use (row_count, retired_seq) VALUES ({values})"
            ))
        };
        let (guarded, also) = (
            page("zeroblob(14), zeroblob(32)").unwrap_err().to_string(),
            in_use("1, NULL").unwrap_err().to_string(),
        );
        assert!(guarded.contains("larder_map_page"), "CATALOG-3");
        assert!(also.contains("larder_map_page_use"), "CATALOG-3");
        connection.execute_batch(open).unwrap();
        page("zeroblob(14), zeroblob(32)").unwrap();
        for wrong in [
            "zeroblob(14), zeroblob(32)", // The same reference.
            "x'00', zeroblob(32)",
            "randomblob(14), zeroblob(31)",
        ] {
            page(wrong).unwrap_err();
        }
        in_use("1, NULL").unwrap();
        in_use("0, 5").unwrap();
        for wrong in ["1, 5", "0, NULL", "-1, NULL"] {
            in_use(wrong).unwrap_err();
        }
        let next = "SELECT value FROM larder_meta WHERE key = 'next_map_page'";
        assert_eq!(
            text(&connection, &next.replace("value", "'' || value")),
            ["1"]
        );
    }
}
