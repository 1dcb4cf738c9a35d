//! What triggers and foreign keys of the user's change in commits of the engine.
//!
//! # Words
//! *Ours* are the tables of stores, and those whose names begin with `larder_`. A commit *reaches*
//! what its own statements change, and what triggers and the actions of foreign keys change then.
//!
//! # Invariants
//! * `FOREIGN-5` Where nothing is reached, no commit of the engine changes rows of ours, the user's
//!   columns excepted, by a trigger or a foreign key of the user's. *Guard*: SQLite itself says
//!   what a statement changes, with all that its triggers and foreign keys do, while it is
//!   compiled; so each kind of statement about each table of ours that has either is compiled, and
//!   not run. What cannot be compiled, such as a trigger that calls a function of one program's,
//!   counts as reaching.
//!
//! Triggers on tables that the engine's commits do not reach do not matter here: they run for plain
//! SQL only, and what that changes in a store is kept by the store's own triggers. A merge runs
//! none.
//!
//! # Cost
//! One look at the schema; where tables of ours have triggers or foreign keys of the user's, a
//! connection, and 0.1 ms for each statement. Asked once for each schema.

use crate::SqliteCatalog;
use crate::error::{At, Result};
use crate::schema::{ENGINE_COLUMNS, FILE_ID};
use crate::types::codec::rows;
use crate::types::names::quoted;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A trigger with this does nothing in the engine's commits: it is a guard, or might as well be
/// one.
const GUARDED: &str = "WHEN (SELECT open FROM larder_guard_switch) IS NOT 1";
/// Triggers on the table of the guard switch, which refuse what nobody does.
const OF_THE_GUARD_SWITCH: [&str; 2] = ["larder_guard_switch_stays", "larder_guard_switch_is_one"];
/// Triggers of watched and of temporal tables, and where they write.
const TRACKERS: [&str; 2] = ["larder_watch_", "larder_temporal_"];
const TRACKS: [&str; 2] = ["larder_change", "larder_history"];
/// What the names of a store's side tables end in.
const SIDES: [&str; 4] = ["_dirent", "_content", "_map", "_xattr"];

/// One change of a statement that was compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    verb: Verb,
    /// In lower case.
    table: String,
    /// Of an UPDATE, in lower case; else empty.
    column: String,
    /// The trigger that does it; `None`: the statement, or a foreign key.
    trigger: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Insert,
    Update,
    Delete,
}

/// What is known of the schema. Names of tables are in lower case.
struct Schema {
    stores: HashSet<String>,
    sides: HashSet<String>,
    guards: HashSet<String>,
    /// Tables of ours with triggers that are no guards, or with foreign keys that act, as the
    /// schema spells them.
    asked: Vec<String>,
}

/// Whether a commit of the engine may reach rows of ours by triggers or foreign keys of the user's
/// (`FOREIGN-5`). `stores`: the names of the stores that have tables.
pub(crate) fn is_reached(
    catalog: &SqliteCatalog,
    state: &Connection,
    schema_version: i64,
    stores: &[String],
) -> Result<bool> {
    let schema = Schema::read(state, stores)?;
    if schema.asked.is_empty() {
        return Ok(false);
    }
    let compiler = Compiler::open(catalog)?;
    let seen: i64 = (compiler.connection)
        .query_row("PRAGMA schema_version", [], |row| row.get(0))
        .at("the schema version")?;
    if seen != schema_version {
        return Ok(true); // Another one by now: the next look asks again.
    }
    for table in &schema.asked {
        if compiler.reaches(&schema, table)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Schema {
    fn read(state: &Connection, stores: &[String]) -> Result<Schema> {
        let stores: HashSet<String> = stores.iter().map(|name| lower(name)).collect();
        let sides = stores
            .iter()
            .flat_map(|name| SIDES.map(|side| format!("{name}{side}")))
            .collect();
        let triggers: Vec<(String, String, String)> = rows(
            state,
            "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .at("the triggers")?;
        let is_guard =
            |name: &str, sql: &str| sql.contains(GUARDED) || OF_THE_GUARD_SWITCH.contains(&name);
        let (guards, others): (Vec<_>, Vec<_>) = triggers
            .into_iter()
            .partition(|(name, _, sql)| is_guard(name, sql));
        let mut schema = Schema {
            stores,
            sides,
            guards: guards.into_iter().map(|(name, ..)| name).collect(),
            asked: Vec::new(),
        };
        let referred: HashSet<String> = rows(
            state,
            "SELECT DISTINCT f.\"table\" FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) \
             AS f \
             WHERE t.type = 'table' AND (f.on_delete NOT IN ('NO ACTION', 'RESTRICT') \
             OR f.on_update NOT IN ('NO ACTION', 'RESTRICT'))",
            [],
            |row| row.get(0).map(|name: String| lower(&name)),
        )
        .at("foreign keys")?
        .into_iter()
        .collect();
        let triggered: HashSet<String> = others.iter().map(|(_, table, _)| lower(table)).collect();
        if referred.is_empty() && triggered.is_empty() {
            return Ok(schema);
        }
        let tables: Vec<(String, String)> = rows(
            state,
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at("the tables")?;
        for (name, kind) in tables {
            let table = lower(&name);
            match kind.as_str() {
                // SQLite allows no triggers on them (SAFE-5).
                "virtual" | "shadow" => {}
                _ if schema.is_ours(&table)
                    && (triggered.contains(&table) || referred.contains(&table)) =>
                {
                    schema.asked.push(name);
                }
                _ => {}
            }
        }
        Ok(schema)
    }

    fn is_ours(&self, table: &str) -> bool {
        table.starts_with("larder_") || self.stores.contains(table) || self.sides.contains(table)
    }

    /// Whether sessions may remember what a trigger or a foreign key changes so.
    fn is_reached_by(&self, change: &Change) -> bool {
        if let Some(trigger) = &change.trigger {
            let tracks = TRACKERS.iter().any(|tracker| trigger.starts_with(tracker))
                && TRACKS.contains(&change.table.as_str());
            if tracks || self.guards.contains(trigger) {
                return false;
            }
        }
        let is_users_column = self.stores.contains(&change.table)
            && change.verb == Verb::Update
            && !ENGINE_COLUMNS.contains(&change.column.as_str())
            && change.column != "rowid";
        self.is_ours(&change.table) && !is_users_column
    }
}

/// A connection that compiles statements and runs none.
struct Compiler {
    connection: Connection,
    found: Arc<Mutex<Vec<Change>>>,
}

impl Compiler {
    fn open(catalog: &SqliteCatalog) -> Result<Compiler> {
        let mut connection = catalog.connect_reader()?;
        // As a program that has loaded the extension may have it: then what REPLACE deletes has
        // triggers too.
        connection
            .pragma_update(None, "recursive_triggers", true)
            .at("the triggers")?;
        let found: Arc<Mutex<Vec<Change>>> = Arc::default();
        let notes = Arc::clone(&found);
        connection
            .authorizer(Some(move |context: AuthContext<'_>| {
                crate::lock(&notes).extend(change(&context));
                Authorization::Allow
            }))
            .at("the triggers")?;
        Ok(Compiler { connection, found })
    }

    /// Whether a change of this table of ours by the engine reaches more of ours.
    fn reaches(&self, schema: &Schema, table: &str) -> Result<bool> {
        let is_store = schema.stores.contains(&lower(table));
        let columns: Vec<String> = match is_store {
            // Its key never changes, nobody sets what is computed, and the user's columns are not
            // the engine's.
            true => ENGINE_COLUMNS
                .iter()
                .skip(1)
                .filter(|&&name| name != FILE_ID)
                .map(|&name| name.into())
                .collect(),
            false => rows(
                &self.connection,
                "SELECT name FROM pragma_table_info(?1)",
                [table],
                |row| row.get(0),
            )
            .at(table)?,
        };
        let set: Vec<String> = columns
            .iter()
            .map(|column| format!("{0} = {0}", quoted(column)))
            .collect();
        let name = quoted(table);
        let statements = [
            (
                Verb::Insert,
                format!("INSERT INTO main.{name} DEFAULT VALUES"),
            ),
            (
                Verb::Update,
                format!("UPDATE main.{name} SET {}", set.join(", ")),
            ),
            (Verb::Delete, format!("DELETE FROM main.{name}")),
        ];
        for (verb, sql) in statements {
            let Some(changes) = self.compile(&sql)? else {
                return Ok(true);
            };
            // What the statement itself does is told once, of an UPDATE once for each column.
            let mut own: HashSet<&str> = HashSet::new();
            let reached = changes.iter().filter(|change| {
                let is_own = change.trigger.is_none()
                    && change.verb == verb
                    && change.table == lower(table)
                    && own.insert(&change.column);
                !is_own
            });
            if reached
                .into_iter()
                .any(|change| schema.is_reached_by(change))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a statement changes, with its triggers and foreign keys; `None`: it cannot be compiled
    /// here.
    fn compile(&self, sql: &str) -> Result<Option<Vec<Change>>> {
        crate::lock(&self.found).clear();
        match self.connection.prepare(sql) {
            Ok(_) => Ok(Some(std::mem::take(&mut *crate::lock(&self.found)))),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => Ok(None),
            Err(error) => Err(error).at("the triggers"),
        }
    }
}

fn change(context: &AuthContext<'_>) -> Option<Change> {
    let (verb, table, column) = match context.action {
        AuthAction::Insert { table_name } => (Verb::Insert, table_name, ""),
        AuthAction::Delete { table_name } => (Verb::Delete, table_name, ""),
        AuthAction::Update {
            table_name,
            column_name,
        } => (Verb::Update, table_name, column_name),
        _ => return None,
    };
    Some(Change {
        verb,
        table: lower(table),
        column: lower(column),
        trigger: context.accessor.map(str::to_owned),
    })
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::INIT;
    use crate::{CatalogOptions, DatabaseInit};

    /// Whether a commit of the engine reaches rows of ours after this SQL.
    fn reached(sql: &str) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let init = DatabaseInit {
            retention_ns: 3_600_000_000_000,
            ..INIT
        };
        let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
        let writer = Connection::open(dir.path().join(crate::CATALOG_FILE)).unwrap();
        let schema = "CREATE TABLE albums (id INTEGER PRIMARY KEY, n); CREATE TABLE audit (x); \
            CREATE TABLE idle (x);
            CREATE TABLE child (ino INTEGER REFERENCES main (ino) ON DELETE CASCADE, n);
            CREATE VIEW shown AS SELECT x FROM audit;
            ALTER TABLE main ADD COLUMN note; ALTER TABLE main ADD COLUMN album REFERENCES albums \
            ON DELETE CASCADE;
            CREATE VIRTUAL TABLE words USING fts5(text);";
        for text in [schema, sql] {
            writer
                .execute_batch(text)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        if sql.contains("tracked") {
            catalog.temporal().track_table("child", true).unwrap();
        }
        let state = catalog.connect_reader().unwrap();
        let version = state.query_row("PRAGMA schema_version", [], |row| row.get(0));
        is_reached(&catalog, &state, version.unwrap(), &["main".into()]).unwrap()
    }

    #[test]
    fn triggers_that_change_nothing_of_ours_reach_nothing() {
        for sql in [
            "",
            "-- tracked: its triggers run when a file goes",
            "CREATE TRIGGER t AFTER INSERT ON idle BEGIN SELECT 1; END",
            // By plain SQL only: then the guard switch is closed, and the store's own triggers keep
            // what it changes.
            "CREATE TRIGGER t AFTER INSERT ON idle BEGIN UPDATE main SET mode = 1; END",
            "CREATE TRIGGER t AFTER UPDATE ON main BEGIN INSERT INTO audit VALUES (NEW.size); END",
            "CREATE TRIGGER t BEFORE INSERT ON MAIN WHEN NEW.size > 9 BEGIN SELECT RAISE(ABORT, \
             'no'); END",
            "CREATE TRIGGER t AFTER UPDATE OF size ON main BEGIN UPDATE Main SET Note = 1 WHERE \
             ino = NEW.ino; END",
            "CREATE TRIGGER t AFTER INSERT ON main_dirent BEGIN INSERT INTO words VALUES \
             (NEW.name); END",
            "CREATE TRIGGER t AFTER DELETE ON child BEGIN INSERT INTO audit VALUES (OLD.n); END",
            "CREATE TRIGGER t AFTER DELETE ON child BEGIN REPLACE INTO audit VALUES (1); END; -- \
             tracked",
            "CREATE TRIGGER t AFTER INSERT ON larder_history BEGIN UPDATE audit SET x = x + 1; END",
            "CREATE TRIGGER t AFTER UPDATE ON main BEGIN INSERT INTO shown VALUES (1); END;
             CREATE TRIGGER u INSTEAD OF INSERT ON shown BEGIN INSERT INTO audit VALUES (NEW.x); \
             END",
            "ALTER TABLE main ADD COLUMN origin REFERENCES main ON DELETE SET NULL",
        ] {
            assert!(!reached(sql), "FOREIGN-5: {sql}");
        }
    }

    #[test]
    fn what_changes_ours_in_turn_reaches_it() {
        for sql in [
            "CREATE TRIGGER t AFTER UPDATE ON main BEGIN UPDATE main SET mode = 1 WHERE ino = 9; \
             END",
            "CREATE TRIGGER t AFTER UPDATE OF mode ON main BEGIN UPDATE main SET rowid = 9; END",
            "CREATE TRIGGER t AFTER UPDATE OF since_seq ON main BEGIN DELETE FROM main_xattr; END",
            "CREATE TRIGGER larder_watch_1 AFTER DELETE ON main_dirent BEGIN DELETE FROM \
             larder_redo_row; END",
            "CREATE TRIGGER t AFTER UPDATE ON larder_guard_switch BEGIN UPDATE main SET uid = 1; \
            END",
            "CREATE TRIGGER t AFTER INSERT ON larder_history BEGIN UPDATE main SET uid = 1; END",
            // By a table of the user's.
            "CREATE TRIGGER t AFTER INSERT ON main BEGIN INSERT INTO audit VALUES (1); END;
             CREATE TRIGGER u AFTER INSERT ON audit BEGIN UPDATE main SET mtime_ns = 1; END",
            "CREATE TRIGGER t AFTER DELETE ON child BEGIN UPDATE main SET mode = 0; END",
            "CREATE TRIGGER t AFTER UPDATE ON main BEGIN INSERT INTO shown VALUES (1); END;
             CREATE TRIGGER u INSTEAD OF INSERT ON shown BEGIN UPDATE main SET mode = 0; END",
            // By foreign keys.
            "CREATE TRIGGER t AFTER DELETE ON child BEGIN DELETE FROM albums; END",
            "ALTER TABLE main ADD COLUMN origin REFERENCES main ON DELETE CASCADE",
            "CREATE TABLE part (id INTEGER PRIMARY KEY, ino REFERENCES main ON DELETE SET NULL);
             CREATE TRIGGER t AFTER UPDATE OF ino ON part BEGIN INSERT INTO larder_orphan VALUES \
             (0, 2, 3); END",
            // What cannot be decided.
            "CREATE TRIGGER t AFTER INSERT ON main BEGIN SELECT of_some_program(NEW.ino); END",
        ] {
            assert!(reached(sql), "FOREIGN-5: {sql}");
        }
    }
}
