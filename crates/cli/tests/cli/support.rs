//! Runs the real `larder` in a directory of its own.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A scratch directory in which commands run.
pub struct Place {
    dir: tempfile::TempDir,
}

/// What a command left.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Place {
    /// An empty directory.
    pub fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A directory with an empty database `a.larder`.
    pub fn with_database() -> Place {
        let place = Place::new();
        place.ok(&["init", "a.larder", "--capacity", "64M"]);
        place
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command that will run here.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        // A run of hours has a copy, which nobody builds anew meanwhile.
        let copied = std::env::var_os("LARDER_TEST_COMMAND");
        let program = copied.unwrap_or_else(|| env!("CARGO_BIN_EXE_larder").into());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.dir.path());
        command
    }

    /// Runs a command.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Done {
        Done::from(self.command(arguments).output().unwrap())
    }

    /// Runs a command that reads `input`.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Done {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // One that fails early does not read to the end.
        match child.stdin.take().unwrap().write_all(input) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written.unwrap(),
        }
        Done::from(child.wait_with_output().unwrap())
    }

    /// Runs a command that must succeed without a word on stderr; returns its stdout.
    pub fn ok<S: AsRef<OsStr> + std::fmt::Debug>(&self, arguments: &[S]) -> String {
        let done = self.run(arguments);
        assert_eq!(
            (done.code, done.stderr.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
        String::from_utf8(done.stdout).unwrap()
    }

    /// The same with `--json`.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("CLI-5: {error}: {text}"))
    }

    /// Runs a command that must fail with one line that says `cause` and has a remedy (`CLI-1`).
    pub fn fails<S: AsRef<OsStr> + std::fmt::Debug>(
        &self,
        code: i32,
        arguments: &[S],
        cause: &str,
    ) {
        self.run(arguments)
            .assert_failed(code, cause, &format!("{arguments:?}"));
    }

    /// The database is whole.
    pub fn assert_clean(&self, database: &str) {
        let done = self.run(&["check", database, "--read"]);
        assert_eq!(
            done.code,
            Some(0),
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            done.stderr
        );
    }

    /// No session is left in the database.
    pub fn assert_closed(&self, database: &str) {
        let sessions = std::fs::read_dir(self.path(database).join("sessions")).unwrap();
        assert_eq!(sessions.count(), 0, "CLI-7");
        let rows = self.json(&["sql", database, "SELECT label FROM larder_session"]);
        assert_eq!(
            rows,
            serde_json::json!([{ "label": "larder sql" }]),
            "CLI-7"
        );
    }

    /// Writes a local file with bytes that repeat after no power of two.
    pub fn write(&self, name: &str, size_bytes: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..size_bytes).map(|index| (index % 251) as u8).collect();
        std::fs::write(self.path(name), &content).unwrap();
        content
    }
}

impl Done {
    pub fn assert_failed(&self, code: i32, cause: &str, what: &str) {
        let Done {
            code: found,
            stderr,
            ..
        } = self;
        assert_eq!(*found, Some(code), "CLI-1: {what}: {stderr}");
        assert!(
            stderr.starts_with("larder: ") && stderr.ends_with('\n'),
            "CLI-1: {what}: {stderr}"
        );
        // The place of a mistake in SQL is indented.
        let lines = stderr.lines().filter(|line| !line.starts_with("    "));
        assert_eq!(lines.count(), 1, "CLI-1: {what}: {stderr}");
        assert!(
            stderr.contains(cause),
            "{what}: '{cause}' is not in: {stderr}"
        );
        assert!(stderr.contains("; "), "CLI-1: no remedy: {what}: {stderr}");
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        let stderr = String::from_utf8(output.stderr).unwrap();
        Done {
            code: output.status.code(),
            stdout: output.stdout,
            stderr,
        }
    }
}

fn digest(content: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{} bytes, hash {:x}", content.len(), hasher.finish())
}

/// Everything about a tree that an archive copy keeps, one line per name, sorted.
pub fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inodes: std::collections::HashMap<u64, usize> = std::collections::HashMap::new();
    describe_below(root, Path::new(""), &mut inodes, &mut lines);
    lines
}

fn describe_below(
    root: &Path,
    below: &Path,
    inodes: &mut std::collections::HashMap<u64, usize>,
    lines: &mut Vec<String>,
) {
    use std::os::unix::fs::MetadataExt;
    let path = root.join(below);
    let metadata = path.symlink_metadata().unwrap();
    // Inodes are numbered as they come, so that equal numbers mean equal links.
    let count = inodes.len();
    let inode = *inodes.entry(metadata.ino()).or_insert(count);
    let content = match () {
        () if metadata.is_file() => digest(&std::fs::read(&path).unwrap()),
        () if metadata.is_symlink() => format!("-> {}", path.read_link().unwrap().display()),
        () => String::new(),
    };
    let mut value = [0; 64];
    let xattr = match rustix::fs::lgetxattr(&path, "user.note", &mut value[..]) {
        Ok(length) => String::from_utf8_lossy(&value[..length]).into_owned(),
        Err(_) => String::new(),
    };
    lines.push(format!(
        "{} inode {inode} mode {:o} owner {}:{} rdev {} mtime {}.{:09} note '{xattr}' {content}",
        below.display(),
        metadata.mode(),
        metadata.uid(),
        metadata.gid(),
        metadata.rdev(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    ));
    if metadata.is_dir() {
        let mut names: Vec<_> = std::fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
            .iter()
            .for_each(|name| describe_below(root, &below.join(name), inodes, lines));
    }
}

/// A process that is killed when the test ends, by a failure too. Derefs to its [`Child`].
pub struct Killed(Option<Child>);

impl Killed {
    pub fn spawn(command: &mut Command) -> Killed {
        Killed(Some(command.spawn().unwrap()))
    }

    pub fn wait_with_output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill(); // It may have ended.
            let _ = child.wait();
        }
    }
}

/// The most memory that a child had at once, bytes; none when it has ended, or is not yet the
/// program that it was made for: until that is loaded it shares the memory of this one, for as long
/// as another thread keeps that from being looked at (a `fork` does).
pub fn peak_memory(child: &Child) -> Option<u64> {
    let of_child = |file: &str| Path::new("/proc").join(child.id().to_string()).join(file);
    let program = fs::read_link(of_child("exe")).ok()?;
    if program == std::env::current_exe().unwrap() {
        return None;
    }
    let status = fs::read_to_string(of_child("status")).ok()?;
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    Some(kib << 10)
}
