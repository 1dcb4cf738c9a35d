//! Two mounts are two [`Locks`] on one directory: the host's kernel keeps open file descriptions of
//! one process apart as it does those of two.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU32};
use tempfile::TempDir;

const NODE: NodeNumber = NodeNumber(0x5_0000_0000_0007);
const END: u64 = i64::MAX as u64;

struct Mounts {
    directory: TempDir,
    one: Locks,
    other: Locks,
}

fn mounts() -> Mounts {
    let directory = tempfile::tempdir().unwrap();
    let open = || Locks::open(&DatabaseDir::open(directory.path()).unwrap()).unwrap();
    Mounts {
        one: open(),
        other: open(),
        directory,
    }
}

impl Mounts {
    fn file_count(&self) -> usize {
        std::fs::read_dir(self.directory.path().join("locks"))
            .unwrap()
            .count()
    }
}

fn bytes(owner: u64, kind: i32, start: u64, end: u64) -> LockRequest {
    LockRequest {
        handle: HandleNumber(owner),
        owner: LockOwner(owner),
        lock: Lock {
            start,
            end,
            kind,
            pid: 1000 + owner as u32,
        },
        is_flock: false,
    }
}

fn whole(owner: u64, kind: i32) -> LockRequest {
    LockRequest {
        is_flock: true,
        ..bytes(owner, kind, 0, END)
    }
}

fn set(locks: &Locks, request: LockRequest) -> Result<(), Errno> {
    locks.set(NODE, &request, true)
}

/// Waits as a worker of the mount does that nobody interrupts.
fn set_waiting(locks: &Locks, request: LockRequest) -> Result<(), Errno> {
    locks.set_waiting(NODE, &request, true, |until| {
        std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        Ok(())
    })
}

#[test]
fn bytes_exclude_within_a_mount_and_across() {
    let mounts = mounts();
    let Mounts { one, other, .. } = &mounts;
    set(one, bytes(1, libc::F_WRLCK, 10, 19)).unwrap();
    for (locks, owner) in [(one, 2), (other, 3)] {
        let refused = set(locks, bytes(owner, libc::F_RDLCK, 19, 30));
        assert_eq!(refused, Err(Errno::EAGAIN), "LOCK-1");
        set(locks, bytes(owner, libc::F_RDLCK, 20, 30)).unwrap();
    }
    // Weaker, and weaker still.
    set(one, bytes(1, libc::F_RDLCK, 10, 19)).unwrap();
    set(other, bytes(3, libc::F_RDLCK, 0, END)).unwrap();
    let refused = set(one, bytes(1, libc::F_WRLCK, 10, 19));
    assert_eq!(refused, Err(Errno::EAGAIN), "LOCK-1: an upgrade");
    set(other, bytes(3, libc::F_UNLCK, 0, END)).unwrap();
    set(one, bytes(1, libc::F_WRLCK, 10, 19)).unwrap();
    set(one, bytes(1, libc::F_UNLCK, 12, 13)).unwrap();
    set(other, bytes(3, libc::F_WRLCK, 12, 13)).unwrap();
    assert_eq!(
        set(other, bytes(3, libc::F_WRLCK, 12, 14)),
        Err(Errno::EAGAIN)
    );
    // Where nothing can be locked.
    assert_eq!(
        set(one, bytes(1, libc::F_WRLCK, 1 << 62, END)),
        Err(Errno::EOVERFLOW)
    );
    set(one, bytes(1, libc::F_UNLCK, 1 << 62, END)).unwrap();
}

#[test]
fn flock_is_apart_from_bytes() {
    let mounts = mounts();
    let Mounts { one, other, .. } = &mounts;
    set(one, bytes(1, libc::F_WRLCK, 0, END)).unwrap();
    set(other, whole(2, libc::F_RDLCK)).unwrap();
    set(one, whole(1, libc::F_RDLCK)).unwrap();
    assert_eq!(
        set(one, whole(1, libc::F_WRLCK)),
        Err(Errno::EAGAIN),
        "LOCK-1"
    );
    // As flock(2) says, that one has given up what it had.
    set(other, whole(2, libc::F_WRLCK)).unwrap();
    other.release(NODE, HandleNumber(2), Some(LockOwner(2)));
    set(one, whole(1, libc::F_WRLCK)).unwrap();
    assert_eq!(set(other, whole(3, libc::F_RDLCK)), Err(Errno::EAGAIN));
}

#[test]
fn holders_end_with_what_they_came_by_and_leave_no_file() {
    let mounts = mounts();
    let Mounts { one, other, .. } = &mounts;
    set(one, bytes(1, libc::F_WRLCK, 0, 4)).unwrap();
    set(one, bytes(1, libc::F_UNLCK, 0, END)).unwrap();
    assert_eq!(mounts.file_count(), 1, "it may lock again soon");
    set(other, bytes(2, libc::F_WRLCK, 0, 4)).unwrap();
    one.flush(NODE, HandleNumber(1), LockOwner(1));
    assert_eq!(mounts.file_count(), 1, "LOCK-2");
    assert_eq!(set(one, bytes(1, libc::F_RDLCK, 0, 0)), Err(Errno::EAGAIN));
    other.flush(NODE, HandleNumber(2), LockOwner(2));
    set(one, bytes(1, libc::F_RDLCK, 0, 0)).unwrap();
    // By two open files; it ends with the last of them.
    let second = LockRequest {
        handle: HandleNumber(9),
        ..bytes(1, libc::F_RDLCK, 7, 7)
    };
    one.set(NODE, &second, false).unwrap();
    one.release(NODE, HandleNumber(1), None);
    assert_eq!(
        set(other, bytes(2, libc::F_WRLCK, 0, END)),
        Err(Errno::EAGAIN),
        "LOCK-4"
    );
    one.release(NODE, HandleNumber(9), None);
    set(other, bytes(2, libc::F_WRLCK, 0, END)).unwrap();
    other.flush(NODE, HandleNumber(2), LockOwner(2));
    assert_eq!(mounts.file_count(), 0, "LOCK-2");
    assert!(
        one.state().nodes.is_empty() && other.state().nodes.is_empty(),
        "LOCK-4"
    );
    // What a killed mount leaves.
    std::fs::write(mounts.directory.path().join("locks/7"), "").unwrap();
    drop(Locks::open(&DatabaseDir::open(mounts.directory.path()).unwrap()).unwrap());
    assert_eq!(mounts.file_count(), 0, "LOCK-2");
}

#[test]
fn who_is_in_the_way_is_named() {
    let mounts = mounts();
    let Mounts { one, other, .. } = &mounts;
    let find = |locks: &Locks, request| locks.find(NODE, &request).unwrap();
    let probe = bytes(1, libc::F_WRLCK, 0, END);
    assert_eq!(find(one, probe).kind, libc::F_UNLCK);
    set(one, bytes(1, libc::F_WRLCK, 0, 9)).unwrap();
    assert_eq!(find(one, probe).kind, libc::F_UNLCK, "its own");
    set(one, bytes(2, libc::F_RDLCK, 20, 29)).unwrap();
    set(other, bytes(3, libc::F_WRLCK, 40, END)).unwrap();
    let expected = |start, end, kind, pid| Lock {
        start,
        end,
        kind,
        pid,
    };
    assert_eq!(find(one, probe), expected(20, 29, libc::F_RDLCK, 1002));
    let behind = bytes(1, libc::F_RDLCK, 20, END);
    assert_eq!(
        find(one, behind),
        expected(40, END, libc::F_WRLCK, 1003),
        "foreign"
    );
    assert_eq!(
        find(other, bytes(3, libc::F_RDLCK, 0, 30)),
        expected(0, 9, libc::F_WRLCK, 1001)
    );
}

#[test]
fn waits_end_when_the_lock_is_free_or_the_caller_is_interrupted() {
    let mounts = mounts();
    let Mounts { one, other, .. } = &mounts;
    for class in [whole, |owner, kind| bytes(owner, kind, 3, 5)] {
        for waits_at in [one, other] {
            set(one, class(1, libc::F_WRLCK)).unwrap();
            let has_let_go = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    set_waiting(waits_at, class(2, libc::F_WRLCK)).unwrap();
                    assert!(has_let_go.load(Ordering::SeqCst), "LOCK-1");
                });
                std::thread::sleep(Duration::from_millis(20));
                has_let_go.store(true, Ordering::SeqCst);
                set(one, class(1, libc::F_UNLCK)).unwrap();
                waiter.join().unwrap();
            });
            let refused =
                one.set_waiting(NODE, &class(1, libc::F_RDLCK), true, |_| Err(Errno::EINTR));
            assert_eq!(refused, Err(Errno::EINTR), "LOCK-5");
            assert!(one.state().waits.is_empty(), "LOCK-5");
            set(waits_at, class(2, libc::F_UNLCK)).unwrap();
        }
    }
}

#[test]
fn nobody_waits_for_itself() {
    let mounts = mounts();
    let locks = &mounts.one;
    set(locks, bytes(1, libc::F_WRLCK, 1, 1)).unwrap();
    set(locks, bytes(2, libc::F_WRLCK, 2, 2)).unwrap();
    set(locks, bytes(3, libc::F_RDLCK, 3, 3)).unwrap();
    std::thread::scope(|scope| {
        let waiters = [(1, 2), (2, 3)].map(|(owner, byte)| {
            scope.spawn(move || set_waiting(locks, bytes(owner, libc::F_WRLCK, byte, byte)))
        });
        while locks.state().waits.len() < 2 {
            std::thread::yield_now();
        }
        let refused = set_waiting(locks, bytes(3, libc::F_RDLCK, 1, 1));
        assert_eq!(refused, Err(Errno::EDEADLK), "LOCK-5");
        let [first, second] = waiters;
        locks.flush(NODE, HandleNumber(3), LockOwner(3));
        second.join().unwrap().unwrap();
        locks.flush(NODE, HandleNumber(2), LockOwner(2));
        first.join().unwrap().unwrap();
    });
}

#[test]
fn files_come_and_go_without_a_gap() {
    let mounts = mounts();
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for owner in 1..=4 {
            let locks = [&mounts.one, &mounts.other][owner as usize % 2];
            let inside = &inside;
            scope.spawn(move || {
                for _ in 0..300 {
                    set_waiting(locks, bytes(owner, libc::F_WRLCK, 0, END)).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "LOCK-1");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    locks.flush(NODE, HandleNumber(owner), LockOwner(owner));
                }
            });
        }
    });
    assert_eq!(mounts.file_count(), 0, "LOCK-2");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Four owners on two mounts against an array of who has which byte.
    #[test]
    fn owners_are_kept_apart_as_in_a_model(
        steps in prop::collection::vec((1..=4_u64, 0..12_u64, 0..12_u64, 0..4_u8), 1..60),
    ) {
        let mounts = mounts();
        let mut model = [[0_u8; 12]; 5];
        for (owner, one, other, action) in steps {
            let locks = [&mounts.one, &mounts.other][owner as usize % 2];
            let (start, end) = (one.min(other), one.max(other));
            if action == 3 {
                locks.flush(NODE, HandleNumber(owner), LockOwner(owner));
                model[owner as usize] = [0; 12];
                continue;
            }
            let kind = [libc::F_UNLCK, libc::F_RDLCK, libc::F_WRLCK][usize::from(action)];
            let bytes_wanted = start as usize..=end as usize;
            let is_free = (1..5).filter(|&holder| holder != owner as usize).all(|holder| {
                bytes_wanted.clone().all(|byte| {
                    let held = model[holder][byte];
                    action == 0 || held == 0 || (held == 1 && action == 1)
                })
            });
            let outcome = locks.set(NODE, &bytes(owner, kind, start, end), true);
            prop_assert_eq!(outcome.is_ok(), is_free, "LOCK-1, LOCK-3");
            if is_free {
                model[owner as usize][bytes_wanted].fill(action);
            }
        }
    }
}
