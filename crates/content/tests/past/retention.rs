//! How long the past stays: early expiry, relocations that keep it, prune and its accounts,
//! changing the retention.

use crate::common::moments::{BEGIN_NS, Clock, HOUR, SECOND, as_of};
use crate::common::{assert_clean, kind, name, pattern, put};
use larder::{
    CreateOptions, Database, DefragOptions, ErrorKind, KeepPolicy, Moment, NodeId, PruneCut,
    Retention, TransactionOptions,
};
use larder_testkit::Rng;
use std::path::Path;
use std::time::{Duration, Instant};
const R: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;

fn defrag(database: &Database) {
    let options = DefragOptions::default();
    database
        .maintenance()
        .defrag(&[], &options, &mut |_| {})
        .unwrap();
}

/// Content of segments that the history takes, as `history` says, and as the space tells.
fn history_bytes(database: &Database) -> (u64, u64) {
    let stores = database.history().report().unwrap().stores;
    let told = stores.iter().map(|one| one.bytes).sum();
    (told, database.maintenance().space().unwrap().retired_bytes)
}

/// Moves leave no space behind, and no moment is lost by them: also by those that follow, and by
/// what is written where the content was (`HISTORY-5`).
#[test]
fn the_past_follows_content_that_moves_and_its_old_place_is_free() {
    for seed in 1..=4 {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let mut database = clock.create(dir.path(), 256, HOUR);
        let mut rng = Rng::new(seed);
        let mut moments: Vec<(i64, Vec<u8>)> = Vec::new();
        let node = put(&database, R, "big", &[]);
        let mut bytes: Vec<u8> = Vec::new();
        let mut moved = 0;
        for round in 0..40_u64 {
            // Grows beside other files, so that it is in pieces, and is changed in places.
            let tail = pattern(rng.below(600_000) as usize + 1, round);
            let handle = database.nodes().open(node, true).unwrap();
            handle.write_at(bytes.len() as u64, &tail).unwrap();
            bytes.extend(&tail);
            let at = rng.below(bytes.len() as u64) as usize;
            let len_max = if rng.chance(50) { 9_000 } else { 300_000 };
            let len = (rng.below(len_max) as usize).min(bytes.len() - at);
            let piece = pattern(len, round + 1000);
            handle.write_at(at as u64, &piece).unwrap();
            bytes[at..at + len].copy_from_slice(&piece);
            drop(handle);
            database.sync().unwrap();
            moments.push((clock.now(), bytes.clone()));
            clock.pass(SECOND);
            let other = format!("/other{}", rng.below(5));
            clock.put(&database, other.as_bytes(), &pattern(300_000, round));
            if rng.chance(40) {
                // This applies redo rows, and moves nothing.
                let options = DefragOptions { is_dry: true };
                database
                    .maintenance()
                    .defrag(&[], &options, &mut |_| {})
                    .unwrap();
                let before = history_bytes(&database);
                let free = database.maintenance().space().unwrap().free_bytes;
                let options = DefragOptions::default();
                let report = database
                    .maintenance()
                    .defrag(&[], &options, &mut |_| {})
                    .unwrap();
                moved += report.moved_bytes;
                assert_eq!(history_bytes(&database), before, "seed {seed}, {round}");
                assert_eq!(
                    database.maintenance().space().unwrap().free_bytes,
                    free,
                    "HISTORY-5: the old place is free: seed {seed}, {round}"
                );
            }
            if rng.chance(10) {
                database.close().unwrap(); // Applies redo rows.
                database = clock.open(dir.path());
            }
            let (at_ns, then) = &moments[rng.below(moments.len() as u64) as usize];
            let past = as_of(&database, *at_ns).unwrap();
            assert!(
                past.files().read(b"/big").unwrap() == *then,
                "seed {seed}, round {round}"
            );
        }
        assert!(moved > 0, "seed {seed}: nothing moved");
        assert_clean(&database);
        for (at_ns, then) in &moments {
            let past = as_of(&database, *at_ns).unwrap();
            assert!(
                past.files().read(b"/big").unwrap() == *then,
                "seed {seed}, {at_ns}"
            );
        }
        // It all goes in the end.
        database
            .history()
            .prune(PruneCut::All, None, false)
            .map(drop)
            .unwrap();
        assert_eq!(history_bytes(&database), (0, 0));
        assert!(database.files().read(b"/big").unwrap() == bytes);
        assert_clean(&database);
    }
}

/// Who reads the past goes on reading while the content moves, is moved again, and its place is
/// used.
#[test]
fn a_reader_of_the_past_reads_on_while_content_moves() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = clock.create(dir.path(), 64, HOUR);
    for round in 0..6_u64 {
        // In turns, so that neither is in one piece.
        for (file, salt) in [("a", 0), ("b", 100)] {
            let node = match round {
                0 => put(&database, R, file, &[]),
                _ => database.nodes().lookup(R, &name(file)).unwrap().node,
            };
            let piece = pattern(MIB, salt + round);
            let handle = database.nodes().open(node, true).unwrap();
            handle.write_at(round * MIB as u64, &piece).unwrap();
            drop(handle);
            database.sync().unwrap();
        }
    }
    let expected = database.files().read(b"/a").unwrap();
    let past = as_of(&database, clock.now()).unwrap();
    let node = past.nodes().resolve(b"/a", true).unwrap().node;
    let reader = past.nodes().open(node, false).unwrap();
    let read_all = || {
        let mut bytes = vec![0; expected.len()];
        reader.read_at(0, &mut bytes).unwrap();
        bytes
    };
    assert!(read_all() == expected);
    clock.pass(SECOND);
    for round in 0..4 {
        defrag(&database);
        assert!(read_all() == expected, "PAST-2: round {round}");
        clock.put(&database, b"/filler", &pattern(5 * MIB, 7 + round));
        clock.put(&database, b"/b", &pattern(MIB + 4096, round));
        assert!(read_all() == expected, "PAST-2: round {round}");
    }
    clock.put(&database, b"/a", b"new");
    defrag(&database);
    assert!(read_all() == expected, "PAST-2");
    drop((reader, past));
    assert_clean(&database);
}

/// Fills a database of 64 MiB with history.
fn full_of_history(clock: &Clock, dir: &Path) -> Database {
    let database = clock.create(dir, 64, HOUR);
    for round in 0..40 {
        clock.put(&database, b"/file", &pattern(4 * MIB, round));
    }
    database
}

#[test]
fn a_short_transaction_finds_room_that_history_filled() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = full_of_history(&clock, dir.path());
    assert!(history_bytes(&database).1 > 40 << 20);
    let bytes = pattern(24 * MIB, 99);
    let mut runs = 0;
    database
        .transactions()
        .run(|txn| {
            runs += 1;
            txn.files().write(b"/first", &bytes)?;
            txn.files().write(b"/second", &bytes[..MIB])
        })
        .unwrap();
    println!("run {runs} times");
    assert!(runs > 1, "it was not refused at first: nothing is tested");
    assert!(database.files().read(b"/first").unwrap() == bytes, "TIME-5");
    // One that its owner commits finds the pool.
    for round in 0..20 {
        let txn = database
            .transactions()
            .begin_with(&TransactionOptions::default())
            .unwrap();
        txn.files().write(b"/first", pattern(MIB, round)).unwrap();
        txn.commit().unwrap();
    }
    assert_clean(&database);
    // What lives is not given up.
    let too_much = database
        .transactions()
        .run(|txn| txn.files().write(b"/huge", pattern(63 * MIB, 1)).map(drop));
    assert_eq!(kind(too_much), ErrorKind::NoSpace);
    assert!(database.files().read(b"/second").unwrap() == bytes[..MIB]);
}

#[test]
fn a_host_is_not_filled_with_history() {
    fill_a_host(|_| {});
}

/// One store's guarantee keeps what that one has, and no more.
#[test]
fn a_host_is_not_filled_with_history_beside_what_is_guaranteed() {
    fill_a_host(|database| {
        database
            .stores()
            .create("kept", "files", None, None)
            .unwrap();
        let guarantee = Retention {
            retention_ns: HOUR,
            is_guaranteed: true,
        };
        database
            .history()
            .set_store_retention("kept", Some(guarantee))
            .unwrap();
        for round in 0..3 {
            database
                .files()
                .write(b"/kept/file", pattern(MIB, round))
                .unwrap();
            database.sync().unwrap();
        }
    });
}

/// Rewrites a file in a database without a capacity until the history of that is too much.
fn fill_a_host(prepare: impl FnOnce(&Database)) {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let path = dir.path().join("t.larder");
    Database::create_with(&path, &CreateOptions::default(), &clock.engine()).unwrap();
    let database = clock.open(dir.path());
    prepare(&database);
    let bytes = pattern(24 * MIB, 5);
    let mut first = None;
    for round in 0..30 {
        let at_ns = clock.put(&database, b"/file", &bytes[round..]);
        first.get_or_insert(at_ns);
    }
    let space = database.maintenance().space().unwrap();
    // What lives, as much of history, 256 MiB, and the step of growth.
    assert!(space.segment_bytes < 450 << 20, "TIME-7: {space:?}");
    assert!(space.retired_bytes > 200 << 20, "{space:?}");
    let read = |at_ns: i64| as_of(&database, at_ns).and_then(|past| past.files().read(b"/file"));
    assert!(read(first.unwrap()).is_err());
    assert!(read(clock.now() - 5 * SECOND).is_ok());
    assert_clean(&database);
}

#[test]
fn history_keeps_out_of_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = full_of_history(&clock, dir.path());
    clock.put(&database, b"/small", b"one more commit");
    let space = database.maintenance().space().unwrap();
    assert!(
        space.free_bytes >= (64 << 20) / 16,
        "TIME-2: {space:?}: best fit needs room to choose from"
    );
    assert!(space.retired_bytes > 40 << 20, "{space:?}: and no more");
}

#[test]
fn while_segments_can_grow_defragmentation_costs_no_history() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = clock.create(dir.path(), 256, HOUR);
    for round in 0..6_u64 {
        // In turns, so that neither is in one piece.
        for (file, salt) in [("a", 0), ("b", 100)] {
            let node = match round {
                0 => put(&database, R, file, &[]),
                _ => database.nodes().lookup(R, &name(file)).unwrap().node,
            };
            let handle = database.nodes().open(node, true).unwrap();
            let piece = pattern(MIB, salt + round);
            handle.write_at(round * MIB as u64, &piece).unwrap();
            drop(handle);
            database.sync().unwrap();
        }
    }
    clock.put(&database, b"/gone", &pattern(2 * MIB, 7));
    clock.put(&database, b"/gone", b"new");
    let (before, _) = history_bytes(&database);
    assert!(before >= 2 << 20, "{before}");
    for _ in 0..50 {
        database.maintenance().compact_step().unwrap();
        database.sync().unwrap();
    }
    assert!(history_bytes(&database).0 >= before, "COMPACT-7");
    assert_clean(&database);
}

/// What a dry run says is what goes, and what goes is free.
#[test]
fn a_prune_frees_what_its_dry_run_says() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = clock.create(dir.path(), 256, 24 * HOUR);
    database
        .stores()
        .create("raw", "files", None, None)
        .map(drop)
        .unwrap();
    let mut moments = Vec::new();
    for round in 0..30_u64 {
        let len = 50_000 + 9_000 * round as usize;
        moments.push((
            clock.put(&database, b"/a", &pattern(len, round)),
            pattern(len, round),
        ));
        clock.put(&database, b"/raw/b", &pattern(200_000, round));
        clock.put(&database, b"/tiny", &pattern(900, round));
        clock.pass(60 * SECOND);
    }
    for (older_than, step) in [(Some(10), 0), (Some(20), 1), (None, 2)] {
        let cut = || match older_than {
            Some(round) => PruneCut::OlderThan(Moment::At(moments[round as usize].0)),
            None => PruneCut::All,
        };
        let dry = database.history().prune(cut(), None, true).unwrap().report;
        let before = database.maintenance().space().unwrap();
        let again = database.history().prune(cut(), None, true).unwrap().report;
        assert_eq!(dry, again, "a dry run changes nothing");
        if older_than.is_none() {
            assert_eq!(database.history().report().unwrap().stores, dry.freed);
        }
        let wet = database.history().prune(cut(), None, false).unwrap().report;
        assert!(dry.is_dry && !wet.is_dry && !wet.is_waiting);
        assert_eq!(
            (&dry.freed, dry.begins_seq, dry.begins_ns),
            (&wet.freed, wet.begins_seq, wet.begins_ns),
            "step {step}"
        );
        let names: Vec<&str> = wet.freed.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["main", "raw"]);
        let freed: u64 = wet.freed.iter().map(|one| one.bytes).sum();
        assert!(freed > 0 && wet.freed.iter().all(|one| one.row_count > 0));
        let after = database.maintenance().space().unwrap();
        assert_eq!(after.retired_bytes, before.retired_bytes - freed, "{step}");
        assert_eq!(after.free_bytes, before.free_bytes + freed, "{step}");
        let history = database.history().report().unwrap();
        assert_eq!(
            (history.begins_seq, history.begins_ns),
            (wet.begins_seq, wet.begins_ns)
        );
        let first = older_than.map_or(moments.len(), |round| round as usize);
        for (round, (at_ns, bytes)) in moments.iter().enumerate() {
            match as_of(&database, *at_ns) {
                Ok(past) => assert!(round >= first && past.files().read(b"/a").unwrap() == *bytes),
                Err(error) => {
                    assert!(round < first, "round {round}: {error}");
                    assert!(error.to_string().contains("history begins"), "{error}");
                }
            }
        }
        assert_clean(&database);
    }
    // There is nothing left, and nothing so old.
    let nothing = database
        .history()
        .prune(PruneCut::All, None, false)
        .unwrap()
        .report;
    assert!(nothing.freed.is_empty(), "{nothing:?}");
    let old = PruneCut::OlderThan(Moment::At(0));
    assert!(
        database
            .history()
            .prune(old, None, false)
            .unwrap()
            .report
            .freed
            .is_empty()
    );
    let future = PruneCut::OlderThan(Moment::At(clock.now() + HOUR));
    assert_eq!(
        kind(database.history().prune(future, None, true)),
        ErrorKind::InvalidInput
    );
}

#[test]
fn policies_destroy_snapshots_and_name_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = clock.create(dir.path(), 256, HOUR);
    for day in 0..10 {
        clock.put(&database, b"/a", &pattern(100_000, day));
        database.snapshots().create(&format!("day{day}")).unwrap();
        clock.pass(24 * HOUR);
    }
    // Everything since the first snapshot is kept, whatever the retention.
    assert_eq!(
        as_of(&database, BEGIN_NS)
            .unwrap()
            .files()
            .read(b"/a")
            .unwrap(),
        pattern(100_000, 0)
    );
    database.snapshots().hold("day3", "audit").unwrap();
    let policy = KeepPolicy {
        daily: 4,
        ..KeepPolicy::default()
    };
    let dry = database
        .history()
        .prune(PruneCut::Retention, Some(&policy), true)
        .unwrap();
    assert_eq!(database.snapshots().list().unwrap().len(), 10);
    let wet = database
        .history()
        .prune(PruneCut::Retention, Some(&policy), false)
        .unwrap();
    assert_eq!(dry.report.freed, wet.report.freed);
    assert!(wet.report.freed[0].bytes > 0);
    let names = |rows: &[larder_object::SnapshotRow]| {
        rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&wet.report.destroyed),
        ["day0", "day1", "day2", "day4", "day5"]
    );
    assert_eq!(names(&wet.held), ["day3"]);
    assert_eq!(
        names(&database.snapshots().list().unwrap()),
        ["day3", "day6", "day7", "day8", "day9"]
    );
    let blocked = wet.report.blocked_by.unwrap();
    assert!(
        blocked.contains("'day3', held by audit,"),
        "TIME-6: {blocked}"
    );
    for day in [3, 6, 9] {
        let past = database
            .as_of(&Moment::Snapshot(format!("day{day}")))
            .unwrap();
        assert_eq!(past.files().read(b"/a").unwrap(), pattern(100_000, day));
    }
    assert!(as_of(&database, BEGIN_NS).is_err());
    // Without the hold it goes on; a full prune stops at what is left.
    database.snapshots().release("day3", "audit").unwrap();
    let all = database
        .history()
        .prune(PruneCut::All, Some(&policy), false)
        .unwrap();
    assert_eq!(names(&all.report.destroyed), ["day3"]);
    assert!(all.report.blocked_by.unwrap().contains("'day6'"));
    // A reader of the past is in the way as well.
    for row in database.snapshots().list().unwrap() {
        database.snapshots().destroy(&row.name).unwrap();
    }
    let seq = database.history().report().unwrap().begins_seq;
    let past = database.as_of(&Moment::Seq(seq.0)).unwrap();
    let stopped = database
        .history()
        .prune(PruneCut::All, None, false)
        .unwrap()
        .report;
    assert!(stopped.blocked_by.unwrap().contains("reads the past"));
    assert_eq!(
        past.files().read(b"/a").unwrap(),
        pattern(100_000, 6),
        "PAST-2"
    );
    drop(past);
    let rest = database
        .history()
        .prune(PruneCut::All, None, false)
        .unwrap()
        .report;
    assert_eq!(rest.blocked_by, None);
    assert_eq!(history_bytes(&database), (0, 0));
    assert_clean(&database);
}

/// Set in one session, it holds in the other at once.
#[test]
fn every_session_follows_a_change_of_the_retention() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    clock.create(dir.path(), 64, 0).close().unwrap();
    let one = clock.open_with(dir.path(), true);
    let two = clock.open_with(dir.path(), true);
    let keep = |hours: i64| Retention {
        retention_ns: hours * HOUR,
        is_guaranteed: false,
    };
    clock.put(&two, b"/a", &pattern(2 * MIB, 1));
    clock.put(&two, b"/a", &pattern(2 * MIB, 2));
    assert!(as_of(&two, clock.now()).is_err(), "no history is kept");
    one.history().set_retention(keep(1)).unwrap();
    // The second session knows nothing of it yet: small overwrites, which go in place, too.
    let begun = clock.now();
    clock.pass(SECOND);
    let node = two.nodes().lookup(R, &name("a")).unwrap().node;
    let handle = two.nodes().open(node, true).unwrap();
    for round in 0..8_u64 {
        handle
            .write_at(round * 8192, &pattern(4096, 50 + round))
            .unwrap();
        handle.sync().unwrap();
    }
    drop(handle);
    two.close().unwrap(); // Applies redo rows.
    let two = clock.open_with(dir.path(), true);
    let third = clock.put(&two, b"/a", &pattern(2 * MIB, 3));
    clock.put(&one, b"/a", &pattern(2 * MIB, 4));
    for database in [&one, &two] {
        let past = as_of(database, begun).unwrap();
        assert!(
            past.files().read(b"/a").unwrap() == pattern(2 * MIB, 2),
            "TIME-3"
        );
        let past = as_of(database, third).unwrap();
        assert!(
            past.files().read(b"/a").unwrap() == pattern(2 * MIB, 3),
            "TIME-3"
        );
        assert!(as_of(database, begun - 3 * SECOND).is_err());
    }
    // Longer: what would have gone stays.
    two.history().set_retention(keep(3)).unwrap();
    clock.pass(2 * HOUR);
    clock.put(&one, b"/b", b"x");
    clock.put(&one, b"/b", b"y");
    assert!(as_of(&one, third).is_ok());
    // Shorter: it goes, by whoever commits next when the others have written their pins
    // (SESSION-2).
    one.history().set_retention(keep(1)).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while as_of(&one, third).is_ok() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        clock.put(&two, b"/b", b"z");
    }
    assert!(as_of(&one, third).is_err());
    let late = clock.now() - SECOND;
    // Off, but not from under those who need it.
    one.snapshots().create("kept").unwrap();
    let refused = two.history().set_retention(keep(0)).unwrap_err();
    assert!(refused.to_string().contains("'kept'"), "{refused}");
    one.snapshots().destroy("kept").unwrap();
    let past = as_of(&two, late).unwrap();
    assert_eq!(
        kind(one.history().set_retention(keep(0))),
        ErrorKind::InvalidInput
    );
    drop(past);
    one.history().set_retention(keep(0)).unwrap();
    clock.put(&two, b"/b", b"1");
    clock.put(&one, b"/b", b"2");
    assert!(as_of(&two, late).is_err());
    assert_eq!(two.history().report().unwrap().stores, []);
    // And on again: it begins anew, with what plain SQL has changed meanwhile.
    let mut session = one.sql().open(false).unwrap();
    session
        .execute("UPDATE main SET mode = 384", &mut |_| Ok(()))
        .unwrap();
    drop(session);
    one.history().set_retention(keep(1)).unwrap();
    let begun = clock.now();
    clock.pass(SECOND);
    clock.put(&two, b"/b", b"3");
    for database in [&one, &two] {
        let past = as_of(database, begun).unwrap();
        assert_eq!(past.files().read(b"/b").unwrap(), b"2");
        assert_eq!(past.nodes().resolve(b"/b", true).unwrap().mode, 0o600);
        assert_clean(database);
    }
    assert_eq!(
        kind(one.history().set_retention(Retention {
            retention_ns: -1,
            is_guaranteed: false
        })),
        ErrorKind::InvalidInput
    );
}

#[test]
fn what_is_guaranteed_stays_and_writes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = clock.create(dir.path(), 64, HOUR);
    let guarantee = Retention {
        retention_ns: HOUR,
        is_guaranteed: true,
    };
    database.history().set_retention(guarantee).unwrap();
    let mut moments = Vec::new();
    let full = loop {
        let round = moments.len() as u64;
        match database
            .files()
            .write(b"/file", pattern(4 * MIB, round))
            .and_then(|_| database.sync())
        {
            Ok(()) => moments.push(clock.now()),
            Err(error) => break error,
        }
        clock.pass(SECOND);
        assert!(round < 30, "it is never refused");
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "TIME-4");
    for part in ["guaranteed", "larder prune", "larder retention"] {
        assert!(full.to_string().contains(part), "{full}");
    }
    let available = database.maintenance().space().unwrap().available_bytes;
    assert!(available < 8 << 20, "TIME-4: {available}");
    // Nothing that moves things gives it up either.
    let shrunk = database.maintenance().shrink(None, false, &mut |_, _| {});
    assert!(shrunk.unwrap_err().to_string().contains("guaranteed"));
    defrag(&database);
    for _ in 0..20 {
        database.maintenance().compact_step().unwrap();
    }
    assert!(
        database
            .transactions()
            .run(|txn| txn.files().write(b"/other", pattern(8 * MIB, 1)))
            .is_err()
    );
    for (round, at_ns) in moments.iter().enumerate() {
        let past = as_of(&database, *at_ns).unwrap();
        assert!(past.files().read(b"/file").unwrap() == pattern(4 * MIB, round as u64));
    }
    // Time, a prune, and the end of the guarantee help.
    clock.pass(HOUR - 4 * SECOND);
    clock.put(&database, b"/small", b"x");
    clock.put(&database, b"/file", &pattern(4 * MIB, 100));
    assert!(as_of(&database, moments[0]).is_err());
    let some = PruneCut::OlderThan(Moment::At(moments[moments.len() - 2]));
    database
        .history()
        .prune(some, None, false)
        .map(drop)
        .unwrap();
    clock.put(&database, b"/file", &pattern(4 * MIB, 101));
    database
        .history()
        .set_retention(Retention {
            is_guaranteed: false,
            ..guarantee
        })
        .unwrap();
    for round in 0..30 {
        clock.put(&database, b"/file", &pattern(4 * MIB, 200 + round));
    }
    assert_clean(&database);
}
