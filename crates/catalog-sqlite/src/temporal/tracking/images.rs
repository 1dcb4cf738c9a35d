//! The shape of a table, and the three images of a row: as it was when the workspace began, ours
//! (the workspace's), theirs (the parent's).

use crate::error::{At, Result};
use crate::schema::SINCE;
use crate::types::codec::rows;
use crate::types::names::quoted;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

/// The values of one row.
pub(crate) type Image = Vec<Value>;

/// Rows taken at a time.
const BATCH: usize = 4096;

/// What of a table is tracked and merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its name.
    pub(crate) table: String,
    /// What identifies a row: the primary key, or the rowid.
    pub(crate) keys: Vec<String>,
    /// All columns that are stored and can be set.
    pub(crate) columns: Vec<String>,
    /// Other sets of columns that are unique.
    pub(crate) uniques: Vec<Vec<String>>,
}

/// `prefix` before each of the names, quoted, with commas.
pub(crate) fn list(prefix: &str, names: &[String]) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("{prefix}{}", quoted(name)))
        .collect();
    names.join(", ")
}

/// `left` and `right` agree in all of the names.
pub(crate) fn equal(left: &str, right: &str, names: &[String]) -> String {
    let terms: Vec<String> = names
        .iter()
        .map(|name| format!("{left}{0} = {right}{0}", quoted(name)))
        .collect();
    terms.join(" AND ")
}

impl Shape {
    /// The shape of a table of the schema `schema` (`main`, or that of the workspace).
    pub(crate) fn read(connection: &Connection, schema: &str, table: &str) -> Result<Shape> {
        let columns: Vec<(String, String, bool, i64)> = rows(
            connection,
            "SELECT name, type, \"notnull\", pk FROM pragma_table_xinfo(?1, ?2) \
             WHERE hidden = 0 AND NOT (name = ?3 AND dflt_value = '0' AND EXISTS \
               (SELECT 1 FROM larder_store AS s WHERE s.table_store = s.id AND ?1 IN \
                 (s.name, s.name || '_dirent', s.name || '_content', s.name || '_map', s.name || \
                 '_xattr', \
                  'larder_piece')))",
            // Which commit wrote a row is for each side to say.
            [table, schema, SINCE],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .at(table)?;
        let has_no_rowid: bool = connection
            .query_row(
                "SELECT wr FROM pragma_table_list WHERE schema = ?2 AND name = ?1",
                [table, schema],
                |row| row.get(0),
            )
            .optional()
            .at(table)?
            .unwrap_or(false);
        let mut key: Vec<_> = columns.iter().filter(|(.., pk)| *pk > 0).collect();
        key.sort_by_key(|(.., pk)| *pk);
        let is_rowid = key.len() == 1 && key[0].1.eq_ignore_ascii_case("INTEGER");
        let is_usable = has_no_rowid || is_rowid || key.iter().all(|(_, _, not_null, _)| *not_null);
        let keys = match key.is_empty() || !is_usable {
            true => vec![rowid_name(&columns).to_owned()],
            false => key.iter().map(|(name, ..)| name.clone()).collect(),
        };
        let mut uniques = vec![keys.clone()];
        let indexes: Vec<String> = rows(
            connection,
            "SELECT name FROM pragma_index_list(?1, ?2) WHERE \"unique\" AND NOT partial",
            [table, schema],
            |row| row.get(0),
        )
        .at(table)?;
        for index in indexes {
            let parts: Vec<Option<String>> = rows(
                connection,
                "SELECT name FROM pragma_index_info(?1, ?2) ORDER BY seqno",
                [index.as_str(), schema],
                |row| row.get(0),
            )
            .at(table)?;
            // An index over an expression has no name there; REPLACE through it is not seen.
            if let Some(parts) = parts.into_iter().collect::<Option<Vec<String>>>()
                && !uniques.contains(&parts)
            {
                uniques.push(parts);
            }
        }
        Ok(Shape {
            table: table.into(),
            keys,
            columns: columns.into_iter().map(|(name, ..)| name).collect(),
            uniques,
        })
    }

    /// Whether rows are identified by a rowid that is no column.
    fn has_hidden_key(&self) -> bool {
        !self.columns.contains(&self.keys[0])
    }

    /// What an INSERT has to name: the columns, and the key when it is none of them.
    pub(crate) fn stored(&self) -> Vec<String> {
        let mut stored = self.columns.clone();
        if self.has_hidden_key() {
            stored.insert(0, self.keys[0].clone());
        }
        stored
    }

    /// The values for [`Shape::stored`].
    fn stored_values(&self, key: &[Value], image: &Image) -> Image {
        let mut values = image.clone();
        if self.has_hidden_key() {
            values.insert(0, key[0].clone());
        }
        values
    }

    /// The row of this key, in a schema.
    pub(crate) fn find(
        &self,
        connection: &Connection,
        schema: &str,
        key: &[Value],
    ) -> Result<Option<Image>> {
        let sql = format!(
            "SELECT {} FROM {schema}.{} WHERE {}",
            list("", &self.columns),
            quoted(&self.table),
            self.where_key()
        );
        connection
            .prepare_cached(&sql)
            .and_then(|mut find| {
                find.query_row(params_from_iter(key), |row| {
                    image(row, 0, self.columns.len())
                })
                .optional()
            })
            .at(&self.table)
    }

    fn where_key(&self) -> String {
        let terms: Vec<String> = (self.keys.iter().enumerate())
            .map(|(at, key)| format!("{} = ?{}", quoted(key), at + 1))
            .collect();
        terms.join(" AND ")
    }

    /// Removes the parent's row of this key.
    pub(crate) fn delete(&self, connection: &Connection, key: &[Value]) -> Result<()> {
        let sql = format!(
            "DELETE FROM main.{} WHERE {}",
            quoted(&self.table),
            self.where_key()
        );
        connection
            .prepare_cached(&sql)
            .and_then(|mut delete| delete.execute(params_from_iter(key)))
            .at(&self.table)
            .map(drop)
    }

    /// Adds a row to the parent.
    pub(crate) fn insert(
        &self,
        connection: &Connection,
        key: &[Value],
        image: &Image,
    ) -> Result<()> {
        let stored = self.stored();
        let marks: Vec<String> = (1..=stored.len()).map(|at| format!("?{at}")).collect();
        let sql = format!(
            "INSERT INTO main.{} ({}) VALUES ({})",
            quoted(&self.table),
            list("", &stored),
            marks.join(", ")
        );
        connection
            .prepare_cached(&sql)
            .and_then(|mut insert| insert.execute(params_from_iter(self.stored_values(key, image))))
            .at(&self.table)
            .map(drop)
    }
}

/// A name of the rowid that is not the name of a column.
fn rowid_name(columns: &[(String, String, bool, i64)]) -> &'static str {
    ["rowid", "_rowid_", "oid"]
        .into_iter()
        .find(|word| {
            !columns
                .iter()
                .any(|(name, ..)| name.eq_ignore_ascii_case(word))
        })
        .unwrap_or("rowid")
}

/// `count` values from column `at` on.
pub(crate) fn image(row: &rusqlite::Row<'_>, at: usize, count: usize) -> rusqlite::Result<Image> {
    (at..at + count).map(|index| row.get(index)).collect()
}

/// A key that was touched, and its images.
#[derive(Debug, Clone)]
pub(crate) struct Touched {
    pub(crate) key: Vec<Value>,
    pub(crate) old: Option<Image>,
    pub(crate) ours: Option<Image>,
    pub(crate) theirs: Option<Image>,
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The workspace left it as it was, or the parent has the same by now.
    Keep,
    /// Ours counts.
    Take,
    /// Both sides changed it, differently.
    Conflict,
}

impl Touched {
    /// First committer wins (`WORKSPACE-4`).
    pub(crate) fn fate(&self) -> Fate {
        if self.ours == self.old || self.ours == self.theirs {
            Fate::Keep
        } else if self.theirs == self.old {
            Fate::Take
        } else {
            Fate::Conflict
        }
    }
}

/// Calls `visit` with every touched key of a table, in batches; the parent's row may be changed
/// there.
pub(crate) fn for_each_touched(
    connection: &Connection,
    shape: &Shape,
    old_table: &str,
    mut visit: impl FnMut(Touched) -> Result<()>,
) -> Result<()> {
    let (keys, columns) = (shape.keys.len(), shape.columns.len());
    let key_names: Vec<String> = (0..keys).map(|at| format!("k{at}")).collect();
    let old_names: Vec<String> = (0..columns).map(|at| format!("c{at}")).collect();
    let join = |side: &str| {
        let terms: Vec<String> = (shape.keys.iter().enumerate())
            .map(|(at, key)| format!("{side}.{} = o.k{at}", quoted(key)))
            .collect();
        terms.join(" AND ")
    };
    let after: Vec<String> = (1..=keys).map(|at| format!("?{at}")).collect();
    let table = quoted(&shape.table);
    let first_key = quoted(&shape.keys[0]);
    let select = |condition: &str| {
        format!(
            "SELECT {}, o.existed, ours.{first_key} IS NOT NULL, theirs.{first_key} IS NOT NULL, \
             {}, {}, {} \
             FROM ws.{old_table} AS o LEFT JOIN ws.{table} AS ours ON {} \
             LEFT JOIN main.{table} AS theirs ON {} {condition} ORDER BY {} LIMIT {BATCH}",
            list("o.", &key_names),
            list("o.", &old_names),
            list("ours.", &shape.columns),
            list("theirs.", &shape.columns),
            join("ours"),
            join("theirs"),
            list("o.", &key_names),
        )
    };
    let begin = select("");
    let go_on = select(&format!(
        "WHERE ({}) > ({})",
        list("o.", &key_names),
        after.join(", ")
    ));
    let mut last: Option<Vec<Value>> = None;
    loop {
        let sql = if last.is_some() { &go_on } else { &begin };
        let batch: Vec<Touched> = rows(
            connection,
            sql,
            params_from_iter(last.iter().flatten()),
            |row| {
                let side = |is_there: bool, at: usize| {
                    is_there
                        .then(|| image(row, keys + 3 + at * columns, columns))
                        .transpose()
                };
                Ok(Touched {
                    key: image(row, 0, keys)?,
                    old: side(row.get(keys)?, 0)?,
                    ours: side(row.get(keys + 1)?, 1)?,
                    theirs: side(row.get(keys + 2)?, 2)?,
                })
            },
        )
        .at(&shape.table)?;
        let Some(end) = batch.last() else {
            return Ok(());
        };
        last = Some(end.key.clone());
        for touched in batch {
            visit(touched)?;
        }
    }
}
