//! Threads with files of their own against a model, on a small, full database. Ignored: minutes.
//! `SEED`, `SECONDS`, `DIRTY` (bytes; 0: default) and `MIB` choose the run.

use crate::common::*;
use larder::{
    AllocateMode, Database, DatabaseOptions, DefragOptions, ErrorKind, FileHandle, NodeId,
    RenameMode,
};
use larder_object::EngineOptions;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn var(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let salt = self.next();
        if salt.is_multiple_of(7) {
            vec![0; len as usize]
        } else {
            pattern(len as usize, salt)
        }
    }
}

struct Slot {
    name: String,
    node: Option<NodeId>,
    model: Vec<u8>,
    handle: Option<Box<dyn FileHandle>>,
}

static FULL: AtomicU64 = AtomicU64::new(0);
static OPS: AtomicU64 = AtomicU64::new(0);

fn ok<T>(outcome: larder::Result<T>, what: &str) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            FULL.fetch_add(1, Ordering::Relaxed);
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

fn verify(db: &Database, slot: &Slot, what: &str) {
    let Some(node) = slot.node else { return };
    let own;
    let handle: &dyn FileHandle = match &slot.handle {
        Some(handle) => &**handle,
        None => {
            own = db
                .nodes()
                .open(node, false)
                .unwrap_or_else(|e| panic!("{what} {}: {e}", slot.name));
            &*own
        }
    };
    let size = handle.metadata().unwrap().size_bytes;
    assert_eq!(size, slot.model.len() as u64, "{what} {} size", slot.name);
    let mut found = vec![0; slot.model.len()];
    let read = handle
        .read_at(0, &mut found)
        .unwrap_or_else(|e| panic!("{what} {}: {e}", slot.name));
    assert_eq!(read, found.len(), "{what} {}", slot.name);
    if found != slot.model {
        let at = found
            .iter()
            .zip(&slot.model)
            .position(|(a, b)| a != b)
            .unwrap();
        let count = found
            .iter()
            .zip(&slot.model)
            .filter(|(a, b)| a != b)
            .count();
        panic!(
            "{what} {}: {count} bytes differ, first at {at} of {} (block {})",
            slot.name,
            found.len(),
            at / 4096
        );
    }
}

/// After NoSpace what is there is what counts.
fn adopt(db: &Database, slot: &mut Slot) {
    let node = slot.node.unwrap();
    let own = db.nodes().open(node, false).unwrap();
    let size = own.metadata().unwrap().size_bytes as usize;
    let mut found = vec![0; size];
    own.read_at(0, &mut found).unwrap();
    slot.model = found;
}

fn worker(db: &Database, id: usize, seed: u64, done: &AtomicBool) {
    let mut rng = Rng(seed * 1000 + id as u64);
    let mut slots: Vec<Slot> = (0..12)
        .map(|i| Slot {
            name: format!("w{id}_{i}"),
            node: None,
            model: Vec::new(),
            handle: None,
        })
        .collect();
    let max: u64 = var("MIB", 96) << 20;
    let per = max * 9 / 10 / 4 / 12 * 2;
    while !done.load(Ordering::Relaxed) {
        OPS.fetch_add(1, Ordering::Relaxed);
        let which = rng.below(slots.len() as u64) as usize;
        let slot = &mut slots[which];
        if slot.node.is_none() {
            if let Some(attr) = ok(
                db.nodes().create_node(
                    NodeId::ROOT,
                    &name(&slot.name),
                    larder::NewNode::File,
                    0o644,
                    OWNER,
                ),
                "create",
            ) {
                slot.node = Some(attr.node);
                slot.model.clear();
            }
            continue;
        }
        let node = slot.node.unwrap();
        let op = rng.below(100);
        let len = slot.model.len() as u64;
        let what = format!("op {op} len {len}");
        let needs = op < 70;
        if needs && slot.handle.is_none() {
            slot.handle = Some(db.nodes().open(node, true).unwrap());
        }
        let size = match rng.below(4) {
            0 => 1 + rng.below(5000),
            1 | 2 => 1 + rng.below(300_000),
            _ => 1 + rng.below(1_500_000),
        };
        match op {
            0..=29 => {
                // A stream of pieces, perhaps from the start.
                let handle = slot.handle.as_ref().unwrap();
                let mut at = if rng.below(2) == 0 {
                    len
                } else {
                    rng.below(len + 1)
                };
                let total = size;
                let mut done_bytes = 0;
                if rng.below(4) == 0 {
                    handle.expect_len(at + total).unwrap();
                }
                while done_bytes < total && at < per {
                    let n = (1 + rng.below(100_000)).min(total - done_bytes);
                    let bytes = rng.bytes(n);
                    if ok(handle.write_at(at, &bytes), "write").is_none() {
                        break;
                    }
                    let end = (at + n) as usize;
                    if end > slot.model.len() {
                        slot.model.resize(end, 0);
                    }
                    slot.model[at as usize..end].copy_from_slice(&bytes);
                    at += n;
                    done_bytes += n;
                    match rng.below(12) {
                        0 => std::thread::sleep(Duration::from_micros(rng.below(5000))),
                        1 => std::thread::yield_now(),
                        2 => handle.sync().unwrap(),
                        _ => {}
                    }
                }
            }
            30..=34 => slot.handle.as_ref().unwrap().sync().unwrap(),
            35..=42 => {
                let to = rng.below(len + 100_000);
                if ok(slot.handle.as_ref().unwrap().set_len(to), "truncate").is_some() {
                    slot.model.resize(to as usize, 0);
                } else {
                    adopt(db, slot);
                }
            }
            43..=48 if len > 0 => {
                let from = rng.below(len);
                let n = rng.below(len - from) + 1;
                if ok(
                    slot.handle
                        .as_ref()
                        .unwrap()
                        .allocate(AllocateMode::PunchHole, from, n),
                    "punch",
                )
                .is_some()
                {
                    slot.model[from as usize..(from + n) as usize].fill(0);
                } else {
                    adopt(db, slot);
                }
            }
            49..=55 if len < per => {
                let at = rng.below(len + 1);
                let bytes = rng.bytes(size.min(200_000));
                if ok(
                    slot.handle.as_ref().unwrap().insert_range(at, &bytes),
                    "insert",
                )
                .is_some()
                {
                    slot.model.splice(at as usize..at as usize, bytes);
                } else {
                    adopt(db, slot);
                }
            }
            56..=61 if len > 0 => {
                let from = rng.below(len);
                let n = rng.below(len - from) + 1;
                if ok(
                    slot.handle.as_ref().unwrap().delete_range(from, n),
                    "delete",
                )
                .is_some()
                {
                    slot.model.drain(from as usize..(from + n) as usize);
                } else {
                    adopt(db, slot);
                }
            }
            62..=65 if len > 2 => {
                let from = rng.below(len);
                let n = rng.below(len - from) + 1;
                let to = rng.below(len - n + 1);
                if ok(
                    slot.handle.as_ref().unwrap().move_range(from, n, to),
                    "move",
                )
                .is_some()
                {
                    let part: Vec<u8> = slot
                        .model
                        .drain(from as usize..(from + n) as usize)
                        .collect();
                    slot.model.splice(to as usize..to as usize, part);
                } else {
                    adopt(db, slot);
                }
            }
            66..=77 => {
                // put, with a handle open or not
                let bytes = rng.bytes(size.min(per));
                if ok(
                    db.files()
                        .write(format!("/{}", slot.name).as_bytes(), &bytes),
                    "put",
                )
                .is_some()
                {
                    slot.model = bytes;
                }
            }
            78..=83 => {
                // safe replacement
                let tmp = format!("t{id}");
                let bytes = rng.bytes(size.min(per));
                let Some(attr) = ok(
                    db.nodes().create_node(
                        NodeId::ROOT,
                        &name(&tmp),
                        larder::NewNode::File,
                        0o644,
                        OWNER,
                    ),
                    "create",
                ) else {
                    continue;
                };
                let handle = db.nodes().open(attr.node, true).unwrap();
                let mut good = true;
                for (i, piece) in bytes.chunks(64 << 10).enumerate() {
                    if ok(handle.write_at((i << 16) as u64, piece), "write").is_none() {
                        good = false;
                        break;
                    }
                }
                if !good {
                    drop(handle);
                    ok(db.nodes().unlink(NodeId::ROOT, &name(&tmp)), "unlink");
                    continue;
                }
                if rng.below(2) == 0 {
                    handle.sync().unwrap();
                }
                let keep_open = rng.below(4) == 0;
                if ok(
                    db.nodes().rename(
                        NodeId::ROOT,
                        &name(&tmp),
                        NodeId::ROOT,
                        &name(&slot.name),
                        RenameMode::Replace,
                    ),
                    "rename",
                )
                .is_some()
                {
                    if slot.handle.is_some() {
                        verify(db, slot, "replaced, open");
                    }
                    slot.node = Some(attr.node);
                    slot.model = bytes;
                    slot.handle = keep_open.then_some(handle);
                } else {
                    drop(handle);
                    ok(db.nodes().unlink(NodeId::ROOT, &name(&tmp)), "unlink");
                }
            }
            84..=87 => {
                // unlink while open, then go on with it for a while
                if slot.handle.is_none() {
                    slot.handle = Some(db.nodes().open(node, true).unwrap());
                }
                if ok(db.nodes().unlink(NodeId::ROOT, &name(&slot.name)), "unlink").is_some() {
                    let bytes = rng.bytes(50_000);
                    if ok(slot.handle.as_ref().unwrap().write_at(0, &bytes), "write").is_some() {
                        if slot.model.len() < bytes.len() {
                            slot.model.resize(bytes.len(), 0);
                        }
                        slot.model[..bytes.len()].copy_from_slice(&bytes);
                        verify(db, slot, "unlinked");
                    }
                    slot.handle = None;
                    slot.node = None;
                }
            }
            88..=95 => slot.handle = None,
            96 => ok(db.sync(), "sync").unwrap_or(()),
            _ => std::thread::sleep(Duration::from_micros(rng.below(3000))),
        }
        if rng.below(3) == 0 {
            verify(db, &slots[which], &what);
        }
        let other = rng.below(slots.len() as u64) as usize;
        if rng.below(10) == 0 {
            verify(db, &slots[other], "other");
        }
        if rng.below(400) == 0 {
            let r = db.maintenance().space();
            r.unwrap();
        }
    }
    for slot in &mut slots {
        verify(db, slot, "end");
        slot.handle = None;
    }
    KEPT.lock().unwrap().extend(
        slots
            .into_iter()
            .filter(|s| s.node.is_some())
            .map(|s| (s.name, s.model)),
    );
}

static KEPT: std::sync::Mutex<Vec<(String, Vec<u8>)>> = std::sync::Mutex::new(Vec::new());

/// Uniform blocks of one byte in shared files: what is read is what somebody wrote.
fn shared(db: &Database, seed: u64, done: &AtomicBool) {
    let mut rng = Rng(seed + 99);
    let path = |i: u64| format!("/shared{i}");
    while !done.load(Ordering::Relaxed) {
        let i = rng.below(3);
        let byte = rng.next() as u8;
        let len = 4096 * (1 + rng.below(100));
        match rng.below(5) {
            0 => {
                ok(
                    db.files()
                        .write(path(i).as_bytes(), vec![byte; len as usize]),
                    "put",
                );
            }
            1 | 2 => {
                if let Ok(attr) = db.nodes().resolve(path(i).as_bytes(), true) {
                    let h = db.nodes().open(attr.node, true).unwrap();
                    let at = 4096 * rng.below(100);
                    match rng.below(6) {
                        0 => {
                            ok(h.set_len(at), "set_len");
                        }
                        1 => {
                            ok(h.allocate(AllocateMode::PunchHole, at, len), "punch");
                        }
                        2 => {
                            let _ = h.insert_range(
                                at.min(h.metadata().unwrap().size_bytes),
                                &vec![byte; len as usize],
                            );
                        }
                        3 => {
                            let s = h.metadata().unwrap().size_bytes;
                            if s > 4096 {
                                let _ = h.delete_range(0, 4096);
                            }
                        }
                        _ => {
                            if ok(h.write_at(at, &vec![byte; len as usize]), "write").is_some()
                                && rng.below(3) == 0
                            {
                                h.sync().unwrap();
                            }
                        }
                    }
                }
            }
            _ => {
                if let Ok(attr) = db.nodes().resolve(path(i).as_bytes(), true) {
                    let h = db.nodes().open(attr.node, false).unwrap();
                    let mut b = vec![0; 600_000];
                    let n = h.read_at(0, &mut b).unwrap();
                    for block in b[..n].chunks(4096) {
                        assert!(block.iter().all(|&x| x == block[0]), "shared: mixed block");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn random_threads_against_models() {
    let seed = var("SEED", 1);
    let dir = tempfile::tempdir().unwrap();
    create_without_history(dir.path(), Some(var("MIB", 96) << 20))
        .close()
        .unwrap();
    let options = || DatabaseOptions {
        engine: EngineOptions {
            dirty_bytes_max: var("DIRTY", 2 << 20),
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let path = dir.path().join("t.larder");
    let db = Database::open(&path, options()).unwrap();
    // Objects that are only moved, so that there is little room.
    for i in 0..var("FILLER", 0) {
        db.files()
            .write(format!("/filler{i}").as_bytes(), pattern(1 << 20, i))
            .unwrap();
    }
    let done = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(var("SECONDS", 60));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4)
            .map(|id| {
                let (db, done) = (&db, &done);
                scope.spawn(move || {
                    struct Stop<'a>(&'a AtomicBool);
                    impl Drop for Stop<'_> {
                        fn drop(&mut self) {
                            self.0.store(true, Ordering::SeqCst)
                        }
                    }
                    let _stop = Stop(done);
                    worker(db, id, seed, done)
                })
            })
            .collect();
        {
            let (db, done) = (&db, &done);
            scope.spawn(move || shared(db, seed, done));
        }
        {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                let mut rng = Rng(seed + 7);
                while !done.load(Ordering::Relaxed) {
                    match rng.below(var("UPKEEP", 40)) {
                        0 => match db.maintenance().defrag(
                            &[],
                            &DefragOptions::default(),
                            &mut |_| {},
                        ) {
                            Err(e) if e.kind() != ErrorKind::NoSpace => panic!("defrag {e}"),
                            _ => {}
                        },
                        1 => match db.maintenance().shrink(None, false, &mut |_, _| {}) {
                            Err(e)
                                if !matches!(
                                    e.kind(),
                                    ErrorKind::NoSpace | ErrorKind::Busy | ErrorKind::InvalidInput
                                ) =>
                            {
                                panic!("shrink {e}")
                            }
                            _ => {}
                        },
                        2 => {
                            assert_clean(db);
                        }
                        _ => match db.maintenance().compact_step() {
                            Err(e) if e.kind() != ErrorKind::NoSpace => panic!("compact {e}"),
                            _ => {}
                        },
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let mut last = (0, Instant::now());
        while Instant::now() < until && !done.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(200));
            let now = OPS.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            }
            if last.1.elapsed() > Duration::from_secs(40) {
                eprintln!("HANG pid {}", std::process::id());
                std::thread::sleep(Duration::from_secs(60));
                std::process::abort();
            }
        }
        done.store(true, Ordering::SeqCst);
        for h in handles {
            if let Err(p) = h.join() {
                std::panic::resume_unwind(p);
            }
        }
    });
    for i in 0..var("FILLER", 0) {
        assert!(
            db.files().read(format!("/filler{i}").as_bytes()).unwrap() == pattern(1 << 20, i),
            "filler{i}"
        );
    }
    println!(
        "ops {} full {} stats {:?}",
        OPS.load(Ordering::Relaxed),
        FULL.load(Ordering::Relaxed),
        db.maintenance().stats()
    );
    assert_clean(&db);
    db.close().unwrap();
    let db = Database::open(&path, options()).unwrap();
    assert_clean(&db);
    for (text, model) in KEPT.lock().unwrap().iter() {
        let found = db.files().read(format!("/{text}").as_bytes()).unwrap();
        assert!(&found == model, "{text} after reopening");
    }
}
