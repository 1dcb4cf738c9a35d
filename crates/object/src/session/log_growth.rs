//! Whether the catalog's log grows, as the background sees it: plain data.

use std::time::{Duration, Instant};

/// The log grows if it did so long ago: commits of a slow machine have pauses between them.
const GROWS_FOR: Duration = Duration::from_millis(200);

/// So much longer the log has to be for another try to have it begin anew, bytes.
pub(crate) const WAL_BYTES_STEP: u64 = 8 << 20;

/// What the background has seen of the log, at its looks at it.
#[derive(Debug, Default)]
pub(crate) struct LogGrowth {
    used_bytes: u64,
    grew_at: Option<Instant>,
    /// How long it was when somebody who read it kept it from beginning anew.
    pub refused_bytes: Option<u64>,
}

impl LogGrowth {
    /// So much of it is in use. Whether it grows; and whether it is time to wait for who reads it:
    /// everybody waits with us, so not before it is a [`WAL_BYTES_STEP`] longer than the last time.
    pub fn look(&mut self, used_bytes: u64) -> (bool, bool) {
        if used_bytes > self.used_bytes {
            self.grew_at = Some(Instant::now());
        } else if used_bytes < self.used_bytes {
            self.refused_bytes = None; // It has begun anew.
        }
        self.used_bytes = used_bytes;
        let refused = self.refused_bytes;
        (
            self.grew_at.is_some_and(|at| at.elapsed() < GROWS_FOR),
            refused.is_none_or(|refused| used_bytes >= refused + WAL_BYTES_STEP),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_grows_for_a_while_and_who_read_it_is_left_alone_for_a_step() {
        let mut growth = LogGrowth::default();
        assert_eq!(growth.look(100), (true, true), "CHECKPOINT-2");
        assert_eq!(growth.look(100), (true, true), "CHECKPOINT-2: a pause");
        growth.refused_bytes = Some(100);
        assert_eq!(growth.look(99 + WAL_BYTES_STEP), (true, false));
        assert_eq!(growth.look(100 + WAL_BYTES_STEP), (true, true));
        growth.refused_bytes = Some(100 + WAL_BYTES_STEP);
        assert!(growth.look(10).1, "it has begun anew");
        growth.grew_at = Instant::now().checked_sub(GROWS_FOR);
        assert_eq!(growth.look(10), (false, true));
    }
}
