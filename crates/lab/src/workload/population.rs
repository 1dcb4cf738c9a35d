//! The objects of a subject: what should be there, doing something to them, and measuring them at
//! rest.

use crate::age::StorageAge;
use crate::backend::ground::Traffic;
use crate::backend::{Backend, Put};
use crate::error::{Error, Kind, Result, Said};
use crate::measure::holes;
use crate::measure::latency::Latencies;
use crate::measure::layout::{Fragments, Layout};
use crate::measure::markers::{self, Wanted};
use crate::model::{DISKS, Fragment, read_mb_s};
use crate::pattern::Pattern;
use crate::workload::Work;
use larder::AlignedBuf;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Something to do to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Make it, or replace it by its next version, of so many bytes.
    Put {
        /// Which.
        key: u64,
        /// Its new length.
        bytes: u64,
    },
    /// Remove it.
    Delete {
        /// Which.
        key: u64,
    },
}

impl Step {
    fn key(&self) -> u64 {
        match self {
            Step::Put { key, .. } | Step::Delete { key } => *key,
        }
    }
}

/// A look at a store at rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtRest {
    /// The storage age that the figures are filed under.
    pub age: f64,
    /// The volume, bytes, for modelled disks.
    pub volume_bytes: u64,
    /// Objects to read, at most.
    pub reads_max: usize,
    /// Read once more without forgetting what is in memory.
    pub is_warm: bool,
}

/// What should be there.
#[derive(Debug, Default)]
pub struct Population {
    /// By key.
    live: Vec<Option<Wanted>>,
    /// The newest version of each key.
    versions: Vec<u32>,
    age: StorageAge,
    /// Times of puts since they were last taken.
    writes: Latencies,
    /// Times of deletes since they were last taken.
    deletes: Latencies,
    /// Put or removed since the last upkeep, bytes.
    since_upkeep_bytes: u64,
    upkeep: Duration,
}

impl Population {
    /// Storage age and live bytes.
    pub fn age(&self) -> StorageAge {
        self.age
    }

    /// The length of a live object.
    pub fn bytes_of(&self, key: u64) -> Option<u64> {
        self.live.get(key as usize)?.map(|wanted| wanted.bytes)
    }

    /// What to look for, by key.
    pub fn wanted(&self) -> &[Option<Wanted>] {
        &self.live
    }

    /// All keys that live, ascending.
    pub fn keys(&self) -> Vec<u64> {
        let live = self.live.iter().enumerate();
        live.filter(|(_, wanted)| wanted.is_some())
            .map(|(key, _)| key as u64)
            .collect()
    }

    /// A full volume is a result: `full_at_age`, and true. Other failures stay what they are.
    pub fn tell_full(&self, work: &mut Work<'_>, outcome: Result<()>) -> Result<bool> {
        match outcome {
            Err(error) if error.kind == Kind::NoSpace => {
                let age = self.age.age();
                tracing::warn!("full at storage age {age:.2}: {error}");
                work.figure(age, "full_at_age", age)?;
                Ok(true)
            }
            other => other.map(|()| false),
        }
    }

    /// Does `steps`, whose keys differ, all at the same time. [`Kind::NoSpace`]: the volume is full
    /// after its upkeep, too; steps that were done count.
    pub fn apply(&mut self, work: &mut Work<'_>, how: &Put, steps: &[Step]) -> Result<()> {
        self.apply_with(work, how, steps, steps.len())
    }

    /// The same with so many threads, each of which takes the next step when it is done.
    pub fn apply_with(
        &mut self,
        work: &mut Work<'_>,
        how: &Put,
        steps: &[Step],
        threads: usize,
    ) -> Result<()> {
        work.stop.check()?;
        let last = steps.iter().map(Step::key).max().unwrap_or(0) as usize + 1;
        if self.live.len() < last {
            self.live.resize(last, None);
            self.versions.resize(last, 0);
        }
        let backend = work.subject.backend();
        let mut outcomes = self.try_steps(backend, &work.pattern, how, steps, threads);
        let is_full = |outcome: &Result<Duration>| {
            let error = outcome.as_ref().err();
            error.is_some_and(|error| error.kind == Kind::NoSpace)
        };
        for (index, step) in steps.iter().enumerate() {
            if is_full(&outcomes[index]) {
                self.look_after(backend)?;
                let again = self.try_steps(backend, &work.pattern, how, &[*step], 1);
                outcomes[index] = again.into_iter().next().unwrap_or(Ok(Duration::ZERO));
            }
        }
        let mut failure = None;
        for (step, outcome) in steps.iter().zip(outcomes) {
            match outcome {
                Ok(elapsed) => self.note(*step, elapsed),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if backend
            .upkeep_bytes()
            .is_some_and(|bytes| self.since_upkeep_bytes >= bytes)
        {
            self.look_after(backend)?;
        }
        Ok(())
    }

    fn look_after(&mut self, backend: &dyn Backend) -> Result<()> {
        let started = Instant::now();
        backend.upkeep()?;
        self.upkeep += started.elapsed();
        self.since_upkeep_bytes = 0;
        Ok(())
    }

    fn try_steps(
        &self,
        backend: &dyn Backend,
        pattern: &Pattern,
        how: &Put,
        steps: &[Step],
        threads: usize,
    ) -> Vec<Result<Duration>> {
        let run = |step: &Step| {
            let key = step.key();
            let is_replacing = self.live[key as usize].is_some();
            let how = Put {
                is_replacing,
                ..*how
            };
            match step {
                Step::Put { bytes, .. } => {
                    let mut content = Vec::new();
                    let version = self.versions[key as usize] + 1;
                    pattern.fill(key, version, *bytes as usize, &mut content);
                    timed(|| backend.put(key, &content, &how))
                }
                Step::Delete { .. } => timed(|| backend.delete(key)),
            }
        };
        in_threads(steps, threads, run)
    }

    fn note(&mut self, step: Step, elapsed: Duration) {
        let slot = step.key() as usize;
        if let Some(old) = self.live[slot].take() {
            self.age.retire(old.bytes);
            self.since_upkeep_bytes += old.bytes;
        }
        match step {
            Step::Put { bytes, .. } => {
                self.versions[slot] += 1;
                let version = self.versions[slot];
                self.live[slot] = Some(Wanted { version, bytes });
                self.age.put(bytes);
                self.writes.add(elapsed, bytes);
            }
            Step::Delete { .. } => self.deletes.add(elapsed, 0),
        }
    }

    /// Reads the objects `keys` in this order, so many at the same time, and compares each
    /// (`WORKLOAD-1`).
    pub fn read(&self, work: &mut Work<'_>, keys: &[u64], threads: usize) -> Result<Latencies> {
        work.stop.check()?;
        let backend = work.subject.backend();
        let (pattern, stop) = (&work.pattern, work.stop);
        let outcomes = in_threads(keys, threads, |key: &u64| {
            if stop.is_due() {
                return Ok(None);
            }
            BUFFERS.with_borrow_mut(|(buffer, expected)| {
                let elapsed =
                    timed(|| backend.get(*key, buffer)).said(|| format!("object {key}"))?;
                self.verify(pattern, *key, buffer, expected)?;
                Ok(Some((elapsed, buffer.len() as u64)))
            })
        });
        let mut latencies = Latencies::default();
        for outcome in outcomes {
            if let Some((elapsed, bytes)) = outcome? {
                latencies.add(elapsed, bytes);
            }
        }
        work.stop.check()?;
        Ok(latencies)
    }

    fn verify(
        &self,
        pattern: &Pattern,
        key: u64,
        found: &[u8],
        expected: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(wanted) = self.live.get(key as usize).copied().flatten() else {
            return Err(Error::failed(format!("object {key} does not live")));
        };
        pattern.fill(key, wanted.version, wanted.bytes as usize, expected);
        if found == &expected[..] {
            return Ok(());
        }
        let differs = found.iter().zip(expected.iter()).position(|(a, b)| a != b);
        let what = match differs {
            Some(at) => format!("byte {at} is not what was written"),
            None => format!("it has {} bytes of {}", found.len(), wanted.bytes),
        };
        Err(Error::lost(format!(
            "the backend lost data: object {key}, version {}: {what}; it must not be trusted",
            wanted.version
        )))
    }

    /// Figures of the writes since this was last called: rates and times, and what the devices
    /// wrote for them since `before`, up to when everything was at rest.
    pub fn write_figures(
        &mut self,
        work: &mut Work<'_>,
        before: &Traffic,
        writers: u32,
    ) -> Result<Vec<(String, f64)>> {
        let writes = std::mem::take(&mut self.writes);
        let deletes = std::mem::take(&mut self.deletes);
        let bytes = writes.bytes() as f64;
        let mut figures = Vec::new();
        if work.subject.ground().has_device() && bytes > 0.0 {
            // What is still in memory was written for these, too.
            work.subject.cold()?;
            let traffic = work.subject.ground().traffic()?.since(before);
            figures.extend([
                (
                    "write_amplification".to_owned(),
                    traffic.data.write_bytes as f64 / bytes,
                ),
                (
                    "log_amplification".to_owned(),
                    traffic.log.write_bytes as f64 / bytes,
                ),
                (
                    "write_ios_per_object".to_owned(),
                    traffic.data.write_count as f64 / writes.count() as f64,
                ),
            ]);
        }
        let upkeep = std::mem::take(&mut self.upkeep);
        if upkeep > Duration::ZERO {
            figures.push(("upkeep_seconds".to_owned(), upkeep.as_secs_f64()));
        }
        figures.extend(writes.measures("write_", writers));
        figures.extend(deletes.measures("delete_", writers));
        Ok(figures)
    }

    /// Measures everything at rest: where the objects lie, and reading them in random order, cold
    /// and perhaps warm. Each read is verified.
    pub fn measure_at_rest(&self, work: &mut Work<'_>, rest: &AtRest) -> Result<()> {
        let live_bytes = self.age.live_bytes() as f64;
        let keys = self.keys();
        let mut figures = vec![
            ("live_bytes".to_owned(), live_bytes),
            ("objects".to_owned(), keys.len() as f64),
        ];
        if let Some(held) = work.subject.held_bytes()?
            && live_bytes > 0.0
        {
            figures.push(("space_amplification".to_owned(), held as f64 / live_bytes));
        }
        // First what warms caches.
        let told = work.subject.backend().layouts(&keys)?;
        if let Some((name, layouts)) = &told {
            let counted = Fragments::of(layouts);
            if counted.object_count > 0 {
                figures.push((format!("fragments_{name}_mean"), counted.mean));
            }
        }
        let pages = work.subject.backend().pages();
        let (pattern, live) = (work.pattern, &self.live);
        let mut holes = work.subject.backend().holes()?;
        // Of files, the filesystem's free space is the pool.
        let has_files = matches!(&told, Some(("fiemap", _)));
        let filesystem = work.subject.ground().filesystem().filter(|_| has_files);
        let found = work.subject.at_rest(|raw| {
            if let (Some(filesystem), [device]) = (filesystem, raw) {
                holes = holes::of_device(filesystem, device)?;
            }
            Ok(match raw.is_empty() {
                true => None,
                false => Some(markers::scan(raw, &pattern, live, pages)?),
            })
        })?;
        figures.extend(
            holes
                .into_iter()
                .flatten()
                .map(|(power, count)| (format!("hole_blocks_log2.{power}"), count as f64)),
        );
        let mut order = keys.clone();
        work.random.shuffle(&mut order);
        order.truncate(rest.reads_max);
        let found = found.filter(|found| found.found_count > 0);
        if let Some(found) = &found {
            figures.push((
                "markers_found_share".to_owned(),
                found.found_count as f64 / found.expected_count as f64,
            ));
            figures.extend(layout_figures(&found.layouts));
            let in_order: Vec<&Layout> = order
                .iter()
                .map(|key| &found.layouts[*key as usize])
                .collect();
            figures.extend(modelled_figures(rest.volume_bytes, &in_order));
        } else if let Some((_, layouts)) = &told {
            figures.extend(layout_figures(layouts));
        }
        let before = work.subject.ground().traffic()?;
        let cold = self.read(work, &order, 1)?;
        if work.subject.ground().has_device() && cold.count() > 0 {
            let traffic = work.subject.ground().traffic()?.since(&before);
            let count = cold.count() as f64;
            figures.extend([
                (
                    "ios_per_object".to_owned(),
                    traffic.data.read_count as f64 / count,
                ),
                (
                    "read_amplification".to_owned(),
                    traffic.data.read_bytes as f64 / cold.bytes() as f64,
                ),
            ]);
        }
        figures.extend(cold.measures("read_", 1));
        if rest.is_warm {
            figures.extend(self.read(work, &order, 1)?.measures("warm_read_", 1));
        }
        work.figures(rest.age, figures)
    }
}

fn layout_figures(layouts: &[Layout]) -> Vec<(String, f64)> {
    let counted = Fragments::of(layouts);
    [
        ("fragments_mean", counted.mean),
        ("fragments_p50", counted.p50 as f64),
        ("fragments_p99", counted.p99 as f64),
        ("fragments_max", counted.max as f64),
        ("layout_score", counted.layout_score),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn modelled_figures(volume_bytes: u64, layouts: &[&Layout]) -> Vec<(String, f64)> {
    let objects: Vec<Vec<Fragment>> = layouts
        .iter()
        .map(|layout| layout.fragments().to_vec())
        .collect();
    let modelled = DISKS.iter().filter_map(|disk| {
        let rate = read_mb_s(disk, volume_bytes, &objects)?;
        Some((format!("modelled_read_mb_s.{}", disk.id), rate))
    });
    modelled.collect()
}

thread_local! {
    /// What a thread reads into, and what it compares with: both are used again.
    static BUFFERS: RefCell<(AlignedBuf, Vec<u8>)> = RefCell::default();
}

/// Calls `run` with every item, in so many threads; the outcomes in the order of the items.
fn in_threads<I: Sync, O: Send>(
    items: &[I],
    threads: usize,
    run: impl Fn(&I) -> Result<O> + Sync,
) -> Vec<Result<O>> {
    if threads <= 1 || items.len() <= 1 {
        return items.iter().map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            match items.get(index) {
                Some(item) => done.push((index, run(item))),
                None => return done,
            }
        }
    };
    let mut outcomes = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(items.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}
