//! Why a segment cannot be used or a request on it failed: one line each, with cause and remedy.

use std::io;

use larder_format::{Checksum, SegmentIndex, SuperblockError};

/// An operating error of a segment. Blocks count from the segment's first data block.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The bytes bear no superblock at all.
    #[error(
        "segment {segment} is not a Larder segment: it has no superblock; restore the file, or \
         check the path"
    )]
    NotASegment {
        /// Which segment.
        segment: SegmentIndex,
    },
    /// A newer Larder wrote it.
    #[error(
        "segment {segment} has format version {found}, this larder reads up to {known}; upgrade \
         larder"
    )]
    NewerFormat {
        /// Which segment.
        segment: SegmentIndex,
        /// The version in the superblock.
        found: u32,
        /// The newest version this build reads.
        known: u32,
    },
    /// An older Larder wrote it.
    #[error(
        "segment {segment} has format version {found}, this larder reads {known}; larder upgrade \
         OLD NEW converts the database"
    )]
    OlderFormat {
        /// Which segment.
        segment: SegmentIndex,
        /// The version in the superblock.
        found: u32,
        /// The version this build reads.
        known: u32,
    },
    /// Its superblock says more of its device than that it is the only one, which this build does
    /// not keep up.
    #[error(
        "segment {segment} has stripes, copies or leases, which this larder does not keep; \
         upgrade larder"
    )]
    HasCopies {
        /// Which segment.
        segment: SegmentIndex,
    },
    /// The segment belongs to another database.
    #[error(
        "segment {segment} belongs to database {}, not to {}; put back this database's own file",
        hex(found),
        hex(expected)
    )]
    WrongDatabase {
        /// Which segment.
        segment: SegmentIndex,
        /// The database that was opened.
        expected: [u8; 16],
        /// The database in the superblock.
        found: [u8; 16],
    },
    /// The segment is another one of the same database: files were renamed or swapped.
    #[error(
        "segment {segment} holds segment {found} of this database; give the files their own names \
         back"
    )]
    WrongSegment {
        /// The segment that was opened.
        segment: SegmentIndex,
        /// The segment in the superblock.
        found: SegmentIndex,
    },
    /// Both superblock copies are damaged.
    #[error(
        "segment {segment}: both superblock copies are damaged ({damage}); restore the segment \
         from a backup"
    )]
    TornSuperblock {
        /// Which segment.
        segment: SegmentIndex,
        /// The fields that fail.
        damage: SuperblockError,
    },
    /// The device is shorter than its superblock says.
    #[error(
        "segment {segment} is truncated: expected at least {expected_bytes} bytes, found \
         {found_bytes}; restore it from a backup"
    )]
    Truncated {
        /// Which segment.
        segment: SegmentIndex,
        /// Least length, bytes.
        expected_bytes: u64,
        /// Length of the device, bytes.
        found_bytes: u64,
    },
    /// Blocks that the segment does not have.
    #[error(
        "segment {segment} has {segment_blocks} blocks, and {block_count} at block {start_block} \
         were asked for; run larder check"
    )]
    OutOfRange {
        /// Which segment.
        segment: SegmentIndex,
        /// First block asked for.
        start_block: u64,
        /// Blocks asked for.
        block_count: u64,
        /// Blocks the segment has.
        segment_blocks: u64,
    },
    /// A block does not hold what was written to it.
    #[error(
        "segment {segment} block {block} is damaged: checksum expected {expected:08x}, found \
         {found:08x}; restore the file that uses it"
    )]
    Checksum {
        /// Which segment.
        segment: SegmentIndex,
        /// The first block that fails.
        block: u64,
        /// The checksum the catalog has.
        expected: Checksum,
        /// The checksum of what was read.
        found: Checksum,
    },
    /// The host has no space for growth; the segment keeps its size.
    #[error(
        "no space on the host to grow segment {segment} by {wanted_bytes} bytes; free some there, \
         or lower --capacity"
    )]
    NoSpace {
        /// Which segment.
        segment: SegmentIndex,
        /// Growth asked for, bytes.
        wanted_bytes: u64,
    },
    /// The host has no space for the copy of a segment that is converted.
    #[error(
        "no space on the host for the copy of segment {segment}; free some there, and run it \
         again: it goes on"
    )]
    NoSpaceToCopy {
        /// Which segment.
        segment: SegmentIndex,
    },
    /// The device failed.
    #[error("segment {segment}: {action} failed: {source}; check the device and the system log")]
    Io {
        /// Which segment.
        segment: SegmentIndex,
        /// What was being done, e.g. `"write at block 12"`.
        action: String,
        /// What the device said.
        source: io::Error,
    },
    /// An earlier write or flush failed (`SEGMENT-4`).
    #[error(
        "segment {segment} is stopped because an earlier write or flush failed; reopen the \
         database to recover"
    )]
    Poisoned {
        /// Which segment.
        segment: SegmentIndex,
    },
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
