//! The superblock: the root record of a segment.
//!
//! A segment begins with two *copies* of its superblock, 4 KiB each, at byte 0 and byte 4096; data
//! begins at byte [`DATA_OFFSET_BYTES`]. The superblock of generation `g` is written to copy
//! `g mod 2`, so a write that is torn leaves the other copy whole. [`choose_superblock`] takes the
//! valid copy of the highest generation. The bytes of a copy are those of [`FIELDS`].
//!
//! # Invariants
//! * `SUPER-1` The fields of [`FIELDS`] cover the 4096 bytes without gap or overlap (compile-time).
//! * `SUPER-2` The checksum covers every byte of the copy, its own field taken as zero: no bit can
//!   flip unseen.
//! * `SUPER-3` A copy holds only generations of its own parity, which finds a misdirected write.
//! * `SUPER-4` `magic`, `version` and `checksum` keep their place, and the checksum its meaning, in
//!   every later version: a newer format is recognised, never mistaken for damage.
//! * `SUPER-5` A newer version in either copy refuses the segment, even if the other copy is older.

use crate::checksum::crc32c;
use crate::limits::{AG_BLOCKS, BLOCK_BYTES};
use crate::units::SegmentIndex;

/// Size of one copy, bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Copies of the superblock in a segment.
pub const COPY_COUNT: usize = 2;
/// Where the data blocks of a segment begin, bytes.
pub const DATA_OFFSET_BYTES: u64 = 1 << 20;
/// The first bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"LARDSEG\0";
/// The format version this build writes, and the newest it reads.
pub const VERSION: u32 = 1;

/// The byte layout: (name, offset in bytes, size in bytes, meaning). docs/format.md repeats it.
pub const FIELDS: &[(&str, usize, usize, &str)] = &[
    ("magic", 0, 8, "`LARDSEG` and a zero byte"),
    ("version", 8, 4, "format version, u32; 1"),
    (
        "checksum",
        12,
        4,
        "CRC-32C of the 4096 bytes, this field taken as zero, u32",
    ),
    (
        "generation",
        16,
        8,
        "counts superblock writes, u64; copy = generation mod 2",
    ),
    (
        "database_id",
        24,
        16,
        "random id of the database that owns the segment",
    ),
    (
        "segment",
        40,
        4,
        "index of the segment in its database, u32",
    ),
    ("block_bytes", 44, 4, "bytes in a block, u32; 4096"),
    (
        "ag_blocks",
        48,
        8,
        "blocks in an allocation group, u64; 262144",
    ),
    (
        "block_count",
        56,
        8,
        "usable, preallocated data blocks, u64",
    ),
    (
        "created_ns",
        64,
        8,
        "when the segment was created, ns since 1970 UTC, i64",
    ),
    ("reserved", 72, 4024, "zero"),
];

const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = 12;
const GENERATION_AT: usize = 16;
const DATABASE_ID_AT: usize = 24;
const SEGMENT_AT: usize = 40;
const BLOCK_BYTES_AT: usize = 44;
const AG_BLOCKS_AT: usize = 48;
const BLOCK_COUNT_AT: usize = 56;
const CREATED_NS_AT: usize = 64;
const RESERVED_AT: usize = 72;

const _: () = {
    // SUPER-1, and the table agrees with the codec.
    let offsets = [
        0,
        VERSION_AT,
        CHECKSUM_AT,
        GENERATION_AT,
        DATABASE_ID_AT,
        SEGMENT_AT,
        BLOCK_BYTES_AT,
        AG_BLOCKS_AT,
        BLOCK_COUNT_AT,
        CREATED_NS_AT,
        RESERVED_AT,
    ];
    assert!(FIELDS.len() == offsets.len());
    let (mut at, mut field) = (0, 0);
    while field < FIELDS.len() {
        assert!(FIELDS[field].1 == at && offsets[field] == at);
        at += FIELDS[field].2;
        field += 1;
    }
    assert!(at == SUPERBLOCK_BYTES);
    assert!((COPY_COUNT * SUPERBLOCK_BYTES) as u64 <= DATA_OFFSET_BYTES);
    assert!(DATA_OFFSET_BYTES.is_multiple_of(BLOCK_BYTES));
};

/// Most data blocks a segment may have: its last byte must be addressable by `off_t`.
pub const BLOCK_COUNT_MAX: u64 = (i64::MAX as u64 - DATA_OFFSET_BYTES) / BLOCK_BYTES;

/// A verified superblock, or one that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Counts the superblock writes of this segment, from 0.
    pub generation: u64,
    /// The database that owns the segment.
    pub database_id: [u8; 16],
    /// The index of the segment in its database.
    pub segment: SegmentIndex,
    /// Usable, preallocated data blocks; at most [`BLOCK_COUNT_MAX`].
    pub block_count: u64,
    /// When the segment was created, ns since 1970 UTC.
    pub created_ns: i64,
}

impl Superblock {
    /// Which copy holds this generation, 0 or 1 (`SUPER-3`).
    pub fn copy_index(&self) -> usize {
        copy_index(self.generation)
    }

    /// Where this generation is written, bytes from the start of the segment: 0 or 4096.
    pub fn offset_bytes(&self) -> u64 {
        copy_offset_bytes(self.copy_index())
    }

    /// Length of a segment with this many blocks, bytes.
    pub fn segment_bytes(&self) -> u64 {
        DATA_OFFSET_BYTES + self.block_count * BLOCK_BYTES
    }

    /// The 4096 bytes of the copy. Panics when `block_count` exceeds [`BLOCK_COUNT_MAX`]: no such
    /// segment can exist.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        assert!(
            self.block_count <= BLOCK_COUNT_MAX,
            "a segment of {} blocks",
            self.block_count
        );
        let mut raw = [0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(VERSION_AT, &VERSION.to_le_bytes());
        put(GENERATION_AT, &self.generation.to_le_bytes());
        put(DATABASE_ID_AT, &self.database_id);
        put(SEGMENT_AT, &self.segment.0.to_le_bytes());
        put(BLOCK_BYTES_AT, &(BLOCK_BYTES as u32).to_le_bytes());
        put(AG_BLOCKS_AT, &AG_BLOCKS.to_le_bytes());
        put(BLOCK_COUNT_AT, &self.block_count.to_le_bytes());
        put(CREATED_NS_AT, &self.created_ns.to_le_bytes());
        let checksum = crc32c(&raw);
        raw[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        raw
    }
}

/// Where a copy begins, bytes from the start of the segment.
pub fn copy_offset_bytes(copy: usize) -> u64 {
    assert!(copy < COPY_COUNT, "a segment has two superblock copies");
    (copy * SUPERBLOCK_BYTES) as u64
}

fn copy_index(generation: u64) -> usize {
    (generation % COPY_COUNT as u64) as usize
}

/// The raw bytes of one copy, not trusted yet.
pub struct UnverifiedSuperblock<'a> {
    raw: &'a [u8; SUPERBLOCK_BYTES],
    copy: usize,
}

impl<'a> UnverifiedSuperblock<'a> {
    /// The bytes that were read from copy `copy` (0 or 1).
    pub fn new(copy: usize, raw: &'a [u8; SUPERBLOCK_BYTES]) -> UnverifiedSuperblock<'a> {
        assert!(copy < COPY_COUNT, "a segment has two superblock copies");
        UnverifiedSuperblock { raw, copy }
    }

    /// Believes the bytes, or says which fields fail.
    pub fn verify(&self) -> Result<Superblock, SuperblockError> {
        let faults = self.find_faults();
        if !faults.is_empty() {
            return Err(SuperblockError::Damaged {
                copy: self.copy,
                faults,
            });
        }
        match self.u32_at(VERSION_AT) {
            VERSION => Ok(Superblock {
                generation: self.u64_at(GENERATION_AT),
                database_id: self.bytes_at(DATABASE_ID_AT),
                segment: SegmentIndex(self.u32_at(SEGMENT_AT)),
                block_count: self.u64_at(BLOCK_COUNT_AT),
                created_ns: i64::from_le_bytes(self.bytes_at(CREATED_NS_AT)),
            }),
            found => Err(SuperblockError::NewerFormat {
                found,
                known: VERSION,
            }),
        }
    }

    /// Every field that cannot be right. A newer version is only held to `SUPER-4`.
    fn find_faults(&self) -> Vec<FieldFault> {
        let mut faults = Vec::new();
        let mut check = |field, expected: String, found: String| {
            if expected != found {
                faults.push(FieldFault {
                    field,
                    expected,
                    found,
                });
            }
        };
        let magic: [u8; 8] = self.bytes_at(0);
        check("magic", escape(&MAGIC), escape(&magic));
        let mut unsummed = *self.raw;
        unsummed[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        check(
            "checksum",
            format!("{:08x}", crc32c(&unsummed)),
            format!("{:08x}", self.u32_at(CHECKSUM_AT)),
        );
        let version = self.u32_at(VERSION_AT);
        if version > VERSION {
            return faults;
        }
        check("version", VERSION.to_string(), version.to_string());
        check(
            "copy of generation",
            self.copy.to_string(),
            copy_index(self.u64_at(GENERATION_AT)).to_string(),
        );
        check(
            "block_bytes",
            BLOCK_BYTES.to_string(),
            self.u32_at(BLOCK_BYTES_AT).to_string(),
        );
        check(
            "ag_blocks",
            AG_BLOCKS.to_string(),
            self.u64_at(AG_BLOCKS_AT).to_string(),
        );
        let block_count = self.u64_at(BLOCK_COUNT_AT);
        if block_count > BLOCK_COUNT_MAX {
            check(
                "block_count",
                format!("at most {BLOCK_COUNT_MAX}"),
                block_count.to_string(),
            );
        }
        if self.raw[RESERVED_AT..].iter().any(|&byte| byte != 0) {
            check("reserved", "zero".into(), "other bytes".into());
        }
        faults
    }

    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.raw[at..at + N]);
        bytes
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes_at(at))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes_at(at))
    }
}

/// What [`choose_superblock`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenSuperblock {
    /// The valid copy of the highest generation.
    pub superblock: Superblock,
    /// Why the other copy is not valid, when it is not. The segment is usable; the next superblock
    /// write that reaches that copy mends it.
    pub damaged_copy: Option<SuperblockError>,
}

/// Takes the valid copy of the highest generation out of the two raw copies of a segment. One
/// damaged copy is survivable; errors are [`SuperblockError::NewerFormat`] and
/// [`SuperblockError::BothDamaged`].
pub fn choose_superblock(
    copies: [&[u8; SUPERBLOCK_BYTES]; COPY_COUNT],
) -> Result<ChosenSuperblock, SuperblockError> {
    let verified = [0, 1].map(|copy| UnverifiedSuperblock::new(copy, copies[copy]).verify());
    match verified {
        // SUPER-5
        [Err(newer @ SuperblockError::NewerFormat { .. }), _]
        | [_, Err(newer @ SuperblockError::NewerFormat { .. })] => Err(newer),
        [Ok(first), Ok(second)] => {
            let superblock = if first.generation > second.generation {
                first
            } else {
                second
            };
            Ok(ChosenSuperblock {
                superblock,
                damaged_copy: None,
            })
        }
        [Ok(superblock), Err(damage)] | [Err(damage), Ok(superblock)] => Ok(ChosenSuperblock {
            superblock,
            damaged_copy: Some(damage),
        }),
        [Err(first), Err(second)] => Err(SuperblockError::BothDamaged {
            first: Box::new(first),
            second: Box::new(second),
        }),
    }
}

/// A field of a superblock that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    /// A name of [`FIELDS`], or `copy of generation` (`SUPER-3`).
    pub field: &'static str,
    /// What the field should hold.
    pub expected: String,
    /// What it holds.
    pub found: String,
}

impl std::fmt::Display for FieldFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} expected {}, found {}",
            self.field, self.expected, self.found
        )
    }
}

/// Why a superblock is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// One copy is torn, damaged, or no superblock at all.
    #[error("superblock copy {copy}: {}", list(faults))]
    Damaged {
        /// Which copy, 0 or 1.
        copy: usize,
        /// Every field that fails; never empty.
        faults: Vec<FieldFault>,
    },
    /// Neither copy is valid.
    #[error("{first}; {second}")]
    BothDamaged {
        /// What is wrong with copy 0.
        first: Box<SuperblockError>,
        /// What is wrong with copy 1.
        second: Box<SuperblockError>,
    },
    /// The segment was written by a newer Larder.
    #[error(
        "the segment has format version {found}, this larder reads up to {known}; upgrade larder"
    )]
    NewerFormat {
        /// The version in the superblock.
        found: u32,
        /// The newest version this build reads.
        known: u32,
    },
}

impl SuperblockError {
    /// Whether no copy even bears the magic: then the bytes were hardly ever a segment.
    pub fn is_foreign(&self) -> bool {
        match self {
            SuperblockError::Damaged { faults, .. } => {
                faults.iter().any(|fault| fault.field == "magic")
            }
            SuperblockError::BothDamaged { first, second } => {
                first.is_foreign() && second.is_foreign()
            }
            SuperblockError::NewerFormat { .. } => false,
        }
    }
}

fn list(faults: &[FieldFault]) -> String {
    faults
        .iter()
        .map(FieldFault::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn escape(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(generation: u64) -> Superblock {
        Superblock {
            generation,
            database_id: *b"0123456789abcdef",
            segment: SegmentIndex(3),
            block_count: 1 << 20,
            created_ns: -5,
        }
    }

    fn verify(copy: usize, raw: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        UnverifiedSuperblock::new(copy, raw).verify()
    }

    /// Makes the checksum right again after a test changed other bytes.
    fn reseal(raw: &mut [u8; SUPERBLOCK_BYTES]) {
        raw[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        let checksum = crc32c(raw).to_le_bytes();
        raw[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum);
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let raw = sample(0x0102).encode();
        let field = |name: &str| {
            let &(_, at, size, _) = FIELDS
                .iter()
                .find(|field| field.0 == name)
                .expect("a field");
            &raw[at..at + size]
        };
        assert_eq!(field("magic"), b"LARDSEG\0");
        assert_eq!(field("version"), [1, 0, 0, 0]);
        assert_eq!(field("generation"), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(field("database_id"), b"0123456789abcdef");
        assert_eq!(field("segment"), [3, 0, 0, 0]);
        assert_eq!(field("block_bytes"), [0, 16, 0, 0]);
        assert_eq!(field("ag_blocks"), [0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(field("block_count"), [0, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!(
            field("created_ns"),
            [0xfb, 255, 255, 255, 255, 255, 255, 255]
        );
        assert!(field("reserved").iter().all(|&byte| byte == 0));
    }

    #[test]
    fn every_bit_flip_is_refused() {
        let good = sample(6).encode();
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut raw = good;
            raw[bit / 8] ^= 1 << (bit % 8);
            let refused = verify(0, &raw).expect_err("SUPER-2");
            assert!(
                matches!(refused, SuperblockError::Damaged { .. }),
                "SUPER-2: {refused}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_named_and_refused() {
        let mut newer = sample(4).encode();
        newer[VERSION_AT] = 9;
        newer[RESERVED_AT] = 1; // A later version may use what is reserved now.
        reseal(&mut newer);
        let refused = verify(0, &newer).expect_err("SUPER-4");
        assert_eq!(
            refused,
            SuperblockError::NewerFormat {
                found: 9,
                known: VERSION
            }
        );
        let line = refused.to_string();
        assert!(
            line.contains("version 9")
                && line.contains("up to 1")
                && line.contains("upgrade larder")
        );
        let older = sample(7).encode();
        assert_eq!(choose_superblock([&newer, &older]), Err(refused), "SUPER-5");
    }

    #[test]
    fn a_copy_in_the_wrong_place_is_refused() {
        assert!(verify(0, &sample(8).encode()).is_ok());
        let refused = verify(1, &sample(8).encode()).expect_err("SUPER-3");
        assert!(
            refused
                .to_string()
                .contains("copy of generation expected 1, found 0")
        );
    }

    #[test]
    fn sealed_nonsense_is_refused_field_by_field() {
        for (at, size, name) in [
            (VERSION_AT, 4, "version"),
            (BLOCK_BYTES_AT, 4, "block_bytes"),
            (AG_BLOCKS_AT, 8, "ag_blocks"),
        ] {
            let mut raw = sample(0).encode();
            raw[at..at + size].fill(0);
            reseal(&mut raw);
            assert!(verify(0, &raw).expect_err(name).to_string().contains(name));
        }
        for (at, name) in [
            (BLOCK_COUNT_AT + 7, "block_count"),
            (SUPERBLOCK_BYTES - 1, "reserved"),
        ] {
            let mut raw = sample(0).encode();
            raw[at] = 0xff;
            reseal(&mut raw);
            assert!(verify(0, &raw).expect_err(name).to_string().contains(name));
        }
    }

    #[test]
    fn the_newest_valid_copy_is_chosen_and_one_torn_copy_survived() {
        let (old, new) = (sample(4).encode(), sample(5).encode());
        let chosen = choose_superblock([&old, &new]).expect("both valid");
        assert_eq!(
            (chosen.superblock.generation, chosen.damaged_copy),
            (5, None)
        );
        let newest_first = choose_superblock([&sample(6).encode(), &new]).expect("both valid");
        assert_eq!(newest_first.superblock.generation, 6);

        let mut torn = new;
        torn[..512].copy_from_slice(&sample(7).encode()[..512]);
        torn[60] ^= 1;
        let survived = choose_superblock([&old, &torn]).expect("one copy is enough");
        assert_eq!(survived.superblock.generation, 4);
        assert!(matches!(
            survived.damaged_copy,
            Some(SuperblockError::Damaged { copy: 1, .. })
        ));

        let zeros = [0; SUPERBLOCK_BYTES];
        let refused = choose_superblock([&zeros, &torn]).expect_err("none is valid");
        let line = refused.to_string();
        assert!(
            line.contains("copy 0: magic") && line.contains("copy 1: checksum"),
            "{line}"
        );
        assert!(!refused.is_foreign());
        assert!(
            choose_superblock([&zeros, &zeros])
                .expect_err("no segment")
                .is_foreign()
        );
    }

    #[test]
    fn the_longest_segment_round_trips() {
        let longest = Superblock {
            block_count: BLOCK_COUNT_MAX,
            ..sample(0)
        };
        assert_eq!(verify(0, &longest.encode()), Ok(longest), "FORMAT-3");
        assert!(longest.segment_bytes() <= i64::MAX as u64);
    }

    proptest! {
        #[test]
        fn round_trip(
            generation: u64, database_id: [u8; 16], segment: u32,
            block_count in 0..=BLOCK_COUNT_MAX, created_ns: i64
        ) {
            let superblock = Superblock {
                generation,
                database_id,
                segment: SegmentIndex(segment),
                block_count,
                created_ns,
            };
            let read = verify(superblock.copy_index(), &superblock.encode());
            prop_assert_eq!(read, Ok(superblock), "FORMAT-3");
        }

        #[test]
        fn garbage_never_panics(
            noise in prop::collection::vec(any::<u8>(), 80),
            copy in 0..2usize,
            sealed: bool,
        ) {
            let mut raw = [0; SUPERBLOCK_BYTES];
            raw[..noise.len()].copy_from_slice(&noise);
            if sealed {
                raw[..8].copy_from_slice(&MAGIC);
                raw[VERSION_AT..CHECKSUM_AT].copy_from_slice(&VERSION.to_le_bytes());
                reseal(&mut raw);
            }
            if let Ok(superblock) = verify(copy, &raw) {
                prop_assert_eq!(superblock.encode(), raw, "FORMAT-2");
            }
        }
    }
}
