//! Who has the turn, who is alone, who waits, and who is woken.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn the_turn_is_one_sessions_at_a_time_and_goes_round() {
    let dir = tempfile::tempdir().unwrap();
    let inside = AtomicU32::new(0);
    let rounds: Vec<AtomicU32> = (0..5).map(|_| AtomicU32::new(0)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mine in &rounds {
            let turn = Turn::open(dir.path()).unwrap();
            let (inside, done) = (&inside, &done);
            scope.spawn(move || {
                // Greedy: takes the turn again at once, as a busy mount does.
                while !done.load(Ordering::SeqCst) {
                    turn.begin(|| Ok(())).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "TURN-2");
                    std::thread::sleep(Duration::from_micros(200));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    turn.end();
                    assert!(turn.release(|| true));
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
    assert!(*most < 3 * *least, "TURN-3: {counts:?}");
}

#[test]
fn a_turn_in_use_or_with_changes_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::open(dir.path()).unwrap();
    turn.begin(|| Ok(())).unwrap();
    assert!(!turn.release(|| true), "in use");
    turn.end();
    assert!(
        !turn.release(|| false),
        "TURN-1: not everything is committed"
    );
    assert!(turn.is_held() && !turn.is_wanted());
    assert!(turn.release(|| true) && !turn.is_held());
}

#[test]
fn who_is_alone_is_alone() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::open(dir.path()).unwrap();
    let (inside, alone) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (turn, inside, alone) = (&turn, &inside, &alone);
            scope.spawn(move || {
                for _ in 0..200 {
                    if thread < 2 {
                        turn.begin_exclusive(|| Ok(())).unwrap();
                        assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        assert!(!turn.release(|| true), "in use");
                        alone.fetch_sub(1, Ordering::SeqCst);
                        turn.end_exclusive();
                    } else {
                        turn.begin(|| Ok(())).unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(alone.load(Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turn.end();
                    }
                }
            });
        }
    });
}

/// Who cannot go on sleeps on: users that leave a closed turn wake who closed it only, and of
/// those who wait for a turn that is free one takes it, and lets the others in.
#[test]
fn nobody_is_woken_in_vain() {
    const THREADS: usize = 24;
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::open(dir.path()).unwrap();
    for _ in 0..THREADS {
        turn.begin(|| Ok(())).unwrap();
    }
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| turn.close());
        while !turn.state().is_closed {
            std::thread::yield_now();
        }
        let waits: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| turn.begin(|| Ok(())).unwrap()))
            .collect();
        // Until all of them sleep, or nearly so: who comes later is woken less often.
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..THREADS {
            turn.end();
        }
        closer.join().unwrap();
        assert!(turn.release(|| true));
        turn.open_again();
        for wait in waits {
            wait.join().unwrap();
        }
    });
    assert_eq!(turn.state().users, THREADS as u32);
    let wakes = turn.wakes.load(Ordering::Relaxed);
    assert!(wakes <= 3 * THREADS as u64, "{wakes} wakes of {THREADS}");
}

#[test]
fn nobody_begins_after_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (turn, other) = (
        Turn::open(dir.path()).unwrap(),
        Turn::open(dir.path()).unwrap(),
    );
    other.begin(|| Ok(())).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| turn.begin(|| Ok(())));
        std::thread::sleep(Duration::from_millis(20));
        turn.abandon();
        other.end();
        assert!(other.release(|| true));
        let refused = waiting.join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stopped);
    });
    assert_eq!(
        turn.begin(|| Ok(())).unwrap_err().kind(),
        ErrorKind::Stopped
    );
    other.begin(|| Ok(())).unwrap();
    other.end();
}

#[test]
fn a_failed_refresh_leaves_the_turn_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let turn = Turn::open(dir.path()).unwrap();
    let refused = turn.begin(|| Err(Error::new(ErrorKind::Io, "no")));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
    let other = Turn::open(dir.path()).unwrap();
    other.begin(|| Ok(())).unwrap();
    other.end();
}

#[test]
fn who_waits_no_longer_than_so_waits_no_longer_for_its_own_process_either() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (
        Turn::open(dir.path()).unwrap(),
        Turn::open(dir.path()).unwrap(),
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
