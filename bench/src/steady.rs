//! `bench steady`: write all, read all, remove all, again and again: is the last round as fast as
//! the first?
//!
//! The machine changes meanwhile, too: a bare program writes and reads the same bytes in every
//! round, and its own last ÷ first stands beside.

use super::bare::Bare;
use super::content;
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate, mb_per_s, timed};
use super::sides::{Api, Side};
use larder::AlignedBuf;
use xtask::Outcome;

/// How many rounds at either end make a median.
const ENDS: usize = 5;

/// One size of objects.
struct Load {
    name: &'static str,
    object_bytes: usize,
    count: usize,
    rounds: usize,
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let choose = |quick, moderate, full| setting.options.choose(quick, moderate, full);
    let small_bytes = choose(64_000_000, 128_000_000, 256_000_000);
    let large_bytes = choose(250_000_000, 500_000_000, 1_000_000_000);
    let small_rounds = choose(20, 30, 50);
    let loads = [
        Load {
            name: "1 MB",
            object_bytes: 1_000_000,
            count: small_bytes / 1_000_000,
            rounds: small_rounds,
        },
        Load {
            name: "10 MB",
            object_bytes: 10_000_000,
            count: small_bytes / 10_000_000,
            rounds: small_rounds,
        },
        Load {
            name: if large_bytes == 1_000_000_000 {
                "1 GB"
            } else {
                "large"
            },
            object_bytes: large_bytes,
            count: 1,
            rounds: choose(10, 10, 20),
        },
    ];
    let mut report = Report::new(
        "steady",
        &format!(
            "{} Each round writes all objects durably, reads them all, removes them durably; {} \
             MB per round, the large object \
             {} MB; medians of the last {ENDS} ÷ the first {ENDS} rounds, MB/s. A round before \
             them grows the segments and is \
             not counted. Bare: the same bytes by O_DIRECT into a written file, in every round: \
             how the machine itself changed.",
            setting.machine()?,
            small_bytes / 1_000_000,
            large_bytes / 1_000_000
        ),
    );
    let place = setting.directory()?;
    let mut bare = Bare::create(place.path(), large_bytes as u64)?;
    let mut buffer = content::noise(6, large_bytes);
    let mut back = AlignedBuf::zeroed(large_bytes + 1);
    setting.watch_memory(2 * large_bytes)?;
    let mut rows = Vec::new();
    for load in loads {
        let rounds = setting.options.rounds.unwrap_or(load.rounds);
        let path = place.path().join(format!("{}.larder", load.object_bytes));
        let api: Box<dyn Side> = Box::new(Api::create(&path, None)?);
        let bytes = (load.count * load.object_bytes) as u64;
        // Write, read, remove; and the bare write and read.
        let mut rates: [Samples; 5] = Default::default();
        alternate(rounds + 1, 2, |round, index| {
            let mut note = |which: usize, rate: f64| {
                if round > 0 {
                    rates[which].0.push(rate);
                }
            };
            if index == 1 {
                let write = timed(|| bare.commit(load.count, load.object_bytes))?;
                let read = timed(|| bare.read(load.object_bytes, load.count))?;
                note(3, mb_per_s(bytes, write));
                note(4, mb_per_s(bytes, read));
                return Ok(());
            }
            let directory = format!("/{round}");
            let content = &mut buffer[..load.object_bytes];
            let write = timed(|| write(&*api, &directory, load.count, content))?;
            let read = timed(|| read(&*api, &directory, load.count, load.object_bytes, &mut back))?;
            let remove = timed(|| api.remove_directory(&directory))?;
            note(0, mb_per_s(bytes, write));
            note(1, mb_per_s(bytes, read));
            note(2, mb_per_s(bytes, remove));
            Ok(())
        })?;
        api.close()?;
        std::fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let names = ["write", "read", "remove", "bare write", "bare read"];
        for (index, name) in names.into_iter().enumerate() {
            let samples = &rates[index].0;
            let ends = ENDS.min(samples.len() / 2).max(1);
            let first = Samples(samples[..ends].to_vec());
            let last = Samples(samples[samples.len() - ends..].to_vec());
            let ratio = last.median() / first.median();
            let what = format!("{name} {}, {rounds} rounds", load.name);
            let target = match index {
                0..2 => report.judge(
                    &format!("{what}: last ÷ first"),
                    Samples(vec![ratio]),
                    Goal::AtLeast(0.99),
                ),
                _ => String::new(),
            };
            rows.push(vec![
                what,
                first.text(0),
                last.text(0),
                format!("{ratio:.2}"),
                target,
            ]);
        }
        eprintln!("bench steady: {} done", load.name);
    }
    let header = ["MB/s", "first", "last", "last ÷ first", "target"];
    report.table(&header.map(str::to_owned), &rows);
    setting.report_memory(&mut report)?;
    Ok(report)
}

fn write(side: &dyn Side, directory: &str, count: usize, content: &mut [u8]) -> Outcome {
    side.make_directory(directory)?;
    for index in 0..count {
        content::stamp(content, index as u64, 0);
        side.put(&format!("{directory}/{index}"), content)?;
    }
    side.sync()
}

fn read(
    side: &dyn Side,
    directory: &str,
    count: usize,
    object_bytes: usize,
    back: &mut AlignedBuf,
) -> Outcome {
    for index in 0..count {
        let len = side.get(&format!("{directory}/{index}"), back)?;
        content::verify(&back[..len], index as u64, 0, object_bytes)?;
    }
    Ok(())
}
