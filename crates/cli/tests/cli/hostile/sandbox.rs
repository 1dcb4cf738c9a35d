//! Runs one verb on a database in a tree of which nothing else may change, as one of several users,
//! within bounds.

use super::verbs::{How, Verb};
use crate::support::{Place, peak_memory};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a verb may take.
pub const TIME_MAX: Duration = Duration::from_secs(10);
/// The damage by which files are sparse and 8 EiB long, as anybody can make them on any filesystem:
/// who reads one to its end reads on, until he is stopped.
const HUGE_FILES: &str = "main.size is huge";
/// The verbs that read files to their end, as the walk of a mount does.
const READS: [&str; 5] = ["cat", "get", "cp", "mv", "put"];
/// How much memory it may use at most, bytes.
pub const MEMORY_MAX: u64 = 512 << 20;
/// A verb that waits for events is interrupted after this.
const PATIENCE: Duration = Duration::from_millis(400);
/// What is copied or left out.
const BLOCK: usize = 4096;
const POLL: Duration = Duration::from_millis(3);
/// An ordinary user.
pub const NOBODY: u32 = 65534;
/// What verbs are told to make.
const OUTPUTS: [&str; 7] = [
    "out", "tree", "stdout", "stderr", "mnt", "x.larder", "beside",
];
/// In a template, what stands for the directory outside.
pub const OUTSIDE: &str = "/OUTSIDE";
/// What is done on a mount. It may fail; it has to end.
const ON_A_MOUNT: &str = "ls -lR . > /dev/null; cat a big same dir/sub/c side/big > /dev/null; \
    ls -l .larder/at/first > /dev/null; cp a new; mv a b; mkdir e; rm -r dir; echo x >> big; true";

/// Who runs the verb, and whose the database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    RootOnUsers,
    User,
    /// Who may only read it.
    UserOnRoots,
}

pub const EVERYBODY: [Who; 4] = [Who::Root, Who::User, Who::RootOnUsers, Who::UserOnRoots];

impl Who {
    fn caller(self) -> u32 {
        match self {
            Who::Root | Who::RootOnUsers => 0,
            Who::User | Who::UserOnRoots => NOBODY,
        }
    }

    fn owner(self) -> u32 {
        match self {
            Who::Root | Who::UserOnRoots => 0,
            Who::User | Who::RootOnUsers => NOBODY,
        }
    }
}

/// Whether several users can be acted for.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Paths, with mode, owner, time and content.
type State = BTreeMap<PathBuf, String>;

/// What verbs took.
#[derive(Debug, Default)]
pub struct Figures {
    pub case_count: usize,
    pub run_count: usize,
    pub refused_count: usize,
    pub slowest: (Duration, String),
    pub largest: (u64, String),
    pub wrong: Vec<String>,
}

impl Figures {
    pub fn assert_bounded(&self) {
        println!(
            "{} cases, {} runs, {} refused; slowest {:.2} s ({}); largest {} MiB ({}); {} wrong",
            self.case_count,
            self.run_count,
            self.refused_count,
            self.slowest.0.as_secs_f64(),
            self.slowest.1,
            self.largest.0 >> 20,
            self.largest.1,
            self.wrong.len()
        );
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

/// A directory with the database `x.larder`, what is outside of it, and what verbs read.
pub struct Sandbox {
    pub place: Place,
    who: Who,
    before: State,
}

/// What a run left.
pub struct Ran {
    /// `None`: it was killed.
    pub code: Option<i32>,
    pub stderr: String,
}

impl Sandbox {
    /// With the files of `template` besides databases.
    pub fn new(template: &Path, who: Who) -> Sandbox {
        let place = Place::new();
        for name in ["a", "dir"] {
            copy_tree(&template.join(name), &place.path(name));
        }
        make_outside(&place.path("outside"));
        give(&place.path("."), who.caller());
        fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o755)).unwrap();
        let before = state(&place.path("."));
        Sandbox { place, who, before }
    }

    /// Puts a copy of a database there, as its owner has it.
    pub fn put_database(&self, from: &Path) {
        for name in OUTPUTS {
            remove(&self.place.path(name));
        }
        let path = self.place.path("x.larder");
        copy_special(from, &path, &self.place.path("outside"));
        give(&path, self.who.owner());
        if self.who == Who::UserOnRoots {
            // Not all of it may be there.
            let told = Command::new("chmod")
                .args(["-R", "a+rX"])
                .arg(&path)
                .stderr(Stdio::null())
                .status();
            told.unwrap();
        }
        fs::create_dir(self.place.path("mnt")).unwrap();
        lchown(self.place.path("mnt"), Some(self.who.caller()), None).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.place.command(words);
        // It need not be one: what is printed is where it is.
        command.env("LARDER_EXTENSION", self.place.path("a"));
        self.confine(&mut command);
        command
    }

    fn confine(&self, command: &mut Command) {
        // The tests may hold their files in a group of their own.
        if self.who.caller() != 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.process_group(0);
    }

    /// Runs one verb; adds to the figures what is wrong with it.
    pub fn run(
        &mut self,
        verb: &Verb,
        id: &str,
        last: &str,
        case: &str,
        figures: &mut Figures,
    ) -> Ran {
        let words: Vec<&str> = verb
            .words
            .iter()
            .map(|word| match *word {
                "ID" => id,
                "LAST" => last,
                word => word,
            })
            .collect();
        let mut run = Run::new(self);
        let ended = match verb.how {
            How::Ends | How::Lasts => run.alone(&words, verb.how == How::Lasts),
            How::AfterAbort => run
                .alone(&["txn", "abort", "x.larder", id], false)
                .and_then(|_| run.alone(&words, false)),
            How::InTransaction => run.inside(&words, id),
            How::Mounts => run.mount(&words),
            How::BesideMount => run.beside(&words),
        };
        let (largest, elapsed) = (run.largest, run.began.elapsed());
        let read = |name: &str| {
            let bytes = fs::read(self.place.path(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes[..bytes.len().min(100_000)]).into_owned()
        };
        let (stdout, stderr) = (read("stdout"), read("stderr"));
        let mut wrong = Vec::new();
        let code = match ended {
            None => {
                let reads_on = matches!(verb.how, How::Mounts | How::BesideMount)
                    || READS.contains(&verb.words[0]);
                if !(reads_on && case.contains(HUGE_FILES)) {
                    wrong.push(format!("it did not end in {TIME_MAX:?}"));
                }
                if stderr.contains("panicked") {
                    wrong.push("it panicked".into());
                }
                None
            }
            Some((status, is_told)) => {
                wrong.extend(judge(status, is_told, &stdout, &stderr));
                status.code()
            }
        };
        if largest > MEMORY_MAX {
            wrong.push(format!("it took {} MiB", largest >> 20));
        }
        let changed = self.changes();
        if !changed.is_empty() {
            wrong.push(format!("what is outside changed: {}", changed.join(", ")));
            *self = Sandbox::new(&self.place.path("."), self.who);
        }
        let name = format!("{case}, {:?}: larder {}", self.who, words.join(" "));
        let said: String = stderr.trim().chars().take(400).collect();
        let told = |what: String| format!("{name}: {what} ({code:?}): {said}");
        figures.wrong.extend(wrong.into_iter().map(told));
        figures.run_count += 1;
        figures.refused_count += usize::from(code != Some(0));
        if elapsed > figures.slowest.0 {
            figures.slowest = (elapsed, name.clone());
        }
        if largest > figures.largest.0 {
            figures.largest = (largest, name);
        }
        Ran { code, stderr }
    }

    /// What is not as it was, but what the verbs were told to make.
    fn changes(&self) -> Vec<String> {
        let now = state(&self.place.path("."));
        let paths = self.before.keys().chain(now.keys());
        let differ = paths.filter(|path| self.before.get(*path) != now.get(*path));
        differ.map(|path| path.display().to_string()).collect()
    }
}

/// A verb under way.
struct Run<'s> {
    sandbox: &'s Sandbox,
    began: Instant,
    largest: u64,
}

/// The status, and whether it was interrupted.
type Ended = Option<(ExitStatus, bool)>;

impl Run<'_> {
    fn new(sandbox: &Sandbox) -> Run<'_> {
        Run {
            sandbox,
            began: Instant::now(),
            largest: 0,
        }
    }

    fn spawn(&self, mut command: Command) -> Child {
        let open = |name: &str| {
            let path = self.sandbox.place.path(name);
            Stdio::from(
                File::options()
                    .create(true)
                    .append(true)
                    .open(path)
                    .unwrap(),
            )
        };
        command.stdout(open("stdout")).stderr(open("stderr"));
        command.spawn().unwrap()
    }

    fn alone(&mut self, words: &[&str], is_lasting: bool) -> Ended {
        let child = self.spawn(self.sandbox.command(words));
        self.await_end(child, is_lasting.then_some(PATIENCE))
    }

    fn inside(&mut self, words: &[&str], id: &str) -> Ended {
        let mut command = self.sandbox.command(words);
        let workspace = self.sandbox.place.path("x.larder/transactions").join(id);
        command.env("LARDER_TXN", workspace);
        let child = self.spawn(command);
        self.await_end(child, None)
    }

    fn mount(&mut self, words: &[&str]) -> Ended {
        let (mut server, serves) = self.serve(words);
        if !serves {
            return self.await_end(server, None);
        }
        self.visit();
        let ended = self.unmount();
        self.finish(&mut server, ended)
    }

    /// One that cannot make durable what was written stays, and says so; then it is detached.
    fn unmount(&mut self) -> Ended {
        let ended = self.alone(&["umount", "mnt"], false)?;
        match ended.0.success() {
            true => Some(ended),
            false => self.alone(&["umount", "--lazy", "mnt"], false),
        }
    }

    fn beside(&mut self, words: &[&str]) -> Ended {
        let (mut server, serves) = self.serve(&["mount", "x.larder", "mnt"]);
        if !serves {
            return self.await_end(server, None);
        }
        let child = self.spawn(self.sandbox.command(words));
        if words[0] != "umount" {
            self.visit();
        }
        let ended = self.await_end(child, Some(PATIENCE));
        // It may have unmounted it.
        if words[0] != "umount" || larder_fuse::is_mounted(&self.sandbox.place.path("mnt")).unwrap()
        {
            self.unmount();
        }
        self.finish(&mut server, ended)
    }

    /// Starts a server; whether it serves. One that does not has ended, or is about to.
    fn serve(&mut self, words: &[&str]) -> (Child, bool) {
        let mut server = self.spawn(self.sandbox.command(words));
        let stdout = self.sandbox.place.path("stdout");
        while self.began.elapsed() < TIME_MAX {
            self.look_at(&server);
            if fs::read(&stdout).is_ok_and(|text| text.contains(&b'\n')) {
                return (server, true);
            }
            if server.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(POLL);
        }
        (server, false)
    }

    /// Walks, reads and changes what is mounted.
    fn visit(&mut self) -> Ended {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("cd mnt && {{ {ON_A_MOUNT}; }}")])
            .current_dir(self.sandbox.place.path("."))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.sandbox.confine(&mut command);
        let child = command.spawn().unwrap();
        self.await_end(child, None)
    }

    /// Ends a server, whatever became of its mount.
    fn finish(&mut self, server: &mut Child, ended: Ended) -> Ended {
        loop {
            self.look_at(server);
            if server.try_wait().unwrap().is_some() {
                return ended;
            }
            if ended.is_none() || self.began.elapsed() > TIME_MAX {
                break;
            }
            std::thread::sleep(POLL);
        }
        server.kill().unwrap();
        server.wait().unwrap();
        detach(&self.sandbox.place.path("mnt"));
        None
    }

    fn look_at(&mut self, child: &Child) {
        self.largest = self.largest.max(peak_memory(child).unwrap_or(0));
    }

    /// Waits for it, and interrupts it after `patience`.
    fn await_end(&mut self, mut child: Child, patience: Option<Duration>) -> Ended {
        let started = Instant::now();
        let mut is_told = false;
        loop {
            self.look_at(&child);
            if let Some(status) = child.try_wait().unwrap() {
                return Some((status, is_told));
            }
            if !is_told && patience.is_some_and(|patience| started.elapsed() > patience) {
                let pid = rustix::process::Pid::from_child(&child);
                rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
                is_told = true;
            }
            if self.began.elapsed() > TIME_MAX {
                child.kill().unwrap();
                child.wait().unwrap();
                detach(&self.sandbox.place.path("mnt"));
                return None;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// What is wrong with how it ended.
fn judge(status: ExitStatus, is_told: bool, stdout: &str, stderr: &str) -> Option<String> {
    let is_clear = stderr.lines().any(|line| line.starts_with("larder: "));
    match status.code() {
        _ if stderr.contains("panicked") => Some("it panicked".into()),
        None if is_told => None,
        None => Some(format!("it was ended by a signal: {status}")),
        Some(0) => None,
        // Those that find something print it.
        Some(1..=3) if is_clear || is_told || !stdout.trim().is_empty() => None,
        Some(1..=3) => Some("it said nothing clear".into()),
        Some(code) => Some(format!("it ended with {code}")),
    }
}

fn detach(mountpoint: &Path) {
    let flags = rustix::mount::UnmountFlags::DETACH;
    let _ = rustix::mount::unmount(mountpoint, flags); // It may not be one.
}

/// Removes whatever it is, if it is.
fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// Gives a tree away, without following links; not what has further names.
fn give(path: &Path, to: u32) {
    let found = path.symlink_metadata().unwrap();
    if found.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        entries.for_each(|entry| give(&entry.unwrap().path(), to));
    } else if found.nlink() > 1 {
        return;
    }
    if found.uid() != to {
        lchown(path, Some(to), Some(to)).unwrap();
    }
}

/// A tree of files and directories.
pub fn copy_tree(from: &Path, to: &Path) {
    copy_special(from, to, Path::new("/nowhere"));
}

/// A tree with links, nodes and holes; what has further names gets one more, `outside/precious`.
fn copy_special(from: &Path, to: &Path, outside: &Path) {
    let found = from.symlink_metadata().unwrap();
    let kind = found.file_type();
    if kind.is_dir() {
        fs::create_dir(to).unwrap();
        fs::set_permissions(to, found.permissions()).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy_special(&entry.path(), &to.join(entry.file_name()), outside);
        }
    } else if kind.is_symlink() {
        // What leads outside leads outside of this one.
        let target = fs::read_link(from).unwrap();
        let target = match target.to_string_lossy().split_once(OUTSIDE) {
            Some((_, below)) => outside.join(below.trim_start_matches('/')),
            None => target,
        };
        std::os::unix::fs::symlink(target, to).unwrap();
    } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let file_type = rustix::fs::FileType::from_raw_mode(found.mode());
        rustix::fs::mknodat(rustix::fs::CWD, to, file_type, mode, found.rdev()).unwrap();
    } else if found.nlink() > 1 {
        fs::hard_link(outside.join("precious"), to).unwrap();
    } else {
        copy_file(from, to, found.len());
    }
}

/// Only what is not zero, so that holes of a TiB stay holes, and room that was taken becomes one.
fn copy_file(from: &Path, to: &Path, length: u64) {
    use rustix::fs::{SeekFrom, seek};
    use std::os::unix::fs::FileExt;
    let source = File::open(from).unwrap();
    let made = File::create_new(to).unwrap();
    made.set_permissions(source.metadata().unwrap().permissions())
        .unwrap();
    made.set_len(length).unwrap();
    let mut at = 0;
    while let Ok(data) = seek(&source, SeekFrom::Data(at)) {
        at = seek(&source, SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; (at - data) as usize];
        source.read_exact_at(&mut bytes, data).unwrap();
        for (block, from) in bytes.chunks(BLOCK).zip((data..).step_by(BLOCK)) {
            if block.iter().any(|byte| *byte != 0) {
                made.write_all_at(block, from).unwrap();
            }
        }
    }
}

/// What must not change: files, and directories as a database has them.
pub fn make_outside(outside: &Path) {
    for name in ["", "5", "sub", "sub/deep", "1", "2"] {
        let mut directory = fs::DirBuilder::new();
        let below = outside.join(name);
        directory
            .recursive(true)
            .mode(0o755)
            .create(&below)
            .unwrap();
        for file in ["precious", "7", "0-9999.lock", "99.lock", "1.1.0.ff"] {
            fs::write(below.join(file), "precious").unwrap();
        }
    }
}

/// Everything there is below, but what verbs are told to make.
fn state(of: &Path) -> State {
    let mut found = State::new();
    let mut left: Vec<PathBuf> = fs::read_dir(of)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| !OUTPUTS.iter().any(|name| entry.file_name() == *name))
        // The log of a mount, where its database has none.
        .filter(|entry| entry.file_name() != "larder")
        .map(|entry| entry.path())
        .collect();
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        let (seconds, nanoseconds) = (meta.mtime(), meta.mtime_nsec());
        let mut line = format!("{:o} {} {seconds}.{nanoseconds}", meta.mode(), meta.uid());
        if meta.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        } else if meta.is_file() {
            line += &String::from_utf8_lossy(&fs::read(&path).unwrap());
        }
        found.insert(path, line);
    }
    found
}
