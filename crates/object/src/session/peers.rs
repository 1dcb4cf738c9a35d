//! The processes behind the sessions of a database: who has a lock, and who was killed but cannot
//! end.
//!
//! # Words
//! A *record* is what a session says of its process in its lock file, `sessions/ID.lock`. A process
//! is *dying* when it was killed, and a thread of it cannot end: it waits inside the kernel for
//! what only this process would have answered. That is the server of a mount whose users keep locks
//! that it needs. Its *connection* is that of the kernel to the server; programs wait for it until
//! it is aborted.
//!
//! # Invariants
//! * `SESSION-5` A connection is aborted only while its process is dying, the one of the record and
//!   not a younger one with its number, and while its mount is the one of this database: then the
//!   number is nobody else's.
//! * `SESSION-6` No lock is taken from who lives: a stopped process is waited for, and named.

use crate::host::find_resident_bytes;
use larder_catalog::waiting::describe_process;
use larder_segment::directory::holders::{Lock, Process, find_holder};
use larder_segment::directory::{Access, DatabaseDir};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a killed process has to end by itself, and the time between two looks.
const END_WAIT_MAX: Duration = Duration::from_millis(100);
const END_PAUSE: Duration = Duration::from_millis(10);

/// The directory of the files of sessions, in that of the database.
pub(crate) const SESSIONS: &str = "sessions";

const RECORD_BYTES_MAX: u64 = 4096;
/// Of why an engine stopped.
const STOPPED_CHARS_MAX: usize = 500;

/// Where the kernel lists its connections, if somebody has mounted that there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Its number in statfs(2), `FUSE_CTL_SUPER_MAGIC`.
const CONNECTIONS_MAGIC: rustix::fs::FsWord = 0x6573_5543;
/// The type in the table of mounts.
const MOUNT_TYPE: &[u8] = b"fuse.larder";

/// In `SigPnd` and `ShdPnd`.
const SIGKILL_BIT: u64 = 1 << 8;

/// Processes whose connections were aborted, or could not be: that is said once.
static TOLD: Mutex<Option<HashSet<(u32, u64)>>> = Mutex::new(None);

/// What a session says of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pid: u32,
    /// When it began, in ticks of the kernel: with the number it is this process and no other.
    began: u64,
    /// When the session began, nanoseconds since 1970.
    since_ns: i64,
    /// The connection that it serves.
    connection: Option<u32>,
    /// Why its engine has stopped.
    stopped: Option<String>,
    label: String,
}

/// A session, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its process.
    pub pid: u32,
    /// What it has opened the database for.
    pub label: String,
    /// Its command line, if that can be seen.
    pub command: Option<String>,
    /// When it began, nanoseconds since 1970.
    pub since_ns: i64,
    /// The number of its connection to the kernel, if it serves one: the minor of `st_dev` there.
    pub connection: Option<u32>,
    /// A signal or a debugger has stopped the process.
    pub is_suspended: bool,
    /// Why its engine has stopped: it changes nothing any more.
    pub stopped: Option<String>,
    /// Memory of the process, bytes, if that can be seen.
    pub resident_bytes: Option<u64>,
}

/// The sessions of the database in directory `database` whose processes live, the oldest first.
/// Cost: as [`free_killed`].
pub fn list_sessions(database: &Path) -> Vec<SessionInfo> {
    let Ok(directory) = DatabaseDir::open(database) else {
        return Vec::new(); // One that cannot be opened has no sessions that can be seen.
    };
    let mut found: Vec<SessionInfo> = records(&directory)
        .filter_map(|record| {
            let process = Process::find(record.pid).filter(|found| found.began == record.began)?;
            Some(SessionInfo {
                pid: record.pid,
                is_suspended: matches!(process.state, b'T' | b't'),
                command: process.command,
                since_ns: record.since_ns,
                connection: record.connection,
                stopped: record.stopped,
                resident_bytes: find_resident_bytes(&record.pid.to_string()),
                label: record.label,
            })
        })
        .collect();
    found.sort_by_key(|session| (session.since_ns, session.pid));
    found
}

impl Record {
    /// Of this process.
    pub fn own(label: &str, since_ns: i64) -> Record {
        let pid = std::process::id();
        Record {
            pid,
            began: Process::find(pid).map_or(0, |found| found.began),
            since_ns,
            connection: None,
            stopped: None,
            label: label.replace(char::is_control, " "),
        }
    }

    /// The same, serving a connection.
    pub fn serving(self, connection: u32) -> Record {
        let connection = Some(connection);
        Record { connection, ..self }
    }

    /// The same, with an engine that has stopped.
    pub fn stopped(self, why: &str) -> Record {
        let why: String = why.chars().take(STOPPED_CHARS_MAX).collect();
        let stopped = Some(why.replace(char::is_control, " "));
        Record { stopped, ..self }
    }

    /// Writes it into the session's lock file.
    pub fn write(&self, file: &OwnedFd) -> io::Result<()> {
        let text = self.to_string();
        rustix::io::pwrite(file, text.as_bytes(), 0)?;
        Ok(rustix::fs::ftruncate(file, text.len() as u64)?)
    }

    /// What a lock file says; `None`: nothing, as those of older programs, or nothing that can be
    /// read.
    pub fn read(database: &DatabaseDir, lock_file: impl AsRef<Path>) -> Option<Record> {
        let file = database.open_file(lock_file, Access::Read).ok()?;
        let mut text = String::new();
        (file.take(RECORD_BYTES_MAX).read_to_string(&mut text)).ok()?;
        Record::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Option<Record> {
        let field = |name: &str| {
            let mut fields = text.lines().filter_map(|line| line.split_once(' '));
            fields.find_map(|(found, value)| (found == name).then_some(value))
        };
        Some(Record {
            pid: field("pid")?.parse().ok().filter(|pid| *pid > 0)?,
            began: field("began")?.parse().ok()?,
            since_ns: field("since")?.parse().ok()?,
            connection: field("connection").and_then(|number| number.parse().ok()),
            stopped: field("stopped").map(str::to_owned),
            label: field("label")?.to_owned(),
        })
    }

    /// Whether the process was killed and cannot end.
    fn is_dying(&self) -> bool {
        let is_it = || Process::find(self.pid).is_some_and(|found| found.began == self.began);
        let is_killed = || is_it() && is_killed_alive(self.pid);
        let deadline = Instant::now() + END_WAIT_MAX;
        while is_killed() {
            if Instant::now() > deadline {
                return true;
            }
            std::thread::sleep(END_PAUSE);
        }
        false
    }

    /// Aborts the connection of a dying process of the database in directory `database`, and says
    /// so (`SESSION-5`).
    fn abort_if_dying(&self, database: &Path) {
        let Some(connection) = self.connection else {
            return;
        };
        if !self.is_dying() || !is_mounted(self.pid, connection, database) {
            return;
        }
        let aborted = abort(connection);
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.get_or_insert_default().insert((self.pid, self.began)) {
            return;
        }
        let (label, pid) = (&self.label, self.pid);
        match aborted {
            Ok(()) => tracing::warn!(
                "'{label}' (process {pid}) was killed, but could not end while programs waited for \
                 it: its connection {connection} to the kernel was aborted, they get errors"
            ),
            Err(error) => tracing::warn!(
                "'{label}' (process {pid}) was killed, but cannot end while programs wait for it, \
                 and its connection cannot be aborted ({error}); as root, '{}'",
                abort_command(connection, is_listed())
            ),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "pid {}", self.pid)?;
        writeln!(out, "began {}", self.began)?;
        writeln!(out, "since {}", self.since_ns)?;
        if let Some(connection) = self.connection {
            writeln!(out, "connection {connection}")?;
        }
        if let Some(why) = &self.stopped {
            writeln!(out, "stopped {why}")?;
        }
        writeln!(out, "label {}", self.label)
    }
}

/// Aborts the connections of servers of the database in directory `database` that were killed and
/// cannot end, so that who waits for them goes on. Cost: reads a file and some of `/proc` for each
/// session.
pub fn free_killed(database: &Path) {
    // One that cannot be opened has no sessions that can be seen.
    if let Ok(directory) = DatabaseDir::open(database) {
        free_killed_in(&directory);
    }
}

/// The same of a database whose directory is open.
pub(crate) fn free_killed_in(database: &DatabaseDir) {
    for record in records(database) {
        record.abort_if_dying(database.path());
    }
}

/// The same for one session, by its lock file.
pub(crate) fn free_if_killed(database: &DatabaseDir, lock_file: &str) {
    if let Some(record) = Record::read(database, lock_file) {
        record.abort_if_dying(database.path());
    }
}

/// Who serves a connection of the kernel for the database in directory `database`, for people;
/// `None` when no session says so of itself.
pub fn describe_server(database: &Path, connection: u32) -> Option<String> {
    let serves = |record: &Record| {
        let began = Process::find(record.pid).map(|found| found.began);
        record.connection == Some(connection) && began == Some(record.began)
    };
    let record = records(&DatabaseDir::open(database).ok()?).find(serves)?;
    Some(describe(record.pid, Some(&record)))
}

/// Who has locked one of the files `names`, the first first, for people: process, command, what it
/// has opened the database for and since when.
pub(crate) fn describe_holder(database: &DatabaseDir, names: &[&str]) -> String {
    let holder = names.iter().find_map(|name| {
        let identity = database.identity_of(name).ok().flatten()?;
        find_holder(identity, &Lock::Whole)
    });
    let Some(pid) = holder else {
        let others: Vec<String> = records(database)
            .map(|record| format!("'{}' (process {})", record.label, record.pid))
            .collect();
        return match others.is_empty() {
            true => "another session".into(),
            false => format!("another session, one of {}", others.join(", ")),
        };
    };
    let record = records(database).find(|record| record.pid == pid);
    describe(pid, record.as_ref())
}

fn describe(pid: u32, record: Option<&Record>) -> String {
    let note = record.map(|record| {
        let since = larder_catalog::utc::show(record.since_ns);
        format!("'{}' since {since}", record.label)
    });
    describe_process(pid, note.as_deref())
}

/// The record of every session, but of those that have none.
fn records(database: &DatabaseDir) -> impl Iterator<Item = Record> + use<> {
    let sessions = database.open_dir(SESSIONS).ok();
    let names = sessions.as_ref().and_then(|sessions| sessions.names().ok());
    let locks = names.into_iter().flatten();
    let locks = locks.filter(|name| Path::new(name).extension() == Some("lock".as_ref()));
    locks.filter_map(move |name| Record::read(sessions.as_ref()?, name))
}

/// Whether SIGKILL waits for a thread that has not ended.
fn is_killed_alive(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let mut threads = threads.flatten();
    threads.any(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        is_killed_status(&status)
    })
}

fn is_killed_status(status: &str) -> bool {
    let has_ended = |line: &str| {
        let state = line.strip_prefix("State:").map(str::trim_start);
        state.is_some_and(|state| state.starts_with(['Z', 'X']))
    };
    let is_killed = |line: &str| {
        let signals = line
            .strip_prefix("SigPnd:")
            .or(line.strip_prefix("ShdPnd:"));
        let signals = signals.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
        signals.is_some_and(|signals| signals & SIGKILL_BIT != 0)
    };
    !status.lines().any(has_ended) && status.lines().any(is_killed)
}

/// Whether the mount of the connection is there, and this database's; asked in the namespaces of
/// this process and of the threads of that one.
fn is_mounted(pid: u32, connection: u32, database: &Path) -> bool {
    let Ok(database) = database.canonicalize() else {
        return false;
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let threads = threads.flatten().flatten().map(|thread| thread.path());
    let mut tables = std::iter::once(PathBuf::from("/proc/self")).chain(threads);
    tables.any(|place| {
        let table = std::fs::read(place.join("mountinfo")).unwrap_or_default();
        let mut lines = table.split(|&byte| byte == b'\n');
        lines.any(|line| is_mount_of(line, connection, &database))
    })
}

/// One line of proc_pid_mountinfo(5). The source is the database, or `DB@MOMENT`.
fn is_mount_of(line: &[u8], connection: u32, database: &Path) -> bool {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = format!("0:{connection}");
    if fields.nth(2) != Some(device.as_bytes()) {
        return false;
    }
    let mut tail = fields.skip_while(|&field| field != b"-").skip(1);
    let (kind, source) = (tail.next(), tail.next().unwrap_or_default());
    let source = unescape(source);
    let database = database.as_os_str().as_bytes();
    let is_it = source
        .strip_prefix(database)
        .is_some_and(|rest| matches!(rest, [] | [b'@', ..]));
    kind == Some(MOUNT_TYPE) && is_it
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value.filter(|_| byte == b'\\') {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// Ends a connection of the kernel to a FUSE server: all that waits for it gets an error. Root may,
/// and who has mounted it, where the list of connections is mounted.
fn abort(connection: u32) -> io::Result<()> {
    let name = format!("{connection}/abort");
    let listed = File::options()
        .write(true)
        .open(Path::new(CONNECTIONS).join(&name));
    let mut file = match listed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_connections()
            .and_then(|list| {
                Ok(openat(
                    list,
                    &name,
                    OFlags::WRONLY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?)
            })
            .map(File::from)?,
        opened => opened?,
    };
    io::Write::write_all(&mut file, b"1")
}

/// What aborts a connection in a shell. `is_listed`: the list of connections is mounted.
fn abort_command(connection: u32, is_listed: bool) -> String {
    let abort = format!("echo 1 > {CONNECTIONS}/{connection}/abort");
    match is_listed {
        true => abort,
        false => format!("mount -t fusectl fusectl {CONNECTIONS} && {abort}"),
    }
}

/// Whether the list of connections is mounted at its place.
fn is_listed() -> bool {
    rustix::fs::statfs(CONNECTIONS).is_ok_and(|found| found.f_type == CONNECTIONS_MAGIC)
}

/// The list of connections, mounted nowhere.
fn open_connections() -> io::Result<OwnedFd> {
    let filesystem = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(filesystem.as_fd())?;
    Ok(rustix::mount::fsmount(
        filesystem.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_record_says_who_and_since_when() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.lock");
        let file = OwnedFd::from(File::create(&path).unwrap());
        let directory = DatabaseDir::open(dir.path()).unwrap();
        let longer = Record::own("mount /a\nlonger", 1).serving(4_000_000);
        longer.write(&file).unwrap();
        let record = Record::own("mount /a b", 17).serving(40);
        record.write(&file).unwrap();
        assert_eq!(Record::read(&directory, "1.lock"), Some(record.clone()));
        assert_eq!(
            (record.pid, record.connection),
            (std::process::id(), Some(40))
        );
        assert!(longer.label == "mount /a longer" && record.began > 0);
        assert_eq!(Record::parse(""), None, "as an older program leaves it");
        assert_eq!(Record::parse("pid 0\nbegan 1\nsince 1\nlabel x\n"), None);
        assert!(!record.is_dying());
    }

    #[test]
    fn who_was_killed_and_lives_is_told_from_who_ended() {
        let status = |state: &str, own: &str, shared: &str| {
            is_killed_status(&format!(
                "Name:\tx\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\n"
            ))
        };
        let (none, kill) = ("0000000000000000", "0000000000000100");
        assert!(status("D (disk sleep)", kill, kill));
        assert!(status("R (running)", none, kill));
        assert!(
            !status("S (sleeping)", none, "0000000000004000"),
            "SESSION-5: only SIGKILL"
        );
        assert!(!status("T (stopped)", none, none), "SESSION-6");
        assert!(
            !status("Z (zombie)", kill, kill),
            "SESSION-5: it has no connection any more"
        );
    }

    #[test]
    fn a_mount_is_this_databases_or_not() {
        let line =
            b"43 27 0:40 / /tmp/m1 rw,nosuid - fuse.larder /tmp/my\\040a.larder rw,user_id=0";
        let is_it = |connection, database: &str| is_mount_of(line, connection, Path::new(database));
        assert!(is_it(40, "/tmp/my a.larder"));
        assert!(
            !is_it(4, "/tmp/my a.larder") && !is_it(40, "/tmp/my"),
            "SESSION-5"
        );
        let past = b"43 27 0:40 / /m ro - fuse.larder /tmp/a@-1h ro";
        assert!(is_mount_of(past, 40, Path::new("/tmp/a")));
        let other = b"43 27 0:40 / /m ro - fuse.sshfs /tmp/a ro";
        assert!(!is_mount_of(other, 40, Path::new("/tmp/a")), "SESSION-5");
    }

    #[test]
    fn what_aborts_a_connection_mounts_the_list_where_it_is_not() {
        let abort = "echo 1 > /sys/fs/fuse/connections/40/abort";
        assert_eq!(abort_command(40, true), abort);
        let mounted = format!("mount -t fusectl fusectl /sys/fs/fuse/connections && {abort}");
        assert_eq!(abort_command(40, false), mounted);
    }

    #[test]
    fn who_has_a_lock_is_found_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("turn.lock");
        File::create(&path).unwrap();
        let mut child = Command::new("flock")
            .arg(&path)
            .args(["sh", "-c", "echo; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let text = describe_holder(&database, &["turn.lock"]);
        assert!(
            text.contains(&format!("process {} ('flock ", child.id())),
            "{text}"
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
