//! The objects of an aging database, and the writers that replace them.
//!
//! A *writer* is a thread with objects of its own. It replaces a random one of them safely: write a
//! temporary file in small calls, fsync, rename over. Four at once interleave their calls, as the
//! clients of a server do. The *full* share of the space is never exceeded: a size that does not
//! fit is drawn again.

use larder::AlignedBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_testkit::Rng;

use super::content;
use super::meters;
use super::setting::shuffle;
use super::sides::{Failure, Side};
use xtask::Outcome;

/// Bytes of one write.
const CALL_BYTES: usize = 64 << 10;
const WRITERS: u64 = 4;
const PER_DIRECTORY: usize = 500;
const BLOCK_BYTES: u64 = 4096;
/// How often a size that does not fit is drawn again.
const DRAWS_MAX: usize = 8;
/// How often a writer that found no space waits for a commit and tries again.
const RETRIES_MAX: usize = 50;

/// A distribution of sizes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// For people.
    pub name: &'static str,
    /// Mean, bytes.
    pub mean_bytes: u64,
    /// The largest, bytes.
    pub bytes_max: u64,
    draw: fn(&mut Rng) -> u64,
}

/// All that are measured.
pub const SIZES: [Sizes; 5] = [
    Sizes {
        name: "1 MB uniform",
        mean_bytes: 1_000_000,
        bytes_max: 1_500_000,
        draw: |rng| 500_000 + rng.below(1_000_001),
    },
    Sizes {
        name: "256 KB uniform",
        mean_bytes: 262_144,
        bytes_max: 393_216,
        draw: |rng| 131_072 + rng.below(262_145),
    },
    Sizes {
        name: "10 MB constant",
        mean_bytes: 10_000_000,
        bytes_max: 10_000_000,
        draw: |_| 10_000_000,
    },
    Sizes {
        name: "5-15 MB uniform",
        mean_bytes: 10_000_000,
        bytes_max: 15_000_000,
        draw: |rng| 5_000_000 + rng.below(10_000_001),
    },
    Sizes {
        name: "4 KB-64 MB lognormal",
        mean_bytes: 1_000_000,
        bytes_max: 64 << 20,
        draw: lognormal,
    },
];

/// Median 256 KB, σ = 1.7: a mean of about 1 MB.
fn lognormal(rng: &mut Rng) -> u64 {
    let uniform = |rng: &mut Rng| rng.below(1 << 30) as f64 / (1u64 << 30) as f64;
    let normal: f64 = (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0;
    let bytes = 262_144.0 * (1.7 * normal).exp();
    (bytes as u64).clamp(4096, 64 << 20)
}

#[derive(Debug, Clone)]
struct Object {
    id: u64,
    path: String,
    bytes: u64,
    version: u32,
}

struct Writer {
    number: u64,
    rng: Rng,
    objects: Vec<Object>,
    buffer: Vec<u8>,
}

/// All objects of a database, and who writes them.
pub struct Population {
    sizes: Sizes,
    /// Content, in whole blocks, at most this.
    target_bytes: u64,
    live_bytes: AtomicI64,
    no_space: AtomicU64,
    writers: Vec<Writer>,
}

/// What a phase of writing did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Phase {
    /// Bytes of content written.
    pub user_bytes: u64,
    /// Bytes that went to the device meanwhile: the smaller one of the process's account and that
    /// of the disks.
    pub device_bytes: u64,
    /// How long.
    pub duration: Duration,
    /// How often a writer was told that there is no space.
    pub no_space: u64,
}

impl Phase {
    /// Both, one after the other.
    pub fn and(self, next: Phase) -> Phase {
        Phase {
            user_bytes: self.user_bytes + next.user_bytes,
            device_bytes: self.device_bytes + next.device_bytes,
            duration: self.duration + next.duration,
            no_space: self.no_space + next.no_space,
        }
    }

    /// Content, MB/s (10⁶).
    pub fn mb_per_s(&self) -> f64 {
        self.user_bytes as f64 / 1e6 / self.duration.as_secs_f64()
    }

    /// Bytes to the device beside each byte of content.
    pub fn moved(&self) -> f64 {
        self.device_bytes as f64 / self.user_bytes as f64 - 1.0
    }
}

impl Population {
    /// No objects yet; they will fill `target_bytes`.
    pub fn new(sizes: Sizes, target_bytes: u64, seed: u64) -> Population {
        let writer = |number| Writer {
            number,
            rng: Rng::new(seed + number),
            objects: Vec::new(),
            buffer: content::noise(seed + number, sizes.bytes_max as usize),
        };
        Population {
            sizes,
            target_bytes,
            live_bytes: AtomicI64::new(0),
            no_space: AtomicU64::new(0),
            writers: (0..WRITERS).map(writer).collect(),
        }
    }

    /// Number of objects.
    pub fn object_count(&self) -> usize {
        self.writers.iter().map(|writer| writer.objects.len()).sum()
    }

    /// Writes new objects until the space is as full as it should be.
    pub fn load(&mut self, side: &dyn Side) -> Result<Phase, String> {
        self.run(side, |writer, shared| writer.load(shared))
    }

    /// Replaces objects until `ages` times the live content is gone.
    pub fn churn(&mut self, side: &dyn Side, ages: f64) -> Result<Phase, String> {
        let live = self.live_bytes.load(Ordering::SeqCst) as f64;
        let share = (live * ages / WRITERS as f64) as u64;
        self.run(side, move |writer, shared| writer.churn(shared, share))
    }

    fn run(
        &mut self,
        side: &dyn Side,
        work: impl Fn(&mut Writer, &Shared<'_>) -> Result<u64, String> + Sync,
    ) -> Result<Phase, String> {
        let disk_before = meters::disk_written_bytes()?;
        let before = meters::written_bytes(side.process())?;
        let started = Instant::now();
        let shared = Shared {
            side,
            sizes: self.sizes,
            target_bytes: self.target_bytes as i64,
            live_bytes: &self.live_bytes,
            no_space: &self.no_space,
        };
        let mut user_bytes = Ok(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .writers
                .iter_mut()
                .map(|writer| scope.spawn(|| work(writer, &shared)))
                .collect();
            for thread in threads {
                let ended = thread.join().map_err(|_| "a writer panicked".to_owned());
                user_bytes = match (user_bytes.clone(), ended.and_then(|ended| ended)) {
                    (Ok(sum), Ok(bytes)) => Ok(sum + bytes),
                    (Err(line), _) | (_, Err(line)) => Err(line),
                };
            }
        });
        side.sync()?;
        let duration = started.elapsed();
        rustix::fs::sync();
        let process = meters::written_bytes(side.process())? - before;
        let disk = meters::disk_written_bytes()? - disk_before;
        Ok(Phase {
            user_bytes: user_bytes?,
            device_bytes: process.min(disk),
            duration,
            no_space: self.no_space.swap(0, Ordering::SeqCst),
        })
    }

    /// Reads random objects, about `bytes`, and verifies them; returns how many bytes it read.
    pub fn read_some(
        &self,
        side: &dyn Side,
        bytes: u64,
        seed: u64,
        back: &mut AlignedBuf,
    ) -> Result<u64, String> {
        let mut objects: Vec<&Object> = self
            .writers
            .iter()
            .flat_map(|writer| &writer.objects)
            .collect();
        shuffle(&mut objects, &mut Rng::new(seed));
        let mut read = 0;
        for object in objects {
            if read >= bytes {
                break;
            }
            let len = side.get(&object.path, back)?;
            content::verify(
                &back[..len],
                object.id,
                object.version,
                object.bytes as usize,
            )?;
            read += object.bytes;
        }
        Ok(read)
    }
}

/// What the writers have in common.
struct Shared<'a> {
    side: &'a dyn Side,
    sizes: Sizes,
    target_bytes: i64,
    live_bytes: &'a AtomicI64,
    no_space: &'a AtomicU64,
}

impl Shared<'_> {
    /// Draws a size that fits in place of `old` bytes.
    fn draw(&self, rng: &mut Rng, old: u64) -> Option<u64> {
        for _ in 0..DRAWS_MAX {
            let bytes = (self.sizes.draw)(rng);
            let change = rounded(bytes) - rounded(old);
            let live = self.live_bytes.fetch_add(change, Ordering::SeqCst) + change;
            if live <= self.target_bytes {
                return Some(bytes);
            }
            self.live_bytes.fetch_sub(change, Ordering::SeqCst);
        }
        None
    }

    fn replace(&self, object: &Object, writer: u64, content: &[u8]) -> Outcome {
        let temporary = format!("/temporary-{writer}");
        for _ in 0..RETRIES_MAX {
            match self
                .side
                .replace(&object.path, &temporary, content, CALL_BYTES)
            {
                Ok(()) => return Ok(()),
                Err(Failure::NoSpace) => {
                    self.no_space.fetch_add(1, Ordering::SeqCst);
                    self.side.sync()?;
                }
                Err(Failure::Other(line)) => return Err(line),
            }
        }
        Err(format!(
            "no space for {} bytes after {RETRIES_MAX} commits",
            content.len()
        ))
    }
}

impl Writer {
    fn load(&mut self, shared: &Shared<'_>) -> Result<u64, String> {
        let mut written = 0;
        while let Some(bytes) = shared.draw(&mut self.rng, 0) {
            let number = self.objects.len();
            let directory = format!("/{}-{}", self.number, number / PER_DIRECTORY);
            if number.is_multiple_of(PER_DIRECTORY) {
                shared.side.make_directory(&directory)?;
            }
            let object = Object {
                id: (self.number << 32) + number as u64,
                path: format!("{directory}/{number}"),
                bytes,
                version: 0,
            };
            self.write(shared, &object)?;
            self.objects.push(object);
            written += bytes;
        }
        Ok(written)
    }

    fn churn(&mut self, shared: &Shared<'_>, share: u64) -> Result<u64, String> {
        let (mut gone, mut written) = (0, 0);
        while gone < share && !self.objects.is_empty() {
            let index = self.rng.below(self.objects.len() as u64) as usize;
            let old = self.objects[index].clone();
            let bytes = shared.draw(&mut self.rng, old.bytes).unwrap_or(old.bytes);
            let object = Object {
                bytes,
                version: old.version + 1,
                ..old
            };
            self.write(shared, &object)?;
            self.objects[index] = object;
            gone += rounded(old.bytes) as u64;
            written += bytes;
        }
        Ok(written)
    }

    fn write(&mut self, shared: &Shared<'_>, object: &Object) -> Outcome {
        let content = &mut self.buffer[..object.bytes as usize];
        content::stamp(content, object.id, object.version);
        shared.replace(object, self.number, content)
    }
}

/// In whole blocks.
fn rounded(bytes: u64) -> i64 {
    bytes.next_multiple_of(BLOCK_BYTES) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sides::Host;

    #[test]
    fn sizes_have_the_means_they_say() {
        for sizes in SIZES {
            let mut rng = Rng::new(1);
            let draws: Vec<u64> = (0..20_000).map(|_| (sizes.draw)(&mut rng)).collect();
            assert!(draws.iter().all(|bytes| *bytes <= sizes.bytes_max));
            let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
            let ratio = mean / sizes.mean_bytes as f64;
            assert!((0.9..1.1).contains(&ratio), "{}: {ratio}", sizes.name);
        }
    }

    #[test]
    fn a_population_stays_within_its_space_and_reads_back() {
        let place = tempfile::tempdir().unwrap();
        let side = Host::create(&place.path().join("plain")).unwrap();
        let target = 4_000_000;
        let mut population = Population::new(SIZES[1], target, 7);
        population.load(&side).unwrap();
        let count = population.object_count();
        assert!(count >= 9, "{count}");
        let phase = population.churn(&side, 2.0).unwrap();
        assert!(phase.user_bytes > target);
        assert_eq!(population.object_count(), count);
        assert!(population.live_bytes.load(Ordering::SeqCst) <= target as i64);
        let mut back = AlignedBuf::zeroed(400_000);
        let read = population.read_some(&side, u64::MAX, 1, &mut back).unwrap();
        assert!(read > target * 3 / 4);
    }
}
