//! The list of pieces of an object, one page at a time.
//!
//! An object that saw a fragment operation keeps a list that says which bytes of its *base* (the
//! address space of its extent map) appear where. A *piece* is a first base block and a length in
//! bytes. The list is a counted tree: a page of level 0 holds pieces, a page of a higher level
//! holds pages of the level below, each with the bytes under it. Page 0 is the root.
//!
//! Encoding (little-endian):
//!
//! ```text
//! offset  size  field
//!      0     1  version = 1
//!      1     1  level
//!      2     2  entry_count, 0..=120
//!      4     4  zero
//!      8     8  changed_seq     root only, else 0
//!     16     8  next_page       root only, else 0
//!     24     8  base_blocks     root only, else 0
//!     32  16×n  entries: target u64 · len_bytes u64
//!   last     4  CRC-32C of everything before it
//! ```

use crate::DecodeError;
use crate::checksum::crc32c;
use crate::limits::{BASE_BLOCKS_MAX, BLOCK_BYTES, FILE_BYTES_MAX, PIECE_PAGE_ENTRIES_MAX};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;

/// An entry of a page: a piece (level 0), or a page of the level below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceEntry {
    /// Level 0: the first base block of the piece. Higher: the number of the page.
    pub target: u64,
    /// Bytes of the object that it holds; ≥ 1.
    pub len_bytes: u64,
}

/// One page of a list of pieces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PiecePage {
    /// 0: entries are pieces.
    pub level: u8,
    /// Root: the commit that changed the list last; no two states of a list have the same.
    pub changed_seq: u64,
    /// Root: the number that the next new page gets.
    pub next_page: u64,
    /// Root: base blocks from here on were never used.
    pub base_blocks: u64,
    /// In the order of the object; at most [`PIECE_PAGE_ENTRIES_MAX`].
    pub entries: Vec<PieceEntry>,
}

impl PiecePage {
    /// Bytes of the object under this page.
    pub fn len_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len_bytes).sum()
    }

    /// The page's bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.entries.len() <= PIECE_PAGE_ENTRIES_MAX,
            "a page was not split"
        );
        let mut out = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * self.entries.len() + 4);
        out.extend([VERSION, self.level]);
        out.extend((self.entries.len() as u16).to_le_bytes());
        out.extend([0; 4]);
        for number in [self.changed_seq, self.next_page, self.base_blocks] {
            out.extend(number.to_le_bytes());
        }
        for entry in &self.entries {
            out.extend(entry.target.to_le_bytes());
            out.extend(entry.len_bytes.to_le_bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        out
    }

    /// Reads a page's bytes; any damage is refused (`FORMAT-2`).
    pub fn decode(bytes: &[u8]) -> Result<PiecePage, DecodeError> {
        let refuse = |why: String| DecodeError {
            what: "piece page",
            why,
        };
        let Some((body, tail)) = bytes.split_last_chunk::<4>() else {
            return Err(refuse(format!("{} bytes are too few", bytes.len())));
        };
        let (expected, found) = (u32::from_le_bytes(*tail), crc32c(body));
        if expected != found {
            return Err(refuse(format!(
                "checksum expected {expected:08x}, found {found:08x}"
            )));
        }
        let Some((head, entries)) = body.split_first_chunk::<HEAD_BYTES>() else {
            return Err(refuse(format!("{} bytes are too few", bytes.len())));
        };
        if head[0] != VERSION || head[4..8] != [0; 4] {
            return Err(refuse(format!(
                "version expected {VERSION}, found {}",
                head[0]
            )));
        }
        let entry_count = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if entry_count > PIECE_PAGE_ENTRIES_MAX || entries.len() != entry_count * ENTRY_BYTES {
            return Err(refuse(format!(
                "{entry_count} entries do not fit in {} bytes",
                bytes.len()
            )));
        }
        let page = PiecePage {
            level: head[1],
            changed_seq: number(&head[8..]),
            next_page: number(&head[16..]),
            base_blocks: number(&head[24..]),
            entries: entries
                .chunks_exact(ENTRY_BYTES)
                .map(|raw| PieceEntry {
                    target: number(raw),
                    len_bytes: number(&raw[8..]),
                })
                .collect(),
        };
        let mut total: u64 = 0;
        for entry in &page.entries {
            let end = entry
                .target
                .checked_add(entry.len_bytes.div_ceil(BLOCK_BYTES));
            let is_placed = page.level > 0 || end.is_some_and(|end| end <= BASE_BLOCKS_MAX);
            total = total.saturating_add(entry.len_bytes);
            if entry.len_bytes == 0 || !is_placed || total > FILE_BYTES_MAX {
                return Err(refuse(format!(
                    "entry {} of {} bytes is out of place",
                    entry.target, entry.len_bytes
                )));
            }
        }
        Ok(page)
    }
}

/// The first eight bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(level: u8, entries: &[(u64, u64)]) -> PiecePage {
        PiecePage {
            level,
            changed_seq: 5,
            next_page: 6,
            base_blocks: 7,
            entries: entries
                .iter()
                .map(|&(target, len_bytes)| PieceEntry { target, len_bytes })
                .collect(),
        }
    }

    #[test]
    fn senseless_entries_are_refused() {
        for entries in [
            vec![(0, 0)],
            vec![(u64::MAX, 1)],
            vec![(BASE_BLOCKS_MAX, 1)],
            vec![(0, FILE_BYTES_MAX), (0, 1)],
            vec![(0, u64::MAX), (0, 1)],
        ] {
            let bytes = page(0, &entries).encode();
            assert!(PiecePage::decode(&bytes).is_err(), "FORMAT-2: {entries:?}");
        }
        for (level, entry) in [
            (0, (0, FILE_BYTES_MAX)),
            (0, (BASE_BLOCKS_MAX - 1, BLOCK_BYTES)),
            (1, (u64::MAX, 1)),
        ] {
            let page = page(level, &[entry]);
            assert_eq!(PiecePage::decode(&page.encode()), Ok(page), "FORMAT-3");
        }
    }

    #[test]
    fn sealed_nonsense_is_refused() {
        let whole = page(0, &[(1, 2), (3, 4)]).encode();
        let good = &whole[..whole.len() - 4];
        let refused = |mut body: Vec<u8>| {
            body.extend(crc32c(&body).to_le_bytes());
            PiecePage::decode(&body).expect_err("FORMAT-2").why
        };
        for (at, why) in [
            (0, "version"),
            (4, "version"),
            (7, "version"),
            (2, "do not fit"),
        ] {
            let mut bad = good.to_vec();
            bad[at] ^= 9;
            assert!(refused(bad).contains(why), "byte {at}");
        }
        for len in 0..HEAD_BYTES {
            assert!(refused(good[..len].to_vec()).contains("too few"));
        }
        assert!(refused([good, &[0]].concat()).contains("do not fit"));
        let mut long = good[..HEAD_BYTES].to_vec();
        long[2] = PIECE_PAGE_ENTRIES_MAX as u8 + 1;
        long.resize(HEAD_BYTES + (PIECE_PAGE_ENTRIES_MAX + 1) * ENTRY_BYTES, 1);
        assert!(refused(long).contains("121 entries do not fit"));
    }

    proptest! {
        #[test]
        fn pages_come_back(
            level in 0..9u8,
            entries in prop::collection::vec(
                (0..1u64 << 40, 1..1u64 << 50),
                0..=PIECE_PAGE_ENTRIES_MAX,
            )
        ) {
            let page = page(level, &entries);
            prop_assert_eq!(page.len_bytes(), entries.iter().map(|entry| entry.1).sum::<u64>());
            prop_assert_eq!(PiecePage::decode(&page.encode()), Ok(page), "FORMAT-3");
        }

        #[test]
        fn damage_is_refused(at in 0usize..90, bit in 0u8..8) {
            let mut bytes = page(0, &[(1, 2), (3, 4)]).encode();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(PiecePage::decode(&bytes).is_err(), "FORMAT-2");
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if bytes.len() > 40 {
                bytes[0] = VERSION;
                bytes[4..8].fill(0);
                let split = bytes.len() - 4;
                let entry_count = split.saturating_sub(HEAD_BYTES) / ENTRY_BYTES;
                bytes[2..4].copy_from_slice(&(entry_count as u16).to_le_bytes());
                let sum = crc32c(&bytes[..split]).to_le_bytes();
                bytes[split..].copy_from_slice(&sum);
            }
            if let Ok(page) = PiecePage::decode(&bytes) {
                prop_assert!(page.len_bytes() <= FILE_BYTES_MAX);
            }
        }
    }
}
