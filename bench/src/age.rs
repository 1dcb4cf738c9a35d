//! `bench age`: does it age? Objects of a nearly full database are replaced at random, through the
//! API and through the mount, by four concurrent writers with writes of 64 KB.
//!
//! *Storage age* is the bytes of content that are gone ÷ the bytes that are there. *Full* is live
//! content ÷ what ordinary writes may take (all but the 1/32 that is held back), as `df` shows it.
//! The *free pool* is what remains, in objects of mean size: with few objects in it, best fit has
//! little to choose from.

use super::bare::Bare;
use super::disk::{self, Fragments};
use super::meters::MemoryMeter;
use super::population::{Phase, Population, SIZES, Sizes};
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate, mb_per_s, report_memory, timed};
use super::sides::{Api, Mounted, Side, grow};
use larder::AlignedBuf;
use xtask::mounts::{Larder, Profile};

const AGE_MAX: u64 = 10;
const AGE_STEP: u64 = 2;
/// Objects that the free space should hold.
const POOL: u64 = 400;
const YARDSTICK_BYTES: usize = 64 << 20;

/// One database that ages.
#[derive(Clone, Copy)]
struct Case {
    sizes: Sizes,
    full_percent: u64,
    volume_bytes: u64,
    side: &'static str,
}

impl Case {
    fn usable_bytes(&self) -> u64 {
        self.volume_bytes / 32 * 31
    }

    fn live_bytes(&self) -> u64 {
        self.usable_bytes() / 100 * self.full_percent
    }

    /// Objects that the free space holds.
    fn pool(&self) -> u64 {
        (self.usable_bytes() - self.live_bytes()) / self.sizes.mean_bytes
    }

    fn name(&self) -> String {
        format!(
            "{}, {} % full, {}",
            self.sizes.name, self.full_percent, self.side
        )
    }
}

/// How a database was at one age.
struct Stage {
    age: u64,
    phase: Phase,
    bare: f64,
    fragments: Fragments,
    modelled: f64,
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let larder = Larder::build(Profile::Release)?;
    let mut report = Report::new(
        "age",
        &format!(
            "{} Four writers with objects of their own; a random object is replaced: temporary \
             file in writes of 64 KB, fsync, \
             rename over. The API says the final size first, the mount does not. Fragments: \
             contiguous runs in logical order, \
             from the extent maps. Modelled: a 7200 rpm disk that reads all objects in random \
             order (0.8 ms to the next track, \
             8.5 ms mean, √distance, 4.17 ms rotation, 160 MB/s). Moved: bytes to the device per \
             byte of content − 1, catalog and \
             logs included; the smaller one of the process's account and the disks'. Bare: a \
             durable O_DIRECT write of {} MB \
             before each phase, for how the machine itself changed. Segments have grown before \
             the bulk load (age 0).",
            setting.machine()?,
            YARDSTICK_BYTES >> 20
        ),
    );
    for case in cases(setting) {
        one(setting, &larder, case, &mut report)?;
    }
    Ok(report)
}

fn cases(setting: &Setting) -> Vec<Case> {
    let options = &setting.options;
    let volume_max: u64 = options.choose(320 << 20, 2 << 30, 8 << 30);
    let asked = options.sizes.as_deref();
    let full = options.full_percent;
    let mixes: Vec<(Sizes, u64)> = match asked {
        Some(part) => SIZES
            .into_iter()
            .filter(|sizes| sizes.name.contains(part))
            .map(|sizes| (sizes, full.unwrap_or(90)))
            .collect(),
        None if options.is_quick => vec![(SIZES[1], full.unwrap_or(90))],
        None if options.is_moderate => vec![(SIZES[0], full.unwrap_or(90)), (SIZES[1], 97)],
        None => SIZES
            .into_iter()
            .map(|sizes| (sizes, full.unwrap_or(90)))
            .collect(),
    };
    let mut cases = Vec::new();
    for (sizes, full_percent) in mixes {
        let wanted = POOL * sizes.mean_bytes * 100 / (100 - full_percent) / 31 * 32;
        for side in ["API", "mount"] {
            let is_asked = options
                .side
                .as_deref()
                .is_none_or(|asked| asked.eq_ignore_ascii_case(side));
            if is_asked {
                cases.push(Case {
                    sizes,
                    full_percent,
                    volume_bytes: options.volume_bytes.unwrap_or(wanted.min(volume_max)),
                    side,
                });
            }
        }
    }
    cases
}

fn one(
    setting: &mut Setting,
    larder: &Larder,
    case: Case,
    report: &mut Report,
) -> Result<(), String> {
    let place = setting.directory()?;
    let create = |name: &str| -> Result<Box<dyn Side>, String> {
        let database = place.path().join(format!("{name}.larder"));
        let capacity = Some(case.volume_bytes);
        Ok(match case.side {
            "API" => Box::new(Api::create(&database, capacity)?),
            _ => Box::new(Mounted::create(
                larder,
                &database,
                &place.path().join(name),
                capacity,
            )?),
        })
    };
    let sample_bytes = setting.options.choose(64_000_000, 256_000_000, 512_000_000);
    let mut population = Population::new(case.sizes, case.live_bytes(), 1);
    let young_bytes = case.live_bytes().min(sample_bytes);
    let mut young_population = Population::new(case.sizes, young_bytes, 100);
    let mut back = AlignedBuf::zeroed(case.sizes.bytes_max as usize + 1);
    let mut bare = Bare::create(place.path(), YARDSTICK_BYTES as u64)?;
    // Two times four writers, and a reader.
    let mut memory = MemoryMeter::start_here(9 * case.sizes.bytes_max as usize)?;
    let mut side = create("aged")?;
    if case.side == "mount" {
        memory = MemoryMeter::whole(side.process());
    }
    grow(&*side, case.live_bytes())?;
    let mut stages: Vec<Stage> = Vec::new();
    for age in (0..=AGE_MAX).step_by(AGE_STEP as usize) {
        let yardstick = timed(|| bare.commit(1, YARDSTICK_BYTES))?;
        let phase = match age {
            0 => population.load(&*side)?,
            _ => population.churn(&*side, AGE_STEP as f64)?,
        };
        // Looking at the layout ends the mount's process and begins another.
        memory.note()?;
        let layouts = side.layouts()?;
        memory.follow(side.process());
        stages.push(Stage {
            age,
            phase,
            bare: mb_per_s(YARDSTICK_BYTES as u64, yardstick),
            fragments: disk::fragments(&layouts),
            modelled: disk::modelled_mb_per_s(&layouts),
        });
        eprintln!("bench age: {}, age {age} done", case.name());
    }
    let mut young = create("young")?;
    grow(&*young, young_bytes)?;
    let second_load = young_population.load(&*young)?;
    let mut reads: [Samples; 2] = Default::default();
    alternate(setting.options.rounds.unwrap_or(5), 2, |round, index| {
        let (side, population) = match index {
            0 => (&mut side, &population),
            _ => (&mut young, &young_population),
        };
        side.forget()?;
        setting.cool()?;
        let mut bytes = 0;
        let time = timed(|| {
            let read = population.read_some(&**side, young_bytes, round as u64, &mut back);
            read.map(|read| bytes = read)
        })?;
        reads[index].0.push(mb_per_s(bytes, time));
        Ok(())
    })?;
    side.close()?;
    young.close()?;
    let objects = population.object_count();
    describe(report, case, objects, &stages, &reads, second_load);
    report_memory(report, &format!("process, {}", case.name()), &memory)
}

fn describe(
    report: &mut Report,
    case: Case,
    objects: usize,
    stages: &[Stage],
    reads: &[Samples; 2],
    second_load: Phase,
) {
    let pool = case.pool();
    let small = match pool < POOL * 98 / 100 {
        true => format!(" (fewer than {POOL}: the volume is bounded; --volume SIZE)"),
        false => String::new(),
    };
    report.note(&format!(
        "### {}\n\n{objects} objects in {} MiB; free pool of {pool} objects{small}.",
        case.name(),
        case.volume_bytes >> 20
    ));
    let header = [
        "age",
        "fragments, mean",
        "p99",
        "worst",
        "modelled MB/s",
        "write MB/s",
        "bare MB/s",
        "moved",
        "ENOSPC",
    ];
    let row = |stage: &Stage| {
        vec![
            stage.age.to_string(),
            format!("{:.3}", stage.fragments.mean),
            stage.fragments.p99.to_string(),
            stage.fragments.max.to_string(),
            format!("{:.1}", stage.modelled),
            format!("{:.0}", stage.phase.mb_per_s()),
            format!("{:.0}", stage.bare),
            format!("{:.3}", stage.phase.moved()),
            stage.phase.no_space.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = stages.iter().map(row).collect();
    report.table(&header.map(str::to_owned), &rows);
    let (Some(first), Some(last)) = (stages.first(), stages.last()) else {
        return;
    };
    let name = case.name();
    let mut say = |what: &str, figure: f64, goal: Goal| {
        report.verdict(&format!("{name}: {what}"), Samples(vec![figure]), goal);
    };
    let is_crowded = case.full_percent >= 97;
    let fragments_max = if is_crowded { 1.05 } else { 1.02 };
    say(
        "fragments per object at age 10",
        last.fragments.mean,
        Goal::AtMost(fragments_max),
    );
    let churned = stages[1..]
        .iter()
        .fold(Phase::default(), |sum, stage| sum.and(stage.phase));
    if is_crowded {
        say(
            "bytes moved per byte written, beyond the logs of the bulk load",
            churned.moved() - first.phase.moved(),
            Goal::AtMost(0.5),
        );
    }
    say(
        "modelled read, age 10 ÷ age 0",
        last.modelled / first.modelled,
        Goal::AtLeast(0.98),
    );
    // Two loads, before and after: what the machine did during one of them shows as a wide range.
    let loads = [first.phase.mb_per_s(), second_load.mb_per_s()];
    let writes = loads.map(|load| last.phase.mb_per_s() / load).to_vec();
    report.verdict(
        &format!("{name}: write, ages 8 to 10 ÷ bulk loads before and after"),
        Samples(writes),
        Goal::AtLeast(0.90),
    );
    let [aged, young] = reads;
    report.verdict(
        &format!("{name}: cold read, aged ÷ newly loaded beside it"),
        aged.over(young),
        Goal::AtLeast(0.98),
    );
    report.note(&format!(
        "Cold reads: {} MB/s aged, {} MB/s newly loaded, in turns; random objects, one thread, \
         verified.",
        aged.text(0),
        young.text(0)
    ));
}
