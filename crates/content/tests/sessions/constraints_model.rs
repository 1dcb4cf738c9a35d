//! What the user's rules refuse goes, and nothing else: random operations and rules against a model
//! (`CONSTRAINT-1`).

use super::constraints::{FROZEN, open_quiet};
use crate::common::others::plain;
use crate::common::{OWNER, content, create, name, scratch};
use larder::*;
use std::collections::BTreeMap;

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

/// The history without what was refused and what depends on it: operations of refused inodes, and
/// those that would not do the same without these.
fn without(start: &World, done: &[Done], frozen: &[u64]) -> (World, usize) {
    let after = done.iter().fold(start.clone(), |mut world, one| {
        world.run(&one.operation, one.made);
        world
    });
    // A row that came and went within the group is never written.
    let is_written = |ino: &u64| start.inodes.contains_key(ino) || after.inodes.contains_key(ino);
    let mut refused: Vec<u64> = frozen.iter().copied().filter(is_written).collect();
    let is_touched = |ino: &u64| {
        done.iter()
            .any(|one| one.subjects.contains(ino) || one.operation.directories().contains(ino))
    };
    refused.retain(is_touched);
    loop {
        let before = refused.len();
        let mut world = start.clone();
        let mut out = 0;
        for one in done {
            let is_refused = (one.subjects.iter()).any(|ino| refused.contains(ino))
                || one
                    .operation
                    .directories()
                    .iter()
                    .any(|dir| refused.contains(dir));
            let mut tried = world.clone();
            if !is_refused && tried.run(&one.operation, one.made).as_ref() == Some(&one.subjects) {
                world = tried;
                continue;
            }
            out += 1;
            for ino in &one.subjects {
                if !refused.contains(ino) {
                    refused.push(*ino);
                }
            }
        }
        if refused.len() == before {
            return (world, out);
        }
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
        let db = create(dir.path(), None);
        db.close().unwrap();
        plain(dir.path(), FROZEN);
        let mut db = open_quiet(dir.path());
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % below
        };
        let mut world = World::default();
        for round in 0..rounds {
            let start = world.clone();
            let mut done: Vec<Done> = Vec::new();
            for _ in 0..1 + next(10) {
                let mut directories = vec![1];
                let found = world.inodes.iter().filter(|(_, inode)| inode.is_directory);
                directories.extend(found.map(|(ino, _)| *ino));
                let files = world.inodes.iter().filter(|(_, inode)| !inode.is_directory);
                let files: Vec<u64> = files.map(|(ino, _)| *ino).collect();
                let mut dir = || directories[next(directories.len() as u64) as usize];
                let (one, other) = (dir(), dir());
                let mut text = || format!("n{}", next(4));
                let (a, b) = (text(), text());
                let file = match files.is_empty() {
                    true => 999_999,
                    false => files[next(files.len() as u64) as usize],
                };
                let operation = match next(9) {
                    0 | 1 => Operation::Make(one, a, false),
                    2 => Operation::Make(one, a, true),
                    3 | 4 => {
                        let len = [3, 50, 5000, 70_000][next(4) as usize];
                        let salt = next(256) as u8;
                        Operation::Write(file, next(3000), vec![salt; len])
                    }
                    5 => Operation::Mode(file, 0o600 + next(8) as u32),
                    6 => Operation::Remove(one, a),
                    7 => Operation::Rename(one, a, other, b),
                    _ => Operation::Link(file, one, a),
                };
                let mut tried = world.clone();
                let is_known = file != 999_999;
                if !is_known
                    && matches!(
                        operation,
                        Operation::Write(..) | Operation::Mode(..) | Operation::Link(..)
                    )
                {
                    continue;
                }
                let outcome = operation.run(&db);
                let made = *outcome.as_ref().unwrap_or(&0);
                let expected = tried.run(&operation, made);
                let context = format!("seed {seed}, round {round}: {operation:?}: {outcome:?}");
                match expected {
                    Some(subjects) => {
                        outcome.expect(&context);
                        world = tried;
                        done.push(Done {
                            operation,
                            made,
                            subjects,
                        });
                    }
                    // A rename of an inode over itself does nothing.
                    None => assert!(
                        outcome.is_err() || matches!(operation, Operation::Rename(..)),
                        "{context}"
                    ),
                }
            }
            operations += done.len();
            // Some of what there was or is now is frozen when it is to be committed.
            let known: Vec<u64> = (start.inodes.keys().chain(world.inodes.keys()).copied())
                .filter(|_| next(6) == 0)
                .collect();
            for ino in &known {
                plain(
                    dir.path(),
                    &format!("INSERT OR IGNORE INTO frozen VALUES ({ino})"),
                );
            }
            let (expected, out) = without(&start, &done, &known);
            refused += out;
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
            let context = format!("seed {seed}, round {round}: frozen {known:?}, done {done:?}");
            assert!(
                shown(&db) == expected,
                "CONSTRAINT-2: {}",
                context.chars().take(2000).collect::<String>()
            );
            world = expected;
            if round % 8 == 7 {
                drop(db.close());
                db = open_quiet(dir.path());
                assert!(
                    shown(&db) == world,
                    "CONSTRAINT-1, CONSTRAINT-3: {context:.2000}"
                );
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
