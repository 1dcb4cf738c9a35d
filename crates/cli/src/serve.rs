//! Serving a mount from its beginning to its end.

use crate::address::split_moment;
use crate::attendant::Attendant;
use crate::databases::open_database;
use crate::ending::{end_on_signals, listen};
use crate::error::{At, Failure, Result};
use crate::metrics::Endpoint;
use crate::privileges;
use crate::service;
use crate::serving_lock::ServingLock;
use crate::settings::Settings;
use crate::units::show_time;
use larder::Database;
use larder_fuse::{MountInfo, Mounted};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Looks for the mount that was just made, and the time between two.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What to mount, where, and how.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) db: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) settings: Settings,
}

impl Request {
    /// `db` may be `DB@MOMENT` (`CLI-30`), which is the option `asof`.
    pub(crate) fn new(db: PathBuf, dir: PathBuf, mut settings: Settings) -> Result<Request> {
        let db = match split_moment(&db) {
            Some((directory, moment)) if directory.is_dir() => {
                let other = settings.as_of.replace(moment);
                if other.is_some() && other != settings.as_of {
                    return Err(Failure::Usage(format!(
                        "'{}' and 'asof={}' are two moments; give one of them",
                        db.display(),
                        other.unwrap_or_default()
                    )));
                }
                directory
            }
            _ => db,
        };
        Ok(Request { db, dir, settings })
    }

    /// What is served, as people write it.
    pub(crate) fn name(&self) -> String {
        let db = self.db.display();
        match &self.settings.as_of {
            Some(moment) => format!("{db}@{moment}"),
            None => db.to_string(),
        }
    }
}

/// The kernel tells its list of mounts in parts, so while others mount and unmount a look may miss
/// one that is there.
fn find_own_mount(dir: &Path) -> std::result::Result<Option<MountInfo>, larder::Error> {
    for _ in 0..LOOKS {
        let found = larder_fuse::find_mount(dir)?;
        if found.is_some() {
            return Ok(found);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Ok(None)
}

/// Serves until the mount ends; `ready` is called when it serves.
pub(crate) fn serve(request: &Request, ready: impl FnOnce(&MountInfo) -> Result<()>) -> Result<()> {
    let Request { db, dir, settings } = request;
    let name = request.name();
    let cannot = || format!("cannot mount '{name}' at '{}'", dir.display());
    let options = settings.mount_options().at(cannot)?;
    let endpoint = match &settings.metrics {
        Some(address) => Some(Endpoint::bind(address)?),
        None => None,
    };
    // After the port, which may be below 1024, and before anything of the database is read.
    privileges::give_up()?;
    // While nothing is open yet that others may wait for.
    let attendant = Attendant::start(db);
    if let Err(error) = &attendant {
        tracing::warn!(
            "if this server is killed, programs may wait for it until somebody uses the database: \
             its attendant cannot be started ({error})"
        );
    }
    let signals = listen()?;
    let label = std::path::absolute(dir).at(|| format!("cannot examine '{}'", dir.display()))?;
    let database = open_database(db, &format!("mount {}", label.display()))?;
    let directory = database.directory().clone();
    require_writable(&database, request)?;
    let for_metrics = endpoint.is_some().then(|| database.clone());
    // The mount owns the database, and closes it at its end.
    let mounted = larder_fuse::mount(database, dir, &options).at(cannot)?;
    let lock_and_tell = || {
        let info = find_own_mount(dir).at(cannot)?.ok_or_else(|| {
            Failure::Other(format!(
                "'{}' was unmounted at once; mount it again",
                dir.display()
            ))
        })?;
        let lock = ServingLock::take(&directory, info.device)?;
        end_on_signals(signals, mounted.unmounter(), &info.mountpoint)?;
        let commit = mounted.shows().map(|(seq, at_ns)| {
            let at = show_time(at_ns);
            format!(" as of commit {seq}, {at},")
        });
        tracing::info!(
            "serving '{}'{} at '{}' with {}",
            info.name(),
            commit.unwrap_or_default(),
            info.mountpoint.display(),
            settings.to_list()
        );
        if let (Some(endpoint), Some(database)) = (endpoint, for_metrics) {
            tracing::info!("answering metrics at http://{}/metrics", endpoint.address());
            endpoint.serve(database, mounted.monitor())?;
        }
        ready(&info)?;
        service::tell("READY=1");
        Ok(lock)
    };
    let lock = match lock_and_tell() {
        Ok(lock) => lock,
        Err(failure) => {
            end(mounted).at(cannot)?;
            return Err(failure);
        }
    };
    let served = mounted.wait().at(|| format!("serving '{name}' failed"));
    if served.is_ok() {
        tracing::info!("'{}' is unmounted, everything is durable", dir.display());
    }
    let left = lock.leave();
    // Before `umount` returns.
    drop(attendant);
    served.and(left)
}

/// Ends a mount that nobody was told of.
fn end(mounted: Mounted) -> larder::Result<()> {
    mounted.unmounter().detach()?;
    mounted.wait()
}

/// Refuses to mount for writing what this process cannot write.
pub(crate) fn require_writable(database: &Database, request: &Request) -> Result<()> {
    let is_for_reading = request.settings.read_only || request.settings.as_of.is_some();
    if is_for_reading || !database.is_readonly() {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "cannot mount '{}' for writing: it is read-only for this process; mount it with '-o ro', \
         or make the directory and its files writable",
        request.name()
    )))
}
