//! Ids and names, kept apart by type.

use crate::limits::NAME_BYTES_MAX;
use std::sync::Arc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A segment of a database; files are named by it, from 0.
    SegmentIndex(u32)
}
id! {
    /// A store of a database. The default store `main` is 0; ids are never reused.
    StoreId(u32)
}
id! {
    /// An inode number, unique within its store and never reused; the root directory is 1.
    Ino(u64)
}
id! {
    /// The number of a group commit; 0 is the state that `init` leaves.
    CommitSeq(u64)
}
id! {
    /// One process that has the database open. Never reused.
    SessionId(u64)
}

impl Ino {
    /// The root directory of every store.
    pub const ROOT: Ino = Ino(1);
}

impl StoreId {
    /// The default store, `main`.
    pub const MAIN: StoreId = StoreId(0);
}

/// What an inode is; the catalog stores [`FileKind::as_str`] in column `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// All kinds, in the order of their documentation.
    pub const ALL: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];

    /// The word that column `kind` holds.
    pub fn as_str(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Directory => "dir",
            FileKind::Symlink => "symlink",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
            FileKind::CharDevice => "chardev",
            FileKind::BlockDevice => "blockdev",
        }
    }

    /// The kind that a word of column `kind` names.
    pub fn find_by_str(word: &str) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The `S_IFMT` bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010000,
            FileKind::CharDevice => 0o020000,
            FileKind::Directory => 0o040000,
            FileKind::BlockDevice => 0o060000,
            FileKind::File => 0o100000,
            FileKind::Symlink => 0o120000,
            FileKind::Socket => 0o140000,
        }
    }
}

/// The name of a directory entry: 1–255 bytes, any but `/` and NUL, and neither `.` nor `..`.
/// A clone shares the bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// Why bytes are not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a name is empty; give it at least one byte")]
    Empty,
    /// `.` or `..`.
    #[error("'.' and '..' are reserved; choose another name")]
    Reserved,
    /// More than 255 bytes.
    #[error("a name has more than 255 bytes; shorten it")]
    TooLong,
    /// A slash or a NUL byte inside.
    #[error("a name contains '/' or a NUL byte; remove it")]
    Forbidden,
}

/// A map of names can be asked with the bytes of one: both hash and compare alike.
impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Name {
    /// A name; errors say which rule is broken.
    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes == b"." || bytes == b".." {
            return Err(NameError::Reserved);
        }
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(NameError::Forbidden);
        }
        Ok(Name(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_refuse_what_posix_refuses() {
        assert_eq!(Name::new(b""), Err(NameError::Empty));
        assert_eq!(Name::new(b".."), Err(NameError::Reserved));
        assert_eq!(Name::new(b"a/b"), Err(NameError::Forbidden));
        assert_eq!(Name::new(b"a\0b"), Err(NameError::Forbidden));
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
        assert!(Name::new(&[0xff; 255]).is_ok());
    }

    #[test]
    fn kinds_round_trip() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::find_by_str(kind.as_str()), Some(kind));
        }
        assert_eq!(FileKind::find_by_str("door"), None);
    }

    #[test]
    fn a_map_of_names_is_asked_with_bytes() {
        let names = ["a", "b"].map(|name| Name::new(name.as_bytes()).expect("a name"));
        let places = std::collections::BTreeMap::from_iter(names.into_iter().zip(0..));
        assert_eq!(places.get(&b"b"[..]), Some(&1));
        assert_eq!(places.get(&b"c"[..]), None);
    }

    #[test]
    fn a_name_is_shown_with_what_is_no_utf_8_replaced() {
        let name = Name::new(b"a\"\xff").expect("a name");
        assert_eq!(name.to_string(), "a\"\u{fffd}");
        assert_eq!(format!("{name:?}"), "\"a\\\"\u{fffd}\"");
    }
}
