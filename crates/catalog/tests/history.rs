//! History: moments, what as-of statements show, pruning.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod common;

use common::*;
use larder_catalog::format::{CommitSeq, Extent, FileKind, Ino, SegmentIndex};
use larder_catalog::{
    AttrMask, Catalog, CatalogError, CatalogOptions, ChangeSet, ContentRow, InodeChange, Moment,
};

/// Commits at a time.
fn commit(catalog: &Catalog, now_ns: i64, changes: ChangeSet) -> CommitSeq {
    let changes = ChangeSet { now_ns, ..changes };
    catalog.commit(&changes).unwrap().seq
}

#[test]
fn a_moment_is_found_by_time_and_by_number() {
    let (_dir, catalog) = create();
    let now = 1_000_000;
    for ino in 2..40 {
        let seq = commit(
            &catalog,
            10_000 + 100 * ino as i64,
            new_file(ino, &ino.to_string()),
        );
        assert_eq!(seq.0, ino - 1);
    }
    // The clock goes back; moments do not.
    commit(&catalog, 5, new_file(40, "40"));
    let at = |at_ns| catalog.resolve_moment(&Moment::At(at_ns), now).unwrap();
    for ino in 2..39 {
        let time = 10_000 + 100 * ino as i64;
        assert_eq!(at(time), (CommitSeq(ino - 1), time));
        assert_eq!(at(time + 99), (CommitSeq(ino - 1), time));
    }
    assert_eq!(at(now), (CommitSeq(39), 13_900));
    assert_eq!(at(1_000), (CommitSeq(0), 1_000), "as it was created");
    let by_number = catalog.resolve_moment(&Moment::Seq(7), now).unwrap();
    assert_eq!(by_number, (CommitSeq(7), 10_800));
    for bad in [
        Moment::At(999),
        Moment::At(now + 1),
        Moment::Seq(40),
        Moment::Snapshot("none".into()),
    ] {
        let refused = catalog.resolve_moment(&bad, now).unwrap_err();
        let is_told = matches!(
            refused,
            CatalogError::Invalid { .. } | CatalogError::NotFound { .. }
        );
        assert!(is_told, "{refused}");
    }
}

#[test]
fn a_listing_of_the_past_pages_over_what_is_there_and_what_is_gone() {
    let (_dir, catalog) = create();
    let mut states: Vec<(CommitSeq, Vec<(String, u64)>)> = Vec::new();
    let mut names: std::collections::BTreeMap<String, u64> = Default::default();
    let mut ino = 1;
    for round in 0..40_u64 {
        let mut changes = ChangeSet::default();
        for step in 0..3 {
            ino += 1;
            let file_name = format!("f{:02}", (round * 7 + step * 11) % 50);
            changes
                .inodes
                .push((MAIN, InodeChange::Insert(inode(ino, FileKind::File))));
            if changes
                .dirents
                .iter()
                .any(|(_, _, other, _)| *other == name(&file_name))
            {
                continue;
            }
            names.insert(file_name.clone(), ino);
            changes
                .dirents
                .push((MAIN, Ino::ROOT, name(&file_name), Some(Ino(ino))));
        }
        let gone = format!("f{:02}", (round * 13) % 50);
        if !changes
            .dirents
            .iter()
            .any(|(_, _, other, _)| *other == name(&gone))
        {
            names.remove(&gone);
            changes.dirents.push((MAIN, Ino::ROOT, name(&gone), None));
        }
        let seq = commit(&catalog, round as i64, changes);
        states.push((seq, names.clone().into_iter().collect()));
    }
    for (seq, expected) in states {
        let past = catalog.as_of(seq).unwrap();
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = past.dirents(MAIN, Ino::ROOT, after.as_ref(), 4).unwrap();
            let with_rows = past
                .dirents_with_rows(MAIN, Ino::ROOT, after.as_ref(), 4)
                .unwrap();
            let inos: Vec<Ino> = page.iter().map(|row| row.ino).collect();
            let others: Vec<Ino> = with_rows.iter().map(|(_, row)| row.ino).collect();
            assert_eq!(inos, others);
            found.extend(page.iter().map(|row| (row.name.to_string(), row.ino.0)));
            after = page.last().map(|row| row.name.clone());
            if page.len() < 4 {
                break;
            }
        }
        assert_eq!(found, expected, "HISTORY-1: as of {seq}");
        for (file_name, ino) in &expected {
            let one = past.dirent(MAIN, Ino::ROOT, &name(file_name)).unwrap();
            assert_eq!(one, Some(Ino(*ino)));
            let parents = past.parents(MAIN, Ino(*ino)).unwrap();
            assert_eq!(parents, [(Ino::ROOT, name(file_name))]);
        }
    }
}

#[test]
fn what_is_deleted_is_whole_in_the_past_and_goes_with_the_horizon() {
    let (_dir, catalog) = create();
    let mut changes = new_file(2, "f");
    changes
        .contents
        .push((MAIN, Ino(2), Some(ContentRow::Inline(b"tiny".to_vec()))));
    changes
        .xattrs
        .push((MAIN, Ino(2), b"user.a".to_vec(), Some(b"1".to_vec())));
    let first = commit(&catalog, 10, changes);
    let row = larder_catalog::InodeRow {
        mode: 0o600,
        ..inode(2, FileKind::File)
    };
    let mask = AttrMask {
        mode: true,
        ..AttrMask::default()
    };
    commit(
        &catalog,
        20,
        ChangeSet {
            inodes: vec![(MAIN, InodeChange::Update(row, mask))],
            ..ChangeSet::default()
        },
    );
    let gone = ChangeSet {
        inodes: vec![(MAIN, InodeChange::Delete(Ino(2)))],
        dirents: vec![(MAIN, Ino::ROOT, name("f"), None)],
        ..ChangeSet::default()
    };
    let third = commit(&catalog, 30, gone);
    let past = catalog.as_of(first).unwrap();
    assert_eq!(past.inode(MAIN, Ino(2)).unwrap().unwrap().mode, 0o644);
    let content = past.content(MAIN, Ino(2)).unwrap();
    assert_eq!(content, Some(ContentRow::Inline(b"tiny".to_vec())));
    assert_eq!(past.xattrs(MAIN, Ino(2)).unwrap().len(), 1);
    let second = catalog.as_of(CommitSeq(2)).unwrap();
    assert_eq!(second.inode(MAIN, Ino(2)).unwrap().unwrap().mode, 0o600);
    assert_eq!(
        catalog.as_of(third).unwrap().inode(MAIN, Ino(2)).unwrap(),
        None
    );
    assert_eq!(catalog.check().unwrap(), Vec::<String>::new());
    // A reader holds the horizon, whoever reclaims (HISTORY-3).
    let (session, _) = catalog.begin_session(1, "test", 0).unwrap();
    let pin = catalog.pin_past(session, &Moment::Seq(2), 100).unwrap();
    let reclaim = |seq| ChangeSet {
        reclaim_horizon: Some(CommitSeq(seq)),
        ..ChangeSet::default()
    };
    commit(&catalog, 40, reclaim(3));
    assert_eq!(
        catalog.history_begins().unwrap(),
        (CommitSeq(2), 20),
        "HISTORY-3"
    );
    assert!(second.inode(MAIN, Ino(2)).unwrap().is_some());
    catalog.unpin_past(&pin).unwrap();
    commit(&catalog, 50, reclaim(4));
    assert_eq!(catalog.history_begins().unwrap(), (CommitSeq(4), 40));
    assert_eq!(second.inode(MAIN, Ino(2)).unwrap(), None, "HISTORY-2");
}

#[test]
fn the_steps_of_a_transaction_have_one_moment() {
    let (dir, catalog) = create();
    commit(&catalog, 10, new_file(2, "a"));
    let owner = Catalog::open_private(dir.path(), &CatalogOptions::default(), false).unwrap();
    owner.begin_immediate().unwrap();
    for ino in 3..6 {
        commit(&owner, 10 * ino as i64, new_file(ino, &ino.to_string()));
    }
    owner.commit_transaction().unwrap();
    let asked = catalog.resolve_moment(&Moment::Seq(3), 1_000).unwrap();
    assert_eq!(asked.0, CommitSeq(1), "a step is no moment");
    let asked = catalog.resolve_moment(&Moment::Seq(4), 1_000).unwrap();
    assert_eq!(asked, (CommitSeq(4), 50));
    owner.begin_immediate().unwrap();
    commit(&owner, 60, new_file(7, "7"));
    owner.roll_back().unwrap();
    owner.begin_immediate().unwrap();
    owner.commit_transaction().unwrap();
    let newest = catalog.resolve_moment(&Moment::At(999), 1_000).unwrap();
    assert_eq!(newest.0, CommitSeq(4));
}

#[test]
fn under_pressure_the_oldest_go_first() {
    let (_dir, catalog) = create();
    let extent = |start| Extent::new(SegmentIndex(0), start, 10);
    let mut changes = new_file(2, "f");
    changes.segments.push((SegmentIndex(0), 1000));
    changes
        .allocated
        .push((Extent::new(SegmentIndex(0), 0, 100), MAIN, Ino(2)));
    commit(&catalog, 1, changes);
    for step in 0..10 {
        let retired = ChangeSet {
            retired: vec![extent(step * 10)],
            ..ChangeSet::default()
        };
        commit(&catalog, 2, retired);
    }
    assert_eq!(
        catalog.find_retired(1).unwrap(),
        Some(CommitSeq(2)),
        "TIME-2"
    );
    assert_eq!(catalog.find_retired(11).unwrap(), Some(CommitSeq(3)));
    assert_eq!(catalog.find_retired(5000).unwrap(), Some(CommitSeq(11)));
}
