//! What the kernel may have cached: nodes with their lookup counts, entries, and the tickets of
//! replies on their way (`FUSE-1`).
//!
//! The set of entries may be larger than what the kernel still has, never smaller. An entry goes
//! when it is removed or renamed here, or when the kernel forgets its node: a kernel entry holds
//! its node.
//!
//! A name that is not there can be known too: it is *absent*. The kernel never says that it has
//! forgotten one, so there are at most [`ABSENT_COUNT_MAX`]; then all are told to expire, and new
//! ones come.
//!
//! Tickets work in two epochs, like RCU: [`Known::advance`] opens a new epoch, into which new
//! requests go at once, and waits until the older one is empty. It is called by one thread only.
//!
//! # Between a reply and its use
//! The kernel has taken a reply before the process that waits for it makes use of it. What it fills
//! in is then covered by a lock that a notification of an entry waits for, the directory's: new
//! names, new nodes, and listings. So `notify.rs` tells entries first, then one in each directory
//! that was *listed*, and nodes last. Not covered are *late* replies, which give something that the
//! kernel has already another hour: a LOOKUP of an entry that it asks about again, a SETATTR, and a
//! node without a name. They are remembered for [`LATE_AGE_MAX`], and told again a few times for as
//! long.
//!
//! # A change of some nodes
//! Where it is known what was changed ([`Known::advance_some`]), the names in these nodes expire,
//! present and absent ones, and their attributes and pages are dropped; the rest stays, in the
//! kernel and here. A reply on its way that brings such a node for the first time is covered by the
//! lock of the directory that it is named in, whether that was changed or not: so one barrier is
//! told in each of these too.

use crate::convert::{node_number, slot_of_number};
use crate::history::Directory;
use larder::Name;
use larder_fuse_protocol::NodeNumber;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names known to be absent, at most; about 100 bytes each.
const ABSENT_COUNT_MAX: usize = 1 << 16;

/// How long after its reply a process may still have to make use of it: much longer than a process
/// that is ready to run waits for a processor.
pub(crate) const LATE_AGE_MAX: Duration = Duration::from_secs(10);
/// Late replies that are remembered, at most; of more, everything that is known is told again.
const LATE_COUNT_MAX: usize = 1 << 16;

/// Names in a path at most: one byte each, and a slash.
const PATH_DEPTH_MAX: usize = 2048;

/// A directory and a name in it.
pub(crate) type Entry = Arc<(NodeNumber, Name)>;

/// The table of one mount.
#[derive(Default)]
pub(crate) struct Known {
    state: Mutex<State>,
    drained: Condvar,
}

/// A request whose reply fills a cache of the kernel. Taken before the first call of the Content
/// API, given back after the reply.
#[derive(Debug)]
#[must_use = "a ticket that is not given back keeps notifications waiting"]
pub(crate) struct Ticket {
    epoch: usize,
}

/// Everything that was known at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Vec<NodeNumber>,
    pub(crate) entries: Vec<Entry>,
    /// Directories whose listing the kernel may be about to keep.
    pub(crate) listed: Vec<NodeNumber>,
    /// What is to be told again.
    pub(crate) late: Late,
}

/// What late replies were about, each of which may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) nodes: Vec<NodeNumber>,
    pub(crate) entries: Vec<Entry>,
}

/// What one late reply is about.
enum LateReply {
    Entry(Entry),
    Node(NodeNumber),
}

#[derive(Default)]
struct State {
    nodes: HashMap<NodeNumber, Node>,
    entries: HashMap<Entry, NodeNumber>,
    /// The same entries, by their directory.
    children: HashMap<NodeNumber, HashSet<Entry>>,
    /// By the epoch of the ticket that they were looked up with.
    absent: [HashSet<Entry>; 2],
    /// The epoch that new tickets get: 0 or 1.
    epoch: usize,
    /// Tickets out, by epoch.
    ticket_count: [u64; 2],
    /// Directories that were listed since the last epoch began.
    listed: HashSet<NodeNumber>,
    /// Late replies of the last [`LATE_AGE_MAX`], oldest first.
    late: VecDeque<(Instant, LateReply)>,
    /// When one was last not remembered, for want of room.
    late_lost: Option<Instant>,
}

#[derive(Default)]
struct Node {
    lookup_count: u64,
    entries: Vec<Entry>,
    /// Some of its content went through the kernel's page cache since it is known.
    has_pages: bool,
}

/// Whether what is in a directory can ever be something else: what is past stays as it is, but what
/// leads there (slot 0) does not.
fn may_change(directory: NodeNumber) -> bool {
    slot_of_number(directory).is_none_or(|slot| slot == 0)
}

impl Known {
    /// A ticket for a request that begins now.
    pub(crate) fn ticket(&self) -> Ticket {
        let mut state = self.lock();
        let epoch = state.epoch;
        state.ticket_count[epoch] += 1;
        Ticket { epoch }
    }

    /// The reply is written.
    pub(crate) fn give_back(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.ticket_count[ticket.epoch] -= 1;
        // Only the older epoch is waited for.
        if state.ticket_count[ticket.epoch] == 0 && ticket.epoch != state.epoch {
            self.drained.notify_all();
        }
    }

    /// Counts one lookup: the reply that is about to go out names `node` as `name` in `parent`.
    pub(crate) fn add(&self, parent: NodeNumber, name: &Name, node: NodeNumber) {
        let mut state = self.lock();
        state.nodes.entry(node).or_default().lookup_count += 1;
        state.put(parent, name, node);
    }

    /// The same for the reply to a LOOKUP, by which the kernel may renew an entry that it has.
    pub(crate) fn add_looked_up(&self, parent: NodeNumber, name: &Name, node: NodeNumber) {
        let mut state = self.lock();
        state.nodes.entry(node).or_default().lookup_count += 1;
        if let Some(entry) = state.put(parent, name, node)
            && may_change(parent)
        {
            state.note_late(LateReply::Entry(entry));
        }
    }

    /// The same for a node that is named nowhere.
    pub(crate) fn add_nameless(&self, node: NodeNumber) {
        let mut state = self.lock();
        state.nodes.entry(node).or_default().lookup_count += 1;
        if slot_of_number(node).is_none() {
            state.note_late(LateReply::Node(node));
        }
    }

    /// The reply that is about to go out has the attributes of `node` after they were set.
    pub(crate) fn note_set(&self, node: NodeNumber) {
        self.lock().note_late(LateReply::Node(node));
    }

    /// The reply that is about to go out lists `directory`.
    pub(crate) fn note_listed(&self, directory: NodeNumber) {
        if may_change(directory) {
            self.lock().listed.insert(directory);
        }
    }

    /// The reply that is about to go out says that there is no such name. `false`: there are too
    /// many, so it must not be cached; then [`Known::advance_absent`] is due.
    #[must_use]
    pub(crate) fn add_absent(&self, ticket: &Ticket, parent: NodeNumber, name: &Name) -> bool {
        if !may_change(parent) {
            return true; // Nobody will make it.
        }
        let mut state = self.lock();
        let absent = &mut state.absent[ticket.epoch];
        let has_room = absent.len() < ABSENT_COUNT_MAX / 2;
        if has_room {
            absent.insert(Arc::new((parent, name.clone())));
        }
        has_room
    }

    /// The kernel gives up `count` lookups of `node`.
    pub(crate) fn forget(&self, node: NodeNumber, count: u64) {
        let mut state = self.lock();
        let Some(found) = state.nodes.get_mut(&node) else {
            return;
        };
        found.lookup_count = found.lookup_count.saturating_sub(count);
        if found.lookup_count > 0 {
            return;
        }
        let gone = state.nodes.remove(&node).unwrap_or_default();
        state.listed.remove(&node);
        for entry in gone.entries {
            state.entries.remove(&entry);
            state.leave(&entry);
        }
    }

    /// The reply that is about to go out lets the kernel keep pages of `node`.
    pub(crate) fn note_pages(&self, node: NodeNumber) {
        if let Some(found) = self.lock().nodes.get_mut(&node) {
            found.has_pages = true;
        }
    }

    /// Whether the kernel may have pages of `node`.
    pub(crate) fn has_pages(&self, node: NodeNumber) -> bool {
        self.lock()
            .nodes
            .get(&node)
            .is_some_and(|found| found.has_pages)
    }

    /// Whether the kernel may know the node.
    pub(crate) fn knows(&self, node: NodeNumber) -> bool {
        self.lock().nodes.contains_key(&node)
    }

    /// The entries by which the kernel may know the node.
    pub(crate) fn names(&self, node: NodeNumber) -> Vec<Entry> {
        let state = self.lock();
        let found = state.nodes.get(&node);
        found.map_or_else(Vec::new, |found| found.entries.clone())
    }

    /// An entry was removed here; the kernel has dropped it by itself.
    pub(crate) fn remove(&self, parent: NodeNumber, name: &Name) {
        self.lock().take(parent, name);
    }

    /// An entry was renamed here; the kernel moves its own entry without asking.
    pub(crate) fn rename(&self, from: (NodeNumber, &Name), to: (NodeNumber, &Name)) {
        let mut state = self.lock();
        let moved = state.take(from.0, from.1);
        if let Some(node) = moved {
            state.put(to.0, to.1, node);
        }
    }

    /// Two entries changed places here.
    pub(crate) fn exchange(&self, one: (NodeNumber, &Name), other: (NodeNumber, &Name)) {
        let mut state = self.lock();
        let first = state.take(one.0, one.1);
        let second = state.take(other.0, other.1);
        if let Some(node) = first {
            state.put(other.0, other.1, node);
        }
        if let Some(node) = second {
            state.put(one.0, one.1, node);
        }
    }

    /// The slots of the past (`history`) that the kernel knows nodes of. Cost: O(known).
    pub(crate) fn slots(&self) -> HashSet<u32> {
        let state = self.lock();
        (state.nodes.keys())
            .filter_map(|node| slot_of_number(*node))
            .collect()
    }

    /// Whether a name by which `node` is known ends so. Cost: O(names of it).
    pub(crate) fn has_name_ending(&self, node: NodeNumber, suffix: &[u8]) -> bool {
        let state = self.lock();
        let entries = state.nodes.get(&node).map(|node| &node.entries);
        (entries.into_iter().flatten()).any(|entry| entry.1.as_bytes().ends_with(suffix))
    }

    /// A path by which `node` is known, from the root of the mount; empty for the root itself,
    /// `None` when it has no name that is known. Cost: its depth.
    pub(crate) fn path(&self, node: NodeNumber) -> Option<Vec<u8>> {
        let state = self.lock();
        let mut names: Vec<&Name> = Vec::new();
        let mut at = node;
        while at != NodeNumber::ROOT {
            // Renames on their way can close a circle for a moment.
            if names.len() > PATH_DEPTH_MAX {
                return None;
            }
            let entry = state.nodes.get(&at)?.entries.first()?;
            names.push(&entry.1);
            at = entry.0;
        }
        let path = names.iter().rev();
        Some(
            path.flat_map(|name| [b"/", name.as_bytes()].concat())
                .collect(),
        )
    }

    /// Waits until every ticket that is out now is back, and returns what is known then; what was
    /// absent is not known any more. For one thread only. Cost: O(known).
    pub(crate) fn advance(&self) -> Snapshot {
        let (mut state, absent) = self.drain();
        // The root is known from the start, without a lookup.
        let mut nodes: Vec<NodeNumber> = vec![NodeNumber::ROOT];
        let others =
            |node: &&NodeNumber| **node != NodeNumber::ROOT && slot_of_number(**node).is_none();
        nodes.extend(state.nodes.keys().filter(others));
        let entries = state.entries.keys().filter(|entry| may_change(entry.0));
        let mut entries: Vec<Entry> = entries.cloned().collect();
        // Those of younger tickets stay known, since their replies may not be out yet.
        entries.extend(absent);
        entries.extend(state.absent[state.epoch].iter().cloned());
        // One that is listed from here on is listed as it is now.
        let listed = std::mem::take(&mut state.listed).into_iter().collect();
        let late = state.late().unwrap_or_else(|| Late {
            nodes: nodes.clone(),
            entries: entries.clone(),
        });
        Snapshot {
            nodes,
            entries,
            listed,
            late,
        }
    }

    /// The same of what may be stale when just these nodes have changed: their attributes, pages,
    /// and the names in them; and names that lead to the past, which no node says anything of. What
    /// is told of the others is known as before. For the same thread. Cost: O(changed, and the
    /// names in them, and absent names).
    pub(crate) fn advance_some(&self, changed: &HashSet<NodeNumber>) -> Snapshot {
        let (mut state, absent) = self.drain();
        let state = &mut *state;
        let is_known =
            |node: &&NodeNumber| **node == NodeNumber::ROOT || state.nodes.contains_key(*node);
        let nodes: Vec<NodeNumber> = changed.iter().filter(is_known).copied().collect();
        let leads_to_past = |node: NodeNumber| slot_of_number(node) == Some(0);
        let past = Directory::ALL.map(|directory| node_number(directory.node()));
        let past = past.into_iter().flatten();
        let directories = nodes.iter().copied().chain(past);
        let mut entries: Vec<Entry> = directories
            .filter_map(|directory| state.children.get(&directory))
            .flatten()
            .cloned()
            .collect();
        let may_change = |entry: &Entry| changed.contains(&entry.0) || leads_to_past(entry.0);
        let (told, kept): (Vec<Entry>, Vec<Entry>) = absent.into_iter().partition(may_change);
        entries.extend(told);
        let epoch = state.epoch;
        let younger = &mut state.absent[epoch];
        entries.extend(younger.iter().filter(|entry| may_change(entry)).cloned());
        younger.extend(kept);
        // What brings a changed node for the first time is waited for in the directory that names
        // it.
        let names = nodes.iter().filter_map(|node| state.nodes.get(node));
        let mut listed: HashSet<NodeNumber> = names
            .flat_map(|node| &node.entries)
            .map(|entry| entry.0)
            .collect();
        listed.extend(nodes.iter().filter(|node| state.listed.remove(*node)));
        let late = state.late().map(|late| Late {
            nodes: (late.nodes.into_iter())
                .filter(|node| changed.contains(node))
                .collect(),
            entries: (late.entries.into_iter())
                .filter(|entry| {
                    let named = state.entries.get(entry);
                    may_change(entry) || named.is_none_or(|node| changed.contains(node))
                })
                .collect(),
        });
        Snapshot {
            late: late.unwrap_or_else(|| Late {
                nodes: nodes.clone(),
                entries: entries.clone(),
            }),
            nodes,
            entries,
            listed: listed.into_iter().collect(),
        }
    }

    /// Whether the kernel knows names that lead to the past.
    pub(crate) fn leads_to_past(&self) -> bool {
        let state = self.lock();
        let numbers = Directory::ALL.map(|directory| node_number(directory.node()));
        let is_any = |entries: &HashSet<Entry>| {
            let mut slots = entries.iter().map(|entry| slot_of_number(entry.0));
            slots.any(|slot| slot == Some(0))
        };
        let mut numbers = numbers.iter().flatten();
        numbers.any(|number| state.children.contains_key(number)) || state.absent.iter().any(is_any)
    }

    /// The same, for absent names only. For the same thread.
    pub(crate) fn advance_absent(&self) -> Snapshot {
        let (_state, absent) = self.drain();
        Snapshot {
            entries: absent.into_iter().collect(),
            ..Snapshot::default()
        }
    }

    /// Begins an epoch and waits until the older one is over; returns what was absent in it.
    fn drain(&self) -> (MutexGuard<'_, State>, HashSet<Entry>) {
        let mut state = self.lock();
        let old = state.epoch;
        state.epoch = 1 - old;
        while state.ticket_count[old] > 0 {
            state = self
                .drained
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let absent = std::mem::take(&mut state.absent[old]);
        (state, absent)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes that the entry names `node`; a node that the kernel does not hold has no entries.
    /// Returns the entry if it was known so.
    fn put(&mut self, parent: NodeNumber, name: &Name, node: NodeNumber) -> Option<Entry> {
        let entry: Entry = Arc::new((parent, name.clone()));
        for absent in &mut self.absent {
            absent.remove(&entry);
        }
        if self.entries.get(&entry) == Some(&node) {
            return Some(entry);
        }
        self.take(parent, name);
        if let Some(found) = self.nodes.get_mut(&node) {
            found.entries.push(entry.clone());
            let siblings = self.children.entry(parent).or_default();
            siblings.insert(entry.clone());
            self.entries.insert(entry, node);
        }
        None
    }

    /// The entry is in its directory no more.
    fn leave(&mut self, entry: &Entry) {
        if let Some(siblings) = self.children.get_mut(&entry.0) {
            siblings.remove(entry);
            if siblings.is_empty() {
                self.children.remove(&entry.0);
            }
        }
    }

    fn note_late(&mut self, reply: LateReply) {
        let now = Instant::now();
        self.forget_late(now);
        match self.late.len() < LATE_COUNT_MAX {
            true => self.late.push_back((now, reply)),
            false => self.late_lost = Some(now),
        }
    }

    /// What late replies are about; `None`: about anything.
    fn late(&mut self) -> Option<Late> {
        let now = Instant::now();
        self.forget_late(now);
        if self.late_lost.is_some_and(|at| now - at <= LATE_AGE_MAX) {
            return None;
        }
        let mut late = Late::default();
        for (_, reply) in &self.late {
            match reply {
                LateReply::Entry(entry) => late.entries.push(entry.clone()),
                LateReply::Node(node) => late.nodes.push(*node),
            }
        }
        Some(late)
    }

    /// Those that are long in use.
    fn forget_late(&mut self, now: Instant) {
        while (self.late.front()).is_some_and(|(at, _)| now - *at > LATE_AGE_MAX) {
            self.late.pop_front();
        }
    }

    fn take(&mut self, parent: NodeNumber, name: &Name) -> Option<NodeNumber> {
        let (entry, node) = self.entries.remove_entry(&(parent, name.clone()))?;
        self.leave(&entry);
        if let Some(found) = self.nodes.get_mut(&node) {
            found.entries.retain(|other| !Arc::ptr_eq(other, &entry));
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests;
