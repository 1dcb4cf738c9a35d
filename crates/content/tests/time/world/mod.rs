//! Everything that has a past at once: two stores with a script each and a tracked table, and all that may happen to the
//! history in between.

use super::{MIX, engine, open};
use crate::common::moments::{Clock, HOUR, MILLISECOND};
use crate::support::{self, ContentTree};
use larder::{Database, DefragOptions, Moment, OpenOptions, PruneCut, SqlValue};
use larder_testkit::{EntryKind, Rng, Script, explain_difference};
use std::collections::BTreeMap;
use std::path::Path;

/// The stores of a [`World`], by where they are mounted.
const ROOTS: [&str; 2] = ["/one", "/two"];

/// What a [`World`] was at a moment: how many operations had been made in each store, and the rows.
#[derive(Clone)]
struct Was {
    at_ns: i64,
    made: [usize; 2],
    rows: BTreeMap<i64, String>,
}

/// Two stores with a script each and a tracked table.
struct World {
    clock: Clock,
    scripts: [Script; 2],
    /// Where they are now; its time is not used.
    now: Was,
    moments: Vec<Was>,
    database: Database,
    trees: [ContentTree; 2],
}

impl World {
    fn create(seed: u64, op_count: usize, dir: &Path) -> World {
        let clock = Clock::new();
        let database = clock.create(dir, 256, HOUR);
        for root in ROOTS {
            let store = database.create_store(&root[1..], "files", None, None);
            store.unwrap();
        }
        let mut sql = database.sql(false).unwrap();
        let table = "CREATE TABLE album (id INTEGER PRIMARY KEY, title TEXT NOT NULL)";
        sql.execute(table, &mut |_| Ok(())).unwrap();
        drop(sql);
        database.track_table("album").unwrap();
        database.close().unwrap();
        let (database, trees) = World::open(&clock, dir);
        World {
            scripts: [0, 1].map(|nth| Script::generate(2 * seed + nth, op_count, MIX)),
            now: Was {
                at_ns: 0,
                made: [0; 2],
                rows: BTreeMap::new(),
            },
            moments: Vec::new(),
            clock,
            database,
            trees,
        }
    }

    fn open(clock: &Clock, dir: &Path) -> (Database, [ContentTree; 2]) {
        let options = OpenOptions {
            engine: engine(clock),
            ..OpenOptions::default()
        };
        let database = Database::open(&dir.join("t.larder"), options).unwrap();
        let trees = ROOTS.map(|root| ContentTree::below(database.clone(), root));
        (database, trees)
    }

    fn reopen(&mut self, dir: &Path) {
        self.trees = ROOTS.map(|root| ContentTree::below(self.database.clone(), root));
        self.database.clone().close().unwrap();
        (self.database, self.trees) = World::open(&self.clock, dir);
    }

    fn is_done(&self) -> bool {
        let ends = self.scripts.each_ref().map(|script| script.ops.len());
        self.now.made == ends
    }

    /// The next operation of a store, or a change of a row.
    fn step(&mut self, rng: &mut Rng) {
        let nth = rng.below(2) as usize;
        match self.scripts[nth].ops.get(self.now.made[nth]) {
            Some(op) if !rng.chance(15) => {
                let seed = self.scripts[nth].seed;
                self.trees[nth]
                    .apply(op)
                    .unwrap_or_else(|error| panic!("seed {seed}, {op:?}: {error}"));
                self.now.made[nth] += 1;
            }
            _ => {
                let id = rng.below(20) as i64;
                let title = format!("title {}", rng.below(1000));
                let is_gone = rng.chance(30);
                let sql = match is_gone {
                    true => "DELETE FROM album WHERE id = ?1",
                    false => {
                        "INSERT INTO album VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET title = excluded.title"
                    }
                };
                let mut values = vec![SqlValue::Integer(id)];
                match is_gone {
                    true => drop(self.now.rows.remove(&id)),
                    false => {
                        values.push(SqlValue::Text(title.clone()));
                        self.now.rows.insert(id, title);
                    }
                }
                let run = self.database.transaction(|txn| txn.sql(sql, &values));
                run.unwrap();
            }
        }
    }

    fn note_moment(&mut self) {
        self.database.sync().unwrap();
        let at_ns = self.clock.now();
        self.clock.pass(MILLISECOND);
        self.moments.push(Was {
            at_ns,
            ..self.now.clone()
        });
    }

    fn roll_back(&mut self, rng: &mut Rng) {
        let was = rng.pick(&self.moments).clone();
        let moment = Moment::At(was.at_ns);
        self.database.rollback(&moment, None, false).unwrap();
        self.now = was;
        self.note_moment();
    }

    fn prune(&mut self, rng: &mut Rng) {
        let cut = rng.pick(&self.moments).at_ns;
        let older = PruneCut::OlderThan(Moment::At(cut));
        self.database.prune(older, None, false).unwrap();
        let gone = self
            .moments
            .iter()
            .position(|was| was.at_ns >= cut)
            .unwrap();
        for was in self.moments.drain(..gone) {
            let refused = self.database.as_of(&Moment::At(was.at_ns)).err().unwrap();
            assert!(refused.to_string().contains("history begins"), "{refused}");
        }
    }

    /// By the API and by SQL, byte for byte.
    fn assert_was(&self, database: &Database, was: &Was, when: &str) {
        let past = database.as_of(&Moment::At(was.at_ns)).unwrap();
        let mut sql = database.sql(true).unwrap();
        for (nth, root) in ROOTS.into_iter().enumerate() {
            let (script, made) = (&self.scripts[nth], was.made[nth]);
            let seed = script.seed;
            let walked = ContentTree::below(past.clone(), root).walk();
            let walked = walked.unwrap_or_else(|error| panic!("seed {seed}, {when}: {error}"));
            if script.find_prefix(&walked, made, made).is_none() {
                let difference = explain_difference(&script.tree(made), &walked);
                panic!("seed {seed}, {when}, as of {made} operations:\n{difference}");
            }
            let asked = format!(
                "SELECT path, mode, ino, iif(kind = 'file', content_as_of({0}, path), NULL) \
                 FROM files_as_of({0}, '{root}/**')",
                was.at_ns
            );
            let mut listed = Vec::new();
            sql.execute(&asked, &mut |row| {
                listed.push(format!("{:?}", &row.values));
                Ok(())
            })
            .unwrap();
            let mut expected: Vec<String> = (walked.entries.iter())
                .map(|entry| {
                    let path = format!("{root}{}", entry.path);
                    let content = match entry.kind {
                        EntryKind::File { .. } => {
                            SqlValue::Blob(past.get(path.as_bytes()).unwrap())
                        }
                        _ => SqlValue::Null,
                    };
                    let numbers = [i64::from(entry.mode), entry.inode as i64];
                    let [mode, inode] = numbers.map(SqlValue::Integer);
                    format!("{:?}", [SqlValue::Text(path), mode, inode, content])
                })
                .collect();
            listed.sort();
            expected.sort();
            assert!(
                listed == expected,
                "seed {seed}, {when}: SQL says something else"
            );
        }
        let rows = database.rows_as_of(&past, "album", None).unwrap().rows;
        let rows = rows.into_iter().map(|row| match &row.values[..] {
            [SqlValue::Integer(id), SqlValue::Text(title)] => (*id, title.clone()),
            other => panic!("{other:?}"),
        });
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), was.rows, "{when}");
    }
}

/// Operations on files of two stores and on rows, with everything that may happen to the history in between; `looks` times a
/// random moment is compared with the model.
pub fn run_world(seed: u64, op_count: usize, looks: usize) {
    let dir = support::scratch();
    let mut world = World::create(seed, op_count, dir.path());
    let mut rng = Rng::new(seed ^ 0x3071d);
    let (mut rollbacks, mut prunes, mut crashes) = (0, 0, 0);
    while !world.is_done() {
        world.step(&mut rng);
        if rng.chance(20) {
            world.note_moment();
        }
        if rng.chance(2) {
            let options = DefragOptions::default();
            world.database.defrag(&[], &options, &mut |_| {}).unwrap();
        }
        if rng.chance(1) {
            world.reopen(dir.path());
        }
        if world.moments.len() < 10 {
            continue;
        }
        if rollbacks < 4 && rng.chance(2) {
            world.roll_back(&mut rng);
            rollbacks += 1;
        }
        if prunes < 1 && rng.chance(1) {
            world.prune(&mut rng);
            prunes += 1;
        }
        if crashes < 2 && rng.chance(2) {
            let left = support::scratch();
            support::crash(dir.path(), left.path());
            let found = open(&world.clock, left.path());
            assert_eq!(
                found.findings().unwrap(),
                Vec::<String>::new(),
                "seed {seed}"
            );
            for _ in 0..3 {
                world.assert_was(found.database(), rng.pick(&world.moments), "after a crash");
            }
            crashes += 1;
        }
    }
    world.note_moment();
    assert!(
        rollbacks > 0 && crashes > 0,
        "seed {seed}: {rollbacks}, {crashes}"
    );
    for _ in 0..looks {
        world.assert_was(&world.database, rng.pick(&world.moments), "at the end");
    }
    world.reopen(dir.path());
    for _ in 0..looks / 10 {
        world.assert_was(&world.database, rng.pick(&world.moments), "reopened");
    }
    let findings = world.database.check(true, &mut |_, _| {}).unwrap().findings;
    assert_eq!(findings, Vec::<String>::new(), "seed {seed}");
}
