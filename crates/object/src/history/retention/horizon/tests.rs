//! Giving history up before its time.

use super::*;
use crate::engine::Engine;
use crate::engine::EngineExpiry;
use crate::view::node::Node;
use larder_catalog::InodeRow;
use larder_space::format::{FileKind, Ino, StoreId};
use std::path::Path;
use std::sync::Arc;

const HOUR_NS: i64 = 3_600_000_000_000;

impl EngineExpiry<'_> {
    /// Until when nobody asks whether somebody reads what is to go, and what has gone.
    pub(crate) fn prune_state(&self) -> (Option<Instant>, CommitSeq) {
        let clock = lock(&self.history.clock);
        (clock.pinned_until, clock.pruned.base())
    }
}

/// A database of 64 MiB with an hour of history, without a background, and a file in it that
/// has no name.
fn with_a_file(path: &Path) -> (Arc<Engine>, Arc<Node>) {
    let options = crate::EngineOptions {
        has_background: false,
        ..crate::EngineOptions::default()
    };
    let init = crate::InitOptions {
        capacity_bytes: Some(64 << 20),
        retention_ns: HOUR_NS,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
        group: None,
    };
    Engine::create(path, &init, &options).unwrap();
    let host = Engine::open(path, "host", &options).unwrap();
    let root = host.lookup().node(StoreId::MAIN, Ino::ROOT).unwrap();
    let row = InodeRow {
        kind: FileKind::File,
        nlink: 1,
        ..host.lookup().row(&root).unwrap()
    };
    let guard = host.namespace().write_guard().unwrap();
    let node = guard.insert(StoreId::MAIN, row, None).unwrap();
    guard.commit().unwrap();
    (host, node)
}

/// What is guaranteed is not looked for again with each commit.
#[test]
fn guaranteed_history_does_not_expire_with_each_commit() {
    let guarantee = larder_catalog::Retention {
        retention_ns: HOUR_NS,
        is_guaranteed: true,
    };
    for store in [Some(StoreId::MAIN), None] {
        let dir = tempfile::tempdir().unwrap();
        let (host, node) = with_a_file(&dir.path().join("db"));
        match store {
            Some(store) => host
                .retention()
                .set_store_retention(store, Some(guarantee))
                .unwrap(),
            None => host.retention().set_retention(guarantee).unwrap(),
        }
        // All but the pool.
        let is_short = (0..64).any(|salt| {
            host.content()
                .write(&node, 0, &vec![salt; 1 << 20])
                .unwrap();
            host.commits().sync().unwrap();
            host.expiry().find_short_pool() > 0
        });
        host.expiry().expire_ahead().unwrap();
        assert!(is_short && lock(&host.history.clock).is_spent, "{store:?}");
        drop(node);
        host.close().unwrap();
    }
}

/// What a read keeps is not given up again with each commit; when it has ended, expiring ahead
/// goes on.
#[test]
fn early_expiry_in_vain_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (host, node) = with_a_file(&dir.path().join("db"));
    let rewrite = |salt: u8| {
        host.content()
            .write(&node, 0, &vec![salt; 2 << 20])
            .unwrap();
        host.commits().sync().unwrap();
    };
    let is_spent = || lock(&host.history.clock).is_spent;
    let free_bytes = || {
        let space = &host.free_space().space;
        space.available_blocks(Purpose::Ordinary) * BLOCK_BYTES
    };
    (0..40).for_each(rewrite);
    assert!(!is_spent());
    let pin = host.begin_read();
    // What was retired before expires out of its reach; then nothing more helps.
    let full = (40..90).find(|salt| {
        rewrite(*salt);
        free_bytes() < 3 << 20
    });
    (0..2).for_each(|_| host.commits().commit_now().unwrap());
    assert!(full.is_some() && is_spent(), "{full:?}: {}", free_bytes());
    drop(pin);
    rewrite(90);
    rewrite(91);
    assert!(!is_spent(), "something was pruned");
    assert!(
        free_bytes() >= (64 << 20) / 16 - (2 << 20),
        "{}",
        free_bytes()
    );
    drop(node);
    host.close().unwrap();
}
