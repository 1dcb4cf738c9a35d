//! Aging (\[BLOB\], \[FRAG\]): load to an occupancy, replace at random, and look at the store at
//! rest at each age.

use crate::backend::Put;
use crate::error::{Error, Result};
use crate::sizes::Sizes;
use crate::workload::population::{AtRest, Population, Step};
use crate::workload::{FREE_POOL_OBJECTS_MIN, Work};

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Aging {
    /// Mean size of the objects, bytes.
    pub object_bytes: u64,
    /// Their distribution.
    pub sizes: Sizes,
    /// Bytes of objects ÷ what the empty backend could take, 0 to 1. Never exceeded.
    pub occupancy: f64,
    /// Storage ages at which to look, ascending.
    pub ages: Vec<f64>,
    /// The volume, bytes.
    pub volume_bytes: u64,
    /// How programs write.
    pub put: Put,
    /// So many write at the same time.
    pub writers: u32,
    /// So many neighbours go at once and come again, one after the other; 1: each is replaced by a
    /// safe write.
    pub group: u64,
    /// Objects that are read at each age, at most.
    pub reads_max: usize,
    /// Read once more without forgetting what is in memory.
    pub is_warm: bool,
    /// Also where the free space holds less than [`FREE_POOL_OBJECTS_MIN`] objects.
    pub is_forced: bool,
}

impl Aging {
    /// What would mean nothing on `usable_bytes`, as an error of the kind
    /// [`crate::error::Kind::Cannot`].
    pub fn check(&self, usable_bytes: u64) -> Result<()> {
        let free = usable_bytes as f64 * (1.0 - self.occupancy) / self.object_bytes as f64;
        if self.is_forced || free >= FREE_POOL_OBJECTS_MIN as f64 {
            return Ok(());
        }
        Err(Error::cannot(format!(
            "a store of {} MiB ({} MiB usable) that is {} % full has room for {free:.0} more \
             objects of {} KiB, and with \
             less than {FREE_POOL_OBJECTS_MIN} a run means nothing; take a larger --volume, \
             smaller --objects, less \
             --occupancy, or --force",
            self.volume_bytes >> 20,
            usable_bytes >> 20,
            self.occupancy * 100.0,
            self.object_bytes >> 10
        )))
    }

    /// Does it.
    pub fn run(&self, work: &mut Work<'_>) -> Result<()> {
        let mut population = Population::default();
        let usable_bytes = work.subject.available_bytes(self.volume_bytes)?;
        // What the filesystem and the backend keep for themselves is known only now.
        self.check(usable_bytes)?;
        work.figure(0.0, "usable_bytes", usable_bytes as f64)?;
        let target_bytes = (usable_bytes as f64 * self.occupancy) as u64;
        let last_age = self.ages.last().copied().unwrap_or(0.0);
        let mut before = work.subject.ground().traffic()?;
        let outcome = self.load(work, &mut population, target_bytes, last_age);
        let mut is_full = population.tell_full(work, outcome)?;
        let figures = population.write_figures(work, &before, self.writers)?;
        work.figures(0.0, figures)?;
        // What loading wrote belongs to no later age.
        before = work.subject.ground().traffic()?;
        for &age in &self.ages {
            if !is_full {
                let outcome = self.rewrite(work, &mut population, target_bytes, age, last_age);
                is_full = population.tell_full(work, outcome)?;
            }
            // The age that was asked for, which the last replacement has met or passed by an
            // object.
            let now = if is_full { population.age().age() } else { age };
            let figures = population.write_figures(work, &before, self.writers)?;
            work.figures(now, figures)?;
            let free_bytes = usable_bytes.saturating_sub(population.age().live_bytes());
            let free_objects = free_bytes as f64 / self.object_bytes as f64;
            work.figure(now, "free_pool_objects", free_objects)?;
            let rest = AtRest {
                age: now,
                volume_bytes: self.volume_bytes,
                reads_max: self.reads_max,
                is_warm: self.is_warm,
            };
            population.measure_at_rest(work, &rest)?;
            if is_full {
                return Ok(());
            }
            before = work.subject.ground().traffic()?;
        }
        Ok(())
    }

    fn load(
        &self,
        work: &mut Work<'_>,
        population: &mut Population,
        target_bytes: u64,
        last_age: f64,
    ) -> Result<()> {
        let mut key = 0;
        loop {
            let mut steps = Vec::new();
            let mut live_bytes = population.age().live_bytes();
            while steps.len() < self.writers as usize {
                let bytes = self.sizes.draw(self.object_bytes, &mut work.random);
                live_bytes += bytes;
                if live_bytes > target_bytes {
                    break;
                }
                steps.push(Step::Put { key, bytes });
                key += 1;
            }
            if steps.is_empty() {
                return Ok(());
            }
            population.apply(work, &self.put, &steps)?;
            let loaded = population.age().live_bytes() as f64 / target_bytes as f64;
            (work.on_progress)(loaded / (1.0 + last_age));
        }
    }

    fn rewrite(
        &self,
        work: &mut Work<'_>,
        population: &mut Population,
        target_bytes: u64,
        until_age: f64,
        last_age: f64,
    ) -> Result<()> {
        let count = population.keys().len() as u64;
        while population.age().age() < until_age && count > 0 {
            let group = self.group.clamp(1, count);
            let mut capacity_bytes = target_bytes.saturating_sub(population.age().live_bytes());
            let keys: Vec<u64> = if group > 1 {
                let first = work.random.u64(0..=count - group);
                let deletes: Vec<Step> = (first..first + group)
                    .map(|key| Step::Delete { key })
                    .collect();
                for step in deletes.chunks(1) {
                    capacity_bytes += step_bytes(population, step);
                    population.apply(work, &self.put, step)?;
                }
                (first..first + group).collect()
            } else {
                let mut keys: Vec<u64> = Vec::new();
                while keys.len() < (self.writers as usize).min(count as usize) {
                    let key = work.random.u64(0..count);
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                keys
            };
            let mut steps = Vec::new();
            for key in keys {
                capacity_bytes += population.bytes_of(key).unwrap_or(0);
                let bytes = self.draw_within(work, capacity_bytes);
                capacity_bytes = capacity_bytes.saturating_sub(bytes);
                steps.push(Step::Put { key, bytes });
            }
            for steps in steps.chunks(self.writers.max(1) as usize) {
                population.apply(work, &self.put, steps)?;
            }
            (work.on_progress)((1.0 + population.age().age()) / (1.0 + last_age));
        }
        Ok(())
    }

    /// A size that keeps the occupancy: drawn anew a few times, else what there is room for.
    fn draw_within(&self, work: &mut Work<'_>, capacity_bytes: u64) -> u64 {
        (0..8)
            .map(|_| self.sizes.draw(self.object_bytes, &mut work.random))
            .find(|bytes| *bytes <= capacity_bytes)
            .unwrap_or(capacity_bytes)
            .max(1)
    }
}

fn step_bytes(population: &Population, steps: &[Step]) -> u64 {
    steps
        .iter()
        .map(|step| match step {
            Step::Delete { key } => population.bytes_of(*key).unwrap_or(0),
            Step::Put { .. } => 0,
        })
        .sum()
}
