//! The user's columns of files that come back (`TEMPORAL-4`), and of clones.

use crate::database::Database;
use crate::history::rows::{RowsReport, counted, moved_json};
use crate::transaction::Transaction;
use crate::types::NodeId;
use larder_object::format::{CommitSeq, StoreId};
use larder_object::{HistoryReader, Result, SqlValue};
use std::collections::BTreeMap;

/// Pairs in one statement.
const BATCH: usize = 10_000;

/// A file, of the past or of the same moment, and what gets its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnsPair {
    /// The file that has them.
    pub(crate) was: NodeId,
    /// `None`: it is still to be made, and never will be where nothing is done.
    pub(crate) is: Option<NodeId>,
    /// It was made for it.
    pub(crate) is_new: bool,
}

/// What is done with the columns of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Giving {
    /// It is counted how many files would get other values.
    Planned,
    /// They get them, and are counted. A copy beside the original gets none that a unique index is
    /// about.
    Restored,
    /// They get them, but none that a unique index is about, and are not counted.
    Cloned,
}

impl Giving {
    pub(crate) fn restored(is_dry: bool) -> Giving {
        match is_dry {
            true => Giving::Planned,
            false => Giving::Restored,
        }
    }
}

/// Gives files the user's columns that those of the pairs have in `source`: the transaction's own
/// database, or a moment of it since which they are tracked. What a store has that shows another
/// one stays there. Where they refer to inodes of files that were made anew, `recreated`, they
/// follow them. Cost: about 50 µs for each store, and a few lookups per pair where it has such
/// columns.
pub(crate) fn give_columns(
    transaction: &Transaction,
    source: &Database,
    pairs: &[ColumnsPair],
    recreated: &[(NodeId, NodeId)],
    how: Giving,
) -> Result<Vec<RowsReport>> {
    let mut stores: BTreeMap<StoreId, Vec<ColumnsPair>> = BTreeMap::new();
    for pair in pairs {
        let store = transaction.table_of(pair.was.store);
        let is_same = |is: NodeId| transaction.table_of(is.store) == store;
        if pair.was.store == store && pair.is.is_none_or(is_same) {
            stores.entry(store).or_default().push(*pair);
        }
    }
    let mut reports = Vec::new();
    for (store, pairs) in stores {
        let shown = source.shared.shown.view();
        let Some(columns) = transaction.enter(|own| own.history().columns_in(shown, store))? else {
            continue;
        };
        let (copies, back): (Vec<_>, Vec<_>) = match columns.unique_columns.is_empty() {
            true => (Vec::new(), pairs),
            false => {
                (pairs.iter()).partition(|pair| how == Giving::Cloned || is_copy(transaction, pair))
            }
        };
        // Each batch would read again which inodes are others now.
        let batch_len = match columns.inodes.is_empty() {
            true => BATCH,
            false => usize::MAX,
        };
        let mut updated_count = 0;
        let moved: Vec<SqlValue> = (columns.inodes.iter())
            .map(|(_, table)| SqlValue::Text(moved_json(&transaction.moved(table, recreated))))
            .collect();
        let with_moved = |pairs: SqlValue| [&[pairs][..], &moved[..]].concat();
        for (pairs, without) in [(back, &[][..]), (copies, &columns.unique_columns[..])] {
            let Some(step) = columns.give(without) else {
                continue;
            };
            for batch in pairs.chunks(batch_len) {
                if how != Giving::Cloned {
                    let told = |pair: &ColumnsPair| pair.is.filter(|_| !pair.is_new);
                    let parameters = with_moved(listed(batch, told));
                    updated_count += counted(&transaction.sql(&step.count, &parameters)?);
                }
                if how != Giving::Planned {
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

/// Whether the file that has the columns is there still, beside what gets them.
fn is_copy(transaction: &Transaction, pair: &ColumnsPair) -> bool {
    pair.is != Some(pair.was)
        && transaction
            .nodes()
            .metadata(pair.was)
            .is_ok_and(|attr| attr.nlink > 0)
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

/// Files that were made anew, with others they were at commit `seq`, are the same to who knows
/// them by their `file_id`, unless another inode has that (`SAVE-1`). Cost: 10 µs each.
pub(crate) fn be_files_again(
    transaction: &Transaction,
    reader: &HistoryReader<'_>,
    seq: CommitSeq,
    anew: &[(NodeId, NodeId)],
) -> Result<()> {
    let mut ids = Vec::new();
    for (was, is) in anew.iter().filter(|(was, is)| was.store == is.store) {
        let store = transaction.table_of(was.store);
        if let Some(id) = reader.file_id(store, was.ino, seq)? {
            ids.push((store, is.ino, id));
        }
    }
    transaction.enter(|engine| {
        let change = engine.namespace().write_guard()?;
        for (store, ino, id) in ids {
            change.set_file_id(&change.node(store, ino)?, id)?;
        }
        change.commit()
    })
}
