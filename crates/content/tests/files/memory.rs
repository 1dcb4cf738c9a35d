//! Memory of a session under many writers: the bound of the gather, a tenth more, and the caches
//! (`CLAIM-1`, `POOL-2`, `GATHER-3`). Each measurement is a process of its own.

use crate::common::{create_without_history, make, pattern};
use larder::{Database, DatabaseOptions, EngineOptions, NodeId, gather_bytes_default};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

const DIR: &str = "LARDER_MEMORY_DIR";
const BOUND: &str = "LARDER_MEMORY_BOUND";
const TOTAL: &str = "LARDER_MEMORY_TOTAL";

const WRITERS: u64 = 64;
/// What a request of the kernel carries.
const STEP_BYTES: usize = 1 << 20;
/// Page caches of the catalog's connections, inodes, stacks, and the program itself.
const CACHES_BYTES: u64 = 96 << 20;

/// Runs the load in a process of its own; it fails where it takes more than it may.
fn measure(bound_bytes: u64, total_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    create_without_history(
        dir.path(),
        Some(total_bytes + total_bytes / 8 + (256 << 20)),
    )
    .close()
    .unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::load_of_its_own",
            "--ignored",
            "--nocapture",
        ])
        .env(DIR, dir.path())
        .env(BOUND, bound_bytes.to_string())
        .env(TOTAL, total_bytes.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn many_writers_stay_within_the_bound() {
    measure(64 << 20, 512 << 20);
}

#[test]
#[ignore = "20 GB twice, minutes: cargo xtask soak"]
fn twenty_gigabytes_by_many_writers_stay_within_the_bound() {
    measure(64 << 20, 20 << 30);
    measure(gather_bytes_default(), 20 << 30);
}

#[test]
#[ignore = "a process of the tests above"]
fn load_of_its_own() {
    let number = |name: &str| -> u64 { std::env::var(name).unwrap().parse().unwrap() };
    let (bound_bytes, total_bytes) = (number(BOUND), number(TOTAL));
    let options = DatabaseOptions {
        engine: EngineOptions {
            dirty_bytes_max: bound_bytes,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let path = std::path::PathBuf::from(std::env::var(DIR).unwrap()).join("t.larder");
    let db = Database::open(&path, options).unwrap();
    let bytes = pattern(12 << 20, 7);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, bytes, written) = (&db, &bytes, &written);
            scope.spawn(move || {
                for round in 0.. {
                    let number = writer + WRITERS * round;
                    if written.load(Ordering::Relaxed) >= total_bytes {
                        return;
                    }
                    let len_bytes = write_one(db, bytes, number);
                    written.fetch_add(len_bytes, Ordering::Relaxed);
                }
            });
        }
    });
    db.sync().unwrap();
    let peak_bytes = status_bytes("VmHWM:");
    let frag = db.maintenance().frag().unwrap();
    println!(
        "bound {} MiB: {} GiB by {WRITERS} writers, resident at most {} MiB, {:.3} fragments",
        bound_bytes >> 20,
        total_bytes as f64 / f64::from(1 << 30),
        peak_bytes >> 20,
        frag.fragments_per_object_mean
    );
    assert!(peak_bytes <= bound_bytes / 10 * 11 + CACHES_BYTES + bytes.len() as u64);
    // More is half written than memory may hold: some are streams, which meet.
    assert!(frag.fragments_per_object_mean <= 1.3);
    db.close().unwrap();
}

/// Writes an object in one of four ways; how long it is.
fn write_one(db: &Database, bytes: &[u8], number: u64) -> u64 {
    let len_bytes = (1 + (number * 7919) % 11) << 20;
    let name = format!("f{number}");
    match number % 4 {
        0 => {
            let small = &bytes[..300_000 + (number % 997) as usize];
            db.files()
                .write(format!("/{name}").as_bytes(), small)
                .unwrap();
            return small.len() as u64;
        }
        // A block here and there: each takes a chunk of memory.
        1 => {
            let node = make(db, NodeId::ROOT, &name);
            let handle = db.nodes().open(node, true).unwrap();
            for at in 0..64 {
                let from = at * (32 << 10) + (5 << 12);
                handle.write_at(from, &bytes[..4096]).unwrap();
            }
            return 64 * 4096;
        }
        _ => {}
    }
    let node = make(db, NodeId::ROOT, &name);
    let handle = db.nodes().open(node, true).unwrap();
    for (index, piece) in bytes[..len_bytes as usize].chunks(STEP_BYTES).enumerate() {
        handle.write_at((index * STEP_BYTES) as u64, piece).unwrap();
    }
    len_bytes
}

/// A line of /proc/self/status.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() * 1024
}
