//! What superblocks say, and what is refused.

use super::*;
use proptest::prelude::*;

fn sample(generation: u64) -> Superblock {
    Superblock {
        generation,
        database_id: *b"0123456789abcdef",
        segment: SegmentIndex(3),
        block_count: 1 << 20,
        created_ns: -5,
        member: Member::ALONE,
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
    assert_eq!(field("version"), [2, 0, 0, 0]);
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
    assert_eq!(field("copies"), [1, 0, 0, 0], "SUPER-6");
    let rest = RESERVED_AT + field("reserved").len();
    assert_eq!(rest, SUPERBLOCK_BYTES, "SUPER-1");
    let others = [&raw[DEVICE_AT..COPIES_AT], &raw[STRIPE_BYTES_AT..]].concat();
    assert!(others.iter().all(|&byte| byte == 0), "SUPER-6");
}

#[test]
fn an_older_version_is_refused_with_what_carries_it_over() {
    let older = |generation| {
        let mut raw = sample(generation).encode();
        raw[VERSION_AT] = 1;
        raw[COPIES_AT] = 0;
        reseal(&mut raw);
        raw
    };
    let refused = choose_superblock([&older(4), &older(5)]).expect_err("SUPER-4");
    assert!(matches!(
        refused,
        SuperblockError::OlderFormat {
            found: 1,
            known: VERSION
        }
    ));
    assert!(refused.to_string().contains("larder upgrade OLD NEW"));
    assert!(!refused.is_foreign());
    let mended = choose_superblock([&sample(6).encode(), &older(5)]).expect("the new one");
    assert_eq!(mended.superblock.generation, 6);
    assert!(mended.damaged_copy.is_some());
    let torn = [0; SUPERBLOCK_BYTES];
    let refused = choose_superblock([&torn, &older(5)]).expect_err("SUPER-4");
    assert!(matches!(refused, SuperblockError::OlderFormat { .. }));
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
        line.contains("version 9") && line.contains("up to 2") && line.contains("upgrade larder")
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
        (COPIES_AT, "copies"),
        (STRIPE_BYTES_AT - 1, "copies"),
        (RESERVED_AT, "reserved"),
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
        block_count in 0..=BLOCK_COUNT_MAX, created_ns: i64,
        device: u32, copies in 1..=COPIES_MAX, stripe_bytes: u64, stale_since: u64,
        failure_group: [u8; 32], device_id: [u8; 16], epoch: u64
    ) {
        let superblock = Superblock {
            generation,
            database_id,
            segment: SegmentIndex(segment),
            block_count,
            created_ns,
            member: Member {
                device,
                copies,
                stripe_bytes,
                stale_since,
                failure_group,
                device_id,
                epoch,
            },
        };
        let read = verify(superblock.copy_index(), &superblock.encode());
        prop_assert_eq!(read, Ok(superblock), "FORMAT-3");
    }

    #[test]
    fn garbage_never_panics(
        noise in prop::collection::vec(any::<u8>(), 160),
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
