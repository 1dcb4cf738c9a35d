//! Records such as the laboratory writes, made up: the trends are those that were seen on real
//! machines.

pub use larder_lab::results::Record;
use larder_lab::results::{FORMAT, Header, Results};
use std::collections::BTreeMap;

/// Numbers between −1 and 1 that are the same each time.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

pub const SYSTEMS: [&str; 7] = [
    "ext4",
    "xfs",
    "ntfs",
    "sqlite",
    "postgres",
    "larder",
    "larder-mount",
];
const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

/// A run that collects records.
pub struct Maker {
    pub results: Results,
    noise: Noise,
    rounds: u32,
}

type Case<'a> = &'a [(&'a str, String)];

impl Maker {
    pub fn new(experiment: &str, rounds: u32) -> Maker {
        let machine = [
            ("processor", "AMD EPYC 7763"),
            ("cores", "2"),
            ("memory", "8 GiB"),
            ("kernel", "6.8.0"),
            ("device", "virtual disk, loop images"),
            ("sqlite", "3.54.1"),
            ("postgres", "17.2"),
        ];
        let header = Header {
            format: FORMAT,
            name: format!("made-up-{experiment}"),
            experiment: experiment.to_owned(),
            started: "2026-01-02T03:04:05Z".to_owned(),
            command: format!("larder lab run {experiment} --objects 1M --backends ext4,xfs"),
            parameters: BTreeMap::from([("objects".to_owned(), "1M".to_owned())]),
            machine: machine
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            seed: 1,
        };
        let results = Results {
            header,
            records: vec![],
            torn_bytes: 0,
        };
        Maker {
            results,
            noise: Noise(0x9e37_79b9),
            rounds,
        }
    }

    pub fn put(
        &mut self,
        backend: &str,
        case: Case<'_>,
        age: f64,
        measure: &str,
        value: f64,
        noise: f64,
    ) {
        for round in 0..self.rounds {
            let case = case
                .iter()
                .map(|(name, value)| (name.to_string(), value.clone()));
            self.results.records.push(Record {
                experiment: self.results.header.experiment.clone(),
                backend: backend.to_owned(),
                case: case.collect(),
                round,
                age,
                measure: measure.to_owned(),
                value: match measure {
                    "fragments_mean" => (value * (noise * self.noise.next()).exp()).max(1.0),
                    _ => value * (noise * self.noise.next()).exp(),
                },
                load: if backend == "ntfs" && age == 2.0 {
                    3.5
                } else {
                    1.2
                },
            });
        }
    }
}

/// Mean fragments of an object of `bytes`.
fn fragments(system: &str, bytes: f64, age: f64, is_uniform: bool) -> f64 {
    let large = (bytes / MIB).powf(0.25).min(2.0);
    let grown = match system {
        "ext4" => 1.24 + 0.62 * age.powf(0.85) * large,
        "xfs" => 1.01 + 0.09 * age * large,
        "ntfs" => 1.06 + 0.85 * age.powf(0.9) * large,
        "sqlite" => 1.74 + (bytes / (8.0 * KIB)).min(1200.0) * (1.0 - (-age).exp()),
        "postgres" => 1.11 + 0.85 * age * large,
        _ => 1.0 + 0.002 * age,
    };
    if is_uniform {
        grown
    } else {
        1.0 + (grown - 1.0).min(1.0) * 0.4
    }
}

fn case(bytes: f64, sizes: &str) -> Vec<(&'static str, String)> {
    vec![
        ("object_bytes", format!("{bytes}")),
        ("sizes", sizes.to_owned()),
        ("occupancy", "0.9".to_owned()),
        ("volume_bytes", format!("{}", 4096.0 * MIB)),
        ("request_bytes", "65536".to_owned()),
        ("writers", "1".to_owned()),
    ]
}

pub fn age() -> Results {
    let mut run = Maker::new("age", 3);
    for system in SYSTEMS {
        for bytes in [
            16.0 * KIB,
            64.0 * KIB,
            256.0 * KIB,
            512.0 * KIB,
            MIB,
            10.0 * MIB,
        ] {
            for age in [0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0] {
                let of = case(bytes, "uniform");
                let count = fragments(system, bytes, age, true);
                run.put(system, &of, age, "fragments_mean", count, 0.03);
                // A row is found at once, a file is opened; each fragment is a request.
                let (find_us, mb_s) = match system {
                    "sqlite" => (25.0, 240.0),
                    "postgres" => (60.0, 180.0),
                    "larder" => (30.0, 900.0),
                    _ => (190.0, 700.0),
                };
                let us = find_us + 45.0 * count + bytes / mb_s;
                run.put(system, &of, age, "read_mb_s", bytes / us, 0.12);
                let slow = if system == "sqlite" { 4.0 } else { 1.2 };
                let write_us = 600.0 + bytes / 300.0 * (1.0 + (slow - 1.0) * (age / 4.0).min(1.0));
                run.put(system, &of, age, "write_mb_s", bytes / write_us, 0.1);
                let written = match system {
                    "sqlite" => 2.0 + 1.7 * (age / 4.0).min(1.0),
                    "postgres" => 1.9 + 0.3 * (age / 4.0).min(1.0),
                    _ => 1.02 + 0.02 * age / 4.0,
                };
                run.put(system, &of, age, "write_amplification", written, 0.02);
                run.put(
                    system,
                    &of,
                    age,
                    "space_amplification",
                    1.0 + 0.02 * written,
                    0.01,
                );
                for (disk, request_us, rate) in [
                    ("hdd", 12670.0, 160.0),
                    ("hdd2005", 12670.0, 60.0),
                    ("ssd", 80.0, 1500.0),
                    ("cloud", 333.0, 131.0),
                ] {
                    let us = request_us * count + bytes / rate;
                    run.put(
                        system,
                        &of,
                        age,
                        &format!("modelled_read_mb_s.{disk}"),
                        bytes / us,
                        0.02,
                    );
                }
                for class in 0..14 {
                    let aged = if system.starts_with("larder") {
                        9.0
                    } else {
                        7.0 - age / 2.0
                    };
                    let count = 2000.0 / 2.0_f64.powi(class)
                        * (-(f64::from(class) - aged).powi(2) / 16.0).exp()
                        * 2.0;
                    run.put(
                        system,
                        &of,
                        age,
                        &format!("hole_blocks_log2.{class}"),
                        count.round(),
                        0.0,
                    );
                }
                if bytes == MIB {
                    let count = fragments(system, bytes, age, false);
                    run.put(
                        system,
                        &case(bytes, "constant"),
                        age,
                        "fragments_mean",
                        count,
                        0.03,
                    );
                }
            }
        }
    }
    run.results
}

pub fn volume() -> Results {
    let mut run = Maker::new("volume", 3);
    for system in ["ext4", "xfs", "sqlite", "larder"] {
        for (volume_mib, occupancy) in [
            (512.0, 0.5),
            (512.0, 0.9),
            (2048.0, 0.5),
            (2048.0, 0.9),
            (2048.0, 0.975),
        ] {
            let pool: f64 = volume_mib * (1.0 - occupancy);
            let mut of = case(MIB, "uniform");
            of[2].1 = format!("{occupancy}");
            of[3].1 = format!("{}", volume_mib * MIB);
            let count = 1.0 + (fragments(system, MIB, 4.0, true) - 1.0) * (200.0 / pool).powf(0.4);
            run.put(system, &of, 4.0, "fragments_mean", count, 0.04);
        }
    }
    run.results
}

pub fn write_size() -> Results {
    let mut run = Maker::new("write-size", 3);
    for system in ["ext4", "xfs", "sqlite", "larder"] {
        for kib in [16.0, 64.0, 256.0, 1024.0] {
            let mut of = case(MIB, "uniform");
            of[4].1 = format!("{}", kib * KIB);
            let swing = if system == "ext4" {
                (256.0_f64 / kib).powf(0.2)
            } else {
                1.0
            };
            run.put(
                system,
                &of,
                4.0,
                "fragments_mean",
                fragments(system, MIB, 4.0, true) * swing,
                0.04,
            );
        }
    }
    run.results
}

pub fn dbfs() -> Results {
    let mut run = Maker::new("dbfs", 3);
    for system in ["ext4", "xfs", "larder", "larder-mount"] {
        for bytes in [10.0 * KIB, 100.0 * KIB, MIB, 10.0 * MIB, 100.0 * MIB] {
            for writers in [1.0, 4.0, 16.0_f64] {
                let of = [
                    ("object_bytes", format!("{bytes}")),
                    ("writers", format!("{writers}")),
                ];
                let speed = 900.0 * bytes / (bytes + 200.0 * KIB / writers.sqrt());
                run.put(system, &of, 0.0, "write_mb_s", speed, 0.1);
                run.put(system, &of, 0.0, "read_mb_s", 1.3 * speed, 0.1);
            }
        }
        for cycle in 0..8 {
            let of = [
                ("object_bytes", format!("{MIB}")),
                ("cycle", format!("{cycle}")),
            ];
            run.put(
                system,
                &of,
                0.0,
                "write_mb_s",
                800.0 - 4.0 * f64::from(cycle),
                0.02,
            );
            run.put(
                system,
                &of,
                0.0,
                "read_mb_s",
                1000.0 - 2.0 * f64::from(cycle),
                0.02,
            );
        }
    }
    run.results
}

pub fn cluster() -> Results {
    let mut run = Maker::new("cluster", 5);
    let systems = [
        ("ext2", 6.2, &[1.0, 2.0, 4.0][..]),
        ("ext3", 6.4, &[1.0, 2.0, 4.0]),
        ("ext4", 6.3, &[1.0, 2.0, 4.0]),
        ("ntfs", 9.5, &[0.5, 4.0, 64.0]),
        ("fat32", 6.1, &[0.5, 8.0]),
    ];
    for (system, seconds, blocks) in systems {
        for block in blocks {
            for action in ["insert", "select", "delete"] {
                for transactions in [100.0, 500.0, 1000.0] {
                    let of = [
                        ("action", action.to_owned()),
                        ("block_bytes", format!("{}", block * KIB)),
                        ("transactions", format!("{transactions}")),
                    ];
                    run.put(
                        system,
                        &of,
                        0.0,
                        "seconds",
                        seconds * transactions / 100.0,
                        0.05,
                    );
                    let kb = 450.0 + 40.0 * seconds + block;
                    run.put(system, &of, 0.0, "device_kb_per_transaction", kb, 0.01);
                }
            }
        }
    }
    run.results
}

pub fn replay(experiment: &str) -> Results {
    let mut run = Maker::new(experiment, 2);
    for system in ["ext4", "sqlite", "larder"] {
        for age in [0.1, 0.3, 0.55, 0.9] {
            let of = [
                ("operations", "5000".to_owned()),
                ("volume_bytes", format!("{}", 512.0 * MIB)),
            ];
            let count = fragments(system, 64.0 * KIB, age, true);
            run.put(system, &of, age, "fragments_mean", count, 0.03);
            run.put(system, &of, age, "read_mb_s", 200.0 / count, 0.1);
        }
    }
    run.results
}
