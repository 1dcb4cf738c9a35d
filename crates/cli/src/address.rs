//! Addresses: `DB:/path` names a file in a database, anything else a local file.
//!
//! # Invariants
//! * `CLI-3` The first `:/` of an argument divides it: before it the directory of the database,
//!   from the slash on an absolute path in it. An argument without `:/` is a local path.
//! * `CLI-4` An argument that begins with `/`, `./` or `../` is a local path nevertheless when its
//!   part up to and with that colon exists in the local filesystem. So every local file can be
//!   named, and `/data/photos.larder:/a` means what it says.
//! * `CLI-30` Where the part before the colon does not exist, but has an `@` in its last name, what
//!   is before the last `@` is the directory of the database, and what is behind it the moment that
//!   is meant.

use crate::error::{Failure, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// In the local filesystem.
    Local(PathBuf),
    /// In a database.
    In(DbAddress),
}

/// A file in a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DbAddress {
    /// The directory of the database, as written.
    pub(crate) database: PathBuf,
    /// The absolute path in it, as written.
    pub(crate) path: Vec<u8>,
}

impl Address {
    /// The address that an argument names, by `CLI-3` and `CLI-4`.
    pub(crate) fn parse(argument: &OsStr) -> Result<Address> {
        Address::parse_where(argument, |prefix| prefix.symlink_metadata().is_ok())
    }

    fn parse_where(argument: &OsStr, exists: impl Fn(&Path) -> bool) -> Result<Address> {
        let bytes = argument.as_bytes();
        let local = || Ok(Address::Local(PathBuf::from(argument)));
        let Some(colon) = bytes.windows(2).position(|pair| pair == b":/") else {
            return local();
        };
        let has_local_prefix = [&b"/"[..], b"./", b"../"]
            .iter()
            .any(|prefix| bytes.starts_with(prefix));
        if has_local_prefix && exists(Path::new(OsStr::from_bytes(&bytes[..=colon]))) {
            return local();
        }
        if colon == 0 {
            return Err(Failure::Usage(format!(
                "'{}' names no database; write it as DB:/path",
                argument.display()
            )));
        }
        Ok(Address::In(DbAddress {
            database: PathBuf::from(OsStr::from_bytes(&bytes[..colon])),
            path: bytes[colon + 1..].to_vec(),
        }))
    }

    /// The same for a verb that works on files in a database only.
    pub(crate) fn parse_in_database(argument: &OsStr) -> Result<DbAddress> {
        match Address::parse(argument)? {
            Address::In(address) => Ok(address),
            Address::Local(path) => Err(Failure::Usage(format!(
                "'{0}' is a local path, not a file in a database; write it as DB:/path, like \
                 photos.larder:/2026",
                path.display()
            ))),
        }
    }
}

/// The directory of a database and the text of a moment in `DIRECTORY@MOMENT`, by `CLI-30`.
pub(crate) fn split_moment(path: &Path) -> Option<(PathBuf, String)> {
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|&byte| byte == b'@')?;
    let moment = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    // A time has no slash: that one belongs to a directory.
    let is_good = at > 0 && !moment.contains('/');
    is_good.then(|| {
        (
            PathBuf::from(OsStr::from_bytes(&bytes[..at])),
            moment.into(),
        )
    })
}

impl DbAddress {
    /// Another path in the same database.
    pub(crate) fn with_path(&self, path: Vec<u8>) -> DbAddress {
        DbAddress {
            database: self.database.clone(),
            path,
        }
    }

    /// The address as it is written, in bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [self.database.as_os_str().as_bytes(), b":", &self.path].concat()
    }
}

impl std::fmt::Display for DbAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

/// `directory/name`, with one slash between them.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last component of a path; `None` for `/`, `.` and `..`, which have no name of their own.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path
        .split(|&byte| byte == b'/')
        .rfind(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, existing: &[&str]) -> Address {
        let exists = |path: &Path| existing.iter().any(|other| Path::new(other) == path);
        Address::parse_where(OsStr::new(text), exists).unwrap()
    }

    fn inside(database: &str, path: &str) -> Address {
        Address::In(DbAddress {
            database: database.into(),
            path: path.into(),
        })
    }

    #[test]
    fn the_first_colon_slash_divides() {
        assert_eq!(
            parse("photos.larder:/a/b", &[]),
            inside("photos.larder", "/a/b"),
            "CLI-3"
        );
        assert_eq!(parse("a:/b:/c", &[]), inside("a", "/b:/c"), "CLI-3");
        assert_eq!(parse("a:b:/c", &[]), inside("a:b", "/c"), "CLI-3");
        assert_eq!(
            parse("/data/a.larder:/", &[]),
            inside("/data/a.larder", "/"),
            "CLI-3"
        );
        assert_eq!(
            parse("../a.larder:/x", &[]),
            inside("../a.larder", "/x"),
            "CLI-3"
        );
        for text in ["a", "./a", "/a/b", "a:b", "a:", "-"] {
            assert_eq!(
                parse(text, &[]),
                Address::Local(text.into()),
                "CLI-3: {text}"
            );
        }
        assert!(matches!(
            Address::parse(OsStr::new(":/x")),
            Err(Failure::Usage(_))
        ));
    }

    #[test]
    fn a_local_path_may_hold_a_colon() {
        assert_eq!(
            parse("./a:/b", &["./a:"]),
            Address::Local("./a:/b".into()),
            "CLI-4"
        );
        assert_eq!(
            parse("/tmp/a:/new", &["/tmp/a:"]),
            Address::Local("/tmp/a:/new".into()),
            "CLI-4"
        );
        assert_eq!(
            parse("a:/b", &["a:"]),
            inside("a", "/b"),
            "CLI-4: no ./ in front"
        );
        assert_eq!(parse("./a:/b", &["./a"]), inside("./a", "/b"), "CLI-4");
    }

    #[test]
    fn a_moment_stands_behind_the_database() {
        assert_eq!(
            parse("a.larder@2026-11-20T10:00:00Z:/x", &[]),
            inside("a.larder@2026-11-20T10:00:00Z", "/x"),
            "CLI-3"
        );
        let split = |text: &str| split_moment(Path::new(text));
        let parts = |database: &str, moment: &str| Some((database.into(), moment.to_owned()));
        assert_eq!(
            split("a@b.larder@seq:7"),
            parts("a@b.larder", "seq:7"),
            "CLI-30"
        );
        assert_eq!(
            split("/no/a.larder@-1h"),
            parts("/no/a.larder", "-1h"),
            "CLI-30"
        );
        for text in ["a.larder", "@x", "me@home/a.larder"] {
            assert_eq!(split(text), None, "CLI-30: {text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a@b");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(split_moment(&path), None, "CLI-30: it exists");
    }

    #[test]
    fn bytes_are_kept() {
        let raw = OsStr::from_bytes(b"db:/\xff\xfe");
        let Address::In(address) = Address::parse(raw).unwrap() else {
            panic!("it is an address")
        };
        assert_eq!(address.path, b"/\xff\xfe");
        assert_eq!(address.to_bytes(), b"db:/\xff\xfe");
    }

    #[test]
    fn paths_are_taken_apart_and_joined() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(join(b"a/", b"b"), b"a/b");
        assert_eq!(last_name(b"/a/b/"), Some(&b"b"[..]));
        for path in [&b"/"[..], b"", b"/a/..", b"."] {
            assert_eq!(last_name(path), None);
        }
    }
}
