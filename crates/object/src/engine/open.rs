//! Making, opening and closing a database.

use crate::commit::refused_content::remove_leftovers;
use crate::engine::tuning;
use crate::engine::{Engine, background};
use crate::error::{Error, ErrorKind, Result, io_error};
use crate::host::{random_id, system_clock};
use crate::session::group_fsync::SharedFlush;
use crate::session::liveness::{Liveness, open_catalog};
use crate::session::options::{Birth, EngineOptions, InitOptions};
use crate::session::pins::Pins;
use crate::session::readonly::Readonly;
use crate::session::workspace::Workspace;
use crate::session::writer_lock::WriterLock;
use crate::session::writers::Writers;
use crate::session::{Company, Session, open_directory};
use crate::space::host_reserve::UNMEASURED;
use larder_catalog::{Catalog, DatabaseInit};
use larder_segment::directory::DatabaseDir;
use larder_segment::{FileStorage, Segment, Storage};
use larder_space::format::SegmentIndex;
use larder_space::format::limits::CAPACITY_BYTES_MIN;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Engine {
    /// Creates directory `path` with an empty database in it.
    pub fn create(path: &Path, init: &InitOptions, options: &EngineOptions) -> Result<()> {
        if let Some(bytes) = init
            .capacity_bytes
            .filter(|&bytes| bytes < CAPACITY_BYTES_MIN)
        {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("a capacity of {bytes} bytes is too small; give at least 16M"),
            ));
        }
        let is_empty_dir =
            std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        if !is_empty_dir && path.symlink_metadata().is_ok() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "{} exists already; choose another name or remove it",
                    path.display()
                ),
            ));
        }
        let failed = |error| io_error(format!("cannot create {}", path.display()), error);
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let host = rustix::fs::statvfs(above.unwrap_or(Path::new(".")));
        // Elsewhere it says by itself why it cannot be made there.
        if options.storage.is_none() && host.is_ok_and(|host| host.f_blocks == 0) {
            return Err(Error::new(ErrorKind::NoSpace, UNMEASURED));
        }
        let directory = DatabaseDir::create(path, init.group).map_err(failed)?;
        for name in ["segments", "sessions"] {
            directory.make_dir(name).map_err(failed)?;
        }
        let now_ns = options
            .clock
            .as_ref()
            .map_or_else(system_clock, |clock| clock());
        let database_id = random_id().map_err(failed)?;
        let storage = storage_of(&directory, options);
        let device = storage.create_segment(SegmentIndex(0)).map_err(failed)?;
        Segment::create(device, database_id, SegmentIndex(0), now_ns)?;
        let catalog_options = options.for_catalog();
        let catalog_init = DatabaseInit {
            database_id,
            capacity_bytes: init.capacity_bytes.unwrap_or(0),
            retention_ns: init.retention_ns,
            now_ns,
            root_mode: init.root_mode,
            root_uid: init.root_uid,
            root_gid: init.root_gid,
        };
        Catalog::create_in(&directory, &catalog_options, &catalog_init)?;
        directory.let_group_in().map_err(failed)?;
        // The new names must survive a power cut too.
        directory.sync().map_err(failed)?;
        let above = DatabaseDir::open(path.parent().unwrap_or(path));
        above.and_then(|above| above.sync()).map_err(failed)
    }

    /// Opens the database in `path`. Recovery is what opening does: free space is computed from
    /// the committed extent rows, sessions that died are forgotten, what they held open is gone.
    ///
    /// A database that this process cannot write is shown as it is now (`Engine::is_readonly`).
    pub fn open(path: &Path, label: &str, options: &EngineOptions) -> Result<Arc<Engine>> {
        open_or_copy(&open_directory(path)?, label, options)
    }

    /// Commits everything, reclaims what can be reclaimed, ends the session. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if self.private.is_some() {
            drop(self.short_transaction().roll_back());
            self.stop("the transactions of this engine have ended".into());
            return Ok(()); // The session is another engine's.
        }
        self.background().stop();
        let outcome = match self.session.options.is_extension {
            _ if self.is_readonly() => Ok(()), // READONLY-1
            // Nothing else is changed by it but through the client.
            true => self.client().reclaim_left(),
            false => {
                let closed = close_orderly(self);
                let held = self.refusals().end_held();
                closed
                    .and(held)
                    .and_then(|()| self.refusals().report_unreported())
            }
        };
        {
            // Another thread's commit must end before the writer lock is abandoned.
            let _no_commit = self.commit_lock.lock();
            self.stop("the database was closed; open it again".into());
        }
        crate::view::buffers::drain();
        let ended = (self.session.liveness).end(&self.catalog, self.session.options.birth);
        outcome.and(ended)
    }
}

/// The same in a directory that is open.
pub(crate) fn open_or_copy(
    directory: &DatabaseDir,
    label: &str,
    options: &EngineOptions,
) -> Result<Arc<Engine>> {
    let may_copy = options.storage.is_none() && !options.is_extension;
    let readonly = match (options.birth, options.storage.is_none()) {
        (Birth::InCopy, true) => Some(Readonly::beside(directory)?),
        _ if may_copy => Readonly::find(directory)?,
        _ => None,
    };
    if let Some(readonly) = readonly {
        return open_copy(readonly, label, options);
    }
    match open_in(directory, label, options) {
        // Not a block is left for what a session writes; who only reads can do without.
        Err(error) if error.kind() == ErrorKind::NoSpace && may_copy && options.is_reader => {
            match Readonly::beside(directory) {
                Ok(readonly) => open_copy(readonly, label, options),
                Err(why) => {
                    tracing::warn!("no copy for reading: {why}");
                    Err(error)
                }
            }
        }
        opened => opened,
    }
}

fn open_copy(readonly: Readonly, label: &str, options: &EngineOptions) -> Result<Arc<Engine>> {
    let copy = readonly.directory().clone();
    let storage = FileStorage::read_only(readonly.database().clone());
    let options = EngineOptions {
        storage: Some(Arc::new(storage)),
        has_background: false,
        trust: readonly.trust(options.trust),
        readonly: Some(Arc::new(readonly)),
        ..options.clone()
    };
    open_in(&copy, label, &options)
}

/// Opens a database that this process can write.
pub(crate) fn open_in(
    directory: &DatabaseDir,
    label: &str,
    options: &EngineOptions,
) -> Result<Arc<Engine>> {
    let workspace = Workspace::find(directory)?;
    let catalog = open_catalog(directory, options)?;
    catalog.foreign()?.announce_changes(); // FOREIGN-2
    let info = catalog.tables().info()?;
    let storage = storage_of(
        workspace.as_ref().map_or(directory, Workspace::parent),
        options,
    );
    let now_ns = options
        .clock
        .as_ref()
        .map_or_else(system_clock, |clock| clock());
    let writer_lock = WriterLock::open_in(directory)?.waiting(options.writer_lock_wait_max());
    let (liveness, pin) = Liveness::begin(
        directory,
        (&writer_lock, options.birth),
        &catalog,
        label,
        now_ns,
    )?;
    // What is said of a copy is said of what it is of.
    let shown = options
        .readonly
        .as_ref()
        .map_or(directory, |copy| copy.database());
    let session = Arc::new(Session {
        path: shown.path().to_owned(),
        directory: directory.clone(),
        workspace,
        storage,
        options: options.clone(),
        dirty_bytes_max: tuning::gather_bytes(options.dirty_bytes_max, &info.tuning),
        inline_bytes_max: tuning::inline_bytes_max(&info.tuning),
        info,
        liveness,
        company: Company::default(),
        readers: Pins::default(),
        writers: Writers::default(),
        flushes: SharedFlush::default(),
    });
    let engine = Arc::new(Engine::assemble(session, catalog, (writer_lock, pin), None));
    engine.workspace().check_workspace()?;
    engine.segments().open_segments()?;
    engine.rules().find_constraints()?;
    engine.redo().refresh_redo(pin)?;
    engine.maps().find_pieces()?;
    let has_orphans = engine.catalog.sessions().has_orphans()?;
    engine.may_have_orphans.store(has_orphans, Ordering::SeqCst);
    let may_sweep = !options.is_extension
        && !options.is_reader
        && options.birth != Birth::Beside
        && !engine.is_readonly();
    if may_sweep {
        engine.workspace().sweep_transactions()?;
        remove_leftovers(&engine.session.directory)?;
    }
    if options.has_background {
        if may_sweep {
            engine.expiry().note_left_steps()?;
        }
        background::start(&engine)?;
    }
    Ok(engine)
}

fn close_orderly(engine: &Engine) -> Result<()> {
    engine.check_running()?;
    let wants_writer_lock = engine.maps().redo_bytes() > 0
        || engine.delayed_allocation().has_delayed()
        || (engine.free_space().is_loaded() && engine.space().wants_reclaim()?);
    if wants_writer_lock
        && engine
            .writer_lock
            .try_begin(|| engine.sessions().refresh_locked())?
    {
        engine.writer_lock.end();
    }
    if !engine.writer_lock.abandon_if_unheld() {
        // Alone: what others began is in the last commit, and nobody begins anything more.
        let alone = engine.alone()?;
        engine.delayed_allocation().place_delayed()?;
        engine.commits().commit_now()?;
        engine.redo().apply_redo()?;
        engine.commits().reclaim_some()?;
        engine.writer_lock.abandon();
        drop(alone);
    }
    engine.access_times().write_last_access_times();
    engine
        .catalog
        .log()?
        .checkpoint(larder_catalog::CheckpointKind::Passive)?;
    Ok(())
}

fn storage_of(directory: &DatabaseDir, options: &EngineOptions) -> Arc<dyn Storage> {
    options
        .storage
        .clone()
        .unwrap_or_else(|| Arc::new(FileStorage::new(directory.clone())))
}
