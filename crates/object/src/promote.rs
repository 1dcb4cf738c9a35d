//! Two stores exchange their places in the tree.

use crate::Result;
use crate::engine::Engine;
use larder_space::format::StoreId;

impl Engine {
    /// Exchanges where two stores are mounted, durably, in one step. Nothing else of them changes.
    pub fn exchange_mounts(&self, one: StoreId, other: StoreId) -> Result<()> {
        self.require_parent(
            "stores are exchanged in the database itself, not in a long transaction",
        )?;
        let _edit = self.edit()?;
        Ok(self.catalog.exchange_mounts(one, other)?)
    }
}
