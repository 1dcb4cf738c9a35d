//! The break-even size: where the curves of two systems cross.
//!
//! At each object size two systems were measured in the same rounds. The logarithms of their ratios
//! have a mean at each size; between two sizes the mean runs straight over the logarithm of the
//! size. It crosses 0 where both systems are equal: the *break-even size*.
//!
//! The interval is the set of all sizes at which the mean cannot be told from 0: by Student's t,
//! with the noise pooled over all sizes. At the true crossing the mean *is* 0, so the set holds it
//! 19 times of 20, whatever the slope. Where the set reaches the end of the measured range, it is
//! open there.
//!
//! * `CROSSING-1` The interval covers the true crossing at the stated rate.
//! * `CROSSING-2` No crossing is claimed outside of the measured range.

use crate::results::Record;
use crate::statistics::{Noise, mean, student_t};
use std::collections::BTreeMap;

/// What was measured of two systems at one object size: pairs of the same round. Larger is better.
#[derive(Debug, Clone, PartialEq)]
pub struct SizePairs {
    /// Size of the objects.
    pub object_bytes: f64,
    /// (this, that), both above 0.
    pub pairs: Vec<(f64, f64)>,
}

/// Where the curves cross.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BreakEven {
    /// They do: below, `this` is better when `is_this_below`, above the other.
    Crossing {
        /// The break-even size.
        object_bytes: f64,
        /// The interval at 95 %; nothing when each size was measured once.
        interval: Option<Bounds>,
        /// Which of the two is better below.
        is_this_below: bool,
    },
    /// They do not, inside the measured range: one is better at every size, beyond noise.
    Apart {
        /// `this`, or that.
        is_this_better: bool,
    },
    /// At no size, or at some sizes only, can they be told apart, and nothing crosses beyond noise.
    Alike,
    /// Fewer than two sizes were measured of both in the same rounds.
    TooFewSizes,
}

/// The bounds of a break-even size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The lower bound; nothing when it may lie below the measured range.
    pub low: Option<f64>,
    /// The upper bound; nothing when it may lie above the measured range.
    pub high: Option<f64>,
}

/// Pairs of `measure` of two systems at one age, by object size. Records of the same size, round
/// and other parameters belong together; where a round has several, the last one counts.
pub fn pairs<'a>(
    records: impl IntoIterator<Item = &'a Record>,
    (this, that): (&str, &str),
    measure: &str,
    age: f64,
) -> Vec<SizePairs> {
    type Sides = (Option<f64>, Option<f64>);
    let mut sizes: BTreeMap<u64, BTreeMap<(String, u32), Sides>> = BTreeMap::new();
    let wanted = |record: &&Record| record.measure == measure && (record.age - age).abs() < 0.25;
    for record in records.into_iter().filter(wanted) {
        let Some(size) = record.number("object_bytes") else {
            continue;
        };
        let case = format!("{} {:?}", record.experiment, record.case);
        let rounds = sizes.entry(size as u64).or_default();
        let sides = rounds.entry((case, record.round)).or_default();
        if record.backend == this {
            sides.0 = Some(record.value);
        } else if record.backend == that {
            sides.1 = Some(record.value);
        }
    }
    let of_size = |(size, rounds): (u64, BTreeMap<_, Sides>)| SizePairs {
        object_bytes: size as f64,
        pairs: rounds.into_values().filter_map(|(a, b)| a.zip(b)).collect(),
    };
    sizes.into_iter().map(of_size).collect()
}

/// Finds the break-even size of two systems.
pub fn find(sizes: &[SizePairs]) -> BreakEven {
    let curve = Curve::new(sizes);
    let Some(last) = curve.knots.len().checked_sub(2) else {
        return BreakEven::TooFewSizes;
    };
    let unsure: Vec<Stretch> = (0..=last).filter_map(|i| curve.unsure_stretch(i)).collect();
    let crossings: Vec<f64> = (0..=last).filter_map(|i| curve.crossing(i)).collect();
    // Noise makes several crossings of one; an odd number is one, an even number none.
    let (first, end) = (curve.knots[0].mean, curve.knots[last + 1].mean);
    let crosses = (first > 0.0) != (end > 0.0);
    match crossings.get(crossings.len() / 2) {
        Some(log_bytes) if crosses => BreakEven::Crossing {
            object_bytes: log_bytes.exp(),
            interval: (curve.degrees > 0).then(|| curve.bounds(&unsure)),
            is_this_below: first > 0.0,
        },
        _ if unsure.is_empty() && crossings.is_empty() && curve.degrees > 0 => BreakEven::Apart {
            is_this_better: first > 0.0,
        },
        _ => BreakEven::Alike,
    }
}

struct Knot {
    log_bytes: f64,
    mean: f64,
    count: f64,
}

/// The means of the logarithms of ratios, straight between sizes.
struct Curve {
    knots: Vec<Knot>,
    /// How far from 0 a mean of one measurement may lie by chance.
    reach: f64,
    degrees: usize,
}

/// Where, in logarithms of bytes, the curve cannot be told from 0.
struct Stretch {
    low: f64,
    high: f64,
}

impl Curve {
    fn new(sizes: &[SizePairs]) -> Curve {
        let logs = |size: &SizePairs| -> Vec<f64> {
            let positive = size.pairs.iter().filter(|(a, b)| *a > 0.0 && *b > 0.0);
            positive.map(|(a, b)| (a / b).ln()).collect()
        };
        let groups: Vec<(f64, Vec<f64>)> = sizes
            .iter()
            .map(|size| (size.object_bytes, logs(size)))
            .filter(|(bytes, logs)| *bytes > 0.0 && !logs.is_empty())
            .collect();
        let noise = Noise::of_logarithms(groups.iter().map(|(_, logs)| logs.clone()));
        let knot = |(bytes, logs): &(f64, Vec<f64>)| Knot {
            log_bytes: bytes.ln(),
            mean: mean(logs),
            count: logs.len() as f64,
        };
        let mut knots: Vec<Knot> = groups.iter().map(knot).collect();
        knots.sort_by(|a, b| a.log_bytes.total_cmp(&b.log_bytes));
        let reach = match noise.degrees {
            0 => 0.0,
            degrees => student_t(degrees) * noise.deviation,
        };
        Curve {
            knots,
            reach,
            degrees: noise.degrees,
        }
    }

    /// Where the curve crosses 0 between knot `i` and the next, as the logarithm of a size.
    fn crossing(&self, i: usize) -> Option<f64> {
        let (a, b) = (&self.knots[i], &self.knots[i + 1]);
        let crosses = (a.mean > 0.0) != (b.mean > 0.0);
        let share = a.mean / (a.mean - b.mean);
        crosses.then_some(a.log_bytes + share * (b.log_bytes - a.log_bytes))
    }

    /// Between knot `i` and the next: where the curve is within reach of 0. There it holds
    /// `mean(w)² ≤ reach² · ((1 − w)²/n + w²/m)`, a quadratic of the share `w` of the way.
    fn unsure_stretch(&self, i: usize) -> Option<Stretch> {
        let (a, b) = (&self.knots[i], &self.knots[i + 1]);
        let is_unsure = |share: f64| {
            let mean = a.mean + share * (b.mean - a.mean);
            let error2 = (1.0 - share).powi(2) / a.count + share.powi(2) / b.count;
            mean.powi(2) <= self.reach.powi(2) * error2
        };
        let (slope, reach2) = (b.mean - a.mean, self.reach.powi(2));
        let square = slope * slope - reach2 * (1.0 / a.count + 1.0 / b.count);
        let linear = 2.0 * (a.mean * slope + reach2 / a.count);
        let constant = a.mean * a.mean - reach2 / a.count;
        let root = (linear * linear - 4.0 * square * constant).max(0.0).sqrt();
        let ends = [
            (-linear - root) / (2.0 * square),
            (-linear + root) / (2.0 * square),
        ];
        let inside = ends.into_iter().filter(|share| (0.0..=1.0).contains(share));
        let ends = [0.0, 1.0].into_iter().filter(|share| is_unsure(*share));
        let shares: Vec<f64> = inside.chain(ends).collect();
        let low = shares.iter().copied().reduce(f64::min)?;
        let high = shares.iter().copied().reduce(f64::max)?;
        let at = |share: f64| a.log_bytes + share * (b.log_bytes - a.log_bytes);
        Some(Stretch {
            low: at(low),
            high: at(high),
        })
    }

    /// The hull of all stretches; open where it touches the end of the measured range (CROSSING-2).
    fn bounds(&self, stretches: &[Stretch]) -> Bounds {
        let (first, last) = (&self.knots[0], &self.knots[self.knots.len() - 1]);
        let low = stretches.iter().map(|stretch| stretch.low);
        let high = stretches.iter().map(|stretch| stretch.high);
        Bounds {
            low: low
                .reduce(f64::min)
                .filter(|low| *low > first.log_bytes)
                .map(f64::exp),
            high: high
                .reduce(f64::max)
                .filter(|high| *high < last.log_bytes)
                .map(f64::exp),
        }
    }
}

impl Bounds {
    /// Whether both bounds lie inside the measured range.
    pub fn is_closed(&self) -> bool {
        self.low.is_some() && self.high.is_some()
    }

    /// Whether a size lies between the bounds.
    pub fn contains(&self, object_bytes: f64) -> bool {
        self.low.is_none_or(|low| low <= object_bytes)
            && self.high.is_none_or(|high| object_bytes <= high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::tests::Normal;
    use proptest::prelude::*;

    const SIZES: [f64; 7] = [4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6];

    /// Two systems whose ratio is 1 at `crossing`, with `slope` and noise.
    fn planted(
        crossing: f64,
        slope: f64,
        noise: f64,
        rounds: usize,
        normal: &mut Normal,
    ) -> Vec<SizePairs> {
        let pair = |bytes: f64, normal: &mut Normal| {
            let base = 50.0 + bytes / 1e5;
            let ratio = slope * (crossing.ln() - bytes.ln());
            let mut noisy = |log: f64| (log + noise * normal.next()).exp();
            (base * noisy(ratio), base * noisy(0.0))
        };
        let of_size = |bytes: &f64| SizePairs {
            object_bytes: *bytes,
            pairs: (0..rounds).map(|_| pair(*bytes, normal)).collect(),
        };
        SIZES.iter().map(of_size).collect()
    }

    #[test]
    fn a_planted_crossing_is_covered_at_the_stated_rate() {
        let mut normal = Normal(2006);
        let (mut covered, mut found) = (0, 0);
        for trial in 0..2000 {
            let crossing = 16e3 * 256.0_f64.powf(f64::from(trial % 50) / 50.0);
            match find(&planted(crossing, 0.5, 0.15, 3, &mut normal)) {
                BreakEven::Crossing { interval, .. } => {
                    found += 1;
                    covered += usize::from(interval.unwrap().contains(crossing));
                }
                other => panic!("{other:?} at {crossing}"),
            }
        }
        // CROSSING-1: 95 % of 2000, within three deviations.
        assert_eq!(found, 2000);
        assert!(covered >= 1870, "{covered}");
        assert!(covered <= 1970, "{covered}");
    }

    #[test]
    fn curves_that_do_not_cross_inside_are_said_not_to() {
        let mut normal = Normal(7);
        let apart = planted(1e12, 0.3, 0.05, 3, &mut normal);
        assert_eq!(
            find(&apart),
            BreakEven::Apart {
                is_this_better: true
            }
        );
        let apart = planted(1.0, 0.3, 0.05, 3, &mut normal);
        assert_eq!(
            find(&apart),
            BreakEven::Apart {
                is_this_better: false
            }
        );
        // The same curve, drowned.
        let loud: Vec<BreakEven> = (0..20)
            .map(|_| find(&planted(1e5, 0.01, 2.0, 2, &mut normal)))
            .collect();
        for answer in loud {
            if let BreakEven::Crossing { interval, .. } = answer {
                let bounds = interval.unwrap();
                assert!(bounds.low.is_none() || bounds.high.is_none(), "{bounds:?}");
            }
        }
        assert_eq!(find(&apart[..1]), BreakEven::TooFewSizes);
        assert_eq!(find(&[]), BreakEven::TooFewSizes);
    }

    #[test]
    fn one_round_has_a_crossing_without_bounds() {
        let answer = find(&planted(1e5, 0.5, 0.0, 1, &mut Normal(1)));
        let BreakEven::Crossing {
            object_bytes,
            interval,
            is_this_below,
        } = answer
        else {
            panic!("{answer:?}");
        };
        assert!((object_bytes / 1e5 - 1.0).abs() < 1e-9);
        assert_eq!((interval, is_this_below), (None, true));
    }

    proptest! {
        #[test]
        fn a_crossing_is_inside_the_range_and_its_bounds(
            seed in 1_u64..u64::MAX, crossing in 1e3_f64..1e8, slope in -1.0_f64..1.0,
            noise in 0.0_f64..0.5, rounds in 1_usize..6,
        ) {
            let sizes = planted(crossing, slope, noise, rounds, &mut Normal(seed));
            if let BreakEven::Crossing { object_bytes, interval, .. } = find(&sizes) {
                // CROSSING-2
                prop_assert!((SIZES[0] * 0.999..=SIZES[6] * 1.001).contains(&object_bytes));
                // Without noise the bounds are one point, which rounding may put beside it.
                let near = |bounds: Bounds| {
                    bounds.low.is_none_or(|low| low <= object_bytes * 1.001)
                        && bounds.high.is_none_or(|high| high >= object_bytes * 0.999)
                };
                prop_assert!(interval.is_none_or(near), "{:?} {:?}", object_bytes, interval);
            }
        }
    }
}
