//! Looking at everything: how full, how fragmented, and whether catalog and segments agree.

use crate::commit::group_commit::broken;
use crate::engine::{EngineReport, lock};
use crate::report::stats::storage_age;
use crate::report::{CheckReport, FragReport, SizeClass, SpaceReport};
use crate::space::compact::count_fragments;
use crate::{ErrorKind, Result};
use larder_catalog::{CatalogOptions, ExtentRow, Held, InodeRow, Trust};
use larder_space::Purpose;
use larder_space::format::limits::{AG_BLOCKS, BASE_BLOCKS_MAX, BLOCK_BYTES, MAP_PAGE_BLOCKS};
use larder_space::format::{Extent, FileKind, Ino, MapPage, SegmentIndex, StoreId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;

/// Rows read at a time.
const BATCH: usize = 10_000;
/// Bytes read at a time.
const READ_BLOCKS: u64 = 1024;
/// Directories above an inode that are named for people.
const DEPTH_MAX: usize = 4096;

/// In a catalog that has findings, what cannot be looked at is one more.
fn note_failure(looked: Result<()>, findings: &mut Vec<String>) -> Result<()> {
    match looked {
        // The damage is told already, with what still reads.
        Err(error)
            if error.is_of_catalog()
                && findings
                    .iter()
                    .any(|told| told.starts_with("catalog.db: table")) =>
        {
            Ok(())
        }
        Err(error) if !findings.is_empty() => {
            findings.push(format!("the rest cannot be checked: {error}"));
            Ok(())
        }
        other => other,
    }
}

/// What is damaged in the catalog of the database in `path`, and what of it still reads, one line
/// each; nothing: all of it reads. Also where the database does not open for its damage. Cost:
/// reads the catalog. Refused where that would run code of somebody whom `trust` does not name.
pub fn find_damage(path: &Path, trust: Trust) -> Result<Vec<String>> {
    let options = CatalogOptions {
        trust,
        ..CatalogOptions::default()
    };
    Ok(larder_catalog::find_damage(path, &options)?)
}

impl EngineReport<'_> {
    /// How full the database is.
    pub fn space_report(&self) -> Result<SpaceReport> {
        let (host, segment_bytes) = self.host_and_segment_bytes()?;
        // What growth leaves to the host is nobody's capacity.
        let growth = host.saturating_sub(self.segments().host_margin_bytes()?);
        let capacity_bytes = self
            .segments()
            .capacity_blocks()
            .map_or(segment_bytes + growth, |blocks| blocks * BLOCK_BYTES);
        let (live, retired) = self.catalog.survey().extent_totals()?;
        let used_bytes = live.saturating_add(retired).saturating_mul(BLOCK_BYTES);
        let free_bytes = capacity_bytes.saturating_sub(used_bytes);
        let retired_bytes = retired.saturating_mul(BLOCK_BYTES);
        // The two are counted one after the other.
        let spare_bytes = (self.retention().spare_history_bytes(retired_bytes)?).min(retired_bytes);
        let (granted, reserved) = {
            let space = &self.free_space().space;
            (
                space.granted_blocks(),
                space.reserved_blocks() * BLOCK_BYTES,
            )
        };
        let own_bytes = capacity_bytes.saturating_sub(granted.saturating_mul(BLOCK_BYTES));
        let held_back = own_bytes / larder_space::format::limits::HELD_BACK_DIVISOR;
        let available_bytes = match self.space().is_host_measured()? {
            true => (free_bytes + spare_bytes)
                .min(capacity_bytes)
                .saturating_sub(held_back)
                .saturating_sub(reserved),
            false => 0,
        };
        let mut inode_count = 0;
        for store in self.table_stores()? {
            inode_count += self.catalog.survey().inode_count(store)?;
        }
        Ok(SpaceReport {
            capacity_bytes,
            segment_bytes,
            live_bytes: live.saturating_mul(BLOCK_BYTES),
            retired_bytes,
            spare_bytes,
            free_bytes,
            available_bytes,
            redo_bytes: self.maps().redo_bytes(),
            catalog_bytes: self.catalog_bytes(),
            inode_count,
        })
    }

    /// What the host has left, and what segments have taken of it: of one moment. While a segment
    /// grows the host has less already, and the segment not more yet; then that of before.
    fn host_and_segment_bytes(&self) -> Result<(u64, u64)> {
        let begun_at = lock(&self.growth.begun_at);
        if let Some(before) = *begun_at {
            return Ok(before);
        }
        let host = self.space().host_bytes()?;
        let segment_bytes = self.segment_blocks().values().sum::<u64>() * BLOCK_BYTES;
        Ok((host, segment_bytes))
    }

    fn catalog_bytes(&self) -> u64 {
        self.file_bytes("catalog.db") + self.log_bytes()
    }

    /// Bytes of the catalog's log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.file_bytes("catalog.db-wal")
    }

    pub(crate) fn file_bytes(&self, name: &str) -> u64 {
        self.session.directory.file_bytes(name).unwrap_or(0)
    }

    /// Stores that have tables of their own.
    fn table_stores(&self) -> Result<Vec<StoreId>> {
        let rows = self.catalog.stores().rows()?;
        Ok(rows
            .into_iter()
            .filter(|row| row.table_store == row.store)
            .map(|row| row.store)
            .collect())
    }

    /// Calls `visit` with every regular file that holds blocks.
    pub(crate) fn for_each_mapped(
        &self,
        mut visit: impl FnMut(StoreId, &InodeRow) -> Result<()>,
    ) -> Result<()> {
        for store in self.table_stores()? {
            let mut after = None;
            loop {
                let rows = self.catalog.survey().inodes(store, after, BATCH)?;
                let Some(last) = rows.last() else { break };
                after = Some(last.ino);
                for row in rows.iter().filter(|row| row.kind == FileKind::File) {
                    visit(store, row)?;
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` with every object that holds blocks and its extents in logical order, from the
    /// committed maps. Extents that follow one another on the device are one fragment.
    pub fn for_each_layout(&self, visit: &mut dyn FnMut(StoreId, Ino, &[Extent])) -> Result<()> {
        self.for_each_mapped(|store, row| {
            if row.block_count > 0 {
                visit(store, row.ino, &self.extents_in_order(store, row.ino)?);
            }
            Ok(())
        })
    }

    /// How fragmented the database is, from the committed maps.
    pub fn frag_report(&self) -> Result<FragReport> {
        let mut report = FragReport::default();
        let mut counts = Vec::new();
        let mut classes: BTreeMap<u32, SizeClass> = BTreeMap::new();
        let mut worst = None;
        let mut blocks = 0;
        self.for_each_layout(&mut |store, ino, extents| {
            let block_count: u64 = extents.iter().map(|extent| extent.block_count).sum();
            let fragments = count_fragments(extents.iter().copied());
            if fragments > report.fragments_per_object_max {
                report.fragments_per_object_max = fragments;
                worst = Some((store, ino));
            }
            let class = classes.entry(block_count.max(1).ilog2()).or_default();
            class.object_count += 1;
            class.fragment_count += fragments;
            class.fragments_max = class.fragments_max.max(fragments);
            blocks += block_count;
            counts.push(fragments);
        })?;
        counts.sort_unstable();
        report.object_count = counts.len() as u64;
        report.fragment_count = counts.iter().sum();
        if !counts.is_empty() {
            let at_percent = |percent: usize| counts[(counts.len() * percent).div_ceil(100) - 1];
            report.fragments_per_object_mean = report.fragment_count as f64 / counts.len() as f64;
            report.fragments_per_object_p50 = at_percent(50);
            report.fragments_per_object_p99 = at_percent(99);
        }
        report.size_classes = classes
            .into_iter()
            .map(|(log, class)| SizeClass {
                lower_bytes: (1 << log) * BLOCK_BYTES,
                ..class
            })
            .collect();
        report.worst = worst
            .map(|(store, ino)| Ok::<_, crate::Error>((store, self.path_of(store, ino)?)))
            .transpose()?;
        let (live, _) = self.catalog.survey().extent_totals()?;
        let retired_total = self.catalog.tables().info()?.retired_bytes_total;
        report.storage_age = storage_age(retired_total, live.saturating_mul(BLOCK_BYTES));
        self.count_holes(&mut report)?;
        if blocks > 0 {
            let mean_bytes = (blocks * BLOCK_BYTES) as f64 / counts.len() as f64;
            report.free_pool_objects = report.hole_bytes as f64 / mean_bytes;
        }
        Ok(report)
    }

    /// Holes end where an allocation group ends, as everywhere.
    fn count_holes(&self, report: &mut FragReport) -> Result<()> {
        let mut histogram: BTreeMap<u32, u64> = BTreeMap::new();
        let mut note = |mut from: u64, to: u64| {
            while from < to {
                let end = to.min((from / AG_BLOCKS + 1) * AG_BLOCKS);
                let blocks = end - from;
                report.hole_count += 1;
                report.hole_bytes += blocks * BLOCK_BYTES;
                report.hole_score += blocks as f64 * blocks as f64;
                report.largest_hole_bytes = report.largest_hole_bytes.max(blocks * BLOCK_BYTES);
                *histogram.entry(blocks.ilog2()).or_insert(0) += 1;
                from = end;
            }
        };
        let mut ends: BTreeMap<SegmentIndex, u64> = BTreeMap::new();
        self.for_each_extent(|row| {
            let end = ends.entry(row.extent.segment).or_insert(0);
            note(*end, row.extent.start_block);
            *end = row.extent.end_block();
            Ok(())
        })?;
        for (segment, blocks) in self.segment_blocks() {
            note(ends.get(&segment).copied().unwrap_or(0), blocks);
        }
        report.hole_histogram = histogram
            .into_iter()
            .map(|(log, count)| ((1 << log) * BLOCK_BYTES, count))
            .collect();
        Ok(())
    }

    pub(crate) fn for_each_extent(
        &self,
        mut visit: impl FnMut(&ExtentRow) -> Result<()>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let rows = self.catalog.space().extents(after, BATCH)?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            after = Some((last.extent.segment, last.extent.start_block));
            for row in &rows {
                visit(row)?;
            }
        }
    }

    /// A path of an inode, for people; its number when it has no name.
    pub(crate) fn path_of(&self, store: StoreId, ino: Ino) -> Result<String> {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let parent = self.catalog.tables().parents(store, at)?.into_iter().next();
            // In a damaged catalog directories may form a ring.
            let Some((parent, name)) = parent.filter(|_| parts.len() < DEPTH_MAX) else {
                return Ok(format!("inode {ino}"));
            };
            parts.push(name.to_string());
            at = parent;
        }
        parts.reverse();
        Ok(format!("/{}", parts.join("/")))
    }

    /// Proves that catalog and segments agree. Takes the writer lock while it looks at the
    /// structure, so that no commit comes between; content is read without it.
    pub fn check(
        &self,
        read_content: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        match self.check_into(&mut report, read_content, progress) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                // What the catalog's own check has named already is not named twice.
                if report.findings.is_empty() && error.is_of_catalog() {
                    report.findings = self.catalog.survey().damage()?;
                }
                if report.findings.is_empty() {
                    report.findings.push(error.as_finding());
                }
            }
            checked => checked?,
        }
        Ok(report)
    }

    fn check_into(
        &self,
        report: &mut CheckReport,
        read_content: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        {
            let _alone = self.alone_to_look()?;
            self.commits().commit_now()?;
            let _no_commit = self.commit_lock.lock();
            report.findings = self.catalog.survey().check()?;
            report.notes = self.catalog.survey().users_code()?;
            let is_structure = self.check_structure(report);
            note_failure(is_structure, &mut report.findings)?;
        }
        if read_content {
            let is_content = self.check_content(report, progress);
            note_failure(is_content, &mut report.findings)?;
        }
        self.require_unchanged()
    }

    fn check_structure(&self, report: &mut CheckReport) -> Result<()> {
        for store in self.table_stores()? {
            report.inode_count += self.catalog.survey().inode_count(store)?;
        }
        self.check_extents(report)?;
        self.redo().check_redo_rows(&mut report.findings)?;
        self.past().check_history(&mut report.findings)?;
        self.check_segments(report)
    }

    fn check_segments(&self, report: &mut CheckReport) -> Result<()> {
        let segments = self
            .segments
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for segment in segments {
            if let Some(damage) = segment.check_superblock()? {
                report.findings.push(format!(
                    "segment {}: {damage}; the other copy is whole",
                    segment.index()
                ));
            }
        }
        Ok(())
    }

    /// Every mapped block is in a live extent row that the inode holds, and every live extent row
    /// is mapped by all of its holders.
    fn check_extents(&self, report: &mut CheckReport) -> Result<()> {
        let mut mapped: Vec<Held> = Vec::new();
        let findings = &mut report.findings;
        self.for_each_mapped(|store, row| {
            let before = mapped.len();
            let mut base_runs = Vec::new();
            for (page, bytes) in self.all_pages(store, row.ino)? {
                let Some(first) = first_block(page) else {
                    findings.push(format!(
                        "store {store} inode {} map page {page}: it lies behind the end of the \
                         largest object",
                        row.ino
                    ));
                    continue;
                };
                match MapPage::decode(&bytes) {
                    Ok(runs) => {
                        base_runs.extend(
                            runs.runs()
                                .iter()
                                .map(|run| (first + run.logical_block, first + run.logical_end())),
                        );
                        mapped.extend(runs.runs().iter().map(|run| (run.extent, store, row.ino)));
                    }
                    Err(error) => findings.push(format!(
                        "store {store} inode {} map page {page}: {error}",
                        row.ino
                    )),
                }
            }
            let found = self.check_pieces(store, row, &base_runs)?;
            let name = |finding| format!("store {store} inode {}: {finding}", row.ino);
            findings.extend(found.into_iter().map(name));
            let blocks: u64 = mapped[before..]
                .iter()
                .map(|(extent, ..)| extent.block_count)
                .sum();
            if blocks != row.block_count {
                findings.push(format!(
                    "store {store} inode {}: its row says {} blocks, its map {blocks}",
                    row.ino, row.block_count
                ));
            }
            Ok(())
        })?;
        mapped.sort_unstable();
        let extent_count = self.check_holders(mapped, findings)?;
        report.extent_count = extent_count;
        let free = self.free_space();
        let (live, retired) = self.catalog.survey().extent_totals()?;
        if (
            free.space.allocated_blocks(),
            free.space.quarantined_blocks(),
        ) != (live, retired)
            && self.session.workspace.is_none()
        {
            findings.push(format!(
                "free space in memory differs from the extent rows (RESERVE-1): {} + {} blocks \
                 instead of {live} + {retired}",
                free.space.allocated_blocks(),
                free.space.quarantined_blocks()
            ));
        }
        if free.space.available_blocks(Purpose::Privileged) > free.space.free_blocks() {
            return Err(broken("more space is available than free"));
        }
        Ok(())
    }

    fn all_pages(&self, store: StoreId, ino: Ino) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut pages = Vec::new();
        let mut from = 0;
        loop {
            let batch = self.catalog.tables().map_pages(store, ino, from, 256)?;
            let count = batch.len();
            from = batch.last().map_or(from, |(page, _)| page + 1);
            pages.extend(batch);
            if count < 256 {
                return Ok(pages);
            }
        }
    }

    /// Reads every mapped block and verifies it.
    fn check_content(
        &self,
        report: &mut CheckReport,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let total = (self.catalog.survey().extent_totals()?.0).saturating_mul(BLOCK_BYTES);
        let mut buffer = vec![0; (READ_BLOCKS * BLOCK_BYTES) as usize];
        self.for_each_mapped(|store, row| {
            // SESSION-2: what this map names is not reclaimed before the pin is dropped.
            let _pin = self.begin_read();
            self.check_object(store, row.ino, &mut buffer, report, &mut |done| {
                progress(done, total)
            })
        })
    }

    fn check_object(
        &self,
        store: StoreId,
        ino: Ino,
        buffer: &mut [u8],
        report: &mut CheckReport,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        // REDO-1: the target of a redo row may be torn. Read before the map (REDO-2).
        let redo_rows = self.maps().load_redo_rows(store, ino)?;
        for (index, bytes) in self.all_pages(store, ino)? {
            // Either is a finding of check_extents already.
            let (Some(begin), Ok(page)) = (first_block(index), MapPage::decode(&bytes)) else {
                continue;
            };
            let pieces = page.runs().iter().flat_map(|run| {
                let first = begin + run.logical_block;
                let gaps = redo_rows.gaps(first, run.extent.block_count);
                gaps.into_iter().map(move |gap| (run, gap))
            });
            for (run, (mut at, gap_blocks)) in pieces {
                let end = at + gap_blocks;
                while at < end {
                    let count = READ_BLOCKS.min(end - at);
                    let target = &mut buffer[..(count * BLOCK_BYTES) as usize];
                    let checksums = &run.checksums[at as usize..(at + count) as usize];
                    let read = self.segment(run.extent.segment)?.read_past_cache(
                        run.extent.start_block + at,
                        target,
                        checksums,
                    );
                    match read.map_err(crate::Error::from) {
                        Ok(()) => report.verified_bytes += count * BLOCK_BYTES,
                        Err(error)
                            if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) =>
                        {
                            report
                                .findings
                                .push(format!("{}: {error}", self.path_of(store, ino)?));
                        }
                        Err(error) => return Err(error),
                    }
                    at += count;
                    progress(report.verified_bytes);
                }
            }
        }
        Ok(())
    }
}

/// The block of an object that a page of its map begins with; `None` behind the largest object.
fn first_block(page: u64) -> Option<u64> {
    let first = page.checked_mul(MAP_PAGE_BLOCKS)?;
    // All of it: the end of each of its runs is counted in bytes, too.
    (first <= BASE_BLOCKS_MAX - MAP_PAGE_BLOCKS).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_a_page_that_is_looked_at_has_an_offset_in_bytes() {
        let last = (BASE_BLOCKS_MAX / MAP_PAGE_BLOCKS) - 1;
        let first = first_block(last).unwrap();
        assert!((first + MAP_PAGE_BLOCKS).checked_mul(BLOCK_BYTES).is_some());
        for behind in [last + 1, last + 2, i64::MAX as u64, u64::MAX] {
            assert_eq!(first_block(behind), None, "{behind}");
        }
    }
}
