//! Who may use what a moment shows.
//!
//! Whatever the way to it: a moment below `.larder`, a mount of one moment, a store that shows a
//! snapshot. A file that was readable by everybody may hold what its owner took from them since. So
//! by default both must allow it: the permissions of then, and those of now where the file is still
//! there (`FUSE-13`). The kernel judges by one owner, one group and one mode: the ones shown here
//! allow nobody more than either.

use crate::options::HistoryAccess;
use larder::{Database, Error, ErrorKind, Ino, Metadata, NodeId};

/// The set-id and sticky bits, which are nobody's permissions.
const SPECIAL: u32 = 0o7000;
/// All bits of a mode.
const ALL: u32 = 0o7777;
const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";

/// What the kernel gets for what `tree` shows, by the rule of the mount: `attr` as it is in the
/// present, else within what the rule allows. `present` is the database of `tree` as it is now.
pub(crate) fn limit(
    access: HistoryAccess,
    present: &Database,
    tree: &Database,
    attr: Metadata,
) -> Result<Metadata, Error> {
    let Some(node) = tree.sessions().present_node(attr.node) else {
        return Ok(attr);
    };
    match access {
        HistoryAccess::Both => {}
        HistoryAccess::Then => return Ok(attr),
        // Root needs no permission to enter, and everything is below.
        HistoryAccess::Root if node.ino == Ino::ROOT => {
            let mode = attr.mode & SPECIAL;
            return Ok(Metadata { mode, ..attr });
        }
        HistoryAccess::Root => return Ok(attr),
    }
    let Some(now) = attr_now(present, tree, (attr.node, node))? else {
        return Ok(attr);
    };
    let lists = (acl(tree, attr.node)?, acl(present, now.node)?);
    let mode = both(&attr, &now) & allowed_by_lists(&lists, &attr, &now);
    Ok(Metadata {
        uid: now.uid,
        gid: now.gid,
        mode,
        ..attr
    })
}

/// The attributes of a file that was `then`, and in the present had the number `node`: it may have
/// been saved since, by which it gets another one. `None`: it is not there any more.
fn attr_now(
    present: &Database,
    tree: &Database,
    (then, node): (NodeId, NodeId),
) -> Result<Option<Metadata>, Error> {
    let find = |node| match present.nodes().metadata(node) {
        // One without a name is what somebody has open.
        Ok(attr) if attr.nlink > 0 => Ok(Some(attr)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    match find(node)? {
        Some(attr) => Ok(Some(attr)),
        None => tree.nodes().saved_since(then)?.map_or(Ok(None), find),
    }
}

/// The bits that access control lists, of then and of now, leave: the kernel goes by the list of
/// then, for the owner and the group of now, and only while the group has any bit.
fn allowed_by_lists<L: PartialEq>(
    lists: &(Option<L>, Option<L>),
    then: &Metadata,
    now: &Metadata,
) -> u32 {
    let is_same_user = then.uid == now.uid;
    match lists {
        (None, None) => ALL,
        (list, same) if list == same && is_same_user && then.gid == now.gid => ALL,
        // Lists name others, so nobody but the owner is known to be allowed by both; and who is
        // the owner since then may be one whom the list of then kept out.
        _ if is_same_user => SPECIAL | 0o700,
        _ => SPECIAL,
    }
}

/// The permission bits of a directory that leads to moments: as the root's, for reading.
pub(super) fn leading(access: HistoryAccess, root: &Metadata, has_list: bool) -> u32 {
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
    match database.attributes().get(node, ACCESS_XATTR) {
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
fn both(then: &Metadata, now: &Metadata) -> u32 {
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
    let special = then.mode & SPECIAL;
    now.mode & (special | owner_now << 6 | group_now << 3 | other_now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::{FileKind, StoreId};

    fn attr(uid: u32, gid: u32, mode: u32) -> Metadata {
        let (store, ino) = (StoreId::MAIN, Ino(2));
        Metadata {
            uid,
            gid,
            ..Metadata::new(NodeId { store, ino }, FileKind::File, mode)
        }
    }

    fn allowed(user: (u32, u32), of: &Metadata) -> u32 {
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
    /// Lists name users and groups that modes do not.
    #[test]
    fn what_a_list_says_of_others_counts_for_nobody_else() {
        let (then, now) = (attr(1, 1, 0o664), attr(1, 1, 0o664));
        let (given, moved) = (attr(2, 1, 0o664), attr(1, 2, 0o664));
        let left = |lists, now: &Metadata| allowed_by_lists(&lists, &then, now);
        for now in [&now, &given, &moved] {
            assert_eq!(left((None, None), now), ALL);
        }
        assert_eq!(left((Some(1), Some(1)), &now), ALL);
        assert_eq!(left((Some(1), Some(1)), &moved), 0o7700, "FUSE-13");
        assert_eq!(left((Some(1), Some(1)), &given), SPECIAL, "FUSE-13");
        for lists in [(Some(1), None), (None, Some(1)), (Some(1), Some(2))] {
            assert_eq!(left(lists, &now), 0o7700, "FUSE-13");
            assert_eq!(left(lists, &given), SPECIAL, "FUSE-13");
        }
    }
}
