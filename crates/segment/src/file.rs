//! Segments in files of a local directory: `DATABASE/segments/00000.seg`, `00001.seg`, …
//!
//! Errors carry the path, the cause and the remedy.
//!
//! # Direct or through the page cache
//! Long writes from aligned memory go to the device directly (`O_DIRECT`), and so do long reads of
//! what was not read before (see `read_places`). Everything else goes through the page cache: what
//! was read stays in it, and reading it again costs no request. Each file is open twice for that.
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
use crate::read_places::ReadPlaces;

/// Slices that one `pwritev` takes (Linux `UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;
/// Writes from this length on are direct, bytes.
const DIRECT_WRITE_BYTES_MIN: u64 = 128 << 10;
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

    /// Whether a read is long, and the host can do it directly.
    fn may_be_direct(&self, offset_bytes: u64, slices: &[IoSliceMut<'_>]) -> bool {
        let len_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        len_bytes >= LONG_READ_BYTES_MIN
            && len_bytes.is_multiple_of(ALIGN_BYTES)
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
        let is_direct =
            self.may_be_direct(offset_bytes, slices) && self.read_places.note(offset_bytes);
        self.read(is_direct, offset_bytes, slices)
    }

    fn read_past_cache_at(
        &self,
        offset_bytes: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<()> {
        self.read(
            self.may_be_direct(offset_bytes, slices),
            offset_bytes,
            slices,
        )
    }

    fn is_in_memory(&self, offset_bytes: u64) -> bool {
        self.read_places.is_kept(offset_bytes)
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
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn storage() -> (tempfile::TempDir, FileStorage) {
        let directory = tempfile::tempdir().unwrap();
        let storage = FileStorage::new(DatabaseDir::open(directory.path()).unwrap());
        (directory, storage)
    }

    #[test]
    fn segments_are_numbered_files() {
        let (_directory, storage) = storage();
        for index in [100_000, 0, 7] {
            storage.create_segment(SegmentIndex(index)).unwrap();
        }
        fs::write(storage.directory().join("7.seg"), "").unwrap();
        fs::write(storage.directory().join("notes.txt"), "").unwrap();
        let expected: Vec<_> = [0, 7, 100_000].map(SegmentIndex).into();
        assert_eq!(storage.segments().unwrap(), expected);
        assert!(
            storage
                .segment_path(SegmentIndex(7))
                .ends_with("segments/00007.seg")
        );
        assert!(storage.available_bytes().unwrap() > 0);
    }

    #[test]
    fn each_refusal_says_why() {
        let (_directory, storage) = storage();
        let line = |result: io::Result<Arc<dyn Device>>| {
            result.err().map(|error| error.to_string()).unwrap()
        };
        storage.create_segment(SegmentIndex(0)).unwrap();
        assert!(line(storage.create_segment(SegmentIndex(0))).contains("exists already"));
        assert!(line(storage.open_segment(SegmentIndex(1))).contains("00001.seg is missing"));
        let path = storage.segment_path(SegmentIndex(0));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let refused = storage.open_segment(SegmentIndex(0)).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("00000.seg is read-only"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, storage.segment_path(SegmentIndex(1))).unwrap();
        let linked = line(storage.open_segment(SegmentIndex(1)));
        assert!(linked.contains("hard links"), "DIRECTORY-2: {linked}");
    }

    #[test]
    fn what_stands_in_the_place_of_the_directory_is_named() {
        let (directory, storage) = storage();
        std::os::unix::fs::symlink("/tmp", directory.path().join(SEGMENTS)).unwrap();
        let refused = storage.create_segment(SegmentIndex(0)).err().unwrap();
        let line = refused.to_string();
        assert!(line.contains("/segments: "), "{line}");
        assert!(line.contains("symbolic link"), "DIRECTORY-1: {line}");
        assert!(storage.segments().is_err());
    }

    #[test]
    fn vectored_writes_longer_than_one_request_arrive_whole() {
        let (_directory, storage) = storage();
        let device = storage.create_segment(SegmentIndex(0)).unwrap();
        let bytes: Vec<u8> = (0..3 * SLICES_MAX).map(|i| i as u8).collect();
        let mut slices = vec![IoSlice::new(&[])];
        slices.extend(bytes.chunks(1).map(IoSlice::new));
        device.write_vectored_at(5, &slices).unwrap();
        let mut back = vec![0; bytes.len()];
        device.read_at(5, &mut back).unwrap();
        assert_eq!(back, bytes);
        let past_end = device.read_at(6, &mut back).unwrap_err();
        assert_eq!(past_end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_lock_holds_between_two_openings() {
        let (_directory, storage) = storage();
        let first = storage.create_segment(SegmentIndex(0)).unwrap();
        first.lock().unwrap();
        let second = File::open(storage.segment_path(SegmentIndex(0))).unwrap();
        let try_lock = || rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(try_lock(), Err(Errno::WOULDBLOCK), "SEGMENT-6");
        first.unlock().unwrap();
        assert_eq!(try_lock(), Ok(()));
    }

    /// Direct or not, aligned or not: what was written last is read, also where the page cache
    /// holds older bytes.
    #[test]
    fn direct_and_cached_requests_see_the_same_bytes() {
        let place = tempfile::tempdir().unwrap();
        let place_of_it = DatabaseDir::open(place.path()).unwrap();
        let device = FileDevice::create(&place_of_it, Path::new("file")).unwrap();
        let mut model = vec![0; 3 << 20];
        device.write_at(0, &model).unwrap();
        let mut state = 1u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
            (state >> 33) as usize % below
        };
        for round in 0..200u32 {
            let at = next(2 << 20) / ALIGN_BYTES * ALIGN_BYTES;
            let len = (1 + next(256)) * ALIGN_BYTES;
            let mut bytes = AlignedBuf::zeroed(len + 1);
            for byte in bytes.iter_mut() {
                *byte = next(256) as u8;
            }
            // Aligned memory may go directly, the other must not.
            let from = usize::from(round % 3 == 0);
            let bytes = &bytes[from..from + len];
            let (one, two) = bytes.split_at(len / 2 / ALIGN_BYTES * ALIGN_BYTES);
            device
                .write_vectored_at(at as u64, &[IoSlice::new(one), IoSlice::new(two)])
                .unwrap();
            model[at..at + len].copy_from_slice(bytes);

            let at = next(2 << 20) / ALIGN_BYTES * ALIGN_BYTES;
            let len = (1 + next(256)) * ALIGN_BYTES;
            let mut found = AlignedBuf::zeroed(len + 1);
            let from = usize::from(round % 2 == 0);
            let (one, two) = found[from..from + len].split_at_mut(ALIGN_BYTES);
            device
                .read_vectored_at(at as u64, &mut [IoSliceMut::new(one), IoSliceMut::new(two)])
                .unwrap();
            assert!(
                found[from..from + len] == model[at..at + len],
                "round {round}"
            );
            let mut one = AlignedBuf::zeroed(len);
            device.read_at(at as u64, &mut one).unwrap();
            assert!(one[..] == model[at..at + len], "round {round}");
        }
        let end = device.len_bytes().unwrap();
        let mut behind = AlignedBuf::zeroed(1 << 20);
        let missing = device.read_at(end - 4096, &mut behind).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_read_a_second_time_is_kept_until_it_is_written() {
        const LEN: u64 = 1 << 20;
        let (_directory, storage) = storage();
        let name = Path::new("file");
        let device = FileDevice::create(&storage.database, name).unwrap();
        if device.direct().is_none() {
            return println!("not run: the host has no direct requests");
        }
        // `NOWAIT` gives what is in memory. It fetches what is not: another page is asked for each
        // time, by a file that reads nothing ahead.
        let probe = File::open(storage.database.join(name)).unwrap();
        rustix::fs::fadvise(&probe, 0, None, rustix::fs::Advice::Random).unwrap();
        let asked = std::cell::Cell::new(LEN);
        let is_in_memory = || {
            asked.set(asked.get() + ALIGN_BYTES as u64);
            let mut page = [0; ALIGN_BYTES];
            let slices = &mut [IoSliceMut::new(&mut page)];
            let flags = rustix::io::ReadWriteFlags::NOWAIT;
            rustix::io::preadv2(&probe, slices, asked.get(), flags).is_ok()
        };
        let mut bytes = AlignedBuf::zeroed(LEN as usize);
        for round in 1..4 {
            bytes.fill(round);
            let slices = [IoSlice::new(&bytes)];
            device.write_vectored_at(LEN, &slices).unwrap();
            let mut found = AlignedBuf::zeroed(LEN as usize);
            for is_kept in [false, true, true] {
                device.read_at(LEN, &mut found).unwrap();
                assert!(found[..] == bytes[..]);
                assert_eq!(device.is_in_memory(LEN), is_kept);
                assert_eq!(is_in_memory(), is_kept, "round {round}");
            }
            // Short reads say nothing of long ones.
            device.read_at(0, &mut [0; 4096]).unwrap();
            assert!(!device.is_in_memory(0));
        }
        device
            .write_vectored_at(LEN, &[IoSlice::new(&bytes)])
            .unwrap();
        for _ in 0..3 {
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            device.read_past_cache_at(LEN, slices).unwrap();
            assert!(!device.is_in_memory(LEN) && !is_in_memory());
        }
        device.read_at(LEN, &mut bytes).unwrap();
        device.read_at(LEN, &mut bytes).unwrap();
        device.truncate(LEN).unwrap();
        assert!(!device.is_in_memory(LEN));
    }

    #[test]
    fn a_host_without_direct_requests_is_served_through_the_page_cache() {
        let (_directory, storage) = storage();
        storage.create_segment(SegmentIndex(0)).unwrap();
        let name = segment_name(SegmentIndex(0));
        let device = FileDevice::open(&storage.database, &name).unwrap();
        device.refuses_direct.store(true, Ordering::Relaxed);
        let mut bytes = AlignedBuf::zeroed(1 << 20);
        bytes
            .iter_mut()
            .zip(0u32..)
            .for_each(|(byte, i)| *byte = (i % 251) as u8);
        device
            .write_vectored_at(0, &[IoSlice::new(&bytes)])
            .unwrap();
        let mut found = vec![0; bytes.len()];
        device.read_at(0, &mut found).unwrap();
        assert!(found[..] == bytes[..]);
        assert_eq!(device.requests_in_flight_max(), 1);
    }
}
