//! Who has locked a file, and what that process is, as the kernel tells it in `/proc`.
//!
//! Nothing is opened for it: to close a descriptor of a file gives up the locks that SQLite has on
//! it.

use std::fs;
use std::ops::RangeInclusive;

/// Of a command line, in messages.
const COMMAND_CHARS_MAX: usize = 100;
const NS_PER_S: i64 = 1_000_000_000;

/// The kernel tells its list of locks in parts, and one that is not where it was by the next part
/// may be in none: so it is read again.
const LOOKS_MAX: u32 = 4;

/// The locks that are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    /// flock(2).
    Whole,
    /// fcntl(2), for writing or also for reading, on any of these bytes.
    Bytes(RangeInclusive<u64>, For),
}

/// What a lock of bytes is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Only those for writing.
    Writing,
    /// Any.
    Anything,
}

/// The process that has such a lock on the file with this device and inode, by the kernel's list of
/// locks; `None`: nobody that can be seen. Other processes come before this one. 0.1
/// ms, or four times that.
pub fn find_holder(identity: (u64, u64), lock: &Lock) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(identity.0), rustix::fs::minor(identity.0));
    let place = format!("{major:02x}:{minor:02x}:{}", identity.1);
    let own = std::process::id();
    let mut looks = (0..LOOKS_MAX).map(|_| {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        find_locks(&locks, &place, lock).collect::<Vec<Option<u32>>>()
    });
    let found = looks.find(|found| !found.is_empty())?;
    let pids = || found.iter().flatten().copied();
    let unnamed = || found.contains(&None).then(|| find_descriptor(&place, lock));
    pids()
        .find(|pid| *pid != own)
        .or_else(|| unnamed().flatten())
        .or_else(|| pids().next())
}

/// The processes that have such locks on `place`; `None`: one that the list does not name, since
/// the lock belongs to a descriptor (F_OFD_SETLK), or its process to another namespace.
///
/// `1: FLOCK  ADVISORY  WRITE 4496 fe:00:1234 0 EOF` (proc_locks(5)); who waits has `->` behind the
/// number.
fn find_locks<'l>(
    locks: &'l str,
    place: &'l str,
    lock: &'l Lock,
) -> impl Iterator<Item = Option<u32>> + 'l {
    locks.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, kind, _, mode, pid, at, start, end, ..] = fields[..] else {
            return None;
        };
        let is_it = match lock {
            Lock::Whole => kind == "FLOCK",
            Lock::Bytes(bytes, mine) => {
                let end = end.parse().unwrap_or(u64::MAX); // EOF
                matches!(kind, "POSIX" | "OFDLCK")
                    && (mode == "WRITE" || *mine == For::Anything)
                    && start.parse::<u64>().ok()? <= *bytes.end()
                    && *bytes.start() <= end
            }
        };
        (is_it && at == place).then(|| pid.parse().ok().filter(|pid| *pid > 0))
    })
}

/// The process that has a lock by one of its descriptors, as far as those can be seen.
fn find_descriptor(place: &str, lock: &Lock) -> Option<u32> {
    let has_it = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter();
        descriptors.flatten().flatten().any(|descriptor| {
            let text = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let mut locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
            locks.any(|line| find_locks(line, place, lock).next().is_some())
        })
    };
    let own = std::process::id();
    let names = fs::read_dir("/proc").ok()?.flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).find(has_it)
}

/// A process that lives, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line, short, if that can be seen.
    pub command: Option<String>,
    /// The kernel's letter for its state.
    pub state: u8,
    /// When it began, in ticks of the kernel: with the number it is this process and no other.
    pub began: u64,
}

impl Process {
    /// What there is to see of a process; `None`: there is none of that number.
    pub fn find(pid: u32) -> Option<Process> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // `pid (name) state …`, and the name may be anything.
        let behind = text.iter().rposition(|&byte| byte == b')')? + 1;
        let fields = std::str::from_utf8(text.get(behind..)?).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        // The 22nd of proc_pid_stat(5); the state is the 3rd.
        let began = fields.nth(18)?.parse().ok()?;
        Some(Process {
            pid,
            command: command(pid),
            state,
            began,
        })
    }

    /// When it began, nanoseconds since 1970, to a second.
    pub fn began_ns(&self) -> Option<i64> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
        let after = i64::try_from(self.began / ticks_per_s).ok()?;
        boot.trim()
            .parse::<i64>()
            .ok()?
            .checked_add(after)?
            .checked_mul(NS_PER_S)
    }
}

fn command(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = match words.is_empty() {
        true => fs::read(format!("/proc/{pid}/comm")).ok()?,
        false => words,
    };
    let text = String::from_utf8_lossy(&words);
    let text = text
        .trim_end_matches(['\0', '\n'])
        .replace(char::is_control, " ");
    Some(text.chars().take(COMMAND_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn locks_are_told_by_kind_place_and_bytes() {
        let locks = "1: POSIX  ADVISORY  READ 3 fe:00:12 123 123\n\
                     2: FLOCK  ADVISORY  WRITE 7 fe:00:12 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fe:00:12 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 fe:00:13 0 EOF\n\
                     4: OFDLCK ADVISORY  WRITE -1 fe:00:12 120 120\n\
                     5: POSIX  ADVISORY  READ 9 fe:00:14 0 EOF\n";
        let found = |place: &str, lock: Lock| find_locks(locks, place, &lock).collect::<Vec<_>>();
        let bytes = |at: u64, mine| Lock::Bytes(at..=at + 2, mine);
        assert_eq!(found("fe:00:12", Lock::Whole), [Some(7)]);
        assert_eq!(found("fe:00:13", Lock::Whole), [None], "another namespace");
        assert_eq!(found("fe:00:1", Lock::Whole), []);
        assert_eq!(found("fe:00:12", bytes(120, For::Writing)), [None]);
        assert_eq!(found("fe:00:12", bytes(122, For::Anything)), [Some(3)]);
        assert_eq!(found("fe:00:12", bytes(122, For::Writing)), []);
        assert_eq!(found("fe:00:14", bytes(120, For::Anything)), [Some(9)]);
    }

    #[test]
    fn who_has_a_lock_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = fs::File::create(&path).unwrap();
        let meta = file.metadata().unwrap();
        let holder = |lock| find_holder((meta.dev(), meta.ino()), &lock);
        assert_eq!(holder(Lock::Whole), None);
        let lock = |how: &str| {
            let script = format!(
                "import fcntl, struct, sys; f = open(sys.argv[1], 'r+'); {how}; \
                                  print(flush=True); input()"
            );
            let mut child = Command::new("python3")
                .args(["-c", &script])
                .arg(&path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            child
        };
        let ofd = "fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 120, 1, 0))";
        for (how, mine) in [
            ("fcntl.flock(f, fcntl.LOCK_EX)", Lock::Whole),
            (
                "fcntl.lockf(f, fcntl.LOCK_EX, 1, 120)",
                Lock::Bytes(119..=121, For::Writing),
            ),
            (ofd, Lock::Bytes(120..=120, For::Writing)),
        ] {
            let mut child = lock(how);
            assert_eq!(holder(mine.clone()), Some(child.id()), "{how}");
            let process = Process::find(child.id()).unwrap();
            assert!(process.command.unwrap().contains(" -c import fcntl"));
            assert!(Process::find(child.id()).unwrap().began_ns().unwrap() > 0);
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(holder(mine), None, "{how}");
        }
    }
}
