//! The inodes in memory, with what they keep of the catalog: rows, names, extent maps.
//!
//! # Words
//! *Idle*: nobody uses the node, and the catalog has everything in it. *Names*: what a directory's
//! node knows of its entries, absent ones included; of a directory that was created here, all.
//!
//! # Invariants
//! * `CACHE-1` What a node knows of a name is the truth as this session sees it: a change of an
//!   entry sets it in the same step, and a foreign commit that changes the directory drops it.
//!   Names are read and set with the namespace lock held.
//! * `CACHE-2` Idle nodes are forgotten, the least recently used first, when nodes keep more than
//!   half of what the session may gather, at least [`BYTES_MAX_LEAST`] and at most
//!   [`BYTES_MAX_MOST`]: one setting bounds the memory of both. The background looks at that after
//!   each tick, and an engine that serves transactions at the end of each.

use crate::view::node::{Names, Node, NodeState};
use larder_space::format::{Ino, Name, StoreId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What nodes keep of the catalog at most, bytes: with the smallest gather, and with a large one.
const BYTES_MAX_LEAST: u64 = 16 << 20;
const BYTES_MAX_MOST: u64 = 64 << 20;
/// So often what is in use is looked at again.
const TICKS: u64 = 64;
/// A node without names and map, roughly, bytes.
const NODE_BYTES: u64 = 800;
/// A name beside its own bytes, roughly, bytes.
const NAME_BYTES: u64 = 64;
/// Names that one directory's node keeps; then it begins anew.
const NAMES_MAX: usize = 1 << 17;

type Key = (StoreId, Ino);

/// Hashes ids, which the engine gives out itself: nobody can choose them to collide.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(id.into());
    }

    fn write_u64(&mut self, id: u64) {
        // Fibonacci hashing; the table looks at the highest and the lowest bits.
        let mixed = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// The inodes in memory.
pub(crate) struct NodeCache {
    /// More than that is too much.
    bytes_max: u64,
    nodes: RwLock<HashMap<Key, Arc<Node>, BuildHasherDefault<IdHasher>>>,
    /// What the nodes keep, bytes.
    bytes: AtomicU64,
    /// What the last sweep has left, bytes.
    left: AtomicU64,
    /// Counts sweeps and ticks: nodes note it when they are used.
    clock: AtomicU64,
}

impl NodeCache {
    /// An empty one of a session that gathers `dirty_bytes_max` at most.
    pub fn new(dirty_bytes_max: u64) -> NodeCache {
        NodeCache {
            bytes_max: (dirty_bytes_max / 2).clamp(BYTES_MAX_LEAST, BYTES_MAX_MOST),
            nodes: RwLock::default(),
            bytes: AtomicU64::new(0),
            left: AtomicU64::new(0),
            clock: AtomicU64::new(0),
        }
    }

    /// The node, if it is in memory. It counts as used.
    pub fn find(&self, store: StoreId, ino: Ino) -> Option<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let node = nodes.get(&(store, ino))?;
        let now = self.clock.load(Ordering::Relaxed);
        if node.used.load(Ordering::Relaxed) != now {
            node.used.store(now, Ordering::Relaxed);
        }
        Some(node.clone())
    }

    /// Puts a node in, unless there is one already; returns the one that counts.
    pub fn insert(&self, node: Arc<Node>) -> Arc<Node> {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes
            .entry((node.store, node.ino))
            .or_insert_with(|| {
                node.used
                    .store(self.clock.load(Ordering::Relaxed), Ordering::Relaxed);
                self.bytes.fetch_add(NODE_BYTES, Ordering::Relaxed);
                node
            })
            .clone()
    }

    /// How many nodes there are, and what they keep, bytes.
    pub fn size(&self) -> (u64, u64) {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        (nodes.len() as u64, self.bytes.load(Ordering::Relaxed))
    }

    /// Takes a node out.
    pub fn remove(&self, store: StoreId, ino: Ino) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.remove(&(store, ino)) {
            self.forget_bytes(&node);
        }
    }

    /// Keeps the nodes that `keep` says.
    pub fn retain(&self, mut keep: impl FnMut(&Arc<Node>) -> bool) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|_, node| {
            let is_kept = keep(node);
            if !is_kept {
                self.forget_bytes(node);
            }
            is_kept
        });
    }

    /// The same for some of them. O(some).
    pub fn retain_of(&self, some: &[Key], mut keep: impl FnMut(&Arc<Node>) -> bool) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        for key in some {
            if nodes.get(key).is_some_and(|node| !keep(node))
                && let Some(node) = nodes.remove(key)
            {
                self.forget_bytes(&node);
            }
        }
    }

    fn forget_bytes(&self, node: &Node) {
        self.forget_names(node);
        let map_bytes = node.map_bytes.swap(0, Ordering::Relaxed);
        self.bytes
            .fetch_sub(NODE_BYTES + map_bytes, Ordering::Relaxed);
    }

    /// Counts the extent map of a node, whose state is locked.
    pub fn count_map(&self, node: &Node, state: &NodeState) {
        let bytes = state.content.map.loaded_bytes();
        if node.map_bytes.load(Ordering::Relaxed) != bytes {
            let before = node.map_bytes.swap(bytes, Ordering::Relaxed);
            self.bytes
                .fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// What directory `dir` knows of `name`: `None` if nothing, `Some(None)` if it is absent.
    pub fn find_name(&self, dir: &Node, name: &[u8]) -> Option<Option<Ino>> {
        let names = dir.names.read().unwrap_or_else(PoisonError::into_inner);
        let known = names.known.get(name).copied();
        known.or_else(|| names.are_all.then_some(None))
    }

    /// The same, of what was noted by name only.
    pub fn find_set_name(&self, dir: &Node, name: &[u8]) -> Option<Option<Ino>> {
        let names = dir.names.read().unwrap_or_else(PoisonError::into_inner);
        names.known.get(name).copied()
    }

    /// Drops what directory `dir` knows of `name`.
    pub fn forget_name(&self, dir: &Node, name: &Name) {
        let mut names = dir.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.known.remove(name).is_some() {
            self.bytes.fetch_sub(name_bytes(name), Ordering::Relaxed);
        }
    }

    /// Notes what `name` in directory `dir` leads to (`CACHE-1`).
    pub fn set_name(&self, dir: &Node, name: &Name, target: Option<Ino>) {
        let mut names = dir.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.known.len() >= NAMES_MAX {
            self.drop_names(&mut names);
            names.were_more = true;
        }
        if names.known.insert(name.clone(), target).is_none() {
            self.bytes.fetch_add(name_bytes(name), Ordering::Relaxed);
        }
    }

    /// Drops what directory `dir` knows of its names.
    pub fn forget_names(&self, dir: &Node) {
        let mut names = dir.names.write().unwrap_or_else(PoisonError::into_inner);
        self.drop_names(&mut names);
    }

    fn drop_names(&self, names: &mut Names) {
        let bytes: u64 = names.known.keys().map(name_bytes).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        *names = Names::default();
    }
}

fn name_bytes(name: &Name) -> u64 {
    NAME_BYTES + name.as_bytes().len() as u64
}

impl NodeCache {
    /// Counts a tick; says whether nodes keep too much (`CACHE-2`): where most are in use, once
    /// they keep an eighth more than the last sweep could leave, and each [`TICKS`] anyway.
    pub fn tick(&self) -> bool {
        let clock = self.clock.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let left = self.left.fetch_min(bytes, Ordering::Relaxed).min(bytes);
        let is_worth_it = bytes > left + self.bytes_max / 8 || clock.is_multiple_of(TICKS);
        bytes > self.bytes_max && is_worth_it
    }

    /// Forgets idle nodes until the rest keeps three quarters of the most. Nobody uses the cache
    /// meanwhile.
    pub fn shrink(&self) {
        self.shrink_to(self.bytes_max / 4 * 3);
    }

    /// Forgets idle nodes, the least recently used first, until the rest keeps `bytes_kept`.
    fn shrink_to(&self, bytes_kept: u64) {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let mut idle: Vec<(u64, Key)> = nodes
            .iter()
            .filter(|(_, node)| Arc::strong_count(node) == 1 && node.lock().is_idle())
            .map(|(key, node)| (node.used.load(Ordering::Relaxed), *key))
            .collect();
        idle.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in idle {
            if self.bytes.load(Ordering::Relaxed) <= bytes_kept {
                break;
            }
            if let Some(node) = nodes.remove(&key) {
                self.forget_bytes(&node);
            }
        }
        self.left
            .store(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl NodeCache {
    /// Begins a new time: [`NodeCache::used_now`] forgets what was used before.
    pub fn begin_time(&self) {
        self.clock.fetch_add(1, Ordering::Relaxed);
    }

    /// A directory in memory that is known to name the inode, and the name.
    pub fn find_parent(&self, store: StoreId, ino: Ino) -> Option<(Ino, Name)> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes
            .values()
            .filter(|dir| dir.store == store)
            .find_map(|dir| {
                let names = dir.names.read().unwrap_or_else(PoisonError::into_inner);
                let mut known = names.known.iter();
                let (name, _) = known.find(|(_, target)| **target == Some(ino))?;
                Some((dir.ino, name.clone()))
            })
    }

    /// The nodes that were used in this time.
    pub fn used_now(&self) -> Vec<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.load(Ordering::Relaxed);
        let used = |node: &&Arc<Node>| node.used.load(Ordering::Relaxed) == now;
        nodes.values().filter(used).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use larder_catalog::InodeRow;
    use larder_space::format::FileKind;

    fn node(ino: u64) -> Arc<Node> {
        let row = InodeRow {
            ino: Ino(ino),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            size_bytes: 0,
            block_count: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
            rdev: 0,
        };
        Arc::new(Node::new(StoreId::MAIN, row, false))
    }

    #[test]
    fn a_new_directory_knows_all_its_names_until_it_forgets() {
        let cache = NodeCache::new(0);
        let old = node(2);
        let new = Node::new(StoreId::MAIN, old.lock().row.clone(), true);
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        cache.set_name(&new, &name("a"), Some(Ino(7)));
        assert_eq!(cache.find_name(&new, b"a"), Some(Some(Ino(7))), "CACHE-1");
        assert_eq!(cache.find_name(&new, b"b"), Some(None), "CACHE-1");
        assert_eq!(cache.find_name(&old, b"b"), None, "CACHE-1");
        cache.forget_names(&new);
        assert_eq!(cache.find_name(&new, b"a"), None, "CACHE-1");
        assert_eq!(cache.find_name(&new, b"b"), None, "CACHE-1");
        // One directory's names begin anew when they are too many: then they are not all any more.
        let large = Node::new(StoreId::MAIN, old.lock().row.clone(), true);
        for index in 0..=NAMES_MAX {
            cache.set_name(&large, &name(&index.to_string()), Some(Ino(7)));
        }
        assert_eq!(cache.find_name(&large, b"0"), None, "CACHE-1");
    }

    #[test]
    fn the_least_recently_used_go_first_and_the_books_balance() {
        let cache = NodeCache::new(0);
        let name = Name::new(b"name").unwrap();
        let in_use = cache.insert(node(1));
        for ino in 2..=10 {
            cache.clock.fetch_add(1, Ordering::Relaxed);
            let node = cache.insert(node(ino));
            cache.set_name(&node, &name, Some(Ino(7)));
        }
        cache.clock.fetch_add(1, Ordering::Relaxed);
        assert_eq!(
            cache.find(StoreId::MAIN, Ino(2)).map(|node| node.ino),
            Some(Ino(2))
        );
        let each = NODE_BYTES + name_bytes(&name);
        cache.shrink_to(NODE_BYTES + 3 * each);
        let left: Vec<u64> = (1..=10)
            .filter(|&ino| cache.find(StoreId::MAIN, Ino(ino)).is_some())
            .collect();
        assert_eq!(left, [1, 2, 9, 10], "CACHE-2");
        // What is in use stays, and is not swept again and again.
        cache.bytes.store(cache.bytes_max + 1, Ordering::Relaxed);
        assert!(cache.tick(), "CACHE-2");
        cache.left.store(cache.bytes_max + 1, Ordering::Relaxed);
        let ticks = (0..TICKS).filter(|_| cache.tick()).count();
        assert_eq!(ticks, 1, "CACHE-2");
        // Once there was less, it is not what may be kept again.
        cache.bytes.store(NODE_BYTES + 3 * each, Ordering::Relaxed);
        assert!(!cache.tick(), "CACHE-2");
        cache.bytes.store(cache.bytes_max + 1, Ordering::Relaxed);
        assert!(cache.tick(), "CACHE-2");
        cache.bytes.store(NODE_BYTES + 3 * each, Ordering::Relaxed);
        cache.forget_names(&in_use);
        cache.retain(|node| node.ino == Ino(1));
        assert_eq!(cache.bytes.load(Ordering::Relaxed), NODE_BYTES, "CACHE-2");
        cache.remove(StoreId::MAIN, Ino(1));
        assert_eq!(cache.bytes.load(Ordering::Relaxed), 0, "CACHE-2");
    }

    #[test]
    fn an_engine_of_transactions_forgets_at_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = crate::EngineOptions::default();
        let init = crate::InitOptions {
            capacity_bytes: None,
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(&path, &init, &options).unwrap();
        let host = Engine::open(&path, "host", &options).unwrap();
        let engine = crate::open_private(&host, false).unwrap();
        engine.short_transaction().snapshot().unwrap();
        let bytes_max = engine.cache.bytes_max;
        for ino in 2..2 + bytes_max / NODE_BYTES + 1000 {
            engine.cache.insert(node(ino));
        }
        assert!(engine.cache.size().1 > bytes_max);
        engine.short_transaction().commit().0.unwrap();
        assert!(engine.cache.size().1 <= bytes_max, "CACHE-2");
        engine.close().unwrap();
        host.close().unwrap();
    }
}
