//! Files by many threads on an empty store (\[DBFS\]): write all, read all, remove all, and again.

use crate::backend::Put;
use crate::error::Result;
use crate::workload::Work;
use crate::workload::population::{Population, Step};

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycles {
    /// Size of each object, bytes.
    pub object_bytes: u64,
    /// Threads that write, and that read.
    pub threads: u32,
    /// Bytes of objects ÷ what the empty backend could take, 0 to 1.
    pub occupancy: f64,
    /// Objects, at most.
    pub objects_max: usize,
    /// How often; the first one is the table, all of them are the steady state.
    pub cycles: u32,
    /// The volume, bytes.
    pub volume_bytes: u64,
    /// How programs write.
    pub put: Put,
}

impl Cycles {
    /// Does it.
    pub fn run(&self, work: &mut Work<'_>) -> Result<()> {
        let mut population = Population::default();
        let usable_bytes = work.subject.available_bytes(self.volume_bytes)?;
        let fitting = usable_bytes as f64 * self.occupancy / self.object_bytes as f64;
        let count = (fitting as u64).clamp(1, self.objects_max.max(1) as u64);
        work.figure(0.0, "objects", count as f64)?;
        let keys: Vec<u64> = (0..count).collect();
        let threads = self.threads as usize;
        // In parts, so that it can be stopped.
        let part = (threads * 64).max(1);
        for cycle in 0..self.cycles {
            let share = |step: u32| f64::from(cycle * 3 + step) / f64::from(self.cycles * 3);
            let age = population.age().age();
            let before = work.subject.ground().traffic()?;
            for keys in keys.chunks(part) {
                let bytes = self.object_bytes;
                let steps: Vec<Step> = keys.iter().map(|&key| Step::Put { key, bytes }).collect();
                let outcome = population.apply_with(work, &self.put, &steps, threads);
                if population.tell_full(work, outcome)? {
                    return Ok(());
                }
            }
            let mut figures = population.write_figures(work, &before, self.threads)?;
            (work.on_progress)(share(1));
            work.subject.cold()?;
            let reads = population.read(work, &keys, threads)?;
            figures.extend(reads.measures("read_", self.threads));
            (work.on_progress)(share(2));
            for keys in keys.chunks(part) {
                let steps: Vec<Step> = keys.iter().map(|&key| Step::Delete { key }).collect();
                population.apply_with(work, &self.put, &steps, threads)?;
            }
            let before = work.subject.ground().traffic()?;
            figures.extend(population.write_figures(work, &before, self.threads)?);
            if cycle == 0 {
                work.figures(age, figures.clone())?;
            }
            work.figures_of(age, &[("cycle", cycle.to_string())], figures)?;
        }
        Ok(())
    }
}
