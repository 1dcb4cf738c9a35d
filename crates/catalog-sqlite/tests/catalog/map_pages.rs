//! Pages of maps that several objects share, against a model of all maps: the present, and the past
//! as long as it is kept. `SHARE-7`, `SHARE-8`, `HISTORY-1`.
use crate::common;

use crate::common::pages::{page, share, two};
use crate::common::{MAIN, Rng, create, inode, name, plain};
use larder_catalog_sqlite::format::limits::{MAP_REFERENCE_BYTES, MAP_SHARED_BYTES_MIN};
use larder_catalog_sqlite::format::{CommitSeq, FileKind, Ino, MapPage, MapReference, StoreId};
use larder_catalog_sqlite::{
    ChangeSet, InodeChange, MapShare, Moment, RetentionHorizons, SqliteCatalog,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Key = (StoreId, Ino, u64);
type Maps = BTreeMap<Key, Vec<u8>>;

fn read(catalog: &SqliteCatalog, stores: &[StoreId]) -> Maps {
    let mut found = Maps::new();
    for &store in stores {
        for ino in 2..8 {
            let ino = Ino(ino);
            let mut from = 0;
            loop {
                let pages = catalog.tables().map_pages(store, ino, from, 2).unwrap();
                let Some((last, _)) = pages.last() else { break };
                from = last + 1;
                for (page, bytes) in pages {
                    let one = catalog.tables().map_page(store, ino, page).unwrap();
                    assert_eq!(one.as_ref(), Some(&bytes), "SHARE-8");
                    found.insert((store, ino, page), bytes);
                }
            }
        }
    }
    found
}

/// Findings about maps: there are no extents here, and no files without a name.
fn assert_counted(catalog: &SqliteCatalog, what: &str) {
    let findings = catalog.survey().check().unwrap();
    let findings: Vec<_> = findings
        .iter()
        .filter(|finding| finding.contains("SHARE") || finding.contains("HISTORY"))
        .collect();
    assert!(findings.is_empty(), "{what}: {findings:?}");
}

fn number(dir: &Path, sql: &str) -> i64 {
    plain(dir).query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The commit where the history of a store begins.
fn begins_at(dir: &Path, store: StoreId) -> i64 {
    let key = "history_begins_seq";
    number(
        dir,
        &format!("SELECT max(value) FROM larder_meta WHERE key IN ('{key}', '{key}:{store}')"),
    )
}

struct Run {
    rng: Rng,
    stores: Vec<StoreId>,
    maps: Maps,
    files: BTreeSet<(StoreId, Ino)>,
    pages_made: u64,
    counts: BTreeMap<&'static str, u32>,
}

impl Run {
    fn key(&mut self) -> Key {
        let store = self.stores[self.rng.below(self.stores.len() as u64) as usize];
        (store, Ino(2 + self.rng.below(6)), self.rng.below(3))
    }

    fn have(&mut self) -> Option<Key> {
        let keys: Vec<Key> = self.maps.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.rng.below(keys.len() as u64) as usize])
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A file that is not there is made.
    fn require_file(&mut self, set: &mut ChangeSet, (store, ino, _): Key) {
        if self.files.insert((store, ino)) {
            let row = inode(ino.0, FileKind::File);
            set.inodes.push((store, InodeChange::Insert(row)));
            let entry = name(format!("f{ino}"));
            set.dirents.push((store, Ino::ROOT, entry, Some(ino)));
        }
    }

    /// One change set: removals first, as the catalog applies them; then pages, each at most once.
    fn change(&mut self) -> ChangeSet {
        let mut set = ChangeSet::default();
        if self.rng.below(8) == 0
            && let Some((store, ino, _)) = self.have()
        {
            self.files.remove(&(store, ino));
            self.maps.retain(|key, _| (key.0, key.1) != (store, ino));
            set.inodes.push((store, InodeChange::Delete(ino)));
            let entry = name(format!("f{ino}"));
            set.dirents.push((store, Ino::ROOT, entry, None));
            self.count("delete");
            return set;
        }
        if self.rng.below(8) == 0
            && let Some((store, ino, from)) = self.have()
        {
            self.maps
                .retain(|key, _| (key.0, key.1) != (store, ino) || key.2 < from);
            set.map_cuts.push((store, ino, from));
            self.count("cut");
        }
        let mut pages: BTreeMap<Key, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..1 + self.rng.below(4) {
            match self.rng.below(10) {
                0..3 => {
                    let key = self.key();
                    self.require_file(&mut set, key);
                    self.pages_made += 1;
                    let runs = page(self.pages_made, 1 + self.rng.below(30));
                    self.maps.insert(key, runs.clone());
                    pages.insert(key, Some(runs));
                    self.count("write");
                }
                3..9 => {
                    let (key, Some(from)) = (self.key(), self.have()) else {
                        continue;
                    };
                    if (key.0, key.1) == (from.0, from.1) {
                        continue;
                    }
                    self.require_file(&mut set, key);
                    let runs = self.maps[&from].clone();
                    self.maps.insert(key, runs.clone());
                    pages.insert(key, Some(runs));
                    set.map_shares.push(MapShare {
                        store: key.0,
                        ino: key.1,
                        page: key.2,
                        from_store: from.0,
                        from_ino: from.1,
                        from_page: from.2,
                    });
                    self.count("share");
                }
                _ => {
                    let Some(key) = self.have() else { continue };
                    self.maps.remove(&key);
                    pages.insert(key, None);
                    self.count("remove");
                }
            }
        }
        set.map_pages = pages
            .into_iter()
            .map(|(key, runs)| (key.0, key.1, key.2, runs))
            .collect();
        // A hint may be wrong: of a page that is another one, or not there.
        if self.rng.below(6) == 0
            && let (Some(to), from) = (self.have(), self.key())
        {
            set.map_shares.push(MapShare {
                store: to.0,
                ino: to.1,
                page: to.2,
                from_store: from.0,
                from_ino: from.1,
                from_page: from.2,
            });
            self.count("wrong");
        }
        set
    }
}

fn run(seed: u64) -> BTreeMap<&'static str, u32> {
    let (dir, catalog) = create();
    let other = catalog
        .stores()
        .create("other", "files", "/other", None, 1, 0o755, 1, 2)
        .unwrap();
    let (session, _) = catalog.sessions().begin((1, 0), "test", 0).unwrap();
    let mut run = Run {
        rng: Rng(seed),
        stores: vec![MAIN, other.store],
        maps: Maps::new(),
        files: BTreeSet::new(),
        pages_made: 0,
        counts: BTreeMap::new(),
    };
    let mut states: Vec<(CommitSeq, Maps)> = Vec::new();
    for round in 0..250 {
        let what = format!("seed {seed}, round {round}");
        let mut set = run.change();
        set.now_ns = 10_000 + round;
        if run.rng.below(10) == 0 {
            let newest = catalog.tables().commit_seq().unwrap().0;
            let base = CommitSeq(newest.saturating_sub(run.rng.below(20)));
            let mut cuts = RetentionHorizons::even(base);
            if run.rng.below(2) == 0 {
                let ahead = run.rng.below(2) as usize;
                let further = CommitSeq(base.0 + run.rng.below(newest - base.0 + 1));
                let stores = [(ahead, further), (1 - ahead, base)];
                let stores = stores.map(|(index, seq)| (run.stores[index], seq));
                cuts = RetentionHorizons::new(base, base, stores.to_vec());
                run.count(if cuts.is_even() { "even" } else { "apart" });
            }
            set.reclaim_horizon = Some(cuts);
            run.count("reclaim");
        }
        let seq = catalog.commit(&set).unwrap().seq;
        states.push((seq, run.maps.clone()));
        assert!(read(&catalog, &run.stores) == run.maps, "{what}: SHARE-8");
        assert_counted(&catalog, &what);
        let short = format!(
            "SELECT count(*) FROM larder_map_page WHERE length(bytes) < {MAP_SHARED_BYTES_MIN}"
        );
        assert_eq!(number(dir.path(), &short), 0, "{what}: not worth it");
        let shared = "SELECT count(*) FROM larder_map_page_use WHERE row_count > 1";
        if number(dir.path(), shared) > 0 {
            run.count("shared");
        }
        if round % 4 != 0 {
            continue;
        }
        let begins = catalog.history().history_begins().unwrap().0;
        states.retain(|(seq, _)| *seq >= begins);
        let (seq, mut then) = states[run.rng.below(states.len() as u64) as usize].clone();
        // HISTORY-7: of a store that is ahead, nothing before it begins.
        let reached: Vec<StoreId> = (run.stores.iter().copied())
            .filter(|store| begins_at(dir.path(), *store) <= seq.0 as i64)
            .collect();
        if reached.len() < run.stores.len() {
            run.count("behind");
            then.retain(|key, _| reached.contains(&key.0));
        }
        let pin = catalog
            .past()
            .pin_past(session, &Moment::Seq(seq.0), 1 << 40);
        let pin = pin.unwrap();
        let past = catalog.past().as_of(&pin).unwrap();
        assert!(
            read(&past, &reached) == then,
            "{what}: as of {seq}: SHARE-7"
        );
        drop(past);
        catalog.past().unpin_past(&pin).unwrap();
    }
    // A store goes with its rows, and all else.
    catalog.stores().destroy(other.store, 1 << 40).unwrap();
    run.maps.retain(|key, _| key.0 == MAIN);
    assert!(read(&catalog, &[MAIN]) == run.maps, "seed {seed}: SHARE-7");
    assert_counted(&catalog, &format!("seed {seed}, without the store"));
    let files: Vec<_> = run.files.iter().filter(|file| file.0 == MAIN).collect();
    catalog
        .commit(&ChangeSet {
            inodes: (files.iter())
                .map(|file| (MAIN, InodeChange::Delete(file.1)))
                .collect(),
            dirents: (files.iter())
                .map(|file| (MAIN, Ino::ROOT, name(format!("f{}", file.1)), None))
                .collect(),
            ..ChangeSet::default()
        })
        .unwrap();
    assert_counted(&catalog, &format!("seed {seed}, without files"));
    let newest = catalog.tables().commit_seq().unwrap();
    catalog
        .commit(&ChangeSet {
            reclaim_horizon: Some(RetentionHorizons::even(newest)),
            ..ChangeSet::default()
        })
        .unwrap();
    for table in ["larder_map_page", "larder_map_page_use"] {
        let left = number(dir.path(), &format!("SELECT count(*) FROM {table}"));
        assert_eq!(left, 0, "seed {seed}: {table}: SHARE-7");
    }
    run.counts
}

#[test]
fn maps_and_their_past_are_what_the_model_says() {
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in 1..=6 {
        for (what, count) in run(seed) {
            *counts.entry(what).or_default() += count;
        }
    }
    for what in [
        "delete", "cut", "write", "share", "remove", "wrong", "reclaim", "shared", "apart",
        "behind",
    ] {
        assert!(
            counts.get(what).is_some_and(|&count| count > 20),
            "{what}: {counts:?}"
        );
    }
}

#[test]
fn a_shared_page_costs_a_reference_and_no_history() {
    let (dir, catalog) = two(2000);
    let lengths = "SELECT sum(length(runs)) FROM main_map";
    assert_eq!(
        number(dir.path(), lengths),
        2 * MAP_REFERENCE_BYTES as i64,
        "SHARE-7"
    );
    let of_maps = "SELECT count(*) FROM larder_history WHERE what = 'map'";
    assert_eq!(number(dir.path(), of_maps), 0);
    let since =
        "SELECT group_concat(since_seq) = '1,2' FROM (SELECT since_seq FROM main_map ORDER BY ino)";
    assert_eq!(number(dir.path(), since), 1);
    assert_counted(&catalog, "two");
}

/// Lets go of all history.
fn forget(catalog: &SqliteCatalog) {
    catalog
        .commit(&ChangeSet {
            reclaim_horizon: Some(RetentionHorizons::even(
                catalog.tables().commit_seq().unwrap(),
            )),
            ..ChangeSet::default()
        })
        .unwrap();
}

#[test]
fn a_number_is_given_once() {
    let (dir, catalog) = two(2000);
    let numbers = "SELECT coalesce(sum(number), 0) FROM larder_map_page";
    assert_eq!(number(dir.path(), numbers), 1);
    let set = ChangeSet {
        map_pages: vec![(MAIN, Ino(2), 0, None), (MAIN, Ino(3), 0, None)],
        ..ChangeSet::default()
    };
    catalog.commit(&set).unwrap();
    forget(&catalog);
    assert_eq!(number(dir.path(), numbers), 0);
    let runs = Some(page(2, 2000));
    let set = ChangeSet {
        map_pages: vec![(MAIN, Ino(2), 0, runs.clone()), (MAIN, Ino(3), 0, runs)],
        map_shares: vec![share(3, 0, 2)],
        ..ChangeSet::default()
    };
    catalog.commit(&set).unwrap();
    assert_eq!(number(dir.path(), numbers), 2, "CATALOG-4");
    assert_counted(&catalog, "again");
}

/// Pages that the log of SQLite got by what is done.
fn log_pages(dir: &Path, run: impl FnOnce()) -> i64 {
    let log = |mode: &str| -> i64 {
        plain(dir)
            .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
                row.get(1)
            })
            .unwrap()
    };
    log("TRUNCATE");
    run();
    log("PASSIVE")
}

#[test]
fn counting_does_not_write_pages_anew() {
    let (dir, catalog) = create();
    let pages = |ino: u64| -> Vec<_> {
        let page = |at| (MAIN, Ino(ino), at, Some(page(1 + at, 2000)));
        (0..200).map(page).collect()
    };
    let cloned = |ino: u64| {
        let mut set = common::new_file(ino, &format!("f{ino}"));
        set.map_pages = pages(ino);
        if ino > 2 {
            set.map_shares = (0..200).map(|at| share(ino, at, 2)).collect();
        }
        catalog.commit(&set).unwrap();
    };
    let gone = |ino: u64| {
        let set = ChangeSet {
            inodes: vec![(MAIN, InodeChange::Delete(Ino(ino)))],
            dirents: vec![(MAIN, Ino::ROOT, name(format!("f{ino}")), None)],
            ..ChangeSet::default()
        };
        catalog.commit(&set).unwrap();
    };
    cloned(2);
    cloned(3);
    let costs = [
        log_pages(dir.path(), || gone(3)),
        log_pages(dir.path(), || cloned(3)),
        log_pages(dir.path(), || cloned(4)),
        log_pages(dir.path(), || gone(4)),
        log_pages(dir.path(), || gone(3)),
        log_pages(dir.path(), || gone(2)),
    ];
    println!("pages of the log for 200 pages, from 2 to 1, 2, 3, 2, 1, 0 rows: {costs:?}");
    assert!(costs.iter().all(|&cost| cost < 60), "{costs:?}");
    assert_counted(&catalog, "all gone");
}

/// A file with a page, and a trigger of the user's.
fn with_trigger(when: &str, then: &str) -> (tempfile::TempDir, SqliteCatalog) {
    let (dir, catalog) = create();
    let mut set = common::new_file(2, "f2");
    set.map_pages = vec![(MAIN, Ino(2), 0, Some(page(1, 2000)))];
    catalog.commit(&set).unwrap();
    plain(dir.path())
        .execute_batch(&format!(
            "CREATE TRIGGER mine {when} ON main_map BEGIN {then}; END"
        ))
        .unwrap();
    (dir, catalog)
}

/// Makes 3 of 2.
fn clone_of_two(catalog: &SqliteCatalog) -> Result<(), String> {
    let mut set = common::new_file(3, "f3");
    set.map_pages = vec![(MAIN, Ino(3), 0, Some(page(1, 2000)))];
    set.map_shares = vec![share(3, 0, 2)];
    let outcome = catalog.commit(&set);
    outcome.map(drop).map_err(|error| error.to_string())
}

#[test]
fn where_the_origin_may_not_be_written_each_has_its_own_page() {
    for (when, then) in [
        ("BEFORE UPDATE", "SELECT RAISE(ABORT, 'never')"),
        ("AFTER UPDATE", "SELECT RAISE(ABORT, 'never')"),
        ("BEFORE UPDATE", "SELECT RAISE(IGNORE)"),
        ("BEFORE UPDATE", "SELECT RAISE(FAIL, 'never')"),
        ("AFTER UPDATE", "SELECT RAISE(FAIL, 'never')"),
        ("BEFORE UPDATE", "SELECT RAISE(ROLLBACK, 'never')"),
    ] {
        let (dir, catalog) = with_trigger(when, then);
        let is_done = clone_of_two(&catalog);
        // What cannot be taken back by itself refuses the commit.
        let is_whole =
            then.contains("ROLLBACK") || (when, then.contains("FAIL")) == ("AFTER UPDATE", true);
        assert_eq!(is_done.is_err(), is_whole, "{when} {then}: {is_done:?}");
        if is_done.is_err() {
            assert_eq!(is_done, Err("main_map: never".into()));
            assert_eq!(catalog.tables().map_page(MAIN, Ino(3), 0).unwrap(), None);
        }
        let shared = "SELECT count(*) FROM larder_map_page";
        assert_eq!(number(dir.path(), shared), 0, "{when} {then}");
        assert_counted(&catalog, then);
        plain(dir.path())
            .execute_batch("DROP TRIGGER mine")
            .unwrap();
        if is_done.is_err() {
            clone_of_two(&catalog).unwrap();
        }
        for ino in [2, 3] {
            let found = catalog.tables().map_page(MAIN, Ino(ino), 0).unwrap();
            assert_eq!(found, Some(page(1, 2000)), "{when} {then}: {ino}");
        }
        assert_counted(&catalog, then);
    }
}

#[test]
fn a_reference_that_a_trigger_keeps_is_not_let_go() {
    let remove = ChangeSet {
        map_pages: vec![(MAIN, Ino(2), 0, None)],
        ..ChangeSet::default()
    };
    let cut = ChangeSet {
        map_cuts: vec![(MAIN, Ino(2), 0)],
        ..ChangeSet::default()
    };
    let delete = ChangeSet {
        inodes: vec![(MAIN, InodeChange::Delete(Ino(2)))],
        dirents: vec![(MAIN, Ino::ROOT, name("f2"), None)],
        ..ChangeSet::default()
    };
    for (what, set) in [("remove", remove), ("cut", cut), ("delete", delete)] {
        let (dir, catalog) = two(2000);
        plain(dir.path())
            .execute_batch(
                "CREATE TRIGGER mine BEFORE DELETE ON main_map BEGIN SELECT RAISE(IGNORE); END",
            )
            .unwrap();
        let refused = catalog.commit(&set).unwrap_err().to_string();
        assert!(refused.contains("RAISE(IGNORE)"), "{what}: {refused}");
        assert_counted(&catalog, what);
        plain(dir.path())
            .execute_batch("DROP TRIGGER mine")
            .unwrap();
        catalog.commit(&set).unwrap();
        assert_eq!(catalog.tables().map_page(MAIN, Ino(2), 0).unwrap(), None);
        let counted = "SELECT sum(row_count) FROM larder_map_page_use";
        assert_eq!(number(dir.path(), counted), 1, "{what}: SHARE-7");
        assert_counted(&catalog, what);
    }
}

#[test]
fn check_finds_wrong_counts_and_missing_pages() {
    for (damage, finding) in [
        (
            "UPDATE larder_map_page_use SET row_count = 3",
            "page 1 is said to stand in 3 rows of maps, and stands in 2 (SHARE-7)",
        ),
        (
            "UPDATE larder_map_page_use SET row_count = 1",
            "page 1 is said to stand in 1 rows of maps, and stands in 2 (SHARE-7)",
        ),
        (
            "DELETE FROM larder_map_page",
            "2 rows of maps refer to shared page 1, which does not exist (SHARE-7)",
        ),
        (
            "DELETE FROM larder_map_page",
            "page 1 is counted, and does not exist (SHARE-7)",
        ),
        (
            "DELETE FROM larder_map_page_use",
            "page 1 is not counted, and stands in 2 rows of maps (SHARE-7)",
        ),
        (
            "UPDATE larder_map_page SET number = 2",
            "page 2 has the reference of another one (SHARE-7)",
        ),
        (
            "UPDATE main_map SET runs = x'0200000000000000000000000000' WHERE ino = 2",
            "page 1 is said to stand in 2 rows of maps, and stands in 1 (SHARE-7)",
        ),
        (
            "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value)
               SELECT 2, 'map', 0, 5, 0, 1, reference FROM larder_map_page;
             UPDATE larder_map_page_use SET row_count = 0, retired_seq = 1",
            "refers to a shared map page that was retired by commit 1 (SHARE-7)",
        ),
        (
            "UPDATE larder_map_page_use SET row_count = 0, retired_seq = 99",
            "page 1 was retired by commit 99, which has not happened",
        ),
        (
            "UPDATE larder_meta SET value = 1 WHERE key = 'next_map_page'",
            "page 1 is not below next_map_page (CATALOG-4)",
        ),
    ] {
        let (dir, catalog) = two(2000);
        assert_counted(&catalog, damage);
        plain(dir.path())
            .execute_batch(&format!(
                "UPDATE larder_guard_switch SET open = 1; {damage}; UPDATE larder_guard_switch \
                SET open = 0"
            ))
            .unwrap();
        let findings = catalog.survey().check().unwrap();
        assert!(
            findings.iter().any(|found| found.contains(finding)),
            "{damage}: {findings:?}"
        );
    }
}

#[test]
fn what_is_missing_is_an_error_and_never_another_page() {
    let (dir, catalog) = two(2000);
    plain(dir.path())
        .execute_batch(
            "UPDATE larder_guard_switch SET open = 1; DELETE FROM larder_map_page; DELETE FROM \
             larder_map_page_use;
             UPDATE larder_guard_switch SET open = 0",
        )
        .unwrap();
    let found = catalog.tables().map_page(MAIN, Ino(2), 0).unwrap().unwrap();
    assert_eq!(MapReference::decode(&found), Ok(MapReference(1)));
    let error = MapPage::decode(&found).unwrap_err().to_string();
    assert_eq!(error, "map page: shared page 1 is missing");
    // Who lets it go hears of it, and nothing is done.
    let set = ChangeSet {
        map_pages: vec![(MAIN, Ino(2), 0, Some(page(2, 9)))],
        ..ChangeSet::default()
    };
    plain(dir.path())
        .execute_batch(&format!(
            "UPDATE larder_guard_switch SET open = 1;
             INSERT INTO larder_map_page (number, reference, bytes) VALUES (7, x'{}', zeroblob(99));
             INSERT INTO larder_map_page_use (number, row_count) VALUES (7, 1);
             UPDATE larder_guard_switch SET open = 0",
            MapReference(7)
                .encode()
                .map(|byte| format!("{byte:02x}"))
                .concat()
        ))
        .unwrap();
    let refused = catalog.commit(&set).unwrap_err().to_string();
    assert!(
        refused.contains("shared page 1 is let go, and nobody has it (SHARE-7)"),
        "{refused}"
    );
}

#[test]
fn an_origin_may_be_written_over_in_the_same_commit() {
    let (dir, catalog) = create();
    let write = |ino: u64, number: u64| (MAIN, Ino(ino), 0, Some(page(number, 99)));
    for ino in 2..6 {
        let mut set = common::new_file(ino, &format!("f{ino}"));
        set.map_pages = vec![write(ino, ino)];
        catalog.commit(&set).unwrap();
    }
    // Nothing is shared when the first page is written over; then 4 is made of 2, and 2 of 5.
    let set = ChangeSet {
        map_pages: vec![write(2, 5), write(3, 9), write(4, 2)],
        map_shares: vec![share(4, 0, 2), share(2, 0, 5)],
        ..ChangeSet::default()
    };
    catalog.commit(&set).unwrap();
    assert_counted(&catalog, "after the chain");
    let counts = "SELECT group_concat(row_count) = '1,2' FROM (SELECT row_count FROM \
        larder_map_page_use ORDER BY number)";
    assert_eq!(number(dir.path(), counts), 1, "SHARE-7");
    for (ino, expected) in [(2, 5), (3, 9), (4, 2), (5, 5)] {
        let found = catalog.tables().map_page(MAIN, Ino(ino), 0).unwrap();
        assert_eq!(found, Some(page(expected, 99)), "SHARE-8: {ino}");
    }
}
