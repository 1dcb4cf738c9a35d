//! Paths as bytes: split, checked, never normalised behind the caller's back.

use larder_object::format::limits::PATH_BYTES_MAX;
use larder_object::{Error, ErrorKind, Result};

/// The components of an absolute path, `.` and empty ones dropped; `..` is kept and resolved
/// against the tree. [`ErrorKind::NameTooLong`] over 4095 bytes, [`ErrorKind::InvalidInput`] when
/// it is relative or has a NUL byte.
pub fn split_path(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!(
                "the path has {} bytes, at most {PATH_BYTES_MAX} are possible; shorten it",
                path.len()
            ),
        ));
    }
    if path.first() != Some(&b'/') {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "'{}' is not absolute; begin it with '/'",
                String::from_utf8_lossy(path)
            ),
        ));
    }
    if path.contains(&0) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the path has a NUL byte; remove it",
        ));
    }
    Ok(path
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked() {
        assert_eq!(
            split_path(b"/a//b/./../c/").unwrap(),
            [&b"a"[..], b"b", b"..", b"c"]
        );
        assert!(split_path(b"/").unwrap().is_empty());
        assert_eq!(
            split_path(b"a").unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(split_path(b"").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            split_path(b"/a\0").unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let long = [b"/".as_slice(), &[b'x'; 4095]].concat();
        assert_eq!(
            split_path(&long).unwrap_err().kind(),
            ErrorKind::NameTooLong
        );
    }
}
