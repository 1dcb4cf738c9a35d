//! Segments in files of a local directory: `DATABASE/segments/00000.seg`, `00001.seg`, …
//!
//! Errors carry the path, the cause and the remedy.
//!
//! # Direct or through the page cache
//! New content goes through the page cache, in which it is found when it is read; the device begins
//! with long pieces of it at once. What is moved, in long writes from aligned memory, goes to the
//! device directly (`O_DIRECT`), and so do long reads of what is not in memory the first time (see
//! `read_places`). Everything else goes through the page cache: what was read stays in it, and
//! reading it again costs no request. Each file is open twice for that.
//!
//! The two never disagree. A direct write first writes back and drops the pages of its range, and
//! drops them again when it has ended, also those that somebody maps; where the kernel cannot drop
//! one beforehand it writes through the page cache. Readahead may read neighbouring blocks into the
//! page cache while they are being written; these pages are among those that are dropped in the
//! end, and nobody reads a block before its write has returned (`COMMIT-2` of the engine). A page
//! that were stale all the same would not match its checksum (`SEGMENT-3`).
//!
//! Where the host cannot do direct I/O (some FUSE and network filesystems), or asks for more than
//! 4096-byte alignment, everything goes through the page cache: slower, the same otherwise. A log
//! line at debug level says so.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_directory::{Access, DatabaseDir};
use larder_format::SegmentIndex;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::aligned::{ALIGN_BYTES, AlignedBuf, is_aligned};
use crate::device::{Device, Storage};
use crate::page_cache;
use crate::read_places::ReadPlaces;

/// Slices that one `pwritev` takes (Linux `UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;
/// Writes from this length on are direct, bytes.
const DIRECT_WRITE_BYTES_MIN: u64 = 128 << 10;
/// Writes through the page cache from this length on are begun with at once, bytes: shorter ones
/// are few, and the flush takes them along.
const TRANSFER_BYTES_MIN: u64 = 128 << 10;
/// Reads from this length on are long: direct, where nobody has read before, bytes.
const LONG_READ_BYTES_MIN: usize = 384 << 10;
/// Scratch buffers have at least this length, bytes: then they serve most reads.
const SCRATCH_BYTES: usize = 512 << 10;
/// Requests in flight that a file profits from.
const IN_FLIGHT: usize = 2;

/// The directory of the segment files, in that of the database.
const SEGMENTS: &str = "segments";

/// The segment files of one database directory.
#[derive(Debug, Clone)]
pub struct FileStorage {
    database: DatabaseDir,
    is_read_only: bool,
}

impl FileStorage {
    /// The storage in `database`, the directory that holds, or will hold, `segments/`. Does no I/O.
    pub fn new(database: DatabaseDir) -> FileStorage {
        FileStorage {
            database,
            is_read_only: false,
        }
    }

    /// The same for reading alone: files are opened so, and none is made.
    pub fn read_only(database: DatabaseDir) -> FileStorage {
        FileStorage {
            database,
            is_read_only: true,
        }
    }

    /// The directory of the segment files.
    pub fn directory(&self) -> PathBuf {
        self.database.join(SEGMENTS)
    }

    /// The file of a segment, for messages.
    pub fn segment_path(&self, segment: SegmentIndex) -> PathBuf {
        self.database.join(segment_name(segment))
    }

    fn open_directory(&self) -> io::Result<DatabaseDir> {
        (self.database.open_dir(SEGMENTS)).map_err(|error| explain(error, &self.directory()))
    }
}

impl Storage for FileStorage {
    fn open_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        let name = segment_name(segment);
        Ok(Arc::new(match self.is_read_only {
            true => FileDevice::open_read_only(&self.database, &name)?,
            false => FileDevice::open(&self.database, &name)?,
        }))
    }

    fn create_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        let at = |error| explain(error, &self.directory());
        if self.is_read_only {
            return Err(at(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let directory = make_segments(&self.database).map_err(at)?;
        let device = FileDevice::create(&self.database, &segment_name(segment))?;
        directory.sync().map_err(at)?;
        Ok(Arc::new(device))
    }

    fn segments(&self) -> io::Result<Vec<SegmentIndex>> {
        let directory = self.open_directory()?;
        let names = directory
            .names()
            .map_err(|error| explain(error, directory.path()))?;
        let mut found: Vec<SegmentIndex> = names
            .iter()
            .filter_map(|name| name.to_str().and_then(find_segment_index))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let host = rustix::fs::fstatvfs(&self.database)
            .map_err(|errno| explain(errno.into(), self.database.path()))?;
        Ok(host.f_bavail.saturating_mul(host.f_frsize))
    }

    fn host_size_bytes(&self) -> io::Result<u64> {
        let host = rustix::fs::fstatvfs(&self.database)
            .map_err(|errno| explain(errno.into(), self.database.path()))?;
        Ok(host.f_blocks.saturating_mul(host.f_frsize))
    }
}

/// The directory of the segment files, which is made if there is none.
pub(crate) fn make_segments(database: &DatabaseDir) -> io::Result<DatabaseDir> {
    match database.open_dir(SEGMENTS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = database.make_dir(SEGMENTS)?;
            database.sync()?;
            Ok(made)
        }
        opened => opened,
    }
}

/// The file of a segment, in the directory of the database.
pub(crate) fn segment_name(segment: SegmentIndex) -> PathBuf {
    PathBuf::from(format!("{SEGMENTS}/{:05}.seg", segment.0))
}

/// The segment that a file of this name holds; `None` for every other file.
fn find_segment_index(name: &str) -> Option<SegmentIndex> {
    let digits = name.strip_suffix(".seg")?;
    let index = SegmentIndex(digits.parse().ok()?);
    (format!("{:05}", index.0) == digits).then_some(index)
}

/// One regular file, opened for reading and writing.
#[derive(Debug)]
pub struct FileDevice {
    /// Through the page cache.
    file: File,
    /// The same file without it; `None` where the host cannot.
    direct: Option<File>,
    /// The host refused a direct request, so none is tried any more.
    refuses_direct: AtomicBool,
    /// Buffers of direct reads into memory that is not aligned.
    scratch: Mutex<Vec<AlignedBuf>>,
    read_places: ReadPlaces,
}

impl FileDevice {
    /// Opens an existing file; refuses one that is not a regular file of its own (`DIRECTORY-2`) or
    /// has no write permission, even when the process is privileged enough to write it all the
    /// same.
    fn open(database: &DatabaseDir, name: &Path) -> io::Result<FileDevice> {
        let path = database.join(name);
        let file = database
            .open_file(name, Access::ReadWrite)
            .map_err(|error| explain(error, &path))?;
        let metadata = file.metadata().map_err(|error| explain(error, &path))?;
        if metadata.permissions().readonly() {
            return Err(explain(io::ErrorKind::PermissionDenied.into(), &path));
        }
        FileDevice::new(file, database, name, true)
    }

    /// The same for reading alone, whatever the permissions for writing are.
    fn open_read_only(database: &DatabaseDir, name: &Path) -> io::Result<FileDevice> {
        let file = database
            .open_file(name, Access::Read)
            .map_err(|error| explain(error, &database.join(name)))?;
        FileDevice::new(file, database, name, false)
    }

    /// Makes a new, empty file (`DIRECTORY-4`); an existing one is refused.
    fn create(database: &DatabaseDir, name: &Path) -> io::Result<FileDevice> {
        let file = database
            .open_file(name, Access::MakeNew)
            .map_err(|error| explain(error, &database.join(name)))?;
        FileDevice::new(file, database, name, true)
    }

    fn new(
        file: File,
        database: &DatabaseDir,
        name: &Path,
        is_written: bool,
    ) -> io::Result<FileDevice> {
        let path = database.join(name);
        let access = match is_written {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
        };
        let direct = database.open_again(name, &file, access | OFlags::DIRECT);
        let direct = match direct {
            Ok(direct) => Some(direct),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                tracing::debug!(path = %path.display(), "the host cannot do direct I/O");
                None
            }
            Err(error) => return Err(explain(error, &path)),
        };
        Ok(FileDevice {
            file,
            direct,
            refuses_direct: AtomicBool::new(false),
            scratch: Mutex::default(),
            read_places: ReadPlaces::default(),
        })
    }

    /// The file to use for a direct request, if there is one.
    fn direct(&self) -> Option<&File> {
        self.direct
            .as_ref()
            .filter(|_| !self.refuses_direct.load(Ordering::Relaxed))
    }

    /// Runs a direct request; `false` when the host refuses its alignment: then it must be done
    /// through the page cache.
    fn try_direct(&self, request: impl FnOnce(&File) -> io::Result<()>) -> io::Result<bool> {
        let Some(direct) = self.direct() else {
            return Ok(false);
        };
        match request(direct) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                if !self.refuses_direct.swap(true, Ordering::Relaxed) {
                    tracing::debug!(%error, "the host refuses direct I/O of 4096-byte blocks");
                }
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// Whether the host can read so much there directly.
    fn may_be_direct(&self, offset_bytes: u64, len_bytes: usize) -> bool {
        len_bytes.is_multiple_of(ALIGN_BYTES)
            && offset_bytes.is_multiple_of(ALIGN_BYTES as u64)
            && self.direct().is_some()
    }

    fn read(
        &self,
        is_direct: bool,
        offset_bytes: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<()> {
        match is_direct && self.read_uncached(offset_bytes, slices)? {
            true => Ok(()),
            false => read_all(&self.file, offset_bytes, slices),
        }
    }

    /// Reads past the page cache. `false`: the host cannot.
    fn read_uncached(&self, offset_bytes: u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<bool> {
        let len_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        if let [slice] = slices
            && is_aligned(slice)
        {
            return self.try_direct(|direct| read_all(direct, offset_bytes, slices));
        }
        let mut scratch = self.take_scratch(len_bytes);
        let is_done = self.try_direct(|direct| {
            let whole = IoSliceMut::new(&mut scratch[..len_bytes]);
            read_all(direct, offset_bytes, &mut [whole])
        })?;
        if is_done {
            let mut from = 0;
            for slice in slices {
                let end = from + slice.len();
                slice.copy_from_slice(&scratch[from..end]);
                from = end;
            }
        }
        let mut kept = self.scratch();
        if kept.len() < IN_FLIGHT {
            kept.push(scratch);
        }
        Ok(is_done)
    }

    /// Memory for a direct read whose own is not aligned.
    fn take_scratch(&self, len_bytes: usize) -> AlignedBuf {
        match self.scratch().pop() {
            Some(scratch) if scratch.len() >= len_bytes => scratch,
            _ => AlignedBuf::zeroed(len_bytes.max(SCRATCH_BYTES)),
        }
    }

    fn scratch(&self) -> MutexGuard<'_, Vec<AlignedBuf>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills `slices` in one request if the host gives all at once, else slice by slice.
fn read_all(file: &File, offset_bytes: u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    let mut done = match rustix::io::preadv(file, slices, offset_bytes) {
        Ok(read) => read,
        Err(Errno::INTR) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut at = offset_bytes;
    for slice in slices {
        let here = done.min(slice.len());
        if here < slice.len() {
            file.read_exact_at(&mut slice[here..], at + here as u64)?;
        }
        done -= here;
        at += slice.len() as u64;
    }
    Ok(())
}

fn write_all_vectored(file: &File, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
    let mut at = offset_bytes;
    for slices in slices.chunks(SLICES_MAX) {
        let mut owned = slices.to_vec();
        let mut rest = owned.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0); // Drops leading empty slices.
        while !rest.is_empty() {
            match rustix::io::pwritev(file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

impl Device for FileDevice {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_vectored_at(offset_bytes, &mut [IoSliceMut::new(buf)])
    }

    fn read_vectored_at(&self, offset_bytes: u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let is_direct = len_bytes >= LONG_READ_BYTES_MIN
            && self.may_be_direct(offset_bytes, len_bytes)
            && !self.is_in_memory(offset_bytes, len_bytes as u64)
            && self.read_places.note(offset_bytes);
        self.read(is_direct, offset_bytes, slices)
    }

    fn read_past_cache_at(
        &self,
        offset_bytes: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<()> {
        let len_bytes = slices.iter().map(|slice| slice.len()).sum();
        let is_direct = self.may_be_direct(offset_bytes, len_bytes);
        self.read(is_direct, offset_bytes, slices)
    }

    fn is_in_memory(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        len_bytes >= LONG_READ_BYTES_MIN as u64
            && self.read_places.is_kept(offset_bytes)
            && page_cache::has_all(&self.file, offset_bytes, len_bytes)
                .unwrap_or_else(|| page_cache::has_page(&self.file, offset_bytes))
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset_bytes)
    }

    fn write_vectored_at(&self, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let len_bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        let is_direct = len_bytes >= DIRECT_WRITE_BYTES_MIN
            && offset_bytes.is_multiple_of(ALIGN_BYTES as u64)
            && slices
                .iter()
                .all(|slice| is_aligned(slice) && slice.len().is_multiple_of(ALIGN_BYTES));
        if is_direct
            && self.try_direct(|direct| write_all_vectored(direct, offset_bytes, slices))?
        {
            (self.read_places).forget(offset_bytes..offset_bytes + len_bytes);
            return Ok(());
        }
        write_all_vectored(&self.file, offset_bytes, slices)
    }

    fn write_cached_at(&self, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        write_all_vectored(&self.file, offset_bytes, slices)?;
        let len_bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        if len_bytes >= TRANSFER_BYTES_MIN {
            page_cache::start_transfer(&self.file, offset_bytes, len_bytes);
        }
        (self.read_places).keep(offset_bytes..offset_bytes + len_bytes);
        Ok(())
    }

    fn requests_in_flight_max(&self) -> usize {
        match self.direct() {
            Some(_) => IN_FLIGHT,
            None => 1, // The page cache is memory: more threads only take turns on it.
        }
    }

    fn prefetch(&self, offset_bytes: u64, len_bytes: u64) {
        // A hint that the kernel refuses costs speed only; the read itself reports errors.
        let len = std::num::NonZeroU64::new(len_bytes);
        let _ = rustix::fs::fadvise(&self.file, offset_bytes, len, rustix::fs::Advice::WillNeed);
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes)?;
        self.read_places.forget(len_bytes..u64::MAX);
        Ok(())
    }

    fn preallocate(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(
                &self.file,
                FallocateFlags::empty(),
                offset_bytes,
                len_bytes,
            ) {
                // Some filesystems cannot; the zeros that follow take the space then.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn lock(&self) -> io::Result<()> {
        loop {
            match rustix::fs::flock(&self.file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.file, FlockOperation::Unlock)?)
    }
}

/// The same error with the path in front and the remedy behind.
fn explain(error: io::Error, path: &Path) -> io::Error {
    let path = path.display();
    let line = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{path} is read-only ({error}); make it writable for this user")
        }
        io::ErrorKind::NotFound => format!("{path} is missing; restore it, or check the path"),
        io::ErrorKind::AlreadyExists => format!("{path} exists already; choose another path"),
        io::ErrorKind::StorageFull => format!("{path}: no space on the host; free some there"),
        _ => format!("{path}: {error}"),
    };
    io::Error::new(error.kind(), line)
}

#[cfg(test)]
mod tests;
