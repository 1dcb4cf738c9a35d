//! `larder mount`.

use crate::args::MountArgs;
use crate::background;
use crate::databases::{self, with_database};
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::serve::{Request, serve};
use crate::service;
use crate::settings::Settings;
use crate::store::create_database;
use larder_fuse::MountInfo;
use serde_json::json;
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
    if databases::has_timeout() {
        // The server itself waits longer.
        with_database(&request.db, "mount", |_| Ok(()))?;
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
        create_database(db, None, None, None)?;
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
