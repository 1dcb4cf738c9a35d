//! `bench put`: new small objects, durable, 64 per commit and one per commit.
//!
//! ext4 stores an object safely: write, (fsync,) rename; then one syncfs per 64, or an fsync of the
//! directory per object. The bare column does the same I/O without names.

use super::bare::Bare;
use super::content;
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate, timed};
use super::sides::{Api, Host, Side};
use larder::AlignedBuf;
use xtask::Outcome;

const BATCH: usize = 64;
const SIZES: [(&str, usize); 3] = [("4 KB", 4096), ("10 KB", 10_000), ("64 KB", 65_536)];

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let batched = setting.options.choose(8, 16, 32) * BATCH;
    let single = setting.options.choose(64, 128, 256);
    let mut report = Report::new(
        "put",
        &format!(
            "{} {rounds} rounds, sides in turns, one thread; per round {batched} objects with \
             {BATCH} per commit, {single} with \
             one per commit; objects per second. Bare: the same bytes by one O_DIRECT write and \
             fdatasync, then a \
             log append and fdatasync, per commit.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    let mut bare = Bare::create(place.path(), 256 << 20)?;
    setting.watch_memory(SIZES[2].1)?;
    let sides: [Box<dyn Side>; 2] = [
        Box::new(Api::create(&place.path().join("api.larder"), None)?),
        Box::new(Host::create(&place.path().join("plain"))?),
    ];
    let mut comparisons = Vec::new();
    for (is_batched, count, target) in [(true, batched, 5.0), (false, single, 1.0)] {
        for (name, bytes) in SIZES {
            let mut buffer = content::noise(2, bytes);
            let mut back = AlignedBuf::zeroed(bytes + 1);
            let mut rates: [Samples; 3] = Default::default();
            let per_commit = if is_batched { BATCH } else { 1 };
            // The first round grows files and warms up; it is not counted.
            alternate(rounds + 1, 3, |round, index| {
                let directory = format!("/{bytes}-{per_commit}-{round}");
                let duration = match sides.get(index) {
                    None => timed(|| {
                        (0..count / per_commit).try_for_each(|_| bare.commit(per_commit, bytes))
                    })?,
                    Some(side) => {
                        side.make_directory(&directory)?;
                        side.sync()?;
                        let duration =
                            timed(|| put(&**side, &directory, count, per_commit, &mut buffer))?;
                        check(&**side, &directory, count, bytes, &mut back)?;
                        side.remove_directory(&directory)?;
                        side.sync()?;
                        duration
                    }
                };
                if round > 0 {
                    rates[index].0.push(count as f64 / duration.as_secs_f64());
                }
                Ok(())
            })?;
            let [api, plain, limit] = rates;
            comparisons.push(Comparison {
                what: format!("put {name}, {per_commit} per commit"),
                ours: api,
                rivals: vec![("ext4", plain)],
                limits: vec![("bare", limit)],
                goal: Some(Goal::AtLeast(target)),
            });
            eprintln!("bench put: {name}, {per_commit} per commit, done");
        }
    }
    report.compare("API", "objects/s", &comparisons);
    setting.report_memory(&mut report)?;
    for side in sides {
        side.close()?;
    }
    Ok(report)
}

fn put(
    side: &dyn Side,
    directory: &str,
    count: usize,
    per_commit: usize,
    buffer: &mut [u8],
) -> Outcome {
    for index in 0..count {
        content::stamp(buffer, index as u64, 0);
        let path = format!("{directory}/{index}");
        if per_commit == 1 {
            side.put_durably(&path, buffer)?;
            continue;
        }
        side.put(&path, buffer)?;
        if (index + 1) % per_commit == 0 {
            side.sync()?;
        }
    }
    Ok(())
}

fn check(
    side: &dyn Side,
    directory: &str,
    count: usize,
    bytes: usize,
    back: &mut AlignedBuf,
) -> Outcome {
    for index in (0..count).step_by(37) {
        let len = side.get(&format!("{directory}/{index}"), back)?;
        content::verify(&back[..len], index as u64, 0, bytes)?;
    }
    Ok(())
}
