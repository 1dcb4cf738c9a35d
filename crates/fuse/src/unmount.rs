//! Ending a mount: by its owner, by another process, and after the owner was killed.

use crate::holders::{Holder, Remaining, find_holders, find_mounted, find_users};
use crate::mountinfo::{
    LARDER_TYPE, MountInfo, find_any_mount, find_mount, mounts_above, mounts_below, resolve,
};
use crate::own_descriptors::leave_descriptors;
use larder::{Error, ErrorKind};
use rustix::mount::UnmountFlags;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NOT_DURABLE: &str = "what was written cannot be made durable";
const HELPER: &str = "fusermount3";
/// Processes that a message names, at most.
const HOLDERS_NAMED_MAX: usize = 5;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// When a server goes on after so long, it is looked what keeps it: first other mounts of its
/// filesystem here, and after so much longer, since many end by themselves, those in other mount
/// namespaces, and files that are open by no mount.
const REMAINING_AFTER: Duration = Duration::from_millis(50);
const ELSEWHERE_AFTER: Duration = Duration::from_millis(1000);
/// How long a new mount waits for the one before it at the same place to finish.
const PREDECESSOR_WAIT_MAX: Duration = Duration::from_secs(30);

/// Unmounts one mount, and no other at the same place (`FUSE-6`). Cheap to clone; may be used from
/// any thread, also after the mount has ended.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mountpoint: PathBuf,
    device: (u32, u32),
    /// Device numbers are used again: after the end, the same one may be somebody else's.
    is_over: Arc<AtomicBool>,
}

impl Unmounter {
    pub(crate) fn new(mount: &MountInfo) -> Unmounter {
        Unmounter {
            mountpoint: mount.mountpoint.clone(),
            device: mount.device,
            is_over: Arc::default(),
        }
    }

    /// The kernel has ended the mount; from now on nothing is unmounted.
    pub(crate) fn set_over(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Unmounts; `Ok` also when it is no longer mounted. [`ErrorKind::Busy`] while a program has a
    /// file or its working directory there.
    pub fn unmount(&self) -> Result<(), Error> {
        self.end(UnmountFlags::NOFOLLOW, busy)
    }

    /// The same, but `false` when it is in use; costs no look at who uses it.
    pub fn try_unmount(&self) -> Result<bool, Error> {
        let in_use = |_: &Path| Error::new(ErrorKind::Busy, "in use");
        match self.end(UnmountFlags::NOFOLLOW, in_use) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Busy => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the mount out of the tree at once; it ends when the last program lets go of it.
    pub fn detach(&self) -> Result<(), Error> {
        self.end(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, busy)
    }

    fn end(&self, flags: UnmountFlags, busy: fn(&Path) -> Error) -> Result<(), Error> {
        if self.is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        match find_any_mount(&self.mountpoint)? {
            Some(mount) if mount.info.device == self.device => {
                end_mount(&self.mountpoint, flags, busy)
            }
            _ => Ok(()),
        }
    }
}

/// Unmounts the Larder mount at `mountpoint`, from any process, and returns when everything done
/// through it is durable and its server has closed the database (`FUSE-7`); or, where something
/// else keeps the filesystem, when that mount is gone and everything done so far is durable: then
/// it says what. Errors: [`ErrorKind::NotFound`], [`ErrorKind::InvalidInput`] when something else
/// is mounted there, [`ErrorKind::Busy`] while it is in use, [`ErrorKind::Io`] when it cannot be
/// made durable; then it stays mounted.
pub fn unmount(mountpoint: &Path) -> Result<Vec<Remaining>, Error> {
    let ending = prepare_end(mountpoint)?;
    if !ending.is_served {
        return ending.unmounter.detach().map(|()| Vec::new());
    }
    ending.make_durable().map_err(|error| {
        let place = ending.place.display();
        let remedy = match is_out_of_space(&error) {
            true => String::new(),
            false => format!(
                "; what its server's log says remedies it, or 'larder umount --lazy {place}' gives \
                 up what is not durable"
            ),
        };
        let context = format!("'{place}' stays mounted: {NOT_DURABLE}{remedy}");
        Error::with_source(ErrorKind::Io, context, error)
    })?;
    ending.unmounter.unmount()?;
    wait_for_server(&ending.place, &ending.mount)
}

/// Makes durable what was done through the Larder mount at `mountpoint` and takes the mount out of
/// the tree at once; it ends when the last program lets go of it, and nobody waits for that. Errors
/// as [`unmount`], but for [`ErrorKind::Busy`]; and it stays only where room is missing, which can
/// be made: a server that has stopped saves nothing more, however long it is kept.
pub fn detach(mountpoint: &Path) -> Result<(), Error> {
    let ending = prepare_end(mountpoint)?;
    let place = ending.place.display();
    let durable = match ending.is_served {
        true => ending.make_durable(),
        false => Ok(()),
    };
    match durable {
        Err(error) if is_out_of_space(&error) => Err(not_durable(&ending.place, error)),
        durable => {
            ending.unmounter.detach()?;
            durable.map_err(|error| {
                let context = format!("'{place}' is detached, but {NOT_DURABLE}");
                Error::with_source(ErrorKind::Io, context, error)
            })
        }
    }
}

/// Whether it can be made durable once there is room.
fn is_out_of_space(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// A mount that is about to be ended.
struct Ending {
    place: PathBuf,
    mount: MountInfo,
    unmounter: Unmounter,
    is_served: bool,
}

fn prepare_end(mountpoint: &Path) -> Result<Ending, Error> {
    free_killed_above(mountpoint)?;
    let place = resolve(mountpoint)?;
    let Some(mount) = find_any_mount(&place)? else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("nothing is mounted at '{}'", place.display()),
        ));
    };
    if mount.filesystem_type != LARDER_TYPE {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "'{}' is a mount of type {}, not of larder; use umount(8)",
                place.display(),
                mount.filesystem_type
            ),
        ));
    }
    let is_served = !is_dead(&place);
    Ok(Ending {
        place,
        unmounter: Unmounter::new(&mount.info),
        mount: mount.info,
        is_served,
    })
}

impl Ending {
    /// Makes durable what was done through it.
    fn make_durable(&self) -> io::Result<()> {
        match sync_root(&self.place) {
            // Another user's mount keeps even root out. Its server makes everything durable at its
            // end, which is waited for.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        }
    }
}

/// Makes durable what was done through the mount at `mountpoint`. [`ErrorKind::Io`].
pub fn make_durable(mountpoint: &Path) -> Result<(), Error> {
    // The server itself may ask for it, and be killed while it waits for its own answer
    // (`FUSE-12`).
    let synced = std::thread::scope(|scope| {
        let waits = || {
            leave_descriptors(None)?;
            sync_root(mountpoint)
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, waits)?;
        let panicked = |_| Err(io::Error::other("the thread that syncs has panicked"));
        thread.join().unwrap_or_else(panicked)
    });
    synced.map_err(|error| not_durable(mountpoint, error))
}

fn sync_root(mountpoint: &Path) -> io::Result<()> {
    File::open(mountpoint)?.sync_all()
}

fn not_durable(mountpoint: &Path, error: io::Error) -> Error {
    let context = format!("'{}' stays mounted: {NOT_DURABLE}", mountpoint.display());
    Error::with_source(ErrorKind::Io, context, error)
}

/// Detaches what a killed server left at `mountpoint` or above it ("Transport endpoint is not
/// connected"). `Ok` when there is no such thing. [`ErrorKind::Busy`] when it is not a Larder
/// mount.
pub fn clean_stale(mountpoint: &Path) -> Result<(), Error> {
    free_killed_above(mountpoint)?;
    while is_dead(mountpoint) {
        // Nothing below a dead mount can be examined, and links on the way there are rare.
        let place = resolve(mountpoint)
            .or_else(|_| std::path::absolute(mountpoint))
            .map_err(|error| {
                let context = format!("cannot examine '{}'", mountpoint.display());
                Error::with_source(ErrorKind::Io, context, error)
            })?;
        let dead = mounts_above(&place)?
            .into_iter()
            .find(|mount| is_dead(&mount.mountpoint));
        let Some(mount) = dead else {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "a dead mount that is not larder's is at '{}'; unmount it with 'umount -l'",
                    place.display()
                ),
            ));
        };
        tracing::warn!(
            "detaching the dead mount of '{}' at '{}'",
            mount.source.display(),
            mount.mountpoint.display()
        );
        Unmounter::new(&mount).detach()?;
    }
    Ok(())
}

/// Has the mounts at `mountpoint` and above it answer with errors if their servers were killed:
/// nothing may be asked of them before. A symbolic link on the way there hides them.
fn free_killed_above(mountpoint: &Path) -> Result<(), Error> {
    let place = std::path::absolute(mountpoint).map_err(|error| {
        let context = format!("cannot examine '{}'", mountpoint.display());
        Error::with_source(ErrorKind::Io, context, error)
    })?;
    for mount in mounts_above(&place)? {
        larder::free_killed(&mount.source);
    }
    Ok(())
}

/// Takes the lock of a mountpoint, before anything is mounted on it, for the life of the mount
/// (`FUSE-7`). The directory under the mount is locked, which only its server has open. A server
/// that is just finishing at this place is waited for.
pub(crate) fn lock_mountpoint(place: &Path) -> Result<File, Error> {
    let fail = |error: io::Error| {
        Error::with_source(
            ErrorKind::Io,
            format!("cannot lock the mountpoint '{}'", place.display()),
            error,
        )
    };
    let directory = File::open(place).map_err(fail)?;
    let began = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() > PREDECESSOR_WAIT_MAX => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "another program holds a lock on '{}'; end it or mount elsewhere",
                        place.display()
                    ),
                ));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Waits until the server of `mount`, which was mounted at `place`, has finished, or it is known
/// what keeps it: that is returned. A new mount there got the lock only after that, so it ends the
/// wait as well.
fn wait_for_server(place: &Path, mount: &MountInfo) -> Result<Vec<Remaining>, Error> {
    let fail = |error: io::Error| {
        let context = format!(
            "'{}' is unmounted, but its server cannot be waited for",
            place.display()
        );
        Error::with_source(ErrorKind::Io, context, error)
    };
    let directory = File::open(place).map_err(fail)?;
    let began = Instant::now();
    let mut look = REMAINING_AFTER;
    loop {
        match directory.try_lock_shared() {
            Ok(()) => return Ok(Vec::new()),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
            Err(TryLockError::WouldBlock) if find_mount(place)?.is_some() => return Ok(Vec::new()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
        if began.elapsed() < look {
            continue;
        }
        look += 5 * REMAINING_AFTER;
        let mut remaining = find_mounted(mount);
        if began.elapsed() < ELSEWHERE_AFTER {
            remaining.retain(|found| matches!(found, Remaining::Mounted(_)));
        } else if remaining.is_empty() {
            remaining = find_users(mount);
        }
        if !remaining.is_empty() {
            return Ok(remaining);
        }
    }
}

/// Whether the server of the mount at `place` is gone. `statfs` always asks the server; `stat` may
/// be answered from the kernel's cache of attributes.
fn is_dead(place: &Path) -> bool {
    matches!(
        rustix::fs::statfs(place),
        Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)
    )
}

/// `busy` says what is wrong when it is in use.
fn end_mount(
    mountpoint: &Path,
    flags: UnmountFlags,
    busy: fn(&Path) -> Error,
) -> Result<(), Error> {
    match rustix::mount::unmount(mountpoint, flags) {
        // Somebody else was faster.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(mountpoint)),
        Err(rustix::io::Errno::PERM) => {
            end_by_helper(mountpoint, flags.contains(UnmountFlags::DETACH), busy)
        }
        Err(error) => Err(Error::with_source(
            ErrorKind::Io,
            format!("cannot unmount '{}'", mountpoint.display()),
            io::Error::from(error),
        )),
    }
}

fn end_by_helper(mountpoint: &Path, detach: bool, busy: fn(&Path) -> Error) -> Result<(), Error> {
    let output = Command::new(HELPER)
        .arg(if detach { "-uz" } else { "-u" })
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            let context = format!(
                "cannot unmount '{}': {HELPER} does not run",
                mountpoint.display()
            );
            Error::with_source(ErrorKind::Io, context, error)
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(busy(mountpoint));
    }
    Err(Error::new(
        ErrorKind::NotPermitted,
        format!("cannot unmount '{}': {}", mountpoint.display(), said.trim()),
    ))
}

/// Says who uses the mount.
fn busy(mountpoint: &Path) -> Error {
    let holders = match find_mount(mountpoint) {
        Ok(Some(mount)) => find_others(&mount),
        // It has gone meanwhile, or the table of mounts cannot be read: then nobody can be named.
        Ok(None) | Err(_) => Vec::new(),
    };
    let named: Vec<String> = (holders.iter().take(HOLDERS_NAMED_MAX))
        .map(ToString::to_string)
        .collect();
    let more = match holders.len().saturating_sub(HOLDERS_NAMED_MAX) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let place = mountpoint.display();
    let below = mounts_below(mountpoint).unwrap_or_default();
    let text = if let Some(below) = below.first() {
        format!(
            "'{place}' is in use: '{}' is mounted below it; unmount that first",
            below.display()
        )
    } else if named.is_empty() {
        format!("'{place}' is in use by somebody unseen; 'fuser -vm {place}' as root names them")
    } else {
        let named = named.join(", ");
        format!(
            "'{place}' is in use by {named}{more}; end them, or detach it with 'larder umount \
             --lazy {place}'"
        )
    };
    Error::new(ErrorKind::Busy, text)
}

/// Who uses the mount, but for this process and the `umount` that runs it as its helper: what they
/// have open there they inherited from who asked, and they end by themselves.
fn find_others(mount: &MountInfo) -> Vec<Holder> {
    let caller = std::os::unix::process::parent_id();
    find_holders(mount)
        .into_iter()
        .filter(|holder| {
            holder.pid != std::process::id()
                && (holder.pid, holder.name.as_str()) != (caller, "umount")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_larder_mount_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(unmount(dir.path()).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(
            unmount(&dir.path().join("no")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let other = unmount(Path::new("/")).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::InvalidInput);
        assert!(other.to_string().contains("not of larder"), "{other}");
        clean_stale(dir.path()).unwrap();
    }

    #[test]
    fn only_the_own_mount_is_unmounted() {
        let root = find_any_mount(Path::new("/")).unwrap().unwrap();
        let (major, minor) = root.info.device;
        let stranger = MountInfo {
            device: (major, minor + 1),
            ..root.info
        };
        Unmounter::new(&stranger).unmount().unwrap();
        assert!(find_any_mount(Path::new("/")).unwrap().is_some(), "FUSE-6");
    }

    #[test]
    fn the_wait_lasts_as_long_as_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = lock_mountpoint(dir.path()).unwrap();
        std::thread::scope(|scope| {
            let root = find_any_mount(Path::new("/")).unwrap().unwrap().info;
            let waiter = scope.spawn({
                let dir = dir.path();
                move || wait_for_server(dir, &root)
            });
            std::thread::sleep(8 * POLL_INTERVAL);
            assert!(!waiter.is_finished(), "FUSE-7");
            drop(lock);
            assert_eq!(waiter.join().unwrap().unwrap(), []);
        });
    }
}
