//! What a run is asked for: an experiment, its parameters, and the cases that follow from them.
//!
//! Request has more than 20 fields: each is one parameter of a run.

use crate::backend::spec::Where;
use crate::backend::{Put, Spec};
use crate::error::{Error, Result};
use crate::results::Record;
use crate::sizes::Sizes;
use crate::workload::age::Aging;
use crate::workload::cluster::Transactions;
use crate::workload::dbfs::Cycles;
use crate::workload::trace::{Op, Replay, read_history, read_trace};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The questions of the laboratory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experiment {
    /// How stores age.
    Age,
    /// Below which size a row is faster, above which a file.
    BreakEven,
    /// How large volume and pool of free objects must be.
    Volume,
    /// What the size of write requests does.
    WriteSize,
    /// Files by many threads: write, read, remove.
    Dbfs,
    /// PostgreSQL over filesystem and block.
    Cluster,
    /// The history of a git repository.
    Git,
    /// A trace.
    Trace,
}

impl Experiment {
    /// All of them.
    pub const ALL: [Experiment; 8] = [
        Experiment::Age,
        Experiment::BreakEven,
        Experiment::Volume,
        Experiment::WriteSize,
        Experiment::Dbfs,
        Experiment::Cluster,
        Experiment::Git,
        Experiment::Trace,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Age => "age",
            Experiment::BreakEven => "break-even",
            Experiment::Volume => "volume",
            Experiment::WriteSize => "write-size",
            Experiment::Dbfs => "dbfs",
            Experiment::Cluster => "cluster",
            Experiment::Git => "git",
            Experiment::Trace => "trace",
        }
    }

    /// Whether objects are replaced at random on a volume that stays as full as it is.
    fn is_aging(self) -> bool {
        matches!(
            self,
            Experiment::Age | Experiment::BreakEven | Experiment::Volume | Experiment::WriteSize
        )
    }

    /// What it asks, for people.
    pub fn question(self) -> &'static str {
        match self {
            Experiment::Age => "how reading, writing and fragments change as objects are replaced",
            Experiment::BreakEven => "below which size a row, above which a file or an extent",
            Experiment::Volume => "how full is too full, and how large the free pool must be",
            Experiment::WriteSize => "what the size of write requests does to the layout",
            Experiment::Dbfs => {
                "file size and concurrency: write, read and remove, again and again"
            }
            Experiment::Cluster => "PostgreSQL's transactions over filesystem and block size",
            Experiment::Git => "aging by the history of a git repository (--repository)",
            Experiment::Trace => "aging by a trace of one's own (--trace)",
        }
    }
}

/// What a run is asked for. Lists make a case for each combination.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The question.
    pub experiment: Experiment,
    /// The systems.
    pub backends: Vec<Spec>,
    /// Mean sizes of objects, bytes.
    pub objects: Vec<u64>,
    /// Their distributions.
    pub sizes: Vec<Sizes>,
    /// Bytes of objects ÷ what the empty backend could take.
    pub occupancies: Vec<f64>,
    /// Storage ages at which to look.
    pub ages: Vec<f64>,
    /// Sizes of the volume, bytes.
    pub volumes: Vec<u64>,
    /// Sizes of write requests, bytes.
    pub requests: Vec<u64>,
    /// Numbers of interleaved writers.
    pub writers: Vec<u32>,
    /// Backends are told the length of objects first.
    pub is_size_known: bool,
    /// Neighbours that are deleted together and come again; 1: safe writes.
    pub group: u64,
    /// Objects that are read at each age, at most.
    pub reads_max: usize,
    /// Read warm, too.
    pub is_warm: bool,
    /// Repetitions.
    pub rounds: u32,
    /// Of everything that is random.
    pub seed: u64,
    /// Leave out what tells of time: for volumes in memory.
    pub is_layout_only: bool,
    /// Also where the volume is too small for the objects.
    pub is_forced: bool,
    /// `dbfs`: how often all is written, read and removed.
    pub cycles: u32,
    /// `cluster`: transactions of each action.
    pub transactions: u32,
    /// `cluster`: statements in each.
    pub statements: u32,
    /// `git`, `trace`: what is replayed.
    pub source: Option<PathBuf>,
    /// `git`: commits, at most.
    pub commits: usize,
    /// `git`, `trace`: how often to look at the store.
    pub looks: u32,
}

impl Request {
    /// What is done if nothing else is said: at most three minutes and 3 GB, and the papers' effect
    /// shows.
    pub fn new(experiment: Experiment) -> Result<Request> {
        const KIB: u64 = 1024;
        let names: &[&str] = match experiment {
            Experiment::Age => &["larder", "ext4", "xfs", "sqlite", "postgres"],
            Experiment::Dbfs => &["larder", "larder-mount", "ext4"],
            Experiment::Cluster => &["ext2", "ext3", "ext4", "xfs", "ntfs"],
            _ => &["larder", "ext4", "sqlite"],
        };
        let mut request = Request {
            experiment,
            backends: names
                .iter()
                .map(|name| Spec::parse(name))
                .collect::<Result<_>>()?,
            objects: vec![256 * KIB],
            sizes: vec![Sizes::Uniform],
            occupancies: vec![0.9],
            ages: vec![0.0, 1.0, 2.0],
            volumes: vec![512 * KIB * KIB],
            requests: vec![64 * KIB],
            writers: vec![1],
            is_size_known: false,
            group: 1,
            reads_max: 2000,
            is_warm: false,
            rounds: 1,
            seed: 1,
            is_layout_only: false,
            is_forced: false,
            cycles: 2,
            transactions: 50,
            statements: 1000,
            source: None,
            commits: 50,
            looks: 4,
        };
        match experiment {
            Experiment::Age => {}
            Experiment::BreakEven => {
                request.objects = [4, 16, 64, 256].map(|kib| kib * KIB).to_vec();
                request.volumes = vec![320 * KIB * KIB];
                request.ages = vec![0.0, 1.0];
                request.occupancies = vec![0.5];
                request.is_warm = true;
            }
            Experiment::Volume => {
                request.occupancies = vec![0.5, 0.9];
                request.volumes = vec![320 * KIB * KIB, 640 * KIB * KIB];
                request.ages = vec![0.0, 1.0];
            }
            Experiment::WriteSize => {
                request.requests = [16, 64, 256].map(|kib| kib * KIB).to_vec();
                request.ages = vec![0.0, 1.0];
                request.writers = vec![4];
            }
            Experiment::Dbfs => {
                request.objects = vec![10_000, 100_000, 1_000_000];
                request.sizes = vec![Sizes::Constant];
                request.writers = vec![1, 8];
                request.occupancies = vec![0.1];
                request.reads_max = 1000;
            }
            Experiment::Cluster | Experiment::Git | Experiment::Trace => {}
        }
        Ok(request)
    }

    /// Refuses what makes no sense, or would mean nothing.
    pub fn check(&self) -> Result<()> {
        let is_empty = self.backends.is_empty()
            || self.objects.is_empty()
            || self.ages.is_empty()
            || self.rounds == 0;
        if is_empty {
            return Err(Error::failed(
                "there is nothing to measure; name at least one of each",
            ));
        }
        if !self.ages.is_sorted() || self.ages[0] < 0.0 {
            return Err(Error::failed("storage ages must ascend from 0, like 0,2,4"));
        }
        if let Some(wrong) = self
            .occupancies
            .iter()
            .find(|share| !(0.01..=0.995).contains(*share))
        {
            return Err(Error::failed(format!(
                "an occupancy of {} % makes no sense; write 1 to 99.5",
                wrong * 100.0
            )));
        }
        if self.objects.contains(&0) || self.requests.contains(&0) || self.writers.contains(&0) {
            return Err(Error::failed("sizes and numbers of writers begin at 1"));
        }
        if self.cycles == 0 || self.transactions == 0 || self.statements == 0 || self.looks == 0 {
            return Err(Error::failed(
                "numbers of cycles, transactions, statements and looks begin at 1",
            ));
        }
        if !self.experiment.is_aging() {
            return Ok(());
        }
        // What fits no volume of this size, whatever lies on it; each store is looked at again when
        // it is made.
        let means_something = |aging: &Aging| aging.check(aging.volume_bytes);
        self.agings().iter().try_for_each(means_something)
    }

    /// By the names of their flags.
    pub fn parameters(&self) -> BTreeMap<String, String> {
        let backends: Vec<&str> = self.backends.iter().map(Spec::shown).collect();
        let sizes: Vec<&str> = self.sizes.iter().map(|sizes| sizes.name()).collect();
        let percent = self.occupancies.iter().map(|share| share * 100.0);
        let servers = self.backends.iter().filter_map(Spec::server_identity);
        let servers: Vec<String> = servers.map(|server| hash(&server)).collect();
        let told = [
            // Not the address: it is nobody's business. But another server is another run.
            ("servers", servers.join(",")),
            ("backends", backends.join(",")),
            ("objects", list(self.objects.iter())),
            ("sizes", sizes.join(",")),
            ("occupancy", list(percent)),
            ("ages", list(self.ages.iter())),
            ("volume", list(self.volumes.iter())),
            ("request", list(self.requests.iter())),
            ("writers", list(self.writers.iter())),
            ("known-size", self.is_size_known.to_string()),
            ("group", self.group.to_string()),
            ("reads", self.reads_max.to_string()),
            ("warm", self.is_warm.to_string()),
            ("rounds", self.rounds.to_string()),
            ("layout-only", self.is_layout_only.to_string()),
            ("force", self.is_forced.to_string()),
            ("cycles", self.cycles.to_string()),
            ("transactions", self.transactions.to_string()),
            ("statements", self.statements.to_string()),
            (
                "source",
                self.source
                    .as_ref()
                    .map_or_else(String::new, |path| path.display().to_string()),
            ),
            ("commits", self.commits.to_string()),
            ("looks", self.looks.to_string()),
        ];
        let is_told = |(name, value): &(&str, String)| *name != "servers" || !value.is_empty();
        let told = told.into_iter().filter(is_told);
        told.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The cases on `backends`, in the order in which they are measured.
    pub fn cases(&self, backends: &[Spec]) -> Result<Vec<Case>> {
        let workloads = self.workloads()?;
        let mut cases = Vec::new();
        for round in 0..self.rounds {
            for (index, workload) in workloads.iter().enumerate() {
                let mut order: Vec<&Spec> = backends.iter().collect();
                // RUN-2
                if (round as usize + index) % 2 == 1 {
                    order.reverse();
                }
                for spec in order {
                    let mut parameters = workload.parameters();
                    if let Where::Volume(filesystem) = &spec.place
                        && let Some(bytes) = filesystem.block_bytes
                    {
                        parameters.insert("block_bytes".to_owned(), bytes.to_string());
                    }
                    cases.push(Case {
                        experiment: self.experiment,
                        spec: spec.clone(),
                        round,
                        parameters,
                        workload: workload.clone(),
                    });
                }
            }
        }
        Ok(cases)
    }

    fn workloads(&self) -> Result<Vec<Workload>> {
        let put = Put {
            is_replacing: false,
            request_bytes: self.requests[0] as usize,
            is_size_known: self.is_size_known,
        };
        let source = || {
            self.source.as_deref().ok_or_else(|| {
                Error::failed(
                    "name what is replayed: --repository DIR for git, --trace FILE for trace",
                )
            })
        };
        let replay = |ops: Vec<Op>| {
            let volumes = self.volumes.iter();
            let of_volume = |volume_bytes: &u64| {
                Workload::Replay(Replay {
                    ops: ops.clone(),
                    looks: self.looks,
                    volume_bytes: *volume_bytes,
                    put,
                    reads_max: self.reads_max,
                    is_warm: self.is_warm,
                })
            };
            volumes.map(of_volume).collect()
        };
        Ok(match self.experiment {
            Experiment::Git => replay(read_history(source()?, self.commits)?),
            Experiment::Trace => replay(read_trace(source()?)?),
            Experiment::Cluster => {
                let transactions = Transactions {
                    transactions: self.transactions,
                    statements: self.statements,
                };
                let of_volume = |bytes: &u64| Workload::Transactions(transactions.clone(), *bytes);
                self.volumes.iter().map(of_volume).collect()
            }
            Experiment::Dbfs => {
                let cycles = |aging: Aging| {
                    Workload::Cycles(Cycles {
                        object_bytes: aging.object_bytes,
                        threads: aging.writers,
                        occupancy: aging.occupancy,
                        objects_max: self.reads_max,
                        cycles: self.cycles,
                        volume_bytes: aging.volume_bytes,
                        put: aging.put,
                    })
                };
                self.agings().into_iter().map(cycles).collect()
            }
            _ => self.agings().into_iter().map(Workload::Age).collect(),
        })
    }

    fn agings(&self) -> Vec<Aging> {
        let mut agings = Vec::new();
        for &volume_bytes in &self.volumes {
            for &occupancy in &self.occupancies {
                for &object_bytes in &self.objects {
                    for &sizes in &self.sizes {
                        for &request_bytes in &self.requests {
                            for &writers in &self.writers {
                                agings.push(Aging {
                                    object_bytes,
                                    sizes,
                                    occupancy,
                                    ages: self.ages.clone(),
                                    volume_bytes,
                                    put: Put {
                                        is_replacing: false,
                                        request_bytes: request_bytes as usize,
                                        is_size_known: self.is_size_known,
                                    },
                                    writers,
                                    group: self.group,
                                    reads_max: self.reads_max,
                                    is_warm: self.is_warm,
                                    is_forced: self.is_forced,
                                });
                            }
                        }
                    }
                }
            }
        }
        agings
    }
}

fn list(values: impl Iterator<Item = impl ToString>) -> String {
    values
        .map(|value| value.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// FNV-1a.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn hash(text: &str) -> String {
    format!("{:016x}", fnv(text))
}

/// What a case does.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// Aging.
    Age(Aging),
    /// Write, read, remove.
    Cycles(Cycles),
    /// PostgreSQL on a volume of so many bytes.
    Transactions(Transactions, u64),
    /// What was done elsewhere.
    Replay(Replay),
}

impl Workload {
    /// The volume, bytes.
    pub fn volume_bytes(&self) -> u64 {
        match self {
            Workload::Age(aging) => aging.volume_bytes,
            Workload::Cycles(cycles) => cycles.volume_bytes,
            Workload::Transactions(_, volume_bytes) => *volume_bytes,
            Workload::Replay(replay) => replay.volume_bytes,
        }
    }

    /// As records have them.
    fn parameters(&self) -> BTreeMap<String, String> {
        let mut parameters = BTreeMap::new();
        let mut set = |name: &str, value: String| {
            parameters.insert(name.to_owned(), value);
        };
        set("volume_bytes", self.volume_bytes().to_string());
        match self {
            Workload::Age(aging) => {
                set("object_bytes", aging.object_bytes.to_string());
                set("sizes", aging.sizes.name().to_owned());
                set("occupancy", aging.occupancy.to_string());
                set("request_bytes", aging.put.request_bytes.to_string());
                set("writers", aging.writers.to_string());
                set("size_known", aging.put.is_size_known.to_string());
                if aging.group > 1 {
                    set("group", aging.group.to_string());
                }
            }
            Workload::Cycles(cycles) => {
                set("object_bytes", cycles.object_bytes.to_string());
                set("occupancy", cycles.occupancy.to_string());
                set("request_bytes", cycles.put.request_bytes.to_string());
                set("writers", cycles.threads.to_string());
                set("size_known", cycles.put.is_size_known.to_string());
            }
            Workload::Transactions(transactions, _) => {
                set("statements", transactions.statements.to_string());
            }
            Workload::Replay(replay) => {
                set("operations", replay.ops.len().to_string());
                set("request_bytes", replay.put.request_bytes.to_string());
                set("size_known", replay.put.is_size_known.to_string());
            }
        }
        parameters
    }

    /// For people.
    fn label(&self) -> String {
        match self {
            Workload::Age(aging) => format!(
                "{} KiB {}, {} % of {} MiB",
                aging.object_bytes >> 10,
                aging.sizes.name(),
                aging.occupancy * 100.0,
                aging.volume_bytes >> 20
            ),
            Workload::Cycles(cycles) => format!(
                "{} KiB by {} threads",
                cycles.object_bytes >> 10,
                cycles.threads
            ),
            Workload::Transactions(transactions, _) => format!(
                "{} transactions of {} statements",
                transactions.transactions, transactions.statements
            ),
            Workload::Replay(replay) => format!("{} operations", replay.ops.len()),
        }
    }

    /// How long it takes, in units of its own: about the bytes that it writes.
    fn weight(&self) -> f64 {
        match self {
            Workload::Age(aging) => {
                let last_age = aging.ages.last().copied().unwrap_or(0.0);
                aging.volume_bytes as f64 * aging.occupancy * (1.0 + last_age)
            }
            Workload::Cycles(cycles) => {
                let bytes = cycles.volume_bytes as f64 * cycles.occupancy;
                let all = bytes.min(cycles.objects_max as f64 * cycles.object_bytes as f64);
                all * f64::from(cycles.cycles)
            }
            Workload::Transactions(transactions, _) => {
                f64::from(transactions.transactions) * f64::from(transactions.statements)
            }
            Workload::Replay(replay) => replay.ops.len() as f64,
        }
    }
}

/// One set of parameters on one backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The question.
    pub experiment: Experiment,
    /// The backend.
    pub spec: Spec,
    /// Repetition, from 0.
    pub round: u32,
    /// As records have them.
    pub parameters: BTreeMap<String, String>,
    /// What it does.
    pub workload: Workload,
}

impl Case {
    /// Whether a record is of this case.
    pub fn is_of(&self, record: &Record) -> bool {
        (&self.spec.name, self.round, &self.parameters)
            == (&record.backend, record.round, &record.case)
    }

    /// Whether another one is the same in another round.
    pub fn repeats(&self, other: &Case) -> bool {
        (&self.spec, &self.parameters) == (&other.spec, &other.parameters)
    }

    /// The seed of what is random in it: the same for all backends (`RUN-2`), and in all versions
    /// of Rust.
    pub fn seed(&self, seed: u64) -> u64 {
        let shared = self
            .parameters
            .iter()
            .filter(|(name, _)| *name != "block_bytes");
        let text: String = shared
            .map(|(name, value)| format!("{name}={value};"))
            .collect();
        fnv(&format!("{seed};{};{text}", self.round))
    }

    /// For people.
    pub fn label(&self) -> String {
        format!(
            "{}, {}, round {}",
            self.spec.shown(),
            self.workload.label(),
            self.round + 1
        )
    }

    /// How long it takes, in units that all cases of a run share.
    pub fn weight(&self) -> f64 {
        self.workload.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ground::LOG_VOLUME_BYTES;

    /// The help promises at most 3 minutes and 3 GB. One store is there at a time; the minutes are
    /// 3 where 50 MB/s are written and 2000 objects a second, which a disk of ten years ago does.
    #[test]
    fn the_defaults_are_small() {
        for experiment in Experiment::ALL {
            let request = Request::new(experiment).unwrap();
            request.check().unwrap();
            let stores = request.volumes.iter().map(|bytes| bytes + LOG_VOLUME_BYTES);
            assert!(stores.max() <= Some(3_000_000_000), "{experiment:?}");
            let (mut bytes, mut objects) = (0.0, 0.0);
            for aging in request.agings().iter().filter(|_| experiment.is_aging()) {
                let age = aging.ages.last().copied().unwrap_or_default();
                let written = aging.volume_bytes as f64 * aging.occupancy * (1.0 + age);
                bytes += written;
                objects += written / aging.object_bytes as f64;
            }
            let count = f64::from(request.rounds) * request.backends.len() as f64;
            assert!(bytes * count <= 9e9, "{experiment:?}: {bytes} × {count}");
            assert!(
                objects * count <= 360e3,
                "{experiment:?}: {objects} × {count}"
            );
        }
    }
}
