//! Rows whose bytes are not those that their checksum is of.

use super::damage::FINDINGS_MAX;
use crate::error::{At, Result};
use crate::types::codec::require_checksum;
use crate::types::names::quoted;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

/// Finds inline content, targets of symbolic links and redo rows, of the present and of the
/// history, that are damaged. Reads all of them.
pub(super) fn check(
    txn: &Connection,
    stores: &[(u64, String)],
    findings: &mut Vec<String>,
) -> Result<()> {
    let mut rows: Vec<(String, String)> = vec![
        (
            "larder_redo_row".into(),
            "SELECT 'a redo row of inode ' || ino || ' of store ' || store, checksum, blocks, \
            bytes \
             FROM larder_redo_row ORDER BY id"
                .into(),
        ),
        (
            "larder_history".into(),
            "SELECT what || ' of inode ' || ino || ' of store ' || store || ' until commit ' || \
             until_seq, checksum, iif(what = 'redo', extra, value), iif(what = 'redo', value, \
             NULL) \
             FROM larder_history WHERE what IN ('content', 'redo') ORDER BY id"
                .into(),
        ),
    ];
    for (_, name) in stores {
        let table = format!("{name}_content");
        let from = quoted(&table);
        rows.push((
            table,
            format!(
                "SELECT 'that of inode ' || ino, checksum, inline, target FROM {from} ORDER BY ino"
            ),
        ));
    }
    for (table, sql) in rows {
        check_rows(txn, &table, &sql, findings)?;
    }
    Ok(())
}

/// Of each row the name, the checksum, and two parts, either of which may be NULL.
fn check_rows(txn: &Connection, table: &str, sql: &str, findings: &mut Vec<String>) -> Result<()> {
    let mut list = txn.prepare(sql).at(table)?;
    let mut rows = list.query([]).at(table)?;
    let mut count = 0;
    while let Some(row) = rows.next().at(table)? {
        let part = |index| match row.get_ref(index) {
            Ok(ValueRef::Blob(bytes) | ValueRef::Text(bytes)) => bytes,
            _ => &[][..],
        };
        let name: String = row.get(0).at(table)?;
        let what = || format!("{table}: {name}");
        let found = row.get(1).at(table)?;
        let Err(damage) = require_checksum(what, found, &[part(2), part(3)]) else {
            continue;
        };
        if count == FINDINGS_MAX {
            findings.push(format!("… and more like the last {FINDINGS_MAX}"));
            break;
        }
        count += 1;
        findings.push(damage.to_string());
    }
    Ok(())
}
