//! Simulated segment storage: memory instead of files, with a recorder and with faults on demand.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use larder_segment::format::SegmentIndex;
use larder_segment::{Device, Storage};

use crate::disk::Disk;
use crate::event::{Event, FileName, Payload, SEGMENTS, segment_file};
use crate::image::Image;
use crate::record::Recorder;

/// Segment devices in memory. Clones share them.
#[derive(Clone, Default)]
pub struct SimStorage {
    devices: Arc<Mutex<BTreeMap<SegmentIndex, Arc<SimDevice>>>>,
    recorder: Option<Recorder>,
    faults: Arc<Faults>,
}

impl SimStorage {
    /// No segments, no recorder.
    pub fn new() -> SimStorage {
        SimStorage::default()
    }

    /// No segments; every write, flush, … goes to `recorder`.
    pub fn recording(recorder: &Recorder) -> SimStorage {
        SimStorage {
            recorder: Some(recorder.clone()),
            ..SimStorage::default()
        }
    }

    /// The segments of `disk`, as after a restart; what happens to them next goes to `recorder`.
    pub fn load(disk: &Disk, recorder: Option<&Recorder>) -> SimStorage {
        let storage = SimStorage {
            recorder: recorder.cloned(),
            ..SimStorage::default()
        };
        for (name, image) in disk.segments() {
            let index = name
                .strip_prefix(SEGMENTS)
                .and_then(|name| name.strip_prefix('/')?.strip_suffix(".seg")?.parse().ok())
                .unwrap_or_else(|| panic!("'{name}' is no segment's name"));
            let segment = SegmentIndex(index);
            let device = storage.device(segment, image.clone());
            hold(&storage.devices).insert(segment, device);
        }
        storage
    }

    /// What shall go wrong from now on.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The device of an existing segment.
    pub fn find_device(&self, segment: SegmentIndex) -> Option<Arc<SimDevice>> {
        hold(&self.devices).get(&segment).cloned()
    }

    fn device(&self, segment: SegmentIndex, image: Image) -> Arc<SimDevice> {
        hold(&self.faults.lengths).insert(segment, image.len_bytes());
        Arc::new(SimDevice {
            segment,
            file: segment_file(segment),
            image: Mutex::new(image),
            is_locked: Mutex::new(false),
            unlocked: Condvar::new(),
            recorder: self.recorder.clone(),
            faults: self.faults.clone(),
        })
    }
}

impl Storage for SimStorage {
    fn open_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        let device = self.find_device(segment).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("simulated segment {segment} is missing"),
            )
        })?;
        Ok(device)
    }

    fn create_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        let mut devices = hold(&self.devices);
        if devices.contains_key(&segment) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let device = self.device(segment, Image::default());
        devices.insert(segment, device.clone());
        if let Some(recorder) = &self.recorder {
            // As FileStorage does: the directory is synced before the call returns.
            recorder.push(Event::Create {
                file: device.file.clone(),
            });
            recorder.push(Event::SyncNames {
                directory: SEGMENTS.into(),
            });
        }
        Ok(device)
    }

    fn segments(&self) -> io::Result<Vec<SegmentIndex>> {
        Ok(hold(&self.devices).keys().copied().collect())
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let used: u64 = hold(&self.faults.lengths).values().sum();
        Ok(self
            .faults
            .host_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(used))
    }
}

/// Faults to come; none at first. Counters count calls on all devices of one storage.
#[derive(Debug)]
pub struct Faults {
    /// Writes until one fails; 0: none will.
    write_countdown: AtomicU64,
    /// Flushes until one fails; 0: none will.
    flush_countdown: AtomicU64,
    host_bytes: AtomicU64,
    lengths: Mutex<BTreeMap<SegmentIndex, u64>>,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            write_countdown: AtomicU64::new(0),
            flush_countdown: AtomicU64::new(0),
            host_bytes: AtomicU64::new(1 << 40),
            lengths: Mutex::default(),
        }
    }
}

impl Faults {
    /// The `nth` write from now (1: the next) fails with EIO after half of it reached the device.
    pub fn fail_write(&self, nth: u64) {
        self.write_countdown.store(nth, Ordering::Relaxed);
    }

    /// The `nth` flush from now (1: the next) fails with EIO.
    pub fn fail_flush(&self, nth: u64) {
        self.flush_countdown.store(nth, Ordering::Relaxed);
    }

    /// All devices together may hold so many bytes; growth beyond fails with ENOSPC.
    pub fn limit_host(&self, host_bytes: u64) {
        self.host_bytes.store(host_bytes, Ordering::Relaxed);
    }

    fn strikes(countdown: &AtomicU64) -> bool {
        let step = |left: u64| left.checked_sub(1);
        countdown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) == Ok(1)
    }

    /// Notes that a device wants to be `len_bytes` long; refuses when the host is full.
    fn claim(&self, segment: SegmentIndex, len_bytes: u64) -> io::Result<()> {
        let mut lengths = hold(&self.lengths);
        let others: u64 = lengths
            .iter()
            .filter(|(index, _)| **index != segment)
            .map(|(_, len)| len)
            .sum();
        let own = lengths.entry(segment).or_default();
        if len_bytes > *own && others + len_bytes > self.host_bytes.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *own = len_bytes.max(*own);
        Ok(())
    }

    fn give_back(&self, segment: SegmentIndex, len_bytes: u64) {
        hold(&self.lengths).insert(segment, len_bytes);
    }
}

/// One simulated device.
pub struct SimDevice {
    segment: SegmentIndex,
    file: FileName,
    /// Held while an event is recorded, so that the log has the order of effects.
    image: Mutex<Image>,
    is_locked: Mutex<bool>,
    unlocked: Condvar,
    recorder: Option<Recorder>,
    faults: Arc<Faults>,
}

impl SimDevice {
    /// Flips the bits of `mask` in one byte, as a failing medium would.
    pub fn flip_bits(&self, offset_bytes: u64, mask: u8) {
        let (mut image, mut byte) = (hold(&self.image), [0]);
        assert!(
            image.read(offset_bytes, &mut byte),
            "offset {offset_bytes} is past the end"
        );
        image.write(offset_bytes, &[byte[0] ^ mask]);
    }

    /// A copy of what the device holds.
    pub fn image(&self) -> Image {
        hold(&self.image).clone()
    }

    fn write_recorded(&self, image: &mut Image, offset_bytes: u64, bytes: &[u8]) {
        image.write(offset_bytes, bytes);
        self.record(|file| Event::Write {
            file,
            offset_bytes,
            bytes: Payload::of(bytes),
        });
    }

    fn record(&self, event: impl FnOnce(FileName) -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.push(event(self.file.clone()));
        }
    }
}

impl Device for SimDevice {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        match hold(&self.image).read(offset_bytes, buf) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let mut image = hold(&self.image);
        self.faults
            .claim(self.segment, offset_bytes + bytes.len() as u64)?;
        if Faults::strikes(&self.faults.write_countdown) {
            self.write_recorded(&mut image, offset_bytes, &bytes[..bytes.len() / 2]);
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.write_recorded(&mut image, offset_bytes, bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let covers = self.recorder.as_ref().map_or(0, Recorder::position);
        if Faults::strikes(&self.faults.flush_countdown) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.record(|file| Event::Flush { file, covers });
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(hold(&self.image).len_bytes())
    }

    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        let mut image = hold(&self.image);
        self.faults.claim(self.segment, len_bytes)?;
        image.truncate(len_bytes);
        self.faults.give_back(self.segment, len_bytes);
        self.record(|file| Event::Truncate { file, len_bytes });
        Ok(())
    }

    fn preallocate(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let mut image = hold(&self.image);
        let end = offset_bytes + len_bytes;
        self.faults.claim(self.segment, end)?;
        // As fallocate(2) without FALLOC_FL_KEEP_SIZE.
        if end > image.len_bytes() {
            image.truncate(end);
            self.record(|file| Event::Truncate {
                file,
                len_bytes: end,
            });
        }
        Ok(())
    }

    fn lock(&self) -> io::Result<()> {
        let mut is_locked = hold(&self.is_locked);
        while *is_locked {
            is_locked = self
                .unlocked
                .wait(is_locked)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *is_locked = true;
        Ok(())
    }

    fn unlock(&self) -> io::Result<()> {
        *hold(&self.is_locked) = false;
        self.unlocked.notify_one();
        Ok(())
    }
}

const EIO: i32 = 5;

/// Takes a mutex; a test that panicked while it held one has failed already.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: SegmentIndex = SegmentIndex(0);

    #[test]
    fn faults_strike_once_and_on_time() {
        let recorder = Recorder::new();
        let storage = SimStorage::recording(&recorder);
        let device = storage.create_segment(ZERO).unwrap();
        storage.faults().fail_write(2);
        device.write_at(0, &[1; 8]).unwrap();
        assert_eq!(
            device.write_at(8, &[2; 8]).unwrap_err().raw_os_error(),
            Some(EIO)
        );
        device.write_at(8, &[3; 2]).unwrap();
        assert_eq!(
            storage.find_device(ZERO).unwrap().image().to_vec(),
            [1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 2, 2]
        );
        storage.faults().fail_flush(1);
        assert!(device.flush().is_err());
        device.flush().unwrap();
        let flushes = |e: &&Event| matches!(e, Event::Flush { .. });
        assert_eq!(recorder.finish().events.iter().filter(flushes).count(), 1);
    }

    #[test]
    fn a_full_host_refuses_growth_only() {
        let storage = SimStorage::new();
        storage.faults().limit_host(10_000);
        let device = storage.create_segment(ZERO).unwrap();
        device.write_at(0, &[1; 9000]).unwrap();
        assert_eq!(storage.available_bytes().unwrap(), 1000);
        assert_eq!(
            device.write_at(9000, &[1; 1001]).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        assert_eq!(
            device.preallocate(0, 10_001).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        device.write_at(5, &[2; 100]).unwrap();
        let other = storage.create_segment(SegmentIndex(1)).unwrap();
        assert!(other.write_at(0, &[1; 1001]).is_err());
        device.truncate(8000).unwrap();
        other.write_at(0, &[1; 1001]).unwrap();
    }

    #[test]
    fn reads_end_at_the_end_and_damage_is_seen() {
        let storage = SimStorage::new();
        let device = storage.create_segment(ZERO).unwrap();
        assert_eq!(
            storage.create_segment(ZERO).err().unwrap().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(
            storage.open_segment(SegmentIndex(3)).err().unwrap().kind(),
            io::ErrorKind::NotFound
        );
        device.write_at(0, &[1; 8]).unwrap();
        assert_eq!(
            device.read_at(1, &mut [0; 8]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        storage.find_device(ZERO).unwrap().flip_bits(3, 0x80);
        let mut bytes = [0; 8];
        device.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 1, 1, 0x81, 1, 1, 1, 1]);
    }
}
