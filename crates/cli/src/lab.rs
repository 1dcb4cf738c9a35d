//! `larder lab`: the laboratory on the command line.
//!
//! Flags become a request, events become lines and a bar. Everything that measures is in
//! `larder_lab`.

mod advise;
mod analysis;

use crate::args::{LabRunArgs, LabVerb};
use crate::error::{At, Failure, Result, warn};
use crate::output::Output;
use crate::units::show_time;
use indicatif::{ProgressBar, ProgressStyle};
use larder_lab::backend::Spec;
use larder_lab::backend::spec::Where;
use larder_lab::error::Kind;
use larder_lab::results::Record;
use larder_lab::run::{Circumstances, Event, Experiment, Request, Summary};
use larder_lab::sizes::Sizes;
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

/// Exit code of a command that SIGINT would have ended (128 + 2), as shells show it.
const EXIT_INTERRUPTED: u8 = 130;

/// The program that has the laboratory, beside this one.
const PROGRAM: &str = "larder-lab";

/// `larder lab`: goes on as the program that has it, with the same command line.
pub(crate) fn go_on() -> Result<()> {
    let program = program_beside(PROGRAM)?;
    let why = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(why).at(|| {
        let program = program.display();
        format!("cannot start '{program}', which has the laboratory; install it beside 'larder'")
    })
}

/// `larder lab`, in that program.
pub(crate) fn lab(verb: &LabVerb, out: &mut Output) -> Result<()> {
    match verb {
        LabVerb::Run(args) => run(args, out),
        LabVerb::List(_) => list(out),
        LabVerb::Report(args) => analysis::report(args, out),
        LabVerb::Compare(args) => analysis::compare(args, out),
        LabVerb::Advise(args) => advise::advise(args, out, &measure_for_advice),
    }
}

fn run(args: &LabRunArgs, out: &mut Output) -> Result<()> {
    let request = request_of(args).map_err(failure)?;
    let name = format!("lab-{}", request.experiment.name());
    let directory = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    let circumstances = Circumstances {
        work: args.work.clone().unwrap_or_else(|| directory.clone()),
        deadline: None,
        ..circumstances(&directory)?
    };
    let is_json = out.is_json();
    let summary = measure(
        &request,
        &circumstances,
        &mut |label, records| match is_json {
            true => Ok(()),
            false => tell_case(label, records, out),
        },
    )
    .map_err(failure_of)?;
    tell_end(&summary, &circumstances.out, out)
}

fn circumstances(directory: &Path) -> Result<Circumstances> {
    Ok(Circumstances {
        out: directory.to_owned(),
        work: directory.to_owned(),
        program: program_beside("larder")?,
        started: show_time(now_ns()),
        command: command_line(),
        deadline: None,
    })
}

/// Measures for `larder lab advise` until `deadline`: the results in `directory`, images and places
/// in `place`. What cannot be made here, and what there was no time for, is said.
fn measure_for_advice(
    request: &Request,
    directory: &Path,
    place: &Path,
    deadline: Instant,
) -> Result<()> {
    let circumstances = Circumstances {
        work: place.to_owned(),
        deadline: Some(deadline),
        ..circumstances(directory)?
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    match measure(request, &circumstances, &mut |_, _| Ok(())) {
        Ok(summary) => {
            if summary.left_out > 0 {
                warn(&format!(
                    "{name}: {} of {} cases were left out for lack of time; the same command goes \
                     on with them, --time gives more",
                    summary.left_out,
                    summary.left_out + summary.measured + summary.resumed
                ));
            }
            Ok(())
        }
        Err(Ended::Measuring(error)) if error.kind == Kind::Cannot => {
            warn(&format!("{name} is not measured: {}", error.text));
            Ok(())
        }
        Err(ended) => Err(failure_of(ended)),
    }
}

/// Why measuring ended early.
enum Ended {
    Measuring(larder_lab::error::Error),
    Telling(Failure),
}

fn failure_of(ended: Ended) -> Failure {
    match ended {
        Ended::Measuring(error) => failure(error),
        Ended::Telling(error) => error,
    }
}

/// Measures what is asked for, with a bar; each case that is complete goes to `on_case`.
fn measure(
    request: &Request,
    circumstances: &Circumstances,
    on_case: &mut dyn FnMut(&str, &[Record]) -> Result<()>,
) -> std::result::Result<Summary, Ended> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends us at once; the kernel takes what we made (VOLUME-1).
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .at(|| "cannot watch for signals".to_owned())
            .map_err(Ended::Telling)?;
    }
    let bar = bar();
    let mut told = Ok(());
    let ran = larder_lab::run::run(request, circumstances, &stop, &mut |event| match event {
        Event::Cannot { backend, reason } => {
            bar.suspend(|| warn(&format!("{backend} is left out: {reason}")));
        }
        Event::Resumed { cases } => {
            bar.suspend(|| warn(&format!("{cases} cases were measured before; going on")));
        }
        Event::Progress {
            case,
            cases,
            label,
            share,
        } => {
            bar.set_message(format!("{}/{cases} {label}", case + 1));
            bar.set_position((share * BAR_STEPS as f64) as u64);
        }
        Event::Measured { label, records } => {
            if told.is_ok() {
                told = bar.suspend(|| on_case(&label, &records));
            }
        }
    });
    bar.finish_and_clear();
    told.map_err(Ended::Telling)?;
    ran.map_err(Ended::Measuring)
}

fn tell_end(summary: &Summary, directory: &Path, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.document(&json!({
            "measured_cases": summary.measured,
            "resumed_cases": summary.resumed,
            "run": directory.to_string_lossy(),
        }));
    }
    out.line(&format!(
        "{} cases measured, {} before; results in {}",
        summary.measured,
        summary.resumed,
        directory.display()
    ))
}

/// One line per storage age: what matters most.
fn tell_case(label: &str, records: &[Record], out: &mut Output) -> Result<()> {
    const COLUMNS: [(&str, &str); 7] = [
        ("fragments_mean", "fragments"),
        ("fragments_p99", "p99"),
        ("ios_per_object", "I/Os per read"),
        ("read_mb_s", "read MB/s"),
        ("write_mb_s", "write MB/s"),
        ("write_amplification", "written per byte"),
        ("log_amplification", "in the log"),
    ];
    out.line(label)?;
    for record in records {
        // What is told by action: the experiment `cluster`.
        if let Some(action) = record.case.get("action") {
            let after = record.case.get("transactions");
            let after =
                after.map_or_else(String::new, |count| format!(" after {count} transactions"));
            out.line(&format!(
                "  {action}{after}: {} {:.2}",
                record.measure, record.value
            ))?;
        }
    }
    let mut ages: Vec<f64> = records.iter().map(|record| record.age).collect();
    ages.sort_by(f64::total_cmp);
    ages.dedup();
    for age in ages {
        let cells: Vec<String> = COLUMNS
            .iter()
            .filter_map(|(measure, title)| {
                let is_it = |record: &&Record| {
                    let is_whole = !record.case.contains_key("cycle");
                    record.age == age && record.measure == *measure && is_whole
                };
                let value = records.iter().find(is_it)?.value;
                Some(format!("{title} {value:.2}"))
            })
            .collect();
        if !cells.is_empty() {
            out.line(&format!("  age {age:.2}: {}", cells.join(", ")))?;
        }
    }
    out.flush()
}

fn list(out: &mut Output) -> Result<()> {
    let found = larder_lab::run::list(&std::env::temp_dir(), &program_beside("larder")?)
        .map_err(failure)?;
    if out.is_json() {
        let backends: Vec<_> = found
            .iter()
            .map(|(name, can)| {
                let reason = can.as_ref().err().map(|error| error.text.clone());
                json!({"backend": name, "works": can.is_ok(), "reason": reason})
            })
            .collect();
        let experiments: Vec<_> = Experiment::ALL
            .iter()
            .map(|one| json!({"experiment": one.name(), "question": one.question()}))
            .collect();
        return out.document(&json!({"experiments": experiments, "backends": backends}));
    }
    for one in Experiment::ALL {
        out.line(&format!("{:<13} {}", one.name(), one.question()))?;
    }
    for (name, can) in found {
        let state = match can {
            Ok(()) => "works here".to_owned(),
            Err(error) => format!("not here: {}", error.text),
        };
        out.line(&format!("{name:<13} {state}"))?;
    }
    Ok(())
}

fn request_of(args: &LabRunArgs) -> larder_lab::error::Result<Request> {
    let mut request = Request::new(args.experiment)?;
    if !args.backends.is_empty() {
        request.backends = args
            .backends
            .iter()
            .map(|text| Spec::parse(text))
            .collect::<larder_lab::error::Result<_>>()?;
    }
    if !args.sizes.is_empty() {
        request.sizes = args
            .sizes
            .iter()
            .map(|name| Sizes::parse(name))
            .collect::<larder_lab::error::Result<_>>()?;
    }
    let shares: Vec<f64> = args
        .occupancy
        .iter()
        .map(|percent| percent / 100.0)
        .collect();
    set(&mut request.objects, &args.objects);
    set(&mut request.occupancies, &shares);
    set(&mut request.ages, &args.ages);
    set(&mut request.volumes, &args.volume);
    set(&mut request.requests, &args.request);
    set(&mut request.writers, &args.writers);
    request.is_size_known |= args.known_size;
    request.is_warm |= args.warm;
    request.is_layout_only |= args.layout_only;
    request.is_forced |= args.force;
    request.group = args.group.unwrap_or(request.group);
    request.reads_max = args.reads.unwrap_or(request.reads_max);
    request.rounds = args.rounds.unwrap_or(request.rounds);
    request.seed = args.seed.unwrap_or(request.seed);
    request.cycles = args.cycles.unwrap_or(request.cycles);
    request.transactions = args.transactions.unwrap_or(request.transactions);
    request.statements = args.statements.unwrap_or(request.statements);
    request.commits = args.commits.unwrap_or(request.commits);
    request.looks = args.looks.unwrap_or(request.looks);
    request.source = args.repository.clone().or_else(|| args.trace.clone());
    Ok(request)
}

/// A list that was given replaces the default.
fn set<T: Clone>(target: &mut Vec<T>, given: &[T]) {
    if !given.is_empty() {
        *target = given.to_vec();
    }
}

fn failure(error: larder_lab::error::Error) -> Failure {
    match error.kind {
        Kind::Stopped => {
            warn(&error.text);
            Failure::Told(EXIT_INTERRUPTED)
        }
        _ => Failure::Other(error.text),
    }
}

fn program_beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().at(|| "cannot find this program".to_owned())?;
    Ok(own.with_file_name(name))
}

fn command_line() -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|word| shown_word(&word.to_string_lossy()));
    std::iter::once("larder".to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A word of the command line as a shell takes it, without addresses: one may hold a password, and
/// this goes into the run.
fn shown_word(word: &str) -> String {
    let (flag, list) = match word.split_once('=') {
        Some((flag, list)) if flag.starts_with("--") => (format!("{flag}="), list),
        _ => (String::new(), word),
    };
    let is_address = |part: &str| {
        let is_server = |spec: Spec| matches!(spec.place, Where::Server(_));
        part.contains("://") || Spec::parse(part).is_ok_and(is_server)
    };
    match word {
        _ if list.split(',').any(is_address) => format!("{flag}ADDRESS"),
        plain if !plain.contains([' ', '\'']) => plain.to_owned(),
        other => format!("'{}'", other.replace('\'', "'\\''")),
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

const BAR_STEPS: u64 = 10_000;

/// A bar on stderr; draws nothing when that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(BAR_STEPS);
    match ProgressStyle::with_template("{bar:30} {percent}% {elapsed} (left {eta}) {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => unreachable!("the template is constant and correct"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_not_written_down() {
        for (word, shown) in [
            ("--backends", "--backends"),
            ("larder,dir:/srv/x", "larder,dir:/srv/x"),
            ("--backends=ext4,sqlite", "--backends=ext4,sqlite"),
            ("a b", "'a b'"),
            ("postgres:host=h user=u password=secret", "ADDRESS"),
            ("ext4,postgres:password=secret", "ADDRESS"),
            (
                "--backends=postgres-lo:password=secret",
                "--backends=ADDRESS",
            ),
            ("s3:https://key:secret@host/bucket", "ADDRESS"),
            ("postgres:/srv/x", "postgres:/srv/x"),
        ] {
            assert_eq!(shown_word(word), shown);
        }
    }

    #[test]
    fn the_template_of_the_bar_is_correct() {
        bar();
    }
}
