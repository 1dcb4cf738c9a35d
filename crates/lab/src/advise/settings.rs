//! What Larder itself is told: up to which size it keeps content in the row, and how much it
//! gathers.
//!
//! The inline threshold is measured: two databases, one that keeps all it can in rows ([`trials`]),
//! one that keeps nothing there, with small objects. An object is written once and read once, so
//! what counts is the geometric mean of both speeds. The gather is reckoned: the engine places an
//! object as a whole up to a quarter of the gather, so four times what nearly all objects are long
//! is enough.
//!
//! * `ADVICE-2` What is advised is inside the bounds of the format ([`Tuning::check`]).

use crate::advise::answer::{Answer, under_load};
use crate::break_even::{self, Bounds, BreakEven, SizePairs};
use crate::data::{Data, Selection};
use crate::figures::scale::say_bytes;
use larder::limits::{GATHER_BYTES_MAX, INLINE_BYTES_MAX};
use larder::{Tuning, gather_bytes_default};

/// How long the objects are for which advice is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSizes {
    /// How many there are.
    pub count: u64,
    /// 99 of 100 are at most so long, bytes.
    pub p99_bytes: u64,
    /// Memory of the machine, bytes: an eighth of it is gathered at most.
    pub memory_bytes: u64,
}

impl ObjectSizes {
    /// Of these lengths; `None` without any.
    pub fn of(mut bytes: Vec<u64>, memory_bytes: u64) -> Option<ObjectSizes> {
        bytes.sort_unstable();
        let last = bytes.len().checked_sub(1)?;
        Some(ObjectSizes {
            count: bytes.len() as u64,
            p99_bytes: bytes[last * 99 / 100],
            memory_bytes,
        })
    }
}

/// The backends that are compared for the threshold, by what stands before their options: all in
/// rows, nothing.
pub fn trials(kind: &str) -> [String; 2] {
    [
        format!("{kind}+inline={INLINE_BYTES_MAX}"),
        format!("{kind}+inline=0"),
    ]
}

/// Whether records of a backend are of such a comparison.
pub(crate) fn is_trial(backend: &str) -> bool {
    backend.contains("+inline=")
}

/// What is said about settings.
pub(super) struct Settings {
    pub answers: [Answer; 2],
    /// For the paragraph.
    pub words: Vec<String>,
    /// What a database should ask for.
    pub tuning: Tuning,
    /// Records of the trials that were made under load.
    pub crowded_count: usize,
}

/// What follows from the trials, and for these objects.
pub(super) fn settings(data: &Data, objects: Option<&ObjectSizes>) -> Settings {
    let trials = data
        .all()
        .filter(|record| is_trial(&record.backend) && record.experiment == "break-even");
    let crowded_count = trials.crowded_count();
    let (inline, inline_word, inline_bytes_max) = inline(&trials, crowded_count);
    let (gather, gather_word, gather_bytes_max) = gather(objects);
    let words = [inline_word, gather_word].into_iter().flatten().collect();
    let tuning = Tuning {
        inline_bytes_max,
        gather_bytes_max,
    };
    // ADVICE-2
    debug_assert!(tuning.check().is_ok());
    Settings {
        answers: [inline, gather],
        words,
        tuning,
        crowded_count,
    }
}

type Told<T> = (Answer, Option<String>, Option<T>);

fn inline(used: &Selection<'_>, crowded_count: usize) -> Told<u64> {
    let question = "Larder: up to which size in the row?".to_owned();
    let default = say_bytes(INLINE_BYTES_MAX as f64);
    let age = used.ages().last().copied().unwrap_or_default();
    let kinds = used.backends();
    let kind = kinds.iter().find_map(|name| name.split_once("+inline="));
    let sizes = kind.map_or_else(Vec::new, |(kind, _)| {
        let [rows, extents] = trials(kind);
        let of = |measure: &str| break_even::pairs(used.records(), (&rows, &extents), measure, age);
        mean_of(&of("read_mb_s"), &of("write_mb_s"))
    });
    let rounds = sizes.iter().map(|size| size.pairs.len()).min();
    let Some(rounds) = rounds.filter(|&rounds| rounds > 0) else {
        let answer = Answer {
            question,
            answer: format!("not measured; {default} as ever"),
            ground: "needs larder+inline=2048 and larder+inline=0 in a run of break-even"
                .to_owned(),
            is_sure: false,
        };
        return (answer, None, None);
    };
    let (chosen, said) = match break_even::find(&sizes) {
        // ADVICE-1
        _ if crowded_count > 0 => (None, String::new()),
        BreakEven::Crossing {
            object_bytes,
            interval:
                Some(Bounds {
                    low: Some(low),
                    high: Some(high),
                }),
            is_this_below: true,
        } => {
            let bounds = format!("[{} to {}]", say_bytes(low), say_bytes(high));
            (Some(object_bytes as u64), format!(" {bounds}"))
        }
        BreakEven::Apart { is_this_better } => {
            let bytes = if is_this_better { INLINE_BYTES_MAX } else { 0 };
            (Some(bytes), ", at every size that was measured".to_owned())
        }
        _ => (None, String::new()),
    };
    let chosen = chosen.map(|bytes| bytes.min(INLINE_BYTES_MAX));
    let answer = match chosen {
        Some(0) => format!("nothing{said}"),
        Some(bytes) => format!("{}{said}", say_bytes(bytes as f64)),
        None if crowded_count > 0 => under_load(crowded_count),
        None => format!("no threshold beyond noise; {default} as ever"),
    };
    let word = chosen.map(|bytes| match bytes {
        0 => "let Larder keep no content in rows".to_owned(),
        bytes => format!(
            "let Larder keep content of up to {} in rows",
            say_bytes(bytes as f64)
        ),
    });
    let answer = Answer {
        question,
        answer,
        ground: format!("age {age}, written once and read once, {rounds} rounds"),
        is_sure: chosen.is_some(),
    };
    (answer, word, chosen)
}

/// The geometric means of two measures, pair by pair.
fn mean_of(first: &[SizePairs], second: &[SizePairs]) -> Vec<SizePairs> {
    let of_size = |one: &SizePairs| {
        let other = second
            .iter()
            .find(|other| other.object_bytes == one.object_bytes)?;
        let pairs = one.pairs.iter().zip(&other.pairs);
        let mean = |a: f64, b: f64| (a * b).sqrt();
        Some(SizePairs {
            object_bytes: one.object_bytes,
            pairs: pairs
                .map(|(a, b)| (mean(a.0, b.0), mean(a.1, b.1)))
                .collect(),
        })
    };
    first.iter().filter_map(of_size).collect()
}

fn gather(objects: Option<&ObjectSizes>) -> Told<u64> {
    const MIB: u64 = 1 << 20;
    let question = "Larder: how much should it gather?".to_owned();
    let default = gather_bytes_default();
    let Some(objects) = objects else {
        let answer = Answer {
            question,
            answer: format!("{} as ever", say_bytes(default as f64)),
            ground: "no objects to look at".to_owned(),
            is_sure: false,
        };
        return (answer, None, None);
    };
    let wanted = objects.p99_bytes.saturating_mul(4).div_ceil(MIB) * MIB;
    let most = (objects.memory_bytes / 8 / MIB * MIB).clamp(default, GATHER_BYTES_MAX);
    let chosen = (wanted > default).then_some(wanted.min(most));
    let enough = say_bytes(chosen.unwrap_or(default) as f64);
    let answer = Answer {
        question,
        answer: match chosen {
            None => format!("{enough}, its own choice"),
            Some(bytes) if bytes < wanted => format!("{enough}, all that memory allows"),
            Some(_) => enough.clone(),
        },
        ground: format!(
            "99 % of {} objects have at most {}; up to a quarter of the gather is placed whole",
            objects.count,
            say_bytes(objects.p99_bytes as f64)
        ),
        is_sure: true,
    };
    let word = chosen.map(|_| format!("let Larder gather {enough}"));
    (answer, word, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::advise;
    use crate::advise::tests::Maker;
    use crate::data::Data;
    use crate::results::Results;

    /// Rows are better below `equal_at` bytes when writing and reading are taken together.
    fn trial(equal_at: f64, rounds: u32) -> Results {
        let mut maker = Maker::new("break-even");
        let [rows, extents] = trials("larder:/x");
        for bytes in [256.0, 512.0, 1024.0, 2048.0] {
            let case = [("object_bytes", bytes)];
            let rows_speed = 10.0 * equal_at / bytes;
            for (measure, factor) in [("read_mb_s", 4.0), ("write_mb_s", 0.25)] {
                maker.put(&rows, &case, measure, rows_speed * factor, rounds, 0.03);
                maker.put(&extents, &case, measure, 10.0, rounds, 0.03);
            }
        }
        maker.run
    }

    fn advised(run: Results, objects: Option<ObjectSizes>) -> (Tuning, String) {
        let advice = advise(&Data::new(vec![run]), objects.as_ref());
        (advice.tuning, advice.paragraph)
    }

    #[test]
    fn the_threshold_is_where_rows_and_extents_are_equal() {
        let (tuning, text) = advised(trial(800.0, 3), None);
        let found = tuning.inline_bytes_max.unwrap();
        assert!((700..900).contains(&found), "{found}");
        assert!(text.contains("let Larder keep content of up to"), "{text}");
        // Trials are no answer to the question of row or file.
        assert!(!text.contains("rather than"), "{text}");
        // ADVICE-2
        assert_eq!(
            advised(trial(1e6, 3), None).0.inline_bytes_max,
            Some(INLINE_BYTES_MAX)
        );
        assert_eq!(advised(trial(1.0, 3), None).0.inline_bytes_max, Some(0));
        // Neither do times under load.
        let mut crowded = trial(800.0, 3);
        let cores = ("cores".to_owned(), "2".to_owned());
        crowded.header.machine.extend([cores]);
        crowded.records[0].load = 11.0;
        assert_eq!(advised(crowded.clone(), None).0, Tuning::default());
        assert_eq!(advise(&Data::new(vec![crowded]), None).crowded_count, 1);
        // One round tells nothing.
        assert_eq!(advised(trial(800.0, 1), None).0, Tuning::default());
    }

    #[test]
    fn the_gather_follows_the_objects_and_the_memory() {
        // What is advised is whole MiB.
        let more_bytes = gather_bytes_default().next_multiple_of(1 << 20);
        let memory_bytes = 64 * more_bytes;
        let gather = |p99_bytes| {
            let objects = ObjectSizes {
                count: 5,
                p99_bytes,
                memory_bytes,
            };
            advised(trial(1.0, 1), Some(objects)).0.gather_bytes_max
        };
        assert_eq!(gather(100), None);
        assert_eq!(gather(more_bytes), Some(4 * more_bytes));
        assert_eq!(gather(u64::MAX / 8), Some(memory_bytes / 8));
        let many = (1..=1000).collect();
        let sizes = ObjectSizes::of(many, memory_bytes).unwrap();
        assert_eq!((sizes.count, sizes.p99_bytes), (1000, 990));
        assert_eq!(ObjectSizes::of(vec![], 1), None);
    }
}
