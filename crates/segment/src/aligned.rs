//! Memory that a device can read and write without a copy.

use std::ops::{Deref, DerefMut};

/// What direct I/O asks of addresses, offsets and lengths; no known host asks for more.
pub(crate) const ALIGN_BYTES: usize = 4096;

/// Bytes whose first one lies at a multiple of 4096 in memory. Growing beyond the capacity moves
/// them, as with a `Vec`.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    /// `skip` bytes that nobody sees, then the content.
    raw: Vec<u8>,
    skip: usize,
}

impl AlignedBuf {
    /// An empty buffer with room for `len_bytes`.
    pub fn with_capacity(len_bytes: usize) -> AlignedBuf {
        let mut raw: Vec<u8> = Vec::with_capacity(len_bytes + ALIGN_BYTES);
        let skip = raw.as_ptr().align_offset(ALIGN_BYTES);
        raw.resize(skip, 0);
        AlignedBuf { raw, skip }
    }

    /// A buffer of `len_bytes` zeros.
    pub fn zeroed(len_bytes: usize) -> AlignedBuf {
        let raw = vec![0u8; len_bytes + ALIGN_BYTES];
        let skip = raw.as_ptr().align_offset(ALIGN_BYTES);
        let mut buf = AlignedBuf { raw, skip };
        buf.raw.truncate(skip + len_bytes);
        buf
    }

    /// Adds `bytes` at the end.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.raw.extend_from_slice(bytes);
    }

    /// Cuts to `len_bytes`, or fills up to them with `byte`.
    pub fn resize(&mut self, len_bytes: usize, byte: u8) {
        self.reserve(len_bytes.saturating_sub(self.len()));
        self.raw.resize(self.skip + len_bytes, byte);
    }

    /// What it takes of memory, bytes: its room, and what aligning it costs.
    pub fn memory_bytes(&self) -> usize {
        self.raw.capacity()
    }

    /// How long it can become without being moved, bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.raw.capacity() - self.skip
    }

    /// Sets the length to `len_bytes`. What was there stays only if the room sufficed; what is new
    /// is zero. `false` when there is no memory for it; then the buffer is empty.
    pub fn try_resize(&mut self, len_bytes: usize) -> bool {
        if len_bytes > self.raw.capacity().saturating_sub(self.skip) {
            *self = AlignedBuf::default();
            let Some(wanted) = len_bytes.checked_add(ALIGN_BYTES) else {
                return false;
            };
            if self.raw.try_reserve_exact(wanted).is_err() {
                return false;
            }
            self.skip = self.raw.as_ptr().align_offset(ALIGN_BYTES);
        }
        self.raw.resize(self.skip + len_bytes, 0);
        true
    }

    fn reserve(&mut self, more_bytes: usize) {
        self.reserve_for(more_bytes, (self.len() + more_bytes).max(2 * self.len()));
    }

    fn reserve_for(&mut self, more_bytes: usize, wanted: usize) {
        if self.raw.capacity() > 0 && self.raw.capacity() - self.raw.len() >= more_bytes {
            return;
        }
        let mut moved = AlignedBuf::with_capacity(wanted);
        moved.raw.extend_from_slice(self);
        *self = moved;
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.raw[self.skip..]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.raw[self.skip..]
    }
}

/// Whether direct I/O takes memory that begins there.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_stays_aligned_while_it_grows() {
        let mut buf = AlignedBuf::default();
        let mut model = Vec::new();
        for round in 0..40u8 {
            let piece = vec![round; 1 + usize::from(round) * 997];
            buf.extend_from_slice(&piece);
            model.extend_from_slice(&piece);
            buf.resize(buf.len() + 5, 0xee);
            model.resize(model.len() + 5, 0xee);
            assert_eq!(&buf[..], &model[..]);
            assert!(is_aligned(&buf));
        }
        buf.resize(3, 0);
        assert_eq!(&buf[..], &model[..3]);
        let (room, at) = (buf.capacity_bytes(), buf.as_ptr());
        buf.resize(room, 1);
        assert!(room >= 5000 && std::ptr::eq(at, buf.as_ptr()));
        assert!((room..=room + ALIGN_BYTES).contains(&buf.memory_bytes()));
        assert!(!buf.try_resize(usize::MAX) && !buf.try_resize(isize::MAX as usize));
        assert!(buf.is_empty() && buf.try_resize(9000));
        assert!(is_aligned(&buf) && buf.len() == 9000 && buf.iter().all(|&b| b == 0));
        let zeros = AlignedBuf::zeroed(10_000);
        assert!(is_aligned(&zeros) && zeros.len() == 10_000 && zeros.iter().all(|&b| b == 0));
    }
}
