//! Tests of a segment on files, and on a device in memory that fails when told to.

use super::*;
use crate::device::Storage;
use crate::file::FileStorage;
use larder_format::superblock::MAGIC;
use proptest::prelude::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

const ID: [u8; 16] = *b"database-under-t";
const SEGMENT: SegmentIndex = SegmentIndex(0);
const BLOCK: usize = BLOCK_BYTES as usize;
/// Zeros in one request.
const ZEROS: u64 = 4 << 20;

/// A device in memory. Everything it does is recorded.
#[derive(Default)]
struct MemoryDevice {
    state: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    /// Requests since the last look: `(offset, length)` of writes, `None` for a flush.
    log: Vec<Option<(u64, u64)>>,
    capacity_bytes: Option<u64>,
    fails_write: bool,
    fails_flush: bool,
}

impl MemoryDevice {
    fn change<T>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// A device with the same bytes, as a reboot or another session would find them.
    fn copy(&self) -> Arc<MemoryDevice> {
        let bytes = self.change(|memory| memory.bytes.clone());
        Arc::new(MemoryDevice {
            state: Mutex::new(Memory {
                bytes,
                ..Memory::default()
            }),
        })
    }
}

impl Device for MemoryDevice {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.change(|memory| {
            let at = offset_bytes as usize;
            let source = memory
                .bytes
                .get(at..at + buf.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(source);
            Ok(())
        })
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(|memory| {
            if memory.fails_write {
                return Err(io::Error::other("the test pulled the cable"));
            }
            let end = offset_bytes + bytes.len() as u64;
            if memory.capacity_bytes.is_some_and(|capacity| end > capacity) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if memory.bytes.len() < end as usize {
                memory.bytes.resize(end as usize, 0xee); // What was never written is not zero.
            }
            memory.bytes[offset_bytes as usize..end as usize].copy_from_slice(bytes);
            memory.log.push(Some((offset_bytes, bytes.len() as u64)));
            Ok(())
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.change(|memory| {
            memory.log.push(None);
            match memory.fails_flush {
                true => Err(io::Error::other("the test lost a page")),
                false => Ok(()),
            }
        })
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.change(|memory| memory.bytes.len() as u64))
    }

    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        self.change(|memory| memory.bytes.truncate(len_bytes as usize));
        Ok(())
    }
}

fn in_memory(block_count: u64) -> (Arc<MemoryDevice>, Segment) {
    let device = Arc::new(MemoryDevice::default());
    let segment = Segment::create(device.clone(), ID, SEGMENT, 42).unwrap();
    assert_eq!(segment.grow(block_count).unwrap(), block_count);
    device.change(|memory| memory.log.clear());
    (device, segment)
}

fn in_file(block_count: u64) -> (tempfile::TempDir, FileStorage) {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(larder_directory::DatabaseDir::open(directory.path()).unwrap());
    let segment =
        Segment::create(storage.create_segment(SEGMENT).unwrap(), ID, SEGMENT, 42).unwrap();
    segment.grow(block_count).unwrap();
    (directory, storage)
}

fn reopen(storage: &FileStorage) -> Result<Segment, SegmentError> {
    Segment::open(storage.open_segment(SEGMENT).unwrap(), ID, SEGMENT)
}

fn damage(storage: &FileStorage, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new()
        .write(true)
        .open(storage.segment_path(SEGMENT))
        .unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn cut(storage: &FileStorage, len_bytes: u64) {
    let file = OpenOptions::new()
        .write(true)
        .open(storage.segment_path(SEGMENT))
        .unwrap();
    file.set_len(len_bytes).unwrap();
}

fn pattern(block_count: usize, seed: u8) -> (Vec<u8>, Vec<Checksum>) {
    let bytes: Vec<u8> = (0..block_count * BLOCK)
        .map(|i| (i / 7) as u8 ^ seed)
        .collect();
    let checksums = bytes.chunks(BLOCK).map(block_checksum).collect();
    (bytes, checksums)
}

fn refusal(result: Result<Segment, SegmentError>) -> (SegmentError, String) {
    let error = result.err().expect("the segment must be refused");
    let line = error.to_string();
    assert!(!line.contains('\n'), "one line: {line}");
    (error, line)
}

#[test]
fn what_is_written_is_read_after_reopening() {
    let (_directory, storage) = in_file(100);
    let (bytes, checksums) = pattern(5, 1);
    let segment = reopen(&storage).unwrap();
    assert_eq!((segment.block_count(), segment.index()), (100, SEGMENT));
    segment
        .write(95, &[&bytes[..BLOCK], &[], &bytes[BLOCK..]])
        .unwrap();
    segment.flush().unwrap();
    drop(segment);
    let segment = reopen(&storage).unwrap();
    let mut back = vec![0; bytes.len()];
    segment.read(95, &mut back, &checksums).unwrap();
    assert_eq!(back, bytes);
    assert!(segment.check_superblock().unwrap().is_none());
}

#[test]
fn growth_zeroes_what_it_adds() {
    let (device, segment) = in_memory(3);
    let zero = block_checksum(&[0; BLOCK]);
    assert_eq!(segment.grow(2000).unwrap(), 2000);
    segment
        .read(0, &mut vec![1; 2000 * BLOCK], &vec![zero; 2000])
        .unwrap();
    assert_eq!(segment.grow(1000).unwrap(), 2000, "growth never shrinks");
    // SEGMENT-2 and SEGMENT-5: zeros, flush, one copy, flush, the other copy, flush.
    let log = device.change(|memory| memory.log.clone());
    let from = block_offset(3);
    let expected = [
        Some((from, ZEROS)),
        Some((from + ZEROS, 1997 * BLOCK_BYTES - ZEROS)),
        None,
        Some((0, 4096)),
        None,
        Some((4096, 4096)),
        None,
    ];
    assert_eq!(log, expected);
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let (_directory, storage) = in_file(16);
    let segment = reopen(&storage).unwrap();
    let (bytes, checksums) = pattern(4, 9);
    segment.write(8, &[&bytes]).unwrap();
    segment.flush().unwrap();
    damage(
        &storage,
        block_offset(10) + 77,
        &[bytes[2 * BLOCK + 77] ^ 0x20],
    );
    let error = segment
        .read(8, &mut vec![0; 4 * BLOCK], &checksums)
        .unwrap_err();
    assert!(
        matches!(error, SegmentError::Checksum { segment: SEGMENT, block: 10, expected, found }
            if expected == checksums[2] && found != expected),
        "SEGMENT-3: {error}"
    );
    assert!(error.to_string().contains("segment 0 block 10 is damaged"));
    segment
        .read(8, &mut vec![0; 2 * BLOCK], &checksums[..2])
        .unwrap();
    segment
        .read(11, &mut vec![0; BLOCK], &checksums[3..])
        .unwrap();
}

#[test]
fn either_superblock_copy_may_be_torn_but_not_both() {
    for torn in 0..COPY_COUNT {
        let (_directory, storage) = in_file(16);
        damage(&storage, copy_offset_bytes(torn) + 50, &[0xff; 512]);
        let segment = reopen(&storage).unwrap();
        assert_eq!(segment.block_count(), 16, "SEGMENT-5");
        assert!(matches!(segment.check_superblock().unwrap(),
            Some(SuperblockError::Damaged { copy, .. }) if copy == torn));
        assert_eq!(segment.grow(17).unwrap(), 17);
        assert!(
            segment.check_superblock().unwrap().is_none(),
            "growth mends the copy"
        );

        damage(&storage, copy_offset_bytes(0) + 50, &[0xff; 512]);
        damage(&storage, copy_offset_bytes(1) + 44, &[0; 4]);
        let (error, line) = refusal(reopen(&storage));
        assert!(matches!(error, SegmentError::TornSuperblock { .. }));
        assert!(
            line.contains("copy 0: checksum") && line.contains("copy 1: checksum"),
            "{line}"
        );
        assert!(
            line.contains("block_bytes expected 4096, found 0"),
            "{line}"
        );
    }
}

#[test]
fn foreign_and_newer_and_misplaced_segments_are_refused() {
    let (_directory, storage) = in_file(4);
    let device = storage.open_segment(SEGMENT).unwrap();
    let (error, line) = refusal(Segment::open(device.clone(), [7; 16], SEGMENT));
    assert!(matches!(
        error,
        SegmentError::WrongDatabase { found: ID, .. }
    ));
    assert!(line.contains("07070707"), "{line}");
    let (error, _) = refusal(Segment::open(device, ID, SegmentIndex(1)));
    assert!(matches!(
        error,
        SegmentError::WrongSegment { found: SEGMENT, .. }
    ));

    // A newer version, as its writer would seal it (SUPER-4).
    let mut newer = [0; SUPERBLOCK_BYTES];
    newer[..8].copy_from_slice(&MAGIC);
    newer[8] = 3;
    let checksum = larder_format::checksum::crc32c(&newer).to_le_bytes();
    newer[12..16].copy_from_slice(&checksum);
    damage(&storage, 4096, &newer);
    let (error, line) = refusal(reopen(&storage));
    assert!(matches!(
        error,
        SegmentError::NewerFormat {
            found: 3,
            known: 2,
            ..
        }
    ));
    assert!(
        line.contains("version 3") && line.contains("up to 2") && line.contains("upgrade larder")
    );

    // Of format 1, and of one among several devices.
    let whole = std::fs::read(storage.segment_path(SEGMENT)).unwrap();
    let mut older = newer;
    older[8] = 1;
    older[12..16].fill(0);
    let checksum = larder_format::checksum::crc32c(&older).to_le_bytes();
    older[12..16].copy_from_slice(&checksum);
    damage(&storage, 0, &[older, older].concat());
    let (error, line) = refusal(reopen(&storage));
    assert!(matches!(
        error,
        SegmentError::OlderFormat {
            found: 1,
            known: 2,
            ..
        }
    ));
    assert!(line.contains("larder upgrade OLD NEW"), "{line}");
    let mut mirrored = Superblock {
        generation: 0,
        database_id: ID,
        segment: SEGMENT,
        block_count: 4,
        created_ns: 0,
        member: Member {
            copies: 2,
            ..Member::ALONE
        },
    };
    damage(&storage, 0, &mirrored.encode());
    mirrored.generation = 1;
    damage(&storage, 4096, &mirrored.encode());
    let (error, _) = refusal(reopen(&storage));
    assert!(matches!(error, SegmentError::HasCopies { .. }), "SUPER-6");
    damage(&storage, 0, &whole[..4096]);

    damage(&storage, 0, &[b'x'; 8192]);
    assert!(matches!(
        refusal(reopen(&storage)).0,
        SegmentError::NotASegment { .. }
    ));
    cut(&storage, 100);
    assert!(matches!(
        refusal(reopen(&storage)).0,
        SegmentError::NotASegment { .. }
    ));
}

#[test]
fn truncated_segments_are_refused() {
    for len_bytes in [block_offset(16) - 1, DATA_OFFSET_BYTES, 5000, 4096, 0] {
        let (_directory, storage) = in_file(16);
        cut(&storage, len_bytes);
        let (error, line) = refusal(reopen(&storage));
        let least = if len_bytes == 0 {
            DATA_OFFSET_BYTES
        } else {
            block_offset(16)
        };
        assert!(
            matches!(error, SegmentError::Truncated { expected_bytes, found_bytes, .. }
                if expected_bytes == least && found_bytes == len_bytes),
            "SEGMENT-1: {line}"
        );
    }
    let (_directory, storage) = in_file(16);
    let segment = reopen(&storage).unwrap();
    cut(&storage, block_offset(12));
    let error = segment
        .read(11, &mut vec![0; 2 * BLOCK], &[0; 2])
        .unwrap_err();
    assert!(matches!(
        error,
        SegmentError::Truncated { expected_bytes, .. } if expected_bytes == block_offset(13)
    ));
}

#[test]
fn blocks_that_are_not_there_are_refused() {
    let (device, segment) = in_memory(8);
    let (bytes, checksums) = pattern(2, 0);
    for start_block in [7, 8, u64::MAX] {
        let error = segment.write(start_block, &[&bytes]).unwrap_err();
        assert!(
            matches!(
                error,
                SegmentError::OutOfRange {
                    segment_blocks: 8,
                    ..
                }
            ),
            "SEGMENT-1"
        );
        let error = segment
            .read(start_block, &mut vec![0; 2 * BLOCK], &checksums)
            .unwrap_err();
        assert!(
            matches!(
                error,
                SegmentError::OutOfRange {
                    segment_blocks: 8,
                    ..
                }
            ),
            "SEGMENT-1"
        );
    }
    // Another session grows the segment: this one finds out by itself.
    Segment::open(device, ID, SEGMENT).unwrap().grow(9).unwrap();
    segment.write(7, &[&bytes]).unwrap();
    assert_eq!(segment.block_count(), 9, "SEGMENT-6");
}

#[test]
fn a_full_host_keeps_the_old_size() {
    let (device, segment) = in_memory(8);
    let old_bytes = device.len_bytes().unwrap();
    device.change(|memory| memory.capacity_bytes = Some(old_bytes + (5 << 20)));
    let error = segment.grow(4000).unwrap_err();
    assert!(matches!(
        error,
        SegmentError::NoSpace { wanted_bytes, .. } if wanted_bytes == 3992 * BLOCK_BYTES
    ));
    assert_eq!(segment.block_count(), 8, "SEGMENT-2");
    assert_eq!(
        device.len_bytes().unwrap(),
        old_bytes,
        "what was written went back"
    );
    assert_eq!(
        Segment::open(device.copy(), ID, SEGMENT)
            .unwrap()
            .block_count(),
        8
    );
    segment.write(0, &[&[1; BLOCK]]).unwrap();
    segment.flush().unwrap();
    device.change(|memory| memory.capacity_bytes = None);
    assert_eq!(segment.grow(4000).unwrap(), 4000);
}

#[test]
fn every_crash_in_growth_leaves_a_valid_size() {
    let (device, _segment) = in_memory(8);
    let before = device.copy();
    let grown = Segment::open(device.clone(), ID, SEGMENT).unwrap();
    grown.grow(2000).unwrap();
    let (log, after) = device.change(|memory| (memory.log.clone(), memory.bytes.clone()));
    let writes: Vec<(u64, u64)> = log.into_iter().flatten().collect();
    for done in 0..=writes.len() {
        for torn_bytes in [0, 512, 4096] {
            let crashed = before.copy();
            for (i, &(at, len)) in writes.iter().enumerate().take(done + 1) {
                let len = if i < done { len } else { torn_bytes.min(len) };
                let range = at as usize..(at + len) as usize;
                crashed.write_at(at, &after[range]).unwrap();
            }
            let reopened = Segment::open(crashed, ID, SEGMENT).unwrap();
            let size = reopened.block_count();
            let durable = writes[..done]
                .iter()
                .filter(|write| write.0 < DATA_OFFSET_BYTES)
                .count()
                > 0;
            assert!(
                size == 2000 || (size == 8 && !durable),
                "SEGMENT-2: {size} after {done} writes"
            );
            assert_eq!(reopened.grow(2000).unwrap(), 2000);
            let zero = block_checksum(&[0; BLOCK]);
            reopened
                .read(8, &mut vec![1; 1992 * BLOCK], &vec![zero; 1992])
                .unwrap();
        }
    }
}

/// As for growth: each prefix of the writes, the last one torn; the cut comes after all of them.
#[test]
fn every_crash_in_shrinking_leaves_a_valid_size() {
    let (device, _segment) = in_memory(2000);
    let before = device.copy();
    let shrunk = Segment::open(device.clone(), ID, SEGMENT).unwrap();
    shrunk.shrink(8).unwrap();
    assert_eq!(shrunk.block_count(), 8);
    let after = device.change(|memory| memory.bytes.clone());
    assert_eq!(after.len() as u64, block_offset(8), "the host has it back");
    let log = device.change(|memory| memory.log.clone());
    assert_eq!(log.last(), Some(&None), "SEGMENT-7: flushed before the cut");
    let writes: Vec<(u64, u64)> = log.into_iter().flatten().collect();
    assert_eq!(writes.len(), COPY_COUNT, "SEGMENT-7");
    for done in 0..=writes.len() {
        for torn_bytes in [0, 512, 4096] {
            let crashed = before.copy();
            for (i, &(at, len)) in writes.iter().enumerate().take(done + 1) {
                let len = if i < done { len } else { torn_bytes.min(len) };
                let range = at as usize..(at + len) as usize;
                crashed.write_at(at, &after[range]).unwrap();
            }
            // The cut may be durable before the power fails, or not.
            for is_cut in [false, true] {
                if is_cut && done < writes.len() {
                    continue; // SEGMENT-7: it comes after both flushes.
                }
                if is_cut {
                    crashed.truncate(block_offset(8)).unwrap();
                }
                let reopened = Segment::open(crashed.copy(), ID, SEGMENT).unwrap();
                let size = reopened.block_count();
                assert!(
                    size == 8 || (size == 2000 && done == 0),
                    "SEGMENT-7: {size}"
                );
                assert_eq!(reopened.grow(2000).unwrap(), 2000);
                reopened.write(1999, &[&[7; BLOCK]]).unwrap();
            }
        }
    }
}

#[test]
fn another_session_learns_that_a_segment_is_shorter() {
    let (_directory, storage) = in_file(2000);
    let (one, two) = (reopen(&storage).unwrap(), reopen(&storage).unwrap());
    one.shrink(100).unwrap();
    assert_eq!(two.block_count(), 2000, "it has not looked yet");
    assert_eq!(two.refresh().unwrap(), 100);
    let refused = two.write(100, &[&[1; BLOCK]]);
    assert!(matches!(refused, Err(SegmentError::OutOfRange { .. })));
    assert_eq!(two.grow(300).unwrap(), 300);
    one.shrink(400).unwrap();
    assert_eq!(one.block_count(), 300, "nothing to cut");
}

#[test]
fn a_failed_flush_poisons() {
    let (device, segment) = in_memory(8);
    let block = [3; BLOCK];
    segment.write(0, &[&block]).unwrap();
    device.change(|memory| memory.fails_flush = true);
    let error = segment.flush().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("flush failed: the test lost a page"),
        "{error}"
    );
    device.change(|memory| {
        memory.fails_flush = false;
        memory.log.clear();
    });
    assert!(
        matches!(segment.flush(), Err(SegmentError::Poisoned { .. })),
        "SEGMENT-4"
    );
    assert!(
        matches!(
            segment.write(0, &[&block]),
            Err(SegmentError::Poisoned { .. })
        ),
        "SEGMENT-4"
    );
    assert!(
        matches!(segment.grow(9), Err(SegmentError::Poisoned { .. })),
        "SEGMENT-4"
    );
    assert_eq!(
        device.change(|memory| memory.log.len()),
        0,
        "the device is not touched again"
    );
    segment
        .read(0, &mut [0; BLOCK], &[block_checksum(&block)])
        .unwrap();
    Segment::open(device, ID, SEGMENT).unwrap().flush().unwrap();
}

#[test]
fn a_failed_write_poisons() {
    let (device, segment) = in_memory(8);
    device.change(|memory| memory.fails_write = true);
    let error = segment.write(2, &[&[3; BLOCK]]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("write of 1 blocks at block 2 failed"),
        "{error}"
    );
    device.change(|memory| memory.fails_write = false);
    assert!(
        matches!(segment.flush(), Err(SegmentError::Poisoned { .. })),
        "SEGMENT-4"
    );
}

#[test]
fn reads_and_writes_go_on_while_the_segment_grows() {
    let (_directory, storage) = in_file(16);
    let segment = reopen(&storage).unwrap();
    let (bytes, checksums) = pattern(16, 5);
    std::thread::scope(|scope| {
        let growth = scope.spawn(|| segment.grow(20_000));
        loop {
            segment.write(0, &[&bytes]).unwrap();
            segment
                .read(0, &mut vec![0; bytes.len()], &checksums)
                .unwrap();
            if growth.is_finished() {
                break;
            }
        }
        assert_eq!(growth.join().unwrap().unwrap(), 20_000);
    });
    assert_eq!(reopen(&storage).unwrap().block_count(), 20_000);
}

#[test]
fn two_sessions_that_grow_at_once_keep_each_others_data() {
    let (_directory, storage) = in_file(0);
    std::thread::scope(|scope| {
        for session in 0..4u8 {
            let storage = &storage;
            scope.spawn(move || {
                let segment = reopen(storage).unwrap();
                for step in 1..=8u64 {
                    segment.grow(step * 64).unwrap();
                    let mine = (step - 1) * 64 + u64::from(session);
                    segment.write(mine, &[&[session + 1; BLOCK]]).unwrap();
                }
            });
        }
    });
    let segment = reopen(&storage).unwrap();
    for step in 0..8u64 {
        for session in 0..4u8 {
            let expected = block_checksum(&[session + 1; BLOCK]);
            let at = step * 64 + u64::from(session);
            segment
                .read(at, &mut [0; BLOCK], &[expected])
                .expect("SEGMENT-6: zeros must not overwrite it");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_segment_behaves_like_an_array(
        writes in prop::collection::vec(
            (0..64u64, prop::collection::vec(1..4usize, 1..4), any::<u8>()),
            1..12,
        )
    ) {
        let (_directory, storage) = in_file(80);
        let segment = reopen(&storage).unwrap();
        let mut model = vec![0; 80 * BLOCK];
        for (start_block, lengths, seed) in writes {
            let (bytes, _) = pattern(lengths.iter().sum(), seed);
            let mut rest = bytes.as_slice();
            let buffers: Vec<&[u8]> = lengths.iter().map(|&len| {
                rest.split_off(..len * BLOCK).unwrap()
            }).collect();
            segment.write(start_block, &buffers).unwrap();
            model[start_block as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        }
        let mut back = vec![1; model.len()];
        let checksums: Vec<Checksum> = model.chunks(BLOCK).map(block_checksum).collect();
        segment.read(0, &mut back, &checksums).unwrap();
        prop_assert_eq!(back, model);
    }
}
