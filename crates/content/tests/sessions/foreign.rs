//! What a session knows after others have changed something: just what a session knows that has
//! opened anew, and what nobody has changed stays in memory.

use crate::common;

use crate::common::others::{plain, settle};
use crate::common::{OWNER, assert_clean, create, name, open, pattern, put};
use larder::{
    Caller, Database, DatabaseOptions, DefragOptions, ErrorKind, FileKind, ForeignChange, Ino,
    LongTransaction, Metadata, Moment, NewNode, NodeId, PruneCut, RenameMode, Result, Retention,
    SetAttr, StoreId, XattrMode,
};
use larder_object::EngineOptions;
use larder_testkit::Rng;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const R: NodeId = NodeId::ROOT;
const HOUR_NS: i64 = 3_600_000_000_000;
/// With this, the test `crash_of_one` is a session that dies in the middle, on the database that it
/// names.
const CRASHES: &str = "LARDER_TEST_CRASHES";
const SEED: &str = "LARDER_TEST_SEED";
const STEPS: &str = "LARDER_TEST_STEPS";

/// All that can be seen of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    attr: Metadata,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    parent: Option<NodeId>,
}

/// Names that files and directories get, everywhere.
fn names() -> Vec<String> {
    (0..6).map(|index| format!("n{index}")).collect()
}

/// Reads everything by every way there is, names that are not there included.
fn see(db: &Database) -> BTreeMap<String, Option<Seen>> {
    let mut seen = BTreeMap::new();
    db.stores().list().unwrap(); // Where stores hang is learned by looking.
    see_directory(db, R, "", &mut seen);
    seen
}

fn see_directory(
    db: &Database,
    directory: NodeId,
    path: &str,
    seen: &mut BTreeMap<String, Option<Seen>>,
) {
    let listing = db.nodes().read_dir(directory, None, 1000).unwrap();
    let listed: HashSet<String> = listing.iter().map(|entry| entry.name.to_string()).collect();
    for text in names() {
        let path = format!("{path}/{text}");
        let found = db.nodes().lookup(directory, &name(&text));
        assert_eq!(found.is_ok(), listed.contains(&text), "{path}: {found:?}");
        if let Err(error) = found {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{path}");
            seen.insert(path, None);
        }
    }
    for entry in listing {
        let path = format!("{path}/{}", entry.name);
        let attr = db.nodes().metadata(entry.node).unwrap();
        assert_eq!(
            db.nodes().resolve(path.as_bytes(), false).unwrap(),
            attr,
            "{path}"
        );
        let content = match attr.kind {
            FileKind::File => common::content(db, entry.node),
            FileKind::Symlink => db.nodes().read_link(entry.node).unwrap(),
            _ => Vec::new(),
        };
        let xattrs = db.attributes().list(entry.node).unwrap().into_iter();
        let xattrs = xattrs.map(|key| {
            (
                key.clone(),
                db.attributes().get(entry.node, &key).unwrap_or_default(),
            )
        });
        let is_directory = attr.kind == FileKind::Directory;
        let one = Seen {
            attr: Metadata {
                atime_ns: 0,
                ..attr
            },
            content,
            xattrs: xattrs.collect(),
            parent: is_directory.then(|| db.nodes().parent(entry.node).unwrap()),
        };
        seen.insert(path.clone(), Some(one));
        if is_directory {
            see_directory(db, entry.node, &path, seen);
        }
    }
}

/// What may go wrong when steps are chosen without a look at what is there.
fn allow(step: &str, outcome: Result<()>) {
    if let Err(error) = outcome {
        let is_severe = matches!(
            error.kind(),
            ErrorKind::Corrupt | ErrorKind::Stopped | ErrorKind::Io
        );
        assert!(!is_severe, "{step}: {error}");
    }
}

fn any_path(rng: &mut Rng) -> String {
    let names = names();
    let depth = 1 + rng.below(2);
    (0..depth).fold(String::new(), |path, _| {
        format!("{path}/{}", rng.pick(&names))
    })
}

/// One change of a file or a name by somebody.
fn change(db: &Database, rng: &mut Rng) -> (String, Result<()>) {
    let (path, other) = (any_path(rng), any_path(rng));
    let (kind, salt) = (rng.below(20), rng.bits());
    let size = *rng.pick(&[0, 100, 3000, 9000, 60_000, 700_000]);
    let step = format!("{kind} {path} {other} {size}");
    let caller = Caller { uid: 7, ..OWNER };
    let at = rng.below(650_000) / 4096 * 4096;
    let outcome = (|| {
        let node = |path: &str| {
            db.nodes()
                .resolve(path.as_bytes(), false)
                .map(|attr| attr.node)
        };
        match kind {
            0..=3 => db
                .files()
                .write(path.as_bytes(), pattern(size, salt))
                .map(drop),
            4..=6 => {
                let file = db.nodes().open(node(&path)?, true)?;
                let at = if file.metadata()?.size_bytes > at {
                    at
                } else {
                    0
                };
                file.write_at(at, &pattern(4096 * (1 + salt as usize % 3), salt))?;
                if kind == 6 { file.sync() } else { Ok(()) }
            }
            7 => {
                let file = db.nodes().open(node(&path)?, true)?;
                match salt % 4 {
                    0 => file.set_len(salt % 100_000),
                    1 => file.insert_range(0, &pattern(5000, salt)),
                    2 => file.delete_range(0, 10.min(file.metadata()?.size_bytes)),
                    _ => file.append(&pattern(3000, salt)).map(drop),
                }
            }
            8 | 9 => {
                let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
                let made = db
                    .nodes()
                    .create_node(parent, &name, NewNode::Directory, 0o755, caller);
                made.map(drop)
            }
            10 => {
                let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
                db.nodes().remove_dir(parent, &name)
            }
            11 => {
                let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
                db.nodes().unlink(parent, &name)
            }
            12..=14 => {
                let mode = match kind {
                    12 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
                let (new_parent, new_name) = db.nodes().resolve_parent(other.as_bytes())?;
                db.nodes()
                    .rename(parent, &name, new_parent, &new_name, mode)
            }
            15 => {
                let (parent, name) = db.nodes().resolve_parent(other.as_bytes())?;
                db.nodes().link(node(&path)?, parent, &name).map(drop)
            }
            16 => {
                let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
                let link = NewNode::Symlink(other.as_bytes());
                db.nodes()
                    .create_node(parent, &name, link, 0o777, caller)
                    .map(drop)
            }
            17 => {
                let mode = Some(0o600 + (salt % 64) as u32);
                let change = SetAttr {
                    mode,
                    ..SetAttr::default()
                };
                db.nodes().set_attr(node(&path)?, &change).map(drop)
            }
            18 => {
                let value = salt.to_string();
                db.attributes()
                    .set(node(&path)?, b"user.a", value.as_bytes(), XattrMode::Set)
            }
            _ => db.attributes().remove(node(&path)?, b"user.a"),
        }
    })();
    (step, outcome)
}

/// One step of the test: usually a change by one of the sessions, and sometimes something else that
/// leads to commits.
fn step(dir: &Path, all: &[Database], rng: &mut Rng) -> String {
    let db = &all[rng.below(all.len() as u64) as usize];
    let path = dir.join("t.larder");
    let kind = rng.below(42);
    match kind {
        // Several in a group.
        0..=17 => {
            let count = 1 + rng.below(3);
            let steps = (0..count).map(|_| {
                let (step, outcome) = change(db, rng);
                allow(&step, outcome);
                step
            });
            let steps: Vec<String> = steps.collect();
            db.sync().unwrap();
            steps.join("; ")
        }
        18..=23 => {
            let (ino, mode) = (1 + rng.below(40), rng.below(0o1000));
            let set = match rng.below(4) {
                0 => format!("mode = {mode}"),
                1 => format!("uid = {mode}, gid = {ino}"),
                2 => format!("mtime_ns = {mode}"),
                _ => format!("mode = {mode} WHERE ino > 5; UPDATE main SET mtime_ns = {ino}"),
            };
            let sql = format!("UPDATE main SET {set} WHERE ino IN ({ino}, 1 + {mode} % 30)");
            plain(dir, &sql);
            sql
        }
        24 | 25 => {
            let txn = db.transactions().begin().unwrap();
            let steps: Vec<String> = (0..3)
                .map(|_| {
                    let (step, outcome) = change(&txn, rng);
                    allow(&step, outcome);
                    step
                })
                .collect();
            match rng.chance(70) {
                true => allow("commit", txn.commit()),
                false => txn.abort(),
            }
            format!("in a transaction: {}", steps.join("; "))
        }
        26 => {
            all.iter().for_each(|db| db.sync().unwrap());
            let long = LongTransaction::begin(&path, DatabaseOptions::default()).unwrap();
            let steps: Vec<String> = (0..4)
                .map(|_| {
                    let (step, outcome) = change(long.database().unwrap(), rng);
                    allow(&step, outcome);
                    step
                })
                .collect();
            if rng.chance(50) {
                let (step, outcome) = change(db, rng);
                allow(&step, outcome);
                db.sync().unwrap();
            }
            let outcome = long.commit().unwrap();
            format!("in a long transaction: {}: {outcome:?}", steps.join("; "))
        }
        27 | 28 => {
            db.maintenance()
                .defrag(&[], &DefragOptions::default(), &mut |_| {})
                .unwrap();
            db.sync().unwrap();
            "defrag".into()
        }
        29 => {
            allow(
                "prune",
                db.history().prune(PruneCut::All, None, false).map(drop),
            );
            "prune".into()
        }
        30 => {
            for retention_ns in [0, HOUR_NS] {
                allow(
                    "retention",
                    db.history().set_retention(Retention {
                        retention_ns,
                        is_guaranteed: false,
                    }),
                );
                let (step, outcome) = change(db, rng);
                allow(&step, outcome);
                db.sync().unwrap();
                if rng.chance(50) {
                    plain(dir, "UPDATE main SET mode = 448 WHERE ino = 2");
                }
            }
            "without history, and with it again".into()
        }
        31 => {
            let made = db.stores().create("other", "files", None, None);
            allow("a store", made.map(drop));
            allow(
                "its file",
                db.files().write(b"/other/n1", pattern(9000, 1)).map(drop),
            );
            db.sync().unwrap();
            "a store".into()
        }
        32 => {
            allow("no store", db.stores().destroy("other"));
            "no store".into()
        }
        33 => {
            let (from, to) = (any_path(rng), any_path(rng));
            allow(
                "clone",
                db.files()
                    .clone_path(None, from.as_bytes(), to.as_bytes())
                    .map(drop),
            );
            format!("clone {from} {to}")
        }
        34 => {
            let seq = db.maintenance().gauges().unwrap().commit_seq;
            let to = Moment::Seq(seq.saturating_sub(rng.below(5)));
            allow(
                "rollback",
                db.history().rollback(&to, None, false).map(drop),
            );
            format!("rollback to {to:?}")
        }
        35 => {
            let seq = db
                .maintenance()
                .gauges()
                .unwrap()
                .commit_seq
                .saturating_sub(rng.below(3));
            allow("undo", db.history().undo(seq, false).map(drop));
            format!("undo {seq}")
        }
        // What the engine's commits do by it nobody keeps.
        36 => {
            plain(
                dir,
                "CREATE TRIGGER other AFTER UPDATE ON main BEGIN \
                 UPDATE main SET mode = 256 + NEW.ino % 64 WHERE ino BETWEEN 2 AND 9; END",
            );
            for _ in 0..2 {
                let (step, outcome) = change(db, rng);
                allow(&step, outcome);
                db.sync().unwrap();
            }
            if rng.chance(70) {
                plain(dir, "DROP TRIGGER other");
                return "a trigger".into();
            }
            settle(dir, all);
            let (step, outcome) = change(db, rng);
            allow(&step, outcome);
            db.sync().unwrap();
            settle(dir, all);
            assert_all_see_the_same(dir, all, "with a trigger");
            plain(dir, "DROP TRIGGER other");
            "a trigger, for longer".into()
        }
        37 => {
            // What reaches nothing of ours keeps nobody from knowing.
            let audit = match rng.chance(50) {
                true => {
                    "CREATE TRIGGER IF NOT EXISTS audits AFTER UPDATE ON main BEGIN INSERT INTO \
                     audit VALUES (NEW.ino); END"
                }
                false => "DROP TRIGGER IF EXISTS audits",
            };
            plain(
                dir,
                &format!("UPDATE main SET note = abs(random()) % 9 WHERE ino % 3 = 0; {audit}"),
            );
            "a column".into()
        }
        38 => {
            let child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "foreign::crash_of_one",
                    "--ignored",
                    "--nocapture",
                ])
                .env(CRASHES, &path)
                .env(SEED, rng.bits().to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(!child.success());
            "a crash".into()
        }
        39 => {
            let name = format!("s{}", rng.bits());
            allow("a snapshot", db.snapshots().create(&name).map(drop));
            "a snapshot".into()
        }
        // Nobody else sees such a trigger.
        _ => {
            let mut sql = db.sql().open(false).unwrap();
            for text in [
                "CREATE TEMP TRIGGER mine AFTER UPDATE ON main BEGIN \
                 UPDATE main SET mode = 256 + NEW.ino % 64 WHERE ino BETWEEN 2 AND 9; END",
                "SELECT write_content('/n1', hex(randomblob(300)))",
                "SELECT write_content('/n2', hex(randomblob(3000)))",
            ] {
                allow(text, sql.execute(text, &mut |_| Ok(())).map(drop));
            }
            "a temporary trigger".into()
        }
    }
}

#[test]
#[ignore = "the process that another test kills"]
fn crash_of_one() {
    let Some(path) = std::env::var_os(CRASHES) else {
        return;
    };
    let mut rng = Rng::new(std::env::var(SEED).unwrap().parse().unwrap());
    let db = Database::open(Path::new(&path), DatabaseOptions::default()).unwrap();
    for _ in 0..6 {
        change(&db, &mut rng).1.ok();
        if rng.chance(50) {
            db.sync().unwrap();
        }
    }
    std::process::abort();
}

fn assert_all_see_the_same(dir: &Path, all: &[Database], what: &str) {
    let seen: Vec<_> = all.iter().map(see).collect();
    let fresh = open(dir);
    let expected = see(&fresh);
    fresh.close().unwrap();
    for (index, seen) in seen.iter().enumerate() {
        for (path, expected) in &expected {
            assert_eq!(
                seen.get(path),
                Some(expected),
                "FOREIGN-1, FOREIGN-3: session {index}, {path}, after {what}"
            );
        }
        assert_eq!(seen.len(), expected.len(), "session {index} after {what}");
    }
}

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn everybody_sees_what_who_opens_anew_sees() {
    let seed = number_of(SEED, 1);
    println!("{SEED}={seed}");
    let mut rng = Rng::new(seed);
    let dir = common::scratch();
    create(dir.path(), None).close().unwrap();
    plain(
        dir.path(),
        "CREATE TABLE idle (x); CREATE TABLE audit (x); ALTER TABLE main ADD COLUMN note INTEGER",
    );
    let session = || {
        let engine = EngineOptions {
            redo_bytes_max: 128 << 10,
            ..EngineOptions::default()
        };
        let options = DatabaseOptions {
            engine,
            ..DatabaseOptions::default()
        };
        Database::open(&dir.path().join("t.larder"), options).unwrap()
    };
    let all = [session(), session(), session()];
    for index in 0..number_of(STEPS, 120) {
        let what = step(dir.path(), &all, &mut rng);
        all.iter().for_each(|db| db.sync().unwrap());
        settle(dir.path(), &all);
        assert_all_see_the_same(dir.path(), &all, &format!("step {index}: {what}"));
    }
    for db in &all {
        let gauges = db.maintenance().gauges().unwrap();
        assert!(gauges.foreign_exact_count > gauges.foreign_whole_count);
    }
    assert_clean(&all[0]);
}

#[test]
fn what_nobody_has_changed_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let writer = create(dir.path(), None);
    plain(dir.path(), "CREATE TABLE idle (x)");
    for directory in ["mine", "theirs"] {
        let kind = NewNode::Directory;
        let made = writer
            .nodes()
            .create_node(R, &name(directory), kind, 0o755, OWNER)
            .unwrap();
        for file in 0..50 {
            put(
                &writer,
                made.node,
                &format!("f{file}"),
                &pattern(3000, file),
            );
        }
    }
    writer.sync().unwrap();
    let reader = open(dir.path());
    let told: Arc<Mutex<Vec<ForeignChange>>> = Arc::default();
    let notes = Arc::clone(&told);
    reader
        .sessions()
        .on_foreign_changes(Box::new(move |change| {
            notes.lock().unwrap().push(change.clone());
        }));
    let all = [reader.clone()];
    settle(dir.path(), &all);
    let read_mine = || {
        for file in 0..50 {
            let path = format!("/mine/f{file}");
            assert_eq!(
                reader.files().read(path.as_bytes()).unwrap(),
                pattern(3000, file)
            );
        }
    };
    read_mine();
    told.lock().unwrap().clear();
    let before = reader.maintenance().gauges().unwrap();
    for file in 0..20 {
        let path = format!("/theirs/new{file}");
        writer
            .files()
            .write(path.as_bytes(), pattern(9000, file))
            .unwrap();
        writer.sync().unwrap();
        settle(dir.path(), &all);
    }
    let after = reader.maintenance().gauges().unwrap();
    assert_eq!(
        after.foreign_whole_count, before.foreign_whole_count,
        "FOREIGN-1"
    );
    assert!(after.foreign_exact_count >= before.foreign_exact_count + 20);
    // The directory of theirs and the files are not in memory here at all; nothing of mine has
    // gone.
    assert_eq!(
        after.foreign_dropped_count, before.foreign_dropped_count,
        "FOREIGN-3"
    );
    assert!(after.cached_inode_count >= 52, "FOREIGN-3");
    let mine: HashSet<Ino> = (0..50)
        .map(|file| {
            reader
                .nodes()
                .resolve(format!("/mine/f{file}").as_bytes(), false)
        })
        .chain([reader.nodes().resolve(b"/mine", false)])
        .map(|attr| attr.unwrap().node.ino)
        .collect();
    for change in told.lock().unwrap().drain(..) {
        match change {
            ForeignChange::Everything => panic!("FOREIGN-1: everything"),
            ForeignChange::Inodes(inodes) => {
                let is_mine = |one: &(StoreId, Ino)| mine.contains(&one.1);
                assert!(!inodes.iter().any(is_mine), "FOREIGN-1: {inodes:?}");
            }
        }
    }
    // One of mine: it goes, and no other one.
    let changed = reader.nodes().resolve(b"/mine/f7", false).unwrap().node;
    plain(
        dir.path(),
        &format!("UPDATE main SET mode = 256 WHERE ino = {}", changed.ino),
    );
    settle(dir.path(), &all);
    assert_eq!(
        reader.nodes().metadata(changed).unwrap().mode,
        0o400,
        "FOREIGN-3"
    );
    let one = reader.maintenance().gauges().unwrap();
    let dropped = one.foreign_dropped_count - after.foreign_dropped_count;
    assert!((1..=2).contains(&dropped), "FOREIGN-3: {dropped}");
    read_mine();
    // More than anybody would read of the history, and what the schema does not say: everything.
    for sql in [
        "CREATE TABLE other (x)",
        "CREATE TRIGGER t AFTER INSERT ON idle BEGIN SELECT 1; END",
    ] {
        let before = reader.maintenance().gauges().unwrap().foreign_whole_count;
        plain(dir.path(), sql);
        settle(dir.path(), &all);
        let after = reader.maintenance().gauges().unwrap();
        assert!(after.foreign_whole_count > before, "FOREIGN-4: {sql}");
    }
    // Triggers that reach nothing of ours in commits of the engine change nothing of that, once
    // they are known.
    plain(
        dir.path(),
        "CREATE TRIGGER audits AFTER UPDATE ON main BEGIN INSERT INTO other VALUES (NEW.size); END",
    );
    // What plain SQL has changed counts to this commit.
    writer.files().write(b"/theirs/first", b"first").unwrap();
    writer.sync().unwrap();
    settle(dir.path(), &all);
    read_mine();
    let before = reader.maintenance().gauges().unwrap();
    writer.files().write(b"/theirs/last", b"last").unwrap();
    writer.sync().unwrap();
    settle(dir.path(), &all);
    let after = reader.maintenance().gauges().unwrap();
    assert_eq!(
        (after.foreign_whole_count, after.foreign_dropped_count),
        (before.foreign_whole_count, before.foreign_dropped_count),
        "FOREIGN-5"
    );
    assert_clean(&writer);
}
