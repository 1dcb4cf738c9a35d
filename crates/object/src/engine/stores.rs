//! Stores come, go, and exchange their places in the tree.

use crate::Result;
use crate::engine::EngineNamespace;
use larder_catalog::StoreRow;
use larder_space::format::StoreId;
use std::sync::atomic::Ordering;

const NO_STORES: &str = "stores cannot be changed in a long transaction; do that outside of it";

impl EngineNamespace<'_> {
    /// Creates a store; see the Content API.
    #[allow(clippy::too_many_arguments)]
    pub fn create_store(
        &self,
        name: &str,
        provider: &str,
        mount: &str,
        shows: Option<StoreId>,
        root_mode: u32,
        uid: u32,
        gid: u32,
    ) -> Result<StoreRow> {
        self.workspace().require_parent(NO_STORES)?;
        let _edit = self.edit()?;
        let _one_at_a_time = self.commit_lock.lock();
        let made = self.catalog.stores().create(
            name,
            provider,
            mount,
            shows,
            self.now_ns(),
            root_mode,
            uid,
            gid,
        )?;
        // It may have been a commit.
        let seq = self.catalog.tables().commit_seq()?;
        self.known_seq.fetch_max(seq.0, Ordering::SeqCst);
        Ok(made)
    }

    /// Changes a store's provider or mount.
    pub fn set_store(
        &self,
        store: StoreId,
        provider: Option<&str>,
        mount: Option<&str>,
    ) -> Result<()> {
        self.workspace().require_parent(NO_STORES)?;
        let _edit = self.edit()?;
        Ok(self.catalog.stores().set(store, provider, mount)?)
    }

    /// Changes whether saves keep what users attached to the files of a store, for saves from here
    /// on.
    pub fn set_save_keeps(&self, store: StoreId, keeps: bool) -> Result<()> {
        self.workspace().require_parent(NO_STORES)?;
        let _edit = self.edit()?;
        self.commits().commit_now()?;
        Ok(self.catalog.stores().set_save_keeps(store, keeps)?)
    }

    /// Destroys a store and retires its extents. Handles in it answer
    /// [`crate::ErrorKind::NotFound`].
    pub fn destroy_store(&self, store: StoreId) -> Result<()> {
        self.workspace().require_parent(NO_STORES)?;
        let _alone = self.alone()?;
        // The store's own uncommitted changes must not meet missing tables.
        self.commits().commit_now()?;
        let _no_commit = self.commit_lock.lock();
        let _barrier = self.close_barrier();
        let _names = self.write_names();
        let seq = self.catalog.stores().destroy(store, self.now_ns())?;
        self.cache.retain(|node| {
            if node.store == store {
                let mut state = node.lock();
                state.is_deleted = true;
                self.delayed_allocation().drop_kept(&mut state.content);
                self.cache.forget_names(node);
            }
            node.store != store
        });
        self.retention().learn_retention()?;
        self.known_seq.store(seq.0, Ordering::SeqCst);
        self.redo().refresh_redo(seq)?;
        self.space().reload_space()
    }

    /// Exchanges where two stores are mounted, durably, in one step. Nothing else of them changes.
    pub fn exchange_mounts(&self, one: StoreId, other: StoreId) -> Result<()> {
        self.workspace().require_parent(NO_STORES)?;
        let _edit = self.edit()?;
        Ok(self.catalog.stores().exchange_mounts(one, other)?)
    }
}
