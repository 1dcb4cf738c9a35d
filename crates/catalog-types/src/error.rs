//! What can go wrong with the catalog; each message is one line, cause and remedy.

use crate::feature::Feature;
use std::path::PathBuf;
use std::time::Duration;

/// `Result` with [`CatalogError`].
pub type Result<T> = std::result::Result<T, CatalogError>;

/// A failure of the catalog. Unless it is [`CatalogError::CommitUnknown`], nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// There is no such database, store, inode, column or session.
    #[error("{what} does not exist; check the name")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// It exists already.
    #[error("{what} exists already; choose another name, or remove it first")]
    Exists {
        /// What is in the way.
        what: String,
    },
    /// The file is not a Larder catalog.
    #[error("{} is not a larder catalog: {why}", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Its schema has what larder does not make, and would run it (`SAFE-3`, `SAFE-4`).
    #[error("the database is refused: {what}")]
    Refused {
        /// What it is, and what to do.
        what: String,
    },
    /// A newer Larder wrote it.
    #[error(
        "written by a newer larder (format {found}, this one knows \u{2264} {known}); upgrade \
         larder"
    )]
    NewerFormat {
        /// The version in the catalog.
        found: u32,
        /// The newest version this build knows.
        known: u32,
    },
    /// An older Larder wrote it, in another format.
    #[error(
        "written by an older larder (schema {found}, this one reads {known}); 'larder upgrade OLD \
         NEW' converts it"
    )]
    OlderFormat {
        /// The version in the catalog.
        found: u32,
        /// The version this build reads.
        known: u32,
    },
    /// The catalog, or the place where it lies, cannot be written.
    #[error("{what} is read-only; make the database directory and its files writable")]
    ReadOnly {
        /// What cannot be written.
        what: String,
    },
    /// Another connection held the lock all the time.
    #[error("{}", why.as_deref().unwrap_or("another program holds the catalog's lock"))]
    Busy {
        /// How long was waited.
        waited: Duration,
        /// Who holds it, and how long it was waited for, if it was.
        why: Option<String>,
    },
    /// It is to be converted to another format, and others are not done with it.
    #[error(
        "the database cannot be converted while {who} has it open; end that with the older larder, \
         and try again"
    )]
    InUse {
        /// Who has it open.
        who: String,
    },
    /// A constraint, ours or the user's, refused a row.
    #[error("{table}: {constraint}")]
    Constraint {
        /// The table.
        table: String,
        /// The constraint, in SQLite's words.
        constraint: String,
    },
    /// The catalog contradicts itself or the change set.
    #[error("the catalog is damaged or a change does not fit it: {what}; run `larder check`")]
    Corrupt {
        /// What was expected, what was found.
        what: String,
    },
    /// Pages of the catalog are damaged: SQLite cannot read them.
    #[error(
        "the catalog is damaged at {what}; 'larder check' names the tables, and what still reads; \
         restore the database from \
         a copy"
    )]
    Damaged {
        /// Where, and what SQLite said.
        what: String,
    },
    /// Recovering the log would lose acknowledged commits (`LOG-6`). Nothing was changed.
    #[error("{what}")]
    LogDamaged {
        /// What is damaged, what would be lost, and what to do.
        what: String,
    },
    /// The filesystem that holds the catalog is full.
    #[error("the filesystem that holds the catalog is full; free some space there")]
    NoSpace,
    /// An argument breaks a rule.
    #[error("{what}")]
    Invalid {
        /// Which rule, and how to keep it.
        what: String,
    },
    /// COMMIT itself failed: the change may or may not be durable. Stop and reopen (`CATALOG-5`).
    #[error("the outcome of a commit is unknown ({cause}); close the database and open it again")]
    CommitUnknown {
        /// What SQLite said.
        cause: String,
    },
    /// The session that read the past has ended, and with it what kept that past.
    #[error("the view of the past has ended with the session that opened it; open it again")]
    PastEnded,
    /// The user's SQL is wrong.
    #[error("{}{message}", position.map(|at| format!("line {} column {}: \
        ", at.0, at.1)).unwrap_or_default())]
    Sql {
        /// What SQLite said.
        message: String,
        /// Line and column, from 1, when SQLite knows.
        position: Option<(usize, usize)>,
    },
    /// This catalog cannot do that; another one can.
    #[error("this catalog has no {feature}; use a database that keeps its catalog in SQLite")]
    Unsupported {
        /// What it has not.
        feature: Feature,
    },
    /// Anything else that the database below reports, I/O errors among it.
    #[error("the catalog failed at {context}: {source}")]
    Storage {
        /// The table or step.
        context: String,
        /// A rule of the user's may have brought it about: one that is broken itself.
        is_of_a_rule: bool,
        /// What that database said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl CatalogError {
    /// The catalog contradicts itself or the change.
    pub fn corrupt(what: impl Into<String>) -> CatalogError {
        CatalogError::Corrupt { what: what.into() }
    }

    /// An argument breaks a rule.
    pub fn invalid(what: impl Into<String>) -> CatalogError {
        CatalogError::Invalid { what: what.into() }
    }

    /// There is no `what`.
    pub fn not_found(what: impl Into<String>) -> CatalogError {
        CatalogError::NotFound { what: what.into() }
    }

    /// Whether a rule of the user's may have brought this about: it refused a row, or is broken
    /// itself.
    pub fn is_of_a_rule(&self) -> bool {
        match self {
            CatalogError::Constraint { .. } | CatalogError::Refused { .. } => true,
            CatalogError::Storage { is_of_a_rule, .. } => *is_of_a_rule,
            _ => false,
        }
    }
}
