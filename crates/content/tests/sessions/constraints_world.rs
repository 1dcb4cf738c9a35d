//! Names and inodes as a model has them, and operations on them.

use crate::common::{OWNER, content, name};
use larder::*;
use std::collections::{BTreeMap, VecDeque};

/// A file or directory of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    pub is_directory: bool,
    pub mode: u32,
    pub content: Vec<u8>,
}

/// What there is: names, and what they lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct World {
    pub names: BTreeMap<(u64, String), u64>,
    pub inodes: BTreeMap<u64, Inode>,
}

#[derive(Debug, Clone)]
pub enum Operation {
    Make(u64, String, bool),
    /// Inode, offset, length, and the value of each byte.
    Write(u64, u64, usize, u8),
    Mode(u64, u32),
    Remove(u64, String),
    Rename(u64, String, u64, String),
    Exchange(u64, String, u64, String),
    Link(u64, u64, String),
}

/// An operation as it was answered: what it was, and the inodes that it changed, but for
/// directories that only got or lost names.
#[derive(Debug, Clone)]
pub struct Done {
    pub operation: Operation,
    pub made: u64,
    pub subjects: Vec<u64>,
    /// The directory that it removed or replaced.
    pub removed: Option<u64>,
    /// The file that what users attached to a removed one goes to (`SAVE-4`).
    pub successor: Option<u64>,
}

/// Files that were renamed, and from which name: who gets that is their successor.
#[derive(Default)]
pub struct Asides(VecDeque<(u64, (u64, String))>);

impl Asides {
    /// Notes an operation; the successor of what it removes. `world`: before it.
    pub fn note(&mut self, world: &World, operation: &Operation) -> Option<u64> {
        let is_file = |ino: &u64| !world.inodes[ino].is_directory;
        let has_one_name = |ino: &u64| world.names.values().filter(|one| *one == ino).count() == 1;
        let find = |dir: u64, text: &str| {
            let found = world.at(dir, text);
            found.filter(|ino| is_file(ino) && has_one_name(ino))
        };
        match operation {
            Operation::Rename(dir, text, ..) => {
                let ino = find(*dir, text)?;
                self.take(ino);
                if self.0.len() == 64 {
                    self.0.pop_front();
                }
                self.0.push_back((ino, (*dir, text.clone())));
                None
            }
            Operation::Remove(dir, text) => {
                let ino = find(*dir, text)?;
                let (dir, text) = self.take(ino)?;
                let successor = world.at(dir, &text);
                successor.filter(|one| *one != ino && is_file(one))
            }
            _ => None,
        }
    }

    pub fn take(&mut self, ino: u64) -> Option<(u64, String)> {
        let at = self.0.iter().position(|(one, _)| *one == ino)?;
        self.0.remove(at).map(|(_, from)| from)
    }
}

impl World {
    pub fn at(&self, dir: u64, text: &str) -> Option<u64> {
        self.names.get(&(dir, text.to_owned())).copied()
    }

    pub fn is_empty(&self, dir: u64) -> bool {
        !self.names.keys().any(|(parent, _)| *parent == dir)
    }

    pub fn is_below(&self, mut dir: u64, top: u64) -> bool {
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

    pub fn drop_if_nameless(&mut self, ino: u64) {
        if !self.names.values().any(|one| *one == ino) {
            self.inodes.remove(&ino);
        }
    }

    /// Does a operation; the inodes that it changes, or `None` if it is refused. `made` is what it
    /// makes.
    pub fn run(&mut self, operation: &Operation, made: u64) -> Option<Vec<u64>> {
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
            Operation::Write(ino, offset, len, salt) => {
                let inode = self.inodes.get_mut(ino)?;
                let end = *offset as usize + len;
                inode.content.resize(inode.content.len().max(end), 0);
                inode.content[*offset as usize..end].fill(*salt);
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
            Operation::Exchange(from, text, to, new) => {
                let (one, other) = (self.at(*from, text)?, self.at(*to, new)?);
                if one == other || self.is_below(*to, one) || self.is_below(*from, other) {
                    return None;
                }
                self.names.insert((*from, text.clone()), other);
                self.names.insert((*to, new.clone()), one);
                Some(vec![one, other])
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
    pub fn removed_directory(&self, world: &World) -> Option<u64> {
        let found = match self {
            Operation::Remove(dir, text) => world.at(*dir, text),
            Operation::Rename(_, _, to, new) => world.at(*to, new),
            _ => None,
        };
        found.filter(|ino| world.inodes[ino].is_directory)
    }

    /// Directories whose names it changes.
    pub fn directories(&self) -> Vec<u64> {
        match self {
            Operation::Make(dir, ..) | Operation::Remove(dir, _) | Operation::Link(_, dir, _) => {
                vec![*dir]
            }
            Operation::Rename(from, _, to, _) | Operation::Exchange(from, _, to, _) => {
                vec![*from, *to]
            }
            Operation::Write(..) | Operation::Mode(..) => vec![],
        }
    }

    pub fn run(&self, db: &Database) -> larder::Result<u64> {
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
                let made = db
                    .nodes()
                    .create_node(node(*dir), &name(text), new, 0o700, OWNER)?;
                Ok(made.node.ino.0)
            }
            Operation::Write(ino, offset, len, salt) => {
                let file = db.nodes().open(node(*ino), true)?;
                file.write_at(*offset, &vec![*salt; *len])?;
                Ok(0)
            }
            Operation::Mode(ino, mode) => {
                let set = SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                };
                db.nodes().set_attr(node(*ino), &set).map(|_| 0)
            }
            Operation::Remove(dir, text) => {
                let found = db.nodes().lookup(node(*dir), &name(text))?;
                match found.kind {
                    larder::format::FileKind::Directory => {
                        db.nodes().remove_dir(node(*dir), &name(text))
                    }
                    _ => db.nodes().unlink(node(*dir), &name(text)),
                }
                .map(|()| 0)
            }
            Operation::Rename(from, text, to, new) => db
                .nodes()
                .rename(
                    node(*from),
                    &name(text),
                    node(*to),
                    &name(new),
                    RenameMode::Replace,
                )
                .map(|()| 0),
            Operation::Exchange(from, text, to, new) => db
                .nodes()
                .rename(
                    node(*from),
                    &name(text),
                    node(*to),
                    &name(new),
                    RenameMode::Exchange,
                )
                .map(|()| 0),
            Operation::Link(ino, dir, text) => db
                .nodes()
                .link(node(*ino), node(*dir), &name(text))
                .map(|_| 0),
        }
    }
}

pub fn shown(db: &Database) -> World {
    let mut world = World::default();
    let mut left = vec![NodeId::ROOT];
    while let Some(dir) = left.pop() {
        let mut directories = 0;
        for entry in db.nodes().read_dir(dir, None, 1000).unwrap() {
            let attr = db.nodes().metadata(entry.node).unwrap();
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
                assert_eq!(db.nodes().parent(entry.node).unwrap(), dir, "NAMES-2");
                left.push(entry.node);
            }
        }
        let links = db.nodes().metadata(dir).unwrap().nlink;
        assert_eq!(links, directories + 2, "links of directory {}", dir.ino);
    }
    for (ino, inode) in world.inodes.iter().filter(|(_, inode)| !inode.is_directory) {
        let names = world.names.values().filter(|one| *one == ino).count();
        let node = NodeId {
            ino: larder::format::Ino(*ino),
            ..NodeId::ROOT
        };
        assert_eq!(
            db.nodes().metadata(node).unwrap().nlink as usize,
            names,
            "{inode:?}"
        );
    }
    world
}
