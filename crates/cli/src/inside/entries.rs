//! Entries of a directory inside a database.

use crate::error::Result;
use larder::{Database, DirEntry, ErrorKind, Metadata, Name, NodeId};

/// Directory entries that are fetched at a time.
const PAGE_ENTRIES: usize = 1000;

/// Calls `visit` for each entry of a directory, in the directory's order. Entries that are removed
/// meanwhile do no harm. Memory: one page.
pub(crate) fn for_each_entry(
    database: &Database,
    directory: NodeId,
    mut visit: impl FnMut(DirEntry) -> Result<()>,
) -> Result<()> {
    let mut after: Option<Name> = None;
    loop {
        let page = database
            .nodes()
            .read_dir(directory, after.as_ref(), PAGE_ENTRIES)?;
        let is_last = page.len() < PAGE_ENTRIES;
        after = page.last().map(|entry| entry.name.clone());
        page.into_iter().try_for_each(&mut visit)?;
        if is_last {
            return Ok(());
        }
    }
}

/// What has a name in a directory, if anything.
pub(super) fn lookup(
    database: &Database,
    parent: NodeId,
    name: &Name,
) -> larder::Result<Option<Metadata>> {
    match database.nodes().lookup(parent, name) {
        Ok(attr) => Ok(Some(attr)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
