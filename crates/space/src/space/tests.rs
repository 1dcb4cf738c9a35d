//! Single rules of space, each by an example.

use super::*;

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
    assert_eq!(space.mark_allocated(extent(10, 20)), Ok(()));
    let in_use = extent(29, 5);
    assert_eq!(space.mark_allocated(in_use), Err(SpaceError::InUse(in_use)));
    let around = extent(5, 50);
    assert_eq!(space.mark_allocated(around), Err(SpaceError::InUse(around)));
    for far in [
        extent(199, 2),
        extent(u64::MAX - 1, 1),
        extent(u64::MAX, 5),
        Extent::new(SegmentIndex(1), 0, 1),
    ] {
        assert_eq!(space.mark_allocated(far), Err(SpaceError::OutOfRange(far)));
    }
    let crossing = extent(120, 10);
    assert_eq!(
        space.mark_allocated(crossing),
        Err(SpaceError::CrossesAg(crossing))
    );
    let promise = space.reserve(175, Purpose::Privileged).expect("space");
    assert!(matches!(
        space.mark_allocated(extent(30, 6)),
        Err(SpaceError::Overcommitted {
            missing_blocks: 1,
            ..
        })
    ));
    space.forfeit(promise);
    space.assert_valid();
    assert_eq!(space.allocated_blocks(), 20);
}

#[test]
fn a_reload_refuses_a_list_that_contradicts_itself() {
    let mut space = small(200);
    allocate(&mut space, 50, Placement::Known);
    let before: Vec<Extent> = space.holes().collect();
    let twice = extent(8, 4);
    assert_eq!(
        space.reload_ag(S0, 0, &[twice, extent(0, 9)]),
        Err(SpaceError::InUse(twice))
    );
    let elsewhere = extent(AG, 4);
    assert_eq!(
        space.reload_ag(S0, 0, &[elsewhere]),
        Err(SpaceError::OutOfRange(elsewhere))
    );
    assert_eq!(space.holes().collect::<Vec<_>>(), before);
    assert_eq!(space.reload_ag(S0, 1, &[extent(199, 1)]), Ok(()));
    space.assert_valid();
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
    assert!(space.streams.held_blocks() > 0);
    for stream in 0..4 {
        space.end_stream(StreamId(stream));
    }
    assert_eq!(space.streams.held_blocks(), 0);
    space.assert_valid();
}

#[test]
fn a_soft_region_gives_way() {
    let mut space = small(AG);
    allocate(&mut space, 40, streamed(StreamId(0), None));
    assert_eq!(space.streams.find_region(StreamId(0)), Some(extent(40, 80)));
    assert_eq!(
        allocate(&mut space, 60, Placement::Known),
        [extent(40, 60)],
        "SPACE-7: no split"
    );
    assert_eq!(space.streams.find_region(StreamId(0)), None);
    assert_eq!(
        allocate(&mut space, 28, Placement::Known),
        [extent(100, 28)],
        "SPACE-7: no spurious refusal"
    );
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
    assert_eq!(space.streams.find_region(StreamId(1)), None);
}

#[test]
fn an_announced_length_decides_hole_and_region() {
    let mut space = small(3 * AG);
    // Holes of 128 (AG 0), 40 and 60 blocks.
    space.mark_allocated(extent(AG, 20)).expect("free");
    space.mark_allocated(extent(AG + 60, 68)).expect("free");
    space.mark_allocated(extent(2 * AG + 60, 68)).expect("free");
    let announced = |stream, after| Placement::Stream {
        stream: StreamId(stream),
        after,
        expected_blocks: Some(36),
    };
    let first = allocate(&mut space, 6, announced(0, None));
    assert_eq!(first, [extent(AG + 20, 6)], "best fit for all 36");
    assert_eq!(
        space.streams.find_region(StreamId(0)),
        Some(extent(AG + 26, 30))
    );
    let rest = allocate(&mut space, 30, announced(0, Some((S0, AG + 26))));
    assert_eq!(rest, [extent(AG + 26, 30)]);
    assert_eq!(
        space.streams.find_region(StreamId(0)),
        None,
        "nothing is to come"
    );
    let longer = allocate(&mut space, 1, announced(0, Some((S0, AG + 56))));
    assert_eq!(longer, [extent(AG + 56, 1)]);
    assert!(
        space.streams.find_region(StreamId(0)).is_some(),
        "longer than announced"
    );
    space.assert_valid();
}

#[test]
fn a_moved_extent_goes_below_or_beside_and_is_never_split() {
    let mut space = small(2 * AG);
    for (start, count) in [(0, 10), (18, 10), (33, 90), (AG, 100)] {
        space.mark_allocated(extent(start, count)).expect("free");
    }
    // Holes: 10..18, 28..33, 123..128, AG+100..AG+128.
    let mut promise = space.reserve(46, Purpose::Privileged).expect("space");
    let mut place = |blocks, target| space.allocate_whole(&mut promise, blocks, target);
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
    assert_eq!(promise.blocks(), 46 - 23);
    space.forfeit(promise);
    space.assert_valid();
}

#[test]
fn a_closed_part_takes_nothing_and_can_be_cut_off() {
    let mut space = small(2 * AG);
    let high = extent(AG, 10);
    space.mark_allocated(extent(0, 100)).expect("free");
    space.mark_allocated(high).expect("free");
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
    let promise = space.reserve(40, Purpose::Ordinary).expect("space");
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
    space.forfeit(promise);
    space.close_from(S0, AG).expect("spare");
    space.shrink_segment(S0, AG).expect("set aside");
    assert_eq!(space.capacity_blocks(), AG);
    space.assert_valid();
}
