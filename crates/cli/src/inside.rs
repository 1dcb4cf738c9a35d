//! A database as a side of a copy, and small steps that several verbs take in a database.

mod entries;
mod folder;

use crate::address::{DbAddress, join, last_name};
use crate::error::{At, Failure, Result};
use crate::side::{Folder, Found, SELF, Side, Spot};
pub(crate) use entries::for_each_entry;
use entries::lookup;
use folder::{InsideFolder, found};
use larder::{Database, ErrorKind, FileKind, Metadata, NodeId, limits};
use std::rc::Rc;

/// What an address leads to. Cost: one lookup per component.
pub(crate) fn resolve(database: &Database, address: &DbAddress, follow: bool) -> Result<Metadata> {
    database
        .nodes()
        .resolve(&address.path, follow)
        .at(|| address.to_string())
}

/// The same, when nothing there is no failure.
pub(crate) fn find(
    database: &Database,
    path: &[u8],
    follow: bool,
) -> larder::Result<Option<Metadata>> {
    match database.nodes().resolve(path, follow) {
        Ok(attr) => Ok(Some(attr)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The creation mask of this process.
pub(crate) fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

/// A database.
pub(crate) struct Inside {
    pub(crate) database: Database,
    /// As the user wrote it, for messages.
    pub(crate) address: DbAddress,
}

impl Inside {
    fn folder_at(&self, node: NodeId, path: Vec<u8>) -> Rc<dyn Folder> {
        let (database, address) = (self.database.clone(), self.address.with_path(path));
        Rc::new(InsideFolder {
            database,
            address,
            node,
        })
    }
}

impl Side for Inside {
    fn show(&self, path: &[u8]) -> String {
        self.address.with_path(path.to_vec()).to_string()
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>> {
        Ok(find(&self.database, path, follow)
            .at(|| self.show(path))?
            .map(|attr| found(&attr)))
    }

    fn start(&self, path: &[u8], follow: bool) -> Result<Spot> {
        let mut path = path.to_vec();
        for _ in 0..=limits::SYMLINK_FOLLOW_MAX {
            if last_name(&path).is_none() {
                let what = || self.show(&path);
                let node = self.database.nodes().resolve(&path, true).at(what)?.node;
                let (folder, name) = (self.folder_at(node, path), SELF.to_vec());
                return Ok(Spot { folder, name });
            }
            let what = || self.show(&path);
            let (parent, name) = self.database.nodes().resolve_parent(&path).at(what)?;
            // With a slash behind it a link to a directory is that directory.
            let follow = follow || path.last() == Some(&b'/');
            let is_link = |found: &Metadata| found.kind == FileKind::Symlink;
            let link = match follow {
                true => lookup(&self.database, parent, &name).at(what)?,
                false => None,
            };
            let above = above(&path);
            let Some(link) = link.filter(is_link) else {
                let (folder, name) = (self.folder_at(parent, above), name.as_bytes().to_vec());
                return Ok(Spot { folder, name });
            };
            let target = self.database.nodes().read_link(link.node).at(what)?;
            path = match target.first() {
                Some(b'/') => target,
                _ => join(&above, &target),
            };
        }
        Err(Failure::Other(format!(
            "'{}' is a cycle of symbolic links; look where they lead",
            self.show(&path)
        )))
    }

    fn folder(&self, path: &[u8]) -> Result<Option<Rc<dyn Folder>>> {
        let attr = find(&self.database, path, true).at(|| self.show(path))?;
        let directory = attr.filter(|attr| attr.kind == FileKind::Directory);
        Ok(directory.map(|attr| self.folder_at(attr.node, path.to_vec())))
    }
}

/// The path without its last name.
fn above(path: &[u8]) -> Vec<u8> {
    let is_slash = |byte: &u8| *byte == b'/';
    let end = path.iter().rposition(|byte| !is_slash(byte)).unwrap_or(0);
    let slash = path[..end].iter().rposition(is_slash).unwrap_or(0);
    path[..=slash].to_vec()
}
