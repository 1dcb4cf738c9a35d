//! Mounting a database, and the life of the mount.

use crate::bridge::{BACKGROUND_COUNT_MAX, Bridge, REQUEST_BYTES_MAX};
use crate::company::StaleNames;
use crate::known::Known;
use crate::locks::Locks;
use crate::mountinfo::{LARDER_SUBTYPE, find_mount, resolve};
use crate::notify::Changes;
use crate::notify::NOTIFY_THREAD;
use crate::options::{AccessTimes, HistoryListing, MountOptions};
use crate::own_descriptors::leave_descriptors;
use crate::shared_memory::SharedMemory;
use crate::tree::Tree;
use crate::unmount::{Unmounter, clean_stale, lock_mountpoint};
use crate::watch::{Lookout, Monitor, Watch};
use larder::{Database, Error, ErrorKind, Follower, NodeId, parse_moment};
use larder_fuse_protocol::{Device, MountError, MountSettings, Notifier, Session, SessionOptions};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// How much the kernel reads ahead, KiB: as much as one request can carry.
const READAHEAD_KIB: u32 = 1024;
/// Workers wait in fsync for commits; with this many, groups form and others are served meanwhile.
const THREAD_COUNT_DEFAULT: usize = 16;
/// The thread that answers commands.
const FOLLOW_THREAD: &str = "larder-follow";
/// Looks for tracers after which the flags of the mount are looked at again: a second.
const FLAGS_EVERY: u32 = 5;
/// When all of them wait, others come, up to so many times as many.
const THREAD_GROWTH_MAX: usize = 16;

/// Mounts `database` at the directory `mountpoint` and returns once the kernel's requests are
/// served. What a killed server left there is detached first. The mount owns `database`: when it
/// has ended it closes it, and other clones answer [`ErrorKind::Stopped`] from then on.
///
/// Changes by other sessions and by SQL are told to the kernel. Changes that this process makes
/// through another clone of `database` are not: then set [`MountOptions::cache_ttl`] to zero, or
/// open the database a second time for them.
///
/// Errors: [`ErrorKind::NotFound`], [`ErrorKind::NotADirectory`], [`ErrorKind::Busy`] when it is a
/// Larder mount already, [`ErrorKind::InvalidInput`] when the mount would hide the database itself,
/// or the moment it is to show cannot be read, [`ErrorKind::Unsupported`] without FUSE, or
/// without io_uring where [`MountOptions::transport`] insists on it,
/// [`ErrorKind::NotPermitted`], [`ErrorKind::Io`].
pub fn mount(
    database: Database,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Mounted, Error> {
    clean_stale(mountpoint)?;
    let place = resolve(mountpoint)?;
    let source = resolve(database.path())?;
    check_place(&place, &source, options.is_private)?;

    let past = match &options.as_of {
        Some(text) => {
            let moment = parse_moment(text, database.now_ns())?;
            let past = database.as_of(&moment)?;
            // Where the history of main begins later, nobody could enter it.
            past.nodes().metadata(NodeId::ROOT)?;
            Some(past)
        }
        None => None,
    };
    // Nobody can write in the past, and its numbers are those of the present.
    let locks = match options.shares_locks && past.is_none() {
        true => Some(Locks::open(database.directory())?),
        false => None,
    };
    // In a namespace of its own nobody else mounts there.
    let locked = if options.is_private { &source } else { &place };
    let lock = lock_mountpoint(locked)?;
    let device = mount_device(&source, &place, options)?;
    let Some(info) = find_mount(&place)? else {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "'{}' was unmounted or covered by another mount at once",
                place.display()
            ),
        ));
    };
    database.sessions().serves(info.device.1);
    let watch = Arc::new(Watch::new(
        database.directory(),
        &place,
        options.has_metrics,
    ));
    // From here on, leaving with an error detaches the mount.
    let mut mounted = Mounted {
        unmounter: Unmounter::new(&info),
        monitor: Monitor::new(watch.clone()),
        shows: past.as_ref().and_then(|past| past.history().shown()),
        server: None,
    };

    let failed_as = |kind, error: io::Error| {
        let context = format!("the mount at '{}' does not start", place.display());
        Error::with_source(kind, context, error)
    };
    let failed = |error| failed_as(ErrorKind::Io, error);
    let notifier = Notifier::new(&device);
    let known = Arc::new(Known::default());
    let changes = Arc::new(Changes::default());
    let stale_names = Arc::new(StaleNames::default());
    // The past does not change: the kernel may keep all it has.
    let follower = match &past {
        Some(_) => None,
        None => {
            tell_of_changes(&database, &changes, &stale_names);
            let server_pid = std::process::id();
            let name = format!("the mount at {} (process {server_pid})", place.display());
            Some(database.feed().follow(&name)?)
        }
    };
    let tree = Tree::new(database.clone(), past.clone(), options);
    if tree.is_hidden_by_user()? {
        tracing::warn!(
            "'/.larder' is a file or directory of the user's own, so history is not shown there; \
             rename it, or mount moments with '-o asof='"
        );
    } else if options.history == HistoryListing::Shown && !database.history().is_kept() {
        tracing::warn!(
            "the database keeps no history (its retention is 0), so there is no '.larder'"
        );
    }
    let history = tree.history();
    let threads = match options.threads {
        0 => THREAD_COUNT_DEFAULT,
        threads => threads,
    };
    let workers_max = threads * THREAD_GROWTH_MAX;
    let mut bridge = Bridge::new(
        tree,
        known.clone(),
        (changes.clone(), stale_names),
        notifier.clone(),
        watch.clone(),
        options,
    );
    bridge.locks = locks;
    if past.is_none() && !options.read_only {
        bridge.shared_memory = Some(SharedMemory::open(database.directory()).map_err(failed)?);
    }
    let limits = SessionOptions {
        workers: threads,
        workers_max,
        content_bytes_max: REQUEST_BYTES_MAX,
        background_max: BACKGROUND_COUNT_MAX,
        transport: options.transport,
    };
    let access = bridge.access.clone();
    let session = Session::start(bridge, device, limits).map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => failed_as(ErrorKind::Unsupported, error),
        _ => failed(error),
    })?;
    let known_here = known.clone();
    let looks = AtomicU32::new(0);
    let tidy_up = move || {
        if looks
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(FLAGS_EVERY)
        {
            access.look(info.id);
        }
        if let Some(history) = &history {
            history.close_idle(Instant::now());
            history.sweep_slots(|| known_here.slots());
        }
    };
    let server = Server {
        session,
        known,
        changes,
        notifier,
        follower,
        past,
        database,
        is_writer: !options.read_only,
        unmounter: mounted.unmounter(),
        lookout: Lookout::start(watch, tidy_up)?,
        lock,
    };
    let server = std::thread::Builder::new()
        .name("larder-mount".into())
        .spawn(move || server.run());
    mounted.server = Some(server.map_err(failed)?);

    if let Err(error) = ask(&place) {
        // The server knows why, if it has ended already.
        let is_over = matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED)
        );
        let ended = mounted.server.take().filter(|_| is_over);
        return Err(match ended.map(JoinHandle::join) {
            Some(Ok(Err(cause))) => cause,
            _ => failed(error),
        });
    }
    raise_readahead(info.device, READAHEAD_KIB);
    Ok(mounted)
}

/// Waits until the mount answers. By a thread of its own (`FUSE-12`): a request that no thread of
/// this process answers any more, since it was killed, keeps the one that waits for it from ending,
/// and all that it shares.
fn ask(place: &Path) -> io::Result<()> {
    let asks = || {
        if let Err(error) = leave_descriptors(None) {
            tracing::debug!("who asks the mount shares its descriptors: {error}");
        }
        std::fs::metadata(place).map(drop)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, asks)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A mount that is served by this process. Dropping it detaches the mount, without waiting.
#[derive(Debug)]
pub struct Mounted {
    unmounter: Unmounter,
    monitor: Monitor,
    shows: Option<(u64, i64)>,
    server: Option<JoinHandle<Result<(), Error>>>,
}

impl Mounted {
    /// What ends this mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What may be asked of this mount from another thread.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// The commit that it shows, and its time, nanoseconds since 1970; `None`: the present.
    pub fn shows(&self) -> Option<(u64, i64)> {
        self.shows
    }

    /// Unmounts; [`ErrorKind::Busy`] while a program uses it. [`Mounted::wait`] then returns.
    pub fn unmount(&self) -> Result<(), Error> {
        self.unmounter.unmount()
    }

    /// Waits until the mount has ended, whoever ended it, and then until every handle is closed,
    /// everything is durable, and the session of the database has ended. An error of serving or of
    /// closing.
    pub fn wait(mut self) -> Result<(), Error> {
        match self.server.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmounter.detach() {
            tracing::error!("the mount stays: {error}");
        }
    }
}

/// What the server thread owns. The lock is last: it goes when everything else is gone (`FUSE-7`).
struct Server {
    session: Session<Bridge>,
    known: Arc<Known>,
    changes: Arc<Changes>,
    notifier: Notifier,
    follower: Option<Follower>,
    /// What is mounted, if it is not the present.
    past: Option<Database>,
    database: Database,
    /// Something may be changed by it.
    is_writer: bool,
    unmounter: Unmounter,
    lookout: Lookout,
    lock: File,
}

impl Server {
    /// Serves until the mount has ended; then closes every handle and the database.
    fn run(self) -> Result<(), Error> {
        let Server {
            session,
            known,
            changes,
            notifier,
            follower,
            past,
            database,
            is_writer,
            unmounter,
            lookout,
            lock,
        } = self;
        let served = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name(NOTIFY_THREAD.into())
                .spawn_scoped(scope, || {
                    // FUSE-12
                    if let Err(error) = leave_descriptors(Some(notifier.as_fd())) {
                        tracing::warn!(
                            "if this server is killed, its locks may stay: the thread that \
                             notifies the kernel shares its descriptors ({error})"
                        );
                    }
                    changes.serve(&known, &notifier);
                })?;
            let answering = follower.as_ref().map(|follower| {
                let (database, changes) = (&database, &changes);
                std::thread::Builder::new()
                    .name(FOLLOW_THREAD.into())
                    .spawn_scoped(scope, move || follow(follower, database, changes))
            });
            // The bridge and all its handles are dropped in there.
            // It answers already: two mounts may begin at the same time (`COMPANY-2`).
            if follower.is_some()
                && let Err(error) = database.sessions().join_company(is_writer)
            {
                tracing::warn!("other mounts do not know of this one: {error}");
            }
            let served = match answering.transpose() {
                Ok(_) => session.run(),
                Err(error) => Err(error),
            };
            changes.stop();
            follower.iter().for_each(Follower::stop);
            served
        });
        let served = served.map_err(|error| {
            Error::with_source(
                ErrorKind::Stopped,
                "the mount has failed; unmount it and mount again",
                error,
            )
        });
        let detached = if served.is_err() {
            unmounter.detach()
        } else {
            Ok(())
        };
        unmounter.set_over();
        drop(lookout);
        // A drop would not do: the session's own threads may hold on to it a little longer.
        let past_closed = past.map_or(Ok(()), Database::close);
        let closed = match database.close() {
            // All that was accepted is durable; what was not waits for somebody.
            Err(error) if error.kind() == ErrorKind::NotPermitted => {
                tracing::warn!("{error}");
                Ok(())
            }
            closed => closed,
        };
        drop(lock);
        served.and(detached).and(past_closed).and(closed)
    }
}

/// Has commands find that this mount shows what they have done (`FUSE-18`).
fn follow(follower: &Follower, database: &Database, changes: &Changes) {
    while let Some(request) = follower.next() {
        let caught_up = meet(database, changes).and_then(|()| database.sessions().catch_up());
        match caught_up {
            Ok(()) => {
                changes.settle();
                follower.answer(request);
            }
            Err(error) if error.kind() == ErrorKind::Stopped => {
                // It shows nothing any more.
                return follower.stop();
            }
            Err(error) => tracing::warn!("a command is not answered: {error}"),
        }
    }
}

/// Looks who else is there; if somebody has come who writes, the kernel is to ask from now on
/// (`COMPANY-1`).
fn meet(database: &Database, changes: &Changes) -> Result<(), Error> {
    let was_alone = !database.sessions().has_writers_beside();
    let was_unseen = !database.sessions().has_followers_beside();
    if database.sessions().look_for_company()? && was_alone {
        changes.names();
    }
    match was_unseen {
        true => database.sessions().show_others(false), // COMPANY-7, for what was removed before
        false => Ok(()),
    }
}

/// The observer outlives the mount, so it holds on to nothing of it.
fn tell_of_changes(database: &Database, changes: &Arc<Changes>, names: &Arc<StaleNames>) {
    let changes: Weak<Changes> = Arc::downgrade(changes);
    let names: Weak<StaleNames> = Arc::downgrade(names);
    database
        .sessions()
        .on_foreign_changes(Box::new(move |change| {
            if let Some(names) = names.upgrade() {
                names.note(change);
            }
            if let Some(changes) = changes.upgrade() {
                changes.foreign(change);
            }
        }));
}

/// Mounts at `place` and returns the device of the mount.
fn mount_device(source: &Path, place: &Path, options: &MountOptions) -> Result<Device, Error> {
    let mut name = source.as_os_str().to_owned();
    if let Some(moment) = &options.as_of {
        name.push("@");
        name.push(moment);
    }
    let settings = MountSettings {
        subtype: LARDER_SUBTYPE.into(),
        fsname: name.into(),
        allow_other: options.allow_other,
        read_only: options.read_only || options.as_of.is_some(),
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
        access_times: match options.access_times {
            AccessTimes::Never => Some(false),
            AccessTimes::Relative => None,
            AccessTimes::Strict => Some(true),
        },
        default_permissions: true,
        read_bytes_max: 0,
    };
    larder_fuse_protocol::mount(place, &settings).map_err(|error| {
        let context = format!("cannot mount at '{}'", place.display());
        let kind = match &error {
            MountError::Unsupported(_) => ErrorKind::Unsupported,
            MountError::NotPermitted(_) => ErrorKind::NotPermitted,
            MountError::Io(..) => ErrorKind::Io,
        };
        match error {
            MountError::Io(what, error) => {
                Error::with_source(kind, format!("{context}: {what}"), error)
            }
            other => Error::new(kind, format!("{context}: {other}")),
        }
    })
}

/// Lets the kernel read ahead `kib` KiB on this mount instead of its default of 128, so that large
/// sequential reads come in large requests. Only root may; without it reads are merely smaller.
fn raise_readahead(device: (u32, u32), kib: u32) {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", device.0, device.1);
    if let Err(error) = File::create(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, kib.to_string().as_bytes()))
    {
        tracing::debug!("{path}: {error}; reads ahead stay at the kernel's default");
    }
}

fn check_place(place: &Path, source: &Path, may_cover: bool) -> Result<(), Error> {
    if !place.is_dir() {
        return Err(Error::new(
            ErrorKind::NotADirectory,
            format!(
                "'{}' is not a directory; mount at a directory",
                place.display()
            ),
        ));
    }
    // The server opens its files by path: under its own mount it would wait for itself.
    if source.starts_with(place) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "a mount at '{}' would hide the database '{}'; mount elsewhere",
                place.display(),
                source.display()
            ),
        ));
    }
    if let Some(mount) = find_mount(place)?
        && !may_cover
    {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "'{0}' is mounted at '{1}' already; use it, or unmount it with 'larder umount {1}'",
                mount.name(),
                place.display()
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_cannot_work_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("a.larder");
        let place = dir.path().join("mnt");
        std::fs::create_dir(&database).unwrap();
        std::fs::create_dir(&place).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let kind = |place: &Path| check_place(place, &database, false).unwrap_err().kind();
        assert_eq!(kind(dir.path()), ErrorKind::InvalidInput);
        assert_eq!(kind(&database), ErrorKind::InvalidInput);
        assert_eq!(kind(&dir.path().join("file")), ErrorKind::NotADirectory);
        check_place(&place, &database, false).unwrap();
    }
}
