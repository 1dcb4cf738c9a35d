//! Where the choices of [`Tuning`] are stored: rows of `larder_meta` that need not be there.

use crate::error::{At, CatalogError, Result};
use crate::types::codec;
pub(crate) use larder_catalog_types::tuning::Tuning;
use rusqlite::{Connection, OptionalExtension, params};

const INLINE: &str = "inline_bytes_max";
const GATHER: &str = "gather_bytes_max";

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
    for (key, value) in [
        (INLINE, tuning.inline_bytes_max),
        (GATHER, tuning.gather_bytes_max),
    ] {
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
    use crate::{CatalogOptions, SqliteCatalog};
    use larder_format::limits::GATHER_BYTES_MAX;

    #[test]
    fn what_is_stored_outside_of_the_bounds_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap();
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
