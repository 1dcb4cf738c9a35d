//! `larder mount` and `larder umount`.
//!
//! With `--daemon` this program starts itself again with the hidden flag `--report-ready`: that
//! process serves, says `ready` or why not on its stdout, which is a pipe, and then has no terminal
//! left; its stderr is DB/mount.log.

use crate::args::{MountArgs, UmountArgs};
use crate::databases::{open_database, with_database};
use crate::error::{At, Failure, Result, warn};
use crate::output::Output;
use crate::serving::{Server, ServingLock};
use crate::store::create_database;
use larder::ErrorKind;
use larder_fuse::{MountInfo, MountOptions, Mounted, Unmounter};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a background process says once it serves.
const READY: &str = "ready";

/// `larder mount`.
pub(crate) fn mount(args: &MountArgs, out: &mut Output) -> Result<()> {
    if args.report_ready {
        return serve_in_background(args, out);
    }
    if args.create {
        create_missing(args)?;
    }
    if args.daemon {
        return start_background(args, out);
    }
    serve(args, |mounted| {
        tell_serving(args, mounted, std::process::id(), out)
    })
}

/// Makes the database and the directory, unless they are there.
fn create_missing(args: &MountArgs) -> Result<()> {
    if args
        .db
        .symlink_metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        create_database(&args.db, None, None)?;
    }
    // A dead mount in its place is there, although it cannot be examined.
    match std::fs::create_dir_all(&args.dir) {
        Err(_) if larder_fuse::find_mount(&args.dir).is_ok_and(|mount| mount.is_some()) => Ok(()),
        made => made.at(|| format!("cannot create '{}'", args.dir.display())),
    }
}

/// Serves until the mount ends; `ready` is called when it serves.
fn serve(args: &MountArgs, ready: impl FnOnce(&MountInfo) -> Result<()>) -> Result<()> {
    let cannot = || {
        format!(
            "cannot mount '{}' at '{}'",
            args.db.display(),
            args.dir.display()
        )
    };
    // From here on, a signal waits for the mount instead of killing this process.
    let signals = Signals::new([SIGINT, SIGTERM]).at(|| "cannot listen to signals".into())?;
    let database = open_database(
        &args.db,
        &format!("mount {}", absolute(&args.dir)?.display()),
    )?;
    let defaults = MountOptions::default();
    let options = MountOptions {
        database_path: args.db.clone(),
        read_only: args.read_only,
        allow_other: args.allow_other || defaults.allow_other,
        threads: args.threads.map_or(defaults.threads, usize::from),
        ..defaults
    };
    // The mount gets the only handle on the database, and closes it at its end.
    let mounted = larder_fuse::mount(database, &args.dir, &options).at(cannot)?;
    let lock_and_tell = || {
        let info = larder_fuse::find_mount(&args.dir)
            .at(cannot)?
            .ok_or_else(|| {
                Failure::Other(format!(
                    "'{}' was unmounted at once; mount it again",
                    args.dir.display()
                ))
            })?;
        let lock = ServingLock::take(&info.source, info.device)?;
        end_on_signals(signals, mounted.unmounter())?;
        ready(&info)?;
        Ok(lock)
    };
    let lock = match lock_and_tell() {
        Ok(lock) => lock,
        Err(failure) => {
            end(mounted).at(cannot)?;
            return Err(failure);
        }
    };
    let served = mounted
        .wait()
        .at(|| format!("serving '{}' failed", args.db.display()));
    let left = lock.leave();
    served.and(left)
}

/// Ends a mount that nobody was told of.
fn end(mounted: Mounted) -> larder::Result<()> {
    mounted.unmounter().detach()?;
    mounted.wait()
}

/// The first SIGINT or SIGTERM unmounts; while programs use the mount, it serves on. The second one
/// takes the mount out of the tree, and the process ends when the last program lets go.
fn end_on_signals(mut signals: Signals, unmounter: Unmounter) -> Result<()> {
    let listen = move || {
        let mut is_asked = false;
        for _signal in signals.forever() {
            let ended = if is_asked {
                unmounter.detach()
            } else {
                unmounter.unmount()
            };
            match ended {
                Ok(()) if is_asked => {
                    warn("detached; ends when the last program lets go of the mount")
                }
                Ok(()) => {}
                Err(error) if is_asked => warn(&error.to_string()),
                Err(error) => warn(&format!(
                    "{error}; still serving, the next signal detaches the mount"
                )),
            }
            is_asked = true;
        }
    };
    std::thread::Builder::new()
        .name("larder-signals".into())
        .spawn(listen)
        .at(|| "cannot start a thread".into())?;
    Ok(())
}

fn tell_serving(args: &MountArgs, mount: &MountInfo, pid: u32, out: &mut Output) -> Result<()> {
    let (db, dir) = (args.db.display(), args.dir.display());
    if out.is_json() {
        out.document(&json!({
            "database": mount.source.to_string_lossy(),
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

// ---- in the background -------------------------------------------------------------------------

fn start_background(args: &MountArgs, out: &mut Output) -> Result<()> {
    // Told here and now when it cannot be opened; and only a database gets a log.
    with_database(&args.db, "mount", |_| Ok(()))?;
    let log_path = args.db.join("mount.log");
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&log_path)
        .at(|| format!("cannot write '{}'", log_path.display()))?;
    let mut child = Command::new(std::env::current_exe().at(|| "cannot find this program".into())?)
        .args(background_arguments(args)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .at(|| "cannot start the serving process".into())?;
    let Some(stdout) = child.stdout.take() else {
        unreachable!("stdout was asked to be a pipe")
    };
    let mut answer = String::new();
    BufReader::new(stdout)
        .read_line(&mut answer)
        .at(|| "cannot hear the serving process".into())?;
    if answer.trim_end() == READY {
        let mount = larder_fuse::find_mount(&args.dir)?.ok_or_else(|| {
            Failure::Other(format!(
                "'{}' was unmounted at once; see '{}'",
                args.dir.display(),
                log_path.display()
            ))
        })?;
        return tell_serving(args, &mount, child.id(), out);
    }
    let status = child
        .wait()
        .at(|| "cannot wait for the serving process".into())?;
    Err(Failure::Other(match answer.trim_end() {
        "" => format!(
            "the serving process ended without a word ({status}); see '{}'",
            log_path.display()
        ),
        line => line.to_owned(),
    }))
}

fn background_arguments(args: &MountArgs) -> Result<Vec<std::ffi::OsString>> {
    let mut list = vec!["mount".into(), "--report-ready".into()];
    if args.read_only {
        list.push("--read-only".into());
    }
    if args.allow_other {
        list.push("--allow-other".into());
    }
    if let Some(threads) = args.threads {
        list.push(format!("--threads={threads}").into());
    }
    // Absolute: the other process leaves this directory, so that it can be unmounted or removed.
    list.extend([
        "--".into(),
        absolute(&args.db)?.into(),
        absolute(&args.dir)?.into(),
    ]);
    Ok(list)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).at(|| format!("cannot examine '{}'", path.display()))
}

fn serve_in_background(args: &MountArgs, out: &mut Output) -> Result<()> {
    rustix::process::setsid().at(|| "cannot leave the terminal".into())?;
    rustix::process::chdir("/").at(|| "cannot leave the directory".into())?;
    let mut is_ready = false;
    let served = serve(args, |_| {
        out.line(READY)?;
        out.flush()?;
        is_ready = true;
        let null = OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .at(|| "cannot open /dev/null".into())?;
        rustix::stdio::dup2_stdout(null).at(|| "cannot leave stdout".into())
    });
    if !is_ready
        && let Err(failure) = &served
        && let Some(line) = failure.line()
    {
        out.line(&line)?;
    }
    served
}

// ---- umount ------------------------------------------------------------------------------------

/// `larder umount`.
pub(crate) fn umount(args: &UmountArgs, out: &mut Output) -> Result<()> {
    let timeout = Duration::from_nanos(args.timeout.unsigned_abs());
    let deadline = Instant::now() + timeout;
    let mount = larder_fuse::find_mount(&args.dir)?;
    let server = match &mount {
        Some(mount) => Some(Server::find(&mount.source, mount.device)?),
        None => None,
    };
    unmount_until(&args.dir, deadline)?;
    if let Some(server) = server {
        server.wait(deadline)?;
    }
    if !out.is_json() {
        return Ok(());
    }
    out.document(&json!({
        "database": mount.as_ref().map(|mount| mount.source.to_string_lossy()),
        "mountpoint": mount.as_ref().map(|mount| mount.mountpoint.to_string_lossy()),
    }))
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
