//! The allocator at the size it must bear: 10⁸ objects of 1 MB on 100 TB, 90 % full, in the real
//! structures.
//!
//! The catalog is stood in for by a generator: an allocation group (AG) holds, until it is first
//! read, a row of objects of 128–384 blocks (0.5–1.5 MB) with holes between them, made from its
//! number. AGs that were changed are remembered. Every step replaces one object in a window of AGs
//! or anywhere: allocate, commit, quarantine the old one, and release it a commit later, as the
//! engine does. Each commit also adds one large object, for which AGs are searched that nothing
//! else needs.
//!
//! ```text
//! cargo run --release -p larder-space --example scale                 # the large case
//! cargo run --release -p larder-space --example scale -- small   # 4000 objects, exact best fit
//! cargo run --release -p larder-space --example scale -- large 110000 400000   # AGs, steps
//! ```
//! Exits with 1 when the process was larger than 256 MiB, or when objects are split.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use larder_space::format::limits::AG_BLOCKS;
use larder_space::format::{Extent, SegmentIndex};
use larder_space::{AgSummary, Placement, Purpose, Space};

/// AGs in a segment (4 TiB).
const SEGMENT_AGS: u64 = 4096;
/// Resident bytes that the process may take at most.
const RESIDENT_BYTES_MAX: u64 = 256 << 20;
/// Commits between which nothing is released: retire, then reclaim.
const RECLAIM_COMMITS: usize = 2;
/// Objects replaced in one commit.
const COMMIT_OBJECTS: usize = 100;
/// One large object per commit, 64 MiB: no hole fits, so groups are loaded in the hope of one.
const LARGE_BLOCKS: u64 = 16_384;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "large".into());
    let mut number = |default: u64| {
        let argument = arguments.next().map(|text| text.parse());
        argument.transpose().map(|number| number.unwrap_or(default))
    };
    match (mode.as_str(), number(110_000), number(1_000_000)) {
        ("large", Ok(ag_count), Ok(steps)) => large(ag_count, steps),
        ("small", ..) => small(),
        _ => {
            eprintln!("usage: scale [small | large [AGS [STEPS]]]");
            ExitCode::from(2)
        }
    }
}

/// xorshift64*: a run depends on its seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    /// Blocks of an object: 1 MB ± 50 %, uniform.
    fn object_blocks(&mut self) -> u64 {
        128 + self.below(257)
    }
}

/// The extent rows: generated, and for AGs that were changed, kept in an unlinked file, so that the
/// process holds nothing but the allocator.
struct Rows {
    file: File,
    /// Rows of each AG in the file; 0 if it was never changed.
    counts: Vec<u32>,
}

/// Bytes for the rows of one AG in the file: a start and a length of 4 bytes each.
const SLOT_BYTES: u64 = 32 << 10;

impl Rows {
    fn new(ag_count: u64) -> std::io::Result<Rows> {
        let path = std::env::temp_dir().join(format!("larder-scale-{}", std::process::id()));
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Rows {
            file,
            counts: vec![0; ag_count as usize], // few
        })
    }

    /// About 920 objects, with a hole behind one of twelve: 10 % are free.
    fn generate(ag: u64) -> Vec<(u32, u32)> {
        let mut random = Random((ag + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut rows = Vec::with_capacity(1000);
        let mut at = 0;
        loop {
            let len = random.object_blocks();
            if at + len > AG_BLOCKS {
                return rows;
            }
            rows.push((at as u32, len as u32)); // < AG_BLOCKS
            at += len;
            if random.below(12) == 0 {
                at += 1 + random.below(680);
            }
        }
    }

    fn of(&self, ag: u64) -> std::io::Result<Vec<(u32, u32)>> {
        let count = self.counts[ag as usize] as usize;
        if count == 0 {
            return Ok(Rows::generate(ag));
        }
        let mut bytes = vec![0; count * 8];
        self.file.read_exact_at(&mut bytes, ag * SLOT_BYTES)?;
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
        };
        let rows = bytes.chunks_exact(8);
        Ok(rows
            .map(|row| (number(&row[..4]), number(&row[4..])))
            .collect())
    }

    fn change(
        &mut self,
        extent: &Extent,
        change: impl FnOnce(&mut Vec<(u32, u32)>, (u32, u32)),
    ) -> std::io::Result<()> {
        let ag = u64::from(extent.segment.0) * SEGMENT_AGS + extent.ag_index();
        let mut rows = self.of(ag)?;
        let start = extent.start_block % AG_BLOCKS;
        change(&mut rows, (start as u32, extent.block_count as u32)); // in one AG
        let bytes: Vec<u8> = rows
            .iter()
            .flat_map(|row| [row.0.to_le_bytes(), row.1.to_le_bytes()])
            .flatten()
            .collect();
        assert!(
            !bytes.is_empty() && bytes.len() as u64 <= SLOT_BYTES,
            "rows of an AG"
        );
        self.counts[ag as usize] = rows.len() as u32; // ≤ SLOT_BYTES / 8
        self.file.write_all_at(&bytes, ag * SLOT_BYTES)
    }

    fn insert(&mut self, extent: &Extent) -> std::io::Result<()> {
        self.change(extent, |rows, row| {
            let at = rows.partition_point(|other| other < &row);
            rows.insert(at, row);
        })
    }

    fn remove(&mut self, extent: &Extent) -> std::io::Result<()> {
        self.change(extent, |rows, row| {
            let at = rows.partition_point(|other| other < &row);
            assert_eq!(rows.get(at), Some(&row), "the catalog has the row");
            rows.remove(at);
        })
    }
}

fn place(ag: u64) -> (SegmentIndex, u64) {
    (SegmentIndex((ag / SEGMENT_AGS) as u32), ag % SEGMENT_AGS) // few segments
}

fn extents((segment, ag_index): (SegmentIndex, u64), rows: &[(u32, u32)]) -> Vec<Extent> {
    let start = ag_index * AG_BLOCKS;
    rows.iter()
        .map(|&(at, len)| Extent::new(segment, start + u64::from(at), len.into()))
        .collect()
}

#[derive(Default)]
struct Figures {
    large_fragments: u64,
    loads: u64,
    load: Duration,
    allocate: Duration,
    release: Duration,
    objects: u64,
    fragments: u64,
}

fn large(ag_count: u64, steps: u64) -> ExitCode {
    let mut space = Space::new();
    let opening = Instant::now();
    let mut generating = Duration::ZERO;
    let mut objects = 0;
    for ag in 0..ag_count {
        let started = Instant::now();
        let rows = Rows::generate(ag);
        generating += started.elapsed();
        objects += rows.len();
        let (segment, ag_index) = place(ag);
        space.grow_segment(segment, (ag_index + 1) * AG_BLOCKS);
        let summary = AgSummary {
            used_blocks: rows.iter().map(|row| u64::from(row.1)).sum(),
            quarantined_blocks: 0,
        };
        if let Err(error) = space.summarize_ag(segment, ag_index, summary) {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    println!(
        "{objects} objects in {ag_count} allocation groups, {:.1} TB, {:.1} % full; opened in \
         {:.0} ms",
        space.capacity_blocks() as f64 * 4096e-12,
        space.allocated_blocks() as f64 * 100.0 / space.capacity_blocks() as f64,
        (opening.elapsed() - generating).as_secs_f64() * 1e3
    );
    report_memory("opened", &space);
    let mut rows = match Rows::new(ag_count) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut random = Random(0x5eed_1a2d_e200_0003);
    let mut retired: Vec<Vec<Extent>> = Vec::new();
    let mut all = Figures::default();
    let rounds = 10;
    for round in 1..=rounds {
        let mut figures = Figures::default();
        for _ in 0..steps / rounds / COMMIT_OBJECTS as u64 {
            if let Err(error) = commit(
                &mut space,
                &mut rows,
                &mut random,
                ag_count,
                &mut retired,
                &mut figures,
            ) {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
        println!(
            "round {round}: {:.4} fragments per object; {:.0} ns per allocation, {:.0} ns per \
             release, \
             {} loads of {:.0} µs, {:.0} MiB loaded; {:.0} fragments per 64 MiB",
            figures.fragments as f64 / figures.objects as f64,
            figures.allocate.as_nanos() as f64 / figures.objects as f64,
            figures.release.as_nanos() as f64 / figures.objects as f64,
            figures.loads,
            figures.load.as_micros() as f64 / figures.loads.max(1) as f64,
            space.loaded_bytes() as f64 / f64::from(1 << 20),
            figures.large_fragments as f64 * COMMIT_OBJECTS as f64 / figures.objects as f64,
        );
        all.objects += figures.objects;
        all.fragments += figures.fragments;
    }
    space.assert_valid();
    let is_in_bounds = report_memory("aged", &space);
    let fragments = all.fragments as f64 / all.objects as f64;
    println!(
        "{} objects placed, {fragments:.4} fragments per object",
        all.objects
    );
    if is_in_bounds && fragments <= 1.01 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Replaces objects: half of them in a window of AGs, half anywhere.
fn commit(
    space: &mut Space,
    rows: &mut Rows,
    random: &mut Random,
    ag_count: u64,
    retired: &mut Vec<Vec<Extent>>,
    figures: &mut Figures,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut allocated = Vec::new();
    let mut dropped: Vec<Extent> = Vec::new();
    for index in 0..=COMMIT_OBJECTS {
        let is_large = index == COMMIT_OBJECTS;
        let blocks = match is_large {
            true => LARGE_BLOCKS,
            false => random.object_blocks(),
        };
        let mut reservation = space.reserve(blocks, Purpose::Ordinary)?;
        while let Some((segment, ag_index)) = space.find_wanted_ag(blocks, Placement::Known) {
            let ag = u64::from(segment.0) * SEGMENT_AGS + ag_index;
            let extents = extents((segment, ag_index), &rows.of(ag)?);
            let started = Instant::now();
            space.load_ag(segment, ag_index, &extents)?;
            figures.load += started.elapsed();
            figures.loads += 1;
        }
        let started = Instant::now();
        let pieces = space.allocate(&mut reservation, blocks, Placement::Known);
        if is_large {
            figures.large_fragments += pieces.len() as u64;
            allocated.extend(pieces);
            break;
        }
        figures.allocate += started.elapsed();
        figures.objects += 1;
        figures.fragments += pieces.len() as u64;
        allocated.extend(pieces);
        let old = loop {
            let ag = random.below(if index % 2 == 0 {
                ag_count.min(1000)
            } else {
                ag_count.min(5000)
            });
            let of_ag = extents(place(ag), &rows.of(ag)?);
            let old = of_ag[random.below(of_ag.len() as u64) as usize];
            let is_gone = |other: &Extent| other.overlaps(&old);
            if !dropped.iter().any(is_gone) && !retired.iter().flatten().any(is_gone) {
                break old;
            }
        };
        space.quarantine(old);
        dropped.push(old);
    }
    // The catalog's commit: allocations are in, what was retired before is reclaimed.
    for extent in &allocated {
        rows.insert(extent)?;
    }
    retired.push(dropped);
    if retired.len() > RECLAIM_COMMITS {
        for extent in retired.remove(0) {
            rows.remove(&extent)?;
            let started = Instant::now();
            space.release(extent);
            figures.release += started.elapsed();
        }
    }
    space.settle();
    Ok(())
}

/// Prints resident memory; whether it always was within bounds.
fn report_memory(when: &str, space: &Space) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok())
    };
    let (Some(resident), Some(peak)) = (kib("VmRSS:"), kib("VmHWM:")) else {
        eprintln!("/proc/self/status does not tell the resident memory");
        return false;
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{when}: resident {:.0} MiB, at most {:.0} MiB; loaded groups estimated at {:.0} MiB",
        mib(resident << 10),
        mib(peak << 10),
        mib(space.loaded_bytes()),
    );
    peak << 10 <= RESIDENT_BYTES_MAX
}

/// The house's small case: 4000 objects of 5–15 MB, replaced at random to storage age 10; so many
/// percent full of what is not held back, and of all, which ordinary work cannot reach.
fn small() -> ExitCode {
    let mut is_good = true;
    let cases = [
        (90, Purpose::Ordinary, 1.0005),
        (97, Purpose::Ordinary, 1.01),
        (97, Purpose::Privileged, f64::INFINITY),
    ];
    for (percent, purpose, bound) in cases {
        let mut space = Space::new();
        // 4000 objects of 2560 blocks on average, and what is free beside them.
        let usable = 4000 * 2560 * 100 / percent;
        let (capacity, of_what) = match purpose {
            Purpose::Ordinary => (usable / 31 * 32, "what is not held back"),
            Purpose::Privileged => (usable, "all"),
        };
        space.grow_segment(SegmentIndex(0), capacity);
        let mut random = Random(0x5eed_1a2d_e200_0001);
        let mut objects: Vec<Vec<Extent>> = Vec::new();
        let mut place = |space: &mut Space| {
            let blocks = 1280 + random.below(2561);
            let mut reservation = space.reserve(blocks, purpose)?;
            let pieces = space.allocate(&mut reservation, blocks, Placement::Known);
            Ok::<_, larder_space::NoSpace>(pieces)
        };
        while (space.allocated_blocks() + 2 * 3840) * 100 < usable * percent {
            match place(&mut space) {
                Ok(pieces) => objects.push(pieces),
                Err(error) => {
                    eprintln!("{error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        let mut choice = Random(0x5eed_1a2d_e200_0002);
        let mut quarantined: Vec<Extent> = Vec::new();
        let (mut placed, mut fragments) = (0, 0);
        let age = 10 * objects.len();
        for step in 0..age {
            let at = choice.below(objects.len() as u64) as usize;
            let pieces = match place(&mut space) {
                Ok(pieces) => pieces,
                Err(error) => {
                    eprintln!("{error}");
                    return ExitCode::FAILURE;
                }
            };
            if step >= age - objects.len() {
                placed += 1;
                fragments += pieces.len();
            }
            let old = std::mem::replace(&mut objects[at], pieces);
            quarantined
                .drain(..)
                .for_each(|extent| space.release(extent));
            old.iter().for_each(|&extent| space.quarantine(extent));
            quarantined = old;
            space.settle();
        }
        let standing = objects.iter().map(Vec::len).sum::<usize>() as f64 / objects.len() as f64;
        println!(
            "{} objects, {percent} % of {of_what} full, age 10: {standing:.4} fragments per \
             object, {:.4} per object placed last",
            objects.len(),
            f64::from(fragments as u32) / f64::from(placed),
        );
        is_good &= standing <= bound;
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
