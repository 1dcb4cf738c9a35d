//! Pages of extent maps that several objects have: one copy, and a reference in the row of each.
//!
//! ```text
//!  NAME_map: ino 5, page 0  ── reference ──┐
//!  NAME_map: ino 9, page 0  ── reference ──┼─▶ larder_map_page: the bytes
//!  larder_history: a map row ─ reference ──┘   larder_map_page_use: 2 rows
//! ```
//!
//! A clone has the map of what it was made of. The commit that writes it compares the two pages,
//! and where they are equal moves the bytes here, once. That changes no state: a reference reads as
//! the bytes that it stands for, so the row of the origin stays as of the commit that wrote it, and
//! nothing goes into the history. Whoever changes its page writes a whole one of its own, as
//! before; a page here never changes.
//!
//! # Words
//! A *reference* is what stands in `runs` of a map, or in `value` of the history, instead of a page
//! ([`MapReference`]). It is *resolved* where it is read, in the same statement. A page is
//! *retired* by the commit that takes its last reference out of the maps of the present.
//!
//! # Invariants
//! * `SHARE-7` `row_count` of a page is the number of rows of all maps that have its reference; a
//!   page that a row of a map, or of the history, refers to is there, and one that the history
//!   refers to was retired by no commit before `until_seq` of that row. *Guard*: whatever takes a
//!   row out of a map, or writes over it, counts ([`let_go`]), and looks whether it went
//!   ([`require_gone`]); what is retired goes with the history up to that commit and not before
//!   ([`reclaim`]), and never comes back; `check` counts.
//! * `SHARE-8` What reads maps sees pages, never references, and so nothing above this crate knows
//!   of them. *Guard*: [`resolved`] in every statement that gives `runs` out; one that is missing
//!   is refused when the page is decoded.
//!
//! # Cost
//! Reading a page that is not shared: the length of what was read anyway. A commit that writes over
//! pages, or removes files, asks once whether there is any page here (1 µs); one that creates files
//! asks nothing. A clone's page: about 40 bytes, and the first clone's the move of some KiB. What
//! counts writes rows of some bytes, never the page.

use crate::conn::meta::add_meta;
use crate::error::{At, CatalogError, Result, require_row};
use crate::types::codec::signed;
use larder_format::limits::{MAP_REFERENCE_BYTES, MAP_SHARED_BYTES_MIN};
use larder_format::{CommitSeq, MapReference};
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use std::collections::BTreeMap;

pub(crate) const TABLE: &str = "larder_map_page";
const USE: &str = "larder_map_page_use";
/// Findings of one kind that are listed.
const FINDINGS_MAX: usize = 100;

/// SQL for the page that stands in `column`, or that it refers to in `schema` (`SHARE-8`). A
/// reference to nothing stays.
pub(crate) fn resolved(schema: &str, column: &str) -> String {
    format!(
        "CASE WHEN length({column}) = {MAP_REFERENCE_BYTES} THEN ifnull((SELECT shared.bytes \
         FROM {schema}.larder_map_page AS shared WHERE shared.reference = {column}), {column}) \
         ELSE {column} END"
    )
}

/// Which references rows of one store's map have. Keys as in `KeepSql`, from `?1` on.
pub(crate) struct ReferenceSql {
    /// `ino`, `page`
    pub(crate) page: String,
    /// `ino`, the first page
    pub(crate) pages_from: String,
    /// `ino`
    pub(crate) pages: String,
    /// All.
    pub(crate) all: String,
}

impl ReferenceSql {
    /// For the map of store `name`.
    pub(crate) fn new(name: &str) -> ReferenceSql {
        let text = |condition: &str| {
            format!(
                "SELECT runs FROM main.\"{name}_map\" WHERE {condition}length(runs) = \
                 {MAP_REFERENCE_BYTES}"
            )
        };
        ReferenceSql {
            page: text("ino = ?1 AND page = ?2 AND "),
            pages_from: text("ino = ?1 AND page >= ?2 AND "),
            pages: text("ino = ?1 AND "),
            all: text(""),
        }
    }
}

/// Whether any page is shared. 1 µs.
pub(crate) fn is_any(txn: &Connection) -> Result<bool> {
    txn.prepare_cached("SELECT 1 FROM larder_map_page_use LIMIT 1")
        .and_then(|mut find| find.exists([]))
        .at(USE)
}

/// Counts that commit `seq` takes the rows, which `text` of a [`ReferenceSql`] finds, out of a map,
/// or writes over them. Before it does. How many references those rows have. O(references found).
pub(crate) fn let_go(
    txn: &Connection,
    seq: CommitSeq,
    text: &str,
    keys: &[&dyn ToSql],
) -> Result<usize> {
    let references: Vec<Vec<u8>> = txn
        .prepare_cached(text)
        .and_then(|mut find| find.query_map(keys, |row| row.get(0))?.collect())
        .at(TABLE)?;
    for reference in &references {
        // Where it is none, no row has this number.
        let number = MapReference::decode(reference).map_or(0, |found| signed(found.0));
        let counted = txn
            .prepare_cached(
                "UPDATE larder_map_page_use SET row_count = row_count - 1, \
                 retired_seq = iif(row_count = 1, ?2, NULL) WHERE number = ?1 AND row_count > 0",
            )
            .and_then(|mut count| count.execute([number, signed(seq.0)]))
            .at(USE)?;
        if counted != 1 {
            return Err(CatalogError::corrupt(format!(
                "{} is let go, and nobody has it (SHARE-7)",
                shown(reference)
            )));
        }
    }
    Ok(references.len())
}

/// After the rows were deleted of which [`let_go`] found so many `references`: a trigger of the
/// user's can leave them without an error, and then they would not be counted.
pub(crate) fn require_gone(
    txn: &Connection,
    references: usize,
    text: &str,
    keys: &[&dyn ToSql],
    table: &str,
) -> Result<()> {
    if references == 0 {
        return Ok(());
    }
    let is_left = txn
        .prepare_cached(text)
        .and_then(|mut find| find.exists(keys))
        .at(table)?;
    require_row(usize::from(!is_left), table)
}

/// What to write into one more row instead of the page `runs`: a reference, counted for that row,
/// if the row of table `origin` with this `ino` and `page` has the same page by now. Cost: that row
/// is read, and the first time written.
pub(crate) fn share(
    txn: &Connection,
    origin: &str,
    key: [i64; 2],
    runs: &[u8],
) -> Result<Option<Vec<u8>>> {
    if runs.len() < MAP_SHARED_BYTES_MIN {
        return Ok(None);
    }
    let find = format!("SELECT runs FROM main.\"{origin}\" WHERE ino = ?1 AND page = ?2");
    let stored: Option<Vec<u8>> = txn
        .prepare_cached(&find)
        .and_then(|mut find| find.query_row(key, |row| row.get(0)).optional())
        .at(origin)?;
    let Some(stored) = stored else {
        return Ok(None);
    };
    if stored.len() == MAP_REFERENCE_BYTES {
        let counted = txn
            .prepare_cached(
                "UPDATE larder_map_page_use SET row_count = row_count + 1 WHERE row_count > 0 \
                 AND number = (SELECT number FROM larder_map_page WHERE reference = ?1 AND bytes \
                 = ?2)",
            )
            .and_then(|mut count| count.execute(params![stored, runs]))
            .at(USE)?;
        return Ok((counted == 1).then_some(stored));
    }
    if stored != runs {
        return Ok(None);
    }
    // What it had is free before the copy takes as much.
    let number = add_meta(txn, "next_map_page", 1)? - 1; // CATALOG-4
    let reference = MapReference(number).encode();
    let changed = txn
        .prepare_cached(&format!(
            "UPDATE main.\"{origin}\" SET runs = ?3 WHERE ino = ?1 AND page = ?2"
        ))
        .and_then(|mut set| set.execute(params![key[0], key[1], reference]))
        .at(origin);
    // A trigger of the user's ignores or refuses the row: then each has its own.
    match changed {
        Ok(1) => {}
        Ok(_) => return Ok(None),
        Err(error @ CatalogError::Constraint { .. }) => {
            // But RAISE(ROLLBACK) ends the transaction, and RAISE(FAIL) may leave what was done.
            let is_as_before = !txn.is_autocommit()
                && txn
                    .prepare_cached(&find)
                    .and_then(|mut find| find.query_row(key, |row| row.get::<_, Vec<u8>>(0)))
                    .at(origin)?
                    == stored;
            return match is_as_before {
                true => Ok(None),
                false => Err(error),
            };
        }
        Err(error) => return Err(error),
    }
    txn.prepare_cached(
        "INSERT INTO larder_map_page (number, reference, bytes) VALUES (?1, ?2, ?3)",
    )
    .and_then(|mut add| add.execute(params![signed(number), reference, runs]))
    .at(TABLE)?;
    txn.prepare_cached("INSERT INTO larder_map_page_use (number, row_count) VALUES (?1, 2)")
        .and_then(|mut add| add.execute([signed(number)]))
        .at(USE)?;
    Ok(Some(reference.to_vec()))
}

/// The commits that retired pages. Not in a workspace, whose first images may refer to them.
pub(crate) const RETIRED: &str = "SELECT retired_seq FROM larder_map_page_use \
    WHERE retired_seq IS NOT NULL \
    AND NOT EXISTS (SELECT 1 FROM larder_meta WHERE key = 'workspace') ORDER BY retired_seq";

/// Deletes pages that were retired at or before `horizon`, up to which there is no history any
/// more, at most `rows_max`. O(deleted).
pub(crate) fn reclaim(txn: &Connection, horizon: CommitSeq, rows_max: u64) -> Result<()> {
    let retired = "SELECT number FROM larder_map_page_use \
                   WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 \
                   AND NOT EXISTS (SELECT 1 FROM larder_meta WHERE key = 'workspace') \
                   ORDER BY retired_seq, number LIMIT ?2";
    for table in [TABLE, USE] {
        txn.prepare_cached(&format!("DELETE FROM {table} WHERE number IN ({retired})"))
            .and_then(|mut delete| delete.execute([signed(horizon.0), signed(rows_max)]))
            .at(USE)?;
    }
    Ok(())
}

/// Counts the references of all maps of these stores, for `check` (`SHARE-7`). Reads all of them.
pub(crate) fn check(
    txn: &Connection,
    stores: &[(u64, String)],
    findings: &mut Vec<String>,
) -> Result<()> {
    let mut counts: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    for (_, name) in stores {
        let all = ReferenceSql::new(name).all;
        let mut list = txn.prepare(&all).at(name)?;
        let mut found = list.query([]).at(name)?;
        while let Some(row) = found.next().at(name)? {
            *counts.entry(row.get(0).at(name)?).or_default() += 1;
        }
    }
    let mut told = 0;
    let mut tell = |finding: String| {
        told += 1;
        match told {
            ..=FINDINGS_MAX => findings.push(finding),
            _ if told == FINDINGS_MAX + 1 => {
                findings.push(format!("… and more like the last {FINDINGS_MAX}"));
            }
            _ => {}
        }
    };
    let mut list = txn
        .prepare(
            "SELECT coalesce(p.number, u.number), p.reference, u.row_count FROM larder_map_page \
             AS p \
             FULL JOIN larder_map_page_use AS u ON u.number = p.number ORDER BY 1",
        )
        .at(TABLE)?;
    let mut found = list.query([]).at(TABLE)?;
    while let Some(row) = found.next().at(TABLE)? {
        let number: i64 = row.get(0).at(TABLE)?;
        let reference: Option<Vec<u8>> = row.get(1).at(TABLE)?;
        let row_count: Option<i64> = row.get(2).at(USE)?;
        let Some(reference) = reference else {
            tell(format!(
                "larder_map_page_use: page {number} is counted, and does not exist (SHARE-7)"
            ));
            continue;
        };
        if MapReference::decode(&reference) != Ok(MapReference(number as u64)) {
            tell(format!(
                "larder_map_page: page {number} has the reference of another one (SHARE-7)"
            ));
        }
        let count = counts.remove(&reference).unwrap_or_default();
        let Some(row_count) = row_count else {
            tell(format!(
                "larder_map_page: page {number} is not counted, and stands in {count} rows of \
                 maps (SHARE-7)"
            ));
            continue;
        };
        if count != row_count {
            tell(format!(
                "larder_map_page: page {number} is said to stand in {row_count} rows of maps, and \
                 stands in {count} (SHARE-7)"
            ));
        }
    }
    for (reference, count) in counts {
        tell(format!(
            "larder_map_page: {count} rows of maps refer to {}, which does not exist (SHARE-7)",
            shown(&reference)
        ));
    }
    Ok(())
}

fn shown(reference: &[u8]) -> String {
    match MapReference::decode(reference) {
        Ok(MapReference(number)) => format!("shared page {number}"),
        Err(error) => format!("a shared page ({error})"),
    }
}
