//! UNIQUE indexes of users over names and extended attributes: they refuse what would be there
//! twice, whatever order the changes of a commit are written in (`CONSTRAINT-7`).

use super::constraints::open_quiet;
use super::constraints_world::{Operation, World, shown};
use crate::common::others::{plain, settle};
use crate::common::{assert_clean, content, create, name, open, put, scratch};
use larder::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ROOT: NodeId = NodeId::ROOT;

/// An index, and what of a name it lets be there once.
type Rule = (&'static str, fn(u64, &str, u64) -> String);

const RULES: [Rule; 4] = [
    (
        "CREATE UNIQUE INDEX one_name ON main_dirent (ino)",
        |_, _, ino| ino.to_string(),
    ),
    (
        "CREATE UNIQUE INDEX one_everywhere ON main_dirent (name)",
        |_, name, _| name.to_owned(),
    ),
    (
        "CREATE UNIQUE INDEX \"no case.\" ON main_dirent (parent, lower(CAST(name AS TEXT)))",
        |dir, name, _| format!("{dir}/{}", name.to_lowercase()),
    ),
    (
        "CREATE UNIQUE INDEX by_letter ON main_dirent (substr(name, 1, 1), ino % 2)",
        |_, name, ino| format!("{} {}", &name[..1], ino % 2),
    ),
];

fn is_accepted(world: &World, rules: &[&Rule]) -> bool {
    rules.iter().all(|(_, key)| {
        let names = world.names.iter();
        let keys: BTreeSet<String> = names
            .map(|((dir, name), ino)| key(*dir, name, *ino))
            .collect();
        keys.len() == world.names.len()
    })
}

struct Random(u64);

impl Random {
    fn of(seed: u64) -> Random {
        Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn operation(&mut self, world: &World) -> Operation {
        let mut directories = vec![1];
        let found = world.inodes.iter().filter(|(_, inode)| inode.is_directory);
        directories.extend(found.map(|(ino, _)| *ino));
        let mut dir = || directories[self.below(directories.len() as u64) as usize];
        let (one, other) = (dir(), dir());
        let texts = ["a", "A", "b", "B", "c", "ca", "cb", "d"];
        // Most often a name that is there.
        let names: Vec<_> = world.names.keys().cloned().collect();
        let mut at = |dir: u64| match (names.is_empty(), self.below(4)) {
            (true, _) | (_, 0) => (dir, texts[self.below(8) as usize].to_owned()),
            _ => names[self.below(names.len() as u64) as usize].clone(),
        };
        let ((from, text), (to, new)) = (at(one), at(other));
        let free = texts[self.below(8) as usize].to_owned();
        match self.below(12) {
            0 | 1 => Operation::Make(one, free, false),
            2 => Operation::Make(one, free, true),
            3 => Operation::Remove(from, text),
            4 => Operation::Link(world.at(from, &text).unwrap_or(1), to, free),
            5..=7 => Operation::Exchange(from, text, to, new),
            8 | 9 => Operation::Rename(from, text, other, free),
            _ => Operation::Rename(from, text, to, new),
        }
    }
}

fn assert_nothing_refused(dir: &Path, context: &str) {
    let refused = list_refused(&dir.join("t.larder")).unwrap();
    assert!(refused.is_empty(), "{context}: {refused:?}");
}

#[test]
fn a_unique_index_over_names_refuses_what_would_be_there_twice_and_nothing_else() {
    compare_names(1..=15, 25);
}

#[test]
#[ignore = "minutes; cargo xtask soak"]
fn unique_indexes_over_names_in_many_worlds() {
    compare_names(100..=399, 60);
}

fn compare_names(seeds: std::ops::RangeInclusive<u64>, rounds: u64) {
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds {
        let of_seed = (RULES.iter().enumerate()).filter(|(bit, _)| (seed % 15 + 1) >> bit & 1 == 1);
        let rules: Vec<&Rule> = of_seed.map(|(_, rule)| rule).collect();
        let dir = scratch();
        create(dir.path(), None).close().unwrap();
        for (sql, _) in &rules {
            plain(dir.path(), sql);
        }
        let mut db = open_quiet(dir.path());
        let (mut random, mut world) = (Random::of(seed), World::default());
        for round in 0..rounds {
            for _ in 0..1 + random.below(12) {
                let operation = random.operation(&world);
                let mut tried = world.clone();
                let outcome = operation.run(&db);
                let context = format!("seed {seed}, round {round}: {operation:?}: {outcome:?}");
                // Of what is not made the number is not known, and the last index asks for it.
                let made = outcome
                    .as_ref()
                    .map_or(vec![0, u64::MAX], |made| vec![*made]);
                let after = made.iter().map(|made| {
                    tried = world.clone();
                    let is_done = tried.run(&operation, *made).is_some();
                    is_done.then(|| is_accepted(&tried, &rules))
                });
                let after: Option<Vec<bool>> = after.collect();
                match (after, &outcome) {
                    (Some(accepts), Ok(_)) => {
                        assert!(accepts[0], "CONSTRAINT-7: {context}");
                        world = tried;
                        accepted += 1;
                    }
                    (Some(accepts), Err(error)) => {
                        assert!(accepts.contains(&false), "CONSTRAINT-7: {context}");
                        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{context}");
                        refused += 1;
                    }
                    (None, _) => assert!(
                        outcome.is_err()
                            || matches!(operation, Operation::Rename(..) | Operation::Exchange(..)),
                        "{context}"
                    ),
                }
            }
            db.sync().unwrap();
            let context = format!("seed {seed}, round {round}");
            assert_nothing_refused(dir.path(), &context);
            assert!(shown(&db) == world, "{context}");
            if round % 8 == 7 {
                db.close().unwrap();
                db = open_quiet(dir.path());
                assert_clean(&db);
                assert!(shown(&db) == world, "{context}, opened again");
            }
        }
        db.close().unwrap();
    }
    eprintln!("{accepted} operations accepted, {refused} refused");
    assert!(accepted > 100 && refused > 20, "{accepted}, {refused}");
}

#[test]
fn a_unique_index_over_attributes_refuses_what_would_be_there_twice_and_nothing_else() {
    let rule = "CREATE UNIQUE INDEX one_id ON main_xattr (value) WHERE name = 'user.id'";
    for seed in 1..=6 {
        let dir = scratch();
        create(dir.path(), None).close().unwrap();
        plain(dir.path(), rule);
        let db = open_quiet(dir.path());
        let files: Vec<NodeId> = (0..4)
            .map(|at| put(&db, ROOT, &format!("f{at}"), b"x"))
            .collect();
        let mut random = Random::of(seed);
        let mut ids: BTreeMap<usize, u8> = BTreeMap::new();
        for round in 0..40 {
            for _ in 0..1 + random.below(8) {
                let (at, id) = (random.below(4) as usize, b'0' + random.below(5) as u8);
                let context = format!("seed {seed}, round {round}: f{at} {}", id as char);
                if random.below(3) == 0 {
                    let removed = db.attributes().remove(files[at], b"user.id");
                    assert_eq!(removed.is_ok(), ids.remove(&at).is_some(), "{context}");
                    continue;
                }
                let set = db
                    .attributes()
                    .set(files[at], b"user.id", &[id], XattrMode::Set);
                let is_taken = ids.iter().any(|(other, of)| *other != at && *of == id);
                match (is_taken, set) {
                    (true, Err(error)) => {
                        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{context}");
                    }
                    (false, Ok(())) => drop(ids.insert(at, id)),
                    (_, outcome) => panic!("CONSTRAINT-7: {context}: {outcome:?}, {ids:?}"),
                }
            }
            db.sync().unwrap();
            assert_nothing_refused(dir.path(), &format!("seed {seed}, round {round}"));
        }
        db.close().unwrap();
        let db = open_quiet(dir.path());
        for (at, file) in files.iter().enumerate() {
            let id = db.attributes().get(*file, b"user.id").ok();
            assert_eq!(id, ids.get(&at).map(|id| vec![*id]), "seed {seed}: f{at}");
        }
        assert_clean(&db);
        db.close().unwrap();
    }
}

/// What is exchanged has its past, and is refused where it would take rows of the user's along.
#[test]
fn an_exchange_under_a_unique_index_keeps_the_past_and_the_users_rows() {
    ["ON DELETE CASCADE", "ON DELETE RESTRICT", ""]
        .into_iter()
        .for_each(exchange_beside_labels);
}

fn exchange_beside_labels(action: &str) {
    let dir = scratch();
    let db = create(dir.path(), None);
    let (one, other) = (put(&db, ROOT, "x", b"one"), put(&db, ROOT, "y", b"other"));
    db.sync().unwrap();
    db.snapshots().create("before").unwrap();
    db.close().unwrap();
    plain(
        dir.path(),
        "CREATE UNIQUE INDEX one_name ON main_dirent (ino)",
    );
    let exchange = |db: &Database| {
        let nodes = db.nodes();
        nodes.rename(ROOT, &name("x"), ROOT, &name("y"), RenameMode::Exchange)
    };
    let at = |db: &Database, path: &[u8]| db.nodes().resolve(path, false).unwrap().node;
    let db = open_quiet(dir.path());
    exchange(&db).unwrap();
    db.sync().unwrap();
    assert_eq!((at(&db, b"/x"), at(&db, b"/y")), (other, one));
    let stores = db.stores();
    stores
        .create("audit", "asof=before", Some("/before"), None)
        .unwrap();
    assert_eq!(db.files().read(b"/before/x").unwrap(), b"one", "HISTORY-1");
    assert_eq!(db.files().read(b"/x").unwrap(), b"other");
    db.close().unwrap();
    plain(
        dir.path(),
        &format!(
            "CREATE TABLE label (parent INT, name TEXT, FOREIGN KEY (parent, name) \
           REFERENCES main_dirent (parent, name) {action}); \
         INSERT INTO label SELECT parent, name FROM main_dirent WHERE name = 'x'",
        ),
    );
    let db = open_quiet(dir.path());
    let error = exchange(&db).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert!(error.to_string().contains("main_dirent.ino"), "{error}");
    db.sync().unwrap();
    assert_eq!((at(&db, b"/x"), at(&db, b"/y")), (other, one));
    assert_clean(&db);
    db.close().unwrap();
    // Refuses, were the row gone.
    plain(
        dir.path(),
        "CREATE TABLE proof (n INT CHECK (n = 1)); INSERT INTO proof SELECT count(*) FROM label",
    );
}

/// A rule that comes late takes out what is there twice by it, not what only changed places.
#[test]
fn a_unique_index_that_comes_late_takes_out_what_is_there_twice() {
    ["again", "zz"]
        .into_iter()
        .for_each(twice_beside_an_exchange);
}

fn twice_beside_an_exchange(second: &str) {
    let dir = scratch();
    let db = create(dir.path(), None);
    let (x, y) = (put(&db, ROOT, "x", b"x"), put(&db, ROOT, "y", b"y"));
    let twice = put(&db, ROOT, "twice", b"twice");
    db.sync().unwrap();
    db.close().unwrap();
    let db = open_quiet(dir.path());
    let rename =
        |from: &str, to: &str, mode| db.nodes().rename(ROOT, &name(from), ROOT, &name(to), mode);
    rename("x", "y", RenameMode::Exchange).unwrap();
    db.nodes().link(twice, ROOT, &name(second)).unwrap();
    put(&db, ROOT, "b", b"b");
    plain(dir.path(), "CREATE UNIQUE INDEX late ON main_dirent (ino)");
    rename("b", "z", RenameMode::Replace).unwrap();
    db.sync().unwrap();
    let at = |path: &[u8]| db.nodes().resolve(path, false).map(|found| found.node);
    assert_eq!((at(b"/x").unwrap(), at(b"/y").unwrap()), (y, x));
    at(b"/z").unwrap();
    assert_eq!(at(b"/twice").unwrap(), twice);
    let gone = at(format!("/{second}").as_bytes()).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let refused = list_refused(&dir.path().join("t.larder")).unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_clean(&db);
    let told = db.close().unwrap_err();
    assert!(told.to_string().contains("refused 1"), "{told}");
}

/// What waits for other rows is written once: a trigger of the user's that fails half way leaves
/// nothing.
#[test]
fn a_unique_index_of_another_table_refuses_at_once() {
    let dir = scratch();
    create(dir.path(), None).close().unwrap();
    plain(
        dir.path(),
        "CREATE TABLE seen (letter TEXT); \
         CREATE UNIQUE INDEX once ON seen (lower(letter)); \
         CREATE TRIGGER see AFTER INSERT ON main_dirent BEGIN \
           INSERT OR FAIL INTO seen VALUES (substr(new.name, 1, 1)); END",
    );
    let db = open_quiet(dir.path());
    put(&db, ROOT, "a", b"a");
    put(&db, ROOT, "b", b"b");
    let error = db.files().write(b"/A second", b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    db.sync().unwrap();
    let error = db.files().write(b"/B second", b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    db.sync().unwrap();
    assert_nothing_refused(dir.path(), "");
    let names = shown(&db).names;
    assert_eq!(names.len(), 2, "{names:?}");
    assert_clean(&db);
    db.close().unwrap();
}

/// Content is written in the commit, in the order of its inodes: one file goes, the rest stays, and
/// the database goes on.
#[test]
fn a_unique_index_over_content_takes_out_what_it_meets() {
    let dir = scratch();
    let db = create(dir.path(), None);
    put(&db, ROOT, "one", b"a");
    put(&db, ROOT, "two", b"b");
    db.close().unwrap();
    plain(
        dir.path(),
        "CREATE UNIQUE INDEX once ON main_content (inline)",
    );
    let db = open_quiet(dir.path());
    db.files().write(b"/one", b"b").unwrap();
    db.files().write(b"/two", b"c").unwrap();
    db.files().write(b"/three", b"d").unwrap();
    db.sync().unwrap();
    let refused = list_refused(&dir.path().join("t.larder")).unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(db.files().read(b"/three").unwrap(), b"d");
    db.files().write(b"/four", b"e").unwrap();
    db.sync().unwrap();
    assert_clean(&db);
    db.close().unwrap_err();
}

/// A chain needs nobody to go and come back: each row waits for the one before, also where a
/// foreign key refers to them or a trigger lets none go.
#[test]
fn what_moves_up_in_a_chain_is_written_row_by_row() {
    for rule in [
        "CREATE TABLE label (parent INT, name TEXT, ino INT, \
           FOREIGN KEY (parent, name) REFERENCES main_dirent (parent, name), \
           FOREIGN KEY (ino, name) REFERENCES main_xattr (ino, name))",
        "CREATE TRIGGER stay BEFORE DELETE ON main_xattr BEGIN SELECT RAISE(ABORT, 'stay'); END",
    ] {
        let dir = scratch();
        let db = create(dir.path(), None);
        let set = |db: &Database, node, key: &[u8], value: &[u8]| {
            (db.attributes())
                .set(node, key, value, XattrMode::Set)
                .unwrap();
        };
        let [a, b, c] = ["a", "b", "c"].map(|text| put(&db, ROOT, text, text.as_bytes()));
        for (file, id) in [(a, b"1"), (b, b"2"), (c, b"3")] {
            set(&db, file, b"user.id", id);
        }
        db.close().unwrap();
        let indexes = "CREATE UNIQUE INDEX one_name ON main_dirent (ino); \
            CREATE UNIQUE INDEX one_id ON main_xattr (value) WHERE name = 'user.id'";
        plain(dir.path(), &format!("{indexes}; {rule}"));
        let db = open_quiet(dir.path());
        let rename = |from: &str, to: &str| {
            (db.nodes())
                .rename(ROOT, &name(from), ROOT, &name(to), RenameMode::Replace)
                .unwrap();
        };
        // The first one joins the group first, and gets its value last.
        set(&db, a, b"user.note", b"x");
        set(&db, c, b"user.id", b"4");
        set(&db, b, b"user.id", b"3");
        set(&db, a, b"user.id", b"2");
        db.sync().unwrap();
        let id = |node| db.attributes().get(node, b"user.id").unwrap();
        let ids = [a, b, c].map(id).concat();
        assert_eq!(ids, b"234", "{rule}");
        assert_nothing_refused(dir.path(), rule);
        if rule.contains("TRIGGER") {
            // No file with such an attribute may go.
            db.close().unwrap();
            continue;
        }
        for (from, to) in [("b", "t"), ("c", "b"), ("t", "a")] {
            rename(from, to);
        }
        db.sync().unwrap();
        assert_nothing_refused(dir.path(), rule);
        assert_eq!(shown(&db).names.len(), 2, "{rule}");
        db.files().write(b"/next", b"x").unwrap();
        db.sync().unwrap();
        assert_clean(&db);
        db.close().unwrap();
    }
}

/// A trigger that lets no name go, and one that ends the transaction: one exchange is taken out,
/// the other stays, and the database goes on.
#[test]
fn an_exchange_whose_names_may_not_go_is_taken_out() {
    for action in ["RAISE(ABORT, 'stay')", "RAISE(ROLLBACK, 'stay')"] {
        let dir = scratch();
        let db = create(dir.path(), None);
        let [x, _, v, _] = ["x", "y", "v", "w"].map(|text| put(&db, ROOT, text, b"1"));
        db.close().unwrap();
        let db = open_quiet(dir.path());
        let exchange = |one: &str, other: &str| {
            (db.nodes())
                .rename(ROOT, &name(one), ROOT, &name(other), RenameMode::Exchange)
                .unwrap();
        };
        exchange("x", "y");
        exchange("v", "w");
        put(&db, ROOT, "other", b"2");
        plain(
            dir.path(),
            &format!(
                "CREATE UNIQUE INDEX late ON main_dirent (ino); \
                 CREATE TRIGGER stay BEFORE DELETE ON main_dirent WHEN old.name IN ('x', 'y') \
                 BEGIN SELECT {action}; END"
            ),
        );
        db.sync().unwrap();
        let at = |text: &str| db.nodes().lookup(ROOT, &name(text)).unwrap().node;
        assert_eq!((at("x"), at("w")), (x, v), "{action}");
        let refused = list_refused(&dir.path().join("t.larder")).unwrap();
        let paths: BTreeSet<&[u8]> = refused.iter().map(|one| &*one.path).collect();
        assert_eq!(paths, BTreeSet::from([&b"/x"[..], b"/y"]), "{action}");
        at("other");
        put(&db, ROOT, "next", b"3");
        db.sync().unwrap();
        assert_clean(&db);
        db.close().unwrap_err();
    }
}

/// Each file gets the name and the number of the next one.
fn rotate(db: &Database) {
    let at = |text: &str| db.nodes().lookup(ROOT, &name(text)).unwrap().node;
    let files = ["x", "y", "z"].map(at);
    for (from, to) in [("x", "t"), ("y", "x"), ("z", "y"), ("t", "z")] {
        (db.nodes())
            .rename(ROOT, &name(from), ROOT, &name(to), RenameMode::Replace)
            .unwrap();
    }
    let ids = files.map(|file| db.attributes().get(file, b"user.id").unwrap());
    for file in files {
        db.attributes().remove(file, b"user.id").unwrap();
    }
    for (index, file) in files.iter().enumerate() {
        (db.attributes())
            .set(*file, b"user.id", &ids[(index + 1) % 3], XattrMode::Set)
            .unwrap();
    }
}

/// Names, contents and numbers.
fn rotation(db: &Database) -> Vec<String> {
    ["x", "y", "z"]
        .map(|text| {
            let found = db.nodes().lookup(ROOT, &name(text)).unwrap().node;
            let id = db.attributes().get(found, b"user.id").unwrap();
            let all = [content(db, found), id].concat();
            String::from_utf8(all).unwrap()
        })
        .to_vec()
}

#[test]
fn what_changes_places_under_a_unique_index_does_so_by_every_road() {
    let dir = scratch();
    let db = create(dir.path(), None);
    for (text, id) in [("x", b"1"), ("y", b"2"), ("z", b"3")] {
        let file = put(&db, ROOT, text, text.as_bytes());
        (db.attributes())
            .set(file, b"user.id", id, XattrMode::Set)
            .unwrap();
    }
    db.close().unwrap();
    plain(
        dir.path(),
        "CREATE TABLE idle (n INT); CREATE UNIQUE INDEX one_name ON main_dirent (ino); \
         CREATE UNIQUE INDEX one_id ON main_xattr (value) WHERE name = 'user.id'",
    );
    let path = dir.path().join("t.larder");
    let db = open(dir.path());
    db.snapshots().create("start").unwrap();
    let start = rotation(&db);
    assert_eq!(start, ["x1", "y2", "z3"]);
    let by_group = || {
        rotate(&db);
        db.sync().unwrap();
    };
    let by_short_transaction = || {
        let txn = db.transactions().begin().unwrap();
        rotate(&txn);
        txn.commit().unwrap();
    };
    let by_long_transaction = || {
        let txn = LongTransaction::begin(&path, DatabaseOptions::default()).unwrap();
        rotate(txn.database().unwrap());
        let outcome = txn.commit().unwrap();
        assert!(
            matches!(outcome, TransactionOutcome::Committed),
            "{outcome:?}"
        );
    };
    let roads: [(&str, &dyn Fn()); 3] = [
        ("a group", &by_group),
        ("a short transaction", &by_short_transaction),
        ("a long transaction", &by_long_transaction),
    ];
    for (road, go) in roads {
        go();
        // A long transaction commits beside this session.
        settle(dir.path(), std::slice::from_ref(&db));
        assert_ne!(rotation(&db), start, "{road}");
        db.history()
            .rollback(&Moment::Snapshot("start".into()), None, false)
            .unwrap_or_else(|error| panic!("{road}: {error}"));
        assert_eq!(rotation(&db), start, "{road}");
    }
    assert_nothing_refused(dir.path(), "");
    assert_clean(&db);
    db.close().unwrap();
}
