//! Quantiles of many numbers in bounded memory: a histogram whose buckets are at most 1/16 of their
//! numbers wide. Pure.
//!
//! # Invariants
//! * `CLI-24` A quantile is never below the exact one, and at most 1/16 above it; count, sum and
//!   largest are exact.

/// Each power of two is cut into so many buckets.
const STEPS: u64 = 16;

/// The numbers added so far. Memory: at most 8 KiB.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quantiles {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Quantiles {
    /// Adds a number.
    pub(crate) fn add(&mut self, value: u64) {
        let bucket = bucket_of(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// All together, `u64::MAX` at most.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest; 0 of none.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The number that `share` (0 to 1) of all do not exceed (`CLI-24`); 0 of none.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Numbers below 16 have buckets of their own; then each power of two has 16.
fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let power = value.ilog2() - STEPS.ilog2();
    (u64::from(power) * STEPS + (value >> power)) as usize
}

/// The largest number in a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let power = bucket / STEPS - 1;
    let first = (STEPS + bucket % STEPS) << power;
    first + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_belongs_to_them() {
        let mut next = 0;
        for bucket in 0..=bucket_of(u64::MAX) {
            assert_eq!(bucket_of(next), bucket);
            let last = last_of(bucket);
            assert_eq!(bucket_of(last), bucket);
            assert!(last - next <= next / STEPS, "CLI-24: {bucket}");
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the numbers");
    }

    #[test]
    fn quantiles_are_near_the_exact_ones() {
        let mut state = 88_172_645_463_325_252_u64;
        for length in [1, 2, 10, 1000] {
            let mut made = Quantiles::default();
            let mut exact: Vec<u64> = (0..length)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state >> (state % 60)
                })
                .collect();
            exact.iter().for_each(|&value| made.add(value));
            exact.sort_unstable();
            for share in [0.0, 0.5, 0.99, 1.0] {
                let rank = ((share * length as f64).ceil() as usize).max(1) - 1;
                let (found, right) = (made.quantile(share), exact[rank]);
                assert!(
                    found >= right && found - right <= right / STEPS,
                    "CLI-24: {found} for {right} at {share} of {length}"
                );
            }
            assert_eq!(made.max(), exact[exact.len() - 1]);
            assert_eq!(made.count(), length as u64);
        }
        assert_eq!(Quantiles::default().quantile(0.5), 0);
    }
}
