//! Proving that the catalog is consistent in itself. Extent rows against extent maps is the concern
//! of the layer above, which can decode maps.

mod checksums;
pub(crate) mod damage;
pub(crate) mod survey;

use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::guards::audit;
use crate::schema::expected::{Expected, expected_objects};
use crate::space::map_pages;
use crate::types::codec::unsigned;
use crate::types::names::{StoreName, TABLE_SUFFIXES, quoted, shown};
use crate::{CatalogSurvey, schema};
use damage::FINDINGS_MAX;
use larder_format::Name;
use larder_format::limits::XATTR_VALUE_BYTES_MAX;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::BTreeSet;

/// Checks of the system tables: each query gives one finding per row.
const SYSTEM: &[&str] = &[
    "SELECT 'larder_guard_switch: the guard switch is open, so nothing guards the tables \
    (CATALOG-3)'
       FROM (SELECT 1) WHERE (SELECT open FROM larder_guard_switch) IS NOT 0",
    "SELECT 'larder_meta: ' || wanted.key || ' is missing' FROM (
         SELECT 'database_id' AS key UNION ALL SELECT 'capacity_bytes' UNION ALL SELECT \
         'retention_ns'
         UNION ALL SELECT 'created_ns' UNION ALL SELECT 'commit_seq'
         UNION ALL SELECT 'history_begins_seq' UNION ALL SELECT 'history_begins_ns'
         UNION ALL SELECT 'retired_bytes_total' UNION ALL SELECT 'next_store'
         UNION ALL SELECT 'next_session' UNION ALL SELECT 'next_map_page' UNION ALL SELECT \
         'redo_gone_seq') AS wanted
       LEFT JOIN larder_meta AS meta ON meta.key = wanted.key WHERE meta.key IS NULL",
    "SELECT 'larder_store: store ' || s.name || ' shows store ' || s.table_store || ', which does \
     not exist'
       FROM larder_store AS s LEFT JOIN larder_store AS o ON o.id = s.table_store WHERE o.id IS \
       NULL",
    "SELECT 'larder_store: store id ' || id || ' is not below next_store (CATALOG-4)'
       FROM larder_store WHERE id >= (SELECT value FROM larder_meta WHERE key = 'next_store')",
    "SELECT 'larder_extent: segment ' || segment || ' blocks ' || start_block || '..'
         || (start_block + block_count) || ' overlap the row at ' || next_start || ' (CATALOG-1)'
       FROM (SELECT segment, start_block, block_count,
               lead(start_block) OVER (PARTITION BY segment ORDER BY start_block) AS next_start
             FROM larder_extent) WHERE start_block + block_count > next_start",
    "SELECT 'larder_extent: segment ' || e.segment || ' blocks ' || e.start_block || '..'
         || (e.start_block + e.block_count) || ' lie beyond the segment, which has '
         || coalesce(s.block_count || ' blocks', 'no row') || ' (CATALOG-1)'
       FROM larder_extent AS e LEFT JOIN larder_segment AS s ON s.segment = e.segment
       WHERE s.segment IS NULL OR e.start_block + e.block_count > s.block_count",
    "SELECT 'larder_extent: segment ' || e.segment || ' block ' || e.start_block || ' is held by \
     store '
         || e.store || ', which does not exist'
       FROM larder_extent AS e LEFT JOIN larder_store AS s ON s.id = e.store
       WHERE e.retired_seq IS NULL AND s.id IS NULL AND e.store <> 4294967295",
    "SELECT 'larder_extent: segment ' || e.segment || ' block ' || e.start_block
         || ' is granted to transaction ' || e.ino || ', which is not open (WORKSPACE-1)'
       FROM larder_extent AS e LEFT JOIN larder_transaction AS t ON t.id = e.ino
       WHERE e.store = 4294967295 AND t.id IS NULL",
    "SELECT 'larder_extent: segment ' || segment || ' block ' || start_block || ' was retired by \
     commit '
         || retired_seq || ', which has not happened'
       FROM larder_extent WHERE retired_seq > (SELECT value FROM larder_meta WHERE key = \
       'commit_seq')",
    "SELECT 'larder_extent: segment ' || e.segment || ' block ' || e.start_block || ' is shared by '
         || e.shared_count || ' objects, and larder_shared names ' || count(s.ino) || ' (SHARE-1)'
       FROM larder_extent AS e
       LEFT JOIN larder_shared AS s ON s.segment = e.segment AND s.start_block = e.start_block
       GROUP BY e.segment, e.start_block HAVING count(s.ino) <> e.shared_count",
    "SELECT 'larder_shared: no extent row begins at segment ' || s.segment || ' block ' || \
     s.start_block
         || ', which inode ' || s.ino || ' of store ' || s.store || ' shares (SHARE-3)'
       FROM larder_shared AS s
       LEFT JOIN larder_extent AS e ON e.segment = s.segment AND e.start_block = s.start_block
       WHERE e.segment IS NULL",
    "SELECT 'larder_shared: inode ' || s.ino || ' of store ' || s.store || ' owns what it shares \
     at segment '
         || s.segment || ' block ' || s.start_block || ' (SHARE-1)'
       FROM larder_shared AS s
       JOIN larder_extent AS e ON e.segment = s.segment AND e.start_block = s.start_block
       WHERE e.store = s.store AND e.ino = s.ino",
    "SELECT 'larder_map_page: page ' || number || ' is not below next_map_page (CATALOG-4)'
       FROM larder_map_page WHERE number >= (SELECT value FROM larder_meta WHERE key = \
       'next_map_page')",
    "SELECT 'larder_map_page: page ' || number || ' was retired by commit ' || retired_seq || ', \
     which has not happened'
       FROM larder_map_page_use WHERE retired_seq > (SELECT value FROM larder_meta WHERE key = \
       'commit_seq')",
    "SELECT 'larder_history: row ' || h.id || ', which commit ' || h.until_seq || ' superseded, \
     refers to a shared map page that '
         || iif(p.number IS NULL, 'does not exist', 'was retired by commit ' || u.retired_seq) || \
         ' (SHARE-7)'
       FROM larder_history AS h LEFT JOIN larder_map_page AS p ON p.reference = h.value
       LEFT JOIN larder_map_page_use AS u ON u.number = p.number
       WHERE h.what = 'map' AND length(h.value) = 14 AND (p.number IS NULL OR u.retired_seq < \
       h.until_seq)",
    "SELECT 'larder_ag: group ' || coalesce(g.ag, c.ag) || ' of segment ' || coalesce(g.segment, \
     c.segment)
         || ' says ' || coalesce(g.used_blocks, 0) || ' blocks in use, ' || \
         coalesce(g.retired_blocks, 0)
         || ' of them retired, and its rows have ' || coalesce(c.used_blocks, 0) || ' and '
         || coalesce(c.retired_blocks, 0) || ' (CATALOG-8)'
       FROM larder_ag AS g FULL JOIN (
         SELECT segment, start_block / 262144 AS ag, sum(block_count) AS used_blocks,
           coalesce(sum(block_count) FILTER (WHERE retired_seq IS NOT NULL), 0) AS retired_blocks
         FROM larder_extent GROUP BY segment, start_block / 262144
       ) AS c ON c.segment = g.segment AND c.ag = g.ag
       WHERE (coalesce(g.used_blocks, 0), coalesce(g.retired_blocks, 0))
         <> (coalesce(c.used_blocks, 0), coalesce(c.retired_blocks, 0))",
    "SELECT DISTINCT 'larder_redo_row: inode ' || p.ino || ' belongs to store ' || p.store
         || ', which has no tables (REDO-1)'
       FROM larder_redo_row AS p LEFT JOIN larder_store AS s ON s.id = p.store AND s.table_store \
       = s.id
       WHERE s.id IS NULL",
    "SELECT 'larder_redo_row: a redo row of inode ' || ino || ' of store ' || store \
     || ' is of commit ' || seq || ', which has not happened'
       FROM larder_redo_row WHERE seq > (SELECT value FROM larder_meta WHERE key = 'commit_seq')",
    "SELECT 'larder_holder: session ' || h.session || ' holds inode ' || h.ino || ' of store ' || \
     h.store
         || ', which is no orphan'
       FROM larder_holder AS h LEFT JOIN larder_orphan AS o ON o.store = h.store AND o.ino = h.ino
       WHERE o.ino IS NULL",
    "SELECT 'larder_holder: inode ' || h.ino || ' of store ' || h.store || ' is held by session '
         || h.session || ', which does not exist'
       FROM larder_holder AS h LEFT JOIN larder_session AS s ON s.id = h.session WHERE s.id IS \
       NULL",
    "SELECT DISTINCT 'larder_piece: there are pieces of store ' || p.store || ', which has no \
     tables'
       FROM larder_piece AS p LEFT JOIN larder_store AS s ON s.id = p.store AND s.table_store = s.id
       WHERE s.id IS NULL",
    "SELECT 'larder_history: row ' || id || ' is of commit ' || until_seq || ', behind one of ' \
     || before
         || ' (HISTORY-2)'
       FROM (SELECT id, until_seq, lag(until_seq) OVER (ORDER BY id) AS before FROM larder_history)
       WHERE until_seq < before",
    "SELECT 'larder_history: row ' || id || ' is of commit ' || until_seq || ', which has not \
     happened'
       FROM larder_history WHERE until_seq > 1 + (SELECT value FROM larder_meta WHERE key = \
       'commit_seq')",
    "SELECT 'larder_history: ' || what || ' ' || quote(key) || ' of inode ' || ino || ' of store \
     ' || store
         || ' was superseded by commit ' || before || ', and is there since ' || since_seq || ' \
         (HISTORY-1)'
       FROM (SELECT *, lag(until_seq) OVER (PARTITION BY store, ino, what, key ORDER BY \
       until_seq) AS before
         FROM larder_history WHERE store IS NOT NULL AND what <> 'redo') WHERE since_seq < before",
    "SELECT DISTINCT 'larder_history: there is history of store ' || h.store || ', which has no \
     tables'
       FROM larder_history AS h LEFT JOIN larder_store AS s ON s.id = h.store AND s.table_store = \
       s.id
       WHERE h.store IS NOT NULL AND s.id IS NULL",
    "SELECT 'larder_history: row ' || id || ' has attributes that no inode has'
       FROM larder_history WHERE what = 'inode' AND (
         kind IN ('file', 'dir', 'symlink', 'fifo', 'socket', 'chardev', 'blockdev')
         AND mode BETWEEN 0 AND 4095 AND uid BETWEEN 0 AND 4294967295
         AND gid BETWEEN 0 AND 4294967295 AND nlink BETWEEN 0 AND 4294967295
         AND size >= 0 AND blocks >= 0 AND rdev >= 0) IS NOT 1",
    // What the engine alone writes is of a commit that was, or of none: 0.
    "SELECT what || ' is of commit ' || seq || ', which never was' FROM (
         SELECT 'larder_seal: link ' || number AS what, seq FROM larder_seal
         UNION ALL SELECT 'larder_sealed: row ' || id, from_seq FROM larder_sealed
         UNION ALL SELECT 'larder_session: what session ' || id || ' reads', pin_seq
           FROM larder_session
         UNION ALL SELECT 'larder_transaction: what transaction ' || id || ' reads', pin_seq
           FROM larder_transaction
         UNION ALL SELECT 'larder_as_of: row ' || id, seq FROM larder_as_of
         UNION ALL SELECT 'larder_author: the beginning of session ' || session, since_seq
           FROM larder_author
         UNION ALL SELECT 'larder_author: the end of session ' || session, until_seq
           FROM larder_author
         UNION ALL SELECT 'larder_piece: page ' || page || ' of inode ' || ino || ' of store '
           || store, since_seq FROM larder_piece
         UNION ALL SELECT 'larder_meta: ' || key, value FROM larder_meta
           WHERE key = 'history_begins_seq' OR key GLOB 'history_begins_seq:*'
       ) WHERE seq NOT BETWEEN 0 AND (SELECT value FROM larder_meta WHERE key = 'commit_seq')",
    "SELECT 'larder_author: session ' || session || ' ended at commit ' || until_seq || ', and \
     began at ' || since_seq
       FROM larder_author WHERE until_seq < since_seq",
    // Plain SQL between two commits is of the next one.
    "SELECT what || ' is of commit ' || seq || ', which has not happened' FROM (
         SELECT 'larder_ag: group ' || ag || ' of segment ' || segment AS what, changed_seq AS seq
           FROM larder_ag
         UNION ALL SELECT 'larder_temporal: row ' || id, since_seq FROM larder_temporal
         UNION ALL SELECT 'larder_temporal: row ' || id, until_seq FROM larder_temporal
         UNION ALL SELECT 'larder_orphan: inode ' || ino || ' of store ' || store, seq
           FROM larder_orphan
         UNION ALL SELECT 'larder_pre_image: the copy of segment ' || segment || ' block '
           || start_block, until_seq FROM larder_pre_image
       ) WHERE seq > 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')",
    "SELECT 'larder_snapshot: ' || name || ' is of commit ' || seq || ', whose state is gone \
     (HISTORY-3)'
       FROM larder_snapshot WHERE seq < (SELECT value FROM larder_meta WHERE key = \
       'history_begins_seq')
         OR seq > (SELECT value FROM larder_meta WHERE key = 'commit_seq')",
    // A step of a transaction has no state that somebody may name or read.
    "SELECT what || ' is of commit ' || seq || ', which was no whole one (HISTORY-3)' FROM (
         SELECT 'larder_snapshot: ' || name AS what, seq FROM larder_snapshot
         UNION ALL SELECT 'larder_as_of: row ' || id, seq FROM larder_as_of
       ) WHERE seq <= (SELECT value FROM larder_meta WHERE key = 'commit_seq')
         AND seq > (SELECT value FROM larder_meta WHERE key = 'history_begins_seq')
         AND seq NOT IN (SELECT until_seq FROM larder_history WHERE what = 'commit')",
    "SELECT DISTINCT 'larder_history: store ' || h.store || ' has rows of commits up to ' || \
     h.until_seq
         || ', and its history begins at ' || m.value || ' (HISTORY-7)'
       FROM larder_meta AS m JOIN larder_history AS h ON h.store = CAST(substr(m.key, 20) AS \
       INTEGER)
       WHERE m.key GLOB 'history_begins_seq:[0-9]*' AND h.until_seq <= m.value",
    "SELECT 'larder_extent: segment ' || e.segment || ' block ' || e.start_block || ' was retired \
     by commit '
         || e.retired_seq || ', and the history of store ' || e.store || ' begins at ' || m.value \
         || ' (HISTORY-7)'
       FROM larder_meta AS m JOIN larder_extent AS e ON e.store = CAST(substr(m.key, 20) AS INTEGER)
       WHERE m.key GLOB 'history_begins_seq:[0-9]*' AND e.retired_seq <= m.value AND NOT EXISTS (
         SELECT 1 FROM larder_meta WHERE key = 'shares_across:' || e.store)",
    "SELECT 'larder_hold: snapshot ' || h.snapshot || ' is held and does not exist'
       FROM larder_hold AS h LEFT JOIN larder_snapshot AS s ON s.name = h.snapshot WHERE s.name \
       IS NULL",
    "SELECT 'larder_seal: link ' || s.number || ' does not follow the link before (SEAL-1)'
       FROM larder_seal AS s LEFT JOIN larder_seal AS p ON p.number = s.number - 1
       WHERE s.previous IS NOT iif(s.number = 1, zeroblob(32), p.link)",
];

// The checks spell it out.
const _: () = assert!(XATTR_VALUE_BYTES_MAX == 65_536);

/// Checks of one store's tables; `{t}` is its name, `?1` its id.
const STORE: &[&str] = &[
    "SELECT what || ' is there since commit ' || seq || ', which has not happened' FROM (
         SELECT '{t}: inode ' || ino AS what, since_seq AS seq FROM \"{t}\"
         UNION ALL SELECT '{t}_dirent: ' || quote(name) || ' in directory ' || parent, since_seq
           FROM \"{t}_dirent\"
         UNION ALL SELECT '{t}_content: that of inode ' || ino, since_seq FROM \"{t}_content\"
         UNION ALL SELECT '{t}_map: page ' || page || ' of inode ' || ino, since_seq
           FROM \"{t}_map\"
         UNION ALL SELECT '{t}_xattr: ' || quote(name) || ' of inode ' || ino, since_seq
           FROM \"{t}_xattr\"
       ) WHERE seq NOT BETWEEN 0 AND 1 + (SELECT value FROM larder_meta WHERE key = 'commit_seq')",
    "SELECT '{t}: the root directory, inode 1, is missing or no directory' FROM (SELECT 1)
       WHERE (SELECT kind FROM \"{t}\" WHERE ino = 1) IS NOT 'dir'",
    "SELECT '{t}_dirent: ' || quote(d.name) || ' in directory ' || d.parent || ' names inode ' || \
     d.ino
         || ', which does not exist'
       FROM \"{t}_dirent\" AS d LEFT JOIN \"{t}\" AS i ON i.ino = d.ino WHERE i.ino IS NULL",
    "SELECT '{t}_dirent: ' || quote(d.name) || ' lies in inode ' || d.parent || ', which is '
         || coalesce('a ' || i.kind, 'missing')
       FROM \"{t}_dirent\" AS d LEFT JOIN \"{t}\" AS i ON i.ino = d.parent WHERE i.kind IS NOT \
       'dir'",
    "SELECT '{t}: inode ' || i.ino || ' has nlink ' || i.nlink || ' and ' || count(d.ino) || ' \
     names'
       FROM \"{t}\" AS i LEFT JOIN \"{t}_dirent\" AS d ON d.ino = i.ino
       WHERE i.kind <> 'dir' GROUP BY i.ino HAVING i.nlink <> count(d.ino)",
    // A directory without a name is an orphan: nothing counts it. Others count `.`, `..` and
    // children.
    "SELECT '{t}: directory ' || ino || ' has nlink ' || nlink || ', expected ' || expected FROM (
         SELECT i.ino, i.nlink, CASE
             WHEN i.ino = 1 OR EXISTS (SELECT 1 FROM \"{t}_dirent\" AS d WHERE d.ino = i.ino)
             THEN 2 + coalesce(c.child_count, 0) ELSE 0 END AS expected
           FROM \"{t}\" AS i LEFT JOIN (
             SELECT d.parent, count(*) AS child_count FROM \"{t}_dirent\" AS d
               JOIN \"{t}\" AS child ON child.ino = d.ino AND child.kind = 'dir' GROUP BY d.parent
           ) AS c ON c.parent = i.ino WHERE i.kind = 'dir') WHERE nlink <> expected",
    "SELECT '{t}_dirent: directory ' || d.ino || ' has ' || count(*) || ' names, expected '
         || iif(d.ino = 1, 0, 1)
       FROM \"{t}_dirent\" AS d JOIN \"{t}\" AS i ON i.ino = d.ino
       WHERE i.kind = 'dir' GROUP BY d.ino HAVING count(*) <> iif(d.ino = 1, 0, 1)",
    "WITH RECURSIVE reached (ino) AS (
         SELECT 1 UNION
         SELECT d.ino FROM reached JOIN \"{t}_dirent\" AS d ON d.parent = reached.ino
           JOIN \"{t}\" AS i ON i.ino = d.ino AND i.kind = 'dir')
       SELECT '{t}: directory ' || i.ino || ' cannot be reached from the root' FROM \"{t}\" AS i
       WHERE i.kind = 'dir' AND i.ino NOT IN reached AND i.nlink > 0",
    "SELECT '{t}: inode ' || i.ino || ' has no name and is no orphan' FROM \"{t}\" AS i
       WHERE i.nlink = 0 AND NOT EXISTS (
         SELECT 1 FROM larder_orphan AS o WHERE o.store = ?1 AND o.ino = i.ino)",
    "SELECT 'larder_orphan: inode ' || o.ino || ' of {t} '
         || iif(i.ino IS NULL, 'does not exist', 'has nlink ' || i.nlink)
       FROM larder_orphan AS o LEFT JOIN \"{t}\" AS i ON i.ino = o.ino
       WHERE o.store = ?1 AND i.nlink IS NOT 0",
    "SELECT '{t}: inode ' || ino || ' is not below next_ino (CATALOG-4)' FROM \"{t}\"
       WHERE ino >= (SELECT next_ino FROM larder_store WHERE id = ?1)",
    "SELECT '{t}_content: there is no inode ' || c.ino
       FROM \"{t}_content\" AS c LEFT JOIN \"{t}\" AS i ON i.ino = c.ino WHERE i.ino IS NULL",
    "SELECT '{t}_content: inode ' || c.ino || ', a ' || i.kind || ', has the content of another \
     kind'
       FROM \"{t}_content\" AS c JOIN \"{t}\" AS i ON i.ino = c.ino
       WHERE i.kind <> iif(c.inline IS NULL, 'symlink', 'file')",
    "SELECT '{t}: symlink ' || i.ino || ' of ' || i.size || ' bytes has '
         || coalesce('a target of ' || length(c.target) || ' bytes', 'no target')
       FROM \"{t}\" AS i LEFT JOIN \"{t}_content\" AS c ON c.ino = i.ino
       WHERE i.kind = 'symlink' AND length(c.target) IS NOT i.size",
    "SELECT DISTINCT '{t}_map: there is no file ' || m.ino
       FROM \"{t}_map\" AS m LEFT JOIN \"{t}\" AS i ON i.ino = m.ino WHERE i.kind IS NOT 'file'",
    "SELECT DISTINCT '{t}_map: inode ' || m.ino || ' has inline content as well'
       FROM \"{t}_map\" AS m JOIN \"{t}_content\" AS c ON c.ino = m.ino",
    "SELECT DISTINCT 'larder_piece: there is no file ' || p.ino || ' of {t}'
       FROM larder_piece AS p LEFT JOIN \"{t}\" AS i ON i.ino = p.ino
       WHERE p.store = ?1 AND i.kind IS NOT 'file'",
    "SELECT DISTINCT 'larder_piece: inode ' || p.ino || ' of {t} has inline content as well'
       FROM larder_piece AS p JOIN \"{t}_content\" AS c ON c.ino = p.ino WHERE p.store = ?1",
    "SELECT DISTINCT 'larder_piece: the list of inode ' || p.ino || ' of {t} has no root'
       FROM larder_piece AS p WHERE p.store = ?1 AND NOT EXISTS (
         SELECT 1 FROM larder_piece AS r WHERE r.store = ?1 AND r.ino = p.ino AND r.page = 0)",
    "SELECT DISTINCT 'larder_redo_row: there is no file ' || p.ino || ' in {t} (REDO-1)'
       FROM larder_redo_row AS p LEFT JOIN \"{t}\" AS i ON i.ino = p.ino
       WHERE p.store = ?1 AND i.kind IS NOT 'file'",
    "SELECT '{t}: inode ' || i.ino || ' is there since commit ' || i.since_seq || ' and was \
     superseded by '
         || max(h.until_seq) || ' (HISTORY-1)'
       FROM \"{t}\" AS i JOIN larder_history AS h ON h.store = ?1 AND h.ino = i.ino AND h.what = \
       'inode'
         AND h.key = 0 GROUP BY i.ino HAVING max(h.until_seq) > i.since_seq",
    "SELECT '{t}: inodes ' || i.ino || ' and ' || j.ino || ' have the file_id ' || i.first_ino || \
     ' (SAVE-1)'
       FROM \"{t}\" AS i JOIN \"{t}\" AS j ON j.ino = i.first_ino
       WHERE i.first_ino IS NOT NULL AND j.first_ino IS NULL",
    "SELECT '{t}: ' || count(*) || ' inodes have the file_id ' || first_ino || ' (SAVE-1)'
       FROM \"{t}\" WHERE first_ino IS NOT NULL GROUP BY first_ino HAVING count(*) > 1",
    "SELECT '{t}_dirent: ' || quote(d.name) || ' in directory ' || d.parent || ' is there since \
     commit '
         || d.since_seq || ' and was superseded by ' || max(h.until_seq) || ' (HISTORY-1)'
       FROM \"{t}_dirent\" AS d JOIN larder_history AS h ON h.store = ?1 AND h.ino = d.parent
         AND h.what = 'name' AND h.key = d.name
       GROUP BY d.parent, d.name HAVING max(h.until_seq) > d.since_seq",
    "SELECT '{t}_map: page ' || m.page || ' of inode ' || m.ino || ' is there since commit ' || \
     m.since_seq
         || ' and was superseded by ' || max(h.until_seq) || ' (HISTORY-1)'
       FROM \"{t}_map\" AS m JOIN larder_history AS h ON h.store = ?1 AND h.ino = m.ino AND \
       h.what = 'map'
         AND h.key = m.page GROUP BY m.ino, m.page HAVING max(h.until_seq) > m.since_seq",
    "SELECT '{t}_xattr: an attribute of inode ' || ino || ' has a value of ' || length(value) || ' \
     bytes, more than any larder writes'
       FROM \"{t}_xattr\" WHERE length(value) > 65536",
    "SELECT DISTINCT '{t}_xattr: there is no inode ' || x.ino
       FROM \"{t}_xattr\" AS x LEFT JOIN \"{t}\" AS i ON i.ino = x.ino WHERE i.ino IS NULL",
];

impl CatalogSurvey<'_> {
    /// Which tables cannot be read for damage, and what still reads; nothing: all can. Cost: reads
    /// the catalog.
    pub fn damage(&self) -> Result<Vec<String>> {
        let code = self.code()?;
        self.catalog
            .read(|reader| damage::survey(reader, code, true))
    }

    /// Proves the catalog's structure at one committed moment: SQLite's integrity check, the
    /// schema, and every rule between tables that SQL can express. Returns one line per finding, at
    /// most 100 of each kind; none means sound. Reads everything: seconds per million files.
    pub fn check(&self) -> Result<Vec<String>> {
        let code = self.code()?;
        self.catalog.read(|reader| {
            let txn = rusqlite::Transaction::new_unchecked(reader, TransactionBehavior::Deferred)
                .at("the start of a check")?;
            if code != Code::Trusted {
                audit::require_to_prove(&txn, code)?;
            }
            let mut findings = Vec::new();
            let read = collect(&txn, "PRAGMA integrity_check", None, &mut findings);
            let is_damaged = match read {
                Err(CatalogError::Damaged { .. }) => true,
                read => read.map(|()| findings != ["ok"])?,
            };
            if is_damaged {
                let damaged = damage::survey(&txn, code, true)?;
                if !damaged.is_empty() {
                    return Ok(damaged);
                }
            }
            findings.retain(|finding| finding != "ok");
            let stores = stores_with_tables(&txn)?;
            let is_complete = check_schema(&txn, &stores, &mut findings)?;
            if !is_complete {
                return Ok(findings); // The queries below would fail on what is missing.
            }
            for table in tables_of(&stores)? {
                findings.extend(damage::find_long_values(&txn, &table)?);
            }
            check_names(&txn, &stores, &mut findings)?;
            for sql in SYSTEM {
                collect(&txn, sql, None, &mut findings)?;
            }
            map_pages::check(&txn, &stores, &mut findings)?;
            checksums::check(&txn, &stores, &mut findings)?;
            for (id, name) in &stores {
                for sql in STORE {
                    collect(&txn, &sql.replace("{t}", name), Some(*id), &mut findings)?;
                }
            }
            Ok(findings)
        })
    }

    /// Whose the code in its schema is.
    fn code(&self) -> Result<Code> {
        let place = &self.catalog.place;
        self.catalog
            .options
            .trust
            .judge(place.owner(), &place.path())
    }
}

fn stores_with_tables(connection: &Connection) -> Result<Vec<(u64, String)>> {
    let mut list = connection
        .prepare("SELECT id, name FROM larder_store WHERE table_store = id ORDER BY id")
        .at("larder_store")?;
    let rows = list
        .query_map([], |row| {
            Ok((unsigned(row, 0)?, row.get::<_, StoreName>(1)?.into()))
        })
        .at("larder_store")?;
    rows.collect::<rusqlite::Result<_>>().at("larder_store")
}

/// Finds objects and columns of ours that somebody dropped or renamed; returns whether all tables
/// and columns are there.
fn check_schema(
    connection: &Connection,
    stores: &[(u64, String)],
    findings: &mut Vec<String>,
) -> Result<bool> {
    let names: Vec<String> = stores.iter().map(|(_, name)| name.clone()).collect();
    let mut list = connection
        .prepare("SELECT type, name FROM sqlite_schema")
        .at("sqlite_schema")?;
    let found: BTreeSet<(String, String)> = list
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at("sqlite_schema")?;
    let mut is_complete = true;
    for (kind, name) in expected_objects(&names)?.iter() {
        is_complete &= found.contains(&(kind.clone(), name.clone())) || kind != "table";
        if !found.contains(&(kind.clone(), name.clone())) {
            findings.push(format!("schema: {kind} {name} is missing"));
        }
    }
    for name in &names {
        for column in schema::ENGINE_COLUMNS {
            let is_there = connection
                .prepare_cached("SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2")
                .and_then(|mut find| find.exists([name.as_str(), column]))
                .at(name)?;
            if !is_there {
                is_complete = false;
                findings.push(format!("schema: column {column} of {name} is missing"));
            }
        }
    }
    Ok(is_complete)
}

/// The tables that the engine's statements read.
fn tables_of(stores: &[(u64, String)]) -> Result<Vec<String>> {
    let expected = Expected::of(schema::SCHEMA_VERSION)?;
    let system = (expected.system.values()).filter(|object| object.kind == "table");
    let mut tables: Vec<String> = system.map(|object| object.name.to_string()).collect();
    tables.sort_unstable();
    for (_, name) in stores {
        tables.extend(TABLE_SUFFIXES.map(|suffix| format!("{name}{suffix}")));
    }
    Ok(tables)
}

/// Names that no larder writes (`CATALOG-6`), which nobody finds under their bytes.
fn check_names(
    connection: &Connection,
    stores: &[(u64, String)],
    findings: &mut Vec<String>,
) -> Result<()> {
    for (table, key) in stores.iter().flat_map(|(_, name)| {
        [
            (format!("{name}_dirent"), "parent"),
            (format!("{name}_xattr"), "ino"),
        ]
    }) {
        let sql = format!("SELECT name, {key} FROM {}", quoted(&table));
        let mut list = connection.prepare(&sql).at(&table)?;
        let mut rows = list.query([]).at(&table)?;
        let mut count = 0;
        while let Some(row) = rows.next().at(&table)? {
            let why = match row.get_ref(0).at(&table)? {
                ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_err() => {
                    Some("is text and no UTF-8".to_owned())
                }
                ValueRef::Blob(bytes) if std::str::from_utf8(bytes).is_ok() => {
                    Some("is bytes and UTF-8, which is kept as text".to_owned())
                }
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => match key {
                    "parent" => Name::new(bytes).err().map(|why| why.to_string()),
                    _ => None,
                },
                _ => Some("is neither text nor bytes".to_owned()),
            };
            let Some(why) = why else { continue };
            if count == FINDINGS_MAX {
                findings.push(format!("… and more like the last {FINDINGS_MAX}"));
                break;
            }
            count += 1;
            let name =
                String::from_utf8_lossy(crate::types::codec::bytes(row, 0).unwrap_or_default())
                    .into_owned();
            let of: Value = row.get(1).at(&table)?;
            findings.push(format!(
                "{table}: the name {} of {key} {of:?}: {why} (CATALOG-6)",
                shown(&name)
            ));
        }
    }
    Ok(())
}

/// Runs one check and appends its findings. What cannot be asked, since values are absurd, is a
/// finding too.
fn collect(
    connection: &Connection,
    sql: &str,
    store: Option<u64>,
    findings: &mut Vec<String>,
) -> Result<()> {
    match collect_rows(connection, sql, store, findings) {
        Err(
            error @ (CatalogError::Storage { .. }
            | CatalogError::Corrupt { .. }
            | CatalogError::Damaged { .. }),
        ) => {
            findings.push(format!("cannot be checked: {error}"));
            Ok(())
        }
        other => other,
    }
}

fn collect_rows(
    connection: &Connection,
    sql: &str,
    store: Option<u64>,
    findings: &mut Vec<String>,
) -> Result<()> {
    let step = sql.get(..40).unwrap_or(sql);
    let mut query = connection.prepare(sql).at(step)?;
    if query.parameter_count() > 0 {
        query
            .raw_bind_parameter(1, store.map(crate::types::codec::signed))
            .at(step)?;
    }
    let mut rows = query.raw_query();
    let mut count = 0;
    while let Some(row) = rows.next().at(step)? {
        if count == FINDINGS_MAX {
            findings.push(format!("… and more like the last {FINDINGS_MAX}"));
            break;
        }
        findings.push(
            String::from_utf8_lossy(crate::types::codec::bytes(row, 0).at(step)?).into_owned(),
        );
        count += 1;
    }
    Ok(())
}
