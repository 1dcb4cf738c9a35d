//! Which SQL of users no guard looks at.
//!
//! The engine's own writes run without triggers (`guards`), the user's statements with them, and
//! each switch makes the connection compile all its statements anew, about 0.2 ms each. A statement
//! is *free* when no trigger would run for anything that it changes, its foreign keys' actions
//! included: SQLite's authorizer tells all of that while the statement is compiled. A free one runs
//! as it would with the triggers on.
//!
//! What is known holds for one look at the triggers (`Guards::are_off`), and is forgotten with it.

use crate::error::{At, Result};
use crate::schema::ENGINE_COLUMNS;
use crate::types::codec::rows;
use rusqlite::Connection;
use rusqlite::hooks::AuthAction;
use std::collections::{HashMap, HashSet};

/// Statements that are remembered.
const KNOWN_MAX: usize = 1000;

/// Of one look at the triggers: where they are, and what was found out about statements.
#[derive(Default)]
pub(crate) struct Guarded {
    /// The look that this holds for.
    look: Option<u64>,
    /// Tables with triggers, in lower case.
    tables: HashSet<String>,
    /// Those of them whose triggers look at the engine's columns only.
    stores: HashSet<String>,
    /// Texts, and whether they are free.
    known: HashMap<String, bool>,
}

impl Guarded {
    /// Forgets what held for another look.
    pub(crate) fn learn(&mut self, connection: &Connection, look: u64) -> Result<()> {
        if self.look == Some(look) {
            return Ok(());
        }
        let names = |sql: &str| -> rusqlite::Result<HashSet<String>> {
            let names: Vec<String> = rows(connection, sql, [], |row| row.get(0))?;
            Ok(names.iter().map(|name| name.to_ascii_lowercase()).collect())
        };
        let tables = names("SELECT DISTINCT tbl_name FROM sqlite_schema WHERE type = 'trigger'")
            .at("the triggers")?;
        // The feed, for one, looks at all columns.
        let stores = names(
            "SELECT name FROM larder_store AS store WHERE NOT EXISTS (SELECT 1 FROM sqlite_schema \
             AS own \
             WHERE own.type = 'trigger' AND own.tbl_name = store.name COLLATE NOCASE AND own.name \
             NOT IN \
             ('larder_' || store.name || '_no_insert', 'larder_' || store.name || '_no_delete', \
              'larder_' || store.name || '_guard', 'larder_' || store.name || '_touch', \
              'larder_' || store.name || '_since_guard', 'larder_' || store.name || '_keep', \
              'larder_' || store.name || '_since'))",
        )
        .at("larder_store")?;
        *self = Guarded {
            look: Some(look),
            tables,
            stores,
            known: HashMap::new(),
        };
        Ok(())
    }

    /// Whether the statement is free, if that was found out.
    pub(crate) fn find(&self, text: &str) -> Option<bool> {
        self.known.get(text).copied()
    }

    /// Remembers it.
    pub(crate) fn remember(&mut self, text: &str, is_free: bool) {
        if self.known.len() < KNOWN_MAX {
            self.known.insert(text.to_owned(), is_free);
        }
    }

    /// Whether a trigger would run for this part of a statement.
    pub(crate) fn looks_at(&self, action: &AuthAction<'_>) -> bool {
        let (table, column) = match action {
            AuthAction::Insert { table_name } | AuthAction::Delete { table_name } => {
                (table_name, None)
            }
            AuthAction::Update {
                table_name,
                column_name,
            } => (table_name, Some(*column_name)),
            _ => return false,
        };
        let table = table.to_ascii_lowercase();
        // SQLite says ROWID where a statement calls the key by another name.
        let is_users = |column: &str| {
            let is = |ours: &&str| ours.eq_ignore_ascii_case(column);
            !ENGINE_COLUMNS.iter().any(is) && !is(&"ROWID")
        };
        self.tables.contains(&table)
            && !(self.stores.contains(&table) && column.is_some_and(is_users))
    }
}

#[cfg(test)]
mod tests {
    use crate::open::tests::INIT;
    use crate::{CatalogError, CatalogOptions, ChangeSet, SqliteCatalog, lock};
    use std::ops::ControlFlow;

    fn run(catalog: &SqliteCatalog, sql: &str) -> Result<u64, CatalogError> {
        let (mut at, mut changed_count) = (0, 0);
        while let Some(statement) = catalog.sql().inspect(sql, at)? {
            at = statement.end;
            let ignore = &mut |_| ControlFlow::Continue(());
            changed_count += catalog.sql().run(sql, &statement, &[], None, ignore)?.0;
        }
        Ok(changed_count)
    }

    /// What the engine does between statements: a step without triggers, where it may.
    fn step(catalog: &SqliteCatalog) {
        catalog.commit(&ChangeSet::default()).unwrap();
    }

    fn are_off(catalog: &SqliteCatalog) -> bool {
        let writer = lock(&catalog.writer);
        writer.guards.are_off(&writer.connection).unwrap().is_some()
    }

    /// Runs it after a step; whether the triggers stayed off, and what came of it.
    fn after_step(catalog: &SqliteCatalog, sql: &str) -> (bool, Result<u64, String>) {
        step(catalog);
        let outcome = run(catalog, sql).map_err(|error| error.to_string());
        (are_off(catalog), outcome)
    }

    fn assert_free(catalog: &SqliteCatalog, sql: &str) {
        let (is_off, outcome) = after_step(catalog, sql);
        assert!(is_off, "{sql}: {outcome:?}");
        outcome.unwrap();
    }

    fn assert_refused(catalog: &SqliteCatalog, sql: &str) {
        let (is_off, outcome) = after_step(catalog, sql);
        assert!(outcome.is_err() && !is_off, "CATALOG-3: {sql}: {outcome:?}");
    }

    fn create() -> (tempfile::TempDir, SqliteCatalog) {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogOptions::default();
        drop(SqliteCatalog::create(dir.path(), &options, &INIT).unwrap());
        let catalog = SqliteCatalog::open_private(dir.path(), &options, false).unwrap();
        run(
            &catalog,
            "CREATE TABLE owner (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO owner VALUES (1, \
             0); \
             CREATE TABLE log (n INTEGER); \
             ALTER TABLE main ADD COLUMN owner INTEGER REFERENCES owner (id) ON DELETE CASCADE; \
             ALTER TABLE main ADD COLUMN tag; UPDATE main SET owner = 1",
        )
        .unwrap();
        (dir, catalog)
    }

    #[test]
    fn what_no_guard_looks_at_leaves_them_off_and_the_rest_is_refused() {
        let (_dir, catalog) = create();
        catalog.transaction().begin_immediate().unwrap();
        for _ in 0..2 {
            for free in [
                "SELECT count(*) FROM main",
                "UPDATE owner SET n = n + 1",
                "INSERT INTO log SELECT n FROM owner;",
                "UPDATE main SET tag = 'x', owner = owner",
            ] {
                assert_free(&catalog, free);
            }
            for guarded in [
                "UPDATE main SET tag = 'y', size = size + 1",
                "WITH a AS (SELECT 1) DELETE FROM main",
                "INSERT INTO main_dirent VALUES (1, 'x', 2)",
                "DELETE FROM larder_store",
                "UPDATE owner SET n = 0; DELETE FROM main",
                "DELETE FROM owner",
                "REPLACE INTO owner VALUES (1, 9)",
                "INSERT INTO larder_change (op) VALUES ('x')",
            ] {
                assert_refused(&catalog, guarded);
            }
            // The guard of attributes has work to do.
            let (is_off, changed) = after_step(&catalog, "UPDATE main SET mode = 448");
            assert_eq!((is_off, changed), (false, Ok(1)));
        }
        catalog.transaction().roll_back().unwrap();
    }

    /// A statement that was free is so no longer when the schema says otherwise, though the
    /// schema's number may be one that was seen.
    #[test]
    fn a_free_statement_is_judged_again_when_the_schema_changes() {
        let (_dir, catalog) = create();
        let free = "UPDATE owner SET n = n + 1";
        let trigger =
            "CREATE TRIGGER mine AFTER UPDATE ON owner BEGIN UPDATE main SET size = 7; END";
        catalog.transaction().begin_immediate().unwrap();
        assert_free(&catalog, free);
        run(&catalog, trigger).unwrap();
        let refused = run(&catalog, free).unwrap_err().to_string();
        assert!(
            refused.contains("kept by the engine"),
            "CATALOG-3: {refused}"
        );
        catalog.transaction().roll_back().unwrap();
        // One schema is taken back, and another gets its number.
        catalog.transaction().begin_immediate().unwrap();
        run(&catalog, "CREATE TABLE other (n)").unwrap();
        assert_free(&catalog, free);
        catalog.transaction().roll_back().unwrap();
        catalog.transaction().begin_immediate().unwrap();
        run(
            &catalog,
            "CREATE TRIGGER larder_watch_owner_update AFTER UPDATE ON owner BEGIN INSERT INTO log \
             VALUES (1); END",
        )
        .unwrap();
        let (_, outcome) = after_step(&catalog, free);
        outcome.unwrap();
        let mut seen = Vec::new();
        let count = "SELECT count(*) FROM log";
        let statement = catalog.sql().inspect(count, 0).unwrap().unwrap();
        let (_, flow) = catalog
            .sql()
            .run(count, &statement, &[], None, &mut |row| {
                seen.push(format!("{:?}", row.values));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(flow.is_continue());
        assert_eq!(seen, ["[Integer(1)]"]);
        catalog.transaction().roll_back().unwrap();
    }

    /// The change feed looks at the columns that are the user's.
    #[test]
    fn the_feed_sees_columns_of_the_users() {
        let (_dir, catalog) = create();
        let since = catalog.feed().set(true).unwrap();
        catalog.transaction().begin_immediate().unwrap();
        let (is_off, changed) = after_step(&catalog, "UPDATE main SET tag = 'x'");
        assert_eq!((is_off, changed), (false, Ok(1)));
        catalog.transaction().commit(false).unwrap();
        assert_eq!(catalog.feed().after(since, 10).unwrap().len(), 1);
    }
}
