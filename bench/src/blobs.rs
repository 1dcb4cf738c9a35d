//! `bench blobs`: content put and got, beside SQLite and PostgreSQL with content in rows.

use larder::AlignedBuf;
use larder_testkit::Rng;

use super::blob_store::BlobStore;
use super::blobs_postgres::Postgres;
use super::blobs_sqlite::Sqlite;
use super::content;
use super::report::{Comparison, Goal, Report, Samples};
use super::setting::{Setting, alternate, shuffle, timed};
use super::sides::{Api, Side};
use xtask::Outcome;

const SIZES: [(&str, usize); 6] = [
    ("4 KB", 4096),
    ("10 KB", 10_000),
    ("64 KB", 65_536),
    ("256 KB", 262_144),
    ("1 MB", 1_000_000),
    ("10 MB", 10_000_000),
];
/// Objects in one transaction at most.
const BATCH: u64 = 64;

/// One row of the table.
struct Load {
    name: &'static str,
    bytes: usize,
    per_commit: u64,
    count: u64,
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let part_bytes: u64 = setting.options.choose(4_000_000, 8_000_000, 32_000_000);
    let batch_bytes: u64 = setting.options.choose(30_000_000, 64_000_000, 64_000_000);
    let mut report = Report::new(
        "blobs",
        &format!(
            "{} {rounds} rounds, sides in turns, one thread; objects per second. SQLite {}: \
             bundled, WAL, synchronous=FULL, \
             pages of 16 KiB, 256 MiB of cache, mmap, checkpoints every 4000 pages, INTEGER \
             PRIMARY KEY. PostgreSQL: private \
             cluster, bytea EXTERNAL, 512 MB of shared buffers, 4 GB of WAL before a checkpoint, \
             COPY BINARY for many and INSERT for \
             one per transaction, over a Unix socket. Puts are durable; {BATCH} per transaction, \
             at 10 MB {}. A phase of puts is shorter than the way to a \
             checkpoint; \"checkpointed\" adds what it left for one: SQLite and PostgreSQL wrote \
             content to their logs only. Warm gets: what was put \
             in the same round, in random order; cold gets: opened anew, caches dropped. The \
             ratio is to the faster one of the two.",
            setting.machine()?,
            rusqlite::version(),
            batch_bytes / 10_000_000,
        ),
    );
    let place = setting.directory()?;
    let mut buffer = content::noise(7, 10_000_000);
    let mut back = AlignedBuf::zeroed(10_000_001);
    setting.watch_memory(20_000_000)?;
    let mut stores: [Box<dyn BlobStore>; 3] = [
        Box::new(Larder {
            api: Box::new(Api::create(&place.path().join("api.larder"), None)?),
        }),
        Box::new(Sqlite::create(place.path())?),
        Box::new(Postgres::create(place.path())?),
    ];
    let (mut puts, mut settled) = (Vec::new(), Vec::new());
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for load in loads(part_bytes, batch_bytes) {
        let mut put_rates: [Samples; 3] = Default::default();
        let mut settled_rates: [Samples; 3] = Default::default();
        let mut warm_rates: [Samples; 3] = Default::default();
        let mut cold_rates: [Samples; 3] = Default::default();
        let is_batched = load.per_commit > 1;
        // The first round grows files and warms up; it is not counted.
        alternate(rounds + 1, 3, |round, index| {
            let store = &mut *stores[index];
            let name = format!("t_{}_{}_{round}", load.bytes, load.per_commit);
            store.make(&name)?;
            let put_time = timed(|| put(store, &name, &load, &mut buffer[..load.bytes]))?;
            let note = |rates: &mut [Samples; 3], time: std::time::Duration| {
                if round > 0 {
                    rates[index].0.push(load.count as f64 / time.as_secs_f64());
                }
            };
            note(&mut put_rates, put_time);
            let settle_time = timed(|| store.settle())?;
            note(&mut settled_rates, put_time + settle_time);
            if is_batched {
                let seed = round as u64;
                let time = timed(|| get(store, &name, &load, seed, &mut back))?;
                note(&mut warm_rates, time);
                if setting.drops_caches {
                    store.forget()?;
                    setting.cool()?;
                    let time = timed(|| get(store, &name, &load, seed, &mut back))?;
                    note(&mut cold_rates, time);
                }
            }
            store.remove(&name)
        })?;
        let compare = |what: String, rates: [Samples; 3]| {
            let [ours, sqlite, postgres] = rates;
            Comparison {
                what,
                ours,
                rivals: vec![(stores[1].name(), sqlite), (stores[2].name(), postgres)],
                limits: Vec::new(),
                goal: Some(Goal::AtLeast(1.0)),
            }
        };
        let what = format!("put {}, {} per transaction", load.name, load.per_commit);
        puts.push(compare(what.clone(), put_rates));
        settled.push(compare(format!("{what}, checkpointed"), settled_rates));
        if is_batched {
            warm.push(compare(format!("get {}, warm", load.name), warm_rates));
        }
        if is_batched && setting.drops_caches {
            cold.push(compare(format!("get {}, cold", load.name), cold_rates));
        }
        eprintln!(
            "bench blobs: {}, {} per transaction, done",
            load.name, load.per_commit
        );
    }
    puts.append(&mut settled);
    puts.append(&mut warm);
    puts.append(&mut cold);
    report.compare("API", "objects/s", &puts);
    report.note(
        "SQLite's cache is in the API process, too, and counts in the line below: at most 256 \
         MiB, and what it maps.",
    );
    setting.report_memory(&mut report)?;
    for store in stores {
        store.close()?;
    }
    Ok(report)
}

/// Every size with many and with one per transaction.
fn loads(part_bytes: u64, batch_bytes: u64) -> Vec<Load> {
    let mut loads = Vec::new();
    for (name, bytes) in SIZES {
        let batch = BATCH.min(batch_bytes / bytes as u64).max(2);
        let batches = (part_bytes / bytes as u64 / batch).clamp(1, 16);
        loads.push(Load {
            name,
            bytes,
            per_commit: batch,
            count: batches * batch,
        });
        loads.push(Load {
            name,
            bytes,
            per_commit: 1,
            count: (part_bytes / bytes as u64).clamp(3, 128),
        });
    }
    loads
}

fn put(store: &mut dyn BlobStore, place: &str, load: &Load, content: &mut [u8]) -> Outcome {
    (0..load.count)
        .step_by(load.per_commit as usize)
        .try_for_each(|first| store.put(place, first..first + load.per_commit, content))
}

fn get(
    store: &mut dyn BlobStore,
    place: &str,
    load: &Load,
    seed: u64,
    back: &mut AlignedBuf,
) -> Outcome {
    let mut order: Vec<u64> = (0..load.count).collect();
    shuffle(&mut order, &mut Rng::new(seed));
    for id in order {
        let len = store.get(place, id, back)?;
        content::verify(&back[..len], id, 0, load.bytes)?;
    }
    Ok(())
}

/// The Content API.
struct Larder {
    api: Box<Api>,
}

impl BlobStore for Larder {
    fn name(&self) -> &'static str {
        "API"
    }

    fn make(&mut self, place: &str) -> Outcome {
        self.api.make_directory(&format!("/{place}"))
    }

    fn put(&mut self, place: &str, ids: std::ops::Range<u64>, content: &mut [u8]) -> Outcome {
        let is_single = ids.end - ids.start == 1;
        for id in ids {
            content::stamp(content, id, 0);
            let path = format!("/{place}/{id}");
            match is_single {
                true => return self.api.put_durably(&path, content),
                false => self.api.put(&path, content)?,
            }
        }
        self.api.sync()
    }

    fn get(&mut self, place: &str, id: u64, buffer: &mut AlignedBuf) -> Result<usize, String> {
        self.api.get(&format!("/{place}/{id}"), buffer)
    }

    /// Content is in its place when it is durable; only the catalog's small log is left for later.
    fn settle(&mut self) -> Outcome {
        self.api.sync()
    }

    fn remove(&mut self, place: &str) -> Outcome {
        self.api.remove_directory(&format!("/{place}"))?;
        self.api.sync()
    }

    fn forget(&mut self) -> Outcome {
        self.api.forget()
    }

    fn close(self: Box<Self>) -> Outcome {
        self.api.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_ends_with_a_whole_transaction() {
        for load in loads(4_000_000, 30_000_000) {
            assert!(load.count > 0 && load.count.is_multiple_of(load.per_commit));
        }
        assert_eq!(loads(4_000_000, 30_000_000)[10].per_commit, 3);
    }
}
