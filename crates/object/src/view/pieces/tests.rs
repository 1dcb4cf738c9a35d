//! The list against an array of base bytes, and what an edit costs.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::convert::Infallible;

/// Where the stored pages are.
type Stored = HashMap<u64, Vec<u8>>;

fn load(pieces: &mut Pieces, stored: &Stored, from: u64, to: u64) {
    pieces
        .load(from, to, |id| {
            let page = stored
                .get(&id)
                .map(|bytes| PiecePage::decode(bytes).unwrap());
            Ok::<_, Infallible>(page)
        })
        .unwrap();
}

/// Commits, and forgets everything but the root; returns how many rows were written.
fn commit(pieces: &mut Pieces, stored: &mut Stored, seq: u64) -> usize {
    let before = pieces.changed_seq();
    let changes = pieces.take_changes(seq);
    assert!(
        changes.is_empty() || pieces.changed_seq() > before,
        "PIECE-5"
    );
    for (id, bytes) in &changes {
        match bytes {
            Some(bytes) => stored.insert(*id, bytes.clone()),
            None => stored.remove(id),
        };
    }
    *pieces = Pieces::from_root(PiecePage::decode(&stored[&ROOT]).unwrap());
    changes.len()
}

/// The base offset of every byte of the object.
fn flatten(pieces: &Pieces) -> Vec<u64> {
    pieces
        .translate(0, pieces.len_bytes())
        .iter()
        .flat_map(|range| range.offset..range.offset + range.len_bytes)
        .collect()
}

/// Every page but those of the tree is gone, and every invariant holds.
fn assert_whole(pieces: &Pieces, stored: &Stored) {
    let mut used = BTreeSet::new();
    let mut blocks = BTreeSet::new();
    let mut pending = vec![(ROOT, pieces.len_bytes(), None)];
    while let Some((id, len, level)) = pending.pop() {
        used.insert(id);
        let page = &pieces.pages[&id];
        assert_eq!(page.len_bytes(), len, "PIECE-3");
        assert!(level.is_none_or(|level| page.level + 1 == level), "PIECE-3");
        assert!(page.entries.len() <= PIECE_PAGE_ENTRIES_MAX);
        assert!(id == ROOT || !page.entries.is_empty());
        for entry in &page.entries {
            if page.level > 0 {
                pending.push((entry.target, entry.len_bytes, Some(page.level)));
                continue;
            }
            let piece = piece_of(entry);
            assert!(piece.end_block() <= pieces.base_blocks(), "PIECE-2");
            for block in piece.first_block..piece.end_block() {
                assert!(blocks.insert(block), "PIECE-1: {block} twice");
            }
        }
    }
    let kept: BTreeSet<u64> = stored.keys().copied().collect();
    assert_eq!(kept, used, "pages that nobody refers to");
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64, u64),
    Delete(u64, u64),
    Move(u64, u64, u64),
    Extend(u64),
    Commit,
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![3 => 1..200u64, 2 => 4090..4100u64, 1 => 1..40_000u64];
    prop_oneof![
        6 => (any::<u64>(), len()).prop_map(|(at, len)| Op::Insert(at, len)),
        2 => (any::<u64>(), len()).prop_map(|(at, len)| Op::Delete(at, len)),
        2 => (any::<u64>(), len(), any::<u64>()).prop_map(|(at, len, to)| Op::Move(at, len, to)),
        1 => len().prop_map(Op::Extend),
        1 => Just(Op::Commit),
    ]
}

/// As the engine does it: `at` becomes the start of a block, and the model follows.
fn cut(pieces: &mut Pieces, stored: &Stored, model: &mut [u64], at: u64) {
    load(pieces, stored, at, at);
    if at == pieces.len_bytes() {
        return;
    }
    let (start, piece) = pieces.find(at);
    let before = at - start;
    if before.is_multiple_of(BLOCK_BYTES) {
        return;
    }
    let fresh = pieces.take_base(1);
    pieces.cut(at, fresh);
    let moved = (piece.len_bytes - before).min(BLOCK_BYTES - before % BLOCK_BYTES);
    for i in 0..moved {
        model[(at + i) as usize] = fresh * BLOCK_BYTES + i;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_list_behaves_like_an_array(
        size in 1..30_000u64,
        ops in prop::collection::vec(op(), 1..400),
    ) {
        let mut pieces = Pieces::new_whole(size);
        let mut model: Vec<u64> = (0..size).collect();
        let mut stored = Stored::new();
        for (step, op) in ops.into_iter().enumerate() {
            let len_now = model.len() as u64;
            match op {
                Op::Insert(at, len) => {
                    let at = at % (len_now + 1);
                    cut(&mut pieces, &stored, &mut model, at);
                    let first_block = pieces.take_base(len.div_ceil(BLOCK_BYTES));
                    pieces.insert(at, Piece { first_block, len_bytes: len });
                    let base = first_block * BLOCK_BYTES;
                    model.splice(at as usize..at as usize, base..base + len);
                }
                Op::Delete(at, len) if len_now > 1 => {
                    let at = at % len_now;
                    // Never all of it: then the engine drops the list.
                    let end = (at + len).min(len_now).min(at + len_now - 1);
                    cut(&mut pieces, &stored, &mut model, at);
                    cut(&mut pieces, &stored, &mut model, end);
                    load(&mut pieces, &stored, at, end);
                    let gone = pieces.remove(at, end);
                    let gone: u64 = gone.iter().map(|piece| piece.len_bytes).sum();
                    prop_assert_eq!(gone, end - at);
                    model.drain(at as usize..end as usize);
                }
                Op::Move(at, len, to) if len_now > 1 => {
                    let at = at % len_now;
                    let len = len.min(len_now - at);
                    let to = to % (len_now - len + 1);
                    let target = if to > at { to + len } else { to };
                    for at in [at, at + len, target] {
                        cut(&mut pieces, &stored, &mut model, at);
                    }
                    load(&mut pieces, &stored, at, at + len);
                    let moved = pieces.remove(at, at + len);
                    for piece in moved.into_iter().rev() {
                        pieces.insert(to, piece);
                    }
                    let moved: Vec<u64> = model.drain(at as usize..(at + len) as usize).collect();
                    model.splice(to as usize..to as usize, moved);
                }
                Op::Extend(len) => {
                    load(&mut pieces, &stored, len_now, len_now);
                    for range in pieces.extension(len_now + len) {
                        model.extend(range.offset..range.offset + range.len_bytes);
                    }
                    pieces.extend(len_now + len);
                }
                Op::Commit => {
                    commit(&mut pieces, &mut stored, step as u64);
                }
                Op::Delete(..) | Op::Move(..) => {}
            }
            prop_assert_eq!(pieces.len_bytes(), model.len() as u64, "PIECE-3");
        }
        commit(&mut pieces, &mut stored, 1000);
        load(&mut pieces, &stored, 0, model.len() as u64);
        assert_whole(&pieces, &stored);
        prop_assert_eq!(flatten(&pieces), model);
    }
}

/// A list of `count` pieces of one byte, committed.
fn long_list(count: u64) -> (Pieces, Stored) {
    let (mut pieces, mut stored) = (Pieces::new_whole(0), Stored::new());
    for at in 0..count {
        let first_block = pieces.take_base(1);
        pieces.insert(
            at,
            Piece {
                first_block,
                len_bytes: 1,
            },
        );
    }
    commit(&mut pieces, &mut stored, 1);
    (pieces, stored)
}

/// What an edit in the middle of a long list reads and writes: one path, whatever the length.
#[test]
fn an_edit_touches_a_path() {
    let (mut pieces, mut stored) = long_list(100_000);
    assert!(stored.len() > 800, "{} pages", stored.len());
    let mut read = 0;
    pieces
        .load(50_000, 50_000, |id| {
            read += 1;
            Ok::<_, Infallible>(Some(PiecePage::decode(&stored[&id]).unwrap()))
        })
        .unwrap();
    let first_block = pieces.take_base(1);
    pieces.insert(
        50_000,
        Piece {
            first_block,
            len_bytes: 1,
        },
    );
    let written = commit(&mut pieces, &mut stored, 2);
    assert!(
        read <= 6 && written <= 5,
        "{read} pages read, {written} written"
    );
}

/// What is left of a long list is as small as what it says.
#[test]
fn a_list_shrinks_when_pieces_go() {
    let (mut pieces, mut stored) = long_list(20_000);
    for at in 0..19_990 {
        load(&mut pieces, &stored, at % 7, at % 7 + 1);
        pieces.remove(at % 7, at % 7 + 1);
    }
    commit(&mut pieces, &mut stored, 2);
    load(&mut pieces, &stored, 0, 10);
    assert_whole(&pieces, &stored);
    assert_eq!((pieces.len_bytes(), stored.len()), (10, 1));
}

#[test]
fn pages_of_two_moments_are_not_put_together() {
    let (mut old, stored) = long_list(1000);
    let (mut new, mut changed) = (Pieces::from_root(old.root().clone()), stored);
    load(&mut new, &changed, 500, 501);
    new.remove(500, 501);
    commit(&mut new, &mut changed, 9);
    let outcome = old.load(0, 1000, |id| {
        Ok::<_, Infallible>(
            changed
                .get(&id)
                .map(|bytes| PiecePage::decode(bytes).unwrap()),
        )
    });
    assert!(matches!(outcome, Err(LoadError::Torn(_))), "PIECE-3");
    assert_ne!(old.changed_seq(), new.changed_seq(), "PIECE-5");
}

#[test]
fn a_list_that_says_nothing_is_known() {
    let mut pieces = Pieces::new_whole(10_000);
    assert!(pieces.is_identity());
    pieces.take_base(1);
    pieces.cut(5000, 3);
    assert!(!pieces.is_identity());
    let gone = pieces.remove(5000, 10_000);
    assert_eq!(gone.len(), 2);
    assert!(pieces.is_identity());
    pieces.remove(0, 5000);
    assert!(pieces.is_identity());
}
