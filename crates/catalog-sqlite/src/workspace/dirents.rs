//! The merge of names: who was moved, made and removed on both sides, and that the result is a
//! tree.

use super::files::{DEPTH_MAX, Files, entry_id};
use super::findings::Findings;
use super::rows::shown;
use crate::error::{At, CatalogError, Result};
use crate::temporal::tracking::images::{Fate, Image, Shape, for_each_touched};
use crate::types::codec::rows;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A change of one name that the workspace made and that fits.
#[derive(Debug)]
pub(super) struct NameChange {
    parent: i64,
    name: Value,
    old: Option<i64>,
    ours: Option<i64>,
}

impl Files<'_> {
    // ---- names --------------------------------------------------------------------------------

    /// Which names change in the parent. Reads only.
    pub(super) fn plan_names(&self, findings: &mut Findings) -> Result<Vec<NameChange>> {
        let shape = Shape::read(self.txn, "ws", &self.sql.table_dirent)?;
        let target = |image: &Option<Image>| match image.as_ref().map(|image| &image[2]) {
            Some(Value::Integer(ino)) => Some(*ino),
            _ => None,
        };
        let mut changes = Vec::new();
        // Of each inode: names that both sides took away, and those that it got and lost here.
        let mut lost_on_both: BTreeMap<i64, (i64, Value)> = BTreeMap::new();
        let mut got: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        let mut lost: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        for_each_touched(self.txn, &shape, self.old("_dirent")?, |touched| {
            let Value::Integer(parent) = touched.key[0] else {
                return Err(CatalogError::corrupt("an entry of no directory"));
            };
            let name = touched.key[1].clone();
            let (old, ours, theirs) = (
                target(&touched.old),
                target(&touched.ours),
                target(&touched.theirs),
            );
            if ours == old {
                return Ok(());
            }
            let id = entry_id(parent, &name);
            got.entry(ours.unwrap_or(0)).or_default().insert(id.clone());
            lost.entry(old.unwrap_or(0)).or_default().insert(id);
            if let Some(old) = old.filter(|_| theirs.is_none() && ours.is_none()) {
                lost_on_both.insert(old, (parent, name.clone()));
            }
            match touched.fate() {
                Fate::Keep => {}
                Fate::Take => changes.push(NameChange {
                    parent,
                    name,
                    old,
                    ours,
                }),
                Fate::Conflict => {
                    let why = match (old, ours, theirs) {
                        (None, ..) => "this name was given on both sides",
                        (_, None, _) => "replaced there and removed here",
                        (.., None) => "removed there and replaced here",
                        _ => "replaced on both sides",
                    };
                    findings.conflict(self.entry_path("ws", parent, &name), why);
                }
            }
            Ok(())
        })?;
        let none = BTreeSet::new();
        for (ino, (parent, name)) in lost_on_both {
            let (got, lost) = (
                got.get(&ino).unwrap_or(&none),
                lost.get(&ino).unwrap_or(&none),
            );
            let here: BTreeSet<String> = self.names_of("ws", ino)?;
            let base: BTreeSet<String> = here.difference(got).chain(lost).cloned().collect();
            let there = self.names_of("main", ino)?;
            let got_there: BTreeSet<String> = there.difference(&base).cloned().collect();
            if *got != got_there {
                let why = match (got.is_empty(), got_there.is_empty()) {
                    (false, false) => "renamed on both sides",
                    (false, true) => "removed there and renamed here",
                    _ => "renamed there and removed here",
                };
                findings.conflict(self.entry_path("ws", parent, &name), why);
            }
        }
        Ok(changes)
    }

    fn names_of(&self, schema: &str, ino: i64) -> Result<BTreeSet<String>> {
        let sql = format!(
            "SELECT parent, name FROM {schema}.\"{}\" WHERE ino = ?1",
            self.sql.table_dirent
        );
        let names = rows(self.txn, &sql, [ino], |row| {
            Ok(entry_id(row.get(0)?, &row.get::<_, Value>(1)?))
        });
        Ok(names.at(&self.sql.table_dirent)?.into_iter().collect())
    }

    pub(super) fn apply_names(
        &self,
        changes: &[NameChange],
        findings: &mut Findings,
    ) -> Result<()> {
        let table = &self.sql.table_dirent;
        let (mut removals, mut additions) = (
            self.txn
                .prepare(&format!(
                    "DELETE FROM main.\"{table}\" WHERE parent = ?1 AND name = ?2"
                ))
                .at(table)?,
            self.txn
                .prepare(&format!(
                    "INSERT INTO main.\"{table}\" (parent, name, ino) VALUES (?1, ?2, ?3)"
                ))
                .at(table)?,
        );
        for change in changes.iter().filter(|change| change.old.is_some()) {
            removals
                .execute(params![change.parent, change.name])
                .at(table)?;
        }
        for change in changes {
            if let Some(ino) = change.ours {
                let added = additions
                    .execute(params![change.parent, change.name, ino])
                    .at(table);
                findings.refused(
                    || self.entry_path("ws", change.parent, &change.name),
                    added.map(drop),
                )?;
            }
        }
        Ok(())
    }

    /// Files count their names; directories their subdirectories, by difference. New inodes came
    /// with their counts.
    pub(super) fn count_links(
        &self,
        changes: &[NameChange],
        removed: &HashMap<i64, String>,
    ) -> Result<()> {
        let (table, dirents) = (&self.sql.table, &self.sql.table_dirent);
        let mut files: BTreeSet<i64> = BTreeSet::new();
        let mut children: BTreeMap<i64, i64> = BTreeMap::new();
        for change in changes {
            for (ino, sign) in [(change.old, -1), (change.ours, 1)] {
                let Some(ino) = ino else { continue };
                match self.is_directory(ino)? {
                    true => *children.entry(change.parent).or_default() += sign,
                    false => drop(files.insert(ino)),
                }
            }
        }
        for ino in files.iter().filter(|ino| !removed.contains_key(ino)) {
            self.txn
                .prepare_cached(&format!(
                    "UPDATE main.\"{table}\" SET nlink = (SELECT count(*) FROM main.\"{dirents}\" \
                     WHERE ino = ?1) WHERE ino = ?1 AND nlink > 0 AND ino NOT IN temp.fresh"
                ))
                .and_then(|mut count| count.execute([ino]))
                .at(table)?;
        }
        for (parent, change) in children
            .iter()
            .filter(|(ino, _)| !removed.contains_key(ino))
        {
            self.txn
                .prepare_cached(&format!(
                    "UPDATE main.\"{table}\" SET nlink = nlink + ?2 \
                     WHERE ino = ?1 AND nlink > 0 AND ino NOT IN temp.fresh"
                ))
                .and_then(|mut count| count.execute(params![parent, change]))
                .at(table)?;
        }
        Ok(())
    }

    pub(super) fn is_directory(&self, ino: i64) -> Result<bool> {
        let table = &self.sql.table;
        for schema in ["ws", "main"] {
            let kind: Option<String> = self
                .txn
                .prepare_cached(&format!(
                    "SELECT kind FROM {schema}.\"{table}\" WHERE ino = ?1"
                ))
                .and_then(|mut find| find.query_row([ino], |row| row.get(0)).optional())
                .at(table)?;
            if let Some(kind) = kind {
                return Ok(kind == "dir");
            }
        }
        let old = self.old_inode(ino)?;
        Ok(old.is_some_and(|old| *self.value(&old, "kind") == Value::Text("dir".into())))
    }

    /// The tree is a tree: what was named here is there, in a directory that is there, and what was
    /// removed here is empty.
    pub(super) fn check_names(
        &self,
        changes: &[NameChange],
        removed: &HashMap<i64, String>,
        findings: &mut Findings,
    ) -> Result<()> {
        let (table, dirents) = (&self.sql.table, &self.sql.table_dirent);
        let is_there = |ino: i64| -> Result<bool> {
            Ok(!removed.contains_key(&ino)
                && self
                    .txn
                    .prepare_cached(&format!(
                        "SELECT 1 FROM main.\"{table}\" WHERE ino = ?1 AND nlink > 0"
                    ))
                    .and_then(|mut find| find.exists([ino]))
                    .at(table)?)
        };
        for change in changes {
            let Some(ino) = change.ours else { continue };
            let path = || self.entry_path("ws", change.parent, &change.name);
            if !is_there(change.parent)? {
                findings.conflict(path(), "its directory was removed there");
            } else if !is_there(ino)? {
                findings.conflict(path(), "removed there and named here");
            } else if self.is_directory(ino)? && !self.leads_to_root(ino)? {
                findings.conflict(
                    path(),
                    "moved there and here so that it would contain itself",
                );
            }
        }
        for (ino, path) in removed {
            let left: Vec<Value> = rows(
                self.txn,
                &format!("SELECT name FROM main.\"{dirents}\" WHERE parent = ?1"),
                [ino],
                |row| row.get(0),
            )
            .at(dirents)?;
            for name in left {
                let path = format!("{path}/{}", shown(&name));
                findings.conflict(path, "in a directory that was removed here");
            }
        }
        Ok(())
    }

    /// Whether a directory has one name, and so on up to the root.
    fn leads_to_root(&self, ino: i64) -> Result<bool> {
        let dirents = &self.sql.table_dirent;
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            if at == 1 {
                return Ok(true);
            }
            let parents: Vec<i64> = rows(
                self.txn,
                &format!("SELECT parent FROM main.\"{dirents}\" WHERE ino = ?1 LIMIT 2"),
                [at],
                |row| row.get(0),
            )
            .at(dirents)?;
            match parents[..] {
                [parent] => at = parent,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}
