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
//! * `SUPER-6` The segments of a database without copies say so: one copy, and nothing else of
//!   [`Member`]. What a build does not keep up it does not open.

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
pub const VERSION: u32 = 2;

/// The byte layout: (name, offset in bytes, size in bytes, meaning). docs/format.md repeats it.
pub const FIELDS: &[(&str, usize, usize, &str)] = &[
    ("magic", 0, 8, "`LARDSEG` and a zero byte"),
    ("version", 8, 4, "format version, u32; 2"),
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
    (
        "device",
        72,
        4,
        "number of the device among those that hold copies or stripes, u32",
    ),
    ("copies", 76, 4, "how often content is kept, u32; 1–3"),
    (
        "stripe_bytes",
        80,
        8,
        "bytes of a stripe, u64; 0: content is not striped",
    ),
    (
        "stale_since",
        88,
        8,
        "the commit from which on the device lacks writes, u64; 0: it lacks none",
    ),
    (
        "failure_group",
        96,
        32,
        "name of what fails together with the device, zero behind it",
    ),
    (
        "device_id",
        128,
        16,
        "random id of the device; zero: it is the only one",
    ),
    (
        "epoch",
        144,
        8,
        "epoch of the session that grew or shrank it last, u64; 0: sessions hold no leases",
    ),
    ("reserved", 152, 3944, "zero"),
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
const DEVICE_AT: usize = 72;
const COPIES_AT: usize = 76;
const STRIPE_BYTES_AT: usize = 80;
const STALE_SINCE_AT: usize = 88;
const FAILURE_GROUP_AT: usize = 96;
const DEVICE_ID_AT: usize = 128;
const EPOCH_AT: usize = 144;
const RESERVED_AT: usize = 152;

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
        DEVICE_AT,
        COPIES_AT,
        STRIPE_BYTES_AT,
        STALE_SINCE_AT,
        FAILURE_GROUP_AT,
        DEVICE_ID_AT,
        EPOCH_AT,
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
    /// What it is among the devices of its database.
    pub member: Member,
}

/// The most copies that a superblock may name.
pub const COPIES_MAX: u32 = 3;

/// What a device is among those that hold copies or stripes of the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its number among them.
    pub device: u32,
    /// How often content is kept, 1 to [`COPIES_MAX`].
    pub copies: u32,
    /// Bytes of a stripe; 0: content is not striped.
    pub stripe_bytes: u64,
    /// The commit from which on it lacks writes; 0: it lacks none.
    pub stale_since: u64,
    /// What fails together with it: a name, zero behind it.
    pub failure_group: [u8; 32],
    /// Random; zero: it is the only device.
    pub device_id: [u8; 16],
    /// Of the session that grew or shrank it last; 0: sessions hold no leases.
    pub epoch: u64,
}

impl Member {
    /// The only device of its database (`SUPER-6`).
    pub const ALONE: Member = Member {
        device: 0,
        copies: 1,
        stripe_bytes: 0,
        stale_since: 0,
        failure_group: [0; 32],
        device_id: [0; 16],
        epoch: 0,
    };
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
        put(DEVICE_AT, &self.member.device.to_le_bytes());
        put(COPIES_AT, &self.member.copies.to_le_bytes());
        put(STRIPE_BYTES_AT, &self.member.stripe_bytes.to_le_bytes());
        put(STALE_SINCE_AT, &self.member.stale_since.to_le_bytes());
        put(FAILURE_GROUP_AT, &self.member.failure_group);
        put(DEVICE_ID_AT, &self.member.device_id);
        put(EPOCH_AT, &self.member.epoch.to_le_bytes());
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
                member: Member {
                    device: self.u32_at(DEVICE_AT),
                    copies: self.u32_at(COPIES_AT),
                    stripe_bytes: self.u64_at(STRIPE_BYTES_AT),
                    stale_since: self.u64_at(STALE_SINCE_AT),
                    failure_group: self.bytes_at(FAILURE_GROUP_AT),
                    device_id: self.bytes_at(DEVICE_ID_AT),
                    epoch: self.u64_at(EPOCH_AT),
                },
            }),
            found if found > VERSION => Err(SuperblockError::NewerFormat {
                found,
                known: VERSION,
            }),
            found => Err(SuperblockError::OlderFormat {
                found,
                known: VERSION,
            }),
        }
    }

    /// Every field that cannot be right. Another version is only held to `SUPER-4`.
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
        if version == 0 {
            check("version", VERSION.to_string(), version.to_string());
        }
        if version != VERSION {
            return faults;
        }
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
        let copies = self.u32_at(COPIES_AT);
        if !(1..=COPIES_MAX).contains(&copies) {
            check("copies", format!("1 to {COPIES_MAX}"), copies.to_string());
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
        [Err(older @ SuperblockError::OlderFormat { .. }), Err(_)]
        | [Err(_), Err(older @ SuperblockError::OlderFormat { .. })] => Err(older),
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
    /// The segment was written by an older Larder.
    #[error(
        "the segment has format version {found}, this larder reads {known}; larder upgrade OLD NEW \
         converts the database"
    )]
    OlderFormat {
        /// The version in the superblock.
        found: u32,
        /// The version this build reads.
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
            SuperblockError::NewerFormat { .. } | SuperblockError::OlderFormat { .. } => false,
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
mod tests;
