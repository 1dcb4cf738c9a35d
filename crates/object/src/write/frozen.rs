//! What a commit has frozen: nodes, and their dirty blocks on the way to a segment.

use crate::view::gather::Gather;
use crate::view::node::{Content, Node};
use crate::view::redo_rows::Applied;
use larder_catalog::{AttrMask, ContentRow, InodeRow};
use larder_space::Reservation;
use larder_space::format::{Ino, Name};
use std::sync::Arc;

/// A node as the freeze found it.
pub(crate) struct FrozenNode {
    pub node: Arc<Node>,
    pub row: InodeRow,
    pub mask: AttrMask,
    /// No commit has it.
    pub is_fresh: bool,
    pub is_deleted: bool,
    pub entries: Vec<(Name, Option<Ino>)>,
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub content_row: Option<Option<ContentRow>>,
    /// Blocks whose redo rows an edit ended.
    pub redo_ended: Vec<u64>,
    /// The list of pieces goes, before `piece_pages` come.
    pub drops_pieces: bool,
    pub piece_pages: Vec<(u64, Option<Vec<u8>>)>,
    /// Dirty blocks, or none when only the map changed.
    pub flush: Option<ContentFlush>,
}

/// Dirty blocks on their way to a segment.
pub(crate) struct ContentFlush {
    pub gather: Arc<Gather>,
    /// Dirty runs that get a new place: all of the gather but what became redo rows.
    pub runs: Vec<(u64, u64)>,
    /// Redo rows that were written in place.
    pub applied: Option<Applied>,
    pub reservation: Option<Reservation>,
    pub fate: Fate,
    /// The object may still be placed whole: the blocks stay in memory (`WHOLE-1`).
    pub keeps: bool,
    /// What it replaces is the same content at other places.
    pub is_rewrite: bool,
    /// Part of an object that lies where it will stay: small overwrites in it may become redo rows.
    pub may_log_redo: bool,
}

impl ContentFlush {
    /// Freezes what is dirty.
    pub fn freeze(content: &mut Content, fate: Fate) -> ContentFlush {
        let gather = Arc::new(std::mem::take(&mut content.gather));
        content.frozen = Some(gather.clone());
        ContentFlush {
            runs: gather.runs(),
            gather,
            applied: content.applied.take(),
            reservation: content.reservation.take(),
            fate,
            keeps: false,
            is_rewrite: false,
            may_log_redo: false,
        }
    }

    /// Blocks that get a new place.
    pub fn block_count(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }
}

impl Drop for ContentFlush {
    fn drop(&mut self) {
        // Left only when the commit failed; the engine stops and its books end with it.
        std::mem::forget(self.reservation.take());
    }
}

/// What is known of the length of what is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The final length: one place for all of it. So are parts of an object that exists already.
    Known,
    /// It may go on where it ends, up to this length if one was announced, blocks.
    Stream(Option<u64>),
}
