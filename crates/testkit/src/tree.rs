//! A small model of a file tree: what operations do, and how two trees are compared.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::rng::Rng;

/// One change of a tree, by absolute paths (`/a/b`); offsets and lengths in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The fields of the variants: their names and the line above say it all.
pub enum Op {
    /// An empty file.
    Create { path: String, mode: u32 },
    /// An empty directory.
    Mkdir { path: String, mode: u32 },
    /// Removes an empty directory.
    Rmdir { path: String },
    /// A symbolic link.
    Symlink { path: String, target: String },
    /// Makes a file without a name, writes [`fill`]`(seed, len)`, and names it: seen in one step.
    Anonymous {
        path: String,
        mode: u32,
        len: u64,
        seed: u64,
    },
    /// Another name for a file.
    Link { from: String, to: String },
    /// Removes a name of a file or symbolic link.
    Unlink { path: String },
    /// Renames, over a file if there is one.
    Rename { from: String, to: String },
    /// Swaps two names of files.
    Exchange { one: String, other: String },
    /// Writes [`fill`]`(seed, len)` at an offset.
    Write {
        path: String,
        offset: u64,
        len: u64,
        seed: u64,
    },
    /// Writes [`fill`]`(seed, len)` at the end.
    Append { path: String, len: u64, seed: u64 },
    /// Sets the length.
    Truncate { path: String, len: u64 },
    /// Makes a hole; keeps the length.
    Punch { path: String, offset: u64, len: u64 },
    /// Puts [`fill`]`(seed, new_len)` in the place of a range; only the Content API can.
    Replace {
        path: String,
        offset: u64,
        len: u64,
        new_len: u64,
        seed: u64,
    },
    /// Moves a range so that it begins at `to` afterwards; only the Content API can.
    Move {
        path: String,
        from: u64,
        len: u64,
        to: u64,
    },
    /// Sets an extended attribute.
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
    },
    /// Removes an extended attribute.
    RemoveXattr { path: String, name: String },
    /// Sets the permission bits.
    Chmod { path: String, mode: u32 },
    /// Makes a file durable (`fsync`). Changes nothing in the tree.
    Sync { path: String },
    /// Makes everything durable. Changes nothing in the tree.
    SyncAll,
}

/// The bytes that a write of this seed and length writes.
pub fn fill(seed: u64, len: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8))
        .flat_map(|_| rng.bits().to_le_bytes())
        .take(len as usize)
        .collect()
}

/// What a path of a tree names, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Absolute path.
    pub path: String,
    /// Permission bits; 0o777 for symbolic links.
    pub mode: u32,
    /// Which inode: equal for two names of one file. Any numbers will do.
    pub inode: u64,
    /// Kind and content.
    pub kind: EntryKind,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Kind and content of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(String),
    /// A file.
    File {
        /// Number of names.
        nlink: u32,
        /// Length, bytes.
        len_bytes: u64,
        /// [`Tree::hash_content`] of its bytes.
        content: u64,
    },
}

/// All entries of a tree but the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// In any order.
    pub entries: Vec<Entry>,
}

impl Tree {
    /// The hash that stands for a file's bytes.
    pub fn hash_content(bytes: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        hasher.finish()
    }

    /// Sorted by path, with inodes numbered by their first path.
    fn normalised(&self) -> Vec<Entry> {
        let mut entries = self.entries.clone();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let mut numbers: HashMap<u64, u64> = HashMap::new();
        for entry in &mut entries {
            let next = numbers.len() as u64;
            entry.inode = *numbers.entry(entry.inode).or_insert(next);
        }
        entries
    }
}

/// A number that is equal for equal trees. Only comparable within one process.
pub fn digest(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    tree.normalised().hash(&mut hasher);
    hasher.finish()
}

/// The first differences between two trees, for people.
pub fn explain_difference(expected: &Tree, found: &Tree) -> String {
    let by_path = |tree: &Tree| -> BTreeMap<String, Entry> {
        tree.normalised()
            .into_iter()
            .map(|entry| (entry.path.clone(), entry))
            .collect()
    };
    let (expected, found) = (by_path(expected), by_path(found));
    let mut lines = Vec::new();
    for (path, entry) in &expected {
        match found.get(path) {
            None => lines.push(format!("missing: {path}")),
            Some(other) if other != entry => {
                lines.push(format!("differs: expected {entry:?}, found {other:?}"))
            }
            Some(_) => {}
        }
    }
    lines.extend(
        found
            .keys()
            .filter(|path| !expected.contains_key(*path))
            .map(|path| format!("unexpected: {path}")),
    );
    lines.truncate(8);
    lines.join("\n")
}

/// A tree in memory.
#[derive(Debug, Clone)]
pub struct Model {
    names: BTreeMap<String, u64>,
    nodes: HashMap<u64, Node>,
    next_inode: u64,
}

#[derive(Debug, Clone)]
struct Node {
    mode: u32,
    kind: NodeKind,
    xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone)]
enum NodeKind {
    Directory,
    Symlink(String),
    File {
        /// Shared with the clones of the model, until they change it.
        bytes: Arc<Vec<u8>>,
        content: u64,
        nlink: u32,
    },
}

impl Default for Model {
    fn default() -> Model {
        Model::new()
    }
}

impl Model {
    /// An empty root directory.
    pub fn new() -> Model {
        Model {
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            next_inode: 1,
        }
    }

    /// What `tree` says, with the bytes that `read` gives for the path of a file; inodes are those
    /// of `tree`.
    pub fn of(tree: &Tree, mut read: impl FnMut(&str) -> Vec<u8>) -> Model {
        let mut model = Model::new();
        for entry in &tree.entries {
            model.names.insert(entry.path.clone(), entry.inode);
            model.next_inode = model.next_inode.max(entry.inode + 1);
            model.nodes.entry(entry.inode).or_insert_with(|| Node {
                mode: entry.mode,
                kind: match &entry.kind {
                    EntryKind::Directory => NodeKind::Directory,
                    EntryKind::Symlink(target) => NodeKind::Symlink(target.clone()),
                    EntryKind::File { nlink, content, .. } => NodeKind::File {
                        bytes: Arc::new(read(&entry.path)),
                        content: *content,
                        nlink: *nlink,
                    },
                },
                xattrs: entry.xattrs.clone(),
            });
        }
        model
    }

    /// The bytes of the file at `path`; panics if there is none.
    pub fn content(&self, path: &str) -> Arc<Vec<u8>> {
        match &self.nodes[&self.names[path]].kind {
            NodeKind::File { bytes, .. } => Arc::clone(bytes),
            NodeKind::Directory | NodeKind::Symlink(_) => panic!("{path} is not a file"),
        }
    }

    /// Does `op`; panics if it is not valid here.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { path, mode } => {
                let kind = NodeKind::File {
                    bytes: Arc::default(),
                    content: Tree::hash_content(&[]),
                    nlink: 1,
                };
                self.add(path, *mode, kind);
            }
            Op::Anonymous {
                path,
                mode,
                len,
                seed,
            } => {
                let bytes = fill(*seed, *len);
                let kind = NodeKind::File {
                    content: Tree::hash_content(&bytes),
                    bytes: Arc::new(bytes),
                    nlink: 1,
                };
                self.add(path, *mode, kind);
            }
            Op::Mkdir { path, mode } => self.add(path, *mode, NodeKind::Directory),
            Op::Symlink { path, target } => {
                self.add(path, 0o777, NodeKind::Symlink(target.clone()))
            }
            Op::Link { from, to } => {
                let inode = self.names[from];
                *self.nlink_mut(inode) += 1;
                self.names.insert(to.clone(), inode);
            }
            Op::Rmdir { path } | Op::Unlink { path } => self.remove(path),
            Op::Rename { from, to } => self.rename(from, to),
            Op::Exchange { one, other } => {
                let (was_one, was_other) = (self.take(one), self.take(other));
                self.put(one, was_other);
                self.put(other, was_one);
            }
            Op::Write {
                path,
                offset,
                len,
                seed,
            } => {
                let data = fill(*seed, *len);
                self.change(path, |bytes| overwrite(bytes, *offset as usize, &data));
            }
            Op::Append { path, len, seed } => {
                let data = fill(*seed, *len);
                self.change(path, |bytes| bytes.extend_from_slice(&data));
            }
            Op::Truncate { path, len } => self.change(path, |bytes| bytes.resize(*len as usize, 0)),
            Op::Punch { path, offset, len } => self.change(path, |bytes| {
                let end = bytes.len().min((offset + len) as usize);
                bytes[(*offset as usize).min(end)..end].fill(0);
            }),
            Op::Replace {
                path,
                offset,
                len,
                new_len,
                seed,
            } => self.change(path, |bytes| {
                let range = *offset as usize..(offset + len) as usize;
                bytes.splice(range, fill(*seed, *new_len));
            }),
            Op::Move {
                path,
                from,
                len,
                to,
            } => self.change(path, |bytes| {
                let moved: Vec<u8> = bytes.drain(*from as usize..(from + len) as usize).collect();
                bytes.splice(*to as usize..*to as usize, moved);
            }),
            Op::SetXattr { path, name, value } => {
                self.node_mut(path)
                    .xattrs
                    .insert(name.clone(), value.clone());
            }
            Op::RemoveXattr { path, name } => {
                self.node_mut(path)
                    .xattrs
                    .remove(name)
                    .expect("the attribute exists");
            }
            Op::Chmod { path, mode } => self.node_mut(path).mode = *mode,
            Op::Sync { .. } | Op::SyncAll => {}
        }
    }

    /// What the tree holds.
    pub fn tree(&self) -> Tree {
        let entry = |(path, inode): (&String, &u64)| {
            let node = &self.nodes[inode];
            let kind = match &node.kind {
                NodeKind::Directory => EntryKind::Directory,
                NodeKind::Symlink(target) => EntryKind::Symlink(target.clone()),
                NodeKind::File {
                    bytes,
                    content,
                    nlink,
                } => EntryKind::File {
                    nlink: *nlink,
                    len_bytes: bytes.len() as u64,
                    content: *content,
                },
            };
            Entry {
                path: path.clone(),
                mode: node.mode,
                inode: *inode,
                kind,
                xattrs: node.xattrs.clone(),
            }
        };
        Tree {
            entries: self.names.iter().map(entry).collect(),
        }
    }

    /// Every path of a file, directory or symbolic link:
    /// `(path, is directory, length in bytes if a file)`.
    pub fn paths(&self) -> impl Iterator<Item = (&str, bool, Option<u64>)> {
        self.names
            .iter()
            .map(|(path, inode)| match &self.nodes[inode].kind {
                NodeKind::Directory => (path.as_str(), true, None),
                NodeKind::Symlink(_) => (path.as_str(), false, None),
                NodeKind::File { bytes, .. } => (path.as_str(), false, Some(bytes.len() as u64)),
            })
    }

    /// The inode that a path names.
    pub fn inode(&self, path: &str) -> u64 {
        self.names[path]
    }

    /// Whether there is anything at `path`.
    pub fn exists(&self, path: &str) -> bool {
        self.names.contains_key(path)
    }

    /// Whether the directory at `path` has no entries.
    pub fn is_empty(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.names
            .range(inside.clone()..)
            .next()
            .is_none_or(|(next, _)| !next.starts_with(&inside))
    }

    /// The names of a node's extended attributes.
    pub fn xattr_names(&self, path: &str) -> Vec<String> {
        self.nodes[&self.names[path]]
            .xattrs
            .keys()
            .cloned()
            .collect()
    }

    fn add(&mut self, path: &str, mode: u32, kind: NodeKind) {
        let before = self.names.insert(path.to_owned(), self.next_inode);
        assert!(before.is_none(), "{path} exists already");
        self.nodes.insert(
            self.next_inode,
            Node {
                mode,
                kind,
                xattrs: BTreeMap::new(),
            },
        );
        self.next_inode += 1;
    }

    fn remove(&mut self, path: &str) {
        let inode = self.names.remove(path).expect("the path exists");
        if let NodeKind::File { nlink, .. } = &mut self.nodes.get_mut(&inode).expect("named").kind {
            *nlink -= 1;
            if *nlink > 0 {
                return;
            }
        }
        self.nodes.remove(&inode);
    }

    fn rename(&mut self, from: &str, to: &str) {
        // POSIX: two names of one file stay as they are.
        if self.names.get(to) == Some(&self.names[from]) {
            return;
        }
        if self.exists(to) {
            self.remove(to);
        }
        let moved = self.take(from);
        self.put(to, moved);
    }

    /// Takes a name and all that are below it, each without its beginning.
    fn take(&mut self, path: &str) -> Vec<(String, u64)> {
        let is_end = |end: &str| end.is_empty() || end.starts_with('/');
        let is_below = |name: &str| name.strip_prefix(path).is_some_and(is_end);
        let taken = self.names.extract_if(.., |name, _| is_below(name));
        taken
            .map(|(name, inode)| (name[path.len()..].to_owned(), inode))
            .collect()
    }

    /// Gives a name what [`Model::take`] took.
    fn put(&mut self, path: &str, taken: Vec<(String, u64)>) {
        let named = taken.into_iter();
        self.names
            .extend(named.map(|(end, inode)| (format!("{path}{end}"), inode)));
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        match &mut self.node_mut(path).kind {
            NodeKind::File { bytes, content, .. } => {
                let bytes = Arc::make_mut(bytes);
                change(bytes);
                *content = Tree::hash_content(bytes);
            }
            NodeKind::Directory | NodeKind::Symlink(_) => panic!("{path} is not a file"),
        }
    }

    fn node_mut(&mut self, path: &str) -> &mut Node {
        self.nodes
            .get_mut(&self.names[path])
            .expect("every name has a node")
    }

    fn nlink_mut(&mut self, inode: u64) -> &mut u32 {
        match &mut self
            .nodes
            .get_mut(&inode)
            .expect("every name has a node")
            .kind
        {
            NodeKind::File { nlink, .. } => nlink,
            NodeKind::Directory | NodeKind::Symlink(_) => panic!("only files are linked"),
        }
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    bytes.resize(bytes.len().max(offset + data.len()), 0);
    bytes[offset..offset + data.len()].copy_from_slice(data);
}
