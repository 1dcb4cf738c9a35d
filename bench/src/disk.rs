//! What a layout means: fragments, and the time that a disk with an arm would need.
//!
//! A *fragment* is a physically contiguous run of an object's content in logical order. Extents
//! that follow one another on the device are one fragment, also across allocation groups; another
//! segment begins another fragment. Large objects count like small ones.
//!
//! The disk turns 7200 times a minute: a seek takes 0.8 ms to the next track and 8.5 ms on average,
//! by the square root of the distance; then half a turn, 4.17 ms; then 160 MB/s. It is as large as
//! what is in use.

use larder_testkit::Rng;

use super::setting::shuffle;
use super::sides::Layout;

const BLOCK_BYTES: f64 = 4096.0;
const SEEK_MS_MIN: f64 = 0.8;
const SEEK_MS_MEAN: f64 = 8.5;
/// The mean of √|x − y| for x, y uniform in 0..1.
const ROOT_MEAN: f64 = 8.0 / 15.0;
const ROTATION_MS: f64 = 4.17;
const BYTES_PER_MS: f64 = 160_000.0;

/// Fragments per object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fragments {
    /// Mean.
    pub mean: f64,
    /// 99th percentile.
    pub p99: usize,
    /// The worst object's.
    pub max: usize,
}

/// Counts them.
pub fn fragments(layouts: &[Layout]) -> Fragments {
    let mut counts: Vec<usize> = layouts.iter().map(|layout| runs(layout).len()).collect();
    counts.sort_unstable();
    let at = (counts.len() * 99).div_ceil(100).saturating_sub(1);
    Fragments {
        mean: counts.iter().sum::<usize>() as f64 / counts.len() as f64,
        p99: counts.get(at).copied().unwrap_or(0),
        max: counts.last().copied().unwrap_or(0),
    }
}

/// MB/s of the disk when it reads all objects whole in random order.
pub fn modelled_mb_per_s(layouts: &[Layout]) -> f64 {
    let span = layouts
        .iter()
        .flatten()
        .map(|extent| extent.end_block())
        .max()
        .unwrap_or(0);
    let segments = layouts
        .iter()
        .flatten()
        .map(|extent| u64::from(extent.segment.0) + 1)
        .max()
        .unwrap_or(0);
    let disk_blocks = (span * segments).max(1) as f64;
    let mut order: Vec<&Layout> = layouts.iter().collect();
    shuffle(&mut order, &mut Rng::new(1));
    let (mut head, mut ms, mut bytes) = (0, 0.0, 0.0);
    for layout in order {
        for (segment, from, to) in runs(layout) {
            let place = u64::from(segment) * span + from;
            if place != head {
                let distance = place.abs_diff(head) as f64 / disk_blocks;
                ms += SEEK_MS_MIN + (SEEK_MS_MEAN - SEEK_MS_MIN) / ROOT_MEAN * distance.sqrt();
                ms += ROTATION_MS;
            }
            let len = (to - from) as f64 * BLOCK_BYTES;
            ms += len / BYTES_PER_MS;
            bytes += len;
            head = place + (to - from);
        }
    }
    bytes / 1e3 / ms
}

/// Segment, first block, block after the last.
fn runs(layout: &Layout) -> Vec<(u32, u64, u64)> {
    let mut runs: Vec<(u32, u64, u64)> = Vec::new();
    for extent in layout {
        let segment = extent.segment.0;
        match runs.last_mut() {
            Some(last) if (last.0, last.2) == (segment, extent.start_block) => {
                last.2 = extent.end_block();
            }
            _ => runs.push((segment, extent.start_block, extent.end_block())),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::format::{Extent, SegmentIndex};

    fn layout(runs: &[(u64, u64)]) -> Layout {
        let extent = |&(from, count)| Extent::new(SegmentIndex(0), from, count);
        runs.iter().map(extent).collect()
    }

    #[test]
    fn extents_that_follow_one_another_are_one_fragment() {
        let whole = layout(&[(10, 5), (15, 5), (20, 5)]);
        let split = layout(&[(40, 5), (30, 5), (35, 5)]);
        let found = fragments(&[whole, split]);
        assert_eq!(
            found,
            Fragments {
                mean: 1.5,
                p99: 2,
                max: 2
            }
        );
    }

    #[test]
    fn pieces_cost_the_disk_an_arm_movement_each() {
        let whole: Vec<Layout> = (0..100).map(|i| layout(&[(1 + i * 250, 244)])).collect();
        let split: Vec<Layout> = (0..100)
            .map(|i| layout(&[(1 + i * 250, 122), (1 + (99 - i) * 250 + 125, 122)]))
            .collect();
        let (fast, slow) = (modelled_mb_per_s(&whole), modelled_mb_per_s(&split));
        // 1 MB: 6.25 ms of transfer and one or two of about 12.7 ms.
        assert!((40.0..70.0).contains(&fast), "{fast}");
        assert!((25.0..40.0).contains(&slow), "{slow}");
    }
}
