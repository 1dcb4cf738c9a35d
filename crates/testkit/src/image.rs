//! The bytes of one file, in pages shared between copies: cloning costs one reference per page.

use std::sync::Arc;

const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// A file's content. Holes, and pages that were only ever zeroed, take no memory.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// `None`: zeros. Bytes at and after `len_bytes` are always zero.
    pages: Vec<Option<Arc<Page>>>,
    len_bytes: u64,
}

impl Image {
    /// The image of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Image {
        let mut image = Image::default();
        image.write(0, bytes);
        image
    }

    /// Length, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Fills `buffer` from `offset_bytes` on; `false` when that reaches past the end.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> bool {
        if offset_bytes + buffer.len() as u64 > self.len_bytes {
            return false;
        }
        let mut rest = buffer;
        for (page, inside) in pieces(offset_bytes, rest.len()) {
            let (now, later) = rest.split_at_mut(inside.len());
            match &self.pages[page] {
                Some(bytes) => now.copy_from_slice(&bytes[inside]),
                None => now.fill(0),
            }
            rest = later;
        }
        true
    }

    /// Writes `bytes` at `offset_bytes`, growing the file as needed.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        self.grow(offset_bytes + bytes.len() as u64);
        let mut rest = bytes;
        for (page, inside) in pieces(offset_bytes, rest.len()) {
            let (now, later) = rest.split_at(inside.len());
            if self.pages[page].is_some() || now.iter().any(|&byte| byte != 0) {
                self.page_mut(page)[inside].copy_from_slice(now);
            }
            rest = later;
        }
    }

    /// Writes `len_bytes` zeros at `offset_bytes`, growing the file as needed.
    pub fn write_zeros(&mut self, offset_bytes: u64, len_bytes: u64) {
        self.grow(offset_bytes + len_bytes);
        for (page, inside) in pieces(offset_bytes, len_bytes as usize) {
            if inside.len() == PAGE_BYTES {
                self.pages[page] = None;
            } else if self.pages[page].is_some() {
                self.page_mut(page)[inside].fill(0);
            }
        }
    }

    /// Sets the length; a longer file gets zeros.
    pub fn truncate(&mut self, len_bytes: u64) {
        if len_bytes < self.len_bytes {
            let tail = len_bytes
                .next_multiple_of(PAGE_BYTES as u64)
                .min(self.len_bytes);
            self.write_zeros(len_bytes, tail - len_bytes);
            self.pages
                .truncate(tail.div_ceil(PAGE_BYTES as u64) as usize);
            self.len_bytes = len_bytes;
        }
        self.grow(len_bytes);
    }

    /// The whole content.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len_bytes as usize];
        assert!(self.read(0, &mut bytes), "an image holds its own length");
        bytes
    }

    /// The ranges that are not known to be zero: `(offset, bytes)`, page by page.
    pub fn data(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().enumerate().filter_map(|(index, page)| {
            let offset = (index * PAGE_BYTES) as u64;
            let len = (self.len_bytes - offset).min(PAGE_BYTES as u64) as usize;
            page.as_ref().map(|bytes| (offset, &bytes[..len]))
        })
    }

    fn grow(&mut self, len_bytes: u64) {
        self.len_bytes = self.len_bytes.max(len_bytes);
        self.pages
            .resize(self.len_bytes.div_ceil(PAGE_BYTES as u64) as usize, None);
    }

    fn page_mut(&mut self, page: usize) -> &mut Page {
        Arc::make_mut(self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_BYTES])))
    }
}

/// A byte range cut at page boundaries: `(page index, range inside the page)`.
fn pieces(offset_bytes: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let (mut at, end) = (offset_bytes as usize, offset_bytes as usize + len);
    std::iter::from_fn(move || {
        let (page, from) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let to = PAGE_BYTES.min(from + (end - at));
        at += to - from;
        (to > from).then_some((page, from..to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn an_image_is_a_vector_of_bytes() {
        let (mut image, mut model, mut rng) = (Image::default(), Vec::<u8>::new(), Rng::new(1));
        for step in 0..3000 {
            let (at, len) = (rng.below(20_000) as usize, rng.below(9_000) as usize);
            let fill = rng.below(3) as u8;
            match rng.below(3) {
                0 => {
                    image.truncate(at as u64);
                    model.resize(at, 0);
                }
                1 => {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].fill(0);
                    image.write_zeros(at as u64, len as u64);
                }
                _ => {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].fill(fill);
                    image.write(at as u64, &vec![fill; len]);
                }
            }
            assert_eq!(image.to_vec(), model, "step {step}");
            let mut seen = vec![0; model.len()];
            image
                .data()
                .for_each(|(at, bytes)| seen[at as usize..][..bytes.len()].copy_from_slice(bytes));
            assert_eq!(seen, model, "step {step}");
        }
        assert!(!image.read(image.len_bytes(), &mut [0]));
    }

    #[test]
    fn a_copy_keeps_its_bytes() {
        let mut image = Image::from_bytes(&[7; 10_000]);
        let copy = image.clone();
        image.write(0, &[8; 10_000]);
        assert_eq!(copy.to_vec(), [7; 10_000]);
    }
}
