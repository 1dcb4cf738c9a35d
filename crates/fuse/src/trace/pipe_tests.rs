//! Tracers and mounts at the two ends of real pipes.
#![allow(clippy::unwrap_used)]
use super::*;
use rustix::fs::Mode;
use std::fs;

const SOON: Duration = Duration::from_millis(10);

fn database() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("catalog.db"), "").unwrap();
    dir
}

fn event(operation: u32, duration_ns: u64) -> TraceEvent {
    TraceEvent {
        operation,
        duration_ns,
        path: vec![b'x'; 500],
        ..TraceEvent::default()
    }
}

fn operations(listener: &mut TraceListener) -> (Vec<u32>, u64) {
    let (mut seen, mut lost) = (Vec::new(), 0);
    while let Some(message) = listener.next(SOON).unwrap() {
        match message {
            TraceMessage::Event(event) => seen.push(event.operation),
            TraceMessage::Lost { count, .. } => lost += count,
            TraceMessage::Greeting { mountpoint, .. } => assert_eq!(mountpoint, b"/mnt"),
        }
    }
    (seen, lost)
}

#[test]
fn a_tracer_hears_what_it_asked_for() {
    let dir = database();
    let tracers = Tracers::new(&DatabaseDir::open(dir.path()).unwrap(), Path::new("/mnt"));
    tracers.look();
    assert!(!tracers.wants(5), "TRACE-4");
    let filter = TraceFilter {
        slower_than_ns: 100,
        operations: 1 << 5 | 1 << 6,
    };
    let mut picky = TraceListener::open(dir.path(), filter).unwrap();
    let mut all = TraceListener::open(dir.path(), TraceFilter::default()).unwrap();
    tracers.look();
    assert!(tracers.wants(5) && tracers.wants(7));
    for (operation, duration_ns) in [(5, 99), (5, 100), (6, 1000), (7, 1000)] {
        tracers.tell(event(operation, duration_ns));
    }
    assert_eq!(operations(&mut picky), (vec![5, 6], 0));
    assert_eq!(operations(&mut all), (vec![5, 5, 6, 7], 0));
    drop(all);
    tracers.look();
    assert!(tracers.wants(6) && !tracers.wants(7), "TRACE-4");
    tracers.tell(event(6, 1000));
    assert_eq!(operations(&mut picky), (vec![6], 0));
    drop(picky);
    tracers.look();
    assert!(!tracers.wants(5), "TRACE-4");
    assert_eq!(
        names_in(&DatabaseDir::open(&dir.path().join(DIRECTORY)).unwrap()).unwrap(),
        [""; 0]
    );
}

#[test]
fn a_slow_tracer_loses_events_and_hears_how_many() {
    let dir = database();
    let tracers = Tracers::new(&DatabaseDir::open(dir.path()).unwrap(), Path::new("/mnt"));
    let mut listener = TraceListener::open(dir.path(), TraceFilter::default()).unwrap();
    tracers.look();
    let sent = 10_000;
    for _ in 0..sent {
        tracers.tell(event(1, 0));
    }
    let (first, lost_before) = operations(&mut listener);
    assert!(
        !first.is_empty() && first.len() < sent as usize,
        "the pipe is bounded"
    );
    tracers.look();
    let (second, lost) = operations(&mut listener);
    let heard = (first.len() + second.len()) as u64;
    assert_eq!(heard + lost_before + lost, sent, "TRACE-1");
}

#[test]
fn what_dead_tracers_left_is_removed() {
    let dir = database();
    let tracers = Tracers::new(&DatabaseDir::open(dir.path()).unwrap(), Path::new("/mnt"));
    let directory = dir.path().join(DIRECTORY);
    drop(TraceListener::open(dir.path(), TraceFilter::default()).unwrap());
    let dead = directory.join(TraceFilter::default().name(77));
    rustix::fs::mkfifoat(rustix::fs::CWD, &dead, Mode::RUSR | Mode::WUSR).unwrap();
    fs::write(directory.join("1.1.0.ff"), "no pipe").unwrap();
    fs::write(directory.join("note"), "not ours").unwrap();
    tracers.look();
    assert!(!dead.exists() && !tracers.wants(1));
    let mut left = names_in(&DatabaseDir::open(&directory).unwrap()).unwrap();
    left.sort();
    assert_eq!(left, ["1.1.0.ff", "note"], "what is no pipe is left alone");
    assert_eq!(fs::read(directory.join("1.1.0.ff")).unwrap(), b"no pipe");
    let none = TraceListener::open(&directory, TraceFilter::default()).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotADatabase);
}

#[test]
fn foreign_bytes_are_told() {
    let dir = database();
    let mut listener = TraceListener::open(dir.path(), TraceFilter::default()).unwrap();
    fs::write(listener.directory.join(&listener.name), [1, 0, 1]).unwrap();
    let error = listener.next(SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "TRACE-3");
}

#[test]
fn names_say_the_filter() {
    for filter in [
        TraceFilter::default(),
        TraceFilter {
            slower_than_ns: 7,
            operations: 0x10,
        },
    ] {
        assert_eq!(TraceFilter::from_name(&filter.name(3)), Some(filter));
    }
    for bad in ["", "note", "1.1.0.ff.x", "1.1.0.xyz", "1.1.new", "1.1.0"] {
        assert_eq!(TraceFilter::from_name(bad), None, "{bad}");
    }
}

/// A link in the place of the directory leads nowhere, and nothing of root's is given away.
#[test]
fn links_are_not_followed() {
    let dir = database();
    let other = tempfile::tempdir().unwrap();
    let pipe = other.path().join(TraceFilter::default().name(77));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    std::os::unix::fs::symlink(other.path(), dir.path().join(DIRECTORY)).unwrap();
    Tracers::new(&DatabaseDir::open(dir.path()).unwrap(), Path::new("/mnt")).look();
    let refused = TraceListener::open(dir.path(), TraceFilter::default()).unwrap_err();
    assert!(refused.to_string().contains("symbolic link"), "{refused}");
    assert_eq!(
        fs::read_dir(other.path()).unwrap().count(),
        1,
        "DIRECTORY-1"
    );
}
