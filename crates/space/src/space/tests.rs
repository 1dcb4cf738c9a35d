//! Single rules of space, each by an example.

use super::*;
use crate::error::SpaceError;

const S0: SegmentIndex = SegmentIndex(0);
const AG: u64 = 128;

fn extent(start_block: u64, block_count: u64) -> Extent {
    Extent::new(S0, start_block, block_count)
}

fn small(block_count: u64) -> Space {
    let mut space = Space::with_ag_blocks(AG);
    space.grow_segment(S0, block_count);
    space
}

/// The AGs of the first segment hold exactly these extents.
fn load(space: &mut Space, extents: &[Extent]) {
    for ag_index in 0..space.capacity_blocks().div_ceil(AG) {
        let in_ag = |extent: &&Extent| extent.start_block / AG == ag_index;
        let extents: Vec<Extent> = extents.iter().filter(in_ag).copied().collect();
        let summary = AgSummary {
            used_blocks: extents.iter().map(|extent| extent.block_count).sum(),
            quarantined_blocks: 0,
        };
        space.summarize_ag(S0, ag_index, summary).expect("possible");
        space
            .load_ag(S0, ag_index, &extents)
            .expect("as summarized");
    }
}

/// The next part of a stream of unknown length.
fn streamed(stream: StreamId, after: Option<(SegmentIndex, u64)>) -> Placement {
    Placement::Stream {
        stream,
        after,
        expected_blocks: None,
    }
}

/// Reserves and allocates at once.
fn allocate(space: &mut Space, blocks: u64, placement: Placement) -> Vec<Extent> {
    let mut reservation = space.reserve(blocks, Purpose::Privileged).expect("space");
    space.allocate(&mut reservation, blocks, placement)
}

#[test]
fn an_allocation_never_crosses_an_ag() {
    let mut space = small(3 * AG);
    let pieces = allocate(&mut space, 2 * AG + 5, Placement::Known);
    assert_eq!(
        pieces,
        [extent(0, AG), extent(AG, AG), extent(2 * AG, 5)],
        "SPACE-3"
    );
}

#[test]
fn nothing_is_held_back_of_what_a_long_transaction_was_granted() {
    let mut space = small(640);
    allocate(&mut space, 320, Placement::Known);
    assert_eq!(space.available_blocks(Purpose::Ordinary), 300);
    space.set_granted(320);
    assert_eq!((space.own_blocks(), space.held_back_blocks()), (320, 10));
    assert_eq!(space.available_blocks(Purpose::Ordinary), 310, "SPACE-4");
}

#[test]
fn ordinary_work_stops_at_the_held_back_blocks_and_privileged_does_not() {
    let mut space = small(320);
    assert_eq!(space.held_back_blocks(), 10);
    let refused = space.reserve(311, Purpose::Ordinary).expect_err("SPACE-4");
    assert_eq!(refused.available_blocks, 310);
    assert!(
        refused
            .to_string()
            .contains("311 blocks wanted, 310 available")
    );
    let all_ordinary = space
        .reserve(310, Purpose::Ordinary)
        .expect("all but the held back");
    assert!(space.reserve(1, Purpose::Ordinary).is_err(), "SPACE-4");
    let rest = space
        .reserve(10, Purpose::Privileged)
        .expect("held back for this");
    assert!(space.reserve(1, Purpose::Privileged).is_err(), "SPACE-6");
    space.forfeit(all_ordinary);
    space.forfeit(rest);
    assert_eq!(space.reserved_blocks(), 0);
}

#[test]
fn quarantined_blocks_are_not_reused_before_their_release() {
    let mut space = small(AG);
    let [a] = allocate(&mut space, AG, Placement::Known)[..] else {
        panic!("one piece")
    };
    space.quarantine(a.slice(10, 20));
    assert!(space.reserve(1, Purpose::Privileged).is_err(), "SPACE-5");
    space.release(a.slice(10, 5));
    space.release(a.slice(25, 5));
    assert_eq!(
        allocate(&mut space, 10, Placement::Known),
        [extent(10, 5), extent(25, 5)],
        "SPACE-5"
    );
    space.assert_valid();
}

#[test]
#[should_panic(expected = "SPACE-2")]
fn a_free_block_cannot_be_retired() {
    small(AG).quarantine(extent(0, 1));
}

/// Its AG has eight blocks in use, which do not hide it.
#[test]
#[should_panic(expected = "is quarantined, but free")]
fn a_free_block_cannot_be_retired_in_the_place_of_another() {
    let mut space = small(AG);
    allocate(&mut space, 8, Placement::Known);
    space.quarantine(extent(8, 1));
}

#[test]
#[should_panic(expected = "is quarantined, but free")]
fn a_block_of_a_soft_region_cannot_be_retired() {
    let mut space = small(AG);
    allocate(&mut space, 8, streamed(StreamId(0), None));
    space.quarantine(extent(8, 1));
}

#[test]
#[should_panic(expected = "is revived, but free")]
fn a_free_block_cannot_be_revived_in_the_place_of_another() {
    let mut space = small(AG);
    let pieces = allocate(&mut space, 8, Placement::Known);
    space.quarantine(pieces[0]);
    space.revive(extent(8, 1));
}

#[test]
#[should_panic(expected = "holes touch")]
fn holes_that_touch_are_a_bug() {
    let mut space = small(AG);
    let used = AgSummary {
        used_blocks: AG - 10,
        quarantined_blocks: 0,
    };
    space.summarize_ag(S0, 0, used).expect("possible");
    let key = space.free.ags.grid.key_of(S0, 0);
    space.free.ags.load(key, &[(0, 5), (5, 5)]);
    space.assert_valid();
}

#[test]
#[should_panic(expected = "SPACE-2")]
fn a_block_cannot_be_retired_twice() {
    let mut space = small(AG);
    let pieces = allocate(&mut space, 8, Placement::Known);
    space.quarantine(pieces[0]);
    space.quarantine(pieces[0].slice(7, 1));
}

#[test]
#[should_panic(expected = "SPACE-2")]
fn an_allocated_block_cannot_be_released() {
    let mut space = small(AG);
    let pieces = allocate(&mut space, 8, Placement::Known);
    space.release(pieces[0]);
}

#[test]
fn loading_refuses_what_the_catalog_cannot_mean() {
    let mut space = small(200);
    let summary = |used_blocks, quarantined_blocks| AgSummary {
        used_blocks,
        quarantined_blocks,
    };
    space.summarize_ag(S0, 1, summary(21, 4)).expect("possible");
    assert!(!space.is_loaded(S0, 1));
    assert_eq!(
        (space.allocated_blocks(), space.quarantined_blocks()),
        (17, 4)
    );
    for impossible in [summary(73, 0), summary(5, 6), summary(u64::MAX, 0)] {
        let refused = space.summarize_ag(S0, 1, impossible);
        assert!(matches!(refused, Err(SpaceError::SummaryDiffers { .. })));
    }
    let nowhere = SpaceError::NoAg {
        segment: S0,
        ag_index: 2,
    };
    assert_eq!(space.summarize_ag(S0, 2, summary(1, 0)), Err(nowhere));
    let cut_off = space.summarize_ag(S0, 2, summary(0, 0));
    assert_eq!(cut_off, Ok(()), "its row outlives it");
    let mut refuse = |extents: &[Extent], error: SpaceError| {
        assert_eq!(space.load_ag(S0, 1, extents), Err(error));
    };
    let twice = extent(AG + 8, 4);
    refuse(&[twice, extent(AG, 9)], SpaceError::InUse(twice));
    let elsewhere = extent(0, 21);
    refuse(&[elsewhere], SpaceError::OutOfRange(elsewhere));
    for far in [extent(199, 2), extent(u64::MAX, 5)] {
        refuse(&[far], SpaceError::OutOfRange(far));
    }
    let crossing = extent(AG - 1, 2);
    refuse(&[crossing], SpaceError::CrossesAg(crossing));
    let differs = SpaceError::SummaryDiffers {
        segment: S0,
        ag_index: 1,
        extent_blocks: 20,
        summary_blocks: 21,
    };
    refuse(&[extent(AG, 20)], differs);
    assert!(!space.is_loaded(S0, 1));
    space
        .load_ag(S0, 1, &[extent(AG + 9, 12), extent(AG, 9)])
        .expect("as summarized");
    assert_eq!(space.holes().last(), Some(extent(AG + 21, 51)));
    space.assert_valid();
}

#[test]
fn known_ags_are_reserved_from_and_loaded_when_needed() {
    let mut space = small(3 * AG);
    space.free.ags.window_ags = 1;
    space.set_memory_bytes_max(0);
    assert!((0..3).all(|ag| !space.is_loaded(S0, ag)), "SPACE-10");
    let mut reservation = space.reserve(3 * AG, Purpose::Privileged).expect("free");
    assert_eq!(space.find_wanted_ag(0, Placement::Known), None);
    assert_eq!(space.find_wanted_ag(100, Placement::Known), Some((S0, 2)));
    space.load_ag(S0, 2, &[]).expect("empty");
    assert_eq!(space.find_wanted_ag(100, Placement::Known), None);
    let all = space.find_wanted_ag(AG, Placement::Known);
    assert_eq!(all, None, "just enough is loaded");
    let first = space.allocate(&mut reservation, 100, Placement::Known);
    assert_eq!(first, [extent(2 * AG, 100)]);
    let next = space.find_wanted_ag(100, Placement::Known);
    assert_eq!(next, Some((S0, 1)), "28 blocks would split it");
    space.load_ag(S0, 1, &[]).expect("empty");
    assert!(space.is_loaded(S0, 2), "SPACE-10: not committed");
    space.settle();
    assert!(!space.is_loaded(S0, 2), "SPACE-10");
    let wanted = space.find_wanted_ag(2 * AG, Placement::Known);
    assert!(wanted.is_some(), "SPACE-6: not enough is loaded");
    space.forfeit(reservation);
    space.assert_valid();
}

#[test]
fn loaded_ags_take_memory_by_their_holes() {
    let mut space = small(2 * AG);
    assert_eq!(space.loaded_bytes(), 2 * (512 + 64));
    load(&mut space, &[extent(10, 5), extent(20, 5)]);
    assert_eq!(space.loaded_bytes(), 2 * (512 + 64) + 2 * 64);
}

#[test]
fn sixteen_ags_are_loaded_in_the_hope_of_a_fit_and_no_more() {
    let ag_count = 20;
    let mut space = small(ag_count * AG);
    space.free.ags.window_ags = 1;
    space.set_memory_bytes_max(0);
    let half = AgSummary {
        used_blocks: AG / 2,
        quarantined_blocks: 0,
    };
    for ag_index in 0..ag_count {
        space.summarize_ag(S0, ag_index, half).expect("possible");
    }
    // Every other block is in use, which only loading tells.
    let every_other = |ag_index| -> Vec<Extent> {
        let blocks = (0..AG / 2).map(|pair| extent(ag_index * AG + 2 * pair, 1));
        blocks.collect()
    };
    // The sixteen are remembered to have short holes.
    for hopeful in [16, 4] {
        let below = Target::Below(S0, ag_count * AG);
        assert!(space.find_wanted_ag_for(60, below).is_some());
        let mut loads = 0;
        while let Some((segment, ag_index)) = space.find_wanted_ag(60, Placement::Known) {
            let extents = every_other(ag_index);
            space
                .load_ag(segment, ag_index, &extents)
                .expect("as summarized");
            loads += 1;
        }
        assert_eq!(loads, hopeful, "SPACE-10");
        assert_eq!(space.find_wanted_ag_for(60, below), None);
        let used = allocate(&mut space, 1, Placement::Known);
        space.quarantine(used[0]);
        space.release(used[0]);
        space.settle();
        space.assert_valid();
    }
}

#[test]
fn a_full_ag_is_not_loaded() {
    let mut space = small(2 * AG);
    let full = AgSummary {
        used_blocks: AG,
        quarantined_blocks: 0,
    };
    space.summarize_ag(S0, 0, full).expect("possible");
    assert_eq!(space.find_wanted_ag_for(1, Target::At(S0, 5)), None);
    space.summarize_ag(S0, 1, full).expect("possible");
    assert_eq!(space.find_wanted_ag(1, Placement::Known), None);
}

#[test]
fn a_stream_is_loaded_where_it_goes_on() {
    let mut space = small(3 * AG);
    space.free.ags.window_ags = 1;
    space.set_memory_bytes_max(0);
    let used = AgSummary {
        used_blocks: 100,
        quarantined_blocks: 0,
    };
    space.summarize_ag(S0, 0, used).expect("possible");
    let at_end = streamed(StreamId(7), Some((S0, 100)));
    assert_eq!(space.find_wanted_ag(20, at_end), Some((S0, 0)));
    space
        .load_ag(S0, 0, &[extent(0, 100)])
        .expect("as summarized");
    assert_eq!(space.find_wanted_ag(20, at_end), None, "it fits there");
    assert_eq!(allocate(&mut space, 20, at_end), [extent(100, 20)]);
    space.settle();
    assert!(space.is_loaded(S0, 0), "SPACE-10: it has a soft region");
    space.end_stream(StreamId(7));
    space.settle();
    assert!(!space.is_loaded(S0, 0), "SPACE-10");
    let below = Target::Below(S0, AG);
    assert_eq!(space.find_wanted_ag_for(8, below), Some((S0, 0)));
    assert_eq!(space.find_wanted_ag_for(9, below), None);
    let at = Target::At(S0, AG + 1);
    assert_eq!(space.find_wanted_ag_for(9, at), Some((S0, 1)));
}

#[test]
fn interleaved_streams_do_not_fragment_each_other() {
    let mut space = Space::new();
    space.grow_segment(S0, 4 * AG_BLOCKS);
    let mut written: [Vec<Extent>; 4] = Default::default();
    for _ in 0..100 {
        for (stream, extents) in written.iter_mut().enumerate() {
            let after = extents.last().map(|last: &Extent| (S0, last.end_block()));
            extents.extend(allocate(
                &mut space,
                64,
                streamed(StreamId(stream as u64), after),
            ));
        }
    }
    for extents in &written {
        let fragments = 1 + extents
            .windows(2)
            .filter(|pair| !pair[0].is_followed_by(&pair[1]))
            .count();
        assert!(
            fragments <= 3,
            "25 MiB by 256 KiB beside three others: {fragments} fragments"
        );
    }
    assert!(space.free.streams.regions().count() > 0);
    for stream in 0..4 {
        space.end_stream(StreamId(stream));
    }
    assert_eq!(space.free.streams.regions().count(), 0);
    space.assert_valid();
}

#[test]
fn a_soft_region_gives_way() {
    let mut space = small(AG);
    allocate(&mut space, 40, streamed(StreamId(0), None));
    assert_eq!(
        space.free.streams.find_region(StreamId(0)),
        Some(extent(40, 80))
    );
    assert_eq!(
        allocate(&mut space, 60, Placement::Known),
        [extent(40, 60)],
        "SPACE-7: no split"
    );
    assert_eq!(space.free.streams.find_region(StreamId(0)), None);
    assert_eq!(
        allocate(&mut space, 28, Placement::Known),
        [extent(100, 28)],
        "SPACE-7: no spurious refusal"
    );
}

#[test]
fn a_moved_extent_takes_of_a_soft_region_what_lies_below() {
    let mut space = small(AG);
    allocate(&mut space, 40, streamed(StreamId(0), None));
    let mut reservation = space.reserve(11, Purpose::Privileged).expect("space");
    let below = Target::Below(S0, 50);
    assert_eq!(space.allocate_whole(&mut reservation, 11, below), None);
    let place = space.allocate_whole(&mut reservation, 10, below);
    assert_eq!(place, Some(extent(40, 10)), "SPACE-7");
    space.forfeit(reservation);
    space.assert_valid();
}

#[test]
fn a_stream_goes_on_through_the_region_of_another_rather_than_split() {
    let mut space = small(AG);
    let first = StreamId(0);
    allocate(&mut space, 10, streamed(first, None));
    let other = allocate(&mut space, 10, streamed(StreamId(1), None));
    assert_eq!(other, [extent(30, 10)], "behind the region of the first");
    space.quarantine(other[0]);
    space.release(other[0]);
    let next = allocate(&mut space, 40, streamed(first, Some((S0, 10))));
    assert_eq!(next, [extent(10, 40)], "SPACE-7");
    assert_eq!(space.free.streams.find_region(StreamId(1)), None);
}

#[test]
fn an_announced_length_decides_hole_and_region() {
    let mut space = small(3 * AG);
    // Holes of 128 (AG 0), 40 and 60 blocks.
    let used = [extent(AG, 20), extent(AG + 60, 68), extent(2 * AG + 60, 68)];
    load(&mut space, &used);
    let announced = |stream, after| Placement::Stream {
        stream: StreamId(stream),
        after,
        expected_blocks: Some(36),
    };
    let first = allocate(&mut space, 6, announced(0, None));
    assert_eq!(first, [extent(AG + 20, 6)], "best fit for all 36");
    assert_eq!(
        space.free.streams.find_region(StreamId(0)),
        Some(extent(AG + 26, 30))
    );
    let rest = allocate(&mut space, 30, announced(0, Some((S0, AG + 26))));
    assert_eq!(rest, [extent(AG + 26, 30)]);
    assert_eq!(
        space.free.streams.find_region(StreamId(0)),
        None,
        "nothing is to come"
    );
    let longer = allocate(&mut space, 1, announced(0, Some((S0, AG + 56))));
    assert_eq!(longer, [extent(AG + 56, 1)]);
    assert!(
        space.free.streams.find_region(StreamId(0)).is_some(),
        "longer than announced"
    );
    space.assert_valid();
}

#[test]
fn a_moved_extent_goes_below_or_beside_and_is_never_split() {
    let mut space = small(2 * AG);
    let used = [(0, 10), (18, 10), (33, 90), (AG, 100)];
    load(&mut space, &used.map(|(start, count)| extent(start, count)));
    // Holes: 10..18, 28..33, 123..128, AG+100..AG+128.
    let mut reservation = space.reserve(46, Purpose::Privileged).expect("space");
    let mut place = |blocks, target| space.allocate_whole(&mut reservation, blocks, target);
    assert_eq!(place(9, Target::Below(S0, AG + 100)), None, "no split");
    assert_eq!(
        place(5, Target::Below(S0, 31)),
        Some(extent(10, 5)),
        "28..31 is too short"
    );
    assert_eq!(
        place(3, Target::Below(S0, 31)),
        Some(extent(15, 3)),
        "of equal ones the lowest"
    );
    assert_eq!(
        place(3, Target::Below(S0, 31)),
        Some(extent(28, 3)),
        "the part below"
    );
    assert_eq!(place(2, Target::At(S0, 32)), None, "the hole is too short");
    assert_eq!(place(2, Target::At(S0, 124)), Some(extent(124, 2)));
    assert_eq!(place(1, Target::Anywhere), Some(extent(123, 1)));
    assert_eq!(place(9, Target::Anywhere), Some(extent(AG + 100, 9)));
    assert_eq!(place(1, Target::Below(S0, 0)), None);
    assert_eq!(reservation.blocks(), 46 - 23);
    space.forfeit(reservation);
    space.assert_valid();
}

#[test]
fn a_closed_ag_need_not_be_loaded_but_a_cut_one_stays() {
    let mut space = small(3 * AG);
    space.free.ags.window_ags = 1;
    space.set_memory_bytes_max(0);
    let cut = SpaceError::NotLoaded {
        segment: S0,
        ag_index: 1,
    };
    assert_eq!(space.close_from(S0, AG + 10), Err(cut.clone()));
    space.close_from(S0, AG).expect("spare");
    assert_eq!(space.shrink_segment(S0, AG + 10), Err(cut));
    assert_eq!(space.aside_blocks(), 2 * AG, "SPACE-9");
    space.load_ag(S0, 1, &[]).expect("empty");
    space.close_from(S0, AG + 10).expect("spare");
    allocate(&mut space, 10, Placement::Known);
    space.settle();
    assert!(space.is_loaded(S0, 1), "SPACE-10");
    assert_eq!(space.find_wanted_ag(AG, Placement::Known), Some((S0, 0)));
    space.shrink_segment(S0, AG + 20).expect("set aside");
    space.assert_valid();
    space.grow_segment(S0, 4 * AG);
    assert_eq!(space.aside_blocks(), 0, "a segment that grows is open");
    space.assert_valid();
}

#[test]
#[should_panic(expected = "load an AG before a part of it is closed")]
fn a_part_of_a_known_ag_cannot_be_closed() {
    let mut space = small(AG);
    space.set_memory_bytes_max(0);
    space.free.ags.set_closed_from(S0, 10);
}

#[test]
fn a_closed_ag_may_be_forgotten() {
    let mut space = small(2 * AG);
    space.close_from(S0, AG).expect("spare");
    assert!(space.is_loaded(S0, 1));
    space.set_memory_bytes_max(0);
    assert!(!space.is_loaded(S0, 1), "SPACE-10");
    space.assert_valid();
}

#[test]
fn a_segment_may_be_closed_from_further_on() {
    let mut space = small(3 * AG);
    space.close_from(S0, AG).expect("spare");
    space.close_from(S0, 2 * AG).expect("spare");
    assert_eq!(space.aside_blocks(), AG, "SPACE-9");
    let empty = AgSummary::default();
    assert_eq!(space.summarize_ag(S0, 1, empty), Ok(()));
    assert_eq!((space.free_blocks(), space.aside_blocks()), (3 * AG, 0));
    space.assert_valid();
}

#[test]
fn a_closed_part_takes_nothing_and_can_be_cut_off() {
    let mut space = small(2 * AG);
    let high = extent(AG, 10);
    load(&mut space, &[extent(0, 100), high]);
    space.close_from(S0, AG).expect("spare");
    assert_eq!(space.aside_blocks(), AG - 10, "SPACE-9");
    assert_eq!(space.available_blocks(Purpose::Privileged), 28, "SPACE-9");
    space.quarantine(high);
    let in_use = SpaceError::CannotShrink {
        segment: S0,
        block_count: AG,
        used_blocks: 10,
    };
    assert_eq!(space.shrink_segment(S0, AG), Err(in_use));
    space.release(high);
    assert_eq!(
        (space.free_blocks(), space.aside_blocks()),
        (28, AG),
        "SPACE-9"
    );
    space.assert_valid();
    space.shrink_segment(S0, AG + 20).expect("set aside");
    let open = space.shrink_segment(S0, AG - 1).expect_err("open");
    assert_eq!(
        open.to_string(),
        "segment 0 cannot shrink to 127 blocks: 1 blocks behind that are in use or open"
    );
    space.reopen(S0);
    assert_eq!(space.free_blocks(), 48);
    assert!(space.shrink_segment(S0, AG).is_err(), "open");
    let reservation = space.reserve(40, Purpose::Ordinary).expect("space");
    let refused = SpaceError::CannotClose {
        segment: S0,
        block: AG + 12,
        free_blocks: 8,
        spare_blocks: 4,
    };
    assert_eq!(
        space.close_from(S0, AG + 12),
        Err(refused),
        "SPACE-4, SPACE-6"
    );
    space.forfeit(reservation);
    space.close_from(S0, AG).expect("spare");
    space.shrink_segment(S0, AG).expect("set aside");
    assert_eq!(space.capacity_blocks(), AG);
    space.assert_valid();
}

#[test]
fn a_segment_can_end_right_where_it_is_closed() {
    let mut space = small(2 * AG);
    space.close_from(S0, AG + 20).expect("spare");
    space.shrink_segment(S0, AG + 20).expect("set aside");
    space.assert_valid();
    let holes: Vec<Extent> = space.holes().collect();
    assert_eq!(holes, [extent(0, AG), extent(AG, 20)]);
    assert_eq!(space.aside_blocks(), 0, "SPACE-9");
}

#[test]
fn ags_are_unloaded_until_an_eighth_of_the_memory_is_unused() {
    let ag_count = 16;
    let mut space = small(ag_count * AG);
    let bytes = space.loaded_bytes();
    let loaded = |space: &Space| (0..ag_count).filter(|ag| space.is_loaded(S0, *ag)).count();
    space.set_memory_bytes_max(bytes);
    assert_eq!(loaded(&space), 16, "all of it may be used");
    space.set_memory_bytes_max(bytes - 1);
    assert_eq!(
        loaded(&space),
        13,
        "SPACE-10: 14 are more than seven eighths"
    );
    space.assert_valid();
}
