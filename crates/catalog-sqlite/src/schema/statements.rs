//! The SQL text for one store's tables, built once; connections cache the compiled form by text.
//!
//! StoreSql has more than 20 fields: it has the tables of a store and each statement on them.

use crate::history::KeepSql;
use crate::schema::attachments::Known;
use crate::space::map_pages::{ReferenceSql, resolved};
use crate::types::changes::AttrMask;
use crate::types::codec::signed;
use crate::types::rows::InodeRow;
use larder_format::{CommitSeq, StoreId};
use rusqlite::Statement;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Every combination of the seven flags of an [`AttrMask`].
const MASKS: usize = 1 << 8;

/// The statements of every store that a change set names.
pub(crate) type Stores = HashMap<StoreId, Arc<StoreSql>>;

/// The statements of one store. Parameters are numbered in the order of the columns they name.
pub(crate) struct StoreSql {
    /// The store that owns the tables.
    pub(crate) table_store: StoreId,
    /// Names of the tables.
    pub(crate) table: String,
    pub(crate) table_dirent: String,
    pub(crate) table_content: String,
    pub(crate) table_map: String,
    pub(crate) table_xattr: String,

    pub(crate) inode: String,
    pub(crate) inodes: String,
    pub(crate) inode_count: String,
    pub(crate) inode_insert: String,
    pub(crate) inode_update: Box<[OnceLock<String>]>,
    /// The inode row and everything that belongs to it.
    pub(crate) inode_delete: [String; 4],
    /// A table that has a row of an inode.
    pub(crate) inode_left: String,

    pub(crate) dirent: String,
    pub(crate) dirents: String,
    pub(crate) dirents_with_rows: String,
    pub(crate) parents: String,
    pub(crate) dirent_add: String,
    pub(crate) dirent_set: String,
    pub(crate) dirent_remove: String,

    pub(crate) content: String,
    pub(crate) file_content: String,
    pub(crate) content_add: String,
    pub(crate) content_set: String,
    pub(crate) content_remove: String,

    pub(crate) map_page: String,
    pub(crate) map_pages: String,
    pub(crate) map_add: String,
    pub(crate) map_set: String,
    pub(crate) map_remove: String,
    pub(crate) map_cut: String,
    pub(crate) map_from: String,
    /// Shared pages that rows of the map refer to.
    pub(crate) map_references: ReferenceSql,

    pub(crate) xattr: String,
    pub(crate) xattrs: String,
    pub(crate) xattr_add: String,
    pub(crate) xattr_set: String,
    pub(crate) xattr_remove: String,

    pub(crate) piece_page: String,
    pub(crate) piece_pages: String,
    pub(crate) redo_rows: String,

    /// What a commit supersedes (`history`).
    pub(crate) keep: KeepSql,
    /// What the schema says of what users attach to the files (`saves`).
    pub(crate) attached: Mutex<Known>,
}

impl StoreSql {
    /// The statements for the tables of store `name`, which `table_store` owns.
    pub(crate) fn new(table_store: StoreId, name: &str) -> StoreSql {
        let text = |template: &str| template.replace("{t}", name);
        StoreSql {
            table_store,
            table: name.into(),
            table_dirent: text("{t}_dirent"),
            table_content: text("{t}_content"),
            table_map: text("{t}_map"),
            table_xattr: text("{t}_xattr"),

            inode: text(
                "SELECT ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, \
                 ctime_ns, btime_ns, rdev FROM \"{t}\" WHERE ino = ?1",
            ),
            inodes: text(
                "SELECT ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, mtime_ns, \
                 ctime_ns, btime_ns, rdev FROM \"{t}\" WHERE ino > ?1 ORDER BY ino LIMIT ?2",
            ),
            inode_count: text("SELECT count(*) FROM \"{t}\""),
            inode_insert: text(
                "INSERT INTO \"{t}\" (ino, kind, mode, uid, gid, nlink, size, blocks, atime_ns, \
                 mtime_ns, ctime_ns, btime_ns, rdev, since_seq) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
            ),
            inode_update: (0..MASKS).map(|_| OnceLock::new()).collect(),
            inode_delete: [
                text("DELETE FROM \"{t}\" WHERE ino = ?1"),
                text("DELETE FROM \"{t}_content\" WHERE ino = ?1"),
                text("DELETE FROM \"{t}_map\" WHERE ino = ?1"),
                text("DELETE FROM \"{t}_xattr\" WHERE ino = ?1"),
            ],
            inode_left: text(
                "SELECT '{t}' FROM \"{t}\" WHERE ino = ?1 \
                 UNION ALL SELECT '{t}_content' FROM \"{t}_content\" WHERE ino = ?1 \
                 UNION ALL SELECT '{t}_map' FROM \"{t}_map\" WHERE ino = ?1 \
                 UNION ALL SELECT '{t}_xattr' FROM \"{t}_xattr\" WHERE ino = ?1 LIMIT 1",
            ),

            dirent: text("SELECT ino FROM \"{t}_dirent\" WHERE parent = ?1 AND name = ?2"),
            // LEFT JOIN: an entry whose inode is missing must be reported, not hidden.
            dirents: text(
                "SELECT d.name, d.ino, i.kind FROM \"{t}_dirent\" AS d \
                 LEFT JOIN \"{t}\" AS i ON i.ino = d.ino \
                 WHERE d.parent = ?1 AND d.name > ?2 ORDER BY d.name LIMIT ?3",
            ),
            dirents_with_rows: text(
                "SELECT d.name, d.ino, i.kind, i.mode, i.uid, i.gid, i.nlink, i.size, i.blocks, \
                 i.atime_ns, i.mtime_ns, i.ctime_ns, i.btime_ns, i.rdev FROM \"{t}_dirent\" AS d \
                 LEFT JOIN \"{t}\" AS i ON i.ino = d.ino \
                 WHERE d.parent = ?1 AND d.name > ?2 ORDER BY d.name LIMIT ?3",
            ),
            parents: text("SELECT parent, name FROM \"{t}_dirent\" WHERE ino = ?1"),
            dirent_add: text(
                "INSERT INTO \"{t}_dirent\" (parent, name, ino, since_seq) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (parent, name) DO NOTHING",
            ),
            dirent_set: text(
                "UPDATE \"{t}_dirent\" SET ino = ?3, since_seq = ?4 WHERE parent = ?1 AND name = \
                 ?2",
            ),
            dirent_remove: text("DELETE FROM \"{t}_dirent\" WHERE parent = ?1 AND name = ?2"),

            content: text("SELECT inline, target, checksum FROM \"{t}_content\" WHERE ino = ?1"),
            file_content: text(
                "SELECT inline, NULL, checksum FROM \"{t}_content\" \
                 WHERE ino = ?1 AND inline IS NOT NULL \
                 UNION ALL SELECT NULL, entries, NULL FROM larder_piece \
                 WHERE store = ?2 AND ino = ?1 AND page = 0",
            ),
            content_add: text(
                "INSERT INTO \"{t}_content\" (ino, inline, target, since_seq, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (ino) DO NOTHING",
            ),
            content_set: text(
                "UPDATE \"{t}_content\" SET inline = ?2, target = ?3, since_seq = ?4, \
                 checksum = ?5 WHERE ino = ?1",
            ),
            content_remove: text("DELETE FROM \"{t}_content\" WHERE ino = ?1"),

            map_page: text(&format!(
                "SELECT {} FROM \"{{t}}_map\" WHERE ino = ?1 AND page = ?2",
                resolved("main", "runs")
            )),
            map_pages: text(&format!(
                "SELECT page, {} FROM \"{{t}}_map\" WHERE ino = ?1 AND page >= ?2 \
                 ORDER BY page LIMIT ?3",
                resolved("main", "runs")
            )),
            map_add: text(
                "INSERT INTO \"{t}_map\" (ino, page, runs, since_seq) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (ino, page) DO NOTHING",
            ),
            map_set: text(
                "UPDATE \"{t}_map\" SET runs = ?3, since_seq = ?4 WHERE ino = ?1 AND page = ?2",
            ),
            map_remove: text("DELETE FROM \"{t}_map\" WHERE ino = ?1 AND page = ?2"),
            map_cut: text("DELETE FROM \"{t}_map\" WHERE ino = ?1 AND page >= ?2"),
            map_from: text("SELECT 1 FROM \"{t}_map\" WHERE ino = ?1 AND page >= ?2"),
            map_references: ReferenceSql::new(name),

            xattr: text("SELECT 1 FROM \"{t}_xattr\" WHERE ino = ?1 AND name = ?2"),
            xattrs: text("SELECT name, value FROM \"{t}_xattr\" WHERE ino = ?1 ORDER BY name"),
            xattr_add: text(
                "INSERT INTO \"{t}_xattr\" (ino, name, value, since_seq) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (ino, name) DO NOTHING",
            ),
            xattr_set: text(
                "UPDATE \"{t}_xattr\" SET value = ?3, since_seq = ?4 WHERE ino = ?1 AND name = ?2",
            ),
            xattr_remove: text("DELETE FROM \"{t}_xattr\" WHERE ino = ?1 AND name = ?2"),
            piece_page:
                "SELECT entries FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page = ?3"
                    .into(),
            piece_pages: "SELECT page, entries FROM larder_piece \
                 WHERE store = ?1 AND ino = ?2 AND page >= ?3 ORDER BY page LIMIT ?4"
                .into(),
            redo_rows: "SELECT seq, blocks, bytes, checksum FROM larder_redo_row \
                 WHERE store = ?1 AND ino = ?2 ORDER BY id"
                .into(),
            keep: KeepSql::new(table_store, name),
            attached: Mutex::default(),
        }
    }

    /// The UPDATE of exactly the columns in `mask`, with the parameter numbers of `inode_insert`;
    /// `None` when the mask is empty. Naming only these keeps what plain SQL put in the others, and
    /// spares the triggers on them.
    pub(crate) fn inode_update(&self, mask: AttrMask) -> Option<&str> {
        let columns: [(bool, &str); 8] = [
            (mask.mode, "mode = ?3"),
            (mask.owner, "uid = ?4, gid = ?5"),
            (mask.nlink, "nlink = ?6"),
            (mask.size, "size = ?7, blocks = ?8"),
            (mask.atime, "atime_ns = ?9"),
            (mask.mtime, "mtime_ns = ?10"),
            (mask.ctime, "ctime_ns = ?11"),
            (mask.flags, "rdev = ?13"),
        ];
        let index = columns
            .iter()
            .enumerate()
            .map(|(bit, (on, _))| usize::from(*on) << bit)
            .sum::<usize>();
        if index == 0 {
            return None;
        }
        Some(self.inode_update[index].get_or_init(|| {
            let set: Vec<&str> = columns
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, text)| *text)
                .collect();
            format!(
                "UPDATE \"{}\" SET {}, since_seq = ?14 WHERE ino = ?1",
                self.table,
                set.join(", ")
            )
        }))
    }
}

/// Runs `inode_insert`, or an `inode_update` (same parameter numbers).
pub(crate) fn insert_inode(
    statement: &mut Statement<'_>,
    row: &InodeRow,
    since: CommitSeq,
) -> rusqlite::Result<usize> {
    let numbers = [
        signed(row.ino.0),
        0,
        row.mode.into(),
        row.uid.into(),
        row.gid.into(),
        row.nlink.into(),
        signed(row.size_bytes),
        signed(row.block_count),
        row.atime_ns,
        row.mtime_ns,
        row.ctime_ns,
        row.btime_ns,
        signed(row.rdev),
        signed(since.0),
    ];
    for index in 1..=statement.parameter_count() {
        match index {
            2 => statement.raw_bind_parameter(index, row.kind.as_str())?,
            _ => statement.raw_bind_parameter(index, numbers[index - 1])?,
        }
    }
    statement.raw_execute()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_names_only_its_mask() {
        let sql = StoreSql::new(StoreId::MAIN, "main");
        assert_eq!(sql.inode_update(AttrMask::default()), None);
        let mask = AttrMask {
            owner: true,
            ctime: true,
            ..AttrMask::default()
        };
        assert_eq!(
            sql.inode_update(mask),
            Some(
                "UPDATE \"main\" SET uid = ?4, gid = ?5, ctime_ns = ?11, since_seq = ?14 WHERE \
                 ino = ?1"
            )
        );
    }
}
