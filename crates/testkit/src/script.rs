//! Generated operations: a mixed load, with the digest of the tree after each.

use std::collections::HashMap;

use crate::rng::Rng;
use crate::tree::{Model, Op, Tree, digest};

/// How large a script's tree gets.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Names at most.
    pub entries_max: usize,
    /// Longest file, bytes.
    pub file_bytes_max: u64,
    /// Longest write, bytes. On a mount, one write must be one request.
    pub write_bytes_max: u64,
    /// Syncs in percent of the operations.
    pub sync_percent: u64,
    /// Small overwrites of a file that was just synced, as databases make them, in percent of the
    /// operations; each follows a sync of the file, and another one follows it.
    pub overwrite_percent: u64,
    /// Fragment operations, and files that are made without a name, in percent of the others. Only
    /// for the Content API.
    pub fragment_percent: u64,
}

/// Operations with what the tree is after each of them.
#[derive(Debug, Clone)]
pub struct Script {
    /// The seed that made it.
    pub seed: u64,
    /// All operations, valid in this order on an empty tree.
    pub ops: Vec<Op>,
    /// `digests[n]`: of the tree after the first `n` operations.
    digests: Vec<u64>,
    /// `promises[n]`: when operation `n` (a sync) returns, the first so many operations must last.
    promises: Vec<usize>,
}

impl Script {
    /// The script of this seed.
    pub fn generate(seed: u64, op_count: usize, mix: Mix) -> Script {
        let mut generator = Generator::new(seed, mix);
        let mut script = Script {
            seed,
            ops: Vec::new(),
            digests: vec![digest(&Tree::default())],
            promises: Vec::new(),
        };
        // Of each inode: how many operations had been made when it had changed last.
        let mut changed: HashMap<u64, usize> = HashMap::new();
        for made in 1..=op_count {
            let op = generator.next_op();
            script.promises.push(match &op {
                Op::SyncAll => made,
                Op::Sync { path } => changed[&generator.model.inode(path)],
                _ => 0,
            });
            // Also what loses its name here: another name of it may be left.
            let mut touched = generator.inodes(&paths_of(&op));
            generator.model.apply(&op);
            touched.extend(generator.inodes(&paths_of(&op)));
            changed.extend(touched.into_iter().map(|inode| (inode, made)));
            script.digests.push(digest(&generator.model.tree()));
            script.ops.push(op);
        }
        script
    }

    /// How many operations must last once operation `index` has returned; 0 if it is no sync.
    pub fn promise(&self, index: usize) -> usize {
        self.promises[index]
    }

    /// The tree after the first `made` operations.
    pub fn tree(&self, made: usize) -> Tree {
        let mut model = Model::new();
        self.ops[..made].iter().for_each(|op| model.apply(op));
        model.tree()
    }

    /// The longest prefix of at least `least` and at most `most` operations that leaves exactly
    /// `tree`.
    pub fn find_prefix(&self, tree: &Tree, least: usize, most: usize) -> Option<usize> {
        let wanted = digest(tree);
        (least..=most)
            .rev()
            .find(|&made| self.digests[made] == wanted)
    }
}

/// The paths that `op` names.
fn paths_of(op: &Op) -> Vec<&str> {
    match op {
        // Nothing happens, so a sync has nothing to make durable.
        Op::Replace {
            len: 0, new_len: 0, ..
        }
        | Op::Move { len: 0, .. } => vec![],
        Op::Create { path, .. }
        | Op::Anonymous { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Rmdir { path }
        | Op::Symlink { path, .. }
        | Op::Unlink { path }
        | Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Punch { path, .. }
        | Op::Replace { path, .. }
        | Op::Move { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::Chmod { path, .. } => vec![path],
        Op::Link { from, to } | Op::Rename { from, to } => vec![from, to],
        Op::Exchange { one, other } => vec![one, other],
        Op::Sync { .. } | Op::SyncAll => vec![],
    }
}

/// Operations one by one, for trees that other things happen to in between.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    model: Model,
    mix: Mix,
    /// What was decided already, the next one last.
    next: Vec<Op>,
}

impl Generator {
    /// The operations of this seed, on an empty tree.
    pub fn new(seed: u64, mix: Mix) -> Generator {
        Generator {
            rng: Rng::new(seed),
            model: Model::new(),
            mix,
            next: Vec::new(),
        }
    }

    /// The tree that the next operation is for.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// An operation was done.
    pub fn note_made(&mut self, op: &Op) {
        self.model.apply(op);
    }

    /// Something else has happened to the tree, which is `model` now.
    pub fn go_on_from(&mut self, model: Model) {
        self.model = model;
        self.next.clear();
    }

    /// From here on so many fragment operations ([`Mix::fragment_percent`]).
    pub fn set_fragment_percent(&mut self, percent: u64) {
        self.mix.fragment_percent = percent;
    }

    /// A valid operation; [`Generator::note_made`] tells that it was done. Tries kinds at random
    /// until one fits the tree.
    pub fn next_op(&mut self) -> Op {
        loop {
            if let Some(op) = self.try_op() {
                return op;
            }
        }
    }

    fn try_op(&mut self) -> Option<Op> {
        if let Some(op) = self.next.pop() {
            return Some(op);
        }
        if self.mix.overwrite_percent > 0 && self.rng.chance(self.mix.overwrite_percent) {
            return self.overwrite();
        }
        if self.rng.chance(self.mix.sync_percent) {
            return Some(if self.rng.chance(30) {
                Op::SyncAll
            } else {
                Op::Sync { path: self.file()? }
            });
        }
        if self.mix.fragment_percent > 0 && self.rng.chance(self.mix.fragment_percent) {
            return self.fragment_op();
        }
        let is_full = self.model.paths().count() >= self.mix.entries_max;
        let op = match self.rng.below(100) {
            0..14 if !is_full => Op::Create {
                path: self.new_path()?,
                mode: *self.rng.pick(&[0o644, 0o600, 0o755]),
            },
            14..17 if !is_full => Op::Mkdir {
                path: self.new_path()?,
                mode: 0o755,
            },
            17..19 => {
                let path = self.choose(|_, is_dir, _| is_dir)?;
                if !self.model.is_empty(&path) {
                    return None;
                }
                Op::Rmdir { path }
            }
            19..21 if !is_full => Op::Symlink {
                path: self.new_path()?,
                target: format!("target-{}", self.rng.below(99)),
            },
            21..24 if !is_full => Op::Link {
                from: self.file()?,
                to: self.new_path()?,
            },
            24..33 => Op::Unlink {
                path: self.choose(|_, is_dir, _| !is_dir)?,
            },
            33..39 => Op::Rename {
                from: self.file()?,
                to: self.new_path()?,
            },
            // The safe replacement: a new file over an old one.
            39..46 => self.distinct_files(|from, to| Op::Rename { from, to })?,
            46..47 => self.rename_directory()?,
            47..49 => self.distinct_files(|one, other| Op::Exchange { one, other })?,
            49..69 => {
                let len = self.write_len();
                let room = self.mix.file_bytes_max.saturating_sub(len) + 1;
                Op::Write {
                    path: self.file()?,
                    offset: self.offset(room),
                    len,
                    seed: self.rng.bits(),
                }
            }
            69..84 => {
                let (path, len) = (self.file()?, self.write_len());
                if self.len_of(&path) + len > self.mix.file_bytes_max {
                    return None;
                }
                Op::Append {
                    path,
                    len,
                    seed: self.rng.bits(),
                }
            }
            84..90 => Op::Truncate {
                path: self.file()?,
                len: self.offset(self.mix.file_bytes_max),
            },
            90..93 => {
                let (path, len) = (self.file()?, 1 + self.write_len());
                Op::Punch {
                    offset: self.offset(self.len_of(&path) + 1),
                    path,
                    len,
                }
            }
            93..96 => Op::SetXattr {
                path: self.file()?,
                name: self.xattr_name(),
                value: self.xattr_value(),
            },
            96..97 => {
                let path = self.file()?;
                let names = self.model.xattr_names(&path);
                if names.is_empty() {
                    return None;
                }
                Op::RemoveXattr {
                    path,
                    name: self.rng.pick(&names).clone(),
                }
            }
            97..100 => Op::Chmod {
                path: self.file()?,
                mode: *self.rng.pick(&[0o600, 0o640, 0o755, 0o444]),
            },
            _ => return None,
        };
        Some(op)
    }

    /// A small part of a file that has more blocks, between two syncs.
    fn overwrite(&mut self) -> Option<Op> {
        const LEN_MAX: u64 = 2 * 4096;
        let path = self.choose(|_, _, len| len.is_some_and(|len| len > 4 * LEN_MAX))?;
        let len = 1 + self.rng.below(LEN_MAX.min(self.mix.write_bytes_max));
        let sync = Op::Sync { path: path.clone() };
        let write = Op::Write {
            offset: self.offset(self.len_of(&path) - len),
            len,
            path,
            seed: self.rng.bits(),
        };
        self.next = vec![sync.clone(), write];
        Some(sync)
    }

    fn fragment_op(&mut self) -> Option<Op> {
        if self.rng.chance(10) && self.model.paths().count() < self.mix.entries_max {
            return Some(Op::Anonymous {
                path: self.new_path()?,
                mode: *self.rng.pick(&[0o644, 0o600]),
                len: self.write_len(),
                seed: self.rng.bits(),
            });
        }
        let path = self.file()?;
        let size = self.len_of(&path);
        let offset = self.offset(size + 1);
        let len = self.write_len().min(size - offset);
        let op = match self.rng.below(4) {
            0 => Op::Move {
                to: self.offset(size - len + 1),
                path,
                from: offset,
                len,
            },
            kind => {
                let (len, new_len) = match kind {
                    1 => (0, self.write_len()),
                    2 => (len, 0),
                    _ => (len, self.write_len()),
                };
                if size - len + new_len > self.mix.file_bytes_max {
                    return None;
                }
                Op::Replace {
                    path,
                    offset,
                    len,
                    new_len,
                    seed: self.rng.bits(),
                }
            }
        };
        Some(op)
    }

    /// The inodes that these paths name, where there are any.
    fn inodes(&self, paths: &[&str]) -> Vec<u64> {
        let exists = |path: &&&str| self.model.exists(path);
        paths
            .iter()
            .filter(exists)
            .map(|path| self.model.inode(path))
            .collect()
    }

    fn choose(&mut self, fits: impl Fn(&str, bool, Option<u64>) -> bool) -> Option<String> {
        let found: Vec<&str> = self
            .model
            .paths()
            .filter(|&(path, is_dir, len)| fits(path, is_dir, len))
            .map(|(path, ..)| path)
            .collect();
        (!found.is_empty()).then(|| (*self.rng.pick(&found)).to_owned())
    }

    fn file(&mut self) -> Option<String> {
        self.choose(|_, _, len| len.is_some())
    }

    fn distinct_files(&mut self, op: impl Fn(String, String) -> Op) -> Option<Op> {
        let (one, other) = (self.file()?, self.file()?);
        (self.model.inode(&one) != self.model.inode(&other)).then(|| op(one, other))
    }

    fn rename_directory(&mut self) -> Option<Op> {
        let (from, to) = (self.choose(|_, is_dir, _| is_dir)?, self.new_path()?);
        (!to.starts_with(&format!("{from}/"))).then_some(Op::Rename { from, to })
    }

    /// A path where nothing is, in a directory that is.
    fn new_path(&mut self) -> Option<String> {
        let parent = if self.rng.chance(40) {
            None
        } else {
            self.choose(|_, is_dir, _| is_dir)
        };
        let path = format!("{}/n{}", parent.unwrap_or_default(), self.rng.below(1000));
        (!self.model.exists(&path) && path.matches('/').count() < 6).then_some(path)
    }

    fn len_of(&self, wanted: &str) -> u64 {
        self.model
            .paths()
            .find(|(path, ..)| *path == wanted)
            .and_then(|(_, _, len)| len)
            .unwrap_or(0)
    }

    /// Small and large ones, at and beside block boundaries.
    fn write_len(&mut self) -> u64 {
        let len = match self.rng.below(4) {
            0 => 1 + self.rng.below(2048),
            1 => 4096 * (1 + self.rng.below(4)),
            _ => 1 + self.rng.below(self.mix.write_bytes_max),
        };
        len.min(self.mix.write_bytes_max)
    }

    fn offset(&mut self, below: u64) -> u64 {
        let offset = self.rng.below(below.max(1));
        if self.rng.chance(40) {
            offset & !4095
        } else {
            offset
        }
    }

    fn xattr_name(&mut self) -> String {
        format!("user.x{}", self.rng.below(4))
    }

    fn xattr_value(&mut self) -> Vec<u8> {
        let len = self.rng.below(100);
        crate::tree::fill(self.rng.bits(), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIX: Mix = Mix {
        entries_max: 40,
        file_bytes_max: 50_000,
        write_bytes_max: 20_000,
        sync_percent: 10,
        overwrite_percent: 5,
        fragment_percent: 0,
    };

    #[test]
    fn scripts_repeat_and_hold_every_kind_of_operation() {
        let script = Script::generate(3, 2000, MIX);
        assert_eq!(script.ops, Script::generate(3, 2000, MIX).ops);
        let kinds: std::collections::HashSet<_> =
            script.ops.iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 17);
        let mix = Mix {
            fragment_percent: 50,
            ..MIX
        };
        let fragments = Script::generate(3, 400, mix).ops.into_iter();
        let count = fragments.filter(|op| matches!(op, Op::Replace { .. } | Op::Move { .. }));
        assert!(count.count() > 100);
        let mut all = Script::generate(3, 200, mix).ops.into_iter();
        assert!(all.any(|op| matches!(op, Op::Anonymous { .. })));
    }

    #[test]
    fn a_sync_promises_the_last_change_of_its_file_and_nothing_newer() {
        let script = Script::generate(5, 500, MIX);
        for (index, op) in script.ops.iter().enumerate() {
            let promise = script.promise(index);
            match op {
                Op::SyncAll => assert_eq!(promise, index + 1),
                Op::Sync { path } => {
                    assert!(promise > 0 && promise <= index);
                    let names_it = paths_of(&script.ops[promise - 1])
                        .iter()
                        .any(|named| path.starts_with(named));
                    let (before, now) = (script.tree(promise), script.tree(index));
                    let same = |tree: &Tree| {
                        tree.entries
                            .iter()
                            .find(|entry| entry.path == *path)
                            .map(|e| e.kind.clone())
                    };
                    assert!(
                        names_it || same(&before) == same(&now),
                        "{op:?} after {:?}",
                        script.ops[promise - 1]
                    );
                }
                _ => assert_eq!(promise, 0),
            }
        }
    }

    #[test]
    fn prefixes_are_found_only_where_they_are_allowed() {
        let script = Script::generate(
            9,
            200,
            Mix {
                sync_percent: 0,
                ..MIX
            },
        );
        let tree = script.tree(120);
        assert_eq!(script.find_prefix(&tree, 0, 200), Some(120));
        assert_eq!(script.find_prefix(&tree, 121, 200), None);
        assert_eq!(script.find_prefix(&tree, 0, 119), None);
        let mut other = script.tree(120);
        other.entries[0].mode ^= 1;
        assert_eq!(script.find_prefix(&other, 0, 200), None);
        assert!(crate::tree::explain_difference(&tree, &other).contains("differs"));
    }
}
