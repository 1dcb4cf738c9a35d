//! What a database asks of the engine ([`Tuning`]), and what the engine does if it asks for nothing.

use crate::Result;
use crate::engine::Engine;
use crate::host::memory_pages;
use larder_catalog::Tuning;
use larder_space::format::limits::INLINE_BYTES_MAX;

/// How much content a session gathers in memory unless something else is chosen, bytes: 2 % of the memory of the
/// machine, at least 64 MiB.
pub fn gather_bytes_default() -> u64 {
    (rustix::param::page_size() as u64 * memory_pages() / 50).max(64 << 20)
}

/// What a session gathers: what it was told (not 0), else what the database asks for, else the default.
pub(crate) fn gather_bytes(told: u64, tuning: &Tuning) -> u64 {
    match (told, tuning.gather_bytes_max) {
        (0, None) => gather_bytes_default(),
        (0, Some(chosen)) => chosen,
        (bytes, _) => bytes,
    }
}

/// Content of at most this many bytes is inline.
pub(crate) fn inline_bytes_max(tuning: &Tuning) -> u64 {
    tuning.inline_bytes_max.unwrap_or(INLINE_BYTES_MAX)
}

impl Engine {
    /// What was chosen for the database in place of the engine's defaults, as of now.
    pub fn tuning(&self) -> Result<Tuning> {
        Ok(self.catalog.info()?.tuning)
    }

    /// Chooses for the database. Sessions that are open, this one too, stay as they are.
    pub fn set_tuning(&self, tuning: &Tuning) -> Result<()> {
        self.require_parent("a long transaction cannot tune the database; do that outside of it")?;
        let _edit = self.edit()?;
        Ok(self.catalog.set_tuning(tuning)?)
    }
}
