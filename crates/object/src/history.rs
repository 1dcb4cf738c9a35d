//! What is kept of the past and for how long, and views of it.
//!
//! # Words
//! The *retention* says how long what was superseded is kept; the *retention horizon* is the commit
//! up to which it lets history go. An *as-of view* shows a moment of the past.
//!
//! # Invariants
//! `TIME-1` to `TIME-9` in `retention`, `PAST-n` in `as_of`,
//! `ROLLBACK-1` in `rollback`.

pub(crate) mod as_of;
pub(crate) mod attribution;
pub(crate) mod feed;
pub(crate) mod retention;
pub(crate) mod rollback;
pub(crate) mod seals;
pub(crate) mod versions;

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
    clock: Mutex<HistoryClock>,
    /// The longest, nanoseconds.
    pub(crate) retention_ns: AtomicI64,
    /// Of the stores without a retention of their own.
    pub(crate) is_guaranteed: AtomicBool,
    /// All of them, once they were looked at.
    pub(crate) retentions: Mutex<Option<Retentions>>,
    /// The end of the segments has to go, and all history with it.
    pub(crate) is_in_the_way: AtomicBool,
    /// Blocks that a transaction was refused.
    missed_blocks: AtomicU64,
    /// Blocks that a transaction has left the pool short of.
    short_blocks: AtomicU64,
    /// The last commit of this session has left a part of what may go (`TIME-9`).
    has_more: AtomicBool,
    /// Others have left steps, as far as this session knows.
    is_left: AtomicBool,
    /// Before the writer lock.
    expiring_early: Mutex<()>,
    early_expiries: AtomicU64,
    /// For whom the open group is.
    pub(crate) attribution: Attribution,
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
            attribution: Attribution::default(),
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

/// The retention horizon, remembered.
#[derive(Debug, Clone, Default)]
struct HistoryClock {
    /// Looked at, and when again, nanoseconds since 1970.
    looked: Option<(i64, i64)>,
    /// What the retentions say, and what is held.
    found: HistoryHorizon,
    /// Given up under pressure.
    expired_early: CommitSeq,
    /// Pruned up to here.
    pruned: RetentionHorizons,
    /// Blocks of the retired that early expiry does not set free, where somebody had to know
    /// (`TIME-7`).
    kept_blocks: u64,
    /// What is held, read, or guaranteed keeps all there is: expiring ahead waits for the next
    /// look, or until something was pruned.
    is_spent: bool,
    /// Another session reads what is to go; before that time nobody asks again.
    pinned_until: Option<Instant>,
}

impl HistoryClock {
    /// Up to where history is given up.
    fn given_up(&self) -> RetentionHorizons {
        self.found.cuts(self.expired_early)
    }
}

/// For whom the open group is.
#[derive(Default)]
pub(crate) struct Attribution(AtomicU64);
