//! A mount whose requests come by io_uring, whatever the other tests have.

use crate::common::TestMount;
use larder_fuse::{IoUringSupport, TransportChoice};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// Threads that serve one CPU.
const BOUND: [&str; 2] = ["fuse-ring", "fuse-relay"];

/// The CPUs that a thread of this process may use, as text.
fn cpus(task: &Path) -> Option<String> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"))?;
    Some(line.to_owned())
}

/// What a handler starts would be bound like the thread that it runs in.
#[test]
fn no_thread_but_those_of_rings_is_bound_to_a_cpu() {
    let support = IoUringSupport::detect();
    if support != IoUringSupport::Enabled {
        let is_wanted = TransportChoice::from_environment() == Ok(TransportChoice::IoUring);
        assert!(
            !is_wanted,
            "LARDER_TRANSPORT asks for io_uring: {support:?}"
        );
        println!("not run over io_uring: {}", support.remedy());
        return;
    }
    let mut mount = TestMount::new();
    mount.end();
    mount.mount(|options| options.transport = TransportChoice::IoUring);
    let file = mount.path("file");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    fs::rename(&file, mount.path("other")).unwrap();
    let lock = File::open(mount.path("other")).unwrap();
    lock.lock().unwrap();
    lock.unlock().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let past = mount.path(".larder/at/-1s");
    assert!(fs::read_dir(past).is_ok_and(|listed| listed.count() > 0));
    fs::remove_file(mount.path("other")).unwrap();
    let own = cpus(Path::new("/proc/self")).unwrap();
    let mut bound_count = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread of another test may have ended.
        let (Ok(name), Some(cpus)) = (fs::read_to_string(task.join("comm")), cpus(&task)) else {
            continue;
        };
        if BOUND.contains(&name.trim()) {
            bound_count += usize::from(cpus != own);
        } else {
            assert_eq!(cpus, own, "{name}");
        }
    }
    assert!(bound_count > 0 || !own.contains(['-', ',']), "{own}");
}

#[test]
fn io_uring_that_must_be_and_is_not_offered_is_refused_with_the_remedy() {
    let support = IoUringSupport::detect();
    if support == IoUringSupport::Enabled {
        println!("not run: the kernel offers io_uring");
        return;
    }
    let mut mount = TestMount::new();
    mount.end();
    let error = mount.try_mount(|options| options.transport = TransportChoice::IoUring);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), larder::ErrorKind::Unsupported);
    let told = error.to_string();
    assert!(told.contains(support.remedy()), "{told}");
    mount.mount(|options| options.transport = TransportChoice::Auto);
    fs::write(mount.path("f"), "by the device").unwrap();
}
