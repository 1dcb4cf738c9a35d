//! The holes of a filesystem's free space, as its own tools tell of the device at rest.

use crate::error::Result;
use crate::process;
use crate::volume::{Filesystem, FilesystemKind};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// The unit of holes, bytes: the same for all systems.
pub const HOLE_BLOCK_BYTES: u64 = 4096;

/// Holes by size: how many have 2^N to 2^(N+1) blocks of 4 KiB, by N. Smaller ones do not count.
pub type Histogram = BTreeMap<u32, u64>;

/// Adds a hole of so many bytes.
pub fn add(histogram: &mut Histogram, bytes: u64, count: u64) {
    if let Some(power) = (bytes / HOLE_BLOCK_BYTES).checked_ilog2() {
        *histogram.entry(power).or_default() += count;
    }
}

/// The holes of an unmounted filesystem; `None` where there is no tool that tells.
pub fn of_device(filesystem: Filesystem, device: &Path) -> Result<Option<Histogram>> {
    let runs = match filesystem.kind {
        FilesystemKind::Ext2 | FilesystemKind::Ext3 | FilesystemKind::Ext4 => {
            let tool = process::require("dumpe2fs", "e2fsprogs")?;
            parse_ext(&process::output(&tool, &[device.as_ref()])?)
        }
        FilesystemKind::Xfs => {
            let tool = process::require("xfs_db", "xfsprogs")?;
            let arguments: [&OsStr; 6] = [
                "-r".as_ref(),
                "-c".as_ref(),
                "sb 0".as_ref(),
                "-c".as_ref(),
                "freesp -d".as_ref(),
                device.as_ref(),
            ];
            let block_bytes = filesystem.block_bytes.unwrap_or(4096);
            parse_xfs(&process::output(&tool, &arguments)?, block_bytes)
        }
        _ => return Ok(None),
    };
    let mut histogram = Histogram::new();
    runs.iter().for_each(|bytes| add(&mut histogram, *bytes, 1));
    Ok(Some(histogram))
}

/// `Block size: N`, and for each group ` Free blocks: A-B, C`. Holes of neighbouring groups are
/// joined.
fn parse_ext(text: &str) -> Vec<u64> {
    let block_bytes: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("Block size:")?.trim().parse().ok())
        .unwrap_or(4096);
    let lists = text
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let ranges = lists.flat_map(|list| list.split(", ")).filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((
            first.trim().parse::<u64>().ok()?,
            last.trim().parse::<u64>().ok()?,
        ))
    });
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == first => *end = last,
            _ => runs.push((first, last)),
        }
    }
    runs.iter()
        .map(|(first, last)| (last - first + 1) * block_bytes)
        .collect()
}

/// `AG BLOCK LENGTH` for each hole, then a table of five columns.
fn parse_xfs(text: &str, block_bytes: u64) -> Vec<u64> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<u64> = line
                .split_whitespace()
                .map(|field| field.parse().ok())
                .collect::<Option<_>>()?;
            match fields[..] {
                [_, _, blocks] => Some(blocks * block_bytes),
                _ => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_understood() {
        let ext = "Block size:               1024\n  Free blocks: 5-12, 20\n  Free inodes: 3-9\n  \
            Free blocks: \n  Free blocks: 21-31\n";
        assert_eq!(parse_ext(ext), [8 * 1024, 12 * 1024]);
        let xfs = "       0       10        8\n       1      200     4096\n   from      to \
            extents  blocks    pct\n      8      15       1       8   0.20\n";
        assert_eq!(parse_xfs(xfs, 4096), [8 * 4096, 4096 * 4096]);
        let mut histogram = Histogram::new();
        [100, 4096, 8 * 4096, 15 * 4096]
            .iter()
            .for_each(|bytes| add(&mut histogram, *bytes, 1));
        assert_eq!(histogram, Histogram::from([(0, 1), (3, 2)]));
    }
}
