//! The command line of `larder txn`.

use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Long transactions: an isolated view of a database, then one commit or no trace.
#[derive(Debug, Subcommand)]
pub(crate) enum TxnVerb {
    Run(RunArgs),
    Begin(BeginArgs),
    Status(OneArgs),
    Commit(OneArgs),
    Abort(OneArgs),
    List(ListArgs),
}

/// Run a program in a transaction: exit code 0 commits everything it did, rows included
#[derive(Debug, Args)]
#[command(after_help = "\
CMD and what it starts see the database as it was when they began, with their own changes, at \
DIR, in
'larder sql' and in programs that use the library; nobody else does, and nobody waits. When CMD \
ends with 0,
all of it becomes one commit; else, and after Ctrl-C, there is no trace. What CMD has left \
running is ended.
For CMD the directory of the database is covered: what opens it by its path would be outside.

Exit codes: that of CMD, 128 + N when signal N ended it. When CMD ended with 0: 1 if somebody \
else has
changed the same meanwhile; each conflict is one line on stderr, nothing was changed: run it again.

Example: larder txn run tools.larder --mount /opt/tools -- make install")]
pub(crate) struct RunArgs {
    /// Database to work on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Directory at which CMD sees the view [default: where the database is mounted, else a
    /// directory of its own, in which CMD starts]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) mount: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        last = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

/// Begin a transaction that stays open until it is committed or aborted
#[derive(Debug, Args)]
#[command(after_help = "\
Prints its number and the environment in which programs join it. Without a process it keeps space \
that
others give back; 'larder txn list' shows what is open.

Example: larder txn begin photos.larder\n\
In a shell that joins it: eval \"$(larder txn begin photos.larder)\"")]
pub(crate) struct BeginArgs {
    /// Database to work on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// What it is for, in lists
    #[arg(long, value_name = "TEXT", default_value = "larder txn begin")]
    pub(crate) label: String,
}

/// Show, commit or abort one transaction
#[derive(Debug, Args)]
#[command(after_help = "\
A commit with conflicts lists them, one per line on stderr, changes nothing and ends with code 1; \
the
transaction stays open.

Example: larder txn commit photos.larder 17")]
pub(crate) struct OneArgs {
    /// Database that it works on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Its number [default: the one that LARDER_TXN names]
    pub(crate) id: Option<u64>,
}

/// List the open transactions of a database
#[derive(Debug, Args)]
#[command(after_help = "Example: larder txn list photos.larder --json")]
pub(crate) struct ListArgs {
    /// Database to look at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
}
