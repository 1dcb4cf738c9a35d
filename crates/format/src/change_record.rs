//! What a commit did, for those who follow the change feed.
//!
//! A row of the feed holds the changes of a commit, or a part of them. Encoding: a version byte, 1,
//! and then one record behind the other. Numbers are LEB128: 7 bits per byte, the lowest first, the
//! highest bit set in all but the last byte.
//!
//! ```text
//! operation u8 · store · ino · …
//!   1 create      kind u8 (place in FileKind::ALL) · entry
//!   2 create      kind u8; without a name
//!   3 link        entry
//!   4 rename      entry it had · entry it has
//!   5 remove      entry
//!   6 delete
//!   7 content
//!   8 attributes
//!   9 xattr       length · name of the attribute
//! entry: parent · length · name
//! ```

use crate::{DecodeError, FileKind, Ino, Name, StoreId};

const VERSION: u8 = 1;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Name,
}

/// What happened to an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// It is new, with content and attributes; without an entry it has no name yet.
    Create {
        /// What it is.
        kind: FileKind,
        /// Its first name.
        entry: Option<Entry>,
    },
    /// It has one more name.
    Link(Entry),
    /// One of its names changed.
    Rename {
        /// The name it had.
        from: Entry,
        /// The name it has.
        to: Entry,
    },
    /// It lost a name.
    Remove(Entry),
    /// It is gone: nobody has it open any more either.
    Delete,
    /// Its content changed.
    Content,
    /// Its mode, owner or times changed.
    Attributes,
    /// An extended attribute was set or removed.
    Xattr(Vec<u8>),
}

/// One change of one inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRecord {
    /// Its store.
    pub store: StoreId,
    /// The inode.
    pub ino: Ino,
    /// What happened.
    pub operation: Operation,
}

/// The bytes of a row.
pub fn encode_changes(changes: &[ChangeRecord]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + changes.len() * 32);
    out.push(VERSION);
    for ChangeRecord {
        store,
        ino,
        operation,
    } in changes
    {
        out.push(match operation {
            Operation::Create { entry: Some(_), .. } => 1,
            Operation::Create { entry: None, .. } => 2,
            Operation::Link(_) => 3,
            Operation::Rename { .. } => 4,
            Operation::Remove(_) => 5,
            Operation::Delete => 6,
            Operation::Content => 7,
            Operation::Attributes => 8,
            Operation::Xattr(_) => 9,
        });
        put_number(&mut out, store.0.into());
        put_number(&mut out, ino.0);
        match operation {
            Operation::Create { kind, entry } => {
                let place = FileKind::ALL.iter().position(|other| other == kind);
                out.push(place.map_or(u8::MAX, |place| place as u8));
                if let Some(entry) = entry {
                    put_entry(&mut out, entry);
                }
            }
            Operation::Link(entry) | Operation::Remove(entry) => put_entry(&mut out, entry),
            Operation::Rename { from, to } => {
                put_entry(&mut out, from);
                put_entry(&mut out, to);
            }
            Operation::Delete | Operation::Content | Operation::Attributes => {}
            Operation::Xattr(name) => put_bytes(&mut out, name),
        }
    }
    out
}

/// Reads the bytes of a row; any damage is refused (`FORMAT-2`).
pub fn decode_changes(bytes: &[u8]) -> Result<Vec<ChangeRecord>, DecodeError> {
    let mut reader = Reader { rest: bytes };
    match reader.byte() {
        Some(VERSION) => {}
        found => {
            return Err(refuse(format!(
                "version expected {VERSION}, found {found:?}"
            )));
        }
    }
    let mut changes = Vec::new();
    while !reader.rest.is_empty() {
        let at = bytes.len() - reader.rest.len();
        let change = reader
            .change()
            .ok_or_else(|| refuse(format!("the record at byte {at} has no such form")))?;
        changes.push(change);
    }
    Ok(changes)
}

fn refuse(why: String) -> DecodeError {
    DecodeError {
        what: "changes of a commit",
        why,
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend(bytes);
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_number(out, entry.parent.0);
    put_bytes(out, entry.name.as_bytes());
}

struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn entry(&mut self) -> Option<Entry> {
        Some(Entry {
            parent: Ino(self.number()?),
            name: Name::new(self.bytes()?).ok()?,
        })
    }

    fn change(&mut self) -> Option<ChangeRecord> {
        let operation = self.byte()?;
        let store = StoreId(u32::try_from(self.number()?).ok()?);
        let ino = Ino(self.number()?);
        let operation = match operation {
            1 | 2 => Operation::Create {
                kind: *FileKind::ALL.get(usize::from(self.byte()?))?,
                entry: match operation {
                    1 => Some(self.entry()?),
                    _ => None,
                },
            },
            3 => Operation::Link(self.entry()?),
            4 => Operation::Rename {
                from: self.entry()?,
                to: self.entry()?,
            },
            5 => Operation::Remove(self.entry()?),
            6 => Operation::Delete,
            7 => Operation::Content,
            8 => Operation::Attributes,
            9 => Operation::Xattr(self.bytes()?.to_vec()),
            _ => return None,
        };
        Some(ChangeRecord {
            store,
            ino,
            operation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (
            any::<u64>(),
            prop::collection::vec(any::<u8>(), 1..256)
                .prop_filter_map("a name", |bytes| Name::new(&bytes).ok()),
        )
            .prop_map(|(parent, name)| Entry {
                parent: Ino(parent),
                name,
            })
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0..FileKind::ALL.len(), prop::option::of(entry())).prop_map(|(kind, entry)| {
                Operation::Create {
                    kind: FileKind::ALL[kind],
                    entry,
                }
            }),
            entry().prop_map(Operation::Link),
            (entry(), entry()).prop_map(|(from, to)| Operation::Rename { from, to }),
            entry().prop_map(Operation::Remove),
            Just(Operation::Delete),
            Just(Operation::Content),
            Just(Operation::Attributes),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Operation::Xattr),
        ]
    }

    #[test]
    fn a_damaged_record_is_named_by_its_first_byte() {
        let mut bytes = encode_changes(&[ChangeRecord {
            store: StoreId::MAIN,
            ino: Ino::ROOT,
            operation: Operation::Delete,
        }]);
        bytes.push(10); // There is no such operation.
        let refused = decode_changes(&bytes).expect_err("FORMAT-2").to_string();
        assert!(refused.contains("the record at byte 4 "), "{refused}");
    }

    proptest! {
        #[test]
        fn changes_round_trip(
            changes in prop::collection::vec((any::<u32>(), any::<u64>(), operation()), 0..20)
        ) {
            let changes: Vec<ChangeRecord> = changes
                .into_iter()
                .map(|(store, ino, operation)| ChangeRecord {
                    store: StoreId(store),
                    ino: Ino(ino),
                    operation,
                })
                .collect();
            let bytes = encode_changes(&changes);
            prop_assert_eq!(decode_changes(&bytes).unwrap(), changes, "FORMAT-3");
        }

        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_changes(&bytes); // FORMAT-2
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = decode_changes(&bytes);
        }
    }
}
