//! POSIX access control lists (POSIX 1003.1e, draft 17), in the form that Linux gives them as
//! values of extended attributes.
//!
//! # Words
//! An *access* list says who may use an inode; a *default* list of a directory is what is made in
//! it inherits. A list has one entry each for owner, group and others; *named* entries for users
//! and groups; and a *mask*, which bounds the named entries and the group. A list without a mask,
//! and so without named entries, is *minimal*: it says what a mode can say.
//!
//! # Invariants
//! * `ACL-1` Owner, mask and others of an access list are what the mode says, whatever is stored.
//!   So a chmod, also one by SQL, changes the list without touching it.
//! * `ACL-2` An access list is stored only if it is not minimal: then the mode says it all.
//! * `ACL-3` What is made under a default list gets no bit that the creator did not ask for and
//!   none that the list does not give; the creator's umask does not count.

use larder_object::{Error, ErrorKind, Result};

/// The extended attribute that is the access list.
pub(crate) const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// The extended attribute that is the default list of a directory.
pub(crate) const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";

/// `POSIX_ACL_XATTR_VERSION` of `linux/posix_acl_xattr.h`: the value is a `u32` version, then for
/// each entry `u16` tag, `u16` permissions, `u32` id, all little-endian.
const VERSION: u32 = 2;
const VERSION_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Most entries: the kernel reads lists of at most a page.
const ENTRIES_MAX: usize = (4096 - VERSION_BYTES) / ENTRY_BYTES;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Read, write, execute: `0..=7`.
type Permissions = u16;

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    owner: Permissions,
    /// Named users, in the order given.
    users: Vec<(u32, Permissions)>,
    group: Permissions,
    /// Named groups, in the order given.
    groups: Vec<(u32, Permissions)>,
    mask: Option<Permissions>,
    others: Permissions,
}

impl Acl {
    /// The list that `value` says; `None`: one without entries, which is to have no list.
    /// [`ErrorKind::InvalidInput`] unless the entries are valid and in order;
    /// [`ErrorKind::Unsupported`] for another version; [`ErrorKind::NoSpace`] when there are more
    /// than a kernel reads.
    pub(crate) fn decode(value: &[u8]) -> Result<Option<Acl>> {
        let Some((version, entries)) = value.split_first_chunk::<VERSION_BYTES>() else {
            return Err(invalid("it is cut off"));
        };
        if u32::from_le_bytes(*version) != VERSION {
            let why = "only version 2 of the form of access control lists is known";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else {
            return Err(invalid("it is cut off"));
        };
        if entries.is_empty() {
            return Ok(None);
        }
        if entries.len() > ENTRIES_MAX {
            let why = format!("an access control list has at most {ENTRIES_MAX} entries");
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        let mut rest = entries.iter().map(decode_entry).peekable();
        let mut one = |tag: u16| rest.next_if(|entry| entry.tag == tag);
        let owner = one(USER_OBJ).ok_or_else(|| invalid("it has no owner, or not first"))?;
        let users: Vec<Entry> = std::iter::from_fn(|| one(USER)).collect();
        let group =
            one(GROUP_OBJ).ok_or_else(|| invalid("it has no group, or not in its place"))?;
        let groups: Vec<Entry> = std::iter::from_fn(|| one(GROUP)).collect();
        let mask = one(MASK);
        let others =
            one(OTHER).ok_or_else(|| invalid("it has no others, or not in their place"))?;
        if rest.next().is_some() {
            return Err(invalid("something follows its end"));
        }
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(invalid("named entries need a mask"));
        }
        let (named, all) = (
            users.iter().chain(&groups),
            entries.iter().map(decode_entry),
        );
        if named.clone().any(|entry| entry.id == NO_ID) {
            return Err(invalid("a named entry has no id"));
        }
        if all.clone().any(|entry| entry.permissions > 7) {
            return Err(invalid("an entry has permissions that do not exist"));
        }
        let pair = |entry: Entry| (entry.id, entry.permissions);
        Ok(Some(Acl {
            owner: owner.permissions,
            users: users.into_iter().map(pair).collect(),
            group: group.permissions,
            groups: groups.into_iter().map(pair).collect(),
            mask: mask.map(|mask| mask.permissions),
            others: others.permissions,
        }))
    }

    /// The value that says this list.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        let mut add = |tag: u16, permissions: Permissions, id: u32| {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        };
        add(USER_OBJ, self.owner, NO_ID);
        self.users
            .iter()
            .for_each(|&(id, bits)| add(USER, bits, id));
        add(GROUP_OBJ, self.group, NO_ID);
        self.groups
            .iter()
            .for_each(|&(id, bits)| add(GROUP, bits, id));
        self.mask
            .into_iter()
            .for_each(|mask| add(MASK, mask, NO_ID));
        add(OTHER, self.others, NO_ID);
        value
    }

    /// Whether a mode can say the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// The permission bits of the mode of who has this access list: `0..=0o777`.
    pub(crate) fn mode_bits(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.others)
    }

    /// The access list of an inode whose mode is `mode` (`ACL-1`).
    pub(crate) fn with_mode(mut self, mode: u32) -> Acl {
        let [owner, group, others] = classes(mode);
        (self.owner, self.others) = (owner, others);
        *self.mask.as_mut().unwrap_or(&mut self.group) = group;
        self
    }

    /// What a node made with `mode` gets in a directory with this default list: its mode, and its
    /// access list if that is not minimal (`ACL-2`, `ACL-3`).
    pub(crate) fn inherit(&self, mode: u32) -> (u32, Option<Acl>) {
        let asked = classes(mode);
        let given = classes(self.mode_bits());
        let bits = (0..3).fold(0, |bits, class| {
            bits << 3 | u32::from(asked[class] & given[class])
        });
        let access = self.clone().with_mode(bits);
        (
            mode & !0o777 | bits,
            (!access.is_minimal()).then_some(access),
        )
    }
}

struct Entry {
    tag: u16,
    permissions: Permissions,
    id: u32,
}

fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> Entry {
    let [tag, tag_high, bits, bits_high, id @ ..] = *bytes;
    Entry {
        tag: u16::from_le_bytes([tag, tag_high]),
        permissions: u16::from_le_bytes([bits, bits_high]),
        id: u32::from_le_bytes(id),
    }
}

/// The bits of owner, group (or mask) and others in a mode.
fn classes(mode: u32) -> [Permissions; 3] {
    [6, 3, 0].map(|shift| (mode >> shift & 7) as Permissions)
}

fn invalid(why: &str) -> Error {
    let what = format!("the access control list is not valid: {why}");
    Error::new(ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
        let acl = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
        [acl, id.to_le_bytes().to_vec()].concat()
    }

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries
            .iter()
            .flat_map(|&(tag, bits, id)| entry(tag, bits, id));
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// The rules of `acl(5)` said again, over the plain sequence of tags.
    fn is_valid(entries: &[(u16, u16, u32)]) -> bool {
        let tags: Vec<u16> = entries.iter().map(|entry| entry.0).collect();
        let count = |tag: u16| tags.iter().filter(|&&other| other == tag).count();
        let has_names = count(USER) + count(GROUP) > 0;
        tags.is_sorted()
            && [USER_OBJ, GROUP_OBJ, OTHER]
                .iter()
                .all(|&tag| count(tag) == 1)
            && count(MASK) <= 1
            && (!has_names || count(MASK) == 1)
            && tags
                .iter()
                .all(|tag| [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(tag))
            && entries.iter().all(|entry| entry.1 <= 7)
            && entries
                .iter()
                .all(|entry| !matches!(entry.0, USER | GROUP) || entry.2 != NO_ID)
    }

    #[test]
    fn exactly_the_valid_lists_are_read_and_come_out_as_they_went_in() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let (mut valid, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let mut entries: Vec<(u16, u16, u32)> = (0..random(8))
                .map(|_| (1 << random(6), random(8) as u16, random(5) as u32))
                .collect();
            if random(2) == 0 {
                entries.extend([USER_OBJ, GROUP_OBJ, OTHER].map(|tag| (tag, 5, NO_ID)));
            }
            if random(4) > 0 {
                entries.sort_by_key(|entry| entry.0);
            }
            match random(40) {
                0 => entries.extend(entries.last().copied().map(|last| (0x40, last.1, last.2))),
                1 => entries.iter_mut().take(1).for_each(|entry| entry.1 = 8),
                2 => entries
                    .iter_mut()
                    .skip(1)
                    .take(1)
                    .for_each(|entry| entry.2 = NO_ID),
                _ => {}
            }
            let bytes = value(&entries);
            let read = Acl::decode(&bytes);
            if entries.is_empty() {
                assert!(matches!(read, Ok(None)));
                continue;
            }
            assert_eq!(read.is_ok(), is_valid(&entries), "{entries:?}");
            let Ok(Some(acl)) = read else {
                refused += 1;
                continue;
            };
            valid += 1;
            // What has no id is written without one.
            let plain = |entry: &(u16, u16, u32)| match entry.0 {
                USER | GROUP => *entry,
                tag => (tag, entry.1, NO_ID),
            };
            let entries: Vec<_> = entries.iter().map(plain).collect();
            assert_eq!(acl.encode(), value(&entries));
        }
        assert!(valid > 1000 && refused > 1000, "{valid} {refused}");
    }

    #[test]
    fn versions_lengths_and_sizes_are_checked() {
        let kind = |bytes: &[u8]| Acl::decode(bytes).unwrap_err().kind();
        assert_eq!(kind(&[]), ErrorKind::InvalidInput);
        assert_eq!(kind(&[2, 0, 0]), ErrorKind::InvalidInput);
        assert_eq!(kind(&[1, 0, 0, 0]), ErrorKind::Unsupported);
        assert_eq!(kind(&[2, 0, 0, 0, 1]), ErrorKind::InvalidInput);
        let many = |count: usize| {
            let named = (0..count).map(|id| (USER, 7, id as u32));
            let first = [(USER_OBJ, 7, NO_ID)].into_iter().chain(named);
            let last = [(GROUP_OBJ, 7, NO_ID), (MASK, 7, NO_ID), (OTHER, 7, NO_ID)];
            value(&first.chain(last).collect::<Vec<_>>())
        };
        assert!(Acl::decode(&many(ENTRIES_MAX - 4)).is_ok());
        assert_eq!(kind(&many(ENTRIES_MAX - 3)), ErrorKind::NoSpace);
    }

    #[test]
    fn every_mode_under_every_default_list_inherits_as_the_draft_says() {
        // 1003.1e, 23.1.4 "Default ACL": the access list is the default list, and then the entries
        // for owner, others, and the mask (or the group, without a mask) keep what `mode` has.
        for bits in 0..0o10000u16 {
            let [owner, group, others, mask] = [9, 6, 3, 0].map(|shift| bits >> shift & 7);
            for mask in [Some(mask), None] {
                let named = mask.map(|_| (1000, 7));
                let default = Acl {
                    owner,
                    users: named.into_iter().collect(),
                    group,
                    groups: Vec::new(),
                    mask,
                    others,
                };
                for mode in [0o0u16, 0o777, 0o640, 0o2751, 0o4027, bits & 0o777] {
                    let (got, access) = default.inherit(mode.into());
                    let class = mask.unwrap_or(group) & (mode >> 3) & 7;
                    let expected = (owner & mode >> 6) << 6 | class << 3 | others & mode & 7;
                    assert_eq!(got, u32::from(mode & !0o777 | expected), "ACL-3");
                    assert_eq!(access.is_some(), mask.is_some(), "ACL-2");
                    if let Some(access) = access {
                        assert_eq!(access.mode_bits(), got & 0o777, "ACL-1");
                        assert_eq!(
                            (access.group, access.users),
                            (group, vec![(1000, 7)]),
                            "ACL-3"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_chmod_sets_owner_mask_and_others() {
        let bytes = value(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 9),
            (GROUP_OBJ, 5, NO_ID),
            (MASK, 6, NO_ID),
            (OTHER, 4, NO_ID),
        ]);
        let acl = Acl::decode(&bytes).unwrap().unwrap();
        assert_eq!(acl.mode_bits(), 0o764);
        let acl = acl.with_mode(0o4312);
        assert_eq!(
            (acl.owner, acl.group, acl.mask, acl.others),
            (3, 5, Some(1), 2),
            "ACL-1"
        );
        assert_eq!(acl.users, [(9, 6)]);
    }
}
