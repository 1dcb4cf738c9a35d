//! Catalogs of each version of format 1, made by its steps.

use super::*;
use crate::open::tests::INIT;
use crate::schema::APPLICATION_ID;
use crate::schema::expected::Expected;
use crate::{ContentRow, SqliteCatalog};
use larder_format::{Ino, StoreId};
use std::collections::BTreeSet;
use std::path::Path;

/// Goes to a version of format 1.
fn advance(connection: &Connection, version: u32) -> Result<()> {
    schema::upgrade(connection, &ONE.up_to(version), |_| Ok(()))
}

/// What the schema of a catalog with the store `main` is to have.
fn objects_of(version: u32) -> BTreeSet<(String, String)> {
    let expected = Expected::of(version).unwrap();
    let stores = expected.store(StoreId::MAIN, "main");
    (expected.system.values().cloned())
        .chain(stores)
        .map(|object| (object.kind.to_string(), object.name.to_string()))
        .filter(|(_, name)| !name.starts_with("sqlite_"))
        .collect()
}

#[test]
fn version_2_counts_the_extents_that_are_there() {
    let connection = Connection::open_in_memory().unwrap();
    advance(&connection, 1).unwrap();
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
    advance(&connection, ONE.newest()).unwrap();
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
fn old(version: u32) -> Connection {
    old_on(Connection::open_in_memory().unwrap(), version)
}

fn old_on(connection: Connection, version: u32) -> Connection {
    advance(&connection, version).unwrap();
    let batch = |sql: &str| connection.execute_batch(sql).unwrap();
    batch(
        "UPDATE larder_gate SET open = 1;
         INSERT OR REPLACE INTO larder_meta VALUES ('commit_seq', 9), ('retention_ns', 5);
         INSERT INTO larder_store (id, name, provider, mount, table_store, next_ino)
           VALUES (0, 'main', 'files', '/', 0, 7);",
    );
    let format = ONE.up_to(version);
    schema::create_store_tables_of(&connection, &format, StoreId::MAIN, "main").unwrap();
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
        advance(&connection, ONE.newest()).unwrap();
        assert_eq!(text(&connection, HISTORY), before, "from {version}");
        let objects: std::collections::BTreeSet<(String, String)> = {
            let sql = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' \
                ESCAPE '\\'";
            let mut list = connection.prepare(sql).unwrap();
            let rows = list.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
            rows.unwrap().map(|row| row.unwrap()).collect()
        };
        assert_eq!(objects, objects_of(ONE.newest()), "from {version}");
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
    let refused = advance(&connection, ONE.newest()).unwrap_err();
    assert!(
        refused.to_string().contains("RENAME COLUMN file_id"),
        "{refused}"
    );
    assert_eq!(
        schema::version(&connection).unwrap(),
        11,
        "nothing was done"
    );
    let rename = "ALTER TABLE main RENAME COLUMN file_id TO my_file_id";
    connection.execute_batch(rename).unwrap();
    advance(&connection, ONE.newest()).unwrap();
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
    advance(&connection, ONE.newest()).unwrap();
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
    advance(&connection, ONE.newest()).unwrap();
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

// ---- who else is there -------------------------------------------------------------------------

/// A catalog of an older format.
fn make_older(directory: &Path, version: u32, sql: &str) {
    let older = Connection::open(directory.join(CATALOG_FILE)).unwrap();
    let wal = |_: &rusqlite::Row<'_>| Ok(());
    older
        .query_row("PRAGMA journal_mode = WAL", [], wal)
        .unwrap();
    older
        .pragma_update(None, "application_id", APPLICATION_ID)
        .unwrap();
    schema::apply(&older, &ONE.up_to(version), 0).unwrap();
    older
        .execute_batch(&format!(
            "UPDATE larder_gate SET open = 1; INSERT INTO larder_meta (key, value) VALUES \
            ('database_id', zeroblob(16)); {sql}; UPDATE larder_gate SET open = 0"
        ))
        .unwrap();
}

fn lock(path: &Path) -> File {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(path).unwrap();
    file.lock().unwrap();
    file
}

fn begin(directory: &Path) -> Result<Upgrade> {
    Upgrade::begin(
        &DatabaseDir::open(directory).unwrap(),
        &CatalogOptions::default(),
    )
}

/// CATALOG-11
#[test]
fn nothing_is_converted_beneath_a_session_that_lives() {
    for version in [1, 4, 6, 12] {
        let dir = tempfile::tempdir().unwrap();
        let session = "INSERT INTO larder_session VALUES (7, 4711, 'mount /p', 1, 0)";
        make_older(dir.path(), version, session);
        let living = lock(&dir.path().join("sessions/7.lock"));
        for _ in 0..2 {
            let told = begin(dir.path()).err().unwrap();
            assert!(matches!(told, CatalogError::InUse { .. }), "{told}");
            let line = told.to_string();
            assert!(
                line.contains("session 7 ('mount /p', process 4711)"),
                "{line}"
            );
        }
        drop(living); // As when its process has died.
        begin(dir.path()).unwrap();
    }
}

/// CATALOG-11
#[test]
fn nothing_is_converted_beneath_a_long_transaction() {
    for (is_bound, is_refused) in [(0, true), (1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let row = format!(
            "INSERT INTO larder_transaction (id, pid, label, begun_ns, pin_seq, bound) VALUES \
             (3, 9, 'txn', 1, 0, {is_bound})"
        );
        make_older(dir.path(), 6, &row);
        let workspace = dir.path().join("transactions/3");
        let owner = lock(&workspace.join("owner.lock"));
        std::fs::write(workspace.join(CATALOG_FILE), b"x").unwrap();
        let told = begin(dir.path()).err().unwrap().to_string();
        assert!(told.contains("long transaction 3"), "{told}");
        drop(owner);
        let told = begin(dir.path()).err().map(|error| error.to_string());
        assert_eq!(told.is_some(), is_refused);
        assert!(told.is_none_or(|told| told.contains("txn abort")));
    }
}

#[test]
fn no_session_is_born_on_another_schema() {
    let dir = tempfile::tempdir().unwrap();
    let init = crate::open::tests::INIT;
    let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
    let newer = Connection::open(dir.path().join(CATALOG_FILE)).unwrap();
    newer
        .pragma_update(None, "user_version", SCHEMA_VERSION + 1)
        .unwrap();
    let told = catalog.sessions().begin((1, 0), "late", 1).err().unwrap();
    assert!(
        matches!(told, CatalogError::NewerFormat { .. }),
        "CATALOG-11: {told}"
    );
    assert!(catalog.sessions().rows().unwrap().is_empty());
}

// ---- the conversion ---------------------------------------------------------------------------

/// A database directory with a catalog of that version, in WAL mode.
fn old_in(dir: &Path, version: u32) -> Connection {
    let file = Connection::open(dir.join(CATALOG_FILE)).unwrap();
    let wal = |_: &rusqlite::Row<'_>| Ok(());
    file.query_row("PRAGMA journal_mode = WAL", [], wal)
        .unwrap();
    file.pragma_update(None, "application_id", APPLICATION_ID)
        .unwrap();
    let made = old_on(file, version);
    let facts = "UPDATE larder_gate SET open = 1;
         INSERT INTO larder_meta (key, value) VALUES ('database_id', \
         x'0102030405060708090a0b0c0d0e0f10');
         INSERT INTO main_content (ino, inline) VALUES (2, 'bytes'), (3, NULL);
         UPDATE larder_gate SET open = 0";
    let facts = facts.replace(
        "(ino, inline) VALUES (2, 'bytes'), (3, NULL)",
        "(ino, inline, \
    target) VALUES (2, CAST('bytes' AS BLOB), NULL), (3, NULL, CAST('a' AS BLOB))",
    );
    made.execute_batch(&facts).unwrap();
    made
}

fn convert(old: &Path, new: &Path) -> Result<SqliteCatalog> {
    let open = |path: &Path| DatabaseDir::open(path).unwrap();
    let upgrade = Upgrade::begin(&open(old), &CatalogOptions::default())?;
    upgrade.copy(&open(new))?;
    assert!(!new.join(CATALOG_FILE).exists(), "UPGRADE-4");
    upgrade.finish(&open(new))?;
    let head = std::fs::read(new.join(CATALOG_FILE)).unwrap();
    assert_eq!(head[18..20], [2, 2], "in WAL mode");
    SqliteCatalog::open(new, &CatalogOptions::default())
}

/// UPGRADE-1, UPGRADE-3
#[test]
fn every_version_is_converted_and_stays_as_it_was() {
    for version in 1..=ONE.newest() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let owner = old_in(old.path(), version);
        let files = [CATALOG_FILE, "catalog.db-wal"].map(|name| old.path().join(name));
        let before = files.clone().map(|path| std::fs::read(path).unwrap());
        let catalog = convert(old.path(), new.path()).unwrap();
        let after = files.map(|path| std::fs::read(path).unwrap());
        assert_eq!(before, after, "UPGRADE-1, from {version}");
        drop(owner);
        let made = Connection::open(new.path().join(CATALOG_FILE)).unwrap();
        let objects: BTreeSet<(String, String)> = {
            let sql = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' \
                ESCAPE '\\'";
            let mut list = made.prepare(sql).unwrap();
            let rows = list.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
            rows.unwrap().map(|row| row.unwrap()).collect()
        };
        assert_eq!(objects, objects_of(SCHEMA_VERSION), "from {version}");
        let content = |ino| catalog.tables().content(StoreId::MAIN, Ino(ino)).unwrap();
        assert_eq!(content(2), Some(ContentRow::Inline(b"bytes".to_vec())));
        assert_eq!(content(3), Some(ContentRow::Target(b"a".to_vec())));
        let row = catalog
            .tables()
            .inode(StoreId::MAIN, Ino(1))
            .unwrap()
            .unwrap();
        assert_eq!((row.mode, row.btime_ns), (0o755, 4), "UPGRADE-3");
        let seq = "SELECT '' || value FROM larder_meta WHERE key = 'commit_seq'";
        assert_eq!(text(&made, seq), ["9"], "from {version}");
        let kept = text(
            &made,
            "SELECT what || ' ' || until_seq FROM larder_history ORDER BY id",
        );
        let expected = ["name 5", "name 5", "commit 5", "redo 9"];
        let count = if version >= 7 { expected.len() } else { 0 };
        assert_eq!(kept, &expected[..count], "from {version}");
        let gone = "SELECT key FROM larder_meta WHERE key IN ('redo_gone_seq', 'next_map_page')";
        assert_eq!(
            text(&made, gone),
            ["next_map_page", "redo_gone_seq"],
            "from {version}"
        );
    }
}

#[test]
fn what_is_of_another_format_is_not_converted() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = CatalogOptions::default();
    drop(SqliteCatalog::create(old.path(), &options, &INIT).unwrap());
    let told = convert(old.path(), new.path()).err().unwrap().to_string();
    assert!(told.contains("of this format already"), "{told}");
    let told = begin(new.path()).err().unwrap();
    assert!(matches!(told, CatalogError::NotFound { .. }), "{told}");
    let newer = Connection::open(old.path().join(CATALOG_FILE)).unwrap();
    let set = |version: u32| newer.pragma_update(None, "user_version", version).unwrap();
    set(SCHEMA_VERSION + 1);
    let told = begin(old.path()).err().unwrap();
    let known = SCHEMA_VERSION;
    assert!(
        matches!(told, CatalogError::NewerFormat { known: k, .. } if k == known),
        "{told}"
    );
    set(0);
    assert!(matches!(
        begin(old.path()).err().unwrap(),
        CatalogError::Corrupt { .. }
    ));
    set(SCHEMA_VERSION);
    newer.pragma_update(None, "application_id", 5).unwrap();
    let told = begin(old.path()).err().unwrap();
    assert!(matches!(told, CatalogError::NotADatabase { .. }), "{told}");
}

/// What a crash left is made anew, and plain SQL waits meanwhile (UPGRADE-2).
#[test]
fn an_attempt_that_ended_early_is_made_again() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(old_in(old.path(), 12));
    std::fs::write(new.path().join(COPY), b"half").unwrap();
    let upgrade = begin(old.path()).unwrap();
    let plain = Connection::open(old.path().join(CATALOG_FILE)).unwrap();
    plain.busy_timeout(std::time::Duration::ZERO).unwrap();
    let told = plain.execute_batch("CREATE TABLE mine (x)").unwrap_err();
    assert!(told.to_string().contains("locked"), "UPGRADE-2: {told}");
    assert!(begin_hasty(old.path()).is_err(), "UPGRADE-2: the door");
    drop(upgrade);
    convert(old.path(), new.path()).unwrap();
    plain.execute_batch("CREATE TABLE mine (x)").unwrap();
}

/// What got the name meanwhile is not replaced (UPGRADE-4).
#[test]
fn a_catalog_that_is_there_in_the_end_stays() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(old_in(old.path(), 12));
    let directory = DatabaseDir::open(new.path()).unwrap();
    let upgrade = begin(old.path()).unwrap();
    upgrade.copy(&directory).unwrap();
    std::fs::write(new.path().join(CATALOG_FILE), b"mine").unwrap();
    let told = upgrade.finish(&directory).unwrap_err();
    assert!(matches!(told, CatalogError::Exists { .. }), "{told}");
    assert_eq!(
        std::fs::read(new.path().join(CATALOG_FILE)).unwrap(),
        b"mine"
    );
}

fn begin_hasty(directory: &Path) -> Result<Upgrade> {
    let hasty = CatalogOptions::default().waiting(std::time::Duration::from_millis(10));
    Upgrade::begin(&DatabaseDir::open(directory).unwrap(), &hasty)
}

/// A user's tables, indexes and views stay, those on names too.
#[test]
fn what_is_the_users_stays() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let owner = old_in(old.path(), 12);
    owner
        .execute_batch(
            "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating > 0);
             CREATE TABLE album (id INTEGER PRIMARY KEY, cover INTEGER REFERENCES main (ino));
             CREATE UNIQUE INDEX one_case ON main_dirent (parent, lower(name));
             CREATE VIEW rated AS SELECT ino FROM main WHERE rating > 3;
             CREATE VIEW Redone AS SELECT count(*) AS n FROM larder_history WHERE what = 'patch';
             CREATE VIEW waiting AS SELECT count(*) AS larder_patches FROM Larder_Patch;
             CREATE TRIGGER made INSTEAD OF INSERT ON main_path BEGIN
               INSERT INTO album (id) VALUES (7); END;
             CREATE TRIGGER guarded AFTER UPDATE OF rating ON main
               WHEN (SELECT open FROM larder_gate) IS NOT 1 BEGIN
               INSERT INTO album (id) SELECT 8 FROM \"larder_home\"; END;
             CREATE TRIGGER noted AFTER INSERT ON album BEGIN UPDATE album SET cover = 1; END;
             UPDATE main SET rating = 4;
             INSERT INTO album (id) VALUES (9007199254740993)",
        )
        .unwrap();
    let schema = "SELECT type || name || sql FROM sqlite_schema WHERE name IN \
                  ('album', 'one_case', 'rated', 'noted', 'main') ORDER BY name";
    let before = text(&owner, schema);
    drop(owner);
    drop(convert(old.path(), new.path()).unwrap());
    let made = Connection::open(new.path().join(CATALOG_FILE)).unwrap();
    assert_eq!(text(&made, schema), before);
    assert_eq!(text(&made, "SELECT ino || '' FROM rated"), ["1"]);
    // What names tables by their old names names them by the new ones.
    assert_eq!(text(&made, "SELECT n || '' FROM redone"), ["1"]);
    assert_eq!(
        text(&made, "SELECT larder_patches || '' FROM waiting"),
        ["0"]
    );
    made.execute_batch("UPDATE main SET rating = 5; INSERT INTO main_path (ino) VALUES (3)")
        .unwrap();
    assert_eq!(
        text(&made, "SELECT count(*) || '' FROM album WHERE id = 7"),
        ["1"]
    );
    made.execute_batch("DELETE FROM album WHERE id = 7")
        .unwrap();
    let albums = "SELECT id || ' ' || cover FROM album";
    assert_eq!(text(&made, albums), ["9007199254740993 1"]);
}
