//! A change set: everything one group commit changes, as plain data.
//!
//! ChangeSet has more than 20 fields: a commit applies every kind of change at once.

use crate::retention_horizons::RetentionHorizons;
use crate::rows::{ContentRow, InodeRow, RedoRow};
use larder_format::{CommitSeq, Extent, Ino, Name, SegmentIndex, SessionId, StoreId};

/// Which attribute columns an update writes; others keep what plain SQL may have put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrMask {
    /// `mode`
    pub mode: bool,
    /// `uid`, `gid`
    pub owner: bool,
    /// `nlink`
    pub nlink: bool,
    /// `size`, `blocks`
    pub size: bool,
    /// `atime_ns`
    pub atime: bool,
    /// `mtime_ns`
    pub mtime: bool,
    /// `ctime_ns`
    pub ctime: bool,
    /// `rdev`, where files and directories have their flags
    pub flags: bool,
}

impl std::ops::BitOr for AttrMask {
    type Output = AttrMask;

    fn bitor(self, other: AttrMask) -> AttrMask {
        AttrMask {
            mode: self.mode | other.mode,
            owner: self.owner | other.owner,
            nlink: self.nlink | other.nlink,
            size: self.size | other.size,
            atime: self.atime | other.atime,
            mtime: self.mtime | other.mtime,
            ctime: self.ctime | other.ctime,
            flags: self.flags | other.flags,
        }
    }
}

/// What happens to one row of a store table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InodeChange {
    /// A new inode.
    Insert(InodeRow),
    /// New values for the columns in the mask. The row exists.
    Update(InodeRow, AttrMask),
    /// The inode goes, with its content row, map pages, pieces, redo rows and extended attributes
    /// (its extents are in [`ChangeSet::retired`]).
    Delete(Ino),
}

/// Blocks, and an object that holds them.
pub type Held = (Extent, StoreId, Ino);

/// Blocks that one more object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// The blocks, and the object.
    pub held: Held,
    /// How many of [`ChangeSet::retired`] come before that.
    pub retired_before: usize,
    /// The commit whose state has its content there: what of the blocks was retired after it lives
    /// again (`SHARE-9`). `None`: all of them are live.
    pub as_of: Option<CommitSeq>,
}

/// A page of a map that is made of a page of another one, and may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShare {
    /// The store of the object that gets the page.
    pub store: StoreId,
    /// That object.
    pub ino: Ino,
    /// The number of the page there.
    pub page: u64,
    /// Where it was taken from: the store,
    pub from_store: StoreId,
    /// the object,
    pub from_ino: Ino,
    /// and the number of the page.
    pub from_page: u64,
}

/// What users attached to an inode goes over to another one (`SAVE-2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Save {
    /// The store of both.
    pub store: StoreId,
    /// The inode that is replaced.
    pub from: Ino,
    /// The one that is the file from here on.
    pub to: Ino,
    /// It is taken back: whatever the store's `save_keeps` says by now.
    pub is_forced: bool,
}

/// `(store, parent, name, what it leads to)`.
pub type DirentChange = (StoreId, Ino, Name, Option<Ino>);

/// `(store, ino, attribute name, value)`.
pub type XattrChange = (StoreId, Ino, Vec<u8>, Option<Vec<u8>>);

/// Everything one group commit changes. Applied as a whole or not at all, in field order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeSet {
    /// Store rows. With `saves` those that are deleted come last.
    pub inodes: Vec<(StoreId, InodeChange)>,
    /// Files that become other inodes, in the order in which that was done; after the rows of
    /// `inodes` that are new and before those that go.
    pub saves: Vec<Save>,
    /// Inodes that are a file again that has no inode, by its number (`SAVE-1`). Where it has one
    /// nothing is done.
    pub file_ids: Vec<(StoreId, Ino, i64)>,
    /// Directory entries: `(store, parent, name, Some(ino))` sets, `None` removes. Each
    /// `(store, parent, name)` appears at most once. Store by store, and what is removed first: of
    /// an inode that moves, a user's UNIQUE index lets one name be.
    pub dirents: Vec<DirentChange>,
    /// Inline content and link targets; `None` removes the row.
    pub contents: Vec<(StoreId, Ino, Option<ContentRow>)>,
    /// Drops all map pages with index ≥ the given one (truncation of large files),
    /// before `map_pages` is applied.
    pub map_cuts: Vec<(StoreId, Ino, u64)>,
    /// Encoded map pages `(store, ino, page index, bytes)`; `None` removes the page.
    pub map_pages: Vec<(StoreId, Ino, u64, Option<Vec<u8>>)>,
    /// Of which pages those of `map_pages` were made: where both are the same after this commit,
    /// they are stored once (`SHARE-7`). In the order in which that was done; what does not fit any
    /// more is passed over.
    pub map_shares: Vec<MapShare>,
    /// Drops the whole lists of pieces, before `piece_pages` is applied.
    pub piece_drops: Vec<(StoreId, Ino)>,
    /// Encoded pages of lists of pieces `(store, ino, page number, bytes)`; `None` removes the
    /// page.
    pub piece_pages: Vec<(StoreId, Ino, u64, Option<Vec<u8>>)>,
    /// New redo rows, after those that `redo_applied` and deleted inodes take away. Their
    /// [`RedoRow::seq`] is not used: it is this commit.
    pub redo_rows: Vec<(StoreId, Ino, RedoRow)>,
    /// All redo rows of the object up to that commit have been written in place, or are replaced
    /// by newer ones: they go. The number: if they have just so many blocks, their targets have
    /// held nothing else since the commits of the rows, and the history needs no copy of them.
    pub redo_applied: Vec<(StoreId, Ino, CommitSeq, Option<u64>)>,
    /// Among `inodes` are some that were deleted once: who remembers that they are gone has to be
    /// told (`FOREIGN-1`).
    pub has_revived: bool,
    /// Targets of redo rows that will be written over, and the copies that have their content until
    /// this commit (`HISTORY-4`); the copies are in `allocated` and `retired`.
    pub pre_images: Vec<(Extent, Extent)>,
    /// Blocks whose content was moved, and where it lies from this commit on (`HISTORY-5`). The new
    /// places are in `allocated`, the old ones in `retired`.
    pub moves: Vec<(Extent, Extent)>,
    /// Extended attributes `(store, ino, name, Some(value))` sets, `None` removes.
    pub xattrs: Vec<XattrChange>,
    /// Newly allocated extents and the object that holds each.
    pub allocated: Vec<Held>,
    /// Blocks that one more object holds, in the order in which that was done (`SHARE-1`).
    pub shared: Vec<Sharing>,
    /// Extents, or parts of extents, that an object holds no more. Where it was the last one they
    /// become rows with `retired_seq` = this commit.
    pub retired: Vec<Held>,
    /// Rows retired or superseded at or before these commits are deleted, a step of them: their
    /// space is free again once this change set is durable. The states of these commits and later
    /// ones can be read as before.
    pub reclaim_horizon: Option<RetentionHorizons>,
    /// Old places of moved content, with the commit that retired them: free again as well, whatever
    /// the horizon (`HISTORY-5`). Who names them knows that nobody alive reads there. What is
    /// reclaimed already is left out.
    pub moved_away: Vec<(Extent, CommitSeq)>,
    /// Segments whose usable size grew, or that are new.
    pub segments: Vec<(SegmentIndex, u64)>,
    /// Inodes without a name that must live on because somebody has them open.
    pub orphans_added: Vec<(StoreId, Ino)>,
    /// Orphans that are gone (their inode is deleted in this set).
    pub orphans_removed: Vec<(StoreId, Ino)>,
    /// `(store, ino, session)`: the session has this orphan open.
    pub holders_added: Vec<(StoreId, Ino, SessionId)>,
    /// The session closed this orphan.
    pub holders_removed: Vec<(StoreId, Ino, SessionId)>,
    /// Bytes of content retired by this group, for storage age.
    pub retired_bytes: u64,
    /// The present, nanoseconds since 1970: the moment of this commit.
    pub now_ns: i64,
    /// The user for whom all of it is done, where that is not the session's own.
    pub user: Option<u32>,
    /// The session's new pin.
    pub pin: Option<(SessionId, CommitSeq)>,
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Its number.
    pub seq: CommitSeq,
    /// What of [`ChangeSet::retired`] nobody holds any more; in a workspace what is its own.
    pub retired: Vec<Extent>,
    /// Retired blocks that live again, and how many of `retired` come before that (`SHARE-9`).
    pub revived: Vec<(Extent, usize)>,
    /// The extents that [`ChangeSet::reclaim_horizon`] and [`ChangeSet::moved_away`] set free.
    pub reclaimed: Vec<Extent>,
    /// Those cuts, or older ones: what was held when the commit was made, or the end of its step.
    pub reclaim_horizon: Option<RetentionHorizons>,
    /// More was to go: the next commit takes the next step (`TIME-9`).
    pub has_more: bool,
    /// By how much the number of blocks in all redo rows changed.
    pub redo_blocks_change: i64,
}
