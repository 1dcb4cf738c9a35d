//! What a request is about, in one form for all of them: for logs and traces. Pure.

use crate::request::Operation;
use crate::values::NodeNumber;

/// What is asked for beside the node of the request. What a request does not have is empty or 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Detail<'r> {
    /// The name of an entry in the request's node.
    pub name: &'r [u8],
    /// Another node, and with a name an entry in it: where a rename goes, what a link names.
    pub other: Option<(NodeNumber, &'r [u8])>,
    /// The name of an extended attribute.
    pub attribute: &'r [u8],
    /// Where in the file, bytes; in a directory the position.
    pub offset: u64,
    /// How much is asked for or given, bytes.
    pub size_bytes: u64,
}

impl<'r> Operation<'r> {
    /// What it is about.
    pub(crate) fn detail(&self) -> Detail<'r> {
        let none = Detail::default();
        let at = |offset: u64, size_bytes: u64| Detail {
            offset,
            size_bytes,
            ..none
        };
        match *self {
            Operation::Lookup { name }
            | Operation::Symlink { name, .. }
            | Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Unlink { name }
            | Operation::Rmdir { name }
            | Operation::Create { name, .. } => Detail { name, ..none },
            Operation::Link { node, name } => Detail {
                name,
                other: Some((node, b"")),
                ..none
            },
            Operation::Rename(rename) => Detail {
                name: rename.name,
                other: Some((rename.new_parent, rename.new_name)),
                ..none
            },
            Operation::Setattr(change) => at(0, change.size_bytes.unwrap_or(0)),
            Operation::Read { read, len_bytes } => at(read.offset, len_bytes.into()),
            Operation::Write(write) => at(write.offset, write.data.len() as u64),
            Operation::Setxattr(set) => Detail {
                attribute: set.name,
                ..at(0, set.value.len() as u64)
            },
            Operation::Getxattr { name, .. } | Operation::Removexattr { name } => Detail {
                attribute: name,
                ..none
            },
            Operation::Readdir { offset, .. } | Operation::Readdirplus { offset, .. } => {
                at(offset, 0)
            }
            Operation::Fallocate(range) => at(range.offset, range.len_bytes),
            Operation::Lseek { offset, .. } => at(offset, 0),
            Operation::CopyFileRange { range, .. } => Detail {
                other: Some((range.to_node, b"")),
                ..at(range.from_offset, range.len_bytes)
            },
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Getattr(_)
            | Operation::Statx(_)
            | Operation::Readlink
            | Operation::Open(_)
            | Operation::Tmpfile { .. }
            | Operation::Flush { .. }
            | Operation::Release(_)
            | Operation::Fsync { .. }
            | Operation::Listxattr { .. }
            | Operation::Opendir(_)
            | Operation::Releasedir(_)
            | Operation::Fsyncdir { .. }
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Access { .. }
            | Operation::Ioctl(_)
            | Operation::Statfs
            | Operation::Syncfs
            | Operation::Destroy
            | Operation::Interrupt { .. } => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Rename;

    #[test]
    fn names_and_places_are_told() {
        let rename = Operation::Rename(Rename {
            parent: NodeNumber(1),
            name: b"a",
            new_parent: NodeNumber(2),
            new_name: b"b",
            flags: 0,
        });
        let detail = rename.detail();
        assert_eq!(detail.name, b"a");
        assert_eq!(detail.other, Some((NodeNumber(2), &b"b"[..])));
        let lookup = Operation::Lookup { name: b"x" };
        assert_eq!(lookup.detail().name, b"x");
        let attribute = Operation::Removexattr { name: b"user.x" }.detail();
        assert_eq!(
            (attribute.name, attribute.attribute),
            (&b""[..], &b"user.x"[..])
        );
        assert_eq!(Operation::Statfs.detail(), Detail::default());
    }
}
