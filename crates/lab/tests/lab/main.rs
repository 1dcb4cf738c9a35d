//! The laboratory on small volumes and in small directories.
//!
//! Volumes need root and loop devices; where there are none, a test says so on stderr and tests
//! nothing. Where they are, a test that cannot make volumes fails; only programs and filesystems of
//! the kernel may be missing.
#![allow(clippy::unwrap_used)] // All of it is a test.

mod bucket;
mod experiments;
mod server;

use larder::AlignedBuf;
use larder_lab::backend::{Backend, Put, Site, Spec, Subject};
use larder_lab::error::{Error, Kind, Result};
use larder_lab::measure::layout::{Fragments, Layout};
use larder_lab::measure::markers;
use larder_lab::pattern::Pattern;
use larder_lab::run::{Circumstances, Event, Experiment, Request};
use larder_lab::sizes::{Random, Sizes};
use larder_lab::workload::age::Aging;
use larder_lab::workload::population::{AtRest, Population, Step};
use larder_lab::workload::{Figure, Stop, Work};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

const HOW: Put = Put {
    is_replacing: false,
    request_bytes: 64 * 1024,
    is_size_known: false,
};

fn site(directory: &Path) -> Site {
    // The `larder` command is only needed for mounts, which the tests of the command make.
    Site::new(directory, Path::new("larder")).unwrap()
}

/// Whether this machine can make the backend; says why not.
fn can(site: &Site, name: &str) -> bool {
    match site.check(&Spec::parse(name).unwrap()) {
        Ok(()) => true,
        Err(error) => {
            let is_missing = ["install", "the kernel of this machine has no"]
                .iter()
                .any(|what| error.text.contains(what));
            let may_mount =
                rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
            assert!(is_missing || !may_mount, "{name}: {error}");
            eprintln!("not tested: {name}: {error}");
            false
        }
    }
}

/// Calls `with` with all that a workload needs; returns the figures.
fn work_on<T>(
    subject: &mut Subject,
    seed: u64,
    with: impl FnOnce(&mut Work<'_>) -> Result<T>,
) -> (Result<T>, HashMap<String, f64>) {
    let stop = AtomicBool::new(false);
    let mut figures = HashMap::new();
    let mut on_figure = |figure: Figure<'_>| {
        figures.insert(figure.measure.to_owned(), figure.value);
        Ok(())
    };
    let mut work = Work {
        subject,
        pattern: Pattern::new(seed),
        random: Random::with_seed(seed),
        stop: Stop {
            asked: &stop,
            deadline: None,
        },
        on_progress: &mut |_| {},
        on_figure: &mut on_figure,
    };
    let outcome = with(&mut work);
    (outcome, figures)
}

fn aging(volume_bytes: u64, object_bytes: u64, writers: u32) -> Aging {
    Aging {
        object_bytes,
        sizes: Sizes::Uniform,
        occupancy: 0.8,
        ages: vec![0.0, 1.0],
        volume_bytes,
        put: HOW,
        writers,
        group: 1,
        reads_max: 100,
        is_warm: true,
        is_forced: false,
    }
}

/// Puts, replaces, removes, and looks for everything, cold; several writers, group deletes, known
/// sizes.
fn conform(subject: &mut Subject, volume_bytes: u64) -> HashMap<String, f64> {
    let (outcome, figures) = work_on(subject, 3, |work| {
        let mut population = Population::default();
        for version in 0..3 {
            let how = Put {
                is_size_known: version == 1,
                ..HOW
            };
            let sizes = [1, 31, 1000, 4096, 70_000, 300_001];
            let steps: Vec<Step> = (0..12)
                .map(|key| Step::Put {
                    key,
                    bytes: sizes[(key as usize + version) % 6],
                })
                .collect();
            steps
                .chunks(3)
                .try_for_each(|steps| population.apply(work, &how, steps))?;
        }
        population.apply(work, &HOW, &[Step::Delete { key: 5 }])?;
        let keys = population.keys();
        assert_eq!(keys.len(), 11);
        work.subject.cold()?;
        // BACKEND-1, as far as closing shows it.
        population.read(work, &keys, 3)?;
        let gone = work.subject.backend().get(5, &mut AlignedBuf::default());
        assert_eq!(gone.unwrap_err().kind, Kind::Lost);
        population.apply(
            work,
            &HOW,
            &[Step::Put {
                key: 5,
                bytes: 5000,
            }],
        )?;
        let keys = population.keys();
        keys.iter()
            .try_for_each(|key| population.apply(work, &HOW, &[Step::Delete { key: *key }]))?;
        let mut small = aging(volume_bytes, 64 * KIB, 2);
        (small.occupancy, small.group) = (0.1, 4);
        small.run(work)
    });
    outcome.unwrap();
    assert!(figures["read_mb_s"] > 0.0 && figures["warm_read_mb_s"] > 0.0);
    assert!(figures["write_p99_us"] >= figures["write_p50_us"]);
    assert!(figures["delete_ops_s"] > 0.0);
    figures
}

#[test]
fn backends_in_places_that_exist_conform() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    for kind in ["dir", "sqlite", "larder", "mount"] {
        let text = format!("{kind}:{}", directory.path().display());
        let spec = Spec::parse(&text).unwrap();
        let mut subject = Subject::make(&spec, &site, 32 * MIB).unwrap();
        conform(&mut subject, 32 * MIB);
        subject.end().unwrap();
    }
    // BACKEND-3
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn backends_on_volumes_conform_and_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    for name in [
        "ext4-1k+bare",
        "ext2",
        "ext3",
        "btrfs",
        "ntfs",
        "sqlite+page=64k",
        "sqlite@ntfs+rollback",
        "larder@ext4",
        "postgres",
        "postgres-lo@xfs",
    ] {
        if can(&site, name) {
            let mut subject = Subject::make(&Spec::parse(name).unwrap(), &site, 320 * MIB).unwrap();
            let before = subject.ground().traffic().unwrap();
            let figures = conform(&mut subject, 320 * MIB);
            assert!(
                figures["read_amplification"] >= 0.9,
                "VOLUME-2: {name}: {figures:?}"
            );
            if name.starts_with("ext") || name.starts_with("larder") {
                let has_holes = figures
                    .keys()
                    .any(|name| name.starts_with("hole_blocks_log2."));
                assert!(has_holes, "{name}: {figures:?}");
            }
            let log = subject.ground().traffic().unwrap().since(&before).log;
            let has_log = !name.contains("bare") && !name.contains("larder");
            assert_eq!(log.write_bytes > 0, has_log, "BACKEND-2: {name}");
            // VOLUME-1: the image has no name already.
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
            subject.end().unwrap();
        }
    }
}

/// Few objects: what serves it where the kernel does not takes seconds for each of some size.
#[test]
fn fat32_keeps_objects() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    for name in ["fat32", "fat32-4k+bare"] {
        if !can(&site, name) {
            continue;
        }
        let mut subject = Subject::make(&Spec::parse(name).unwrap(), &site, 300 * MIB).unwrap();
        let (outcome, figures) = work_on(&mut subject, 4, |work| {
            let mut population = Population::default();
            for sizes in [[1, 5000, 70_000], [9000, 0, 40_000]] {
                let steps = (0..).zip(sizes);
                let steps: Vec<Step> = steps.map(|(key, bytes)| Step::Put { key, bytes }).collect();
                population.apply_with(work, &HOW, &steps, 1)?;
            }
            population.apply(work, &HOW, &[Step::Delete { key: 1 }])?;
            let rest = AtRest {
                age: 1.0,
                volume_bytes: 300 * MIB,
                reads_max: 10,
                is_warm: false,
            };
            population.measure_at_rest(work, &rest)
        });
        outcome.unwrap();
        assert_eq!(figures["objects"], 2.0, "{name}");
        assert_eq!(figures["markers_found_share"], 1.0, "{name}");
        assert!(figures["fragments_mean"] >= 1.0, "{name}");
        subject.end().unwrap();
    }
}

/// The load and what is written later are counted apart, also where nobody looks in between.
#[test]
fn no_age_pays_for_the_load() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    if !can(&site, "ext4+bare") {
        return;
    }
    let spec = Spec::parse("ext4+bare").unwrap();
    let mut subject = Subject::make(&spec, &site, 64 * MIB).unwrap();
    let (outcome, figures) = work_on(&mut subject, 2, |work| {
        let aging = Aging {
            ages: vec![0.25],
            ..aging(64 * MIB, 128 * KIB, 1)
        };
        aging.run(work)
    });
    outcome.unwrap();
    // With the load it would be 5 times as much.
    let written = figures["write_amplification"];
    assert!((1.0..2.0).contains(&written), "{written}");
    subject.end().unwrap();
}

/// Ages a backend a little and counts twice: by markers, and as the backend or its filesystem says.
fn count_twice(name: &str, object_bytes: u64) -> Option<(Fragments, Fragments)> {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    if !can(&site, name) {
        return None;
    }
    let volume_bytes = 320 * MIB;
    let mut subject = Subject::make(&Spec::parse(name).unwrap(), &site, volume_bytes).unwrap();
    let (outcome, _) = work_on(&mut subject, 5, |work| {
        let mut population = Population::default();
        let usable_bytes = work.subject.available_bytes(volume_bytes)?;
        let mut key = 0;
        while population.age().live_bytes() + 2 * object_bytes < usable_bytes * 8 / 10 {
            let bytes = Sizes::Uniform.draw(object_bytes, &mut work.random);
            population.apply(work, &HOW, &[Step::Put { key, bytes }])?;
            key += 1;
        }
        for _ in 0..key / 2 {
            let victim = work.random.u64(0..key);
            let bytes = Sizes::Uniform.draw(object_bytes, &mut work.random);
            let room = usable_bytes * 9 / 10 - population.age().live_bytes();
            let bytes = bytes.min(room + population.bytes_of(victim).unwrap());
            population.apply(work, &HOW, &[Step::Put { key: victim, bytes }])?;
        }
        let keys = population.keys();
        assert!(keys.len() >= 1000, "{name}: {} objects", keys.len());
        let (_, told) = work.subject.backend().layouts(&keys)?.unwrap();
        let (pattern, live) = (work.pattern, population.wanted());
        let pages = work.subject.backend().pages();
        let found = work
            .subject
            .at_rest(|raw| markers::scan(raw, &pattern, live, pages))?;
        assert_eq!(found.found_count, found.expected_count, "{name}");
        Ok((Fragments::of(&found.layouts), Fragments::of(&told)))
    });
    subject.end().unwrap();
    Some(outcome.unwrap())
}

#[test]
fn markers_agree_with_fiemap() {
    for name in ["ext4+bare", "xfs+bare"] {
        if let Some((found, told)) = count_twice(name, 128 * KIB) {
            eprintln!("{name}: markers {found:?}, FIEMAP {told:?}");
            assert!(
                told.mean > 1.0,
                "{name}: nothing is fragmented; the test shows nothing"
            );
            assert_eq!(found.object_count, told.object_count);
            assert!((found.mean / told.mean - 1.0).abs() < 0.01, "{name}");
        }
    }
}

/// The segment files themselves are looked at: where the host's filesystem puts them is not
/// Larder's count.
#[test]
fn markers_agree_with_larder_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path());
    let spec = Spec::parse(&format!("larder:{}", directory.path().display())).unwrap();
    let mut subject = Subject::make(&spec, &site, 24 * MIB).unwrap();
    let (outcome, _) = work_on(&mut subject, 5, |work| {
        let mut population = Population::default();
        let usable_bytes = work.subject.available_bytes(24 * MIB)?;
        let mut key = 0;
        while population.age().live_bytes() + 40 * KIB < usable_bytes * 9 / 10 {
            let bytes = 4 * KIB + work.random.u64(0..32 * KIB);
            population.apply(work, &HOW, &[Step::Put { key, bytes }])?;
            key += 1;
        }
        // Every third goes; what comes is larger than the holes.
        for victim in (0..key).step_by(3) {
            population.apply(work, &HOW, &[Step::Delete { key: victim }])?;
        }
        for index in 0..3 {
            let bytes = usable_bytes / 10;
            population.apply(
                work,
                &HOW,
                &[Step::Put {
                    key: key + index,
                    bytes,
                }],
            )?;
        }
        work.subject.cold()?;
        let keys = population.keys();
        let counts = |layouts: &[Layout]| -> Vec<usize> {
            (layouts.iter().map(|layout| layout.fragments().len())).collect()
        };
        // Until nothing is defragmented between the two looks.
        let (found, told) = loop {
            let (_, before) = work.subject.backend().layouts(&keys)?.unwrap();
            let (pattern, live) = (work.pattern, population.wanted());
            let pages = work.subject.backend().pages();
            let scan = |raw: &[&Path]| markers::scan(raw, &pattern, live, pages);
            let found = work.subject.at_rest(scan)?;
            let (_, after) = work.subject.backend().layouts(&keys)?.unwrap();
            if counts(&before) == counts(&after) {
                let of = |key: &u64| found.layouts[*key as usize].fragments().len();
                break (keys.iter().map(of).collect::<Vec<_>>(), counts(&after));
            }
        };
        assert_eq!(found, told);
        assert!(
            told.iter().any(|count| *count > 1),
            "nothing is fragmented; the test shows nothing"
        );
        Ok(())
    });
    outcome.unwrap();
    subject.end().unwrap();
}

/// Keeps objects in memory, and loses some in a way of its own.
struct Faulty {
    objects: Mutex<HashMap<u64, Vec<u8>>>,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// A replacement is confirmed and forgotten.
    Stale,
    /// The end of long objects is missing.
    Short,
    /// One bit is another.
    Flipped,
    /// Objects disappear.
    Gone,
}

impl Backend for Faulty {
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()> {
        let mut content = content.to_vec();
        match self.fault {
            Fault::Stale if how.is_replacing && key == 7 => return Ok(()),
            Fault::Short if key == 7 => content.truncate(content.len() - 1),
            Fault::Flipped if key == 7 => content[1500] ^= 4,
            Fault::Gone if key == 7 => return Ok(()),
            _ => {}
        }
        self.objects.lock().unwrap().insert(key, content);
        Ok(())
    }

    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()> {
        let objects = self.objects.lock().unwrap();
        let content = objects.get(&key).ok_or_else(|| Error::lost("it is gone"))?;
        into.resize(0, 0);
        into.extend_from_slice(content);
        Ok(())
    }

    fn delete(&self, key: u64) -> Result<()> {
        self.objects.lock().unwrap().remove(&key);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_backend_that_loses_data_is_caught() {
    for fault in [
        Fault::None,
        Fault::Stale,
        Fault::Short,
        Fault::Flipped,
        Fault::Gone,
    ] {
        let faulty = Faulty {
            objects: Mutex::default(),
            fault,
        };
        let mut subject = Subject::of(Box::new(faulty), tempfile::tempdir().unwrap());
        let (outcome, _) = work_on(&mut subject, 1, |work| {
            aging(4 * MIB, 16 * KIB, 1).run(work)
        });
        match (fault, outcome) {
            (Fault::None, outcome) => outcome.unwrap(),
            // WORKLOAD-1
            (_, outcome) => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind, Kind::Lost, "{fault:?}");
                assert!(error.text.contains("object 7"), "{error}");
            }
        }
    }
}

fn request(directory: &TempDir) -> (Request, Circumstances) {
    let path = directory.path();
    let mut request = Request::new(Experiment::Age).unwrap();
    let places = ["dir", "sqlite"].map(|kind| format!("{kind}:{}", path.display()));
    request.backends = places
        .iter()
        .map(|text| Spec::parse(text).unwrap())
        .collect();
    request.objects = vec![16 * KIB];
    request.volumes = vec![8 * MIB];
    request.occupancies = vec![0.2];
    request.ages = vec![0.0, 0.5];
    request.rounds = 2;
    let circumstances = Circumstances {
        out: path.join("run"),
        work: path.join("work"),
        program: "larder".into(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        command: "larder lab run age".to_owned(),
        deadline: None,
    };
    (request, circumstances)
}

#[test]
fn a_run_goes_on_where_it_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let (request, circumstances) = request(&directory);
    let records = directory.path().join("run/records.jsonl");
    let stop = AtomicBool::new(false);
    let mut order = Vec::new();
    // ^C while the second of four cases is measured.
    let stopped = larder_lab::run::run(&request, &circumstances, &stop, &mut |event| match event {
        Event::Progress { case: 1, .. } => stop.store(true, Ordering::Relaxed),
        Event::Measured { records, .. } => order.push(records[0].backend.clone()),
        _ => {}
    });
    assert_eq!(stopped.unwrap_err().kind, Kind::Stopped);
    let one = fs::read_to_string(&records).unwrap();
    assert!(one.ends_with('\n') && one.lines().last().unwrap().contains("\"case_seconds\""));
    // A crash that leaves a part of the second case, the last line torn (RUN-1).
    let part: String = one
        .lines()
        .take(3)
        .map(|line| format!("{line}\n").replace("dir:", "sqlite:"))
        .collect();
    fs::write(&records, format!("{one}{part}{{\"experiment\":\"ag")).unwrap();
    stop.store(false, Ordering::Relaxed);
    let summary = larder_lab::run::run(&request, &circumstances, &stop, &mut |event| {
        if let Event::Measured { records, .. } = event {
            order.push(records[0].backend.clone());
        }
    })
    .unwrap();
    assert_eq!((summary.measured, summary.resumed), (3, 1));
    // RUN-2: the order turns.
    let kinds: Vec<&str> = order
        .iter()
        .map(|name| name.split(':').next().unwrap())
        .collect();
    assert_eq!(kinds, ["dir", "sqlite", "sqlite", "dir"]);
    let read = larder_lab::results::read(&circumstances.out).unwrap();
    let ends = read
        .records
        .iter()
        .filter(|record| record.measure == "case_seconds")
        .count();
    assert_eq!((ends, read.torn_bytes), (4, 0));
    let mut seen = std::collections::HashSet::new();
    for record in &read.records {
        let what = (
            &record.backend,
            record.round,
            record.age.to_bits(),
            &record.measure,
        );
        assert!(seen.insert(what), "RUN-1: twice: {record:?}");
    }
    // Once more: nothing is left to do; with other parameters it is another run.
    let summary = larder_lab::run::run(&request, &circumstances, &stop, &mut |_| {}).unwrap();
    assert_eq!((summary.measured, summary.resumed), (0, 4));
    let other = Request {
        rounds: 3,
        ..request
    };
    let error = larder_lab::run::run(&other, &circumstances, &stop, &mut |_| {}).unwrap_err();
    assert!(error.text.contains("--out"), "{error}");
}

#[test]
fn a_case_ends_at_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let (request, circumstances) = request(&directory);
    // Hours, in the first round, of which nothing is expected.
    let request = Request {
        ages: vec![0.0, 1e6],
        rounds: 1,
        ..request
    };
    let circumstances = Circumstances {
        deadline: Some(Instant::now() + Duration::from_millis(500)),
        ..circumstances
    };
    let stop = AtomicBool::new(false);
    let summary = larder_lab::run::run(&request, &circumstances, &stop, &mut |_| {}).unwrap();
    assert_eq!((summary.measured, summary.left_out), (0, 2));
}

#[test]
fn the_same_seed_does_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let spec = Spec::parse(&format!("larder:{}", directory.path().display())).unwrap();
    let site = site(directory.path());
    let live: Vec<f64> = [5, 5, 6]
        .into_iter()
        .map(|seed| {
            let mut subject = Subject::make(&spec, &site, 24 * MIB).unwrap();
            let (outcome, figures) = work_on(&mut subject, seed, |work| {
                aging(24 * MIB, 64 * KIB, 1).run(work)
            });
            outcome.unwrap();
            subject.end().unwrap();
            figures["live_bytes"]
        })
        .collect();
    assert_eq!(live[0], live[1], "WORKLOAD-2");
    assert_ne!(live[0], live[2], "WORKLOAD-2");
}

#[test]
fn what_means_nothing_or_cannot_be_done_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (request, circumstances) = request(&directory);
    let run = |request: &Request| {
        let stop = AtomicBool::new(false);
        larder_lab::run::run(request, &circumstances, &stop, &mut |_| {}).unwrap_err()
    };
    let few = Request {
        objects: vec![MIB],
        ..request.clone()
    };
    assert!(run(&few).text.contains("--force"), "{}", run(&few));
    assert!(
        Request {
            is_forced: true,
            ..few
        }
        .check()
        .is_ok()
    );
    let spec = Spec::parse("dir:/nowhere/at/all").unwrap();
    let nowhere = Request {
        backends: vec![spec.clone()],
        ..request.clone()
    };
    assert_eq!(run(&nowhere).kind, Kind::Cannot);
    // RUN-3: said, and the others are measured.
    let mut some = request.clone();
    (some.rounds, some.backends[1]) = (1, spec);
    let (stop, mut told) = (AtomicBool::new(false), Vec::new());
    let summary = larder_lab::run::run(&some, &circumstances, &stop, &mut |event| {
        if let Event::Cannot { backend, .. } = event {
            told.push(backend);
        }
    });
    assert_eq!(summary.unwrap().measured, 1);
    assert_eq!(told, ["dir:/nowhere/at/all"]);
    let header = larder_lab::results::read(&circumstances.out)
        .unwrap()
        .header;
    assert!(
        header.machine.contains_key("cannot dir:/nowhere/at/all"),
        "RUN-3"
    );
    // RUN-3 where it shows only when a case is made: the volume would do, what Larder can take of
    // it would not. And nobody answers there.
    let places = ["dir", "larder"].map(|kind| format!("{kind}:{}", directory.path().display()));
    let absent = "postgres:postgresql://u:secret@127.0.0.1:1/x";
    let few = Request {
        backends: [&*places[0], &*places[1], absent]
            .map(|text| Spec::parse(text).unwrap())
            .to_vec(),
        objects: vec![40 * KIB],
        volumes: vec![16 * MIB],
        occupancies: vec![0.9],
        ..request
    };
    few.check().unwrap();
    let circumstances = Circumstances {
        out: directory.path().join("few"),
        ..circumstances.clone()
    };
    let mut told = Vec::new();
    let summary = larder_lab::run::run(&few, &circumstances, &stop, &mut |event| {
        if let Event::Cannot { reason, .. } = event {
            told.push(reason);
        }
    });
    assert_eq!(summary.unwrap().measured, 2);
    // Once, not in each round.
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("--force"), "{told:?}");
    assert!(told[1].contains("no PostgreSQL answers"), "{told:?}");
    let machine = larder_lab::results::read(&circumstances.out)
        .unwrap()
        .header
        .machine;
    let noted = machine.keys().filter(|name| name.starts_with("cannot "));
    assert_eq!(noted.count(), 2, "RUN-3: {machine:?}");
    // Where nothing can be measured, nothing is left that would be in the way.
    let none = Request {
        backends: few.backends[1..].to_vec(),
        ..few
    };
    let circumstances = Circumstances {
        out: directory.path().join("none"),
        ..circumstances
    };
    let error = larder_lab::run::run(&none, &circumstances, &stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind, Kind::Cannot);
    assert!(!circumstances.out.join("run.json").exists());
    // No space for the image.
    let site = site(directory.path());
    if can(&site, "ext4") {
        let error = Subject::make(&Spec::parse("ext4").unwrap(), &site, 1 << 50)
            .err()
            .unwrap();
        assert!(error.text.contains("--work"), "{error}");
    }
}
