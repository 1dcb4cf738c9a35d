//! Merging the content of one file: inline bytes, extent map, list of pieces, redo rows.
//!
//! What the workspace wrote lies in its grants and is taken over as it is. What it left lies where
//! the parent has it, which may be another place than when the workspace began: the parent moves
//! content, and writes redo rows in place. So a block of the base is found in the parent's map by
//! where it was.

use super::files::Files;
use super::findings::Findings;
use crate::error::{At, CatalogError, Result};
use crate::space::grants::Grants;
use crate::space::map_pages::{self, resolved};
use crate::types::codec::{rows, signed, unsigned};
use larder_format::limits::{BLOCK_BYTES, MAP_PAGE_BLOCKS};
use larder_format::{Extent, Ino, MapPage, MapRun, SegmentIndex, block_checksum};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};
use std::collections::{BTreeMap, HashMap};

type Pages = BTreeMap<u64, Vec<u8>>;
/// A redo row: its blocks, and their bytes unless it ends the redo rows of these blocks.
type RedoBytes = (Vec<u8>, Option<Vec<u8>>);
/// A block on a segment.
type Place = (SegmentIndex, u64);

/// The pages of an extent map that the workspace changed.
#[derive(Debug, Default)]
struct TouchedPages {
    old: Pages,
    ours: Pages,
    theirs: Pages,
}

impl Files<'_> {
    /// Whether the workspace changed the content of a file, apart from its size.
    pub(crate) fn has_new_content(&self, ino: i64) -> Result<bool> {
        let name = &self.sql.table;
        // A touched key is new, gone, or other than it was.
        let differs = |old: &str, table: &str, of_ino: &str, same_key: &str, other: &str| {
            format!(
                "EXISTS (SELECT 1 FROM ws.{old} AS o LEFT JOIN ws.\"{table}\" AS n ON {same_key} \
                 WHERE {of_ino} AND (o.existed <> (n.ino IS NOT NULL) OR {other}))"
            )
        };
        let sql = format!(
            "SELECT {} OR {} OR {}",
            differs(
                self.old("_content")?,
                &self.sql.table_content,
                "o.k0 = ?1",
                "n.ino = o.k0",
                "o.c1 IS NOT n.inline"
            ),
            differs(
                self.old("_map")?,
                &self.sql.table_map,
                "o.k0 = ?1",
                "n.ino = o.k0 AND n.page = o.k1",
                "o.c2 IS NOT n.runs"
            ),
            differs(
                &self.old_piece,
                "larder_piece",
                "o.k0 = ?2 AND o.k1 = ?1",
                "n.store = o.k0 AND n.ino = o.k1 AND n.page = o.k2",
                "o.c3 IS NOT n.entries"
            ),
        );
        self.txn
            .prepare_cached(&sql)
            .and_then(|mut ask| ask.query_row(params![ino, self.store.0], |row| row.get(0)))
            .at(name)
    }

    /// Whether the parent's content is what it was when the workspace began. `is_same_mtime`: both
    /// rows of the inode say the same time of modification.
    pub(crate) fn is_content_as_it_was(&self, ino: i64, is_same_mtime: bool) -> Result<bool> {
        let content = Content { files: self, ino };
        if content.old_inline()? != content.inline("main")?
            || content.old_pieces()? != content.pieces("main")?
        {
            return Ok(false);
        }
        let (old, theirs) = (content.old_pages()?, content.pages("main")?);
        let (old_redo_rows, their_redo_rows) =
            (content.old_redo_rows()?, content.redo_rows("main")?);
        if old == theirs && old_redo_rows == their_redo_rows {
            return Ok(true);
        }
        // Moved, or its redo rows applied: every block has the bytes that it had. Where a file was
        // written as well, its time says so, and equal checksums of other blocks are not trusted.
        Ok(is_same_mtime
            && effective(&old, &old_redo_rows)? == effective(&theirs, &their_redo_rows)?)
    }

    /// Makes the workspace's content of a file the parent's.
    pub(crate) fn take_content(&self, ino: i64, findings: &mut Findings) -> Result<()> {
        let name = &self.sql.table;
        self.run(
            &format!("DELETE FROM main.\"{name}_content\" WHERE ino = ?1"),
            ino,
        )?;
        self.run(
            &format!(
                "INSERT INTO main.\"{name}_content\" (ino, inline, target, checksum) \
                 SELECT ino, inline, target, checksum FROM ws.\"{name}_content\" WHERE ino = ?1"
            ),
            ino,
        )?;
        self.take_pages(ino, findings)?;
        let store = self.store.0;
        self.run(
            &format!("DELETE FROM main.larder_piece WHERE store = {store} AND ino = ?1"),
            ino,
        )?;
        self.run(
            &format!(
                "INSERT INTO main.larder_piece (store, ino, page, entries) \
                 SELECT store, ino, page, entries FROM ws.larder_piece WHERE store = {store} AND \
                 ino = ?1"
            ),
            ino,
        )?;
        // Those that were written in place meanwhile hide the same bytes; an apply does it again.
        self.run(
            &format!("DELETE FROM main.larder_redo_row WHERE store = {store} AND ino = ?1"),
            ino,
        )?;
        self.run(
            &format!(
                "INSERT INTO main.larder_redo_row \
                 (seq, store, ino, block_count, blocks, bytes, checksum) \
                 SELECT {}, store, ino, block_count, blocks, bytes, checksum \
                 FROM ws.larder_redo_row \
                 WHERE store = {store} AND ino = ?1 ORDER BY id",
                self.seq.0
            ),
            ino,
        )
    }

    fn run(&self, sql: &str, ino: i64) -> Result<()> {
        self.txn
            .prepare_cached(sql)
            .and_then(|mut run| run.execute([ino]))
            .at(&self.sql.table)
            .map(drop)
    }

    fn take_pages(&self, ino: i64, findings: &mut Findings) -> Result<()> {
        let touched = self.touched_pages(ino)?;
        let ours = match touched.old == touched.theirs {
            true => touched.ours.clone(),
            false => relocate(&touched, self.grants)?,
        };
        let (before, after) = (extents_of(&touched.theirs)?, extents_of(&ours)?);
        let gone = subtract(&before, &after).into_iter();
        let holder = |extent| (extent, self.store, Ino(ino as u64));
        findings.retired.extend(gone.map(holder));
        let table = &self.sql.table_map;
        for page in touched.theirs.keys() {
            let key = params![ino, signed(*page)];
            let references = &self.sql.map_references.page;
            let let_go = map_pages::let_go(self.txn, self.seq, references, key)?;
            self.txn
                .prepare_cached(&format!(
                    "DELETE FROM main.\"{table}\" WHERE ino = ?1 AND page = ?2"
                ))
                .and_then(|mut delete| delete.execute(key))
                .at(table)?;
            map_pages::require_gone(self.txn, let_go, references, key, table)?;
        }
        for (page, runs) in &ours {
            self.txn
                .prepare_cached(&format!(
                    "INSERT INTO main.\"{table}\" (ino, page, runs) VALUES (?1, ?2, ?3)"
                ))
                .and_then(|mut add| add.execute(params![ino, signed(*page), runs]))
                .at(table)?;
        }
        Ok(())
    }

    fn touched_pages(&self, ino: i64) -> Result<TouchedPages> {
        let (old, table) = (self.old("_map")?, &self.sql.table_map);
        let sql = format!(
            "SELECT o.k1, {}, {}, {} FROM ws.{old} AS o \
             LEFT JOIN ws.\"{table}\" AS ours ON ours.ino = o.k0 AND ours.page = o.k1 \
             LEFT JOIN main.\"{table}\" AS theirs ON theirs.ino = o.k0 AND theirs.page = o.k1 \
             WHERE o.k0 = ?1",
            resolved("ws", "o.c2"),
            resolved("ws", "ours.runs"),
            resolved("main", "theirs.runs")
        );
        let found: Vec<(u64, [Option<Vec<u8>>; 3])> = rows(self.txn, &sql, [ino], |row| {
            Ok((unsigned(row, 0)?, [row.get(1)?, row.get(2)?, row.get(3)?]))
        })
        .at(table)?;
        let mut touched = TouchedPages::default();
        for (page, [old, ours, theirs]) in found {
            let sides = [
                (&mut touched.old, old),
                (&mut touched.ours, ours),
                (&mut touched.theirs, theirs),
            ];
            for (pages, runs) in sides {
                pages.extend(runs.map(|runs| (page, runs)));
            }
        }
        Ok(touched)
    }
}

/// The content of one file: in a schema, or as it was when the workspace began.
struct Content<'f> {
    files: &'f Files<'f>,
    ino: i64,
}

impl Content<'_> {
    fn inline(&self, schema: &str) -> Result<Option<Value>> {
        let sql = format!(
            "SELECT inline FROM {schema}.\"{}\" WHERE ino = ?1",
            self.files.sql.table_content
        );
        self.files
            .txn
            .prepare_cached(&sql)
            .and_then(|mut find| find.query_row([self.ino], |row| row.get(0)).optional())
            .at(&self.files.sql.table_content)
    }

    fn old_inline(&self) -> Result<Option<Value>> {
        let sql = format!(
            "SELECT existed, c1 FROM ws.{} WHERE k0 = ?1",
            self.files.old("_content")?
        );
        let touched: Option<(bool, Value)> = self
            .files
            .txn
            .prepare_cached(&sql)
            .and_then(|mut find| {
                find.query_row([self.ino], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()
            })
            .at(&self.files.sql.table_content)?;
        match touched {
            Some((existed, inline)) => Ok(existed.then_some(inline)),
            None => self.inline("ws"),
        }
    }

    fn pages(&self, schema: &str) -> Result<Pages> {
        let sql = format!(
            "SELECT page, {} FROM {schema}.\"{}\" WHERE ino = ?1",
            resolved(schema, "runs"),
            self.files.sql.table_map
        );
        self.pages_of(&sql)
    }

    fn pieces(&self, schema: &str) -> Result<Pages> {
        let store = self.files.store.0;
        let sql = format!(
            "SELECT page, entries FROM {schema}.larder_piece WHERE store = {store} AND ino = ?1"
        );
        self.pages_of(&sql)
    }

    fn old_pages(&self) -> Result<Pages> {
        let (old, table) = (self.files.old("_map")?, &self.files.sql.table_map);
        let sql = format!(
            "SELECT page, {} FROM ws.\"{table}\" AS n WHERE ino = ?1 \
               AND NOT EXISTS (SELECT 1 FROM ws.{old} AS o WHERE o.k0 = n.ino AND o.k1 = n.page) \
             UNION ALL SELECT k1, {} FROM ws.{old} WHERE k0 = ?1 AND existed",
            resolved("ws", "runs"),
            resolved("ws", "c2")
        );
        self.pages_of(&sql)
    }

    fn old_pieces(&self) -> Result<Pages> {
        let (old, store) = (&self.files.old_piece, self.files.store.0);
        let sql = format!(
            "SELECT page, entries FROM ws.larder_piece AS n WHERE store = {store} AND ino = ?1 \
               AND NOT EXISTS (SELECT 1 FROM ws.{old} AS o \
                 WHERE o.k0 = n.store AND o.k1 = n.ino AND o.k2 = n.page) \
             UNION ALL SELECT k2, c3 FROM ws.{old} WHERE k0 = {store} AND k1 = ?1 AND existed"
        );
        self.pages_of(&sql)
    }

    fn pages_of(&self, sql: &str) -> Result<Pages> {
        let pages = rows(self.files.txn, sql, [self.ino], |row| {
            Ok((unsigned(row, 0)?, row.get(1)?))
        });
        Ok(pages.at(&self.files.sql.table)?.into_iter().collect())
    }

    fn redo_rows(&self, schema: &str) -> Result<Vec<RedoBytes>> {
        let sql = format!(
            "SELECT blocks, bytes FROM {schema}.larder_redo_row WHERE store = ?1 AND ino = ?2 \
             ORDER BY id"
        );
        self.redo_rows_of(&sql)
    }

    /// The workspace makes no redo rows, but ends some, and drops those of inodes that go.
    fn old_redo_rows(&self) -> Result<Vec<RedoBytes>> {
        let old = &self.files.old_redo;
        let sql = format!(
            "SELECT blocks, bytes FROM (SELECT id, blocks, bytes FROM ws.larder_redo_row \
               WHERE store = ?1 AND ino = ?2 AND id NOT IN (SELECT k0 FROM ws.{old}) \
             UNION ALL SELECT k0, c5, c6 FROM ws.{old} WHERE existed AND c2 = ?1 AND c3 = ?2) \
             ORDER BY id"
        );
        self.redo_rows_of(&sql)
    }

    fn redo_rows_of(&self, sql: &str) -> Result<Vec<RedoBytes>> {
        rows(
            self.files.txn,
            sql,
            params![self.files.store.0, self.ino],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at("larder_redo_row")
    }
}

fn decode(bytes: &[u8]) -> Result<MapPage> {
    MapPage::decode(bytes).map_err(|error| CatalogError::corrupt(error.to_string()))
}

/// What every block reads as: the checksum of its bytes, redo rows counted in.
fn effective(pages: &Pages, redo_rows: &[RedoBytes]) -> Result<BTreeMap<u64, u32>> {
    let mut blocks = BTreeMap::new();
    for (page, bytes) in pages {
        for run in decode(bytes)?.runs() {
            let first = page * MAP_PAGE_BLOCKS + run.logical_block;
            blocks.extend((first..).zip(run.checksums.iter().copied()));
        }
    }
    let mut over: BTreeMap<u64, u32> = BTreeMap::new();
    for (numbers, bytes) in redo_rows {
        let numbers = numbers
            .as_chunks::<8>()
            .0
            .iter()
            .map(|raw| u64::from_le_bytes(*raw));
        match bytes {
            Some(bytes) => {
                let contents = bytes.chunks_exact(BLOCK_BYTES as usize).map(block_checksum);
                over.extend(numbers.zip(contents));
            }
            None => over.retain(|block, _| !numbers.clone().any(|number| number == *block)),
        }
    }
    blocks.extend(over);
    Ok(blocks)
}

/// Our pages, with every block of the base where the parent has it now.
fn relocate(touched: &TouchedPages, grants: &Grants) -> Result<Pages> {
    let mut now: HashMap<Place, (Place, u32)> = HashMap::new();
    for (page, bytes) in &touched.old {
        let theirs = match touched.theirs.get(page) {
            Some(bytes) => decode(bytes)?,
            None => MapPage::default(),
        };
        for run in decode(bytes)?.runs() {
            for skip in 0..run.extent.block_count {
                let block = run.logical_block + skip;
                if let Some(found) = theirs.find_run(block) {
                    let at = block - found.logical_block;
                    let place = (found.extent.segment, found.extent.start_block + at);
                    now.insert(
                        (run.extent.segment, run.extent.start_block + skip),
                        (place, found.checksums[at as usize]),
                    );
                }
            }
        }
    }
    let mut moved = Pages::new();
    for (page, bytes) in &touched.ours {
        let mut made = MapPage::default();
        for run in decode(bytes)?.runs() {
            for (part, is_granted) in grants.parts(run.extent) {
                let skip = part.start_block - run.extent.start_block;
                if is_granted {
                    let logical = run.logical_block + skip;
                    made.insert(
                        run.clip(logical, logical + part.block_count)
                            .ok_or_else(out_of_place)?,
                    );
                    continue;
                }
                for block in 0..part.block_count {
                    let was = (part.segment, part.start_block + block);
                    let ((segment, start), checksum) = *now.get(&was).ok_or_else(out_of_place)?;
                    made.insert(MapRun {
                        logical_block: run.logical_block + skip + block,
                        extent: Extent::new(segment, start, 1),
                        checksums: vec![checksum],
                    });
                }
            }
        }
        moved.insert(*page, made.encode());
    }
    Ok(moved)
}

fn out_of_place() -> CatalogError {
    CatalogError::corrupt(
        "a block of the base is neither granted nor in the parent's map (WORKSPACE-2)",
    )
}

fn extents_of(pages: &Pages) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    for bytes in pages.values() {
        extents.extend(decode(bytes)?.runs().iter().map(|run| run.extent));
    }
    extents.sort_unstable();
    Ok(extents)
}

/// The parts of `from` that no extent of `taken` covers; both sorted.
fn subtract(from: &[Extent], taken: &[Extent]) -> Vec<Extent> {
    let taken = Grants::new(taken.to_vec());
    let parts = from.iter().flat_map(|extent| taken.parts(*extent));
    parts
        .filter(|(_, is_taken)| !is_taken)
        .map(|(part, _)| part)
        .collect()
}
