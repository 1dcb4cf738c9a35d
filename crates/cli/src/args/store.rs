//! `larder store`.

use clap::{ArgGroup, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Create, list, change and destroy stores.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreVerb {
    /// Create a store
    #[command(after_help = "Example: larder store create photos.larder raw --mount /raw")]
    Create {
        /// Database to create it in
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Its name, also the name of its table: letters, digits and '_'
        name: String,
        /// What serves it: files, readonly, or asof=MOMENT: a store as it was then, read-only, kept
        /// as long as this one
        #[arg(long, default_value = "files")]
        provider: String,
        /// Where it hangs in the tree [default: /NAME]
        #[arg(long, value_name = "PATH")]
        mount: Option<String>,
        /// Store whose files it presents, for providers that are views (readonly; asof, which
        /// presents main by default)
        #[arg(long, value_name = "STORE")]
        shows: Option<String>,
    },
    /// List the stores of a database
    #[command(after_help = "Example: larder store list photos.larder --json")]
    List {
        /// Database to look at
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
    },
    /// Destroy a store with all its files and rows
    #[command(after_help = "Example: larder store destroy photos.larder raw --dry-run")]
    Destroy {
        /// Database that holds it
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Store to destroy; 'main' stays
        name: String,
        /// Only say what would be destroyed
        #[arg(long)]
        dry_run: bool,
    },
    /// Change where a store hangs, what serves it, or what saved files keep
    #[command(
        after_help = "Example: larder store set photos.larder raw --provider readonly",
        group = ArgGroup::new("change")
            .args(["provider", "mount", "save_keeps"])
            .required(true)
            .multiple(true)
    )]
    Set {
        /// Database that holds it
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Store to change
        name: String,
        /// What serves it: files or readonly
        #[arg(long)]
        provider: Option<String>,
        /// Where it hangs in the tree
        #[arg(long, value_name = "PATH")]
        mount: Option<String>,
        /// What a file keeps when a program saves it by renaming a new one over it: your columns,
        /// its file_id and the rows that refer to it, or nothing
        #[arg(long, value_name = "WHAT")]
        save_keeps: Option<SaveKeeps>,
    },
}

/// What a file keeps when it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SaveKeeps {
    /// Nothing: the new file is another one
    None,
    /// User columns, file_id, and the rows that refer to it
    Columns,
}
