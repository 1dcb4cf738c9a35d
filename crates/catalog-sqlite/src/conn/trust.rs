//! Whose programs a catalog may run: triggers, generated columns and the like are code, and whoever
//! opens the database runs it.

use crate::error::{CatalogError, Result};
use std::io;
use std::path::Path;

/// Whom an open trusts with code in the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// The caller himself: code runs in a database whose owner has opened it.
    #[default]
    Owner,
    /// The same where the catalog is a copy of one that this user owns.
    CopyOf(u32),
    /// Nobody.
    Nobody,
    /// Whoever owns it.
    Anybody,
}

/// Whose the code in a catalog is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Code {
    /// The caller's, or somebody's whom he trusts.
    #[default]
    Trusted,
    /// That of the owner with this number, who is not the caller.
    Strangers(u32),
    /// The caller wants none, whosever it is.
    Unwanted,
}

impl Trust {
    /// The variable of the environment that says so.
    pub const VARIABLE: &str = "LARDER_TRUST";

    /// What the environment says, where it can be understood; else nobody is trusted.
    pub fn of_environment() -> Trust {
        Trust::read_environment().unwrap_or(Trust::Nobody)
    }

    /// What the environment says: `anybody`, `nobody`, or nothing: the default. Another word is
    /// refused, for people.
    pub fn read_environment() -> std::result::Result<Trust, String> {
        match std::env::var_os(Trust::VARIABLE) {
            None => Ok(Trust::Owner),
            Some(word) if word.is_empty() => Ok(Trust::Owner),
            Some(word) if word == "anybody" => Ok(Trust::Anybody),
            Some(word) if word == "nobody" => Ok(Trust::Nobody),
            Some(word) => Err(format!(
                "{} is '{}'; it may be 'anybody', 'nobody', or not set",
                Trust::VARIABLE,
                word.display()
            )),
        }
    }

    /// Whose the code in the catalog at `path` is; `owner` is that of its file.
    pub(crate) fn judge(self, owner: io::Result<Option<u32>>, path: &Path) -> Result<Code> {
        match self {
            Trust::Anybody => Ok(Code::Trusted),
            Trust::Nobody => Ok(Code::Unwanted),
            Trust::CopyOf(owner) => Ok(Code::of(owner)),
            Trust::Owner => match owner {
                Ok(Some(owner)) => Ok(Code::of(owner)),
                // One that is only in a VFS of crash tests is the caller's.
                Ok(None) => Ok(Code::Trusted),
                Err(error) => Err(CatalogError::invalid(format!(
                    "whose {} is cannot be found out ({error}); check its permissions",
                    path.display()
                ))),
            },
        }
    }
}

impl Code {
    /// Of a catalog of this user.
    fn of(owner: u32) -> Code {
        match owner == rustix::process::geteuid().as_raw() {
            true => Code::Trusted,
            false => Code::Strangers(owner),
        }
    }

    /// What is said to who would change the schema, which is code: root may, who runs none of it.
    pub(crate) fn refusal_of_change(self) -> Option<String> {
        match self {
            Code::Trusted => None,
            Code::Strangers(_) if rustix::process::geteuid().is_root() => None,
            Code::Strangers(uid) => Some(format!(
                "the schema belongs to user {uid}, who owns the database, since code in it runs as \
                 him; have him change it, or set LARDER_TRUST=anybody"
            )),
            Code::Unwanted => Some(
                "the schema is not changed under LARDER_TRUST=nobody: what is in it may be code"
                    .into(),
            ),
        }
    }

    /// What an open says that refuses `what`.
    pub(crate) fn refusal(self, what: &str) -> Option<String> {
        match self {
            Code::Trusted => None,
            Code::Strangers(uid) => Some(format!(
                "{what} is code of user {uid}, who owns the database, and would run as you; \
                 run larder as that user, DROP it, or set LARDER_TRUST=anybody if you trust it"
            )),
            Code::Unwanted => Some(format!(
                "{what} is code that whoever opens the database runs; DROP it, or open it only if \
                 you trust it"
            )),
        }
    }
}
