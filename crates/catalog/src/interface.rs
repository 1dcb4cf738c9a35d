//! What every catalog can do, listed once: each part with its methods, and where each is answered.

use crate::{
    AccessTime, AgRow, Catalog, ContentRow, DatabaseInfo, DirentRow, ExtentRow, FileContent,
    InodeRow, RedoRow, Result, SegmentRow, SessionRow, SharedPages, SharedRow, StoreRow,
};
#[cfg(doc)]
use crate::{CatalogError, ChangeSet, check_store_name, dirent_order};
#[cfg(doc)]
use larder_format::limits::STORES_MAX;
use larder_format::{CommitSeq, Extent, Ino, Name, SegmentIndex, SessionId, StoreId};

/// Parts of the interface: each a reference to the catalog, whose methods go to the catalog that it
/// is.
macro_rules! parts {
    ($(
        $(#[$doc:meta])*
        $name:ident $part:ident {
            $(
                $(#[$method_doc:meta])*
                fn $method:ident($($parameter:ident: $type:ty),* $(,)?) -> $returned:ty;
            )*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $part<'c> {
                catalog: &'c Catalog,
            }

            impl $part<'_> {
                $(
                    $(#[$method_doc])*
                    pub fn $method(&self $(, $parameter: $type)*) -> $returned {
                        match self.catalog {
                            Catalog::Sqlite(catalog) => catalog.$name().$method($($parameter),*),
                            Catalog::Memory(catalog) => catalog.$name().$method($($parameter),*),
                        }
                    }
                )*
            }
        )*

        impl Catalog {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> $part<'_> {
                    $part { catalog: self }
                }
            )*
        }
    };
}

parts! {
    /// Inodes, names, content and extended attributes, as they are now.
    tables CatalogTables {
        /// Facts of the whole database.
        fn info() -> Result<DatabaseInfo>;
        /// The newest committed group; in a catalog of the past: the one that it shows.
        fn commit_seq() -> Result<CommitSeq>;
        /// Changes whenever a table, column, index or trigger does. 2 µs.
        fn schema_version() -> Result<i64>;
        /// The attributes of an inode.
        fn inode(store: StoreId, ino: Ino) -> Result<Option<InodeRow>>;
        /// The commit that wrote the inode's row, content and extended attributes included: each
        /// change of them writes it. `None` when there is no such inode.
        fn inode_since(store: StoreId, ino: Ino) -> Result<Option<CommitSeq>>;
        /// What `name` names in directory `parent`.
        fn dirent(store: StoreId, parent: Ino, name: &Name) -> Result<Option<Ino>>;
        /// At most `limit` entries of `parent` after the name `after`, in the order of
        /// [`dirent_order`]. Paging by the last name is complete and consistent: an entry
        /// that is there all the time is seen exactly once, whatever else changes.
        fn dirents(
            store: StoreId,
            parent: Ino,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<DirentRow>>;
        /// The same with the attributes of what the entries name.
        fn dirents_with_rows(
            store: StoreId,
            parent: Ino,
            after: Option<&Name>,
            limit: usize,
        ) -> Result<Vec<(Name, InodeRow)>>;
        /// Refuses a directory with two names, and a root with one (`SAFE-8`): it may lie in
        /// itself, and who walks down would never end. 3 µs.
        fn require_one_name(store: StoreId, directory: Ino) -> Result<()>;
        /// All names of an inode, with their directories.
        fn parents(store: StoreId, ino: Ino) -> Result<Vec<(Ino, Name)>>;
        /// Inline content or link target of an inode; damage is [`CatalogError::Corrupt`].
        fn content(store: StoreId, ino: Ino) -> Result<Option<ContentRow>>;
        /// The encoded map page `page` of an inode; `None` when nothing in it is mapped.
        fn map_page(store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>>;
        /// At most `limit` encoded map pages of an inode with index ≥ `from_page`, in order.
        fn map_pages(
            store: StoreId,
            ino: Ino,
            from_page: u64,
            limit: usize,
        ) -> Result<Vec<(u64, Vec<u8>)>>;
        /// The extended attributes of an inode, `(name, value)`, UTF-8 names first, by bytes.
        fn xattrs(store: StoreId, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    }
    /// Where the content of an object lies: redo rows and lists of pieces.
    maps CatalogMaps {
        /// What stands beside the extent map of a regular file, at one moment; damage is
        /// [`CatalogError::Corrupt`]. One statement, so that opening
        /// a file costs no second one.
        fn file_content(store: StoreId, ino: Ino) -> Result<FileContent>;
        /// Whether any inode has a list of pieces.
        fn has_pieces() -> Result<bool>;
        /// One encoded page of the list of pieces of an inode; page 0 is the root.
        fn piece_page(store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>>;
        /// At most `limit` encoded pages of the list of an inode with number ≥ `from_page`, in
        /// order.
        fn piece_pages(
            store: StoreId,
            ino: Ino,
            from_page: u64,
            limit: usize,
        ) -> Result<Vec<(u64, Vec<u8>)>>;
        /// The redo rows of an object, oldest first. 3 µs plus the rows.
        fn redo_rows(store: StoreId, ino: Ino) -> Result<Vec<RedoRow>>;
        /// The objects that have redo rows. O(redo rows), of a small index.
        fn objects_with_redo_rows() -> Result<Vec<(StoreId, Ino)>>;
        /// Blocks in all redo rows, those that newer rows replace included. O(redo rows), of a
        /// small index.
        fn redo_blocks() -> Result<u64>;
    }
    /// Extents, segments, and who holds them.
    space CatalogSpace {
        /// The segments of the database, by index.
        fn segments() -> Result<Vec<SegmentRow>>;
        /// At most `limit` extent rows, live and retired, after the one that begins at `after`
        /// (segment, start block), in that order.
        fn extents(after: Option<(SegmentIndex, u64)>, limit: usize) -> Result<Vec<ExtentRow>>;
        /// All extent rows of one allocation group, by start.
        fn extents_in_ag(segment: SegmentIndex, ag: u64) -> Result<Vec<ExtentRow>>;
        /// The extent, live or retired, that lies nearest to the end of a segment. O(log rows).
        fn last_extent(segment: SegmentIndex) -> Result<Option<Extent>>;
        /// The allocation groups in which a commit after `seq` allocated, retired or reclaimed;
        /// from 0, all that ever had an extent. O(groups).
        fn ags_changed_since(seq: CommitSeq) -> Result<Vec<AgRow>>;
        /// Whether anything retired at or before `horizon` waits for its reclaim.
        fn has_retired(horizon: CommitSeq) -> Result<bool>;
        /// Blocks that commits up to `horizon` retired and that are not reclaimed. O(such rows).
        fn retired_blocks(horizon: CommitSeq) -> Result<u64>;
        /// Whether any extent has several holders. O(1), a few µs.
        fn has_shared() -> Result<bool>;
        /// Whether a block of `extent` has several holders. O(rows under it).
        fn is_shared(extent: &Extent) -> Result<bool>;
        /// The rows that have blocks of `extent`, live or retired, by place. O(rows under it).
        fn extents_under(extent: &Extent) -> Result<Vec<ExtentRow>>;
        /// The stores of those who own blocks of `extent`, live or retired. O(rows under it).
        fn stores_under(extent: &Extent) -> Result<Vec<StoreId>>;
        /// Whether an object holds a block of `extent`. One statement, for one moment: between two
        /// a sharer may become the owner. O(rows under it).
        fn holds(extent: &Extent, store: StoreId, ino: Ino) -> Result<bool>;
        /// At most `limit` sharers after `after`, in order.
        fn sharers(after: Option<SharedRow>, limit: usize) -> Result<Vec<SharedRow>>;
        /// Blocks that sharing saves: those of each row as often as it has sharers. O(sharers).
        fn shared_blocks() -> Result<u64>;
    }
    /// Stores.
    stores CatalogStores {
        /// All stores, by id.
        fn rows() -> Result<Vec<StoreRow>>;
        /// Forgets what is known of stores: a transaction was taken back, and another one may give
        /// the number of a store that it made to another name.
        fn forget() -> ();
        /// Creates a store with an empty root directory; with `table_store`, one that shows the
        /// tables of that store instead (root attributes are then not used). The name follows
        /// [`check_store_name`] and is unique without regard to case; a
        /// database has at most [`STORES_MAX`]. One that has tables of its own is made by a commit,
        /// or a step of the transaction: as of the commits before it is not there.
        #[allow(clippy::too_many_arguments)] // They are the columns of two rows.
        fn create(
            name: &str,
            provider: &str,
            mount: &str,
            table_store: Option<StoreId>,
            now_ns: i64,
            root_mode: u32,
            uid: u32,
            gid: u32,
        ) -> Result<StoreRow>;
        /// Changes provider or mount of a store; what is `None` stays.
        fn set(
            store: StoreId,
            provider: Option<&str>,
            mount: Option<&str>,
        ) -> Result<()>;
        /// Exchanges the mounts of two stores.
        fn exchange_mounts(one: StoreId, other: StoreId) -> Result<()>;
        /// Destroys a store: drops its tables, the user's columns with them, and retires all it
        /// holds, as one commit, made at `now_ns`, whose number is returned. Refuses `main`, and a
        /// store that another one shows. Scans all extent rows.
        fn destroy(store: StoreId, now_ns: i64) -> Result<CommitSeq>;
        /// One more than the highest inode number that the store ever had (`CATALOG-4`).
        fn next_ino(store: StoreId) -> Result<Ino>;
        /// Whether saves keep what users attached to the files of a store.
        fn save_keeps(store: StoreId) -> Result<bool>;
        /// The inode that is now the file that inode `ino` was after commit `seq`, and is no more:
        /// it was saved since. 10 µs.
        fn saved_as(store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Option<Ino>>;
        /// Changes that.
        fn set_save_keeps(store: StoreId, keeps: bool) -> Result<()>;
    }
    /// Sessions, what they pin and hold open.
    sessions CatalogSessions {
        /// Registers a process, its id and its user; returns its session and the commit that it
        /// pins: the newest one. Refused when the schema is no longer this build's (`CATALOG-11`).
        fn begin(
            process: (u32, u32),
            label: &str,
            now_ns: i64,
        ) -> Result<(SessionId, CommitSeq)>;
        /// Removes a session, its pin, and its holds on orphans. Ending it twice is no error.
        fn end(session: SessionId) -> Result<()>;
        /// The same for several, in one commit.
        fn end_all(sessions: &[SessionId]) -> Result<()>;
        /// All sessions, oldest first; a process that died may have left one.
        fn rows() -> Result<Vec<SessionRow>>;
        /// Moves a session's pin, outside a commit ([`ChangeSet::pin`] is
        /// cheaper).
        fn set_pin(session: SessionId, seq: CommitSeq) -> Result<()>;
        /// Inodes without a name that live on, and the commit since when.
        fn orphans() -> Result<Vec<(StoreId, Ino, CommitSeq)>>;
        /// Whether there is any. 2 µs.
        fn has_orphans() -> Result<bool>;
        /// At most so many of them, behind one. O(these).
        fn orphans_after(
            after: Option<(StoreId, Ino)>,
            count_max: usize,
        ) -> Result<Vec<(StoreId, Ino, CommitSeq)>>;
        /// Which session has which orphan open.
        fn holders() -> Result<Vec<(StoreId, Ino, SessionId)>>;
        /// The session has this orphan open, at once: for a session that learns of the orphan from
        /// another one's commit.
        fn add_holder(store: StoreId, ino: Ino, session: SessionId) -> Result<()>;
        /// Notes when inodes were read, in one transaction (`ATIME-1`); those that are gone are
        /// passed over. `false`: somebody else is writing, and nothing was done. Cost: 3 µs each,
        /// and one sync.
        fn note_access(times: &[AccessTime]) -> Result<bool>;
    }
    /// Looking through all that there is.
    survey CatalogSurvey {
        /// At most `limit` inodes after `after`, in order. Cost ≈ 1 µs each.
        fn inodes(store: StoreId, after: Option<Ino>, limit: usize) -> Result<Vec<InodeRow>>;
        /// Number of inodes of a store. Cost: a scan of the smallest index.
        fn inode_count(store: StoreId) -> Result<u64>;
        /// Blocks in live extents, and in retired ones. Cost: a scan of the extent rows.
        fn extent_totals() -> Result<(u64, u64)>;
        /// The user's triggers and views, for people: what each is, and its table.
        fn users_code() -> Result<Vec<String>>;
        /// All shared pages. Reads the lengths of all of them.
        fn shared_pages() -> Result<SharedPages>;
        /// Those that go when the history of all stores goes up to `base`: they belong to none.
        /// O(pages that go).
        fn retired_pages(base: CommitSeq) -> Result<SharedPages>;
        /// Which tables cannot be read for damage, and what still reads; nothing: all can. Cost:
        /// reads the catalog.
        fn damage() -> Result<Vec<String>>;
        /// Proves the catalog's structure at one committed moment: the schema, and every rule
        /// between tables that can be told of the rows. Returns one line per
        /// finding, at most 100 of each kind; none means sound. Reads everything: seconds per
        /// million files.
        fn check() -> Result<Vec<String>>;
    }
}
