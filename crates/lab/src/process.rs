//! Programs of the machine: those that answer at once, and servers that end with us.

use crate::error::{Error, Result, Said};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a program and returns what it prints; an exit code other than 0 is an error with what it
/// complains about.
pub fn output(program: &str, arguments: &[&OsStr]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    run(command)
}

/// The same with a file to read from, which was just written.
pub fn answer(program: &str, arguments: &[&OsStr], mut asked: File) -> Result<String> {
    asked.rewind()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(asked);
    finish(command)
}

/// The same, of a command with an environment or user of its own.
pub fn run(mut command: Command) -> Result<String> {
    command.stdin(Stdio::null());
    finish(command)
}

/// The first line of what a program says of its version, to whichever output it says it; `None` if
/// it does not run.
pub fn version(program: &Path, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    let said = command
        .arg(argument)
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .ok()?;
    let lines = [said.stdout, said.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let line = lines.iter().flat_map(|said| said.lines()).next()?;
    Some(line.trim().to_owned())
}

fn finish(mut command: Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .process_group(0)
        .output()
        .map_err(|error| Error::cannot(format!("'{program}' does not run: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaint = complaint.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(Error::failed(format!(
        "'{program}' ended with {}: {complaint}",
        output.status
    )))
}

/// Where a program is, on the search path or where administrators' programs are.
pub fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// The path of a program, or what to install.
pub fn require(program: &str, package: &str) -> Result<String> {
    match find(program) {
        Some(path) => Ok(path.to_string_lossy().into_owned()),
        None => Err(Error::cannot(format!(
            "there is no '{program}' here; install {package} (apt-get install {package})"
        ))),
    }
}

/// A server that is ended when this is dropped, and that the kernel ends if we are killed.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    ending: rustix::process::Signal,
    /// What it says; read only if it fails.
    said: File,
}

impl Server {
    /// Starts `command`, which `ending` asks to end in good order.
    pub fn start(mut command: Command, ending: rustix::process::Signal) -> Result<Server> {
        let name = Path::new(command.get_program())
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // ^C in a terminal is for us: we end our servers ourselves.
        let said = tempfile::tempfile().said(|| format!("starting '{name}'"))?;
        command
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            .process_group(0);
        // SAFETY: between fork and exec only prctl(2) is called, which is safe there.
        unsafe {
            command.pre_exec(move || {
                Ok(rustix::process::set_parent_process_death_signal(Some(
                    ending,
                ))?)
            });
        }
        let child = command
            .spawn()
            .map_err(|error| Error::cannot(format!("'{name}' does not run: {error}")))?;
        Ok(Server {
            name,
            child,
            ending,
            said,
        })
    }

    /// Waits until `is_ready`; an error if the server ends before, or after a minute.
    pub fn wait_until(&mut self, mut is_ready: impl FnMut() -> Result<bool>) -> Result<()> {
        let started = Instant::now();
        while !is_ready()? {
            if let Some(status) = self.child.try_wait()? {
                let mut said = Vec::new();
                self.said.rewind()?;
                self.said.read_to_end(&mut said)?;
                let said = String::from_utf8_lossy(&said).into_owned();
                return Err(Error::cannot(format!(
                    "'{}' ended at once ({status}): {}",
                    self.name,
                    said.split_whitespace().collect::<Vec<_>>().join(" ")
                )));
            }
            if started.elapsed() > Duration::from_secs(60) {
                return Err(Error::cannot(format!(
                    "'{}' does not serve after a minute",
                    self.name
                )));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        Ok(())
    }

    /// Asks it to end and waits for that.
    pub fn end(mut self) -> Result<()> {
        self.finish(false)
    }

    /// Waits for an end that something else brings about.
    pub fn wait(mut self) -> Result<()> {
        self.finish(true)
    }

    fn finish(&mut self, is_ending: bool) -> Result<()> {
        let name = self.name.clone();
        if !is_ending && self.child.try_wait()?.is_none() {
            rustix::process::kill_process(pid(&self.child)?, self.ending)
                .said(|| format!("ending '{name}'"))?;
        }
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            if started.elapsed() > Duration::from_secs(120) {
                return Err(Error::failed(format!("'{name}' does not end")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let ended = self.finish(false).or_else(|_| {
                self.child.kill()?;
                self.child.wait()?;
                Ok::<(), Error>(())
            });
            if let Err(error) = ended {
                tracing::warn!("{error}");
            }
        }
    }
}

fn pid(child: &Child) -> Result<rustix::process::Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or_else(|| Error::failed("a process has an id that is no id"))
}
