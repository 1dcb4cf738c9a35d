//! The reservation: counted, but without a place yet.

/// Who asks for space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// New content. Leaves the held back blocks alone (`SPACE-4`).
    Ordinary,
    /// What frees space in the end: deletes, tails of truncation, compaction. May use all.
    Privileged,
}

/// A reservation of blocks. Used up by [`crate::Space::allocate`]; what is left must go to
/// [`crate::Space::forfeit`], or it stays reserved for as long as the process lives.
#[derive(Debug)]
#[must_use = "a reservation is allocated from or forfeited"]
pub struct Reservation {
    blocks: u64,
}

impl Reservation {
    pub(crate) fn new(blocks: u64) -> Reservation {
        Reservation { blocks }
    }

    /// Blocks still reserved.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds the reservation of `other` to this one.
    pub fn merge(&mut self, mut other: Reservation) {
        self.blocks += other.take_all();
    }

    /// Moves `blocks` of the reservation into one of their own; panics when there are fewer.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        self.take(blocks);
        Reservation::new(blocks)
    }

    pub(crate) fn take(&mut self, blocks: u64) {
        assert!(
            blocks <= self.blocks,
            "{blocks} blocks taken from a reservation of {}",
            self.blocks
        );
        self.blocks -= blocks;
    }

    pub(crate) fn take_all(&mut self) -> u64 {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        debug_assert!(
            self.blocks == 0 || std::thread::panicking(),
            "a reservation of {} blocks was dropped; forfeit it",
            self.blocks
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_merge_and_split_without_loss() {
        let mut first = Reservation::new(10);
        let mut second = first.split(4);
        assert_eq!((first.blocks(), second.blocks()), (6, 4));
        second.merge(first);
        assert_eq!(second.take_all(), 10);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "forfeit it")]
    fn a_dropped_reservation_is_a_bug() {
        drop(Reservation::new(1));
    }

    #[test]
    #[should_panic(expected = "from a reservation of 3")]
    fn a_reservation_cannot_be_overdrawn() {
        let mut reservation = Reservation::new(3);
        let _more = reservation.split(4);
    }
}
