//! A checker of histories: did transactions see and do what their isolation promises? Pure.
//!
//! Transactions append values to lists and read whole lists. No value is appended twice to a list,
//! so a list tells in which order its writers came, and each read tells whose writes it saw: from
//! that follows the graph of dependencies (Adya 1999; Kingsbury and Alvaro, "Elle", VLDB 2020).
//!
//! # Words
//! *T1 ww T2*: T2 appended right behind T1. *T1 wr T2*: T2 read a list that ends with T1's append.
//! *T1 rw T2*: T1 read a list that T2 appended to next. *T1 before T2*: T2 began after T1 had
//! ended.
//!
//! | finding | what is wrong |
//! |---|---|
//! | `Garbage`, `Order` | a value nobody appended, or twice; two reads not prefixes of one list |
//! | `Internal` | a transaction does not see its own appends, or not the same twice |
//! | `G1a` | a value of an aborted transaction was read |
//! | `G1b` | a list was read in the middle of another transaction's appends |
//! | `G0` | a circle of ww |
//! | `G1c` | a circle of ww and wr |
//! | `GSi` | a circle in which no two rw follow one another: no snapshot isolation |
//! | `G2` | any circle: not serializable; under snapshot isolation there may be some |
//! | `Lost` | an append of a committed transaction is not in the last read of the list |
//!
//! # Invariants
//! * `TESTKIT-5` A history of transactions that ran one after the other has no findings; of those
//!   that had snapshots and of which the first committer won, none at [`Level::SnapshotIsolation`];
//!   and each anomaly planted into one is found.

use std::collections::{HashMap, HashSet};

mod circles;
#[cfg(test)]
mod tests;

use circles::find_circle;

/// What a transaction did, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Appended a value to a list.
    Append {
        /// The list.
        list: u64,
        /// The value; each once per list.
        value: u64,
    },
    /// Read a whole list.
    Read {
        /// The list.
        list: u64,
        /// What was there.
        values: Vec<u64>,
    },
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told that it is committed.
    Committed,
    /// It was told that it is not.
    Aborted,
    /// Nobody was told: it was killed in between.
    Unknown,
}

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// When it began, and when its end was known, on one clock.
    pub began: u64,
    /// See `began`; of those of unknown end not used.
    pub ended: u64,
    /// How it ended.
    pub end: End,
    /// What it did.
    pub steps: Vec<Step>,
}

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Snapshots, and the first committer wins; a snapshot has all that was committed before it was
    /// taken.
    SnapshotIsolation,
    /// As if one after the other, in an order that time allows.
    Serializable,
}

/// The kinds of findings, see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The table of the module says it.
pub enum Anomaly {
    Garbage,
    Order,
    Internal,
    G1a,
    G1b,
    G0,
    G1c,
    GSi,
    G2,
    Lost,
}

/// A finding: its kind, and which transactions (by their place in the history) show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub anomaly: Anomaly,
    /// For people.
    pub text: String,
}

/// Checks a history; empty when all is well. Lists begin empty. A transaction of unknown end may
/// have happened or not; what others saw of it says that it has. Cost: about n log n of its steps.
pub fn check_history(history: &[Transaction], level: Level) -> Vec<Finding> {
    let mut checker = Checker {
        history,
        reads: Vec::new(),
        writers: HashMap::new(),
        last_of: HashMap::new(),
        orders: HashMap::new(),
        findings: Vec::new(),
    };
    checker.note_writers();
    checker.note_reads();
    checker.check_within();
    checker.find_orders();
    checker.check_reads();
    if checker.findings.is_empty() {
        checker.check_circles(level);
    }
    checker.findings
}

/// A read that counts: which transaction, which list, what was there.
type Read<'h> = (usize, u64, &'h [u64]);

struct Checker<'h> {
    history: &'h [Transaction],
    reads: Vec<Read<'h>>,
    /// Who appended which value to which list.
    writers: HashMap<(u64, u64), usize>,
    /// The last value that a transaction appended to a list.
    last_of: HashMap<(usize, u64), u64>,
    /// The longest read of each list.
    orders: HashMap<u64, Vec<u64>>,
    findings: Vec<Finding>,
}

impl<'h> Checker<'h> {
    fn report(&mut self, anomaly: Anomaly, text: String) {
        self.findings.push(Finding { anomaly, text });
    }

    fn reads(&self) -> std::vec::IntoIter<Read<'h>> {
        self.reads.clone().into_iter()
    }

    /// Of a transaction of unknown end, whose appends nobody else has seen, nobody knows whether
    /// they happened: what it read of its own is left out, and the rest is of a snapshot all the
    /// same.
    fn note_reads(&mut self) {
        let mut seen: HashSet<usize> = HashSet::new();
        for (index, transaction) in self.history.iter().enumerate() {
            if transaction.end == End::Aborted {
                continue;
            }
            for step in &transaction.steps {
                let Step::Read { list, values } = step else {
                    continue;
                };
                let writers = values.iter().filter_map(|v| self.writers.get(&(*list, *v)));
                seen.extend(writers.filter(|writer| **writer != index));
                self.reads.push((index, *list, values));
            }
        }
        for (index, list, values) in &mut self.reads {
            if self.history[*index].end == End::Unknown && !seen.contains(index) {
                let is_own = |value: &&u64| self.writers.get(&(*list, **value)) == Some(index);
                let own = values.iter().rev().take_while(is_own).count();
                *values = &values[..values.len() - own];
            }
        }
    }

    fn note_writers(&mut self) {
        for (index, transaction) in self.history.iter().enumerate() {
            for step in &transaction.steps {
                if let Step::Append { list, value } = step {
                    let other = self.writers.insert((*list, *value), index);
                    assert!(
                        other.is_none(),
                        "value {value} of list {list} is appended twice"
                    );
                    self.last_of.insert((index, *list), *value);
                }
            }
        }
    }

    /// What a transaction sees of a list: what it saw first, and its own appends behind.
    fn check_within(&mut self) {
        for (index, transaction) in self.history.iter().enumerate() {
            let mut seen: HashMap<u64, Vec<u64>> = HashMap::new();
            let mut own: HashMap<u64, Vec<u64>> = HashMap::new();
            for step in &transaction.steps {
                match step {
                    Step::Append { list, value } => {
                        own.entry(*list).or_default().push(*value);
                        if let Some(seen) = seen.get_mut(list) {
                            seen.push(*value);
                        }
                    }
                    Step::Read { list, values } => {
                        let expected = seen.get(list).unwrap_or(values);
                        let mine = own.get(list).map_or(&[][..], Vec::as_slice);
                        if expected != values || !values.ends_with(mine) {
                            let text = format!(
                                "transaction {index} reads {values:?} of list {list} and appended \
                                 {mine:?}"
                            );
                            self.report(Anomaly::Internal, text);
                        }
                        seen.insert(*list, values.clone());
                    }
                }
            }
        }
    }

    fn find_orders(&mut self) {
        for (_, list, values) in self.reads() {
            let longest = self.orders.entry(list).or_default();
            if values.len() > longest.len() {
                *longest = values.to_vec();
            }
        }
        for (list, values) in self.orders.clone() {
            let mut once = HashSet::new();
            for value in values {
                if !once.insert(value) || !self.writers.contains_key(&(list, value)) {
                    let text =
                        format!("list {list} has {value}, which nobody appended, or has it twice");
                    self.report(Anomaly::Garbage, text);
                }
            }
        }
    }

    fn check_reads(&mut self) {
        for (index, list, values) in self.reads() {
            if !self.orders[&list].starts_with(values) {
                let text = format!(
                    "transaction {index} reads {values:?} of list {list}, others {:?}",
                    self.orders[&list]
                );
                self.report(Anomaly::Order, text);
                continue;
            }
            for value in values {
                let writer = self.writers.get(&(list, *value)).copied();
                if writer.is_some_and(|writer| self.history[writer].end == End::Aborted) {
                    let text = format!(
                        "transaction {index} reads {value} of list {list}, of an aborted one"
                    );
                    self.report(Anomaly::G1a, text);
                }
            }
            let Some(last) = values.last() else { continue };
            if let Some(writer) = self.writers.get(&(list, *last)).copied()
                && writer != index
                && self.last_of[&(writer, list)] != *last
            {
                let text = format!(
                    "transaction {index} reads list {list} up to {last}, in the middle of \
                     transaction {writer}"
                );
                self.report(Anomaly::G1b, text);
            }
        }
    }

    fn check_circles(&mut self, level: Level) {
        let mut ww: Vec<(usize, usize)> = Vec::new();
        let (mut wr, mut rw) = (ww.clone(), ww.clone());
        let writer = |list: u64, value: u64| self.writers[&(list, value)];
        let mut places: HashMap<(u64, u64), usize> = HashMap::new();
        for (list, order) in &self.orders {
            let writers = order.iter().map(|value| writer(*list, *value));
            let writers: Vec<usize> = writers.collect();
            ww.extend(writers.windows(2).map(|pair| (pair[0], pair[1])));
            places.extend(
                order
                    .iter()
                    .enumerate()
                    .map(|(place, value)| ((*list, *value), place)),
            );
        }
        for (reader, list, values) in self.reads() {
            if let Some(last) = values.last() {
                wr.push((writer(list, *last), reader));
            }
            // A read of what it appended itself says nothing of what follows it.
            let order = &self.orders[&list];
            if let Some(next) = order.get(values.len()) {
                rw.push((reader, writer(list, *next)));
            }
        }
        // What nobody has read though it was there: committed, and all of the list was read
        // afterwards.
        let mut unread: HashMap<u64, Vec<(u64, usize)>> = HashMap::new();
        for (&(list, value), &writer) in &self.writers {
            if !places.contains_key(&(list, value)) && self.history[writer].end == End::Committed {
                unread.entry(list).or_default().push((value, writer));
            }
        }
        let mut lost = Vec::new();
        for (reader, list, _) in self.reads() {
            for &(value, writer) in unread.get(&list).into_iter().flatten() {
                if self.history[writer].ended < self.history[reader].began {
                    lost.push(format!(
                        "{value} of list {list}, by transaction {writer}, is not \
                        there for transaction {reader}"
                    ));
                }
            }
        }
        lost.into_iter()
            .for_each(|text| self.report(Anomaly::Lost, text));
        for edges in [&mut ww, &mut wr, &mut rw] {
            edges.retain(|(from, to)| from != to);
            edges.sort_unstable();
            edges.dedup();
        }
        let count = self.history.len();
        let before = self.in_time();
        let solid = [&ww[..], &wr, &before].concat();
        // An rw behind each other edge, but never two of them (Cerone and Gotsman, 2016).
        let mut after: HashMap<usize, Vec<usize>> = HashMap::new();
        for (from, to) in &rw {
            after.entry(*from).or_default().push(*to);
        }
        let mut joined = solid.clone();
        for (from, by) in &solid {
            joined.extend(after.get(by).into_iter().flatten().map(|to| (*from, *to)));
        }
        let graphs = [
            (Anomaly::G0, ww.clone()),
            (Anomaly::G1c, [&ww[..], &wr].concat()),
            (Anomaly::GSi, joined),
            (Anomaly::G2, [&solid[..], &rw].concat()),
        ];
        let levels = match level {
            Level::SnapshotIsolation => 3,
            Level::Serializable => 4,
        };
        for (anomaly, edges) in &graphs[..levels] {
            if let Some(circle) = find_circle(count, edges) {
                let steps: Vec<String> = circle
                    .iter()
                    .map(|index| format!("{index} {:?}", self.history[*index]))
                    .collect();
                self.report(
                    *anomaly,
                    format!("a circle of transactions: {}", steps.join(" → ")),
                );
                return;
            }
        }
    }

    /// Who ended before who began: not all such pairs, but so many that all others follow.
    fn in_time(&self) -> Vec<(usize, usize)> {
        let mut by_begin: Vec<usize> = (0..self.history.len())
            .filter(|&index| self.history[index].end != End::Aborted)
            .collect();
        by_begin.sort_by_key(|&index| self.history[index].began);
        let mut ended: Vec<usize> = by_begin
            .iter()
            .copied()
            .filter(|&index| self.history[index].end == End::Committed)
            .collect();
        ended.sort_by_key(|&index| self.history[index].ended);
        let mut edges = Vec::new();
        // Those that nothing else ended after the begin of: the newest ones at each moment.
        let mut newest: Vec<usize> = Vec::new();
        let mut next = 0;
        for &index in &by_begin {
            while next < ended.len() && self.history[ended[next]].ended < self.history[index].began
            {
                let done = ended[next];
                newest.retain(|&other| self.history[other].ended >= self.history[done].began);
                newest.push(done);
                next += 1;
            }
            edges.extend(newest.iter().map(|&done| (done, index)));
        }
        edges
    }
}
