//! Whether a transaction may go on with a newer snapshot than it began with (`PRIVATE-5`).

use crate::engine::{EngineShortTransaction, Private, lock};
use crate::txn::{Left, ReadNode, Stage, State};
use crate::view::ReadSet;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{InodeRow, StoreRow};
use larder_space::format::{CommitSeq, FileKind, Ino, StoreId};
use std::sync::PoisonError;

/// Names of one directory that are compared at most; with more, a change of it is a conflict.
const NAMES_MAX: usize = 1000;

impl EngineShortTransaction<'_> {
    /// Leaves the snapshot of a transaction that waits for others, to
    /// [`EngineShortTransaction::renew`] it when they are done: the catalog's log cannot begin anew
    /// as long as somebody has an old snapshot, and where many wait somebody always has
    /// (`CHECKPOINT-1`). Not where rows were read by SQL: a statement may be under way.
    pub(super) fn leave_snapshot(&self, state: &mut State) -> Result<()> {
        if state.stage == Stage::Reading && !self.read_set().is_some_and(ReadSet::has_rows) {
            state.left = Some(self.leave(state)?);
        }
        Ok(())
    }

    fn leave(&self, state: &mut State) -> Result<Left> {
        let left = Left {
            seq: self.known_seq(),
            stores: self.catalog.stores().rows()?,
            nodes: self.read_nodes()?,
            savepoints: std::mem::take(&mut state.savepoints),
        };
        self.catalog.roll_back()?;
        state.stage = Stage::Idle;
        Ok(left)
    }

    /// Goes on with the newest snapshot if nothing that was read differs in it (`PRIVATE-5`). An
    /// inode is as it was if all of its row is and no commit has written it again, so that no clock
    /// need tell. A directory that was only passed is as it was if the names that were looked up in
    /// it lead where they did.
    pub(super) fn renew(&self, private: &Private, state: &mut State, stage: Stage) -> Result<()> {
        let left = match state.left.take() {
            Some(left) => left,
            None => self.leave(state)?,
        };
        let Left {
            seq: before,
            stores,
            nodes: read,
            savepoints,
        } = left;
        let is_new = self.open_at_present(private, state, stage)?;
        if is_new {
            if stage == Stage::Reading {
                // The names that it looked up would be forgotten, and not compared the next time.
                let since = format!("others have committed since commit {before}");
                return Err(conflict(format!(
                    "{since}, and the writer lock was not to be had"
                )));
            }
            self.require_same(state, (before, &stores, &read))?;
        }
        for savepoint in savepoints {
            self.catalog
                .transaction()?
                .set_savepoint(state.savepoints.len())?;
            state.savepoints.push(savepoint);
        }
        match is_new {
            true => self.learn_present(),
            false => Ok(()),
        }
    }

    fn require_same(
        &self,
        state: &State,
        (before, stores, read): (CommitSeq, &[StoreRow], &[ReadNode]),
    ) -> Result<()> {
        let now = self.catalog.tables().commit_seq()?;
        let because = |what: &str| {
            conflict(format!(
                "{what} (commit {before} was read, {now} is the newest)"
            ))
        };
        if self.read_set().is_some_and(ReadSet::has_rows) {
            return Err(because(
                "rows that the transaction read by SQL may have changed",
            ));
        }
        if self.catalog.stores().rows()? != stores {
            return Err(because(
                "stores were created, destroyed or changed after the transaction began",
            ));
        }
        if let Some(what) = self.find_changed_columns()? {
            return Err(because(&what));
        }
        let mut changed = Vec::new();
        for one in read {
            let key = (one.node.store, one.node.ino);
            let is_passed = one.row.kind == FileKind::Directory && !state.told.contains(&key);
            if let Some(path) = self.find_change(one, is_passed)? {
                let is_told_directory = one.node.kind() == FileKind::Directory && !is_passed;
                changed.push((is_told_directory, path));
            }
        }
        // A file says more than the directory that it is in.
        if let Some((_, path)) = changed.into_iter().min() {
            return Err(because(&format!(
                "'{path}' was changed after the transaction read it"
            )));
        }
        Ok(())
    }

    /// The inodes that the transaction has used, as its snapshot has them.
    fn read_nodes(&self) -> Result<Vec<ReadNode>> {
        let used = self.cache.used_now().into_iter();
        used.map(|node| {
            let row = node.lock().row.clone();
            let since = self.catalog.tables().inode_since(node.store, node.ino)?;
            Ok(ReadNode { node, row, since })
        })
        .collect()
    }

    /// The path of what is not as it was read.
    fn find_change(&self, read: &ReadNode, is_passed: bool) -> Result<Option<String>> {
        let ReadNode { node, row, since } = read;
        let (store, ino) = (node.store, node.ino);
        let found = self.catalog.tables().inode(store, ino)?;
        if !is_passed || found.is_none() {
            let is_same = found.as_ref() == Some(row)
                && self.catalog.tables().inode_since(store, ino)? == *since;
            return Ok((!is_same).then(|| self.path_as_found(store, ino)));
        }
        let rules = |row: &InodeRow| (row.mode, row.uid, row.gid);
        let names = node.names.read().unwrap_or_else(PoisonError::into_inner);
        let are_many = names.were_more || names.known.len() > NAMES_MAX;
        if found.as_ref().map(rules) != Some(rules(row)) || are_many {
            return Ok(Some(self.path_as_found(store, ino)));
        }
        for (name, target) in &names.known {
            if self.catalog.tables().dirent(store, ino, name)? != *target {
                let dir = self.path_as_found(store, ino);
                return Ok(Some(format!("{}/{name}", dir.trim_end_matches('/'))));
            }
        }
        Ok(None)
    }

    /// Which columns of users are not as they were read, for people.
    fn find_changed_columns(&self) -> Result<Option<String>> {
        let read = self.read_set().map(ReadSet::columns).unwrap_or_default();
        for (store, columns) in read {
            if self.catalog.temporal()?.user_columns(store)? != columns {
                return Ok(Some(format!(
                    "the columns of the table of store {store} have changed after the transaction \
                     read them"
                )));
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
                let parents = self.catalog.tables().parents(store, at).ok()?;
                parents.into_iter().next()
            });
            let Some((parent, name)) = found else {
                parts.push(format!("inode {at}"));
                break;
            };
            parts.push(name.to_string());
            at = parent;
        }
        let mounts = self.catalog.stores().rows().unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::txn::short::assemble_private;
    use crate::{EngineOptions, InitOptions};
    use larder_catalog::Catalog;
    use larder_space::format::Name;
    use std::sync::Arc;
    use std::time::Duration;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn add(engine: &Arc<Engine>, text: &str) {
        let root = engine.lookup().node(StoreId::MAIN, Ino::ROOT).unwrap();
        let row = InodeRow {
            kind: FileKind::File,
            nlink: 1,
            ..engine.lookup().row(&root).unwrap()
        };
        let guard = engine.namespace().write_guard().unwrap();
        let node = guard.insert(StoreId::MAIN, row, None).unwrap();
        guard
            .set_entry(&root, &name(text), Some((node.ino, FileKind::File)))
            .unwrap();
        guard.commit().unwrap();
        engine.commits().sync().unwrap();
    }

    /// A transaction looks a name up, and wants the writer lock while another session has it;
    /// meanwhile that one commits something else if `commits`. Then it makes the name, and the
    /// transaction wants the writer lock again.
    fn outcome(waits: bool, commits: bool) -> (bool, Result<()>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = EngineOptions {
            has_background: false,
            ..EngineOptions::default()
        };
        let init = InitOptions {
            capacity_bytes: Some(64 << 20),
            retention_ns: 3_600_000_000_000,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(&path, &init, &options).unwrap();
        let host = Engine::open(&path, "host", &options).unwrap();
        host.commits().unlock_writer();
        let other = Engine::open(&path, "other", &options).unwrap();
        let catalog = Catalog::open_private_in(
            &host.session.directory,
            &host.session.options.for_catalog(),
            false,
        )
        .unwrap();
        catalog.foreign().unwrap().announce_changes();
        let writer_lock = host
            .writer_lock
            .open_beside(&host.session.directory, Box::new(|| Ok(())))
            .unwrap();
        let writer_lock = writer_lock.waiting(Duration::from_millis(50));
        let transaction = assemble_private(&host, catalog, writer_lock);
        transaction.short_transaction().snapshot().unwrap();
        let root = transaction
            .lookup()
            .begin()
            .node(StoreId::MAIN, Ino::ROOT)
            .unwrap();
        let found = transaction
            .lookup()
            .begin()
            .find_entry(&root, &name("lock"));
        assert_eq!(found.unwrap(), None);
        let kept = other.edit().unwrap();
        if commits {
            add(&other, "unrelated");
        }
        if waits {
            let refused = transaction.short_transaction().lock_writer().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TimedOut);
        }
        let is_lost = transaction.short_transaction().is_lost();
        add(&other, "lock");
        drop(kept);
        other.commits().unlock_writer();
        let taken = transaction.short_transaction().lock_writer();
        drop(transaction.short_transaction().roll_back());
        (is_lost, taken)
    }

    #[test]
    fn who_waited_in_vain_goes_on_only_with_what_it_has_read() {
        for (waits, commits, loses) in [
            (false, false, false),
            (true, false, false),
            (true, true, true),
        ] {
            let (is_lost, taken) = outcome(waits, commits);
            assert_eq!(is_lost, loses, "PRIVATE-5: {waits}, {commits}");
            let kind = taken.unwrap_err().kind();
            let expected = match loses {
                true => ErrorKind::InvalidInput,
                false => ErrorKind::Conflict,
            };
            assert_eq!(kind, expected, "PRIVATE-5: {waits}, {commits}");
        }
    }
}
