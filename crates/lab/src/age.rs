//! Storage age: the clock of the laboratory.
//!
//! * `AGE-1` Storage age is the bytes of objects that once existed and are gone, divided by the
//!   bytes that live now (\[BLOB\], \[FRAG\]). It depends neither on the size of the volume nor on
//!   speed.

/// Counts what was put and what went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageAge {
    live_bytes: u64,
    retired_bytes: u64,
}

impl StorageAge {
    /// An object of so many bytes was added.
    pub fn put(&mut self, bytes: u64) {
        self.live_bytes += bytes;
    }

    /// An object of so many bytes, which was added before, is gone.
    pub fn retire(&mut self, bytes: u64) {
        assert!(bytes <= self.live_bytes, "AGE-1: only what lives can go");
        self.live_bytes -= bytes;
        self.retired_bytes += bytes;
    }

    /// Bytes that live now.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The age; 0 of an empty store.
    pub fn age(&self) -> f64 {
        match self.live_bytes {
            0 => 0.0,
            live => self.retired_bytes as f64 / live as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Whatever is created, replaced and deleted: the counter is what a list of all that ever
        /// was says.
        #[test]
        fn age_is_retired_by_live(
            history in prop::collection::vec((0u8..3, 0u64..20, 1u64..1_000_000), 0..300),
        ) {
            let mut age = StorageAge::default();
            let mut live: HashMap<u64, u64> = HashMap::new();
            let mut ever: Vec<u64> = Vec::new();
            for (what, key, bytes) in history {
                let old = live.remove(&key);
                if let Some(old) = old {
                    age.retire(old);
                }
                if what > 0 {
                    age.put(bytes);
                    live.insert(key, bytes);
                    ever.push(bytes);
                }
            }
            let live_bytes: u64 = live.values().sum();
            let retired = ever.iter().sum::<u64>() - live_bytes;
            prop_assert_eq!(age.live_bytes(), live_bytes);
            let expected = if live_bytes == 0 { 0.0 } else { retired as f64 / live_bytes as f64 };
            prop_assert_eq!(age.age(), expected, "AGE-1");
        }
    }
}
