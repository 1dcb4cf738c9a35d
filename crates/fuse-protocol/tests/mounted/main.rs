//! Real mounts: the filesystem in memory, and one that waits. Where the kernel offers both
//! transports, over both.
#![allow(clippy::unwrap_used)]

mod rings;
mod support;

use larder_fuse_protocol::TransportChoice;
use larder_fuse_protocol::memory::MemoryFilesystem;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{Waits, mounted, over_each_transport, until};

#[test]
fn files_are_made_written_read_and_removed() {
    over_each_transport(|transport| {
        let mounted = mounted(MemoryFilesystem::default(), transport);
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
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    });
}

#[test]
fn large_directories_are_listed_whole() {
    over_each_transport(|transport| {
        let mounted = mounted(MemoryFilesystem::default(), transport);
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
    });
}

#[test]
fn requests_one_after_the_other_do_not_need_a_thread_each() {
    over_each_transport(|transport| {
        let (filesystem, seen) = Waits::new();
        let mounted = support::mounted_with(filesystem, transport, (1, 8));
        for _ in 0..200 {
            fs::metadata(mounted.path("file")).unwrap();
        }
        let count = seen.threads.lock().unwrap().len();
        let most = match transport {
            TransportChoice::IoUring => 16, // Those of one CPU, unless the caller moves.
            _ => 8,
        };
        assert!(count <= most, "{count} threads: workers come and go");
    });
}

#[test]
fn waits_for_locks_end_with_a_signal_and_hold_up_nobody() {
    const WAITERS: u32 = 6;
    over_each_transport(|transport| {
        let (filesystem, seen) = Waits::new();
        // As many as may wait, with 2 workers of 8 kept for the others: more workers are hired.
        let mounted = mounted(filesystem, transport);
        let path = mounted.path("file");
        let flock = || {
            Command::new("flock")
                .arg(&path)
                .arg("true")
                .stderr(Stdio::piped())
                .spawn()
        };
        let mut waiters: Vec<_> = (0..WAITERS).map(|_| flock().unwrap()).collect();
        until("PROTOCOL-4: all wait", || {
            seen.waits.load(Ordering::SeqCst) >= WAITERS
        });
        for _ in 0..100 {
            fs::metadata(&path).expect("PROTOCOL-4: others are served");
        }
        let refused = flock().unwrap().wait_with_output().unwrap();
        assert!(!refused.status.success(), "there is no slot left for it");
        let interrupts = || seen.interrupts.load(Ordering::SeqCst);
        for (waiter, count) in waiters.iter_mut().zip(1..) {
            waiter.kill().unwrap();
            assert!(!waiter.wait().unwrap().success());
            until("PROTOCOL-3: it ends", || interrupts() >= count);
            assert_eq!(interrupts(), count, "PROTOCOL-3");
        }
    });
}
