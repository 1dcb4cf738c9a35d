//! Memory of the gather that is used again: fresh memory costs a page fault for every 4 KiB, which
//! is more than copying the bytes into it.
//!
//! Whoever writes takes buffers, the commit gives them back, often in another thread. They lie
//! beside the allocator ([`PageBuf`]), which would keep for itself what is given back. *Warm*:
//! free, with its memory; kept while it and what is in use fit into what the gathers of the process
//! may take, and until nobody has taken it for [`IDLE`] or an engine is closed. *Cold*: free, and
//! address space only.
//!
//! # Invariants
//! * `POOL-1` A buffer that is taken is empty, and has the room that was asked for.
//! * `POOL-2` No buffer stays warm that would bring the memory of the warm ones and of those in use
//!   above the largest bound of a gather in this process: neither when one is given back, nor when
//!   one is taken that has another room.

use larder_segment::PageBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Room of buffers, bytes: of a lone block, of a small file, of a whole chunk.
const SIZES: [usize; 3] = [4 << 10, 16 << 10, 32 << 10];
/// After so long without use they go back to the system.
const IDLE: Duration = Duration::from_secs(2);

static POOL: Mutex<Pool> = Mutex::new(Pool {
    warm: [const { Vec::new() }; SIZES.len()],
    cold: [const { Vec::new() }; SIZES.len()],
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
    warm: [Vec<PageBuf>; SIZES.len()],
    /// The same.
    cold: [Vec<PageBuf>; SIZES.len()],
    /// Memory of the warm buffers.
    bytes: usize,
    /// Memory of the buffers that are taken.
    used_bytes: usize,
    /// The largest bound of a gather.
    bytes_max: usize,
    /// The least that was warm since then, bytes: nobody has needed so much.
    seen: Option<(usize, Instant)>,
}

impl Pool {
    /// Takes out warm buffers of at least `bytes`, if there are so many, the largest first.
    fn shrink(&mut self, bytes: usize) -> Vec<PageBuf> {
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        for warm in self.warm.iter_mut().rev() {
            while taken_bytes < bytes
                && let Some(buffer) = warm.pop()
            {
                taken_bytes += buffer.capacity_bytes();
                taken.push(buffer);
            }
        }
        self.bytes -= taken_bytes;
        taken
    }

    /// How far the warm buffers and those in use are above the bound, bytes.
    fn excess_bytes(&self) -> usize {
        (self.bytes + self.used_bytes).saturating_sub(self.bytes_max)
    }
}

/// The smallest of [`SIZES`] with room for `len_bytes`.
fn class_of(len_bytes: usize) -> usize {
    let class = SIZES.iter().position(|&size| size >= len_bytes);
    assert!(class.is_some(), "POOL-1: no chunk has {len_bytes} bytes");
    class.unwrap_or(SIZES.len() - 1)
}

/// Gives the memory of buffers back to the system. Nothing is locked meanwhile.
fn cool(mut buffers: Vec<PageBuf>) {
    if buffers.is_empty() {
        return;
    }
    buffers.iter_mut().for_each(PageBuf::release);
    let mut pool = self::pool();
    for buffer in buffers {
        pool.cold[class_of(buffer.capacity_bytes())].push(buffer);
    }
}

/// A gather of this process may take `bytes` of memory.
pub(crate) fn allow(bytes: u64) {
    let mut pool = self::pool();
    pool.bytes_max = pool
        .bytes_max
        .max(usize::try_from(bytes).unwrap_or(usize::MAX));
}

/// An empty buffer with room for `len_bytes`, a chunk of a gather at most.
pub(crate) fn take(len_bytes: usize) -> PageBuf {
    let class = class_of(len_bytes);
    let mut excess = Vec::new();
    let buffer = {
        let mut pool = self::pool();
        pool.used_bytes += SIZES[class];
        let buffer = match pool.warm[class].pop() {
            Some(warm) => {
                pool.bytes -= SIZES[class];
                Some(warm)
            }
            None => {
                let excess_bytes = pool.excess_bytes();
                excess = pool.shrink(excess_bytes);
                if pool.cold[class].is_empty() {
                    pool.cold[class] = PageBuf::carve(SIZES[class]);
                }
                pool.cold[class].pop()
            }
        };
        let warm_bytes = pool.bytes;
        if let Some((least, _)) = &mut pool.seen {
            *least = warm_bytes.min(*least);
        }
        buffer
    };
    cool(excess);
    let buffer = buffer.unwrap_or_default();
    debug_assert!(
        buffer.is_empty() && buffer.capacity_bytes() >= len_bytes,
        "POOL-1"
    );
    buffer
}

/// Gives a buffer back.
pub(crate) fn give(mut buffer: PageBuf) {
    if buffer.capacity_bytes() == 0 {
        return;
    }
    buffer.resize(0);
    let bytes = buffer.capacity_bytes();
    let excess = {
        let mut pool = self::pool();
        pool.used_bytes -= bytes;
        pool.bytes += bytes;
        pool.warm[class_of(bytes)].push(buffer);
        let excess_bytes = pool.excess_bytes();
        pool.shrink(excess_bytes)
    };
    cool(excess);
}

/// Returns the memory of all warm buffers to the system: an engine is closed, and nobody may call
/// [`rest`] any more.
pub(crate) fn drain() {
    let all = {
        let mut pool = self::pool();
        pool.seen = None;
        let bytes = pool.bytes;
        pool.shrink(bytes)
    };
    cool(all);
}

/// Returns to the system what nobody has needed for [`IDLE`]. The background calls it at
/// every tick.
pub(crate) fn rest() {
    let unused = {
        let mut pool = self::pool();
        if pool.bytes == 0 {
            return;
        }
        match pool.seen {
            Some((least, since)) if since.elapsed() >= IDLE => {
                let unused = pool.shrink(least);
                pool.seen = Some((pool.bytes, Instant::now()));
                unused
            }
            Some(_) => return,
            None => {
                pool.seen = Some((pool.bytes, Instant::now()));
                return;
            }
        }
    };
    cool(unused);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than what the engines of other tests allow: the pool is the process's, and they use it
    /// meanwhile.
    fn bound() -> usize {
        let default = crate::gather_bytes_default() as usize;
        (2 * default).max(256 << 20)
    }

    #[test]
    fn a_buffer_comes_back_empty_and_the_warm_ones_are_bounded() {
        let bound = bound();
        allow(bound as u64);
        for len_bytes in [1, 4096, 4097, 16 << 10, 32 << 10] {
            let mut buffer = take(len_bytes);
            assert!(buffer.capacity_bytes() >= len_bytes, "POOL-1");
            buffer.resize(len_bytes);
            buffer.fill(7);
            give(buffer);
            let again = take(len_bytes);
            assert!(
                again.is_empty() && again.capacity_bytes() >= len_bytes,
                "POOL-1"
            );
            give(again);
        }
        give(PageBuf::default());
        let many: Vec<PageBuf> = (0..bound / SIZES[2] + 9).map(|_| take(SIZES[2])).collect();
        assert!(pool().used_bytes >= bound, "all are counted");
        many.into_iter().for_each(give);
        let warm_bytes = || {
            let pool = pool();
            let each = pool.warm.iter().flatten().map(PageBuf::capacity_bytes);
            assert_eq!(each.sum::<usize>(), pool.bytes, "POOL-2");
            pool.bytes
        };
        let bytes = warm_bytes();
        assert!(bytes > bound / 2, "others take few");
        assert!(bytes <= pool().bytes_max, "POOL-2");
        // Of another room: the warm ones make room for them.
        let small: Vec<PageBuf> = (0..bound / SIZES[0] / 2).map(|_| take(SIZES[0])).collect();
        assert_eq!(pool().excess_bytes(), 0, "POOL-2");
        assert!(warm_bytes() <= bound / 2, "POOL-2");
        small.into_iter().for_each(give);
        assert_eq!(pool().excess_bytes(), 0, "POOL-2");
        drain();
        assert!(warm_bytes() < bound / 2, "others give few");
    }
}
