//! Everything that has a past at once, against a model: trees in several stores and a tracked
//! table, and all that may happen to the history in between.
//!
//! A *branch* is a directory of `main`, or a store, in which generated operations run. The model
//! says names, kinds, modes, extended attributes, links and content of the present. When a moment
//! is *noted*, the present is compared with it; then all that people see is remembered, owners,
//! times and inode numbers too. Whatever shows that moment later must show that. *Large operations*
//! (`operations.rs`) change much at once, a rollback for example: what they must leave is compared
//! with what is remembered, and the model goes on from there.
//!
//! Stores may keep their past for different times, be pruned and expire early (`keeping.rs`): then
//! a look at one before its history begins must be refused. What was looked at is counted, and what
//! had happened to it since (`coverage.rs`).
//!
//! This module is shared: operations and looks by way of a mount are in the tests of the mount.
// Each test that has this module uses some of it.
#![allow(dead_code, missing_docs, unused_imports)]

pub mod coverage;
mod keeping;
mod operations;
mod rows;
mod seen;

use crate::support::ContentTree;
use coverage::{BY_API, BY_SESSIONS, BY_SQL, COMPACTION, Coverage};
use keeping::Keeping;
use larder::{
    CreateOptions, Database, DatabaseOptions, DefragOptions, EngineOptions, Error, ErrorKind,
    Moment, Retention, SqlSession, SqlValue, StoreId,
};
use larder_testkit::{Generator, Mix, Model, Op, Rng, digest, explain_difference};
use rows::{literal, note_row};
use seen::{BY_FUNCTIONS, BY_SESSION, EVERYTHING, see_functions, see_session};
pub use seen::{ON_A_MOUNT, Sight, as_shown, find_difference, see, see_mount};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const MILLISECOND_NS: i64 = 1_000_000;
pub const HOUR_NS: i64 = 3_600_000_000_000;
/// What stores keep that have no retention of their own.
const DEFAULT: Retention = Retention {
    retention_ns: 24 * HOUR_NS,
    is_guaranteed: false,
};

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
    /// How many were noted before.
    pub nth: u64,
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
    /// The store's name; it stays when the store is mounted elsewhere.
    pub name: String,
    /// Where it is in the tree of the database.
    pub root: String,
    pub generator: Generator,
    api: ContentTree,
}

/// How a world is made.
pub struct Options {
    pub engine: EngineOptions,
    /// Lets about so many nanoseconds pass, a millisecond at least, so that what follows is of
    /// another moment.
    pub pass: Box<dyn Fn(i64)>,
    /// SQL may change rows beside the engine's transactions: the clock is the machine's.
    pub has_plain_sql: bool,
    /// Stores keep their past for different times, and space is short now and then.
    pub has_store_retentions: bool,
    /// No other session has the database open.
    pub is_alone: bool,
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
    pub coverage: Coverage,
    /// Moments that were noted.
    noted: u64,
    keeping: Keeping,
    options: Options,
    is_traced: bool,
    /// Names of snapshots and clones that were given.
    given: u32,
}

impl World {
    /// A new database, with a directory `/w` and the stores `/one` and `/two`.
    pub fn create(seed: u64, path: &Path, options: Options) -> World {
        let create = CreateOptions {
            // Nothing has to give way, unless somebody needs the space.
            capacity_bytes: Some(match options.has_store_retentions {
                true => 256 << 20,
                false => 1 << 30,
            }),
            retention_ns: Some(DEFAULT.retention_ns),
            ..CreateOptions::default()
        };
        Database::create_with(path, &create, &options.engine).unwrap();
        let database = open(path, &options.engine);
        for store in ["one", "two"] {
            database
                .stores()
                .create(store, "files", None, None)
                .unwrap();
        }
        let (parent, name) = database.nodes().resolve_parent(b"/w").unwrap();
        let (new, owner) = (larder::NewNode::Directory, larder::Caller::current());
        database
            .nodes()
            .create_node(parent, &name, new, 0o755, owner)
            .unwrap();
        database.files().write(b"/marker", b"").unwrap();
        let mut sql = database.sql().open(false).unwrap();
        sql.execute(ALBUM, &mut |_| Ok(())).unwrap();
        drop(sql);
        database.sql().track_table("album").unwrap();
        database.sync().unwrap();
        // What is taken back later is not one of these.
        let node = database.nodes().resolve(b"/marker", false).unwrap().node;
        let mode = larder::SetAttr {
            mode: Some(0o600),
            ..larder::SetAttr::default()
        };
        database.nodes().set_attr(node, &mode).unwrap();
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
            coverage: Coverage::default(),
            noted: 0,
            keeping: Keeping::new(DEFAULT),
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
        let node = self
            .database
            .nodes()
            .resolve(root.as_bytes(), false)
            .unwrap()
            .node;
        let stores = self.database.stores().list().unwrap();
        let info = stores.into_iter().find(|info| info.store == node.store);
        self.keeping.add(node.store);
        self.branches.push(Branch {
            store: node.store,
            name: info.unwrap().name,
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

    /// What may harm the past has happened.
    pub fn happened(&mut self, what: &'static str) {
        self.coverage.happened(what, self.noted);
    }

    /// A moment was looked at.
    pub fn saw(&mut self, way: &'static str, was: &Was) {
        self.coverage.saw(way, self.seed, was.nth);
        self.count(way);
    }

    /// The machine has failed, and goes on with what it left at `path`; all was durable.
    pub fn go_on_at(&mut self, path: &Path) {
        self.keeping.end_readers();
        self.path = path.to_owned();
        self.database = open(&self.path, &self.options.engine);
        self.renew_api();
    }

    /// Closes the database and opens it again, another session then.
    pub fn reopen(&mut self) {
        self.keeping.end_readers();
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
                let run = self
                    .database
                    .transactions()
                    .run(|txn| txn.sql(sql, &values));
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
        let run = self
            .database
            .transactions()
            .run(|txn| txn.sql(sql, &values));
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
            let mut session = self.database.sql().open(false).unwrap();
            let run = session.execute(&sql, &mut |_| Ok(()));
            run.unwrap_or_else(|error| panic!("seed {}, {sql}: {error}", self.seed));
            return self.count("rows by plain SQL");
        }
        let run = self.database.transactions().run(|txn| {
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
        let report = self
            .database
            .maintenance()
            .defrag(&[], &options, &mut |_| {})
            .unwrap();
        let mut moved_bytes = report.moved_bytes;
        for _ in 0..3 {
            moved_bytes += self
                .database
                .maintenance()
                .compact_step()
                .unwrap()
                .moved_bytes;
        }
        self.count("defrag");
        if moved_bytes > 0 {
            self.happened(COMPACTION);
        }
    }

    /// This session knows what others have committed. Who has the writer lock does.
    pub fn learn(&self) {
        let refused = self.database.snapshots().destroy("nobody").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }

    /// Whatever was done is durable, and this is how it is: as the model says.
    pub fn note_moment(&mut self) {
        self.database.sync().unwrap();
        self.learn();
        // What plain SQL did gets a commit.
        let now = Moment::At(self.database.now_ns());
        self.database.history().resolve(&now).unwrap();
        let snapshot = self.rng.chance(6).then(|| {
            self.given += 1;
            format!("s{}", self.given)
        });
        let mut kept_seq = 0;
        if let Some(name) = &snapshot {
            kept_seq = self.database.snapshots().create(name).unwrap().seq.0;
            self.count("snapshot");
        }
        let at_ns = self.database.now_ns();
        let (seq, _) = self.database.history().resolve(&Moment::At(at_ns)).unwrap();
        assert!(kept_seq <= seq, "seed {}: {kept_seq}, {seq}", self.seed);
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
        (self.options.pass)(MILLISECOND_NS);
        self.noted += 1;
        self.moments.push(Was {
            at_ns,
            seq,
            nth: self.noted - 1,
            snapshot,
            sights,
            rows: self.rows.clone(),
        });
    }

    fn present_rows(&self) -> Rows {
        let mut rows = Rows::new();
        let mut session = self.database.sql().open(true).unwrap();
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
            // Any time before the next commit.
            _ if self.options.has_store_retentions => {
                Moment::At(was.at_ns + self.rng.below(MILLISECOND_NS as u64) as i64)
            }
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
        let reached = self.reached(database, was);
        for nth in 0..self.branches.len() {
            self.look_at_branch(&past, was, nth, &reached);
        }
        let mut rows = Rows::new();
        for row in database
            .sql()
            .rows_as_of(&past, "album", None)
            .unwrap()
            .rows
        {
            note_row(&mut rows, row.values);
        }
        assert_eq!(rows, was.rows, "seed {}, rows as of {moment:?}", self.seed);
        self.saw_some(BY_API, was, &reached);
    }

    fn look_at_branch(
        &mut self,
        past: &Database,
        was: &Was,
        nth: usize,
        reached: &BTreeSet<StoreId>,
    ) {
        let how = "by the API";
        let branch = &self.branches[nth];
        if was.sight(branch).is_none() {
            // It came later, so it is not there.
            let found = past.nodes().resolve(branch.root.as_bytes(), false);
            let refused = found.map(drop).unwrap_err();
            match reached.contains(&StoreId::MAIN) {
                true => assert_eq!(refused.kind(), ErrorKind::NotFound),
                false => self.require_refused(&refused, was, how, &["main"]),
            }
            return;
        }
        match (see(past, &branch.root), reached.contains(&branch.store)) {
            (Ok(found), true) => self.require(was, how, branch, &found, EVERYTHING),
            (Err(error), true) => self.panic(was, how, branch, &error.to_string()),
            (Ok(_), false) => self.panic(was, how, branch, "its history begins later (HISTORY-7)"),
            (Err(error), false) => {
                let name = branch.name.clone();
                self.require_refused(&error, was, how, &[&name]);
            }
        }
    }

    /// By SQL: functions from a session of the present, and a session of the past.
    pub fn look_by_sql(&mut self, database: &Database, was: &Was) {
        let named = match self.rng.chance(50) {
            true => was.at_ns.to_string(),
            false => format!("'{}'", self.text(was)),
        };
        // What it shows stays as it is.
        let pin = database.as_of(&Moment::Seq(was.seq)).unwrap();
        let reached = by_way_of_main(self.reached(database, was));
        let mut session = database.sql().open(true).unwrap();
        for nth in 0..self.branches.len() {
            let branch = &self.branches[nth];
            if was.sight(branch).is_none() {
                continue;
            }
            let found = see_functions(&mut session, &named, &branch.root);
            self.require_by_sql(was, &named, nth, (found, &reached), BY_FUNCTIONS);
        }
        if self.rng.chance(30) {
            let mut session: SqlSession = database.sql().open_as_of(&self.name(was)).unwrap();
            let found = see_session(&mut session, &self.branches[0].root);
            self.require_by_sql(was, "a session", 0, (found, &reached), BY_SESSION);
            self.saw_some(BY_SESSIONS, was, &reached);
        }
        drop(pin);
        self.saw_some(BY_SQL, was, &reached);
    }

    /// A store is shown, or refused; by way of `main`, where that is refused.
    fn require_by_sql(
        &mut self,
        was: &Was,
        how: &str,
        nth: usize,
        (found, reached): (Result<Sight, Error>, &BTreeSet<StoreId>),
        shows: seen::Shows,
    ) {
        let branch = &self.branches[nth];
        match (found, reached.contains(&branch.store)) {
            (Ok(found), true) => self.require(was, how, branch, &found, shows),
            (Err(error), true) => self.panic(was, how, branch, &error.to_string()),
            (Ok(_), false) => self.panic(was, how, branch, "its history begins later (HISTORY-7)"),
            (Err(error), false) => {
                let name = branch.name.clone();
                self.require_refused(&error, was, how, &[&name, "main"]);
            }
        }
    }

    /// By the API and by SQL.
    pub fn look(&mut self, was: &Was) {
        let database = self.database.clone();
        self.look_by_api(&database, was);
        self.look_by_sql(&database, was);
    }

    /// What must be true of every database.
    pub fn check(&self, database: &Database) {
        let findings = database
            .maintenance()
            .check(true, &mut |_, _| {})
            .unwrap()
            .findings;
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
            self.database.files().read(path.as_bytes()).unwrap()
        };
        let model = Model::of(&seen::tree(&sight), read);
        branch.generator.go_on_from(model);
    }
}

/// What is shown to those who come from the root of `main`: nothing, where that is refused.
pub fn by_way_of_main(reached: BTreeSet<StoreId>) -> BTreeSet<StoreId> {
    match reached.contains(&StoreId::MAIN) {
        true => reached,
        false => BTreeSet::new(),
    }
}

fn open(path: &Path, engine: &EngineOptions) -> Database {
    let options = DatabaseOptions {
        engine: engine.clone(),
        ..DatabaseOptions::default()
    };
    Database::open(path, options).unwrap()
}

/// What a large operation may answer when it cannot be done here; it must then have done nothing.
fn is_refused(error: &Error, kinds: &[ErrorKind]) -> bool {
    kinds.contains(&error.kind())
}
