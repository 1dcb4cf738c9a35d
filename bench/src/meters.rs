//! What a process held and wrote, from `/proc`.

use std::fs;

/// What the caches of an open database may hold beside dirty content, bytes: pages of the catalog's
/// connections, inodes, the free space.
const CACHES_BYTES: u64 = 64 << 20;

/// Watches the peak of a process's memory, and of those that take its place.
pub struct MemoryMeter {
    pid: u32,
    buffer_bytes: u64,
    peak_bytes: u64,
}

impl MemoryMeter {
    /// Forgets the peak of this process so far. The buffers of the measurement are not counted; all
    /// else is, also what the program itself takes.
    pub fn start_here(buffer_bytes: usize) -> Result<MemoryMeter, String> {
        let pid = std::process::id();
        let file = format!("/proc/{pid}/clear_refs");
        fs::write(&file, "5").map_err(|error| format!("{file}: {error}"))?;
        Ok(MemoryMeter {
            pid,
            buffer_bytes: buffer_bytes as u64,
            peak_bytes: 0,
        })
    }

    /// Counts all that another process holds.
    pub fn whole(pid: u32) -> MemoryMeter {
        MemoryMeter {
            pid,
            buffer_bytes: 0,
            peak_bytes: 0,
        }
    }

    /// Looks at the process, while it still runs.
    pub fn note(&mut self) -> Result<(), String> {
        self.peak_bytes = self.peak_bytes.max(status_bytes(self.pid, "VmHWM:")?);
        Ok(())
    }

    /// From now on looks at `pid`, which may be the same process.
    pub fn follow(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// `(the peak without the buffers, the whole peak)`, bytes, as noted.
    pub fn peak(&self) -> (u64, u64) {
        let added = self.peak_bytes.saturating_sub(self.buffer_bytes);
        (added, self.peak_bytes)
    }
}

/// The configured bound of an open database's memory, bytes: dirty content as
/// `EngineOptions::dirty_bytes_max` has it by default, and caches.
pub fn memory_bound_bytes() -> Result<u64, String> {
    let file = "/proc/meminfo";
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let total = field_kib(&text, "MemTotal:").ok_or(format!("{file} has no MemTotal"))? << 10;
    Ok((total / 50).max(64 << 20) + CACHES_BYTES)
}

/// Bytes that the process caused to be written to devices, by the kernel's account of dirtied pages
/// and direct writes. The filesystem's own journal is not among them.
pub fn written_bytes(pid: u32) -> Result<u64, String> {
    let file = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let field = text
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    field
        .and_then(|bytes| bytes.parse().ok())
        .ok_or(format!("{file} has no write_bytes"))
}

/// Bytes written to all disks, by whomever.
pub fn disk_written_bytes() -> Result<u64, String> {
    let explain = |error| format!("/sys/block: {error}");
    let mut sectors = 0;
    for disk in fs::read_dir("/sys/block").map_err(explain)? {
        let path = disk.map_err(explain)?.path().join("stat");
        let text = fs::read_to_string(&path).map_err(explain)?;
        let written = text.split_whitespace().nth(6);
        sectors += written
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(sectors * 512)
}

fn status_bytes(pid: u32, field: &str) -> Result<u64, String> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let kib = field_kib(&text, field).ok_or(format!("{file} has no {field}"))?;
    Ok(kib << 10)
}

fn field_kib(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_seen_after_it_is_over() {
        let mut meter = MemoryMeter::start_here(1 << 20).unwrap();
        let big = std::hint::black_box(vec![1u8; 32 << 20]);
        drop(big);
        meter.note().unwrap();
        let (counted, peak) = meter.peak();
        assert!(peak >= 32 << 20, "{peak}");
        assert_eq!(counted, peak - (1 << 20));
        assert!(memory_bound_bytes().unwrap() >= (64 << 20) + CACHES_BYTES);
    }
}
