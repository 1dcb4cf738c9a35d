//! Plans on generated layouts, compared with what they promise.

use super::*;
use proptest::prelude::*;

const S0: SegmentIndex = SegmentIndex(0);
const AG: u64 = 64;

/// What a stretch of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Live,
    Fixed,
}

/// Maximal holes, movable extents (also beside one another) and what must stay.
#[derive(Debug, Clone, Default)]
struct Layout {
    holes: Vec<Extent>,
    live: Vec<Extent>,
}

fn layout(stretches: &[(Use, u64)]) -> Layout {
    let mut layout = Layout::default();
    let mut free = Holes::new(AG, []);
    let mut at = 0;
    for &(is, len) in stretches {
        let mut left = len;
        while left > 0 {
            let count = left.min(AG - at % AG);
            let extent = Extent::new(S0, at, count);
            match is {
                Use::Free => free.insert(extent),
                Use::Live => layout.live.push(extent),
                Use::Fixed => {}
            }
            at += count;
            left -= count;
        }
    }
    layout.holes = holes_of(&free);
    layout
}

fn holes_of(holes: &Holes) -> Vec<Extent> {
    holes
        .by_start
        .iter()
        .map(|(&key, &len)| hole(key, len))
        .collect()
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let is = prop_oneof![
        4 => Just(Use::Free),
        5 => Just(Use::Live),
        1 => Just(Use::Fixed)
    ];
    prop::collection::vec((is, 1..20u64), 1..40).prop_map(|stretches| layout(&stretches))
}

/// Makes the moves; what was moved is free afterwards. Panics when the plan is not possible.
fn apply(layout: &Layout, plan: &CompactPlan) -> Layout {
    let mut holes = Holes::new(AG, layout.holes.iter().copied());
    let mut live: BTreeSet<Extent> = layout.live.iter().copied().collect();
    for one in &plan.moves {
        assert_eq!(one.from.block_count, one.to.block_count);
        assert!(live.remove(&one.from), "moved twice, or not movable");
        assert_eq!(
            one.to.start_block / AG,
            (one.to.end_block() - 1) / AG,
            "COMPACT-1"
        );
        holes.remove(one.to); // Panics unless all of it was free before: COMPACT-1.
    }
    for one in &plan.moves {
        holes.insert(one.from);
        assert!(live.insert(one.to));
    }
    Layout {
        holes: holes_of(&holes),
        live: live.into_iter().collect(),
    }
}

fn joins(layout: &Layout, moves_max: usize, budget: u64) -> CompactPlan {
    Holes::new(AG, layout.holes.iter().copied()).plan_joins(&layout.live, moves_max, budget)
}

#[test]
fn an_extent_between_two_holes_goes_where_it_fits() {
    use Use::{Fixed, Free, Live};
    let before = layout(&[
        (Free, 9),
        (Live, 4),
        (Free, 8),
        (Fixed, 3),
        (Free, 4),
        (Fixed, 2),
        (Free, 6),
    ]);
    let plan = joins(&before, 9, 100);
    let expected = Move {
        from: before.live[0],
        to: before.holes[2],
    };
    assert_eq!(plan.moves, [expected]);
    assert_eq!(plan.gain, 21 * 21 - 9 * 9 - 8 * 8 - 4 * 4);
    let after = apply(&before, &plan);
    assert_eq!(joins(&after, 9, 100), CompactPlan::default(), "it ends");
}

#[test]
fn an_extent_slides_when_no_hole_takes_it() {
    use Use::{Fixed, Free, Live};
    let before = layout(&[(Fixed, 1), (Free, 6), (Live, 5), (Free, 7), (Fixed, 1)]);
    let after = apply(&before, &joins(&before, 9, 100));
    assert_eq!(after.holes.len(), 1);
    assert_eq!(after.holes[0].block_count, 13);
}

#[test]
fn a_hole_is_made_from_the_cheapest_window() {
    use Use::{Fixed, Free, Live};
    let before = layout(&[
        (Free, 5),
        (Live, 9),
        (Free, 5),
        (Fixed, 1),
        (Free, 6),
        (Live, 2),
        (Free, 5),
        (Fixed, 1),
        (Free, 3),
        (Live, 3),
    ]);
    let holes = Holes::new(AG, before.holes.iter().copied());
    let plan = holes.plan_hole(&before.live, 12, 100).unwrap();
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].from.block_count, 2);
    assert_eq!(plan.moves[0].to.start_block, before.holes[4].start_block);
    let after = apply(&before, &plan);
    assert!(after.holes.iter().any(|hole| hole.block_count == 13));
    assert_eq!(holes.plan_hole(&before.live, 12, 1), None, "the budget");
    assert_eq!(holes.plan_hole(&before.live, AG, 100), None);
}

#[test]
fn the_best_gain_per_block_comes_first() {
    use Use::{Fixed, Free, Live};
    let before = layout(&[
        (Free, 10),
        (Live, 8), // Its move gains more, but 65 for each block.
        (Free, 10),
        (Fixed, 1),
        (Free, 9),
        (Live, 1),
        (Free, 9),
        (Fixed, 1),
        (Free, 8),
        (Fixed, 1),
        (Free, 1),
    ]);
    let expected = Move {
        from: before.live[1],
        to: before.holes[5],
    };
    assert_eq!(joins(&before, 1, 100).moves, [expected]);
}

#[test]
fn plans_are_made_for_the_ags_of_the_format() {
    let extent = |start, count| Extent::new(S0, start, count);
    // The last blocks of an AG and the first of the next, which no hole joins.
    let holes = [
        (0, 6),
        (AG_BLOCKS - 12, 5),
        (AG_BLOCKS - 5, 5),
        (AG_BLOCKS, 20),
    ];
    let holes = holes.map(|(start, count)| extent(start, count));
    let live = [extent(AG_BLOCKS - 7, 2)];
    let plan = plan_hole(holes, &live, 12, 100).expect("five, two and five");
    let expected = Move {
        from: live[0],
        to: extent(0, 2),
    };
    assert_eq!(plan.moves, [expected]);
    assert_eq!(plan_hole(holes, &live, 13, 100), None);
    let slide = Move {
        from: live[0],
        to: extent(AG_BLOCKS - 12, 2),
    };
    assert_eq!(plan_joins(holes, &live, 9, 100).moves, [slide]);
    assert_eq!(plan_joins(holes, &live, 9, 1), CompactPlan::default());
}

proptest! {
    #[test]
    fn joins_keep_their_reservations_and_end(
        layout in any_layout(), moves_max in 1..6usize, budget in 1..60u64
    ) {
        let mut now = layout;
        for round in 0.. {
            let plan = joins(&now, moves_max, budget);
            if plan.moves.is_empty() {
                break;
            }
            prop_assert!(plan.moves.len() <= moves_max && plan.blocks() <= budget);
            let next = apply(&now, &plan);
            let (before, after) = (
                hole_score(now.holes.iter().copied()),
                hole_score(next.holes.iter().copied()),
            );
            prop_assert_eq!(after, before + plan.gain, "COMPACT-2");
            let squares: u128 = plan.moves.iter().map(|one| square(one.from.block_count)).sum();
            prop_assert!(plan.gain >= squares, "a move is worth its copying");
            now = next;
            prop_assert!(round < 500, "COMPACT-2: it does not end");
        }
    }

    #[test]
    fn a_planned_hole_is_there_afterwards(
        layout in any_layout(), wanted in 2..40u64, budget in 1..60u64
    ) {
        let holes = Holes::new(AG, layout.holes.iter().copied());
        if let Some(plan) = holes.plan_hole(&layout.live, wanted, budget) {
            prop_assert!(plan.blocks() <= budget);
            let after = apply(&layout, &plan);
            let largest = after.holes.iter().map(|hole| hole.block_count).max();
            prop_assert!(largest >= Some(wanted));
            let score = hole_score(after.holes.iter().copied());
            prop_assert_eq!(score, holes.score + plan.gain, "COMPACT-2");
            prop_assert!(plan.gain > 0, "COMPACT-2");
        }
    }
}

#[test]
fn the_sixteen_cheapest_windows_are_tried() {
    // What lies in the cheap ones is longer than any hole.
    let cheap = [(Use::Free, 9), (Use::Live, 11), (Use::Fixed, 1)];
    let in_parts = [
        (Use::Free, 8),
        (Use::Live, 4),
        (Use::Live, 4),
        (Use::Live, 4),
    ];
    let plan = |cheap_count: usize| {
        let mut stretches = Vec::new();
        for at in 0..cheap_count {
            stretches.extend(cheap);
            // Three fill an AG but for a block.
            stretches.extend((at % 3 == 2).then_some((Use::Fixed, 1)));
        }
        stretches.push((
            Use::Fixed,
            AG - stretches.iter().map(|one| one.1).sum::<u64>() % AG,
        ));
        stretches.extend(in_parts);
        stretches.push((Use::Fixed, AG - 20));
        let layout = layout(&stretches);
        Holes::new(AG, layout.holes.iter().copied()).plan_hole(&layout.live, 20, 100)
    };
    let moved = plan(15).expect("the sixteenth").blocks();
    assert_eq!(moved, 12);
    assert_eq!(plan(16), None);
}
