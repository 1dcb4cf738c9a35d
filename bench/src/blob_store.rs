//! What is compared by `bench blobs`: a place for numbered content.

use larder::AlignedBuf;
use xtask::Outcome;

/// A system that stores content under numbers, in *places* that are made and removed whole.
pub trait BlobStore {
    /// For the table.
    fn name(&self) -> &'static str;
    /// Makes a place.
    fn make(&mut self, place: &str) -> Outcome;
    /// Puts `content`, stamped with its number, under each of `ids`, in one durable transaction.
    fn put(&mut self, place: &str, ids: std::ops::Range<u64>, content: &mut [u8]) -> Outcome;
    /// Gets content whole into `buffer`, which is longer; returns its length.
    fn get(&mut self, place: &str, id: u64, buffer: &mut AlignedBuf) -> Result<usize, String>;
    /// Does what puts left for later: a checkpoint.
    fn settle(&mut self) -> Outcome;
    /// Removes a place, durably, and settles.
    fn remove(&mut self, place: &str) -> Outcome;
    /// Drops what the system itself caches.
    fn forget(&mut self) -> Outcome;
    /// Ends.
    fn close(self: Box<Self>) -> Outcome;
}
