//! When files were read last: noted in memory, and written now and then.
//!
//! # Words
//! The *rule* says which reading counts, as Linux's `relatime` and `strictatime` do.
//!
//! # Invariants
//! * `ATIME-2` A node whose time of access the catalog does not know yet keeps it, whatever others
//!   commit, until it is written, or somebody sets another one; it is in memory for as long.
//! * `ATIME-3` Times of access are written once in [`REST`], and when the session ends. Nothing
//!   waits for them, and what a crash takes of them is no loss of data.
//!
//! How they are written: `ATIME-1`, in the catalog. In a long transaction reading is not noted: its
//! rows would be changes of it. Nor is it where no history tells others that nothing else has
//! changed: there they are written only while nobody else has the database open, and at the end.

use crate::Result;
use crate::engine::{EngineAccessTimes, lock};
use crate::view::node::Node;
use larder_catalog::InodeRow;
use larder_space::format::FileKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an idle database stays idle.
const REST: Duration = Duration::from_secs(60);
/// When so many wait they are written; what they keep in memory is bounded by it.
const COUNT_MAX: usize = 1 << 15;
/// How often the end of a session tries, and how long it waits in between.
const TRIES: u32 = 40;
const TRY_PAUSE: Duration = Duration::from_millis(25);
/// Files are not to have any (`FS_NOATIME_FL`).
const NO_ATIME: u64 = 0x80;
/// As Linux has it.
const DAY_NS: i64 = 86_400_000_000_000;

/// Which reading counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessRule {
    /// None.
    Never,
    /// The first one after a change, and the first one of a day.
    #[default]
    Relative,
    /// Every one.
    Strict,
}

impl AccessRule {
    fn counts(self, row: &InodeRow, now_ns: i64) -> bool {
        match self {
            AccessRule::Never => false,
            AccessRule::Strict => row.atime_ns < now_ns,
            AccessRule::Relative => {
                row.atime_ns <= row.mtime_ns
                    || row.atime_ns <= row.ctime_ns
                    || now_ns.saturating_sub(row.atime_ns) >= DAY_NS
            }
        }
    }
}

impl EngineAccessTimes<'_> {
    /// Notes that an inode is read now, if that counts; says whether it did. 0.2 µs.
    pub fn note_access(&self, node: &Arc<Node>, rule: AccessRule) -> Result<bool> {
        let is_noted = rule != AccessRule::Never
            && self.private.is_none()
            && self.session.workspace.is_none()
            && !self.is_readonly();
        if !is_noted {
            return Ok(false);
        }
        let now_ns = self.now_ns();
        let mut state = self.lock_node(node)?;
        let is_device = matches!(node.kind(), FileKind::CharDevice | FileKind::BlockDevice);
        let is_exempt = !is_device && state.row.rdev & NO_ATIME != 0;
        if state.is_deleted || is_exempt || !rule.counts(&state.row, now_ns) {
            return Ok(false);
        }
        state.row.atime_ns = now_ns;
        if state.accessed_ns.replace(now_ns).is_none() {
            drop(state);
            let mut waiting = lock(&self.access_times.0);
            waiting.nodes.push(Arc::clone(node));
            waiting.since.get_or_insert_with(Instant::now);
        }
        Ok(true)
    }

    /// The background's part (`ATIME-3`).
    pub(crate) fn write_access_times_if_due(&self) {
        let now = Instant::now();
        let (is_due, is_full) = {
            let waiting = lock(&self.access_times.0);
            let is_old = (waiting.since).is_some_and(|since| now - since >= REST);
            let is_rested = waiting.rest_until.is_none_or(|until| now >= until);
            let is_full = waiting.nodes.len() >= COUNT_MAX;
            ((is_old || is_full) && is_rested, is_full)
        };
        if !is_due {
            return;
        }
        let written = match is_full || self.expiry().keeps_history() || self.is_only_session() {
            true => self.write_access_times(),
            false => Ok(false),
        };
        match written {
            Ok(true) => {}
            Ok(false) => {
                let rest_until = now + Duration::from_secs(1);
                lock(&self.access_times.0).rest_until = Some(rest_until);
            }
            Err(error) => {
                // They stay in memory.
                tracing::warn!("times of access are not written: {error}");
                lock(&self.access_times.0).rest_until = Some(now + REST);
            }
        }
    }

    /// The same at the end, when somebody else may be writing (`ATIME-3`).
    pub(crate) fn write_last_access_times(&self) {
        for _ in 0..TRIES {
            match self.write_access_times() {
                Ok(true) => return,
                Ok(false) => std::thread::sleep(TRY_PAUSE),
                Err(error) => {
                    tracing::warn!("times of access are not written: {error}");
                    return;
                }
            }
        }
        tracing::warn!("times of access are not written: others keep the catalog's lock");
    }

    fn is_only_session(&self) -> bool {
        self.catalog
            .sessions()
            .rows()
            .is_ok_and(|sessions| sessions.len() <= 1)
    }

    /// Writes what waits; `false`: somebody else is writing, and it waits on.
    pub(crate) fn write_access_times(&self) -> Result<bool> {
        // The commit that brings a new inode must not come later.
        let _no_commit = self.commit_lock.lock();
        let mut nodes = std::mem::take(&mut lock(&self.access_times.0).nodes);
        nodes.sort_unstable_by_key(|node| (node.store, node.ino));
        let mut times = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let state = node.lock();
            let is_there = !state.is_deleted && !state.is_fresh;
            if let (Some(at_ns), true) = (state.accessed_ns, is_there) {
                times.push((node.store, node.ino, at_ns));
            }
        }
        let written = match times.is_empty() {
            true => Ok(true),
            false => self
                .catalog
                .sessions()
                .note_access(&times)
                .map_err(Into::into),
        };
        let mut waiting = lock(&self.access_times.0);
        if !matches!(written, Ok(true)) {
            waiting.nodes.append(&mut nodes);
            return written;
        }
        (waiting.since, waiting.rest_until) = (None, None);
        drop(waiting);
        let mut times = times.into_iter().peekable();
        for node in nodes {
            let mut state = node.lock();
            let key = (node.store, node.ino);
            let time = times.next_if(|&(store, ino, _)| (store, ino) == key);
            let is_known = time.is_some_and(|(.., at_ns)| state.accessed_ns == Some(at_ns));
            // A new inode's row has it, and what was read again meanwhile waits for the next time.
            if is_known || state.is_deleted || state.accessed_ns.is_none() {
                state.accessed_ns = None;
                continue;
            }
            drop(state);
            let mut waiting = lock(&self.access_times.0);
            waiting.nodes.push(node);
            waiting.since.get_or_insert_with(Instant::now);
        }
        self.commits().look_at_log(times.len() as u64)?;
        Ok(true)
    }
}
