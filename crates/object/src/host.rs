//! What the engine asks of the machine: the time, its memory, random bytes, locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The present by the system's clock, nanoseconds since 1970.
pub(crate) fn system_clock() -> i64 {
    let now = std::time::SystemTime::now();
    match now.duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

/// A number for a new database.
pub(crate) fn random_id() -> std::io::Result<[u8; 16]> {
    use std::io::Read;
    let mut id = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

/// Physical memory, pages; 0 when the system does not say.
pub(crate) fn memory_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024 / rustix::param::page_size() as u64
}

/// Memory that this process has resident, bytes; 0 when the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    find_resident_bytes("self").unwrap_or(0)
}

/// The same of a process, by its number.
pub(crate) fn find_resident_bytes(process: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The user and group that run this process.
pub fn process_owner() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// The lock, also when a thread panicked that had it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
