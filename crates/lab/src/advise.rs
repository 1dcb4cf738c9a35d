//! Advice for a machine: below which size a row, how full, how many free objects.
//!
//! Pure: from records of the experiments `break-even` and `volume` (or longer ones) to one
//! paragraph and one table. What counts is the greatest storage age that was measured, because that
//! is what a store comes to. [`plan`] has the requests that make such records in a few minutes,
//! [`settings`] what Larder itself is told. *Harm* is at least a quarter more fragments per object
//! than in the roomiest case.
//!
//! * `ADVICE-1` A threshold is given only where its interval excludes that there is none: both
//!   bounds of a break-even size lie inside the measured range; the interval of a ratio excludes 1.
//!   Nothing about time is sure that rests on records under load.

mod answer;
pub mod plan;
pub mod settings;

use crate::break_even::{self, Bounds, BreakEven};
use crate::data::{Data, Selection, is_row_store, system_name};
use crate::figures::scale::{Unit, say, say_bytes};
use crate::results::Record;
use crate::statistics::{self, Estimate};
pub use answer::Answer;
use answer::under_load;
use larder::Tuning;
use settings::ObjectSizes;
use std::collections::{BTreeMap, BTreeSet};

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// In words.
    pub paragraph: String,
    /// Each question.
    pub answers: Vec<Answer>,
    /// What a database should ask of the engine; default: nothing is beyond noise, or the engine's
    /// own choice is right.
    pub tuning: Tuning,
    /// Records under load among those from which settings would follow: then none does (ADVICE-1).
    pub crowded_count: usize,
}

/// So many times the fragments of the roomiest case are harm.
const HARM: f64 = 1.25;

/// Reading cold, reading warm, writing.
const SPEEDS: [(&str, &str); 3] = [
    ("read_mb_s", "reading from the device"),
    ("warm_read_mb_s", "reading from memory"),
    ("write_mb_s", "writing"),
];

/// What the records say, for objects whose sizes are `objects`.
pub fn advise(data: &Data, objects: Option<&ObjectSizes>) -> Advice {
    let mut answers = Vec::new();
    let mut words = Vec::new();
    let used = data
        .all()
        .filter(|record| matches!(&*record.experiment, "break-even" | "age"))
        .filter(|record| !settings::is_trial(&record.backend));
    let (used, _) = used
        .word_if_any("sizes", "uniform")
        .narrow(&["object_bytes", "volume_bytes"]);
    let oldest = used.ages().last().copied().unwrap_or_default();
    for (measure, said) in SPEEDS {
        let of_measure = used.measure(measure).age(oldest);
        for row in of_measure
            .backends()
            .iter()
            .filter(|name| is_row_store(name))
        {
            for other in of_measure
                .backends()
                .iter()
                .filter(|name| !is_row_store(name))
            {
                let (answer, word) =
                    row_or_file(&of_measure, (row, other), (measure, said), oldest);
                words.extend(word);
                answers.push(answer);
            }
        }
    }
    let volume = data.all().experiment("volume").measure("fragments_mean");
    let (volume, _) = volume.narrow(&["object_bytes", "volume_bytes", "occupancy"]);
    let age = volume.ages().last().copied().unwrap_or_default();
    let volume = volume.age(age);
    for backend in volume.backends() {
        let of_system = volume.backend(&backend);
        for (answer, word) in [
            too_full(&of_system, &backend, age),
            free_pool(data, &of_system, &backend, age),
        ]
        .into_iter()
        .flatten()
        {
            words.extend(word);
            answers.push(answer);
        }
    }
    let settings = settings::settings(data, objects);
    answers.extend(settings.answers);
    words.extend(settings.words);
    let paragraph = match words.is_empty() {
        true => "No threshold was found beyond noise: with these records, choose what is \
            simplest. More rounds (--rounds 5) and a wider range of sizes tell more."
            .to_owned(),
        false => format!(
            "On this machine, at storage age {oldest}: {}.",
            words.join("; ")
        ),
    };
    Advice {
        paragraph,
        answers,
        tuning: settings.tuning,
        crowded_count: settings.crowded_count,
    }
}

type Told = (Answer, Option<String>);

/// Below which size a row, above which a file or an extent.
fn row_or_file(
    used: &Selection<'_>,
    (row, other): (&str, &str),
    (measure, said): (&str, &str),
    age: f64,
) -> Told {
    let sizes = break_even::pairs(used.records(), (row, other), measure, age);
    let range = match (sizes.first(), sizes.last()) {
        (Some(least), Some(most)) => format!(
            "{} to {}",
            say_bytes(least.object_bytes),
            say_bytes(most.object_bytes)
        ),
        _ => "no size".to_owned(),
    };
    let rounds = sizes
        .iter()
        .map(|size| size.pairs.len())
        .min()
        .unwrap_or_default();
    let crowded_count = used.backend(row).crowded_count() + used.backend(other).crowded_count();
    let (row, other) = (short_name(row, used), short_name(other, used));
    let question = format!("{said}: {row} or {other}?");
    let ground = format!("age {age}, {range}, {rounds} rounds");
    let sure = |answer: String| {
        let word = format!("for {said}, {answer}");
        (answer, true, Some(word))
    };
    let (answer, is_sure, word) = match break_even::find(&sizes) {
        _ if crowded_count > 0 => (under_load(crowded_count), false, None),
        BreakEven::Crossing {
            object_bytes,
            interval:
                Some(Bounds {
                    low: Some(low),
                    high: Some(high),
                }),
            is_this_below,
        } => {
            let (below, above) = if is_this_below {
                (&row, &other)
            } else {
                (&other, &row)
            };
            let size = say_bytes(object_bytes);
            let bounds = format!("[{} to {}]", say_bytes(low), say_bytes(high));
            sure(format!("{below} below {size} {bounds}, {above} above"))
        }
        BreakEven::Apart { is_this_better } => {
            let better = if is_this_better { &row } else { &other };
            let worse = if is_this_better { &other } else { &row };
            sure(format!(
                "{better} rather than {worse} at every size from {range}"
            ))
        }
        BreakEven::TooFewSizes => ("not measured at two sizes".to_owned(), false, None),
        BreakEven::Crossing { interval: None, .. } => {
            ("one round: nothing beyond noise".to_owned(), false, None)
        }
        BreakEven::Crossing { .. } | BreakEven::Alike => {
            ("no threshold beyond noise".to_owned(), false, None)
        }
    };
    (
        Answer {
            question,
            answer,
            ground,
            is_sure,
        },
        word,
    )
}

/// What people call a system, without its place where all that are compared have the same.
fn short_name(backend: &str, used: &Selection<'_>) -> String {
    let all = used.backends();
    let places: BTreeSet<&str> = all
        .iter()
        .filter_map(|name| Some(name.split_once(':')?.1))
        .collect();
    match backend.split_once(':') {
        Some((kind, _)) if places.len() == 1 => system_name(kind),
        _ => system_name(backend),
    }
}

/// From which occupancy on objects fragment, on the largest volume.
fn too_full(of_system: &Selection<'_>, backend: &str, age: f64) -> Option<Told> {
    let volume = of_system.numbers("volume_bytes").into_iter().next_back()?;
    let there = of_system.number("volume_bytes", volume);
    let shares = there.numbers("occupancy");
    let roomy = there.number("occupancy", *shares.first()?);
    let name = system_name(backend);
    let question = format!("{name}: how full is too full?");
    let ground = format!("age {age}, volume of {}", say_bytes(volume));
    let percent = |share: f64| say(100.0 * share, Unit::Percent);
    let cases = shares
        .iter()
        .skip(1)
        .map(|share| (*share, there.number("occupancy", *share)));
    let from = |share, ratio: String| {
        (
            format!("{} is too full: × {ratio} fragments", percent(share)),
            format!("fill {name} to less than {}", percent(share)),
        )
    };
    let nowhere = |share| format!("no harm up to {}", percent(share));
    let harm = first_harm(of_system, &roomy, cases)?;
    Some(harm.told(question, ground, from, nowhere))
}

/// How many free objects are too few.
fn free_pool(data: &Data, of_system: &Selection<'_>, backend: &str, age: f64) -> Option<Told> {
    let measured = data
        .all()
        .experiment("volume")
        .measure("free_pool_objects")
        .age(age)
        .backend(backend);
    let mut pools: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let case_of = |record: &Record| format!("{:?}", record.case);
    for record in of_system.records() {
        let pool = measured
            .filter(|other| other.case == record.case)
            .median()?
            .value;
        let cases = pools.entry(pool.round() as u64).or_default();
        cases.push(case_of(record));
    }
    let with = |cases: &[String]| of_system.filter(|record| cases.contains(&case_of(record)));
    let (most, cases) = pools.last_key_value()?;
    let roomy = with(cases);
    let name = system_name(backend);
    let question = format!("{name}: how many objects must fit into the free space?");
    let ground = format!("age {age}, up to {most} free objects");
    let fewer = pools
        .iter()
        .rev()
        .skip(1)
        .map(|(pool, cases)| (*pool as f64, with(cases)));
    let from = |pool, ratio: String| {
        let pool = say(pool, Unit::Plain);
        (
            format!("more than {pool}: there × {ratio} fragments"),
            format!("keep room for more than {pool} objects on {name}"),
        )
    };
    let nowhere = |pool| format!("{} are enough", say(pool, Unit::Plain));
    let harm = first_harm(of_system, &roomy, fewer)?;
    Some(harm.told(question, ground, from, nowhere))
}

enum Harm {
    /// The first case that does harm, and by how much.
    From(f64, Estimate),
    /// None does, up to this one: the intervals exclude harm.
    Nowhere(f64),
    /// Noise hides it.
    Unknown,
}

impl Harm {
    /// As an answer: `from` says where harm begins and the word for the paragraph, `nowhere` how
    /// far there is none.
    fn told(
        self,
        question: String,
        ground: String,
        from: impl Fn(f64, String) -> (String, String),
        nowhere: impl Fn(f64) -> String,
    ) -> Told {
        let (answer, word, is_sure) = match self {
            Harm::From(at, ratio) => {
                let (answer, word) = from(at, with_bounds(ratio));
                (answer, Some(word), true)
            }
            Harm::Nowhere(at) => (nowhere(at), None, true),
            Harm::Unknown => ("no threshold beyond noise".to_owned(), None, false),
        };
        let answer = Answer {
            question,
            answer,
            ground,
            is_sure,
        };
        (answer, word)
    }
}

/// The first of `cases`, from roomy to tight, with harm beyond noise; nothing without cases.
fn first_harm<'a>(
    of_system: &Selection<'a>,
    roomy: &Selection<'a>,
    cases: impl Iterator<Item = (f64, Selection<'a>)>,
) -> Option<Harm> {
    let noise = statistics::noise_by_measure(of_system.records());
    let noise = noise.get("fragments_mean").copied().unwrap_or_default();
    let mut harm = None;
    for (at, case) in cases {
        let ratio = statistics::unpaired_ratio(&case.values(), &roomy.values(), noise)?;
        if ratio.value >= HARM && ratio.excludes(1.0) {
            return Some(Harm::From(at, ratio));
        }
        let is_harmless = ratio.confidence >= statistics::CONFIDENCE && ratio.high < HARM;
        harm = match (is_harmless, harm) {
            (true, None | Some(Harm::Nowhere(_))) => Some(Harm::Nowhere(at)),
            _ => Some(Harm::Unknown),
        };
    }
    harm
}

fn with_bounds(ratio: Estimate) -> String {
    let said = |value: f64| say(value, Unit::Plain);
    format!(
        "{} [{} to {}]",
        said(ratio.value),
        said(ratio.low),
        said(ratio.high)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{FORMAT, Header, Results};
    use crate::statistics::tests::Normal;

    pub(super) struct Maker {
        pub(super) run: Results,
        normal: Normal,
    }

    impl Maker {
        pub(super) fn new(experiment: &str) -> Maker {
            let header = Header {
                format: FORMAT,
                name: "a".to_owned(),
                experiment: experiment.to_owned(),
                started: String::new(),
                command: String::new(),
                parameters: BTreeMap::new(),
                machine: BTreeMap::new(),
                seed: 1,
            };
            let run = Results {
                header,
                records: vec![],
                torn_bytes: 0,
            };
            Maker {
                run,
                normal: Normal(77),
            }
        }

        pub(super) fn put(
            &mut self,
            backend: &str,
            case: &[(&str, f64)],
            measure: &str,
            value: f64,
            rounds: u32,
            noise: f64,
        ) {
            for round in 0..rounds {
                self.run.records.push(Record {
                    experiment: self.run.header.experiment.clone(),
                    backend: backend.to_owned(),
                    case: case
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.to_string()))
                        .collect(),
                    round,
                    age: 2.0,
                    measure: measure.to_owned(),
                    value: value * (noise * self.normal.next()).exp(),
                    load: 1.0,
                });
            }
        }
    }

    fn speeds(rounds: u32, noise: f64) -> Results {
        let mut maker = Maker::new("break-even");
        for bytes in [4096.0, 16384.0, 65536.0, 262144.0] {
            let case = [("object_bytes", bytes)];
            // Equal at 32 KB.
            maker.put(
                "sqlite",
                &case,
                "read_mb_s",
                100.0 * (32768.0_f64 / bytes).powf(0.5),
                rounds,
                noise,
            );
            maker.put("ext4", &case, "read_mb_s", 100.0, rounds, noise);
        }
        maker.run
    }

    fn volumes(rounds: u32, noise: f64) -> Results {
        let mut maker = Maker::new("volume");
        for (occupancy, pool, fragments) in [
            (0.5, 1000.0, 1.1),
            (0.8, 400.0, 1.12),
            (0.9, 200.0, 2.0),
            (0.975, 50.0, 4.0),
        ] {
            let case = [
                ("object_bytes", 262144.0),
                ("volume_bytes", 5e8),
                ("occupancy", occupancy),
            ];
            maker.put("ext4", &case, "fragments_mean", fragments, rounds, noise);
            maker.put("ext4", &case, "free_pool_objects", pool, rounds, 0.0);
            maker.put("larder", &case, "fragments_mean", 1.0, rounds, noise / 4.0);
            maker.put("larder", &case, "free_pool_objects", pool, rounds, 0.0);
        }
        maker.run
    }

    #[test]
    fn thresholds_are_found() {
        let advice = advise(&Data::new(vec![speeds(3, 0.05), volumes(3, 0.05)]), None);
        for word in [
            "SQLite below 3",
            "fill ext4 to less than 90 %",
            "keep room for more than 200 objects on ext4",
        ] {
            assert!(advice.paragraph.contains(word), "{}", advice.paragraph);
        }
        let larder: Vec<&Answer> = advice
            .answers
            .iter()
            .filter(|answer| answer.question.starts_with("Larder: how"))
            .collect();
        assert!(
            larder
                .iter()
                .any(|answer| answer.answer == "no harm up to 97.5 %"),
            "{larder:?}"
        );
        assert!(
            larder.iter().any(|answer| answer.answer == "50 are enough"),
            "{larder:?}"
        );
    }

    #[test]
    fn load_gives_no_threshold_of_time() {
        let mut run = speeds(3, 0.05);
        run.header
            .machine
            .insert("cores".to_owned(), "2".to_owned());
        let sure = |run: &Results| {
            let advice = advise(&Data::new(vec![run.clone()]), None);
            let answers = advice.answers.iter();
            answers.filter(|answer| answer.is_sure).count()
        };
        assert!(sure(&run) > 0);
        // One record of one side is enough.
        run.records[5].load = 11.0;
        // ADVICE-1
        assert_eq!(sure(&run), 0);
        // Where things lie does not follow from load.
        let mut volumes = volumes(3, 0.05);
        volumes.header.machine = run.header.machine.clone();
        let quiet = sure(&volumes);
        volumes
            .records
            .iter_mut()
            .for_each(|record| record.load = 11.0);
        assert_eq!(sure(&volumes), quiet);
        assert!(quiet > 0);
    }

    #[test]
    fn noise_and_single_rounds_give_no_threshold() {
        for (rounds, noise) in [(1, 0.05), (2, 3.0)] {
            let advice = advise(
                &Data::new(vec![speeds(rounds, noise), volumes(rounds, noise)]),
                None,
            );
            // ADVICE-1
            assert!(
                advice.paragraph.starts_with("No threshold"),
                "{}",
                advice.paragraph
            );
            assert!(advice.answers.iter().all(|answer| !answer.is_sure));
        }
        assert!(
            advise(&Data::new(vec![]), None)
                .paragraph
                .starts_with("No threshold")
        );
    }
}
