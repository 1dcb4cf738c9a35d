//! The extent map of an object, one page at a time.
//!
//! A map page covers [`MAP_PAGE_BLOCKS`] logical blocks from `page × MAP_PAGE_BLOCKS` on and holds
//! the *runs* in it: logical blocks that lie contiguously on one segment, each with its checksum.
//! Logical blocks in no run are holes and read as zero. A page without runs is not stored.
//!
//! Encoding (little-endian):
//!
//! ```text
//! offset  size  field
//!      0     1  version = 1
//!      1     1  zero
//!      2     2  run_count, 1..=2048
//!      4  20×n  runs: logical_block u16 (in the page) · zero u16 · block_count u32
//!               · segment u32 · start_block u64
//!      …   4×m  checksums: one CRC-32C per block, in logical order
//!   last     4  CRC-32C of everything before it
//! ```
//!
//! Where several objects have the same page, one copy of it stands beside the maps, and a
//! *reference* in its place in each:
//!
//! ```text
//! offset  size  field
//!      0     1  version = 2
//!      1     1  zero
//!      2     8  number of the page
//!     10     4  CRC-32C of everything before it
//! ```
//!
//! A reference has [`MAP_REFERENCE_BYTES`], fewer than any page.
//!
//! # Invariants
//! * `MAP-1` Runs are sorted, do not overlap in logical space, and stay inside the page.
//! * `MAP-2` Two neighbouring runs that are contiguous both logically and physically, in one
//!   allocation group, are one run; a run never crosses a group, as extents never do.
//! * `MAP-3` A run has exactly one checksum per block.

use crate::DecodeError;
use crate::checksum::{Checksum, crc32c};
use crate::extent::Extent;
use crate::limits::{MAP_PAGE_BLOCKS, MAP_REFERENCE_BYTES};
use crate::units::SegmentIndex;

const VERSION: u8 = 1;
const REFERENCE_VERSION: u8 = 2;
const HEAD_BYTES: usize = 4;
const RUN_BYTES: usize = 20;

// The length tells a reference from a page.
const _: () = assert!(MAP_REFERENCE_BYTES < HEAD_BYTES + RUN_BYTES + 4 + 4);

/// Contiguous logical blocks that lie contiguously on one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapRun {
    /// First logical block, counted from the start of the page.
    pub logical_block: u64,
    /// Where the blocks lie.
    pub extent: Extent,
    /// One per block (`MAP-3`).
    pub checksums: Vec<Checksum>,
}

impl MapRun {
    /// The logical block after the last, counted from the start of the page.
    pub fn logical_end(&self) -> u64 {
        self.logical_block + self.extent.block_count
    }

    /// The part of this run inside logical blocks `from..to` (page-relative), if any.
    pub fn clip(&self, from: u64, to: u64) -> Option<MapRun> {
        let low = self.logical_block.max(from);
        let high = self.logical_end().min(to);
        if low >= high {
            return None;
        }
        let skip = low - self.logical_block;
        let count = high - low;
        Some(MapRun {
            logical_block: low,
            extent: self.extent.slice(skip, count),
            checksums: self.checksums[skip as usize..(skip + count) as usize].to_vec(),
        })
    }
}

/// The runs of one page of an extent map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapPage {
    runs: Vec<MapRun>,
}

impl MapPage {
    /// The runs in logical order.
    pub fn runs(&self) -> &[MapRun] {
        &self.runs
    }

    /// Whether the page maps nothing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The run that holds logical block `block` (page-relative), if it is mapped. O(log runs).
    pub fn find_run(&self, block: u64) -> Option<&MapRun> {
        let at = self.runs.partition_point(|run| run.logical_end() <= block);
        self.runs.get(at).filter(|run| run.logical_block <= block)
    }

    /// Unmaps logical blocks `from..to` (page-relative) and returns the extents they lay on.
    /// O(runs).
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut removed = Vec::new();
        if from >= to {
            return removed;
        }
        let first = self.runs.partition_point(|run| run.logical_end() <= from);
        let last = self.runs.partition_point(|run| run.logical_block < to);
        if first >= last {
            return removed;
        }
        let mut kept = Vec::with_capacity(2);
        for run in &self.runs[first..last] {
            kept.extend(run.clip(0, from));
            removed.extend(run.clip(from, to).map(|cut| cut.extent));
            kept.extend(run.clip(to, MAP_PAGE_BLOCKS));
        }
        self.runs.splice(first..last, kept);
        self.assert_valid();
        removed
    }

    /// Maps `run`, and returns the extents of what it replaces. O(runs).
    pub fn insert(&mut self, run: MapRun) -> Vec<Extent> {
        assert_eq!(run.checksums.len() as u64, run.extent.block_count, "MAP-3");
        assert!(run.logical_end() <= MAP_PAGE_BLOCKS, "MAP-1");
        let replaced = self.remove(run.logical_block, run.logical_end());
        let mut at = self
            .runs
            .partition_point(|other| other.logical_block < run.logical_block);
        if self.runs.capacity() == 0 {
            self.runs.reserve_exact(1); // Most files have one run, and many are in memory.
        }
        self.runs.insert(at, run);
        if at > 0 && self.merges_with_next(at - 1) {
            at -= 1;
            self.merge_with_next(at);
        }
        if self.merges_with_next(at) {
            self.merge_with_next(at);
        }
        self.assert_valid();
        replaced
    }

    fn merges_with_next(&self, at: usize) -> bool {
        match (self.runs.get(at), self.runs.get(at + 1)) {
            (Some(run), Some(next)) => {
                run.logical_end() == next.logical_block
                    && run.extent.is_followed_by(&next.extent)
                    && run.extent.ag_index() == next.extent.ag_index()
            }
            _ => false,
        }
    }

    fn merge_with_next(&mut self, at: usize) {
        let next = self.runs.remove(at + 1);
        let run = &mut self.runs[at];
        run.extent.block_count += next.extent.block_count;
        run.checksums.extend(next.checksums);
    }

    fn assert_valid(&self) {
        debug_assert!(
            self.runs
                .windows(2)
                .all(|w| w[0].logical_end() <= w[1].logical_block),
            "MAP-1"
        );
    }

    /// The page's bytes. Cost ≈ 1 µs per MiB of content.
    pub fn encode(&self) -> Vec<u8> {
        let block_count: usize = self.runs.iter().map(|run| run.checksums.len()).sum();
        let mut out =
            Vec::with_capacity(HEAD_BYTES + RUN_BYTES * self.runs.len() + 4 * block_count + 4);
        out.extend([VERSION, 0]);
        out.extend((self.runs.len() as u16).to_le_bytes());
        for run in &self.runs {
            out.extend((run.logical_block as u16).to_le_bytes());
            out.extend([0, 0]);
            out.extend((run.extent.block_count as u32).to_le_bytes());
            out.extend(run.extent.segment.0.to_le_bytes());
            out.extend(run.extent.start_block.to_le_bytes());
        }
        for checksum in self.runs.iter().flat_map(|run| &run.checksums) {
            out.extend(checksum.to_le_bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        out
    }

    /// Reads a page's bytes; any damage is refused (`FORMAT-2`).
    pub fn decode(bytes: &[u8]) -> Result<MapPage, DecodeError> {
        let refuse = |why: String| DecodeError {
            what: "map page",
            why,
        };
        let Some((body, tail)) = bytes.split_last_chunk::<4>() else {
            return Err(refuse(format!("{} bytes are too few", bytes.len())));
        };
        let (expected, found) = (u32::from_le_bytes(*tail), crc32c(body));
        if expected != found {
            return Err(refuse(format!(
                "checksum expected {expected:08x}, found {found:08x}"
            )));
        }
        if let Ok(MapReference(number)) = MapReference::decode(bytes) {
            return Err(refuse(format!("shared page {number} is missing")));
        }
        if body.len() < HEAD_BYTES || body[0] != VERSION || body[1] != 0 {
            return Err(refuse(format!(
                "version expected {VERSION}, found {:?}",
                body.first()
            )));
        }
        let run_count = usize::from(u16::from_le_bytes([body[2], body[3]]));
        let Some(run_bytes) = body.get(HEAD_BYTES..HEAD_BYTES + run_count * RUN_BYTES) else {
            return Err(refuse(format!(
                "{run_count} runs do not fit in {} bytes",
                body.len()
            )));
        };
        let mut checksums = body[HEAD_BYTES + run_count * RUN_BYTES..].chunks_exact(4);
        let mut runs = Vec::with_capacity(run_count);
        let mut logical_min = 0;
        for raw in run_bytes.chunks_exact(RUN_BYTES) {
            let logical_block = u64::from(u16::from_le_bytes([raw[0], raw[1]]));
            let block_count = u64::from(u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]));
            let segment = u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]);
            let mut start = [0; 8];
            start.copy_from_slice(&raw[12..20]);
            let start_block = u64::from_le_bytes(start);
            if block_count == 0
                || logical_block < logical_min
                || logical_block + block_count > MAP_PAGE_BLOCKS
                || start_block.checked_add(block_count).is_none()
            {
                return Err(refuse(format!(
                    "run at {logical_block} of {block_count} blocks is out of place"
                )));
            }
            logical_min = logical_block + block_count;
            let sums: Vec<Checksum> = checksums
                .by_ref()
                .take(block_count as usize)
                .map(|raw| u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]))
                .collect();
            if sums.len() as u64 != block_count {
                return Err(refuse("checksums are missing".into()));
            }
            let extent = Extent::new(SegmentIndex(segment), start_block, block_count);
            runs.push(MapRun {
                logical_block,
                extent,
                checksums: sums,
            });
        }
        if checksums.next().is_some() || !checksums.remainder().is_empty() {
            return Err(refuse("bytes are left over".into()));
        }
        Ok(MapPage { runs })
    }
}

/// Stands for a page that several objects have: its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapReference(pub u64);

impl MapReference {
    /// The bytes.
    pub fn encode(self) -> [u8; MAP_REFERENCE_BYTES] {
        let mut out = [0; MAP_REFERENCE_BYTES];
        out[0] = REFERENCE_VERSION;
        out[2..10].copy_from_slice(&self.0.to_le_bytes());
        let checksum = crc32c(&out[..10]);
        out[10..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads the bytes; anything else than a whole reference is refused (`FORMAT-2`).
    pub fn decode(bytes: &[u8]) -> Result<MapReference, DecodeError> {
        let refuse = || DecodeError {
            what: "map reference",
            why: format!("{} bytes are none", bytes.len()),
        };
        let whole: &[u8; MAP_REFERENCE_BYTES] = bytes.try_into().map_err(|_| refuse())?;
        let mut number = [0; 8];
        number.copy_from_slice(&whole[2..10]);
        let reference = MapReference(u64::from_le_bytes(number));
        match reference.encode() == *whole {
            true => Ok(reference),
            false => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(logical: u64, segment: u32, start: u64, count: u64) -> MapRun {
        MapRun {
            logical_block: logical,
            extent: Extent::new(SegmentIndex(segment), start, count),
            checksums: (0..count).map(|i| (start + i) as u32 ^ segment).collect(),
        }
    }

    /// The model: for every logical block of the page, where it lies.
    fn flatten(page: &MapPage) -> Vec<Option<(u32, u64, u32)>> {
        let mut model = vec![None; MAP_PAGE_BLOCKS as usize];
        for run in page.runs() {
            for i in 0..run.extent.block_count {
                let slot = &mut model[(run.logical_block + i) as usize];
                assert!(slot.is_none());
                *slot = Some((
                    run.extent.segment.0,
                    run.extent.start_block + i,
                    run.checksums[i as usize],
                ));
            }
        }
        model
    }

    #[test]
    fn neighbours_merge_in_any_order() {
        for order in [
            [0, 2, 4],
            [0, 4, 2],
            [2, 0, 4],
            [2, 4, 0],
            [4, 0, 2],
            [4, 2, 0],
        ] {
            let mut page = MapPage::default();
            for logical in order {
                page.insert(run(logical, 0, 100 + logical, 2));
            }
            assert_eq!(page.runs(), [run(0, 0, 100, 6)], "MAP-2: {order:?}");
        }
    }

    #[test]
    fn neighbours_in_two_allocation_groups_stay_two() {
        let mut page = MapPage::default();
        page.insert(run(0, 0, crate::limits::AG_BLOCKS - 2, 2));
        page.insert(run(2, 0, crate::limits::AG_BLOCKS, 2));
        assert_eq!(page.runs().len(), 2, "MAP-2");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "MAP-1")]
    fn runs_that_overlap_are_a_bug() {
        let runs = vec![run(0, 0, 100, 3), run(2, 0, 200, 2)];
        MapPage { runs }.assert_valid();
    }

    #[test]
    fn a_page_is_empty_once_its_last_run_is_removed() {
        let mut page = MapPage::default();
        assert!(page.is_empty());
        page.insert(run(5, 0, 100, 2));
        assert!(!page.is_empty());
        page.remove(5, 7);
        assert!(page.is_empty());
    }

    /// The checksum of a page is right, whatever it says.
    fn seal(mut body: Vec<u8>) -> Vec<u8> {
        body.extend(crc32c(&body).to_le_bytes());
        body
    }

    #[test]
    fn sealed_nonsense_is_refused() {
        let mut page = MapPage::default();
        page.insert(run(7, 1, 9, 3));
        page.insert(run(MAP_PAGE_BLOCKS - 2, 1, 90, 2));
        let whole = page.encode();
        let good = &whole[..whole.len() - 4];
        assert_eq!(MapPage::decode(&seal(good.to_vec())), Ok(page));
        let second = HEAD_BYTES + RUN_BYTES;
        for (at, bytes, why) in [
            (0, &[3][..], "version"),
            (1, &[1], "version"),
            (2, &[9], "do not fit"),
            (HEAD_BYTES + 4, &[0], "out of place"), // Without blocks.
            (second, &[9, 0], "out of place"),      // In the first run.
            (second, &[0xff, 7], "out of place"),   // Across the end of the page.
            (second + 12, &[0xff; 8], "out of place"), // Across the end of all numbers.
            (HEAD_BYTES + 4, &[4], "missing"),
            (HEAD_BYTES + 4, &[2], "left over"),
        ] {
            let mut bad = good.to_vec();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let refused = MapPage::decode(&seal(bad)).expect_err("FORMAT-2");
            assert!(refused.why.contains(why), "{refused}, not: {why}");
        }
        for len in 0..HEAD_BYTES {
            let refused = MapPage::decode(&seal(good[..len].to_vec())).expect_err("FORMAT-2");
            assert!(refused.why.contains("version"), "{refused}");
        }
        let uneven = [good, &[0]].concat();
        let refused = MapPage::decode(&seal(uneven)).expect_err("FORMAT-2");
        assert!(refused.why.contains("left over"), "{refused}");
    }

    proptest! {
        #[test]
        fn a_page_behaves_like_an_array(
            ops in prop::collection::vec(
                (any::<bool>(), 0..2048u64, 1..300u64, 0..3u32, 0..5000u64),
                1..40,
            )
        ) {
            let mut page = MapPage::default();
            let mut model: Vec<Option<(u32, u64, u32)>> = vec![None; MAP_PAGE_BLOCKS as usize];
            for (is_insert, logical, count, segment, start) in ops {
                let count = count.min(MAP_PAGE_BLOCKS - logical);
                let at = logical as usize..(logical + count) as usize;
                let expected: u64 = model[at.clone()].iter().flatten().count() as u64;
                let gone = if is_insert {
                    page.insert(run(logical, segment, start, count))
                } else {
                    page.remove(logical, logical + count)
                };
                prop_assert_eq!(gone.iter().map(|e| e.block_count).sum::<u64>(), expected);
                for (i, slot) in model[at].iter_mut().enumerate() {
                    let block = start + i as u64;
                    *slot = is_insert.then_some((segment, block, block as u32 ^ segment));
                }
                prop_assert_eq!(&flatten(&page), &model);
                prop_assert_eq!(MapPage::decode(&page.encode()), Ok(page.clone()), "FORMAT-3");
                for probe in [logical, logical + count - 1, 0, 2047] {
                    let is_mapped = model[probe as usize].is_some();
                    prop_assert_eq!(page.find_run(probe).is_some(), is_mapped);
                }
            }
        }

        #[test]
        fn damage_is_refused(at in 0usize..60, bit in 0u8..8) {
            let mut page = MapPage::default();
            page.insert(run(7, 1, 9, 3));
            let mut bytes = page.encode();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(MapPage::decode(&bytes).is_err(), "FORMAT-2");
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if bytes.len() > 8 {
                let split = bytes.len() - 4;
                let sum = crc32c(&bytes[..split]).to_le_bytes();
                bytes[split..].copy_from_slice(&sum);
            }
            let _ = MapPage::decode(&bytes);
            let _ = MapReference::decode(&bytes);
        }

        #[test]
        fn a_reference_is_no_page(
            number in any::<u64>(),
            at in 0..MAP_REFERENCE_BYTES,
            bit in 0u8..8,
        ) {
            let mut bytes = MapReference(number).encode();
            prop_assert_eq!(MapReference::decode(&bytes), Ok(MapReference(number)), "FORMAT-3");
            let missing = MapPage::decode(&bytes).unwrap_err().to_string();
            prop_assert_eq!(missing, format!("map page: shared page {number} is missing"));
            bytes[at] ^= 1 << bit;
            prop_assert!(MapReference::decode(&bytes).is_err(), "FORMAT-2");
            prop_assert!(MapPage::decode(&bytes).is_err(), "FORMAT-2");
        }
    }
}
