//! The extent map of an open object: pages, loaded from the catalog when needed.
//!
//! # Words
//! A page is *dirty* when it differs from the catalog's; a *cut* drops every stored page from an
//! index on.
//!
//! # Invariants
//! * `MAP-4` A page that is not in memory is as the catalog has it, unless its index is at or
//!   after the cut: then it is empty.

use crate::{Error, ErrorKind, Result};
use larder_catalog::Catalog;
use larder_space::format::limits::MAP_PAGE_BLOCKS;
use larder_space::format::{Checksum, Extent, Ino, MapPage, MapRun, StoreId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Pages of one object kept in memory (8 GiB of content, about 8 MiB).
const PAGES_MAX: usize = 1024;
/// Memory of a run beside its checksums, roughly, bytes.
const RUN_BYTES: u64 = 64;

/// Where an object's blocks lie.
#[derive(Debug, Default)]
pub(crate) struct ExtentMap {
    pages: BTreeMap<u64, MapPage>,
    dirty: BTreeSet<u64>,
    /// Stored pages from this index on do not count any more.
    cut: Option<u64>,
    /// The lowest cut that the catalog has yet to learn.
    cut_dirty: Option<u64>,
    /// Memory of the pages, roughly, bytes.
    loaded_bytes: u64,
}

/// Which object a map belongs to, and where its stored pages are.
#[derive(Clone, Copy)]
pub(crate) struct MapSource<'a> {
    pub catalog: &'a Catalog,
    pub store: StoreId,
    pub ino: Ino,
}

/// What a commit must write of a map.
pub(crate) struct MapChanges {
    pub cut: Option<u64>,
    pub pages: Vec<(u64, Option<Vec<u8>>)>,
}

impl ExtentMap {
    /// The map of a new object: nothing is stored yet.
    pub fn new_empty() -> ExtentMap {
        ExtentMap {
            cut: Some(0),
            ..ExtentMap::default()
        }
    }

    /// Whether nothing was read from the catalog yet.
    pub fn is_unread(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether a commit has something to write.
    pub fn is_dirty(&self) -> bool {
        self.cut_dirty.is_some() || !self.dirty.is_empty()
    }

    fn page(&mut self, source: MapSource<'_>, index: u64) -> Result<&mut MapPage> {
        if !self.pages.contains_key(&index) {
            let stored = match self.cut {
                Some(cut) if index >= cut => None,
                _ => source
                    .catalog
                    .tables()
                    .map_page(source.store, source.ino, index)?,
            };
            let page = stored
                .map(|bytes| decode(source, index, &bytes))
                .transpose()?
                .unwrap_or_default();
            self.loaded_bytes += memory_bytes(&page);
            self.pages.insert(index, page);
        }
        Ok(self.pages.entry(index).or_default())
    }

    /// Where logical block `block` lies and what follows it there; or how many blocks from there on
    /// are a hole (at most to the end of the page).
    pub fn find(&mut self, source: MapSource<'_>, block: u64) -> Result<Mapped<'_>> {
        let (index, within) = (block / MAP_PAGE_BLOCKS, block % MAP_PAGE_BLOCKS);
        let page = self.page(source, index)?;
        if let Some(run) = page.find_run(within) {
            let skip = within - run.logical_block;
            return Ok(Mapped::Run {
                extent: run.extent.slice(skip, run.extent.block_count - skip),
                checksums: &run.checksums[skip as usize..],
            });
        }
        let next = page
            .runs()
            .iter()
            .find(|run| run.logical_block > within)
            .map(|run| run.logical_block);
        Ok(Mapped::Hole(next.unwrap_or(MAP_PAGE_BLOCKS) - within))
    }

    /// Whether block `block` is mapped.
    pub fn contains(&mut self, source: MapSource<'_>, block: u64) -> Result<bool> {
        Ok(matches!(self.find(source, block)?, Mapped::Run { .. }))
    }

    /// Maps `count = extent.block_count` blocks from `logical` on; returns what they replace.
    pub fn insert(
        &mut self,
        source: MapSource<'_>,
        logical: u64,
        extent: Extent,
        checksums: &[u32],
    ) -> Result<Vec<Extent>> {
        let mut replaced = Vec::new();
        let mut done = 0;
        while done < extent.block_count {
            let at = logical + done;
            let (index, within) = (at / MAP_PAGE_BLOCKS, at % MAP_PAGE_BLOCKS);
            let take = (MAP_PAGE_BLOCKS - within).min(extent.block_count - done);
            let run = MapRun {
                logical_block: within,
                extent: extent.slice(done, take),
                checksums: checksums[done as usize..(done + take) as usize].to_vec(),
            };
            replaced.extend(self.page(source, index)?.insert(run));
            self.dirty.insert(index);
            self.loaded_bytes += RUN_BYTES + 4 * take;
            done += take;
        }
        Ok(replaced)
    }

    /// Loads the stored pages that map blocks `from..to`. Cost: one page each 8 MiB that holds
    /// something in the range.
    pub fn load_blocks(&mut self, source: MapSource<'_>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let (first, last) = (from / MAP_PAGE_BLOCKS, (to - 1) / MAP_PAGE_BLOCKS);
        self.load_range(source, first, last)
    }

    /// Unmaps blocks `from..to`, which were loaded just before, and returns the extents they lay
    /// on.
    pub fn remove_loaded(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut removed = Vec::new();
        if from >= to {
            return removed;
        }
        let last = (to - 1) / MAP_PAGE_BLOCKS;
        for (&index, page) in self.pages.range_mut(from / MAP_PAGE_BLOCKS..=last) {
            let first = index * MAP_PAGE_BLOCKS;
            let gone = page.remove(
                from.saturating_sub(first),
                (to - first).min(MAP_PAGE_BLOCKS),
            );
            if !gone.is_empty() {
                self.dirty.insert(index);
                removed.extend(gone);
            }
        }
        removed
    }

    /// Unmaps everything from block `from` on (truncation), which was loaded just before.
    pub fn truncate_loaded(&mut self, from: u64) -> Vec<Extent> {
        let removed = self.remove_loaded(from, u64::MAX);
        let cut = from.div_ceil(MAP_PAGE_BLOCKS);
        if !removed.is_empty() || self.dirty.range(cut..).next().is_some() {
            self.cut_dirty = Some(self.cut_dirty.map_or(cut, |before| before.min(cut)));
        }
        self.cut = Some(self.cut.map_or(cut, |before| before.min(cut)));
        self.pages.retain(|&index, _| index < cut);
        self.dirty.retain(|&index| index < cut);
        removed
    }

    /// Loads the stored pages `first..=last` that are not in memory.
    fn load_range(&mut self, source: MapSource<'_>, first: u64, last: u64) -> Result<()> {
        const BATCH: usize = 256;
        let mut from = first;
        loop {
            if from > last || self.cut.is_some_and(|cut| from >= cut) {
                return Ok(());
            }
            let stored =
                source
                    .catalog
                    .tables()
                    .map_pages(source.store, source.ino, from, BATCH)?;
            let count = stored.len();
            for (index, bytes) in stored {
                from = index + 1;
                if index > last || self.cut.is_some_and(|cut| index >= cut) {
                    return Ok(());
                }
                if let Entry::Vacant(vacant) = self.pages.entry(index) {
                    let page = decode(source, index, &bytes)?;
                    self.loaded_bytes += memory_bytes(&page);
                    vacant.insert(page);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// The first mapped block in `from..to`. Cost: the stored pages up to it.
    pub fn next_mapped(
        &mut self,
        source: MapSource<'_>,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>> {
        const BATCH: usize = 8;
        if from >= to {
            return Ok(None);
        }
        let last = (to - 1) / MAP_PAGE_BLOCKS;
        let mut at = from / MAP_PAGE_BLOCKS;
        loop {
            let stored = match self.cut {
                Some(cut) if at >= cut => Vec::new(),
                _ => source
                    .catalog
                    .tables()
                    .map_pages(source.store, source.ino, at, BATCH)?,
            };
            // Up to here everything that is stored is in memory.
            let known = match stored.last() {
                Some((index, _)) if stored.len() == BATCH => (*index).min(last),
                _ => last,
            };
            for (index, bytes) in stored {
                let is_cut = self.cut.is_some_and(|cut| index >= cut);
                if !is_cut && let Entry::Vacant(vacant) = self.pages.entry(index) {
                    let page = decode(source, index, &bytes)?;
                    self.loaded_bytes += memory_bytes(&page);
                    vacant.insert(page);
                }
            }
            for (&index, page) in self.pages.range(at..=known) {
                let first = index * MAP_PAGE_BLOCKS;
                let found = page
                    .runs()
                    .iter()
                    .find(|run| first + run.logical_end() > from);
                if let Some(run) = found {
                    let block = (first + run.logical_block).max(from);
                    return Ok((block < to).then_some(block));
                }
            }
            if known == last {
                return Ok(None);
            }
            at = known + 1;
        }
    }

    /// Every extent, in logical order. Cost: loads the whole map.
    pub fn extents(&mut self, source: MapSource<'_>) -> Result<Vec<Extent>> {
        self.load_range(source, 0, u64::MAX)?;
        Ok(self
            .pages
            .values()
            .flat_map(|page| page.runs().iter().map(|run| run.extent))
            .collect())
    }

    /// Takes what the next commit must write; the map counts as clean from here on.
    pub fn take_changes(&mut self) -> MapChanges {
        let cut = self.cut_dirty.take();
        let pages = std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|index| {
                let page = self.pages.get(&index).filter(|page| !page.is_empty());
                (index, page.map(MapPage::encode))
            })
            .collect();
        MapChanges { cut, pages }
    }

    /// Called when the changes taken last are in the catalog: stored pages are the truth again.
    /// Only valid while nothing is dirty.
    pub fn forget_cut(&mut self) {
        if !self.is_dirty() {
            self.cut = None;
        }
    }

    /// Memory of the pages, bytes, roughly: what edits take away is counted until the map is
    /// shrunk.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes
    }

    /// Frees memory: drops pages that the catalog has too, when there are many.
    pub fn shrink(&mut self) {
        if self.pages.len() > PAGES_MAX && !self.is_dirty() && self.cut.is_none() {
            self.pages.clear();
            self.loaded_bytes = 0;
        }
    }
}

/// What [`ExtentMap::find`] finds.
pub(crate) enum Mapped<'m> {
    /// The rest of the run from the asked block on.
    Run {
        /// Where the blocks lie.
        extent: Extent,
        /// One per block.
        checksums: &'m [Checksum],
    },
    /// A hole of that many blocks; another hole may follow.
    Hole(u64),
}

/// Memory of a page, roughly.
fn memory_bytes(page: &MapPage) -> u64 {
    page.runs()
        .iter()
        .map(|run| RUN_BYTES + 4 * run.extent.block_count)
        .sum::<u64>()
        + RUN_BYTES
}

fn decode(source: MapSource<'_>, index: u64, bytes: &[u8]) -> Result<MapPage> {
    MapPage::decode(bytes).map_err(|error| {
        Error::with_source(
            ErrorKind::Corrupt,
            format!(
                "store {} inode {} map page {index} is damaged; restore the file from a copy",
                source.store, source.ino
            ),
            error,
        )
    })
}
