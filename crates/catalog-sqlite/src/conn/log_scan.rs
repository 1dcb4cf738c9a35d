//! Whether a log has lost commits that were acknowledged, before SQLite recovers it.
//!
//! SQLite takes a log's frames up to the first one that does not fit and forgets all behind it.
//! That is right for a crash, which tears the end of what was not flushed yet. Where a byte was
//! damaged later, acknowledged commits lie behind the bad frame, and SQLite would drop them without
//! a word; and if some of them were copied into the catalog by then, the older pages of the log
//! would come to lie over the newer ones. So the log is read before SQLite does, and the recovery
//! is refused.
//!
//! # What proves it
//! The checksum of a frame continues that of the frame before it, so behind a bad frame the chain
//! is taken up again at what the next frame says. A transaction whose frames continue each other,
//! and the commit frame right before it, is *whole*. Each commit is flushed before the next one is
//! written, so a whole transaction behind the one of the bad frame proves that the bad one was
//! durable. The last commit alone proves nothing: it may never have been.
//!
//! # Invariants
//! * `SCAN-1` What a crash leaves is no finding. *Guard*: frames of an older log have other salts;
//!   of frames with the same salts, the rest of a torn transaction is not whole; where commits left
//!   out their flush (`LOG-5`), as many whole transactions prove nothing as may have been left out
//!   at a time.
//! * `SCAN-2` It changes nothing, and needs memory for one frame, and for each page that is lost.
//! * `SCAN-3` It reads regular files of the log's own directory only, and ends: holes are passed
//!   over. *Guard*: all is opened by the crate `larder-directory`.
//!
//! The format is that of <https://www.sqlite.org/fileformat2.html#walformat>.

mod end;

pub use end::LogEnd;

use crate::error::{CatalogError, Result};
use larder_directory::{Access, DatabaseDir};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// So many commits may leave their flush to one that follows.
pub const UNFLUSHED_COMMITS_MAX: u64 = 64;
/// Behind the catalog's name: the salts of the log in which commits have left out their flush
/// (`LOG-5`).
pub(crate) const SHARED_FLUSH_SUFFIX: &str = "-shared";

/// Bytes of the log's header.
const HEAD_BYTES: usize = 32;
/// Bytes of a frame's header.
const FRAME_HEAD_BYTES: usize = 24;
/// The log's first four bytes, without the lowest bit, which says that checksums are of big-endian
/// words.
const MAGIC: u32 = 0x377f_0682;
const PAGE_BYTES_MIN: usize = 512;
const PAGE_BYTES_MAX: usize = 65_536;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// So many pages are named.
const NAMED_PAGES_MAX: usize = 8;

type Sum = (u32, u32);

/// What is wrong with a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogDamage {
    /// The log.
    path: PathBuf,
    /// The first frame that does not fit, from 1; 0: the log's header.
    bad_frame: u64,
    /// Where it begins, bytes.
    offset: u64,
    /// Up to where whole commits reach, bytes.
    keep_bytes: u64,
    /// Whole transactions behind the one of the bad frame.
    commits: u64,
    /// The frames of these.
    frames: (u64, u64),
    /// The pages that they change.
    pages: Vec<u32>,
    copied: Copied,
}

/// What of the lost transactions was copied into the catalog before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Nothing,
    Some,
    All,
}

/// The log's header, and what frames are compared with.
#[derive(Clone, Copy)]
struct Head {
    page_bytes: usize,
    is_big_endian: bool,
    salts: [u8; 8],
    sum: Sum,
}

/// One frame: its header, and its page.
struct Frame<'b> {
    bytes: &'b [u8],
}

/// Transactions behind the bad frame that continue each other.
#[derive(Default)]
struct Run {
    commits: u64,
    frames: (u64, u64),
    /// The last frame of each page.
    pages: BTreeMap<u32, u64>,
}

/// A log by its name, in its directory.
struct Log {
    directory: DatabaseDir,
    name: OsString,
    /// For messages.
    shown: PathBuf,
}

/// Refuses the file `catalog` in `directory` if its log has lost acknowledged commits, or cannot be
/// read. It is a copy of that in `of`, which is named.
pub fn require_sound_log(directory: &DatabaseDir, catalog: &str, of: &DatabaseDir) -> Result<()> {
    let name = format!("{catalog}-wal");
    let log = Log {
        directory: directory.clone(),
        shown: of.join(&name),
        name: name.into(),
    };
    match tell(log.scan(), &log.shown) {
        None => Ok(()),
        Some(what) => Err(CatalogError::LogDamaged { what }),
    }
}

/// Why a log must not be recovered, if it must not. SQLite's path of it leads through a descriptor,
/// or was resolved.
pub(crate) fn why_refused(log: &Path) -> Option<String> {
    tell(scan(log), &shown(log))
}

/// The path of a log for people: where a descriptor leads that SQLite was given the path of.
fn shown(log: &Path) -> PathBuf {
    let parent = log.parent().unwrap_or(log);
    match (
        parent.starts_with("/proc/self/fd"),
        std::fs::read_link(parent),
    ) {
        (true, Ok(directory)) => directory.join(log.file_name().unwrap_or_default()),
        _ => log.to_owned(),
    }
}

fn tell(scanned: io::Result<Option<LogDamage>>, log: &Path) -> Option<String> {
    match scanned {
        Ok(damage) => damage.map(|damage| damage.tell()),
        Err(error) => Some(format!(
            "the log {} cannot be read ({error}); nothing was changed; mend the device, or \
             restore the database from a copy",
            log.display()
        )),
    }
}

/// Reads a log that nobody writes; `None`: SQLite's recovery loses nothing of it that was
/// acknowledged. Cost: the log is read once. A log that is not there, or empty, costs nothing.
pub(crate) fn scan(path: &Path) -> io::Result<Option<LogDamage>> {
    let directory = match DatabaseDir::open(path.parent().unwrap_or(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let log = Log {
        directory,
        name: path.file_name().unwrap_or_default().to_owned(),
        shown: shown(path),
    };
    log.scan()
}

impl Log {
    /// `None`: there is none.
    fn open(&self, name: &OsStr) -> io::Result<Option<File>> {
        match self.directory.open_file(name, Access::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("{}: {error}", name.display()),
            )),
            Ok(file) => Ok(Some(file)),
        }
    }

    fn scan(&self) -> io::Result<Option<LogDamage>> {
        match self.open(&self.name)? {
            None => Ok(None),
            Some(log) => self.scan_open(&log),
        }
    }

    fn scan_open(&self, log: &File) -> io::Result<Option<LogDamage>> {
        let len_bytes = log.metadata()?.len();
        let mut raw = [0; HEAD_BYTES];
        if len_bytes <= HEAD_BYTES as u64 {
            return Ok(None);
        }
        log.read_exact_at(&mut raw, 0)?;
        let damage = match Head::decode(&raw) {
            Some(head) => scan_frames(&self.shown, log, &head)?,
            None => scan_headless(&self.shown, log, &raw)?,
        };
        let Some((mut damage, head, run)) = damage else {
            return Ok(None);
        };
        let needed = match self.is_marked(&head)? && damage.bad_frame > 0 {
            true => UNFLUSHED_COMMITS_MAX + 1,
            false => 1,
        };
        if run.commits < needed {
            return Ok(None); // SCAN-1
        }
        damage.copied = self.compare_catalog(log, &head, &run)?;
        Ok(Some(damage))
    }

    /// Whether commits may have left out their flush in this log (`LOG-5`).
    fn is_marked(&self, head: &Head) -> io::Result<bool> {
        let mut name = self.name.clone();
        name.push(SHARED_FLUSH_SUFFIX);
        let Some(mark) = self.open(&name)? else {
            return Ok(false);
        };
        let mut salts = Vec::new();
        mark.take(head.salts.len() as u64 + 1)
            .read_to_end(&mut salts)?;
        Ok(salts == head.salts)
    }

    /// Whether the lost pages are in the catalog as the log has them.
    fn compare_catalog(&self, log: &File, head: &Head, run: &Run) -> io::Result<Copied> {
        let Some(name) = self.name.as_bytes().strip_suffix(b"-wal") else {
            return Ok(Copied::Nothing);
        };
        let Some(catalog) = self.open(OsStr::from_bytes(name))? else {
            return Ok(Copied::Nothing);
        };
        let (mut ours, mut theirs) = (vec![0; head.page_bytes], vec![0; head.page_bytes]);
        let mut same = 0;
        for (&page, &frame) in &run.pages {
            let at = HEAD_BYTES as u64 + (frame - 1) * head.frame_bytes() as u64;
            log.read_exact_at(&mut ours, at + FRAME_HEAD_BYTES as u64)?;
            let offset = u64::from(page - 1) * head.page_bytes as u64;
            same += usize::from(match catalog.read_exact_at(&mut theirs, offset) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
                read => read.map(|()| ours == theirs)?,
            });
        }
        // To close it would give up the locks that SQLite has on the file in this process. Once per
        // damaged log.
        std::mem::forget(catalog);
        Ok(match same {
            0 => Copied::Nothing,
            all if all == run.pages.len() => Copied::All,
            _ => Copied::Some,
        })
    }
}

/// Reads the frames: those that SQLite takes, and those behind.
fn scan_frames(path: &Path, log: &File, head: &Head) -> io::Result<Option<(LogDamage, Head, Run)>> {
    let mut frames = Frames::new(log, head)?;
    let mut chain = head.sum;
    let (mut number, mut committed) = (0, 0);
    let bad = loop {
        let Some(frame) = frames.next()? else {
            return Ok(None);
        };
        number += 1;
        if !frame.fits(head, chain) {
            // All but the salts and the sum of it may be as it was written.
            let as_it_is = frame.sum_after(head, chain);
            break Behind {
                said: frame.said(),
                as_it_is: Some(as_it_is),
                is_commit: frame.is_commit() && frame.has_salts(head),
                would_commit: frame.is_commit(),
            };
        }
        chain = frame.said();
        if frame.is_commit() {
            committed = number;
        }
    };
    let bad_frame = number;
    let Some(run) = find_whole(head, frames, bad_frame, bad)? else {
        return Ok(None);
    };
    let offset_of = |frames: u64| HEAD_BYTES as u64 + frames * head.frame_bytes() as u64;
    let keep_bytes = match committed {
        0 => 0,
        frames => offset_of(frames),
    };
    let damage = LogDamage::of(
        path,
        (bad_frame, offset_of(bad_frame - 1)),
        keep_bytes,
        &run,
    );
    Ok(Some((damage, *head, run)))
}

/// The log's header is no header: SQLite would take the log for empty. It was flushed before the
/// frames were written, so whole transactions prove that it was damaged since.
fn scan_headless(
    path: &Path,
    log: &File,
    raw: &[u8; HEAD_BYTES],
) -> io::Result<Option<(LogDamage, Head, Run)>> {
    let mut salts = [0; 8];
    let mut at = [0; FRAME_HEAD_BYTES];
    if log.read_at(&mut at, HEAD_BYTES as u64)? < at.len() {
        return Ok(None);
    }
    salts.copy_from_slice(&at[8..16]);
    for is_big_endian in [false, true] {
        let computed = checksum(is_big_endian, (0, 0), &raw[..24]);
        for sum in [sum_at(raw, 24), computed] {
            let mut page_bytes = PAGE_BYTES_MIN;
            while page_bytes <= PAGE_BYTES_MAX {
                let head = Head {
                    page_bytes,
                    is_big_endian,
                    salts,
                    sum,
                };
                let start = Behind {
                    said: sum,
                    as_it_is: None,
                    is_commit: true,
                    would_commit: true,
                };
                let is_first = Frames::new(log, &head)?
                    .next()?
                    .is_some_and(|frame| frame.fits(&head, sum));
                if is_first
                    && let Some(run) = find_whole(&head, Frames::new(log, &head)?, 0, start)?
                {
                    let damage = LogDamage::of(path, (0, 0), 0, &run);
                    return Ok(Some((damage, head, run)));
                }
                page_bytes *= 2;
            }
        }
    }
    Ok(None)
}

/// What is known of the frame before one.
struct Behind {
    /// The sum that it says it has.
    said: Sum,
    /// The sum that it has, where the chain reaches it.
    as_it_is: Option<Sum>,
    /// A transaction ends with it.
    is_commit: bool,
    /// The same, whatever its salts say.
    would_commit: bool,
}

/// The longest run of whole transactions behind frame `number`.
fn find_whole(
    head: &Head,
    mut frames: Frames<'_>,
    mut number: u64,
    mut before: Behind,
) -> io::Result<Option<Run>> {
    let (mut best, mut run) = (Run::default(), Run::default());
    // The frames of a transaction that has not ended, and whether it is known where it began.
    let mut pending: Vec<(u32, u64)> = Vec::new();
    let mut began = before.is_commit;
    while let Some(frame) = frames.next()? {
        number += 1;
        let is_ours = frame.has_salts(head) && frame.page() != 0;
        let follows = |sum: Sum| is_ours && frame.sum_after(head, sum) == frame.said();
        // The bad frame itself is as it was written but for what no sum covers.
        let is_sound = before.as_it_is.is_some_and(follows);
        began |= is_sound && before.would_commit;
        let continues = is_sound || follows(before.said);
        let is_commit = frame.has_salts(head) && frame.is_commit();
        let is_empty = frame.page() == 0;
        if continues {
            if began {
                pending.push((frame.page(), number));
            }
            if is_commit {
                if began {
                    let first = pending.first().map_or(number, |&(_, first)| first);
                    if run.commits == 0 {
                        run.frames.0 = first;
                    }
                    run.commits += 1;
                    run.frames.1 = number;
                    run.pages.extend(pending.drain(..));
                }
                began = true;
            }
        } else {
            if run.commits > best.commits {
                best = std::mem::take(&mut run);
            }
            run = Run::default();
            pending.clear();
            began = is_commit;
        }
        before = Behind {
            said: frame.said(),
            as_it_is: None,
            is_commit,
            would_commit: is_commit,
        };
        if is_empty {
            number += frames.skip_hole()?; // SCAN-3: after one empty frame many say nothing more.
        }
    }
    if run.commits > best.commits {
        best = run;
    }
    Ok((best.commits > 0).then_some(best))
}

impl LogDamage {
    fn of(path: &Path, (bad_frame, offset): (u64, u64), keep_bytes: u64, run: &Run) -> LogDamage {
        LogDamage {
            path: path.to_owned(),
            bad_frame,
            offset,
            keep_bytes,
            commits: run.commits,
            frames: run.frames,
            pages: run.pages.keys().copied().collect(),
            copied: Copied::Nothing,
        }
    }

    /// One line: what is damaged, what would be lost, and what can be done.
    pub fn tell(&self) -> String {
        let log = self.path.display();
        let what = match self.bad_frame {
            0 => "its header is damaged; SQLite would drop".to_owned(),
            frame => format!(
                "frame {frame}, at byte {}, is damaged; SQLite would drop its commit and",
                self.offset
            ),
        };
        let (first, last) = self.frames;
        let named: Vec<String> = (self.pages.iter().take(NAMED_PAGES_MAX))
            .map(u32::to_string)
            .collect();
        let more = match self.pages.len().saturating_sub(named.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let lost = format!(
            "{} acknowledged {} behind it (frames {first} to {last}; pages {}{more})",
            self.commits,
            if self.commits == 1 {
                "commit"
            } else {
                "commits"
            },
            named.join(", "),
        );
        format!(
            "the log {log} has lost what was durable: {what} {lost}; nothing was changed; restore \
             the database from a \
             copy{}",
            self.remedy()
        )
    }

    fn remedy(&self) -> String {
        let directory = self.path.parent().unwrap_or(Path::new(".")).display();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let cut = |bytes: u64| {
            format!(
                "cp -a {directory} {directory}.copy && truncate -s {bytes} \
                 {directory}.copy/{name} && larder check --read \
                 {directory}.copy"
            )
        };
        match self.copied {
            Copied::Nothing => format!(
                ", or give these commits up in a copy of the directory: {}",
                cut(self.keep_bytes)
            ),
            Copied::All => format!(
                "; all of these pages were copied into the catalog before, so a copy of the \
                 directory without the log may \
                 be complete: {}",
                cut(0)
            ),
            Copied::Some => {
                " (some of these pages were copied into the catalog before: neither with nor \
                 without the log is it of \
                 one moment)"
                    .to_owned()
            }
        }
    }
}

impl Head {
    /// `None`: SQLite would take no frame behind it.
    fn decode(raw: &[u8; HEAD_BYTES]) -> Option<Head> {
        let magic = word(raw, 0);
        let is_big_endian = magic & 1 == 1;
        let page_bytes = word(raw, 8) as usize;
        let sum = checksum(is_big_endian, (0, 0), &raw[..24]);
        let is_sound = magic & !1 == MAGIC
            && page_bytes.is_power_of_two()
            && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes)
            && sum == sum_at(raw, 24);
        let mut salts = [0; 8];
        salts.copy_from_slice(&raw[16..24]);
        is_sound.then_some(Head {
            page_bytes,
            is_big_endian,
            salts,
            sum,
        })
    }

    fn frame_bytes(&self) -> usize {
        FRAME_HEAD_BYTES + self.page_bytes
    }
}

impl Frame<'_> {
    fn page(&self) -> u32 {
        word(self.bytes, 0)
    }

    /// It is the last one of a transaction.
    fn is_commit(&self) -> bool {
        word(self.bytes, 4) != 0
    }

    fn has_salts(&self, head: &Head) -> bool {
        self.bytes[8..16] == head.salts
    }

    /// The sum that it says it has.
    fn said(&self) -> Sum {
        sum_at(self.bytes, 16)
    }

    /// The sum that it has behind a frame with the sum `before`.
    fn sum_after(&self, head: &Head, before: Sum) -> Sum {
        let after_head = checksum(head.is_big_endian, before, &self.bytes[..8]);
        checksum(
            head.is_big_endian,
            after_head,
            &self.bytes[FRAME_HEAD_BYTES..],
        )
    }

    /// SQLite takes it, behind a frame with the sum `before`.
    fn fits(&self, head: &Head, before: Sum) -> bool {
        self.has_salts(head) && self.page() != 0 && self.sum_after(head, before) == self.said()
    }
}

/// The frames of a log, in order.
struct Frames<'l> {
    input: BufReader<Reader<'l>>,
    frame: Vec<u8>,
}

/// A file, from a place of its own on.
struct Reader<'l> {
    file: &'l File,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl<'l> Frames<'l> {
    fn new(file: &'l File, head: &Head) -> io::Result<Frames<'l>> {
        let at = HEAD_BYTES as u64;
        Ok(Frames {
            input: BufReader::with_capacity(READ_BYTES, Reader { file, at }),
            frame: vec![0; head.frame_bytes()],
        })
    }

    /// Goes on behind the frames that lie in a hole of the file here, all zeros; how many these
    /// are.
    fn skip_hole(&mut self) -> io::Result<u64> {
        let reader = self.input.get_ref();
        let (file, at) = (reader.file, reader.at - self.input.buffer().len() as u64);
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => file.metadata()?.len(), // No data up to the end.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            found => found?,
        };
        let frame_bytes = self.frame.len() as u64;
        let count = data.saturating_sub(at) / frame_bytes;
        if count * frame_bytes < READ_BYTES as u64 {
            return Ok(0); // To read it costs less.
        }
        let at = at + count * frame_bytes;
        self.input = BufReader::with_capacity(READ_BYTES, Reader { file, at });
        Ok(count)
    }

    /// `None`: no whole frame follows.
    fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        match self.input.read_exact(&mut self.frame) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(Frame { bytes: &self.frame })),
        }
    }
}

/// A big-endian number.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn sum_at(bytes: &[u8], at: usize) -> Sum {
    (word(bytes, at), word(bytes, at + 4))
}

/// Continues a sum; `bytes` are a multiple of 8.
fn checksum(is_big_endian: bool, before: Sum, bytes: &[u8]) -> Sum {
    let (mut one, mut two) = before;
    let number = |bytes: [u8; 4]| match is_big_endian {
        true => u32::from_be_bytes(bytes),
        false => u32::from_le_bytes(bytes),
    };
    for pair in bytes.chunks_exact(8) {
        let (first, second) = (
            number([pair[0], pair[1], pair[2], pair[3]]),
            number([pair[4], pair[5], pair[6], pair[7]]),
        );
        one = one.wrapping_add(first).wrapping_add(two);
        two = two.wrapping_add(second).wrapping_add(one);
    }
    (one, two)
}

#[cfg(test)]
mod tests;
