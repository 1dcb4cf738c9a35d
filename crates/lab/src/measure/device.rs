//! What a device did: the counters that the kernel keeps of it (Documentation/block/stat.rst).

use crate::error::{Error, Result, Said};
use std::fs;
use std::path::Path;

/// Counters of a device, or what they rose by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests for reading, as they reached the device.
    pub read_count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests for writing.
    pub write_count: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Counters {
    /// Those of a file `/sys/block/NAME/stat`.
    pub fn read(stat: &Path) -> Result<Counters> {
        let text = fs::read_to_string(stat).said(|| stat.display().to_string())?;
        Counters::parse(&text)
            .ok_or_else(|| Error::failed(format!("'{}' says '{text}'", stat.display())))
    }

    fn parse(text: &str) -> Option<Counters> {
        const SECTOR_BYTES: u64 = 512;
        let fields: Vec<u64> = text
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        Some(Counters {
            read_count: *fields.first()?,
            read_bytes: fields.get(2)? * SECTOR_BYTES,
            write_count: *fields.get(4)?,
            write_bytes: fields.get(6)? * SECTOR_BYTES,
        })
    }

    /// What they rose by since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            read_count: self.read_count - before.read_count,
            read_bytes: self.read_bytes - before.read_bytes,
            write_count: self.write_count - before.write_count,
            write_bytes: self.write_bytes - before.write_bytes,
        }
    }
}

/// The machine's load average of the last minute.
pub fn load_average() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").said(|| "/proc/loadavg".to_owned())?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first
        .parse()
        .map_err(|_| Error::failed(format!("/proc/loadavg says '{text}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let text = "  10 2 64 5 7 3 16 9 0 4 14 0 0 0 0 0 0\n";
        let counters = Counters::parse(text).unwrap();
        assert_eq!((counters.read_count, counters.read_bytes), (10, 32_768));
        assert_eq!((counters.write_count, counters.write_bytes), (7, 8192));
        assert_eq!(Counters::parse("1 2 x"), None);
        assert!(load_average().unwrap() >= 0.0);
    }
}
