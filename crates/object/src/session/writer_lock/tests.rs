//! Who has the writer lock, who is alone, who waits, and who is woken.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn the_writer_lock_is_one_sessions_at_a_time_and_goes_round() {
    let dir = tempfile::tempdir().unwrap();
    let inside = AtomicU32::new(0);
    let rounds: Vec<AtomicU32> = (0..5).map(|_| AtomicU32::new(0)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mine in &rounds {
            let writer_lock = WriterLock::open(dir.path()).unwrap();
            let (inside, done) = (&inside, &done);
            scope.spawn(move || {
                // Greedy: takes the writer lock again at once, as a busy mount does.
                while !done.load(Ordering::SeqCst) {
                    writer_lock.begin(|| Ok(())).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "WRITER-2");
                    std::thread::sleep(Duration::from_micros(200));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    writer_lock.end();
                    assert!(writer_lock.release(|| true));
                    mine.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(600));
        done.store(true, Ordering::SeqCst);
    });
    let counts: Vec<u32> = rounds
        .iter()
        .map(|mine| mine.load(Ordering::SeqCst))
        .collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*most < 3 * *least, "WRITER-3: {counts:?}");
}

#[test]
fn a_writer_lock_in_use_or_with_changes_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    writer_lock.begin(|| Ok(())).unwrap();
    assert!(!writer_lock.release(|| true), "in use");
    writer_lock.end();
    assert!(
        !writer_lock.release(|| false),
        "WRITER-1: not everything is committed"
    );
    assert!(writer_lock.is_held() && !writer_lock.is_wanted());
    assert!(writer_lock.release(|| true) && !writer_lock.is_held());
}

#[test]
fn who_is_alone_is_alone() {
    let dir = tempfile::tempdir().unwrap();
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let (inside, alone) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (writer_lock, inside, alone) = (&writer_lock, &inside, &alone);
            scope.spawn(move || {
                for _ in 0..200 {
                    if thread < 2 {
                        writer_lock.begin_exclusive(|| Ok(())).unwrap();
                        assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        assert!(!writer_lock.release(|| true), "in use");
                        alone.fetch_sub(1, Ordering::SeqCst);
                        writer_lock.end_exclusive();
                    } else {
                        writer_lock.begin(|| Ok(())).unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(alone.load(Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        writer_lock.end();
                    }
                }
            });
        }
    });
}

/// Who cannot go on sleeps on: users that leave a closed lock wake who closed it only, and of
/// those who wait for a lock that is free one takes it, and lets the others in.
#[test]
fn nobody_is_woken_in_vain() {
    const THREADS: usize = 24;
    let dir = tempfile::tempdir().unwrap();
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    for _ in 0..THREADS {
        writer_lock.begin(|| Ok(())).unwrap();
    }
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| writer_lock.close());
        while !writer_lock.state().is_closed {
            std::thread::yield_now();
        }
        let waits: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| writer_lock.begin(|| Ok(())).unwrap()))
            .collect();
        // Until all of them sleep, or nearly so: who comes later is woken less often.
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..THREADS {
            writer_lock.end();
        }
        closer.join().unwrap();
        assert!(writer_lock.release(|| true));
        writer_lock.open_again();
        for wait in waits {
            wait.join().unwrap();
        }
    });
    assert_eq!(writer_lock.state().users, THREADS as u32);
    let wakes = writer_lock.wakes.load(Ordering::Relaxed);
    assert!(wakes <= 3 * THREADS as u64, "{wakes} wakes of {THREADS}");
}

/// `WRITER-4`. The engine of a transaction is at the head of the queue and has that of the mount
/// hand over, which another one is just doing; a third one is let in meanwhile, and queues.
#[test]
fn who_hands_over_for_the_head_of_the_queue_does_not_wait_for_who_queues_behind() {
    let dir = tempfile::tempdir().unwrap();
    let open = || WriterLock::open(dir.path()).unwrap();
    let mine = Arc::new(open().waiting(Duration::from_secs(10)));
    let (calls, nudged) = (AtomicU32::new(0), Arc::clone(&mine));
    let nudge = move || {
        // When the head was not yet in the queue there was nothing to hand over.
        if calls.fetch_add(1, Ordering::SeqCst) > 0 {
            nudged.close();
            nudged.release(|| true);
            nudged.open_again();
        }
        Ok(())
    };
    let database = DatabaseDir::open(dir.path()).unwrap();
    let beside = mine.open_beside(&database, Box::new(nudge)).unwrap();
    mine.begin(|| Ok(())).unwrap();
    mine.end();
    mine.close();
    let asleep = || std::thread::sleep(Duration::from_millis(50));
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| mine.begin(|| Ok(())));
        asleep();
        let head = scope.spawn(|| {
            beside.begin(|| Ok(())).unwrap();
            beside.end();
            assert!(beside.release(|| true));
        });
        while !mine.is_wanted() {
            std::thread::yield_now();
        }
        asleep();
        assert!(mine.release(|| true));
        mine.open_again();
        behind.join().unwrap().unwrap();
        head.join().unwrap();
    });
}

/// `WRITER-4`
#[test]
fn who_is_acquiring_joins_nobody_who_has_closed_it() {
    let dir = tempfile::tempdir().unwrap();
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let (in_refresh, go_on) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let acquires = scope.spawn(|| {
            writer_lock.begin(|| {
                in_refresh.wait();
                go_on.wait();
                Ok(())
            })
        });
        in_refresh.wait();
        writer_lock.close();
        go_on.wait();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(writer_lock.state().users, 0);
        writer_lock.open_again();
        acquires.join().unwrap().unwrap();
        assert_eq!(writer_lock.state().users, 1);
    });
}

#[test]
fn nobody_begins_after_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (writer_lock, other) = (
        WriterLock::open(dir.path()).unwrap(),
        WriterLock::open(dir.path()).unwrap(),
    );
    other.begin(|| Ok(())).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| writer_lock.begin(|| Ok(())));
        std::thread::sleep(Duration::from_millis(20));
        writer_lock.abandon();
        other.end();
        assert!(other.release(|| true));
        let refused = waiting.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stopped);
    });
    assert_eq!(
        writer_lock.begin(|| Ok(())).unwrap_err().kind(),
        ErrorKind::Stopped
    );
    other.begin(|| Ok(())).unwrap();
    other.end();
}

#[test]
fn a_failed_refresh_leaves_the_writer_lock_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let refused = writer_lock.begin(|| Err(Error::new(ErrorKind::Io, "no")));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
    let other = WriterLock::open(dir.path()).unwrap();
    other.begin(|| Ok(())).unwrap();
    other.end();
}

#[test]
fn who_waits_no_longer_than_so_waits_no_longer_for_its_own_process_either() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (
        WriterLock::open(dir.path()).unwrap(),
        WriterLock::open(dir.path()).unwrap(),
    );
    other.begin(|| Ok(())).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| mine.begin(|| Ok(())).unwrap());
        while !mine.state().is_acquiring {
            std::thread::yield_now();
        }
        let refused = mine.begin_within(Duration::from_millis(50), || Ok(()));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        assert!(!waits.is_finished());
        other.end();
        assert!(other.release(|| true));
    });
}
