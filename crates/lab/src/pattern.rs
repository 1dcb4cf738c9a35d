//! What objects hold: bytes that can be told from all others, on a raw device and when they are
//! read back.
//!
//! Every KiB of an object begins with a *marker* (\[FRAG\]): 32 bytes that say whose they are. The
//! bytes between them follow from the seed, the object and its version, so every read can be
//! verified without a copy.
//!
//! ```text
//! 0  needle    8  the same for all markers of a run, and in no other run
//! 8  object    8
//! 16 version   4
//! 20 sequence  4  which KiB of the object
//! 24 check     8
//! ```
//!
//! * `PATTERN-1` The content of a version of an object is a function of seed, object, version and
//!   length; two of them share no KiB.
//! * `PATTERN-2` What is found by its needle counts only if its check word fits.

/// Distance between two markers of an object, bytes.
pub const MARKER_STEP_BYTES: u64 = 1024;
/// Length of a marker.
pub const MARKER_BYTES: usize = 32;

/// The writing of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    needle: u64,
}

/// Whose bytes these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The object.
    pub object: u64,
    /// Its version.
    pub version: u32,
    /// Which KiB of it.
    pub sequence: u32,
}

impl Pattern {
    /// The writing of a run with this salt.
    pub fn new(salt: u64) -> Pattern {
        Pattern {
            needle: mix(salt ^ 0x4c61_7264_6572_4c61),
        }
    }

    /// What to look for on a device.
    pub fn needle(&self) -> [u8; 8] {
        self.needle.to_le_bytes()
    }

    /// Makes `into` the content of version `version` of object `object`, `len_bytes` long.
    pub fn fill(&self, object: u64, version: u32, len_bytes: usize, into: &mut Vec<u8>) {
        into.clear();
        into.reserve(len_bytes + MARKER_STEP_BYTES as usize);
        let mut word = mix(self.needle ^ mix(object) ^ u64::from(version).rotate_left(32));
        let mut sequence = 0;
        while into.len() < len_bytes {
            let marker = Marker {
                object,
                version,
                sequence,
            };
            into.extend_from_slice(&self.encode(&marker));
            for _ in 0..(MARKER_STEP_BYTES as usize - MARKER_BYTES) / 8 {
                word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
                into.extend_from_slice(&(word ^ (word >> 29)).to_le_bytes());
            }
            sequence += 1;
        }
        into.truncate(len_bytes);
    }

    /// The bytes of a marker.
    pub fn encode(&self, marker: &Marker) -> [u8; MARKER_BYTES] {
        let mut bytes = [0; MARKER_BYTES];
        bytes[..8].copy_from_slice(&self.needle());
        bytes[8..16].copy_from_slice(&marker.object.to_le_bytes());
        bytes[16..20].copy_from_slice(&marker.version.to_le_bytes());
        bytes[20..24].copy_from_slice(&marker.sequence.to_le_bytes());
        bytes[24..].copy_from_slice(&self.check_word(marker).to_le_bytes());
        bytes
    }

    /// The marker at the beginning of `bytes`; `None` if there is none (`PATTERN-2`).
    pub fn decode(&self, bytes: &[u8]) -> Option<Marker> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if word(0)? != self.needle {
            return None;
        }
        let both = word(16)?;
        let marker = Marker {
            object: word(8)?,
            version: (both & 0xffff_ffff) as u32,
            sequence: (both >> 32) as u32,
        };
        (word(24)? == self.check_word(&marker)).then_some(marker)
    }

    fn check_word(&self, marker: &Marker) -> u64 {
        let both = u64::from(marker.version) << 32 | u64::from(marker.sequence);
        mix(mix(self.needle ^ marker.object) ^ both)
    }
}

/// How many whole markers an object of `len_bytes` has.
pub fn marker_count(len_bytes: u64) -> u64 {
    (len_bytes + MARKER_STEP_BYTES - MARKER_BYTES as u64) / MARKER_STEP_BYTES
}

/// The finisher of SplitMix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_share_nothing_and_markers_are_found() {
        let pattern = Pattern::new(1);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        pattern.fill(7, 1, 5000, &mut one);
        pattern.fill(7, 1, 5000, &mut other);
        assert_eq!(one, other, "PATTERN-1");
        pattern.fill(7, 2, 5000, &mut other);
        for (a, b) in one.chunks(1024).zip(other.chunks(1024)) {
            assert_ne!(a, b, "PATTERN-1");
        }
        assert_eq!(marker_count(5000), 5);
        for sequence in 0..5 {
            let marker = Marker {
                object: 7,
                version: 1,
                sequence,
            };
            let at = sequence as usize * 1024;
            assert_eq!(pattern.decode(&one[at..]), Some(marker));
            assert_eq!(Pattern::new(2).decode(&one[at..]), None);
        }
        one[8] ^= 1;
        assert_eq!(pattern.decode(&one), None, "PATTERN-2");
        assert_eq!(
            [0, 31, 32, 1024, 1055, 1056].map(marker_count),
            [0, 0, 1, 1, 1, 2]
        );
    }
}
