//! What the environment says: which long transaction the programs in it belong to.

use larder_object::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Names the workspace that [`crate::Database::open`] goes to, in place of its database.
pub const TRANSACTION_VARIABLE: &str = "LARDER_TXN";

/// In the directory that covers a database's for the programs of a long transaction: what it
/// covers.
pub const COVERED: &str = ".transaction";

/// The directory of the database itself, where `path` is its cover.
pub(crate) fn uncovered(path: &Path) -> PathBuf {
    let below = path.join(COVERED);
    match below.is_dir() {
        true => below,
        false => path.to_owned(),
    }
}

/// The workspace of the long transaction that the environment names, if it is one of the database
/// in directory `path`.
pub fn transaction_of(path: &Path) -> Result<Option<PathBuf>> {
    let Some(workspace) = std::env::var_os(TRANSACTION_VARIABLE).map(PathBuf::from) else {
        return match path.join(COVERED).is_dir() {
            false => Ok(None),
            true => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "this program runs in 'larder txn run', which covers {}; keep \
                     {TRANSACTION_VARIABLE} in its environment, so that it joins the transaction",
                    path.display()
                ),
            )),
        };
    };
    let Some(parent) = workspace.parent().and_then(Path::parent) else {
        return Ok(None);
    };
    let database = match parent.file_name().is_some_and(|name| name == COVERED) {
        true => parent.parent().unwrap_or(parent),
        false => parent,
    };
    let is_of = |database: &Path| match (database.canonicalize(), path.canonicalize()) {
        (Ok(database), Ok(path)) => database == path,
        _ => false,
    };
    Ok((is_of(parent) || is_of(database)).then_some(workspace))
}

/// The workspace that [`Database::open`](crate::Database::open) of `path` goes to by the
/// environment.
pub(crate) fn joined(path: &Path) -> Result<Option<PathBuf>> {
    let Some(workspace) = transaction_of(path)? else {
        return Ok(None);
    };
    if !workspace.is_dir() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "the long transaction {} has ended; unset {TRANSACTION_VARIABLE}, or begin \
                 another one",
                workspace.display()
            ),
        ));
    }
    Ok(Some(workspace))
}
