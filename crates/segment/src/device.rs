//! What a segment needs of the world below it. Implemented on files here, and simulated in tests.
//!
//! # Contract
//! * Reads and writes are exact: all bytes, or an error. A failed write may have reached the device
//!   in part.
//! * What was written is seen by later reads at once, and is durable after a later
//!   [`Device::flush`].
//! * All methods may be called at once from several threads.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use larder_format::SegmentIndex;

/// The opened resource under one segment: bytes from 0 to [`Device::len_bytes`].
pub trait Device: Send + Sync {
    /// Fills `buf` from `offset_bytes`; past the end it fails with `UnexpectedEof`.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Fills `slices`, one behind the other, from `offset_bytes` on: in one request where the
    /// device can.
    fn read_vectored_at(&self, offset_bytes: u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut at = offset_bytes;
        for slice in slices {
            self.read_at(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset_bytes`; past the end the device grows, and a host without
    /// space fails with `StorageFull` (or `QuotaExceeded`).
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes all `slices`, one behind the other, from `offset_bytes` on: in one request where the
    /// device can.
    fn write_vectored_at(&self, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset_bytes;
        for slice in slices {
            self.write_at(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(())
    }

    /// The same for new content, which is likely to be read soon: it stays in memory where the host
    /// can, and is on its way to the device when this returns.
    fn write_cached_at(&self, offset_bytes: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.write_vectored_at(offset_bytes, slices)
    }

    /// How many requests at once this device profits from, at least 1. With 1, the default, a
    /// caller sends one after the other, in order.
    fn requests_in_flight_max(&self) -> usize {
        1
    }

    /// The same as [`Device::read_vectored_at`] of whole blocks, from the device itself where the
    /// host can; it leaves nothing in memory: for who looks whether everything is still there.
    fn read_past_cache_at(
        &self,
        offset_bytes: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<()> {
        self.read_vectored_at(offset_bytes, slices)
    }

    /// Whether a long read of these bytes is expected to find all of them in memory.
    fn is_in_memory(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }

    /// Asks for bytes that will be read soon. Only a hint: it never fails, and the default does
    /// nothing.
    fn prefetch(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// Makes every completed write durable.
    fn flush(&self) -> io::Result<()>;

    /// Current length, bytes.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Cuts the device to `len_bytes`, which gives its space back to the host.
    fn truncate(&self, len_bytes: u64) -> io::Result<()>;

    /// Asks the host for the space of `offset_bytes..offset_bytes + len_bytes` in one piece, before
    /// it is written. Only a hint about layout, but a full host fails here, early. Devices that
    /// cannot do it do nothing.
    fn preallocate(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let _ = (offset_bytes, len_bytes);
        Ok(())
    }

    /// Waits for, and takes, the exclusive lock between sessions that growth needs. Devices that
    /// only one session can open do nothing.
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }

    /// Gives the lock of [`Device::lock`] back.
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The place that holds the segments of one database.
pub trait Storage: Send + Sync {
    /// Opens the device of an existing segment; `NotFound` when there is none.
    fn open_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>>;

    /// Makes an empty device for a new segment, and makes its name durable; `AlreadyExists` when
    /// the segment exists.
    fn create_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>>;

    /// The segments that exist, in order.
    fn segments(&self) -> io::Result<Vec<SegmentIndex>>;

    /// What the host can still give to this process, bytes.
    fn available_bytes(&self) -> io::Result<u64>;

    /// The size of the host's filesystem, bytes; 0: it does not say, and seems to have no room.
    fn host_size_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}
