//! Where long reads and writes have begun: what was just written, or is read again, is kept in
//! memory.
//!
//! A long read that goes to the device directly costs less than half of the processor time and
//! takes nothing from what the page cache keeps, so whoever reads much once, as a copy does, goes
//! past it. What is read a second time is likely to be read a third time: the second reading goes
//! through the page cache, and the third finds there what it left. New content is written through
//! the page cache, where its first reading finds it.
//!
//! # Words
//! A *place* is [`PLACE_BYTES`] of a device. It is *read* when a long read has begun in it, and
//! *kept* when the page cache has had it, since this process has written it directly.
//! Of places that lie [`SLOT_COUNT`] apart the one is known that was read last.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shorter than the shortest long read: those that follow each other begin in different places.
const PLACE_BYTES: u64 = 128 << 10;
/// Places of 1 GiB.
const SLOT_COUNT: u64 = 8192;

/// Which places are read and kept; 32 KiB. Threads that read the same place at once may count as
/// one, which costs speed and nothing else.
#[derive(Debug)]
pub(crate) struct ReadPlaces {
    /// By place, modulo their number: 0 of nothing, or which of those places it is, from 1 on, and
    /// in the lowest bit whether it is kept.
    slots: Box<[AtomicU32]>,
}

impl Default for ReadPlaces {
    fn default() -> ReadPlaces {
        ReadPlaces {
            slots: (0..SLOT_COUNT).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl ReadPlaces {
    /// A long read begins at `offset_bytes` of what is not in memory; whether it is the first one
    /// there, or what was kept has been evicted.
    pub(crate) fn note(&self, offset_bytes: u64) -> bool {
        let (slot, read) = self.slot_of(offset_bytes / PLACE_BYTES);
        let is_first = slot.load(Ordering::Relaxed) != read;
        slot.store(read | u32::from(!is_first), Ordering::Relaxed);
        is_first
    }

    /// `bytes` were left in memory. Cost: O(places).
    pub(crate) fn keep(&self, bytes: Range<u64>) {
        for place in bytes.start / PLACE_BYTES..bytes.end.div_ceil(PLACE_BYTES) {
            let (slot, read) = self.slot_of(place);
            slot.store(read | 1, Ordering::Relaxed);
        }
    }

    /// Whether what a long read of `offset_bytes` brings was left in memory; it may have been
    /// evicted.
    pub(crate) fn is_kept(&self, offset_bytes: u64) -> bool {
        let (slot, read) = self.slot_of(offset_bytes / PLACE_BYTES);
        slot.load(Ordering::Relaxed) == read | 1
    }

    /// Nothing of `bytes` is in memory any more. Cost: O(places), 8192 at most.
    pub(crate) fn forget(&self, bytes: Range<u64>) {
        let places = bytes.start / PLACE_BYTES..bytes.end.div_ceil(PLACE_BYTES);
        for place in places.clone().take(SLOT_COUNT as usize) {
            let (slot, _) = self.slot_of(place);
            let turn = u64::from(slot.load(Ordering::Relaxed) >> 1);
            let known = turn
                .checked_sub(1)
                .map(|turn| turn * SLOT_COUNT + place % SLOT_COUNT);
            if known.is_some_and(|known| places.contains(&known)) {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The slot of a place, and what it holds when the place is read and not kept.
    fn slot_of(&self, place: u64) -> (&AtomicU32, u32) {
        // A segment has 4 TiB at most: 4096 turns.
        let turn = (place / SLOT_COUNT + 1) as u32;
        (&self.slots[(place % SLOT_COUNT) as usize], turn << 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_from_the_second_reading_on_until_it_is_written() {
        let places = ReadPlaces::default();
        let all = [0, 1, 63, 64, SLOT_COUNT - 1, 3 * SLOT_COUNT + 7];
        for offset in all.map(|place| place * PLACE_BYTES) {
            assert!(places.note(offset) && !places.is_kept(offset));
            assert!(!places.note(offset + PLACE_BYTES - 1) && places.is_kept(offset));
            // Who asks has not found it in memory.
            assert!(
                places.note(offset) && !places.is_kept(offset + 1),
                "it was evicted"
            );
            assert!(!places.note(offset) && places.is_kept(offset + 1));
        }
        let kept = || all.map(|place| places.is_kept(place * PLACE_BYTES));
        places.forget(PLACE_BYTES..64 * PLACE_BYTES);
        assert_eq!(kept(), [true, false, false, true, true, true]);
        // The last byte of the one, and the first of another.
        places.forget(PLACE_BYTES - 1..PLACE_BYTES);
        places.forget(64 * PLACE_BYTES..64 * PLACE_BYTES + 1);
        assert_eq!(kept(), [false, false, false, false, true, true]);
        // From somewhere in another turn on.
        places.forget(SLOT_COUNT * PLACE_BYTES..u64::MAX);
        assert_eq!(kept(), [false, false, false, false, true, false]);
        assert!(places.note(PLACE_BYTES), "it begins anew");
    }

    #[test]
    fn what_is_written_through_memory_is_kept() {
        let places = ReadPlaces::default();
        places.keep(3 * PLACE_BYTES - 1..4 * PLACE_BYTES + 1);
        let kept = [1, 2, 3, 4, 5].map(|place| places.is_kept(place * PLACE_BYTES));
        assert_eq!(kept, [false, true, true, true, false]);
        places.forget(0..3 * PLACE_BYTES);
        assert!(!places.is_kept(2 * PLACE_BYTES) && places.is_kept(3 * PLACE_BYTES));
    }

    #[test]
    fn a_first_reading_is_the_first_however_much_was_read_before() {
        let places = ReadPlaces::default();
        for _ in 0..2 {
            for place in (0..3 * SLOT_COUNT).step_by(4) {
                assert!(places.note(place * PLACE_BYTES), "{place}");
            }
        }
        assert!(!places.note(3 * SLOT_COUNT * PLACE_BYTES - 4 * PLACE_BYTES));
    }
}
