//! The whole content of an object at once: replaced in one step, at its known length.

use crate::Result;
use crate::engine::EngineContent;
use crate::view::gather::Gather;
use crate::view::node::Node;
use crate::write::change::HeldReservation;
use crate::write::claims::Claim;
use crate::write::edit::too_large;
use crate::write::guard::WriteGuard;
use larder_space::Purpose;
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// New content on its way into an object: copied, and with its reservation (`EDIT-1`).
pub struct NewContent<'e> {
    size_bytes: u64,
    /// Tiny content is inline.
    inline: Option<Vec<u8>>,
    gather: Gather,
    reservation: HeldReservation<'e>,
    /// Until the gather counts as dirty.
    _memory: Claim<'e>,
}

impl<'e> EngineContent<'e> {
    /// Copies `bytes` and begins a change that may make them an object's content
    /// ([`NewContent::put`]). The copy is made before anything is locked.
    pub fn guard_with_content(&self, bytes: &[u8]) -> Result<(WriteGuard<'e>, NewContent<'e>)> {
        let size_bytes = bytes.len() as u64;
        if size_bytes > FILE_BYTES_MAX {
            return Err(too_large());
        }
        let purpose = match bytes.is_empty() {
            true => Purpose::Privileged, // It frees what was there.
            false => Purpose::Ordinary,
        };
        self.require_room(purpose)?;
        let memory = self.engine.delayed_allocation().claim_memory(size_bytes)?;
        let mut gather = Gather::default();
        let inline = (size_bytes <= self.session.inline_bytes_max).then(|| bytes.to_vec());
        if inline.is_none() {
            gather.write(0, bytes, |_, _| {});
        }
        let edit = self.engine.edit()?;
        let reservation = self.reservation(&edit, gather.block_count(), purpose)?;
        let content = NewContent {
            size_bytes,
            inline,
            gather,
            reservation,
            _memory: memory,
        };
        Ok((self.engine.namespace().begin_write(edit)?, content))
    }
}

impl NewContent<'_> {
    /// Becomes the content of a regular file: readers see the old or the new one, and so does a
    /// crash. The inode, its names, attributes and user columns stay. Waits for a commit that is
    /// writing this file only if the new content has fewer blocks. Ends the operation: the guard's
    /// rules are asked before, and nothing is taken back afterwards.
    pub fn put(self, change: &WriteGuard<'_>, node: &Arc<Node>) -> Result<()> {
        let engine = change.engine();
        let NewContent {
            size_bytes,
            inline,
            gather,
            mut reservation,
            _memory,
        } = self;
        let keep = gather.block_count();
        change.step("set the content")?;
        let mut state = engine.lock_node(node)?;
        change.step("load extended attributes")?;
        engine.content().begin_content(node, &mut state)?;
        change.step("load the content")?;
        engine.maps().load_content(node, &mut state)?;
        change.remember(node, &state);
        drop(state);
        change.step("ask the rules")?;
        change.ask_rules(Some((node, size_bytes)))?;
        change.step("lock the file")?;
        let mut state = engine.lock_node(node)?;
        let is_shorter = state.row.size_bytes.div_ceil(BLOCK_BYTES) > keep
            && (state.row.block_count > 0 || state.content.frozen.is_some());
        let is_cut = is_shorter || state.content.pieces.is_some();
        if is_cut {
            drop(state);
            change.step("wait for the commit of the file")?;
            state = engine.lock_thawed(node)?;
        }
        engine.content().begin_content(node, &mut state)?;
        engine.maps().load_content(node, &mut state)?;
        if is_cut {
            // Pieces may have come or gone meanwhile. With them the base may be longer than the
            // object.
            let kept_blocks = match state.content.pieces {
                Some(_) => 0,
                None => keep,
            };
            change.step("load the map")?;
            let source = engine.maps().map_source(node);
            let map = &mut state.content.map;
            map.load_blocks(source, kept_blocks, u64::MAX)?;
            // From here on nothing fails (GUARD-4).
            let removed = state.content.unmap_loaded_from(kept_blocks);
            engine.content().retire(node, &mut state, removed);
            state.content.drop_pieces();
        }
        engine.content().discard(&mut state, 0, u64::MAX);
        engine
            .dirty_bytes
            .fetch_add(gather.memory_bytes(), Ordering::Relaxed);
        let content = &mut state.content;
        content.inline_dirty = inline.is_some();
        content.inline = inline;
        content.gather = gather;
        content.expected_bytes = size_bytes;
        reservation.give(keep, &mut content.reservation);
        state.row.size_bytes = size_bytes;
        engine.content().touch_content(node, &mut state, None);
        drop(state);
        // The old content is gone.
        change.finish();
        Ok(())
    }
}
