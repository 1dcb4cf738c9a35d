//! What small random overwrites cost, and how many fragments they leave:
//! `cargo run --release -p larder --example overwrite_cost [DIR]`.
//!
//! An object of 256 MiB; each transaction overwrites one or eight random blocks of 4 KiB, or one of
//! 8 KiB, and syncs. Alternating: with redo rows, without (copy-on-write), and a plain file in the
//! same directory (pwrite, fdatasync).

use larder::{Caller, CreateOptions, Database, DatabaseOptions, Name, NewNode, NodeId};
use larder_object::EngineOptions;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const OBJECT_BYTES: u64 = 256 << 20;
const ROUND: Duration = Duration::from_millis(1000);
const ROUNDS: usize = 2;

/// Writes and syncs transactions for a round; returns transactions per second.
type Overwrite<'a> = dyn FnMut(&[u64], &[u8]) -> Result<(), Box<dyn Error>> + 'a;

fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    let dir = place.join(format!("larder-overwrite-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let measured = measure(&dir);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(dir: &Path) -> Result<(), Box<dyn Error>> {
    let plain = File::create(dir.join("plain"))?;
    plain.write_all_at(&vec![1; OBJECT_BYTES as usize], 0)?;
    plain.sync_all()?;
    for (count, bytes) in [(1, 4096), (8, 4096), (200, 8192), (1000, 8192)] {
        println!("{count} × {bytes} bytes per transaction: transactions/s");
        let (redo, copied) = (open(dir, "redo", 64 << 20)?, open(dir, "copied", 0)?);
        for _ in 0..ROUNDS {
            for (name, (db, node)) in [("redo", &redo), ("copied", &copied)] {
                let handle = db.nodes().open(*node, true)?;
                let (wal, device) = (wal_bytes(dir, name), device_bytes()?);
                let (rate, made) = round(count, bytes, &mut |offsets, data| {
                    for &offset in offsets {
                        handle.write_at(offset, data)?;
                    }
                    Ok(handle.sync()?)
                })?;
                let written = (device_bytes()? - device) as f64 / made as f64 / 1024.0;
                let frag = db.maintenance().frag()?;
                println!(
                    "  {name:8} {rate:8.0}   {written:6.1} KiB written each, log {} KiB, {} \
                     fragments",
                    wal_bytes(dir, name).max(wal) / 1024,
                    frag.fragments_per_object_max
                );
            }
            let device = device_bytes()?;
            let (rate, made) = round(count, bytes, &mut |offsets, data| {
                for &offset in offsets {
                    plain.write_all_at(data, offset)?;
                }
                Ok(plain.sync_data()?)
            })?;
            let written = (device_bytes()? - device) as f64 / made as f64 / 1024.0;
            println!("  {:8} {rate:8.0}   {written:6.1} KiB written each", "ext4");
        }
        for (name, (db, _)) in [("redo", redo), ("copied", copied)] {
            let start = Instant::now();
            let waiting = db.maintenance().space()?.redo_bytes;
            db.close()?;
            let took = start.elapsed().as_millis();
            let db = Database::open(&dir.join(name), DatabaseOptions::default())?;
            println!(
                "  {name:8} closed in {took} ms with {waiting} bytes waiting: {} fragments, \
                 catalog {} KiB",
                db.maintenance().frag()?.fragments_per_object_max,
                db.maintenance().space()?.catalog_bytes / 1024
            );
            db.close()?;
            std::fs::remove_dir_all(dir.join(name))?;
        }
    }
    Ok(())
}

fn open(dir: &Path, name: &str, redo_bytes_max: u64) -> Result<(Database, NodeId), Box<dyn Error>> {
    let path = dir.join(name);
    Database::create(&path, &CreateOptions::default())?;
    let options = DatabaseOptions {
        engine: EngineOptions {
            redo_bytes_max,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let db = Database::open(&path, options)?;
    let owner = Caller {
        uid: 0,
        gid: 0,
        umask: 0,
    };
    let node = db
        .nodes()
        .create_node(NodeId::ROOT, &Name::new(b"f")?, NewNode::File, 0o644, owner)?
        .node;
    let handle = db.nodes().open(node, true)?;
    handle.allocate(
        larder::AllocateMode::Allocate { keep_size: true },
        0,
        OBJECT_BYTES,
    )?;
    for at in (0..OBJECT_BYTES).step_by(1 << 20) {
        handle.write_at(at, &vec![1; 1 << 20])?;
    }
    handle.sync()?;
    Ok((db, node))
}

fn round(
    count: u64,
    bytes: u64,
    overwrite: &mut Overwrite<'_>,
) -> Result<(f64, u64), Box<dyn Error>> {
    let mut state = 12345u64;
    let (start, mut made) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        let offsets: Vec<u64> = (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(made | 1);
                (state >> 20) % (OBJECT_BYTES / bytes) * bytes
            })
            .collect();
        overwrite(&offsets, &vec![made as u8; bytes as usize])?;
        made += 1;
    }
    Ok((made as f64 / start.elapsed().as_secs_f64(), made))
}

fn wal_bytes(dir: &Path, name: &str) -> u64 {
    std::fs::metadata(dir.join(name).join("catalog.db-wal")).map_or(0, |file| file.len())
}

/// Bytes written to all disks so far; meaningful on a quiet machine.
fn device_bytes() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/diskstats")?;
    let disks = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_disk = Path::new("/sys/block")
            .join(fields.get(2)?)
            .join("device")
            .exists();
        is_disk.then(|| fields.get(9)?.parse::<u64>().ok())?
    });
    Ok(disks.sum::<u64>() * 512)
}
