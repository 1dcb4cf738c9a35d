//! Up to which commits history goes, store by store.
//!
//! # Words
//! The *base* is the commit up to which everything goes, of all stores and what belongs to none
//! (moments, rows of users' tables). A store may be *ahead* of it: its own history goes further.
//! Where none is, the cuts are *even*.

use larder_format::{CommitSeq, StoreId};

/// Up to which commit history goes, of each store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetentionHorizons {
    base: CommitSeq,
    /// Of stores that are not named, and of what destroyed ones have left.
    rest: CommitSeq,
    /// Of single stores, by number.
    stores: Vec<(StoreId, CommitSeq)>,
}

impl RetentionHorizons {
    /// The same for all stores.
    pub fn even(seq: CommitSeq) -> RetentionHorizons {
        RetentionHorizons {
            base: seq,
            rest: seq,
            stores: Vec::new(),
        }
    }

    /// Those of single stores, and of the rest. What belongs to no store goes with the lowest of
    /// them, and not beyond `base_max`.
    pub fn new(
        base_max: CommitSeq,
        rest: CommitSeq,
        mut stores: Vec<(StoreId, CommitSeq)>,
    ) -> RetentionHorizons {
        stores.sort_unstable();
        let lowest = stores.iter().map(|(_, seq)| *seq).chain([rest]).min();
        RetentionHorizons {
            base: lowest.unwrap_or(rest).min(base_max),
            rest,
            stores,
        }
    }

    /// Only this store gives up anything.
    pub fn of_one(store: StoreId, seq: CommitSeq) -> RetentionHorizons {
        RetentionHorizons {
            stores: vec![(store, seq)],
            ..RetentionHorizons::default()
        }
    }

    /// Up to where everything goes.
    pub fn base(&self) -> CommitSeq {
        self.base
    }

    /// Beyond this nothing goes.
    pub fn highest(&self) -> CommitSeq {
        let stores = self.stores.iter().map(|(_, seq)| *seq);
        stores.fold(self.rest.max(self.base), CommitSeq::max)
    }

    /// Up to where goes what stores have left that were destroyed, and what is not named.
    pub fn rest(&self) -> CommitSeq {
        self.rest
    }

    /// Up to where the history of a store goes.
    pub fn of(&self, store: StoreId) -> CommitSeq {
        let at = self.stores.binary_search_by_key(&store, |(one, _)| *one);
        at.map_or(self.rest, |at| self.stores[at].1)
    }

    /// Whether no store is ahead of the base.
    pub fn is_even(&self) -> bool {
        self.rest == self.base && self.stores.iter().all(|(_, seq)| *seq == self.base)
    }

    /// Whether anything goes by these that does not by `other`.
    pub fn passes(&self, other: &RetentionHorizons) -> bool {
        self.base > other.base
            || self.rest > other.rest
            || self.named(other).any(|one| self.of(one) > other.of(one))
    }

    /// The lowest of those that do not go as far as in `wanted`; where all do, beyond all.
    pub fn lowest_below(&self, wanted: &RetentionHorizons) -> CommitSeq {
        let pairs = [(self.base, wanted.base), (self.rest, wanted.rest)].into_iter();
        let named = self.named(wanted).map(|one| (self.of(one), wanted.of(one)));
        let below = pairs.chain(named).filter(|(one, other)| one < other);
        below
            .map(|(one, _)| one)
            .min()
            .unwrap_or(CommitSeq(u64::MAX))
    }

    /// None of them beyond `seq`.
    #[must_use]
    pub fn limit(&self, seq: CommitSeq) -> RetentionHorizons {
        let stores = self.stores.iter();
        RetentionHorizons {
            base: self.base.min(seq),
            rest: self.rest.min(seq),
            stores: stores.map(|(one, cut)| (*one, seq.min(*cut))).collect(),
        }
    }

    /// What goes by either.
    #[must_use]
    pub fn raise(&self, other: &RetentionHorizons) -> RetentionHorizons {
        let mut stores: Vec<(StoreId, CommitSeq)> = self
            .named(other)
            .map(|one| (one, self.of(one).max(other.of(one))))
            .collect();
        stores.sort_unstable();
        stores.dedup();
        RetentionHorizons {
            base: self.base.max(other.base),
            rest: self.rest.max(other.rest),
            stores,
        }
    }

    fn named<'c>(&'c self, other: &'c RetentionHorizons) -> impl Iterator<Item = StoreId> + 'c {
        let both = self.stores.iter().chain(&other.stores);
        both.map(|(one, _)| *one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_compared_store_by_store() {
        let [one, two] = [StoreId(1), StoreId(2)];
        let seq = CommitSeq;
        let even = RetentionHorizons::even(seq(5));
        assert!(even.is_even() && !even.passes(&even));
        let apart = RetentionHorizons::new(seq(9), seq(7), vec![(two, seq(3)), (one, seq(8))]);
        assert_eq!((apart.base(), apart.rest()), (seq(3), seq(7)));
        assert_eq!((apart.of(one), apart.of(two)), (seq(8), seq(3)));
        assert_eq!(apart.of(StoreId(3)), seq(7));
        assert!(!apart.is_even() && apart.passes(&even) && even.passes(&apart));
        let both = apart.raise(&even);
        assert!(!apart.passes(&both) && !even.passes(&both));
        assert_eq!(
            (both.of(one), both.of(two), both.base()),
            (seq(8), seq(5), seq(5))
        );
        let limited = apart.limit(seq(4));
        assert_eq!((limited.of(one), limited.of(two)), (seq(4), seq(3)));
        assert!(!RetentionHorizons::of_one(one, seq(4)).passes(&limited));
        assert!(!RetentionHorizons::new(seq(2), seq(4), Vec::new()).is_even());
    }
}
