//! `larder status`: who has a database open, what space it has, and what waits for somebody.

use crate::args::StatusArgs;
use crate::databases::with_database;
use crate::error::Result;
use crate::output::Output;
use crate::report::print_pairs;
use crate::units::{show_size, show_time};
use larder::{SCHEMA_VERSION, SessionInfo, SpaceReport, list_refused, list_sessions};
use larder_fuse::{find_all_mounts_of, find_mount};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Less than one part of so many is free: it is nearly full.
const FULL_PARTS: u64 = 20;

/// What was found.
struct Status {
    database: PathBuf,
    sessions: Vec<SessionInfo>,
    /// Where it is mounted, with the number of the connection.
    mounts: Vec<(PathBuf, u32)>,
    space: SpaceReport,
    is_readonly: bool,
    refused_count: usize,
    degraded: Vec<String>,
}

/// `larder status`.
pub(crate) fn status(args: &StatusArgs, out: &mut Output) -> Result<()> {
    let found = Status::of(&args.place)?;
    match out.is_json() {
        true => out.document(&found.as_json()),
        false => print_pairs(out, &found.as_pairs()),
    }
}

impl Status {
    fn of(place: &Path) -> Result<Status> {
        // What cannot be looked at is no mount; opening it says why.
        let mounted = find_mount(place).ok().flatten();
        let database = mounted.map_or_else(|| place.to_owned(), |mount| mount.source);
        let sessions = list_sessions(&database);
        let (space, is_readonly) = with_database(&database, "status", |opened| {
            Ok((opened.maintenance().space()?, opened.is_readonly()))
        })?;
        let mounts = (find_all_mounts_of(&database)?.into_iter())
            .map(|mount| (mount.mountpoint, mount.device.1))
            .collect();
        let refused_count = list_refused(&database)?.len();
        let mut found = Status {
            database,
            sessions,
            mounts,
            space,
            is_readonly,
            refused_count,
            degraded: Vec::new(),
        };
        found.degraded = found.find_degraded();
        Ok(found)
    }

    /// What is not as it should be, and what helps.
    fn find_degraded(&self) -> Vec<String> {
        let mut all = Vec::new();
        for session in &self.sessions {
            let who = format!("'{}' (process {})", session.label, session.pid);
            if let Some(why) = &session.stopped {
                all.push(format!(
                    "{who} has stopped: {why}; end it and open the database again"
                ));
            }
            if session.is_suspended {
                all.push(format!(
                    "{who} does not go on; 'kill -CONT {}' if a signal has stopped it",
                    session.pid
                ));
            }
        }
        if self.is_full() {
            all.push(format!(
                "nearly full: {} of {} are free; delete something, or 'larder prune'",
                show_size(self.space.available_bytes),
                show_size(self.space.capacity_bytes)
            ));
        }
        if self.is_readonly {
            all.push("read-only for this process".into());
        }
        all
    }

    fn is_full(&self) -> bool {
        self.space.available_bytes < self.space.capacity_bytes / FULL_PARTS
    }

    fn mountpoint_of(&self, session: &SessionInfo) -> Option<&Path> {
        let connection = session.connection?;
        let mut mounts = self.mounts.iter();
        let found = mounts.find(|(_, number)| *number == connection);
        found.map(|(mountpoint, _)| mountpoint.as_path())
    }

    fn as_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            ("database", self.database.display().to_string()),
            ("format", format!("catalog {SCHEMA_VERSION}")),
            (
                "space",
                format!(
                    "{} used of {}, {} available{}",
                    show_size(self.space.used_bytes()),
                    show_size(self.space.capacity_bytes),
                    show_size(self.space.available_bytes),
                    if self.is_full() { ", nearly full" } else { "" }
                ),
            ),
        ];
        for session in &self.sessions {
            let state = match (&session.stopped, session.is_suspended) {
                (Some(_), _) => "engine stopped",
                (None, true) => "suspended",
                (None, false) => "running",
            };
            let at = self.mountpoint_of(session);
            let at = at.map_or(String::new(), |at| format!(", mounted at {}", at.display()));
            pairs.push((
                "session",
                format!(
                    "process {}, '{}' since {}{at}, {state}",
                    session.pid,
                    session.label,
                    show_time(session.since_ns)
                ),
            ));
        }
        if self.sessions.is_empty() {
            pairs.push(("sessions", "none".into()));
        }
        pairs.push((
            "refused",
            match self.refused_count {
                0 => "nothing waits".into(),
                count => format!(
                    "{count} changes wait for a decision; 'larder refused list {}' names them",
                    self.database.display()
                ),
            },
        ));
        let degraded = self.degraded.iter();
        pairs.extend(degraded.map(|line| ("degraded", line.clone())));
        pairs
    }

    fn as_json(&self) -> Value {
        let sessions: Vec<Value> = (self.sessions.iter())
            .map(|session| {
                json!({
                    "pid": session.pid,
                    "label": session.label,
                    "command": session.command,
                    "since_ns": session.since_ns,
                    "mountpoint": self.mountpoint_of(session).map(|at| at.display().to_string()),
                    "is_suspended": session.is_suspended,
                    "engine_stopped": session.stopped,
                })
            })
            .collect();
        let mounts: Vec<String> = (self.mounts.iter())
            .map(|(at, _)| at.display().to_string())
            .collect();
        json!({
            "database": self.database.display().to_string(),
            "schema_version": SCHEMA_VERSION,
            "capacity_bytes": self.space.capacity_bytes,
            "used_bytes": self.space.used_bytes(),
            "available_bytes": self.space.available_bytes,
            "is_nearly_full": self.is_full(),
            "is_readonly": self.is_readonly,
            "sessions": sessions,
            "mounts": mounts,
            "refused_count": self.refused_count,
            "degraded": self.degraded,
        })
    }
}
