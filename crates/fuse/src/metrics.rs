//! What a mount has done, in numbers: per operation how many, how long, and how they failed.
//!
//! # Invariants
//! * `METRIC-1` Every operation is in exactly one bucket of its histogram, so the buckets add up to
//!   the count; an operation that is counted as begun is counted as ended later, or is in flight.
//!
//! # Concurrency
//! Atomics, no lock. Threads write to one of a few shards, so that workers do not share cache
//! lines; reading adds the shards up and may be off by the operations that end meanwhile.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Upper bounds of the latency buckets, nanoseconds, inclusive. Slower operations are in one more.
pub const LATENCY_BOUNDS_NS: [u64; 19] = [
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];

const BUCKET_COUNT: usize = LATENCY_BOUNDS_NS.len() + 1;
/// Kinds of operations: the kernel's numbers are below this.
const OPERATION_COUNT: usize = 64;
/// Error numbers that are counted each by itself; the largest of Linux is 133. Others count as 0.
const ERROR_COUNT: usize = 134;
const SHARD_COUNT: usize = 8;

/// The counters of one mount. Memory: about 150 KiB.
pub struct Metrics {
    shards: Box<[Shard; SHARD_COUNT]>,
    /// By operation and error number. Errors are rarer, so threads share these.
    errors: Box<[AtomicU64]>,
}

#[repr(align(128))]
struct Shard {
    begun: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    operations: [Operation; OPERATION_COUNT],
}

struct Operation {
    duration_ns: AtomicU64,
    buckets: [AtomicU64; BUCKET_COUNT],
}

/// What one kind of operation has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationCounts {
    /// The kernel's number of the operation.
    pub operation: u32,
    /// How many have ended.
    pub count: u64,
    /// The time they took together, nanoseconds.
    pub duration_ns: u64,
    /// How many took at most [`LATENCY_BOUNDS_NS`]`[i]` and longer than the bound before; then the
    /// slower ones.
    pub buckets: Vec<u64>,
    /// Error numbers and how many ended so, the ones that occurred.
    pub errors: Vec<(u32, u64)>,
}

/// Everything, of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Operations that occurred, by number.
    pub operations: Vec<OperationCounts>,
    /// Content given to the kernel, bytes.
    pub read_bytes: u64,
    /// Content taken from the kernel, bytes.
    pub written_bytes: u64,
    /// Operations begun and not ended.
    pub in_flight: u64,
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

impl Default for Metrics {
    fn default() -> Metrics {
        let shard = |_| Shard {
            begun: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            operations: std::array::from_fn(|_| Operation {
                duration_ns: AtomicU64::new(0),
                buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        };
        Metrics {
            shards: Box::new(std::array::from_fn(shard)),
            errors: std::iter::repeat_with(|| AtomicU64::new(0))
                .take(OPERATION_COUNT * ERROR_COUNT)
                .collect(),
        }
    }
}

impl Metrics {
    /// An operation begins.
    pub(crate) fn begin(&self) {
        self.shard().begun.fetch_add(1, Relaxed);
    }

    /// It has ended, on the same thread or another, after `duration_ns`; `error`: with that number.
    pub(crate) fn end(&self, operation: u32, duration_ns: u64, error: Option<u32>) {
        let number = operation as usize % OPERATION_COUNT;
        let counts = &self.shard().operations[number];
        counts.duration_ns.fetch_add(duration_ns, Relaxed);
        counts.buckets[bucket_of(duration_ns)].fetch_add(1, Relaxed);
        if let Some(error) = error {
            let error = if (error as usize) < ERROR_COUNT {
                error as usize
            } else {
                0
            };
            self.errors[number * ERROR_COUNT + error].fetch_add(1, Relaxed);
        }
    }

    /// Content went to the kernel, or came from it.
    pub(crate) fn count_bytes(&self, read: u64, written: u64) {
        let shard = self.shard();
        if read > 0 {
            shard.read_bytes.fetch_add(read, Relaxed);
        }
        if written > 0 {
            shard.written_bytes.fetch_add(written, Relaxed);
        }
    }

    /// What there is now.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let sum = |part: &dyn Fn(&Shard) -> u64| self.shards.iter().map(part).sum::<u64>();
        let operations: Vec<OperationCounts> = (0..OPERATION_COUNT)
            .map(|number| self.operation(number))
            .filter(|counts| counts.count > 0)
            .collect();
        let ended: u64 = operations.iter().map(|counts| counts.count).sum();
        MetricsSnapshot {
            read_bytes: sum(&|shard| shard.read_bytes.load(Relaxed)),
            written_bytes: sum(&|shard| shard.written_bytes.load(Relaxed)),
            in_flight: sum(&|shard| shard.begun.load(Relaxed)).saturating_sub(ended),
            operations,
        }
    }

    fn operation(&self, number: usize) -> OperationCounts {
        let mut buckets = vec![0; BUCKET_COUNT];
        let mut duration_ns = 0;
        for shard in self.shards.iter() {
            let counts = &shard.operations[number];
            duration_ns += counts.duration_ns.load(Relaxed);
            for (sum, bucket) in buckets.iter_mut().zip(&counts.buckets) {
                *sum += bucket.load(Relaxed);
            }
        }
        let errors = &self.errors[number * ERROR_COUNT..(number + 1) * ERROR_COUNT];
        OperationCounts {
            operation: number as u32,
            count: buckets.iter().sum(), // METRIC-1
            duration_ns,
            buckets,
            errors: (0..)
                .zip(errors)
                .map(|(error, count)| (error, count.load(Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    fn shard(&self) -> &Shard {
        let index = SHARD.get();
        let index = if index == usize::MAX {
            let next = NEXT_SHARD.fetch_add(1, Relaxed) % SHARD_COUNT;
            SHARD.set(next);
            next
        } else {
            index
        };
        &self.shards[index]
    }
}

fn bucket_of(duration_ns: u64) -> usize {
    LATENCY_BOUNDS_NS.partition_point(|bound| *bound < duration_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_in_one_bucket() {
        for (index, bound) in LATENCY_BOUNDS_NS.iter().enumerate() {
            assert_eq!(bucket_of(*bound), index, "METRIC-1");
            assert_eq!(bucket_of(bound + 1), index + 1, "METRIC-1");
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKET_COUNT - 1);
    }

    #[test]
    fn threads_add_up() {
        let metrics = Metrics::default();
        std::thread::scope(|scope| {
            for thread in 0..2 * SHARD_COUNT as u64 {
                let metrics = &metrics;
                scope.spawn(move || {
                    for round in 0..1000 {
                        metrics.begin();
                        metrics.count_bytes(10, 3);
                        let error = (round % 10 == 0).then_some(2);
                        metrics.end(15, thread * 1_000_000, error);
                    }
                });
            }
        });
        metrics.begin();
        metrics.begin();
        metrics.end(1, 7, Some(9999));
        let seen = metrics.snapshot();
        assert_eq!(seen.in_flight, 1, "METRIC-1");
        assert_eq!((seen.read_bytes, seen.written_bytes), (160_000, 48_000));
        let [lookup, read] = &seen.operations[..] else {
            panic!("{seen:?}")
        };
        assert_eq!((lookup.operation, lookup.count), (1, 1));
        assert_eq!(
            lookup.errors,
            [(0, 1)],
            "an unheard-of error is counted as 0"
        );
        assert_eq!((read.operation, read.count), (15, 16_000), "METRIC-1");
        assert_eq!(read.errors, [(2, 1600)]);
        assert_eq!(read.duration_ns, 1000 * (0..16).sum::<u64>() * 1_000_000);
        assert_eq!(read.buckets[0], 1000, "thread 0");
        assert_eq!(read.buckets.iter().sum::<u64>(), read.count, "METRIC-1");
    }
}
