//! The text of an object in the schema of a catalog (`SAFE-3`, `SAFE-4`), and names of stores
//! (`SAFE-1`).
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    larder_catalog_sqlite::fuzzing::read_schema_text(text);
    larder_catalog_sqlite::fuzzing::read_store_name(text);
});
