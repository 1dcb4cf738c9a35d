//! The records of one or several runs, and how to choose among them.
//!
//! Rounds of different runs are kept apart, so that a value is never paired with one of another
//! run.

use crate::results::{Record, Results};
use crate::statistics::{self, Estimate};
use std::collections::{BTreeSet, HashSet};

/// All records of some runs.
#[derive(Debug, Clone)]
pub struct Data {
    /// The runs, without their records.
    pub runs: Vec<Results>,
    rows: Vec<Row>,
}

/// A record, and whether it was measured under load above the number of cores.
#[derive(Debug, Clone)]
struct Row {
    record: Record,
    is_crowded: bool,
}

/// Rounds of the next run begin this much higher.
const ROUNDS_OF_A_RUN: u32 = 1 << 16;

impl Data {
    /// Joins `runs`.
    pub fn new(mut runs: Vec<Results>) -> Data {
        let mut rows = Vec::new();
        for (index, run) in (0..).zip(&mut runs) {
            for mut record in std::mem::take(&mut run.records) {
                let is_crowded = run.is_crowded(&record);
                record.round += index * ROUNDS_OF_A_RUN;
                rows.push(Row { record, is_crowded });
            }
        }
        Data { runs, rows }
    }

    /// All of them.
    pub fn all(&self) -> Selection<'_> {
        Selection(self.rows.iter().collect())
    }
}

/// Some of the records.
#[derive(Debug, Clone)]
pub struct Selection<'a>(Vec<&'a Row>);

impl<'a> Selection<'a> {
    /// Those that are `wanted`.
    pub fn filter(&self, wanted: impl Fn(&Record) -> bool) -> Selection<'a> {
        let rows = self.0.iter().filter(|row| wanted(&row.record));
        Selection(rows.copied().collect())
    }

    /// Those of an experiment.
    pub fn experiment(&self, name: &str) -> Selection<'a> {
        self.filter(|record| record.experiment == name)
    }

    /// Those of a measure.
    pub fn measure(&self, name: &str) -> Selection<'a> {
        self.filter(|record| record.measure == name)
    }

    /// Those of a system.
    pub fn backend(&self, name: &str) -> Selection<'a> {
        self.filter(|record| record.backend == name)
    }

    /// Those whose storage age rounds to the same half.
    pub fn age(&self, age: f64) -> Selection<'a> {
        self.filter(|record| half(record.age) == half(age))
    }

    /// Those whose case has this number.
    pub fn number(&self, name: &str, value: f64) -> Selection<'a> {
        self.filter(|record| record.number(name) == Some(value))
    }

    /// Those whose case has this word.
    pub fn word(&self, name: &str, value: &str) -> Selection<'a> {
        self.filter(|record| record.word(name) == Some(value))
    }

    /// Those whose case has this number, or all if there is none with it.
    pub fn number_if_any(&self, name: &str, value: f64) -> Selection<'a> {
        let some = self.number(name, value);
        if some.is_empty() { self.clone() } else { some }
    }

    /// Those whose case has this word, or all if there is none with it.
    pub fn word_if_any(&self, name: &str, value: &str) -> Selection<'a> {
        let some = self.word(name, value);
        if some.is_empty() { self.clone() } else { some }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many were measured under load above the number of cores.
    pub fn crowded_count(&self) -> usize {
        self.0.iter().filter(|row| row.is_crowded).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The records.
    pub fn records(&self) -> impl Iterator<Item = &'a Record> {
        self.0.iter().map(|row| &row.record)
    }

    /// Their values.
    pub fn values(&self) -> Vec<f64> {
        self.records().map(|record| record.value).collect()
    }

    /// The median of their values.
    pub fn median(&self) -> Option<Estimate> {
        statistics::median(&self.values())
    }

    /// Whether anything was measured more than once.
    pub fn is_repeated(&self) -> bool {
        let mut seen = HashSet::new();
        self.records().any(|record| {
            let Record {
                experiment,
                backend,
                case,
                age,
                measure,
                ..
            } = record;
            !seen.insert((experiment, backend, case, age.to_bits(), measure))
        })
    }

    /// The systems, in the order in which they are shown.
    pub fn backends(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.records().map(|record| &*record.backend).collect();
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| (rank(name), name.clone()));
        names
    }

    /// The storage ages, to halves, rising.
    pub fn ages(&self) -> Vec<f64> {
        distinct(self.records().map(|record| half(record.age)))
    }

    /// The numbers that cases have under this name, rising.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        distinct(self.records().filter_map(|record| record.number(name)))
    }

    /// The words that cases have under this name, in order.
    pub fn words(&self, name: &str) -> Vec<&'a str> {
        let words: BTreeSet<&str> = self
            .records()
            .filter_map(|record| record.word(name))
            .collect();
        words.into_iter().collect()
    }

    /// Keeps one value, the commonest, of everything in a case but what is named in `free`: so that
    /// what is compared differs in nothing else. Says what was kept where there was a choice.
    pub fn narrow(&self, free: &[&str]) -> (Selection<'a>, Vec<String>) {
        let names: BTreeSet<&str> = self
            .records()
            .flat_map(|record| record.case.keys())
            .map(String::as_str)
            .collect();
        let (mut kept, mut said) = (self.clone(), Vec::new());
        for name in names.into_iter().filter(|name| !free.contains(name)) {
            let words = kept.words(name);
            let count = |word: &str| kept.word(name, word).len();
            let Some(commonest) = words.iter().copied().max_by_key(|word| count(word)) else {
                continue;
            };
            if words.len() > 1 {
                said.push(format!("{} {commonest}", name.replace('_', " ")));
                kept = kept.filter(|record| record.word(name).is_none_or(|word| word == commonest));
            }
        }
        (kept, said)
    }
}

/// Ages are reached roughly.
fn half(age: f64) -> f64 {
    (age * 2.0).round() / 2.0
}

fn distinct(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    numbers
}

/// The systems that are known, as they are called in records and by people.
const SYSTEMS: [(&str, &str); 17] = [
    ("ext2", "ext2"),
    ("ext3", "ext3"),
    ("ext4", "ext4"),
    ("xfs", "XFS"),
    ("btrfs", "btrfs"),
    ("ntfs", "NTFS"),
    ("fat32", "FAT32"),
    ("vfat", "FAT32"),
    ("exfat", "exFAT"),
    ("dir", "files"),
    ("mount", "mounted filesystem"),
    ("sqlite", "SQLite"),
    ("postgres", "PostgreSQL"),
    ("postgres-lo", "PostgreSQL large objects"),
    ("s3", "S3"),
    ("larder", "Larder"),
    ("larder-mount", "Larder (mounted)"),
];

fn rank(backend: &str) -> usize {
    let known = SYSTEMS.iter().position(|(name, _)| *name == kind(backend));
    known.unwrap_or(SYSTEMS.len())
}

/// The system without what it lies on and without its options: `sqlite` of `sqlite@xfs+page=64k`.
pub fn kind(backend: &str) -> &str {
    backend.split(['@', '+', ':']).next().unwrap_or(backend)
}

/// What people call a system: `SQLite on XFS, page=64k`.
pub fn system_name(backend: &str) -> String {
    let said = |kind: &str| {
        let known = SYSTEMS.iter().find(|(name, _)| *name == kind);
        known.map_or(kind.to_owned(), |(_, said)| said.to_string())
    };
    let mut parts = backend.split('+');
    let whole = parts.next().unwrap_or_default();
    let mut text = match (whole.split_once(':'), whole.split_once('@')) {
        (Some((kind, path)), _) => format!("{} in {path}", said(kind)),
        (None, Some((kind, host))) => format!("{} on {}", said(kind), said(host)),
        (None, None) => said(whole),
    };
    parts.for_each(|option| text += &format!(", {option}"));
    text
}

/// Whether a system keeps objects in rows of a database of someone else's.
pub fn is_row_store(backend: &str) -> bool {
    ["sqlite", "postgres", "postgres-lo"].contains(&kind(backend))
}

/// Whether a system keeps objects in plain files of a filesystem.
pub fn is_file_store(backend: &str) -> bool {
    !is_row_store(backend) && !kind(backend).starts_with("larder") && kind(backend) != "s3"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_have_names_for_people() {
        assert_eq!(system_name("larder-mount"), "Larder (mounted)");
        assert_eq!(
            system_name("sqlite@xfs+page=64k"),
            "SQLite on XFS, page=64k"
        );
        assert_eq!(system_name("dir:/srv/a"), "files in /srv/a");
        assert_eq!(system_name("new"), "new");
        assert!(is_row_store("sqlite@xfs") && is_file_store("ext4+bare"));
        assert!(!is_file_store("larder:/x") && !is_row_store("larder"));
    }
}
