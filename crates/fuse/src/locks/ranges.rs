//! The locks of one owner on the bytes of one file. Pure.

/// A lock on some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// First byte.
    pub(crate) start: u64,
    /// Last byte, inclusive.
    pub(crate) last: u64,
    /// Nobody else may have a lock there; else nobody may have one of this kind.
    pub(crate) is_write: bool,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Whether two owners may not have both.
    pub(crate) fn conflicts(&self, other: &Range) -> bool {
        self.overlaps(other) && (self.is_write || other.is_write)
    }
}

/// All of one owner: sorted, without overlaps; neighbours of one kind are one.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    /// The lock takes the place of what was there.
    pub(crate) fn set(&mut self, range: Range) {
        self.clear(range.start, range.last);
        let at = self.0.partition_point(|other| other.last < range.start);
        self.0.insert(at, range);
        self.0.dedup_by(|next, before| {
            let is_one = before.last + 1 == next.start && before.is_write == next.is_write;
            if is_one {
                before.last = next.last;
            }
            is_one
        });
    }

    /// The bytes from `start` to `last` are unlocked.
    pub(crate) fn clear(&mut self, start: u64, last: u64) {
        let cut = |range: &Range| {
            let before = Range {
                last: range.last.min(start.wrapping_sub(1)),
                ..*range
            };
            let behind = Range {
                start: range.start.max(last + 1),
                ..*range
            };
            let is_left = start > 0 && range.start < start;
            [
                is_left.then_some(before),
                (range.last > last).then_some(behind),
            ]
        };
        self.0 = self.0.iter().flat_map(cut).flatten().collect();
    }

    /// The first lock here that another owner's `range` conflicts with.
    pub(crate) fn conflict(&self, range: &Range) -> Option<Range> {
        self.0.iter().find(|held| held.conflicts(range)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: u64 = 24;

    proptest! {
        #[test]
        fn ranges_are_those_of_an_array(
            steps in prop::collection::vec((0..LEN, 0..LEN, 0..3_u8), 1..40),
            probe in (0..LEN, 0..LEN, any::<bool>()),
        ) {
            let mut bytes = [0_u8; LEN as usize];
            let mut ranges = Ranges::default();
            for (one, other, kind) in steps {
                let (start, last) = (one.min(other), one.max(other));
                bytes[start as usize..=last as usize].fill(kind);
                match kind {
                    0 => ranges.clear(start, last),
                    kind => ranges.set(Range { start, last, is_write: kind == 2 }),
                }
            }
            let mut seen = [0_u8; LEN as usize];
            for range in &ranges.0 {
                seen[range.start as usize..=range.last as usize].fill(1 + u8::from(range.is_write));
            }
            prop_assert_eq!(seen, bytes, "LOCK-3");
            let neighbours = ranges.0.windows(2);
            prop_assert!(neighbours.into_iter().all(|pair| pair[0].last < pair[1].start
                && (pair[0].last + 1 < pair[1].start || pair[0].is_write != pair[1].is_write)));
            let (start, last) = (probe.0.min(probe.1), probe.0.max(probe.1));
            let range = Range { start, last, is_write: probe.2 };
            let is_in_the_way = |byte: &u8| *byte == 2 || (*byte == 1 && probe.2);
            let expected = bytes[start as usize..=last as usize].iter().any(is_in_the_way);
            prop_assert_eq!(ranges.conflict(&range).is_some(), expected, "LOCK-3");
        }
    }
}
