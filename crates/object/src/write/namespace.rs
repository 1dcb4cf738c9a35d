//! Names and attributes: reading them, and changing them as one step.
//!
//! A [`Look`] keeps changes out while it looks; a [`Change`] keeps everybody out, so that a rename
//! is never seen half done. Both work on nodes in memory, in front of the catalog.

use crate::engine::{Edit, Engine, lock};
use crate::view::View;
use crate::view::entries::EntryDelta;
use crate::view::node::{Node, NodeState};
use crate::{Error, ErrorKind, Result};
use larder_catalog::{AttrMask, CatalogError, DirentRow, InodeChange, InodeRow, Save};
use larder_space::format::{FileKind, Ino, Name, StoreId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// A look at names and attributes: nobody changes them meanwhile.
pub struct Look<'e> {
    view: &'e View,
    _names: RwLockReadGuard<'e, ()>,
}

/// A change of names and attributes under way: all of it is seen at once, and is in one commit.
pub struct Change<'e> {
    engine: &'e Engine,
    // Dropped in this order: the turn last.
    _names: RwLockWriteGuard<'e, ()>,
    _gate: RwLockReadGuard<'e, ()>,
    _edit: Edit<'e>,
    /// The present, nanoseconds since 1970: one moment for the whole change.
    pub now_ns: i64,
}

impl Engine {
    /// Begins a change; waits for the turn.
    pub fn change(&self) -> Result<Change<'_>> {
        self.begin_change(self.edit()?)
    }

    /// The same for a user of the turn.
    pub(crate) fn begin_change<'e>(&'e self, edit: Edit<'e>) -> Result<Change<'e>> {
        loop {
            if self.has_constraints() {
                // What a constraint may refuse is tried on the catalog: it must know what was before.
                self.commit_now()?;
            }
            let gate = self.enter_gate();
            let names = self.write_names();
            if self.has_constraints() && lock(&self.group).has_names {
                // Another change came in between.
                continue;
            }
            return Ok(Change {
                engine: self,
                _names: names,
                _gate: gate,
                _edit: edit,
                now_ns: self.now_ns(),
            });
        }
    }
}

/// What both a look and a change can ask.
macro_rules! shared_queries {
    () => {
        /// The node of an inode; [`ErrorKind::NotFound`] when it does not exist.
        pub fn node(&self, store: StoreId, ino: Ino) -> Result<Arc<Node>> {
            let node = self.view().node(store, ino)?;
            let is_gone = {
                let state = self.view().lock_node(&node)?;
                state.is_deleted && state.open_count == 0
            };
            if is_gone {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("inode {ino} of store {store} was removed"),
                ));
            }
            Ok(node)
        }

        /// The attributes of a node.
        pub fn row(&self, node: &Node) -> Result<InodeRow> {
            self.view().row(node)
        }

        /// What `name` in directory `dir` leads to, if it is there.
        pub fn find_entry(&self, dir: &Node, name: &Name) -> Result<Option<Ino>> {
            self.view().find_entry(dir, name)
        }

        /// At most `limit` entries of a directory after `after`, in the catalog's order.
        pub fn list(
            &self,
            dir: &Node,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<DirentRow>> {
            self.view().list(dir, after, limit)
        }

        /// The same with the attributes of what the entries name, in one scan of the catalog.
        pub fn list_with_rows(
            &self,
            dir: &Node,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<(Name, InodeRow)>> {
            self.view().list_with_rows(dir, after, limit)
        }

        /// The target of a symbolic link.
        pub fn target(&self, node: &Node) -> Result<Vec<u8>> {
            self.view().target(node)
        }

        /// The extended attributes of a node.
        pub fn xattrs(&self, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
            let mut state = self.view().lock_node(node)?;
            self.view().load_xattrs(node, &mut state)?;
            let all = state.xattrs.iter().flatten();
            Ok(all
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect())
        }

        /// The value of one extended attribute.
        pub fn find_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
            let mut state = self.view().lock_node(node)?;
            self.view().load_xattrs(node, &mut state)?;
            Ok(state.xattrs.as_ref().and_then(|all| all.get(name)).cloned())
        }

        /// The directory that holds a directory; the root holds itself.
        pub fn parent(&self, dir: &Node) -> Result<Ino> {
            self.view().parent_of(dir)
        }
    };
}

impl View {
    /// Begins a look.
    pub fn look(&self) -> Look<'_> {
        Look {
            view: self,
            _names: self.read_names(),
        }
    }
}

impl Look<'_> {
    fn view(&self) -> &View {
        self.view
    }

    shared_queries!();

    /// What `name`, bytes that need not be a valid name, in directory `dir` leads to, if that is in
    /// memory: `None` if it is not, `Some(None)` if there is no such entry.
    pub fn known_entry(&self, dir: &Node, name: &[u8]) -> Option<Option<Ino>> {
        self.view.cache.find_name(dir, name)
    }
}

impl<'e> Change<'e> {
    /// The engine that is changed.
    pub(crate) fn engine(&self) -> &'e Engine {
        self.engine
    }

    fn view(&self) -> &View {
        self.engine
    }

    shared_queries!();

    pub(crate) fn mark_dirty(&self, node: &Arc<Node>, state: &mut NodeState) {
        self.engine.mark_dirty(node, state);
        lock(&self.engine.group).has_names = true;
    }

    /// A new inode, without a name yet. `row.ino` is ignored; the node has the number it got.
    pub fn insert(
        &self,
        store: StoreId,
        mut row: InodeRow,
        target: Option<&[u8]>,
    ) -> Result<Arc<Node>> {
        self.engine.require_host_room()?;
        let mut next_inos = lock(&self.engine.next_inos);
        let next = match next_inos.get(&store) {
            Some(next) => *next,
            None => self.engine.catalog.next_ino(store)?.0,
        };
        let next = self.engine.next_ino(store, next)?;
        next_inos.insert(store, next + 1);
        drop(next_inos);
        row.ino = Ino(next);
        self.engine
            .try_row(store, &InodeChange::Insert(row.clone()))?;
        let node = Arc::new(Node::new(store, row, true));
        let mut state = node.lock();
        state.target = target.map(<[u8]>::to_vec);
        self.mark_dirty(&node, &mut state);
        drop(state);
        self.engine.cache.insert(node.clone());
        Ok(node)
    }

    /// A new regular file without a name, open for writing once ([`Engine::close_node`] must follow).
    /// It goes when nobody has it open any more, or in a crash, unless [`Change::add_name`] gave it a
    /// name, which `is_linkable` allows.
    pub fn insert_anonymous(
        &self,
        store: StoreId,
        row: InodeRow,
        is_linkable: bool,
    ) -> Result<Arc<Node>> {
        let node = self.insert(store, InodeRow { nlink: 0, ..row }, None)?;
        let mut state = node.lock();
        (state.is_anonymous, state.is_linkable) = (true, is_linkable);
        (state.open_count, state.writer_count) = (1, 1);
        drop(state);
        let holder = Some(self.engine.session.liveness.id);
        lock(&self.engine.group).add_orphan((store, node.ino), holder);
        self.engine.may_have_orphans.store(true, Ordering::SeqCst);
        Ok(node)
    }

    /// Counts one more name of an inode; [`ErrorKind::NotFound`] if it had lost its last one, or was
    /// made never to have one.
    pub fn add_name(&self, node: &Arc<Node>) -> Result<InodeRow> {
        self.engine.require_host_room()?;
        let mut state = self.engine.lock_node(node)?;
        if state.row.nlink == 0 {
            if !std::mem::take(&mut state.is_linkable) || state.is_deleted {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "the file has no name, and can get none",
                ));
            }
            lock(&self.engine.group).adopt_orphan((node.store, node.ino));
        }
        state.row.nlink += 1;
        state.row.ctime_ns = self.now_ns;
        state.mask.nlink = true;
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        Ok(state.row.clone())
    }

    /// Sets or removes an entry of a directory, and notes the directory's change of times.
    pub fn set_entry(
        &self,
        dir: &Arc<Node>,
        name: &Name,
        target: Option<(Ino, FileKind)>,
    ) -> Result<()> {
        if let Some((ino, FileKind::Directory)) = target {
            let child = self.node(dir.store, ino)?;
            child.lock().parent = Some(dir.ino);
        }
        let mut state = self.engine.lock_node(dir)?;
        let generation = self.engine.open_generation.load(Ordering::SeqCst);
        state
            .entries
            .insert(name.clone(), EntryDelta { target, generation });
        // CACHE-1: in the same step.
        self.engine
            .cache
            .set_name(dir, name, target.map(|(ino, _)| ino));
        state.row.mtime_ns = self.now_ns;
        state.row.ctime_ns = self.now_ns;
        state.mask.mtime = true;
        state.mask.ctime = true;
        self.mark_dirty(dir, &mut state);
        Ok(())
    }

    /// Changes attributes; `mask` says which ones `edit` touches.
    pub fn update(
        &self,
        node: &Arc<Node>,
        mask: AttrMask,
        edit: impl FnOnce(&mut InodeRow),
    ) -> Result<InodeRow> {
        let mut state = self.engine.lock_node(node)?;
        let mut row = state.row.clone();
        edit(&mut row);
        if (mask.mode || mask.owner || mask.atime || mask.mtime) && !state.is_fresh {
            // Attributes that a user sets; the others belong to changes that were tried.
            self.engine
                .try_row(node.store, &InodeChange::Update(row.clone(), mask))?;
        }
        state.row = row;
        state.mask = state.mask | mask;
        self.mark_dirty(node, &mut state);
        Ok(state.row.clone())
    }

    /// Takes one name away from an inode. The last one lets it go: at once, or when the last handle
    /// closes (`CONTENT-4`), or when a keeper does (`NAMELESS-1`).
    /// A foreign key of the user's may refuse that ([`ErrorKind::NotPermitted`]).
    pub fn drop_name(&self, node: &Arc<Node>) -> Result<()> {
        self.drop_name_for(node, None)
    }

    /// The same when `saved`, another inode, takes the place of `node`, which has this name only: what users attached to it
    /// goes over (`SAVE-2`).
    pub fn replace(&self, node: &Arc<Node>, saved: &Arc<Node>) -> Result<()> {
        self.drop_name_for(node, Some(saved))
    }

    fn drop_name_for(&self, node: &Arc<Node>, saved: Option<&Arc<Node>>) -> Result<()> {
        let mut state = self.engine.lock_node(node)?;
        let is_last = state.row.nlink == 1 || state.row.kind == FileKind::Directory;
        if is_last && !state.is_fresh {
            match saved {
                Some(saved) => self.engine.try_save(node.store, node.ino, saved.ino)?,
                None => (self.engine).try_row(node.store, &InodeChange::Delete(node.ino))?,
            }
        }
        if let Some(saved) = saved {
            let save = Save {
                store: node.store,
                from: node.ino,
                to: saved.ino,
                is_forced: false,
            };
            lock(&self.engine.group).add_save(save, state.is_fresh);
        }
        let is_directory = state.row.kind == FileKind::Directory;
        state.row.nlink = if is_directory { 0 } else { state.row.nlink - 1 };
        state.row.ctime_ns = self.now_ns;
        state.mask.nlink = true;
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        if state.row.nlink > 0 {
            return Ok(());
        }
        self.engine.lose_last_name(node, &mut state);
        Ok(())
    }

    /// Sets or removes an extended attribute.
    pub fn set_xattr(&self, node: &Arc<Node>, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if value.is_some() {
            self.engine.require_host_room()?;
        }
        let mut state = self.engine.lock_node(node)?;
        self.engine.load_xattrs(node, &mut state)?;
        if let Some(all) = state.xattrs.as_mut() {
            match value {
                Some(value) => drop(all.insert(name.to_vec(), value.to_vec())),
                None => drop(all.remove(name)),
            }
        }
        state.note_xattr(name);
        state.row.ctime_ns = self.now_ns;
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        Ok(())
    }
}

impl Engine {
    /// Whether any store has constraints of the user's.
    fn has_constraints(&self) -> bool {
        let constrained = self.constrained.read();
        !constrained
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Whether something of the user's may refuse a row of this store.
    pub(crate) fn is_constrained(&self, store: StoreId) -> bool {
        let constrained = self.constrained.read();
        constrained
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&store)
    }

    /// Tries a row change where the user's constraints may refuse it.
    pub(crate) fn try_row(&self, store: StoreId, change: &InodeChange) -> Result<()> {
        if !self.is_constrained(store) {
            return Ok(());
        }
        (self.catalog.try_inode(store, change)).map_err(refused_by_constraint)
    }

    /// The same of a save that removes the inode which it replaces.
    fn try_save(&self, store: StoreId, from: Ino, to: Ino) -> Result<()> {
        if !self.is_constrained(store) {
            return Ok(());
        }
        (self.catalog.try_save(store, from, to)).map_err(refused_by_constraint)
    }

    /// Sets a user column, in a commit of its own after everything before it. `check` is asked first, in the turn:
    /// is there a value?
    pub fn set_user_column(
        &self,
        store: StoreId,
        ino: Ino,
        column: &str,
        value: Option<&[u8]>,
        check: impl FnOnce(bool) -> Result<()>,
    ) -> Result<()> {
        let _edit = self.edit()?;
        check(self.user_column(store, ino, column)?.is_some())?;
        self.commit_now()?;
        Ok(self.catalog.set_user_column(store, ino, column, value)?)
    }
}

fn refused_by_constraint(error: CatalogError) -> Error {
    match error {
        CatalogError::Constraint { .. } => {
            tracing::warn!("refused by a constraint: {error}");
            Error::with_source(
                ErrorKind::NotPermitted,
                "a constraint of the database refuses it",
                error,
            )
        }
        other => other.into(),
    }
}

pub(crate) fn require_directory(state: &NodeState) -> Result<()> {
    if state.row.kind == FileKind::Directory {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotADirectory, "not a directory"))
}
