//! Streams of unknown final length, and the soft regions held for them.
//!
//! A region is taken out of the set of open holes while it is held, so that nobody else's best fit
//! sees it; it goes back whole when it is stolen or no longer needed (`SPACE-7`). This is only the
//! book of who holds what; [`crate::Space`] moves the blocks.

use std::collections::BTreeMap;

use larder_format::Extent;

use crate::address::Address;

/// Part of an AG that a region holds at least, where it can: 16 MiB of 1 GiB. At most it is an AG.
const REGION_MIN_DIVISOR: u64 = 64;

/// A stream of content whose final length is not known. The caller chooses the number, one per open
/// stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct Streams {
    ag_blocks: u64,
    by_id: BTreeMap<StreamId, Stream>,
    by_start: BTreeMap<Address, (u64, StreamId)>,
}

#[derive(Debug, Default)]
struct Stream {
    allocated_blocks: u64,
    region: Option<Extent>,
}

impl Streams {
    /// No streams yet.
    pub fn new(ag_blocks: u64) -> Streams {
        Streams {
            ag_blocks,
            by_id: BTreeMap::new(),
            by_start: BTreeMap::new(),
        }
    }

    /// All regions by address.
    pub fn regions(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_start
            .iter()
            .map(|(&start, &(len, _))| region(start, len))
    }

    /// The region of a stream.
    pub fn find_region(&self, stream: StreamId) -> Option<Extent> {
        self.by_id.get(&stream).and_then(|stream| stream.region)
    }

    /// The region that begins at `address`.
    pub fn find_starting_at(&self, address: Address) -> Option<Extent> {
        self.by_start
            .get(&address)
            .map(|&(len, _)| region(address, len))
    }

    /// The regions that share a block with `extent`. O(log streams + regions found).
    pub fn find_overlapping(&self, extent: &Extent) -> Vec<Extent> {
        // Regions are disjoint, so from the end backwards none follows the first that is too low.
        self.by_start
            .range(..Address::end_of(extent))
            .rev()
            .map(|(&start, &(len, _))| region(start, len))
            .take_while(|region| region.overlaps(extent))
            .collect()
    }

    /// Counts blocks that a stream has been given, and returns how many a region should hold for it
    /// from now on.
    pub fn record(&mut self, stream: StreamId, blocks: u64, expected: Option<u64>) -> u64 {
        let wanted = self.blocks_to_come(stream, blocks, expected);
        self.by_id.entry(stream).or_default().allocated_blocks += blocks;
        wanted
    }

    /// How many blocks a region should hold once the stream has `blocks` more: the rest of the
    /// `expected` whole length; where that is not known or passed, twice what it has, within
    /// bounds.
    pub fn blocks_to_come(&self, stream: StreamId, blocks: u64, expected: Option<u64>) -> u64 {
        let before = self.by_id.get(&stream);
        let allocated = before.map_or(0, |stream| stream.allocated_blocks) + blocks;
        if let Some(rest) = expected.and_then(|expected| expected.checked_sub(allocated)) {
            return rest.min(self.ag_blocks);
        }
        let least = (self.ag_blocks / REGION_MIN_DIVISOR).max(1);
        allocated.saturating_mul(2).clamp(least, self.ag_blocks)
    }

    /// Enters `extent` as the region of a stream that has none.
    pub fn hold(&mut self, stream: StreamId, extent: Extent) {
        let previous = self.by_id.entry(stream).or_default().region.replace(extent);
        assert_eq!(previous, None, "a stream has one region");
        self.by_start
            .insert(Address::start_of(&extent), (extent.block_count, stream));
    }

    /// Strikes the region out; its stream has none then.
    pub fn release(&mut self, region: Extent) {
        let Some((_, stream)) = self.by_start.remove(&Address::start_of(&region)) else {
            panic!("{region} is not a soft region");
        };
        let struck = self
            .by_id
            .get_mut(&stream)
            .and_then(|stream| stream.region.take());
        assert_eq!(struck, Some(region), "the two books of regions agree");
    }

    /// Forgets a stream whose region has been released.
    pub fn forget(&mut self, stream: StreamId) {
        let stream = self.by_id.remove(&stream);
        assert!(
            stream.is_none_or(|stream| stream.region.is_none()),
            "release the region first"
        );
    }
}

fn region(start: Address, block_count: u64) -> Extent {
    Extent::new(start.segment, start.block, block_count)
}
