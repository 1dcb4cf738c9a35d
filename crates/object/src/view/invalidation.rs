//! What a view remembers of the commits of others; `engine::invalidation` looks for them.

use crate::host::lock;
use crate::view::node::Node;
use crate::view::{Foreign, ForeignChange, ForeignObserver, ViewForeign};
use larder_catalog::Mark;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

impl Foreign {
    /// Before something is read from the catalog that will be remembered.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// What is remembered is about to be dropped.
    pub fn begin_drop(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether anybody has committed since the last look that ended. `generation`: the catalog's;
    /// `None`: it is not known.
    pub fn has_moved(&self, generation: Option<u64>) -> bool {
        generation != Some(self.generation.load(Ordering::SeqCst))
    }

    /// A look has ended that began at this generation.
    pub fn note_generation(&self, generation: Option<u64>) {
        if let Some(generation) = generation {
            self.generation.store(generation, Ordering::SeqCst);
        }
    }

    /// Where the last look ended; `None`: the next one tells of everything.
    pub fn mark(&self) -> Option<Mark> {
        lock(&self.mark).clone()
    }

    /// A look has ended there.
    pub fn set_mark(&self, mark: Option<Mark>) {
        *lock(&self.mark) = mark;
    }

    /// Who is told; nobody else tells them while this is held.
    pub fn observers(&self) -> MutexGuard<'_, Vec<ForeignObserver>> {
        lock(&self.observers)
    }
}

impl ViewForeign<'_> {
    /// Registers an observer of foreign changes.
    pub fn on_foreign_change(&self, observer: ForeignObserver) {
        self.foreign.observers().push(observer);
    }

    /// Tells observers what this session has taken back itself (`CONSTRAINT-3`).
    pub(crate) fn tell_observers(&self, change: &ForeignChange) {
        for observer in self.foreign.observers().iter() {
            observer(change);
        }
    }

    /// Waits until observers have been told of what another thread has noticed.
    pub(crate) fn await_observers(&self) {
        drop(self.foreign.observers());
    }

    /// Keeps a node that was read from the catalog after [`Foreign::epoch`] was `epoch`, unless
    /// there is one already; returns the one that counts. Its row is read again if it may have been
    /// changed meanwhile (`FOREIGN-3`).
    pub(crate) fn remember(&self, node: Arc<Node>, epoch: u64) -> Arc<Node> {
        let node = self.cache.insert(node);
        if self.foreign.epoch() != epoch {
            let mut state = node.lock();
            state.is_stale |= !state.is_fresh;
        }
        node
    }
}
