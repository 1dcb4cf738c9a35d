//! How long reading would take on a disk that this machine does not have: a model, not a
//! measurement.
//!
//! Virtual disks hide seeks: scattered and contiguous objects read equally fast on them. So the
//! places of an object's fragments, which were observed, are laid on four disks that are described
//! by a few figures:
//!
//! | disk | a request that does not continue the last one | transfer |
//! |---|---|---|
//! | `hdd` | seek 0.8 + 14.4 · √(distance ÷ volume) ms, mean 8.5 ms; rotation 4.17 ms | 160 MB/s |
//! | `hdd2005` | the same | 60 MB/s |
//! | `ssd` | 80 µs for each request of at most 128 KiB | 3 GB/s |
//! | `cloud` | one of 3000 requests a second, for each 256 KiB | 125 MiB/s |
//!
//! The volume is laid over the whole disk. One reader, one request at a time, nothing cached; on
//! `cloud` requests overlap, and the scarcer of the two allowances decides. MB are 10^6 bytes.
//!
//! * `MODEL-1` Where two fragments touch does not matter: splitting a fragment in place changes no
//!   time.
//! * `MODEL-2` Reading never takes less time than the transfer alone.

const KIB: u64 = 1024;

/// A stretch of an object that lies contiguously on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Where it begins on the volume.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
}

/// A disk, described by a few figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// As in the measure `modelled_read_mb_s.ID`.
    pub id: &'static str,
    /// For people.
    pub name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Pays for the way of its head and for the turning of its platter.
    Rotating {
        track_to_track_s: f64,
        seek_mean_s: f64,
        rotation_s: f64,
        bytes_s: f64,
    },
    /// Pays for each request, wherever it goes.
    Flash {
        request_s: f64,
        request_bytes_max: u64,
        bytes_s: f64,
    },
    /// Grants so many requests and bytes a second.
    Allowance {
        requests_s: f64,
        request_bytes_max: u64,
        bytes_s: f64,
    },
}

/// The disks of the model.
pub const DISKS: [Disk; 4] = [
    Disk {
        id: "hdd",
        name: "7200 rpm disk",
        kind: rotating(160e6),
    },
    Disk {
        id: "hdd2005",
        name: "7200 rpm disk of 2005",
        kind: rotating(60e6),
    },
    Disk {
        id: "ssd",
        name: "SSD",
        kind: Kind::Flash {
            request_s: 80e-6,
            request_bytes_max: 128 * KIB,
            bytes_s: 3e9,
        },
    },
    Disk {
        id: "cloud",
        name: "cloud block device",
        kind: Kind::Allowance {
            requests_s: 3000.0,
            request_bytes_max: 256 * KIB,
            bytes_s: 125.0 * (KIB * KIB) as f64,
        },
    },
];

const fn rotating(bytes_s: f64) -> Kind {
    Kind::Rotating {
        track_to_track_s: 0.8e-3,
        seek_mean_s: 8.5e-3,
        rotation_s: 4.17e-3,
        bytes_s,
    }
}

/// Seconds that reading `objects` whole would take on `disk`, one after the other in this order,
/// the fragments of each in the order of its content. The offsets are those of a volume of
/// `volume_bytes`.
pub fn read_seconds(disk: &Disk, volume_bytes: u64, objects: &[Vec<Fragment>]) -> f64 {
    let joined: Vec<Vec<Fragment>> = objects.iter().map(|object| join(object)).collect();
    let bytes = joined.iter().flatten().map(|part| part.length_bytes).sum();
    let requests = |max: u64| -> f64 {
        let parts = joined.iter().flatten();
        parts
            .map(|part| part.length_bytes.div_ceil(max) as f64)
            .sum()
    };
    let transfer_s = |bytes_s: f64, bytes: u64| bytes as f64 / bytes_s;
    match disk.kind {
        Kind::Rotating { bytes_s, .. } => {
            transfer_s(bytes_s, bytes) + positioning_seconds(&disk.kind, volume_bytes, &joined)
        }
        Kind::Flash {
            request_s,
            request_bytes_max,
            bytes_s,
        } => transfer_s(bytes_s, bytes) + request_s * requests(request_bytes_max),
        Kind::Allowance {
            requests_s,
            request_bytes_max,
            bytes_s,
        } => transfer_s(bytes_s, bytes).max(requests(request_bytes_max) / requests_s),
    }
}

/// MB/s of reading `objects` whole on `disk`, or nothing when they hold no bytes. As
/// [`read_seconds`].
pub fn read_mb_s(disk: &Disk, volume_bytes: u64, objects: &[Vec<Fragment>]) -> Option<f64> {
    let bytes: u64 = objects.iter().flatten().map(|part| part.length_bytes).sum();
    (bytes > 0).then(|| bytes as f64 / 1e6 / read_seconds(disk, volume_bytes, objects))
}

/// Fragments that touch are one (MODEL-1).
fn join(object: &[Fragment]) -> Vec<Fragment> {
    let mut joined: Vec<Fragment> = Vec::new();
    for part in object.iter().filter(|part| part.length_bytes > 0) {
        match joined.last_mut() {
            Some(last) if last.offset_bytes + last.length_bytes == part.offset_bytes => {
                last.length_bytes += part.length_bytes
            }
            _ => joined.push(*part),
        }
    }
    joined
}

/// What the head's ways and the platter's turns take. The first request of an object waits for the
/// platter even where the head is right; later ones may also let a small gap pass below the head.
fn positioning_seconds(kind: &Kind, volume_bytes: u64, objects: &[Vec<Fragment>]) -> f64 {
    let Kind::Rotating {
        track_to_track_s,
        seek_mean_s,
        rotation_s,
        bytes_s,
    } = *kind
    else {
        return 0.0;
    };
    // The mean of √|x − y| over two places of a disk is 8/15.
    let slope_s = (seek_mean_s - track_to_track_s) / (8.0 / 15.0);
    let (mut head, mut seconds) = (0_u64, 0.0);
    for object in objects {
        for (index, part) in object.iter().enumerate() {
            let distance = head.abs_diff(part.offset_bytes);
            let share = distance as f64 / volume_bytes.max(1) as f64;
            let seek_s = match distance {
                0 => 0.0,
                _ => track_to_track_s + slope_s * share.min(1.0).sqrt(),
            };
            let moved_s = seek_s + rotation_s;
            let is_ahead = index > 0 && part.offset_bytes >= head;
            seconds += match is_ahead {
                true => moved_s.min(distance as f64 / bytes_s),
                false => moved_s,
            };
            head = part.offset_bytes + part.length_bytes;
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = KIB * KIB;

    fn part(offset_bytes: u64, length_bytes: u64) -> Fragment {
        Fragment {
            offset_bytes,
            length_bytes,
        }
    }

    fn disk(id: &str) -> &'static Disk {
        DISKS.iter().find(|disk| disk.id == id).unwrap()
    }

    #[test]
    fn what_was_computed_by_hand() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b.max(1.0), "{a} is not {b}");
        let whole = vec![vec![part(100 * MIB, MIB)]];
        let volume = 400 * MIB;
        // A quarter of the volume away: half of the square-root term.
        let seek_s = 0.8e-3 + 7.7e-3 * 15.0 / 8.0 * 0.5;
        let hdd_s = seek_s + 4.17e-3 + MIB as f64 / 160e6;
        near(read_seconds(disk("hdd"), volume, &whole), hdd_s);
        near(
            read_seconds(disk("hdd2005"), volume, &whole),
            seek_s + 4.17e-3 + MIB as f64 / 60e6,
        );
        near(
            read_seconds(disk("ssd"), volume, &whole),
            8.0 * 80e-6 + MIB as f64 / 3e9,
        );
        near(read_seconds(disk("cloud"), volume, &whole), 1.0 / 125.0);
        let crumbs = vec![(0..256).map(|i| part(i * 8192, 4096)).collect()];
        near(read_seconds(disk("cloud"), volume, &crumbs), 256.0 / 3000.0);
        near(
            read_mb_s(disk("cloud"), volume, &whole).unwrap(),
            125.0 * MIB as f64 / 1e6,
        );
        assert_eq!(read_mb_s(disk("hdd"), volume, &[vec![]]), None);
    }

    #[test]
    fn the_mean_seek_is_that_of_the_data_sheet() {
        // A grid of places instead of random ones.
        let places: Vec<u64> = (0..200).collect();
        let kind = &disk("hdd").kind;
        let mut total_s = 0.0;
        for from in &places {
            for to in &places {
                let there = vec![vec![part(*from * MIB, 0), part(*to * MIB, 1)]];
                let ways = positioning_seconds(kind, 200 * MIB, &there);
                let first = positioning_seconds(kind, 200 * MIB, &[vec![part(*from * MIB, 0)]]);
                total_s += ways - first;
            }
        }
        let mean_s = total_s / (places.len() * places.len()) as f64;
        // Gaps that pass below the head and places that are equal take a little away.
        assert!((mean_s - 12.67e-3).abs() < 0.4e-3, "{mean_s}");
    }

    proptest! {
        #[test]
        fn splitting_in_place_changes_nothing_and_transfer_is_the_floor(
            parts in prop::collection::vec((0_u64..1000, 2_u64..1000), 1..20),
            cut in 1_u64..1000,
        ) {
            let parts: Vec<Fragment> = parts
                .iter()
                .map(|(at, length)| part(at * MIB, length * KIB))
                .collect();
            let split: Vec<Fragment> = parts.iter().flat_map(|whole| {
                let first = cut.min(whole.length_bytes - 1);
                let rest = whole.length_bytes - first;
                [part(whole.offset_bytes, first), part(whole.offset_bytes + first, rest)]
            }).collect();
            let bytes: u64 = parts.iter().map(|part| part.length_bytes).sum();
            for disk in &DISKS {
                let seconds = read_seconds(disk, 1001 * MIB, std::slice::from_ref(&parts));
                // MODEL-1
                let of_split = read_seconds(disk, 1001 * MIB, std::slice::from_ref(&split));
                prop_assert_eq!(seconds, of_split);
                // MODEL-2
                prop_assert!(seconds >= bytes as f64 / 3e9);
            }
        }
    }
}
