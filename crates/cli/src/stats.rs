//! `larder stats`: counters, one line per interval.

use crate::args::StatsArgs;
use crate::databases::with_database;
use crate::error::{At, Result, warn};
use crate::output::{Align, Output, Table};
use crate::units::show_size;
use larder::{SessionInfo, StatsReport, gather_bytes_default, list_sessions};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A header again after so many lines.
const HEADER_LINES: u64 = 20;
/// How long a signal waits for its effect at most.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// `larder stats`.
pub(crate) fn stats(args: &StatsArgs, out: &mut Output) -> Result<()> {
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopping.clone())
            .at(|| "cannot listen to signals".into())?;
    }
    let interval = Duration::from_nanos(args.interval.unsigned_abs());
    with_database(&args.db, "stats", |database| {
        let mut before = database.maintenance().stats()?;
        if before.refused_count > 0 && !out.is_json() {
            warn(&format!(
                "constraints refused {} changes after they were answered; 'larder refused list \
                 {}' names them",
                before.refused_count,
                args.db.display()
            ));
        }
        let mut table = new_table();
        let (mut lines, mut next) = (0, Instant::now() + interval);
        while args.count.is_none_or(|count| lines < count) && wait_until(next, &stopping) {
            next += interval;
            let now = database.maintenance().stats()?;
            let rates = Rates::between(&before, &now);
            let sessions = other_sessions(&args.db);
            if out.is_json() {
                let bound = database.maintenance().tuning()?.gather_bytes_max;
                let memory = (bound.unwrap_or_else(gather_bytes_default), &sessions[..]);
                out.item(&stats_json(&now, &rates, memory).to_string())?;
            } else {
                if lines % HEADER_LINES == 0 {
                    table.row(HEADER.map(str::to_owned).to_vec());
                }
                table.row(cells(&now, &rates, &sessions));
                let text = table.take_lines();
                text.iter().try_for_each(|line| out.line(line))?;
            }
            out.flush()?;
            (before, lines) = (now, lines + 1);
        }
        Ok(())
    })?;
    if out.is_json() {
        out.end_list()?;
    }
    Ok(())
}

/// The sessions of other processes, mounts among them.
fn other_sessions(database: &Path) -> Vec<SessionInfo> {
    let own = std::process::id();
    let all = list_sessions(database).into_iter();
    all.filter(|session| session.pid != own).collect()
}

/// What their processes have resident, bytes: one may have several sessions.
fn memory_of(sessions: &[SessionInfo]) -> u64 {
    let by_process: BTreeMap<u32, u64> = (sessions.iter())
        .filter_map(|session| Some((session.pid, session.resident_bytes?)))
        .collect();
    by_process.values().sum()
}

/// Sleeps; `false` when the command shall end.
fn wait_until(moment: Instant, stopping: &AtomicBool) -> bool {
    while !stopping.load(Ordering::Relaxed) {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(PAUSE_MAX));
    }
    false
}

/// What happened per second.
#[derive(Debug, PartialEq)]
struct Rates {
    commits: f64,
    written_bytes: f64,
    retired_bytes: f64,
}

impl Rates {
    fn between(before: &StatsReport, now: &StatsReport) -> Rates {
        let seconds = ((now.at_ns - before.at_ns) as f64 / 1e9).max(1e-3);
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let ever = |report: &StatsReport| report.live_bytes + report.retired_bytes_total;
        Rates {
            commits: rate(before.commit_seq, now.commit_seq),
            written_bytes: rate(ever(before), ever(now)),
            retired_bytes: rate(before.retired_bytes_total, now.retired_bytes_total),
        }
    }
}

const HEADER: [&str; 12] = [
    "commits/s",
    "written/s",
    "retired/s",
    "live",
    "retired",
    "history",
    "free",
    "age",
    "inodes",
    "log",
    "sessions",
    "memory",
];

fn new_table() -> Table {
    let mut table = Table::new(&[Align::Right; HEADER.len()]);
    // So wide that lines seldom move: the widest size, and counts.
    table.row(vec!["0000.0 KiB".to_owned(); HEADER.len()]);
    table.take_lines();
    table
}

fn cells(now: &StatsReport, rates: &Rates, sessions: &[SessionInfo]) -> Vec<String> {
    vec![
        format!("{:.1}", rates.commits),
        show_size(rates.written_bytes as u64),
        show_size(rates.retired_bytes as u64),
        show_size(now.live_bytes),
        show_size(now.retired_bytes),
        show_size(now.history_bytes),
        show_size(now.free_bytes),
        format!("{:.2}", now.storage_age),
        now.inode_count.to_string(),
        show_size(now.wal_bytes),
        now.session_count.to_string(),
        show_size(memory_of(sessions)),
    ]
}

/// `memory`: the bound of content that waits to be written, and the other sessions.
fn stats_json(now: &StatsReport, rates: &Rates, memory: (u64, &[SessionInfo])) -> Value {
    let sessions: Vec<Value> = (memory.1.iter())
        .map(|session| {
            json!({
                "pid": session.pid,
                "label": session.label,
                "resident_bytes": session.resident_bytes,
            })
        })
        .collect();
    json!({
        "at_ns": now.at_ns,
        "commits_per_s": rates.commits,
        "written_bytes_per_s": rates.written_bytes,
        "retired_bytes_per_s": rates.retired_bytes,
        "commit_seq": now.commit_seq,
        "live_bytes": now.live_bytes,
        "retired_bytes": now.retired_bytes,
        "history_bytes": now.history_bytes,
        "shared_bytes": now.shared_bytes,
        "map_page_bytes": now.map_page_bytes,
        "free_bytes": now.free_bytes,
        "segment_bytes": now.segment_bytes,
        "retired_bytes_total": now.retired_bytes_total,
        "storage_age": now.storage_age,
        "inode_count": now.inode_count,
        "refused_count": now.refused_count,
        "wal_bytes": now.wal_bytes,
        "session_count": now.session_count,
        "resident_bytes": memory_of(memory.1),
        "gather_bytes_max": memory.0,
        "sessions": sessions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replaces_something_is_written_too() {
        let mut before = StatsReport::default();
        (before.commit_seq, before.live_bytes) = (5, 1000);
        let mut now = StatsReport::default();
        (now.commit_seq, now.live_bytes) = (9, 900);
        (now.at_ns, now.retired_bytes_total) = (2_000_000_000, 500);
        let expected = Rates {
            commits: 2.0,
            written_bytes: 200.0,
            retired_bytes: 250.0,
        };
        assert_eq!(Rates::between(&before, &now), expected);
    }
}
