//! `bench stream`: large objects put and got whole, beside what the device gives.
//!
//! In every round the API and the bare program do each size, and fio does its four ways; the best
//! way over all rounds is what the API is compared with, round by round.

use larder::AlignedBuf;
use std::time::Duration;

use super::bare::Bare;
use super::content;
use super::fio::{self, Fio};
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate, mb_per_s, timed};
use super::sides::{Api, Side, grow};
use xtask::Outcome;

const SIZES: [(&str, usize, f64); 3] = [
    ("1 MB", 1_000_000, 0.92),
    ("10 MB", 10_000_000, 0.97),
    ("100 MB", 100_000_000, 0.97),
];
const COUNT: usize = SIZES.len();

/// Rates of putting and of getting, by size.
type Rates = [[Samples; COUNT]; 2];

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let total = setting
        .options
        .choose(100_000_000, 200_000_000, 500_000_000);
    let place = setting.directory()?;
    let fio = Fio::create(place.path(), total as u64, &fio::ALL_WAYS)?;
    let mut bare = Bare::create(place.path(), total as u64)?;
    let mut buffer = content::noise(4, 100_000_000);
    let mut back = AlignedBuf::zeroed(100_000_001);
    setting.watch_memory(200_000_000)?;
    let mut api: Box<dyn Side> = Box::new(Api::create(&place.path().join("api.larder"), None)?);
    grow(&*api, 3 * total as u64)?;
    let mut ours: Rates = Default::default();
    let mut limits: Rates = Default::default();
    let mut fio_rates = fio.no_rates();
    alternate(rounds, 2 * COUNT + 1, |round, turn| {
        if turn == 2 * COUNT {
            fio.measure(true, &mut fio_rates[0])?;
            fio.measure(false, &mut fio_rates[1])?;
            eprintln!("bench stream: round {} of {rounds}", round + 1);
            return Ok(());
        }
        let size = turn % COUNT;
        let bytes = SIZES[size].1;
        let count = total / bytes;
        let (rates, put, get) = if turn < COUNT {
            let directory = format!("/{bytes}-{round}");
            let (put, get) = one(
                setting,
                &mut api,
                &directory,
                count,
                &mut buffer[..bytes],
                &mut back,
            )?;
            (&mut ours, put, get)
        } else {
            let put = timed(|| {
                for _ in 1..count {
                    bare.write(bytes)?;
                }
                bare.commit(1, bytes)
            })?;
            (&mut limits, put, timed(|| bare.read(bytes, count))?)
        };
        let moved = (count * bytes) as u64;
        rates[0][size].0.push(mb_per_s(moved, put));
        rates[1][size].0.push(mb_per_s(moved, get));
        Ok(())
    })?;
    let mut report = Report::new(
        "stream",
        &format!(
            "{} {rounds} rounds, in turns, one thread; {} MB of each size per round; MB/s. Puts \
             end durable, gets are cold \
             (database opened anew, caches dropped). The database's segments have grown before, \
             as fio's file is written \
             before: growth is not measured. fio: direct, sequential, libaio, {} MB, bs=1M and \
             8M, iodepth 1 and 4; the best \
             over all rounds was {} for writing and {} for reading. Bare: objects of the same \
             size by O_DIRECT in requests \
             of at most 8 MiB, one after the other, into a written file; a durable commit at the \
             end.",
            setting.machine()?,
            total / 1_000_000,
            total / 1_000_000,
            fio::best(&fio_rates[0]).0,
            fio::best(&fio_rates[1]).0,
        ),
    );
    let mut comparisons = Vec::new();
    for (which, what) in ["put", "get"].into_iter().enumerate() {
        for (size, (name, _, target)) in SIZES.into_iter().enumerate() {
            comparisons.push(Comparison {
                what: format!("{what} {name}"),
                ours: ours[which][size].clone(),
                rivals: vec![("fio", fio::best(&fio_rates[which]).1)],
                limits: vec![("bare", limits[which][size].clone())],
                goal: Some(Goal::AtLeast(target)),
            });
        }
    }
    report.compare("API", "MB/s", &comparisons);
    setting.report_memory(&mut report)?;
    api.close()?;
    Ok(report)
}

/// Puts `count` objects, gets them cold, removes them; the times of putting and getting.
fn one(
    setting: &Setting,
    api: &mut Box<dyn Side>,
    directory: &str,
    count: usize,
    content: &mut [u8],
    back: &mut AlignedBuf,
) -> Result<(Duration, Duration), String> {
    api.make_directory(directory)?;
    api.sync()?;
    let put_time = timed(|| put(&**api, directory, count, content))?;
    api.forget()?;
    setting.cool()?;
    let get_time = get(&**api, directory, count, content.len(), back)?;
    api.remove_directory(directory)?;
    api.sync()?;
    Ok((put_time, get_time))
}

fn put(side: &dyn Side, directory: &str, count: usize, content: &mut [u8]) -> Outcome {
    for index in 0..count {
        content::stamp(content, index as u64, 0);
        side.put(&format!("{directory}/{index}"), content)?;
    }
    side.sync()
}

/// The time of the reads alone: fio does not look at what it reads.
fn get(
    side: &dyn Side,
    directory: &str,
    count: usize,
    bytes: usize,
    back: &mut AlignedBuf,
) -> Result<Duration, String> {
    let mut duration = Duration::ZERO;
    for index in 0..count {
        let path = format!("{directory}/{index}");
        let mut len = 0;
        duration += timed(|| {
            len = side.get(&path, back)?;
            Ok(())
        })?;
        content::verify(&back[..len], index as u64, 0, bytes)?;
    }
    Ok(duration)
}
