//! Looking at lists of pieces as the catalog has them: for `check` and `frag`.

use crate::Result;
use crate::engine::EngineReport;
use crate::view::extent_map::{ExtentMap, MapSource, Mapped};
use crate::view::pieces::{Piece, ROOT};
use crate::write::pieced::damaged;
use larder_catalog::InodeRow;
use larder_space::format::{Extent, Ino, PiecePage, StoreId};
use std::collections::BTreeMap;

/// Pages read at a time.
const BATCH: usize = 256;
/// Findings of one list that are told.
const FINDINGS_MAX: usize = 10;

/// A list as it was read.
struct Listed {
    pieces: Vec<Piece>,
    base_blocks: u64,
    findings: Vec<String>,
}

impl EngineReport<'_> {
    /// Proves `PIECE-1` to `PIECE-3` of one object, and that every base block in `base_runs`
    /// (`from..to`, in order, what its map maps) is part of it. One line per finding.
    pub(crate) fn check_pieces(
        &self,
        store: StoreId,
        row: &InodeRow,
        base_runs: &[(u64, u64)],
    ) -> Result<Vec<String>> {
        // Without a list the base is the object, and nothing is stored behind its end.
        let whole = Piece {
            first_block: 0,
            len_bytes: row.size_bytes,
        };
        let mut listed = self.list_pieces(store, row.ino)?.unwrap_or(Listed {
            pieces: vec![whole],
            base_blocks: whole.end_block(),
            findings: Vec::new(),
        });
        let findings = &mut listed.findings;
        let len_bytes: u64 = listed.pieces.iter().map(|piece| piece.len_bytes).sum();
        if len_bytes != row.size_bytes {
            findings.push(format!(
                "its row says {} bytes, its pieces {len_bytes} (PIECE-3)",
                row.size_bytes
            ));
        }
        listed.pieces.sort_by_key(|piece| piece.first_block);
        for pair in listed.pieces.windows(2) {
            if pair[0].end_block() > pair[1].first_block {
                findings.push(format!(
                    "base block {} is in two pieces (PIECE-1)",
                    pair[1].first_block
                ));
            }
        }
        if let Some(last) = listed.pieces.last()
            && last.end_block() > listed.base_blocks
        {
            findings.push(format!(
                "a piece ends at base block {}, the base at {} (PIECE-2)",
                last.end_block(),
                listed.base_blocks
            ));
        }
        let mut pieces = listed.pieces.iter().peekable();
        for &(from, to) in base_runs {
            let mut at = from;
            while at < to {
                while pieces.next_if(|piece| piece.end_block() <= at).is_some() {}
                match pieces.peek() {
                    Some(piece) if piece.first_block <= at => at = piece.end_block().min(to),
                    next => {
                        let end = next.map_or(to, |piece| piece.first_block.min(to));
                        findings.push(format!(
                            "base blocks {at}..{end} are stored and not part of the object \
                             (PIECE-1)"
                        ));
                        at = end;
                    }
                }
            }
        }
        listed.findings.truncate(FINDINGS_MAX);
        Ok(listed.findings)
    }

    /// Every extent of an object, in the order of its bytes. Cost: loads the whole map.
    pub(crate) fn extents_in_order(&self, store: StoreId, ino: Ino) -> Result<Vec<Extent>> {
        let source = MapSource {
            catalog: &self.catalog,
            store,
            ino,
        };
        let mut map = ExtentMap::default();
        let in_base = map.extents(source)?;
        let Some(listed) = self.list_pieces(store, ino)? else {
            return Ok(in_base);
        };
        if let Some(why) = listed.findings.first() {
            return Err(damaged(store, ino, why));
        }
        let mut extents = Vec::new();
        for piece in listed.pieces {
            let mut block = piece.first_block;
            while block < piece.end_block() {
                match map.find(source, block)? {
                    Mapped::Hole(count) => block += count,
                    Mapped::Run { extent, .. } => {
                        let count = extent.block_count.min(piece.end_block() - block);
                        extents.push(extent.slice(0, count));
                        block += count;
                    }
                }
            }
        }
        Ok(extents)
    }

    /// The list of an object, in order; `None` when it has none.
    fn list_pieces(&self, store: StoreId, ino: Ino) -> Result<Option<Listed>> {
        let mut findings = Vec::new();
        let mut pages = BTreeMap::new();
        let mut from = ROOT;
        loop {
            let batch = self.catalog.maps().piece_pages(store, ino, from, BATCH)?;
            let count = batch.len();
            for (id, bytes) in batch {
                from = id + 1;
                match PiecePage::decode(&bytes) {
                    Ok(page) => drop(pages.insert(id, page)),
                    Err(error) => findings.push(format!("page {id}: {error}")),
                }
            }
            if count < BATCH {
                break;
            }
        }
        let Some(root) = pages.get(&ROOT) else {
            // A list without a root is a finding of the catalog's check.
            let is_damaged = !findings.is_empty();
            return Ok(is_damaged.then_some(Listed {
                pieces: Vec::new(),
                base_blocks: 0,
                findings,
            }));
        };
        let base_blocks = root.base_blocks;
        let mut pieces = Vec::new();
        // Depth first, the leftmost on top; taken out, so that a ring of pages ends too.
        let mut pending = vec![(ROOT, root.level, root.len_bytes())];
        while let Some((id, level, len_bytes)) = pending.pop() {
            let Some(page) = pages.remove(&id) else {
                findings.push(format!("page {id} is missing, or named twice (PIECE-3)"));
                continue;
            };
            if (page.level, page.len_bytes()) != (level, len_bytes) {
                findings.push(format!(
                    "page {id} has {} bytes on level {}, expected {len_bytes} on {level} (PIECE-3)",
                    page.len_bytes(),
                    page.level
                ));
            }
            for entry in page.entries.iter().rev().filter(|_| page.level > 0) {
                pending.push((entry.target, page.level - 1, entry.len_bytes));
            }
            pieces.extend(
                page.entries
                    .iter()
                    .filter(|_| page.level == 0)
                    .map(|entry| Piece {
                        first_block: entry.target,
                        len_bytes: entry.len_bytes,
                    }),
            );
        }
        let left = pages.keys().map(|id| format!("page {id} is in no list"));
        findings.extend(left);
        Ok(Some(Listed {
            pieces,
            base_blocks,
            findings,
        }))
    }
}
