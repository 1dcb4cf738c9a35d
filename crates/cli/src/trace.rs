//! `larder trace`: what a mount does, as it happens.
//!
//! ```text
//! 15:31:04.123456      812 µs  write    /a/b.txt  4096 at 8192  ENOSPC  cp (1234)
//! ```
//!
//! # Invariants
//! * `CLI-23` What was not heard is told: how many events, of which server.

use crate::args::TraceArgs;
use crate::error::{At, Failure, Result, warn};
use crate::output::{Align, Output, Table, put_name};
use crate::quantiles::Quantiles;
use crate::units::show_time;
use larder_fuse::{
    TraceEvent, TraceFilter, TraceListener, TraceMessage, error_name, operation_name,
    operation_number,
};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a mount may take to answer.
const GREETING_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long a signal or a line waits for its effect at most.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Names of processes that are remembered.
const PROCESSES_MAX: usize = 4096;

/// `larder trace`.
pub(crate) fn trace(args: &TraceArgs, out: &mut Output) -> Result<()> {
    let filter = filter(args)?;
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopping.clone())
            .at(|| "cannot listen to signals".into())?;
    }
    // In a long transaction: the mount of its view.
    let joined = larder::transaction_of(&args.db)?.unwrap_or_else(|| args.db.clone());
    let mut tracer = Tracer {
        listener: TraceListener::open(&joined, filter)?,
        processes: HashMap::new(),
        summary: BTreeMap::new(),
        is_summary: args.summary,
        left: args.count,
    };
    tracer.greet(&args.db, &stopping)?;
    while tracer.left != Some(0) && !stopping.load(Ordering::Relaxed) {
        match tracer.listener.next(PAUSE_MAX)? {
            Some(message) => tracer.take(message, out)?,
            None => out.flush()?,
        }
    }
    tracer.hear_the_rest()?;
    if args.summary {
        return summarize(&tracer.summary, out);
    }
    out.end_list()
}

fn filter(args: &TraceArgs) -> Result<TraceFilter> {
    let mut operations = 0;
    for name in args.op.iter().flat_map(|list| list.split(',')) {
        let number = operation_number(name).ok_or_else(|| {
            Failure::Usage(format!(
                "there is no operation '{name}'; the lines of 'larder trace' name them, like \
                 lookup or write"
            ))
        })?;
        operations |= 1 << number;
    }
    Ok(TraceFilter {
        slower_than_ns: args.slower_than.map_or(0, i64::unsigned_abs),
        operations: if operations == 0 {
            u64::MAX
        } else {
            operations
        },
    })
}

struct Tracer {
    listener: TraceListener,
    processes: HashMap<u32, String>,
    summary: BTreeMap<u32, Summary>,
    is_summary: bool,
    /// Events that are still wanted; `None`: all.
    left: Option<u64>,
}

#[derive(Default)]
struct Summary {
    durations: Quantiles,
    error_count: u64,
}

impl Tracer {
    /// Waits for the first mount that answers.
    fn greet(&mut self, db: &Path, stopping: &AtomicBool) -> Result<()> {
        let deadline = Instant::now() + GREETING_WAIT_MAX;
        loop {
            match self.listener.next(PAUSE_MAX)? {
                Some(message @ TraceMessage::Greeting { .. }) => {
                    tell(&message);
                    return Ok(());
                }
                // Nothing comes before the greeting of its mount.
                Some(_) | None if stopping.load(Ordering::Relaxed) => return Ok(()),
                Some(_) | None if Instant::now() < deadline => {}
                Some(_) | None => {
                    return Err(Failure::Other(format!(
                        "no mount of '{}' answers; mount it on this machine, and trace as the \
                         user who \
                         serves it or as root",
                        db.display()
                    )));
                }
            }
        }
    }

    /// Says what was lost until now (`CLI-23`); events that are still in the pipe came after the
    /// end.
    fn hear_the_rest(&mut self) -> Result<()> {
        let deadline = Instant::now() + PAUSE_MAX;
        while Instant::now() < deadline
            && let Some(message) = self.listener.next(Duration::ZERO)?
        {
            tell(&message);
        }
        Ok(())
    }

    fn take(&mut self, message: TraceMessage, out: &mut Output) -> Result<()> {
        let TraceMessage::Event(event) = message else {
            tell(&message);
            return Ok(());
        };
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        if self.is_summary {
            let summary = self.summary.entry(event.operation).or_default();
            summary.durations.add(event.duration_ns);
            summary.error_count += u64::from(event.error != 0);
            return Ok(());
        }
        let process = self.process(event.pid);
        if out.is_json() {
            out.item(&event_json(&event, &process).to_string())
        } else {
            let mut line = Vec::new();
            line.extend(event_start(&event).as_bytes());
            line.extend(what(&event));
            line.extend(event_end(&event, &process).as_bytes());
            out.name_line(&line)
        }
    }

    /// The name of a caller, if it still lives or was seen before.
    fn process(&mut self, pid: u32) -> String {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let name = || larder_fuse::name_of(pid).unwrap_or_default();
        self.processes.entry(pid).or_insert_with(name).clone()
    }
}

/// What is said on stderr of a message that is no event (`CLI-23`).
fn aside(message: &TraceMessage) -> Option<String> {
    match message {
        TraceMessage::Greeting {
            server_pid,
            mountpoint,
        } => Some(format!(
            "tracing '{}', served by process {server_pid}; Ctrl-C ends",
            String::from_utf8_lossy(mountpoint)
        )),
        TraceMessage::Lost { server_pid, count } => Some(format!(
            "{count} events of process {server_pid} were lost; filter with --op or --slower-than"
        )),
        TraceMessage::Event(_) => None,
    }
}

fn tell(message: &TraceMessage) {
    if let Some(text) = aside(message) {
        warn(&text);
    }
}

fn event_start(event: &TraceEvent) -> String {
    let time = show_time(event.at_ns);
    let clock = time.split('T').next_back().unwrap_or_default();
    let micros = event.at_ns.rem_euclid(1_000_000_000) / 1000;
    format!(
        "{}.{micros:06} {:>8} µs  {:<11} ",
        clock.trim_end_matches('Z'),
        event.duration_ns / 1000,
        operation_name(event.operation)
    )
}

/// What it was about, in the bytes of its names.
fn what(event: &TraceEvent) -> Vec<u8> {
    let mut shown = if event.path.is_empty() {
        format!("inode {}", event.node).into_bytes()
    } else {
        event.path.clone()
    };
    if !event.other_path.is_empty() {
        shown.extend(b" -> ");
        shown.extend(&event.other_path);
    }
    if !event.attribute.is_empty() {
        shown.push(b' ');
        shown.extend(&event.attribute);
    }
    shown
}

fn event_end(event: &TraceEvent, process: &str) -> String {
    let mut end = String::new();
    if event.size > 0 || event.offset > 0 {
        end.push_str(&format!("  {} at {}", event.size, event.offset));
    }
    if event.error != 0 {
        end.push_str(&format!("  {}", error_name(event.error)));
    }
    // The kernel itself, as when it writes pages back, has no process id.
    if event.pid != 0 {
        end.push_str(&format!("  {process} ({})", event.pid));
    }
    end
}

fn event_json(event: &TraceEvent, process: &str) -> Value {
    let mut object = Map::new();
    object.insert("at_ns".into(), event.at_ns.into());
    object.insert("duration_ns".into(), event.duration_ns.into());
    object.insert("operation".into(), operation_name(event.operation).into());
    object.insert("ino".into(), event.node.into());
    for (key, path) in [
        ("path", &event.path),
        ("other_path", &event.other_path),
        ("attribute", &event.attribute),
    ] {
        if !path.is_empty() {
            put_name(&mut object, key, path);
        }
    }
    object.insert("offset_bytes".into(), event.offset.into());
    object.insert("size_bytes".into(), event.size.into());
    let error = (event.error != 0).then(|| error_name(event.error));
    object.insert("error".into(), error.into());
    // The kernel tells it of makers of files only.
    let uid = (event.uid != larder_fuse::UNMAPPED).then_some(event.uid);
    object.insert("uid".into(), uid.into());
    object.insert("pid".into(), event.pid.into());
    object.insert("process".into(), process.into());
    Value::Object(object)
}

/// One line per operation, what took longest in all first.
fn summarize(summary: &BTreeMap<u32, Summary>, out: &mut Output) -> Result<()> {
    let mut rows: Vec<(&u32, &Summary)> = summary.iter().collect();
    rows.sort_by_key(|(_, summary)| std::cmp::Reverse(summary.durations.sum()));
    if out.is_json() {
        for (operation, summary) in rows {
            let durations = &summary.durations;
            let item = json!({
                "operation": operation_name(*operation),
                "count": durations.count(),
                "error_count": summary.error_count,
                "duration_ns": durations.sum(),
                "latency_ns_p50": durations.quantile(0.5),
                "latency_ns_p99": durations.quantile(0.99),
                "latency_ns_max": durations.max(),
            });
            out.item(&item.to_string())?;
        }
        return out.end_list();
    }
    let mut table = Table::new(&[
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
    ]);
    let header = [
        "operation",
        "count",
        "errors",
        "total ms",
        "p50 µs",
        "p99 µs",
        "max µs",
    ];
    table.row(header.map(str::to_owned).to_vec());
    let micros = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    for (operation, summary) in rows {
        let durations = &summary.durations;
        table.row(vec![
            operation_name(*operation).to_owned(),
            durations.count().to_string(),
            summary.error_count.to_string(),
            format!("{:.1}", durations.sum() as f64 / 1e6),
            micros(durations.quantile(0.5)),
            micros(durations.quantile(0.99)),
            micros(durations.max()),
        ]);
    }
    table
        .take_lines()
        .iter()
        .try_for_each(|line| out.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> TraceEvent {
        TraceEvent {
            at_ns: 1_500_000_000_123_456_789,
            duration_ns: 812_900,
            operation: 16,
            error: 28,
            node: 77,
            offset: 8192,
            size: 4096,
            uid: 1000,
            pid: 12,
            path: b"/a/b.txt".to_vec(),
            other_path: Vec::new(),
            attribute: Vec::new(),
        }
    }

    fn line(event: &TraceEvent) -> String {
        let what = String::from_utf8(what(event)).unwrap();
        format!("{}{what}{}", event_start(event), event_end(event, "cp"))
    }

    #[test]
    fn a_line_has_everything_once() {
        assert_eq!(
            line(&event()),
            "02:40:00.123456      812 µs  write       /a/b.txt  4096 at 8192  ENOSPC  cp (12)"
        );
        let bare = TraceEvent {
            operation: 18,
            node: 77,
            ..TraceEvent::default()
        };
        assert_eq!(
            line(&bare),
            "00:00:00.000000        0 µs  release     inode 77"
        );
        let attribute = TraceEvent {
            attribute: b"user.x".to_vec(),
            ..event()
        };
        assert!(line(&attribute).contains("/a/b.txt user.x  4096 at"));
        let both = TraceEvent {
            other_path: b"/c".to_vec(),
            ..event()
        };
        assert!(line(&both).contains("/a/b.txt -> /c  4096 at"));
    }

    #[test]
    fn what_was_lost_is_told() {
        let lost = TraceMessage::Lost {
            server_pid: 7,
            count: 12,
        };
        let said = aside(&lost).unwrap();
        assert!(
            said.starts_with("12 events of process 7 were lost; "),
            "CLI-23"
        );
        assert_eq!(aside(&TraceMessage::Event(event())), None);
    }

    #[test]
    fn json_has_numbers_and_names() {
        let made = event_json(&event(), "cp");
        assert_eq!(made["operation"], "write");
        assert_eq!(made["error"], "ENOSPC");
        assert_eq!(made["path"], "/a/b.txt");
        assert_eq!(made.get("other_path"), None);
        let fine = event_json(&TraceEvent::default(), "");
        assert_eq!(fine["error"], Value::Null);
    }
}
