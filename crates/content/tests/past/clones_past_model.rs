//! Clones and restores out of the past against a model: random writes, cuts, removals, clones of
//! the past and the present, restores, moves, prunes, kills and reopening, in two stores; after
//! each step `check` finds nothing, and the present and all moments that are kept read as the model
//! says. `SHARE-1` to `SHARE-10`, `CONTENT-12`, `HISTORY-3`, `HISTORY-8`.
//!
//! `LARDER_SEED` and `LARDER_STEPS` choose another run.

use crate::common::moments::{Clock, HOUR, SECOND};
use crate::common::{OWNER, assert_clean, crash, kind, pattern};
use larder::{
    AllocateMode, Database, DefragOptions, ErrorKind, FileHandle, FileKind, Moment, Name, NewNode,
    NodeId, RestoreOptions, copy_range,
};
use larder_testkit::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// So that redo rows are applied now and then.
const REDO_BYTES_MAX: u64 = 128 << 10;
const FILE_BYTES_MAX: u64 = 120 << 10;
const ENTRIES_MAX: usize = 20;
const STATES_MAX: usize = 8;
/// Where the second store is mounted: a directory that stays.
const STORE: &str = "/two";

/// What is there: a directory, or content.
type Model = BTreeMap<String, Option<Vec<u8>>>;

#[derive(Clone)]
struct State {
    at_ns: i64,
    snapshot: Option<String>,
    model: Model,
}

impl State {
    fn moment(&self) -> Moment {
        match &self.snapshot {
            Some(name) => Moment::Snapshot(name.clone()),
            None => Moment::At(self.at_ns),
        }
    }
}

struct Run {
    seed: u64,
    step: u32,
    rng: Rng,
    clock: Clock,
    directory: tempfile::TempDir,
    /// How often it was killed.
    life: u32,
    database: Option<Database>,
    model: Model,
    states: Vec<State>,
    /// Content that came out of the past, and what of it was copied, bytes.
    taken: (u64, u64),
    counts: BTreeMap<&'static str, u32>,
}

/// The directory that a path is in.
fn above(path: &str) -> &str {
    &path[..path.rfind('/').unwrap()]
}

fn is_in(path: &str, root: &str) -> bool {
    path == root
        || path
            .strip_prefix(root)
            .is_some_and(|rest| rest.starts_with('/'))
}

fn part(model: &Model, root: &str) -> Model {
    let inside = model.iter().filter(|(path, _)| is_in(path, root));
    inside
        .map(|(path, entry)| (path.clone(), entry.clone()))
        .collect()
}

fn place(database: &Database, path: &str) -> (NodeId, Name) {
    database.nodes().resolve_parent(path.as_bytes()).unwrap()
}

fn open(database: &Database, path: &str) -> Box<dyn FileHandle> {
    let node = database
        .nodes()
        .resolve(path.as_bytes(), false)
        .unwrap()
        .node;
    database.nodes().open(node, true).unwrap()
}

fn walk(database: &Database, node: NodeId, at: &str, found: &mut Model) {
    for (entry, attr) in database.nodes().read_dir_plus(node, None, 1000).unwrap() {
        let path = format!("{at}/{}", entry.name);
        if attr.kind == FileKind::Directory {
            found.insert(path.clone(), None);
            walk(database, attr.node, &path, found);
        } else {
            let bytes = database.files().read(path.as_bytes());
            found.insert(path, Some(bytes.unwrap()));
        }
    }
}

/// Where two trees differ, for people.
fn explain(expected: &Model, found: &Model) -> String {
    let mut text = String::new();
    let paths: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for path in paths {
        match (expected.get(path), found.get(path)) {
            (a, b) if a == b => {}
            (Some(Some(a)), Some(Some(b))) => {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                let lens = (a.len(), b.len());
                text += &format!("{path}: {lens:?} bytes, differ at {at:?}\n");
            }
            (a, b) => text += &format!("{path}: {} and {}\n", a.is_some(), b.is_some()),
        }
    }
    text
}

impl Run {
    fn new(seed: u64, mib: u64) -> Run {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
        let path = directory.path().join("0");
        std::fs::create_dir(&path).unwrap();
        let database = clock.create(&path, mib, HOUR);
        database
            .stores()
            .create(&STORE[1..], "files", None, None)
            .unwrap();
        Run {
            seed,
            step: 0,
            rng: Rng::new(seed),
            clock,
            directory,
            life: 0,
            database: Some(database),
            model: Model::from([(STORE.to_owned(), None)]),
            states: Vec::new(),
            taken: (0, 0),
            counts: BTreeMap::new(),
        }
    }

    fn what(&self) -> String {
        format!("seed {}, step {}", self.seed, self.step)
    }

    fn database(&self) -> Database {
        self.database.clone().unwrap()
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join(self.life.to_string())
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn pick_of(
        &mut self,
        model: &Model,
        is_right: impl Fn(&Option<Vec<u8>>) -> bool,
    ) -> Option<String> {
        let fitting = model.iter();
        let fitting = fitting.filter(|(path, entry)| *path != STORE && is_right(entry));
        let fitting: Vec<&String> = fitting.map(|(path, _)| path).collect();
        match fitting.len() {
            0 => None,
            count => Some(fitting[self.rng.below(count as u64) as usize].clone()),
        }
    }

    fn pick(&mut self, is_right: impl Fn(&Option<Vec<u8>>) -> bool) -> Option<String> {
        let model = self.model.clone();
        self.pick_of(&model, is_right)
    }

    fn pick_file(&mut self) -> Option<String> {
        self.pick(Option::is_some)
    }

    /// A name that is free, in the root, a store or a directory.
    fn free_name(&mut self) -> String {
        let directory = match self.rng.below(3) {
            0 => self.pick(Option::is_none),
            1 => Some(STORE.to_owned()),
            _ => None,
        };
        let directory = directory.unwrap_or_default();
        loop {
            // Few names, so that what comes back meets others.
            let path = format!("{directory}/{}", self.rng.below(40));
            if !self.model.contains_key(&path) {
                return path;
            }
        }
    }

    fn content(&mut self, path: &str) -> &mut Vec<u8> {
        self.model.get_mut(path).unwrap().as_mut().unwrap()
    }

    fn write(&mut self, path: &str, offset: u64, len: u64) {
        let bytes = pattern(len as usize, self.rng.below(1 << 40));
        let database = self.database();
        open(&database, path).write_at(offset, &bytes).unwrap();
        let end = (offset + len) as usize;
        let content = self.content(path);
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&bytes);
    }

    /// A moment that is still there, and what the model says of it.
    fn pick_past(&mut self) -> Option<(Database, State)> {
        let database = self.database();
        database.sync().unwrap();
        while !self.states.is_empty() {
            let at = self.rng.below(self.states.len() as u64) as usize;
            match database.as_of(&self.states[at].moment()) {
                Ok(past) => return Some((past, self.states[at].clone())),
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}"),
            }
            self.states.swap_remove(at);
        }
        None
    }

    fn note_taken(&mut self, content_bytes: u64, copied_bytes: u64) {
        assert!(copied_bytes <= content_bytes, "{}", self.what());
        self.taken.0 += content_bytes;
        self.taken.1 += copied_bytes;
    }

    fn clone_past(&mut self) {
        let Some((past, state)) = self.pick_past() else {
            return;
        };
        let Some(from) = self.pick_of(&state.model, |_| true) else {
            return;
        };
        let to = self.free_name();
        let (database, what) = (self.database(), self.what());
        let report = if self.rng.below(2) == 0 {
            let report = database
                .files()
                .clone_path(Some(&past), from.as_bytes(), to.as_bytes());
            let report = report.expect(&what);
            (report.content_bytes, report.copied_bytes)
        } else {
            let options = RestoreOptions {
                to: Some(to.clone().into_bytes()),
                ..RestoreOptions::default()
            };
            let report = database
                .history()
                .restore(&past, Some(from.as_bytes()), &options);
            let report = report.expect(&what);
            (report.content_bytes, report.copied_bytes)
        };
        self.note_taken(report.0, report.1);
        for (path, entry) in part(&state.model, &from) {
            self.model
                .insert(format!("{to}{}", &path[from.len()..]), entry);
        }
        past.close().unwrap();
        self.count("clone of the past");
    }

    /// In place: what was comes back; what is there and was not stays, unless it is exact.
    fn restore(&mut self) {
        let Some((past, state)) = self.pick_past() else {
            return;
        };
        let Some(path) = self.pick_of(&state.model, |_| true) else {
            return;
        };
        let is_exact = self.rng.below(3) == 0;
        // A file where a directory above was is for another test.
        let mut parent = above(&path);
        while !parent.is_empty() {
            if matches!(self.model.get(parent), Some(Some(_))) {
                return;
            }
            parent = above(parent);
        }
        let (database, what) = (self.database(), self.what());
        let options = RestoreOptions {
            is_exact,
            ..RestoreOptions::default()
        };
        let then = part(&state.model, &path);
        let is_in_the_way = |(path, entry): (&String, &Option<Vec<u8>>)| {
            entry.is_some() && matches!(self.model.get(path), Some(None))
        };
        let is_refused = !is_exact && then.iter().any(is_in_the_way);
        let outcome = database
            .history()
            .restore(&past, Some(path.as_bytes()), &options);
        past.close().unwrap();
        if is_refused {
            assert_eq!(kind(outcome), ErrorKind::Exists, "{what}");
            return;
        }
        let report = outcome.expect(&what);
        self.note_taken(report.content_bytes, report.copied_bytes);
        let mut parent = above(&path);
        while !parent.is_empty() {
            self.model.entry(parent.to_owned()).or_insert(None);
            parent = above(parent);
        }
        if is_exact {
            self.model.retain(|other, _| !is_in(other, &path));
        }
        self.model.extend(then);
        self.count("restore");
    }

    fn step(&mut self) {
        let database = self.database();
        let what = self.rng.below(100);
        match what {
            0..12 if self.model.len() < ENTRIES_MAX => {
                let path = self.free_name();
                let (parent, name) = place(&database, &path);
                let is_file = self.rng.below(4) > 0;
                let new = match is_file {
                    true => NewNode::File,
                    false => NewNode::Directory,
                };
                database
                    .nodes()
                    .create_node(parent, &name, new, 0o644, OWNER)
                    .unwrap();
                self.model.insert(path.clone(), is_file.then(Vec::new));
                if is_file {
                    let len = 1 + self.rng.below(FILE_BYTES_MAX);
                    self.write(&path, 0, len);
                }
            }
            12..34 => {
                let Some(path) = self.pick_file() else { return };
                let size = self.content(&path).len() as u64;
                // Mostly small overwrites, which may become redo rows.
                let len = match self.rng.below(3) {
                    0 => 1 + self.rng.below(60 << 10),
                    _ => 1 + self.rng.below(6000),
                };
                let offset = self.rng.below(size + 5000).min(FILE_BYTES_MAX);
                self.write(&path, offset, len);
                self.count("write");
            }
            34..38 => {
                let Some(path) = self.pick_file() else { return };
                let size = self.content(&path).len() as u64;
                let len = self.rng.below(size + 9000);
                open(&database, &path).set_len(len).unwrap();
                self.content(&path).resize(len as usize, 0);
            }
            38..41 => {
                let Some(path) = self.pick_file() else { return };
                let size = self.content(&path).len() as u64;
                let (offset, len) = (self.rng.below(size + 1), 1 + self.rng.below(50 << 10));
                let file = open(&database, &path);
                file.allocate(AllocateMode::PunchHole, offset, len).unwrap();
                let end = (offset + len).min(size) as usize;
                self.content(&path)[offset as usize..end].fill(0);
            }
            41..43 => {
                let Some(path) = self.pick_file() else { return };
                let size = self.content(&path).len() as u64;
                let offset = self.rng.below(size + 1);
                let bytes = pattern(1 + self.rng.below(3000) as usize, what);
                open(&database, &path).insert_range(offset, &bytes).unwrap();
                let at = offset as usize;
                self.content(&path).splice(at..at, bytes);
                self.count("insert");
            }
            43..53 => {
                let Some(path) = self.pick(|_| true) else {
                    return;
                };
                self.remove(&path);
                self.count("remove");
            }
            53..63 if self.model.len() < ENTRIES_MAX => self.clone_past(),
            63..75 => self.restore(),
            75..78 if self.model.len() < ENTRIES_MAX => {
                let (Some(from), to) = (self.pick(|_| true), self.free_name()) else {
                    return;
                };
                if is_in(&to, &from) {
                    return;
                }
                database
                    .files()
                    .clone_path(None, from.as_bytes(), to.as_bytes())
                    .unwrap();
                for (path, entry) in part(&self.model, &from) {
                    self.model
                        .insert(format!("{to}{}", &path[from.len()..]), entry);
                }
                self.count("clone");
            }
            78..81 => self.copy_past(),
            81..90 => self.note_state(),
            90..92 => {
                database
                    .maintenance()
                    .defrag(&[], &DefragOptions::default(), &mut |_| {})
                    .unwrap();
                self.count("defrag");
            }
            92..93 => {
                for _ in 0..4 {
                    database.maintenance().compact_step().unwrap();
                }
            }
            93..95 => {
                drop(database);
                self.database.take().unwrap().close().unwrap();
                self.database = Some(self.clock.open(&self.path()));
                self.count("reopen");
            }
            95..97 => {
                // What is older goes with the next commits, but what a snapshot shows.
                self.clock.pass(HOUR / 2);
                self.note_state();
                self.forget_snapshot();
                self.count("prune");
            }
            97..100 => self.kill(),
            _ => {}
        }
    }

    /// A range of a file of the past goes into one of the present, by whole blocks.
    fn copy_past(&mut self) {
        let Some((past, state)) = self.pick_past() else {
            return;
        };
        let from = self.pick_of(&state.model, Option::is_some);
        let (Some(from), Some(to)) = (from, self.pick_file()) else {
            return;
        };
        let (from_offset, to_offset) = (4096 * self.rng.below(20), 4096 * self.rng.below(20));
        let len = 4096 * (1 + self.rng.below(20));
        let database = self.database();
        let source = past.nodes().resolve(from.as_bytes(), false).unwrap().node;
        let source = past.nodes().open(source, false).unwrap();
        let target = open(&database, &to);
        let copied = copy_range((&*source, from_offset), (&*target, to_offset), len).unwrap();
        let bytes = state.model[&from].as_ref().unwrap();
        let start = (from_offset as usize).min(bytes.len());
        let end = (start + len as usize).min(bytes.len());
        assert_eq!(copied as usize, end - start, "{}", self.what());
        if copied > 0 {
            let (at, stop) = (to_offset as usize, to_offset as usize + end - start);
            let content = self.content(&to);
            content.resize(content.len().max(stop), 0);
            content[at..stop].copy_from_slice(&bytes[start..end]);
        }
        drop(source);
        past.close().unwrap();
        self.count("copy of the past");
    }

    fn remove(&mut self, path: &str) {
        let database = self.database();
        for path in part(&self.model, path).keys().rev() {
            let (parent, name) = place(&database, path);
            match self.model.remove(path).unwrap() {
                Some(_) => database.nodes().unlink(parent, &name).unwrap(),
                None => database.nodes().remove_dir(parent, &name).unwrap(),
            }
        }
    }

    /// Makes everything durable and remembers it as of now.
    fn note_state(&mut self) {
        self.database().sync().unwrap();
        let at_ns = self.clock.now();
        self.clock.pass(SECOND);
        let snapshot = (self.rng.below(3) == 0).then(|| format!("s{at_ns}"));
        if let Some(name) = &snapshot {
            self.database().snapshots().create(name).unwrap();
        }
        if self.states.len() == STATES_MAX {
            let gone = self.states.remove(0);
            if let Some(name) = gone.snapshot {
                self.database().snapshots().destroy(&name).unwrap();
            }
        }
        let model = self.model.clone();
        self.states.push(State {
            at_ns,
            snapshot,
            model,
        });
    }

    fn forget_snapshot(&mut self) {
        let found = self
            .states
            .iter()
            .position(|state| state.snapshot.is_some());
        if let Some(at) = found
            && let Some(name) = self.states.remove(at).snapshot
        {
            self.database().snapshots().destroy(&name).unwrap();
        }
    }

    /// What a process that was killed leaves: the files as they are, some of them not synced.
    fn kill(&mut self) {
        self.database().sync().unwrap();
        let unsynced = self.rng.below(2) == 0;
        let before = self.model.clone();
        if unsynced && let Some(path) = self.pick_file() {
            self.write(&path, 0, 5000);
        }
        let from = self.path();
        self.life += 1;
        let to = self.path();
        crash(&from, &to);
        drop(self.database.take());
        let database = self.clock.open(&to);
        let mut found = Model::new();
        walk(&database, NodeId::ROOT, "", &mut found);
        if found == before {
            self.model = before; // The last write was not durable.
        }
        self.database = Some(database);
        self.count("kill");
    }

    fn look(&mut self) {
        let database = self.database();
        let mut found = Model::new();
        walk(&database, NodeId::ROOT, "", &mut found);
        let what = self.what();
        assert!(
            found == self.model,
            "{what}:\n{}",
            explain(&self.model, &found)
        );
        let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
        assert_eq!(report.findings, Vec::<String>::new(), "{what}");
    }

    fn look_back(&mut self) {
        let database = self.database();
        database.sync().unwrap();
        let what = self.what();
        for state in std::mem::take(&mut self.states) {
            let past = match database.as_of(&state.moment()) {
                // Given up.
                Err(error) if error.kind() == ErrorKind::InvalidInput => continue,
                past => past.unwrap(),
            };
            let mut found = Model::new();
            walk(&past, NodeId::ROOT, "", &mut found);
            assert!(
                found == state.model,
                "{what}, as of {}: HISTORY-3\n{}",
                state.at_ns,
                explain(&state.model, &found)
            );
            past.close().unwrap();
            self.count("past");
            self.states.push(state);
        }
    }
}

fn run(seed: u64, steps: u32, mib: u64) -> Run {
    let mut run = Run::new(seed, mib);
    for step in 0..steps {
        run.step = step;
        run.step();
        run.look();
        if step % 10 == 9 {
            run.look_back();
        }
    }
    // When all is gone nothing is left.
    let is_root =
        |path: &&String| (above(path).is_empty() || above(path) == STORE) && *path != STORE;
    let roots: Vec<String> = run.model.keys().filter(is_root).cloned().collect();
    for path in roots {
        run.remove(&path);
    }
    while run.states.iter().any(|state| state.snapshot.is_some()) {
        run.forget_snapshot();
    }
    run.clock.pass(2 * HOUR);
    let database = run.database();
    database.sync().unwrap();
    run.look();
    let space = database.maintenance().space().unwrap();
    assert_eq!(space.live_bytes, 0, "seed {seed}: SHARE-2");
    assert_eq!(
        database.maintenance().stats().unwrap().shared_bytes,
        0,
        "seed {seed}"
    );
    database
        .history()
        .prune(larder::PruneCut::All, None, false)
        .unwrap();
    assert_eq!(
        database.maintenance().space().unwrap().retired_bytes,
        0,
        "seed {seed}"
    );
    assert_clean(&database);
    run
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn what_comes_out_of_the_past_is_what_the_model_says() {
    run_seeds(1..=4);
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn what_comes_out_of_the_past_is_what_the_model_says_for_many_seeds() {
    run_seeds(1..=16);
}

fn run_seeds(seeds: RangeInclusive<u64>) {
    let only = setting("LARDER_SEED");
    let steps = setting("LARDER_STEPS").unwrap_or(150) as u32;
    let seeds: Vec<u64> = only.map_or_else(|| seeds.collect(), |seed| vec![seed]);
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut taken = (0, 0);
    for seed in &seeds {
        let done = run(*seed, steps, 96);
        for (what, count) in &done.counts {
            *counts.entry(what).or_default() += count;
        }
        taken = (taken.0 + done.taken.0, taken.1 + done.taken.1);
    }
    println!(
        "{counts:?}; {} bytes came back, {} copied",
        taken.0, taken.1
    );
    if seeds.len() > 1 {
        for what in [
            "clone of the past",
            "restore",
            "copy of the past",
            "clone",
            "defrag",
            "kill",
            "reopen",
            "prune",
            "past",
            "insert",
            "remove",
        ] {
            assert!(
                counts
                    .get(what)
                    .is_some_and(|&count| count as usize >= seeds.len() * 5 / 8),
                "{what}: {counts:?}"
            );
        }
        // Most of the files are written to by small overwrites, and redo rows of then are copied.
        assert!(taken.1 < taken.0 / 2, "{taken:?}");
    }
}
