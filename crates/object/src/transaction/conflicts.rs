//! Whether a transaction may go on with a newer snapshot than it began with (`PRIVATE-5`).

use super::{Private, Stage, State};
use crate::engine::{Engine, lock};
use crate::node::Node;
use crate::{Error, ErrorKind, Result};
use larder_catalog::InodeRow;
use larder_space::format::{FileKind, Ino, StoreId};
use std::sync::{Arc, PoisonError};

/// Names of one directory that are compared at most; with more, a change of it is a conflict.
const NAMES_MAX: usize = 1000;

impl Engine {
    /// Goes on with the newest snapshot if nothing that was read differs in it (`PRIVATE-5`). An inode is
    /// as it was if all of its row is, the time of its last change included. A directory that was only
    /// passed is as it was if the names that were looked up in it lead where they did.
    pub(super) fn renew(&self, private: &Private, state: &mut State) -> Result<()> {
        let before = self.known_seq();
        let used = self.cache.used_now().into_iter();
        let read: Vec<(Arc<Node>, InodeRow)> = used
            .map(|node| {
                let row = node.lock().row.clone();
                (node, row)
            })
            .collect();
        self.catalog.roll_back()?;
        state.stage = Stage::Idle;
        let savepoints = std::mem::take(&mut state.savepoints);
        self.open_at_present(private, state, Stage::Writing)?;
        let now = self.catalog.commit_seq()?;
        if state.has_read_rows {
            return Err(conflict(format!(
                "rows that the transaction read by SQL may have changed (commit {before} was read, {now} is the newest)"
            )));
        }
        let mut changed = Vec::new();
        for (node, row) in &read {
            let is_passed =
                row.kind == FileKind::Directory && !state.told.contains(&(node.store, node.ino));
            if let Some(path) = self.find_change(node, row, is_passed)? {
                changed.push((node.kind() == FileKind::Directory && !is_passed, path));
            }
        }
        // A file says more than the directory that it is in.
        if let Some((_, path)) = changed.into_iter().min() {
            return Err(conflict(format!(
                "'{path}' was changed after the transaction read it (commit {before} was read, {now} is the newest)"
            )));
        }
        for savepoint in savepoints {
            self.catalog.set_savepoint(state.savepoints.len())?;
            state.savepoints.push(savepoint);
        }
        self.learn_present()
    }

    /// The path of what is not as it was read.
    fn find_change(&self, node: &Node, row: &InodeRow, is_passed: bool) -> Result<Option<String>> {
        let (store, ino) = (node.store, node.ino);
        let found = self.catalog.inode(store, ino)?;
        if !is_passed || found.is_none() {
            let is_same = found.as_ref() == Some(row);
            return Ok((!is_same).then(|| self.path_as_found(store, ino)));
        }
        let rules = |row: &InodeRow| (row.mode, row.uid, row.gid);
        let names = node.names.read().unwrap_or_else(PoisonError::into_inner);
        if found.as_ref().map(rules) != Some(rules(row)) || names.known.len() > NAMES_MAX {
            return Ok(Some(self.path_as_found(store, ino)));
        }
        for (name, target) in &names.known {
            if self.catalog.dirent(store, ino, name)? != *target {
                let dir = self.path_as_found(store, ino);
                return Ok(Some(format!("{}/{name}", dir.trim_end_matches('/'))));
            }
        }
        Ok(None)
    }

    /// The attributes or the entries of an inode were told, not only names on the way.
    pub fn note_told(&self, store: StoreId, ino: Ino) {
        if let Some(private) = &self.private {
            let mut state = lock(&private.state);
            if state.stage == Stage::Reading {
                state.told.insert((store, ino));
            }
        }
    }

    /// A path that leads to an inode: as the transaction found it, else as the catalog has it.
    fn path_as_found(&self, store: StoreId, ino: Ino) -> String {
        const DEPTH_MAX: usize = 64;
        let mut parts: Vec<String> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && parts.len() < DEPTH_MAX {
            let found = self.cache.find_parent(store, at).or_else(|| {
                let parents = self.catalog.parents(store, at).ok()?;
                parents.into_iter().next()
            });
            let Some((parent, name)) = found else {
                parts.push(format!("inode {at}"));
                break;
            };
            parts.push(name.to_string());
            at = parent;
        }
        let mounts = self.catalog.stores().unwrap_or_default();
        let mount = mounts.iter().find(|row| row.store == store);
        let mount = mount.map_or("", |row| row.mount.trim_end_matches('/'));
        parts.reverse();
        format!("{mount}/{}", parts.join("/"))
    }
}

fn conflict(what: String) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("{what}; nothing was done, run the transaction again"),
    )
}
