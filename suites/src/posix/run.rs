//! Programs that may hang: each ends within its patience, with everything that it started, and no
//! later than the thread that runs it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

/// How long a killed program may take to be gone.
const GRACE: Duration = Duration::from_secs(10);

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// What it printed, to stdout and stderr.
    pub text: String,
}

impl Finished {
    /// The last lines that it printed.
    pub fn tail(&self, line_count: usize) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        lines[lines.len().saturating_sub(line_count)..].join("\n")
    }
}

/// Runs `command` for at most `patience`. `Err` if it does not run or does not end.
pub fn finish(command: &mut Command, patience: Duration) -> Result<Finished, String> {
    Started::new(command)?.wait(patience)
}

/// Runs `command`; an exit code other than 0 is an error that holds the end of what it printed.
pub fn succeed(command: &mut Command, patience: Duration) -> Result<String, String> {
    let name = describe(command);
    let finished = finish(command, patience)?;
    match finished.status.success() {
        true => Ok(finished.text),
        false => Err(format!(
            "'{name}' ended with {}:\n{}",
            finished.status,
            finished.tail(15)
        )),
    }
}

/// Runs a shell script that stops at the first error; `$1`… are `arguments`. Returns what it
/// printed.
pub fn shell(script: &str, arguments: &[&Path], patience: Duration) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).args(arguments);
    succeed(&mut command, patience).map_err(|line| line.replace(script, "the script"))
}

/// A program that runs in a process group of its own, its output going to a file. Dropped, the
/// group is killed.
pub struct Started {
    name: String,
    child: Child,
    output: tempfile::NamedTempFile,
}

impl Started {
    /// Starts `command`.
    pub fn new(command: &mut Command) -> Result<Started, String> {
        let name = describe(command);
        let explain = |error| format!("'{name}' does not run: {error}");
        // A file, because what a program leaves running would keep a pipe open. Both handles share
        // one offset.
        let output = tempfile::NamedTempFile::new().map_err(explain)?;
        let stdout = output.reopen().map_err(explain)?;
        let stderr = stdout.try_clone().map_err(explain)?;
        let end_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: the closure runs between fork and exec, where only one system call is made: no
        // memory is allocated and no lock is taken.
        unsafe { command.pre_exec(end_with_us) };
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .map_err(explain)?;
        Ok(Started {
            name,
            child,
            output,
        })
    }

    /// What it has printed so far.
    pub fn text(&self) -> Result<String, String> {
        let bytes = fs::read(self.output.path())
            .map_err(|error| format!("the output of '{}': {error}", self.name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends it a signal: to itself, not to its group.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        let process = Pid::from_raw(self.child.id() as i32).expect("a process has a number");
        rustix::process::kill_process(process, signal)
            .map_err(|error| format!("a signal for '{}': {error}", self.name))
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool, String> {
        Ok(self.wait_quietly(Duration::ZERO)?.is_some())
    }

    /// Waits for its end for at most `patience`, then kills it, which is an error.
    pub fn wait(mut self, patience: Duration) -> Result<Finished, String> {
        match self.wait_quietly(patience)? {
            Some(status) => Ok(Finished {
                status,
                text: self.text()?,
            }),
            None => {
                self.kill_group();
                Err(format!(
                    "'{}' did not end within {patience:?}; it printed:\n{}",
                    self.name,
                    self.text()?
                ))
            }
        }
    }

    fn wait_quietly(&mut self, patience: Duration) -> Result<Option<ExitStatus>, String> {
        let started = Instant::now();
        loop {
            let status = self
                .child
                .try_wait()
                .map_err(|error| format!("waiting for '{}': {error}", self.name))?;
            if status.is_some() || started.elapsed() > patience {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    fn kill_group(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // It may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // A process that waits for a server that hangs cannot be killed before the server is.
        if let Err(line) = self.wait_quietly(GRACE) {
            eprintln!("xtask: {line}");
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill_group();
        }
    }
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ").chars().take(200).collect()
}
