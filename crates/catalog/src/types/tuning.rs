//! What the owner of a database chose in place of the engine's defaults: rows of `larder_meta` that
//! need not be there.
//!
//! * `CATALOG-10` A choice is inside its bounds or it is not stored, and what is stored outside of
//!   them is damage. *Guard*: [`Tuning::check`] before each write and after each read.
//!
//! Versions that know nothing of a row pass over it, and content that they put inline is read by
//! all.

use crate::error::{At, CatalogError, Result};
use crate::types::codec;
use larder_format::limits::{GATHER_BYTES_MAX, GATHER_BYTES_MIN, INLINE_BYTES_MAX};
use rusqlite::{Connection, OptionalExtension, params};

/// What a database asks of the engine; `None`: the engine's own choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Content of at most this many bytes is kept in the catalog, 0 to [`INLINE_BYTES_MAX`]. What
    /// is inline already stays so until it is changed.
    pub inline_bytes_max: Option<u64>,
    /// Content that a session gathers in memory before writers wait, bytes, [`GATHER_BYTES_MIN`] to
    /// [`GATHER_BYTES_MAX`]. An object of up to a quarter of it is placed as a whole. A session
    /// takes at most an eighth of its machine's memory.
    pub gather_bytes_max: Option<u64>,
}

const INLINE: &str = "inline_bytes_max";
const GATHER: &str = "gather_bytes_max";

impl Tuning {
    /// What is wrong with it, with the remedy.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Some(bytes) = self
            .inline_bytes_max
            .filter(|&bytes| bytes > INLINE_BYTES_MAX)
        {
            return Err(format!(
                "content of {bytes} bytes does not fit into a row of the catalog; at most \
                 {INLINE_BYTES_MAX} are possible"
            ));
        }
        if let Some(bytes) = self
            .gather_bytes_max
            .filter(|bytes| !(GATHER_BYTES_MIN..=GATHER_BYTES_MAX).contains(bytes))
        {
            return Err(format!(
                "a gather of {bytes} bytes is out of bounds; {GATHER_BYTES_MIN} to \
                 {GATHER_BYTES_MAX} are possible"
            ));
        }
        Ok(())
    }

    fn rows(&self) -> [(&'static str, Option<u64>); 2] {
        [
            (INLINE, self.inline_bytes_max),
            (GATHER, self.gather_bytes_max),
        ]
    }
}

/// Reads what was chosen.
pub(crate) fn read(connection: &Connection) -> Result<Tuning> {
    let find = |key: &str| {
        connection
            .prepare_cached("SELECT value FROM larder_meta WHERE key = ?1")
            .and_then(|mut find| {
                find.query_row([key], |row| codec::unsigned(row, 0))
                    .optional()
            })
            .at("larder_meta")
    };
    let tuning = Tuning {
        inline_bytes_max: find(INLINE)?,
        gather_bytes_max: find(GATHER)?,
    };
    tuning
        .check()
        .map_err(|wrong| CatalogError::corrupt(format!("larder_meta: {wrong} (CATALOG-10)")))?;
    Ok(tuning)
}

/// Writes what was chosen, and takes away what no longer is; inside a transaction of the engine.
pub(crate) fn store(txn: &Connection, tuning: &Tuning) -> Result<()> {
    tuning.check().map_err(CatalogError::invalid)?;
    for (key, value) in tuning.rows() {
        match value {
            Some(bytes) => txn.execute(
                "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                params![key, codec::signed(bytes)],
            ),
            None => txn.execute("DELETE FROM larder_meta WHERE key = ?1", [key]),
        }
        .at("larder_meta")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::INIT;
    use crate::{Catalog, CatalogOptions};

    #[test]
    fn what_is_stored_outside_of_the_bounds_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap();
        assert_eq!(catalog.tables().info().unwrap().tuning, Tuning::default());
        let chosen = Tuning {
            inline_bytes_max: Some(0),
            gather_bytes_max: Some(GATHER_BYTES_MAX),
        };
        catalog.retention().set_tuning(&chosen).unwrap();
        assert_eq!(catalog.tables().info().unwrap().tuning, chosen);
        let shell = Connection::open(dir.path().join(crate::CATALOG_FILE)).unwrap();
        // The guards keep it from everybody else.
        let damage = "UPDATE larder_meta SET value = 5000 WHERE key = 'inline_bytes_max'";
        assert!(shell.execute_batch(damage).is_err());
        shell
            .execute_batch(&format!(
                "UPDATE larder_guard_switch SET open = 1; {damage}; UPDATE larder_guard_switch \
                SET open = 0"
            ))
            .unwrap();
        let error = catalog.tables().info().unwrap_err();
        assert!(
            matches!(error, CatalogError::Corrupt { .. })
                && error.to_string().contains("CATALOG-10"),
            "{error}"
        );
    }
}
