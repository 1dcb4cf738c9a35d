//! What only some catalogs can do.

use std::fmt;

/// A part of the interface that a catalog has as a whole, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Transactions of one owner, with savepoints, that interleave SQL and changes.
    Transactions,
    /// Rules of the user's: constraints and triggers on store tables.
    Rules,
    /// How long history is kept.
    Retention,
    /// What is kept of the past, and snapshots.
    History,
    /// Catalogs that show a moment of the past.
    Past,
    /// Users' tables and columns that have a past.
    Temporal,
    /// The feed of changes.
    Feed,
    /// SQL of users.
    Sql,
    /// Working on the connection of another program.
    Client,
    /// Workspaces of long transactions.
    Workspaces,
    /// Which inodes other sessions have changed.
    ForeignChanges,
    /// A log that is copied by checkpoints.
    Log,
}

impl Feature {
    /// Its name in a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Feature::Transactions => "transactions with savepoints",
            Feature::Rules => "rules of users on store tables",
            Feature::Retention => "retention of history",
            Feature::History => "history",
            Feature::Past => "views of the past",
            Feature::Temporal => "tables with a past",
            Feature::Feed => "feed of changes",
            Feature::Sql => "SQL",
            Feature::Client => "way to join the connection of another program",
            Feature::Workspaces => "workspaces",
            Feature::ForeignChanges => "notice of what other sessions changed",
            Feature::Log => "log to copy",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
