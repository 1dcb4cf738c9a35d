//! Finding objects on a raw device by their markers, as \[FRAG\] does: files and BLOBs are measured
//! alike.
//!
//! * `MARKER-1` Only markers of versions that live count; what is left of others on the device does
//!   not.
//! * `MARKER-2` Where a live version has several copies of a marker (logs, content that was moved),
//!   those count that leave the object in the fewest parts: a copy in pieces in a log does not hide
//!   the whole one.
//! * `MARKER-3` What a backend puts between the pages of an object on purpose does not part them
//!   ([`Pages`]).

use crate::error::{Result, Said};
use crate::measure::layout::Layout;
use crate::pattern::{MARKER_BYTES, MARKER_STEP_BYTES, Pattern, marker_count};
use memchr::memmem::Finder;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Read at once while scanning, bytes.
const SCAN_BYTES: usize = 8 << 20;

/// How far two markers that follow one another may lie from where they should, bytes, and still
/// count as one stretch (`MARKER-3`). Both 0 for files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pages {
    /// Before their place; less than this.
    pub back_bytes: u64,
    /// Behind it; less than this.
    pub ahead_bytes: u64,
}

/// A live object to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its version.
    pub version: u32,
    /// Its length.
    pub bytes: u64,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The places of each object, by its index.
    pub layouts: Vec<Layout>,
    /// Markers that live objects have.
    pub expected_count: u64,
    /// Of these, markers that were found.
    pub found_count: u64,
}

/// A marker of a live object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    object: u32,
    sequence: u32,
    offset_bytes: u64,
}

/// Looks for the objects `0..wanted.len()` (`None`: not alive) in all of `devices`, which lie one
/// behind the other. Cost: reads them once; 16 bytes of memory per KiB of content.
pub fn scan(
    devices: &[&Path],
    pattern: &Pattern,
    wanted: &[Option<Wanted>],
    pages: Pages,
) -> Result<Found> {
    let mut places = Vec::new();
    let mut base_bytes = 0;
    for device in devices {
        let file = File::open(device).said(|| device.display().to_string())?;
        let end_bytes = scan_file(&file, pattern, |offset_bytes, marker| {
            let object = wanted.get(marker.object as usize).and_then(Option::as_ref);
            if object.is_some_and(|object| {
                // MARKER-1
                object.version == marker.version
                    && u64::from(marker.sequence) < marker_count(object.bytes)
            }) {
                places.push(Place {
                    object: marker.object as u32,
                    sequence: marker.sequence,
                    offset_bytes: base_bytes + offset_bytes,
                });
            }
        })
        .said(|| format!("reading '{}'", device.display()))?;
        // Apart, so that nothing continues from one to the next.
        base_bytes += end_bytes.next_multiple_of(1 << 20) + (1 << 20);
    }
    places.sort_unstable();
    let mut found = Found::default();
    let mut rest = &places[..];
    for (object, wanted) in wanted.iter().enumerate() {
        let len = rest
            .iter()
            .take_while(|place| place.object as usize == object)
            .count();
        let (own, others) = rest.split_at(len);
        rest = others;
        let Some(wanted) = wanted else {
            found.layouts.push(Layout::default());
            continue;
        };
        let (layout, count) = assemble(own, wanted.bytes, pages);
        found.expected_count += marker_count(wanted.bytes);
        found.found_count += count;
        found.layouts.push(layout);
    }
    Ok(found)
}

/// Calls `visit` with every marker and where it begins; returns the length of the file.
fn scan_file(
    file: &File,
    pattern: &Pattern,
    mut visit: impl FnMut(u64, crate::pattern::Marker),
) -> std::io::Result<u64> {
    let needle = pattern.needle();
    let finder = Finder::new(&needle);
    let mut buffer = vec![0; SCAN_BYTES + MARKER_BYTES];
    // Bytes at the beginning of the buffer that the last round left: a marker may begin in them.
    let (mut kept, mut start_bytes) = (0, 0);
    loop {
        let room = &mut buffer[kept..kept + SCAN_BYTES];
        let read = file.read_at(room, start_bytes + kept as u64)?;
        let filled = kept + read;
        // Without more to come, what is left is too short for a marker.
        let last_start = (filled + 1).saturating_sub(MARKER_BYTES);
        for at in finder.find_iter(&buffer[..filled]) {
            if at < last_start
                && let Some(marker) = pattern.decode(&buffer[at..])
            {
                visit(start_bytes + at as u64, marker);
            }
        }
        if read == 0 {
            return Ok(start_bytes + filled as u64);
        }
        kept = filled - last_start;
        buffer.copy_within(last_start..filled, 0);
        start_bytes += last_start as u64;
    }
}

/// The layout that the places of one object tell, ordered by sequence, and how many markers of it
/// there are.
fn assemble(places: &[Place], bytes: u64, pages: Pages) -> (Layout, u64) {
    let mut layout = Layout::default();
    let way = fewest_parts(places, pages);
    let mut last: Option<Place> = None;
    for place in &way {
        let from_bytes = u64::from(place.sequence) * MARKER_STEP_BYTES;
        let len_bytes = MARKER_STEP_BYTES.min(bytes - from_bytes);
        match last.is_some_and(|last| follows(&last, place, pages)) {
            true => layout.extend_to(place.offset_bytes + len_bytes),
            false => layout.push_apart(place.offset_bytes, len_bytes),
        }
        last = Some(*place);
    }
    (layout, way.len() as u64)
}

/// One place of each marker, so that the object has the fewest parts (`MARKER-2`). Cost: markers ×
/// copies².
fn fewest_parts(places: &[Place], pages: Pages) -> Vec<Place> {
    let markers: Vec<&[Place]> = places.chunk_by(|a, b| a.sequence == b.sequence).collect();
    // For each copy of each marker: breaks on the best way up to it, and the copy of the marker
    // before on that way.
    let mut ways: Vec<Vec<(u64, usize)>> = Vec::with_capacity(markers.len());
    for (index, copies) in markers.iter().enumerate() {
        let way_to = |place: &Place| {
            let before = index.checked_sub(1)?;
            let from = ways[before].iter().zip(markers[before]).enumerate();
            let breaks = from.map(|(at, ((breaks, _), last))| {
                (breaks + u64::from(!follows(last, place, pages)), at)
            });
            breaks.min()
        };
        let of_marker = copies.iter().map(|place| way_to(place).unwrap_or_default());
        ways.push(of_marker.collect());
    }
    let mut way = Vec::with_capacity(markers.len());
    let ends = ways.last().into_iter().flatten().enumerate();
    let mut at = ends
        .min_by_key(|(_, (breaks, _))| *breaks)
        .map(|(at, _)| at);
    for (copies, ways) in markers.iter().zip(&ways).rev() {
        let Some(copy) = at else { break };
        way.push(copies[copy]);
        at = Some(ways[copy].1);
    }
    way.reverse();
    way
}

/// Whether `next` lies where what follows `last` without a gap lies (`MARKER-3`).
fn follows(last: &Place, next: &Place, pages: Pages) -> bool {
    let steps = u64::from(next.sequence - last.sequence);
    let due = last.offset_bytes + steps * MARKER_STEP_BYTES;
    if next.offset_bytes >= due {
        next.offset_bytes == due || next.offset_bytes - due < pages.ahead_bytes
    } else {
        due - next.offset_bytes < pages.back_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn scan_bytes(bytes: &[u8], wanted: &[Option<Wanted>], pages: Pages) -> Found {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        scan(&[file.path()], &Pattern::new(1), wanted, pages).unwrap()
    }

    fn content(object: u64, version: u32, len: usize) -> Vec<u8> {
        let mut content = Vec::new();
        Pattern::new(1).fill(object, version, len, &mut content);
        content
    }

    #[test]
    fn places_are_found_at_any_offset_and_across_reads() {
        let object = content(0, 1, 40 << 10);
        let mut device = vec![0; 3];
        device.extend_from_slice(&object[..16 << 10]);
        // An old version and a part of the object twice: neither counts (MARKER-1, MARKER-2).
        device.extend(content(0, 0, 5 << 10));
        device.extend_from_slice(&object[8 << 10..16 << 10]);
        device.resize(SCAN_BYTES - (16 << 10) - 7, 0);
        let second = device.len() as u64;
        device.extend_from_slice(&object[16 << 10..]);
        let wanted = [
            Some(Wanted {
                version: 1,
                bytes: 40 << 10,
            }),
            None,
        ];
        let found = scan_bytes(&device, &wanted, Pages::default());
        assert_eq!((found.expected_count, found.found_count), (40, 40));
        let mut layout = Layout::default();
        layout.push(3, 16 << 10);
        layout.push(second, 24 << 10);
        assert_eq!(found.layouts, [layout, Layout::default()]);
    }

    #[test]
    fn a_copy_in_pieces_does_not_hide_the_whole_one() {
        let whole = content(0, 3, 8 * 1024);
        // A log before the object has its pages of 4 KiB apart, and the first ones of another
        // version.
        let mut bytes = content(0, 2, 4096);
        for page in whole.chunks(4096).rev() {
            bytes.extend_from_slice(page);
            bytes.extend_from_slice(&[0; 4096]);
        }
        bytes.extend_from_slice(&whole);
        let wanted = [Some(Wanted {
            version: 3,
            bytes: whole.len() as u64,
        })];
        let found = scan_bytes(&bytes, &wanted, Pages::default());
        // MARKER-2
        assert_eq!(found.found_count, found.expected_count);
        assert_eq!(found.layouts[0].fragments().len(), 1);
        // Without the whole one, it is the log.
        let found = scan_bytes(
            &bytes[..bytes.len() - whole.len()],
            &wanted,
            Pages::default(),
        );
        assert_eq!(found.layouts[0].fragments().len(), 2);
    }

    #[test]
    fn pages_do_not_part_an_object_but_gaps_do() {
        // Pages of 4096 bytes with 4 bytes of their own, as SQLite chains them.
        let object = content(0, 0, 3 * 4092);
        let pages: Vec<&[u8]> = object.chunks(4092).collect();
        let wanted = [Some(Wanted {
            version: 0,
            bytes: object.len() as u64,
        })];
        let tolerance = Pages {
            back_bytes: 4096,
            ahead_bytes: 4096,
        };
        let chain = |gap: usize| {
            let mut device = Vec::new();
            for (index, page) in pages.iter().enumerate() {
                device.resize(device.len() + if index == 2 { gap } else { 0 }, 0);
                device.extend_from_slice(&[0; 4]);
                device.extend_from_slice(page);
            }
            let found = scan_bytes(&device, &wanted, tolerance);
            found.layouts[0].fragments().len()
        };
        assert_eq!(chain(0), 1, "MARKER-3");
        assert_eq!(chain(4096), 2, "MARKER-3");
    }
}
