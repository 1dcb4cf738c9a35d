//! `larder umount`.
//!
//! # Invariants
//! * `CLI-35` What is unmounted is gone when this returns, and durable: either its server has
//!   ended, or it is said what keeps the filesystem: other mounts of it, or programs with open
//!   files.

use crate::args::UmountArgs;
use crate::error::{At, Failure, Result, each, warn};
use crate::output::Output;
use crate::serving_lock::Server;
use larder::ErrorKind;
use larder_fuse::{MountInfo, Remaining};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long an unmount waits for the server, if nobody says otherwise.
pub(crate) const UMOUNT_WAIT: Duration = Duration::from_secs(60);
/// After so long it says for whom.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// Of what keeps a filesystem, so many are named.
const REMAINING_NAMED_MAX: usize = 5;

/// `larder umount`. A directory where something is mounted counts before a database.
pub(crate) fn umount(args: &UmountArgs, timeout: Option<Duration>, out: &mut Output) -> Result<()> {
    let deadline = Instant::now() + timeout.unwrap_or(UMOUNT_WAIT);
    let end = |dir: &Path, mount: Option<&MountInfo>| match args.lazy {
        true => larder_fuse::detach(dir).at(|| format!("cannot detach '{}'", dir.display())),
        false => end_mount(dir, mount, deadline),
    };
    let mount = larder_fuse::find_mount(&args.dir)?;
    let mounts = match mount {
        Some(_) => Vec::new(),
        None => larder_fuse::find_all_mounts_of(&args.dir)?,
    };
    if !mounts.is_empty() {
        each(&mounts, |mount| end(&mount.mountpoint, Some(mount)))?;
        return match out.is_json() {
            true => out.document(&mounts.iter().map(|mount| tell(Some(mount))).collect()),
            false => Ok(()),
        };
    }
    end(&args.dir, mount.as_ref())?;
    match out.is_json() {
        true => out.document(&tell(mount.as_ref())),
        false => Ok(()),
    }
}

fn tell(mount: Option<&MountInfo>) -> Value {
    json!({
        "database": mount.map(|mount| mount.source.to_string_lossy()),
        "moment": mount.and_then(|mount| mount.moment.clone()),
        "mountpoint": mount.map(|mount| mount.mountpoint.to_string_lossy()),
    })
}

/// Unmounts and waits until everything is durable and the serving process has ended (`CLI-35`).
pub(crate) fn end_mount(dir: &Path, mount: Option<&MountInfo>, deadline: Instant) -> Result<()> {
    let server = match mount {
        Some(mount) => Some(Server::find(&mount.source, mount.device)?),
        None => None,
    };
    let remaining = unmount_until(dir, mount, deadline)?;
    if !remaining.is_empty() {
        let (named, more) = remaining.split_at(remaining.len().min(REMAINING_NAMED_MAX));
        let mut named: Vec<String> = named.iter().map(ToString::to_string).collect();
        if !more.is_empty() {
            named.push(format!("{} more", more.len()));
        }
        warn(&format!(
            "'{}' is unmounted and durable, but its filesystem is {}; its server ends when \
             that is gone",
            dir.display(),
            named.join(", ")
        ));
        return Ok(());
    }
    server.map_or(Ok(()), |server| server.wait(deadline))?;
    if let Some(mount) = mount {
        tell_of_refused(&mount.source);
    }
    Ok(())
}

/// What constraints refused is no fault of the unmount, but waits for somebody.
fn tell_of_refused(database: &Path) {
    match larder::list_refused(database) {
        Ok(all) if !all.is_empty() => warn(&format!(
            "unmounted; {} changes that constraints refused after they were answered wait for a \
             decision: 'larder refused list {}' names them",
            all.len(),
            database.display()
        )),
        Ok(_) => {}
        Err(error) => warn(&format!(
            "unmounted; what constraints refused is not known: {error}"
        )),
    }
}

/// Unmounts and waits for what was written. The waiting has no bound of its own, so it is done in a
/// thread, which ends with this process.
fn unmount_until(
    dir: &Path,
    mount: Option<&MountInfo>,
    deadline: Instant,
) -> Result<Vec<Remaining>> {
    let (sender, receiver) = channel();
    let place = dir.to_owned();
    let unmount = move || {
        let result = larder_fuse::unmount(&place);
        // Nobody waits any longer after the deadline.
        drop(sender.send(result));
    };
    std::thread::Builder::new()
        .spawn(unmount)
        .at(|| "cannot start a thread".into())?;
    let server = || {
        let server = mount.and_then(|mount| larder::describe_server(&mount.source, mount.device.1));
        server.unwrap_or_else(|| "its server".into())
    };
    match receive(&receiver, deadline, || {
        warn(&format!("waiting for '{}': {}", dir.display(), server()));
    }) {
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Err(Failure::Other(format!(
            "{error}; 'mount -t fuse.larder' lists what is mounted"
        ))),
        Ok(result) => result.at(|| format!("cannot unmount '{}'", dir.display())),
        Err(RecvTimeoutError::Timeout) => Err(Failure::TimedOut(format!(
            "'{}' was not made durable in time, by {}; wait, then look at DB/mount.log",
            dir.display(),
            server()
        ))),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::Other(format!(
            "unmounting '{}' ended without a result; try again",
            dir.display()
        ))),
    }
}

/// What comes until the deadline; `tell` is called when it does not come soon.
fn receive<T>(
    receiver: &Receiver<T>,
    deadline: Instant,
    tell: impl FnOnce(),
) -> std::result::Result<T, RecvTimeoutError> {
    let left = || deadline.saturating_duration_since(Instant::now());
    match receiver.recv_timeout(left().min(TELL_AFTER)) {
        Err(RecvTimeoutError::Timeout) if !left().is_zero() => tell(),
        received => return received,
    }
    receiver.recv_timeout(left())
}
