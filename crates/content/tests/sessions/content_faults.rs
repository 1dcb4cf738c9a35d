//! What is left of a change of content that fails or is refused: nothing (`GUARD-4`).

use super::constraints::{FROZEN, open_quiet};
use crate::common::others::plain;
use crate::common::{content, create, folder, name, put, scratch};
use larder::{
    AllocateMode, Database, ErrorKind, FileHandle, NodeId, Result, XattrMode, failpoints,
    list_refused,
};

const CAPABILITY: &[u8] = b"security.capability";
const SMALL: u64 = 30_000;
const LARGE: u64 = 400_000;
const NAMES: [&str; 5] = ["inline", "small", "large", "pieced", "holed"];

/// Files of every kind.
struct Place {
    text: String,
    all: Vec<NodeId>,
}

fn bytes(len_bytes: u64, seed: u64) -> Vec<u8> {
    let byte = |at: u64| ((at + seed) * 31 % 251) as u8 + 1;
    (0..len_bytes).map(byte).collect()
}

fn prepare(db: &Database, text: &str) -> Place {
    let top = folder(db, NodeId::ROOT, text);
    let sizes = [40, SMALL, LARGE, LARGE, LARGE];
    let all: Vec<NodeId> = (NAMES.iter().zip(sizes))
        .map(|(name, size)| put(db, top, name, &bytes(size, 1)))
        .collect();
    // A list of several pieces, and holes.
    let pieced = db.nodes().open(all[3], true).unwrap();
    pieced.insert_range(10_001, &bytes(700, 2)).unwrap();
    pieced.delete_range(200_003, 5000).unwrap();
    let holed = db.nodes().open(all[4], true).unwrap();
    let punch = AllocateMode::PunchHole;
    holed.allocate(punch, 100_000, 50_000).unwrap();
    for node in &all {
        let value = b"capable";
        db.attributes()
            .set(*node, CAPABILITY, value, XattrMode::Set)
            .unwrap();
    }
    let text = text.to_owned();
    Place { text, all }
}

type Operation = (
    &'static str,
    // Of which files.
    &'static [usize],
    fn(&dyn FileHandle, &Database, &Place) -> Result<()>,
);

const ALL: &[usize] = &[0, 1, 2, 3, 4];
const FROM_SMALL: &[usize] = &[1, 2, 3, 4];
const LONG: &[usize] = &[2, 3, 4];

const OPERATIONS: &[Operation] = &[
    ("write inside", ALL, |file, _, _| {
        file.write_at(5, &bytes(5000, 3))
    }),
    ("write whole blocks", FROM_SMALL, |file, _, _| {
        file.write_at(4096, &bytes(8192, 3))
    }),
    ("write at two edges", FROM_SMALL, |file, _, _| {
        file.write_at(9990, &bytes(9000, 3))
    }),
    ("write behind the end", ALL, |file, _, _| {
        file.write_at(500_100, &bytes(100, 3))
    }),
    ("append", ALL, |file, _, _| {
        file.append(&bytes(6000, 3)).map(drop)
    }),
    ("truncate inside a block", ALL, |file, _, _| {
        file.set_len(33)
    }),
    ("truncate to blocks", FROM_SMALL, |file, _, _| {
        file.set_len(8192)
    }),
    ("truncate to nothing", ALL, |file, _, _| file.set_len(0)),
    ("grow", ALL, |file, _, _| file.set_len(600_001)),
    ("allocate", ALL, |file, _, _| {
        file.allocate(AllocateMode::Allocate { keep_size: false }, 0, 700_000)
    }),
    ("allocate inside", ALL, |file, _, _| {
        file.allocate(AllocateMode::Allocate { keep_size: true }, 0, 700_000)
    }),
    ("punch inside a block", FROM_SMALL, |file, _, _| {
        file.allocate(AllocateMode::PunchHole, 12_300, 77)
    }),
    ("punch", FROM_SMALL, |file, _, _| {
        file.allocate(AllocateMode::PunchHole, 5000, 20_000)
    }),
    ("zero and grow", ALL, |file, _, _| {
        file.allocate(AllocateMode::ZeroRange { keep_size: false }, 20, 610_000)
    }),
    ("insert", ALL, |file, _, _| {
        file.insert_range(21, &bytes(5000, 3))
    }),
    ("insert at the end", LONG, |file, _, _| {
        let size = file.metadata()?.size_bytes;
        file.insert_range(size, &bytes(5000, 3))
    }),
    ("insert a hole", LONG, |file, _, _| {
        file.insert_hole(50_001, 70_000)
    }),
    ("delete", FROM_SMALL, |file, _, _| {
        file.delete_range(10_007, 3001)
    }),
    ("delete much", LONG, |file, _, _| {
        file.delete_range(3, 300_000)
    }),
    ("replace", FROM_SMALL, |file, _, _| {
        file.replace_range(9000, 5000, &bytes(7777, 3))
    }),
    ("replace the end", LONG, |file, _, _| {
        let size = file.metadata()?.size_bytes;
        file.replace_range(size - 50_001, 50_001, &bytes(90_000, 3))
    }),
    ("move", FROM_SMALL, |file, _, _| {
        file.move_range(100, 10_000, 15_001)
    }),
    ("move far", LONG, |file, _, _| {
        file.move_range(300_001, 40_000, 5000)
    }),
    ("insert blocks", LONG, |file, _, _| {
        file.allocate(AllocateMode::InsertRange, 8192, 8192)
    }),
    ("collapse blocks", LONG, |file, _, _| {
        file.allocate(AllocateMode::CollapseRange, 8192, 8192)
    }),
    ("share", &[1, 2, 4], |file, db, at| {
        let other = match file.metadata()?.node == at.all[2] {
            true => at.all[4],
            false => at.all[2],
        };
        let other = db.nodes().open(other, false)?;
        let from = other.content().unwrap();
        file.share_from(from, 0, 4096 * 3, 300_000).map(drop)
    }),
    ("put", ALL, |file, db, at| {
        let node = file.metadata()?.node;
        let index = at.all.iter().position(|one| *one == node).unwrap();
        let path = format!("/{}/{}", at.text, NAMES[index]);
        db.files()
            .write(path.as_bytes(), bytes(50_000, 4))
            .map(drop)
    }),
];

/// All that must be as it was: content, attributes, reservations of space, dirty memory.
fn state(db: &Database, at: &Place) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = (at.all.iter())
        .map(|&node| {
            let capability = db.attributes().get(node, CAPABILITY).ok();
            let seen = format!("{:?} {capability:?}", db.nodes().metadata(node).unwrap());
            (seen, content(db, node))
        })
        .collect();
    let gauges = db.maintenance().gauges().unwrap();
    all.push((format!("{} reserved", gauges.reserved_bytes), Vec::new()));
    all
}

/// All that a step can fail as.
const KINDS: [ErrorKind; 27] = [
    ErrorKind::NotFound,
    ErrorKind::Exists,
    ErrorKind::NotADirectory,
    ErrorKind::IsADirectory,
    ErrorKind::NotEmpty,
    ErrorKind::InvalidInput,
    ErrorKind::NameTooLong,
    ErrorKind::TooManyLinks,
    ErrorKind::TooManySymlinks,
    ErrorKind::FileTooLarge,
    ErrorKind::NoAttribute,
    ErrorKind::TooBig,
    ErrorKind::NoSpace,
    ErrorKind::ReadOnly,
    ErrorKind::NotPermitted,
    ErrorKind::Unsupported,
    ErrorKind::CrossStore,
    ErrorKind::Busy,
    ErrorKind::TimedOut,
    ErrorKind::Conflict,
    ErrorKind::Corrupt,
    ErrorKind::Io,
    ErrorKind::Stopped,
    ErrorKind::NotADatabase,
    ErrorKind::NewerFormat,
    ErrorKind::OlderFormat,
    ErrorKind::Sql,
];

/// As what each step fails.
#[derive(Debug, Clone, Copy)]
pub enum Kinds {
    /// One of all, in turn.
    Sample,
    Every,
}

impl Kinds {
    /// For the step that comes after so many failures.
    pub fn after(self, failures: usize) -> &'static [ErrorKind] {
        match self {
            Kinds::Sample => std::slice::from_ref(&KINDS[failures % KINDS.len()]),
            Kinds::Every => &KINDS,
        }
    }
}

/// Lets the step after so many others fail as `kind`; `None`: there are not so many.
pub fn fail_at<T>(
    step: u32,
    kind: ErrorKind,
    about: &str,
    operation: impl FnOnce() -> Result<T>,
) -> Option<larder::Error> {
    failpoints::fail_as(kind);
    failpoints::fail_after(Some(step));
    let outcome = operation();
    let is_through = failpoints::is_armed();
    failpoints::fail_after(None);
    failpoints::fail_as(ErrorKind::Io);
    match outcome {
        Ok(_) if is_through => None,
        Err(error) if !is_through => {
            assert_eq!(error.kind(), kind, "{about}, step {step}: {error}");
            Some(error)
        }
        Ok(_) => panic!("{about}: step {step} failed, {kind:?}, and nobody was told"),
        Err(error) => panic!("{about}: {error}"),
    }
}

fn fail_at_any_step(kinds: Kinds) {
    let dir = scratch();
    drop(create(dir.path(), None));
    let db = open_quiet(dir.path());
    let mut failures = 0;
    for (what, files, operation) in OPERATIONS {
        for is_committed in [true, false] {
            let at = prepare(&db, &format!("{what} {is_committed}"));
            // What shares commits its source first.
            if is_committed || *what == "share" {
                db.sync().unwrap();
            }
            for &file in *files {
                let handle = db.nodes().open(at.all[file], true).unwrap();
                let about = format!("{what}, {}, {is_committed}", NAMES[file]);
                let mut before = state(&db, &at);
                'steps: for step in 0.. {
                    for &kind in kinds.after(failures) {
                        let failed =
                            fail_at(step, kind, &about, || operation(handle.as_ref(), &db, &at));
                        let Some(error) = failed else {
                            before = state(&db, &at);
                            break 'steps;
                        };
                        assert!(
                            state(&db, &at) == before,
                            "GUARD-4: {about}, step {step}: {error}"
                        );
                        failures += 1;
                        if is_committed {
                            let seq = db.maintenance().stats().unwrap().commit_seq;
                            db.sync().unwrap();
                            let now = db.maintenance().stats().unwrap().commit_seq;
                            assert_eq!(now, seq, "GUARD-4: {about}, step {step}: {error}: a group");
                        }
                    }
                }
                drop(handle);
                if is_committed {
                    db.sync().unwrap();
                    let after = state(&db, &at);
                    let contents = |all: &[(String, Vec<u8>)]| -> Vec<Vec<u8>> {
                        all.iter().map(|(_, content)| content.clone()).collect()
                    };
                    assert!(contents(&after) == contents(&before), "GUARD-4: {about}");
                }
            }
        }
    }
    assert!(failures > 1000, "{failures}");
    db.sync().unwrap();
    db.close().unwrap();
    let db = open_quiet(dir.path());
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_change_of_content_that_fails_at_any_step_leaves_nothing() {
    fail_at_any_step(Kinds::Sample);
}

#[test]
#[ignore = "minutes: cargo xtask soak"]
fn a_change_of_content_that_fails_at_any_step_in_any_way_leaves_nothing() {
    fail_at_any_step(Kinds::Every);
}

#[test]
fn a_rule_refuses_a_change_of_content_and_nothing_else() {
    let dir = scratch();
    drop(create(dir.path(), None));
    plain(dir.path(), FROZEN);
    let db = open_quiet(dir.path());
    for (what, files, operation) in OPERATIONS {
        let at = prepare(&db, what);
        db.sync().unwrap();
        for &file in *files {
            let about = format!("{what}, {}", NAMES[file]);
            let handle = db.nodes().open(at.all[file], true).unwrap();
            let ino = at.all[file].ino.0;
            plain(dir.path(), &format!("INSERT INTO frozen VALUES ({ino})"));
            let before = state(&db, &at);
            let error = operation(handle.as_ref(), &db, &at).expect_err(&about);
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{about}: {error}");
            assert!(
                error.to_string().contains("it is frozen"),
                "{about}: {error}"
            );
            assert!(state(&db, &at) == before, "CONSTRAINT-5, GUARD-4: {about}");
            let seq = db.maintenance().stats().unwrap().commit_seq;
            db.sync().unwrap();
            assert_eq!(
                db.maintenance().stats().unwrap().commit_seq,
                seq,
                "GUARD-4: {about}"
            );
            plain(dir.path(), "DELETE FROM frozen");
            operation(handle.as_ref(), &db, &at).expect(&about);
            db.sync().unwrap();
        }
    }
    db.nodes()
        .unlink(
            db.nodes().resolve(b"/append", false).unwrap().node,
            &name("small"),
        )
        .unwrap();
    let kept = list_refused(&dir.path().join("t.larder")).unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    db.close().unwrap();
}
