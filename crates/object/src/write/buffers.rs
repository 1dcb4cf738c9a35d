//! Memory of the gather that is used again: fresh memory costs a page fault for every 4 KiB, which
//! is more than copying the bytes into it.
//!
//! Whoever writes takes buffers, the commit gives them back, often in another thread, where the
//! allocator would return them to the kernel. Free buffers are kept while they and those in use fit
//! into what the gathers of the process may take, and until nobody has taken them for [`IDLE`] or
//! an engine is closed.
//!
//! # Invariants
//! * `POOL-1` A buffer that is taken is empty, and has the room that was asked for.
//! * `POOL-2` No buffer is kept that would bring the memory of free buffers and of those in use
//!   above the largest bound of a gather in this process, what aligning them costs included.

use larder_segment::AlignedBuf;
use larder_space::format::limits::BLOCK_BYTES;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Room of buffers, bytes: of a lone block, of a small file, of a whole chunk.
const SIZES: [usize; 3] = [4 << 10, 16 << 10, 32 << 10];
/// After so long without use they go back to the system.
const IDLE: Duration = Duration::from_secs(2);

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: [const { Vec::new() }; SIZES.len()],
    bytes: 0,
    used_bytes: 0,
    bytes_max: 0,
    seen: None,
});

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pool {
    /// By index of [`SIZES`].
    free: [Vec<AlignedBuf>; SIZES.len()],
    bytes: usize,
    /// Memory of the buffers that are taken.
    used_bytes: usize,
    /// The largest bound of a gather.
    bytes_max: usize,
    /// The least that was free since then, bytes: nobody has needed so much.
    seen: Option<(usize, Instant)>,
}

impl Pool {
    /// Takes out free buffers of at most `bytes`, the largest first.
    fn shrink(&mut self, bytes: usize) -> Vec<AlignedBuf> {
        let mut taken = Vec::new();
        let mut left = bytes;
        for free in self.free.iter_mut().rev() {
            while let Some(buffer) = free.pop_if(|buffer| buffer.memory_bytes() <= left) {
                left -= buffer.memory_bytes();
                taken.push(buffer);
            }
        }
        self.bytes -= bytes - left;
        taken
    }
}

/// A gather of this process may take `bytes` of memory.
pub(crate) fn allow(bytes: u64) {
    let mut pool = self::pool();
    pool.bytes_max = pool
        .bytes_max
        .max(usize::try_from(bytes).unwrap_or(usize::MAX));
}

/// An empty buffer with room for `len_bytes`.
pub(crate) fn take(len_bytes: usize) -> AlignedBuf {
    let Some(class) = SIZES.iter().position(|&size| size >= len_bytes) else {
        let buffer = AlignedBuf::with_capacity(len_bytes);
        self::pool().used_bytes += buffer.memory_bytes();
        return buffer;
    };
    let found = {
        let mut pool = self::pool();
        let found = pool.free[class].pop();
        let memory_bytes = found.as_ref().map(AlignedBuf::memory_bytes);
        pool.bytes -= memory_bytes.unwrap_or(0);
        pool.used_bytes += memory_bytes.unwrap_or(memory_bytes_of(SIZES[class]));
        let free_bytes = pool.bytes;
        if let Some((least, _)) = &mut pool.seen {
            *least = free_bytes.min(*least);
        }
        found
    };
    let buffer = found.unwrap_or_else(|| AlignedBuf::with_capacity(SIZES[class]));
    debug_assert!(
        buffer.is_empty() && buffer.room_bytes() >= len_bytes,
        "POOL-1"
    );
    buffer
}

/// What a new buffer with room for `len_bytes` takes of memory.
fn memory_bytes_of(len_bytes: usize) -> usize {
    len_bytes + BLOCK_BYTES as usize
}

/// Gives a buffer back.
pub(crate) fn give(mut buffer: AlignedBuf) {
    let Some(class) = SIZES.iter().rposition(|&size| size <= buffer.room_bytes()) else {
        return;
    };
    let memory_bytes = buffer.memory_bytes();
    let mut pool = self::pool();
    pool.used_bytes = pool.used_bytes.saturating_sub(memory_bytes);
    // One that is much larger than what it would be used for is not kept.
    if memory_bytes > 4 * SIZES[class] {
        return;
    }
    if pool.bytes + pool.used_bytes + memory_bytes <= pool.bytes_max {
        pool.bytes += memory_bytes;
        buffer.resize(0, 0);
        pool.free[class].push(buffer);
    }
    debug_assert!(pool.bytes <= pool.bytes_max, "POOL-2");
}

/// Returns all free buffers to the system: an engine is closed, and nobody may call [`rest`] any
/// more.
pub(crate) fn drain() {
    let mut pool = self::pool();
    let bytes = pool.bytes;
    let given_back = pool.shrink(bytes);
    pool.seen = None;
    drop(pool);
    drop(given_back);
}

/// Returns to the system what nobody has needed for [`IDLE`]. The background calls it at
/// every tick.
pub(crate) fn rest() {
    let mut pool = self::pool();
    if pool.bytes == 0 {
        return;
    }
    match pool.seen {
        Some((least, since)) if since.elapsed() >= IDLE => {
            let given_back = pool.shrink(least);
            pool.seen = Some((pool.bytes, Instant::now()));
            drop(pool);
            drop(given_back);
        }
        Some(_) => {}
        None => pool.seen = Some((pool.bytes, Instant::now())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: usize = 256 << 20;

    // The pool is the process's: other tests use it meanwhile.
    #[test]
    fn a_buffer_comes_back_empty_and_the_free_ones_are_bounded() {
        for len_bytes in [1, 4096, 4097, 16 << 10, 32 << 10, (32 << 10) + 1] {
            let mut buffer = take(len_bytes);
            assert!(buffer.room_bytes() >= len_bytes, "POOL-1");
            buffer.resize(len_bytes, 7);
            give(buffer);
            let again = take(len_bytes);
            assert!(
                again.is_empty() && again.room_bytes() >= len_bytes,
                "POOL-1"
            );
            give(again);
        }
        give(AlignedBuf::default());
        allow(BOUND as u64);
        let many: Vec<AlignedBuf> = (0..BOUND / SIZES[2] + 9).map(|_| take(SIZES[2])).collect();
        assert!(pool().used_bytes >= BOUND, "all are counted");
        many.into_iter().for_each(give);
        let free_bytes = || {
            let pool = pool();
            let each = pool.free.iter().flatten().map(AlignedBuf::memory_bytes);
            assert_eq!(each.sum::<usize>(), pool.bytes, "POOL-2");
            pool.bytes
        };
        let bytes = free_bytes();
        assert!(bytes <= pool().bytes_max, "POOL-2");
        assert!(bytes > BOUND / 2, "others take few");
        drain();
        assert!(free_bytes() < BOUND / 2, "others give few");
        give(AlignedBuf::with_capacity(64 * SIZES[2]));
        let is_large = |buffer: &AlignedBuf| buffer.memory_bytes() > 4 * SIZES[2];
        assert!(
            !pool().free.iter().flatten().any(is_large),
            "too large to keep"
        );
    }
}
