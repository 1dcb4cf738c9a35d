//! Long transactions against random changes on both sides.

use crate::common::workspace::*;
use larder::{Database, ErrorKind, SqlValue};
use larder_testkit::Rng;
use std::time::Duration;

/// Random changes on both sides of a small tree; what comes of it is compared path by path, aspect
/// by aspect, with what a merge must be.
#[test]
fn a_merge_is_what_both_sides_did_or_names_what_both_touched() {
    let (mut merged, mut refused) = (0, 0);
    for seed in 0..40 {
        match random_round(seed) {
            true => merged += 1,
            false => refused += 1,
        }
    }
    assert!(
        merged >= 5 && refused >= 5,
        "{merged} merged, {refused} refused"
    );
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    ino: u64,
    mode: u32,
    content: Option<Vec<u8>>,
}

type Look = std::collections::BTreeMap<String, Seen>;

fn look(database: &Database) -> Look {
    database.sync().unwrap();
    let mut found = Look::new();
    for row in sql(
        database,
        "SELECT path, ino, kind FROM main_path JOIN main USING (ino) WHERE path <> '/'",
    ) {
        let [
            SqlValue::Text(path),
            SqlValue::Integer(ino),
            SqlValue::Text(kind),
        ] = &row[..]
        else {
            panic!("{row:?}")
        };
        let content = (kind == "file").then(|| database.files().read(path.as_bytes()).unwrap());
        let seen = Seen {
            ino: *ino as u64,
            mode: mode(database, path),
            content,
        };
        found.insert(path.clone(), seen);
    }
    found
}

fn random_round(seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    for at in 0..3 {
        mkdir(&parent, &format!("/d{at}"));
        for file in 0..4 {
            let length = 1000 + rng.below(80_000) as usize;
            parent
                .files()
                .write(
                    format!("/d{at}/f{file}").as_bytes(),
                    content(length, rng.bits() as u8),
                )
                .unwrap();
        }
    }
    parent.sync().unwrap();
    let base = look(&parent);
    let txn = begin(&path);
    let view = txn.database().unwrap();
    let count = 1 + rng.below(7);
    for _ in 0..count {
        random_change(view, &mut rng, "h");
        random_change(&parent, &mut rng, "t");
        if rng.chance(30) {
            view.sync().unwrap();
            parent.sync().unwrap();
        }
    }
    view.sync().unwrap();
    parent.sync().unwrap();
    let (here, there) = (look(view), look(&parent));
    assert_sound(view);
    let found = conflicts(txn.commit().unwrap());
    std::thread::sleep(Duration::from_millis(60));
    let after = look(&parent);
    assert_sound(&parent);
    let differs = |one: Option<&Seen>, other: Option<&Seen>| one != other;
    if !found.is_empty() {
        assert_eq!(after, there, "seed {seed}: WORKSPACE-4");
        for line in &found {
            // A conflict names what both sides touched: the path, or one above or below it.
            let at = line.split(": ").next().unwrap();
            let inos: Vec<u64> = [&base, &here, &there]
                .iter()
                .filter_map(|side| Some(side.get(at)?.ino))
                .collect();
            let of_inos = |side: &Look| -> Vec<(String, Seen)> {
                let named = side.iter().filter(|(_, seen)| inos.contains(&seen.ino));
                named
                    .map(|(path, seen)| (path.clone(), seen.clone()))
                    .collect()
            };
            let touches = |side: &Look| {
                let mut paths = base.keys().chain(side.keys());
                let by_path = paths.any(|path| {
                    let related = path == at
                        || path.starts_with(&format!("{at}/"))
                        || at.starts_with(&format!("{path}/"));
                    related && differs(base.get(path), side.get(path))
                });
                by_path || of_inos(side) != of_inos(&base)
            };
            assert!(touches(&here) && touches(&there), "seed {seed}: {line}");
        }
        return false;
    }
    let paths: std::collections::BTreeSet<&String> = base
        .keys()
        .chain(here.keys())
        .chain(there.keys())
        .chain(after.keys())
        .collect();
    for path in paths {
        let [was, ours, theirs, now] = [&base, &here, &there, &after].map(|side| side.get(path));
        if ours == was {
            assert_eq!(now, theirs, "seed {seed}: {path} was changed there only");
        } else if theirs == was || theirs == ours {
            assert_eq!(now, ours, "seed {seed}: {path} was changed here only");
        } else {
            // Both changed it: only another aspect each merges.
            let [Some(was), Some(ours), Some(theirs), Some(now)] = [was, ours, theirs, now] else {
                panic!("seed {seed}: {path} was changed on both sides, and merged")
            };
            let mode = if ours.mode == was.mode {
                theirs.mode
            } else {
                ours.mode
            };
            let content = if ours.content == was.content {
                &theirs.content
            } else {
                &ours.content
            };
            assert!(
                ours.content == was.content || theirs.content == was.content,
                "seed {seed}: {path}"
            );
            assert_eq!(
                (now.mode, &now.content),
                (mode, content),
                "seed {seed}: {path}"
            );
        }
    }
    true
}

fn random_change(database: &Database, rng: &mut Rng, side: &str) {
    let names: Vec<(String, bool)> = look(database)
        .into_iter()
        .map(|(path, seen)| (path, seen.content.is_some()))
        .collect();
    let files: Vec<&String> = names
        .iter()
        .filter(|(_, is_file)| *is_file)
        .map(|(path, _)| path)
        .collect();
    let dirs: Vec<&String> = names
        .iter()
        .filter(|(_, is_file)| !*is_file)
        .map(|(path, _)| path)
        .collect();
    if files.is_empty() || dirs.is_empty() {
        return;
    }
    let file = (*rng.pick(&files)).clone();
    let dir = (*rng.pick(&dirs)).clone();
    let node = |path: &str| {
        database
            .nodes()
            .resolve(path.as_bytes(), false)
            .unwrap()
            .node
    };
    match rng.below(10) {
        0 => drop(
            database
                .files()
                .write(
                    file.as_bytes(),
                    content(rng.below(90_000) as usize, rng.bits() as u8),
                )
                .unwrap(),
        ),
        1 => {
            let handle = database.nodes().open(node(&file), true).unwrap();
            handle
                .write_at(rng.below(50_000), &[rng.bits() as u8; 300])
                .unwrap();
        }
        2 => chmod(database, &file, 0o600 + rng.below(7) as u32),
        3 => remove(database, file.as_bytes()),
        4 | 5 => {
            let path = format!("{dir}/{side}{}", rng.below(4));
            database
                .files()
                .write(
                    path.as_bytes(),
                    content(rng.below(50_000) as usize, rng.bits() as u8),
                )
                .unwrap();
        }
        6 => drop(
            database
                .files()
                .write(format!("{dir}/n{}", rng.below(6)).as_bytes(), b"new")
                .unwrap(),
        ),
        7 => {
            let to = format!("{dir}/r{}", rng.below(12));
            if database.nodes().resolve(to.as_bytes(), false).is_err() {
                rename(database, &file, &to);
            }
        }
        8 => {
            let path = format!("/d{}", 3 + rng.below(6));
            if database.nodes().resolve(path.as_bytes(), false).is_err() {
                mkdir(database, &path);
            }
        }
        _ => {
            let (parent, name) = database.nodes().resolve_parent(dir.as_bytes()).unwrap();
            // Full ones stay.
            if let Err(error) = database.nodes().remove_dir(parent, &name) {
                assert_eq!(error.kind(), ErrorKind::NotEmpty);
            }
        }
    }
}
