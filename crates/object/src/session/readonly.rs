//! A database that this process cannot write: on a read-only medium, or somebody else's. Or one
//! whose catalog nobody can write now, since a process that was stopped has its write lock.
//!
//! SQLite needs to write for reading: shared memory beside the log. So the catalog and its log are
//! copied to a place of one's own, where the session lives; content is read where it lies. Nothing
//! is written beside the database, and a log that nobody has copied into the catalog counts. So do
//! readers where the host has not a block left for that shared memory.
//!
//! # Invariants
//! * `READONLY-1` Not a byte of the database's directory is written. *Guard*: the engine's
//!   directory is the copy, its segments are open for reading, and nothing that changes something
//!   begins ([`Engine::require_writable`]).
//! * `READONLY-2` What is shown is one moment, that of the copy, or an error. Its owner does not
//!   know of who reads here, and may reclaim what is read. *Guard*: before it writes over anything
//!   it commits to its log; that is looked at behind each read of content, and if it has a commit
//!   that the copy has not, the read fails.
//! * `READONLY-3` A stranger's database leads nowhere else, and does not fill the place of the
//!   copy. *Guard*: its files are reached by the crate `larder-directory`; of a file no more is
//!   copied than it had when it was looked at, holes stay holes, and what does not fit is not
//!   begun. The copy is the caller's alone, and code in it stays its owner's ([`Trust::CopyOf`]).
//! * `READONLY-4` Who reads beside others that write, or that have the catalog's write lock and do
//!   not go on, sees all that was committed before, and nothing that is half done. *Guard*: below.
//!
//! # Why a copy is of one moment
//! The catalog's file is written by checkpoints only, which copy pages of commits that are in the
//! log. The catalog is copied first and the log behind it. While the log is not begun anew, its
//! commits stay where they are, so each page that a checkpoint wrote meanwhile, or was writing, is
//! in the copied log, and goes for the one that was copied from the catalog. Every other page is as
//! it was when the log began. So catalog and log together are the state of the last commit that the
//! copied log has whole, whoever wrote what meanwhile; what follows that commit is cut off. Each
//! log begins with salts of its own in its header: where the file that has the log's name has the
//! same header before the first byte was copied and behind the last, it was not begun anew.
//!
//! A log without a header has nothing of that. Then nobody may have written at all. Whoever writes
//! the catalog's file has given the log a header before, and takes it away afterwards: so a write
//! that began and ended in between has given the file a new time, if only the clock of files went
//! on since the last one. It is waited for that it has ([`settles_in`]).
//!
//! Commits are told by the log alone, not by lengths and times of files: a log that is begun anew
//! keeps its length, and many commits have one time.

use crate::host::system_clock;
use crate::session::copy_place::CopyPlace;
use crate::{Error, ErrorKind, Result, error::io_error};
use larder_catalog::{CATALOG_FILE, LogEnd, Trust, require_sound_log};
use larder_segment::directory::{Access, DatabaseDir, Kind, Status};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The catalog's log, and the mark beside that.
const LOG: &str = "-wal";
const LOG_MARK: &str = "-wal-shared";
/// A copy is tried so often while somebody writes.
const TRIES: usize = 50;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;
/// The system's clock of files stands still for no longer than this.
const TICK: Duration = Duration::from_millis(20);
/// Nor where a filesystem keeps whole seconds, or every other one.
const COARSE_TICK: Duration = Duration::from_millis(2020);

/// The copy of a catalog, and what it is of. Removed when it is dropped.
#[derive(Debug)]
pub struct Readonly {
    database: DatabaseDir,
    place: CopyPlace,
    /// It could be written, if others let it.
    is_beside: bool,
    copied: Copied,
}

/// What the files were when they were copied.
#[derive(Debug)]
struct Copied {
    catalog: Status,
    log: CopiedLog,
}

#[derive(Debug)]
enum CopiedLog {
    /// It had no commit, or was not there.
    Empty(Option<Status>),
    /// Open, so that no other file gets its number.
    Begun(File, LogEnd),
}

impl Readonly {
    /// The database that is shown.
    pub(crate) fn database(&self) -> &DatabaseDir {
        &self.database
    }

    /// Copies the catalog of a database if it is there and cannot be written; `None`: it can. Cost:
    /// as long as copying the catalog takes, and its size in the directory for temporary files.
    pub(crate) fn find(database: &DatabaseDir) -> Result<Option<Readonly>> {
        let path = database.path();
        let look = |error| io_error(format!("cannot look at {}", path.display()), error);
        // What is no regular file is refused when it is opened.
        let is_there = database.kind(CATALOG_FILE).map_err(look)? == Some(Kind::File);
        if !is_there
            || (database.is_writable("").map_err(look)?
                && database.is_writable(CATALOG_FILE).map_err(look)?)
        {
            return Ok(None);
        }
        Readonly::copy(database, false).map(Some)
    }

    /// Copies the catalog of a database beside somebody who keeps everybody from writing it, or
    /// where no block is left to write. Cost as of [`Readonly::find`].
    pub(crate) fn beside(database: &DatabaseDir) -> Result<Readonly> {
        Readonly::copy(database, true)
    }

    fn copy(database: &DatabaseDir, is_beside: bool) -> Result<Readonly> {
        Readonly::copy_with(database, is_beside, &mut || {})
    }

    /// `between`: the catalog was copied, and its log was not.
    fn copy_with(
        database: &DatabaseDir,
        is_beside: bool,
        between: &mut dyn FnMut(),
    ) -> Result<Readonly> {
        let path = database.path();
        let directory = std::env::temp_dir();
        let cannot = |error| {
            let what = format!(
                "{} cannot be written now, and its catalog cannot be copied to {} for reading \
                 (TMPDIR names another place)",
                path.display(),
                directory.display()
            );
            io_error(what, error)
        };
        let place = CopyPlace::make_in(&directory).map_err(cannot)?;
        let mut damage: Option<String> = None;
        for _ in 0..TRIES {
            let tried = place.copy_from(database, between).map_err(cannot)?;
            let rest = match tried {
                Tried::Settles(rest) => rest,
                Tried::Changed => TRY_PAUSE,
                Tried::Copied(copied) => {
                    // A log that was read while it was written may look as if it were damaged; but
                    // not twice in the same way.
                    match require_sound_log(place.directory(), CATALOG_FILE, database) {
                        Ok(()) => {
                            place.cut_log(&copied).map_err(cannot)?;
                            return Ok(Readonly {
                                database: database.clone(),
                                place,
                                is_beside,
                                copied,
                            });
                        }
                        Err(error)
                            if damage.replace(error.to_string()) == Some(error.to_string()) =>
                        {
                            return Err(error.into());
                        }
                        Err(_) => TRY_PAUSE,
                    }
                }
            };
            std::thread::sleep(rest);
        }
        Err(changed(database, is_beside))
    }

    /// Where the copy is.
    pub(crate) fn directory(&self) -> &DatabaseDir {
        self.place.directory()
    }

    /// Whom an open of the copy trusts, where one of the database trusts `trust`.
    pub(crate) fn trust(&self, trust: Trust) -> Trust {
        match trust {
            Trust::Owner => Trust::CopyOf(self.copied.catalog.uid),
            trust => trust,
        }
    }

    /// `READONLY-2`. 2 µs.
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        match self.is_unchanged() {
            Ok(true) => Ok(()),
            Ok(false) => Err(changed(&self.database, self.is_beside)),
            Err(error) => Err(io_error(
                format!(
                    "cannot look at the catalog of {}",
                    self.database.path().display()
                ),
                error,
            )),
        }
    }

    /// For who would change something.
    pub(crate) fn why_nothing_is_changed(&self) -> String {
        let path = self.database.path().display();
        match self.is_beside {
            true => format!(
                "{path} can only be read while another process keeps its catalog locked; try again \
                 when that goes on"
            ),
            false => format!(
                "{path} is read-only for this process; make the directory and its files writable, \
                 or work on a copy"
            ),
        }
    }

    fn is_unchanged(&self) -> io::Result<bool> {
        let log_now = status(&self.database, LOG)?;
        match &self.copied.log {
            CopiedLog::Empty(log) => {
                Ok(log_now == *log && status(&self.database, "")? == Some(self.copied.catalog))
            }
            CopiedLog::Begun(log, end) => Ok(is_at(log, log_now)? && end.is_of(log)?),
        }
    }
}

fn changed(database: &DatabaseDir, is_beside: bool) -> Error {
    let remedy = match is_beside {
        true => "",
        false => ", or let the owner's session read",
    };
    Error::new(
        ErrorKind::Stopped,
        format!(
            "{} is changed by somebody while it is read here, where it cannot be written; run the \
             command again{remedy}",
            database.path().display()
        ),
    )
}

/// Of the catalog's file with this suffix.
fn status(database: &DatabaseDir, suffix: &str) -> io::Result<Option<Status>> {
    database.status(format!("{CATALOG_FILE}{suffix}"))
}

/// Whether an open file still has the name that `now` is of.
fn is_at(file: &File, now: Option<Status>) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    Ok(now.is_some_and(|now| now.identity == (stat.st_dev, stat.st_ino)))
}

/// How long from `now_ns` on, which is no later than the look at it, a file has to be left alone
/// until each change of it shows in its time; `None`: it has been. A time to come is one that no
/// change gives it.
fn settles_in(file: &Status, now_ns: i64) -> Option<Duration> {
    let (seconds, nanoseconds) = file.modified;
    let tick = match nanoseconds {
        0 => COARSE_TICK,
        _ => TICK,
    };
    let modified_ns = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let ago_ns = i128::from(now_ns) - modified_ns;
    let left_ns = tick.as_nanos() as i128 - ago_ns;
    (ago_ns >= 0 && left_ns > 0).then(|| Duration::from_nanos(left_ns as u64))
}

/// How a copy went.
enum Tried {
    Copied(Copied),
    /// Somebody wrote.
    Changed,
    /// Somebody wrote just now; so long until more would show.
    Settles(Duration),
}

impl CopyPlace {
    /// Copies a catalog and its log, of one moment (`READONLY-4`).
    fn copy_from(&self, database: &DatabaseDir, between: &mut dyn FnMut()) -> io::Result<Tried> {
        let name = format!("{CATALOG_FILE}{LOG}");
        // In this order: what is written from here on shows in what follows.
        let now_ns = system_clock();
        let log_then = status(database, LOG)?;
        let mark = format!("{CATALOG_FILE}{LOG_MARK}");
        let log = find_file(database, &name)?;
        let head = log.as_ref().map(LogEnd::head).transpose()?.flatten();
        let from = database.open_file(CATALOG_FILE, Access::Read);
        let from = from.map_err(|error| named(database, CATALOG_FILE, error))?;
        let Some(catalog) = status(database, "")? else {
            return Ok(Tried::Changed);
        };
        if head.is_none()
            && let Some(rest) = [Some(catalog), log_then]
                .iter()
                .flatten()
                .find_map(|file| settles_in(file, now_ns))
        {
            return Ok(Tried::Settles(rest));
        }
        self.copy_file(&from, CATALOG_FILE, catalog.bytes)?;
        between();
        let Some((log, head)) = log.zip(head) else {
            self.directory().remove_file(&name)?;
            find_file(database, &mark)?; // It means nothing, and is refused like the others.
            let is_same = status(database, LOG)? == log_then;
            return Ok(match is_same && status(database, "")? == Some(catalog) {
                true => Tried::Copied(Copied {
                    catalog,
                    log: CopiedLog::Empty(log_then),
                }),
                false => Tried::Changed,
            });
        };
        let ours = self.copy_file(&log, &name, log.metadata()?.len())?;
        match find_file(database, &mark)? {
            None => self.directory().remove_file(&mark)?,
            Some(from) => {
                self.copy_file(&from, &mark, from.metadata()?.len())?;
            }
        }
        let is_same = is_at(&log, status(database, LOG)?)? && LogEnd::head(&log)? == Some(head);
        Ok(match LogEnd::find(&ours)?.filter(|_| is_same) {
            Some(end) => Tried::Copied(Copied {
                catalog,
                log: CopiedLog::Begun(log, end),
            }),
            None => Tried::Changed,
        })
    }

    /// Leaves nothing behind the last commit of the copied log.
    fn cut_log(&self, copied: &Copied) -> io::Result<()> {
        match &copied.log {
            CopiedLog::Empty(_) => Ok(()),
            CopiedLog::Begun(_, end) => {
                let name = format!("{CATALOG_FILE}{LOG}");
                let log = self.directory().open_file(name, Access::ReadWrite)?;
                log.set_len(end.offset())
            }
        }
    }

    fn copy_file(&self, from: &File, name: &str, bytes: u64) -> io::Result<File> {
        let to = self.directory().open_file(name, Access::Make)?;
        copy_data(from, &to, bytes)?;
        Ok(to)
    }
}

/// A file of the database's, if it is there.
fn find_file(database: &DatabaseDir, name: &str) -> io::Result<Option<File>> {
    match database.open_file(name, Access::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened
            .map(Some)
            .map_err(|error| named(database, name, error)),
    }
}

/// An error that names the file.
fn named(database: &DatabaseDir, name: &str, error: io::Error) -> io::Error {
    let path = database.join(name);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes `to` the first `bytes` of `from`; holes stay holes, and what does not fit is not begun
/// (`READONLY-3`).
fn copy_data(from: &File, to: &File, bytes: u64) -> io::Result<()> {
    to.set_len(0)?;
    to.set_len(bytes)?;
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < bytes {
        // Where the filesystem knows of no holes, all is data.
        let begin = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            found => found?,
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(begin)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => bytes,
            Err(Errno::NXIO) => break, // It is shorter now.
            found => found?.min(bytes),
        };
        if begin >= end {
            break;
        }
        let free = rustix::fs::fstatvfs(to)?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        if end - begin > free {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "{} bytes are to be copied, and {free} are free",
                    end - begin
                ),
            ));
        }
        at = begin;
        while at < end {
            buffer.resize(COPY_BYTES.min(end - at) as usize, 0);
            match from.read_at(&mut buffer, at)? {
                0 => return Ok(()), // It is shorter now.
                read => {
                    to.write_all_at(&buffer[..read], at)?;
                    at += read as u64;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_catalog::{Catalog, CatalogOptions, CheckpointKind, DatabaseInit};
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn create(directory: &DatabaseDir) -> Catalog {
        let init = DatabaseInit {
            database_id: [7; 16],
            capacity_bytes: 0,
            retention_ns: 0,
            now_ns: 1,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
        };
        Catalog::create_in(directory, &CatalogOptions::default(), &init).unwrap()
    }

    /// A commit that changes pages far from each other: the sessions are numbered.
    fn commit(catalog: &Catalog) -> u64 {
        let label = "x".repeat(1000);
        catalog.sessions().begin((1, 0), &label, 1).unwrap().0.0
    }

    fn checkpoint(catalog: &Catalog) {
        let done = catalog
            .log()
            .unwrap()
            .checkpoint(CheckpointKind::Passive)
            .unwrap();
        assert!(done.is_complete);
    }

    /// The newest commit of a copy, which is whole.
    fn newest(copy: &Readonly) -> u64 {
        let directory = copy.directory().path().to_owned();
        let catalog = Catalog::open(&directory, &CatalogOptions::default()).unwrap();
        assert_eq!(catalog.survey().check().unwrap(), [""; 0], "READONLY-4");
        let numbers: Vec<u64> = (catalog.sessions().rows().unwrap().iter())
            .map(|row| row.session.0)
            .collect();
        let all: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, all, "READONLY-4");
        numbers.len() as u64
    }

    /// The catalog's files, whose clock can stand still, as between two ticks. It is to be dropped
    /// after the writer, who lives in this process: a close gives up that one's locks.
    struct Clock([File; 2]);

    impl Clock {
        fn of(directory: &DatabaseDir) -> Clock {
            Clock(["", LOG].map(|suffix| {
                let file = directory.join(format!("{CATALOG_FILE}{suffix}"));
                File::options().append(true).open(file).unwrap()
            }))
        }

        fn stands_while(&self, work: impl FnOnce()) {
            let modified = |file: &File| file.metadata().unwrap().modified().unwrap();
            let then = self.0.each_ref().map(modified);
            work();
            for (file, then) in self.0.iter().zip(then) {
                let times = std::fs::FileTimes::new().set_modified(then);
                file.set_times(times).unwrap();
            }
        }
    }

    /// Says so, whatever happens.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// A catalog with a log, and its clock.
    fn create_with_clock(directory: &DatabaseDir) -> (Catalog, Clock) {
        let catalog = create(directory);
        commit(&catalog);
        (catalog, Clock::of(directory))
    }

    /// Neither times nor lengths tell of it: between the copy of the catalog and that of its log
    /// the log is copied into the catalog, and begun anew.
    #[test]
    fn commits_within_one_tick_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let (catalog, clock) = create_with_clock(&database);
        for _ in 1..40 {
            commit(&catalog);
        }
        checkpoint(&catalog);
        commit(&catalog);
        let mut rounds = 0;
        let copy = Readonly::copy_with(&database, true, &mut || {
            rounds += 1;
            if rounds == 1 {
                clock.stands_while(|| {
                    for _ in 0..9 {
                        commit(&catalog);
                    }
                    checkpoint(&catalog);
                    commit(&catalog);
                });
            }
        });
        let copy = copy.unwrap();
        assert_eq!((newest(&copy), rounds), (51, 2), "READONLY-4");
        copy.require_unchanged().unwrap();
        checkpoint(&catalog);
        copy.require_unchanged().unwrap();
        clock.stands_while(|| {
            commit(&catalog);
        });
        let refused = copy.require_unchanged().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stopped, "READONLY-2");
    }

    /// A commit in the log as it goes on; and in one that has none.
    #[test]
    fn content_is_refused_behind_each_commit() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let (catalog, clock) = create_with_clock(&database);
        catalog
            .log()
            .unwrap()
            .checkpoint(CheckpointKind::Truncate)
            .unwrap();
        for round in 0..3 {
            let copy = Readonly::beside(&database).unwrap();
            copy.require_unchanged().unwrap();
            clock.stands_while(|| {
                commit(&catalog);
            });
            let refused = copy.require_unchanged().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Stopped, "READONLY-2: {round}");
            if round > 0 {
                catalog
                    .log()
                    .unwrap()
                    .checkpoint(CheckpointKind::Truncate)
                    .unwrap();
            }
        }
        // The clock goes on, and the log has come and gone when somebody looks again.
        let copy = Readonly::beside(&database).unwrap();
        assert!(matches!(copy.copied.log, CopiedLog::Empty(Some(_))));
        commit(&catalog);
        catalog
            .log()
            .unwrap()
            .checkpoint(CheckpointKind::Truncate)
            .unwrap();
        let refused = copy.require_unchanged().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stopped, "READONLY-2");
    }

    #[test]
    fn a_copy_beside_a_busy_writer_is_of_one_moment() {
        const COPIES: usize = 60;
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let (catalog, clock) = create_with_clock(&database);
        let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(commit(&catalog)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    clock.stands_while(|| {
                        let number = commit(&catalog);
                        done.store(number, Ordering::SeqCst);
                        if number.is_multiple_of(5) {
                            catalog
                                .log()
                                .unwrap()
                                .checkpoint(CheckpointKind::Passive)
                                .unwrap();
                        }
                    });
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let _over = Over(&is_over);
            let (mut last, mut pause_us) = (0, 0);
            for _ in 0..COPIES {
                let before = done.load(Ordering::SeqCst);
                let copy = Readonly::copy_with(&database, true, &mut || {
                    std::thread::sleep(Duration::from_micros(pause_us));
                });
                let after = done.load(Ordering::SeqCst);
                let copy = match copy {
                    Ok(copy) => copy,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Stopped, "READONLY-4: {error}");
                        pause_us = 0; // The log began anew each time.
                        continue;
                    }
                };
                let found = newest(&copy);
                assert!(before <= found && found <= after + 1, "READONLY-4: {found}");
                last = found.max(last);
                pause_us = (pause_us + 100) % 3000;
            }
            assert!(last > 0, "READONLY-4");
        });
    }

    #[test]
    fn holes_stay_holes_and_what_came_later_is_left() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let far = 1 << 40;
        from.write_all_at(b"one", 0).unwrap();
        from.write_all_at(b"two", far).unwrap();
        from.write_all_at(b"later", far + 3).unwrap();
        to.write_all_at(&[1; 9000], 0).unwrap();
        copy_data(&from, &to, far + 3).unwrap();
        let found = to.metadata().unwrap();
        assert_eq!(found.len(), far + 3, "READONLY-3");
        assert!(found.blocks() < 4096, "READONLY-3: {}", found.blocks());
        let mut read = [0; 3];
        to.read_exact_at(&mut read, far).unwrap();
        assert_eq!(&read, b"two");
        to.read_exact_at(&mut read, 8000).unwrap();
        assert_eq!(read, [0; 3]);
    }
}
