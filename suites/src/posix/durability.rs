//! What was promised to be durable survives kill -9 at once; what was replaced is whole.
//!
//! Each way of syncing is a case: write, sync, kill the server before anything else happens, mount,
//! compare. A kill shows what the engine had committed, not what the disk had flushed: that is what
//! the crash replay of `cargo xtask crash` is for. `syncfs` is not among the ways: the kernel hands
//! it on to virtiofs only.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::{Rng, fill};
use rustix::fs::OFlags;

use super::judge::Cases;
use super::site::Site;
use xtask::Tally;
use xtask::mounts::Mount;

const SEED: u64 = 11;

/// Makes `bytes` the durable content of the file `path`, which may be there; the path's directory
/// exists.
type Way = fn(path: &Path, bytes: &[u8]) -> std::io::Result<()>;

const WAYS: [(&str, Way); 8] = [
    ("O_SYNC", |path, bytes| {
        written(path, OFlags::SYNC, bytes).map(drop)
    }),
    ("O_DSYNC", |path, bytes| {
        written(path, OFlags::DSYNC, bytes).map(drop)
    }),
    ("msync of a shared map", |path, bytes| {
        let file = open(path, OFlags::empty())?;
        file.set_len(bytes.len() as u64)?;
        map_and_sync(&file, bytes)
    }),
    ("fsync", |path, bytes| {
        written(path, OFlags::empty(), bytes)?.sync_all()
    }),
    ("fdatasync", |path, bytes| {
        written(path, OFlags::empty(), bytes)?.sync_data()
    }),
    ("fsync of another descriptor", |path, bytes| {
        drop(written(path, OFlags::empty(), bytes)?);
        File::open(path)?.sync_all()
    }),
    ("fsync of the directory", |path, bytes| {
        drop(written(path, OFlags::empty(), bytes)?);
        sync_parent(path)
    }),
    ("rename, fsync of the directory", |path, bytes| {
        let temporary = path.with_extension("tmp");
        drop(written(&temporary, OFlags::empty(), bytes)?);
        fs::rename(&temporary, path)?;
        sync_parent(path)
    }),
];

/// Runs all ways, and the two loads that are killed at random moments.
pub fn run(site: &Site) -> Result<Tally, String> {
    let (rounds, kills) = site.length.choose((2, 4), (15, 60));
    let mut rng = Rng::new(SEED);
    let mut cases = Cases::default();
    for (index, (name, way)) in WAYS.iter().enumerate() {
        let directory = format!("way-{index}");
        cases.run(&format!("{name}, {rounds} kills"), || {
            (0..rounds).try_for_each(|round| kill_after(site, &directory, *way, round, &mut rng))
        });
    }
    cases.run(
        &format!("write, rename without sync, {kills} kills"),
        || (0..kills).try_for_each(|_| kill_while_replacing(site, &mut rng)),
    );
    cases.run(&format!("append, fdatasync, {kills} kills"), || {
        (0..kills).try_for_each(|kill| kill_while_appending(site, kill, &mut rng))
    });
    cases.run("clean afterwards", || site.check());
    Ok(cases.tally())
}

fn kill_after(
    site: &Site,
    directory: &str,
    way: Way,
    round: u64,
    rng: &mut Rng,
) -> Result<(), String> {
    let directory = site.mountpoint().join(directory);
    let explain = |error| format!("{}: {error}", directory.display());
    let mount = site.mount()?;
    if round == 0 {
        fs::create_dir(&directory).map_err(explain)?;
    }
    // Every other time over what is there, and now and then long.
    let path = directory.join(format!("file-{}", round / 2));
    let len = match rng.below(3) {
        0 => 1 + rng.below(3000),
        1 => 1 + rng.below(100_000),
        _ => 1 + rng.below(6_000_000),
    };
    let bytes = fill(rng.bits(), len);
    way(&path, &bytes).map_err(explain)?;
    mount.kill()?;

    let mount = site.mount()?;
    let found = fs::read(&path).map_err(|error| format!("round {round}: {error}"))?;
    if found != bytes {
        return Err(format!(
            "round {round}: {} bytes were synced, {} are there{}",
            bytes.len(),
            found.len(),
            if found.len() == bytes.len() {
                ", others"
            } else {
                ""
            }
        ));
    }
    mount.unmount()
}

/// Generations replace each other; the one that is there after the kill is whole.
fn kill_while_replacing(site: &Site, rng: &mut Rng) -> Result<(), String> {
    let path = site.mountpoint().join("replaced");
    let temporary = site.mountpoint().join("replaced.tmp");
    let seed = rng.bits();
    let renamed = AtomicU64::new(0);
    let synced = AtomicU64::new(0);
    let replace = |generation: u64| -> std::io::Result<()> {
        drop(written(
            &temporary,
            OFlags::TRUNC,
            &generation_bytes(seed, generation),
        )?);
        fs::rename(&temporary, &path)?;
        renamed.store(generation, Ordering::SeqCst);
        if generation.is_multiple_of(64) {
            sync_parent(&path)?;
            synced.store(generation, Ordering::SeqCst);
        }
        Ok(())
    };
    let delay = Duration::from_millis(20 + rng.below(400));
    load_and_kill(site, delay, |number| replace(number + 1))?;

    let (renamed, synced) = (renamed.into_inner(), synced.into_inner());
    let mount = site.mount()?;
    match fs::read(&path) {
        // Before the first commit there is none; an older run's may be left.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && synced == 0 => {}
        Err(error) => return Err(format!("the file is gone: {error}")),
        Ok(found) => {
            let is_whole = |generation: &u64| found == generation_bytes(seed, *generation);
            let generation = (synced.max(1)..=renamed + 1).rev().find(is_whole);
            if generation.is_none() && (synced > 0 || !is_generation_of_another_run(&found)) {
                return Err(format!(
                    "{} bytes that are no generation of {synced}..={}",
                    found.len(),
                    renamed + 1
                ));
            }
        }
    }
    mount.unmount()
}

/// Each says how long it is and from which seed it is made.
fn generation_bytes(seed: u64, generation: u64) -> Vec<u8> {
    let len = 24 + (seed ^ generation.wrapping_mul(0x9e37_79b9)) % 40_000;
    let own = seed.wrapping_add(generation);
    let mut bytes = [own.to_le_bytes(), len.to_le_bytes()].concat();
    bytes.extend(fill(own, len - 16));
    bytes
}

fn is_generation_of_another_run(bytes: &[u8]) -> bool {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (Some(own), Some(len)) = (word(0), word(8)) else {
        return false;
    };
    len == bytes.len() as u64 && bytes[16..] == fill(own, len - 16)
}

/// A log of records; those that were synced are there, and nothing else but records, in order.
fn kill_while_appending(site: &Site, kill: u64, rng: &mut Rng) -> Result<(), String> {
    const RECORD: u64 = 100;
    let path = site.mountpoint().join(format!("log-{kill}"));
    let seed = rng.bits();
    let synced = AtomicU64::new(0);
    let append = |number: u64| -> std::io::Result<()> {
        let flags = OFlags::APPEND;
        let mut log = open(&path, flags)?;
        log.write_all(&fill(seed + number, RECORD))?;
        log.sync_data()?;
        synced.store(number + 1, Ordering::SeqCst);
        Ok(())
    };
    let delay = Duration::from_millis(10 + rng.below(200));
    load_and_kill(site, delay, append)?;

    let synced = synced.into_inner();
    let mount = site.mount()?;
    let found = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && synced == 0 => Vec::new(),
        other => other.map_err(|error| format!("{synced} records were synced: {error}"))?,
    };
    let (records, rest) = found.as_chunks::<{ RECORD as usize }>();
    let is_right = |(number, record): (usize, &[u8; RECORD as usize])| {
        record[..] == fill(seed + number as u64, RECORD)
    };
    if !rest.is_empty()
        || (records.len() as u64) < synced
        || !records.iter().enumerate().all(is_right)
    {
        return Err(format!(
            "{synced} records were synced; {} bytes are there, not all of them right",
            found.len()
        ));
    }
    mount.unmount()
}

/// Calls `step` with 0, 1, … until the server is killed, after `delay`.
fn load_and_kill(
    site: &Site,
    delay: Duration,
    step: impl Fn(u64) -> std::io::Result<()> + Sync,
) -> Result<(), String> {
    let mut mount: Mount = site.mount()?;
    thread::scope(|scope| {
        let load = scope
            .spawn(|| (0..).find_map(|number| step(number).err().map(|error| (number, error))));
        let started = Instant::now();
        while started.elapsed() < delay && !load.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let is_killed = !load.is_finished();
        mount.kill_server()?;
        // The dead mount ends the load. Taken away before, it would leave the directory below,
        // where records can be synced.
        let ended = load.join().map_err(|_| "the load panicked".to_owned())?;
        mount.kill()?;
        match (ended, is_killed) {
            (Some((number, error)), false) => Err(format!("step {number}: {error}")),
            _ => Ok(()),
        }
    })
}

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// A file of exactly `bytes`, written in pieces as programs do.
fn written(path: &Path, flags: OFlags, bytes: &[u8]) -> std::io::Result<File> {
    let mut file = open(path, flags)?;
    file.set_len(0)?;
    bytes
        .chunks(100_000)
        .try_for_each(|piece| file.write_all(piece))?;
    Ok(file)
}

/// Writes through a shared map, and `msync(MS_SYNC)`s it.
fn map_and_sync(file: &File, bytes: &[u8]) -> std::io::Result<()> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let (length, rights) = (bytes.len(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new map of `length` bytes at an address of the kernel's choice; the file has that
    // length.
    let map = unsafe {
        mmap(
            std::ptr::null_mut(),
            length,
            rights,
            MapFlags::SHARED,
            file,
            0,
        )?
    };
    // SAFETY: the map has `length` bytes and may be written; nothing else refers to it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>(), length) };
    // SAFETY: exactly the map made above, which is not used afterwards.
    unsafe {
        msync(map, length, MsyncFlags::SYNC)?;
        munmap(map, length)?;
    }
    Ok(())
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    File::open(path.parent().unwrap_or(path))?.sync_all()
}
