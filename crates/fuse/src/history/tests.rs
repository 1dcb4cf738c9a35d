//! What is kept of moments, and for how long.

use super::*;
use larder::{CreateOptions, DatabaseOptions};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A database with a commit for each of `count` contents of `/f`; and the numbers of the commits.
fn database(dir: &std::path::Path, count: u64) -> (Database, Vec<u64>) {
    let options = CreateOptions {
        capacity_bytes: Some(64 << 20),
        retention_ns: Some(3_600_000_000_000),
        ..CreateOptions::default()
    };
    let path = dir.join("t.larder");
    Database::create(&path, &options).unwrap();
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    let commits = (0..count)
        .map(|index| {
            database
                .files()
                .write(b"/f", format!("content {index}").as_bytes())
                .unwrap();
            database.sync().unwrap();
            let now = Moment::At(database.now_ns());
            database.history().resolve(&now).unwrap().0
        })
        .collect();
    (database, commits)
}

fn find(history: &Arc<History>, seq: u64) -> NodeId {
    let found = history.lookup(Directory::At, &name(&format!("seq:{seq}")));
    found.unwrap().node
}

fn read(history: &Arc<History>, root: NodeId) -> Vec<u8> {
    let file = history.enter(root).unwrap().lookup(&name("f")).unwrap();
    let handle = history.enter(file.node).unwrap().open_file().unwrap();
    let mut bytes = vec![0; 100];
    let length = handle.read_at(0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn pasts_are_closed_when_nobody_uses_them_and_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let (database, commits) = database(dir.path(), 20);
    let history = Arc::new(History::new(database, HistoryAccess::Both));
    let first = find(&history, commits[0]);
    let held = history.enter(first).unwrap().hold();
    for (index, seq) in commits.iter().enumerate() {
        let root = find(&history, *seq);
        assert_eq!(read(&history, root), format!("content {index}").as_bytes());
        assert!(
            history.past_count() <= KEPT_COUNT_MAX + 1,
            "and the one that is held"
        );
    }
    assert!(
        history.lock().pasts.contains_key(&commits[0]),
        "FUSE-10: it is held"
    );
    history.close_idle(Instant::now() + 2 * IDLE);
    assert_eq!(history.past_count(), 1, "FUSE-10: it is held");
    drop(held);
    history.close_idle(Instant::now() + 2 * IDLE);
    assert_eq!(history.past_count(), 0);
    assert_eq!(read(&history, first), b"content 0", "opened again");
    assert_eq!(find(&history, commits[0]), first, "FUSE-9: the same number");
}

#[test]
fn too_many_open_pasts_are_refused_and_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let (database, commits) = database(dir.path(), OPEN_COUNT_MAX as u64 + 2);
    let history = Arc::new(History::new(database, HistoryAccess::Both));
    let mut held = Vec::new();
    let mut refused_count = 0;
    for seq in &commits {
        match history.lookup(Directory::At, &name(&format!("seq:{seq}"))) {
            Ok(attr) => held.push(history.enter(attr.node).unwrap().hold()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy);
                refused_count += 1;
            }
        }
    }
    assert_eq!((held.len(), refused_count), (OPEN_COUNT_MAX, 2));
    drop(held);
    let last = find(&history, commits[commits.len() - 1]);
    assert_eq!(
        read(&history, last),
        format!("content {}", commits.len() - 1).as_bytes()
    );
}

#[test]
fn a_distance_in_time_stays_where_it_is_while_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (database, commits) = database(dir.path(), 3);
    let history = Arc::new(History::new(database.clone(), HistoryAccess::Both));
    let now = name("-0s");
    let first = history.lookup(Directory::At, &now).unwrap().node;
    assert_eq!(read(&history, first), b"content 2");
    database.files().write(b"/f", b"later").unwrap();
    database.sync().unwrap();
    let again = history.lookup(Directory::At, &now).unwrap().node;
    assert_eq!(again, first);
    // As if a minute had passed.
    for (_, used) in history.lock().names.values_mut() {
        *used -= 2 * IDLE;
    }
    assert_eq!(
        history.lookup(Directory::At, &now).unwrap().node,
        first,
        "its past is open"
    );
    for (_, used) in history.lock().names.values_mut() {
        *used -= 2 * IDLE;
    }
    for past in history.lock().pasts.values() {
        past.lock().used -= 2 * IDLE;
    }
    history.close_idle(Instant::now());
    let next = history.lookup(Directory::At, &now).unwrap().node;
    assert_ne!(next, first, "FUSE-9");
    assert_eq!(read(&history, next), b"later");
    assert_eq!(
        read(&history, first),
        b"content 2",
        "the kernel may still have it"
    );
    let absent = history
        .lookup(Directory::At, &name("seq:999999"))
        .unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    assert_eq!(commits.len(), 3);
}

#[test]
fn slots_are_given_up_that_the_kernel_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let (database, commits) = database(dir.path(), 1);
    let history = Arc::new(History::new(database, HistoryAccess::Both));
    let first = find(&history, commits[0]);
    let view = |index: usize| View {
        directory: Directory::At,
        name: name(&format!("{index}")),
        seq: 1,
    };
    let node = |index| history.node(view(index), StoreId::MAIN).unwrap();
    let count = SLOT_COUNT_SWEPT + 10;
    let nodes: HashSet<NodeId> = (0..count).map(node).collect();
    assert_eq!(nodes.len(), count, "FUSE-9");
    let kept = node(5);
    let known = [slot_of(first).unwrap(), slot_of(kept).unwrap()];
    history.sweep_slots(|| known.into_iter().collect());
    let left = history.lock().slots.len();
    assert!(left <= SLOT_COUNT_SWEPT / 2 + 2, "{left} are left");
    assert_eq!(node(5), kept, "FUSE-9");
    assert_eq!(find(&history, commits[0]), first, "FUSE-9");
    history.sweep_slots(|| unreachable!("there are not many"));
}
