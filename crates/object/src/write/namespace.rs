//! Names and attributes: reading them, and changing them as one step.
//!
//! A [`Look`] keeps changes out while it looks; a [`WriteGuard`] keeps everybody out, so that a
//! rename is never seen half done, and takes back what does not come to its end. Both work on nodes
//! in memory, in front of the catalog.

use crate::engine::{EngineNamespace, lock};
use crate::view::entries::EntryDelta;
use crate::view::node::Node;
use crate::view::{View, ViewLookup};
use crate::write::Undo;
use crate::write::guard::WriteGuard;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{AttrMask, DirentRow, InodeRow, Save};
use larder_space::format::{FileKind, Ino, Name, StoreId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockReadGuard};

/// A look at names and attributes: nobody changes them meanwhile.
pub struct Look<'e> {
    view: &'e View,
    _names: RwLockReadGuard<'e, ()>,
}

/// What both a look and a change can ask.
macro_rules! shared_queries {
    () => {
        /// The node of an inode; [`ErrorKind::NotFound`] when it does not exist.
        pub fn node(&self, store: StoreId, ino: Ino) -> Result<Arc<Node>> {
            let node = self.view().lookup().node(store, ino)?;
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
            self.view().lookup().row(node)
        }

        /// What `name` in directory `dir` leads to, if it is there.
        pub fn find_entry(&self, dir: &Node, name: &Name) -> Result<Option<Ino>> {
            self.view().lookup().find_entry(dir, name)
        }

        /// At most `limit` entries of a directory after `after`, in the catalog's order.
        pub fn list(
            &self,
            dir: &Node,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<DirentRow>> {
            self.view().lookup().list(dir, after, limit)
        }

        /// The same with the attributes of what the entries name, in one scan of the catalog.
        pub fn list_with_rows(
            &self,
            dir: &Node,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<(Name, InodeRow)>> {
            self.view().lookup().list_with_rows(dir, after, limit)
        }

        /// The target of a symbolic link.
        pub fn target(&self, node: &Node) -> Result<Vec<u8>> {
            self.view().lookup().target(node)
        }

        /// The extended attributes of a node.
        pub fn xattrs(&self, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
            let mut state = self.view().lock_node(node)?;
            self.view().lookup().load_xattrs(node, &mut state)?;
            let all = state.xattrs.iter().flatten();
            Ok(all
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect())
        }

        /// The value of one extended attribute.
        pub fn find_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
            let mut state = self.view().lock_node(node)?;
            self.view().lookup().load_xattrs(node, &mut state)?;
            Ok(state.xattrs.as_ref().and_then(|all| all.get(name)).cloned())
        }

        /// The directory that holds a directory; the root holds itself.
        pub fn parent(&self, dir: &Node) -> Result<Ino> {
            self.view().lookup().parent_of(dir)
        }
    };
}

impl<'v> ViewLookup<'v> {
    /// Begins a look.
    pub fn begin(&self) -> Look<'v> {
        Look {
            view: self.view,
            _names: self.view.read_names(),
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

impl WriteGuard<'_> {
    fn view(&self) -> &View {
        self.engine()
    }

    shared_queries!();

    /// A new inode, without a name yet. `row.ino` is ignored; the node has the number it got.
    pub fn insert(
        &self,
        store: StoreId,
        mut row: InodeRow,
        target: Option<&[u8]>,
    ) -> Result<Arc<Node>> {
        self.engine().space().require_host_space()?;
        let mut next_inos = lock(&self.engine().next_inos);
        let next = match next_inos.get(&store) {
            Some(next) => *next,
            None => self.engine().catalog.stores().next_ino(store)?.0,
        };
        let next = self.engine().workspace().next_ino(store, next)?;
        next_inos.insert(store, next + 1);
        drop(next_inos);
        row.ino = Ino(next);
        self.step("insert")?;
        let node = Arc::new(Node::new(store, row, true));
        let mut state = node.lock();
        state.target = target.map(<[u8]>::to_vec);
        self.remember_new(&node, &state);
        self.mark_dirty(&node, &mut state);
        drop(state);
        self.engine().cache.insert(node.clone());
        Ok(node)
    }

    /// A new regular file without a name, open for writing once
    /// ([`crate::EngineContent::close_node`] must follow). It goes when nobody has it open any
    /// more, or in a crash, unless `Change::add_name` gave it a name, which `is_linkable` allows.
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
        let holder = Some(self.engine().session.liveness.id);
        lock(&self.engine().group).add_orphan((store, node.ino), holder);
        self.push_undo(Undo::OrphanAdded((store, node.ino), holder));
        self.engine().may_have_orphans.store(true, Ordering::SeqCst);
        Ok(node)
    }

    /// Counts one more name of an inode; [`ErrorKind::NotFound`] if it had lost its last one, or
    /// was made never to have one.
    pub fn add_name(&self, node: &Arc<Node>) -> Result<InodeRow> {
        self.engine().space().require_host_space()?;
        let mut state = self.engine().lock_node(node)?;
        self.step("add a name")?;
        self.remember(node, &state);
        if state.row.nlink == 0 {
            if !std::mem::take(&mut state.is_linkable) || state.is_deleted {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "the file has no name, and can get none",
                ));
            }
            self.adopt_orphan((node.store, node.ino));
        }
        state.row.nlink += 1;
        state.row.ctime_ns = self.now_ns;
        state.mask.nlink = true;
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        Ok(state.row.clone())
    }

    /// An inode without a name gets one.
    pub(crate) fn adopt_orphan(&self, id: (StoreId, Ino)) {
        let undo = lock(&self.engine().group).adopt_orphan(id);
        self.push_undo(undo);
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
            let mut state = child.lock();
            self.remember(&child, &state);
            state.parent = Some(dir.ino);
        }
        let mut state = self.engine().lock_node(dir)?;
        self.step("set an entry")?;
        self.remember(dir, &state);
        let ino = target.map(|(ino, _)| ino);
        self.push_undo(Undo::Entry {
            dir: dir.clone(),
            name: name.clone(),
            target: ino,
            before: state.entries.get(name).copied(),
            known: self.engine().cache.find_set_name(dir, name.as_bytes()),
        });
        let generation = self.engine().open_generation.load(Ordering::SeqCst);
        state
            .entries
            .insert(name.clone(), EntryDelta { target, generation });
        // CACHE-1: in the same step.
        self.engine().cache.set_name(dir, name, ino);
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
        let mut state = self.engine().lock_node(node)?;
        let mut row = state.row.clone();
        edit(&mut row);
        self.step("update")?;
        self.remember(node, &state);
        state.row = row;
        state.mask = state.mask | mask;
        if mask.atime {
            state.accessed_ns = None; // ATIME-2
        }
        self.mark_dirty(node, &mut state);
        Ok(state.row.clone())
    }

    /// Takes one name away from an inode. The last one lets it go: at once, or when the last handle
    /// closes (`CONTENT-4`), or when a keeper does (`NAMELESS-1`).
    /// A foreign key of the user's may refuse that ([`ErrorKind::NotPermitted`]).
    pub fn drop_name(&self, node: &Arc<Node>) -> Result<()> {
        self.drop_name_for(node, None)
    }

    /// The same when `saved`, another inode, takes the place of `node`, which has this name only:
    /// what users attached to it goes over (`SAVE-2`).
    pub fn replace(&self, node: &Arc<Node>, saved: &Arc<Node>) -> Result<()> {
        self.drop_name_for(node, Some(saved))
    }

    fn drop_name_for(&self, node: &Arc<Node>, saved: Option<&Arc<Node>>) -> Result<()> {
        let mut state = self.engine().lock_node(node)?;
        self.step("drop a name")?;
        self.remember(node, &state);
        if let Some(saved) = saved {
            let save = Save {
                store: node.store,
                from: node.ino,
                to: saved.ino,
                is_forced: false,
            };
            self.add_save(save, state.is_fresh);
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
        if state.open_count == 0 && self.engine().orphans().has_keeper() {
            state.is_parting = true;
            lock(&self.engine().group).parting.push(Arc::clone(node));
            self.push_undo(Undo::Parting(Arc::clone(node)));
            return Ok(());
        }
        let mut group = lock(&self.engine().group);
        let is_open = state.open_count > 0;
        if is_open || group.has_others {
            self.engine().may_have_orphans.store(true, Ordering::SeqCst);
            let (id, session) = ((node.store, node.ino), self.engine().session.liveness.id);
            let holder = is_open.then_some(session);
            if state.is_anonymous && group.orphan_again(id, is_open, session) {
                let left = (!is_open).then_some(session);
                self.push_undo(Undo::OrphanAgain(id, left));
            } else {
                group.add_orphan(id, holder);
                self.push_undo(Undo::OrphanAdded(id, holder));
            }
        } else {
            drop(group);
            // Its content goes when the operation has succeeded (GUARD-2).
            state.is_deleted = true;
            self.mark_dirty(node, &mut state);
        }
        Ok(())
    }

    /// Sets or removes an extended attribute.
    pub fn set_xattr(&self, node: &Arc<Node>, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if value.is_some() {
            self.engine().space().require_host_space()?;
        }
        let mut state = self.engine().lock_node(node)?;
        self.engine().lookup().load_xattrs(node, &mut state)?;
        self.step("set an attribute")?;
        self.remember(node, &state);
        if let Some(all) = state.xattrs.as_mut() {
            let before = match value {
                Some(value) => all.insert(name.to_vec(), value.to_vec()),
                None => all.remove(name),
            };
            self.push_undo(Undo::Xattr {
                node: node.clone(),
                name: name.to_vec(),
                before,
            });
        }
        state.note_xattr(name);
        state.row.ctime_ns = self.now_ns;
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        Ok(())
    }
}

impl EngineNamespace<'_> {
    /// Sets a user column, in a commit of its own after everything before it. `check` is asked
    /// first, with the writer lock: is there a value?
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
        self.commits().commit_now()?;
        Ok(self
            .catalog
            .temporal()?
            .set_user_column(store, ino, column, value)?)
    }
}
