//! Changes of attributes: which they touch, and what they make of a row. A change of the length has
//! the others with it.

use crate::set_id::set_id_bits;
use crate::types::{SetAttr, SetTime};
use larder_object::format::FileKind;
use larder_object::{AttrMask, Engine, InodeRow, Node, Result, RowEdit};
use std::sync::Arc;

/// Sets the length of a regular file, and the other attributes with it: all of it, or nothing.
pub(crate) fn truncate(
    engine: &Engine,
    node: &Arc<Node>,
    size_bytes: u64,
    set: &SetAttr,
) -> Result<InodeRow> {
    let with = RowEdit {
        mask: mask_of(set, FileKind::File),
        edit: &|row, now_ns| apply(set, row, now_ns),
    };
    engine
        .content()
        .truncate_with(node, size_bytes, Some(&with))
}

/// Whether set-id bits go.
fn drops_set_id(set: &SetAttr, kind: FileKind) -> bool {
    let has_owner = set.uid.is_some() || set.gid.is_some();
    (has_owner || set.drop_set_id) && kind != FileKind::Directory
}

/// Which attributes a change touches, of an inode of this kind.
pub(crate) fn mask_of(set: &SetAttr, kind: FileKind) -> AttrMask {
    AttrMask {
        mode: set.mode.is_some() || drops_set_id(set, kind),
        owner: set.uid.is_some() || set.gid.is_some(),
        atime: set.atime.is_some(),
        mtime: set.mtime.is_some(),
        ctime: true,
        ..AttrMask::default()
    }
}

/// Sets the attributes, but the length.
pub(crate) fn apply(set: &SetAttr, row: &mut InodeRow, now_ns: i64) {
    let at = |time: SetTime| match time {
        SetTime::Now => now_ns,
        SetTime::At(ns) => ns,
    };
    row.mode = match set.mode {
        Some(mode) => mode & 0o7777,
        None if drops_set_id(set, row.kind) => row.mode & !set_id_bits(row.mode),
        None => row.mode,
    };
    row.uid = set.uid.unwrap_or(row.uid);
    row.gid = set.gid.unwrap_or(row.gid);
    row.atime_ns = set.atime.map_or(row.atime_ns, at);
    row.mtime_ns = set.mtime.map_or(row.mtime_ns, at);
    row.ctime_ns = set.ctime.map_or(now_ns, at);
}
