//! A run: the cases of an experiment, one after the other, each recorded when it is complete.
//!
//! * `RUN-1` A case is in the records wholly, its last record being `case_seconds`, or it is
//!   measured again when the run goes on: what a crash or ^C left of it is cut off.
//! * `RUN-2` All backends of a case see the same operations. From round to round their order turns,
//!   so that what the machine does beside falls on each of them.
//! * `RUN-3` What this machine cannot make is said, in the header too, and the others are measured;
//!   also where that shows only when a case is made. Its further rounds are left out then.

mod machine;
pub mod request;

use crate::backend::spec::System;
use crate::backend::{Ground, Site, Spec, Subject};
use crate::error::{Error, Kind, Result, Said};
use crate::measure::device::load_average;
use crate::pattern::Pattern;
use crate::results::{self, Appender, Header, Record};
use crate::sizes::Random;
use crate::workload::{Figure, Stop, Work};
pub use machine::memory_bytes;
pub use request::{Case, Experiment, Request, Workload};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The last record of a case (`RUN-1`).
const END: &str = "case_seconds";

/// Where a run happens, and what it is called.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// The directory of the run; if it holds one already, that one goes on.
    pub out: PathBuf,
    /// Where images lie meanwhile.
    pub work: PathBuf,
    /// The `larder` command, for mounts.
    pub program: PathBuf,
    /// The present, RFC 3339, UTC.
    pub started: String,
    /// The command line that repeats it.
    pub command: String,
    /// When to end; `None`: when all is measured. A case that is expected to end later, as the same
    /// case of an earlier round did, is not begun; one that is not complete then is given up.
    pub deadline: Option<Instant>,
}

/// What somebody who watches is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A backend, or a case of one, that this machine cannot make, and why.
    Cannot {
        /// As it was written, or the case for people.
        backend: String,
        /// Cause and remedy.
        reason: String,
    },
    /// Cases that were measured by an earlier call.
    Resumed {
        /// So many.
        cases: usize,
    },
    /// A case begins or goes on.
    Progress {
        /// Which, from 0.
        case: usize,
        /// Of so many.
        cases: usize,
        /// For people.
        label: String,
        /// What share of the whole run is done, 0 to 1.
        share: f64,
    },
    /// A case is recorded.
    Measured {
        /// For people.
        label: String,
        /// Its records.
        records: Vec<Record>,
    },
}

/// What a run has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases measured now.
    pub measured: usize,
    /// Cases measured before.
    pub resumed: usize,
    /// Cases for which the time was too short.
    pub left_out: usize,
}

/// Measures what `request` asks for. [`Kind::Stopped`] when `stop` becomes true; the same call goes
/// on later.
pub fn run(
    request: &Request,
    circumstances: &Circumstances,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(Event),
) -> Result<Summary> {
    request.check()?;
    let mut request = request.clone();
    Spec::number(&mut request.backends);
    let request = &request;
    let site = Site::new(&circumstances.work, &circumstances.program)?;
    let mut header = header(request, circumstances)?;
    let mut backends = Vec::new();
    for spec in &request.backends {
        let mut wanted = spec.clone();
        if request.experiment == Experiment::Cluster {
            // It names filesystems; PostgreSQL works on them.
            wanted.system = System::Postgres;
        }
        match site.check_on(&wanted, &request.volumes) {
            Ok(()) => backends.push(spec.clone()),
            Err(error) if error.kind == Kind::Cannot => {
                on_event(Event::Cannot {
                    backend: spec.shown().to_owned(),
                    reason: error.text.clone(),
                });
                header
                    .machine
                    .insert(format!("cannot {}", spec.shown()), error.text);
            }
            Err(error) => return Err(error),
        }
    }
    if backends.is_empty() {
        return Err(Error::cannot(
            "none of these backends can be made here; 'larder lab list' says what can",
        ));
    }
    let cases = request.cases(&backends)?;
    let mut refused: Vec<(&Case, Error)> = Vec::new();
    let (mut appender, done) = begin(&circumstances.out, &header)?;
    let is_done = |case: &Case| done.iter().any(|record| case.is_of(record));
    let weight = |case: &Case| case.weight();
    let total: f64 = cases.iter().map(weight).sum();
    let mut summary = Summary {
        resumed: cases.iter().filter(|case| is_done(case)).count(),
        ..Summary::default()
    };
    if summary.resumed > 0 {
        on_event(Event::Resumed {
            cases: summary.resumed,
        });
    }
    let mut before: f64 = cases.iter().filter(|case| is_done(case)).map(weight).sum();
    let mut seconds: HashMap<(&str, &BTreeMap<String, String>), f64> = HashMap::new();
    for (index, case) in cases.iter().enumerate() {
        if is_done(case) || refused.iter().any(|(other, _)| other.repeats(case)) {
            continue;
        }
        let same_case = (case.spec.name.as_str(), &case.parameters);
        let expected = seconds.get(&same_case).copied().unwrap_or_default();
        let expected_end = Instant::now() + Duration::from_secs_f64(expected);
        if circumstances
            .deadline
            .is_some_and(|deadline| expected_end > deadline)
        {
            summary.left_out += 1;
            continue;
        }
        let started = Instant::now();
        let mut on_share = |share: f64| {
            on_event(Event::Progress {
                case: index,
                cases: cases.len(),
                label: case.label(),
                share: (before + share.clamp(0.0, 1.0) * weight(case)) / total,
            });
        };
        on_share(0.0);
        let stop_case = Stop {
            asked: stop,
            deadline: circumstances.deadline,
        };
        let records = match measure(case, request.seed, &site, stop_case, &mut on_share) {
            Err(error) if error.kind == Kind::Stopped && !stop.load(Ordering::Relaxed) => {
                summary.left_out += 1;
                continue;
            }
            Err(error) if error.kind == Kind::Cannot => {
                // RUN-3
                on_event(Event::Cannot {
                    backend: case.label(),
                    reason: error.text.clone(),
                });
                let machine = (format!("cannot {}", case.label()), error.text.clone());
                results::note_machine(&circumstances.out, machine).map_err(said)?;
                refused.push((case, error));
                before += weight(case);
                continue;
            }
            measured => measured.said(|| case.label())?,
        };
        let is_wanted = |record: &&Record| !(request.is_layout_only && record.is_of_time());
        let records: Vec<Record> = records.iter().filter(is_wanted).cloned().collect();
        for record in &records {
            appender.append(record).map_err(said)?;
        }
        before += weight(case);
        seconds.insert(same_case, started.elapsed().as_secs_f64());
        summary.measured += 1;
        on_event(Event::Measured {
            label: case.label(),
            records,
        });
    }
    match refused.into_iter().next() {
        Some((_, error)) if summary.measured + summary.resumed == 0 => {
            // Nothing stands in the way of a right command.
            results::remove_empty(&circumstances.out).map_err(said)?;
            Err(error)
        }
        _ => Ok(summary),
    }
}

/// Measures one case.
fn measure(
    case: &Case,
    seed: u64,
    site: &Site,
    stop: Stop<'_>,
    on_progress: &mut dyn FnMut(f64),
) -> Result<Vec<Record>> {
    let started = Instant::now();
    let mut records = Vec::new();
    let mut note = |figure: Figure<'_>| {
        let extra = figure.extra.iter();
        let extra = extra.map(|(name, value)| ((*name).to_owned(), value.clone()));
        records.push(Record {
            experiment: case.experiment.name().to_owned(),
            backend: case.spec.name.clone(),
            case: case.parameters.clone().into_iter().chain(extra).collect(),
            round: case.round,
            age: figure.age,
            measure: figure.measure.to_owned(),
            value: figure.value,
            load: load_average()?,
        });
        Ok(())
    };
    // RUN-2
    let seed = case.seed(seed);
    let random = Random::with_seed(seed);
    let volume_bytes = case.workload.volume_bytes();
    if let Workload::Transactions(transactions, _) = &case.workload {
        let ground = Ground::make(&case.spec, site, volume_bytes)?;
        transactions.run(ground, random, stop, on_progress, &mut note)?;
    } else {
        let mut subject = Subject::make(&case.spec, site, volume_bytes)?;
        let mut work = Work {
            subject: &mut subject,
            pattern: Pattern::new(seed),
            random,
            stop,
            on_progress,
            on_figure: &mut note,
        };
        match &case.workload {
            Workload::Age(aging) => aging.run(&mut work)?,
            Workload::Cycles(cycles) => cycles.run(&mut work)?,
            Workload::Replay(replay) => replay.run(&mut work)?,
            Workload::Transactions(..) => unreachable!("it has no subject"),
        }
        subject.end()?;
    }
    // RUN-1
    note(Figure {
        age: 0.0,
        extra: &[],
        measure: END,
        value: started.elapsed().as_secs_f64(),
    })?;
    Ok(records)
}

/// The appender of a run and the last records of its complete cases.
fn begin(out: &Path, header: &Header) -> Result<(Appender, Vec<Record>)> {
    if !out.join("run.json").exists() {
        return Ok((Appender::create(out, header).map_err(said)?, Vec::new()));
    }
    let found = results::read(out).map_err(said)?;
    let asked = |header: &Header| {
        (
            header.experiment.clone(),
            header.parameters.clone(),
            header.seed,
        )
    };
    if asked(&found.header) != asked(header) {
        return Err(Error::failed(format!(
            "'{}' holds a run with other parameters ({}); name another directory with --out",
            out.display(),
            found.header.command
        )));
    }
    let is_end = |record: &Record| record.measure == END;
    let complete = found
        .records
        .iter()
        .rposition(is_end)
        .map_or(0, |at| at + 1);
    cut_after(&out.join("records.jsonl"), complete)?;
    let (appender, _) = Appender::resume(out).map_err(said)?;
    let ends = found.records.into_iter().filter(is_end).collect();
    Ok((appender, ends))
}

/// Cuts a file off after so many lines (`RUN-1`).
fn cut_after(path: &Path, lines: usize) -> Result<()> {
    let text = fs::read(path).said(|| path.display().to_string())?;
    let len: usize = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(lines)
        .map(<[u8]>::len)
        .sum();
    if len < text.len() {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len as u64)?;
        file.sync_all()?;
    }
    Ok(())
}

fn header(request: &Request, circumstances: &Circumstances) -> Result<Header> {
    let name = circumstances.out.file_name().unwrap_or_default();
    Ok(Header {
        format: results::FORMAT,
        name: name.to_string_lossy().into_owned(),
        experiment: request.experiment.name().to_owned(),
        started: circumstances.started.clone(),
        command: circumstances.command.clone(),
        parameters: request.parameters(),
        machine: machine::describe(&circumstances.work)?,
        seed: request.seed,
    })
}

fn said(error: results::Error) -> Error {
    Error::failed(error.to_string())
}

/// What can be measured on this machine: each name of a backend, and why not if it cannot.
pub fn list(work: &Path, program: &Path) -> Result<Vec<(String, Result<()>)>> {
    let site = Site::new(work, program)?;
    let mut found = Vec::new();
    for name in Spec::names() {
        let spec = Spec::parse(name)?;
        found.push((name.to_owned(), site.check(&spec)));
    }
    Ok(found)
}
