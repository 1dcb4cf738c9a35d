//! Births, deaths, and who waits for whom.

use super::*;
use larder_catalog::{CatalogOptions, DatabaseInit};

fn create(dir: &DatabaseDir) -> Catalog {
    let init = DatabaseInit {
        database_id: [7; 16],
        capacity_bytes: 0,
        retention_ns: 0,
        now_ns: 1,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
    };
    Catalog::create_in(dir, &CatalogOptions::default(), &init).unwrap()
}

/// A session that waits for the writer lock keeps no other one from being born, or from looking who
/// lives.
#[test]
fn who_waits_for_the_writer_lock_keeps_the_door_open() {
    let dir = tempfile::tempdir().unwrap();
    let database = DatabaseDir::open(dir.path()).unwrap();
    let catalog = create(&database);
    let (mine, others) = (
        WriterLock::open(dir.path()).unwrap(),
        WriterLock::open(dir.path()).unwrap(),
    );
    others.begin(|| Ok(())).unwrap();
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| {
            Liveness::begin(
                &database,
                (&mine, Birth::WriterLocked),
                &catalog,
                "waiting",
                1,
            )
        });
        while !others.is_wanted() {
            assert!(!begun.is_finished(), "SESSION-4");
            std::thread::yield_now();
        }
        let door = open_lock(&database, DOOR).unwrap();
        let is_open = flock(&door, FlockOperation::NonBlockingLockExclusive).is_ok();
        drop(door);
        others.end();
        assert!(others.release(|| true));
        let (session, _) = begun.join().unwrap().unwrap();
        session.end(&catalog, Birth::WriterLocked).unwrap();
        assert!(is_open);
    });
}

/// A member of the database's group may lock the door, and any file that he may read.
#[test]
fn who_keeps_the_door_or_the_queue_is_named_and_waited_for_as_long_as_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let database = DatabaseDir::open(dir.path()).unwrap();
    let catalog = create(&database);
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let writer_lock = writer_lock.waiting(Duration::from_millis(50));
    for (name, what) in [
        (DOOR, "the door to the sessions"),
        ("turn.queue", "the writer lock"),
        ("turn.lock", "the writer lock"),
    ] {
        let held = open_lock(&database, name).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let begun = Liveness::begin(
            &database,
            (&writer_lock, Birth::WriterLocked),
            &catalog,
            "x",
            1,
        );
        let refused = begun.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "WAIT-1: {name}");
        let named = format!("; it is held by process {}", std::process::id());
        let told = refused.to_string();
        assert!(
            told.contains(&named) && told.contains(what),
            "WAIT-1: {name}: {told}"
        );
    }
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let (session, _) = Liveness::begin(
        &database,
        (&writer_lock, Birth::WriterLocked),
        &catalog,
        "x",
        1,
    )
    .unwrap();
    session.end(&catalog, Birth::WriterLocked).unwrap();
}

#[test]
fn the_dead_are_buried_and_the_living_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let database = DatabaseDir::open(dir.path()).unwrap();
    let catalog = create(&database);
    let writer_lock = WriterLock::open(dir.path()).unwrap();
    let begin = |label: &str, now_ns| {
        Liveness::begin(
            &database,
            (&writer_lock, Birth::WriterLocked),
            &catalog,
            label,
            now_ns,
        )
        .unwrap()
    };
    let (living, _) = begin("living", 1);
    let (dead, _) = begin("dead", 2);
    let dead_id = dead.id;
    drop(dead); // As a kill does: the lock is gone, the row and the file are not.
    let (newborn, _) = begin("newborn", 3);
    let ids: Vec<SessionId> = catalog
        .sessions()
        .rows()
        .unwrap()
        .iter()
        .map(|row| row.session)
        .collect();
    assert_eq!(ids, [living.id, newborn.id], "SESSION-1");
    assert!(!dir.path().join(lock_file(dead_id)).exists());
    living.end(&catalog, Birth::WriterLocked).unwrap();
    newborn.end(&catalog, Birth::WriterLocked).unwrap();
    assert!(catalog.sessions().rows().unwrap().is_empty());
}
