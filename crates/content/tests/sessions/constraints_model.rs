//! What the user's rules refuse goes, and nothing else: random operations and rules against a model
//! (`CONSTRAINT-1`).

use super::constraints::{FROZEN, open_quiet};
use crate::common::others::plain;
use crate::common::{OWNER, content, create, name, scratch};
use larder::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// A file or directory of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inode {
    is_directory: bool,
    mode: u32,
    content: Vec<u8>,
}

/// What there is: names, and what they lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct World {
    names: BTreeMap<(u64, String), u64>,
    inodes: BTreeMap<u64, Inode>,
}

#[derive(Debug, Clone)]
enum Operation {
    Make(u64, String, bool),
    Write(u64, u64, Vec<u8>),
    Mode(u64, u32),
    Remove(u64, String),
    Rename(u64, String, u64, String),
    Link(u64, u64, String),
}

/// An operation as it was answered: what it was, and the inodes that it changed, but for
/// directories that only got or lost names.
#[derive(Debug, Clone)]
struct Done {
    operation: Operation,
    made: u64,
    subjects: Vec<u64>,
    /// The directory that it removed or replaced.
    removed: Option<u64>,
}

impl World {
    fn at(&self, dir: u64, text: &str) -> Option<u64> {
        self.names.get(&(dir, text.to_owned())).copied()
    }

    fn is_empty(&self, dir: u64) -> bool {
        !self.names.keys().any(|(parent, _)| *parent == dir)
    }

    fn is_below(&self, mut dir: u64, top: u64) -> bool {
        while dir != 1 {
            if dir == top {
                return true;
            }
            match self.names.iter().find(|(_, ino)| **ino == dir) {
                Some(((parent, _), _)) => dir = *parent,
                None => return false,
            }
        }
        false
    }

    fn drop_if_nameless(&mut self, ino: u64) {
        if !self.names.values().any(|one| *one == ino) {
            self.inodes.remove(&ino);
        }
    }

    /// Does a operation; the inodes that it changes, or `None` if it is refused. `made` is what it
    /// makes.
    fn run(&mut self, operation: &Operation, made: u64) -> Option<Vec<u64>> {
        let has = |world: &World, dir: u64| dir == 1 || world.inodes.contains_key(&dir);
        match operation {
            Operation::Make(dir, text, is_directory) => {
                if !has(self, *dir) || self.at(*dir, text).is_some() {
                    return None;
                }
                let inode = Inode {
                    is_directory: *is_directory,
                    mode: 0o700,
                    content: Vec::new(),
                };
                self.inodes.insert(made, inode);
                self.names.insert((*dir, text.clone()), made);
                Some(vec![made])
            }
            Operation::Write(ino, offset, bytes) => {
                let inode = self.inodes.get_mut(ino)?;
                let end = *offset as usize + bytes.len();
                inode.content.resize(inode.content.len().max(end), 0);
                inode.content[*offset as usize..end].copy_from_slice(bytes);
                Some(vec![*ino])
            }
            Operation::Mode(ino, mode) => {
                self.inodes.get_mut(ino)?.mode = *mode;
                Some(vec![*ino])
            }
            Operation::Remove(dir, text) => {
                let ino = self.at(*dir, text)?;
                if self.inodes[&ino].is_directory && !self.is_empty(ino) {
                    return None;
                }
                self.names.remove(&(*dir, text.clone()));
                self.drop_if_nameless(ino);
                Some(vec![ino])
            }
            Operation::Rename(from, text, to, new) => {
                let ino = self.at(*from, text)?;
                if !has(self, *to) || self.is_below(*to, ino) {
                    return None;
                }
                let old = self.at(*to, new);
                if old == Some(ino) {
                    return None;
                }
                if let Some(old) = old {
                    let is_directory = |ino: u64| self.inodes[&ino].is_directory;
                    if is_directory(old) != is_directory(ino)
                        || (is_directory(old) && !self.is_empty(old))
                    {
                        return None;
                    }
                }
                self.names.remove(&(*from, text.clone()));
                self.names.insert((*to, new.clone()), ino);
                old.iter().for_each(|old| self.drop_if_nameless(*old));
                Some(std::iter::once(ino).chain(old).collect())
            }
            Operation::Link(ino, dir, text) => {
                let is_file = !self.inodes.get(ino)?.is_directory;
                if !is_file || !has(self, *dir) || self.at(*dir, text).is_some() {
                    return None;
                }
                self.names.insert((*dir, text.clone()), *ino);
                Some(vec![*ino])
            }
        }
    }
}

impl Operation {
    /// The directory that it is to remove, or to replace.
    fn removed_directory(&self, world: &World) -> Option<u64> {
        let found = match self {
            Operation::Remove(dir, text) => world.at(*dir, text),
            Operation::Rename(_, _, to, new) => world.at(*to, new),
            _ => None,
        };
        found.filter(|ino| world.inodes[ino].is_directory)
    }

    /// Directories whose names it changes.
    fn directories(&self) -> Vec<u64> {
        match self {
            Operation::Make(dir, ..) | Operation::Remove(dir, _) | Operation::Link(_, dir, _) => {
                vec![*dir]
            }
            Operation::Rename(from, _, to, _) => vec![*from, *to],
            Operation::Write(..) | Operation::Mode(..) => vec![],
        }
    }

    fn run(&self, db: &Database) -> larder::Result<u64> {
        let node = |ino: u64| NodeId {
            ino: larder::format::Ino(ino),
            ..NodeId::ROOT
        };
        match self {
            Operation::Make(dir, text, is_directory) => {
                let new = match is_directory {
                    true => larder::NewNode::Directory,
                    false => larder::NewNode::File,
                };
                let made = db.create_node(node(*dir), &name(text), new, 0o700, OWNER)?;
                Ok(made.node.ino.0)
            }
            Operation::Write(ino, offset, bytes) => {
                db.open_file(node(*ino), true)?.write_at(*offset, bytes)?;
                Ok(0)
            }
            Operation::Mode(ino, mode) => {
                let set = SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                };
                db.set_attr(node(*ino), &set).map(|_| 0)
            }
            Operation::Remove(dir, text) => {
                let found = db.lookup(node(*dir), &name(text))?;
                match found.kind {
                    larder::format::FileKind::Directory => db.remove_dir(node(*dir), &name(text)),
                    _ => db.unlink(node(*dir), &name(text)),
                }
                .map(|()| 0)
            }
            Operation::Rename(from, text, to, new) => db
                .rename(
                    node(*from),
                    &name(text),
                    node(*to),
                    &name(new),
                    RenameMode::Replace,
                )
                .map(|()| 0),
            Operation::Link(ino, dir, text) => {
                db.link(node(*ino), node(*dir), &name(text)).map(|_| 0)
            }
        }
    }
}

fn shown(db: &Database) -> World {
    let mut world = World::default();
    let mut left = vec![NodeId::ROOT];
    while let Some(dir) = left.pop() {
        let mut directories = 0;
        for entry in db.read_dir(dir, None, 1000).unwrap() {
            let attr = db.attr(entry.node).unwrap();
            let is_directory = attr.kind == larder::format::FileKind::Directory;
            directories += u32::from(is_directory);
            let ino = entry.node.ino.0;
            world.names.insert((dir.ino.0, entry.name.to_string()), ino);
            let inode = Inode {
                is_directory,
                mode: attr.mode,
                content: match is_directory {
                    true => Vec::new(),
                    false => content(db, entry.node),
                },
            };
            world.inodes.insert(ino, inode);
            if is_directory {
                left.push(entry.node);
            }
        }
        let links = db.attr(dir).unwrap().nlink;
        assert_eq!(links, directories + 2, "links of directory {}", dir.ino);
    }
    for (ino, inode) in world.inodes.iter().filter(|(_, inode)| !inode.is_directory) {
        let names = world.names.values().filter(|one| *one == ino).count();
        let node = NodeId {
            ino: larder::format::Ino(*ino),
            ..NodeId::ROOT
        };
        assert_eq!(db.attr(node).unwrap().nlink as usize, names, "{inode:?}");
    }
    world
}

/// What is left of operations.
struct Left {
    world: World,
    done: Vec<Done>,
    /// Inodes of which nothing is done.
    refused: Vec<u64>,
}

/// Those of `frozen` that a commit of `done` would write.
fn written(start: &World, done: &[Done], frozen: &[u64]) -> Vec<u64> {
    let after = done.iter().fold(start.clone(), |mut world, one| {
        world.run(&one.operation, one.made);
        world
    });
    // A row that came and went within the group is never written.
    let is_written = |ino: &u64| start.inodes.contains_key(ino) || after.inodes.contains_key(ino);
    let is_touched = |ino: &u64| {
        done.iter()
            .any(|one| one.subjects.contains(ino) || one.operation.directories().contains(ino))
    };
    let frozen = frozen.iter().copied();
    frozen.filter(is_written).filter(is_touched).collect()
}

/// The history without what is refused and what depends on it: operations of refused inodes, and
/// those that would not do the same without these.
fn without(start: &World, done: &[Done], mut refused: Vec<u64>) -> Left {
    loop {
        let before = refused.len();
        let mut world = start.clone();
        let mut left = Vec::new();
        for one in done {
            let directories = one.operation.directories();
            let mut about = one.subjects.iter().chain(&directories);
            let is_refused = about.any(|ino| refused.contains(ino));
            let mut tried = world.clone();
            if !is_refused && tried.run(&one.operation, one.made).as_ref() == Some(&one.subjects) {
                world = tried;
                left.push(one.clone());
                continue;
            }
            // A directory that was to be removed stays; what else was done in it is done.
            let removed = one.removed.filter(|ino| start.inodes.contains_key(ino));
            for ino in one.subjects.iter().filter(|ino| Some(**ino) != removed) {
                if !refused.contains(ino) {
                    refused.push(*ino);
                }
            }
        }
        if refused.len() == before {
            return Left {
                world,
                done: left,
                refused,
            };
        }
    }
}

struct Random(u64);

impl Random {
    fn of(seed: u64) -> Random {
        Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    /// An operation on what there is; `None`: there is no file.
    fn operation(&mut self, world: &World) -> Option<Operation> {
        let mut directories = vec![1];
        let found = world.inodes.iter().filter(|(_, inode)| inode.is_directory);
        directories.extend(found.map(|(ino, _)| *ino));
        let files = world.inodes.iter().filter(|(_, inode)| !inode.is_directory);
        let files: Vec<u64> = files.map(|(ino, _)| *ino).collect();
        let mut dir = || directories[self.below(directories.len() as u64) as usize];
        let (one, other) = (dir(), dir());
        let mut text = || format!("n{}", self.below(4));
        let (a, b) = (text(), text());
        let file = match files.is_empty() {
            true => None,
            false => Some(files[self.below(files.len() as u64) as usize]),
        };
        Some(match self.below(9) {
            0 | 1 => Operation::Make(one, a, false),
            2 => Operation::Make(one, a, true),
            3 | 4 => {
                let len = [3, 50, 5000, 70_000][self.below(4) as usize];
                let salt = self.below(256) as u8;
                Operation::Write(file?, self.below(3000), vec![salt; len])
            }
            5 => Operation::Mode(file?, 0o600 + self.below(8) as u32),
            6 => Operation::Remove(one, a),
            7 => Operation::Rename(one, a, other, b),
            _ => Operation::Link(file?, one, a),
        })
    }

    /// Does some operations, in the database and in `world`.
    fn operate(&mut self, db: &Database, world: &mut World, context: &str) -> Vec<Done> {
        let mut done = Vec::new();
        for _ in 0..1 + self.below(10) {
            let Some(operation) = self.operation(world) else {
                continue;
            };
            let mut tried = world.clone();
            let outcome = operation.run(db);
            let made = *outcome.as_ref().unwrap_or(&0);
            let context = format!("{context}: {operation:?}: {outcome:?}");
            match tried.run(&operation, made) {
                Some(subjects) => {
                    outcome.expect(&context);
                    let removed = operation.removed_directory(world);
                    *world = tried;
                    done.push(Done {
                        operation,
                        made,
                        subjects,
                        removed,
                    });
                }
                // A rename of an inode over itself does nothing.
                None => assert!(
                    outcome.is_err() || matches!(operation, Operation::Rename(..)),
                    "{context}"
                ),
            }
        }
        done
    }

    /// Some of what there was or is.
    fn some_of(&mut self, start: &World, world: &World) -> Vec<u64> {
        let all = start.inodes.keys().chain(world.inodes.keys()).copied();
        all.filter(|_| self.below(6) == 0).collect()
    }
}

#[test]
fn what_is_left_is_the_history_without_the_refused_operations() {
    compare(1..=3, 40);
}

#[test]
#[ignore = "minutes; cargo xtask soak"]
fn what_is_left_in_many_worlds() {
    compare(100..=129, 120);
}

fn compare(seeds: std::ops::RangeInclusive<u64>, rounds: u64) {
    let (mut operations, mut refused) = (0, 0);
    // What goes although its own rows are accepted.
    let (mut below, mut over) = (0, 0);
    for seed in seeds {
        let dir = scratch();
        create(dir.path(), None).close().unwrap();
        plain(dir.path(), FROZEN);
        let mut db = open_quiet(dir.path());
        let mut random = Random::of(seed);
        let mut world = World::default();
        for round in 0..rounds {
            let start = world.clone();
            let context = format!("seed {seed}, round {round}");
            let done = random.operate(&db, &mut world, &context);
            operations += done.len();
            // It is frozen when it is to be committed.
            let known = random.some_of(&start, &world);
            plain(dir.path(), &freeze(&known));
            let left = without(&start, &done, written(&start, &done, &known));
            refused += done.len() - left.done.len();
            let is_known = |ino: &u64| known.contains(ino);
            for one in &done {
                let subjects = one.subjects.iter().any(is_known);
                let directories = one.operation.directories();
                below += usize::from(!subjects && directories.iter().any(is_known));
                let is_over = matches!(one.operation, Operation::Rename(..))
                    && one.subjects.len() == 2
                    && subjects;
                over += usize::from(is_over);
            }
            db.sync().unwrap();
            plain(dir.path(), "DELETE FROM frozen");
            world = left.world;
            let context = format!("{context}: frozen {known:?}, done {done:?}");
            assert_shown(&db, &world, &context);
            if round % 8 == 7 {
                drop(db.close());
                db = open_quiet(dir.path());
                assert_shown(&db, &world, &context);
                let report = db.check(true, &mut |_, _| {}).unwrap();
                assert!(report.findings.is_empty(), "{:?}", report.findings);
            }
        }
        drop(db.close());
    }
    eprintln!(
        "{operations} operations, {refused} refused or dependent, {below} below, {over} over"
    );
    assert!(
        below > 0 && over > 0,
        "{below} names below, {over} renames over"
    );
    assert!(refused > 20, "{refused} of {operations}");
}

fn freeze(inos: &[u64]) -> String {
    let rows = inos.iter();
    rows.map(|ino| format!("INSERT OR IGNORE INTO frozen VALUES ({ino}); "))
        .collect()
}

fn assert_shown(db: &Database, world: &World, context: &str) {
    assert!(
        shown(db) == *world,
        "CONSTRAINT-1, CONSTRAINT-2, CONSTRAINT-3, NAMES-2: {}",
        context.chars().take(4000).collect::<String>()
    );
}

#[test]
fn what_comes_while_a_commit_is_refused_is_left_without_it() {
    compare_late(1..=2, 20);
}

#[test]
#[ignore = "minutes; cargo xtask soak"]
fn what_comes_while_commits_are_refused_in_many_worlds() {
    compare_late(100..=119, 80);
}

/// The rules come while a commit waits for their maker's lock, and the open group gets operations
/// that none of them was asked about.
fn compare_late(seeds: std::ops::RangeInclusive<u64>, rounds: u64) {
    let (mut early_refused, mut late_refused, mut dependent) = (0, 0, 0);
    for seed in seeds {
        let dir = scratch();
        create(dir.path(), None).close().unwrap();
        let mut db = open_quiet(dir.path());
        let mut random = Random::of(seed);
        let mut world = World::default();
        for round in 0..rounds {
            let start = world.clone();
            let context = format!("seed {seed}, round {round}");
            let early = random.operate(&db, &mut world, &context);
            let client = Client::begin(dir.path());
            let (late, known) = std::thread::scope(|scope| {
                let commit = scope.spawn(|| db.sync());
                while !early.is_empty() && db.gauges().unwrap().dirty_inode_count > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let late = random.operate(&db, &mut world, &context);
                let known = random.some_of(&start, &world);
                client.commit(&format!("{FROZEN} {}", freeze(&known)));
                commit.join().unwrap().unwrap();
                (late, known)
            });
            db.sync().unwrap();
            plain(
                dir.path(),
                "DROP TRIGGER f1; DROP TRIGGER f2; DROP TRIGGER f3; DROP TABLE frozen",
            );
            db.sync().unwrap();
            let first = without(&start, &early, written(&start, &early, &known));
            // What is later, and about the same, goes with it.
            let behind = without(&first.world, &late, first.refused);
            let behind = behind.done;
            let second = written(&first.world, &behind, &known);
            let last = without(&first.world, &behind, second);
            early_refused += early.len() - first.done.len();
            dependent += late.len() - behind.len();
            late_refused += behind.len() - last.done.len();
            world = last.world;
            let context = format!("{context}: frozen {known:?}, done {early:?}, then {late:?}");
            assert_shown(&db, &world, &context);
            if round % 8 == 7 {
                drop(db.close());
                db = open_quiet(dir.path());
                assert_shown(&db, &world, &context);
                let report = db.check(true, &mut |_, _| {}).unwrap();
                assert!(report.findings.is_empty(), "{:?}", report.findings);
            }
        }
        drop(db.close());
    }
    eprintln!("{early_refused} refused, {dependent} dependent, {late_refused} refused later");
    assert!(early_refused > 0 && dependent > 0 && late_refused > 0);
}

/// A client of SQL that holds the write lock.
struct Client {
    child: Child,
    input: ChildStdin,
}

impl Client {
    fn begin(dir: &Path) -> Client {
        let mut child = Command::new("sqlite3")
            .args(["-cmd", ".timeout 20000"])
            .arg(dir.join("t.larder/catalog.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the sqlite3 shell is needed; install it");
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "BEGIN IMMEDIATE; SELECT 'begun';").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "begun");
        Client { child, input }
    }

    fn commit(mut self, sql: &str) {
        writeln!(self.input, "{sql} COMMIT;").unwrap();
        drop(self.input);
        assert!(self.child.wait().unwrap().success(), "{sql}");
    }
}
