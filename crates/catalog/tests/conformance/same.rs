//! The same random calls to the SQLite catalog and to the one in memory: the same answers, row by
//! row, and refusals of the same kind (`MEMORY-1`, `INTERFACE-1`). Some of the calls do not fit. A
//! failure prints the seed.
//!
//! `LARDER_SAME_SEEDS=FIRST..END` tries others.

mod dice;

use crate::common::{Kind, MAIN, Place, name, new_file};
use dice::Dice;
use larder_catalog::format::limits::AG_BLOCKS;
use larder_catalog::format::{CommitSeq, Extent, Ino, SegmentIndex, SessionId, StoreId};
use larder_catalog::{Catalog, CatalogError, DirentRow};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem::discriminant;
use std::ops::Range;

const SEEDS: Range<u64> = 0..8;
const STEPS: u64 = 40;

/// Inodes that are asked for: those that are changed, and some that never are.
const INOS: u64 = 12;
const PAGES: u64 = 4;

/// Both catalogs, and where the test is.
struct Pair {
    sqlite: Catalog,
    memory: Catalog,
    /// Seed and step.
    at: String,
    /// What each said last.
    schema_versions: (i64, i64),
}

/// Both answer alike; what they answer.
#[track_caller]
fn same<T: PartialEq + Debug>(
    (at, what): (&str, &str),
    sqlite: Result<T, CatalogError>,
    memory: Result<T, CatalogError>,
) -> Option<T> {
    let is_same = match (&sqlite, &memory) {
        (Ok(one), Ok(other)) => one == other,
        (Err(one), Err(other)) => discriminant(one) == discriminant(other),
        _ => false,
    };
    assert!(
        is_same,
        "MEMORY-1, INTERFACE-1: {at}: {what}:\n SQLite {sqlite:?}\n memory {memory:?}"
    );
    sqlite.ok()
}

/// Asks both: `ask!(pair, part.method(arguments))`. The arguments are evaluated twice.
macro_rules! ask {
    ($pair:expr, $part:ident . $method:ident ( $($argument:expr),* $(,)? )) => {
        same(
            (&$pair.at, stringify!($method($($argument),*))),
            $pair.sqlite.$part().$method($($argument),*),
            $pair.memory.$part().$method($($argument),*),
        )
    };
}

impl Pair {
    /// A call that is no commit.
    fn call(&self, dice: &mut Dice) {
        let stores = self.memory.stores().rows().unwrap();
        let stores: Vec<StoreId> = stores.iter().map(|row| row.store).collect();
        let (store, other) = (dice.store(&stores), dice.store(&stores));
        let sessions = self.memory.sessions().rows().unwrap();
        let sessions: Vec<SessionId> = sessions.iter().map(|row| row.session).collect();
        let session = dice.session(&sessions);
        let mount = dice.one_of(&["/", "/a", "/b", "/c", "/d", "/e", "none"]);
        match dice.below(13) {
            0..3 => {
                let name = dice.one_of(&["a", "A", "b", "photos", "Photos", "x_map", "1", "main"]);
                let shown = dice.one_in(3).then_some(other);
                let provider = dice.one_of(&["files", "files", "files", "", "asof=none"]);
                let mode = if dice.one_in(20) { 0o10000 } else { 0o755 };
                ask!(
                    self,
                    stores.create(name, provider, mount, shown, 7, mode, 1, 2)
                );
            }
            3 => {
                let provider = dice.one_of(&[None, Some("readonly"), Some("")]);
                let mount = dice.one_in(2).then_some(mount);
                ask!(self, stores.set(store, provider, mount));
            }
            4 => drop(ask!(self, stores.exchange_mounts(store, other))),
            5 => drop(ask!(self, stores.destroy(store, 9))),
            6 => {
                let keeps = dice.one_in(2);
                ask!(self, stores.set_save_keeps(store, keeps));
            }
            7 | 8 => drop(ask!(self, sessions.begin((12, 34), "test", 56))),
            9 => match dice.one_in(2) {
                true => drop(ask!(self, sessions.end(session))),
                false => {
                    let two = [session, dice.session(&sessions)];
                    ask!(self, sessions.end_all(&two));
                }
            },
            10 => {
                let seq = CommitSeq(dice.below(50));
                ask!(self, sessions.set_pin(session, seq));
            }
            11 => {
                let ino = dice.ino();
                ask!(self, sessions.add_holder(store, ino, session));
            }
            _ => {
                let times = [(store, dice.ino(), 11), (other, dice.ino(), 12)];
                ask!(self, sessions.note_access(&times));
            }
        }
    }

    /// Everything that both can be asked.
    fn compare(&mut self, dice: &mut Dice) {
        let info = ask!(self, tables.info()).unwrap();
        ask!(self, tables.commit_seq());
        let versions = (
            self.sqlite.tables().schema_version().unwrap(),
            self.memory.tables().schema_version().unwrap(),
        );
        let was = std::mem::replace(&mut self.schema_versions, versions);
        assert_eq!(
            was.0 != versions.0,
            was.1 != versions.1,
            "MEMORY-1: {}: the schema: {was:?} {versions:?}",
            self.at
        );
        let stores = ask!(self, stores.rows()).unwrap();
        let stores = stores.iter().map(|row| row.store).chain([StoreId(77)]);
        for store in stores.collect::<Vec<_>>() {
            self.compare_store(store, dice);
        }
        ask!(self, maps.objects_with_redo_rows());
        ask!(self, maps.redo_blocks());
        ask!(self, maps.has_pieces());
        self.compare_space(info.commit_seq.0, dice);
        ask!(self, sessions.rows());
        let orphans = ask!(self, sessions.orphans()).unwrap();
        ask!(self, sessions.has_orphans());
        let after = dice.pick(&orphans).map(|(store, ino, _)| (store, ino));
        ask!(self, sessions.orphans_after(after, 2));
        ask!(self, sessions.holders());
        ask!(self, survey.extent_totals());
        ask!(self, survey.damage());
        ask!(self, survey.users_code());
    }

    fn compare_store(&self, store: StoreId, dice: &mut Dice) {
        ask!(self, stores.next_ino(store));
        ask!(self, stores.save_keeps(store));
        ask!(self, survey.inodes(store, None, usize::MAX));
        let after = Some(Ino(dice.below(INOS)));
        ask!(self, survey.inodes(store, after, 3));
        ask!(self, survey.inode_count(store));
        for parent in 0..6 {
            let parent = Ino(parent);
            let mut after = None;
            loop {
                let after_name = after.as_ref();
                let page = ask!(self, tables.dirents(store, parent, after_name, 3));
                ask!(self, tables.dirents_with_rows(store, parent, after_name, 3));
                let last = page.unwrap_or_default().pop();
                let Some(DirentRow { name, .. }) = last else {
                    break;
                };
                after = Some(name);
            }
            ask!(self, tables.require_one_name(store, parent));
            let name = dice.name();
            ask!(self, tables.dirent(store, parent, &name));
        }
        for _ in 0..5 {
            let ino = Ino(dice.below(INOS));
            ask!(self, tables.inode(store, ino));
            ask!(self, tables.inode_since(store, ino));
            ask!(self, tables.parents(store, ino));
            ask!(self, tables.content(store, ino));
            ask!(self, tables.xattrs(store, ino));
            ask!(self, maps.redo_rows(store, ino));
            ask!(self, maps.file_content(store, ino));
            let seq = CommitSeq(dice.below(50));
            ask!(self, stores.saved_as(store, ino, seq));
            let (page, limit) = (dice.below(PAGES + 1), dice.below(4) as usize);
            ask!(self, tables.map_page(store, ino, page));
            ask!(self, tables.map_pages(store, ino, page, limit));
            ask!(self, maps.piece_page(store, ino, page));
            ask!(self, maps.piece_pages(store, ino, page, limit));
        }
    }

    fn compare_space(&self, seq: u64, dice: &mut Dice) {
        ask!(self, space.segments());
        let rows = ask!(self, space.extents(None, usize::MAX)).unwrap();
        ask!(self, space.sharers(None, usize::MAX));
        let after = dice
            .pick(&rows)
            .map(|row| (row.extent.segment, row.extent.start_block));
        ask!(self, space.extents(after, 2));
        let sharers = self.memory.space().sharers(None, usize::MAX).unwrap();
        let after = dice.pick(&sharers);
        ask!(self, space.sharers(after, 2));
        ask!(self, space.has_shared());
        ask!(self, space.shared_blocks());
        for since in [0, dice.below(seq + 1)] {
            ask!(self, space.ags_changed_since(CommitSeq(since)));
            ask!(self, space.has_retired(CommitSeq(since)));
            ask!(self, space.retired_blocks(CommitSeq(since)));
        }
        for segment in 0..3 {
            ask!(self, space.last_extent(SegmentIndex(segment)));
            for ag in 0..3 {
                ask!(self, space.extents_in_ag(SegmentIndex(segment), ag));
            }
        }
        for _ in 0..6 {
            let (place, ino) = (dice.extent(), dice.ino());
            ask!(self, space.is_shared(&place));
            ask!(self, space.extents_under(&place));
            ask!(self, space.stores_under(&place));
            ask!(self, space.holds(&place, MAIN, ino));
        }
    }

    /// Findings of the rules that both have.
    fn compare_checks(&self) {
        let rules = [
            "overlap the row at",
            "lie beyond the segment",
            "is held by",
            "was retired by commit",
            "owns what it shares",
            "which is no orphan",
            "the root directory",
            " names inode ",
            " lies in inode ",
            " has nlink ",
            "next_ino",
            "_content: there is no inode",
            "_map: there is no file",
            "_map: inode",
            "is no orphan",
            "larder_orphan: ",
        ];
        let of = |findings: Result<Vec<String>, CatalogError>| {
            let is_known = |line: &String| rules.iter().any(|rule| line.contains(rule));
            findings.map(|lines| lines.into_iter().filter(is_known).collect::<BTreeSet<_>>())
        };
        let sqlite = self.sqlite.survey().check();
        same(
            (&self.at, "check"),
            of(sqlite),
            of(self.memory.survey().check()),
        );
        let of_space = |line: &String| line.contains("CATALOG-8") || line.contains("SHARE-");
        let findings = self.sqlite.survey().check().unwrap();
        let unsound: Vec<_> = findings.into_iter().filter(of_space).collect();
        assert!(
            unsound.is_empty(),
            "CATALOG-8, SHARE-1: {}: {unsound:?}",
            self.at
        );
    }
}

/// How many change sets fitted, and how many did not.
fn run(seed: u64) -> (u64, u64) {
    let mut dice = Dice::new(seed);
    let (_place, sqlite) = Place::create(Kind::Sqlite, 0);
    let (_place, memory) = Place::create(Kind::Memory, 0);
    let mut pair = Pair {
        sqlite,
        memory,
        at: format!("seed {seed}"),
        schema_versions: (0, 0),
    };
    let (mut fitted, mut refused) = (0, 0);
    for step in 0..STEPS {
        pair.at = format!("seed {seed}, step {step}");
        if dice.one_in(2) {
            pair.call(&mut dice);
        }
        let changes = dice.changes(&pair.memory);
        let outcome = same(
            (&pair.at, &format!("commit {changes:#?}")),
            pair.sqlite.commit(&changes),
            pair.memory.commit(&changes),
        );
        match outcome {
            Some(_) => fitted += 1,
            None => refused += 1,
        }
        pair.compare(&mut dice);
    }
    pair.compare_checks();
    (fitted, refused)
}

#[test]
fn the_catalog_in_memory_answers_as_that_of_sqlite() {
    let asked = std::env::var("LARDER_SAME_SEEDS").ok();
    let asked = asked.as_deref().and_then(|range| range.split_once(".."));
    let seeds = asked.map_or(SEEDS, |(first, end)| {
        first.parse().unwrap()..end.parse().unwrap()
    });
    let (mut fitted, mut refused) = (0, 0);
    for seed in seeds {
        let counts = run(seed);
        fitted += counts.0;
        refused += counts.1;
    }
    let all = fitted + refused;
    assert!(
        fitted * 3 > all && refused * 20 > all,
        "{fitted} of {all} fitted"
    );
}

#[test]
fn the_catalog_in_memory_refuses_as_a_whole() {
    let (_place, memory) = Place::create(Kind::Memory, 0);
    let mut set = new_file(2, "a");
    let taken = Extent::new(SegmentIndex(0), AG_BLOCKS - 2, 2);
    set.allocated.push((taken, MAIN, Ino(2)));
    memory.commit(&set).unwrap();
    let mut other = new_file(3, "b");
    other.allocated.push((taken, MAIN, Ino(3)));
    let refused = memory.commit(&other);
    assert!(
        matches!(refused, Err(CatalogError::Corrupt { .. })),
        "CATALOG-1: {refused:?}"
    );
    assert_eq!(
        memory.tables().commit_seq().unwrap(),
        CommitSeq(1),
        "MEMORY-2"
    );
    assert_eq!(
        memory.tables().dirent(MAIN, Ino::ROOT, &name("b")).unwrap(),
        None,
        "MEMORY-2"
    );
}
