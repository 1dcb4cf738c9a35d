//! The cover over a database's directory, for the program of a `larder txn run`.
//!
//! What opens the database by its own path would work outside of the transaction. So CMD has a
//! mount namespace below the server's, in which an empty directory that cannot be written lies over
//! the database's, with one file whose name says what to use. Below [`COVERED`] is what it covers:
//! that is where `LARDER_TXN` leads. It guards against mistakes; who may unmount it can.

use larder::COVERED;
use larder::directory::DatabaseDir;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The file in the cover.
const NOTICE: &str = "inside 'larder txn run' use 'larder sql' and the files of its mount";

/// Where `path`, which is in the directory `db`, is for the program.
pub(crate) fn path_below(db: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix(db) {
        Ok(rest) => db.join(COVERED).join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Gives this thread, and what it starts, a mount namespace in which `db` is covered. An error
/// leaves it uncovered. Everything is made by descriptors: `db` may have another owner, who puts
/// something else in its place meanwhile.
pub(crate) fn cover(db: &DatabaseDir, view: &Path) -> io::Result<()> {
    // SAFETY: the hazard of this call is CLONE_FILES, by which threads come to differ in their
    // descriptors; it is not among the flags.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    // Again, since a descriptor from outside is of a mount of that namespace.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = openat(CWD, db.path(), flags, Mode::empty())?;
    let found = fstat(&below)?;
    if (found.st_dev, found.st_ino) != db.identity()? {
        return Err(Errno::STALE.into());
    }
    // Before it is covered: by any path it would be the cover.
    let covered = open_tree(
        &below,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    let cover = make_cover(db.path(), view)?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    let onto = whole | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&cover, "", &below, "", onto)?;
    finish(covered.as_fd(), cover.as_fd()).inspect_err(|_| {
        if let Err(error) = unmount(path_of(cover.as_fd()), UnmountFlags::DETACH) {
            tracing::warn!("{}: {error}", db.path().display());
        }
    })
}

/// A filesystem with the notice and a place for what is covered, mounted nowhere yet.
fn make_cover(db: &Path, view: &Path) -> io::Result<OwnedFd> {
    let filesystem = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "larder-txn"), ("mode", "0755"), ("size", "64k")] {
        fsconfig_set_string(&filesystem, key, value)?;
    }
    fsconfig_create(&filesystem)?;
    let cover = fsmount(
        &filesystem,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    mkdirat(&cover, COVERED, Mode::from_raw_mode(0o755))?;
    let text = format!(
        "This program runs in 'larder txn run'. What it did with {0} by this path would be \
         outside of the transaction: use 'larder sql {0}' and other verbs of larder, which join \
         the transaction, and the files below {1}.\n",
        db.display(),
        view.display()
    );
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let notice = openat(&cover, NOTICE, flags, Mode::from_raw_mode(0o644))?;
    File::from(notice).write_all(text.as_bytes())?;
    Ok(cover)
}

/// Puts what is covered into the cover, which nobody writes to from then on.
fn finish(covered: BorrowedFd<'_>, cover: BorrowedFd<'_>) -> io::Result<()> {
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(covered, "", cover, COVERED, whole)?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let flags = MountFlags::BIND | MountFlags::RDONLY | plain;
    Ok(mount_remount(path_of(cover), flags, c"")?)
}

/// A path of a mount that follows no name.
fn path_of(mount: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", mount.as_raw_fd())
}
