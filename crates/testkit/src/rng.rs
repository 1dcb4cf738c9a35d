//! Seeded randomness: the same seed gives the same numbers, on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and good enough to choose what to test.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a choice among nothing");
        self.bits() % bound
    }

    /// `true` in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which are at least one.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
