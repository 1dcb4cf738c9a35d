//! Format 1, frozen: what `larder upgrade` has to know of databases that an older larder wrote.
//! Nothing else reads them, and nothing here changes any more.
//!
//! # Words
//! *Format 1* has versions 1 to 12 of the catalog's schema, and version 1 of superblocks. Map pages
//! and pages of pieces are those of format 2.
//!
//! # Invariants
//! * `FORMAT1-1` A catalog of any version of the schema becomes one of version [`SCHEMA_VERSION`]
//!   by the steps that come after it, in order; that one is what the conversion to format 2 begins
//!   with. *Guard*: the golden database of format 1, and catalogs of each version made by the steps
//!   (crate `larder-catalog-sqlite`).

pub mod superblock;

/// One step from a version of the schema to the next.
pub struct Step {
    /// Of the whole catalog.
    pub sql: &'static str,
    /// The same for the tables of each store: `{name}` is its name, `{id}` its number.
    pub store_sql: Option<&'static str>,
    /// New tables that get [`GUARD`].
    pub guarded: &'static [&'static str],
}

/// Step `n` leads from version `n` to `n + 1`.
pub const STEPS: [Step; 12] = [
    Step {
        sql: include_str!("schema/v1.sql"),
        store_sql: None,
        guarded: &[
            "larder_meta",
            "larder_store",
            "larder_segment",
            "larder_extent",
            "larder_ag",
            "larder_session",
            "larder_orphan",
            "larder_holder",
        ],
    },
    Step {
        sql: include_str!("schema/v2.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v3.sql"),
        store_sql: None,
        guarded: &["larder_piece"],
    },
    Step {
        sql: include_str!("schema/v4.sql"),
        store_sql: None,
        guarded: &["larder_patch"],
    },
    Step {
        sql: include_str!("schema/v5.sql"),
        store_sql: None,
        guarded: &["larder_transaction", "larder_grant"],
    },
    Step {
        sql: include_str!("schema/v6.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v7.sql"),
        store_sql: Some(include_str!("schema/v7_store.sql")),
        guarded: &[
            "larder_home",
            "larder_snapshot",
            "larder_hold",
            "larder_past",
        ],
    },
    Step {
        sql: include_str!("schema/v8.sql"),
        store_sql: None,
        guarded: &["larder_temporal"],
    },
    Step {
        sql: include_str!("schema/v9.sql"),
        store_sql: None,
        guarded: &[
            "larder_author",
            "larder_seal",
            "larder_sealed",
            "larder_shared",
        ],
    },
    Step {
        sql: include_str!("schema/v10.sql"),
        store_sql: None,
        guarded: &["larder_map_page", "larder_map_page_use"],
    },
    Step {
        sql: include_str!("schema/v11.sql"),
        store_sql: None,
        guarded: &[],
    },
    Step {
        sql: include_str!("schema/v12.sql"),
        store_sql: Some(include_str!("schema/v12_store.sql")),
        guarded: &[],
    },
];

/// The newest version of the schema in format 1: `PRAGMA user_version`.
pub const SCHEMA_VERSION: u32 = STEPS.len() as u32;

/// From this version on there are long transactions.
pub const HAS_TRANSACTIONS: u32 = 5;

/// The tables, view and triggers of a store in version 1: `{name}` is its name.
pub const STORE: &str = include_str!("schema/store.sql");

/// The triggers of a table that only the engine may change: `{table}` is its name.
pub const GUARD: &str = include_str!("schema/guard.sql");

/// Tables whose name in format 2 is another one.
pub const RENAMED: [(&str, &str); 4] = [
    ("larder_gate", "larder_guard_switch"),
    ("larder_patch", "larder_redo_row"),
    ("larder_home", "larder_pre_image"),
    ("larder_past", "larder_as_of"),
];

/// A row of `larder_meta` whose key in format 2 is another one: the newest commit that deleted redo
/// rows and kept none of them.
pub const REDO_GONE: (&str, &str) = ("patches_gone_seq", "redo_gone_seq");

/// What `larder_history` calls a redo row, and calls it in format 2.
pub const REDO_ROW: (&str, &str) = ("patch", "redo");
