//! An aging simulation. The large ones are in `examples/scale.rs`.

use super::model_tests::Random;
use super::*;

/// [CIDR07]'s workload: uniform sizes, safe-write replacement of random objects, 90 % full.
#[test]
fn objects_stay_in_one_piece_to_storage_age_4() {
    let mut random = Random(0x5eed_1a2d_e200_0001);
    let mut space = Space::new();
    let capacity = 5 * AG_BLOCKS;
    space.grow_segment(SegmentIndex(0), capacity);
    let mut size = || 1280 + random.below(2561); // 5–15 MB
    let mut place = |space: &mut Space| {
        let blocks = size();
        let mut reservation = space
            .reserve(blocks, Purpose::Ordinary)
            .expect("10 % are free");
        space.allocate(&mut reservation, blocks, Placement::Known)
    };
    let mut objects: Vec<Vec<Extent>> = Vec::new();
    while space.allocated_blocks() < capacity / 10 * 9 {
        objects.push(place(&mut space));
    }
    let mut random = Random(0x5eed_1a2d_e200_0002);
    let mut in_quarantine: Vec<Extent> = Vec::new();
    for _ in 0..4 * objects.len() {
        let at = random.below(objects.len() as u64) as usize;
        let old = std::mem::replace(&mut objects[at], place(&mut space));
        for extent in in_quarantine.drain(..) {
            space.release(extent); // The commit before this one is durable.
        }
        for &extent in &old {
            space.quarantine(extent);
        }
        in_quarantine = old;
    }
    space.assert_valid();
    let fragments = objects.iter().map(Vec::len).sum::<usize>() as f64 / objects.len() as f64;
    println!(
        "{} objects, {fragments:.4} fragments per object",
        objects.len()
    );
    assert!(
        fragments <= 1.05,
        "{fragments} fragments per object at storage age 4"
    );
}
