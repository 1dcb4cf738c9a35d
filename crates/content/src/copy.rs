//! Copies between open files, without the caller seeing the bytes.

use crate::provider::FileHandle;
use crate::types::{AllocateMode, SeekTarget};
use larder_object::{Error, ErrorKind, Result};

/// Most bytes of data that one call of [`copy_range`] copies; holes come on top.
pub const COPY_BYTES_MAX: u64 = 64 << 20;
/// Most bytes that are in memory at a time.
const STEP_BYTES_MAX: u64 = 1 << 20;

/// Copies up to `len_bytes` from one open file to another, or within one (`copy_file_range(2)`), and
/// returns how many: fewer at the end of `from`, after [`COPY_BYTES_MAX`] of data, or when an error
/// follows what was copied. Holes stay holes. [`ErrorKind::InvalidInput`] when the ranges overlap in
/// one file. The copy has extents of its own. Not atomic: each step of 1 MiB is.
pub fn copy_range(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
    len_bytes: u64,
) -> Result<u64> {
    let source = from.attr()?;
    let len_bytes = len_bytes.min(source.size_bytes.saturating_sub(from_offset));
    let is_apart = from_offset.abs_diff(to_offset) >= len_bytes;
    if !is_apart && source.node == to.attr()?.node {
        let why = "the ranges overlap; copy in smaller steps";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    copy_apart((from, from_offset), (to, to_offset), len_bytes)
}

/// The same from a file of the past to one of the present, which may be the same file: what is written there changes
/// nothing here.
pub(crate) fn copy_from_past(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
) -> Result<u64> {
    let rest = from.attr()?.size_bytes.saturating_sub(from_offset);
    copy_apart((from, from_offset), (to, to_offset), rest)
}

fn copy_apart(
    (from, from_offset): (&dyn FileHandle, u64),
    (to, to_offset): (&dyn FileHandle, u64),
    len_bytes: u64,
) -> Result<u64> {
    if to_offset == 0 {
        to.expect_len(len_bytes)?;
    }
    let mut buffer = Vec::new();
    let (mut done, mut copied) = (0, 0);
    while done < len_bytes && copied < COPY_BYTES_MAX {
        let rest = len_bytes - done;
        let place = (from_offset + done, to_offset.saturating_add(done));
        match copy_step(from, to, place, rest, &mut buffer) {
            Ok(Step::End) => break,
            Ok(Step::Data(bytes)) => (done, copied) = (done + bytes, copied + bytes),
            Ok(Step::Hole(bytes)) => done += bytes,
            // The caller meets the error on the next call.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// What one step copied, in bytes.
enum Step {
    Data(u64),
    Hole(u64),
    /// `from` has become shorter.
    End,
}

fn copy_step(
    from: &dyn FileHandle,
    to: &dyn FileHandle,
    (from_offset, to_offset): (u64, u64),
    len_bytes: u64,
    buffer: &mut Vec<u8>,
) -> Result<Step> {
    // The end of the data is asked for after its beginning: another writer may fill a hole meanwhile.
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
        .min(STEP_BYTES_MAX) as usize;
    buffer.resize(step, 0);
    match from.read_at(from_offset, buffer)? {
        0 => Ok(Step::End),
        read => {
            to.write_at(to_offset, &buffer[..read])?;
            Ok(Step::Data(read as u64))
        }
    }
}
