//! What only rings have to show.

use crate::support::{
    Mounted, Waits, has_rings, mounted, mounted_with, over_each_transport, start, start_at, until,
};
use larder_fuse_protocol::memory::MemoryFilesystem;
use larder_fuse_protocol::{MountSettings, TransportChoice};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const RING: TransportChoice = TransportChoice::IoUring;
/// The directory that another test has this program serve.
const SERVED: &str = "LARDER_PROTOCOL_SERVED";

/// The CPUs that this test may use.
fn cpus() -> Vec<usize> {
    let all = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| all.is_set(cpu))
        .collect()
}

fn bind(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).unwrap();
}

fn flock(path: &Path) -> Child {
    let mut command = Command::new("flock");
    command.arg(path).arg("true").stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn requests_come_by_rings_and_what_needs_no_answer_by_the_device() {
    if !has_rings() {
        return;
    }
    let (filesystem, seen) = Waits::new();
    let mounted = mounted(filesystem, RING);
    fs::metadata(mounted.path("file")).unwrap();
    rustix::fs::sync();
    drop(mounted);
    let names = seen.names.lock().unwrap().clone();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["fuse-ring"]);
    let forgetters = seen.forgetters.lock().unwrap().clone();
    assert!(!forgetters.contains("fuse-ring"), "{forgetters:?}");
}

#[test]
fn large_and_slow_requests_are_served_unbound_from_the_first_one_on() {
    if !has_rings() {
        return;
    }
    let (filesystem, seen) = Waits::new();
    let mounted = mounted(filesystem, RING);
    let path = mounted.path("file");
    let cpus = cpus();
    let all = cpus.len() as u32;
    // So that one thread serves all of it.
    bind(cpus[0]);
    let cpu_count = |what| seen.cpu_counts.lock().unwrap()[what];
    let mut direct = OpenOptions::new();
    direct.write(true).custom_flags(libc::O_DIRECT);
    let file = direct.open(&path).unwrap();
    for _ in 0..20 {
        assert!(!mounted.path("none").exists());
    }
    assert_eq!(cpu_count("lookup"), 1, "RING-6");
    file.sync_all().unwrap();
    assert_eq!(cpu_count("fsync"), all, "RING-6");
    file.write_at(&[7; 512], 0).unwrap();
    assert_eq!(cpu_count("write"), 1, "RING-6: at once, after a slow one");
    file.write_at(&vec![7; 64 << 10], 0).unwrap();
    assert_eq!(cpu_count("write"), all, "RING-6");
    file.write_at(&[7; 512], 0).unwrap();
    assert_eq!(cpu_count("write"), all, "RING-6: more large ones may come");
}

/// Far more than a queue begins with; from each CPU, so that both ways of waiting for an entry
/// come up.
#[test]
fn many_waits_for_locks_starve_no_cpu_and_each_ends_with_its_signal() {
    const WAITERS: u32 = 40;
    if !has_rings() {
        return;
    }
    let (filesystem, seen) = Waits::new();
    let mounted = mounted_with(filesystem, RING, (4, 256));
    let path = mounted.path("file");
    let mut waiters: Vec<Child> = (0..WAITERS).map(|_| flock(&path)).collect();
    until("RING-2: all wait", || {
        seen.waits.load(Ordering::SeqCst) == WAITERS
    });
    std::thread::scope(|scope| {
        for cpu in cpus() {
            let path = &path;
            scope.spawn(move || {
                bind(cpu);
                for _ in 0..200 {
                    fs::metadata(path).expect("RING-2: others are served");
                }
            });
        }
    });
    let interrupts = || seen.interrupts.load(Ordering::SeqCst);
    for (waiter, count) in waiters.iter_mut().zip(1..) {
        // None that a shell has its background jobs ignore.
        let signal = [Signal::USR1, Signal::TERM, Signal::KILL][count as usize % 3];
        kill_process(Pid::from_child(waiter), signal).unwrap();
        assert!(!waiter.wait().unwrap().success());
        until("PROTOCOL-3: it ends", || interrupts() >= count);
        assert_eq!(interrupts(), count, "PROTOCOL-3");
    }
}

/// Nobody else asks for anything on that CPU, so nothing is answered there meanwhile.
#[test]
fn a_herd_of_waits_on_one_quiet_cpu_is_served() {
    const WAITERS: u32 = 24;
    if !has_rings() {
        return;
    }
    let (filesystem, seen) = Waits::new();
    let mounted = mounted_with(filesystem, RING, (4, 256));
    let path = mounted.path("file");
    let cpu = cpus()[0];
    let files: Vec<File> = (0..WAITERS).map(|_| File::open(&path).unwrap()).collect();
    // Processes, since a signal of a thread would be one for all.
    let flock = |file: &File| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "flock", "-x", "0"]);
        command
            .stdin(file.try_clone().unwrap())
            .stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut waiters: Vec<Child> = files.iter().map(flock).collect();
    let counts = || {
        let waits = seen.waits.load(Ordering::SeqCst);
        (waits, seen.interrupts.load(Ordering::SeqCst))
    };
    until("RING-2: all wait", || counts() == (WAITERS, 0));
    bind(cpu);
    fs::metadata(&path).expect("RING-3: others are served");
    for waiter in &mut waiters {
        waiter.kill().unwrap();
        waiter.wait().unwrap();
    }
    until("PROTOCOL-3: all end", || counts() == (WAITERS, WAITERS));
}

/// Waits for a lock of `file`, until it has it (true) or a signal comes.
fn wait_for_lock(file: &File) -> bool {
    // SAFETY: it has no preconditions.
    let error = match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => return true,
        _ => std::io::Error::last_os_error(),
    };
    assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{error}");
    false
}

/// The kernel tells nobody of a signal that comes while it hands the request over: after the queue,
/// before the server has it. Such a waiter is freed with the lock. All others are, by the signal.
#[test]
fn signals_that_come_straight_after_a_wait_begins_are_told_but_for_those_in_the_gap() {
    const ROUNDS: u32 = 200;
    if !has_rings() {
        return;
    }
    // Without SA_RESTART: a signal ends a wait.
    // SAFETY: the handler does nothing; the structure is plain data, for which zero is valid.
    unsafe {
        extern "C" fn nothing(_: i32) {}
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let (filesystem, seen) = Waits::new();
    let mounted = mounted_with(filesystem, RING, (4, 256));
    let (mut told_count, mut untold_count) = (0, 0);
    for round in 0..ROUNDS {
        let file = File::open(mounted.path("file")).unwrap();
        let (sender, begins) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: it has no preconditions.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            wait_for_lock(&file)
        });
        let thread = begins.recv().unwrap();
        let signal = || {
            // SAFETY: the thread is not joined yet, so its number is its own.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        };
        let began = Instant::now();
        let pause = Duration::from_micros(u64::from(round));
        while began.elapsed() < pause {
            std::hint::spin_loop();
        }
        signal();
        let ends_within = |time| {
            let began = Instant::now();
            while !waiter.is_finished() && began.elapsed() < time {
                std::thread::sleep(Duration::from_micros(100));
            }
            waiter.is_finished()
        };
        // The signal may have come before the wait: then the second one is the first of it.
        let has_ended = ends_within(Duration::from_millis(100)) || {
            signal();
            ends_within(Duration::from_millis(300))
        };
        if !has_ended {
            seen.let_go();
        }
        match waiter.join().unwrap() {
            true => untold_count += 1,
            false => told_count += 1,
        }
        seen.lets_go.store(false, Ordering::SeqCst);
    }
    println!("{told_count} were told, {untold_count} came in the kernel's gap");
    let interrupts = seen.interrupts.load(Ordering::SeqCst);
    assert_eq!(
        interrupts, told_count,
        "PROTOCOL-3: who ended by a signal was told of it"
    );
    // How many come in the gap is the scheduler's business: 2 of 200, a quarter beside compilers.
    assert!(
        told_count > 0,
        "all {untold_count} in a gap of microseconds"
    );
}

#[test]
fn content_of_all_sizes_comes_back_whatever_the_cpu() {
    over_each_transport(|transport| {
        let mounted = mounted_with(MemoryFilesystem::default(), transport, (4, 64));
        let cpus = cpus();
        std::thread::scope(|scope| {
            for thread in 0..8_usize {
                let (mounted, cpus) = (&mounted, &cpus);
                scope.spawn(move || {
                    bind(cpus[thread % cpus.len()]);
                    for round in 0..12_usize {
                        let len = [0, 1, 4095, 4096, 70_000, 1 << 20, 3_000_001][round % 7];
                        let content: Vec<u8> = (0..len)
                            .map(|at| (at * (thread + 3) + round) as u8)
                            .collect();
                        let path = mounted.path(&format!("{thread}-{round}"));
                        fs::write(&path, &content).unwrap();
                        assert!(fs::read(&path).unwrap() == content, "{thread}, {round}");
                        let mut direct = OpenOptions::new();
                        direct.read(true).custom_flags(libc::O_DIRECT);
                        let file = direct.open(&path).unwrap();
                        let mut back = vec![0; len + 8192];
                        let skip = back.as_ptr().align_offset(4096);
                        let room = &mut back[skip..][..len.min(4096).next_multiple_of(4096)];
                        let read = file.read_at(room, 0).unwrap();
                        assert!(room[..read] == content[..read], "{thread}, {round}");
                        if round % 3 == 0 {
                            fs::remove_file(&path).unwrap();
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn extended_attributes_and_names_of_the_greatest_length_come_through() {
    over_each_transport(|transport| {
        let mounted = mounted(MemoryFilesystem::default(), transport);
        let name = "n".repeat(255);
        fs::write(mounted.path(&name), "x").unwrap();
        fs::rename(mounted.path(&name), mounted.path(&"m".repeat(255))).unwrap();
        let listed: Vec<_> = fs::read_dir(mounted.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().len())
            .collect();
        assert_eq!(listed, [255]);
        let target = "t".repeat(4000);
        std::os::unix::fs::symlink(&target, mounted.path("link")).unwrap();
        let back = fs::read_link(mounted.path("link")).unwrap();
        assert_eq!(back, PathBuf::from(target));
    });
}

#[test]
fn a_read_only_mount_reads() {
    over_each_transport(|transport| {
        let directory = tempfile::tempdir().unwrap();
        let settings = MountSettings {
            read_only: true,
            ..MountSettings::default()
        };
        let filesystem = MemoryFilesystem::default();
        let session = start_at(filesystem, directory.path(), &settings, transport, (2, 8));
        let mounted = Mounted::of(directory, std::thread::spawn(move || session.run()));
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
        let error = fs::write(mounted.path("f"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    });
}

/// As a server in a cpuset.
#[test]
fn a_server_that_may_use_one_cpu_serves_all_of_them() {
    if !has_rings() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let session = start(MemoryFilesystem::default(), directory.path(), RING, (2, 8));
    let cpus = cpus();
    let first = cpus[0];
    let server = std::thread::spawn(move || {
        bind(first);
        session.run()
    });
    let mounted = Mounted::of(directory, server);
    std::thread::scope(|scope| {
        for cpu in cpus {
            let path = mounted.path(&format!("{cpu}"));
            scope.spawn(move || {
                bind(cpu);
                for _ in 0..50 {
                    fs::write(&path, vec![7; 100_000]).unwrap();
                    assert_eq!(fs::read(&path).unwrap().len(), 100_000, "RING-6");
                }
            });
        }
    });
}

/// What a program on the mount gets when the mount is gone under it.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::EINTR)
    )
}

#[test]
fn an_abort_ends_what_waits_and_what_is_idle() {
    over_each_transport(|transport| {
        if !rustix::process::geteuid().is_root() {
            println!("not run: only root aborts by umount -f");
            return;
        }
        let (filesystem, seen) = Waits::new();
        let mut mounted = mounted(filesystem, transport);
        let slow = mounted.path("slow");
        let asks = std::thread::spawn(move || fs::metadata(slow).unwrap_err());
        until("it is asked", || seen.slow.load(Ordering::SeqCst) == 1);
        // The mount is in use, so it stays, without a server.
        let _ = rustix::mount::unmount(mounted.path("").as_path(), UnmountFlags::FORCE);
        assert!(is_gone(&asks.join().unwrap()), "RING-5");
        let error = fs::metadata(mounted.path("file")).err();
        assert!(error.is_none_or(|error| is_gone(&error) || error.raw_os_error() == Some(2)));
        seen.lets_go.store(true, Ordering::SeqCst);
        mounted.wait().expect("RING-5: an abort is an end");
    });
}

/// Started by the next test: serves until it is killed.
#[test]
fn serve_for_another_test() {
    let Some(directory) = std::env::var_os(SERVED).map(PathBuf::from) else {
        return;
    };
    let (filesystem, seen) = Waits::new();
    let session = start(filesystem, &directory, RING, (2, 8));
    let server = std::thread::spawn(move || session.run());
    until("it is asked", || seen.slow.load(Ordering::SeqCst) == 1);
    println!("asked");
    server.join().unwrap().unwrap();
}

#[test]
fn a_server_that_is_killed_leaves_nobody_waiting() {
    if !has_rings() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["rings::serve_for_another_test", "--exact", "--nocapture"])
        .env(SERVED, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let file = directory.path().join("file");
    until("it is mounted", || fs::metadata(&file).is_ok());
    let slow = directory.path().join("slow");
    let asks = std::thread::spawn(move || fs::metadata(slow).unwrap_err());
    let mut said = Vec::new();
    let mut stdout = server.stdout.take().unwrap();
    while !String::from_utf8_lossy(&said).contains("asked") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_gone(&asks.join().unwrap()), "RING-5");
    assert!(is_gone(&fs::metadata(&file).unwrap_err()), "RING-5");
    rustix::mount::unmount(directory.path(), UnmountFlags::DETACH).unwrap();
}
