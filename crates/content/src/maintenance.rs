//! What keeps a database in order, and says how it is doing.

use crate::rooms::Maintenance;
use crate::types::NodeId;
use larder_object::format::{Extent, FileKind, Ino, StoreId};
use larder_object::{
    CheckReport, CompactStep, DefragObject, DefragOptions, DefragReport, FragReport, Gauges,
    Result, SegmentMap, ShrinkReport, SpaceReport, StatsReport,
};

impl Maintenance<'_> {
    /// How full the database is.
    pub fn space(&self) -> Result<SpaceReport> {
        self.database.whole()?.report().space_report()
    }

    /// How fragmented it is, counted from the extent maps. Cost: reads every map.
    pub fn frag(&self) -> Result<FragReport> {
        self.database.whole()?.report().frag_report()
    }

    /// Calls `visit` with every object that holds blocks and the places of its content in logical
    /// order, as committed. Cost: reads every map.
    pub fn layouts(&self, visit: &mut dyn FnMut(NodeId, &[Extent])) -> Result<()> {
        let mut visit_node = |store, ino, extents: &[Extent]| visit(NodeId { store, ino }, extents);
        self.database
            .whole()?
            .report()
            .for_each_layout(&mut visit_node)
    }

    /// Counters of this moment, for all sessions. Cost: a scan of the extent rows.
    pub fn stats(&self) -> Result<StatsReport> {
        self.database.whole()?.report().stats()
    }

    /// What this session has in memory, and what it knows without asking the catalog. Cheap.
    pub fn gauges(&self) -> Result<Gauges> {
        self.database.whole()?.report().gauges()
    }

    /// What is in use of every `cell_blocks` (≥ 1) blocks of 4 KiB, segment by segment.
    pub fn space_map(&self, cell_blocks: u64) -> Result<Vec<SegmentMap>> {
        self.database.whole()?.report().space_map(cell_blocks)
    }

    /// Moves content so that objects lie in one piece: all objects, or those `below` (files, or
    /// directories with all they hold); without them also joins holes. `on_object` hears of each
    /// that was not in one piece. Beside other sessions, which go on. Cost: reads every map, copies
    /// what it moves, at most as much as lives.
    pub fn defrag(
        &self,
        below: &[NodeId],
        options: &DefragOptions,
        on_object: &mut dyn FnMut(&DefragObject),
    ) -> Result<DefragReport> {
        let engine = self.database.whole()?;
        if below.is_empty() {
            return engine.compaction().defrag(None, options, on_object);
        }
        let mut files = Vec::new();
        for &node in below {
            self.collect_files(node, &mut files)?;
        }
        // A file with several names is one object.
        files.sort_unstable();
        files.dedup();
        engine.compaction().defrag(Some(&files), options, on_object)
    }

    /// The regular files at or below `start`, each with the store whose table it is in.
    fn collect_files(&self, start: NodeId, files: &mut Vec<(StoreId, Ino)>) -> Result<()> {
        const LISTING_MAX: usize = 1000;
        let mut waiting = vec![(start, self.database.nodes().metadata(start)?.kind)];
        while let Some((node, kind)) = waiting.pop() {
            if kind == FileKind::File {
                let stores = self.database.read_stores();
                let shown = stores.iter().find(|one| one.row.store == node.store);
                files.push((
                    shown.map_or(node.store, |one| one.row.table_store),
                    node.ino,
                ));
            }
            if kind != FileKind::Directory {
                continue;
            }
            let mut after = None;
            loop {
                let entries = self
                    .database
                    .nodes()
                    .read_dir(node, after.as_ref(), LISTING_MAX)?;
                waiting.extend(entries.iter().map(|entry| (entry.node, entry.kind)));
                match entries.last() {
                    Some(last) if entries.len() == LISTING_MAX => after = Some(last.name.clone()),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Makes the segments shorter, to `to_bytes` in all or as short as the content allows, and
    /// returns the space to the host. `progress(moved_bytes, total_bytes)` is called now and then.
    /// Errors: [`crate::ErrorKind::InvalidInput`] when the content needs more;
    /// [`crate::ErrorKind::Busy`] when other sessions keep using the end.
    pub fn shrink(
        &self,
        to_bytes: Option<u64>,
        is_dry: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ShrinkReport> {
        self.database
            .whole()?
            .segments()
            .shrink_segments(to_bytes, is_dry, progress)
    }

    /// One step of the compaction that the background makes when it is idle, within its credit; for
    /// programs, and tests, that open without a background.
    pub fn compact_step(&self) -> Result<CompactStep> {
        self.database.whole()?.compaction().compact_step()
    }

    /// Bytes that the background may move now: a part of what this session has written.
    pub fn compact_credit_bytes(&self) -> u64 {
        let engine = self.database.shared.shown.engine();
        engine.map_or(0, |engine| engine.compaction().compact_credit_bytes())
    }

    /// Proves that catalog and segments agree; with `read_content` also reads every block.
    /// `progress(done_bytes, total_bytes)` is called now and then.
    pub fn check(
        &self,
        read_content: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        self.database
            .whole()?
            .report()
            .check(read_content, progress)
    }
}
