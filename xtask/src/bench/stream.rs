//! `bench stream`: large objects put and got whole, beside what the device gives.

use std::time::Duration;

use super::bare::Bare;
use super::content;
use super::fio::Fio;
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate, mb_per_s, timed};
use super::sides::{Api, Side};
use crate::Outcome;

const SIZES: [(&str, usize, f64); 3] = [
    ("1 MB", 1_000_000, 0.92),
    ("10 MB", 10_000_000, 0.97),
    ("100 MB", 100_000_000, 0.97),
];

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let total = setting
        .options
        .choose(200_000_000, 300_000_000, 500_000_000);
    let mut report = Report::new(
        "stream",
        &format!(
            "{} {rounds} rounds, in turns, one thread; {} MB per round; MB/s. Puts end durable, gets are cold (database opened \
             anew, caches dropped). The database's segments have grown before (it held as much and was emptied), as fio's file \
             is written before: growth is not measured. fio: direct, sequential, libaio, the best of bs=1M and 8M, iodepth 1 and \
             4, in each round. Bare: objects of the same size by O_DIRECT in requests of at most 8 MiB into a written file, \
             and a durable commit.",
            setting.machine()?,
            total / 1_000_000
        ),
    );
    let place = setting.directory()?;
    let mut api: Box<dyn Side> = Box::new(Api::create(&place.path().join("api.larder"), None)?);
    let fio = Fio::create(place.path(), total as u64)?;
    let mut bare = Bare::create(place.path(), total as u64)?;
    let mut buffer = content::noise(4, 100_000_000);
    let mut back = vec![0; 100_000_001];
    for step in 0..3 {
        let directory = format!("/grow-{step}");
        api.make_directory(&directory)?;
        put(
            &*api,
            &directory,
            total / 1_000_000,
            &mut buffer[..1_000_000],
        )?;
    }
    for step in 0..3 {
        api.remove_directory(&format!("/grow-{step}"))?;
    }
    api.forget()?;
    setting.watch_memory()?;
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for (name, bytes, target) in SIZES {
        let count = total / bytes;
        let moved = (count * bytes) as u64;
        let mut put_rates: [Samples; 3] = Default::default();
        let mut get_rates: [Samples; 3] = Default::default();
        alternate(rounds, 3, |round, index| {
            let (put_rate, get_rate) = match index {
                0 => {
                    let directory = format!("/{bytes}-{round}");
                    api.make_directory(&directory)?;
                    api.sync()?;
                    let content = &mut buffer[..bytes];
                    let put_time = timed(|| put(&*api, &directory, count, content))?;
                    api.forget()?;
                    setting.cool()?;
                    let get_time = get(&*api, &directory, count, bytes, &mut back)?;
                    api.remove_directory(&directory)?;
                    api.sync()?;
                    (mb_per_s(moved, put_time), mb_per_s(moved, get_time))
                }
                1 => (fio.best(true)?, fio.best(false)?),
                _ => {
                    let put_time = timed(|| {
                        for _ in 1..count {
                            bare.write(bytes)?;
                        }
                        bare.commit(1, bytes)
                    })?;
                    let get_time = timed(|| bare.read(bytes, count))?;
                    (mb_per_s(moved, put_time), mb_per_s(moved, get_time))
                }
            };
            put_rates[index].0.push(put_rate);
            get_rates[index].0.push(get_rate);
            Ok(())
        })?;
        let comparison = |what: &str, [ours, fio, bare]: [Samples; 3]| Comparison {
            what: format!("{what} {name}"),
            ours,
            rivals: vec![("fio", fio)],
            limits: vec![("bare", bare)],
            goal: Some(Goal::AtLeast(target)),
        };
        puts.push(comparison("put", put_rates));
        gets.push(comparison("get", get_rates));
        eprintln!("bench stream: {name} done");
    }
    puts.append(&mut gets);
    report.compare("API", "MB/s", &puts);
    setting.report_memory(&mut report)?;
    api.close()?;
    Ok(report)
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
    back: &mut [u8],
) -> Result<Duration, String> {
    let mut duration = Duration::ZERO;
    for index in 0..count {
        let path = format!("{directory}/{index}");
        let mut len = 0;
        duration += timed(|| {
            len = side.get(&path, &mut back[..bytes + 1])?;
            Ok(())
        })?;
        content::verify(&back[..len], index as u64, 0, bytes)?;
    }
    Ok(duration)
}
