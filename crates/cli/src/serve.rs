//! Serving a mount from its beginning to its end.

use crate::databases::open_database;
use crate::ending::{end_on_signals, listen};
use crate::error::{At, Failure, Result};
use crate::metrics::Endpoint;
use crate::service;
use crate::serving_lock::ServingLock;
use crate::settings::Settings;
use larder_fuse::{MountInfo, Mounted};
use std::path::PathBuf;

/// What to mount, where, and how.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) db: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) settings: Settings,
}

/// Serves until the mount ends; `ready` is called when it serves.
pub(crate) fn serve(request: &Request, ready: impl FnOnce(&MountInfo) -> Result<()>) -> Result<()> {
    let Request { db, dir, settings } = request;
    let cannot = || format!("cannot mount '{}' at '{}'", db.display(), dir.display());
    let options = settings.mount_options().at(cannot)?;
    let endpoint = match &settings.metrics {
        Some(address) => Some(Endpoint::bind(address)?),
        None => None,
    };
    let signals = listen()?;
    let label = std::path::absolute(dir).at(|| format!("cannot examine '{}'", dir.display()))?;
    let database = open_database(db, &format!("mount {}", label.display()))?;
    let for_metrics = endpoint.is_some().then(|| database.clone());
    // The mount owns the database, and closes it at its end.
    let mounted = larder_fuse::mount(database, dir, &options).at(cannot)?;
    let lock_and_tell = || {
        let info = larder_fuse::find_mount(dir).at(cannot)?.ok_or_else(|| {
            Failure::Other(format!(
                "'{}' was unmounted at once; mount it again",
                dir.display()
            ))
        })?;
        let lock = ServingLock::take(&info.source, info.device)?;
        end_on_signals(signals, mounted.unmounter(), &info.mountpoint)?;
        tracing::info!(
            "serving '{}' at '{}' with {}",
            info.source.display(),
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
    let served = mounted
        .wait()
        .at(|| format!("serving '{}' failed", db.display()));
    if served.is_ok() {
        tracing::info!("'{}' is unmounted, everything is durable", dir.display());
    }
    let left = lock.leave();
    served.and(left)
}

/// Ends a mount that nobody was told of.
fn end(mounted: Mounted) -> larder::Result<()> {
    mounted.unmounter().detach()?;
    mounted.wait()
}
