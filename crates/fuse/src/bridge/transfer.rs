//! Content of open files: read, written and copied.

use super::{Bridge, Call, File, OpenFile};
use crate::errno::node_errno;
use larder::{Error, copy_range};
use larder_fuse_protocol::{CopyRange, Errno, Write};

/// Where the data of a write went.
pub(crate) enum WriteEnd {
    /// At the offset that the kernel gave.
    WhereAsked,
    /// Appended behind what somebody else had appended, which the kernel did not know.
    Elsewhere,
}

/// Fills `buffer` from `offset` on, up to the end of the file: the kernel takes a short read for
/// the end and zeroes the rest of the page.
pub(crate) fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(offset + done as u64, &mut buffer[done..])? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes or appends as `flags` ask; durable before it returns with `O_SYNC` or `O_DSYNC`.
pub(crate) fn write_file(
    bridge: &Bridge,
    call: &Call<'_>,
    write: &Write<'_>,
) -> Result<WriteEnd, Errno> {
    let file = bridge.files.find(write.handle)?;
    let fail = |error: Error| node_errno(&error, format_args!("write at {}", write.offset));
    let start = write.offset;
    let range = start..start + write.data.len() as u64;
    let at = if write.is_from_cache {
        // Pages written back go to any open file, and have their place, whatever it was opened
        // for. Who wrote them is not known.
        larder::act_for(None);
        file.way.write_back(range, |part| {
            let data = &write.data[(part.start - start) as usize..(part.end - start) as usize];
            file.write_at(part.start, data).map_err(fail)
        })?;
        start
    } else {
        if write.kill_suid_sgid {
            drop_set_id(bridge, &file)?;
        }
        let apply = || match write.flags & libc::O_APPEND {
            0 => file.write_at(start, write.data).map(|()| start),
            _ => file.append(write.data),
        };
        let node = file.way.node();
        // Not by the thread of the other notifications (`FUSE-2`): the caller waits, and the
        // kernel holds nothing for a direct write that dropping pages takes.
        let prepare_drop = || {
            let reserved = call.reserve_wait()?;
            let notifier = &bridge.notifier;
            Ok(move |offset, len_bytes| {
                reserved.wait(|| notifier.inval_inode(node, offset as i64, len_bytes as i64))
            })
        };
        // Who writes is named for direct writes only, as for reads.
        let passes_by = write.lock_owner.is_some();
        if !passes_by {
            bridge.note_pages(&file);
        }
        let appends = write.flags & libc::O_APPEND != 0;
        let way = (&file.way, passes_by, appends);
        (bridge.streams).write(way, range, || apply().map_err(fail), prepare_drop)?
    };
    if write.flags & (libc::O_SYNC | libc::O_DSYNC) != 0 {
        file.sync().map_err(fail)?; // FUSE-3
    }
    Ok(match at == start {
        true => WriteEnd::WhereAsked,
        false => WriteEnd::Elsewhere,
    })
}

/// What the kernel clears by itself before it writes to the page cache, it must be told of for
/// a direct write: else it would show the old mode.
fn drop_set_id(bridge: &Bridge, file: &OpenFile) -> Result<(), Errno> {
    let node = file.way.node();
    let is_dropped = (file.drop_set_id())
        .map_err(|error| node_errno(&error, format_args!("clear set-id bits of {node}")))?;
    if is_dropped {
        bridge.notifier.inval_inode(node, -1, 0)?; // FUSE-2: takes no lock
    }
    Ok(())
}

/// Copies inside the server; returns how many bytes.
pub(crate) fn copy(from: &OpenFile, to: &OpenFile, range: &CopyRange) -> Result<u64, Errno> {
    let (from, to) = ((&***from, range.from_offset), (&***to, range.to_offset));
    copy_range(from, to, range.len_bytes).map_err(|error| node_errno(&error, "copy_file_range"))
}
