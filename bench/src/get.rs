//! `bench get`: objects read whole, warm and cold, by one thread and by eight.
//!
//! ext4 opens, reads and closes; the API resolves the path, opens, reads and closes. Each thread
//! reads every object of its share once, in an order of its own.

use larder::AlignedBuf;
use larder_testkit::Rng;

use super::content;
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate, shuffle, timed};
use super::sides::{Api, Host, Side};
use xtask::Outcome;

const PER_DIRECTORY: usize = 1000;
/// Each has memory for an object.
const THREADS_MAX: usize = 8;
/// Rounds that are not counted: in the first, and with long objects in the second, memory fills.
const WARMING_ROUNDS: usize = 2;

/// Objects of one size.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    bytes: usize,
    count: usize,
    /// Warm and cold, ÷ ext4.
    targets: [f64; 2],
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let kinds = [
        Kind {
            name: "10 KB",
            bytes: 10_000,
            count: setting.options.choose(2000, 10_000, 20_000),
            targets: [1.5, 1.0],
        },
        Kind {
            name: "1 MB",
            bytes: 1_000_000,
            count: setting.options.choose(50, 200, 500),
            targets: [0.8, 1.0],
        },
    ];
    let counts = kinds.map(|kind| format!("{} of {}", kind.count, kind.name));
    let mut report = Report::new(
        "get",
        &format!(
            "{} {rounds} rounds, sides in turns; {} in directories of {PER_DIRECTORY}, read once \
             per round in random order; objects per second, all threads together. Cold: the \
             database is opened anew, the caches are dropped.",
            setting.machine()?,
            counts.join(", "),
        ),
    );
    let place = setting.directory()?;
    setting.watch_memory(THREADS_MAX * (kinds[1].bytes + 1))?;
    let mut sides: [Box<dyn Side>; 2] = [
        Box::new(Api::create(&place.path().join("api.larder"), None)?),
        Box::new(Host::create(&place.path().join("plain"))?),
    ];
    let mut comparisons = Vec::new();
    for kind in kinds {
        put_all(&sides, kind)?;
        for (is_cold, name, target) in [
            (false, "warm", kind.targets[0]),
            (true, "cold", kind.targets[1]),
        ] {
            if is_cold && !setting.drops_caches {
                continue;
            }
            for threads in [1, THREADS_MAX] {
                let mut rates: [Samples; 2] = Default::default();
                alternate(rounds + WARMING_ROUNDS, 2, |round, index| {
                    if is_cold {
                        sides[index].forget()?;
                        setting.cool()?;
                    }
                    let shares = shares(kind.count, threads, round as u64);
                    let duration = timed(|| get_all(&*sides[index], kind, &shares))?;
                    if round >= WARMING_ROUNDS {
                        rates[index]
                            .0
                            .push(kind.count as f64 / duration.as_secs_f64());
                    }
                    Ok(())
                })?;
                let [api, plain] = rates;
                comparisons.push(Comparison {
                    what: format!("get {}, {name}, {threads} threads", kind.name),
                    ours: api,
                    rivals: vec![("ext4", plain)],
                    limits: Vec::new(),
                    goal: Some(Goal::AtLeast(target)),
                });
                eprintln!("bench get: {}, {name}, {threads} threads, done", kind.name);
            }
        }
    }
    report.compare("API", "objects/s", &comparisons);
    setting.report_memory(&mut report)?;
    for side in sides {
        side.close()?;
    }
    Ok(report)
}

fn put_all(sides: &[Box<dyn Side>], kind: Kind) -> Outcome {
    let mut buffer = content::noise(3, kind.bytes);
    for side in sides {
        side.make_directory(&format!("/{}", kind.bytes))?;
        for index in 0..kind.count {
            if index % PER_DIRECTORY == 0 {
                side.make_directory(&format!("/{}/{}", kind.bytes, index / PER_DIRECTORY))?;
            }
            content::stamp(&mut buffer, index as u64, 0);
            side.put(&path_of(kind, index), &buffer)?;
        }
        side.sync()?;
    }
    Ok(())
}

fn path_of(kind: Kind, index: usize) -> String {
    format!("/{}/{}/{index}", kind.bytes, index / PER_DIRECTORY)
}

/// All objects in random order, dealt to `threads`.
fn shares(count: usize, threads: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(&mut order, &mut Rng::new(seed + 1));
    order
        .chunks(count.div_ceil(threads))
        .map(<[usize]>::to_vec)
        .collect()
}

fn get_all(side: &dyn Side, kind: Kind, shares: &[Vec<usize>]) -> Outcome {
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(|| get_share(side, kind, share)))
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended = thread.join().map_err(|_| "a reader panicked".to_owned());
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        outcome
    })
}

fn get_share(side: &dyn Side, kind: Kind, share: &[usize]) -> Outcome {
    let mut back = AlignedBuf::zeroed(kind.bytes + 1);
    for &index in share {
        let len = side.get(&path_of(kind, index), &mut back)?;
        content::verify(&back[..len], index as u64, 0, kind.bytes)?;
    }
    Ok(())
}
