//! Copies between open files, without the caller seeing the bytes. Whole blocks are shared where
//! that can be.

use crate::provider::{FileContent, FileHandle};
use crate::types::{AllocateMode, SeekTarget};
use larder_object::format::limits::BLOCK_BYTES;
use larder_object::{Error, ErrorKind, Result};
use std::ops::Range;

/// Most bytes of data that one call of [`copy_range`] copies; holes, and what is shared, come on
/// top.
pub const COPY_BYTES_MAX: u64 = 64 << 20;
/// Most bytes that are in memory at a time.
const STEP_BYTES_MAX: u64 = 1 << 20;
/// The same where what follows may be shared.
const GAP_BYTES_MAX: u64 = 128 << 10;
/// The same of the past, where what lay in redo rows is in the way: runs of at most 64 KiB.
const PAST_GAP_BYTES_MAX: u64 = 16 << 10;
/// How often in a row sharing may be tried in vain.
const TRIES_MAX: u32 = 16;

/// Copies up to `len_bytes` from one open file to another, or within one (`copy_file_range(2)`),
/// and returns how many: fewer at the end of `from`, after [`COPY_BYTES_MAX`] of data, or when an
/// error follows what was copied. Holes stay holes. [`ErrorKind::InvalidInput`] when the ranges
/// overlap in one file of one moment. Between files of one database whole blocks are shared, not
/// copied, where both offsets are multiples of a block ([`FileHandle::share_from`]). Not atomic:
/// each step of 1 MiB is.
pub fn copy_range(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
    len_bytes: u64,
) -> Result<u64> {
    let source = from.metadata()?;
    let len_bytes = len_bytes.min(source.size_bytes.saturating_sub(from_offset));
    let is_apart = from_offset.abs_diff(to_offset) >= len_bytes;
    if !is_apart && source.node == to.metadata()?.node && are_of_one_moment(from, to) {
        let why = "the ranges overlap; copy in smaller steps";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    Ok(copy_apart((from, from_offset), (to, to_offset), len_bytes)?.bytes)
}

/// Whether two handles of one inode show the same content: what is written to the present changes
/// nothing in the past.
fn are_of_one_moment(from: &dyn FileHandle, to: &dyn FileHandle) -> bool {
    match (from.content(), to.content()) {
        (Some(from), Some(to)) => {
            from.source.view().moment().shows() == to.source.view().moment().shows()
        }
        _ => true,
    }
}

/// The same to the end of a file that is another one, or the same of another moment: what is
/// written there changes nothing here.
pub(crate) fn copy_rest(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
) -> Result<Copied> {
    let rest = from.metadata()?.size_bytes.saturating_sub(from_offset);
    copy_apart((from, from_offset), (to, to_offset), rest)
}

/// What was done, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copied {
    /// All together.
    pub(crate) bytes: u64,
    /// What of it was copied; the rest is shared, or a hole.
    pub(crate) copied: u64,
}

/// Makes the content of `to`, a file of the present, that of `from`, a file of the past, and
/// returns how many bytes were written, or made a hole: only what differs, in blocks of 4 KiB, is.
pub(crate) fn copy_differences(from: &dyn FileHandle, to: &dyn FileHandle) -> Result<u64> {
    let (size, there) = (from.metadata()?.size_bytes, to.metadata()?.size_bytes);
    if there == 0 {
        let mut done = 0;
        while done < size {
            match copy_rest((from, done), (to, done))?.bytes {
                0 => break,
                copied => done += copied,
            }
        }
        return Ok(done);
    }
    if there != size {
        to.set_len(size)?;
    }
    let (mut was, mut is) = (Vec::new(), Vec::new());
    let (mut at, mut written) = (0, 0);
    while at < size {
        let data = from.seek(SeekTarget::Data, at)?.unwrap_or(size).min(size);
        if data > at {
            let found = to.seek(SeekTarget::Data, at)?;
            if found.is_some_and(|found| found < data) {
                to.allocate(AllocateMode::PunchHole, at, data - at)?;
                written += data - at;
            }
            at = data;
            continue;
        }
        let hole = from.seek(SeekTarget::Hole, at)?.unwrap_or(size);
        let end = hole.min(size).min(at + STEP_BYTES_MAX);
        let len = (end - at) as usize;
        read_exactly(from, at, &mut was, len)?;
        // What is a hole here was not one then.
        let has_hole = to.seek(SeekTarget::Hole, at)?.is_none_or(|hole| hole < end);
        match has_hole {
            true => is.clear(),
            false => read_exactly(to, at, &mut is, len)?,
        }
        for run in differing_runs(&was, &is) {
            to.write_at(at + run.start as u64, &was[run.clone()])?;
            written += run.len() as u64;
        }
        at = end;
    }
    Ok(written)
}

/// Where two buffers differ, in whole blocks; where the second one has nothing, everything does.
fn differing_runs(was: &[u8], is: &[u8]) -> Vec<Range<usize>> {
    let block = BLOCK_BYTES as usize;
    let mut runs: Vec<Range<usize>> = Vec::new();
    for start in (0..was.len()).step_by(block) {
        let end = (start + block).min(was.len());
        if is.get(start..end) == Some(&was[start..end]) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Reads until the buffer is full or the file ends; returns how much.
pub(crate) fn read_full(file: &dyn FileHandle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..])? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Reads `len` bytes that are there.
fn read_exactly(file: &dyn FileHandle, at: u64, buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    buffer.resize(len, 0);
    match read_full(file, at, buffer)? == len {
        true => Ok(()),
        false => {
            let why = "a file has become shorter while it was read, though nobody may change it";
            Err(Error::new(ErrorKind::Corrupt, why))
        }
    }
}

fn copy_apart(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
    len_bytes: u64,
) -> Result<Copied> {
    if to_offset == 0 {
        to.expect_len(len_bytes)?;
    }
    let is_aligned =
        from_offset.is_multiple_of(BLOCK_BYTES) && to_offset.is_multiple_of(BLOCK_BYTES);
    let content = from.content().filter(|_| is_aligned);
    let mut tries_left = TRIES_MAX;
    let mut buffer = Vec::new();
    let (mut done, mut copied) = (0, 0);
    while done < len_bytes && copied < COPY_BYTES_MAX {
        let rest = len_bytes - done;
        let place = (from_offset + done, to_offset.saturating_add(done));
        let content = content.as_ref().filter(|_| tries_left > 0);
        match step(from, content, to, place, rest, &mut buffer) {
            Ok(Step::End) => break,
            Ok(Step::Shared(bytes)) => (done, tries_left) = (done + bytes, TRIES_MAX),
            Ok(Step::Data(bytes)) => {
                (done, copied) = (done + bytes, copied + bytes);
                tries_left = tries_left.saturating_sub(1);
            }
            Ok(Step::Hole(bytes)) => done += bytes,
            // The caller meets the error on the next call.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(Copied {
        bytes: done,
        copied,
    })
}

/// Shares what can be shared from here on, or copies what cannot.
fn step(
    from: &dyn FileHandle,
    content: Option<&FileContent>,
    to: &dyn FileHandle,
    (from_offset, to_offset): (u64, u64),
    len_bytes: u64,
    buffer: &mut Vec<u8>,
) -> Result<Step> {
    let mut step_bytes_max = STEP_BYTES_MAX;
    if let Some(content) = content.filter(|_| from_offset.is_multiple_of(BLOCK_BYTES)) {
        let shared = to.share_from(content.clone(), from_offset, to_offset, len_bytes)?;
        if shared > 0 {
            return Ok(Step::Shared(shared));
        }
        step_bytes_max = match content.source.view().moment().shows() {
            None => GAP_BYTES_MAX,
            Some(_) => PAST_GAP_BYTES_MAX,
        };
    }
    copy_step(
        from,
        to,
        (from_offset, to_offset),
        (len_bytes, step_bytes_max),
        buffer,
    )
}

/// What one step copied, in bytes.
enum Step {
    /// Holes included.
    Shared(u64),
    Data(u64),
    Hole(u64),
    /// `from` has become shorter.
    End,
}

fn copy_step(
    from: &dyn FileHandle,
    to: &dyn FileHandle,
    (from_offset, to_offset): (u64, u64),
    (len_bytes, step_bytes_max): (u64, u64),
    buffer: &mut Vec<u8>,
) -> Result<Step> {
    // The end of the data is asked for after its beginning: another writer may fill a hole
    // meanwhile.
    let data = from.seek(SeekTarget::Data, from_offset)?;
    let Some(end) = from.seek(SeekTarget::Hole, from_offset)? else {
        return Ok(Step::End);
    };
    let hole = data.map_or(len_bytes, |data| (data - from_offset).min(len_bytes));
    if hole > 0 {
        to.allocate(
            AllocateMode::ZeroRange { keep_size: false },
            to_offset,
            hole,
        )?;
        return Ok(Step::Hole(hole));
    }
    // Data that has become a hole reads as zeros.
    let step = (end - from_offset)
        .max(1)
        .min(len_bytes)
        .min(step_bytes_max) as usize;
    buffer.resize(step, 0);
    match from.read_at(from_offset, buffer)? {
        0 => Ok(Step::End),
        read => {
            to.write_at(to_offset, &buffer[..read])?;
            Ok(Step::Data(read as u64))
        }
    }
}
