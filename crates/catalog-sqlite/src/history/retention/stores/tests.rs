//! Prunes and accounts of stores that share.

use super::*;
use crate::SqliteCatalog;
use crate::history::Keeper;
use crate::history::retention::steps::STEP_ROWS;
use crate::open::tests::INIT;
use crate::space::holders::mark_sharing;
use crate::{CatalogOptions, DatabaseInit};

/// What a store that keeps its history for long has retired is not read again by each prune of
/// others that share.
#[test]
fn content_of_sharing_stores_is_looked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let init = DatabaseInit {
        retention_ns: 3_600_000_000_000,
        ..INIT
    };
    let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
    let [one, two, long] = ["one", "two", "long"].map(|name| {
        let mount = format!("/{name}");
        let made = catalog
            .stores()
            .create(name, "files", &mount, None, 2, 0o755, 0, 0);
        made.unwrap().store
    });
    let cuts = |short: u64| {
        let short = CommitSeq(short);
        RetentionHorizons::new(
            CommitSeq(u64::MAX),
            CommitSeq(5),
            vec![(one, short), (two, short), (long, CommitSeq(5))],
        )
    };
    let place = |start: i64| Extent::new(larder_format::SegmentIndex(0), start as u64, 1);
    let retire = |txn: &Connection, start: i64, store: StoreId, seq: i64| {
        txn.execute(
            "INSERT INTO larder_extent (segment, start_block, block_count, store, ino, \
             retired_seq) \
             VALUES (0, ?1, 1, ?2, 2, ?3)",
            params![start, store.0, seq],
        )
        .unwrap();
    };
    let shared = |txn: &Connection, wished: &RetentionHorizons| {
        let split = Split::find(txn, wished, true).unwrap().unwrap();
        split.extents.iter().map(Group::range).collect::<Vec<_>>()
    };
    let done: Result<()> = catalog.write(|txn| {
        for (start, store, seq) in [(1, one, 50), (2, two, 60), (3, two, 70), (4, long, 40)] {
            retire(txn, start, store, seq);
        }
        mark_sharing(txn, &[one, two])?;
        assert_eq!(shared(txn, &cuts(60)), [[5, 60]]);
        let gone = reclaim(txn, &cuts(60), STEP_ROWS)?.extents;
        assert_eq!(gone, [place(1), place(2)], "HISTORY-8");
        // From there on, and what is held may be back again.
        assert_eq!(shared(txn, &cuts(70)), [[60, 70]], "HISTORY-8");
        assert_eq!(shared(txn, &cuts(20)), Vec::<[i64; 2]>::new());
        // Another one joins them, which kept what it had retired.
        mark_sharing(txn, &[long])?;
        let mut wished = cuts(70).raise(&RetentionHorizons::of_one(long, CommitSeq(45)));
        assert_eq!(shared(txn, &wished), [[5, 45]], "HISTORY-8");
        let gone = reclaim(txn, &wished, STEP_ROWS)?.extents;
        assert_eq!(gone, [place(4)], "HISTORY-8");
        wished = wished.raise(&RetentionHorizons::of_one(long, CommitSeq(80)));
        assert_eq!(shared(txn, &wished), [[45, 70]], "HISTORY-8");
        assert_eq!(
            reclaim(txn, &wished, STEP_ROWS)?.extents,
            [place(3)],
            "HISTORY-8"
        );
        // What the base has reached says nothing any more.
        Keeper::begin(txn, CommitSeq(75), 3)?.end(txn)?;
        let all = RetentionHorizons::new(CommitSeq(90), CommitSeq(80), vec![(one, CommitSeq(85))]);
        reclaim(txn, &all, STEP_ROWS)?;
        let left = "SELECT count(*) FROM larder_meta WHERE key LIKE 'shares_gone%'";
        let left: i64 = txn.query_row(left, [], |row| row.get(0)).unwrap();
        assert_eq!(left, 0);
        Ok(())
    });
    done.unwrap();
}
