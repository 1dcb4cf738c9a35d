//! An object with pieces: loading the list, and the ordinary operations through it.
//!
//! The ordinary road (`edit`, `read`) turns here when it finds pieces. What is written, zeroed or
//! truncated is translated to the base, where everything goes on as for an object without pieces.

use crate::engine::EngineFragments;
use crate::view::ViewMaps;
use crate::view::node::{Node, NodeState, require_alive};
use crate::view::pieces::{BaseRange, LoadError, Pieces, ROOT};
use crate::write::RowEdit;
use crate::write::change::Wait;
use crate::write::edit::{blocks_touched, too_large};
use crate::write::guard::step;
use crate::write::splice::EDGE_BLOCKS;
use crate::{Error, ErrorKind, Result};
use larder_catalog::InodeRow;
use larder_space::Purpose;
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use larder_space::format::{Ino, PiecePage, StoreId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ViewMaps<'_> {
    /// Loads the pieces of bytes `from..to`, if the object has pieces. `false`: another session
    /// changed them meanwhile, and what was known is forgotten; begin again.
    pub(crate) fn load_pieces(
        &self,
        node: &Node,
        state: &mut NodeState,
        from: u64,
        to: u64,
    ) -> Result<bool> {
        self.load_content(node, state)?;
        let size = state.row.size_bytes;
        let Some(pieces) = state.content.pieces.as_mut() else {
            return Ok(true);
        };
        let why = if pieces.len_bytes() == size {
            let loaded = pieces.load(from.min(size), to.min(size), |page| {
                let bytes = self.catalog.maps().piece_page(node.store, node.ino, page)?;
                let page = bytes.map(|bytes| self.decode_piece_page(node, page, &bytes));
                page.transpose()
            });
            match loaded {
                Ok(()) => return Ok(true),
                Err(LoadError::Fetch(error)) => return Err(error),
                Err(LoadError::Torn(why)) => why,
            }
        } else {
            format!("{} bytes instead of {size} (PIECE-3)", pieces.len_bytes())
        };
        if self.forget_if_changed(node, state)? {
            return Ok(false);
        }
        Err(damaged(node.store, node.ino, &why))
    }

    /// Learns whether any object in the catalog has pieces.
    pub(crate) fn find_pieces(&self) -> Result<()> {
        if !self.may_have_pieces.load(Ordering::SeqCst) {
            self.may_have_pieces
                .store(self.catalog.maps().has_pieces()?, Ordering::SeqCst);
        }
        Ok(())
    }

    pub(crate) fn decode_piece_page(
        &self,
        node: &Node,
        page: u64,
        bytes: &[u8],
    ) -> Result<PiecePage> {
        PiecePage::decode(bytes)
            .map_err(|error| damaged(node.store, node.ino, &format!("page {page}: {error}")))
    }

    /// Whether what was just put together from pieces and map is of one moment (`PIECE-5`). If not,
    /// it is forgotten; begin again. Costs a lookup.
    pub(crate) fn is_of_one_moment(&self, node: &Node, state: &mut NodeState) -> Result<bool> {
        if state.content.pieces.is_none() {
            return Ok(true);
        }
        Ok(!self.forget_if_changed(node, state)?)
    }

    /// Forgets what is known of the content if the catalog's list or size is another one.
    fn forget_if_changed(&self, node: &Node, state: &mut NodeState) -> Result<bool> {
        if state.in_group || state.is_committing {
            return Ok(false);
        }
        let stored = self.catalog.maps().piece_page(node.store, node.ino, ROOT)?;
        let stored = stored.map(|bytes| self.decode_piece_page(node, ROOT, &bytes));
        let stored_seq = stored.transpose()?.map(|root| root.changed_seq);
        let row = self.catalog.tables().inode(node.store, node.ino)?;
        let is_same = stored_seq == state.content.pieces.as_ref().map(Pieces::changed_seq)
            && row.is_some_and(|row| row.size_bytes == state.row.size_bytes);
        if !is_same {
            state.content.forget();
            state.is_stale = true;
            self.freshen(node, state)?;
            require_alive(state)?;
        }
        Ok(!is_same)
    }
}

impl EngineFragments<'_> {
    /// The same for who has the writer lock: nobody else changes anything.
    pub(crate) fn require_pieces(
        &self,
        node: &Node,
        state: &mut NodeState,
        from: u64,
        to: u64,
    ) -> Result<()> {
        match self.maps().load_pieces(node, state, from, to)? {
            true => Ok(()),
            false => Err(damaged(
                node.store,
                node.ino,
                "it was changed by a session without the writer lock (NODE-4)",
            )),
        }
    }

    /// [`EngineContent::write`] and [`EngineContent::append`] to an object with pieces.
    pub(crate) fn write_pieces(
        &self,
        node: &Arc<Node>,
        asked: Option<u64>,
        data: &[u8],
    ) -> Result<u64> {
        let mut blocks = blocks_touched(asked, data.len() as u64) + EDGE_BLOCKS;
        loop {
            let reserved = (blocks, Purpose::Ordinary);
            let mut change = self.content().content_guard(node, reserved, Wait::No)?;
            let size = change.state.row.size_bytes;
            let offset = asked.unwrap_or(size);
            let end = offset
                .checked_add(data.len() as u64)
                .filter(|&end| end <= FILE_BYTES_MAX)
                .ok_or_else(too_large)?;
            let grown = size.max(end);
            change.ask(grown)?;
            let state = &mut *change.state;
            step("load the pieces")?;
            self.require_pieces(node, state, offset, end)?;
            let Some(pieces) = &state.content.pieces else {
                drop(change);
                return self.content().write_somewhere(node, asked, data);
            };
            let ranges = write_ranges(pieces, offset, end)?;
            let needed = ranges.iter().map(BaseRange::block_count).sum();
            if needed > blocks {
                // Many pieces: a larger reservation, which no lock may wait for.
                blocks = needed;
                continue;
            }
            let edges = self.read_edges(node, state, &ranges)?;
            self.plan_longer(node, state, grown)?;
            // From here on nothing fails.
            self.content()
                .gather(node, state, &mut change.reservation, |gather| {
                    let mut rest = data;
                    for range in &ranges {
                        let (part, others) = rest.split_at(range.len_bytes as usize);
                        gather.write(range.offset, part, |block, target| {
                            if let Some(bytes) = edges.get(&block) {
                                target.copy_from_slice(bytes);
                            }
                        });
                        rest = others;
                    }
                });
            self.grow_pieces(node, state, grown);
            change.commit(grown);
            return Ok(offset);
        }
    }

    /// The blocks at the edges of ranges that are written, as they are now.
    fn read_edges(
        &self,
        node: &Node,
        state: &mut NodeState,
        ranges: &[BaseRange],
    ) -> Result<HashMap<u64, Vec<u8>>> {
        let mut edges = HashMap::new();
        for range in ranges {
            let blocks = state.content.gather.edges(range.offset, range.len_bytes);
            for block in blocks.into_iter().flatten() {
                step("read an edge")?;
                let mut bytes = vec![0; BLOCK_BYTES as usize];
                self.maps().read_block(node, state, block, &mut bytes)?;
                edges.insert(block, bytes);
            }
        }
        Ok(edges)
    }

    /// Loads what [`EngineFragments::grow_pieces`] needs, and looks whether the list can grow so
    /// far.
    pub(crate) fn plan_longer(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        size: u64,
    ) -> Result<()> {
        let old = state.row.size_bytes;
        if size <= old {
            return Ok(());
        }
        step("load the end of the pieces")?;
        self.require_pieces(node, state, old, old)?;
        match &state.content.pieces {
            Some(pieces) if !pieces.has_base_for(size - old) => Err(too_large()),
            _ => Ok(()),
        }
    }

    /// Lets the pieces reach `size`, if there are pieces and they do not; the rest is a hole.
    pub(crate) fn grow_pieces(&self, node: &Arc<Node>, state: &mut NodeState, size: u64) {
        let old = state.row.size_bytes;
        if let Some(pieces) = state.content.pieces.as_mut()
            && size > old
        {
            pieces.extend(size);
            self.content().mark_dirty(node, state);
        }
    }

    /// [`EngineContent::truncate`] of an object with pieces.
    pub(crate) fn truncate_pieces(
        &self,
        node: &Arc<Node>,
        size_bytes: u64,
        with: Option<&RowEdit<'_>>,
    ) -> Result<InodeRow> {
        let reserved = (EDGE_BLOCKS, Purpose::Privileged);
        let mut change = self
            .content()
            .content_guard(node, reserved, Wait::UntilThawed)?;
        if change.state.content.pieces.is_none() {
            drop(change);
            return self.content().truncate_with(node, size_bytes, with);
        }
        change.ask_with(size_bytes, with)?;
        if size_bytes < change.state.row.size_bytes {
            self.cut_off(node, &mut change, size_bytes)?;
        } else {
            let state = &mut *change.state;
            self.plan_longer(node, state, size_bytes)?;
            self.grow_pieces(node, state, size_bytes);
        }
        Ok(change.commit_with(size_bytes, with))
    }

    /// [`EngineContent::zero_range`] of an object with pieces.
    pub(crate) fn zero_pieces(
        &self,
        node: &Arc<Node>,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<()> {
        let mut blocks = EDGE_BLOCKS;
        loop {
            let reserved = (blocks, Purpose::Privileged);
            let mut change = self
                .content()
                .content_guard(node, reserved, Wait::UntilThawed)?;
            let size = change.state.row.size_bytes;
            let stop = end.min(size);
            let grown = if keep_size { size } else { size.max(end) };
            change.ask(grown)?;
            let state = &mut *change.state;
            step("load the pieces")?;
            self.require_pieces(node, state, offset, stop)?;
            let Some(pieces) = &state.content.pieces else {
                drop(change);
                return self
                    .content()
                    .zero_range(node, offset, end - offset, keep_size);
            };
            let ranges = pieces.translate(offset, stop);
            // The ragged ends of each.
            let needed = 2 * ranges.len() as u64;
            if needed > blocks {
                blocks = needed;
                continue;
            }
            let mut zeroing = Vec::with_capacity(ranges.len());
            for range in ranges {
                let end = range.offset + range.len_bytes;
                let planned = (range.offset, end, range.is_tail);
                zeroing.extend(self.content().plan_zero(node, state, planned)?);
            }
            self.plan_longer(node, state, grown)?;
            // From here on nothing fails.
            self.content()
                .zero_base(node, state, &mut change.reservation, &zeroing);
            self.grow_pieces(node, state, grown);
            change.commit(grown);
            return Ok(());
        }
    }

    /// Gives up a list that says no more than having none would.
    pub(crate) fn drop_idle_pieces(&self, state: &mut NodeState) {
        if state
            .content
            .pieces
            .as_ref()
            .is_some_and(Pieces::is_identity)
        {
            state.content.drop_pieces();
        }
    }
}

/// Where a write of `offset..end` goes: to what is there, and behind it.
fn write_ranges(pieces: &Pieces, offset: u64, end: u64) -> Result<Vec<BaseRange>> {
    let size = pieces.len_bytes();
    let mut ranges = pieces.translate(offset.min(size), end.min(size));
    if end > size {
        if !pieces.has_base_for(end - size) {
            return Err(too_large());
        }
        let mut gap = offset.saturating_sub(size);
        for mut range in pieces.extension(end) {
            let skip = gap.min(range.len_bytes);
            gap -= skip;
            range.offset += skip;
            range.len_bytes -= skip;
            if range.len_bytes > 0 {
                ranges.push(range);
            }
        }
    }
    Ok(ranges)
}

pub(crate) fn damaged(store: StoreId, ino: Ino, why: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "store {store} inode {ino}: the list of pieces is damaged ({why}); restore the file \
             from a copy"
        ),
    )
}
