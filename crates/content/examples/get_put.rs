//! Whole objects put and got through the API, beside the plain filesystem of the same disk, in turns.
//!
//! `cargo run --release -p larder --example get_put -- DIRECTORY [FILTER]`; as root the cold reads are
//! cold. Prints medians, the ratio (above 1: the API is faster) and CPU µs per object on both sides
//! (this process; what the kernel does for a filesystem in its own threads is not in it).

#![allow(clippy::unwrap_used, missing_docs)]

use larder::{CreateOptions, Database, OpenOptions};
use std::fs::{self, File, OpenOptions as FileOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

const ROUNDS: usize = 7;
const O_DIRECT: i32 = 0o40000;

fn cpu_us() -> f64 {
    let usage = fs::read_to_string("/proc/self/schedstat").map(|_| ()).ok();
    let _ = usage;
    // utime + stime of all threads, in ticks of 10 ms: phases are long enough.
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) * 10_000.0
}

fn drop_caches() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn sync_filesystem(path: &Path) {
    let status = std::process::Command::new("sync")
        .arg("-f")
        .arg(path)
        .status()
        .unwrap();
    assert!(status.success());
}

struct Sides {
    root: PathBuf,
    db: Option<Database>,
}

impl Sides {
    fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }
    fn reopen(&mut self) {
        self.db.take().unwrap().close().unwrap();
        self.db = Some(open(&self.root));
    }
}

fn open(root: &Path) -> Database {
    Database::open(&root.join("api.larder"), OpenOptions::default()).unwrap()
}

/// One measured phase: `(objects per second, CPU µs per object)`.
fn phase(count: usize, run: impl FnOnce()) -> (f64, f64) {
    let (cpu, started) = (cpu_us(), Instant::now());
    run();
    let seconds = started.elapsed().as_secs_f64();
    (count as f64 / seconds, (cpu_us() - cpu) / count as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(what: &str, bytes: usize, api: &[(f64, f64)], plain: &[(f64, f64)]) {
    let rate = |of: &[(f64, f64)]| median(of.iter().map(|v| v.0).collect());
    let cpu = |of: &[(f64, f64)]| of.iter().map(|v| v.1).sum::<f64>() / of.len() as f64;
    // Paired: each round's ratio, so that what the machine did then meets both.
    let ratio = median(api.iter().zip(plain).map(|(a, p)| a.0 / p.0).collect());
    let mb = |rate: f64| rate * bytes as f64 / 1e6;
    println!(
        "{what:44} {:9.0}/s {:6.0} MB/s {:7.1} us | {:9.0}/s {:6.0} MB/s {:7.1} us | ratio {:.2} (paired {ratio:.2})",
        rate(api),
        mb(rate(api)),
        cpu(api),
        rate(plain),
        mb(rate(plain)),
        cpu(plain),
        rate(api) / rate(plain)
    );
}

fn threads(count: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for index in 1..count {
            let work = &work;
            scope.spawn(move || work(index));
        }
        work(0);
    });
}

fn gets(sides: &mut Sides, size: usize, files: usize) {
    let content = vec![7u8; size];
    let plain = sides.root.join(format!("plain-{size}"));
    fs::create_dir_all(&plain).unwrap();
    let (root, name) = sides
        .db()
        .resolve_parent(format!("/d{size}").as_bytes())
        .unwrap();
    sides
        .db()
        .create_node(
            root,
            &name,
            larder::NewNode::Directory,
            0o755,
            larder::Caller::current(),
        )
        .unwrap();
    for i in 0..files {
        fs::write(plain.join(i.to_string()), &content).unwrap();
        sides
            .db()
            .put(format!("/d{size}/{i}").as_bytes(), &content)
            .unwrap();
    }
    sides.db().sync().unwrap();
    sync_filesystem(&sides.root);
    let order = |i: usize| (i * 7919) % files;
    for cold in [false, true] {
        for thread_count in [1, 8] {
            let passes = match (cold, size > 500_000) {
                (false, false) => 20,
                (false, true) => 2,
                (true, _) => 1,
            };
            let (mut api, mut host) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                for side in 0..2 {
                    let is_api = (round + side) % 2 == 0;
                    if cold {
                        sides.reopen();
                        drop_caches();
                    }
                    let db = sides.db();
                    let per_thread = files * passes / thread_count;
                    let run_api = || {
                        threads(thread_count, |t| {
                            let mut buffer = Vec::new();
                            for i in 0..per_thread {
                                let path = format!("/d{size}/{}", order(i * thread_count + t));
                                db.get_into(path.as_bytes(), &mut buffer).unwrap();
                                assert_eq!(buffer.len(), size);
                            }
                        })
                    };
                    let run_host = || {
                        threads(thread_count, |t| {
                            let mut buffer = vec![0; size + 1];
                            for i in 0..per_thread {
                                let path =
                                    format!("{}/{}", plain.display(), order(i * thread_count + t));
                                let mut file = File::open(path).unwrap();
                                let mut done = 0;
                                loop {
                                    let n = file.read(&mut buffer[done..]).unwrap();
                                    done += n;
                                    if n == 0 || done >= size {
                                        break;
                                    }
                                }
                                assert_eq!(done, size);
                            }
                        })
                    };
                    if !cold && round == 0 {
                        run_api();
                        run_host();
                    }
                    match is_api {
                        true => api.push(phase(per_thread * thread_count, run_api)),
                        false => host.push(phase(per_thread * thread_count, run_host)),
                    }
                }
            }
            let kind = if cold { "cold" } else { "warm" };
            report(
                &format!("get {size} {kind} x{thread_count}"),
                size,
                &api,
                &host,
            );
        }
    }
}

fn puts(sides: &mut Sides, size: usize, per_commit: usize, commits: usize) {
    let mut content = vec![7u8; size];
    for (i, byte) in content.iter_mut().enumerate() {
        *byte = (i * 31) as u8;
    }
    let (mut api, mut host) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let dir = format!("p{size}-{per_commit}-{round}");
        let plain = sides.root.join(&dir);
        fs::create_dir_all(&plain).unwrap();
        let (root, name) = sides
            .db()
            .resolve_parent(format!("/{dir}").as_bytes())
            .unwrap();
        sides
            .db()
            .create_node(
                root,
                &name,
                larder::NewNode::Directory,
                0o755,
                larder::Caller::current(),
            )
            .unwrap();
        sides.db().sync().unwrap();
        sync_filesystem(&sides.root);
        let handle = File::open(&plain).unwrap();
        for side in 0..2 {
            let count = per_commit * commits;
            if (round + side) % 2 == 0 {
                let db = sides.db();
                api.push(phase(count, || {
                    for commit in 0..commits {
                        for i in 0..per_commit {
                            db.put(
                                format!("/{dir}/{}", commit * per_commit + i).as_bytes(),
                                &content,
                            )
                            .unwrap();
                        }
                        db.sync().unwrap();
                    }
                }));
            } else {
                host.push(phase(count, || {
                    for commit in 0..commits {
                        for i in 0..per_commit {
                            let path = plain.join((commit * per_commit + i).to_string());
                            let tmp = plain.join("tmp");
                            let mut file = File::create(&tmp).unwrap();
                            file.write_all(&content).unwrap();
                            if per_commit == 1 {
                                file.sync_data().unwrap();
                            }
                            fs::rename(&tmp, &path).unwrap();
                        }
                        match per_commit {
                            1 => handle.sync_all().unwrap(),
                            _ => rustix_syncfs(&handle),
                        }
                    }
                }));
            }
        }
        fs::remove_dir_all(&plain).unwrap();
        let db = sides.db();
        let node = db
            .resolve(format!("/{dir}").as_bytes(), false)
            .unwrap()
            .node;
        loop {
            let entries = db.read_dir(node, None, 1000).unwrap();
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                db.unlink(node, &entry.name).unwrap();
            }
        }
        db.sync().unwrap();
        sync_filesystem(&sides.root);
    }
    report(
        &format!("put {size}, {per_commit} per commit"),
        size,
        &api,
        &host,
    );
}

unsafe extern "C" {
    fn syncfs(fd: i32) -> i32;
}
fn rustix_syncfs(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { syncfs(file.as_raw_fd()) }, 0);
}

/// Large objects, beside direct sequential I/O of the same length in requests of 1 MiB.
fn large(sides: &mut Sides, size: usize, count: usize, commit_each: bool) {
    let mut content = vec![7u8; size];
    for (i, byte) in content.iter_mut().enumerate() {
        *byte = (i * 31 ^ i >> 9) as u8;
    }
    let raw = sides.root.join("raw");
    let total = (size * count) as u64;
    let file = FileOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(O_DIRECT)
        .open(&raw)
        .unwrap();
    let memory = vec![1u8; (1 << 20) + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let padded = total.next_multiple_of(1 << 20);
    if file.metadata().unwrap().len() < padded {
        for at in (0..padded).step_by(1 << 20) {
            file.write_all_at(&memory[skip..][..1 << 20], at).unwrap();
        }
        file.sync_all().unwrap();
    }
    let mut memory = memory;
    let (mut api, mut host) = (Vec::new(), Vec::new());
    let (mut api_read, mut host_read) = (Vec::new(), Vec::new());
    let names: Vec<String> = (0..count).map(|i| format!("/l{size}-{i}")).collect();
    for round in 0..ROUNDS {
        for side in 0..2 {
            if (round + side) % 2 == 0 {
                let db = sides.db();
                let measured = phase(count, || {
                    for name in &names {
                        db.put(name.as_bytes(), &content).unwrap();
                        if commit_each {
                            db.sync().unwrap();
                        }
                    }
                    db.sync().unwrap();
                });
                if round > 0 {
                    api.push(measured);
                }
            } else {
                let each = if commit_each { size as u64 } else { padded };
                let measured = phase(count, || {
                    let mut at = 0;
                    while at < total {
                        let end = (at + each).min(padded);
                        let mut here = at / (1 << 20) * (1 << 20);
                        while here < end {
                            let n = (end - here).min(1 << 20).next_multiple_of(4096);
                            file.write_all_at(&memory[skip..][..n as usize], here)
                                .unwrap();
                            here += n;
                        }
                        file.sync_data().unwrap();
                        at += each;
                    }
                });
                if round > 0 {
                    host.push(measured);
                }
            }
        }
    }
    for round in 0..ROUNDS {
        for side in 0..2 {
            sides.reopen();
            drop_caches();
            if (round + side) % 2 == 0 {
                let db = sides.db();
                let mut buffer = content.clone();
                api_read.push(phase(count, || {
                    for name in &names {
                        db.get_into(name.as_bytes(), &mut buffer).unwrap();
                    }
                }));
                assert!(buffer == content);
            } else {
                host_read.push(phase(count, || {
                    for at in (0..total).step_by(1 << 20) {
                        file.read_exact_at(&mut memory[skip..][..1 << 20], at)
                            .unwrap();
                    }
                }));
            }
        }
    }
    let each = if commit_each { ", a commit each" } else { "" };
    report(&format!("put {size}{each} / direct"), size, &api, &host);
    report(
        &format!("get {size} cold / direct"),
        size,
        &api_read,
        &host_read,
    );
    for name in &names {
        let (parent, name) = sides.db().resolve_parent(name.as_bytes()).unwrap();
        sides.db().unlink(parent, &name).unwrap();
    }
    sides.db().sync().unwrap();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = PathBuf::from(arguments.next().expect("a directory"));
    let filter = arguments.next().unwrap_or_default();
    let root = root.join("get_put");
    fs::create_dir(&root).unwrap();
    Database::create(&root.join("api.larder"), &CreateOptions::default()).unwrap();
    let mut sides = Sides {
        db: Some(open(&root)),
        root: root.clone(),
    };
    println!("{:44} API | plain", "");
    if filter.is_empty() || filter == "get" {
        gets(&mut sides, 10_000, 4000);
    }
    if filter == "spin" {
        spin(&mut sides);
    }
    if filter == "get100" {
        gets(&mut sides, 100_000, 1000);
    }
    if filter.is_empty() || filter == "put" {
        for size in [4000, 10_000, 64_000] {
            puts(&mut sides, size, 64, 16);
        }
        for size in [4000, 10_000, 64_000] {
            puts(&mut sides, size, 1, 64);
        }
    }
    if filter == "put10" {
        puts(&mut sides, 10_000, 64, 64);
    }
    if filter.is_empty() || filter == "large" {
        large(&mut sides, 1_000_000, 64, false);
        large(&mut sides, 1_000_000, 64, true);
        large(&mut sides, 10_000_000, 16, false);
        large(&mut sides, 10_000_000, 16, true);
        large(&mut sides, 100_000_000, 3, false);
    }
    sides.db.take().unwrap().close().unwrap();
    fs::remove_dir_all(&root).unwrap();
}

fn spin(sides: &mut Sides) {
    let content = vec![7u8; 10_000];
    for i in 0..4000 {
        sides
            .db()
            .put(format!("/{i}").as_bytes(), &content)
            .unwrap();
    }
    sides.db().sync().unwrap();
    sides.reopen();
    let mut buffer = Vec::new();
    for pass in 0..100 {
        let started = Instant::now();
        for i in 0..4000 {
            sides
                .db()
                .get_into(format!("/{}", i * 7919 % 4000).as_bytes(), &mut buffer)
                .unwrap();
        }
        if pass % 25 == 1 {
            println!("{:?}", started.elapsed() / 4000);
        }
    }
}
