//! A mount that is served in the background.
//!
//! This program starts itself again as `larder mount --report-ready`: that process serves, says
//! `ready` or why not on its stdout, which is a pipe, and then has no terminal left; its stderr is
//! DB/mount.log.

use crate::databases::with_database;
use crate::error::{At, Failure, Result, warn};
use crate::mount_log::{LOG, open_log};
use crate::output::Output;
use crate::serve::{Request, require_writable, serve};
use larder::directory::DatabaseDir;
use larder_fuse::MountInfo;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a background process says once it serves.
const READY: &str = "ready";

/// Starts a process that serves; returns the mount and the process id once it does.
pub(crate) fn start(request: &Request) -> Result<(MountInfo, u32)> {
    // Told here and now when it cannot be opened; and only a database gets a log.
    let is_readonly = with_database(&request.db, "mount", |database| {
        require_writable(database, request)?;
        Ok(database.is_readonly())
    })?;
    let log_path = request.db.join(LOG);
    let log = DatabaseDir::open(&request.db).and_then(|database| open_log(&database));
    let log = match log {
        Ok(log) => Stdio::from(log),
        // Who may only read is served all the same.
        Err(error) if is_readonly => {
            warn(&format!(
                "warning: no log of this mount is kept, since '{}' cannot be written: {error}",
                log_path.display()
            ));
            Stdio::null()
        }
        failed => failed
            .map(Stdio::from)
            .at(|| format!("cannot write '{}'", log_path.display()))?,
    };
    let mut child = Command::new(std::env::current_exe().at(|| "cannot find this program".into())?)
        .args(arguments(request)?)
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
        let mount = larder_fuse::find_mount(&request.dir)?.ok_or_else(|| {
            Failure::Other(format!(
                "'{}' was unmounted at once; see '{}'",
                request.dir.display(),
                log_path.display()
            ))
        })?;
        return Ok((mount, child.id()));
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

fn arguments(request: &Request) -> Result<Vec<OsString>> {
    // Absolute: the other process leaves this directory, so that it can be unmounted or removed.
    Ok(vec![
        "mount".into(),
        "--report-ready".into(),
        "-o".into(),
        request.settings.to_list().into(),
        "--".into(),
        absolute(&request.db)?.into(),
        absolute(&request.dir)?.into(),
    ])
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).at(|| format!("cannot examine '{}'", path.display()))
}

/// The background process itself.
pub(crate) fn serve_and_report(request: &Request, out: &mut Output) -> Result<()> {
    rustix::process::setsid().at(|| "cannot leave the terminal".into())?;
    rustix::process::chdir("/").at(|| "cannot leave the directory".into())?;
    let mut is_ready = false;
    let served = serve(request, |_| {
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
