//! The pieces of an object: which bytes of its base appear where. Pure: pages in memory, fetched by
//! the caller's function.
//!
//! # Words
//! *Base*: the address space of the object's extent map and gather, in blocks. *Piece*: bytes of
//! the base that appear in a row, from the start of a block on. An object that never saw a fragment
//! operation has no pieces: there, offset in the object = offset in the base.
//!
//! ```text
//!  object   |------ A ------|-- C --|---- B ----|
//!  base     |A A A a.|B B b.|C c.|                 blocks; '.': zeros behind the end of a piece
//!                                ^ base_blocks
//! ```
//!
//! # Invariants
//! * `PIECE-1` A base block belongs to at most one piece, and a piece begins at the start of a
//!   block. So a block is free exactly when its piece is gone, and nothing has to be counted.
//! * `PIECE-2` Every piece lies before `base_blocks`, and nothing at or after that was ever stored.
//! * `PIECE-3` The bytes of the pieces add up to the size of the object, and every page says
//!   exactly how many bytes are below each of its entries.
//! * `PIECE-4` Bytes of a base block behind the end of its piece are zero, in the gather and on the
//!   device (this is `GATHER-2` for the end of each piece), so that a piece can grow over them.
//! * `PIECE-5` Every committed change of the list has another `changed_seq` in the root. Who reads
//!   without the writer lock compares it to learn whether what was put together is of one moment.
//!
//! # The tree
//! A counted B+-tree of [`PiecePage`]s; page 0 is the root and keeps its number. Everything but
//! [`Pieces::load`] works on pages in memory and cannot fail: load what will be touched first.

use larder_space::format::limits::{BASE_BLOCKS_MAX, BLOCK_BYTES, PIECE_PAGE_ENTRIES_MAX};
use larder_space::format::{PieceEntry, PiecePage};
use std::collections::{BTreeMap, BTreeSet};

/// The root's number.
pub(crate) const ROOT: u64 = 0;
/// Clean pages kept in memory (about 8 MiB).
const PAGES_MAX: usize = 4096;
/// Two neighbouring pages with at most this many entries become one.
const MERGE_ENTRIES_MAX: usize = PIECE_PAGE_ENTRIES_MAX / 2;

/// Bytes of the base that appear in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The base block it begins with.
    pub first_block: u64,
    /// ≥ 1.
    pub len_bytes: u64,
}

impl Piece {
    /// The base block after its last.
    pub fn end_block(&self) -> u64 {
        self.first_block + self.len_bytes.div_ceil(BLOCK_BYTES)
    }

    /// Bytes of it in its last block, 0 when that is full.
    pub fn tail_bytes(&self) -> u64 {
        self.len_bytes % BLOCK_BYTES
    }

    /// Whether `next` goes on where this ends, so that both are one piece.
    fn is_followed_by(&self, next: &Piece) -> bool {
        self.tail_bytes() == 0 && self.end_block() == next.first_block
    }
}

/// Why pages could not be loaded.
#[derive(Debug)]
pub(crate) enum LoadError<E> {
    /// The fetch failed.
    Fetch(E),
    /// The pages are not of one moment, or damaged.
    Torn(String),
}

/// The list.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// The root is always there, and every page that differs from the stored one.
    pages: BTreeMap<u64, PiecePage>,
    dirty: BTreeSet<u64>,
    /// While an edit may be taken back: pages as they were, and whether they were dirty.
    before: Option<BTreeMap<u64, (Option<PiecePage>, bool)>>,
}

impl Pieces {
    /// The pieces of an object that had none: one, or none when it is empty.
    pub fn new_whole(size_bytes: u64) -> Pieces {
        let base_blocks = size_bytes.div_ceil(BLOCK_BYTES);
        let whole = PieceEntry {
            target: 0,
            len_bytes: size_bytes,
        };
        let root = PiecePage {
            next_page: ROOT + 1,
            base_blocks,
            entries: (size_bytes > 0).then_some(whole).into_iter().collect(),
            ..PiecePage::default()
        };
        Pieces {
            pages: BTreeMap::from([(ROOT, root)]),
            dirty: BTreeSet::from([ROOT]),
            before: None,
        }
    }

    /// The list with this stored root.
    pub fn from_root(root: PiecePage) -> Pieces {
        Pieces {
            pages: BTreeMap::from([(ROOT, root)]),
            dirty: BTreeSet::new(),
            before: None,
        }
    }

    fn root(&self) -> &PiecePage {
        &self.pages[&ROOT]
    }

    /// Bytes of the object.
    pub fn len_bytes(&self) -> u64 {
        self.root().len_bytes()
    }

    /// Base blocks from here on were never used (`PIECE-2`).
    pub fn base_blocks(&self) -> u64 {
        self.root().base_blocks
    }

    /// The root's `changed_seq` (`PIECE-5`).
    pub fn changed_seq(&self) -> u64 {
        self.root().changed_seq
    }

    /// Whether the list says no more than having none would.
    pub fn is_identity(&self) -> bool {
        let root = self.root();
        root.level == 0 && root.entries.len() <= 1 && root.entries.iter().all(|one| one.target == 0)
    }

    /// Loads what the other methods need to work on bytes `from..to`, on the pieces beside them,
    /// and on the places before and after those. Cost: the pages on the way, and those of the
    /// range.
    pub fn load<E>(
        &mut self,
        from: u64,
        to: u64,
        mut fetch: impl FnMut(u64) -> Result<Option<PiecePage>, E>,
    ) -> Result<(), LoadError<E>> {
        self.load_touching(from, to, &mut fetch)?;
        let len = self.len_bytes();
        let before = from.min(len).saturating_sub(1);
        let from = if len > 0 { self.find(before).0 } else { 0 };
        let to = if to < len {
            let (start, piece) = self.find(to);
            start + piece.len_bytes
        } else {
            len
        };
        self.load_touching(from, to, &mut fetch)
    }

    /// Loads the pages that hold a byte of `from..to` or one beside it.
    fn load_touching<E>(
        &mut self,
        from: u64,
        to: u64,
        fetch: &mut impl FnMut(u64) -> Result<Option<PiecePage>, E>,
    ) -> Result<(), LoadError<E>> {
        let mut pending = vec![(ROOT, 0)];
        while let Some((id, start)) = pending.pop() {
            let page = &self.pages[&id];
            if page.level == 0 {
                continue;
            }
            let (level, mut at) = (page.level, start);
            let mut missing = Vec::new();
            for entry in &page.entries {
                let end = at + entry.len_bytes;
                if at <= to && from <= end {
                    pending.push((entry.target, at));
                    if !self.pages.contains_key(&entry.target) {
                        missing.push(*entry);
                    }
                }
                at = end;
            }
            for entry in missing {
                let page = fetch(entry.target).map_err(LoadError::Fetch)?;
                let torn = |why: String| LoadError::Torn(format!("page {}: {why}", entry.target));
                let page = page.ok_or_else(|| torn("it is missing".into()))?;
                if page.level + 1 != level || page.len_bytes() != entry.len_bytes {
                    return Err(torn(format!(
                        "level {} with {} bytes expected, {} with {} found (PIECE-3)",
                        level - 1,
                        entry.len_bytes,
                        page.level,
                        page.len_bytes()
                    )));
                }
                self.pages.insert(entry.target, page);
            }
        }
        Ok(())
    }

    /// The piece that holds byte `offset` < `len_bytes`, and where it begins in the object.
    /// O(log pieces).
    pub fn find(&self, offset: u64) -> (u64, Piece) {
        let (mut page, mut start) = (self.root(), 0);
        loop {
            let mut found = None;
            for entry in &page.entries {
                if offset < start + entry.len_bytes {
                    found = Some(*entry);
                    break;
                }
                start += entry.len_bytes;
            }
            let entry = found.unwrap_or_else(|| panic!("PIECE-3: nothing at {offset}"));
            if page.level == 0 {
                return (start, piece_of(&entry));
            }
            page = &self.pages[&entry.target];
        }
    }

    /// The piece that ends at `offset`, if one does, and where it begins.
    pub fn ending_at(&self, offset: u64) -> Option<(u64, Piece)> {
        let (start, piece) = self.find(offset.checked_sub(1)?);
        (start + piece.len_bytes == offset).then_some((start, piece))
    }

    /// The piece that begins at `offset`, if one does.
    pub fn starting_at(&self, offset: u64) -> Option<Piece> {
        if offset >= self.len_bytes() {
            return None;
        }
        let (start, piece) = self.find(offset);
        (start == offset).then_some(piece)
    }

    /// Where bytes `from..to` of the object lie: offsets in the base with their lengths, bytes, in
    /// order; and whether each reaches the end of its piece.
    pub fn translate(&self, from: u64, to: u64) -> Vec<BaseRange> {
        let mut ranges = Vec::new();
        let mut at = from;
        while at < to {
            let (start, piece) = self.find(at);
            let end = (start + piece.len_bytes).min(to);
            ranges.push(BaseRange {
                offset: piece.first_block * BLOCK_BYTES + (at - start),
                len_bytes: end - at,
                is_tail: end == start + piece.len_bytes,
            });
            at = end;
        }
        ranges
    }

    /// Where bytes `len_bytes..size` will lie once [`Pieces::extend`] has grown the object.
    pub fn extension(&self, size: u64) -> Vec<BaseRange> {
        let len = self.len_bytes();
        let more = size - len;
        let fresh = self.base_blocks() * BLOCK_BYTES;
        let (tail, free) = match self.ending_at(len) {
            None => (fresh, 0),
            Some((_, last)) => {
                let tail = last.first_block * BLOCK_BYTES + last.len_bytes;
                let is_last_of_base = last.end_block() == self.base_blocks();
                let left = last.end_block() * BLOCK_BYTES - tail;
                (
                    tail,
                    if is_last_of_base {
                        more
                    } else {
                        left.min(more)
                    },
                )
            }
        };
        let parts = [(tail, free), (fresh, more - free)];
        let ranges = parts.into_iter().filter(|part| part.1 > 0);
        ranges
            .map(|(offset, len_bytes)| BaseRange {
                offset,
                len_bytes,
                is_tail: true,
            })
            .collect()
    }

    /// Whether the base has room for so many more bytes, and the blocks that cuts need.
    pub fn has_base_for(&self, more_bytes: u64) -> bool {
        const CUT_BLOCKS: u64 = 8;
        BASE_BLOCKS_MAX - self.base_blocks() >= more_bytes.div_ceil(BLOCK_BYTES) + CUT_BLOCKS
    }

    /// Grows the object to `size` bytes with a hole. The end must be loaded, and the base have
    /// room.
    pub fn extend(&mut self, size: u64) {
        for range in self.extension(size) {
            let at = self.len_bytes();
            let grown = self
                .ending_at(at)
                .filter(|_| !range.offset.is_multiple_of(BLOCK_BYTES));
            let (start, piece) = match grown {
                Some((start, last)) => {
                    self.remove(start, at);
                    let len_bytes = last.len_bytes + range.len_bytes;
                    (start, Piece { len_bytes, ..last })
                }
                None => {
                    let (first_block, len_bytes) = (range.offset / BLOCK_BYTES, range.len_bytes);
                    (
                        at,
                        Piece {
                            first_block,
                            len_bytes,
                        },
                    )
                }
            };
            self.insert(start, piece);
            self.use_base(piece.end_block());
        }
        debug_assert!(self.len_bytes() == size, "PIECE-3");
    }

    /// Takes `count` fresh base blocks; returns the first.
    pub fn take_base(&mut self, count: u64) -> u64 {
        let first = self.base_blocks();
        self.use_base(first + count);
        first
    }

    fn use_base(&mut self, end: u64) {
        assert!(end <= BASE_BLOCKS_MAX, "the base is used up");
        let root = self.page_mut(ROOT);
        root.base_blocks = root.base_blocks.max(end);
    }

    /// Edits from here on can be taken back, or not. Cost: a copy of each page that is edited.
    pub fn note_before(&mut self, is_noted: bool) {
        self.before = is_noted.then(BTreeMap::new);
    }

    /// Takes back what was edited since they were noted.
    pub fn take_back(&mut self) {
        for (id, (page, is_dirty)) in self.before.take().into_iter().flatten() {
            match page {
                Some(page) => self.pages.insert(id, page),
                None => self.pages.remove(&id),
            };
            self.dirty.remove(&id);
            self.dirty.extend(is_dirty.then_some(id));
        }
    }

    /// What precedes every edit of a page.
    fn note_page(&mut self, id: u64) {
        if let Some(before) = self.before.as_mut() {
            let page = || (self.pages.get(&id).cloned(), self.dirty.contains(&id));
            before.entry(id).or_insert_with(page);
        }
        self.dirty.insert(id);
    }

    fn page_mut(&mut self, id: u64) -> &mut PiecePage {
        self.note_page(id);
        let page = self.pages.get_mut(&id);
        page.unwrap_or_else(|| panic!("page {id} of a list of pieces was not loaded"))
    }

    fn put_page(&mut self, id: u64, page: PiecePage) {
        self.note_page(id);
        self.pages.insert(id, page);
    }

    // ---- removing ---------------------------------------------------------------------------

    /// Takes bytes `from..to` out; both are the start of a block of their piece, or of a piece, or
    /// the end (see [`Pieces::cut`]). O(pages of the range).
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<Piece> {
        let mut removed = Vec::new();
        if from >= to {
            return removed;
        }
        let (start, first) = self.find(from);
        let (last_start, last) = self.find(to - 1);
        self.remove_in(ROOT, 0, start, last_start + last.len_bytes, &mut removed);
        self.lower_root();
        // What was taken too much goes back.
        let (_, after) = split(last, to - last_start);
        let (before, _) = split(first, from - start);
        for piece in after.into_iter().chain(before) {
            self.insert(start, piece);
        }
        if let (Some(piece), Some(after)) = (removed.last_mut(), after) {
            piece.len_bytes -= after.len_bytes;
        }
        if let (Some(piece), Some(before)) = (removed.first_mut(), before) {
            piece.first_block = before.end_block();
            piece.len_bytes -= before.len_bytes;
        }
        removed
    }

    /// Removes in one subtree; returns the bytes that are left. A page without entries goes.
    fn remove_in(
        &mut self,
        id: u64,
        start: u64,
        from: u64,
        to: u64,
        removed: &mut Vec<Piece>,
    ) -> u64 {
        let entries = std::mem::take(&mut self.page_mut(id).entries);
        let level = self.pages[&id].level;
        let mut kept = Vec::with_capacity(entries.len());
        let mut at = start;
        let mut seam = 0;
        for mut entry in entries {
            let end = at + entry.len_bytes;
            if end <= from || to <= at {
                kept.push(entry);
            } else if level == 0 {
                assert!(from <= at && end <= to, "PIECE-3: half a piece");
                removed.push(piece_of(&entry));
            } else {
                entry.len_bytes = self.remove_in(entry.target, at, from, to, removed);
                if entry.len_bytes > 0 {
                    kept.push(entry);
                }
            }
            if at < from {
                seam = kept.len();
            }
            at = end;
        }
        if level > 0 {
            self.merge_children(&mut kept, seam);
        }
        let left = kept.iter().map(|entry| entry.len_bytes).sum();
        if kept.is_empty() && id != ROOT {
            self.pages.remove(&id);
        } else {
            self.page_mut(id).entries = kept;
        }
        left
    }

    /// Makes one page of two neighbours around `seam` where both are in memory and small.
    fn merge_children(&mut self, entries: &mut Vec<PieceEntry>, seam: usize) {
        for at in (seam.saturating_sub(2)..seam + 1).rev() {
            let (Some(left), Some(right)) = (entries.get(at), entries.get(at + 1)) else {
                continue;
            };
            let (left, right) = (left.target, right.target);
            let count = |id| self.pages.get(&id).map(|page| page.entries.len());
            let (Some(some), Some(more)) = (count(left), count(right)) else {
                continue;
            };
            if some + more <= MERGE_ENTRIES_MAX {
                let moved = std::mem::take(&mut self.page_mut(right).entries);
                self.pages.remove(&right);
                self.page_mut(left).entries.extend(moved);
                entries[at].len_bytes += entries.remove(at + 1).len_bytes;
            }
        }
    }

    /// A root with one child takes its place.
    fn lower_root(&mut self) {
        if self.root().entries.is_empty() {
            self.page_mut(ROOT).level = 0;
        }
        while let &[only] = self.root().entries.as_slice() {
            if self.root().level == 0 || !self.pages.contains_key(&only.target) {
                return;
            }
            let child = std::mem::take(self.page_mut(only.target));
            self.pages.remove(&only.target);
            let root = self.page_mut(ROOT);
            (root.level, root.entries) = (child.level, child.entries);
        }
    }

    // ---- inserting --------------------------------------------------------------------------

    /// Puts a piece in at `at`: the start of a block of a piece, or of a piece, or the end. One
    /// that goes on where its neighbour ends is one with it. O(log pieces).
    pub fn insert(&mut self, at: u64, piece: Piece) {
        let Some(sibling) = self.insert_in(ROOT, 0, at, piece) else {
            return;
        };
        let id = self.new_page();
        let root = self.page_mut(ROOT);
        let level = root.level;
        let child = PiecePage {
            level,
            entries: std::mem::take(&mut root.entries),
            ..PiecePage::default()
        };
        root.level = level + 1;
        let first = PieceEntry {
            target: id,
            len_bytes: child.len_bytes(),
        };
        root.entries = vec![first, sibling];
        self.put_page(id, child);
    }

    fn new_page(&mut self) -> u64 {
        let root = self.page_mut(ROOT);
        root.next_page += 1;
        root.next_page - 1
    }

    /// Inserts in one subtree; returns the page that was split off, if one was.
    fn insert_in(&mut self, id: u64, start: u64, at: u64, piece: Piece) -> Option<PieceEntry> {
        let page = self.page_mut(id);
        let mut position = start;
        if page.level == 0 {
            let mut index = 0;
            while index < page.entries.len() && position + page.entries[index].len_bytes <= at {
                position += page.entries[index].len_bytes;
                index += 1;
            }
            if position < at {
                let whole = page.entries[index];
                let (before, after) = split(piece_of(&whole), at - position);
                let parts = before.into_iter().chain(after).map(|part| entry_of(&part));
                page.entries.splice(index..=index, parts);
                index += 1;
            }
            insert_piece(&mut page.entries, index, piece);
        } else {
            let mut index = 0;
            // The first child that ends at or after `at`: a piece is put behind its neighbour.
            while index + 1 < page.entries.len() && position + page.entries[index].len_bytes < at {
                position += page.entries[index].len_bytes;
                index += 1;
            }
            let child = page.entries[index].target;
            let split = self.insert_in(child, position, at, piece);
            let page = self.page_mut(id);
            page.entries[index].len_bytes += piece.len_bytes;
            if let Some(sibling) = split {
                page.entries[index].len_bytes -= sibling.len_bytes;
                page.entries.insert(index + 1, sibling);
            }
        }
        self.split_if_full(id)
    }

    fn split_if_full(&mut self, id: u64) -> Option<PieceEntry> {
        let page = &self.pages[&id];
        let count = page.entries.len();
        if count <= PIECE_PAGE_ENTRIES_MAX {
            return None;
        }
        let level = page.level;
        let target = self.new_page();
        let entries = self.page_mut(id).entries.split_off(count / 2);
        let sibling = PiecePage {
            level,
            entries,
            ..PiecePage::default()
        };
        let len_bytes = sibling.len_bytes();
        self.put_page(target, sibling);
        Some(PieceEntry { target, len_bytes })
    }

    /// Makes byte `at`, inside a block of a piece, the beginning of a piece: the bytes before it
    /// stay where they are, and those from it to the end of its block now lie in base block
    /// `fresh`.
    pub fn cut(&mut self, at: u64, fresh: u64) {
        let (start, piece) = self.find(at);
        let before = at - start;
        let rest = piece.len_bytes - before;
        let moved = rest.min(BLOCK_BYTES - before % BLOCK_BYTES);
        assert!(!before.is_multiple_of(BLOCK_BYTES), "PIECE-1");
        self.remove(start, start + piece.len_bytes);
        let next_block = piece.first_block + before.div_ceil(BLOCK_BYTES);
        let parts = [
            (next_block, rest - moved),
            (fresh, moved),
            (piece.first_block, before),
        ];
        for (first_block, len_bytes) in parts.into_iter().filter(|part| part.1 > 0) {
            self.insert(
                start,
                Piece {
                    first_block,
                    len_bytes,
                },
            );
        }
    }

    // ---- the catalog ------------------------------------------------------------------------

    /// Whether a commit has something to write.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes what the next commit, at least number `seq`, must write: pages with their bytes,
    /// `None` for those that are gone. O(changed pages).
    pub fn take_changes(&mut self, seq: u64) -> Vec<(u64, Option<Vec<u8>>)> {
        if !self.is_dirty() {
            return Vec::new();
        }
        let root = self.page_mut(ROOT);
        root.changed_seq = seq.max(root.changed_seq + 1); // PIECE-5
        std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|id| (id, self.pages.get(&id).map(PiecePage::encode)))
            .collect()
    }

    /// Frees memory: drops pages that the catalog has too, when there are many. Not while a commit
    /// is under way that has taken changes.
    pub fn shrink(&mut self) {
        if self.pages.len() > PAGES_MAX && !self.is_dirty() {
            self.pages.retain(|&id, _| id == ROOT);
        }
    }
}

/// Bytes that lie in a row in the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseRange {
    /// Where, bytes.
    pub offset: u64,
    pub len_bytes: u64,
    /// It reaches the end of its piece: what follows in its last block is zero (`PIECE-4`).
    pub is_tail: bool,
}

impl BaseRange {
    /// The base block after its last.
    pub fn end_block(&self) -> u64 {
        (self.offset + self.len_bytes).div_ceil(BLOCK_BYTES)
    }

    /// Blocks that it touches.
    pub fn block_count(&self) -> u64 {
        self.end_block() - self.offset / BLOCK_BYTES
    }
}

fn piece_of(entry: &PieceEntry) -> Piece {
    Piece {
        first_block: entry.target,
        len_bytes: entry.len_bytes,
    }
}

fn entry_of(piece: &Piece) -> PieceEntry {
    PieceEntry {
        target: piece.first_block,
        len_bytes: piece.len_bytes,
    }
}

/// The first `at` bytes of a piece, and the others; `at` is the start of a block of it, or its end.
fn split(piece: Piece, at: u64) -> (Option<Piece>, Option<Piece>) {
    let rest = piece.len_bytes - at;
    assert!(rest == 0 || at.is_multiple_of(BLOCK_BYTES), "PIECE-1");
    let before = Piece {
        len_bytes: at,
        ..piece
    };
    let after = Piece {
        first_block: piece.first_block + at.div_ceil(BLOCK_BYTES),
        len_bytes: rest,
    };
    ((at > 0).then_some(before), (rest > 0).then_some(after))
}

/// Inserts into a leaf; joins neighbours that go on in the base.
fn insert_piece(entries: &mut Vec<PieceEntry>, index: usize, piece: Piece) {
    entries.insert(index, entry_of(&piece));
    for left in [index, index.wrapping_sub(1)] {
        let (Some(one), Some(next)) = (entries.get(left), entries.get(left.wrapping_add(1))) else {
            continue;
        };
        if piece_of(one).is_followed_by(&piece_of(next)) {
            let next = entries.remove(left + 1);
            entries[left].len_bytes += next.len_bytes;
        }
    }
}

#[cfg(test)]
mod tests;
