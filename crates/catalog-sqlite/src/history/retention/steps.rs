//! How much one commit reclaims: a part of what may go, so that a prune of years fits in the log.
//!
//! # Words
//! What goes lies in *sources*: tables whose rows go by commits, the oldest first. A *step* deletes
//! at most [`STEP_ROWS`] rows of each. It ends between two commits where it can; where one commit
//! alone has more of them, it takes a *part* of that commit: nobody reads what was before that by
//! then, so its rows may go one by one (`TIME-9`).

use crate::error::{At, Result};
use crate::history::{BEGINS, last_before};
use crate::space::extents::{self, extent};
use crate::space::map_pages;
use crate::types::codec::{rows, signed, unsigned};
use larder_format::{CommitSeq, Extent};
use rusqlite::{Connection, OptionalExtension, params};

/// Rows of a source that one commit deletes, about 2 MiB of the log.
pub(crate) const STEP_ROWS: u64 = 8192;

/// A query of the commits by whose number rows go, in their order; a row for each row that goes.
pub(crate) struct Source {
    /// Without LIMIT.
    pub(crate) query: String,
    pub(crate) range: Option<[Option<i64>; 2]>,
    /// Rows of later commits stay.
    pub(crate) to: CommitSeq,
}

/// What a step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// All of the commits up to this one; there are more.
    Whole(CommitSeq),
    /// A part of this commit, the first one that is there.
    Part(CommitSeq),
}

/// The sources of what goes up to `base`, of all stores.
pub(crate) fn sources(base: CommitSeq) -> Vec<Source> {
    let queries = [
        "SELECT until_seq FROM larder_history ORDER BY id",
        "SELECT retired_seq FROM larder_extent WHERE retired_seq IS NOT NULL ORDER BY retired_seq",
        "SELECT until_seq FROM larder_pre_image ORDER BY until_seq",
        map_pages::RETIRED,
    ];
    let source = |query: &str| Source {
        query: query.into(),
        range: None,
        to: base,
    };
    queries.into_iter().map(source).collect()
}

/// Where a step of `rows_max` rows of each source has to end; `None`: there are no more.
/// O(`rows_max`).
pub(crate) fn find_limit(
    txn: &Connection,
    sources: &[Source],
    rows_max: u64,
) -> Result<Option<Limit>> {
    let (mut first, mut next): (Option<u64>, Option<u64>) = (None, None);
    for source in sources {
        let at = |offset: u64| -> Result<Option<u64>> {
            let text = format!("{} LIMIT 1 OFFSET {offset}", source.query);
            txn.prepare_cached(&text)
                .and_then(|mut find| {
                    let row = |row: &rusqlite::Row<'_>| unsigned(row, 0);
                    match source.range {
                        Some(range) => find.query_row(range, row).optional(),
                        None => find.query_row([], row).optional(),
                    }
                })
                .at("what goes")
                .map(|found| found.filter(|seq| *seq <= source.to.0))
        };
        let Some(begins) = at(0)? else { continue };
        first = Some(first.map_or(begins, |seq| seq.min(begins)));
        if let Some(over) = at(rows_max)? {
            next = Some(next.map_or(over, |seq| seq.min(over)));
        }
    }
    Ok(
        next.map(|next| match first.is_some_and(|first| first < next) {
            true => Limit::Whole(CommitSeq(next - 1)),
            false => Limit::Part(CommitSeq(next)),
        }),
    )
}

/// Deletes what no state from `horizon` on has (`HISTORY-2`, `HISTORY-3`). O(deleted).
pub(crate) fn prune(txn: &Connection, horizon: CommitSeq) -> Result<()> {
    raise_beginning(txn, horizon)?;
    let last = last_gone(txn, horizon)?;
    txn.prepare_cached("DELETE FROM larder_history WHERE id <= ?1")
        .and_then(|mut delete| delete.execute([last]))
        .at("larder_history")?;
    // Also where a part of a commit has taken all of its history already.
    txn.prepare_cached("DELETE FROM larder_pre_image WHERE until_seq <= ?1")
        .and_then(|mut delete| delete.execute([signed(horizon.0)]))
        .at("larder_pre_image")?;
    Ok(())
}

/// The same of at most `rows_max` rows, the oldest; how many were deleted. What is left of them no
/// state has either, and no moment names it: those go first.
pub(crate) fn prune_part(txn: &Connection, horizon: CommitSeq, rows_max: u64) -> Result<u64> {
    let moments = match raise_beginning(txn, horizon)? {
        None => 0,
        Some(last) => txn
            .prepare_cached("DELETE FROM larder_history WHERE what = 'commit' AND id <= ?1")
            .and_then(|mut delete| delete.execute([last]))
            .at("larder_history")? as u64,
    };
    let left = rows_max.saturating_sub(moments);
    let over: Option<(i64, u64)> = txn
        .prepare_cached("SELECT id, until_seq FROM larder_history ORDER BY id LIMIT 1 OFFSET ?1")
        .and_then(|mut find| {
            find.query_row([signed(left)], |row| Ok((row.get(0)?, unsigned(row, 1)?)))
                .optional()
        })
        .at("larder_history")?;
    let last = match over.filter(|(_, seq)| *seq <= horizon.0) {
        Some((id, _)) => last_before(Some(id)),
        None => last_gone(txn, horizon)?,
    };
    let gone = txn
        .prepare_cached("DELETE FROM larder_history WHERE id <= ?1")
        .and_then(|mut delete| delete.execute([last]))
        .at("larder_history")?;
    Ok(moments + gone as u64)
}

/// The history begins at `horizon`, if any of it is older; then the last number before the row of
/// the first moment after it.
fn raise_beginning(txn: &Connection, horizon: CommitSeq) -> Result<Option<i64>> {
    let oldest: Option<u64> = txn
        .prepare_cached("SELECT until_seq FROM larder_history ORDER BY id LIMIT 1")
        .and_then(|mut find| find.query_row([], |row| unsigned(row, 0)).optional())
        .at("larder_history")?;
    if oldest.is_none_or(|seq| seq > horizon.0) {
        return Ok(None);
    }
    let after: Option<i64> = txn
        .prepare_cached(
            "SELECT id FROM larder_history WHERE what = 'commit' AND until_seq > ?1 ORDER BY id \
             LIMIT 1",
        )
        .and_then(|mut find| {
            find.query_row([signed(horizon.0)], |row| row.get(0))
                .optional()
        })
        .at("larder_history")?;
    let last = last_before(after);
    let begins: Option<i64> = txn
        .prepare_cached(
            "SELECT key FROM larder_history WHERE id <= ?1 AND what = 'commit' ORDER BY id DESC \
             LIMIT 1",
        )
        .and_then(|mut find| find.query_row([last], |row| row.get(0)).optional())
        .at("larder_history")?;
    let mut raise = txn
        .prepare_cached("UPDATE larder_meta SET value = ?2 WHERE key = ?1 AND value < ?2")
        .at("larder_meta")?;
    let numbers = [
        (BEGINS, Some(signed(horizon.0))),
        ("history_begins_ns", begins),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            raise.execute(params![key, value]).at("larder_meta")?;
        }
    }
    Ok(last)
}

/// The last number of rows that go when history up to `horizon` goes. O(rows that go).
pub(crate) fn last_gone(connection: &Connection, horizon: CommitSeq) -> Result<Option<i64>> {
    connection
        .prepare_cached("SELECT id FROM larder_history WHERE until_seq > ?1 ORDER BY id LIMIT 1")
        .and_then(|mut find| {
            find.query_row([signed(horizon.0)], |row| row.get(0))
                .optional()
        })
        .at("larder_history")
        .map(last_before)
}

/// Deletes rows of a commit, at most `rows_max`: the history goes first, since its rows name the
/// others. Nothing that is older is there. Returns the extents that were reclaimed, by place.
pub(crate) fn reclaim_part(txn: &Connection, seq: CommitSeq, rows_max: u64) -> Result<Vec<Extent>> {
    let mut left = rows_max.saturating_sub(prune_part(txn, seq, rows_max)?);
    left -= txn
        .prepare_cached(
            "DELETE FROM larder_pre_image WHERE (segment, start_block, until_seq) IN \
             (SELECT segment, start_block, until_seq FROM larder_pre_image WHERE until_seq <= ?1 \
              ORDER BY until_seq LIMIT ?2)",
        )
        .and_then(|mut delete| delete.execute([signed(seq.0), signed(left)]))
        .at("larder_pre_image")? as u64;
    let mut reclaimed: Vec<Extent> = rows(
        txn,
        "DELETE FROM larder_extent WHERE (segment, start_block) IN \
         (SELECT segment, start_block FROM larder_extent \
          WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 ORDER BY retired_seq LIMIT ?2) \
         RETURNING segment, start_block, block_count",
        params![signed(seq.0), signed(left)],
        extent,
    )
    .at(extents::TABLE)?;
    reclaimed.sort_unstable();
    left -= reclaimed.len() as u64;
    map_pages::reclaim(txn, seq, left)?;
    Ok(reclaimed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::history_begins;
    use crate::history::retention::stores::reclaim;
    use crate::open::tests::INIT;
    use crate::types::retention_horizons::RetentionHorizons;
    use crate::{CatalogOptions, DatabaseInit, SqliteCatalog};
    use larder_format::StoreId;

    /// Rows of the history and retired extents of commits, of store `main`, as counts of them.
    fn fill(txn: &Connection, commits: &[(u64, u64)]) {
        let (mut block, mut seq) = (0_u64, 2_u64);
        for (row_count, extent_count) in commits {
            for ino in 0..*row_count {
                txn.execute(
                    "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq) \
                     VALUES (?1, 'name', 0, ?2, 'x', 0)",
                    [signed(seq), signed(ino + 2)],
                )
                .unwrap();
            }
            txn.execute(
                "INSERT INTO larder_history (until_seq, what, key, since_seq) \
                 VALUES (?1, 'commit', ?2, ?1)",
                [signed(seq), signed(1000 * seq)],
            )
            .unwrap();
            for _ in 0..*extent_count {
                txn.execute(
                    "INSERT INTO larder_extent (segment, start_block, block_count, store, ino, \
                     retired_seq) VALUES (0, ?1, 1, 0, 2, ?2)",
                    [signed(block), signed(seq)],
                )
                .unwrap();
                block += 1;
            }
            seq += 1;
        }
    }

    fn counts(txn: &Connection, to: u64) -> [i64; 2] {
        [
            "SELECT count(*) FROM larder_history WHERE until_seq <= ?1",
            "SELECT count(*) FROM larder_extent WHERE retired_seq <= ?1",
        ]
        .map(|count| {
            txn.query_row(count, [signed(to)], |row| row.get(0))
                .unwrap()
        })
    }

    /// Pre-images outlive the history of their commit, where a part of it took all of that.
    #[test]
    fn pre_images_go_though_their_history_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let init = DatabaseInit {
            retention_ns: 3_600_000_000_000,
            ..INIT
        };
        let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
        let filled: Result<()> = catalog.write(|txn| {
            fill(txn, &[(1, 0), (1, 0), (1, 0)]);
            for number in 0..36_u64 {
                let (number, seq) = (signed(number), signed(2 + number / 12));
                txn.execute(
                    "INSERT INTO larder_pre_image VALUES (0, ?1, ?2, 1, 0, ?3)",
                    [number, seq, 1000 + number],
                )
                .unwrap();
                txn.execute(
                    "INSERT INTO larder_map_page_use (number, row_count, retired_seq) \
                     VALUES (?1, 0, ?2)",
                    [number + 1, seq],
                )
                .unwrap();
            }
            Ok(())
        });
        filled.unwrap();
        let cuts = RetentionHorizons::even(CommitSeq(3));
        let mut left_alone = 0;
        for step in 0.. {
            assert!(step < 20, "TIME-9: it ends");
            let (has_more, left, history): (bool, i64, i64) = catalog
                .write(|txn| {
                    let has_more = reclaim(txn, &cuts, 10)?.has_more;
                    let left = "SELECT (SELECT count(*) FROM larder_pre_image WHERE until_seq <= \
                    3) \
                                + (SELECT count(*) FROM larder_map_page_use \
                                   WHERE retired_seq <= 3)";
                    let left = txn.query_row(left, [], |row| row.get(0)).unwrap();
                    Ok((has_more, left, counts(txn, 3)[0]))
                })
                .unwrap();
            // Whoever comes now, and knows of no step, goes on all the same.
            assert_eq!(
                catalog.retention().has_past_by(&cuts).unwrap(),
                left + history > 0,
                "TIME-9"
            );
            left_alone += usize::from(history == 0 && left > 0);
            if !has_more {
                assert_eq!((left, history), (0, 0), "TIME-9");
                break;
            }
        }
        assert!(left_alone > 1, "{left_alone}");
    }

    /// No step deletes more rows than it may, each leaves states that can be read, and in the end
    /// all is gone that may go: of commits of all sizes.
    #[test]
    fn history_goes_in_steps() {
        let dir = tempfile::tempdir().unwrap();
        let init = DatabaseInit {
            retention_ns: 3_600_000_000_000,
            ..INIT
        };
        let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
        let sizes = [
            (3, 1),
            (0, 0),
            (6, 20),
            (45, 2),
            (0, 33),
            (1, 1),
            (9, 10),
            (2, 0),
            (50, 50),
            (4, 4),
        ];
        let (rows_max, base, newest) = (10, 10, 2 + sizes.len() as u64);
        let done: Result<()> = catalog.write(|txn| {
            fill(txn, &sizes);
            let later = counts(txn, newest);
            let mut steps = 0;
            let (mut before, mut begins) = (counts(txn, base), history_begins(txn)?.0);
            loop {
                let step = reclaim(txn, &RetentionHorizons::even(CommitSeq(base)), rows_max)?;
                let after = counts(txn, base);
                for (was, is) in before.iter().zip(&after) {
                    assert!(was - is <= rows_max as i64, "TIME-9: {was} rows, then {is}");
                }
                assert!(after != before || !step.has_more, "TIME-9: it goes on");
                let (begun, at_ns) = history_begins(txn)?;
                assert!(begun >= begins && begun >= step.kept.base(), "TIME-9");
                assert_eq!(at_ns, 1000 * begun.0 as i64, "TIME-9");
                let left = counts(txn, step.kept.base().0);
                assert_eq!(left, [0, 0], "TIME-9: what is kept from there on");
                (before, begins, steps) = (after, begun, steps + 1);
                if !step.has_more {
                    break;
                }
            }
            assert_eq!(counts(txn, base), [0, 0], "TIME-9");
            assert_eq!(
                counts(txn, newest)[1],
                later[1] - 1 - 20 - 2 - 33 - 1 - 10 - 50
            );
            assert_eq!(begins, CommitSeq(base));
            assert!(steps > 15, "{steps}");
            Ok(())
        });
        done.unwrap();
    }

    /// Where stores go apart, too, as far as all of them go.
    #[test]
    fn a_large_commit_goes_in_steps_beside_stores_that_go_further() {
        let dir = tempfile::tempdir().unwrap();
        let init = DatabaseInit {
            retention_ns: 3_600_000_000_000,
            ..INIT
        };
        let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
        let (base, ahead) = (CommitSeq(3), CommitSeq(4));
        let cuts = RetentionHorizons::new(base, base, vec![(StoreId::MAIN, ahead)]);
        let done: Result<()> = catalog.write(|txn| {
            fill(txn, &[(45, 2), (30, 33), (4, 4)]);
            let mut before = counts(txn, base.0);
            for step in 0.. {
                assert!(step < 30, "TIME-9: it ends");
                let has_more = reclaim(txn, &cuts, 10)?.has_more;
                let after = counts(txn, base.0);
                for (was, is) in before.iter().zip(&after) {
                    assert!(was - is <= 10, "TIME-9: {was} rows, then {is}");
                }
                before = after;
                if !has_more {
                    assert!(step > 8, "{step}");
                    break;
                }
            }
            assert_eq!(counts(txn, base.0), [0, 0], "TIME-9");
            // The moment is everybody's.
            assert_eq!(counts(txn, ahead.0), [1, 0], "HISTORY-7");
            Ok(())
        });
        done.unwrap();
    }
}
