//! What operations on files demand of the nodes that they are given.

use larder_object::format::{FileKind, Name};
use larder_object::{Error, ErrorKind, InodeRow, Node, Result, WriteGuard};

pub(crate) fn require_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Error::new(
            ErrorKind::IsADirectory,
            "it is a directory, which has no content",
        )),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "only regular files have content",
        )),
    }
}

pub(super) fn require_directory(node: &Node) -> Result<()> {
    match node.kind() {
        FileKind::Directory => Ok(()),
        _ => Err(Error::new(ErrorKind::NotADirectory, "not a directory")),
    }
}

/// A directory that was removed takes no new entries.
pub(super) fn require_linked(row: &InodeRow) -> Result<()> {
    if row.nlink > 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotFound, "the directory was removed"))
}

pub(super) fn require_empty_directory(
    change: &WriteGuard<'_>,
    node: &Node,
    row: &InodeRow,
    name: &Name,
) -> Result<()> {
    if row.kind != FileKind::Directory {
        return Err(Error::new(
            ErrorKind::NotADirectory,
            format!("'{name}' is not a directory"),
        ));
    }
    if !change.list(node, None, 1)?.is_empty() {
        return Err(Error::new(
            ErrorKind::NotEmpty,
            format!("directory '{name}' is not empty"),
        ));
    }
    Ok(())
}

pub(crate) fn require_file(row: &InodeRow) -> Result<()> {
    require_kind(row.kind)
}

pub(crate) fn absent(name: &Name) -> Error {
    Error::new(ErrorKind::NotFound, format!("'{name}' does not exist"))
}
