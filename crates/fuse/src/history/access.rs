//! Who may use what a moment shows.
//!
//! A file that was readable by everybody may hold what its owner took from them since. So by
//! default both must allow it: the permissions of then, and those of now where the file is still
//! there (`FUSE-13`). The kernel judges by one owner, one group and one mode: the ones shown here
//! allow nobody more than either.

use crate::options::HistoryAccess;
use larder::{Attr, Database, Error, ErrorKind, NodeId};

const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";

/// What the kernel gets for a file that was `then`, in `past`, by the rule of the mount.
pub(super) fn limit(
    access: HistoryAccess,
    present: &Database,
    past: &Database,
    then: Attr,
) -> Result<Attr, Error> {
    if access != HistoryAccess::Both {
        return Ok(then);
    }
    let now = match present.attr(then.node) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(then),
        now => now?,
    };
    let has_same_list = acl(past, then.node)? == acl(present, then.node)?;
    let mode = match has_same_list {
        true => both(&then, &now),
        // Lists name others, so nobody but the owner is known to be allowed by both.
        false => both(&then, &now) & 0o7700,
    };
    Ok(Attr {
        uid: now.uid,
        gid: now.gid,
        mode,
        ..then
    })
}

/// The permission bits of a directory that leads to moments: as the root's, for reading.
pub(super) fn leading(access: HistoryAccess, root: &Attr, has_list: bool) -> u32 {
    match access {
        HistoryAccess::Root => 0, // Root needs none.
        _ if has_list => root.mode & 0o500,
        _ => root.mode & 0o555,
    }
}

/// Whether a node has an access control list.
pub(super) fn has_acl(database: &Database, node: NodeId) -> Result<bool, Error> {
    Ok(acl(database, node)?.is_some())
}

fn acl(database: &Database, node: NodeId) -> Result<Option<Vec<u8>>, Error> {
    match database.xattr(node, ACCESS_XATTR) {
        Ok(list) => Ok(Some(list)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NoAttribute | ErrorKind::NotFound | ErrorKind::Unsupported
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The mode for the owner and the group of now. Who is somebody else then and now gets what every
/// class that he may have been in allows.
fn both(then: &Attr, now: &Attr) -> u32 {
    let (is_same_user, is_same_group) = (then.uid == now.uid, then.gid == now.gid);
    let [owner, group, other] = [6, 3, 0].map(|shift| then.mode >> shift & 0o7);
    let if_moved = |moved: bool, bits: u32| if moved { bits } else { 0o7 };
    let owner_now = match is_same_user {
        true => owner,
        false => group & other,
    };
    let group_now = match is_same_group {
        true => group,
        false => group & other,
    } & if_moved(!is_same_user, owner);
    let other_now = other & if_moved(!is_same_user, owner) & if_moved(!is_same_group, group);
    let special = then.mode & 0o7000;
    now.mode & (special | owner_now << 6 | group_now << 3 | other_now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::{FileKind, Ino, StoreId};

    fn attr(uid: u32, gid: u32, mode: u32) -> Attr {
        Attr {
            node: NodeId {
                store: StoreId::MAIN,
                ino: Ino(2),
            },
            kind: FileKind::File,
            mode,
            uid,
            gid,
            nlink: 1,
            size_bytes: 0,
            allocated_bytes: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
            rdev: 0,
            flags: larder::InodeFlags::default(),
        }
    }

    fn allowed(user: (u32, u32), of: &Attr) -> u32 {
        let shift = match user {
            (uid, _) if uid == of.uid => 6,
            (_, gid) if gid == of.gid => 3,
            _ => 0,
        };
        of.mode >> shift & 0o7
    }

    /// Every pair of modes, of the same and of other owners and groups: nobody gets what one of the
    /// two refuses.
    #[test]
    fn nobody_gets_more_than_then_or_now() {
        let owners = [(1, 1), (1, 2), (2, 1), (2, 2)];
        for then_mode in 0..0o1000 {
            // Steps that meet all classes in all combinations of a few.
            for now_mode in (0..0o1000).step_by(7) {
                for (uid, gid) in owners {
                    let (then, now) = (attr(1, 1, then_mode), attr(uid, gid, now_mode));
                    let shown = attr(uid, gid, both(&then, &now));
                    for user in [
                        (1, 1),
                        (1, 2),
                        (1, 3),
                        (2, 1),
                        (2, 2),
                        (2, 3),
                        (3, 1),
                        (3, 2),
                        (3, 3),
                    ] {
                        let wanted = allowed(user, &then) & allowed(user, &now);
                        let got = allowed(user, &shown);
                        assert_eq!(got & !wanted, 0, "FUSE-13: {user:?} {then:?} {now:?}");
                        if (uid, gid) == (1, 1) {
                            assert_eq!(got, wanted, "as much as both allow");
                        }
                    }
                }
            }
        }
    }
}
