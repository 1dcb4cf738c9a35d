//! Mounts for a test, and a filesystem that waits.

use larder_fuse_protocol::{
    Attr, AttrReply, Call, Entry, Errno, FileType, Filesystem, FopenFlags, GetAttr, HandleNumber,
    InitFlags, IoUringSupport, LockRequest, MountSettings, NodeNumber, OpenFlags, Opened, Outcome,
    Release, Request, Session, SessionOptions, TransportChoice, Write, Written, mount,
};
use rustix::mount::UnmountFlags;
use rustix::thread::sched_getaffinity;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread, ThreadId};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs `test` over `/dev/fuse`, and over io_uring if the kernel offers it; otherwise says so. Over
/// one of the two where `LARDER_TRANSPORT` names it.
pub fn over_each_transport(test: impl Fn(TransportChoice)) {
    let named = named();
    if named != Some(TransportChoice::IoUring) {
        test(TransportChoice::Device);
    }
    if named != Some(TransportChoice::Device) && has_rings() {
        test(TransportChoice::IoUring);
    }
}

/// Whether the kernel offers io_uring. Says so if it does not, and fails if `LARDER_TRANSPORT` asks
/// for it.
pub fn has_rings() -> bool {
    let support = IoUringSupport::detect();
    if support != IoUringSupport::Enabled {
        let is_wanted = named() == Some(TransportChoice::IoUring);
        assert!(
            !is_wanted,
            "LARDER_TRANSPORT asks for io_uring: {support:?}"
        );
        println!("not run over io_uring: {}", support.remedy());
    }
    support == IoUringSupport::Enabled
}

/// What `LARDER_TRANSPORT` names.
fn named() -> Option<TransportChoice> {
    std::env::var_os("LARDER_TRANSPORT").map(|_| TransportChoice::from_environment().unwrap())
}

/// Waits until `is_so`.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Detached when dropped, and then waited for.
pub struct Mounted {
    directory: TempDir,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

/// With 2 workers, and 8 at most.
pub fn mounted<F: Filesystem + 'static>(filesystem: F, transport: TransportChoice) -> Mounted {
    mounted_with(filesystem, transport, (2, 8))
}

/// With so many workers, and so many at most.
pub fn mounted_with<F: Filesystem + 'static>(
    filesystem: F,
    transport: TransportChoice,
    workers: (usize, usize),
) -> Mounted {
    let directory = tempfile::tempdir().unwrap();
    let session = start(filesystem, directory.path(), transport, workers);
    let server = std::thread::spawn(move || session.run());
    Mounted {
        directory,
        server: Some(server),
    }
}

/// A session that is not served yet.
pub fn start<F: Filesystem>(
    filesystem: F,
    directory: &Path,
    transport: TransportChoice,
    (workers, workers_max): (usize, usize),
) -> Session<F> {
    let settings = MountSettings {
        subtype: "larder-test".into(),
        ..MountSettings::default()
    };
    start_at(
        filesystem,
        directory,
        &settings,
        transport,
        (workers, workers_max),
    )
}

/// The same with settings of its own.
pub fn start_at<F: Filesystem>(
    filesystem: F,
    directory: &Path,
    settings: &MountSettings,
    transport: TransportChoice,
    (workers, workers_max): (usize, usize),
) -> Session<F> {
    let place = directory.canonicalize().unwrap();
    let device = mount(&place, settings).unwrap();
    let options = SessionOptions {
        workers,
        workers_max,
        transport,
        ..SessionOptions::default()
    };
    let session = Session::start(filesystem, device, options).unwrap();
    let flags = session.negotiated().flags;
    assert!(flags.contains(InitFlags::MAX_PAGES));
    let is_ring = transport == TransportChoice::IoUring;
    assert_eq!(flags.contains(InitFlags::OVER_IO_URING), is_ring);
    session
}

impl Mounted {
    /// Of a session that is served already.
    pub fn of(directory: TempDir, server: JoinHandle<std::io::Result<()>>) -> Mounted {
        Mounted {
            directory,
            server: Some(server),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until the session has ended, whoever ended it.
    pub fn wait(&mut self) -> std::io::Result<()> {
        self.server.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let detached = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
        assert!(
            detached.is_ok()
                || self.server.is_none()
                || Command::new("fusermount3")
                    .arg("-uz")
                    .arg(self.directory.path())
                    .status()
                    .unwrap()
                    .success()
        );
        let Some(server) = self.server.take() else {
            return;
        };
        let served = server.join();
        if !std::thread::panicking() {
            served.unwrap().unwrap();
        }
    }
}

/// A root, a file in it, locks on that which nobody gets, and a name that is looked for until
/// somebody lets go.
pub struct Waits {
    seen: Arc<Seen>,
}

/// What it has seen.
#[derive(Default)]
pub struct Seen {
    pub waits: AtomicU32,
    pub interrupts: AtomicU32,
    /// Looking for "slow" ends, and so do waits for locks.
    pub lets_go: AtomicBool,
    /// Those who wait for locks.
    pub waiters: Mutex<Vec<Thread>>,
    pub slow: AtomicU32,
    /// The threads that have looked up names.
    pub threads: Mutex<HashSet<ThreadId>>,
    /// What they are called.
    pub names: Mutex<HashSet<String>>,
    /// What forgets something is called.
    pub forgetters: Mutex<HashSet<String>>,
    /// What was served last, and by a thread that might use so many CPUs.
    pub cpu_counts: Mutex<HashMap<&'static str, u32>>,
}

impl Waits {
    pub fn new() -> (Waits, Arc<Seen>) {
        let seen = Arc::new(Seen::default());
        (Waits { seen: seen.clone() }, seen)
    }
}

const FILE: NodeNumber = NodeNumber(2);

fn attr(node: NodeNumber) -> Attr {
    Attr {
        node,
        size_bytes: 0,
        blocks: 0,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        btime_ns: 0,
        kind: match node {
            FILE => FileType::RegularFile,
            _ => FileType::Directory,
        },
        permissions: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_bytes: 4096,
    }
}

impl Seen {
    /// Everybody who waits for a lock gets it, from now on.
    pub fn let_go(&self) {
        self.lets_go.store(true, Ordering::SeqCst);
        self.waiters
            .lock()
            .unwrap()
            .drain(..)
            .for_each(|waiter| waiter.unpark());
    }

    fn note_cpus(&self, what: &'static str) {
        let count = sched_getaffinity(None).unwrap().count();
        self.cpu_counts.lock().unwrap().insert(what, count);
    }
}

fn thread_name() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or("").to_owned()
}

impl Filesystem for Waits {
    type Span = ();

    fn init(&mut self, offers: InitFlags) -> InitFlags {
        assert!(offers.contains(InitFlags::FLOCK_LOCKS));
        InitFlags::FLOCK_LOCKS | InitFlags::POSIX_LOCKS | InitFlags::PARALLEL_DIROPS
    }

    fn begin(&self, _: &Request) {}

    fn end(&self, _: Call<'_, ()>, _: &Outcome) {}

    fn lookup(&self, _: &mut Call<'_, ()>, name: &[u8]) -> Result<Entry, Errno> {
        let thread = std::thread::current().id();
        self.seen.threads.lock().unwrap().insert(thread);
        self.seen.names.lock().unwrap().insert(thread_name());
        self.seen.note_cpus("lookup");
        if name == b"slow" {
            self.seen.slow.fetch_add(1, Ordering::SeqCst);
            until("let go", || self.seen.lets_go.load(Ordering::SeqCst));
        }
        if name != b"file" {
            return Err(Errno::ENOENT);
        }
        Ok(Entry {
            attr: Some(attr(FILE)),
            generation: 0,
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
        })
    }

    fn forget(&self, _: &mut Call<'_, ()>, _: NodeNumber, _: u64) {
        self.seen.forgetters.lock().unwrap().insert(thread_name());
    }

    fn getattr(&self, call: &mut Call<'_, ()>, _: GetAttr) -> Result<AttrReply, Errno> {
        Ok(AttrReply {
            attr: attr(call.request.node),
            ttl: Duration::ZERO,
        })
    }

    fn open(&self, _: &mut Call<'_, ()>, _: OpenFlags) -> Result<Opened, Errno> {
        Ok(Opened::new(HandleNumber(1), FopenFlags::NONE))
    }

    fn write(&self, _: &mut Call<'_, ()>, write: Write<'_>) -> Result<Written, Errno> {
        self.seen.note_cpus("write");
        Ok(Written(write.data.len() as u32))
    }

    fn fsync(&self, _: &mut Call<'_, ()>, _: HandleNumber, _: bool) -> Result<(), Errno> {
        self.seen.note_cpus("fsync");
        Ok(())
    }

    fn release(&self, _: &mut Call<'_, ()>, _: Release) -> Result<(), Errno> {
        Ok(())
    }

    fn setlkw(&self, call: &mut Call<'_, ()>, lock: LockRequest) -> Result<(), Errno> {
        assert!(lock.is_flock);
        let thread = std::thread::current();
        self.seen.waiters.lock().unwrap().push(thread);
        self.seen.waits.fetch_add(1, Ordering::SeqCst);
        while !call.is_interrupted() {
            if self.seen.lets_go.load(Ordering::SeqCst) {
                return Ok(());
            }
            call.park(None);
        }
        self.seen.interrupts.fetch_add(1, Ordering::SeqCst);
        Err(Errno::EINTR)
    }
}
