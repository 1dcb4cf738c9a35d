//! `larder promote`: a copy takes the place of what it was made of.

use crate::databases::with_databases;
use crate::error::{At, Failure, Result};
use crate::output::Output;
use clap::Args;
use serde_json::json;
use std::ffi::OsString;

/// Exchange the places of two directories of one store, or of two stores, in one commit
#[derive(Debug, Args)]
#[command(
    after_help = "What was at the first address is at the second from then on, and the other way \
        round: so a copy that was worked on
takes the place of its original, which stays at hand. Names of stores, and of their tables in \
SQL, stay with their files.
Example: larder promote photos.larder:/2026-edited photos.larder:/2026"
)]
pub(crate) struct PromoteArgs {
    /// A directory, or where a store is mounted: DB:/path
    #[arg(value_name = "DB:PATH")]
    pub(crate) address: OsString,
    /// What it is exchanged with, in the same database
    #[arg(value_name = "DB:PATH")]
    pub(crate) other: OsString,
}

/// `larder promote`.
pub(crate) fn promote(args: &PromoteArgs, out: &mut Output) -> Result<()> {
    with_databases("promote", |databases| {
        let (database, one) = databases.address(&args.address)?;
        let (second, other) = databases.address(&args.other)?;
        if database.path() != second.path() {
            return Err(Failure::Usage(format!(
                "'{one}' and '{other}' are in two databases; promote exchanges within one"
            )));
        }
        (database.history().promote(&one.path, &other.path))
            .at(|| format!("cannot exchange '{one}' and '{other}'"))?;
        if out.is_json() {
            return out.document(&json!({
                "exchanged": [one.to_string(), other.to_string()],
            }));
        }
        out.line(&format!("exchanged {one} and {other}"))
    })
}
