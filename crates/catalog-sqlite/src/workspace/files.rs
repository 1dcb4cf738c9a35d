//! Merging the files of one store: inodes, attributes and user columns, extended attributes, and
//! the names, which are keys of their own, so that directories merge.

use super::findings::Findings;
use super::rows::shown;
use crate::commit::saves::read_attached;
use crate::error::{At, CatalogError, Result};
use crate::history::Keeper;
use crate::schema::statements::StoreSql;
use crate::schema::{ENGINE_COLUMNS, FIRST_INO};
use crate::space::grants::Grants;
use crate::space::map_pages::resolved;
use crate::temporal;
use crate::temporal::tracking::Tracked;
use crate::temporal::tracking::images::{Fate, Image, Shape, for_each_touched, list};
use crate::types::codec::{rows, signed};
use crate::types::names::{execute_one, quoted};
use larder_format::{CommitSeq, StoreId};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use std::collections::HashMap;

/// Directories that a path leads through at most, here.
pub(super) const DEPTH_MAX: u32 = 32_768;

/// The merge of one store.
pub(crate) struct Files<'m> {
    pub(crate) txn: &'m Connection,
    pub(crate) store: StoreId,
    pub(crate) sql: StoreSql,
    pub(crate) grants: &'m Grants,
    pub(crate) seq: CommitSeq,
    pub(crate) old_piece: String,
    pub(crate) old_redo: String,
    keeper: &'m Keeper,
    /// The number of the table, if the user's columns are kept.
    kept_columns: Option<i64>,
    mount: &'m str,
    tables: &'m HashMap<&'m str, &'m Tracked>,
    inode: Shape,
    /// Rows of the parent as they were before they gave away what is attached to them.
    given: HashMap<i64, Image>,
}

impl<'m> Files<'m> {
    pub(crate) fn new(
        txn: &'m Connection,
        store: StoreId,
        name: &str,
        mount: &'m str,
        tables: &'m HashMap<&'m str, &'m Tracked>,
        grants: &'m Grants,
        keeper: &'m Keeper,
    ) -> Result<Files<'m>> {
        let old = |table: &str| -> Result<String> {
            let found = tables.get(table).ok_or_else(|| not_tracked(table))?;
            Ok(found.old_table.clone())
        };
        Ok(Files {
            txn,
            store,
            sql: StoreSql::new(store, name),
            grants,
            seq: keeper.seq,
            keeper,
            kept_columns: temporal::find_kept(txn, name)?,
            old_piece: old("larder_piece")?,
            old_redo: old("larder_redo_row")?,
            mount,
            tables,
            inode: Shape::read(txn, "ws", name)?,
            given: HashMap::new(),
        })
    }

    /// The table of old images of one of the store's tables.
    pub(crate) fn old(&self, suffix: &str) -> Result<&'m str> {
        let table = format!("{}{suffix}", self.sql.table);
        let found = self
            .tables
            .get(table.as_str())
            .ok_or_else(|| not_tracked(&table))?;
        Ok(&found.old_table)
    }

    /// Takes over what the workspace changed in this store.
    pub(crate) fn merge(&mut self, findings: &mut Findings) -> Result<()> {
        findings.changed_tables.insert(self.sql.table.clone());
        self.give_saved_away()?;
        self.add_new_inodes(findings)?;
        let mut removed: HashMap<i64, String> = HashMap::new();
        for ino in self.touched_inodes()? {
            self.merge_inode(ino, &mut removed, findings)?;
        }
        self.merge_xattrs(findings)?;
        let changes = self.plan_names(findings)?;
        self.apply_names(&changes, findings)?;
        self.count_links(&changes, &removed)?;
        self.check_names(&changes, &removed, findings)?;
        for ino in removed.into_keys() {
            self.make_orphan(ino)?;
            findings.removed.push((self.sql.table.clone(), ino));
        }
        Ok(())
    }

    // ---- inodes -------------------------------------------------------------------------------

    /// What was saved here is other inodes now, which come with all that is attached to them
    /// (`SAVE-2`): those of the parent give it away, so that no two rows have what must be unique.
    fn give_saved_away(&mut self) -> Result<()> {
        let (table, old) = (&self.sql.table, self.old("")?);
        let Some(first) = self.inode.columns.iter().position(|name| name == FIRST_INO) else {
            return Err(not_tracked(&format!("{table}.{FIRST_INO}")));
        };
        let saved: Vec<(i64, i64)> = rows(
            self.txn,
            &format!(
                "SELECT o.k0, n.first_ino FROM ws.{old} AS o JOIN ws.\"{table}\" AS n \
                 ON n.first_ino = coalesce(o.c{first}, o.k0) WHERE o.existed AND n.ino <> o.k0"
            ),
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(table)?;
        if saved.is_empty() {
            return Ok(());
        }
        let attached = read_attached(self.txn, table)?;
        for (ino, file_id) in saved {
            let Some(theirs) = self.inode.find(self.txn, "main", &[Value::Integer(ino)])? else {
                continue;
            };
            if let Some(id) = self.kept_columns {
                temporal::keep_changed(self.txn, self.keeper, id, ino)?; // TEMPORAL-4
            }
            let own = match file_id == ino {
                true => (-ino).to_string(),
                false => "NULL".into(),
            };
            let mut set = attached.defaults();
            set.extend((!set.is_empty()).then_some(", "));
            set.push_str(&format!("{FIRST_INO} = {own}"));
            self.txn
                .execute(
                    &format!("UPDATE main.\"{table}\" SET {set} WHERE ino = ?1 AND file_id = ?2"),
                    [ino, file_id],
                )
                .at(table)?;
            self.given.insert(ino, theirs);
        }
        Ok(())
    }

    /// New inodes have numbers that the parent does not use (`WORKSPACE-5`): they come as they are.
    fn add_new_inodes(&self, findings: &mut Findings) -> Result<()> {
        let table = &self.sql.table;
        self.execute("DROP TABLE IF EXISTS temp.fresh")?;
        self.execute("CREATE TEMP TABLE fresh (ino INTEGER PRIMARY KEY)")?;
        self.execute(&format!(
            "INSERT INTO temp.fresh SELECT o.k0 FROM ws.{} AS o JOIN ws.\"{table}\" AS n ON n.ino \
             = o.k0
               WHERE NOT o.existed AND n.nlink > 0;",
            self.old("")?
        ))?;
        let columns = list("", &self.inode.stored());
        let added = self.execute(&format!(
            "INSERT INTO main.\"{table}\" ({columns}) SELECT {columns} FROM ws.\"{table}\" \
             WHERE ino IN temp.fresh;"
        ));
        match added {
            Err(CatalogError::Constraint { .. }) => self.add_one_by_one(findings)?,
            other => other?,
        }
        let runs = format!("ino, page, {}", resolved("ws", "runs"));
        for (side, names, values) in [
            (
                &self.sql.table_content,
                "ino, inline, target, checksum",
                None,
            ),
            (&self.sql.table_map, "ino, page, runs", Some(&*runs)),
        ] {
            self.execute(&format!(
                "INSERT INTO main.\"{side}\" ({names}) SELECT {} FROM ws.\"{side}\" \
                 WHERE ino IN temp.fresh;",
                values.unwrap_or(names)
            ))?;
        }
        let store = self.store.0;
        self.execute(&format!(
            "INSERT INTO main.larder_piece (store, ino, page, entries) \
             SELECT store, ino, page, entries FROM ws.larder_piece \
             WHERE store = {store} AND ino IN temp.fresh;"
        ))
    }

    /// Finds out which of the new rows the user's constraints refuse.
    fn add_one_by_one(&self, findings: &mut Findings) -> Result<()> {
        let inos: Vec<i64> = rows(self.txn, "SELECT ino FROM temp.fresh", [], |row| row.get(0))
            .at("the new inodes")?;
        for ino in inos {
            let key = [Value::Integer(ino)];
            if let Some(image) = self.inode.find(self.txn, "ws", &key)? {
                let added = self.inode.insert(self.txn, &key, &image);
                findings.refused(|| self.path("ws", ino), added)?;
            }
        }
        Ok(())
    }

    /// What the workspace changed of inodes that the base has.
    pub(super) fn touched_inodes(&self) -> Result<Vec<i64>> {
        let (inode, content, map, xattr) = (
            self.old("")?,
            self.old("_content")?,
            self.old("_map")?,
            self.old("_xattr")?,
        );
        let (piece, store) = (&self.old_piece, self.store.0);
        let sql = format!(
            "SELECT k0 FROM ws.{inode} WHERE existed UNION SELECT k0 FROM ws.{content} \
             UNION SELECT k0 FROM ws.{map} UNION SELECT k0 FROM ws.{xattr} \
             UNION SELECT k1 FROM ws.{piece} WHERE k0 = {store} \
             EXCEPT SELECT k0 FROM ws.{inode} WHERE NOT existed ORDER BY 1"
        );
        rows(self.txn, &sql, [], |row| row.get(0)).at(&self.sql.table)
    }

    fn merge_inode(
        &self,
        ino: i64,
        removed: &mut HashMap<i64, String>,
        findings: &mut Findings,
    ) -> Result<()> {
        let key = [Value::Integer(ino)];
        // What has no name any more is gone, whoever has it open still.
        let is_alive = |image: &Image| *self.value(image, "nlink") != Value::Integer(0);
        let ours = self.inode.find(self.txn, "ws", &key)?;
        let old = match self.old_inode(ino)? {
            Some(old) => old,
            None => match &ours {
                Some(ours) => ours.clone(),
                None => return Ok(()),
            },
        };
        let ours = ours.filter(is_alive);
        let theirs = match self.given.get(&ino) {
            Some(theirs) => Some(theirs.clone()),
            None => self.inode.find(self.txn, "main", &key)?,
        };
        let theirs = theirs.filter(is_alive);
        let is_dir = *self.value(&old, "kind") == Value::Text("dir".into());
        // Times and links of a directory follow its entries, which are keys of their own.
        let ignored: &[&str] = match is_dir {
            true => &["atime_ns", "mtime_ns", "ctime_ns", "nlink"],
            false => &["atime_ns"],
        };
        let differs = |image: &Image| {
            (self.inode.columns.iter().zip(image.iter().zip(&old)))
                .any(|(name, (now, before))| now != before && !ignored.contains(&name.as_str()))
        };
        match (ours, theirs) {
            (None, None) => Ok(()),
            (None, Some(theirs)) => {
                if differs(&theirs) {
                    findings.conflict(self.path("main", ino), "changed there and removed here");
                }
                // Of a directory that must be empty, while the parent still has its name.
                let path = is_dir.then(|| self.path("main", ino));
                removed.insert(ino, path.unwrap_or_default());
                Ok(())
            }
            (Some(ours), None) => {
                if differs(&ours) || (!is_dir && self.has_new_content(ino)?) {
                    findings.conflict(self.path("ws", ino), "removed there and changed here");
                }
                Ok(())
            }
            (Some(ours), Some(theirs)) => self.merge_attributes(ino, &old, &ours, theirs, findings),
        }
    }

    pub(super) fn old_inode(&self, ino: i64) -> Result<Option<Image>> {
        let names: Vec<String> = (0..self.inode.columns.len())
            .map(|at| format!("c{at}"))
            .collect();
        let sql = format!(
            "SELECT {} FROM ws.{} WHERE k0 = ?1 AND existed",
            names.join(", "),
            self.old("")?
        );
        self.txn
            .prepare_cached(&sql)
            .and_then(|mut find| {
                find.query_row([ino], |row| {
                    crate::temporal::tracking::images::image(row, 0, names.len())
                })
                .optional()
            })
            .at(&self.sql.table)
    }

    /// The value of a column of ours, which every image has.
    pub(super) fn value<'i>(&self, image: &'i Image, column: &str) -> &'i Value {
        let at = self.inode.columns.iter().position(|name| name == column);
        at.and_then(|at| image.get(at)).unwrap_or(&Value::Null)
    }

    /// Column by column: an attribute, a user column. Length and blocks belong to the content.
    fn merge_attributes(
        &self,
        ino: i64,
        old: &Image,
        ours: &Image,
        theirs: Image,
        findings: &mut Findings,
    ) -> Result<()> {
        let differ =
            |column: &str, a: &Image, b: &Image| self.value(a, column) != self.value(b, column);
        let has_new_size = differ("size", old, ours) || differ("blocks", old, ours);
        let is_file = *self.value(old, "kind") == Value::Text("file".into());
        let takes_content = is_file && (has_new_size || self.has_new_content(ino)?);
        if takes_content {
            let is_untouched = !differ("ctime_ns", old, &theirs)
                || (!differ("size", old, &theirs)
                    && self.is_content_as_it_was(ino, !differ("mtime_ns", old, &theirs))?);
            match is_untouched {
                true => self.take_content(ino, findings)?,
                false => findings.conflict(
                    self.path("ws", ino),
                    "its content was changed on both sides",
                ),
            }
        }
        let mut set: Vec<(String, Value)> = Vec::new();
        for (at, column) in self.inode.columns.iter().enumerate() {
            let (was, here, there) = (&old[at], &ours[at], &theirs[at]);
            match column.as_str() {
                "ino" | "kind" | "nlink" => continue,
                "size" | "blocks" if takes_content => set.push((column.clone(), here.clone())),
                "size" | "blocks" => continue,
                _ if here == was || here == there => continue,
                _ if there == was => set.push((column.clone(), here.clone())),
                "atime_ns" | "mtime_ns" | "ctime_ns" => {
                    if let (Value::Integer(here), Value::Integer(there)) = (here, there)
                        && here > there
                    {
                        set.push((column.clone(), Value::Integer(*here)));
                    }
                }
                _ => findings.conflict(
                    self.path("ws", ino),
                    format!("its {column} was changed on both sides"),
                ),
            }
        }
        if set.is_empty() {
            return Ok(());
        }
        let is_users = |column: &String| !ENGINE_COLUMNS.contains(&column.as_str());
        if let Some(id) = self.kept_columns
            && set.iter().any(|(column, _)| is_users(column))
        {
            temporal::keep_changed(self.txn, self.keeper, id, ino)?; // TEMPORAL-4
        }
        let assignments: Vec<String> = (set.iter().enumerate())
            .map(|(at, (column, _))| format!("{} = ?{}", quoted(column), at + 2))
            .collect();
        let sql = format!(
            "UPDATE main.\"{}\" SET {} WHERE ino = ?1",
            self.sql.table,
            assignments.join(", ")
        );
        let values =
            std::iter::once(Value::Integer(ino)).chain(set.into_iter().map(|(_, value)| value));
        let updated = self
            .txn
            .prepare_cached(&sql)
            .and_then(|mut update| update.execute(params_from_iter(values)))
            .at(&self.sql.table)
            .map(drop);
        findings.refused(|| self.path("ws", ino), updated)
    }

    /// What goes or is replaced goes first, so that a unique value may move from one file to
    /// another (`CONSTRAINT-7`).
    fn merge_xattrs(&self, findings: &mut Findings) -> Result<()> {
        let mut arrivals = Vec::new();
        let shape = Shape::read(self.txn, "ws", &self.sql.table_xattr)?;
        let old = self.old("_xattr")?;
        for_each_touched(self.txn, &shape, old, |touched| {
            let Value::Integer(ino) = touched.key[0] else {
                return Err(CatalogError::corrupt("an extended attribute of no inode"));
            };
            // New inodes get theirs below; of what is gone nothing is left to say.
            if !self.is_alive_on_both_sides(ino)? || touched.fate() == Fate::Keep {
                return Ok(());
            }
            if touched.fate() == Fate::Conflict {
                let why = format!(
                    "its attribute {} was changed on both sides",
                    shown(&touched.key[1])
                );
                findings.conflict(self.path("ws", ino), why);
                return Ok(());
            }
            shape.delete(self.txn, &touched.key)?;
            if let Some(ours) = touched.ours {
                arrivals.push((ino, touched.key, ours));
            }
            Ok(())
        })?;
        let table = &self.sql.table_xattr;
        self.execute(&format!(
            "INSERT INTO main.\"{table}\" (ino, name, value) SELECT ino, name, value \
             FROM ws.\"{table}\" WHERE ino IN temp.fresh"
        ))?;
        for (ino, key, ours) in arrivals {
            let added = shape.insert(self.txn, &key, &ours);
            findings.refused(|| self.path("ws", ino), added)?;
        }
        Ok(())
    }

    /// Whether the base has the inode, and neither side has removed it.
    pub(super) fn is_alive_on_both_sides(&self, ino: i64) -> Result<bool> {
        let table = &self.sql.table;
        self.txn
            .prepare_cached(&format!(
                "SELECT EXISTS (SELECT 1 FROM ws.\"{table}\" WHERE ino = ?1 AND nlink > 0) \
                 AND EXISTS (SELECT 1 FROM main.\"{table}\" WHERE ino = ?1 AND nlink > 0) \
                 AND ?1 NOT IN temp.fresh"
            ))
            .and_then(|mut ask| ask.query_row([ino], |row| row.get(0)))
            .at(table)
    }

    /// A file without a name goes when nobody has it open any more, as when another session removes
    /// it.
    pub(super) fn make_orphan(&self, ino: i64) -> Result<()> {
        let table = &self.sql.table;
        self.txn
            .prepare_cached(&format!(
                "UPDATE main.\"{table}\" SET nlink = 0 WHERE ino = ?1"
            ))
            .and_then(|mut update| update.execute([ino]))
            .at(table)?;
        self.txn
            .prepare_cached("INSERT INTO main.larder_orphan (store, ino, seq) VALUES (?1, ?2, ?3)")
            .and_then(|mut add| add.execute(params![self.store.0, ino, signed(self.seq.0)]))
            .at("larder_orphan")
            .map(drop)
    }

    pub(super) fn execute(&self, sql: &str) -> Result<()> {
        execute_one(self.txn, sql).at(&self.sql.table)
    }

    // ---- paths, for people --------------------------------------------------------------------

    /// A path of an inode, on the side that is named first, or else on the other.
    pub(super) fn path(&self, first: &str, ino: i64) -> String {
        let other = if first == "ws" { "main" } else { "ws" };
        [first, other]
            .into_iter()
            .find_map(|schema| {
                let sql = format!(
                    "SELECT CAST(path AS BLOB) FROM {schema}.\"{}_path\" WHERE ino = ?1 LIMIT 1",
                    self.sql.table
                );
                let path: rusqlite::Result<Option<Vec<u8>>> =
                    self.txn.query_row(&sql, [ino], |row| row.get(0));
                path.ok().flatten()
            })
            .map_or_else(
                || format!("inode {ino}"),
                |path| self.in_database(&String::from_utf8_lossy(&path)),
            )
    }

    pub(super) fn in_database(&self, path: &str) -> String {
        match (self.mount, path) {
            ("/", path) => path.into(),
            (mount, "/") => mount.into(),
            (mount, path) => format!("{mount}{path}"),
        }
    }

    pub(super) fn entry_path(&self, first: &str, parent: i64, name: &Value) -> String {
        let parent = self.path(first, parent);
        format!("{}/{}", parent.trim_end_matches('/'), shown(name))
    }
}

/// An entry, as a value to compare.
pub(super) fn entry_id(parent: i64, name: &Value) -> String {
    format!("{parent}/{name:?}")
}

pub(super) fn not_tracked(table: &str) -> CatalogError {
    CatalogError::corrupt(format!(
        "the workspace does not track {table} (WORKSPACE-3)"
    ))
}
