//! Copying the segments of a database of format 1, with superblocks of format 2.
//!
//! # Invariants
//! * `CONVERT-1` The old segments are only read.
//! * `CONVERT-2` A new segment has its superblock only when all blocks are durable; one that has it
//!   is copied again only if a block differs. *Guard*: it is written last, behind a flush.
//! * `CONVERT-3` Every block of the new segment is that of the old one: both are read once more and
//!   compared.

use crate::error::SegmentError;
use crate::file::{make_segments, segment_name};
use larder_directory::{Access, DatabaseDir};
use larder_format::limits::BLOCK_BYTES;
use larder_format::superblock::{
    COPY_COUNT, DATA_OFFSET_BYTES, SUPERBLOCK_BYTES, choose_superblock, copy_offset_bytes,
};
use larder_format::{Member, SegmentIndex, Superblock};
use larder_format_one::superblock as one;
use rustix::fs::{Advice, SeekFrom as Place};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Bytes that are copied between two words of progress.
const STEP_BYTES: u64 = 64 << 20;
/// Bytes that are compared at once.
const COMPARE_BYTES: usize = 1 << 20;
/// What the superblock of a new segment counts: both copies are written once.
const GENERATION: u64 = COPY_COUNT as u64 - 1;

/// Two copies of a superblock, as they were read.
type Copies = [[u8; SUPERBLOCK_BYTES]; COPY_COUNT];

/// Copies these segments of the database `database_id` from `old` to `new`, and compares them;
/// `progress` is told of bytes that were copied or compared. Where an earlier attempt ended it goes
/// on. Returns the bytes of all segments.
pub fn convert_segments(
    (old, new): (&DatabaseDir, &DatabaseDir),
    database_id: [u8; 16],
    segments: &[SegmentIndex],
    progress: &mut dyn FnMut(u64),
) -> Result<u64, SegmentError> {
    let mut total_bytes = 0;
    for &index in segments {
        let at = |action: &'static str| move |source| failed(index, action, source);
        let name = segment_name(index);
        let from = old.open_file(&name, Access::Read).map_err(at("opening"))?;
        let found = read_old(&from, database_id, index)?;
        let superblock = Superblock {
            generation: GENERATION,
            database_id,
            segment: index,
            block_count: found.block_count,
            created_ns: found.created_ns,
            member: Member::ALONE,
        };
        let end = superblock.segment_bytes();
        let directory = make_segments(new).map_err(at("making its directory"))?;
        let to = new
            .open_file(&name, Access::Make)
            .map_err(at("making it"))?;
        let mut is_new = !is_copied(&to, &superblock).map_err(at("reading the new one"))?;
        loop {
            if is_new {
                copy(&from, &to, superblock, progress).map_err(at("copying"))?;
                directory.sync().map_err(at("flushing its directory"))?;
            }
            let differs = find_difference(&from, &to, end, progress).map_err(at("comparing"))?;
            match differs {
                None => break,
                // The old database was used after the attempt that copied it.
                Some(_) if !is_new => is_new = true,
                Some(byte) => {
                    let why = format!("the copy differs behind byte {byte}");
                    return Err(failed(index, "comparing", io::Error::other(why)));
                }
            }
        }
        total_bytes += end;
    }
    Ok(total_bytes)
}

fn failed(segment: SegmentIndex, action: &str, source: io::Error) -> SegmentError {
    match source.kind() {
        io::ErrorKind::StorageFull => SegmentError::NoSpaceToCopy { segment },
        _ => SegmentError::Io {
            segment,
            action: action.into(),
            source,
        },
    }
}

/// The superblock of an old segment, if it is the expected one and all of it is there.
fn read_old(
    from: &File,
    database_id: [u8; 16],
    segment: SegmentIndex,
) -> Result<one::Superblock, SegmentError> {
    let io = |source| failed(segment, "reading its superblock", source);
    let copies = read_copies(from).map_err(io)?;
    let Some(found) = one::choose([&copies[0], &copies[1]]) else {
        return Err(match choose_superblock([&copies[0], &copies[1]]) {
            Ok(_) => failed(
                segment,
                "reading its superblock",
                io::Error::other("it is of format 2, and the catalog is not"),
            ),
            Err(damage) if damage.is_foreign() => SegmentError::NotASegment { segment },
            Err(damage) => SegmentError::TornSuperblock { segment, damage },
        });
    };
    if found.database_id != database_id {
        return Err(SegmentError::WrongDatabase {
            segment,
            expected: database_id,
            found: found.database_id,
        });
    }
    if found.segment != segment {
        return Err(SegmentError::WrongSegment {
            segment,
            found: found.segment,
        });
    }
    let expected_bytes = DATA_OFFSET_BYTES + found.block_count * BLOCK_BYTES;
    let found_bytes = from.metadata().map_err(io)?.len();
    match found_bytes < expected_bytes {
        false => Ok(found),
        true => Err(SegmentError::Truncated {
            segment,
            expected_bytes,
            found_bytes,
        }),
    }
}

fn read_copies(file: &File) -> io::Result<Copies> {
    let mut copies = [[0; SUPERBLOCK_BYTES]; COPY_COUNT];
    for (copy, raw) in copies.iter_mut().enumerate() {
        match file.read_exact_at(raw, copy_offset_bytes(copy)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => read?,
        }
    }
    Ok(copies)
}

/// Whether an earlier attempt has copied all of it (`CONVERT-2`).
fn is_copied(to: &File, expected: &Superblock) -> io::Result<bool> {
    let copies = read_copies(to)?;
    let chosen = choose_superblock([&copies[0], &copies[1]]);
    let is_whole =
        chosen.is_ok_and(|chosen| chosen.superblock == *expected && chosen.damaged_copy.is_none());
    Ok(is_whole && to.metadata()?.len() >= expected.segment_bytes())
}

fn copy(
    from: &File,
    to: &File,
    superblock: Superblock,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    to.set_len(0)?;
    let end = superblock.segment_bytes();
    to.set_len(end)?;
    let mut at = DATA_OFFSET_BYTES;
    let (mut source, mut target) = (from, to);
    while at < end {
        // A hole stays one.
        let Some(data) = next(from, Place::Data(at))?.filter(|data| *data < end) else {
            progress(end - at);
            break;
        };
        progress(data - at);
        at = data;
        let hole = next(from, Place::Hole(at))?.unwrap_or(end).min(end);
        while at < hole {
            source.seek(SeekFrom::Start(at))?;
            target.seek(SeekFrom::Start(at))?;
            // In the kernel where it can: a filesystem with reflinks shares the blocks.
            let copied = io::copy(&mut source.take(STEP_BYTES.min(hole - at)), &mut target)?;
            if copied == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += copied;
            progress(copied);
        }
    }
    to.sync_all()?;
    for generation in 0..=GENERATION {
        let written = Superblock {
            generation,
            ..superblock
        };
        to.write_all_at(&written.encode(), written.offset_bytes())?;
        to.sync_all()?;
    }
    Ok(())
}

/// Where the next data, or the next hole, begins; `None`: nowhere.
fn next(file: &File, place: Place) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, place) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where the two differ, if they do (`CONVERT-3`).
fn find_difference(
    from: &File,
    to: &File,
    end: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Option<u64>> {
    // From the device, not from what was just written; where that cannot be, from memory.
    let _ = rustix::fs::fadvise(to, 0, None, Advice::DontNeed);
    let (mut one, mut other) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    let mut at = DATA_OFFSET_BYTES;
    while at < end {
        let len = (end - at).min(COMPARE_BYTES as u64) as usize;
        from.read_exact_at(&mut one[..len], at)?;
        to.read_exact_at(&mut other[..len], at)?;
        if one[..len] != other[..len] {
            return Ok(Some(at));
        }
        at += len as u64;
        progress(len as u64);
    }
    Ok(None)
}
