//! Every bound of the format in one place.

/// Bytes in a block: the unit of allocation and of checksums.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks in an allocation group (1 GiB). An extent never crosses from one group into the next.
pub const AG_BLOCKS: u64 = 262_144;
/// Content of at most this many bytes lives inline in the catalog (\[DBFS\] keeps small LOBs in the
/// row too); measured crossover 1–2 KiB, see docs/performance.md.
pub const INLINE_BYTES_MAX: u64 = 2048;
/// Smallest gather that a database may ask for, bytes.
pub const GATHER_BYTES_MIN: u64 = 1 << 20;
/// Largest gather that a database may ask for, bytes.
pub const GATHER_BYTES_MAX: u64 = 1 << 40;
/// Logical blocks that one map page covers (8 MiB of content).
pub const MAP_PAGE_BLOCKS: u64 = 2048;
/// Bytes of a reference that stands for a map page which several objects have.
pub const MAP_REFERENCE_BYTES: usize = 14;
/// Shortest map page that is shared, bytes: below, two rows and a page in common take more than two
/// pages.
pub const MAP_SHARED_BYTES_MIN: usize = 64;
/// Most entries of one page of a list of pieces: its row stays inside a page of SQLite.
pub const PIECE_PAGE_ENTRIES_MAX: usize = 120;
/// Blocks of the base of an object with pieces: offsets in it are 64 bits.
pub const BASE_BLOCKS_MAX: u64 = u64::MAX / BLOCK_BYTES;
/// Longest name of a directory entry, bytes (as ext4).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path, bytes, without the terminating NUL (Linux `PATH_MAX` − 1).
pub const PATH_BYTES_MAX: usize = 4095;
/// Longest symbolic link target, bytes (Linux `PATH_MAX` − 1).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Most symbolic links followed while resolving one path (Linux `MAXSYMLINKS`).
pub const SYMLINK_FOLLOW_MAX: u32 = 40;
/// Largest file, bytes: what `off_t` can address.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most hard links to one inode (as ext4).
pub const LINK_COUNT_MAX: u32 = 65_000;
/// Longest extended attribute name, bytes (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Names of an inode's extended attributes, each with a NUL, bytes at most (Linux
/// `XATTR_LIST_MAX`).
pub const XATTR_LIST_BYTES_MAX: usize = 65_536;
/// Largest extended attribute value, bytes (Linux `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// Longest store name, bytes; letters, digits and `_`, starting with a letter (it names tables).
pub const STORE_NAME_BYTES_MAX: usize = 48;
/// Most stores of a database: a process that opens it reads the tables of each, for several
/// connections, which takes 2 ms and 0.4 MB for a store that has tables of its own.
pub const STORES_MAX: usize = 500;
/// With more rows of stores than this a database does not open: 5 s and 430 MB if all of them had
/// tables. Older versions made as many as they were asked for.
pub const STORES_OPEN_MAX: usize = 2 * STORES_MAX;
/// Part of the capacity that only deletion and compaction may use: one block in this many
/// (DESIGN §4: "1/32 of the volume held back").
pub const HELD_BACK_DIVISOR: u64 = 32;
/// Smallest capacity of a database, bytes.
pub const CAPACITY_BYTES_MIN: u64 = 16 << 20;

/// Changes that the feed keeps at least; older ones go, and those older than [`FEED_AGE_MAX_NS`].
pub const FEED_CHANGES_MAX: u64 = 1_000_000;
/// How old a change in the feed becomes, nanoseconds: 24 hours.
pub const FEED_AGE_MAX_NS: i64 = 24 * 3600 * 1_000_000_000;
/// Changes in one row of the feed at most.
pub const FEED_ROW_CHANGES_MAX: usize = 4096;
