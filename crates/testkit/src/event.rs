//! What is recorded: one event per thing that happened to a device or a catalog file.

use std::fmt;
use std::sync::Arc;

use larder_segment::format::SegmentIndex;

/// The directory of the segments, in a [`FileName`].
pub const SEGMENTS: &str = "segments";

/// The path of a file inside the database directory: `catalog.db-wal`, `segments/00000.seg`.
pub type FileName = Arc<str>;

/// The name of a segment's file, as `FileStorage` gives it.
pub fn segment_file(segment: SegmentIndex) -> FileName {
    format!("{SEGMENTS}/{:05}.seg", segment.0).into()
}

/// Bytes that were written.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// So many zeros.
    Zeros(u64),
    /// These.
    Bytes(Arc<[u8]>),
}

impl Payload {
    /// A copy of `bytes`; zeros take no memory.
    pub fn of(bytes: &[u8]) -> Payload {
        match bytes.iter().all(|&byte| byte == 0) {
            true => Payload::Zeros(bytes.len() as u64),
            false => Payload::Bytes(bytes.into()),
        }
    }

    /// Length, bytes.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Payload::Zeros(len_bytes) => *len_bytes,
            Payload::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if matches!(self, Payload::Zeros(_)) {
            "zeros"
        } else {
            "bytes"
        };
        write!(f, "{} {what}", self.len_bytes())
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An empty file came into being.
    Create {
        /// Which.
        file: FileName,
    },
    /// A file's name went.
    Delete {
        /// Which.
        file: FileName,
        /// Whether the directory was synced with it.
        durable: bool,
    },
    /// Bytes were written, and the call returned.
    Write {
        /// Where to.
        file: FileName,
        /// From where on.
        offset_bytes: u64,
        /// What.
        bytes: Payload,
    },
    /// The length was set.
    Truncate {
        /// Of which file.
        file: FileName,
        /// New length.
        len_bytes: u64,
    },
    /// A flush returned without an error.
    Flush {
        /// Of which file.
        file: FileName,
        /// Length of the log when the flush began: it covers only what ended before.
        covers: usize,
    },
    /// A directory was synced: names in it are durable.
    SyncNames {
        /// `""` for the database directory itself, or [`SEGMENTS`].
        directory: FileName,
    },
    /// The test was told that everything up to here, in its own count, is durable.
    Ack(u64),
}
