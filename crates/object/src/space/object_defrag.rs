//! Healing an object: it is gathered into one piece, and where no hole is long enough, one is made.
//!
//! Space that history fills is no hole. Where the segments cannot grow, what is oldest of it goes
//! first, as long as that makes holes; then, and where there is room to grow, what lives is moved
//! out of the way. A move leaves its old place free at once, whatever the retention (`HISTORY-5`).
//!
//! ```text
//!  gather ─no hole─▶ full of history, and credit? ─yes─▶ expire early, commit: reclaimed
//!                            │                           ─▶ gather again
//!                            └──no──▶ make a hole by moves; gather when it is settled
//! ```
//!
//! # Invariants
//! * `COMPACT-7` In one step the background asks for no more history to go than it has credit for;
//!   by hand as much goes as the hole needs. While the segments can grow none goes; nor does what
//!   is held or guaranteed (`TIME-2`, `TIME-4`).

use crate::Result;
use crate::engine::EngineCompaction;
use crate::space::compact::{MoveLimits, is_survivable};
use crate::space::defrag::Gathered;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Ino, StoreId};

/// In the background a fragment less must be had for moving so many blocks (64 MiB).
const BLOCKS_PER_FRAGMENT: u64 = (64 << 20) / BLOCK_BYTES;

impl EngineCompaction<'_> {
    /// Gathers a candidate, or makes a hole for it: blocks moved, and whether no other step is
    /// needed. The caller is a user of the writer lock.
    pub(crate) fn heal(
        &self,
        (store, ino): (StoreId, Ino),
        blocks_max: u64,
    ) -> Result<(u64, bool)> {
        if self.free_space().space.quarantined_blocks() > 0 {
            // What an earlier step moved away is the room of this one.
            self.commits().commit_now()?;
        }
        let should_stop = || self.writer_lock.is_wanted() || self.check_running().is_err();
        let mut limits = MoveLimits {
            blocks_max,
            blocks_per_fragment: BLOCKS_PER_FRAGMENT,
            fragments_max: 1,
            is_dry: false,
            should_stop: &should_stop,
        };
        let (mut moved, mut expired) = (0, 0);
        loop {
            let outcome = self.lookup().node(store, ino).and_then(|node| {
                // The kernel may still know what is gone: nothing of it is worth a move.
                if node.lock().is_deleted {
                    return Ok(Gathered::default());
                }
                self.gather_object(&node, &mut limits)
            });
            let sum = match outcome {
                Ok(sum) => sum,
                Err(error) if is_survivable(error.kind()) => {
                    tracing::debug!("inode {ino} of store {store} stays as it is: {error}");
                    return Ok((moved, true));
                }
                Err(error) => return Err(error),
            };
            moved += sum.moved_blocks;
            if sum.wanted_blocks == 0 {
                return Ok((moved, !sum.was_busy && !sum.is_too_dear));
            }
            expired += sum.wanted_blocks;
            let may_expire = expired <= blocks_max && !self.expiry().can_grow(); // COMPACT-7
            if may_expire && !should_stop() && self.expiry().expire_history(sum.wanted_blocks)? {
                self.commits().commit_now()?;
                continue;
            }
            let budget = limits.blocks_max.saturating_sub(sum.wanted_blocks);
            return Ok((moved + self.make_hole(sum.wanted_blocks, budget)?, false));
        }
    }

    /// By hand: gives up history that there is now until there is a hole of `wanted` blocks; says
    /// whether there is. What others supersede meanwhile stays: they may go on for ever.
    pub(crate) fn expire_for_hole(&self, wanted: u64) -> Result<bool> {
        let newest = self.known_seq();
        loop {
            if self.free_space().space.largest_hole_blocks() >= wanted {
                return Ok(true);
            }
            if self.expiry().can_grow()
                || self.expiry().has_given_up(newest)
                || !self.expiry().expire_history(wanted)?
            {
                return Ok(false);
            }
            self.settle()?;
        }
    }
}
