//! Listings of directories, from one place of an open directory to another.

use super::Bridge;
use crate::convert::{node_number, node_of};
use crate::errno::node_errno;
use crate::handles::{DIRECTORY_PAGE_COUNT, Line, Listing};
use larder::{DirEntry, Error, ErrorKind, Metadata, Name};
use larder_fuse_protocol::{Errno, HandleNumber, NodeNumber};

/// One line of a directory.
pub(crate) enum Listed<'l> {
    /// `.` or `..`.
    Dot(&'static str, NodeNumber),
    /// Any other.
    Entry(&'l DirEntry),
}

/// Calls `add` for the entries from `offset` on until it answers that the reply is full. Offset
/// 0 is before `.`, 1 before `..`, and `2 + i` before entry `i` (`FUSE-4`). With `and_attr` the
/// attributes of a page of entries come into memory by one scan, so that `add` finds them
/// there.
pub(crate) fn list(
    bridge: &Bridge,
    (directory, handle): (NodeNumber, HandleNumber),
    offset: u64,
    and_attr: bool,
    mut add: impl FnMut(Listed<'_>, u64) -> Result<bool, Errno>,
) -> Result<(), Errno> {
    bridge.known.note_listed(directory);
    let fail = |error: Error| node_errno(&error, format_args!("list {directory}"));
    let node = node_of(directory);
    let open = bridge.directories.find(handle)?;
    let mut listing = open.listing();
    if offset == 0 {
        listing.restart();
    }
    let listing: &mut Listing = &mut listing;
    for position in offset.. {
        let is_full = match position {
            0 => add(Listed::Dot(".", directory), 1)?,
            1 => match bridge.database.parent(node) {
                Ok(parent) => add(Listed::Dot("..", node_number(parent)?), 2)?,
                // It was removed by another session, and is open here (`FUSE-19`).
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(fail(error)),
            },
            _ => {
                // Only their attributes being in memory counts: what is here may be too old
                // for the next reply.
                let load = |after: Option<&Name>| {
                    (bridge.database).read_dir(node, after, DIRECTORY_PAGE_COUNT, and_attr)
                };
                match listing.line((position - 2) as usize, load).map_err(fail)? {
                    Line::Entry(entry) => add(Listed::Entry(entry), position + 1)?,
                    Line::Name(name) => match bridge.database.lookup(node, &name) {
                        Ok(Metadata { node, kind, .. }) => {
                            let entry = DirEntry { name, node, kind };
                            add(Listed::Entry(&entry), position + 1)?
                        }
                        Err(error) if error.kind() == ErrorKind::NotFound => false,
                        Err(error) => return Err(fail(error)),
                    },
                    Line::End => break,
                }
            }
        };
        if is_full {
            break;
        }
    }
    Ok(())
}
