//! The proof that the content of a file may be changed, and what takes such a change back.
//!
//! ```text
//!  content_guard() ─▶ open ─load, ask, read─▶ prepared ─change─▶ changed ─commit()─▶ in the group
//!                       │                        │
//!                       └─────── dropped ────────┴─▶ as before
//! ```
//!
//! A change of content is of one file, which is locked from its beginning to its end: nobody sees a
//! part of it. So nearly nothing has to be taken back: all that can fail comes first (*prepared*),
//! and from the first change on nothing fails. What an edit of pieces must change before it can go
//! on, its blocks and its list, is noted and taken back.
//!
//! # Invariants
//! * `GUARD-4` A change of content that fails, or is refused, leaves length, times, dirty blocks,
//!   reservations, pieces, map, holders and the open group as they were. *Guard*: what fails comes
//!   before what changes, and [`ContentGuard`] takes back what it notes; a test fails every step of
//!   every operation with several errors.

use crate::Result;
use crate::engine::{Edit, Engine, EngineContent, lock};
use crate::view::node::{Node, NodeState, require_alive};
use crate::write::RowEdit;
use crate::write::guard::step;
use larder_catalog::{AttrMask, InodeRow};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::{Purpose, Reservation};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, RwLockReadGuard};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A change of the content of one file under way. Dropped without [`ContentGuard::commit`] it has
/// not happened (`GUARD-4`).
pub(crate) struct ContentGuard<'e> {
    engine: &'e Engine,
    node: &'e Arc<Node>,
    before: Before,
    is_over: bool,
    // Dropped in this order: the writer lock last.
    pub state: MutexGuard<'e, NodeState>,
    _barrier: RwLockReadGuard<'e, ()>,
    pub reservation: HeldReservation<'e>,
    _edit: Edit<'e>,
}

/// A file before the change.
struct Before {
    row: InodeRow,
    mask: AttrMask,
    in_group: bool,
    generation: u64,
    touch_count: u64,
    /// Blocks of the gather that were noted, the oldest first.
    blocks: Vec<(u64, Option<Box<[u8; BLOCK]>>)>,
    /// Inline content that became a block, and whether it was new.
    inline: Option<(Vec<u8>, bool)>,
    /// Its list of pieces is being edited: whether there was one.
    had_pieces: Option<bool>,
}

/// Whether a change waits until no commit is writing the file (`NODE-2`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    UntilThawed,
}

impl<'e> EngineContent<'e> {
    /// Begins a change of content that makes at most `blocks` blocks dirty; waits for the writer
    /// lock. The content is loaded.
    pub(crate) fn content_guard(
        &self,
        node: &'e Arc<Node>,
        (blocks, purpose): (u64, Purpose),
        wait: Wait,
    ) -> Result<ContentGuard<'e>> {
        step("look at the host")?;
        self.require_room(purpose)?;
        step("take the writer lock")?;
        let edit = self.engine.edit()?;
        step("reserve space")?;
        let reservation = self.reservation(&edit, blocks, purpose)?;
        let barrier = self.engine.enter_barrier();
        step("lock the file")?;
        let mut state = match wait {
            Wait::No => self.lock_node(node)?,
            Wait::UntilThawed => self.lock_thawed(node)?,
        };
        step("load extended attributes")?;
        self.begin_content(node, &mut state)?;
        step("load the content")?;
        self.maps().load_content(node, &mut state)?;
        Ok(ContentGuard {
            engine: self.engine,
            node,
            before: Before {
                row: state.row.clone(),
                mask: state.mask,
                in_group: state.in_group,
                generation: state.generation,
                touch_count: state.touch_count,
                blocks: Vec::new(),
                inline: None,
                had_pieces: None,
            },
            is_over: false,
            state,
            _barrier: barrier,
            reservation,
            _edit: edit,
        })
    }
}

impl ContentGuard<'_> {
    /// Asks the user's rules about the change, after which the file has `size_bytes`.
    pub fn ask(&self, size_bytes: u64) -> Result<()> {
        self.ask_with(size_bytes, None)
    }

    /// The same of a change that sets attributes too.
    pub fn ask_with(&self, size_bytes: u64, with: Option<&RowEdit<'_>>) -> Result<()> {
        step("ask the rules")?;
        require_alive(&self.state)?;
        (self.engine)
            .rules()
            .ask_content(self.node, &self.state, size_bytes, with)
    }

    /// Ends the change: the file has `size_bytes`, and it is in the open group.
    pub fn commit(self, size_bytes: u64) {
        self.commit_with(size_bytes, None);
    }

    /// The same of a change that sets attributes too; returns them all.
    pub fn commit_with(mut self, size_bytes: u64, with: Option<&RowEdit<'_>>) -> InodeRow {
        self.is_over = true;
        self.state.row.size_bytes = size_bytes;
        let state = &mut *self.state;
        if let Some(pieces) = state.content.pieces.as_mut() {
            pieces.note_before(false);
        }
        if with.is_some_and(|with| with.mask.atime) {
            state.accessed_ns = None; // ATIME-2
        }
        self.engine.content().touch_content(self.node, state, with);
        state.row.clone()
    }

    /// What precedes the edit of a list of pieces that may fail on its way: it is taken back then.
    pub fn note_pieces(&mut self) {
        let pieces = self.state.content.pieces.as_mut();
        self.before.had_pieces = Some(pieces.is_some());
        if let Some(pieces) = pieces {
            pieces.note_before(true);
        }
    }

    /// Sets a whole dirty block; it is taken back if the change fails.
    pub fn put_noted(&mut self, block: u64, bytes: &[u8; BLOCK]) {
        self.note_block(block);
        let state = &mut *self.state;
        (self.engine)
            .content()
            .gather(self.node, state, &mut self.reservation, |gather| {
                gather.put(block, bytes);
            });
    }

    /// Zeroes a part of a dirty block; it is taken back if the change fails.
    pub fn zero_noted(&mut self, block: u64, from: usize, to: usize) {
        self.note_block(block);
        self.state.content.gather.zero_within(block, from, to);
    }

    /// Makes inline content an ordinary dirty block; it is taken back if the change fails.
    pub fn leave_inline_noted(&mut self) {
        let content = &self.state.content;
        if let Some(inline) = &content.inline {
            self.before.inline = Some((inline.clone(), content.inline_dirty));
            self.note_block(0);
            let state = &mut *self.state;
            (self.engine)
                .content()
                .leave_inline(self.node, state, &mut self.reservation);
        }
    }

    fn note_block(&mut self, block: u64) {
        let found = self.state.content.gather.find(block);
        let before = found.and_then(|bytes| <[u8; BLOCK]>::try_from(bytes).ok());
        self.before.blocks.push((block, before.map(Box::new)));
    }

    fn take_back(&mut self) {
        let (state, before) = (&mut *self.state, &mut self.before);
        let gather = &mut state.content.gather;
        let (blocks, memory) = (gather.block_count(), gather.memory_bytes());
        for (block, bytes) in before.blocks.drain(..).rev() {
            match bytes {
                Some(bytes) => gather.put(block, &bytes),
                None => drop(gather.discard(block, block + 1)),
            }
        }
        let fewer = blocks - gather.block_count();
        let freed = memory - gather.memory_bytes();
        self.engine.dirty_bytes.fetch_sub(freed, Ordering::Relaxed);
        if let Some(reservation) = state.content.reservation.as_mut().filter(|_| fewer > 0) {
            let part = reservation.split(fewer);
            self.engine.free_space().space.forfeit(part);
        }
        if let Some((inline, is_dirty)) = before.inline.take() {
            state.content.inline = Some(inline);
            state.content.inline_dirty = is_dirty;
        }
        match (before.had_pieces, state.content.pieces.as_mut()) {
            (Some(true), Some(pieces)) => pieces.take_back(),
            (Some(false), _) => state.content.pieces = None,
            _ => {}
        }
        if state.touch_count == before.touch_count {
            return;
        }
        state.row = before.row.clone();
        state.mask = before.mask;
        (state.generation, state.touch_count) = (before.generation, before.touch_count);
        if state.in_group && !before.in_group {
            state.in_group = false;
            lock(&self.engine.group).forget_dirty(self.node);
        }
        self.engine.rules.take_back(self.node, state);
    }
}

impl Drop for ContentGuard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.take_back();
        }
    }
}

/// A reservation that gives itself back.
pub(crate) struct HeldReservation<'e> {
    pub(super) engine: &'e Engine,
    pub(super) reservation: Option<Reservation>,
}

impl HeldReservation<'_> {
    /// Moves `blocks` of the reservation to `to`.
    pub(crate) fn give(&mut self, blocks: u64, to: &mut Option<Reservation>) {
        if let Some(mine) = self.reservation.as_mut().filter(|_| blocks > 0) {
            let part = mine.split(blocks);
            match to {
                Some(theirs) => theirs.merge(part),
                None => *to = Some(part),
            }
        }
    }
}

impl Drop for HeldReservation<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.engine.free_space().space.forfeit(reservation);
        }
    }
}
