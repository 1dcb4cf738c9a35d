//! The verbs of `larder lab` that look at runs.

use crate::units::parse_time;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Make a report of runs: one page that needs no network, and each figure as SVG and PNG
#[derive(Debug, Args)]
#[command(after_help = "\
The page redraws the papers' figures from the records of these runs, with what the papers found \
beside. Figures without
records are named, with the command that measures them.

Example: larder lab report lab-age lab-break-even --to report")]
pub(crate) struct LabReportArgs {
    /// Directories of runs
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,
    /// Directory for the report [default: RUN/report, or lab-report for several runs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) to: Option<PathBuf>,
}

/// Compare two runs: what differs beyond noise
#[derive(Debug, Args)]
#[command(after_help = "\
RATIO is B divided by A, with the interval at 95 %. The noise comes from the repetitions in both \
runs, so at least one
of them needs --rounds 2 or more.

Example: larder lab compare lab-age-before lab-age-after")]
pub(crate) struct LabCompareArgs {
    /// The first run
    #[arg(value_name = "A", value_hint = ValueHint::DirPath)]
    pub(crate) first: PathBuf,
    /// The second run
    #[arg(value_name = "B", value_hint = ValueHint::DirPath)]
    pub(crate) second: PathBuf,
    /// All measures, not only the leading ones
    #[arg(long)]
    pub(crate) all: bool,
}

/// Say below which size a row, how full is too full, how large the free pool must be, on this
/// machine
#[derive(Debug, Args)]
#[command(after_help = "\
Measures in PLACE for a few minutes: SQLite, files and Larder side by side in a directory that is \
removed again, and,
as root, volumes that become full. Of a database, the directory that it lies in is measured; the \
database itself is read
for the sizes of its files, and only changed by --apply. With --from, nothing is measured.

--apply writes up to which size the database keeps content in rows, and how much its sessions \
gather in memory, where
that is beyond noise ('larder df' shows both). Sessions that are open obey when they are opened \
again.

Example: larder lab advise /srv
Example: larder lab advise photos.larder --apply
Example: larder lab advise --from lab-break-even --from lab-volume")]
pub(crate) struct LabAdviseArgs {
    /// A directory, or a database, on the device to measure
    #[arg(value_name = "PLACE", value_hint = ValueHint::DirPath, required_unless_present = "from")]
    pub(crate) place: Option<PathBuf>,
    /// Advise from this run in place of measuring; may be given several times
    #[arg(long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) from: Vec<PathBuf>,
    /// Directory for what is measured; the same command goes on there [default: lab-advise]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "from")]
    pub(crate) out: Option<PathBuf>,
    /// How long to measure, at most; what then is under way is finished
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = parse_time)]
    pub(crate) time: i64,
    /// Write the settings for Larder to the database PLACE
    #[arg(long, requires = "place")]
    pub(crate) apply: bool,
    /// Only take back what --apply wrote to the database PLACE
    #[arg(long, requires = "place", conflicts_with_all = ["apply", "from", "out"])]
    pub(crate) reset: bool,
}
