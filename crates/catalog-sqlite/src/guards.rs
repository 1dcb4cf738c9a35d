//! How the engine's own writes pass the guard triggers (`CATALOG-3`).
//!
//! The *guard switch* is the row of `larder_guard_switch`. A guard trigger refuses a write while it
//! is closed, and does nothing while it is open.
//!
//! Where no trigger exists but the guards, the writer runs without triggers: reading the guard
//! switch for each row, and the statement journal that a trigger which may refuse needs, cost as
//! much as the changes themselves. Where a user has triggers, all run, with the guard switch open.
//!
//! ```text
//!  unknown ──(schema version seen)──▶ alone: triggers off, switch closed
//!     ▲                          └──▶ not alone: triggers on, switch open inside the transaction
//!     └── the schema version changes, seen at the begin of the next transaction
//! ```
//!
//! REPLACE deletes rows that are in its way, and SQLite runs DELETE triggers for them only with
//! `recursive_triggers`. That is switched on where a statement or a trigger says REPLACE, and not
//! always: a user's trigger that changes its own table would then run again and again.

pub(crate) mod audit;
pub(crate) mod guarded;
pub(crate) mod trigger_effects;
pub(crate) mod trigger_watch;

use crate::conn::meta::set_guard_switch;
use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::guards::trigger_watch::Watch;
use crate::schema;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::sync::Arc;

/// What the writer knows of the triggers.
#[derive(Default)]
pub(crate) struct Guards {
    /// The schema version that was looked at.
    schema_version: Option<i64>,
    /// How often the triggers were looked at.
    looks: u64,
    /// Since the last [`Guards::take_news`].
    has_news: bool,
    /// No other triggers exist.
    are_alone: bool,
    /// The connection runs no triggers now.
    are_off: bool,
    /// The connection is another program's: its settings stay (`CLIENT-1`).
    is_client: bool,
    /// Whether a trigger says REPLACE, and the schema version that was looked at for that.
    triggers_replace: Option<(i64, bool)>,
    /// `recursive_triggers` was switched on here.
    runs_deletes: bool,
    /// Over the user's triggers, and whose those are; not on another program's connection.
    watch: Option<(Arc<Watch>, Code)>,
}

/// Whether SQL may delete rows without naming them: it says REPLACE, which is neither the function
/// nor part of a text or a comment.
pub(crate) fn may_replace(sql: &str) -> bool {
    let mut rest = sql.as_bytes();
    while let Some(&first) = rest.first() {
        let length = match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | 0x80.. => {
                let is_part = |byte: &u8| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
                };
                let length = rest.iter().take_while(|byte| is_part(byte)).count();
                let (word, after) = rest.split_at(length);
                if word.eq_ignore_ascii_case(b"REPLACE")
                    && after_blanks(after).first() != Some(&b'(')
                {
                    return true;
                }
                length
            }
            b'0'..=b'9' => rest
                .iter()
                .take_while(|byte| byte.is_ascii_alphanumeric())
                .count(),
            b'\'' | b'"' | b'`' => through(rest, 1, &[first]),
            b'[' => through(rest, 1, b"]"),
            _ => blank(rest).max(1),
        };
        rest = &rest[length..];
    }
    false
}

/// Bytes through the next `end`, which is looked for behind `skip` of them.
fn through(text: &[u8], skip: usize, end: &[u8]) -> usize {
    let found = text[skip..].windows(end.len()).position(|part| part == end);
    found.map_or(text.len(), |at| skip + at + end.len())
}

/// Bytes of the blank or the comment that `text` begins with.
fn blank(text: &[u8]) -> usize {
    match text {
        [b'-', b'-', ..] => through(text, 2, b"\n"),
        [b'/', b'*', ..] => through(text, 2, b"*/"),
        [first, ..] => usize::from(first.is_ascii_whitespace()),
        [] => 0,
    }
}

fn after_blanks(mut text: &[u8]) -> &[u8] {
    loop {
        match blank(text) {
            0 => return text,
            length => text = &text[length..],
        }
    }
}

/// Whether a trigger of the schema `table` may.
pub(crate) fn has_replacing_trigger(connection: &Connection, table: &str) -> Result<bool> {
    let list = format!("SELECT sql FROM {table} WHERE type = 'trigger' AND sql LIKE '%replace%'");
    let texts: Vec<String> = connection
        .prepare_cached(&list)
        .and_then(|mut list| list.query_map([], |row| row.get(0))?.collect())
        .at("the triggers")?;
    Ok(texts.iter().any(|sql| may_replace(sql)))
}

impl Guards {
    /// On a connection that is watched. The connection is dropped before.
    pub(crate) fn watched(watch: Arc<Watch>, code: Code) -> Guards {
        Guards {
            watch: Some((watch, code)),
            ..Guards::default()
        }
    }

    /// Whose the code in the catalog is.
    pub(crate) fn code(&self) -> Code {
        self.watch.as_ref().map_or(Code::Trusted, |(_, code)| *code)
    }

    /// The watch over the user's triggers.
    pub(crate) fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.as_ref().map(|(watch, _)| Arc::clone(watch))
    }

    /// What the error of a change is, once it is known who has brought it about.
    pub(crate) fn explain(&self, error: CatalogError) -> CatalogError {
        match &self.watch {
            Some((watch, _)) => watch.explain(error),
            None => error,
        }
    }

    fn set_open(&self, txn: &Connection, is_open: bool) -> Result<()> {
        if let Some((watch, _)) = &self.watch {
            watch.set_open(is_open);
        }
        set_guard_switch(txn, is_open)
    }

    /// On the connection of another program: always by the guard switch.
    pub(crate) fn for_client() -> Guards {
        Guards {
            is_client: true,
            ..Guards::default()
        }
    }

    /// From here to [`Guards::close`] the engine may change everything. In a write transaction:
    /// nobody can add a trigger meanwhile.
    pub(crate) fn open(&mut self, txn: &Connection) -> Result<()> {
        if self.is_client {
            return set_guard_switch(txn, true);
        }
        let version = schema_version(txn)?;
        if self.schema_version != Some(version) {
            // With the guard switch open a guard does nothing, whatever its name. A watched or
            // temporal table that no foreign key changes when another one changes changes by plain
            // SQL only, or the commit keeps it (TEMPORAL-4).
            self.are_alone = txn
                .query_row(
                    "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' \
                     AND tbl_name <> 'larder_guard_switch' \
                     AND instr(sql, 'WHEN (SELECT open FROM larder_guard_switch) IS NOT 1') = 0 \
                     AND NOT ((name LIKE 'larder\\_watch\\_%' ESCAPE '\\' OR \
                       name LIKE 'larder\\_temporal\\_%' ESCAPE '\\') AND NOT EXISTS \
                       (SELECT 1 FROM pragma_foreign_key_list(tbl_name) \
                        WHERE on_delete NOT IN ('NO ACTION', 'RESTRICT') \
                        OR on_update NOT IN ('NO ACTION', 'RESTRICT'))))",
                    [],
                    |row| row.get(0),
                )
                .at("the triggers")?;
            if let (Some((watch, code)), false) = (&self.watch, self.are_alone) {
                watch.learn(audit::require(txn, schema::version(txn)?, *code)?); // SAFE-3
            }
            self.schema_version = Some(version);
            self.looks += 1;
            self.has_news = true;
        }
        if let Some((watch, _)) = &self.watch {
            watch.set_open(false);
        }
        self.set_off(txn, self.are_alone)?;
        match self.are_alone {
            true => Ok(()),
            false => {
                self.run_deletes(txn, false)?;
                self.set_open(txn, true)
            }
        }
    }

    /// No trigger runs in what follows, the user's neither. [`Guards::open`] or [`Guards::stand`]
    /// come before anything else.
    pub(crate) fn silence(&mut self, txn: &Connection) -> Result<()> {
        if let Some((watch, _)) = &self.watch {
            watch.set_open(false);
        }
        self.set_off(txn, true)
    }

    /// Whether no triggers run now, and none exist but the guards and those of watched tables; and
    /// the look at the triggers that says so: what was found out in another one may not hold.
    pub(crate) fn are_off(&self, txn: &Connection) -> Result<Option<u64>> {
        if !self.are_off || !self.are_alone {
            return Ok(None);
        }
        let is_present = self.schema_version == Some(schema_version(txn)?);
        Ok(is_present.then_some(self.looks))
    }

    /// Whether the schema is another one than when this was asked last.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Whether the schema is another one than [`Guards::open`] saw.
    pub(crate) fn is_new_schema(&self, connection: &Connection) -> Result<bool> {
        Ok(!self.is_client && self.schema_version != Some(schema_version(connection)?))
    }

    /// Ends what [`Guards::open`] began.
    pub(crate) fn close(&self, txn: &Connection) -> Result<()> {
        match self.are_alone {
            true => Ok(()),
            false => self.set_open(txn, false),
        }
    }

    /// The schema that was looked at may never have been: a transaction was rolled back.
    pub(crate) fn forget(&mut self) {
        self.schema_version = None;
        self.triggers_replace = None;
    }

    /// The guards treat what follows like an `sqlite3` shell, but that they also see what REPLACE
    /// deletes. `replaces`: it may be the statement that does.
    pub(crate) fn stand(&mut self, txn: &Connection, replaces: bool) -> Result<()> {
        if let Some((watch, _)) = &self.watch {
            watch.stand();
        }
        if !self.is_client {
            let runs_deletes = replaces || self.is_replacing(txn)?;
            self.run_deletes(txn, runs_deletes)?;
        }
        self.set_off(txn, false)
    }

    fn is_replacing(&mut self, txn: &Connection) -> Result<bool> {
        let version = schema_version(txn)?;
        if let Some((seen, found)) = self.triggers_replace
            && seen == version
        {
            return Ok(found);
        }
        let found = has_replacing_trigger(txn, "sqlite_schema")?;
        self.triggers_replace = Some((version, found));
        Ok(found)
    }

    /// Changing it makes the connection compile its statements again.
    fn run_deletes(&mut self, txn: &Connection, on: bool) -> Result<()> {
        if self.runs_deletes != on {
            txn.pragma_update(None, "recursive_triggers", on)
                .at("the guards")?;
            self.runs_deletes = on;
        }
        Ok(())
    }

    /// Changing it makes the connection compile its statements again.
    fn set_off(&mut self, txn: &Connection, off: bool) -> Result<()> {
        if self.are_off != off {
            txn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, !off)
                .at("the guards")?;
            self.are_off = off;
        }
        Ok(())
    }
}

fn schema_version(txn: &Connection) -> Result<i64> {
    txn.prepare_cached("PRAGMA schema_version")
        .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
        .at("the schema version")
}

#[cfg(test)]
mod tests {
    use super::may_replace;

    #[test]
    fn only_the_word_replaces() {
        for sql in [
            "REPLACE INTO t VALUES (1)",
            "insert or Replace into t values ('replace')",
            "WITH a AS (SELECT replace(x, 'a', 'b') FROM t) REPLACE/**/INTO t SELECT * FROM a",
            "UPDATE OR REPLACE \"t\" SET a = 1",
            "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; REPLACE INTO u VALUES (2); END",
            "CREATE TABLE t (a UNIQUE ON CONFLICT REPLACE)",
            "SELECT 'it''s'; REPLACE -- (\n INTO t VALUES (1)",
            "SELECT [replace(]; UPDATE OR REPLACE t SET a = 1e3",
        ] {
            assert!(may_replace(sql), "{sql}");
        }
        for sql in [
            "SELECT replace(a, 'x', 'y') FROM t",
            "UPDATE t SET a = REPLACE /* here */\n (a, 'x', 'y')",
            "INSERT INTO t VALUES ('please OR REPLACE it', \"or replace\", [or replace], `or \
             replace`)",
            "INSERT INTO t VALUES ('it''s; REPLACE INTO t')",
            "SELECT 1 -- OR REPLACE t\n",
            "SELECT 1 /* OR REPLACE t",
            "UPDATE t SET replaced = 1, no_replace = 2, $replace = 3",
            "'",
            "",
        ] {
            assert!(!may_replace(sql), "{sql}");
        }
    }
}
