//! Whose files the mount shows: users, groups and permissions, translated between host and
//! database.
//!
//! # Words
//! *Host ids* are the user and group numbers that programs see and the kernel checks. *Database
//! ids* stand in the rows. A *range* names equally many of both. *Squashed* ids are all shown as
//! one. An id that no range names is *unmapped*.
//!
//! # Invariants
//! * `IDMAP-1` Ranges are one-to-one: what is stored for a host id is shown as that id again, and
//!   no two database ids are shown as one, except as [`UNMAPPED`].
//! * `IDMAP-2` An unmapped database id is shown as [`UNMAPPED`], which is nobody's: the kernel then
//!   grants its file no rights but those of others, and refuses all changes, as with an idmapped
//!   mount. An unmapped host id is never stored (`EOVERFLOW`).
//! * `IDMAP-3` Squashing changes no owner in the database: what is made gets the owner of its
//!   directory, and a change of owner is refused unless it asks for what is shown.
//! * `IDMAP-4` Entries of unmapped ids in an access control list are not shown (the kernel would
//!   refuse the whole list, and with it every use of the file), and stay when the list is changed
//!   here.
//!
//! Pure: no I/O.

use larder::{Error, ErrorKind, FileKind, Metadata};

/// What the kernel takes for "no such id"; `stat` then shows 65534 (nobody).
pub const UNMAPPED: u32 = u32::MAX;

/// Equally many host ids and database ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first host id.
    pub host: u32,
    /// The database id that is shown as that.
    pub database: u32,
    /// How many, ≥ 1.
    pub count: u32,
}

/// How ids of one sort, users or groups, are translated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ids {
    /// Not at all.
    #[default]
    Same,
    /// Everything is shown as belonging to this host id.
    Squash(u32),
    /// One-to-one; made by [`Ids::ranges`].
    Ranges(Vec<IdRange>),
}

/// What a change of owner comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewOwner {
    /// Store this database id.
    Store(u32),
    /// It is shown as that already.
    Keep,
    /// The id has no place in the database (`EOVERFLOW`).
    Unmapped,
    /// The ids are squashed (`EPERM`).
    Refused,
}

impl Ids {
    /// Translation by ranges. [`ErrorKind::InvalidInput`] when one is empty or leaves the numbers,
    /// or two overlap on either side.
    pub fn ranges(ranges: Vec<IdRange>) -> Result<Ids, Error> {
        let bad = |what: String| Error::new(ErrorKind::InvalidInput, what);
        // The last number is nobody's.
        let fits = |first: u32, count: u32| first.checked_add(count).is_some();
        for (index, range) in ranges.iter().enumerate() {
            let IdRange {
                host,
                database,
                count,
            } = *range;
            if count == 0 || !fits(host, count) || !fits(database, count) {
                return Err(bad(format!(
                    "{host}:{database}:{count} is no range of ids; write HOST:DB:COUNT, below \
                     4294967295"
                )));
            }
            let meets =
                |a: u32, b: u32, b_count: u32| a < b.saturating_add(b_count) && b < a + count;
            for other in &ranges[..index] {
                if meets(host, other.host, other.count)
                    || meets(database, other.database, other.count)
                {
                    return Err(bad(format!(
                        "{host}:{database}:{count} overlaps {}:{}:{}; give every id one \
                         translation",
                        other.host, other.database, other.count
                    )));
                }
            }
        }
        Ok(Ids::Ranges(ranges))
    }

    /// The host id that `database` is shown as.
    pub fn to_host(&self, database: u32) -> u32 {
        match self {
            Ids::Same => database,
            Ids::Squash(host) => *host,
            Ids::Ranges(ranges) => ranges
                .iter()
                .find_map(|range| shift(database, range.database, range.host, range.count))
                .unwrap_or(UNMAPPED), // IDMAP-2
        }
    }

    /// The database id of what the host id `caller` makes, in a directory that `directory` owns;
    /// `None`: it is unmapped.
    pub fn owner_of_new(&self, caller: u32, directory: u32) -> Option<u32> {
        match self {
            Ids::Same => Some(caller),
            Ids::Squash(_) => Some(directory), // IDMAP-3
            Ids::Ranges(_) => self.stored(caller),
        }
    }

    /// What a change of owner to the host id `wanted` comes to.
    pub fn new_owner(&self, wanted: u32) -> NewOwner {
        match self {
            Ids::Squash(shown) if *shown == wanted => NewOwner::Keep,
            Ids::Squash(_) => NewOwner::Refused, // IDMAP-3
            Ids::Same | Ids::Ranges(_) => match self.stored(wanted) {
                Some(id) => NewOwner::Store(id),
                None => NewOwner::Unmapped,
            },
        }
    }

    /// The database id that is shown as `host`; `None`: none is, or any.
    fn stored(&self, host: u32) -> Option<u32> {
        match self {
            Ids::Same => Some(host),
            Ids::Squash(_) => None,
            Ids::Ranges(ranges) => ranges
                .iter()
                .find_map(|range| shift(host, range.host, range.database, range.count)),
        }
    }
}

/// `id` moved from the range at `from` to the one at `to`.
fn shift(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let offset = id.checked_sub(from)?;
    (offset < count).then(|| to + offset)
}

/// All translations of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap {
    /// Of users.
    pub users: Ids,
    /// Of groups.
    pub groups: Ids,
    /// Files show the permissions `0777` less this mask, whatever is stored; as fuse(8) has
    /// `umask`.
    pub file_mask: Option<u32>,
    /// The same of directories.
    pub directory_mask: Option<u32>,
}

impl IdMap {
    /// Whether everything is shown as it is stored.
    pub fn is_identity(&self) -> bool {
        *self == IdMap::default()
    }

    /// Whether owners of new nodes come from their directory.
    pub fn is_squashed(&self) -> bool {
        matches!(self.users, Ids::Squash(_)) || matches!(self.groups, Ids::Squash(_))
    }

    /// The mode that is stored for a file that the caller gives `mode`. Where one user stands for
    /// many there are no set-id bits: whoever the file belongs to in the database, it is not the
    /// caller.
    pub fn stored_mode(&self, mode: u32) -> u32 {
        let kept = if self.is_squashed() { 0o1777 } else { 0o7777 };
        mode & kept
    }

    /// Attributes from the database as the mount shows them.
    pub fn show(&self, attr: &mut Metadata) {
        attr.uid = self.users.to_host(attr.uid);
        attr.gid = self.groups.to_host(attr.gid);
        let mask = match attr.kind {
            FileKind::Directory => self.directory_mask,
            // The kernel looks at no permissions of a symbolic link.
            FileKind::Symlink => None,
            _ => self.file_mask,
        };
        if let Some(mask) = mask {
            attr.mode = attr.mode & 0o7000 | 0o777 & !mask;
        }
        if attr.kind != FileKind::Directory {
            attr.mode = self.stored_mode(attr.mode);
        }
    }
}

// ---- ACLs
// -----------------------------------------------------------------------------------------

/// Length of the version in front of an ACL in its attribute, and of each entry: a tag and
/// permissions of two bytes each, and an id (linux/posix_acl_xattr.h). Little-endian.
const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
/// Tags of the entries whose id counts.
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;
/// Tag of the entry that every ACL with such entries has.
const ACL_MASK: u16 = 0x10;

impl IdMap {
    /// Whether ACLs make sense: not where one user is shown for many, or masks replace permissions.
    pub fn has_acls(&self) -> bool {
        !self.is_squashed() && self.file_mask.is_none() && self.directory_mask.is_none()
    }

    /// The value of an attribute with an ACL, from the database, as the mount shows it: without the
    /// entries of unmapped ids (`IDMAP-4`). What is no ACL is left as it is, for others to refuse,
    /// here and below.
    pub fn acl_to_host(&self, acl: &[u8]) -> Vec<u8> {
        let translate = |entry: AclEntry| {
            let Some(ids) = self.ids_of(entry) else {
                return Some(entry);
            };
            match ids.to_host(entry.id()) {
                UNMAPPED => None,
                id => Some(entry.with_id(id)),
            }
        };
        let entries = entries_of(acl).into_iter().filter_map(translate);
        with_entries(acl, entries)
    }

    /// Such a value from a program, as it is stored in the place of `old`; `None`: an id in it is
    /// unmapped. Entries of `old` that the program was not shown are kept, unless it wants no named
    /// entries at all.
    pub fn acl_to_database(&self, acl: &[u8], old: &[u8]) -> Option<Vec<u8>> {
        let mut entries = Vec::new();
        for entry in entries_of(acl) {
            entries.push(match self.ids_of(entry) {
                Some(ids) => entry.with_id(ids.stored(entry.id())?),
                None => entry,
            });
        }
        if entries.iter().any(|entry| entry.tag() == ACL_MASK) {
            for hidden in entries_of(old) {
                let is_hidden = |ids: &Ids| ids.to_host(hidden.id()) == UNMAPPED;
                if self.ids_of(hidden).is_some_and(is_hidden) {
                    let behind = entries.iter().position(|entry| entry.tag() > hidden.tag());
                    entries.insert(behind.unwrap_or(entries.len()), hidden); // IDMAP-4
                }
            }
        }
        Some(with_entries(acl, entries.into_iter()))
    }

    /// Whose id the entry has, if it has one.
    fn ids_of(&self, entry: AclEntry) -> Option<&Ids> {
        match entry.tag() {
            ACL_USER => Some(&self.users),
            ACL_GROUP => Some(&self.groups),
            _ => None,
        }
    }
}

/// A tag, permissions, and an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry([u8; ACL_ENTRY_BYTES]);

impl AclEntry {
    fn tag(self) -> u16 {
        let [tag0, tag1, ..] = self.0;
        u16::from_le_bytes([tag0, tag1])
    }

    fn id(self) -> u32 {
        let [.., a, b, c, d] = self.0;
        u32::from_le_bytes([a, b, c, d])
    }

    fn with_id(self, id: u32) -> AclEntry {
        let [head @ .., _, _, _, _] = self.0;
        let [a, b, c, d]: [u8; 4] = head;
        let [e, f, g, h] = id.to_le_bytes();
        AclEntry([a, b, c, d, e, f, g, h])
    }
}

/// The entries of an ACL, in its order: owner, users, group, groups, mask, others, by rising tags.
fn entries_of(acl: &[u8]) -> Vec<AclEntry> {
    let entries = acl.get(ACL_HEADER_BYTES..).unwrap_or_default();
    entries
        .as_chunks()
        .0
        .iter()
        .map(|&entry| AclEntry(entry))
        .collect()
}

/// `acl` with other entries, and what follows its own.
fn with_entries(acl: &[u8], entries: impl Iterator<Item = AclEntry>) -> Vec<u8> {
    let (header, rest) = acl.split_at(acl.len().min(ACL_HEADER_BYTES));
    let odd = rest.as_chunks::<ACL_ENTRY_BYTES>().1;
    let entries: Vec<u8> = entries.flat_map(|entry| entry.0).collect();
    [header, &entries, odd].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(host: u32, database: u32, count: u32) -> IdRange {
        IdRange {
            host,
            database,
            count,
        }
    }

    /// Ids near the borders of small ranges, and the largest ones.
    fn id() -> impl Strategy<Value = u32> {
        prop_oneof![0_u32..40, u32::MAX - 3..=u32::MAX]
    }

    proptest! {
        #[test]
        fn ranges_are_one_to_one_or_refused(
            list in proptest::collection::vec((0_u32..30, 0_u32..30, 0_u32..8), 1..4),
            ids in proptest::collection::vec(id(), 2..20),
        ) {
            // The model: a list of pairs.
            let pairs: Vec<(u32, u32)> = list
                .iter()
                .flat_map(|&(host, database, count)| {
                    (0..count).map(move |n| (host + n, database + n))
                })
                .collect();
            let unique = |side: fn(&(u32, u32)) -> u32| {
                let set: std::collections::HashSet<u32> = pairs.iter().map(side).collect();
                set.len() == pairs.len()
            };
            let is_sound = unique(|p| p.0) && unique(|p| p.1) && list.iter().all(|r| r.2 > 0);
            let made = Ids::ranges(list.iter().map(|&(h, d, c)| range(h, d, c)).collect());
            prop_assert_eq!(made.is_ok(), is_sound, "IDMAP-1");
            let Ok(made) = made else { return Ok(()) };
            for id in ids {
                let shown = pairs.iter().find(|p| p.1 == id).map_or(UNMAPPED, |p| p.0);
                prop_assert_eq!(made.to_host(id), shown, "IDMAP-2");
                let stored = pairs.iter().find(|p| p.0 == id).map(|p| p.1);
                prop_assert_eq!(made.owner_of_new(id, 7), stored, "IDMAP-2");
                let owner = stored.map_or(NewOwner::Unmapped, NewOwner::Store);
                prop_assert_eq!(made.new_owner(id), owner);
                if let Some(stored) = stored {
                    prop_assert_eq!(made.to_host(stored), id, "IDMAP-1");
                }
            }
        }
    }

    #[test]
    fn ranges_stay_within_the_numbers() {
        let ids = |r: IdRange| Ids::ranges(vec![r]);
        assert!(ids(range(0, 0, u32::MAX)).is_ok());
        for bad in [
            range(0, 0, 0),
            range(1, 0, u32::MAX),
            range(0, 1, u32::MAX),
            range(UNMAPPED, 5, 1),
        ] {
            assert_eq!(ids(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let all = ids(range(0, 0, u32::MAX)).unwrap();
        assert_eq!(all.to_host(u32::MAX - 1), u32::MAX - 1);
        assert_eq!(all.owner_of_new(UNMAPPED, 0), None, "IDMAP-2");
    }

    #[test]
    fn squashing_keeps_the_owners_in_the_database() {
        let ids = Ids::Squash(1000);
        assert_eq!((ids.to_host(501), ids.to_host(0)), (1000, 1000));
        assert_eq!(ids.owner_of_new(1000, 501), Some(501), "IDMAP-3");
        assert_eq!(ids.new_owner(1000), NewOwner::Keep, "IDMAP-3");
        assert_eq!(ids.new_owner(0), NewOwner::Refused, "IDMAP-3");
        assert_eq!(Ids::Same.owner_of_new(5, 501), Some(5));
        assert_eq!(Ids::Same.new_owner(5), NewOwner::Store(5));
    }

    #[test]
    fn masks_replace_permissions_and_nothing_else() {
        let map = IdMap {
            file_mask: Some(0o137),
            directory_mask: Some(0o027),
            ..IdMap::default()
        };
        assert!(!map.is_identity() && !map.is_squashed());
        let shown = |kind, mode| {
            let mut attr = attr(kind, mode);
            map.show(&mut attr);
            (attr.uid, attr.mode)
        };
        assert_eq!(shown(FileKind::File, 0o4600), (7, 0o4640));
        assert_eq!(shown(FileKind::Directory, 0o1000), (7, 0o1750));
        assert_eq!(shown(FileKind::Symlink, 0o777), (7, 0o777));
        assert!(IdMap::default().is_identity());
    }

    #[test]
    fn ids_in_acls_are_translated() {
        let map = IdMap {
            users: Ids::ranges(vec![range(1000, 501, 2)]).unwrap(),
            groups: Ids::ranges(vec![range(7, 8, 1)]).unwrap(),
            ..IdMap::default()
        };
        assert!(map.has_acls());
        let acl = |user: u32, group: u32| {
            let mut bytes = vec![2, 0, 0, 0];
            // The owner's entry has no id; its field stays.
            for (tag, id) in [
                (1_u16, u32::MAX),
                (2, user),
                (4, u32::MAX),
                (8, group),
                (0x10, u32::MAX),
                (0x20, u32::MAX),
            ] {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(6_u16.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let stored = map.acl_to_database(&acl(1001, 7), &[]).unwrap();
        assert_eq!(stored, acl(502, 8));
        assert_eq!(map.acl_to_host(&stored), acl(1001, 7), "IDMAP-1");
        assert_eq!(map.acl_to_database(&acl(5, 7), &[]), None, "IDMAP-2");
        let foreign = acl(9, 8);
        let shown = map.acl_to_host(&foreign);
        assert_eq!(
            shown,
            [&acl(9, 7)[..12], &acl(9, 7)[20..]].concat(),
            "IDMAP-4"
        );
        assert_eq!(
            map.acl_to_database(&shown, &foreign),
            Some(foreign.clone()),
            "IDMAP-4"
        );
        let added = map.acl_to_database(&acl(1000, 7), &foreign).unwrap();
        let both = [&acl(501, 8)[..20], &foreign[12..20], &foreign[20..]].concat();
        assert_eq!(added, both, "IDMAP-4");
        // Owner, group, others.
        let minimal = [&foreign[..12], &foreign[20..28], &foreign[44..]].concat();
        assert_eq!(map.acl_to_database(&minimal, &foreign), Some(minimal));
        for odd in [&[][..], &[2, 0], &[2, 0, 0, 0, 2, 0, 6]] {
            assert_eq!(map.acl_to_database(odd, &[]).as_deref(), Some(odd));
            assert_eq!(map.acl_to_host(odd), odd);
        }
        let masked = IdMap {
            file_mask: Some(0o22),
            ..IdMap::default()
        };
        assert!(!masked.has_acls());
    }

    fn attr(kind: FileKind, mode: u32) -> Metadata {
        Metadata {
            uid: 7,
            gid: 7,
            ..Metadata::new(larder::NodeId::ROOT, kind, mode)
        }
    }
}
