//! What the user's rules refuse goes, and nothing else: random operations and rules against a model
//! (`CONSTRAINT-1`).

use super::constraints::{FROZEN, open_quiet};
use super::constraints_world::{Asides, Done, Operation, World, shown};
use crate::common::others::plain;
use crate::common::{assert_clean, create, scratch};
use larder::*;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// What is left of operations.
struct Left {
    world: World,
    done: Vec<Done>,
    /// Inodes of which nothing is done.
    refused: Vec<u64>,
}

/// Inodes of which the rules let no row be written, and those of which none may be updated.
struct Frozen {
    wholly: Vec<u64>,
    as_is: Vec<u64>,
}

impl Frozen {
    /// What SQL freezes them.
    fn sql(&self) -> String {
        let rows = |table: &str, inos: &[u64]| -> String {
            let rows = inos.iter();
            rows.map(|ino| format!("INSERT OR IGNORE INTO {table} VALUES ({ino}); "))
                .collect()
        };
        rows("frozen", &self.wholly) + &rows("as_is", &self.as_is)
    }

    /// What a commit of `done` would write of them.
    fn refuse(&self, start: &World, done: &[Done]) -> Vec<u64> {
        let after = done.iter().fold(start.clone(), |mut world, one| {
            world.run(&one.operation, one.made);
            world
        });
        let (was, is) = (&start.inodes, &after.inodes);
        let is_touched = |ino: &u64| {
            done.iter()
                .any(|one| one.subjects.contains(ino) || one.operation.directories().contains(ino))
        };
        let wholly = self.wholly.iter().copied();
        // A row that came and went within the group is never written.
        let wholly = wholly.filter(|ino| was.contains_key(ino) || is.contains_key(ino));
        let as_is = self.as_is.iter().copied();
        let as_is = as_is.filter(|ino| was.contains_key(ino) && is.contains_key(ino));
        wholly.chain(as_is).filter(is_touched).collect()
    }

    /// What is left of a commit.
    fn commit(&self, start: &World, done: &[Done]) -> Left {
        let mut refused = self.refuse(start, done);
        let mut stays = Vec::new();
        loop {
            let left = without(start, done, refused, &stays);
            // A directory that stays is updated.
            let removed = done.iter().filter_map(|one| one.removed);
            let new: Vec<u64> = removed
                .filter(|ino| left.world.inodes.contains_key(ino) && !stays.contains(ino))
                .collect();
            let is_over = !new.iter().any(|ino| self.as_is.contains(ino));
            if is_over {
                return left;
            }
            let updated = new.iter().filter(|ino| self.as_is.contains(ino));
            refused = left.refused.iter().chain(updated).copied().collect();
            stays.extend(new);
        }
    }
}

/// The history without what is refused and what depends on it: operations of refused inodes, and
/// those that would not do the same without these.
/// `stays`: directories that are not removed.
fn without(start: &World, done: &[Done], refused: Vec<u64>, stays: &[u64]) -> Left {
    let is_out = vec![false; done.len()];
    let mut taken = Taken { refused, is_out };
    for (index, one) in done.iter().enumerate() {
        if one.removed.is_some_and(|ino| stays.contains(&ino)) {
            taken.take(start, done, index);
        }
    }
    taken.close(start, done);
    'again: loop {
        let before = taken.clone();
        let (mut world, mut left) = (start.clone(), Vec::new());
        for (index, one) in done.iter().enumerate() {
            if taken.is_out[index] {
                continue;
            }
            let mut tried = world.clone();
            if tried.run(&one.operation, one.made).as_ref() == Some(&one.subjects) {
                world = tried;
                left.push(one.clone());
                continue;
            }
            taken.take(start, done, index);
            if taken.close(start, done) < index {
                // What was judged since was so beside one that is refused now.
                taken = before;
                taken.take(start, done, index);
                taken.close(start, done);
                continue 'again;
            }
        }
        return Left {
            world,
            done: left,
            refused: taken.refused,
        };
    }
}

#[derive(Clone)]
struct Taken {
    /// Inodes of which nothing is done.
    refused: Vec<u64>,
    /// The operations that are refused.
    is_out: Vec<bool>,
}

impl Taken {
    /// An operation is refused, and what it changes.
    fn take(&mut self, start: &World, done: &[Done], index: usize) {
        self.is_out[index] = true;
        let one = &done[index];
        // A directory that was to be removed stays; what else was done in it is done.
        let removed = one.removed.filter(|ino| start.inodes.contains_key(ino));
        for ino in one.subjects.iter().filter(|ino| Some(**ino) != removed) {
            if !self.refused.contains(ino) {
                self.refused.push(*ino);
            }
        }
    }

    /// So is what is about something refused; the first operation.
    fn close(&mut self, start: &World, done: &[Done]) -> usize {
        let mut first = usize::MAX;
        loop {
            let is_about = |one: &Done| {
                let directories = one.operation.directories();
                let about = one.subjects.iter().chain(&directories);
                about
                    .chain(&one.successor)
                    .any(|ino| self.refused.contains(ino))
            };
            let mut left = (0..done.len()).filter(|index| !self.is_out[*index]);
            let Some(index) = left.find(|index| is_about(&done[*index])) else {
                return first;
            };
            first = first.min(index);
            self.take(start, done, index);
        }
    }
}

struct Random {
    state: u64,
    /// Of this session.
    asides: Asides,
}

impl Random {
    fn of(seed: u64) -> Random {
        Random {
            state: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed),
            asides: Asides::default(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % end
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
        Some(match self.below(10) {
            0 | 1 => Operation::Make(one, a, false),
            2 => Operation::Make(one, a, true),
            3 | 4 => {
                let len = [3, 50, 5000, 70_000][self.below(4) as usize];
                let salt = self.below(256) as u8;
                Operation::Write(file?, self.below(3000), len, salt)
            }
            5 => Operation::Mode(file?, 0o600 + self.below(8) as u32),
            6 => Operation::Remove(one, a),
            7 => Operation::Rename(one, a, other, b),
            8 => Operation::Exchange(one, a, other, b),
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
                    let successor = self.asides.note(world, &operation);
                    *world = tried;
                    done.push(Done {
                        operation,
                        made,
                        subjects,
                        removed,
                        successor,
                    });
                }
                // A rename of an inode over itself does nothing.
                None => assert!(
                    outcome.is_err()
                        || matches!(operation, Operation::Rename(..) | Operation::Exchange(..)),
                    "{context}"
                ),
            }
        }
        done
    }

    /// Some of what there was or is.
    fn freeze(&mut self, start: &World, world: &World) -> Frozen {
        let all = start.inodes.keys().chain(world.inodes.keys()).copied();
        let all: Vec<u64> = all.collect();
        let mut some = |one_of: u64| {
            all.iter()
                .copied()
                .filter(|_| self.below(one_of) == 0)
                .collect()
        };
        Frozen {
            wholly: some(8),
            as_is: some(8),
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
        create(dir.path(), None).close().unwrap();
        plain(dir.path(), &rules());
        let mut db = open_quiet(dir.path());
        let mut random = Random::of(seed);
        let mut world = World::default();
        for round in 0..rounds {
            let start = world.clone();
            let context = format!("seed {seed}, round {round}");
            let done = random.operate(&db, &mut world, &context);
            operations += done.len();
            // It is frozen when it is to be committed.
            let frozen = random.freeze(&start, &world);
            plain(dir.path(), &frozen.sql());
            let left = frozen.commit(&start, &done);
            refused += done.len() - left.done.len();
            let is_known = |ino: &u64| frozen.wholly.contains(ino);
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
            plain(dir.path(), "DELETE FROM frozen; DELETE FROM as_is");
            world = left.world;
            let Frozen { wholly, as_is } = frozen;
            let context = format!("{context}: frozen {wholly:?}, as is {as_is:?}, done {done:?}");
            assert_shown(&db, &world, &context);
            if round % 8 == 7 {
                db = reopen(dir.path(), db);
                random.asides = Asides::default();
                assert_shown(&db, &world, &context);
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

fn rules() -> String {
    format!(
        "{FROZEN} CREATE TABLE as_is (ino INTEGER PRIMARY KEY); \
         CREATE TRIGGER f4 BEFORE UPDATE ON main WHEN old.ino IN (SELECT ino FROM as_is) \
           BEGIN SELECT RAISE(ABORT, 'it stays as it is'); END; "
    )
}

/// The same database in another session, checked.
fn reopen(dir: &Path, db: Database) -> Database {
    drop(db.close()); // It tells what was refused.
    let db = open_quiet(dir);
    assert_clean(&db);
    db
}

fn assert_shown(db: &Database, world: &World, context: &str) {
    assert!(
        shown(db) == *world,
        "CONSTRAINT-1, CONSTRAINT-2, CONSTRAINT-3, NAMES-2: {context}"
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
            let (late, frozen) = std::thread::scope(|scope| {
                let commit = scope.spawn(|| db.sync());
                while !commit.is_finished()
                    && db.maintenance().gauges().unwrap().dirty_inode_count > 0
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let late = random.operate(&db, &mut world, &context);
                let frozen = random.freeze(&start, &world);
                client.commit(&(rules() + &frozen.sql()));
                commit.join().unwrap().unwrap();
                (late, frozen)
            });
            db.sync().unwrap();
            plain(
                dir.path(),
                "DROP TRIGGER f1; DROP TRIGGER f2; DROP TRIGGER f3; DROP TRIGGER f4; \
                 DROP TABLE frozen; DROP TABLE as_is",
            );
            db.sync().unwrap();
            let first = frozen.commit(&start, &early);
            // What is later, and about the same, goes with it.
            let behind = without(&first.world, &late, first.refused, &[]);
            let behind = behind.done;
            let last = frozen.commit(&first.world, &behind);
            early_refused += early.len() - first.done.len();
            dependent += late.len() - behind.len();
            late_refused += behind.len() - last.done.len();
            world = last.world;
            let Frozen { wholly, as_is } = frozen;
            let context = format!("{context}: frozen {wholly:?}, as is {as_is:?}");
            let context = format!("{context}, done {early:?}, then {late:?}");
            assert_shown(&db, &world, &context);
            if round % 8 == 7 {
                db = reopen(dir.path(), db);
                random.asides = Asides::default();
                assert_shown(&db, &world, &context);
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
