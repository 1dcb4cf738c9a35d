//! How long operations took, and what that makes of a rate.

use std::time::Duration;

/// Times of operations, with the bytes that they moved.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    nanoseconds: Vec<u64>,
    bytes: u64,
}

impl Latencies {
    /// One operation.
    pub fn add(&mut self, elapsed: Duration, bytes: u64) {
        self.nanoseconds
            .push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        self.bytes += bytes;
    }

    /// Those of another thread.
    pub fn join(&mut self, other: Latencies) {
        self.nanoseconds.extend(other.nanoseconds);
        self.bytes += other.bytes;
    }

    /// How many operations.
    pub fn count(&self) -> u64 {
        self.nanoseconds.len() as u64
    }

    /// Bytes that they moved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Figures for records, each with `prefix` before its name: `mb_s` (10^6 bytes), `ops_s`,
    /// `p50_us`, `p99_us`, `max_us`. `workers` did them at the same time; only the time in
    /// operations counts. Nothing of nothing.
    pub fn measures(mut self, prefix: &str, workers: u32) -> Vec<(String, f64)> {
        if self.nanoseconds.is_empty() {
            return Vec::new();
        }
        self.nanoseconds.sort_unstable();
        let len = self.nanoseconds.len();
        let at_us = |share: f64| {
            let rank = ((len as f64 * share).ceil() as usize).clamp(1, len);
            self.nanoseconds[rank - 1] as f64 / 1e3
        };
        let total_ns = self.nanoseconds.iter().sum::<u64>().max(1) as f64;
        let seconds = total_ns / 1e9 / f64::from(workers.max(1));
        [
            ("mb_s", self.bytes as f64 / 1e6 / seconds),
            ("ops_s", len as f64 / seconds),
            ("p50_us", at_us(0.5)),
            ("p99_us", at_us(0.99)),
            ("max_us", at_us(1.0)),
        ]
        .map(|(name, value)| (format!("{prefix}{name}"), value))
        .to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_quantiles_of_known_times() {
        let mut latencies = Latencies::default();
        for ms in 1..=100 {
            latencies.add(Duration::from_millis(ms), 1_000_000);
        }
        let measures = latencies.measures("read_", 2);
        let value = |name: &str| measures.iter().find(|(own, _)| own == name).unwrap().1;
        assert_eq!(value("read_p50_us"), 50_000.0);
        assert_eq!(value("read_p99_us"), 99_000.0);
        assert_eq!(value("read_max_us"), 100_000.0);
        assert!((value("read_mb_s") - 100.0 / 2.525).abs() < 1e-9);
        assert!((value("read_ops_s") - 100.0 / 2.525).abs() < 1e-9);
    }
}
