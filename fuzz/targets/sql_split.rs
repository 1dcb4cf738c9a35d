//! Texts of SQL, statement by statement: each ends behind where it begins, and none is run.
#![no_main]

use larder_catalog_sqlite::{SqliteCatalog, CatalogOptions, DatabaseInit, is_complete};
use std::sync::OnceLock;

const INIT: DatabaseInit = DatabaseInit {
    database_id: [7; 16],
    capacity_bytes: 0,
    retention_ns: 0,
    now_ns: 1,
    root_mode: 0o755,
    root_uid: 0,
    root_gid: 0,
};

fn catalogs() -> &'static [SqliteCatalog; 2] {
    static CATALOGS: OnceLock<[SqliteCatalog; 2]> = OnceLock::new();
    CATALOGS.get_or_init(|| {
        [false, true].map(|is_shell| {
            let name = format!("larder-fuzz-{}-{is_shell}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).expect("a directory");
            let options = CatalogOptions::default();
            drop(SqliteCatalog::create(&directory, &options, &INIT).expect("a catalog"));
            SqliteCatalog::open_private(&directory, &options, is_shell).expect("a connection")
        })
    })
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = is_complete(text);
    for catalog in catalogs() {
        let mut at = 0;
        while let Ok(Some(statement)) = catalog.sql().inspect(text, at) {
            assert!(
                statement.start >= at && statement.end > statement.start,
                "{statement:?}"
            );
            assert!(statement.end <= text.len(), "{statement:?}");
            at = statement.end;
        }
    }
});
