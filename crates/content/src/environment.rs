//! What the environment says: which long transaction the programs in it belong to.

use larder_object::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Names the workspace that [`Database::open`] goes to, in place of its database.
pub const TRANSACTION_VARIABLE: &str = "LARDER_TXN";

/// The workspace that `path` leads to by the environment, if it is its database.
pub(crate) fn joined(path: &Path) -> Result<Option<PathBuf>> {
    let Some(workspace) = std::env::var_os(TRANSACTION_VARIABLE).map(PathBuf::from) else {
        return Ok(None);
    };
    let parent = workspace.parent().and_then(Path::parent);
    let is_of = |parent: &Path| match (parent.canonicalize(), path.canonicalize()) {
        (Ok(parent), Ok(path)) => parent == path,
        _ => false,
    };
    if !parent.is_some_and(is_of) {
        return Ok(None);
    }
    if !workspace.is_dir() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "the long transaction {} has ended; unset {TRANSACTION_VARIABLE}, or begin another one",
                workspace.display()
            ),
        ));
    }
    Ok(Some(workspace))
}
