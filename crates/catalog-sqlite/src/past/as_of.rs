//! The statements that read a store's tables as they were after a commit: those of the present,
//! with the same parameters, over the present rows that were there and the superseded ones
//! (`history`).

use crate::schema::statements::StoreSql;
use crate::space::map_pages::resolved;
use larder_format::{CommitSeq, StoreId};

/// The columns of an inode, after `ino`.
pub(crate) const ATTRIBUTES: [&str; 12] = [
    "kind", "mode", "uid", "gid", "nlink", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns",
    "btime_ns", "rdev",
];

impl StoreSql {
    /// The statements that read the tables of store `name` as they were after commit `seq`.
    pub(crate) fn as_of(store: StoreId, name: &str, seq: CommitSeq) -> StoreSql {
        let text = |template: &str| {
            template
                .replace("{t}", name)
                .replace("{id}", &store.to_string())
                .replace("{s}", &seq.to_string())
        };
        // One row of a kind: the first that was superseded later, if it was there already.
        let one = |what: &str, key: &str, columns: &str| {
            format!(
                "SELECT {columns} FROM (SELECT * FROM larder_history WHERE store = {store} AND \
                 {key} \
                 AND what = '{what}' AND until_seq > {seq} ORDER BY until_seq LIMIT 1) \
                 WHERE since_seq <= {seq}"
            )
        };
        // All rows of a kind.
        let all = |what: &str, key: &str, columns: &str| {
            format!(
                "SELECT {columns} FROM larder_history WHERE store = {store} AND {key} \
                 AND what = '{what}' AND until_seq > {seq} AND since_seq <= {seq}"
            )
        };
        let attributes = ATTRIBUTES.join(", ");
        let either: Vec<String> = ATTRIBUTES
            .iter()
            .map(|column| format!("iif(p.ino IS NULL, h.{column}, p.{column})"))
            .collect();
        // In the order of names, which the joins keep: `dirent_page` relies on nothing, and sorts
        // what is sorted. To ask for it again outside would copy every row into a sorter.
        let page = |limits: &str| {
            format!(
                "(SELECT name, ino FROM \"{name}_dirent\" WHERE parent = ?1 AND name > ?2 \
                   AND since_seq <= {seq} UNION ALL {} ORDER BY 1 {limits}) AS d",
                all("name", "ino = ?1 AND key > ?2", "key, value")
            )
        };
        let content = one(
            "content",
            "ino = ?1 AND key = 0",
            "iif(kind = 'symlink', NULL, value), iif(kind = 'symlink', value, NULL), checksum",
        );
        let inline = one(
            "content",
            "ino = ?1 AND key = 0",
            "iif(kind = 'symlink', NULL, value), NULL, checksum",
        );
        let root = one("piece", "ino = ?1 AND key = 0", "NULL, value, NULL");
        let (runs, value) = (resolved("main", "runs"), resolved("main", "value"));
        StoreSql {
            inode: text(&format!(
                "SELECT ino, {attributes} FROM \"{{t}}\" WHERE ino = ?1 AND since_seq <= {{s}} \
                 UNION ALL {}",
                one(
                    "inode",
                    "ino = ?1 AND key = 0",
                    &format!("ino, {attributes}")
                )
            )),
            dirent: text(&format!(
                "SELECT ino FROM \"{{t}}_dirent\" WHERE parent = ?1 AND name = ?2 AND since_seq \
                 <= {{s}} \
                 UNION ALL {}",
                one("name", "ino = ?1 AND key = ?2", "value")
            )),
            dirents: text(&format!(
                "SELECT d.name, d.ino, coalesce((SELECT kind FROM \"{{t}}\" WHERE ino = d.ino), \
                   (SELECT kind FROM larder_history WHERE store = {{id}} AND ino = d.ino AND what \
                   = 'inode' \
                    AND key = 0 LIMIT 1)) FROM {}",
                page("LIMIT ?3")
            )),
            dirents_with_rows: text(&format!(
                "SELECT d.name, d.ino, {} FROM {} \
                 LEFT JOIN \"{{t}}\" AS p ON p.ino = d.ino AND p.since_seq <= {{s}} \
                 LEFT JOIN larder_history AS h ON h.since_seq <= {{s}} AND h.id = CASE WHEN p.ino \
                 IS NULL THEN \
                   (SELECT id FROM larder_history WHERE store = {{id}} AND ino = d.ino AND what = \
                   'inode' \
                    AND key = 0 AND until_seq > {{s}} ORDER BY until_seq LIMIT 1) END",
                either.join(", "),
                page("LIMIT ?3")
            )),
            parents: text(&format!(
                "SELECT parent, name FROM \"{{t}}_dirent\" WHERE ino = ?1 AND since_seq <= {{s}} \
                 UNION ALL {}",
                all("name", "value = ?1", "ino, key")
            )),
            content: text(&format!(
                "SELECT inline, target, checksum FROM \"{{t}}_content\" WHERE ino = ?1 AND \
                since_seq <= \
                 {{s}} \
                 UNION ALL {content}"
            )),
            file_content: text(&format!(
                "SELECT inline, NULL, checksum FROM \"{{t}}_content\" \
                 WHERE ino = ?1 AND inline IS NOT NULL AND since_seq <= {{s}} UNION ALL {inline} \
                 UNION ALL SELECT NULL, entries, NULL FROM larder_piece \
                 WHERE store = ?2 AND ino = ?1 AND page = 0 AND since_seq <= {{s}} \
                 UNION ALL {root}"
            )),
            map_page: text(&format!(
                "SELECT {runs} FROM \"{{t}}_map\" WHERE ino = ?1 AND page = ?2 AND since_seq <= \
                 {{s}} UNION ALL {}",
                one("map", "ino = ?1 AND key = ?2", &value)
            )),
            map_pages: text(&format!(
                "SELECT page, {runs} FROM \"{{t}}_map\" WHERE ino = ?1 AND page >= ?2 AND \
                 since_seq <= {{s}} \
                 UNION ALL {} ORDER BY 1 LIMIT ?3",
                all("map", "ino = ?1 AND key >= ?2", &format!("key, {value}"))
            )),
            xattrs: text(&format!(
                "SELECT name, value FROM \"{{t}}_xattr\" WHERE ino = ?1 AND since_seq <= {{s}} \
                 UNION ALL {} ORDER BY 1",
                all("xattr", "ino = ?1", "key, value")
            )),
            piece_page: text(&format!(
                "SELECT entries FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page = ?3 \
                 AND since_seq <= {{s}} UNION ALL {}",
                one("piece", "ino = ?2 AND key = ?3", "value")
            )),
            piece_pages: text(&format!(
                "SELECT page, entries FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page >= \
                 ?3 \
                 AND since_seq <= {{s}} UNION ALL {} ORDER BY 1 LIMIT ?4",
                all("piece", "ino = ?2 AND key >= ?3", "key, value")
            )),
            redo_rows: text(&format!(
                "SELECT seq, blocks, bytes, checksum FROM \
                   (SELECT seq, id, blocks, bytes, checksum FROM larder_redo_row \
                   WHERE store = ?1 AND ino = ?2 AND seq <= {{s}} UNION ALL {}) ORDER BY seq, id",
                all("redo", "ino = ?2", "since_seq, key, extra, value, checksum")
            )),
            ..StoreSql::new(store, name)
        }
    }
}
