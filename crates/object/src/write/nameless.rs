//! Inodes that have lost their last name, and until when they live.
//!
//! # Words
//! A *keeper* knows inodes beside those that have handles: the kernel, of a mount. An inode is
//! *parting* from the loss of its last name until its group is closed, and *kept* while nothing but
//! a keeper holds it.
//!
//! ```text
//!          last name lost          group closed: known to the keeper, or open
//!  named ─────────────────▶ parting ─────────────────────────────────────────▶ orphan, kept
//!                              │ otherwise                                         │ let go,
//!                              └────────────────────▶ deleted ◀────────────────────┘ not open
//! ```
//!
//! # Invariants
//! * `NAMELESS-1` An inode that a keeper knows lives until the keeper lets it go, also when another
//!   session has taken its last name; at most until this session ends. *Guard*: the keeper is asked
//!   and the inode marked as kept with the node locked, and what is let go is looked at with it
//!   locked.
//! * `NAMELESS-2` An inode that is gone from the keeper when its group is closed costs no row in
//!   the catalog: most are forgotten by the kernel right after their last name.
//!
//! # Recovery
//! What is kept is an orphan with this session as its holder: a crash leaves it to the next
//! session.

use crate::Result;
use crate::engine::{Edit, EngineOrphans, lock};
use crate::view::node::{Node, NodeState};
use crate::write::{Keeper, Nameless};
use larder_space::format::{Ino, StoreId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

impl Nameless {
    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        let keeper = self.keeper.read().unwrap_or_else(PoisonError::into_inner);
        keeper.as_ref().and_then(Weak::upgrade)
    }

    fn has_let_go(&self) -> bool {
        !lock(&self.let_go).is_empty()
    }
}

impl EngineOrphans<'_> {
    /// From now on `keeper` is asked, as long as it lives.
    pub fn set_keeper(&self, keeper: Weak<dyn Keeper>) {
        let mut place = (self.nameless.keeper.write()).unwrap_or_else(PoisonError::into_inner);
        *place = Some(keeper);
    }

    pub(crate) fn has_keeper(&self) -> bool {
        self.nameless.keeper().is_some()
    }

    /// The keeper does not know the inode any more. Waits for no other session.
    pub fn let_go(&self, store: StoreId, ino: Ino) {
        lock(&self.nameless.let_go).push((store, ino));
        if self.writer_lock.is_held()
            && let Err(error) = self.end_let_go()
        {
            tracing::warn!("letting go of inode {ino} of store {store}: {error}");
        }
    }

    /// Ends what was let go, unless another session has the writer lock: then the background comes
    /// again.
    pub(crate) fn end_let_go(&self) -> Result<()> {
        if !self.nameless.has_let_go()
            || !self
                .writer_lock
                .try_begin(|| self.sessions().refresh_locked())?
        {
            return Ok(());
        }
        let edit = Edit { engine: self };
        let let_go = std::mem::take(&mut *lock(&self.nameless.let_go));
        for (store, ino) in let_go {
            let Some(node) = self.cache.find(store, ino) else {
                continue;
            };
            let _barrier = self.enter_barrier();
            let mut state = self.lock_node(&node)?;
            if std::mem::take(&mut state.is_kept) {
                state.open_count -= 1;
                self.end_orphan(&node, &mut state);
            }
        }
        drop(edit);
        Ok(())
    }

    /// Decides on those that part in the open group, which is being closed: the freeze barrier is.
    pub(crate) fn end_parting(&self) {
        let parting = std::mem::take(&mut lock(&self.group).parting);
        for node in parting {
            let mut state = node.lock();
            if std::mem::take(&mut state.is_parting) && state.row.nlink == 0 {
                self.keep_if_known(&node, &mut state, false);
                self.make_orphan(&node, &mut state);
            }
        }
    }

    /// Keeps an inode that nobody has open, if the keeper knows it; says whether (`NAMELESS-1`).
    pub(crate) fn keep_if_known(
        &self,
        node: &Node,
        state: &mut NodeState,
        by_others: bool,
    ) -> bool {
        let keeps = |keeper: Arc<dyn Keeper>| keeper.keep(node.store, node.ino, by_others);
        let is_kept = state.open_count == 0 && self.nameless.keeper().is_some_and(keeps);
        if is_kept {
            state.is_kept = true;
            state.open_count = 1;
        }
        is_kept
    }

    /// Keeps what lost its last name by another session, if the keeper knows it; says whether it
    /// does so now.
    pub(crate) fn keep_orphan(&self, store: StoreId, ino: Ino) -> Result<bool> {
        let knows = |keeper: Arc<dyn Keeper>| keeper.knows(store, ino);
        if !self.nameless.keeper().is_some_and(knows) {
            return Ok(false);
        }
        let epoch = self.foreign.epoch();
        let node = match self.cache.find(store, ino) {
            Some(node) => node,
            None => match self.catalog.tables().inode(store, ino)? {
                Some(row) => self
                    .foreign()
                    .remember(Arc::new(Node::new(store, row, false)), epoch),
                None => return Ok(false),
            },
        };
        let mut state = node.lock();
        Ok(self.keep_if_known(&node, &mut state, true))
    }

    /// An inode without a name that nobody has open goes, unless others may have it open.
    fn make_orphan(&self, node: &Arc<Node>, state: &mut NodeState) {
        let mut group = lock(&self.group);
        let is_open = state.open_count > 0;
        if !is_open && !group.has_others {
            drop(group);
            self.content().delete(node, state);
            return;
        }
        self.may_have_orphans.store(true, Ordering::SeqCst);
        let (id, session) = ((node.store, node.ino), self.session.liveness.id);
        if !(state.is_anonymous && group.orphan_again(id, is_open, session)) {
            group.add_orphan(id, is_open.then_some(session));
        }
    }

    /// Nobody has the inode open here any more. If it has no name, it goes; the caller has the
    /// writer lock and is inside the freeze barrier.
    pub(crate) fn end_orphan(&self, node: &Arc<Node>, state: &mut NodeState) {
        let is_over = state.open_count == 0 && state.row.nlink == 0;
        if !is_over || state.is_deleted || state.is_parting {
            return;
        }
        let mut group = lock(&self.group);
        (group.holders_removed).push((node.store, node.ino, self.session.liveness.id));
        // Without other sessions nobody else can hold it, and without constraints nobody can
        // refuse; else the next reclaim decides.
        self.may_have_orphans.store(true, Ordering::SeqCst);
        if !group.has_others && !self.rules().is_constrained(node.store) {
            group.orphans_removed.push((node.store, node.ino));
            drop(group);
            self.content().delete(node, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::{EngineOptions, InitOptions};
    use larder_catalog::InodeRow;
    use larder_space::format::{FileKind, Name};
    use std::sync::atomic::AtomicBool;

    /// Knows all inodes or none.
    struct Kernel(AtomicBool);

    impl Keeper for Kernel {
        fn knows(&self, _: StoreId, _: Ino) -> bool {
            self.0.load(Ordering::SeqCst)
        }

        fn keep(&self, store: StoreId, ino: Ino, _: bool) -> bool {
            self.knows(store, ino)
        }
    }

    fn add(engine: &Engine, name: &Name) -> Arc<Node> {
        let guard = engine.namespace().write_guard().unwrap();
        let root = guard.node(StoreId::MAIN, Ino::ROOT).unwrap();
        let row = InodeRow {
            kind: FileKind::File,
            nlink: 1,
            ..guard.row(&root).unwrap()
        };
        let node = guard.insert(StoreId::MAIN, row, None).unwrap();
        let target = Some((node.ino, FileKind::File));
        guard.set_entry(&root, name, target).unwrap();
        guard.commit().unwrap();
        engine.commits().sync().unwrap();
        node
    }

    fn remove(engine: &Engine, name: &Name, node: &Arc<Node>) {
        let guard = engine.namespace().write_guard().unwrap();
        let root = guard.node(StoreId::MAIN, Ino::ROOT).unwrap();
        guard.drop_name(node).unwrap();
        guard.set_entry(&root, name, None).unwrap();
        guard.commit().unwrap();
        engine.commits().sync().unwrap();
    }

    fn options() -> EngineOptions {
        EngineOptions {
            has_background: false,
            ..EngineOptions::default()
        }
    }

    fn create(path: &std::path::Path) -> Arc<Engine> {
        let init = InitOptions {
            capacity_bytes: Some(64 << 20),
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(path, &init, &options()).unwrap();
        Engine::open(path, "keeper", &options()).unwrap()
    }

    #[test]
    fn what_nobody_has_open_leaves_the_cache_with_the_commit_that_deletes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let engine = create(&path);
        // While others are there, what loses its last name is left to a later commit.
        let other = Engine::open(&path, "other", &options()).unwrap();
        let name = Name::new(b"file").unwrap();
        let node = add(&engine, &name);
        remove(&engine, &name, &node);
        assert_eq!(engine.catalog.sessions().orphans().unwrap().len(), 1);
        other.close().unwrap();
        engine.compaction().settle().unwrap();
        assert!(engine.catalog.sessions().orphans().unwrap().is_empty());
        let cached = engine.cache.find(node.store, node.ino);
        assert!(
            cached.is_none(),
            "NAMELESS-1: it would be asked for its content"
        );
        engine.close().unwrap();
    }

    #[test]
    fn what_the_keeper_knows_lives_until_it_lets_go_and_the_rest_costs_no_row() {
        let dir = tempfile::tempdir().unwrap();
        let engine = create(&dir.path().join("db"));
        let kernel = Arc::new(Kernel(AtomicBool::new(false)));
        let keeper: Weak<dyn Keeper> = Arc::downgrade(&kernel) as Weak<dyn Keeper>;
        engine.orphans().set_keeper(keeper);
        let name = Name::new(b"file").unwrap();
        let forgotten = add(&engine, &name);
        remove(&engine, &name, &forgotten);
        assert!(
            engine.catalog.sessions().orphans().unwrap().is_empty(),
            "NAMELESS-2"
        );
        let gone = engine
            .catalog
            .tables()
            .inode(StoreId::MAIN, forgotten.ino)
            .unwrap();
        assert_eq!(gone, None, "NAMELESS-2");
        kernel.0.store(true, Ordering::SeqCst);
        let known = add(&engine, &name);
        remove(&engine, &name, &known);
        let orphans = engine.catalog.sessions().orphans().unwrap();
        assert_eq!(orphans.len(), 1, "NAMELESS-1");
        assert_eq!(engine.lookup().row(&known).unwrap().nlink, 0, "NAMELESS-1");
        kernel.0.store(false, Ordering::SeqCst);
        engine.orphans().let_go(StoreId::MAIN, known.ino);
        engine.orphans().end_let_go().unwrap();
        engine.commits().sync().unwrap();
        assert!(
            engine.catalog.sessions().orphans().unwrap().is_empty(),
            "NAMELESS-1"
        );
        engine.close().unwrap();
    }
}
