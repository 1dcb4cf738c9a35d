//! Two runs beside each other: what differs, and whether it differs beyond noise.
//!
//! A *line* is one measure of one case on one system at one age, in both runs. Its ratio is B ÷ A
//! of the means of logarithms; the interval comes from the noise of that measure, pooled over all
//! cases of both runs, because a single case has few rounds. Where nothing was repeated, the noise
//! is not known, and no line is called real.
//!
//! * `COMPARE-1` A run compared with itself differs nowhere.

use crate::data::system_name;
use crate::figures::scale::{Unit, say, say_bytes};
use crate::results::{Record, Results};
use crate::statistics::{self, Estimate, Noise};
use std::collections::{BTreeMap, BTreeSet};

/// What is said of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The interval excludes 1.
    Differs,
    /// It does not.
    WithinNoise,
    /// No case was measured twice.
    NoiseUnknown,
}

/// One measure in both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The system, for people.
    pub system: String,
    /// The case, for people: what is not the same in all lines.
    pub case: String,
    /// Storage age.
    pub age: f64,
    /// The measure.
    pub measure: String,
    /// Median in the first run.
    pub first: f64,
    /// Median in the second run.
    pub second: f64,
    /// Second ÷ first.
    pub ratio: Estimate,
    /// What to make of it.
    pub verdict: Verdict,
}

/// Two runs compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Facts of machine and parameters that differ: name, first, second.
    pub differing: Vec<(String, String, String)>,
    /// What is in both.
    pub lines: Vec<Line>,
    /// Lines that only one of the runs has.
    pub unmatched: usize,
}

/// The measures that say most; the others are compared on demand.
pub const LEADING: [&str; 10] = [
    "fragments_mean",
    "fragments_p99",
    "ios_per_object",
    "read_mb_s",
    "read_p99_us",
    "write_mb_s",
    "write_p99_us",
    "write_amplification",
    "space_amplification",
    "seconds",
];

type Key = (String, String, String, u64, String);

/// Compares two runs; all measures, or the [`LEADING`] ones.
pub fn compare(first: &Results, second: &Results, is_all: bool) -> Comparison {
    let (a, b) = (groups(first, is_all), groups(second, is_all));
    let noise = noises(&a, &b);
    let cases = Cases::of(first, second);
    let mut lines = Vec::new();
    for (key, these) in &a {
        let Some(those) = b.get(key) else {
            continue;
        };
        let (_, backend, _, age, measure) = key;
        let noise = noise.get(measure).copied().unwrap_or_default();
        let Some(ratio) = statistics::unpaired_ratio(&values(those), &values(these), noise) else {
            continue;
        };
        let median =
            |records: &[&Record]| statistics::median(&values(records)).map(|median| median.value);
        let (Some(first), Some(second)) = (median(these), median(those)) else {
            continue;
        };
        lines.push(Line {
            system: system_name(backend),
            case: these
                .first()
                .map(|record| cases.said(record))
                .unwrap_or_default(),
            age: f64::from_bits(*age),
            measure: measure.clone(),
            first,
            second,
            ratio,
            verdict: match (noise.degrees, ratio.excludes(1.0)) {
                (0, _) => Verdict::NoiseUnknown,
                (_, true) => Verdict::Differs,
                (_, false) => Verdict::WithinNoise,
            },
        });
    }
    let keys: BTreeSet<&Key> = a.keys().chain(b.keys()).collect();
    Comparison {
        differing: differing(first, second),
        unmatched: keys
            .iter()
            .filter(|key| !a.contains_key(**key) || !b.contains_key(**key))
            .count(),
        lines,
    }
}

fn values(records: &[&Record]) -> Vec<f64> {
    records.iter().map(|record| record.value).collect()
}

fn groups(run: &Results, is_all: bool) -> BTreeMap<Key, Vec<&Record>> {
    let mut groups: BTreeMap<Key, Vec<&Record>> = BTreeMap::new();
    for record in &run.records {
        if is_all || LEADING.contains(&&*record.measure) {
            let case = format!("{:?}", record.case);
            // Ages are asked for, so they are the same numbers in both runs.
            let age = record.age.to_bits();
            let key = (
                record.experiment.clone(),
                record.backend.clone(),
                case,
                age,
                record.measure.clone(),
            );
            groups.entry(key).or_default().push(record);
        }
    }
    groups
}

fn noises(
    a: &BTreeMap<Key, Vec<&Record>>,
    b: &BTreeMap<Key, Vec<&Record>>,
) -> BTreeMap<String, Noise> {
    let mut by_measure: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for (key, records) in a.iter().chain(b) {
        by_measure
            .entry(key.4.clone())
            .or_default()
            .push(values(records));
    }
    let noise = |groups: Vec<Vec<f64>>| Noise::of_groups(groups.iter().map(Vec::as_slice));
    by_measure
        .into_iter()
        .map(|(measure, groups)| (measure, noise(groups)))
        .collect()
}

/// Which names of cases have more than one value, so that only those are said.
struct Cases(BTreeSet<String>);

impl Cases {
    fn of(first: &Results, second: &Results) -> Cases {
        let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for record in first.records.iter().chain(&second.records) {
            for (name, value) in &record.case {
                values.entry(name).or_default().insert(value);
            }
        }
        let varying = values
            .into_iter()
            .filter(|(name, values)| values.len() > 1 || *name == "object_bytes");
        Cases(varying.map(|(name, _)| name.to_owned()).collect())
    }

    fn said(&self, record: &Record) -> String {
        let said = record
            .case
            .iter()
            .filter(|(name, _)| self.0.contains(*name));
        let said = said.map(
            |(name, value)| match (name.strip_suffix("_bytes"), value.parse()) {
                (Some("object"), Ok(bytes)) => say_bytes(bytes),
                (Some(name), Ok(bytes)) => format!("{name} {}", say_bytes(bytes)),
                _ => format!("{} {value}", name.replace('_', " ")),
            },
        );
        said.collect::<Vec<_>>().join(", ")
    }
}

fn differing(first: &Results, second: &Results) -> Vec<(String, String, String)> {
    let facts = |run: &Results| {
        let header = &run.header;
        let mut facts: BTreeMap<String, String> = header.machine.clone();
        facts.extend(
            header
                .parameters
                .iter()
                .map(|(name, value)| (format!("--{name}"), value.clone())),
        );
        facts.insert("experiment".to_owned(), header.experiment.clone());
        facts.insert("seed".to_owned(), header.seed.to_string());
        facts
    };
    let (a, b) = (facts(first), facts(second));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let mut differing = Vec::new();
    for name in names {
        let of = |facts: &BTreeMap<String, String>| {
            facts.get(name).cloned().unwrap_or_else(|| "—".to_owned())
        };
        if of(&a) != of(&b) {
            differing.push((name.clone(), of(&a), of(&b)));
        }
    }
    differing
}

impl Line {
    /// The ratio, with its interval where there is one.
    pub fn ratio_said(&self) -> String {
        let said = |value: f64| say(value, Unit::Plain);
        match self.verdict {
            Verdict::NoiseUnknown => format!("× {}", said(self.ratio.value)),
            _ => format!(
                "× {} [{} to {}]",
                said(self.ratio.value),
                said(self.ratio.low),
                said(self.ratio.high)
            ),
        }
    }
}

impl Verdict {
    /// For people.
    pub fn said(self) -> &'static str {
        match self {
            Verdict::Differs => "differs",
            Verdict::WithinNoise => "within noise",
            Verdict::NoiseUnknown => "noise unknown",
        }
    }
}

impl Comparison {
    /// What to take from it, in one or two sentences.
    pub fn in_short(&self) -> String {
        let count = |verdict| {
            self.lines
                .iter()
                .filter(|line| line.verdict == verdict)
                .count()
        };
        let differ = count(Verdict::Differs);
        let all = self.lines.len();
        if all == 0 {
            return "the runs have nothing in common to compare; run the same experiment with the \
                same parameters twice"
                .to_owned();
        }
        let mut text = format!("{differ} of {all} figures differ beyond noise");
        let told = all - count(Verdict::NoiseUnknown);
        if told > 0 {
            text += &format!(
                "; about {} of them would by chance",
                (told as f64 / 20.0).round()
            );
        }
        if told < all {
            text += &format!(
                "; for {} the noise is not known: measure more rounds (--rounds 3)",
                all - told
            );
        }
        if self.unmatched > 0 {
            text += &format!("; {} are in one of the runs only", self.unmatched);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{FORMAT, Header};
    use crate::statistics::tests::Normal;

    fn run(rounds: u32, speed: f64, normal: &mut Normal) -> Results {
        let header = Header {
            format: FORMAT,
            name: "a".to_owned(),
            experiment: "age".to_owned(),
            started: String::new(),
            command: String::new(),
            parameters: BTreeMap::from([("rounds".to_owned(), rounds.to_string())]),
            machine: BTreeMap::new(),
            seed: 1,
        };
        let mut records = Vec::new();
        for size in [4096, 65536, 1048576, 16777216] {
            for (backend, factor) in [("ext4", speed), ("xfs", 1.0)] {
                for round in 0..rounds {
                    records.push(Record {
                        experiment: "age".to_owned(),
                        backend: backend.to_owned(),
                        case: BTreeMap::from([("object_bytes".to_owned(), size.to_string())]),
                        round,
                        age: 2.0,
                        measure: "read_mb_s".to_owned(),
                        value: 100.0 * factor * (0.1 * normal.next()).exp(),
                        load: 1.0,
                    });
                }
            }
        }
        Results {
            header,
            records,
            torn_bytes: 0,
        }
    }

    #[test]
    fn what_differs_is_found_and_what_does_not_is_not() {
        let mut normal = Normal(3);
        let (a, b) = (run(3, 1.0, &mut normal), run(3, 2.0, &mut normal));
        let comparison = compare(&a, &b, false);
        assert_eq!(comparison.lines.len(), 8);
        for line in &comparison.lines {
            let expected = if line.system == "ext4" {
                Verdict::Differs
            } else {
                Verdict::WithinNoise
            };
            assert_eq!(line.verdict, expected, "{line:?}");
        }
        assert!(
            comparison.lines[0].ratio_said().starts_with("× 2")
                || comparison.lines[0].ratio_said().starts_with("× 1.9")
        );
        assert!(
            comparison
                .in_short()
                .starts_with("4 of 8 figures differ beyond noise")
        );
        assert!(comparison.differing.is_empty());
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        // COMPARE-1
        for rounds in [1, 2, 5] {
            let run = run(rounds, 1.0, &mut Normal(5));
            let comparison = compare(&run, &run, true);
            assert_eq!(comparison.unmatched, 0);
            assert!(
                comparison
                    .lines
                    .iter()
                    .all(|line| line.verdict != Verdict::Differs)
            );
            assert!(
                comparison
                    .lines
                    .iter()
                    .all(|line| (line.ratio.value - 1.0).abs() < 1e-12)
            );
        }
    }

    #[test]
    fn one_round_says_nothing_and_nothing_in_common_is_said() {
        let mut normal = Normal(9);
        let (a, b) = (run(1, 1.0, &mut normal), run(1, 9.0, &mut normal));
        let comparison = compare(&a, &b, false);
        assert!(
            comparison
                .lines
                .iter()
                .all(|line| line.verdict == Verdict::NoiseUnknown)
        );
        assert!(
            comparison.in_short().contains("--rounds 3"),
            "{}",
            comparison.in_short()
        );
        let mut other = b.clone();
        other.header.seed = 2;
        other.records.iter_mut().for_each(|record| record.age = 9.0);
        let comparison = compare(&a, &other, false);
        assert!(comparison.in_short().contains("nothing in common"));
        assert_eq!(comparison.unmatched, 16);
        assert_eq!(
            comparison.differing,
            [("seed".to_owned(), "1".to_owned(), "2".to_owned())]
        );
    }
}
