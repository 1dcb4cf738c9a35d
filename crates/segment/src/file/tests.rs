//! Direct and cached requests: the same bytes, and what stays in memory.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn storage() -> (tempfile::TempDir, FileStorage) {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(DatabaseDir::open(directory.path()).unwrap());
    (directory, storage)
}

#[test]
fn segments_are_numbered_files() {
    let (_directory, storage) = storage();
    for index in [100_000, 0, 7] {
        storage.create_segment(SegmentIndex(index)).unwrap();
    }
    fs::write(storage.directory().join("7.seg"), "").unwrap();
    fs::write(storage.directory().join("notes.txt"), "").unwrap();
    let expected: Vec<_> = [0, 7, 100_000].map(SegmentIndex).into();
    assert_eq!(storage.segments().unwrap(), expected);
    assert!(
        storage
            .segment_path(SegmentIndex(7))
            .ends_with("segments/00007.seg")
    );
    assert!(storage.available_bytes().unwrap() > 0);
}

#[test]
fn each_refusal_says_why() {
    let (_directory, storage) = storage();
    let line =
        |result: io::Result<Arc<dyn Device>>| result.err().map(|error| error.to_string()).unwrap();
    storage.create_segment(SegmentIndex(0)).unwrap();
    assert!(line(storage.create_segment(SegmentIndex(0))).contains("exists already"));
    assert!(line(storage.open_segment(SegmentIndex(1))).contains("00001.seg is missing"));
    let path = storage.segment_path(SegmentIndex(0));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let refused = storage.open_segment(SegmentIndex(0)).err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("00000.seg is read-only"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, storage.segment_path(SegmentIndex(1))).unwrap();
    let linked = line(storage.open_segment(SegmentIndex(1)));
    assert!(linked.contains("hard links"), "DIRECTORY-2: {linked}");
}

#[test]
fn what_stands_in_the_place_of_the_directory_is_named() {
    let (directory, storage) = storage();
    std::os::unix::fs::symlink("/tmp", directory.path().join(SEGMENTS)).unwrap();
    let refused = storage.create_segment(SegmentIndex(0)).err().unwrap();
    let line = refused.to_string();
    assert!(line.contains("/segments: "), "{line}");
    assert!(line.contains("symbolic link"), "DIRECTORY-1: {line}");
    assert!(storage.segments().is_err());
}

#[test]
fn vectored_writes_longer_than_one_request_arrive_whole() {
    let (_directory, storage) = storage();
    let device = storage.create_segment(SegmentIndex(0)).unwrap();
    let bytes: Vec<u8> = (0..3 * SLICES_MAX).map(|i| i as u8).collect();
    let mut slices = vec![IoSlice::new(&[])];
    slices.extend(bytes.chunks(1).map(IoSlice::new));
    device.write_vectored_at(5, &slices).unwrap();
    let mut back = vec![0; bytes.len()];
    device.read_at(5, &mut back).unwrap();
    assert_eq!(back, bytes);
    let past_end = device.read_at(6, &mut back).unwrap_err();
    assert_eq!(past_end.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn the_lock_holds_between_two_openings() {
    let (_directory, storage) = storage();
    let first = storage.create_segment(SegmentIndex(0)).unwrap();
    first.lock().unwrap();
    let second = File::open(storage.segment_path(SegmentIndex(0))).unwrap();
    let try_lock = || rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(try_lock(), Err(Errno::WOULDBLOCK), "SEGMENT-6");
    first.unlock().unwrap();
    assert_eq!(try_lock(), Ok(()));
}

/// Direct or not, aligned or not: what was written last is read, also where the page cache
/// holds older bytes.
#[test]
fn direct_and_cached_requests_see_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    let place_of_it = DatabaseDir::open(place.path()).unwrap();
    let device = FileDevice::create(&place_of_it, Path::new("file")).unwrap();
    let mut model = vec![0; 3 << 20];
    device.write_at(0, &model).unwrap();
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
        (state >> 33) as usize % below
    };
    for round in 0..200u32 {
        let at = next(2 << 20) / ALIGN_BYTES * ALIGN_BYTES;
        let len = (1 + next(256)) * ALIGN_BYTES;
        let mut bytes = AlignedBuf::zeroed(len + 1);
        for byte in bytes.iter_mut() {
            *byte = next(256) as u8;
        }
        // Aligned memory may go directly, the other must not.
        let from = usize::from(round % 3 == 0);
        let bytes = &bytes[from..from + len];
        let (one, two) = bytes.split_at(len / 2 / ALIGN_BYTES * ALIGN_BYTES);
        device
            .write_vectored_at(at as u64, &[IoSlice::new(one), IoSlice::new(two)])
            .unwrap();
        model[at..at + len].copy_from_slice(bytes);

        let at = next(2 << 20) / ALIGN_BYTES * ALIGN_BYTES;
        let len = (1 + next(256)) * ALIGN_BYTES;
        let mut found = AlignedBuf::zeroed(len + 1);
        let from = usize::from(round % 2 == 0);
        let (one, two) = found[from..from + len].split_at_mut(ALIGN_BYTES);
        device
            .read_vectored_at(at as u64, &mut [IoSliceMut::new(one), IoSliceMut::new(two)])
            .unwrap();
        assert!(
            found[from..from + len] == model[at..at + len],
            "round {round}"
        );
        let mut one = AlignedBuf::zeroed(len);
        device.read_at(at as u64, &mut one).unwrap();
        assert!(one[..] == model[at..at + len], "round {round}");
    }
    let end = device.len_bytes().unwrap();
    let mut behind = AlignedBuf::zeroed(1 << 20);
    let missing = device.read_at(end - 4096, &mut behind).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::UnexpectedEof);
}

/// A file and the same through a device; `None` where nothing can be told.
fn device_and_probe(storage: &FileStorage) -> Option<(FileDevice, File)> {
    let name = Path::new("file");
    let device = FileDevice::create(&storage.database, name).unwrap();
    let probe = File::open(storage.database.join(name)).unwrap();
    if device.direct().is_none() || page_cache::has_all(&probe, 0, 1).is_none() {
        println!("not run: the host has no direct requests, or does not tell what is in memory");
        return None;
    }
    Some((device, probe))
}

const LEN: u64 = 1 << 20;

#[test]
fn what_is_read_a_second_time_is_kept_until_it_is_written() {
    let (_directory, storage) = storage();
    let Some((device, probe)) = device_and_probe(&storage) else {
        return;
    };
    let is_resident = || page_cache::has_all(&probe, LEN, LEN) == Some(true);
    let mut bytes = AlignedBuf::zeroed(LEN as usize);
    for round in 1..4 {
        bytes.fill(round);
        let slices = [IoSlice::new(&bytes)];
        device.write_vectored_at(LEN, &slices).unwrap();
        let mut found = AlignedBuf::zeroed(LEN as usize);
        for is_kept in [false, true, true] {
            device.read_at(LEN, &mut found).unwrap();
            assert!(found[..] == bytes[..]);
            assert_eq!(device.is_in_memory(LEN, LEN), is_kept);
            assert_eq!(is_resident(), is_kept, "round {round}");
        }
        // Short reads say nothing of long ones.
        device.read_at(0, &mut [0; 4096]).unwrap();
        assert!(!device.is_in_memory(0, LEN));
    }
    device
        .write_vectored_at(LEN, &[IoSlice::new(&bytes)])
        .unwrap();
    device.read_at(LEN, &mut bytes).unwrap();
    device.read_at(LEN, &mut bytes).unwrap();
    device.truncate(LEN).unwrap();
    assert!(!device.is_in_memory(LEN, LEN));
}

#[test]
fn new_content_is_in_memory_until_it_is_evicted() {
    let (_directory, storage) = storage();
    let Some((device, probe)) = device_and_probe(&storage) else {
        return;
    };
    let mut bytes = AlignedBuf::zeroed(LEN as usize);
    for round in 1..4 {
        bytes.fill(round);
        for len in [4096, 200 << 10, LEN as usize] {
            let slices = [IoSlice::new(&bytes[..len])];
            device.write_cached_at(LEN, &slices).unwrap();
            assert_eq!(page_cache::has_all(&probe, LEN, len as u64), Some(true));
        }
        assert!(device.is_in_memory(LEN, LEN));
        assert!(
            !device.is_in_memory(LEN, 4096),
            "a short read is never asked for"
        );
        device.flush().unwrap();
        rustix::fs::fadvise(&probe, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(!device.is_in_memory(LEN, LEN));
        // As if it had never been read: directly, and the second time it is kept.
        for is_kept in [false, true] {
            let mut found = AlignedBuf::zeroed(LEN as usize);
            device.read_at(LEN, &mut found).unwrap();
            assert!(found[..] == bytes[..]);
            assert_eq!(device.is_in_memory(LEN, LEN), is_kept, "round {round}");
        }
    }
}

#[test]
fn reads_past_the_cache_leave_nothing_in_it() {
    let (_directory, storage) = storage();
    let Some((device, probe)) = device_and_probe(&storage) else {
        return;
    };
    let mut bytes = AlignedBuf::zeroed(LEN as usize);
    bytes.fill(7);
    device
        .write_vectored_at(0, &[IoSlice::new(&bytes)])
        .unwrap();
    for len in [4096, 200 << 10, LEN as usize] {
        let mut found = AlignedBuf::zeroed(len);
        for _ in 0..3 {
            found.fill(0);
            let slices = &mut [IoSliceMut::new(&mut found)];
            device.read_past_cache_at(0, slices).unwrap();
            assert!(found[..] == bytes[..len]);
            assert!(!device.is_in_memory(0, LEN));
            assert_eq!(page_cache::has_all(&probe, 0, 4096), Some(false));
        }
    }
}

#[test]
fn a_host_without_direct_requests_is_served_through_the_page_cache() {
    let (_directory, storage) = storage();
    storage.create_segment(SegmentIndex(0)).unwrap();
    let name = segment_name(SegmentIndex(0));
    let device = FileDevice::open(&storage.database, &name).unwrap();
    device.refuses_direct.store(true, Ordering::Relaxed);
    let mut bytes = AlignedBuf::zeroed(1 << 20);
    bytes
        .iter_mut()
        .zip(0u32..)
        .for_each(|(byte, i)| *byte = (i % 251) as u8);
    device
        .write_vectored_at(0, &[IoSlice::new(&bytes)])
        .unwrap();
    let mut found = vec![0; bytes.len()];
    device.read_at(0, &mut found).unwrap();
    assert!(found[..] == bytes[..]);
    assert_eq!(device.requests_in_flight_max(), 1);
}

/// New content goes through the page cache beside moves that do not, in blocks that lie next to
/// each other. The kernel keeps many blocks in one piece of memory; where it could not drop one
/// after a direct write, the next flush would fail.
#[test]
fn cached_and_direct_writes_side_by_side_disturb_each_other_in_nothing() {
    const PART: usize = 132 << 10;
    const PARTS: u64 = 64;
    let (_directory, storage) = storage();
    let Some((device, probe)) = device_and_probe(&storage) else {
        return;
    };
    let at = |part: u64| part * PART as u64;
    let zeros = AlignedBuf::zeroed(PART);
    for part in 0..PARTS {
        device.write_at(at(part), &zeros).unwrap();
    }
    device.flush().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    // Each has every other part for itself.
    let write = |first: u64, is_cached: bool| {
        let mut bytes = AlignedBuf::zeroed(PART);
        let mut round = 0u64;
        while std::time::Instant::now() < until {
            round += 1;
            for part in (first..PARTS).step_by(2) {
                bytes.fill((part + round) as u8);
                let slices = [IoSlice::new(&bytes)];
                match is_cached {
                    true => device.write_cached_at(at(part), &slices).unwrap(),
                    false => device.write_vectored_at(at(part), &slices).unwrap(),
                }
                if part % 8 < 2 {
                    device.flush().unwrap();
                }
            }
        }
        let mut found = AlignedBuf::zeroed(PART);
        for part in (first..PARTS).step_by(2) {
            device.read_at(at(part), &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == (part + round) as u8));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(0, true));
        scope.spawn(|| write(1, false));
        // The kernel reads ahead, over all bounds of parts.
        scope.spawn(|| {
            let mut found = AlignedBuf::zeroed(32 << 10);
            while std::time::Instant::now() < until {
                rustix::fs::fadvise(&probe, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                for at in (0..at(PARTS)).step_by(found.len()) {
                    device.read_at(at, &mut found).unwrap();
                }
            }
        });
    });
}
