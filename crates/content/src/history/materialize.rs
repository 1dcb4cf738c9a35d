//! Files of the past, or of the same moment, made anew in the present, or made what they were.

use crate::copy::copy_rest;
use crate::database::Database;
use crate::history::compare::xattrs;
use crate::provider::FileHandle;
use crate::types::{Caller, Metadata, NewNode, NodeId, SetAttr, SetTime, XattrMode};
use larder_object::Result;
use larder_object::format::{FileKind, Name};
use std::cell::Cell;

/// Carries files from one moment of a database into a transaction on it.
pub(crate) struct Materializer<'d> {
    pub(crate) past: &'d Database,
    pub(crate) view: &'d Database,
    /// Content that was copied, and not shared, bytes.
    copied_bytes: Cell<u64>,
}

impl<'d> Materializer<'d> {
    pub(crate) fn new(past: &'d Database, view: &'d Database) -> Materializer<'d> {
        Materializer {
            past,
            view,
            copied_bytes: Cell::new(0),
        }
    }

    /// Content that was copied, and not shared, bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.get()
    }

    /// Makes a file with the content that `was` has in the past, shared where it can be; attributes
    /// are set by the next.
    pub(crate) fn make(&self, parent: NodeId, name: &Name, was: &Metadata) -> Result<NodeId> {
        let owner = Caller {
            uid: was.uid,
            gid: was.gid,
            umask: 0,
        };
        let target;
        let new = match was.kind {
            FileKind::File => {
                let (attr, file) = (self.view)
                    .nodes()
                    .create_file(parent, name, was.mode, owner, true)?;
                self.copy_content(was, &*file)?;
                return Ok(attr.node);
            }
            FileKind::Directory => NewNode::Directory,
            FileKind::Symlink => {
                target = self.past.nodes().read_link(was.node)?;
                NewNode::Symlink(&target)
            }
            FileKind::Fifo => NewNode::Fifo,
            FileKind::Socket => NewNode::Socket,
            FileKind::CharDevice => NewNode::CharDevice(was.rdev),
            FileKind::BlockDevice => NewNode::BlockDevice(was.rdev),
        };
        let made = self
            .view
            .nodes()
            .create_node(parent, name, new, was.mode, owner)?;
        Ok(made.node)
    }

    /// Makes the content of a file what it was: blocks that it has still go and come back.
    pub(crate) fn write_content(&self, was: &Metadata, node: NodeId) -> Result<()> {
        let file = self.view.nodes().open(node, true)?;
        file.set_len(0)?;
        self.copy_content(was, &*file)
    }

    fn copy_content(&self, was: &Metadata, to: &dyn FileHandle) -> Result<()> {
        let from = self.past.nodes().open(was.node, false)?;
        let mut done = 0;
        while done < was.size_bytes {
            let step = copy_rest((&*from, done), (to, done))?;
            if step.bytes == 0 {
                break;
            }
            done += step.bytes;
            self.copied_bytes.set(self.copied_bytes.get() + step.copied);
        }
        Ok(())
    }

    /// Mode, owner, extended attributes and times as they were. Owner and attributes first: they
    /// take bits of the mode and capabilities.
    pub(crate) fn set_attributes(&self, was: &Metadata, node: NodeId) -> Result<()> {
        let mode = Some(was.mode).filter(|_| was.kind != FileKind::Symlink);
        let owner = SetAttr {
            mode,
            uid: Some(was.uid),
            gid: Some(was.gid),
            ..SetAttr::default()
        };
        self.view.nodes().set_attr(node, &owner)?;
        let (wanted, found) = (xattrs(self.past, was.node)?, xattrs(self.view, node)?);
        for name in found.keys().filter(|name| !wanted.contains_key(*name)) {
            self.view.attributes().remove(node, name)?;
        }
        for (name, value) in &wanted {
            if found.get(name) != Some(value) {
                self.view
                    .attributes()
                    .set(node, name, value, XattrMode::Set)?;
            }
        }
        let last = SetAttr { mode, ..times(was) };
        self.view.nodes().set_attr(node, &last)?;
        Ok(())
    }
}

/// The times of access and modification that a file had.
pub(crate) fn times(was: &Metadata) -> SetAttr {
    SetAttr {
        atime: Some(SetTime::At(was.atime_ns)),
        mtime: Some(SetTime::At(was.mtime_ns)),
        ..SetAttr::default()
    }
}
