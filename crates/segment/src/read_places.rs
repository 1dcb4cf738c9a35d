//! Where long reads have begun: who reads the same again finds it in memory.
//!
//! A long read that goes to the device directly costs less than a fifth of the processor time and
//! takes nothing from what the page cache keeps, so whoever reads all of a database once, as a scan
//! or a backup does, goes past it. What is read a second time is likely to be read a third time:
//! that reading goes through the page cache, and what it leaves there serves the next ones.
//!
//! # Words
//! A *place* is [`PLACE_BYTES`] of a device. It is *read* when a long read has begun in it since it
//! was written last. Places that lie [`PLACE_COUNT`] apart share one bit, which may be taken for
//! each other's: that costs speed, and nothing else.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shorter than the shortest long read, so that two of them do not begin in one place.
const PLACE_BYTES: u64 = 128 << 10;
/// Those of 1 GiB.
const PLACE_COUNT: u64 = 8192;
const WORD_COUNT: usize = (PLACE_COUNT / u64::BITS as u64) as usize;

/// Which places are read; 1 KiB.
#[derive(Debug)]
pub(crate) struct ReadPlaces {
    words: [AtomicU64; WORD_COUNT],
}

impl Default for ReadPlaces {
    fn default() -> ReadPlaces {
        ReadPlaces {
            words: [const { AtomicU64::new(0) }; WORD_COUNT],
        }
    }
}

impl ReadPlaces {
    /// Whether a long read has begun where one of `offset_bytes` begins.
    pub(crate) fn has(&self, offset_bytes: u64) -> bool {
        let (word, bit) = self.at(offset_bytes / PLACE_BYTES);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// A long read begins there.
    pub(crate) fn note(&self, offset_bytes: u64) {
        let (word, bit) = self.at(offset_bytes / PLACE_BYTES);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    /// Something else is written there. Cost: O(places).
    pub(crate) fn forget(&self, bytes: Range<u64>) {
        let places = bytes.start / PLACE_BYTES..bytes.end.div_ceil(PLACE_BYTES);
        for place in places.take(PLACE_COUNT as usize) {
            let (word, bit) = self.at(place);
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn at(&self, place: u64) -> (&AtomicU64, u64) {
        let at = place % PLACE_COUNT;
        let word = (at / u64::from(u64::BITS)) as usize;
        (&self.words[word], 1 << (at % u64::from(u64::BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_until_it_is_written() {
        let places = ReadPlaces::default();
        let far = PLACE_COUNT - 1;
        for place in [0, 1, 63, 64, far] {
            let offset = place * PLACE_BYTES;
            assert!(!places.has(offset));
            places.note(offset + 1);
            assert!(places.has(offset) && places.has(offset + PLACE_BYTES - 1));
        }
        places.forget(PLACE_BYTES..64 * PLACE_BYTES);
        let read = [0, 1, 63, 64, far].map(|place| places.has(place * PLACE_BYTES));
        assert_eq!(read, [true, false, false, true, true]);
        // The last byte of the one, and the first of another.
        places.forget(PLACE_BYTES - 1..PLACE_BYTES);
        places.forget(64 * PLACE_BYTES + PLACE_BYTES - 1..64 * PLACE_BYTES + PLACE_BYTES);
        assert!(!places.has(0) && !places.has(64 * PLACE_BYTES));
        places.forget(0..u64::MAX);
        assert!(!places.has(far * PLACE_BYTES));
    }
}
