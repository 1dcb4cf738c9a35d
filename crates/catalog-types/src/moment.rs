//! Moments of the past: as somebody asks for one, and one that is kept for a reader.

use larder_format::{CommitSeq, SessionId};

/// A moment of the past, as somebody asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// After the commit with this number.
    Seq(u64),
    /// At this time, nanoseconds since 1970.
    At(i64),
    /// When this snapshot was made.
    Snapshot(String),
}

/// A state of the past that is kept for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastPin {
    /// Its number.
    pub id: i64,
    /// Whose it is.
    pub session: SessionId,
    /// The commit.
    pub seq: CommitSeq,
    /// Its time, nanoseconds since 1970.
    pub at_ns: i64,
    /// The time that was asked for, which may be later; none: before all times.
    pub asked_ns: i64,
}
