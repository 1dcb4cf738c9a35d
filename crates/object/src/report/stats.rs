//! Figures for people who watch: counters of one moment, and a map of the space. Both come from the
//! catalog, so any session sees what all of them do.

use crate::Result;
use crate::engine::{EngineReport, lock};
use crate::host::resident_bytes;
use crate::report::{Gauges, MapCell, SegmentMap, StatsReport};
use larder_space::format::SegmentIndex;
use larder_space::format::limits::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl EngineReport<'_> {
    /// Counters as of now. Cost: a scan of the extent rows, of what is shared and of an index of
    /// the inodes.
    pub fn stats(&self) -> Result<StatsReport> {
        let space = self.space_report()?;
        let info = self.catalog.tables().info()?;
        Ok(StatsReport {
            at_ns: self.now_ns(),
            commit_seq: info.commit_seq.0,
            session_count: self.catalog.sessions().rows()?.len() as u64,
            refused_count: self.refusals().kept_refused()?.len() as u64,
            inode_count: space.inode_count,
            live_bytes: space.live_bytes,
            retired_bytes: space.retired_bytes,
            history_bytes: self.retention().history_bytes()?,
            shared_bytes: (self.catalog.space().shared_blocks()?).saturating_mul(BLOCK_BYTES),
            map_page_bytes: self.catalog.survey().shared_pages()?.bytes,
            free_bytes: space.free_bytes,
            segment_bytes: space.segment_bytes,
            retired_bytes_total: info.retired_bytes_total,
            storage_age: storage_age(info.retired_bytes_total, space.live_bytes),
            wal_bytes: self.catalog.log()?.wal_bytes()?,
        })
    }

    /// What this session has in memory. Cost: a few locks, each for an instant, and a look at one
    /// file.
    pub fn gauges(&self) -> Result<Gauges> {
        let (cached_inode_count, cached_inode_bytes) = self.cache.size();
        // One lock at a time.
        let reserved_blocks = self.free_space().space.reserved_blocks();
        let candidate_count = lock(&self.compactor).candidate_count();
        let dirty_inode_count = lock(&self.group).node_count() as u64;
        Ok(Gauges {
            commit_seq: self.known_seq().0,
            group_count: self.commit_lock.committed(),
            refused_count: self.refusals.count.load(Ordering::Relaxed),
            refused_held_count: self.refusals().held_count(),
            resident_bytes: resident_bytes(),
            dirty_bytes: self.dirty_bytes.load(Ordering::Relaxed),
            dirty_bytes_max: self.session.dirty_bytes_max,
            kept_bytes: self.kept_bytes.load(Ordering::Relaxed),
            dirty_inode_count,
            cached_inode_count,
            cached_inode_bytes,
            foreign_exact_count: self.foreign.exact_count.load(Ordering::Relaxed),
            foreign_whole_count: self.foreign.whole_count.load(Ordering::Relaxed),
            foreign_dropped_count: self.foreign.dropped_count.load(Ordering::Relaxed),
            redo_bytes: self.maps().redo_bytes(),
            reserved_bytes: reserved_blocks * BLOCK_BYTES,
            candidate_count,
            compact_credit_bytes: self.compaction().compact_credit_bytes(),
            wal_bytes: self.catalog.log()?.wal_bytes()?,
        })
    }

    /// What is in use of every `cell_blocks` (≥ 1) blocks, segment by segment, from the committed
    /// extent rows. Cost: reads all of them.
    pub fn space_map(&self, cell_blocks: u64) -> Result<Vec<SegmentMap>> {
        let mut maps: BTreeMap<SegmentIndex, SegmentMap> = BTreeMap::new();
        for (segment, block_count) in self.segment_blocks() {
            let cell = |at: u64| MapCell {
                block_count: cell_blocks.min(block_count - at * cell_blocks),
                ..MapCell::default()
            };
            let cells = (0..block_count.div_ceil(cell_blocks)).map(cell).collect();
            let map = SegmentMap {
                segment: segment.0,
                cell_bytes: cell_blocks.saturating_mul(BLOCK_BYTES),
                cells,
            };
            maps.insert(segment, map);
        }
        self.for_each_extent(|row| {
            let Some(map) = maps.get_mut(&row.extent.segment) else {
                return Ok(());
            };
            let mut at = row.extent.start_block;
            while at < row.extent.end_block() {
                let end = ((at / cell_blocks + 1) * cell_blocks).min(row.extent.end_block());
                // A segment that has just grown may be longer by now.
                if let Some(cell) = map.cells.get_mut((at / cell_blocks) as usize) {
                    match row.retired_seq {
                        None => cell.live_blocks += end - at,
                        Some(_) => cell.retired_blocks += end - at,
                    }
                }
                at = end;
            }
            Ok(())
        })?;
        Ok(maps.into_values().collect())
    }
}

/// Bytes of content that once existed and are gone, per byte that lives; 0 when nothing lives
/// ([BLOB]).
pub(crate) fn storage_age(retired_bytes_total: u64, live_bytes: u64) -> f64 {
    match live_bytes {
        0 => 0.0,
        _ => retired_bytes_total as f64 / live_bytes as f64,
    }
}
