//! Names: the rule for those of stores, and the order of those in a directory.

use crate::error::{CatalogError, Result};
use larder_format::Name;
use larder_format::limits::STORE_NAME_BYTES_MAX;
use std::cmp::Ordering;

/// What the names of a store's tables and its view add to the store's name.
pub const SUFFIXES: [&str; 5] = ["_dirent", "_content", "_map", "_xattr", "_path"];

/// Checks the rule for store names: `[A-Za-z][A-Za-z0-9_]*`, at most
/// [`STORE_NAME_BYTES_MAX`] bytes, no prefix `larder_` or `sqlite_`, and no suffix that the tables
/// of another store may have.
pub fn check_store_name(name: &str) -> Result<()> {
    let refuse = |rule: String| Err(CatalogError::invalid(format!("store name '{name}' {rule}")));
    let lower = name.to_ascii_lowercase();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic())
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return refuse("must be letters, digits and '_', beginning with a letter".into());
    }
    if name.len() > STORE_NAME_BYTES_MAX {
        return refuse(format!(
            "has more than {STORE_NAME_BYTES_MAX} bytes; shorten it"
        ));
    }
    if let Some(prefix) = ["larder_", "sqlite_"]
        .into_iter()
        .find(|prefix| lower.starts_with(prefix))
    {
        return refuse(format!(
            "begins with '{prefix}', which is reserved; choose another"
        ));
    }
    if let Some(suffix) = SUFFIXES
        .iter()
        .chain(&["_dirent_ino"])
        .find(|suffix| lower.ends_with(**suffix))
    {
        return refuse(format!(
            "ends with '{suffix}', as tables of other stores do; choose another"
        ));
    }
    Ok(())
}

/// The order of names in a directory, as a catalog lists them: all UTF-8 names before all others,
/// each sorted by bytes (`CATALOG-6`). Total; never allocates.
pub fn dirent_order(a: &Name, b: &Name) -> Ordering {
    let rank = |name: &Name| std::str::from_utf8(name.as_bytes()).is_err();
    rank(a)
        .cmp(&rank(b))
        .then_with(|| a.as_bytes().cmp(b.as_bytes()))
}
