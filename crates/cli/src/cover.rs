//! The cover over a database's directory, for the program of a `larder txn run`.
//!
//! What opens the database by its own path would work outside of the transaction. So CMD has a
//! mount namespace below the server's, in which an empty directory that cannot be written lies over
//! the database's, with one file whose name says what to use. Below [`COVERED`] is what it covers:
//! that is where `LARDER_TXN` leads. It guards against mistakes; who may unmount it can.

use larder::COVERED;
use rustix::fd::OwnedFd;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
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
/// leaves it uncovered.
pub(crate) fn cover(db: &Path, view: &Path) -> io::Result<()> {
    // SAFETY: the hazard of this call is CLONE_FILES, by which threads come to differ in their
    // descriptors; it is not among the flags.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    // Before it is covered: by any path it would be the cover.
    let covered = open_tree(
        CWD,
        db,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(
        "larder-txn",
        db,
        "tmpfs",
        plain,
        Some(c"mode=0755,size=64k"),
    )?;
    furnish(db, view, &covered, plain).inspect_err(|_| {
        if let Err(error) = unmount(db, UnmountFlags::DETACH) {
            tracing::warn!("{}: {error}", db.display());
        }
    })
}

fn furnish(db: &Path, view: &Path, covered: &OwnedFd, plain: MountFlags) -> io::Result<()> {
    let below = db.join(COVERED);
    std::fs::create_dir(&below)?;
    let text = format!(
        "This program runs in 'larder txn run'. What it did with {0} by this path would be \
         outside of the transaction: use 'larder sql {0}' and other verbs of larder, which join \
         the transaction, and the files below {1}.\n",
        db.display(),
        view.display()
    );
    std::fs::write(db.join(NOTICE), text)?;
    move_mount(
        covered,
        "",
        CWD,
        &below,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    mount_remount(db, MountFlags::BIND | MountFlags::RDONLY | plain, c"")?;
    Ok(())
}
