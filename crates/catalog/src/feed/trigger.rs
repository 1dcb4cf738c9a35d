//! The trigger that tells the feed of plain SQL on the table of a store.

/// The present in SQL, as triggers know it: whole milliseconds.
pub(super) const NOW: &str =
    "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000";

/// What tells of plain SQL on the table of a store, as the schema has it.
pub(crate) fn store_trigger(name: &str) -> String {
    // The touch trigger sets ctime, and nothing else, after each change of an attribute.
    let attributes = ["mode", "uid", "gid", "atime_ns", "mtime_ns"]
        .map(|column| format!("NEW.{column} IS OLD.{column}"))
        .join(" AND ");
    format!(
        "CREATE TRIGGER \"larder_feed_{name}\" AFTER UPDATE ON \"{name}\" \
         WHEN (SELECT open FROM larder_gate) IS NOT 1 \
           AND NOT (NEW.ctime_ns IS NOT OLD.ctime_ns AND {attributes}) \
           AND NEW.since_seq IS OLD.since_seq \
         BEGIN \
           INSERT INTO larder_change (at_ns, op, tbl, row_key) \
           VALUES ({NOW}, iif({attributes}, 'columns', 'attributes'), '{name}', NEW.ino); \
         END"
    )
}
