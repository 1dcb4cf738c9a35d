//! Inode flags (chattr(1)): what they forbid, as Linux does, whoever asks: the mount, the API, the
//! command and SQL's functions about files.
//!
//! # Invariants
//! * `FLAGS-1` Nothing changes an immutable inode, its names or, of a directory, what is in it, but
//!   that the flag is taken away. An append-only file gets content at its end only, and an
//!   append-only directory names; neither loses any, nor its own.
//!
//! Who may set them is for the kernel to decide (`CAP_LINUX_IMMUTABLE`); the API obeys whoever may
//! open the database. Rolling back a whole store is not stopped by them: it brings them back.

use crate::types::{InodeFlags, SetAttr, SetTime};
use larder_object::format::{FileKind, Ino, StoreId};
use larder_object::{AttrMask, Engine, Error, ErrorKind, InodeRow, Result};

/// Of an inode that has one of `flags`.
fn require_none(found: InodeFlags, flags: &[InodeFlags]) -> Result<()> {
    match flags.iter().find(|flag| found.has(**flag)) {
        None => Ok(()),
        Some(&InodeFlags::IMMUTABLE) => Err(Error::new(
            ErrorKind::NotPermitted,
            "it is immutable; take the flag away by 'chattr -i' first",
        )),
        Some(_) => Err(Error::new(
            ErrorKind::NotPermitted,
            "it is append-only; take the flag away by 'chattr -a' first",
        )),
    }
}

/// Content changes anywhere, or only at the end.
pub(crate) fn require_content(flags: InodeFlags, at_end: bool) -> Result<()> {
    match at_end {
        true => require_none(flags, &[InodeFlags::IMMUTABLE]),
        false => require_all(flags),
    }
}

/// Everything may be changed.
fn require_all(flags: InodeFlags) -> Result<()> {
    require_none(flags, &[InodeFlags::IMMUTABLE, InodeFlags::APPEND])
}

/// Attributes, also extended ones, change.
pub(crate) fn require_attributes(row: &InodeRow, set: &SetAttr) -> Result<()> {
    let is_now = |time: Option<SetTime>| matches!(time, None | Some(SetTime::Now));
    let is_touch = is_now(set.atime) && is_now(set.mtime);
    let has_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let has_times = set.atime.is_some() || set.mtime.is_some();
    let flags = InodeFlags::of(row);
    match (
        has_owner || set.size_bytes.is_some() || !is_touch,
        has_times,
    ) {
        (true, _) => require_all(flags),
        (false, true) => require_none(flags, &[InodeFlags::IMMUTABLE]),
        (false, false) => Ok(()),
    }
}

/// The same of extended attributes and links.
pub(crate) fn require_free(row: &InodeRow) -> Result<()> {
    require_all(InodeFlags::of(row))
}

/// A directory gets a name.
pub(crate) fn require_adding(dir: &InodeRow) -> Result<()> {
    require_none(InodeFlags::of(dir), &[InodeFlags::IMMUTABLE])
}

/// A directory loses a name, and an inode that is called so.
pub(crate) fn require_removing(dir: &InodeRow, victim: &InodeRow) -> Result<()> {
    require_free(dir)?;
    require_free(victim)
}

/// Sets the flags of a file or directory of a table.
pub(crate) fn set_flags(
    engine: &Engine,
    table: StoreId,
    ino: Ino,
    flags: InodeFlags,
) -> Result<()> {
    let change = engine.namespace().write_guard()?;
    let node = change.node(table, ino)?;
    if !matches!(node.kind(), FileKind::File | FileKind::Directory) {
        let why = "only files and directories have flags";
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let mask = AttrMask {
        flags: true,
        ctime: true,
        ..AttrMask::default()
    };
    let now_ns = change.now_ns;
    change.update(&node, mask, |row| {
        row.rdev = flags.bits().into();
        row.ctime_ns = now_ns;
    })?;
    change.commit()
}
