//! What the catalog's tables hold, as plain data.

use crate::tuning::Tuning;
use larder_format::{CommitSeq, Extent, FileKind, Ino, Name, SegmentIndex, SessionId, StoreId};

/// One row of a store table: the attributes of an inode. Times are nanoseconds since 1970 (UTC).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeRow {
    /// The inode.
    pub ino: Ino,
    /// What it is; never changes.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: `0..=0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (directories: 2 + subdirectories, as ext4).
    pub nlink: u32,
    /// Logical length, bytes (directories: 0; symbolic links: length of the target).
    pub size_bytes: u64,
    /// Allocated blocks of 4 KiB.
    pub block_count: u64,
    /// Last access.
    pub atime_ns: i64,
    /// Last change of content.
    pub mtime_ns: i64,
    /// Last change of content or attributes.
    pub ctime_ns: i64,
    /// Creation.
    pub btime_ns: i64,
    /// Device number of device nodes (`makedev` encoding); flags of files and directories
    /// (chattr(1), in Linux's numbers); else 0.
    pub rdev: u64,
}

/// The inline part of an object's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentRow {
    /// The whole content, ≤ [`larder_format::limits::INLINE_BYTES_MAX`] bytes; the rest of the
    /// file's size, if any, is a hole. The object then has no map pages.
    Inline(Vec<u8>),
    /// The target of a symbolic link.
    Target(Vec<u8>),
}

/// What a regular file has beside its extent map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileContent {
    /// As in [`ContentRow::Inline`].
    pub inline: Option<Vec<u8>>,
    /// The encoded root of its list of pieces.
    pub piece_root: Option<Vec<u8>>,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirentRow {
    /// The name.
    pub name: Name,
    /// What it names.
    pub ino: Ino,
    /// The kind of what it names.
    pub kind: FileKind,
}

/// One extent row: allocated space and who holds it. The set of these rows is the only truth of
/// allocation (`CATALOG-1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentRow {
    /// The blocks.
    pub extent: Extent,
    /// The store of the object that holds them.
    pub store: StoreId,
    /// The object that holds (or held) them.
    pub ino: Ino,
    /// The commit that dropped the last reference; the space stays allocated until it is reclaimed.
    pub retired_seq: Option<CommitSeq>,
    /// How many other objects hold all of these blocks too ([`SharedRow`]).
    pub shared_count: u64,
    /// The newest commit that allocated one of the blocks; 0: one before format 2.
    pub born_seq: CommitSeq,
}

/// One segment that the database owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRow {
    /// Its index.
    pub segment: SegmentIndex,
    /// Data blocks that are preallocated and may be used.
    pub block_count: u64,
}

/// One store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreRow {
    /// Its id.
    pub store: StoreId,
    /// Its name; also the name of its table.
    pub name: String,
    /// The provider: `files` or `readonly`.
    pub provider: String,
    /// Where it is mounted: `/` or `/NAME`.
    pub mount: String,
    /// The store whose table it shows; itself unless the provider is a view of another store.
    pub table_store: StoreId,
}

/// What is kept of an allocation group beside its extent rows: derived from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgRow {
    /// The segment of the group.
    pub segment: SegmentIndex,
    /// The group, counted in its segment.
    pub ag_index: u64,
    /// Blocks of all its extent rows, live and retired.
    pub used_blocks: u64,
    /// Blocks of its retired rows.
    pub retired_blocks: u64,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// The process.
    pub pid: u32,
    /// What it is, for people: `mount ./photos`, `larder put`.
    pub label: String,
    /// When it began, nanoseconds since 1970.
    pub started_ns: i64,
    /// Every commit up to this one is known to the session; space retired later must not be
    /// reclaimed while the session lives.
    pub pin_seq: CommitSeq,
}

/// Facts of the whole database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// Random identity; every segment carries it.
    pub database_id: [u8; 16],
    /// Schema version of the catalog.
    pub format_version: u32,
    /// Bytes that segments may grow to; 0 = what the filesystem has.
    pub capacity_bytes: u64,
    /// How long history is kept, nanoseconds; 0: not at all.
    pub retention_ns: i64,
    /// Nothing of it is given up when space is short.
    pub is_guaranteed: bool,
    /// When `init` ran, nanoseconds since 1970.
    pub created_ns: i64,
    /// Newest group commit.
    pub commit_seq: CommitSeq,
    /// Bytes of content ever retired; storage age = this ÷ live bytes (\[BLOB\]).
    pub retired_bytes_total: u64,
    /// What was chosen in place of the engine's defaults.
    pub tuning: Tuning,
}

/// A row of the log of redo rows: the newest content of some blocks of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedoRow {
    /// The commit that wrote it.
    pub seq: CommitSeq,
    /// Logical block numbers.
    pub blocks: Vec<u64>,
    /// The blocks' content, one behind the other; `None` ends the redo rows of these blocks.
    pub bytes: Option<Vec<u8>>,
}

/// An object that holds an extent row beside its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedRow {
    /// The segment of the row.
    pub segment: SegmentIndex,
    /// Where the row begins.
    pub start_block: u64,
    /// The store of the object.
    pub store: StoreId,
    /// The object.
    pub ino: Ino,
}

/// Pages that stand in the catalog once for several maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedPages {
    /// How many.
    pub page_count: u64,
    /// What they take of the catalog, bytes.
    pub bytes: u64,
}

/// When a file was read last: `(store, inode, nanoseconds since 1970)`.
pub type AccessTime = (StoreId, Ino, i64);

/// What a new database starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInit {
    /// Random identity.
    pub database_id: [u8; 16],
    /// Bytes that segments may grow to; 0 = what the filesystem has.
    pub capacity_bytes: u64,
    /// Default retention, nanoseconds.
    pub retention_ns: i64,
    /// The time, nanoseconds since 1970.
    pub now_ns: i64,
    /// Permission bits of the root directory of `main`.
    pub root_mode: u32,
    /// Its owner.
    pub root_uid: u32,
    /// Its group.
    pub root_gid: u32,
}
