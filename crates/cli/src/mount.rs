//! `larder mount` and `larder umount`.

use crate::args::{MountArgs, UmountArgs};
use crate::background;
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::serve::{Request, serve};
use crate::service;
use crate::serving_lock::Server;
use crate::settings::Settings;
use crate::store::create_database;
use larder::ErrorKind;
use larder_fuse::MountInfo;
use serde_json::json;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tracing::Level;

/// What the command line asks for. Flags count after the option lists.
fn request(args: &MountArgs) -> Result<Request> {
    let mut settings = Settings::default();
    let flags = [
        args.read_only.then(|| "ro".to_owned()),
        args.allow_other.then(|| "allow_other".to_owned()),
        args.threads.map(|count| format!("threads={count}")),
        args.log.as_ref().map(|level| format!("log={level}")),
        args.metrics.as_ref().map(|at| format!("metrics={at}")),
    ];
    let ranges = |name: &'static str, list: &[String]| -> Vec<String> {
        list.iter().map(|range| format!("{name}={range}")).collect()
    };
    (args.options.iter().cloned())
        .chain(flags.into_iter().flatten())
        .chain(ranges("map_uid", &args.map_uid))
        .chain(ranges("map_gid", &args.map_gid))
        .try_for_each(|list| settings.add_list(&list))
        .map_err(Failure::Usage)?;
    Request::new(args.db.clone(), args.dir.clone(), settings)
}

/// How much goes to the log: the story of the mount where somebody keeps it, else what is wrong.
pub(crate) fn log_level(args: &MountArgs) -> Result<Level> {
    let default = if args.report_ready || service::is_supervised() {
        Level::INFO
    } else {
        Level::WARN
    };
    Ok(request(args)?.settings.log.unwrap_or(default))
}

/// `larder mount`.
pub(crate) fn mount(args: &MountArgs, out: &mut Output) -> Result<()> {
    if args.report_ready {
        return background::serve_and_report(&request(args)?, out);
    }
    let request = request(args)?;
    if args.create {
        create_missing(&request)?;
    }
    if args.daemon {
        let (mount, pid) = background::start(&request)?;
        return tell_serving(args, &request, (&mount, pid), out);
    }
    serve(&request, |mounted| {
        tell_serving(args, &request, (mounted, std::process::id()), out)
    })
}

/// Makes the database and the directory, unless they are there. A new database has no past.
fn create_missing(request: &Request) -> Result<()> {
    let Request { db, dir, settings } = request;
    let is_missing =
        (db.symlink_metadata()).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if is_missing && settings.as_of.is_none() {
        create_database(db, None, None)?;
    }
    // A dead mount in its place, or above it, hides what is there.
    larder_fuse::clean_stale(dir)?;
    match std::fs::create_dir_all(dir) {
        Err(_) if larder_fuse::find_mount(dir).is_ok_and(|mount| mount.is_some()) => Ok(()),
        made => made.at(|| format!("cannot create '{}'", dir.display())),
    }
}

fn tell_serving(
    args: &MountArgs,
    request: &Request,
    (mount, pid): (&MountInfo, u32),
    out: &mut Output,
) -> Result<()> {
    let (db, dir) = (request.name(), args.dir.display());
    if out.is_json() {
        out.document(&json!({
            "database": mount.source.to_string_lossy(),
            "moment": mount.moment,
            "mountpoint": mount.mountpoint.to_string_lossy(),
            "pid": pid,
        }))?;
    } else if args.daemon {
        out.line(&format!(
            "serving {db} at {dir} in the background ('larder umount {dir}' ends it)"
        ))?;
    } else {
        out.line(&format!(
            "serving {db} at {dir} (Ctrl-C or 'larder umount {dir}' ends it)"
        ))?;
    }
    out.flush()
}

// ---- umount ------------------------------------------------------------------------------------

/// `larder umount`.
pub(crate) fn umount(args: &UmountArgs, out: &mut Output) -> Result<()> {
    let mount = larder_fuse::find_mount(&args.dir)?;
    if args.lazy {
        larder_fuse::detach(&args.dir).at(|| format!("cannot detach '{}'", args.dir.display()))?;
    } else {
        let timeout = Duration::from_nanos(args.timeout.unsigned_abs());
        unmount_and_wait(&args.dir, mount.as_ref(), Instant::now() + timeout)?;
    }
    if !out.is_json() {
        return Ok(());
    }
    out.document(&json!({
        "database": mount.as_ref().map(|mount| mount.source.to_string_lossy()),
        "moment": mount.as_ref().and_then(|mount| mount.moment.clone()),
        "mountpoint": mount.as_ref().map(|mount| mount.mountpoint.to_string_lossy()),
    }))
}

/// Unmounts and waits until everything is durable and the serving process has ended.
pub(crate) fn unmount_and_wait(
    dir: &Path,
    mount: Option<&MountInfo>,
    deadline: Instant,
) -> Result<()> {
    let server = match mount {
        Some(mount) => Some(Server::find(&mount.source, mount.device)?),
        None => None,
    };
    unmount_until(dir, deadline)?;
    match server {
        Some(server) => server.wait(deadline),
        None => Ok(()),
    }
}

/// Unmounts and waits for what was written. The waiting has no bound of its own, so it is done in a
/// thread, which ends with this process.
fn unmount_until(dir: &Path, deadline: Instant) -> Result<()> {
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
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Err(Failure::Other(format!(
            "{error}; 'mount -t fuse.larder' lists what is mounted"
        ))),
        Ok(result) => result.at(|| format!("cannot unmount '{}'", dir.display())),
        Err(RecvTimeoutError::Timeout) => Err(Failure::Other(format!(
            "'{}' was not made durable in time, its server works on; wait, then look at DB/mount.log",
            dir.display()
        ))),
        Err(RecvTimeoutError::Disconnected) => Err(Failure::Other(format!(
            "unmounting '{}' ended without a result; try again",
            dir.display()
        ))),
    }
}
