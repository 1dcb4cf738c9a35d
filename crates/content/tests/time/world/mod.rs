//! Everything that has a past at once, against a model: trees in several stores and a tracked table, and all that may happen to
//! the history in between.
//!
//! A *branch* is a directory of `main`, or a store, in which generated operations run. The model says names, kinds, modes,
//! extended attributes, links and content of the present. When a moment is *noted*, the present is compared with it; then
//! all that people see is remembered, owners, times and inode numbers too. Whatever shows that moment later must show that.
//! *Deeds* (`deeds.rs`) change much at once, a rollback for example: what they must leave is compared with what is
//! remembered, and the model goes on from there.
//!
//! This module is shared: operations and looks by way of a mount are in the tests of the mount.
#![allow(dead_code, missing_docs, unused_imports)] // Each test that has this module uses some of it.

mod deeds;
mod seen;

use crate::support::ContentTree;
use larder::{
    CreateOptions, Database, DefragOptions, EngineOptions, Error, ErrorKind, Moment, OpenOptions,
    SqlSession, SqlValue, StoreId,
};
use larder_testkit::{Generator, Mix, Model, Op, Rng, digest, explain_difference};
use seen::{BY_FUNCTIONS, BY_SESSION, EVERYTHING, see, see_functions, see_session};
pub use seen::{ON_A_MOUNT, Sight, as_shown, find_difference, see_mount};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const HOUR_NS: i64 = 3_600_000_000_000;

const MIX: Mix = Mix {
    entries_max: 24,
    file_bytes_max: 120 << 10,
    write_bytes_max: 40 << 10,
    sync_percent: 5,
    overwrite_percent: 20,
    fragment_percent: 10,
};

/// The tracked table.
const ALBUM: &str =
    "CREATE TABLE album (id INTEGER PRIMARY KEY, title TEXT NOT NULL, picture BLOB, score)";
/// Its rows, but for the key.
pub type Rows = BTreeMap<i64, Vec<SqlValue>>;

/// What all was at a moment.
#[derive(Clone)]
pub struct Was {
    pub at_ns: i64,
    pub seq: u64,
    pub snapshot: Option<String>,
    /// Of the branches that there were.
    sights: BTreeMap<StoreId, Arc<Sight>>,
    rows: Rows,
}

impl Was {
    pub fn sight(&self, branch: &Branch) -> Option<&Sight> {
        self.sights.get(&branch.store).map(|sight| &**sight)
    }
}

/// A tree in which operations run.
pub struct Branch {
    pub store: StoreId,
    /// Where it is in the tree of the database.
    pub root: String,
    pub generator: Generator,
    api: ContentTree,
}

/// How a world is made.
pub struct Options {
    pub engine: EngineOptions,
    /// Lets time pass, so that what follows is of another moment.
    pub pass: Box<dyn Fn()>,
    /// SQL may change rows beside the engine's transactions: the clock is the machine's.
    pub has_plain_sql: bool,
}

pub struct World {
    pub seed: u64,
    pub rng: Rng,
    pub path: PathBuf,
    pub database: Database,
    pub branches: Vec<Branch>,
    pub rows: Rows,
    pub moments: Vec<Was>,
    /// How often what was done and looked at.
    pub counts: BTreeMap<&'static str, u32>,
    options: Options,
    is_traced: bool,
    /// Names of snapshots and clones that were given.
    given: u32,
}

impl World {
    /// A new database, with a directory `/w` and the stores `/one` and `/two`.
    pub fn create(seed: u64, path: &Path, options: Options) -> World {
        let create = CreateOptions {
            capacity_bytes: Some(1 << 30), // Nothing has to give way.
            retention_ns: Some(24 * HOUR_NS),
            ..CreateOptions::default()
        };
        Database::create_with(path, &create, &options.engine).unwrap();
        let database = open(path, &options.engine);
        for store in ["one", "two"] {
            database.create_store(store, "files", None, None).unwrap();
        }
        let (parent, name) = database.resolve_parent(b"/w").unwrap();
        let (new, owner) = (larder::NewNode::Directory, larder::Caller::current());
        database
            .create_node(parent, &name, new, 0o755, owner)
            .unwrap();
        database.put(b"/marker", b"").unwrap();
        let mut sql = database.sql(false).unwrap();
        sql.execute(ALBUM, &mut |_| Ok(())).unwrap();
        drop(sql);
        database.track_table("album").unwrap();
        database.sync().unwrap();
        let mut world = World {
            seed,
            rng: Rng::new(seed ^ 0x3071d),
            path: path.to_owned(),
            database,
            branches: Vec::new(),
            rows: Rows::new(),
            moments: Vec::new(),
            counts: BTreeMap::new(),
            options,
            is_traced: std::env::var_os("LARDER_TRACE").is_some(),
            given: 0,
        };
        for root in ["/w", "/one", "/two"] {
            world.add_branch(root);
        }
        world.note_moment();
        world
    }

    /// What is below `root` now belongs to the world.
    fn add_branch(&mut self, root: &str) {
        let seed = self.rng.bits();
        let node = self.database.resolve(root.as_bytes(), false).unwrap().node;
        self.branches.push(Branch {
            store: node.store,
            root: root.to_owned(),
            generator: Generator::new(seed, MIX),
            api: ContentTree::below(self.database.clone(), root),
        });
    }

    /// Counts what was done; `LARDER_TRACE` shows it.
    pub fn count(&mut self, what: &'static str) {
        if self.is_traced {
            println!("{what}, rows {:?}", self.rows.keys());
        }
        *self.counts.entry(what).or_default() += 1;
    }

    /// Closes the database and opens it again, another session then.
    pub fn reopen(&mut self) {
        self.close();
        self.database = open(&self.path, &self.options.engine);
        self.renew_api();
        self.count("reopen");
    }

    fn close(&mut self) {
        self.renew_api();
        self.database.clone().close().unwrap();
    }

    /// Lets all handles go.
    fn renew_api(&mut self) {
        for branch in &mut self.branches {
            branch.api = ContentTree::below(self.database.clone(), &branch.root);
        }
    }

    /// The next operation, by the API or by SQL, or a change of rows.
    pub fn step(&mut self) {
        let nth = self.rng.below(self.branches.len() as u64) as usize;
        match self.rng.below(100) {
            0..15 => self.change_row(None),
            15..25 => self.sql_step(nth),
            _ => {
                let branch = &mut self.branches[nth];
                branch.generator.set_fragment_percent(MIX.fragment_percent);
                let op = branch.generator.next_op();
                if self.is_traced {
                    println!("{} by the API: {op:?}", branch.root);
                }
                let done = branch.api.apply(&op);
                done.unwrap_or_else(|error| panic!("seed {}, {op:?}: {error}", self.seed));
                self.branches[nth].generator.note_made(&op);
            }
        }
    }

    /// An operation by SQL, if it can be one; with a row in the same transaction sometimes.
    fn sql_step(&mut self, nth: usize) {
        let branch = &mut self.branches[nth];
        branch.generator.set_fragment_percent(0);
        let op = branch.generator.next_op();
        if self.is_traced {
            println!("{} by SQL: {op:?}", branch.root);
        }
        let path = match &op {
            Op::Write { path, .. }
            | Op::Append { path, .. }
            | Op::Truncate { path, .. }
            | Op::Punch { path, .. } => path.clone(),
            Op::Chmod { path, mode } if branch.store == StoreId::MAIN => {
                let full = format!("{}{path}", branch.root);
                let sql = "UPDATE main SET mode = ?2 WHERE ino = ino(?1)";
                let values = [SqlValue::Text(full), SqlValue::Integer((*mode).into())];
                let run = self.database.transaction(|txn| txn.sql(sql, &values));
                run.unwrap_or_else(|error| panic!("seed {}, {op:?}: {error}", self.seed));
                branch.generator.note_made(&op);
                return self.count("attributes by SQL");
            }
            _ => {
                let done = branch.api.apply(&op);
                done.unwrap_or_else(|error| panic!("seed {}, {op:?}: {error}", self.seed));
                branch.generator.note_made(&op);
                return;
            }
        };
        branch.generator.note_made(&op);
        let bytes = branch.generator.model().content(&path);
        let full = format!("{}{path}", branch.root);
        let values = vec![SqlValue::Text(full), SqlValue::Blob(bytes.to_vec())];
        self.count("content by SQL");
        if self.rng.chance(50) {
            return self.change_row(Some(values));
        }
        let sql = "SELECT write_content(?1, ?2)";
        let run = self.database.transaction(|txn| txn.sql(sql, &values));
        run.unwrap_or_else(|error| panic!("seed {}, {op:?}: {error}", self.seed));
    }

    /// A row is made, changed or removed; in the same transaction a file is written.
    fn change_row(&mut self, file: Option<Vec<SqlValue>>) {
        let id = self.rng.below(20) as i64 - 3;
        let is_gone = self.rng.chance(30);
        let mut values = vec![SqlValue::Integer(id)];
        let sql = match is_gone {
            true => {
                self.rows.remove(&id);
                "DELETE FROM album WHERE id = ?1"
            }
            false => {
                let row = self.some_row();
                values.extend(row.iter().cloned());
                self.rows.insert(id, row);
                "INSERT INTO album VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE \
                 SET (title, picture, score) = (excluded.title, excluded.picture, excluded.score)"
            }
        };
        let is_plain = self.options.has_plain_sql && file.is_none() && self.rng.chance(50);
        if is_plain {
            let mut sql = sql.to_owned();
            for (at, value) in values.iter().enumerate().rev() {
                sql = sql.replace(&format!("?{}", at + 1), &literal(value));
            }
            let mut session = self.database.sql(false).unwrap();
            let run = session.execute(&sql, &mut |_| Ok(()));
            run.unwrap_or_else(|error| panic!("seed {}, {sql}: {error}", self.seed));
            return self.count("rows by plain SQL");
        }
        let run = self.database.transaction(|txn| {
            txn.sql(sql, &values)?;
            match &file {
                Some(file) => txn.sql("SELECT write_content(?1, ?2)", file).map(drop),
                None => Ok(()),
            }
        });
        run.unwrap_or_else(|error| panic!("seed {}, {sql}: {error}", self.seed));
        self.count("rows");
    }

    /// All kinds of values, at their ends too.
    fn some_row(&mut self) -> Vec<SqlValue> {
        let title = match self.rng.below(4) {
            0 => "it's \"quoted\", {\"j\": [1]} \\ \u{e9}\u{1f600}\n".to_owned(),
            _ => format!("title {}", self.rng.below(1000)),
        };
        let picture = match self.rng.below(3) {
            0 => SqlValue::Null,
            _ => {
                let len = self.rng.below(300);
                SqlValue::Blob(larder_testkit::fill(self.rng.bits(), len))
            }
        };
        let score = match self.rng.below(6) {
            0 => SqlValue::Null,
            1 => SqlValue::Integer(i64::MIN + self.rng.below(3) as i64),
            2 => SqlValue::Integer(i64::MAX - self.rng.below(3) as i64),
            3 => SqlValue::Real(self.rng.bits() as f64 / 3.0),
            4 => SqlValue::Real(*self.rng.pick(&[0.1, 1e300, -1e-300, 5.0, 1.0 / 3.0])),
            _ => SqlValue::Text("0.5".to_owned()),
        };
        vec![SqlValue::Text(title), picture, score]
    }

    /// Content is moved to where it lies better.
    pub fn defrag(&mut self) {
        let options = DefragOptions::default();
        self.database.defrag(&[], &options, &mut |_| {}).unwrap();
        for _ in 0..3 {
            self.database.compact_step().unwrap();
        }
        self.count("defrag");
    }

    /// This session knows what others have committed. Who has the turn does.
    pub fn learn(&self) {
        let refused = self.database.destroy_snapshot("nobody").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }

    /// Whatever was done is durable, and this is how it is: as the model says.
    pub fn note_moment(&mut self) {
        self.database.sync().unwrap();
        self.learn();
        // What plain SQL did gets a commit.
        let now = Moment::At(self.database.now_ns());
        self.database.resolve_moment(&now).unwrap();
        let at_ns = self.database.now_ns();
        let (seq, _) = self.database.resolve_moment(&Moment::At(at_ns)).unwrap();
        let snapshot = self.rng.chance(6).then(|| {
            self.given += 1;
            format!("s{}", self.given)
        });
        if let Some(name) = &snapshot {
            let row = self.database.create_snapshot(name).unwrap();
            assert!(row.seq.0 >= seq, "seed {}, {row:?}", self.seed);
            self.count("snapshot");
        }
        let mut sights = BTreeMap::new();
        for branch in &self.branches {
            let sight = see(&self.database, &branch.root).unwrap();
            let found = seen::tree(&sight);
            let expected = branch.generator.model().tree();
            assert!(
                digest(&found) == digest(&expected),
                "seed {}, the present of {} after commit {seq}:\n{}",
                self.seed,
                branch.root,
                explain_difference(&expected, &found)
            );
            sights.insert(branch.store, Arc::new(sight));
        }
        assert_eq!(
            self.present_rows(),
            self.rows,
            "seed {}, rows of the present",
            self.seed
        );
        (self.options.pass)();
        self.moments.push(Was {
            at_ns,
            seq,
            snapshot,
            sights,
            rows: self.rows.clone(),
        });
    }

    fn present_rows(&self) -> Rows {
        let mut rows = Rows::new();
        let mut session = self.database.sql(true).unwrap();
        let run = session.execute("SELECT * FROM album", &mut |row| {
            note_row(&mut rows, row.values);
            Ok(())
        });
        run.unwrap();
        rows
    }

    /// A moment that is still there.
    pub fn pick(&mut self) -> Was {
        self.rng.pick(&self.moments).clone()
    }

    /// One of the ways in which a moment is named.
    pub fn name(&mut self, was: &Was) -> Moment {
        match (self.rng.below(3), &was.snapshot) {
            (0, _) => Moment::Seq(was.seq),
            (1, Some(name)) => Moment::Snapshot(name.clone()),
            _ => Moment::At(was.at_ns),
        }
    }

    /// The same for SQL and paths.
    pub fn text(&mut self, was: &Was) -> String {
        match self.name(was) {
            Moment::Seq(seq) => format!("seq:{seq}"),
            Moment::Snapshot(name) => name,
            Moment::At(at_ns) => {
                let seconds = larder::utc::show(at_ns);
                let rest = at_ns.rem_euclid(1_000_000_000);
                format!("{}.{rest:09}Z", seconds.trim_end_matches('Z'))
            }
        }
    }

    pub fn panic(&self, was: &Was, how: &str, branch: &Branch, difference: &str) -> ! {
        panic!(
            "seed {}, {how}, as of commit {} ({}), {}:\n{difference}\n{:?}",
            self.seed, was.seq, was.at_ns, branch.root, self.counts
        )
    }

    pub fn require(
        &self,
        was: &Was,
        how: &str,
        branch: &Branch,
        found: &Sight,
        shows: seen::Shows,
    ) {
        let Some(sight) = was.sight(branch) else {
            return;
        };
        if let Some(difference) = find_difference(&as_shown(sight, shows), found) {
            self.panic(was, how, branch, &difference);
        }
    }

    /// By the API: `past` is a moment of this world, or of a copy.
    pub fn look_by_api(&mut self, database: &Database, was: &Was) {
        let moment = self.name(was);
        let past = database.as_of(&moment).unwrap_or_else(|error| {
            panic!(
                "seed {}, {moment:?} (commit {}): {error}",
                self.seed, was.seq
            )
        });
        for branch in &self.branches {
            if was.sight(branch).is_none() {
                // It came later, so it is not there.
                let found = past.resolve(branch.root.as_bytes(), false);
                assert_eq!(found.map(drop).unwrap_err().kind(), ErrorKind::NotFound);
                continue;
            }
            let found = see(&past, &branch.root)
                .unwrap_or_else(|error| self.panic(was, "by the API", branch, &error.to_string()));
            self.require(was, "by the API", branch, &found, EVERYTHING);
        }
        let mut rows = Rows::new();
        for row in database.rows_as_of(&past, "album", None).unwrap().rows {
            note_row(&mut rows, row.values);
        }
        assert_eq!(rows, was.rows, "seed {}, rows as of {moment:?}", self.seed);
        self.count("looks by the API");
    }

    /// By SQL: functions from a session of the present, and a session of the past.
    pub fn look_by_sql(&mut self, database: &Database, was: &Was) {
        let named = match self.rng.chance(50) {
            true => was.at_ns.to_string(),
            false => format!("'{}'", self.text(was)),
        };
        let mut session = database.sql(true).unwrap();
        for branch in &self.branches {
            if was.sight(branch).is_none() {
                continue;
            }
            let found = see_functions(&mut session, &named, &branch.root)
                .unwrap_or_else(|error| self.panic(was, &named, branch, &error.to_string()));
            self.require(was, &named, branch, &found, BY_FUNCTIONS);
        }
        if self.rng.chance(30) {
            let mut session: SqlSession = database.sql_as_of(&self.name(was)).unwrap();
            let branch = &self.branches[0];
            let found = see_session(&mut session, &branch.root)
                .unwrap_or_else(|error| self.panic(was, "a session", branch, &error.to_string()));
            self.require(was, "a session", branch, &found, BY_SESSION);
            self.count("sessions of the past");
        }
        self.count("looks by SQL");
    }

    /// By the API and by SQL.
    pub fn look(&mut self, was: &Was) {
        let database = self.database.clone();
        self.look_by_api(&database, was);
        self.look_by_sql(&database, was);
    }

    /// What must be true of every database.
    pub fn check(&self, database: &Database) {
        let findings = database.check(true, &mut |_, _| {}).unwrap().findings;
        assert_eq!(
            findings,
            Vec::<String>::new(),
            "seed {}, {:?}",
            self.seed,
            self.counts
        );
    }

    /// The model of a branch goes on from what is there.
    pub fn adopt(&mut self, nth: usize) {
        let branch = &mut self.branches[nth];
        let sight = see(&self.database, &branch.root).unwrap();
        let read = |path: &str| {
            let path = format!("{}{path}", branch.root);
            self.database.get(path.as_bytes()).unwrap()
        };
        let model = Model::of(&seen::tree(&sight), read);
        branch.generator.go_on_from(model);
    }
}

fn open(path: &Path, engine: &EngineOptions) -> Database {
    let options = OpenOptions {
        engine: engine.clone(),
        ..OpenOptions::default()
    };
    Database::open(path, options).unwrap()
}

fn note_row(rows: &mut Rows, mut values: Vec<SqlValue>) {
    let SqlValue::Integer(id) = values.remove(0) else {
        panic!("a key")
    };
    assert_eq!(rows.insert(id, values), None, "two rows with one key");
}

/// As SQL writes it.
fn literal(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => "NULL".to_owned(),
        // The least number has no literal.
        SqlValue::Integer(i64::MIN) => format!("({} - 1)", i64::MIN + 1),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => format!("{number:e}"),
        SqlValue::Text(text) => format!("'{}'", text.replace('\'', "''")),
        SqlValue::Blob(bytes) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{digits}'")
        }
    }
}

/// What a deed may answer when it cannot be done here; it must then have done nothing.
fn is_refused(error: &Error, kinds: &[ErrorKind]) -> bool {
    kinds.contains(&error.kind())
}
