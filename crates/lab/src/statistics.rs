//! What can be said of figures that were measured several times.
//!
//! A *median* stands for what is typical; its interval is one of order statistics, so it assumes
//! nothing about the distribution. *Ratios* are compared by their logarithms, with Student's t: a
//! ratio of 2 and one of ½ are equally far from 1. The *noise* of a measure is how far repetitions
//! of the same case lie from each other. Nothing here is random: the same records give the same
//! answers.
//!
//! * `STATISTICS-1` An interval of a ratio covers the true ratio at the rate that it states.

use crate::results::Record;
use std::collections::BTreeMap;

/// The confidence of intervals of ratios.
pub const CONFIDENCE: f64 = 0.95;

/// A value between two bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// How often such bounds hold the true value, 0 to 1; 0 for a single measurement.
    pub confidence: f64,
}

impl Estimate {
    /// Whether `value` lies outside of the bounds, at [`CONFIDENCE`] or better.
    pub fn excludes(&self, value: f64) -> bool {
        self.confidence >= CONFIDENCE && !(self.low..=self.high).contains(&value)
    }
}

/// The `share` quantile, 0 to 1, with linear interpolation between neighbours; nothing of nothing.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// The median with the narrowest pair of order statistics that holds it at 95 %; with fewer than
/// six values the least and the greatest, and the confidence that they have. Nothing of nothing.
pub fn median(values: &[f64]) -> Option<Estimate> {
    let value = quantile(values, 0.5)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The median lies below the k-th least value with probability P(B ≤ k − 1), B binomial(n, ½).
    let mut probability = 0.5_f64.powi(count as i32);
    let (mut below, mut outside) = (probability, 0);
    while outside + 1 < count / 2 {
        probability *= (count - outside) as f64 / (outside + 1) as f64;
        if 2.0 * (below + probability) > 1.0 - CONFIDENCE {
            break;
        }
        (below, outside) = (below + probability, outside + 1);
    }
    Some(Estimate {
        value,
        low: sorted[outside],
        high: sorted[count - 1 - outside],
        confidence: (1.0 - 2.0 * below).max(0.0),
    })
}

/// How far apart repetitions are: the standard deviation of logarithms, pooled over groups.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Noise {
    /// Of natural logarithms.
    pub deviation: f64,
    /// Repetitions beyond the first of each group: how well it is known.
    pub degrees: usize,
}

impl Noise {
    /// The noise of groups of repetitions, of positive values; others are left out.
    pub fn of_groups<'a>(groups: impl IntoIterator<Item = &'a [f64]>) -> Noise {
        let logs = groups.into_iter().map(logarithms);
        Noise::of_logarithms(logs)
    }

    /// The noise of groups that are logarithms already.
    pub fn of_logarithms(groups: impl IntoIterator<Item = Vec<f64>>) -> Noise {
        let (mut squares, mut degrees) = (0.0, 0);
        for logs in groups.into_iter().filter(|logs| logs.len() > 1) {
            let mean = mean(&logs);
            squares += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
            degrees += logs.len() - 1;
        }
        Noise {
            deviation: match degrees {
                0 => 0.0,
                _ => (squares / degrees as f64).sqrt(),
            },
            degrees,
        }
    }

    /// The factor by which two single measurements of the same thing differ at most, 19 times of
    /// 20.
    pub fn factor(&self) -> f64 {
        (student_t(self.degrees) * self.deviation * 2.0_f64.sqrt()).exp()
    }
}

/// The noise of each measure: over groups of records that differ in nothing but the round.
pub fn noise_by_measure<'a>(
    records: impl IntoIterator<Item = &'a Record>,
) -> BTreeMap<String, Noise> {
    let mut groups: BTreeMap<(&str, String), Vec<f64>> = BTreeMap::new();
    for record in records {
        let same = (
            &record.experiment,
            &record.backend,
            &record.case,
            record.age,
        );
        let key = (&*record.measure, format!("{same:?}"));
        groups.entry(key).or_default().push(record.value);
    }
    let mut measures: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for ((measure, _), values) in groups {
        measures.entry(measure.to_owned()).or_default().push(values);
    }
    let noise = |groups: &Vec<Vec<f64>>| Noise::of_groups(groups.iter().map(Vec::as_slice));
    measures
        .iter()
        .map(|(measure, groups)| (measure.clone(), noise(groups)))
        .collect()
}

/// The ratio of two systems measured in turns: `pairs` of (this, that) of the same round. Nothing
/// when no pair is positive; a single pair has no bounds (confidence 0).
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    let positive = pairs.iter().filter(|(a, b)| *a > 0.0 && *b > 0.0);
    let logs: Vec<f64> = positive.map(|(a, b)| (a / b).ln()).collect();
    let noise = Noise::of_logarithms([logs.clone()]);
    let error = noise.deviation / (logs.len().max(1) as f64).sqrt();
    (!logs.is_empty()).then(|| ratio(mean(&logs), error, noise.degrees))
}

/// The ratio `these` ÷ `those` of values measured apart from each other, when single measurements
/// have the noise `noise`. Nothing when one side has no positive value.
pub fn unpaired_ratio(these: &[f64], those: &[f64], noise: Noise) -> Option<Estimate> {
    let (these, those) = (logarithms(these), logarithms(those));
    if these.is_empty() || those.is_empty() {
        return None;
    }
    let error = noise.deviation * (1.0 / these.len() as f64 + 1.0 / those.len() as f64).sqrt();
    Some(ratio(mean(&these) - mean(&those), error, noise.degrees))
}

fn ratio(log: f64, error: f64, degrees: usize) -> Estimate {
    let reach = student_t(degrees) * error;
    let confidence = if degrees == 0 { 0.0 } else { CONFIDENCE };
    let reach = if degrees == 0 { 0.0 } else { reach };
    Estimate {
        value: log.exp(),
        low: (log - reach).exp(),
        high: (log + reach).exp(),
        confidence,
    }
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn logarithms(values: &[f64]) -> Vec<f64> {
    let positive = values.iter().filter(|value| **value > 0.0);
    positive.map(|value| value.ln()).collect()
}

/// The 97.5 % quantile of Student's t: two-sided 95 %. Without degrees of freedom nothing is known.
pub fn student_t(degrees: usize) -> f64 {
    const Z: f64 = 1.959_963_984_540_054;
    match degrees {
        0 => f64::INFINITY,
        1 => 12.706_204_736,
        2 => 4.302_652_730,
        3 => 3.182_446_305,
        4 => 2.776_445_105,
        _ => {
            // Abramowitz and Stegun 26.7.5.
            let (n, z2) = (degrees as f64, Z * Z);
            let first = (z2 + 1.0) / 4.0;
            let second = ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0;
            let third = (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0;
            let fourth =
                ((((79.0 * z2 + 776.0) * z2 + 1482.0) * z2 - 1920.0) * z2 - 945.0) / 92160.0;
            let series = first / n + second / n.powi(2) + third / n.powi(3) + fourth / n.powi(4);
            Z * (1.0 + series)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Normal numbers that are the same each time (Box–Muller over an xorshift).
    pub(crate) struct Normal(pub(crate) u64);

    impl Normal {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        }

        pub(crate) fn next(&mut self) -> f64 {
            let (a, b) = (self.uniform(), self.uniform());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        }
    }

    #[test]
    fn quantiles_and_medians() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0, 1.0, 2.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[3.0, 1.0, 2.0, 4.0], 1.0), Some(4.0));
        let one = median(&[7.0]).unwrap();
        assert_eq!((one.low, one.high, one.confidence), (7.0, 7.0, 0.0));
        let three = median(&[1.0, 5.0, 2.0]).unwrap();
        assert_eq!((three.value, three.low, three.high), (2.0, 1.0, 5.0));
        assert_eq!(three.confidence, 0.75);
        // Tables: of ten values the 2nd and the 9th hold the median at 97.9 %.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let ten = median(&ten).unwrap();
        assert_eq!((ten.low, ten.high), (2.0, 9.0));
        assert!((ten.confidence - 0.9785).abs() < 1e-3);
    }

    #[test]
    fn student_t_is_that_of_the_tables() {
        for (degrees, t) in [
            (1, 12.706),
            (5, 2.5706),
            (6, 2.4469),
            (10, 2.2281),
            (30, 2.0423),
        ] {
            assert!(
                (student_t(degrees) - t).abs() < 2e-3,
                "{degrees}: {}",
                student_t(degrees)
            );
        }
    }

    #[test]
    fn intervals_of_ratios_cover_the_truth_as_often_as_they_say() {
        let mut normal = Normal(42);
        let (mut paired, mut unpaired) = (0, 0);
        for _ in 0..4000 {
            let mut draw = |truth: f64| truth * (0.3 * normal.next()).exp();
            let these: Vec<f64> = (0..4).map(|_| draw(3.0)).collect();
            let those: Vec<f64> = (0..4).map(|_| draw(2.0)).collect();
            let pairs: Vec<(f64, f64)> = these.iter().copied().zip(those.iter().copied()).collect();
            // STATISTICS-1
            paired += usize::from(!paired_ratio(&pairs).unwrap().excludes(1.5));
            let noise = Noise::of_groups([&these[..], &those[..]]);
            let ratio = unpaired_ratio(&these, &those, noise).unwrap();
            unpaired += usize::from(!ratio.excludes(1.5));
        }
        assert!((3760..3840).contains(&paired), "{paired}");
        assert!((3760..3840).contains(&unpaired), "{unpaired}");
    }

    #[test]
    fn one_measurement_excludes_nothing() {
        let ratio = paired_ratio(&[(3.0, 1.0)]).unwrap();
        assert!((ratio.value - 3.0).abs() < 1e-12);
        assert!(!ratio.excludes(1.0));
        assert_eq!(paired_ratio(&[(0.0, 1.0)]), None);
    }
}
