//! The command line: every verb and flag, defined once. Help and completions come from here.

use crate::txn_args::TxnVerb;
use crate::units::{parse_mode, parse_size, parse_time, parse_wait};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// A database filesystem: your files and your rows in one database.
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    disable_help_subcommand = true,
    max_term_width = 100
)]
#[command(after_help = "\
DB is the directory of a database, like photos.larder. ADDRESS is DB:/path, like
photos.larder:/2026/a.jpg; it works without a mount and beside one. An argument without ':/' is a
local path, and so is one that begins with '/', './' or '../' when its part up to the colon exists.
DB@MOMENT:/path is the file as it was: photos.larder@2026-11-20T10:00:00Z:/a.jpg, @-1h, \
@seq:1234, @SNAPSHOT.

SIZE: 4096, 256M, 10GiB, 1.5T (K, M, G, T, P are powers of 1024; KB, MB ... of 1000).
TIME: 90s, 15min, 1h, 30d, 2w, 2y.

Example: larder mount --create photos.larder ./photos")]
pub(crate) struct Cli {
    /// Print one JSON document instead of text: an object, or an array with one element per line.
    /// Sizes are in bytes, times in nanoseconds since 1970
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to wait for another session of the database that keeps its writer lock, and for the
    /// server of 'umount', 60 s without this; then end with exit code 124
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_wait)]
    pub(crate) timeout: Option<i64>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Init(InitArgs),
    Mount(MountArgs),
    Umount(UmountArgs),
    /// Create, list, change and destroy stores: separate trees of files, each with its own table
    #[command(subcommand)]
    Store(StoreVerb),
    Ls(LsArgs),
    Cat(CatArgs),
    Cp(CpArgs),
    Mv(MvArgs),
    Rm(RmArgs),
    Mkdir(MkdirArgs),
    Ln(LnArgs),
    Stat(StatArgs),
    Find(FindArgs),
    Du(DuArgs),
    Put(PutArgs),
    Splice(crate::splice::SpliceArgs),
    Get(GetArgs),
    Sql(SqlArgs),
    Df(DfArgs),
    Frag(FragArgs),
    Defrag(DefragArgs),
    Shrink(ShrinkArgs),
    Upgrade(crate::upgrade::UpgradeArgs),
    Stats(StatsArgs),
    Status(StatusArgs),
    Doctor(crate::doctor::DoctorArgs),
    Trace(TraceArgs),
    Watch(crate::watch::WatchArgs),
    Check(CheckArgs),
    /// Measure how stores of objects age on this machine: files, SQLite, PostgreSQL, Larder
    #[command(subcommand)]
    Lab(LabVerb),
    /// Long transactions: an isolated view of files and rows, then one commit or no trace
    #[command(subcommand)]
    Txn(TxnVerb),
    /// Name moments, so that they stay readable: DB@NAME:/path
    #[command(subcommand)]
    Snapshot(crate::snapshot::SnapshotVerb),
    Log(crate::changelog::LogArgs),
    Diff(crate::diff::DiffArgs),
    Restore(crate::restore::RestoreArgs),
    Clone(crate::clone::CloneArgs),
    Undo(crate::undo::UndoArgs),
    Rollback(crate::rollback::RollbackArgs),
    Promote(crate::promote::PromoteArgs),
    Track(crate::track::TrackArgs),
    Untrack(crate::track::UntrackArgs),
    Rows(crate::track::RowsArgs),
    Retention(crate::retention::RetentionArgs),
    Prune(crate::prune::PruneArgs),
    /// What constraints refused after it was answered: list it, get its content, drop it
    #[command(subcommand)]
    Refused(crate::refused::RefusedVerb),
    Extension(crate::extension::ExtensionArgs),
    Completions(CompletionsArgs),
}

/// Create an empty database
#[derive(Debug, Args)]
#[command(after_help = "Example: larder init photos.larder --capacity 1.5T --retention 30d")]
pub(crate) struct InitArgs {
    /// Directory to create; nothing may be there
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Content it may hold at most, 16M or more [default: what the filesystem has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,
    /// How long what is replaced and deleted stays readable, as DB@MOMENT:/path, while there is
    /// space; 0: not at all [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = crate::retention::parse_retention)]
    pub(crate) retention: Option<i64>,
    /// A group whose members share the database (and may read all that is in it, whatever modes the
    /// mount shows) [default: its owner alone may use the directory]
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
}

/// Serve a database as a directory, until Ctrl-C or 'larder umount'
#[derive(Debug, Args)]
#[command(after_help = "\
Options of -o, separated by commas:
  ro, rw             refuse every change, or not
  allow_other        let other users in [default: for root]
  suid, dev          obey set-id bits, open device nodes (root only) [default: nosuid,nodev]
  noexec             run no programs
  uid=N, gid=N       show all files as belonging to this user, this group
  umask=M            show permissions 777 less the octal mask; fmask=M of files, dmask=M of \
  directories
  map_uid=A:B:COUNT  like --map-uid; map_gid=A:B:COUNT
  idmap              let idmapped mounts of the kernel lie on top (Linux 6.12)
  threads=COUNT, metrics=ADDR, log=LEVEL
  cache_ttl=TIME     how long the kernel trusts names and attributes [default: 1h]
  transport=device|io_uring|auto
                     how the kernel's requests come: io_uring where it is allowed, see 'larder \
                     doctor' [default: device]
  locks=local        locks of programs hold on this mount only [default: shared, on all of the \
  database]
  asof=MOMENT        show the database as of a moment, read-only; the same as DB@MOMENT
  history=show|hide|none
                     DIR/.larder/at/MOMENT and DIR/.larder/snapshots/NAME: listed in DIR, only to \
                     be opened by their
                     names, or not there [default: hide]
  history=both|then|root
                     who may use them: whom the modes of then and of now allow it, those of then, \
                     or root [default: both]
  relatime|strictatime|noatime, nodiratime
                     when reading changes times of access [default: relatime]
Options of fstab(5) such as nofail, noauto, user and x-* are accepted.

Signals: Ctrl-C or SIGTERM unmounts; while programs use the mount, it serves on until they are \
gone. A second
one detaches it, SIGTERM alone does so after 10 s. What was done until then is durable.

Example: larder mount --create photos.larder ./photos")]
pub(crate) struct MountArgs {
    /// Database to serve
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Directory to serve it at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Create DB and DIR if they do not exist
    #[arg(long)]
    pub(crate) create: bool,
    /// Return once the mount serves, and serve in the background; messages go to DB/mount.log
    #[arg(long, visible_alias = "background")]
    pub(crate) daemon: bool,
    /// Refuse every change through the mount
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let other users in, within the permissions of the files [default: for root]
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Options in the manner of mount(8); see below
    #[arg(short, value_name = "LIST")]
    pub(crate) options: Vec<String>,
    /// Show user DB of the database as user HOST here, and COUNT users from there on; all others as
    /// nobody
    #[arg(long, value_name = "HOST:DB[:COUNT]")]
    pub(crate) map_uid: Vec<String>,
    /// The same for groups
    #[arg(long, value_name = "HOST:DB[:COUNT]")]
    pub(crate) map_gid: Vec<String>,
    /// Answer Prometheus at http://ADDR/metrics; ADDR like 127.0.0.1:9190
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// What goes to the log: error, warn, info, debug or trace [default: warn; info in the
    /// background]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// Requests served at once, at most [default: 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Report readiness on stdout: how '--daemon' starts its background process.
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub(crate) report_ready: bool,
}

/// Unmount a directory; returns once everything is durable and the database is released
#[derive(Debug, Args)]
#[command(after_help = "Example: larder umount ./photos")]
pub(crate) struct UmountArgs {
    /// Directory at which a database is mounted, or a database: then all its mounts end
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Also while programs use it: make durable what was done, let nobody new in, and do not wait
    /// for them
    #[arg(short, long)]
    pub(crate) lazy: bool,
}

/// List directories and files
#[derive(Debug, Args)]
#[command(after_help = "Example: larder ls -l photos.larder:/2026")]
pub(crate) struct LsArgs {
    /// What to list
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Also mode, links, owner, group (by number), bytes, and time of modification (UTC)
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Also everything below
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// List a directory itself, not its entries
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Accepted for the habit; names that begin with '.' are always listed
    #[arg(short, long, hide = true)]
    pub(crate) all: bool,
}

/// Write the content of files to stdout
#[derive(Debug, Args)]
#[command(
    after_help = "Writes bytes, also with --json. Example: larder cat notes.larder:/list.txt"
)]
pub(crate) struct CatArgs {
    /// Files to write
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
}

/// Copy between a database and local files, both ways, or within and between databases
#[derive(Debug, Args)]
#[command(
    after_help = "What was copied into a database is durable when this returns.
Example: larder cp -a ~/Pictures photos.larder:/2026"
)]
pub(crate) struct CpArgs {
    /// What to copy, and where to: ADDRESS or local path each. Into it if it is a directory
    #[arg(
        value_name = "FROM... TO",
        num_args = 2..,
        required = true,
        value_hint = ValueHint::AnyPath
    )]
    pub(crate) paths: Vec<OsString>,
    /// Copy directories with all they hold; symbolic links stay links
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Also keep mode, times, owner (if root), hard links within the copy, and extended attributes;
    /// implies -r
    #[arg(short, long)]
    pub(crate) archive: bool,
}

/// Move or rename; between a database and local files: copy, make durable, remove
#[derive(Debug, Args)]
#[command(after_help = "Example: larder mv photos.larder:/inbox/a.jpg photos.larder:/2026/")]
pub(crate) struct MvArgs {
    /// What to move, and where to: ADDRESS or local path each. Into it if it is a directory
    #[arg(
        value_name = "FROM... TO",
        num_args = 2..,
        required = true,
        value_hint = ValueHint::AnyPath
    )]
    pub(crate) paths: Vec<OsString>,
    /// Refuse to replace what exists
    #[arg(short, long)]
    pub(crate) no_replace: bool,
}

/// Remove files and directories
#[derive(Debug, Args)]
#[command(after_help = "Example: larder rm -r photos.larder:/inbox")]
pub(crate) struct RmArgs {
    /// What to remove
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Remove directories with all they hold
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Say nothing about what does not exist
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Create directories
#[derive(Debug, Args)]
#[command(after_help = "Example: larder mkdir -p photos.larder:/2026/11")]
pub(crate) struct MkdirArgs {
    /// Directories to create
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Also create what is missing on the way, and accept what exists
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Permissions, octal [default: 777 less the umask]
    #[arg(short, long, value_parser = parse_mode)]
    pub(crate) mode: Option<u32>,
}

/// Give a file another name, or make a symbolic link
#[derive(Debug, Args)]
#[command(after_help = "Example: larder ln -s 2026/a.jpg photos.larder:/best.jpg")]
pub(crate) struct LnArgs {
    /// What the link leads to: an ADDRESS in the same database; with -s any text, or an ADDRESS in
    /// the same database
    pub(crate) target: OsString,
    /// The new name, or a directory to put it in
    #[arg(value_name = "ADDRESS")]
    pub(crate) link: OsString,
    /// Make a symbolic link
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace what has the name, unless it is a directory
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Show all attributes, extended ones among them
#[derive(Debug, Args)]
#[command(after_help = "Example: larder stat photos.larder:/2026/a.jpg")]
pub(crate) struct StatArgs {
    /// What to show
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Show what a symbolic link leads to
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
}

/// Walk a tree and print what matches
#[derive(Debug, Args)]
#[command(after_help = "Example: larder find photos.larder:/ --name '*.jpg' --type f")]
pub(crate) struct FindArgs {
    /// Where to begin
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Pattern for the name: '*', '?', '[a-z]', '[!a-z]'; quote it against the shell
    #[arg(long, value_name = "GLOB")]
    pub(crate) name: Option<OsString>,
    /// What it is: f file, d directory, l symbolic link, p pipe, s socket, c or b device
    #[arg(long = "type", value_name = "LETTER")]
    pub(crate) kind: Option<KindLetter>,
    /// End each result with a NUL byte instead of a newline
    #[arg(short = '0', long)]
    pub(crate) print0: bool,
}

/// The letters that `find --type` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindLetter {
    /// Regular file
    F,
    /// Directory
    D,
    /// Symbolic link
    L,
    /// Named pipe
    P,
    /// Socket
    S,
    /// Character device
    C,
    /// Block device
    B,
}

/// Sum up the space that trees take
#[derive(Debug, Args)]
#[command(
    after_help = "Counts allocated space, an inode with several names once. Tiny files live in the
catalog and count 0; see --apparent-size. Example: larder du -s photos.larder:/2026"
)]
pub(crate) struct DuArgs {
    /// What to sum up
    #[arg(value_name = "ADDRESS", required = true)]
    pub(crate) addresses: Vec<OsString>,
    /// Only the total of each ADDRESS, not of every directory in it
    #[arg(short, long)]
    pub(crate) summarize: bool,
    /// Count lengths of files instead of allocated space
    #[arg(long)]
    pub(crate) apparent_size: bool,
}

/// Copy one local file, or stdin, into a database
#[derive(Debug, Args)]
#[command(
    after_help = "The file is durable when this returns. Example: larder put a.jpg \
        photos.larder:/2026/"
)]
pub(crate) struct PutArgs {
    /// Local file; '-' is stdin
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: OsString,
    /// Where to; into it if it is a directory
    pub(crate) address: OsString,
}

/// Copy one file out of a database
#[derive(Debug, Args)]
#[command(after_help = "Example: larder get photos.larder:/2026/a.jpg .")]
pub(crate) struct GetArgs {
    /// File in a database
    pub(crate) address: OsString,
    /// Local file, or directory to put it in; '-' is stdout
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) file: OsString,
}

/// Query and change rows with SQL; without a statement: a shell, or statements from stdin
#[derive(Debug, Args)]
#[command(
    after_help = "Store 'main' is table main (one row per inode), main_dirent(parent, name, ino) and
the view main_path(ino, path). NULL is shown as NULL, in CSV as nothing; bytes in hex.
Example: larder sql photos.larder \"SELECT path, size FROM main_path JOIN main USING (ino)\"
Example: larder sql --as-of=-1h photos.larder \"SELECT path, content(ino) FROM main_path WHERE \
path GLOB '*.txt'\""
)]
pub(crate) struct SqlArgs {
    /// Database to query; DB@MOMENT is the same as --as-of
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// One or several statements, with ';' between them
    pub(crate) statement: Option<String>,
    /// Print comma-separated values (RFC 4180) with a header line
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Refuse every change
    #[arg(long)]
    pub(crate) read_only: bool,
    /// See tables of stores, and files, as of a moment: 2026-11-20T10:00:00Z, -1h, seq:1234, or a
    /// snapshot's name
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    pub(crate) as_of: Option<String>,
}

/// Show how full a database is
#[derive(Debug, Args)]
#[command(after_help = "Example: larder df photos.larder")]
pub(crate) struct DfArgs {
    /// Database to look at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
}

/// Show how fragmented content and free space are
#[derive(Debug, Args)]
#[command(
    after_help = "Storage age: bytes of content that once existed and are gone, per byte live now.
Example: larder frag photos.larder --map"
)]
pub(crate) struct FragArgs {
    /// Database to look at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Draw the segments: what is free, full, partly in use, or waits to be reclaimed
    #[arg(long)]
    pub(crate) map: bool,
}

/// Move content so that every file lies in one piece, and join holes; online
#[derive(Debug, Args)]
#[command(
    after_help = "A mount does the same by itself, a little at a time. Files that are being \
        written stay as
they are. Example: larder defrag photos.larder --dry-run"
)]
pub(crate) struct DefragArgs {
    /// Database to work on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Paths in it, directories with all they hold [default: everything]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Only say what could be moved
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Return free space at the end of the segments to the host; online
#[derive(Debug, Args)]
#[command(
    after_help = "Moves what lies there first, but what clones share. The database grows again \
        when it must.
Example: larder shrink photos.larder --to 10G"
)]
pub(crate) struct ShrinkArgs {
    /// Database to work on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Bytes that the segments keep in all [default: what the content needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) to: Option<u64>,
    /// Only say what would be moved and returned
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Show live counters, one line per interval, until Ctrl-C
#[derive(Debug, Args)]
#[command(
    after_help = "Sees what all sessions do, of what is committed. 'written' counts content, \
        without the
catalog and without what compaction moves. Example: larder stats photos.larder --interval 5s"
)]
pub(crate) struct StatsArgs {
    /// Database to look at
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Time between two lines
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) interval: i64,
    /// Lines at most [default: until Ctrl-C]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Show who has a database open, what space it has, and what waits for a decision
#[derive(Debug, Args)]
#[command(
    after_help = "What is not as it should be stands in lines 'degraded'. It reads the state, and \
        changes nothing.
Example: larder status photos.larder"
)]
pub(crate) struct StatusArgs {
    /// Database, or a directory where one is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) place: PathBuf,
}

/// Show what a mount does as it happens: operations with their time, until Ctrl-C
#[derive(Debug, Args)]
#[command(
    after_help = "A line: when it began (UTC), how long it took, the operation, path or inode, \
        bytes and offset,
the error, the caller. The mount does not wait for this command; what it misses is counted.
Example: larder trace photos.larder --slower-than 10ms"
)]
pub(crate) struct TraceArgs {
    /// Database whose mounts on this machine to trace
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Only these operations, like lookup,write
    #[arg(long, value_name = "NAMES")]
    pub(crate) op: Vec<String>,
    /// Only what took at least so long
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) slower_than: Option<i64>,
    /// At the end one line per operation: how many, errors, median, 99th percentile and largest
    /// time
    #[arg(long)]
    pub(crate) summary: bool,
    /// End after so many operations
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

/// Prove that catalog and segments agree; prints findings and exits with 1 if there are any
#[derive(Debug, Args)]
#[command(
    after_help = "Changes nothing but what --fix-modes says, also beside a mount. Example: larder \
        check photos.larder --read"
)]
pub(crate) struct CheckArgs {
    /// Database to check
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Also read every block and verify its checksum
    #[arg(long)]
    pub(crate) read: bool,
    /// Refuse code in the schema (triggers, generated columns) as if a stranger had made it
    #[arg(long)]
    pub(crate) untrusted: bool,
    /// First take from other users what the modes of the database's files let them do, as older
    /// versions made them; a group that may write to the directory keeps it
    #[arg(long)]
    pub(crate) fix_modes: bool,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example: larder completions bash > /etc/bash_completion.d/larder")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

mod lab;
mod store;

pub(crate) use lab::{LabAdviseArgs, LabCompareArgs, LabReportArgs, LabRunArgs, LabVerb};
pub(crate) use store::{SaveKeeps, StoreVerb};

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_help_with_an_example() {
        fn visit(command: &clap::Command) {
            assert!(
                command.get_about().is_some(),
                "{} has no help",
                command.get_name()
            );
            if command.has_subcommands() {
                command.get_subcommands().for_each(visit);
                return;
            }
            let after = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                after.contains("Example: larder "),
                "{} has no example",
                command.get_name()
            );
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    argument.get_id()
                );
            }
        }
        visit(&Cli::command());
    }

    #[test]
    fn units_are_read() {
        let cli = Cli::try_parse_from([
            "larder",
            "init",
            "a",
            "--capacity",
            "256M",
            "--retention",
            "1h",
            "--json",
        ]);
        let Cli {
            json: true,
            verb: Verb::Init(init),
            ..
        } = cli.unwrap()
        else {
            panic!("it is an init")
        };
        assert_eq!(
            (init.capacity, init.retention),
            (Some(256 << 20), Some(3_600_000_000_000))
        );
        assert!(Cli::try_parse_from(["larder", "init", "a", "--capacity", "much"]).is_err());
        assert!(
            Cli::try_parse_from(["larder", "store", "set", "a", "b"]).is_err(),
            "nothing to set"
        );
        assert!(
            Cli::try_parse_from(["larder", "sql", "a", "--csv", "--json"]).is_err(),
            "two formats"
        );
        assert!(
            Cli::try_parse_from(["larder", "cp", "a"]).is_err(),
            "no destination"
        );
    }
}
