//! Real mounts: the filesystem in memory, and one that waits for locks.
#![allow(clippy::unwrap_used)]

use larder_fuse_protocol::memory::MemoryFilesystem;
use larder_fuse_protocol::{
    Attr, AttrReply, Call, Entry, Errno, FileType, Filesystem, FopenFlags, GetAttr, HandleNumber,
    InitFlags, LockRequest, MountSettings, NodeNumber, OpenFlags, Opened, Outcome, Release,
    Request, Session, SessionOptions, mount,
};
use rustix::mount::UnmountFlags;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Detached when dropped, and then waited for.
struct Mounted {
    directory: TempDir,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

fn mounted<F: Filesystem + 'static>(filesystem: F) -> Mounted {
    mounted_with(filesystem, 2)
}

fn mounted_with<F: Filesystem + 'static>(filesystem: F, workers: usize) -> Mounted {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let settings = MountSettings {
        subtype: "larder-test".into(),
        ..MountSettings::default()
    };
    let device = mount(&place, &settings).unwrap();
    let options = SessionOptions {
        workers,
        workers_max: 8,
        ..SessionOptions::default()
    };
    let session = Session::start(filesystem, device, options).unwrap();
    assert!(session.negotiated().flags.contains(InitFlags::MAX_PAGES));
    let server = std::thread::spawn(move || session.run());
    Mounted {
        directory,
        server: Some(server),
    }
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let detached = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
        assert!(
            detached.is_ok()
                || Command::new("fusermount3")
                    .arg("-uz")
                    .arg(self.directory.path())
                    .status()
                    .unwrap()
                    .success()
        );
        let served = self.server.take().unwrap().join();
        if !std::thread::panicking() {
            served.unwrap().unwrap();
        }
    }
}

#[test]
fn files_are_made_written_read_and_removed() {
    let mounted = mounted(MemoryFilesystem::default());
    let path = mounted.path("file");
    let content: Vec<u8> = (0..3_000_000_u32)
        .map(|at| (at.wrapping_mul(7) >> 3) as u8)
        .collect();
    fs::write(&path, &content).unwrap();
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back == content);
    file.write_all_at(b"middle", 1_500_001).unwrap();
    file.set_len(1_600_000).unwrap();
    file.seek(SeekFrom::Start(1_500_000)).unwrap();
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[1..7], *b"middle");
    file.sync_all().unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.nlink()), (1_600_000, 1));
    let age = metadata.created().unwrap().elapsed().unwrap();
    assert!(age < Duration::from_secs(60), "the time of birth: {age:?}");
    fs::hard_link(&path, mounted.path("other")).unwrap();
    fs::rename(&path, mounted.path("renamed")).unwrap();
    assert!(!path.exists());
    assert_eq!(fs::metadata(mounted.path("other")).unwrap().nlink(), 2);
    symlink("renamed", mounted.path("link")).unwrap();
    assert_eq!(fs::metadata(mounted.path("link")).unwrap().len(), 1_600_000);
    for name in ["renamed", "other", "link"] {
        fs::remove_file(mounted.path(name)).unwrap();
    }
    assert_eq!(
        file.metadata().unwrap().len(),
        1_600_000,
        "it is still open"
    );
    assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 0);
}

#[test]
fn large_directories_are_listed_whole() {
    let mounted = mounted(MemoryFilesystem::default());
    fs::create_dir(mounted.path("d")).unwrap();
    let names: Vec<String> = (0..3000)
        .map(|number| format!("name-{number:05}"))
        .collect();
    std::thread::scope(|scope| {
        for part in names.chunks(1000) {
            let directory = mounted.path("d");
            scope.spawn(move || {
                for name in part {
                    fs::write(directory.join(name), name).unwrap();
                }
            });
        }
    });
    // The first lines come with attributes (READDIRPLUS), most of the others without.
    let mut found: Vec<(String, u64)> = fs::read_dir(mounted.path("d"))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (
                entry.file_name().into_string().unwrap(),
                entry.metadata().unwrap().len(),
            )
        })
        .collect();
    found.sort();
    assert!(found.iter().map(|(name, _)| name).eq(&names));
    assert!(found.iter().all(|(name, len)| name.len() as u64 == *len));
    let error = fs::remove_dir(mounted.path("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir_all(mounted.path("d")).unwrap();
}

/// A root, a file in it, and locks on that which nobody ever gets.
#[derive(Default)]
struct Locked {
    waits: Arc<AtomicU32>,
    interrupts: Arc<AtomicU32>,
    /// The threads that have looked up names.
    threads: Arc<Mutex<HashSet<ThreadId>>>,
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

impl Filesystem for Locked {
    type Span = ();

    fn init(&mut self, offers: InitFlags) -> InitFlags {
        assert!(offers.contains(InitFlags::FLOCK_LOCKS));
        InitFlags::FLOCK_LOCKS | InitFlags::POSIX_LOCKS
    }

    fn begin(&self, _: &Request) {}

    fn end(&self, _: Call<'_, ()>, _: &Outcome) {}

    fn lookup(&self, _: &mut Call<'_, ()>, name: &[u8]) -> Result<Entry, Errno> {
        let thread = std::thread::current().id();
        self.threads.lock().unwrap().insert(thread);
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

    fn getattr(&self, call: &mut Call<'_, ()>, _: GetAttr) -> Result<AttrReply, Errno> {
        Ok(AttrReply {
            attr: attr(call.request.node),
            ttl: Duration::ZERO,
        })
    }

    fn open(&self, _: &mut Call<'_, ()>, _: OpenFlags) -> Result<Opened, Errno> {
        Ok(Opened::new(HandleNumber(1), FopenFlags::NONE))
    }

    fn release(&self, _: &mut Call<'_, ()>, _: Release) -> Result<(), Errno> {
        Ok(())
    }

    fn setlkw(&self, call: &mut Call<'_, ()>, lock: LockRequest) -> Result<(), Errno> {
        assert!(lock.is_flock);
        self.waits.fetch_add(1, Ordering::SeqCst);
        while !call.is_interrupted() {
            call.park(None);
        }
        self.interrupts.fetch_add(1, Ordering::SeqCst);
        Err(Errno::EINTR)
    }
}

#[test]
fn requests_one_after_the_other_do_not_need_a_thread_each() {
    let filesystem = Locked::default();
    let threads = filesystem.threads.clone();
    let mounted = mounted_with(filesystem, 1);
    for _ in 0..200 {
        fs::metadata(mounted.path("file")).unwrap();
    }
    let count = threads.lock().unwrap().len();
    assert!(count <= 8, "{count} threads: workers come and go");
}

#[test]
fn waits_for_locks_end_with_a_signal_and_hold_up_nobody() {
    const WAITERS: u32 = 6;
    let waits = Arc::new(AtomicU32::new(0));
    let interrupts = Arc::new(AtomicU32::new(0));
    let mounted = mounted(Locked {
        waits: waits.clone(),
        interrupts: interrupts.clone(),
        ..Locked::default()
    });
    let path = mounted.path("file");
    let until = |what: &str, counter: &AtomicU32, count| {
        let began = Instant::now();
        while counter.load(Ordering::SeqCst) < count {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    // As many as may wait, with 2 workers of 8 kept for the others: more workers are hired.
    let mut waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            Command::new("flock")
                .arg(&path)
                .arg("true")
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    until("PROTOCOL-4: all wait", &waits, WAITERS);
    for _ in 0..100 {
        fs::metadata(&path).expect("PROTOCOL-4: others are served");
    }
    let refused = Command::new("flock")
        .arg(&path)
        .arg("true")
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!refused.status.success(), "there is no slot left for it");
    for (waiter, count) in waiters.iter_mut().zip(1..) {
        waiter.kill().unwrap();
        assert!(!waiter.wait().unwrap().success());
        until("PROTOCOL-3: it ends", &interrupts, count);
        assert_eq!(interrupts.load(Ordering::SeqCst), count, "PROTOCOL-3");
    }
}
