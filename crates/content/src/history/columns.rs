//! The user's columns of files that come back (`TEMPORAL-4`).

use crate::database::Database;
use crate::history::rows::{RowsReport, counted, moved_json};
use crate::transaction::Transaction;
use crate::types::NodeId;
use larder_object::format::StoreId;
use larder_object::{Result, SqlValue};
use std::collections::BTreeMap;

/// Pairs in one statement.
const BATCH: usize = 10_000;

/// A file of the past, and what gets its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnsPair {
    /// The file of the past.
    pub(crate) was: NodeId,
    /// `None`: it is still to be made, and never will be where nothing is done.
    pub(crate) is: Option<NodeId>,
    /// It was made for it.
    pub(crate) is_new: bool,
}

/// Gives files the user's columns that they, or those that they are made from, had in `past`, where they are tracked since
/// then. A copy beside the original gets none that a unique index is about. Where they refer to inodes of files that were
/// made anew, `homes`, they follow them. With `is_dry` only counts. Cost: a few lookups per pair.
pub(crate) fn restore_columns(
    transaction: &Transaction,
    past: &Database,
    pairs: &[ColumnsPair],
    homes: &[(NodeId, NodeId)],
    is_dry: bool,
) -> Result<Vec<RowsReport>> {
    let mut stores: BTreeMap<StoreId, [Vec<ColumnsPair>; 2]> = BTreeMap::new();
    for pair in pairs {
        let store = transaction.table_of(pair.was.store);
        if pair
            .is
            .is_some_and(|is| transaction.table_of(is.store) != store)
        {
            continue;
        }
        let of_store = stores.entry(store).or_default();
        of_store[usize::from(is_copy(transaction, pair))].push(*pair);
    }
    let mut reports = Vec::new();
    for (store, [back, copies]) in stores {
        let engine = &past.shared.engine;
        let Some(columns) = transaction.enter(|own| own.past_columns(engine, store))? else {
            continue;
        };
        let mut updated_count = 0;
        let moved: Vec<SqlValue> = (columns.inodes.iter())
            .map(|(_, table)| SqlValue::Text(moved_json(&transaction.moved(table, homes))))
            .collect();
        let with_moved = |pairs: SqlValue| [&[pairs][..], &moved[..]].concat();
        for (pairs, without) in [(back, &[][..]), (copies, &columns.unique_columns[..])] {
            let Some(step) = columns.restore(without) else {
                continue;
            };
            for batch in pairs.chunks(BATCH) {
                let told = |pair: &ColumnsPair| pair.is.filter(|_| !pair.is_new);
                let parameters = with_moved(listed(batch, told));
                updated_count += counted(&transaction.sql(&step.count, &parameters)?);
                if !is_dry {
                    let of = || format!("your columns of store '{}'", columns.table);
                    let parameters = with_moved(listed(batch, |pair| pair.is));
                    transaction
                        .sql(&step.run, &parameters)
                        .map_err(|error| error.context(of()))?;
                }
            }
        }
        if updated_count > 0 {
            reports.push(RowsReport {
                table: columns.table,
                updated_count,
                ..RowsReport::default()
            });
        }
    }
    Ok(reports)
}

/// Whether the file of the past is there still, beside what gets its columns.
fn is_copy(transaction: &Transaction, pair: &ColumnsPair) -> bool {
    pair.is != Some(pair.was) && transaction.attr(pair.was).is_ok_and(|attr| attr.nlink > 0)
}
/// Pairs of inodes, as a statement takes them.
fn listed(pairs: &[ColumnsPair], is: impl Fn(&ColumnsPair) -> Option<NodeId>) -> SqlValue {
    let pair = |pair: &ColumnsPair| match is(pair) {
        Some(node) => format!("[{},{}]", pair.was.ino, node.ino),
        None => format!("[{},null]", pair.was.ino),
    };
    let pairs: Vec<String> = pairs.iter().map(pair).collect();
    SqlValue::Text(format!("[{}]", pairs.join(",")))
}
