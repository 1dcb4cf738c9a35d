//! Digests, and of what they are: each begins with a word of its own, and lengths stand before what
//! has one, so that no two things have the same bytes.

use ring::digest::{Context, SHA256};

/// A SHA-256.
pub(crate) type Digest = [u8; 32];

/// A digest under way.
pub(crate) struct Hasher(Context);

impl Hasher {
    /// Of a thing called `what`.
    pub(crate) fn new(what: &str) -> Hasher {
        let mut hasher = Hasher(Context::new(&SHA256));
        hasher.bytes(format!("larder {what} 1").as_bytes());
        hasher
    }

    /// Adds bytes with their length.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    /// Adds bytes whose length is known.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a number.
    pub(crate) fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    /// Adds a number that may be negative.
    pub(crate) fn signed(&mut self, value: i64) {
        self.0.update(&value.to_le_bytes());
    }

    /// The digest.
    pub(crate) fn end(self) -> Digest {
        let mut digest = [0; 32];
        digest.copy_from_slice(self.0.finish().as_ref());
        digest
    }
}

/// The first bytes of a digest, to tell where a difference is.
pub(crate) fn hint(digest: &Digest) -> [u8; 4] {
    [digest[0], digest[1], digest[2], digest[3]]
}

/// Of a name or a key, to find it again.
pub(crate) fn name_hint(name: &[u8]) -> [u8; 4] {
    let mut hasher = Hasher::new("name");
    hasher.bytes(name);
    hint(&hasher.end())
}

/// Bytes of hints of one entry.
pub(crate) const HINT_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_apart_is_not_the_same_as_together() {
        let of = |parts: &[&[u8]]| {
            let mut hasher = Hasher::new("test");
            parts.iter().for_each(|part| hasher.bytes(part));
            hasher.end()
        };
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"abc"]), of(&[b"abc", b""]));
        assert_ne!(Hasher::new("a").end(), Hasher::new("b").end());
    }
}
