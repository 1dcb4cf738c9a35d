//! What is read: inodes, entries and extent maps in memory, in front of the catalog, and the road
//! of a read.
//!
//! # Words
//! A *node* is an inode in memory; its dirty blocks are its *gather*. What others commit
//! *invalidates* what is remembered.
//!
//! # Invariants
//! `NODE-n` in `node`, `CACHE-n` in `cache`, `GATHER-n` in `gather`, `POOL-n` in `buffers`, `MAP-4`
//! in `extent_map`, `PIECE-n` in `pieces`.

pub(crate) mod buffers;
pub(crate) mod cache;
pub(crate) mod entries;
pub(crate) mod extent_map;
pub(crate) mod freshness;
pub(crate) mod gather;
mod invalidation;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod pieces;
pub(crate) mod read;
pub(crate) mod read_set;
pub(crate) mod redo_rows;

use crate::error::{ErrorKind, io_error};
use crate::host::system_clock;
use crate::parts::parts;
use crate::session::Session;
use crate::view::cache::NodeCache;
use crate::view::redo_rows::RedoBook;
use crate::{Error, Result};
use larder_catalog::{Catalog, Mark, PastPin, StoreRow, Tuning};
use larder_segment::Segment;
use larder_segment::directory::DatabaseDir;
use larder_space::format::{CommitSeq, Ino, SegmentIndex, StoreId};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What shows a database at one moment, the present or one of the past: a connection of the
/// catalog, and what was read through it. Nothing can be changed through it. What it does beside
/// reading is a method of one of its parts, as `view.lookup().row(…)`.
pub struct View {
    pub(crate) session: Arc<Session>,
    pub(crate) catalog: Catalog,
    pub(crate) moment: Shown,
    pub(crate) segments: RwLock<Vec<Arc<Segment>>>,
    /// Readers of names and attributes against changes of them.
    pub(crate) namespace: RwLock<()>,
    pub(crate) cache: NodeCache,
    /// The newest commit whose effects it shows.
    pub(crate) known_seq: AtomicU64,
    pub(crate) redo_rows: RedoBook,
    /// There may be objects with pieces in the catalog, or soon. Never false again.
    pub(crate) may_have_pieces: AtomicBool,
    /// What others commit.
    pub(crate) foreign: Foreign,
    /// Why it stopped, once it has.
    pub(crate) stopped: OnceLock<String>,
}

/// What a view shows.
pub(crate) enum Shown {
    /// The present, as commits make it.
    Present,
    /// The snapshot of a transaction, which notes what it reads (`PRIVATE-5`).
    Snapshot(ReadSet),
    /// A moment of the past.
    Past(PastPin),
}

impl View {
    /// A view that knows nothing yet.
    pub(crate) fn new(
        session: Arc<Session>,
        catalog: Catalog,
        moment: Shown,
        seq: CommitSeq,
    ) -> View {
        catalog.set_session(session.liveness.id);
        let cache = NodeCache::new(session.dirty_bytes_max);
        View {
            session,
            catalog,
            moment,
            segments: RwLock::default(),
            namespace: RwLock::default(),
            cache,
            known_seq: AtomicU64::new(seq.0),
            redo_rows: RedoBook::default(),
            may_have_pieces: AtomicBool::new(false),
            foreign: Foreign::default(),
            stopped: OnceLock::new(),
        }
    }

    /// Whether the database cannot be written by this process, and is shown as it was when it was
    /// opened.
    pub fn is_readonly(&self) -> bool {
        self.session.options.readonly.is_some()
    }

    /// What was read is of the moment that is shown (`READONLY-2`).
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        match &self.session.options.readonly {
            None => Ok(()),
            Some(readonly) => readonly.require_unchanged(),
        }
    }

    /// Whether it has neither stopped nor been closed.
    pub fn is_running(&self) -> bool {
        self.stopped.get().is_none()
    }

    pub(crate) fn check_running(&self) -> Result<()> {
        match self.stopped.get() {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::Stopped, why.clone())),
        }
    }

    /// The directory of the database, open.
    pub fn directory(&self) -> &DatabaseDir {
        &self.session.directory
    }

    /// The path of the directory of the database.
    pub fn path(&self) -> &Path {
        &self.session.path
    }

    /// The present, nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        self.session
            .options
            .clock
            .as_ref()
            .map_or_else(system_clock, |clock| clock())
    }

    /// All stores.
    pub fn stores(&self) -> Result<Vec<StoreRow>> {
        Ok(self.catalog.stores().rows()?)
    }

    /// What was chosen for the database in place of the engine's defaults, as of now.
    pub fn tuning(&self) -> Result<Tuning> {
        Ok(self.catalog.tables().info()?.tuning)
    }

    /// Whether saves keep what users attached to the files of a store (`SAVE-2`).
    pub fn save_keeps(&self, store: StoreId) -> Result<bool> {
        Ok(self.catalog.stores().save_keeps(store)?)
    }

    /// The number of the long transaction whose workspace this is.
    pub fn transaction(&self) -> Option<u64> {
        self.session
            .workspace
            .as_ref()
            .map(|workspace| workspace.id)
    }

    pub(crate) fn read_names(&self) -> RwLockReadGuard<'_, ()> {
        self.namespace
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_names(&self) -> RwLockWriteGuard<'_, ()> {
        self.namespace
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn known_seq(&self) -> CommitSeq {
        CommitSeq(self.known_seq.load(Ordering::SeqCst))
    }

    /// The segment with this index; the catalog named it, so its absence is corruption.
    pub(crate) fn segment(&self, index: SegmentIndex) -> Result<Arc<Segment>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.get(index.0 as usize).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "segment {index} is named by the catalog but absent; restore it from a copy"
                ),
            )
        })
    }

    /// Whether one has become shorter.
    pub(crate) fn look_at_segments(&self) -> Result<bool> {
        let rows = self.catalog.space().segments()?;
        let mut is_shorter = false;
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if segments.is_empty() {
            segments.push(Arc::new(self.open_segment(SegmentIndex(0))?));
        }
        for row in rows {
            let index = row.segment.0 as usize;
            if index == segments.len() {
                segments.push(Arc::new(self.open_segment(row.segment)?));
            }
            let Some(segment) = segments.get(index) else {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "the catalog names segment {} but not segment {}; restore the catalog",
                        row.segment,
                        segments.len()
                    ),
                ));
            };
            let known = segment.block_count();
            let found = if known != row.block_count {
                segment.refresh()?
            } else {
                known
            };
            is_shorter |= found < known;
            // The parent of a workspace may have cut what nothing refers to.
            if found < row.block_count && self.session.workspace.is_none() {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "segment {} is truncated: {} blocks expected, {found} found; restore it \
                         from a copy",
                        row.segment, row.block_count
                    ),
                ));
            }
        }
        Ok(is_shorter)
    }

    pub(crate) fn open_segment(&self, index: SegmentIndex) -> Result<Segment> {
        let device = self.session.storage.open_segment(index).map_err(|error| {
            io_error(
                format!(
                    "cannot open segment {index} of {}; restore it from a copy",
                    self.session.path.display()
                ),
                error,
            )
        })?;
        Ok(Segment::open(device, self.session.info.database_id, index)?)
    }

    pub(crate) fn segment_blocks(&self) -> BTreeMap<SegmentIndex, u64> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = |segment: &Arc<Segment>| (segment.index(), segment.block_count());
        segments.iter().map(blocks).collect()
    }
}

parts! { View view:
    /// Looking up inodes, names and attributes.
    pub lookup ViewLookup
    /// Where content lies, and the road of a read.
    pub(crate) maps ViewMaps
    /// The moment that is shown, and what is told of the history.
    pub moment ViewMoment
    /// What others commit: who is told, and what may still be remembered.
    pub foreign ViewForeign
}

/// What another session or an SQL client may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignChange {
    /// Anything.
    Everything,
    /// These inodes at most, their content, names in them and their attributes, as every store that
    /// shows them; and what no inode has, such as the names of snapshots.
    Inodes(Vec<(StoreId, Ino)>),
}

/// Who is told.
pub type ForeignObserver = Box<dyn Fn(&ForeignChange) + Send + Sync>;

/// What a session knows of the commits of others.
#[derive(Default)]
pub(crate) struct Foreign {
    observers: Mutex<Vec<ForeignObserver>>,
    /// Where the last look ended.
    mark: Mutex<Option<Mark>>,
    /// The catalog's generation that the last look that ended has seen; 0: none has.
    generation: AtomicU64,
    /// Counts drops.
    epoch: AtomicU64,
    /// Looks that knew, that did not, and inodes in memory that were dropped or marked.
    pub exact_count: AtomicU64,
    pub whole_count: AtomicU64,
    pub dropped_count: AtomicU64,
}

/// What was read through the view of a transaction's snapshot.
#[derive(Default)]
pub(crate) struct ReadSet {
    /// Rows were read by SQL; nobody knows which.
    has_rows: AtomicBool,
    /// Which columns the user had added to a store. A leaf lock.
    columns: Mutex<HashMap<StoreId, Vec<String>>>,
}
