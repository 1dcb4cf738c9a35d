//! What a database asks of the engine ([`Tuning`]), and what the engine does if it asks for
//! nothing.

use crate::Result;
use crate::engine::Engine;
use crate::host::memory_pages;
use larder_catalog::Tuning;
use larder_space::format::limits::INLINE_BYTES_MAX;

/// How much content a session gathers in memory unless something else is chosen, bytes: 2 % of the
/// memory of the machine, at least 64 MiB.
pub fn gather_bytes_default() -> u64 {
    default_of(memory_bytes())
}

fn memory_bytes() -> u64 {
    rustix::param::page_size() as u64 * memory_pages()
}

fn default_of(memory_bytes: u64) -> u64 {
    (memory_bytes / 50).max(64 << 20)
}

/// What was chosen for the database, perhaps on a larger machine: at most an eighth of the memory
/// of this one, or the default where that is more.
fn bounded(chosen: u64, memory_bytes: u64) -> u64 {
    chosen.min((memory_bytes / 8).max(default_of(memory_bytes)))
}

/// What a session gathers: what it was told (not 0), else what the database asks for, as far as
/// this machine has the memory, else the default.
pub(crate) fn gather_bytes(told: u64, tuning: &Tuning) -> u64 {
    match (told, tuning.gather_bytes_max) {
        (0, None) => gather_bytes_default(),
        (0, Some(chosen)) => bounded(chosen, memory_bytes()),
        (bytes, _) => bytes,
    }
}

/// Content of at most this many bytes is inline.
pub(crate) fn inline_bytes_max(tuning: &Tuning) -> u64 {
    tuning.inline_bytes_max.unwrap_or(INLINE_BYTES_MAX)
}

impl Engine {
    /// Chooses for the database. Sessions that are open, this one too, stay as they are.
    pub fn set_tuning(&self, tuning: &Tuning) -> Result<()> {
        self.workspace()
            .require_parent("a long transaction cannot tune the database; do that outside of it")?;
        let _edit = self.edit()?;
        Ok(self.catalog.retention()?.set_tuning(tuning)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_space::format::limits::GATHER_BYTES_MAX;

    #[test]
    fn a_choice_made_on_a_larger_machine_is_bounded_by_the_memory_of_this_one() {
        const GIB: u64 = 1 << 30;
        assert_eq!(bounded(32 * GIB, 256 * GIB), 32 * GIB);
        assert_eq!(bounded(32 * GIB, 4 * GIB), GIB / 2);
        assert_eq!(bounded(2 << 20, 4 * GIB), 2 << 20);
        // A small machine: never less than its own choice.
        assert_eq!(bounded(32 * GIB, GIB / 4), default_of(GIB / 4));
        let tuning = Tuning {
            gather_bytes_max: Some(GATHER_BYTES_MAX),
            ..Tuning::default()
        };
        let here = memory_bytes();
        assert_eq!(gather_bytes(0, &tuning), bounded(GATHER_BYTES_MAX, here));
        assert_eq!(gather_bytes(GIB, &tuning), GIB);
    }
}
