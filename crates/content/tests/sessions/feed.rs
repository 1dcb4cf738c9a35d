//! The change feed: every committed change, in order, exactly once.

use larder::format::{ChangeRecord, Operation};
use larder::{
    Caller, Changes, CreateOptions, Database, DatabaseOptions, ErrorKind, FeedChange, FeedEvent,
    Name, NewNode, NodeId, RenameMode, SetAttr, XattrMode,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn database(directory: &Path) -> Database {
    let path = directory.join("a.larder");
    if !path.exists() {
        Database::create(&path, &CreateOptions::default()).unwrap();
    }
    Database::open(&path, DatabaseOptions::default()).unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn all(changes: &mut Changes) -> Vec<FeedChange> {
    changes.map(|change| change.unwrap()).collect()
}

/// What is told, in words.
fn words(changes: &[FeedChange]) -> Vec<String> {
    let entry = |entry: &larder::format::Entry| format!("{}/{}", entry.parent, entry.name);
    let word = |change: &FeedChange| match &change.event {
        FeedEvent::Begin => "begin".into(),
        FeedEvent::End => "end".into(),
        FeedEvent::Row {
            table,
            key,
            operation,
        } => format!("{operation} {table} {key:?}"),
        FeedEvent::Object(ChangeRecord { ino, operation, .. }) => match operation {
            Operation::Create { kind, entry: to } => {
                let place = to.as_ref().map_or("-".into(), entry);
                format!("create {} {ino} {place}", kind.as_str())
            }
            Operation::Link(to) => format!("link {ino} {}", entry(to)),
            Operation::Rename { from, to } => format!("rename {ino} {} {}", entry(from), entry(to)),
            Operation::Remove(from) => format!("remove {ino} {}", entry(from)),
            Operation::Delete => format!("delete {ino}"),
            Operation::Content => format!("content {ino}"),
            Operation::Attributes => format!("attributes {ino}"),
            Operation::Xattr(name) => format!("xattr {ino} {}", String::from_utf8_lossy(name)),
        },
    };
    changes.iter().map(word).collect()
}

#[test]
fn every_change_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = database(dir.path());
    database.files().write(b"/before", b"x").unwrap();
    database.sync().unwrap();
    assert_eq!(database.feed().bounds().unwrap().newest, 0, "FEED-3");
    let since = database.feed().set(true).unwrap();
    let mut changes = database.feed().changes(since);
    let mut step = |work: &dyn Fn()| {
        work();
        database.sync().unwrap();
        words(&all(&mut changes))
    };
    let node = |path: &[u8]| database.nodes().resolve(path, true).unwrap().node;
    let root = NodeId::ROOT;
    assert_eq!(
        step(&|| {
            database
                .nodes()
                .create_node(root, &name("d"), NewNode::Directory, 0o755, CALLER)
                .unwrap();
            database.files().write(b"/d/f", [7; 100_000]).unwrap();
        }),
        ["create dir 3 1/d", "create file 4 3/f"],
        "FEED-1"
    );
    assert_eq!(
        step(&|| {
            let file = database.nodes().open(node(b"/d/f"), true).unwrap();
            file.write_at(10, b"changed").unwrap();
        }),
        ["content 4"]
    );
    let set_mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    assert_eq!(
        step(&|| {
            database.nodes().set_attr(node(b"/d/f"), &set_mode).unwrap();
            database
                .attributes()
                .set(node(b"/d/f"), b"user.a", b"1", XattrMode::Set)
                .unwrap();
        }),
        ["attributes 4", "xattr 4 user.a"]
    );
    assert_eq!(
        step(&|| {
            let d = node(b"/d");
            database
                .nodes()
                .rename(d, &name("f"), root, &name("g"), RenameMode::Replace)
                .unwrap();
        }),
        ["rename 4 3/f 1/g"]
    );
    assert_eq!(
        step(&|| {
            database
                .nodes()
                .link(node(b"/g"), node(b"/d"), &name("h"))
                .unwrap();
        }),
        ["link 4 3/h"]
    );
    assert_eq!(
        step(&|| {
            database
                .nodes()
                .rename(root, &name("before"), root, &name("g"), RenameMode::Replace)
                .unwrap();
        }),
        ["remove 4 1/g", "rename 2 1/before 1/g"]
    );
    assert_eq!(
        step(&|| database.nodes().unlink(node(b"/d"), &name("h")).unwrap()),
        ["remove 4 3/h", "delete 4"]
    );
    assert_eq!(
        step(&|| {
            // What nobody could see.
            database.files().write(b"/gone", b"").unwrap();
            database.nodes().unlink(root, &name("gone")).unwrap();
        }),
        Vec::<String>::new()
    );
    // All of it again, from any place on.
    let whole = all(&mut database.feed().changes(since));
    for (index, change) in whole.iter().enumerate() {
        assert_eq!(change.seq, since + 1 + index as u64, "FEED-1");
        assert_eq!(
            all(&mut database.feed().changes(change.seq)),
            whole[index + 1..],
            "FEED-1"
        );
    }
    let end = whole.last().unwrap().seq;
    let mut waiting = database.feed().changes(end);
    assert!(!waiting.wait(Duration::ZERO).unwrap());
    database.files().write(b"/later", b"x").unwrap();
    assert!(waiting.wait(Duration::from_secs(10)).unwrap());
    let ahead = database
        .feed()
        .changes(end + 1000)
        .next()
        .unwrap()
        .unwrap_err();
    assert_eq!(ahead.kind(), ErrorKind::InvalidInput, "FEED-2");
}

#[test]
fn plain_sql_is_told_in_its_own_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let database = database(dir.path());
    database.files().write(b"/f", b"x").unwrap();
    database.sync().unwrap();
    let mut sql = database.sql().open(false).unwrap();
    let mut run = |text: &str| sql.execute(text, &mut |_| Ok(()));
    run(
        "CREATE TABLE t(a); CREATE TABLE w(a TEXT, b, PRIMARY KEY (a, b)) WITHOUT ROWID;
         ALTER TABLE main ADD COLUMN note",
    )
    .unwrap();
    let off = database.sql().watch_table("t", true).unwrap_err();
    assert!(off.to_string().contains("--enable"), "{off}");
    let since = database.feed().set(true).unwrap();
    for table in ["t", "w"] {
        database.sql().watch_table(table, true).unwrap();
    }
    for bad in ["main", "main_dirent", "larder_meta", "nothing", "main_path"] {
        database.sql().watch_table(bad, true).unwrap_err();
    }
    let mut changes = database.feed().changes(since);
    run(
        "BEGIN; INSERT INTO t VALUES (1), (2); UPDATE t SET a = 3 WHERE rowid = 2; DELETE FROM t \
        WHERE rowid = 1; COMMIT;
         BEGIN; INSERT INTO t VALUES (9); ROLLBACK;
         INSERT INTO w VALUES ('k', 1); UPDATE w SET b = 2;
         UPDATE main SET note = 'n', mode = 384 WHERE ino = 2; UPDATE main SET note = 'm' WHERE \
         ino = 2",
    )
    .unwrap();
    let told = words(&all(&mut changes));
    assert_eq!(
        told,
        [
            "insert t Integer(1)",
            "insert t Integer(2)",
            "update t Integer(2)",
            "delete t Integer(1)",
            "insert w Text(\"'k', 1\")",
            "delete w Text(\"'k', 1\")",
            "update w Text(\"'k', 2\")",
            "attributes main Integer(2)",
            "columns main Integer(2)",
        ],
        "FEED-1"
    );
    // Nobody else writes the feed.
    for bad in [
        "INSERT INTO larder_change (seq, at_ns, op, tbl) VALUES (1000, 1, 'insert', 't')",
        "INSERT INTO larder_change (at_ns, op) VALUES (1, 'end')",
        "UPDATE larder_change SET at_ns = 1",
        "DELETE FROM larder_change",
    ] {
        let refused = run(bad).unwrap_err();
        assert!(
            refused.to_string().contains("larder watch"),
            "CATALOG-3: {refused}"
        );
    }
    // Creating files is not slowed by watched tables, and both are told in one order.
    database.files().write(b"/g", b"y").unwrap();
    database.sync().unwrap();
    run("INSERT INTO t VALUES (5)").unwrap();
    assert_eq!(
        words(&all(&mut changes)),
        ["create file 3 1/g", "insert t Integer(3)"]
    );
    database.sql().watch_table("t", false).unwrap();
    run("INSERT INTO t VALUES (6)").unwrap();
    database.feed().set(false).unwrap();
    run("INSERT INTO w VALUES ('z', 1); UPDATE main SET note = 'o'").unwrap();
    database.files().write(b"/h", b"y").unwrap();
    database.sync().unwrap();
    let again = database.feed().set(true).unwrap();
    database.files().write(b"/i", b"y").unwrap();
    database.sync().unwrap();
    assert_eq!(
        words(&all(&mut changes)),
        ["end", "begin", "create file 5 1/i"],
        "FEED-3"
    );
    assert_eq!(changes.position(), again + 1);
    let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, [""; 0]);
}

/// Many sessions and SQL clients at once; a follower that starts anew at random places misses and
/// repeats nothing.
#[test]
fn followers_of_busy_sessions_see_what_the_catalog_has() {
    let dir = tempfile::tempdir().unwrap();
    let database_one = database(dir.path());
    let since = database_one.feed().set(true).unwrap();
    let files: u64 = 3 * 60;
    let followed = std::thread::scope(|scope| {
        for writer in 0..3 {
            let database = database(dir.path());
            scope.spawn(move || {
                for index in 0..60 {
                    let path = format!("/{writer}-{index}");
                    database.files().write(path.as_bytes(), b"x").unwrap();
                    if index % 3 == 0 {
                        database
                            .nodes()
                            .rename(
                                NodeId::ROOT,
                                &name(&path[1..]),
                                NodeId::ROOT,
                                &name(&format!("r{}", &path[1..])),
                                RenameMode::Replace,
                            )
                            .unwrap();
                    }
                    if index % 7 == 0 {
                        database.sync().unwrap();
                    }
                }
                database.sync().unwrap();
            });
        }
        let follower = scope.spawn(|| {
            let mut seen: Vec<FeedChange> = Vec::new();
            let is_named = |change: &&FeedChange| {
                matches!(
                    &change.event,
                    FeedEvent::Object(ChangeRecord {
                        operation: Operation::Create { .. },
                        ..
                    })
                )
            };
            while (seen.iter().filter(is_named).count() as u64) < files {
                let mut changes = database_one
                    .feed()
                    .changes(seen.last().map_or(since, |change| change.seq));
                assert!(changes.wait(Duration::from_secs(20)).unwrap(), "FEED-1");
                seen.extend(
                    changes
                        .take(1 + seen.len() % 5)
                        .map(|change| change.unwrap()),
                );
            }
            seen
        });
        follower.join().unwrap()
    });
    let rest = database_one
        .feed()
        .changes(followed.last().unwrap().seq)
        .map(|change| change.unwrap());
    let all: Vec<FeedChange> = followed.iter().cloned().chain(rest).collect();
    assert!(
        all.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq),
        "FEED-1"
    );
    assert!(
        all.windows(2)
            .all(|pair| pair[0].commit_seq <= pair[1].commit_seq),
        "FEED-1"
    );
    // A replay gives the directory.
    let mut names: BTreeMap<Name, u64> = BTreeMap::new();
    for change in &all {
        let FeedEvent::Object(ChangeRecord { ino, operation, .. }) = &change.event else {
            panic!("{change:?}");
        };
        match operation {
            Operation::Create {
                entry: Some(to), ..
            } => {
                assert_eq!(names.insert(to.name.clone(), ino.0), None);
            }
            Operation::Rename { from, to } => {
                assert_eq!(names.remove(&from.name), Some(ino.0));
                names.insert(to.name.clone(), ino.0);
            }
            other => panic!("{other:?}"),
        }
    }
    let mut listed = BTreeMap::new();
    let mut after = None;
    loop {
        let page = database_one
            .nodes()
            .read_dir(NodeId::ROOT, after.as_ref(), 1000)
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        listed.extend(page.into_iter().map(|entry| (entry.name, entry.node.ino.0)));
    }
    assert_eq!(names, listed, "FEED-1");
}

/// What the feed costs per created file.
#[test]
#[ignore = "a measurement: cargo test --release -p larder --test sessions feed::cost_of -- \
    --ignored --nocapture"]
fn cost_of_the_feed() {
    let dir = tempfile::tempdir().unwrap();
    let database = database(dir.path());
    let mut best = [[f64::MAX; 2]; 2];
    for round in 0..6 {
        for is_on in [false, true] {
            database.feed().set(is_on).unwrap();
            let create = |what: &str, count: u32, syncs: bool| {
                let began = std::time::Instant::now();
                for index in 0..count {
                    let path = format!("/{what}-{round}-{is_on}-{index}");
                    database.files().write(path.as_bytes(), [7; 4000]).unwrap();
                    if syncs {
                        database.sync().unwrap();
                    }
                }
                database.sync().unwrap();
                began.elapsed().as_secs_f64() * 1e6 / f64::from(count)
            };
            let times = [create("many", 10_000, false), create("synced", 300, true)];
            for (best, time) in best[usize::from(is_on)].iter_mut().zip(times) {
                *best = best.min(time);
            }
        }
    }
    let [off, on] = best;
    for (what, index) in [("in groups", 0), ("each synced", 1)] {
        let (off, on) = (off[index], on[index]);
        println!(
            "{what}: {off:.1} µs per file without, {on:.1} with the feed: {:+.1} %",
            (on / off - 1.0) * 100.0
        );
    }
}
