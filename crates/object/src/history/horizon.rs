//! How much history may go, as an engine remembers it.

use crate::history::attribution::Acting;
use larder_catalog::{DatabaseInfo, HistoryHorizon, RetentionHorizons, Retentions};
use larder_space::format::CommitSeq;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

/// Up to which commit what was superseded and retired may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// Nobody who is alive can reach it.
    pub pinned: CommitSeq,
    /// Nor does history need it: beyond all commits where there is none.
    pub history: RetentionHorizons,
    /// Both.
    pub kept: RetentionHorizons,
}

/// What an engine knows of its history.
pub(crate) struct History {
    pub(super) clock: Mutex<HistoryClock>,
    /// The longest, nanoseconds.
    pub(crate) retention_ns: AtomicI64,
    /// Of the stores without a retention of their own.
    pub(crate) is_guaranteed: AtomicBool,
    /// All of them, once they were looked at.
    pub(crate) retentions: Mutex<Option<Retentions>>,
    /// The end of the segments has to go, and all history with it.
    pub(crate) is_in_the_way: AtomicBool,
    /// Blocks that a transaction was refused.
    pub(super) missed_blocks: AtomicU64,
    /// Blocks that a transaction has left the pool short of.
    pub(super) short_blocks: AtomicU64,
    /// The last commit of this session has left a part of what may go (`TIME-9`).
    pub(super) has_more: AtomicBool,
    /// Others have left steps, as far as this session knows.
    pub(super) is_left: AtomicBool,
    /// Before the writer lock.
    pub(super) expiring_early: Mutex<()>,
    pub(super) early_expiries: AtomicU64,
    /// For whom the open group is.
    pub(crate) acting: Acting,
}

impl History {
    /// As the catalog has it.
    pub fn new(info: &DatabaseInfo) -> History {
        History {
            clock: Mutex::default(),
            retention_ns: AtomicI64::new(info.retention_ns),
            is_guaranteed: AtomicBool::new(info.is_guaranteed),
            retentions: Mutex::default(),
            is_in_the_way: AtomicBool::new(false),
            missed_blocks: AtomicU64::new(0),
            short_blocks: AtomicU64::new(0),
            has_more: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            expiring_early: Mutex::default(),
            early_expiries: AtomicU64::new(0),
            acting: Acting::default(),
        }
    }

    /// A commit has left a part of what may go, or none.
    pub(crate) fn note_step(&self, has_more: bool) {
        self.has_more.store(has_more, Ordering::SeqCst);
    }

    /// Nothing is left that may go now, whoever left it.
    pub(crate) fn note_last_step(&self) {
        self.is_left.store(false, Ordering::SeqCst);
    }

    /// Whether the next commit takes another step.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more.load(Ordering::SeqCst)
    }
}

/// The cut, remembered.
#[derive(Debug, Clone, Default)]
pub(super) struct HistoryClock {
    /// Looked at, and when again, nanoseconds since 1970.
    pub(super) looked: Option<(i64, i64)>,
    /// What the retentions say, and what is held.
    pub(super) found: HistoryHorizon,
    /// Given up under pressure.
    pub(super) pressed: CommitSeq,
    /// Pruned up to here.
    pub(super) pruned: RetentionHorizons,
    /// Blocks of the retired that pressing does not set free, where somebody had to know
    /// (`TIME-7`).
    pub(super) kept_blocks: u64,
    /// What is held, read, or guaranteed keeps all there is: pressing ahead waits for the next
    /// look, or until something was pruned.
    pub(super) is_spent: bool,
    /// Another session reads what is to go; before that time nobody asks again.
    pub(super) pinned_until: Option<Instant>,
}

impl HistoryClock {
    /// Up to where history is given up.
    pub(super) fn given_up(&self) -> RetentionHorizons {
        self.found.cuts(self.pressed)
    }
}
