//! The verbs and flags of `larder lab`.
//!
//! LabRunArgs has more than 20 fields: each is one flag of `larder lab run`.

mod analysis;

pub(crate) use analysis::{LabAdviseArgs, LabCompareArgs, LabReportArgs};

use crate::units::parse_size;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use larder_lab::run::Experiment;
use std::path::PathBuf;

/// Measure how stores of objects age on this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    Run(Box<LabRunArgs>),
    List(LabListArgs),
    Report(LabReportArgs),
    Compare(LabCompareArgs),
    Advise(LabAdviseArgs),
}

/// Run an experiment; the same command goes on with a run that was interrupted
#[derive(Debug, Args)]
#[command(after_help = "\
Lists are separated by commas; there is a case for each combination. Volumes are made on loop \
images (as root); nothing
is left of them. The defaults take at most 3 minutes and 3 GB.

BACKENDS: ext2 ext3 ext4 xfs btrfs ntfs fat32, also with a block: ext4-1k, ntfs-64k; sqlite, \
postgres, postgres-lo, larder,
larder-mount on an ext4 volume, or sqlite@xfs; dir:PATH, mount:PATH, sqlite:PATH, postgres:PATH, \
larder:PATH in a directory
that exists; on a server that runs, postgres:URL and s3:URL (s3:https://HOST/BUCKET, keys from \
AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY).
Options behind one: +bare (files without rows), +page=64k, +rollback (SQLite), +inline=512, \
+gather=64M (Larder). 'larder lab list' says what works here.

Example: larder lab run age --objects 1M --volume 2G --backends larder,ext4,sqlite --ages 0,2,4 \
--out aging")]
pub(crate) struct LabRunArgs {
    /// What to find out
    #[arg(value_parser = experiments())]
    pub(crate) experiment: Experiment,
    /// Systems to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) backends: Vec<String>,
    /// Mean sizes of objects [default: 256K]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) objects: Vec<u64>,
    /// How sizes differ: constant, uniform (half to one and a half), lognormal [default: uniform]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) sizes: Vec<String>,
    /// How full the volume is with objects, percent [default: 90]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) occupancy: Vec<f64>,
    /// Storage ages at which to look, ascending [default: 0,1,2]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) ages: Vec<f64>,
    /// Sizes of the volume [default: 512M]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) volume: Vec<u64>,
    /// Sizes of write requests [default: 64K]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) request: Vec<u64>,
    /// Objects written at the same time [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) writers: Vec<u32>,
    /// Tell backends the length of an object before writing it
    #[arg(long)]
    pub(crate) known_size: bool,
    /// Delete so many neighbours together and write them anew, in place of safe writes
    #[arg(long, value_name = "COUNT")]
    pub(crate) group: Option<u64>,
    /// Objects read at each age, at most [default: 2000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) reads: Option<usize>,
    /// Also read once more with what is then in memory
    #[arg(long)]
    pub(crate) warm: bool,
    /// Repetitions, each with the backends in another order [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) rounds: Option<u32>,
    /// Seed of everything that is random [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Directory of the run [default: lab-EXPERIMENT]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Directory for the images of volumes, gone at the end [default: the directory of the run]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) work: Option<PathBuf>,
    /// Record nothing that tells of time: for volumes in memory (--work /dev/shm), which have no
    /// device to be slow
    #[arg(long)]
    pub(crate) layout_only: bool,
    /// Also where the volume is too small for the objects
    #[arg(long)]
    pub(crate) force: bool,
    /// dbfs: how often all is written, read and removed [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) cycles: Option<u32>,
    /// cluster: transactions of each action [default: 50]
    #[arg(long, value_name = "COUNT")]
    pub(crate) transactions: Option<u32>,
    /// cluster: statements in a transaction [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) statements: Option<u32>,
    /// git: repository whose history is replayed
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        required_if_eq("experiment", "git")
    )]
    pub(crate) repository: Option<PathBuf>,
    /// git: commits of it, evenly spread, at most [default: 50]
    #[arg(long, value_name = "COUNT")]
    pub(crate) commits: Option<usize>,
    /// trace: CSV file with lines put,KEY,BYTES or get,KEY or delete,KEY
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        required_if_eq("experiment", "trace")
    )]
    pub(crate) trace: Option<PathBuf>,
    /// git, trace: how often to look at the store at rest [default: 4]
    #[arg(long, value_name = "COUNT")]
    pub(crate) looks: Option<u32>,
}

/// Say which backends and experiments this machine can run, and what is missing for the others
#[derive(Debug, Args)]
#[command(after_help = "Example: larder lab list")]
pub(crate) struct LabListArgs {}

/// The names of the experiments, each with its question.
fn experiments() -> impl TypedValueParser<Value = Experiment> {
    let named = Experiment::ALL.map(|one| PossibleValue::new(one.name()).help(one.question()));
    PossibleValuesParser::new(named).try_map(|name| {
        let found = Experiment::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or("there is no such experiment")
    })
}
