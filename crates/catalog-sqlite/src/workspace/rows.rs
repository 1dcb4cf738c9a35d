//! Merging the rows of tables that are not ours.

use super::findings::Findings;
use crate::error::Result;
use crate::temporal::tracking::Tracked;
use crate::temporal::tracking::images::{Fate, Shape, for_each_touched};
use rusqlite::Connection;
use rusqlite::types::Value;

/// Takes over what the workspace changed in one of the user's tables. What goes or is replaced goes
/// first, so that a unique value may move from one row to another.
pub(crate) fn merge_table(
    txn: &Connection,
    shape: &Shape,
    tracked: &Tracked,
    findings: &mut Findings,
) -> Result<()> {
    let mut arrivals = Vec::new();
    for_each_touched(txn, shape, &tracked.old_table, |touched| {
        match touched.fate() {
            Fate::Keep => return Ok(()),
            Fate::Conflict => {
                let why = match (&touched.old, &touched.ours, &touched.theirs) {
                    (None, ..) => "a row of this key was added on both sides",
                    (_, None, _) => "changed there and deleted here",
                    (.., None) => "deleted there and changed here",
                    _ => "changed on both sides",
                };
                findings.conflict(row_name(shape, &touched.key), why);
                return Ok(());
            }
            Fate::Take => {}
        }
        findings.changed_tables.insert(shape.table.clone());
        if touched.theirs.is_some() {
            shape.delete(txn, &touched.key)?;
        }
        if let Some(ours) = touched.ours {
            arrivals.push((touched.key, ours));
        }
        Ok(())
    })?;
    for (key, ours) in arrivals {
        let added = shape.insert(txn, &key, &ours);
        findings.refused(|| row_name(shape, &key), added)?;
    }
    Ok(())
}

/// What a virtual table keeps cannot be merged from outside.
pub(crate) fn shadow_conflict(
    txn: &Connection,
    shape: &Shape,
    tracked: &Tracked,
    findings: &mut Findings,
) -> Result<()> {
    for_each_touched(txn, shape, &tracked.old_table, |touched| {
        if touched.ours != touched.old {
            findings.conflict(
                format!("table {}", shape.table),
                "belongs to a virtual table that was changed here; change it outside of a long \
                 transaction",
            );
        }
        Ok(())
    })
}

/// A row, for people.
fn row_name(shape: &Shape, key: &[Value]) -> String {
    let terms: Vec<String> = (shape.keys.iter().zip(key))
        .map(|(name, value)| format!("{name} {}", shown(value)))
        .collect();
    format!("{}, {}", shape.table, terms.join(", "))
}

/// A value, for people.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
