//! What changes much at once, and what it must leave: clones, restores, undo, promote, rollback,
//! prune.
//!
//! Each is done between two noted moments, so that what was is known.

use super::coverage::{PRUNE, ROLLBACK};
use super::seen::{EVERYTHING, Shows, Sight, as_shown, below, find_difference, see};
use super::{Branch, Was, World, is_refused};

use larder::{ErrorKind, Moment, PruneCut, RestoreOptions, RestoreReport, RestoreRows, StoreId};
use larder_testkit::EntryKind;

/// Stores that are made as clones, at most.
const STORE_CLONES_MAX: usize = 2;

/// Names in a branch, at most.
const ENTRIES_MAX: usize = 60;

/// A copy has the times of what it was made of, but for those that say when it was made.
const OF_A_COPY: Shows = Shows {
    numbers: false,
    small: true,
    root: true,
    changes: false,
    birth: false,
};

/// The number of whoever is at a path.
fn inode(sight: &Sight, path: &str) -> Option<u64> {
    sight.get(path).map(|seen| seen.entry.inode)
}

/// Content and mode, for files that nothing should have happened to.
fn is_same(one: &Sight, other: &Sight, path: &str) -> bool {
    let of = |sight: &Sight| {
        let seen = sight.get(path)?;
        let kind = match &seen.entry.kind {
            EntryKind::File {
                content, len_bytes, ..
            } => Some((*content, *len_bytes)),
            _ => None,
        };
        Some((seen.entry.inode, seen.entry.mode, seen.owner, kind))
    };
    of(one) == of(other)
}

fn lies_in(path: &str, above: &str) -> bool {
    path == above || path.starts_with(&format!("{above}/"))
}

impl World {
    /// The newest moment, which is now.
    pub(super) fn before(&mut self) -> Was {
        self.note_moment();
        self.moments[self.moments.len() - 1].clone()
    }

    /// Whether a branch can be seen as of a moment.
    fn is_shown(&mut self, was: &Was, nth: usize) -> bool {
        let shown = self.reached(&self.database.clone(), was);
        shown.contains(&self.branches[nth].store)
    }

    fn now(&self, branch: &Branch) -> Sight {
        see(&self.database, &branch.root).unwrap()
    }

    /// Nothing has happened to these branches.
    pub(super) fn require_unchanged(
        &self,
        was: &Was,
        how: &str,
        is_meant: impl Fn(&Branch) -> bool,
    ) {
        for branch in self.branches.iter().filter(|branch| is_meant(branch)) {
            self.require(was, how, branch, &self.now(branch), EVERYTHING);
        }
    }

    /// A path of a sight, not the root.
    fn pick_path(
        &mut self,
        sight: &Sight,
        fits: impl Fn(&str, &EntryKind) -> bool,
    ) -> Option<String> {
        let named = sight.iter().filter(|(path, _)| !path.is_empty());
        let fitting: Vec<&String> = named
            .filter(|(path, seen)| fits(path, &seen.entry.kind))
            .map(|(path, _)| path)
            .collect();
        (!fitting.is_empty()).then(|| (*self.rng.pick(&fitting)).clone())
    }

    /// A branch, and a moment in which it was there.
    fn pick_branch(&mut self) -> (usize, Was) {
        let nth = self.rng.below(self.branches.len() as u64) as usize;
        let was = self.pick();
        match was.sight(&self.branches[nth]) {
            Some(_) => (nth, was),
            None => (0, was),
        }
    }

    /// One of them.
    pub fn large_operation(&mut self) {
        let kinds = match self.options.has_store_retentions {
            true => 20,
            false => 14,
        };
        match self.rng.below(kinds) {
            0..4 => self.clone_path(),
            4..7 => self.restore(),
            7..10 => self.undo(),
            10..12 => self.promote(),
            12..14 => self.roll_back(),
            _ => self.keep_otherwise(),
        }
        self.note_moment();
    }

    /// A file, a tree or a symbolic link of now, or of then, again.
    fn clone_path(&mut self) {
        let now = self.before();
        let (nth, then) = self.pick_branch();
        let is_past = self.rng.chance(40);
        let source = match is_past {
            true => then,
            false => now.clone(),
        };
        let sight = source.sights[&self.branches[nth].store].clone();
        let Some(from) = self.pick_path(&sight, |_, _| true) else {
            return;
        };
        self.given += 1;
        let present = now.sights[&self.branches[nth].store].clone();
        if present.len() + below(&sight, &from).len() > ENTRIES_MAX {
            return;
        }
        let to = match self.pick_path(&present, |path, kind| {
            *kind == EntryKind::Directory && path.matches('/').count() < 4
        }) {
            Some(directory) => format!("{directory}/c{}", self.given),
            None => format!("/c{}", self.given),
        };
        let root = self.branches[nth].root.clone();
        let moment = self.name(&source);
        let past = is_past.then(|| self.database.as_of(&moment).unwrap());
        let is_reached = !is_past || self.is_shown(&source, nth);
        let (full_from, full_to) = (format!("{root}{from}"), format!("{root}{to}"));
        let outcome = self.database.files().clone_path(
            past.as_ref(),
            full_from.as_bytes(),
            full_to.as_bytes(),
        );
        drop(past);
        let how = format!("clone {from} {to} of commit {}", source.seq);
        if !is_reached {
            let name = self.branches[nth].name.clone();
            self.require_refused(&outcome.unwrap_err(), &source, &how, &[&name]);
            self.count("clone refused");
            return self.require_unchanged(&now, &how, |_| true);
        }
        let branch = &self.branches[nth];
        let found = self.now(branch);
        if !is_past && lies_in(&to, &from) {
            let refused = outcome.unwrap_err();
            assert_eq!(
                refused.kind(),
                ErrorKind::InvalidInput,
                "CLONE-1, seed {}: {refused}",
                self.seed
            );
            return self.require_unchanged(&now, &how, |_| true);
        }
        outcome.unwrap_or_else(|error| panic!("seed {}, {how}: {error}", self.seed));
        let expected = as_shown(&below(&sight, &from), OF_A_COPY);
        let copy = as_shown(&below(&found, &to), OF_A_COPY);
        if let Some(difference) = find_difference(&expected, &copy) {
            self.panic(&source, &how, branch, &difference);
        }
        for path in present.keys() {
            assert!(
                is_same(&present, &found, path),
                "CLONE-1, seed {}, {how}: {path}",
                self.seed
            );
        }
        assert_eq!(
            found.len(),
            present.len() + copy.len(),
            "CLONE-1, seed {}, {how}",
            self.seed
        );
        self.require_unchanged(&now, &how, |other| other.root != root);
        self.adopt(nth);
        self.count(match is_past {
            true => "clone of the past",
            false => "clone",
        });
    }

    /// A whole store again.
    pub fn clone_store(&mut self) {
        if self.branches.len() >= 3 + STORE_CLONES_MAX {
            return;
        }
        let now = self.before();
        let nth = 1 + self.rng.below(2) as usize;
        self.given += 1;
        let (from, to) = (self.branches[nth].root.clone(), format!("/c{}", self.given));
        let report = self
            .database
            .files()
            .clone_path(None, from.as_bytes(), to.as_bytes())
            .unwrap();
        assert!(report.is_store, "seed {}, {from}: {report:?}", self.seed);
        self.add_branch(&to);
        let made = self.branches.len() - 1;
        let expected = now.sight(&self.branches[nth]).unwrap();
        let branch = &self.branches[made];
        let (expected, found) = (below(expected, ""), below(&self.now(branch), ""));
        let (expected, found) = (as_shown(&expected, OF_A_COPY), as_shown(&found, OF_A_COPY));
        if let Some(difference) = find_difference(&expected, &found) {
            self.panic(&now, "clone of a store", branch, &difference);
        }
        self.require_unchanged(&now, "clone of a store", |_| true);
        self.adopt(made);
        self.note_moment();
        self.count("clone of a store");
    }

    /// A path, exactly or beside what is there, with the rows or without.
    fn restore(&mut self) {
        let now = self.before();
        let (nth, was) = self.pick_branch();
        let store = self.branches[nth].store;
        let (sight, present) = (was.sights[&store].clone(), now.sights[&store].clone());
        let Some(path) = self.pick_path(&sight, |_, _| true) else {
            return;
        };
        let (is_exact, has_rows) = (self.rng.chance(60), self.rng.chance(30));
        let mut options = RestoreOptions {
            is_exact,
            is_dry: true,
            ..RestoreOptions::default()
        };
        if has_rows {
            options.rows.push(RestoreRows {
                table: "album".into(),
                filter: None,
            });
        }
        let how = format!("restore {path} (exactly: {is_exact}, rows: {has_rows})");
        let root = self.branches[nth].root.clone();
        let full = format!("{root}{path}");
        let moment = self.name(&was);
        let past = self.database.as_of(&moment).unwrap();
        let is_reached = self.is_shown(&was, nth);
        let planned = self
            .database
            .history()
            .restore(&past, Some(full.as_bytes()), &options);
        self.require_unchanged(&now, "a dry restore", |_| true);
        options.is_dry = false;
        let outcome = self
            .database
            .history()
            .restore(&past, Some(full.as_bytes()), &options);
        drop(past);
        assert_eq!(
            planned.as_ref().map_err(|error| error.to_string()),
            (outcome.as_ref().map(RestoreReport::planned).as_ref())
                .map_err(|error| error.to_string()),
            "seed {}, {how}: a dry run tells what is done",
            self.seed
        );
        if !is_reached {
            let name = self.branches[nth].name.clone();
            self.require_refused(&outcome.unwrap_err(), &was, &how, &[&name]);
            self.count("restore refused before a store's history");
            return self.require_unchanged(&now, &how, |_| true);
        }
        if let Err(error) = outcome {
            let kinds = [ErrorKind::Exists, ErrorKind::NotADirectory];
            // Something else leads there now.
            let is_blocked = present.iter().any(|(above, seen)| {
                above != &path && lies_in(&path, above) && seen.entry.kind != EntryKind::Directory
            });
            let is_fine = (is_blocked || !is_exact) && is_refused(&error, &kinds)
                || has_rows && !is_exact && error.kind() == ErrorKind::Conflict;
            assert!(
                is_fine,
                "seed {}, {how} of commit {}: {error}",
                self.seed, was.seq
            );
            self.count("restore refused");
            return self.require_unchanged(&now, &how, |_| true);
        }
        let branch = &self.branches[nth];
        let found = self.now(branch);
        if is_exact {
            let of = |sight: &Sight| as_shown(&below(sight, &path), OF_A_COPY);
            if let Some(difference) = find_difference(&of(&sight), &of(&found)) {
                self.panic(&was, &how, branch, &difference);
            }
        } else {
            self.require_there(&was, &how, branch, (&*sight, &found), &path);
        }
        // CONTENT-12: nothing else changes, but for what came from there.
        let came: Vec<u64> = (sight.iter())
            .filter(|(other, _)| lies_in(other, &path))
            .map(|(_, seen)| seen.entry.inode)
            .collect();
        for (other, seen) in present.iter().filter(|(other, _)| !lies_in(other, &path)) {
            let is_below_one = present
                .iter()
                .any(|(above, seen)| lies_in(other, above) && came.contains(&seen.entry.inode));
            let has_name_there = present
                .iter()
                .any(|(name, of)| lies_in(name, &path) && of.entry.inode == seen.entry.inode);
            assert!(
                is_below_one || has_name_there || is_same(&present, &found, other),
                "CONTENT-12, seed {}, {how} of commit {}: {other} was {seen:?} and is {:?}",
                self.seed,
                was.seq,
                found.get(other)
            );
        }
        self.require_unchanged(&now, &how, |other| other.root != root);
        self.adopt(nth);
        if has_rows {
            match is_exact {
                true => self.rows = was.rows.clone(),
                false => self.rows.extend(was.rows.clone()),
            }
            self.count("restore with rows");
        }
        self.count(match is_exact {
            true => "exact restore",
            false => "restore",
        });
    }

    /// What was at `path` and below is there, whatever is beside it.
    fn require_there(
        &self,
        was: &Was,
        how: &str,
        branch: &Branch,
        (sight, found): (&Sight, &Sight),
        path: &str,
    ) {
        for (other, seen) in sight.iter().filter(|(other, _)| lies_in(other, path)) {
            let is = found.get(other);
            let comes = is.is_some_and(|is| {
                let kind = match (&seen.entry.kind, &is.entry.kind) {
                    (
                        EntryKind::File {
                            content, len_bytes, ..
                        },
                        EntryKind::File {
                            content: hash,
                            len_bytes: len,
                            ..
                        },
                    ) => (content, len_bytes) == (hash, len),
                    (one, other) => one == other,
                };
                kind && is.entry.mode == seen.entry.mode
                    && is.entry.xattrs == seen.entry.xattrs
                    && is.owner == seen.owner
                    && is.mtime_ns == seen.mtime_ns
            });
            if !comes {
                let difference = format!("{other} was {seen:?}\nand is {is:?}");
                self.panic(was, how, branch, &difference);
            }
        }
    }

    /// One of the last commits is taken back, where that can be.
    fn undo(&mut self) {
        let now = self.before();
        let seq = now.seq - self.rng.below(4).min(now.seq - self.moments[0].seq);
        let planned = self.database.history().undo(seq, true);
        let outcome = self.database.history().undo(seq, false);
        let how = format!("undo of commit {seq}, the newest is {}", now.seq);
        if let Err(error) = &outcome {
            let kinds = [
                ErrorKind::Conflict,
                ErrorKind::Unsupported,
                ErrorKind::NotFound,
                ErrorKind::InvalidInput,
            ];
            assert!(
                is_refused(error, &kinds),
                "seed {}, {how}: {error}",
                self.seed
            );
            self.count("undo refused");
            return self.require_unchanged(&now, &how, |_| true);
        }
        assert_eq!(
            planned.unwrap(),
            outcome.unwrap(),
            "seed {}, {how}",
            self.seed
        );
        if seq == now.seq {
            let past = self.database.as_of(&Moment::Seq(seq - 1)).unwrap();
            for branch in &self.branches {
                let Ok(sight) = see(&past, &branch.root) else {
                    continue;
                };
                let without_times = |sight: &Sight| {
                    let mut shown = as_shown(sight, OF_A_COPY);
                    let directories = shown.values_mut();
                    directories
                        .filter(|seen| seen.entry.kind == EntryKind::Directory)
                        .for_each(|seen| seen.mtime_ns = 0);
                    shown
                };
                let (was, is) = (without_times(&sight), without_times(&self.now(branch)));
                if let Some(difference) = find_difference(&was, &is) {
                    self.panic(&now, &how, branch, &difference);
                }
            }
            self.count("undo of the newest");
        }
        (0..self.branches.len()).for_each(|nth| self.adopt(nth));
        self.count("undo");
    }

    /// Two directories exchange their places.
    fn promote(&mut self) {
        let now = self.before();
        let (nth, _) = self.pick_branch();
        let present = now.sights[&self.branches[nth].store].clone();
        let directory = |_: &str, kind: &EntryKind| *kind == EntryKind::Directory;
        let (Some(one), Some(other)) = (
            self.pick_path(&present, directory),
            self.pick_path(&present, directory),
        ) else {
            return;
        };
        if lies_in(&one, &other) || lies_in(&other, &one) {
            return;
        }
        let root = self.branches[nth].root.clone();
        let full = |path: &str| format!("{root}{path}").into_bytes();
        self.database
            .history()
            .promote(&full(&one), &full(&other))
            .unwrap();
        let branch = &self.branches[nth];
        let found = self.now(branch);
        for (here, there) in [(&one, &other), (&other, &one)] {
            let (was, is) = (below(&present, here), below(&found, there));
            if let Some(difference) =
                find_difference(&as_shown(&was, OF_A_COPY), &as_shown(&is, OF_A_COPY))
            {
                self.panic(&now, "promote", branch, &difference);
            }
            assert_eq!(
                inode(&present, here),
                inode(&found, there),
                "seed {}",
                self.seed
            );
        }
        self.adopt(nth);
        self.count("promote");
    }

    /// Two stores exchange their places; where a store is mounted has no past.
    pub fn promote_stores(&mut self) {
        let now = self.before();
        let last = self.branches.len() - 1;
        let (one, other) = (1, 2 + self.rng.below(last as u64 - 1) as usize);
        let (a, b) = (
            self.branches[one].root.clone(),
            self.branches[other].root.clone(),
        );
        self.database
            .history()
            .promote(a.as_bytes(), b.as_bytes())
            .unwrap();
        self.branches[one].root = b;
        self.branches[other].root = a;
        self.renew_api();
        self.require_unchanged(&now, "promote", |_| true);
        self.count("promote of stores");
    }

    /// All, or one store, becomes what it was.
    fn roll_back(&mut self) {
        let now = self.before();
        let (mut nth, mut was) = self.pick_branch();
        // Few moments show all stores when these begin at different times.
        while self.options.has_store_retentions && self.rng.chance(70) {
            let shown = self.reached(&self.database.clone(), &was);
            match self
                .branches
                .iter()
                .all(|branch| shown.contains(&branch.store))
            {
                true => break,
                false => (nth, was) = self.pick_branch(),
            }
        }
        let store = self.rng.chance(40).then(|| match self.branches[nth].store {
            StoreId::MAIN => "/".to_owned(),
            _ => self.branches[nth].root.clone(),
        });
        let moment = self.name(&was);
        let path = store.as_ref().map(|path| path.as_bytes());
        let how = format!("rollback of {store:?}");
        let pin = self.database.as_of(&moment).unwrap();
        let shown = self.reached(&self.database.clone(), &was);
        let is_unshown = |branch: &Branch| {
            let is_meant = store.is_none() || branch.store == self.branches[nth].store;
            is_meant && was.sight(branch).is_some() && !shown.contains(&branch.store)
        };
        let unshown = self.branches.iter().find(|branch| is_unshown(branch));
        let unshown = unshown.map(|branch| branch.name.clone());
        let planned = self.database.history().rollback(&moment, path, true);
        self.require_unchanged(&now, "a dry rollback", |_| true);
        let outcome = self.database.history().rollback(&moment, path, false);
        drop(pin);
        if let Some(name) = unshown {
            for refused in [planned.map(drop), outcome.map(drop)] {
                self.require_refused(&refused.unwrap_err(), &was, &how, &[&name]);
            }
            self.count("rollback refused");
            return self.require_unchanged(&now, &how, |_| true);
        }
        planned.unwrap_or_else(|error| panic!("seed {}, a dry {how}: {error}", self.seed));
        outcome.unwrap_or_else(|error| panic!("seed {}, {how}: {error}", self.seed));
        let only = self.branches[nth].store;
        let is_meant = |branch: &Branch| store.is_none() || branch.store == only;
        // ROLLBACK-2: all, with numbers and times.
        self.require_unchanged(&was, &how, is_meant);
        self.require_unchanged(&now, &how, |branch| {
            !is_meant(branch) || was.sight(branch).is_none()
        });
        if store.is_none() {
            self.rows = was.rows.clone();
        }
        (0..self.branches.len()).for_each(|nth| self.adopt(nth));
        self.happened(ROLLBACK);
        self.count(match store {
            Some(_) => "rollback of a store",
            None => "rollback",
        });
    }

    /// The past goes up to a moment, whose state stays. `may_stay`: somebody reads older ones, who
    /// keeps them for a while.
    pub fn prune(&mut self, may_stay: bool) {
        // Half of it at most.
        let half = self.moments.len() as u64 / 2;
        let cut = self.moments[self.rng.below(half.max(1)) as usize].clone();
        // What is held stays, and all that came later.
        let keeps_snapshots = self.options.has_store_retentions && self.rng.chance(60);
        let held = self.oldest_held(keeps_snapshots);
        let until = held.map_or(cut.seq, |held| held.min(cut.seq));
        self.destroy_snapshots_before(until);
        let gone = self.moments.partition_point(|was| was.seq < until);
        let gone: Vec<Was> = self.moments.drain(..gone).collect();
        self.raise_all(&cut);
        let older = PruneCut::OlderThan(Moment::Seq(cut.seq));
        self.database.history().prune(older, None, false).unwrap();
        for was in gone.iter().filter(|_| !may_stay) {
            let refused = self.database.as_of(&Moment::Seq(was.seq)).err().unwrap();
            assert!(refused.to_string().contains("history begins"), "{refused}");
        }
        if self.options.has_store_retentions {
            self.require_floors();
            self.look_at_readers();
        }
        if !gone.is_empty() {
            self.happened(PRUNE);
        }
        self.count(
            match keeps_snapshots && held.is_some_and(|held| held <= cut.seq) {
                true => "prune up to a snapshot",
                false => "prune",
            },
        );
    }
}
