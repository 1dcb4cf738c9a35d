//! What constraints refuse after it was answered, kept while the process is killed or the host is
//! full (`CONSTRAINT-4`, `CONSTRAINT-6`).

use crate::common::others::plain;
use crate::common::{self, assert_clean, make, name, put};
use larder::{
    Database, DatabaseOptions, EngineOptions, ErrorKind, NodeId, list_refused, open_refused,
};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RULE: &str = "CREATE TABLE frozen (ino INTEGER PRIMARY KEY); \
    CREATE TRIGGER f1 BEFORE INSERT ON main WHEN new.ino IN (SELECT ino FROM frozen) \
      BEGIN SELECT RAISE(ABORT, 'it is frozen'); END;";

fn open_with(dir: &Path, has_background: bool) -> Database {
    let options = DatabaseOptions {
        label: "test".into(),
        engine: EngineOptions {
            has_background,
            // Only when it is told to.
            commit_interval: Duration::from_secs(3600),
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

fn bytes(number: u64, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u64)
        .map(|at| ((at + number) % 251) as u8)
        .collect()
}

fn kept_bytes(database: &Path, id: u64) -> Vec<u8> {
    let mut found = Vec::new();
    open_refused(database, id)
        .unwrap()
        .read_to_end(&mut found)
        .unwrap();
    found
}

fn spawn(dir: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "refused_crash::a_process_of_its_own",
            "--exact",
            "--nocapture",
            "--ignored",
        ])
        .env("LARDER_REFUSED_DIR", dir)
        .env("LARDER_REFUSED_FIRST", first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test: what `spawn` starts.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn a_process_of_its_own() {
    let (Ok(dir), Ok(first)) = (
        std::env::var("LARDER_REFUSED_DIR"),
        std::env::var("LARDER_REFUSED_FIRST"),
    ) else {
        return;
    };
    let dir = Path::new(&dir);
    let db = open_with(dir, false);
    for number in first.parse::<u64>().unwrap().. {
        put(
            &db,
            NodeId::ROOT,
            &format!("kept-{number}"),
            &bytes(number, 50_000),
        );
        db.sync().unwrap();
        println!("kept {number}");
        let refused = make(&db, NodeId::ROOT, &format!("bad-{number}"));
        let handle = db.nodes().open(refused, true).unwrap();
        handle.write_at(0, &bytes(number, 3_000_000)).unwrap();
        put(&db, NodeId::ROOT, &format!("also-{number}"), b"also");
        // Answered, and only then a row refuses it.
        plain(
            dir,
            &format!("INSERT INTO frozen VALUES ({})", refused.ino.0),
        );
        handle.sync().unwrap_err();
        println!("refused {number}");
    }
}

#[test]
fn a_kill_while_a_commit_is_refused_and_content_is_kept() {
    let dir = common::scratch();
    common::create(dir.path(), None).close().unwrap();
    plain(dir.path(), RULE);
    let path = dir.path().join("t.larder");
    let (mut kept, mut refused): (Vec<u64>, Vec<u64>) = Default::default();
    let mut leftovers = 0;
    for round in 0..14 {
        let mut child = spawn(dir.path(), 1000 * (round + 1));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut note = |line: &str| {
            for (what, all) in [("kept ", &mut kept), ("refused ", &mut refused)] {
                all.extend(line.strip_prefix(what).and_then(|n| n.parse::<u64>().ok()));
            }
        };
        let mut until = None;
        for line in lines.by_ref() {
            note(&line.unwrap());
            let begun = pause(round);
            let until = *until.get_or_insert(Instant::now() + begun);
            if Instant::now() > until {
                break;
            }
        }
        // Somewhere inside of an operation.
        std::thread::sleep(Duration::from_micros(1700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(|line| note(&line.unwrap()));
        let left = |path: &Path| -> usize {
            let names = std::fs::read_dir(path.join("refused"))
                .into_iter()
                .flatten();
            let names: Vec<String> = names
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            let is_left = |name: &&String| match name.split_once('.') {
                Some((id, "content")) => !names.iter().any(|other| other == id),
                Some(_) => true,
                None => false,
            };
            names.iter().filter(is_left).count()
        };
        leftovers += left(&path);
        let db = open_with(dir.path(), false);
        assert_eq!(left(&path), 0, "round {round}: a crash's leftovers stay");
        let all = list_refused(&path).unwrap();
        for number in &kept {
            let found = db
                .files()
                .read(format!("/kept-{number}").as_bytes())
                .unwrap();
            assert!(found == bytes(*number, 50_000), "kept-{number}");
        }
        for number in &refused {
            let wanted = format!("/bad-{number}");
            let one = all.iter().find(|one| one.path == wanted.as_bytes());
            let id = one.unwrap_or_else(|| panic!("{wanted} is not listed")).id;
            assert!(
                kept_bytes(&path, id) == bytes(*number, 3_000_000),
                "{wanted}"
            );
            assert_eq!(
                db.files()
                    .read(format!("/also-{number}").as_bytes())
                    .unwrap(),
                b"also"
            );
        }
        for one in &all {
            // What is listed is whole, also where nobody was told any more.
            let text = String::from_utf8(one.path.clone()).unwrap();
            let number = text.strip_prefix("/bad-").unwrap().parse().unwrap();
            assert!(
                kept_bytes(&path, one.id) == bytes(number, 3_000_000),
                "{text}"
            );
            let error = db.files().read(&one.path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{text} is there as well");
        }
        assert_clean(&db);
        db.close().unwrap();
    }
    assert!(!kept.is_empty() && !refused.is_empty());
    println!(
        "{} kept, {} refused, {leftovers} left by kills",
        kept.len(),
        refused.len()
    );
}

fn pause(round: u64) -> Duration {
    Duration::from_millis(7 * round)
}

/// A filesystem in memory of its own.
struct Host(tempfile::TempDir);

impl Host {
    fn new(mib: u64) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"])
            .arg(dir.path())
            .status();
        assert!(made.unwrap().success());
        Host(dir)
    }

    /// Lets other programs take all but so much.
    fn fill(&self, left_bytes: u64) {
        let free_bytes_now = free_bytes(self.0.path());
        let bytes = vec![1; (free_bytes_now - left_bytes) as usize];
        std::fs::write(self.0.path().join("filler"), bytes).unwrap();
    }
}

fn free_bytes(path: &Path) -> u64 {
    let output = Command::new("df")
        .args(["-B1", "--output=avail"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}

impl Drop for Host {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(self.0.path()).status();
        assert!(ended.unwrap().success());
    }
}

#[test]
fn what_a_full_host_cannot_keep_is_kept_when_there_is_room() {
    const LEN: usize = 12 << 20;
    for is_freed in [true, false] {
        let host = Host::new(160);
        let dir = host.0.path();
        common::create(dir, None).close().unwrap();
        plain(dir, RULE);
        let path = dir.join("t.larder");
        let db = open_with(dir, true);
        put(&db, NodeId::ROOT, "old", b"old");
        let refused = make(&db, NodeId::ROOT, "refused");
        let handle = db.nodes().open(refused, true).unwrap();
        handle.write_at(0, &bytes(7, LEN)).unwrap();
        plain(
            dir,
            &format!("INSERT INTO frozen VALUES ({})", refused.ino.0),
        );
        host.fill(15 << 20);
        let error = handle.sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let told = error.to_string();
        assert!(told.contains("the host is full"), "{told}");
        assert!(told.contains("in memory until there is room"), "{told}");
        drop(handle);
        assert!(list_refused(&path).unwrap().is_empty());
        assert_eq!(
            db.maintenance().gauges().unwrap().refused_held_count,
            1,
            "CONSTRAINT-6"
        );
        // What makes room works meanwhile.
        db.nodes().unlink(NodeId::ROOT, &name("old")).unwrap();
        db.sync().unwrap();
        if is_freed {
            std::fs::remove_file(dir.join("filler")).unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while list_refused(&path).unwrap().is_empty() {
                assert!(Instant::now() < until, "CONSTRAINT-6: it is not kept");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // The end takes the reserve rather than lose it.
        db.close().unwrap();
        let all = list_refused(&path).unwrap();
        assert_eq!(all.len(), 1, "CONSTRAINT-6");
        assert!(
            kept_bytes(&path, all[0].id) == bytes(7, LEN),
            "CONSTRAINT-6"
        );
        let db = open_with(dir, false);
        assert_clean(&db);
        db.close().unwrap();
    }
}
