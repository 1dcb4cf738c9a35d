//! Making and opening a file at once: `O_CREAT`, and without a name `O_TMPFILE`.
//!
//! The kernel looks a name up, and where there is none it asks for a new file. Somebody else may
//! have made it in between. To be sent back with `ESTALE` helps once: the kernel looks again, and
//! by then the name may be gone, and come. So what is there is opened right here, by the name that
//! the request carries. But a request to make a file was not checked for whether the caller may
//! open another one: where that does not follow from the mode alone, he is sent back, and the
//! kernel checks.

use crate::bridge::{Bridge, File};
use crate::convert::{name_of, node_of};
use crate::errno::{errno, node_errno};
use crate::shared_memory;
use larder::{Error, ErrorKind, FileKind, Metadata, Name};
use larder_fuse_protocol::{Entry, Errno, Make, NodeNumber, OpenFlags, Opened, Request};

/// How often a name that comes and goes is tried: each time somebody else was faster.
const TRY_COUNT_MAX: u32 = 64;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Makes a regular file and opens it; or opens the one that has come meanwhile.
pub(crate) fn create_file(
    bridge: &Bridge,
    request: &Request,
    name: &[u8],
    make: Make,
    open: OpenFlags,
) -> Result<(Entry, Opened), Errno> {
    let parent = request.node;
    let name = name_of(name)?;
    let owner = bridge.owner(request, make)?;
    let mode = bridge.id_map.stored_mode(make.mode);
    let make =
        || (bridge.database).create_file(node_of(parent), &name, mode, owner, open.is_write());
    for _ in 0..TRY_COUNT_MAX {
        match make() {
            Ok(made) => return created(bridge, parent, &name, made, open),
            Err(error) if error.kind() == ErrorKind::Exists && !open.has(libc::O_EXCL) => {}
            Err(error) => {
                return Err(errno(&error, format_args!("create '{name}' in {parent}")));
            }
        }
        match open_come(bridge, request, &name, open) {
            Ok(Some(found)) => return created(bridge, parent, &name, found, open),
            Ok(None) => return Err(bridge.stale_names.send_back(request.pid)),
            // It has gone again.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(node_errno(
                    &error,
                    format_args!("open '{name}' in {parent}"),
                ));
            }
        }
    }
    Err(bridge.stale_names.send_back(request.pid))
}

/// Makes a regular file without a name and opens it.
pub(crate) fn create_anonymous(
    bridge: &Bridge,
    request: &Request,
    make: Make,
    open: OpenFlags,
) -> Result<(Entry, Opened), Errno> {
    let parent = request.node;
    let owner = bridge.owner(request, make)?;
    let mode = bridge.id_map.stored_mode(make.mode);
    let is_linkable = !open.has(libc::O_EXCL);
    let (attr, file) = bridge
        .database
        .create_anonymous(node_of(parent), mode, is_linkable, owner)
        .map_err(|error| {
            errno(
                &error,
                format_args!("make a file without a name in {parent}"),
            )
        })?;
    let attr = bridge.shown(&attr)?;
    bridge.known.add_nameless(attr.node);
    Ok((
        bridge.entry_of(attr),
        bridge.opened((attr.node, attr.node), file, mode, open),
    ))
}

fn created(
    bridge: &Bridge,
    parent: NodeNumber,
    name: &Name,
    (attr, file): (Metadata, File),
    open: OpenFlags,
) -> Result<(Entry, Opened), Errno> {
    let node = bridge.shown(&attr)?.node;
    let share = bridge.share(node, Some(name), open.is_write())?;
    let opened = bridge.opened((node, node), file, attr.mode, open);
    bridge.keep_share(opened.handle, share);
    Ok((bridge.entry(parent, name, &attr)?, opened))
}

/// Opens the file that has the name now, and cuts it off if `open` says so; `None`: whether
/// the caller may is the kernel's business.
fn open_come(
    bridge: &Bridge,
    request: &Request,
    name: &Name,
    open: OpenFlags,
) -> Result<Option<(Metadata, File)>, Error> {
    bridge.database.catch_up_if_moved()?;
    let directory = bridge.database.attr(node_of(request.node))?;
    let mut attr = bridge.database.lookup(node_of(request.node), name)?;
    let mut shown = attr.clone();
    bridge.id_map.show(&mut shown);
    let is_list = || has_list(bridge, &attr);
    // On an idmapped mount the caller has other numbers than the file. And what is opened for
    // reading cannot be cut off here, nor what SQLite shares before it is asked who has it.
    let cuts_unwritten = open.has(libc::O_TRUNC) && !open.is_write();
    let is_shared = name.as_bytes().ends_with(shared_memory::SUFFIX);
    let is_plain =
        !bridge.allows_idmap && !cuts_unwritten && !is_shared && attr.kind == FileKind::File;
    if !is_plain || !may_open(&shown, &directory, request.uid, open, is_list)? {
        return Ok(None);
    }
    let file = bridge.open_inside(attr.node, open)?;
    if open.has(libc::O_TRUNC) {
        if open.kill_suid_sgid {
            file.drop_set_id()?;
        }
        file.set_len(0)?;
        attr = file.metadata()?;
    }
    Ok(Some((attr, file)))
}

fn has_list(bridge: &Bridge, attr: &Metadata) -> Result<bool, Error> {
    match bridge.database.xattr(attr.node, ACCESS_LIST) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the mode alone says that user `uid` may open a regular file; no: he may not, or who
/// knows. The owner is let in by his bits. Of others the groups are not known, so those of the
/// group and of all others must let them in.
fn may_open(
    file: &Metadata,
    directory: &Metadata,
    uid: u32,
    open: OpenFlags,
    has_list: impl FnOnce() -> Result<bool, Error>,
) -> Result<bool, Error> {
    let wanted = match open.flags & libc::O_ACCMODE {
        libc::O_RDONLY => 0o4,
        libc::O_WRONLY => 0o2,
        _ => 0o6,
    };
    let lets_in = |bits: u32| bits & wanted == wanted;
    if file.uid == uid && uid != u32::MAX {
        return Ok(lets_in(file.mode >> 6));
    }
    // `fs.protected_regular`, and what is for owners alone.
    let is_special = directory.mode & libc::S_ISVTX != 0 || open.has(libc::O_NOATIME);
    Ok(!is_special && lets_in(file.mode >> 3 & file.mode) && !has_list()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::{Ino, NodeId, StoreId};

    fn attr(uid: u32, mode: u32) -> Metadata {
        let (store, ino) = (StoreId::MAIN, Ino(2));
        Metadata {
            uid,
            gid: uid,
            ..Metadata::new(NodeId { store, ino }, FileKind::File, mode)
        }
    }

    /// Whether user 1 may open what belongs to `uid`.
    fn may(uid: u32, mode: u32, flags: i32, directory_mode: u32, has_list: bool) -> bool {
        let open = OpenFlags {
            flags,
            kill_suid_sgid: false,
        };
        let directory = attr(0, directory_mode);
        may_open(&attr(uid, mode), &directory, 1, open, || Ok(has_list)).unwrap()
    }

    #[test]
    fn who_may_open_what_has_come_follows_from_the_mode_alone() {
        let (read, write, both) = (libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR);
        // The owner, whatever others may, and whatever a list says of others.
        assert!(may(1, 0o600, both, 0o1777, true));
        assert!(may(1, 0o400, read, 0o755, false) && !may(1, 0o477, write, 0o755, false));
        assert!(may(1, 0o200, write, 0o755, false) && !may(1, 0o277, both, 0o755, false));
        // Others, whose groups are not known.
        assert!(may(2, 0o644, read, 0o755, false) && may(2, 0o666, both, 0o777, false));
        assert!(!may(2, 0o604, read, 0o755, false) && !may(2, 0o640, read, 0o755, false));
        assert!(!may(2, 0o644, write, 0o755, false) && !may(2, 0o646, both, 0o755, false));
        assert!(!may(2, 0o666, both, 0o1777, false), "fs.protected_regular");
        assert!(!may(2, 0o644, read, 0o755, true), "a list may name him");
        assert!(!may(2, 0o644, read | libc::O_NOATIME, 0o755, false));
    }
}
