//! An open regular file of the `files` provider, with its prefetching.

use crate::attributes::truncate;
use crate::inode_flags::require_content;
use crate::provider::{FileContent, FileHandle, Source};
use crate::set_id::set_id_bits;
use crate::types::{AllocateMode, InodeFlags, Metadata, SeekTarget, SetAttr};
use larder_object::format::StoreId;
use larder_object::format::limits::FILE_BYTES_MAX;
use larder_object::{
    AccessRule, AsOf, AttrMask, Engine, Error, ErrorKind, Node, Result, Told, View,
};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects up to this size are prefetched whole at the first read, bytes.
const PREFETCH_WHOLE_BYTES: u64 = 1 << 20;
/// First reads of this length or more go past the page cache, bytes; none is prefetched for.
const PREFETCHED_READ_BYTES_MAX: u64 = 384 << 10;
/// A sequential reader is kept this far ahead, doubling from the first to the second, bytes.
const PREFETCH_BYTES_MIN: u64 = 256 << 10;
const PREFETCH_BYTES_MAX: u64 = 8 << 20;

/// Reads an open regular file.
struct Reader<V> {
    view: Arc<V>,
    store: StoreId,
    node: Arc<Node>,
    /// Where the next read begins if the reader is sequential, bytes.
    expected: AtomicU64,
    /// How far a sequential reader was prefetched, bytes.
    ahead: AtomicU64,
}

impl<V: Deref<Target = View>> Reader<V> {
    fn new(view: Arc<V>, store: StoreId, node: Arc<Node>) -> Reader<V> {
        Reader {
            view,
            store,
            node,
            expected: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
        }
    }

    /// Keeps the device ahead of a sequential reader: whole small objects, else a window that
    /// doubles as long as the pattern holds. First long reads go past the page cache, which is
    /// where this would put the bytes.
    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        let expected = self.expected.swap(end, Ordering::Relaxed);
        if offset != expected || len >= PREFETCHED_READ_BYTES_MAX {
            self.ahead.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let ahead = self.ahead.load(Ordering::Relaxed);
        if offset == 0 {
            self.ahead
                .store(PREFETCH_WHOLE_BYTES.max(end), Ordering::Relaxed);
            return self.view.prefetch(&self.node, end, PREFETCH_WHOLE_BYTES);
        }
        if end.saturating_add(PREFETCH_BYTES_MIN) < ahead {
            return Ok(());
        }
        let window = offset.clamp(PREFETCH_BYTES_MIN, PREFETCH_BYTES_MAX);
        let from = ahead.max(end);
        self.ahead
            .store(from.saturating_add(window), Ordering::Relaxed);
        self.view.prefetch(&self.node, from, window)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.prefetch(offset, buffer.len() as u64)?;
        self.view.read(&self.node, offset, buffer)
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Result<Option<u64>> {
        let is_data = target == SeekTarget::Data;
        self.view.seek(&self.node, is_data, offset)
    }

    fn metadata(&self) -> Result<Metadata> {
        Ok(Metadata::of(
            self.store,
            self.view.lookup().row(&self.node)?,
        ))
    }
}

/// An open regular file of the past.
pub(crate) struct PastHandle(Reader<AsOf>);

impl PastHandle {
    pub(crate) fn new(past: Arc<AsOf>, store: StoreId, node: Arc<Node>) -> PastHandle {
        PastHandle(Reader::new(past, store, node))
    }
}

impl FileHandle for PastHandle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn content(&self) -> Option<FileContent> {
        Some(FileContent {
            source: Source::Past(Arc::clone(&self.0.view)),
            node: Arc::clone(&self.0.node),
        })
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Result<Option<u64>> {
        self.0.seek(target, offset)
    }

    /// Nothing waits to be written.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn metadata(&self) -> Result<Metadata> {
        self.0.metadata()
    }
}

/// An open regular file.
pub(crate) struct Handle {
    engine: Arc<Engine>,
    node: Arc<Node>,
    reader: Reader<Engine>,
    write: bool,
    /// It was append-only when it was opened (`FLAGS-1`).
    is_append_only: bool,
    told: Told,
}

impl Handle {
    /// A handle of `node`, which counts as open already.
    pub(crate) fn new(engine: Arc<Engine>, store: StoreId, node: Arc<Node>, write: bool) -> Handle {
        Handle {
            reader: Reader::new(Arc::clone(&engine), store, Arc::clone(&node)),
            told: engine.refusals().told_at_open(&node),
            engine,
            node,
            write,
            is_append_only: false,
        }
    }

    /// It may only get longer.
    pub(crate) fn append_only(&mut self) {
        self.is_append_only = true;
    }

    fn flags(&self) -> Result<InodeFlags> {
        Ok(InodeFlags::of(&self.engine.lookup().row(&self.node)?))
    }

    /// For a change that leaves nothing of the content where it is, for sure.
    fn require_edit(&self) -> Result<()> {
        self.require_write()?;
        require_content(self.flags()?, false)
    }

    fn require_write(&self) -> Result<()> {
        if self.write {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ReadOnly,
            "the handle was opened for reading; open it for writing",
        ))
    }
}

impl FileHandle for Handle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.reader.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.require_write()?;
        let flags = self.flags()?;
        require_content(flags, !self.is_append_only)?;
        self.engine.content().write(&self.node, offset, data)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        self.require_write()?;
        require_content(self.flags()?, true)?;
        self.engine.content().append(&self.node, data)
    }

    fn insert_range(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.require_edit()?;
        self.engine
            .fragments()
            .insert_range(&self.node, offset, data)
    }

    fn insert_hole(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.require_edit()?;
        self.engine
            .fragments()
            .insert_hole(&self.node, offset, len_bytes)
    }

    fn delete_range(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.require_edit()?;
        self.engine
            .fragments()
            .delete_range(&self.node, offset, len_bytes)
    }

    fn replace_range(&self, offset: u64, len_bytes: u64, data: &[u8]) -> Result<()> {
        self.require_edit()?;
        self.engine
            .fragments()
            .replace_range(&self.node, offset, len_bytes, data)
    }

    fn move_range(&self, from: u64, len_bytes: u64, to: u64) -> Result<()> {
        self.require_edit()?;
        self.engine
            .fragments()
            .move_range(&self.node, from, len_bytes, to)
    }

    fn drop_set_id(&self) -> Result<bool> {
        self.require_write()?;
        if set_id_bits(self.engine.lookup().row(&self.node)?.mode) == 0 {
            return Ok(false);
        }
        let change = self.engine.namespace().write_guard()?;
        let mask = AttrMask {
            mode: true,
            ctime: true,
            ..AttrMask::default()
        };
        let now_ns = change.now_ns;
        change.update(&self.node, mask, |row| {
            row.mode &= !set_id_bits(row.mode);
            row.ctime_ns = now_ns;
        })?;
        change.commit()?;
        Ok(true)
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.require_edit()?;
        self.engine.content().truncate(&self.node, size_bytes)
    }

    fn truncate(&self, size_bytes: u64, set: &SetAttr) -> Result<Option<Metadata>> {
        self.require_edit()?;
        let row = truncate(&self.engine, &self.node, size_bytes, set)?;
        Ok(Some(Metadata::of(self.reader.store, row)))
    }

    fn expect_len(&self, size_bytes: u64) -> Result<()> {
        self.require_write()?;
        self.engine.content().expect_len(&self.node, size_bytes);
        Ok(())
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        self.require_edit()?;
        if len_bytes == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a range of no bytes cannot be allocated",
            ));
        }
        if offset.saturating_add(len_bytes) > FILE_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::FileTooLarge,
                format!("a file has at most {FILE_BYTES_MAX} bytes"),
            ));
        }
        match mode {
            AllocateMode::Allocate { keep_size } => self
                .engine
                .content()
                .allocate(&self.node, offset, len_bytes, keep_size),
            AllocateMode::PunchHole => self.engine.content().punch(&self.node, offset, len_bytes),
            AllocateMode::ZeroRange { keep_size } => self
                .engine
                .content()
                .zero_range(&self.node, offset, len_bytes, keep_size),
            AllocateMode::InsertRange => self
                .engine
                .fragments()
                .insert_blocks(&self.node, offset, len_bytes),
            AllocateMode::CollapseRange => self
                .engine
                .fragments()
                .collapse_blocks(&self.node, offset, len_bytes),
        }
    }

    fn content(&self) -> Option<FileContent> {
        Some(FileContent {
            source: Source::Present(Arc::clone(&self.engine)),
            node: Arc::clone(&self.node),
        })
    }

    fn share_from(
        &self,
        from: FileContent,
        from_offset: u64,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        self.require_edit()?;
        let (source, target) = ((&from.node, from_offset), (&self.node, to_offset));
        match &from.source {
            Source::Present(engine) if Arc::ptr_eq(engine, &self.engine) => {
                self.engine.sharing().share(source, target, len_bytes)
            }
            Source::Present(_) => Ok(0),
            Source::Past(past) => self
                .engine
                .sharing()
                .share_past(past, source, target, len_bytes),
        }
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Result<Option<u64>> {
        self.reader.seek(target, offset)
    }

    fn sync(&self) -> Result<()> {
        self.engine.commits().sync_node(&self.node, &self.told)
    }

    fn note_access(&self, rule: AccessRule) -> Result<bool> {
        self.engine.access_times().note_access(&self.node, rule)
    }

    fn may_be_refused(&self) -> bool {
        self.write && self.engine.refusals().may_refuse(&self.node)
    }

    fn check_refused(&self) -> Result<()> {
        match self.write {
            true => self
                .engine
                .refusals()
                .report_refused_at_close(&self.node, &self.told),
            false => Ok(()),
        }
    }

    fn metadata(&self) -> Result<Metadata> {
        self.reader.metadata()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.engine.content().close_node(&self.node, self.write) {
            tracing::warn!("closing inode {}: {error}", self.node.ino());
        }
    }
}
