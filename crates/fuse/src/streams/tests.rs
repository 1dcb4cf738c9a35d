//! Direct writes beside fills and writebacks, without a kernel.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use super::*;
use std::cell::RefCell;

const NODE: NodeNumber = NodeNumber(7);

fn flags(flags: i32) -> OpenFlags {
    OpenFlags {
        flags,
        kill_suid_sgid: false,
    }
}

fn write_back(way: &Way, range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    way.write_back(range, |part| {
        parts.push(part);
        Ok(())
    })
    .unwrap();
    parts
}

#[test]
fn a_file_is_direct_while_nobody_reads_it() {
    let streams = Streams::default();
    let write = streams.open(NODE, flags(libc::O_WRONLY | libc::O_APPEND), true);
    let other = streams.open(NODE, flags(libc::O_WRONLY), true);
    assert!(write.is_direct && other.is_direct);
    let read = streams.open(NODE, flags(libc::O_RDONLY), true);
    let late = streams.open(NODE, flags(libc::O_WRONLY), true);
    assert!(!read.is_direct);
    assert!(
        !late.is_direct,
        "FUSE-8: beside a cached one there is no new direct one"
    );
    for way in [&write, &other, &read] {
        streams.close(way);
    }
    assert!(!streams.open(NODE, flags(libc::O_WRONLY), true).is_direct);
    let alone = streams.open(NodeNumber(8), flags(libc::O_RDWR), true);
    assert!(!alone.is_direct);
    streams.close(&late);
}

#[test]
fn pages_are_dropped_once_behind_a_write_that_fills_came_before() {
    let streams = Streams::default();
    let write = streams.open(NODE, flags(libc::O_WRONLY), true);
    // What was dropped for a write of 9 bytes that goes to `at`.
    let go = |at: u64| {
        let dropped = RefCell::new(Vec::new());
        let drop_pages = |offset, len_bytes| {
            dropped.borrow_mut().push((offset, len_bytes));
            Ok(())
        };
        assert_eq!(
            streams.write((&write, true, true), 0..9, || Ok(at), || Ok(drop_pages)),
            Ok(at)
        );
        dropped.into_inner()
    };
    assert_eq!(go(0), [], "nobody reads");
    let read = streams.open(NODE, flags(libc::O_RDONLY), true);
    assert_eq!(go(0), [], "nobody has read yet");
    assert_eq!(
        go(5000),
        [(5000, 9)],
        "FUSE-8: the kernel dropped other pages"
    );
    read.page_read(0..4096, || ());
    assert_eq!(go(0), [(0, 9)], "FUSE-8");
    assert_eq!(
        go(0),
        [(0, 9)],
        "FUSE-8: pages may have come behind the applying"
    );
    streams.close(&read);
    assert_eq!(go(0), [(0, 0)], "FUSE-8: the pages of the last read");
    assert_eq!(go(0), [], "all pages were dropped");
    let both = streams.open(NODE, flags(libc::O_RDWR), true);
    streams
        .write(
            (&both, false, false),
            0..1,
            || Ok(0),
            || Ok(|_, _| panic!("it is cached")),
        )
        .unwrap();
    assert_eq!(go(0), [(0, 9)], "FUSE-8: a cached write fills pages too");
    let failed = streams.write(
        (&write, true, true),
        0..9,
        || Ok(0),
        || Ok(|_, _| Err(Errno::EIO)),
    );
    assert_eq!(failed, Err(Errno::EIO));
    assert!(write.coherence.read().is_empty());
}

#[test]
fn a_write_for_which_no_pages_can_be_dropped_changes_nothing() {
    let streams = Streams::default();
    let write = streams.open(NODE, flags(libc::O_WRONLY), true);
    let applied = RefCell::new(Vec::new());
    let go = |at: u64, appends| {
        let apply = || {
            applied.borrow_mut().push(at);
            Ok(at)
        };
        let refuse = || Err::<fn(u64, u64) -> Result<(), Errno>, Errno>(Errno::EAGAIN);
        streams.write((&write, true, appends), 0..9, apply, refuse)
    };
    assert_eq!(go(0, false), Ok(0), "there are no pages");
    assert_eq!(go(0, true), Err(Errno::EAGAIN), "it may go elsewhere");
    let read = streams.open(NODE, flags(libc::O_RDONLY), true);
    read.page_read(0..4096, || ());
    assert_eq!(go(0, false), Err(Errno::EAGAIN), "FUSE-8");
    assert_eq!(applied.into_inner(), [0]);
    assert!(write.coherence.read().is_empty());
}

#[test]
fn writebacks_of_old_pages_leave_out_the_window_and_those_of_new_ones_do_not() {
    let streams = Streams::default();
    let write = streams.open(NODE, flags(libc::O_WRONLY), true);
    let both = streams.open(NODE, flags(libc::O_RDWR), true);
    both.page_read(0..16384, || ());
    let drop_pages = |_, _| {
        assert_eq!(write_back(&both, 0..4096), [0..100], "FUSE-8: old");
        assert_eq!(write_back(&both, 4096..8192), [], "FUSE-8: old, all of it");
        assert_eq!(write_back(&both, 0..16384), [0..100, 9000..16384], "FUSE-8");
        assert_eq!(write_back(&both, 12288..16384), [12288..16384]);
        both.page_read(4096..8192, || ());
        assert_eq!(write_back(&both, 4096..8192), [4096..8192], "FUSE-8: new");
        // Another direct write meanwhile makes all pages old once more.
        let inner = |_, _| {
            assert_eq!(
                write_back(&both, 4096..8192),
                [4096..5000, 5010..8192],
                "FUSE-8: new to one, old to the other"
            );
            Ok(())
        };
        assert_eq!(
            streams.write((&write, true, true), 5000..5010, || Ok(5000), || Ok(inner)),
            Ok(5000)
        );
        assert_eq!(write_back(&both, 4096..8192), [4096..8192]);
        // A cached write fills whole pages.
        (streams.write(
            (&both, false, false),
            8000..12288,
            || Ok(8000),
            || Ok(|_, _| panic!("it is cached")),
        ))
        .unwrap();
        assert_eq!(write_back(&both, 0..12288), [0..100, 4096..12288]);
        Ok(())
    };
    assert_eq!(
        streams.write(
            (&write, true, true),
            100..9000,
            || Ok(100),
            || Ok(drop_pages)
        ),
        Ok(100)
    );
    assert_eq!(write_back(&both, 0..16384), [0..16384], "it is finished");
}

#[test]
fn fills_writebacks_and_applying_exclude_each_other() {
    let streams = Streams::default();
    let write = streams.open(NODE, flags(libc::O_WRONLY), true);
    let both = streams.open(NODE, flags(libc::O_RDWR), true);
    let inside = AtomicU64::new(0);
    let alone = || {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "FUSE-8");
        std::thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        Ok(0)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                match round % 2 {
                    0 => assert_eq!(both.page_read(0..1, alone), Ok(0)),
                    _ => both.write_back(0..1, |_| alone().map(|_| ())).unwrap_or(()),
                }
            }
        });
        for _ in 0..300 {
            streams
                .write((&write, true, true), 0..1, alone, || Ok(|_, _| Ok(())))
                .unwrap();
        }
    });
}

#[test]
fn a_cached_file_passes_the_page_cache_by_with_o_direct() {
    let streams = Streams::default();
    let read = streams.open(NODE, flags(libc::O_RDONLY), true);
    let both = streams.open(NODE, flags(libc::O_RDWR | libc::O_DIRECT), true);
    let go = |passes_by: bool| {
        let dropped = RefCell::new(Vec::new());
        let drop_pages = |offset, len_bytes| {
            dropped.borrow_mut().push((offset, len_bytes));
            Ok(())
        };
        let written = streams.write(
            (&both, passes_by, false),
            0..4096,
            || Ok(0),
            || Ok(drop_pages),
        );
        assert_eq!(written, Ok(0));
        dropped.into_inner()
    };
    assert_eq!(go(true), [], "nobody has read yet");
    read.page_read(0..4096, || ());
    assert_eq!(go(true), [(0, 4096)], "FUSE-8: opened before it, and read");
    assert_eq!(
        go(false),
        [],
        "the kernel holds the pages of this one itself"
    );
    streams.close(&read);
    assert_eq!(go(true), [(0, 0)], "FUSE-8: the pages of the last read");
    assert_eq!(go(true), [], "all pages were dropped");
}
