//! Stores that keep their past for different times: what changes for how long, and what must be
//! there then.
//!
//! From its *floor* on each store must be as it was. A floor rises with the clock, as the retention
//! says; to the cuts of prunes; and to now under pressure, where nothing is guaranteed; but never
//! past a snapshot that is there, nor past a reader of the past that shows the store. Where the
//! history of a store really begins the database says. That must not be past the floor, and after a
//! prune not before the cut; from there on all must be as it was, and before it all must be
//! refused, with words that say why (`HISTORY-7`, `TIME-4`, `TIME-6`, `TIME-8`).

use super::coverage::{PRESSURE, STORE_PRUNE, STORE_RETENTION};
use super::seen::{EVERYTHING, see};
use super::{Branch, Was, World};

use larder::{
    AllocateMode, Database, Error, ErrorKind, Moment, PruneCut, Retention, StoreHistory, StoreId,
};
use std::collections::{BTreeMap, BTreeSet};

const SECOND_NS: i64 = 1_000_000_000;
/// What a store keeps whose retention is 0.
const LEAST_NS: i64 = 5 * SECOND_NS;
/// Readers of the past at a time.
const READERS_MAX: usize = 2;
const BLOCK_BYTES: u64 = 4096;

/// What the model knows of it.
#[derive(Default)]
pub struct Keeping {
    /// Of stores without a retention of their own.
    default: Retention,
    stores: BTreeMap<StoreId, Kept>,
    /// The floor of what belongs to no store.
    rest_floor_ns: i64,
    readers: Vec<Reader>,
    /// Snapshots that nobody may destroy.
    held: BTreeSet<String>,
}

#[derive(Clone, Default)]
struct Kept {
    own: Option<Retention>,
    /// From this time on it must be there.
    floor_ns: i64,
}

/// Somebody who reads the past for a while.
struct Reader {
    past: Database,
    was: Was,
    /// The stores that it shows.
    shown: BTreeSet<StoreId>,
    /// Where stores are for it: where they were mounted when it began.
    roots: BTreeMap<StoreId, String>,
}

impl Keeping {
    pub fn new(default: Retention) -> Keeping {
        Keeping {
            default,
            ..Keeping::default()
        }
    }

    /// A store begins, and keeps as much as others.
    pub fn add(&mut self, store: StoreId) {
        self.stores.entry(store).or_default();
    }

    /// Nobody reads the past any more.
    pub fn end_readers(&mut self) {
        self.readers.clear();
    }

    /// What a copy of the database knows of, which nobody reads: to be put back when the look at it
    /// is over.
    fn of_a_copy(&mut self) -> Keeping {
        let copy = Keeping {
            default: self.default,
            stores: self.stores.clone(),
            rest_floor_ns: self.rest_floor_ns,
            readers: Vec::new(),
            held: self.held.clone(),
        };
        std::mem::replace(self, copy)
    }

    fn of(&self, store: StoreId) -> Retention {
        self.stores[&store].own.unwrap_or(self.default)
    }

    /// Whether a store is shown by somebody whom a prune up to `seq` would harm.
    fn oldest_reader(&self) -> Option<u64> {
        self.readers.iter().map(|reader| reader.was.seq).min()
    }
}

impl World {
    /// Looks at a copy, in which what readers here hold may be gone.
    pub fn look_at_copy(&mut self, look: impl FnOnce(&mut World)) {
        let here = self.keeping.of_a_copy();
        look(self);
        self.keeping = here;
    }

    // ---- what must be there -----------------------------------------------------------------

    /// The times that are held of a store; of what belongs to none, of any.
    fn held_ns(&self, store: Option<StoreId>) -> impl Iterator<Item = i64> {
        let snapshots = (self.moments.iter()).filter(|was| was.snapshot.is_some());
        let readers = (self.keeping.readers.iter())
            .filter(move |reader| store.is_none_or(|store| reader.shown.contains(&store)));
        let readers = readers.map(|reader| &reader.was);
        snapshots.chain(readers).map(|was| was.at_ns)
    }

    /// What a store has from before `to_ns` may go, but for what is held.
    fn raise(&mut self, store: Option<StoreId>, to_ns: i64) {
        let to_ns = self.held_ns(store).fold(to_ns, i64::min);
        let floor_ns = match store {
            Some(store) => &mut self.keeping.stores.entry(store).or_default().floor_ns,
            None => &mut self.keeping.rest_floor_ns,
        };
        *floor_ns = to_ns.max(*floor_ns);
    }

    /// What is over by the clock may go.
    fn age(&mut self) {
        let now_ns = self.database.now_ns();
        let age_ns = |retention: Retention| match retention.retention_ns {
            0 => LEAST_NS,
            kept_ns => kept_ns,
        };
        let stores: Vec<StoreId> = self.keeping.stores.keys().copied().collect();
        for store in stores {
            let kept_ns = age_ns(self.keeping.of(store));
            self.raise(Some(store), now_ns - kept_ns);
        }
        self.raise(None, now_ns - age_ns(self.keeping.default));
    }

    /// What a prune of everything up to `was` lets go.
    pub(super) fn raise_all(&mut self, was: &Was) {
        let stores: Vec<StoreId> = self.keeping.stores.keys().copied().collect();
        for store in stores {
            self.raise(Some(store), was.at_ns);
        }
        self.raise(None, was.at_ns);
    }

    /// The oldest commit that is held: by a snapshot, unless all but the held ones are to go, or by
    /// a reader.
    pub(super) fn oldest_held(&self, with_all_snapshots: bool) -> Option<u64> {
        let is_held = |was: &&Was| {
            let name = was.snapshot.as_ref();
            name.is_some_and(|name| with_all_snapshots || self.keeping.held.contains(name))
        };
        let snapshot = self.moments.iter().filter(is_held).map(|was| was.seq).min();
        snapshot
            .into_iter()
            .chain(self.keeping.oldest_reader())
            .min()
    }

    /// The stores of a database, of this one or of a copy, that can be seen as of a moment. Who
    /// keeps that moment open asks.
    pub fn reached(&mut self, database: &Database, was: &Was) -> BTreeSet<StoreId> {
        let has_own = self.options.has_store_retentions;
        let begins = has_own.then(|| beginnings(database));
        self.age(); // After the look: what has gone was over then.
        let stores = self.branches.iter().map(|branch| branch.store);
        stores
            .filter(|store| match &begins {
                Some(begins) => self.is_reached(begins, was, *store),
                None => true,
            })
            .collect()
    }

    fn is_reached(&self, begins: &Beginnings, was: &Was, store: StoreId) -> bool {
        let is_reached = was.seq >= begins.of(store);
        let floor_ns = self.keeping.stores[&store].floor_ns;
        assert!(
            is_reached || was.at_ns < floor_ns,
            "TIME-8, seed {}: store {store} begins at commit {}, and must show commit {} ({}; its \
             floor is {floor_ns})\n{:?}",
            self.seed,
            begins.of(store),
            was.seq,
            was.at_ns,
            self.counts
        );
        is_reached
    }

    /// Nothing that must be there is gone, of any moment; what is gone of everything is forgotten.
    pub(super) fn require_floors(&mut self) {
        let begins = beginnings(&self.database);
        self.age();
        for was in &self.moments {
            for branch in &self.branches {
                if was.sight(branch).is_some() {
                    self.is_reached(&begins, was, branch.store);
                }
            }
        }
        let floors = self.keeping.stores.values().map(|kept| kept.floor_ns);
        let floor_ns = floors.fold(self.keeping.rest_floor_ns, i64::min);
        let is_gone = |was: &Was| was.seq < begins.base;
        for was in self.moments.iter().filter(|was| is_gone(was)) {
            assert!(
                was.at_ns < floor_ns,
                "TIME-8, seed {}: history begins at commit {}, and must show commit {}",
                self.seed,
                begins.base,
                was.seq
            );
            let refused = self.database.as_of(&Moment::Seq(was.seq)).err().unwrap();
            assert!(refused.to_string().contains("history begins"), "{refused}");
        }
        self.moments.retain(|was| !is_gone(was));
    }

    /// A moment was looked at, if anything of it was shown.
    pub fn saw_some(&mut self, way: &'static str, was: &Was, shown: &BTreeSet<StoreId>) {
        let is_shown =
            |branch: &Branch| was.sight(branch).is_some() && shown.contains(&branch.store);
        match self.branches.iter().any(is_shown) {
            true => self.saw(way, was),
            false => self.count("looks at nothing"),
        }
    }

    /// A look at a store before its history begins, or by way of one, is refused and says why.
    pub fn require_refused(&mut self, error: &Error, was: &Was, how: &str, names: &[&str]) {
        let told = error.to_string();
        // A session of the past refuses the tables of the store, whoever reads what.
        let is_told = |name: &&str| {
            told.contains(&format!("history of store '{name}' begins at"))
                || told.starts_with(&format!("'{name}"))
                    && told.contains("only the tables of stores can whose history reaches it")
        };
        assert!(
            names.iter().any(is_told) && error.kind() != ErrorKind::Corrupt,
            "HISTORY-7, seed {}, {how}, as of commit {}, of {names:?}: {error}\n{:?}",
            self.seed,
            was.seq,
            self.counts
        );
        self.count("refused before a store's history");
    }

    /// Readers of the past read what they have opened, and nothing else.
    pub fn look_at_readers(&mut self) {
        for reader in std::mem::take(&mut self.keeping.readers) {
            for nth in 0..self.branches.len() {
                self.look_of_reader(&reader, nth);
            }
            self.count("reads of a held past");
            self.keeping.readers.push(reader);
        }
    }

    fn look_of_reader(&mut self, reader: &Reader, nth: usize) {
        let (was, how) = (&reader.was, "a reader");
        let branch = &self.branches[nth];
        let (Some(_), Some(root)) = (was.sight(branch), reader.roots.get(&branch.store)) else {
            return;
        };
        match (
            see(&reader.past, root),
            reader.shown.contains(&branch.store),
        ) {
            (Ok(found), true) => self.require(was, how, branch, &found, EVERYTHING),
            (Err(error), true) => self.panic(was, how, branch, &format!("PAST-2: {error}")),
            (Ok(_), false) => self.panic(was, how, branch, "HISTORY-7: its history begins later"),
            (Err(error), false) => {
                let name = branch.name.clone();
                self.require_refused(&error, was, how, &[&name]);
            }
        }
    }

    // ---- operations
    // ------------------------------------------------------------------------------

    /// One of them.
    pub fn keep_otherwise(&mut self) {
        match self.rng.below(10) {
            0..3 => self.change_store_retention(),
            3..6 => self.prune_store(),
            6 => self.guarantee_all(),
            7 => self.change_holds(),
            8 => self.change_readers(),
            _ if self.options.is_alone => self.apply_pressure(),
            _ => self.prune_store(),
        }
        self.look_at_readers();
    }

    /// A branch; not often that of `main`, by way of which all others are reached.
    fn pick_store(&mut self) -> usize {
        let count = self.branches.len() as u64;
        match self.rng.chance(6) {
            true => 0,
            false => 1 + self.rng.below(count - 1) as usize,
        }
    }

    /// Snapshots of what was before a commit are destroyed, but for held ones.
    pub(super) fn destroy_snapshots_before(&mut self, seq: u64) {
        self.age();
        for nth in 0..self.moments.len() {
            let was = &mut self.moments[nth];
            let is_meant = was.seq < seq;
            let name = (was.snapshot)
                .take_if(|name| is_meant && !self.keeping.held.contains(name.as_str()));
            if let Some(name) = name {
                self.database.snapshots().destroy(&name).unwrap();
            }
        }
    }

    /// A store keeps its past for another time, guaranteed or not, or as long as others again.
    fn change_store_retention(&mut self) {
        let now = self.before();
        if self.rng.chance(70) {
            self.destroy_snapshots_before(now.seq);
        }
        self.age();
        let nth = self.pick_store();
        let (store, name) = (self.branches[nth].store, self.branches[nth].name.clone());
        let seconds = *self
            .rng
            .pick(&[None, None, Some(0), Some(1), Some(20), Some(48 * 3600)]);
        let is_guaranteed = self.rng.chance(30);
        let wanted = seconds.map(|seconds: i64| Retention {
            retention_ns: seconds * SECOND_NS,
            is_guaranteed,
        });
        let how = format!("retention of {name}: {wanted:?}");
        let set = self.database.history().set_store_retention(&name, wanted);
        set.unwrap_or_else(|error| panic!("seed {}, {how}: {error}", self.seed));
        let found = self.database.history().store_retention(&name).unwrap();
        assert_eq!(found, wanted, "seed {}, {how}", self.seed);
        let was = std::mem::replace(
            &mut self.keeping.stores.entry(store).or_default().own,
            wanted,
        );
        self.require_unchanged(&now, &how, |_| true);
        let is = |retention: Option<Retention>| retention.is_some_and(|one| one.is_guaranteed);
        match (is(was), is(wanted)) {
            (false, true) => self.count("guarantee of a store"),
            (true, false) => self.count("guarantee of a store ended"),
            _ => {}
        }
        self.count(match (was, wanted) {
            (
                _,
                Some(Retention {
                    retention_ns: 0, ..
                }),
            ) => "retention of a store: 0",
            (_, Some(_)) => "retention of a store",
            (Some(_), None) => "retention of a store: the default again",
            (None, None) => "retention of a store: the default still",
        });
        let seconds = self.rng.below(8) as i64;
        (self.options.pass)(seconds * SECOND_NS);
        self.happened(STORE_RETENTION);
    }

    /// The past of one store goes, of no other.
    fn prune_store(&mut self) {
        let now = self.before();
        let nth = self.pick_store();
        let (store, name) = (self.branches[nth].store, self.branches[nth].name.clone());
        let cut = self.pick();
        let (to, to_ns, to_seq) = match self.rng.below(10) {
            // What is now may go as well.
            0 => (PruneCut::All, now.at_ns + 1, now.seq),
            1 => (PruneCut::Retention, i64::MIN, 0),
            _ => {
                let older = match self.rng.chance(50) {
                    true => Moment::At(cut.at_ns),
                    false => Moment::Seq(cut.seq),
                };
                (PruneCut::OlderThan(older), cut.at_ns, cut.seq)
            }
        };
        if self.rng.chance(70) {
            self.destroy_snapshots_before(to_seq);
        }
        self.age();
        let how = format!("prune of {name}: {to:?}");
        let before = beginnings(&self.database);
        let held = self.held_seqs().filter(|seq| *seq >= before.of(store));
        let to_seq = held.fold(to_seq, u64::min).max(before.of(store));
        let prune = |is_dry: bool| {
            let done = self
                .database
                .history()
                .prune_store(&name, to.clone(), is_dry);
            done.unwrap_or_else(|error| panic!("seed {}, {how}: {error}", self.seed))
        };
        let (dry, wet) = (prune(true), prune(false));
        self.raise(Some(store), to_ns);
        let after = beginnings(&self.database);
        let is_others = |one: &&StoreHistory| one.store != store;
        let others = wet.freed.iter().find(is_others);
        assert_eq!(others, None, "TIME-8, seed {}, {how}", self.seed);
        if self.options.is_alone {
            assert_eq!(dry.freed, wet.freed, "seed {}, {how}", self.seed);
            assert!(!wet.is_waiting, "TIME-6, seed {}, {how}", self.seed);
            assert!(
                wet.freed.is_empty() || after.of(store) >= to_seq,
                "TIME-6, seed {}, {how}: to commit {to_seq}, it begins at {}",
                self.seed,
                after.of(store)
            );
        }
        for (other, begins) in &before.own {
            let is = after.of(*other);
            assert!(
                is >= *begins,
                "seed {}, {how}: {other} begins at {is}",
                self.seed
            );
        }
        self.require_floors();
        self.require_unchanged(&now, &how, |_| true);
        let was = self.pick();
        self.look(&was);
        if !wet.freed.is_empty() {
            self.count("prune of a store");
            self.happened(STORE_PRUNE);
        }
    }

    /// The commits that are held of all stores.
    fn held_seqs(&self) -> impl Iterator<Item = u64> {
        let snapshots = (self.moments.iter()).filter(|was| was.snapshot.is_some());
        let readers = self.keeping.readers.iter().map(|reader| &reader.was);
        snapshots.chain(readers).map(|was| was.seq)
    }

    /// What stores keep that have no retention of their own is guaranteed, or no more.
    fn guarantee_all(&mut self) {
        let now = self.before();
        let default = &mut self.keeping.default;
        default.is_guaranteed = !default.is_guaranteed;
        let wanted = *default;
        self.database.history().set_retention(wanted).unwrap();
        assert_eq!(
            self.database.history().retention().unwrap(),
            wanted,
            "seed {}",
            self.seed
        );
        self.require_unchanged(&now, "guarantee", |_| true);
        self.count(match wanted.is_guaranteed {
            true => "guarantee",
            false => "guarantee ended",
        });
    }

    /// A snapshot is held, or let go.
    fn change_holds(&mut self) {
        let all: Vec<String> = (self.moments.iter())
            .filter_map(|was| was.snapshot.clone())
            .collect();
        if all.is_empty() {
            return;
        }
        let held = self.keeping.held.first().cloned();
        let name = match held.filter(|_| self.rng.chance(60)) {
            Some(held) => held,
            None => self.rng.pick(&all).clone(),
        };
        if self.keeping.held.remove(&name) {
            self.database.snapshots().release(&name, "model").unwrap();
            return self.count("hold ended");
        }
        self.database.snapshots().hold(&name, "model").unwrap();
        let refused = self.database.snapshots().destroy(&name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        // Not for ever: it keeps all that came later.
        match self.keeping.held.len() {
            0 => drop(self.keeping.held.insert(name)),
            _ => self.database.snapshots().release(&name, "model").unwrap(),
        }
        self.count("hold");
    }

    /// Somebody begins to read the past, or ends.
    fn change_readers(&mut self) {
        self.look_at_readers();
        let count = self.keeping.readers.len();
        if count == READERS_MAX || count > 0 && self.rng.chance(50) {
            self.age();
            self.keeping
                .readers
                .swap_remove(self.rng.below(count as u64) as usize);
            return self.count("reader ended");
        }
        let was = self.pick();
        let moment = self.name(&was);
        let past = self.database.as_of(&moment).unwrap();
        let shown = self.reached(&self.database.clone(), &was);
        let branches = self.branches.iter();
        let roots = branches.map(|branch| (branch.store, branch.root.clone()));
        let roots = roots.collect();
        self.keeping.readers.push(Reader {
            past,
            was,
            shown,
            roots,
        });
        self.count("reader");
    }

    /// Somebody needs more than is free: the oldest history goes, of stores whose is not
    /// guaranteed.
    pub fn apply_pressure(&mut self) {
        let now = self.before();
        self.age();
        let before = beginnings(&self.database);
        let space = self.database.maintenance().space().unwrap();
        let less = self.rng.below(space.retired_bytes / 2 + 1);
        let wanted = space.available_bytes.saturating_sub(less) / BLOCK_BYTES * BLOCK_BYTES;
        if wanted == 0 {
            return;
        }
        let node = self
            .database
            .nodes()
            .resolve(b"/marker", false)
            .unwrap()
            .node;
        let file = self.database.nodes().open(node, true).unwrap();
        let how = AllocateMode::Allocate { keep_size: true };
        let promised = file.allocate(how, 0, wanted);
        promised.unwrap_or_else(|error| {
            panic!("TIME-2, seed {}, {wanted} of {space:?}: {error}", self.seed)
        });
        drop(file);
        self.database.sync().unwrap();
        let stores: Vec<StoreId> = self.keeping.stores.keys().copied().collect();
        let mut is_beside_a_guarantee = self.keeping.default.is_guaranteed;
        for store in stores {
            match self.keeping.of(store).is_guaranteed {
                true => is_beside_a_guarantee = true,
                false => self.raise(Some(store), now.at_ns + 1),
            }
        }
        if !self.keeping.default.is_guaranteed {
            self.raise(None, now.at_ns + 1);
        }
        let after = beginnings(&self.database);
        self.require_floors();
        self.require_unchanged(&now, "pressure", |_| true);
        if after == before {
            return self.count("no pressure");
        }
        self.happened(PRESSURE);
        self.count(match is_beside_a_guarantee {
            true => "pressure beside a guarantee",
            false => "pressure",
        });
    }
}

/// Where the histories of stores begin.
#[derive(Debug, PartialEq, Eq)]
struct Beginnings {
    base: u64,
    own: BTreeMap<StoreId, u64>,
}

impl Beginnings {
    fn of(&self, store: StoreId) -> u64 {
        self.own.get(&store).copied().unwrap_or(self.base)
    }
}

fn beginnings(database: &Database) -> Beginnings {
    let report = database.history().report().unwrap();
    let own = report.own.iter();
    Beginnings {
        base: report.begins_seq.0,
        own: own.map(|one| (one.store, one.begins_seq.0)).collect(),
    }
}
