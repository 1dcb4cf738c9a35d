//! `bench get`: small objects read whole, warm and cold, by one thread and by eight.
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

const OBJECT_BYTES: usize = 10_000;
const PER_DIRECTORY: usize = 1000;

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let count = setting.options.choose(2000, 10_000, 20_000);
    let mut report = Report::new(
        "get",
        &format!(
            "{} {rounds} rounds, sides in turns; {count} objects of 10 KB in directories of \
             {PER_DIRECTORY}, read once per round in \
             random order; objects per second, all threads together. Cold: the database is opened \
             anew, the caches are dropped.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    setting.watch_memory(OBJECT_BYTES)?;
    let mut sides: [Box<dyn Side>; 2] = [
        Box::new(Api::create(&place.path().join("api.larder"), None)?),
        Box::new(Host::create(&place.path().join("plain"))?),
    ];
    let mut buffer = content::noise(3, OBJECT_BYTES);
    for side in &sides {
        for index in 0..count {
            if index % PER_DIRECTORY == 0 {
                side.make_directory(&format!("/{}", index / PER_DIRECTORY))?;
            }
            content::stamp(&mut buffer, index as u64, 0);
            side.put(&path_of(index), &buffer)?;
        }
        side.sync()?;
    }
    let mut comparisons = Vec::new();
    for (is_cold, name, target) in [(false, "warm", 1.5), (true, "cold", 1.0)] {
        if is_cold && !setting.drops_caches {
            continue;
        }
        for threads in [1, 8] {
            let mut rates: [Samples; 2] = Default::default();
            // The first round warms up; it is not counted.
            alternate(rounds + 1, 2, |round, index| {
                if is_cold {
                    sides[index].forget()?;
                    setting.cool()?;
                }
                let shares = shares(count, threads, round as u64);
                let duration = timed(|| get_all(&*sides[index], &shares))?;
                if round > 0 {
                    rates[index].0.push(count as f64 / duration.as_secs_f64());
                }
                Ok(())
            })?;
            let [api, plain] = rates;
            comparisons.push(Comparison {
                what: format!("get 10 KB, {name}, {threads} threads"),
                ours: api,
                rivals: vec![("ext4", plain)],
                limits: Vec::new(),
                goal: Some(Goal::AtLeast(target)),
            });
            eprintln!("bench get: {name}, {threads} threads, done");
        }
    }
    report.compare("API", "objects/s", &comparisons);
    setting.report_memory(&mut report)?;
    for side in sides {
        side.close()?;
    }
    Ok(report)
}

fn path_of(index: usize) -> String {
    format!("/{}/{index}", index / PER_DIRECTORY)
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

fn get_all(side: &dyn Side, shares: &[Vec<usize>]) -> Outcome {
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(|| get_share(side, share)))
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended = thread.join().map_err(|_| "a reader panicked".to_owned());
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        outcome
    })
}

fn get_share(side: &dyn Side, share: &[usize]) -> Outcome {
    let mut back = AlignedBuf::zeroed(OBJECT_BYTES + 1);
    for &index in share {
        let len = side.get(&path_of(index), &mut back)?;
        content::verify(&back[..len], index as u64, 0, OBJECT_BYTES)?;
    }
    Ok(())
}
