//! Resolving names below a descriptor (`DIRECTORY-1`).

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

/// A name goes down only: no `..`, not absolute, not empty.
pub(crate) fn check_name(name: &Path) -> io::Result<()> {
    let goes_down = |part: Component<'_>| matches!(part, Component::Normal(_));
    match name.components().next().is_some() && name.components().all(goes_down) {
        true => Ok(()),
        false => Err(refused("it is no name in a database")),
    }
}

/// Opens `name` below `directory`; never waits.
pub(crate) fn open_below(
    directory: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    check_name(name)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = match flags.contains(OFlags::PATH) {
        true => flags,
        false => flags | OFlags::NONBLOCK | OFlags::NOCTTY,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(directory, name, flags, mode, resolve) {
            // A rename somewhere on the way: the kernel could not tell.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A kernel before 5.6, or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => {
                return open_by_steps(directory, name, flags, mode);
            }
            opened => return opened.map_err(explain),
        }
    }
}

/// The same part by part, where the kernel does not offer it.
fn open_by_steps(
    directory: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut parts: Vec<&Path> = name.iter().map(Path::new).collect();
    let last = parts.pop().unwrap_or(name);
    let mut reached: Option<OwnedFd> = None;
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for part in parts {
        let from = reached.as_ref().map_or(directory, AsFd::as_fd);
        reached = Some(rustix::fs::openat(from, part, step, Mode::empty()).map_err(explain)?);
    }
    let from = reached.as_ref().map_or(directory, AsFd::as_fd);
    rustix::fs::openat(from, last, flags, mode).map_err(explain)
}

/// Lets the owner into a directory that he has just made, which the umask may have closed to him.
pub(crate) fn admit_owner(above: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(above, name, flags, Mode::empty()).map_err(explain)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&made)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // By the descriptor: it cannot be opened for more.
        let named = format!("/proc/self/fd/{}", made.as_raw_fd());
        rustix::fs::chmod(named, Mode::RWXU | mode & Mode::SGID)?;
    }
    Ok(())
}

fn explain(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => refused(
            "a symbolic link is in the place of it, or of its directory; a database has none: \
             remove \
             the link, and put what it names in its place",
        ),
        Errno::XDEV => refused(
            "it lies outside of the database, on another filesystem; put it into the database",
        ),
        error => error.into(),
    }
}

/// Something that no database has.
pub(crate) fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn step_by_step_no_link_is_followed_either() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("db/sub")).unwrap();
        fs::create_dir(dir.path().join("else")).unwrap();
        fs::write(dir.path().join("else/f"), "x").unwrap();
        fs::write(dir.path().join("db/sub/f"), "x").unwrap();
        std::os::unix::fs::symlink("../else", dir.path().join("db/link")).unwrap();
        std::os::unix::fs::symlink("sub/f", dir.path().join("db/file")).unwrap();
        let db = File::open(dir.path().join("db")).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |name: &str| open_by_steps(db.as_fd(), Path::new(name), flags, Mode::empty());
        open("sub/f").unwrap();
        for name in ["link/f", "file", "link"] {
            assert!(open(name).is_err(), "DIRECTORY-1: {name}");
        }
    }
}
