//! The real `larder` command, and mounts that it serves.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;
use crate::workspace::Workspace;

/// How long a mount may take to serve or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long others may keep a mount busy.
const BUSY: Duration = Duration::from_secs(5);

/// The built `larder` command.
#[derive(Debug, Clone)]
pub struct Larder {
    path: PathBuf,
    /// How the requests of its mounts come, if not as by default.
    transport: Option<&'static str>,
}

/// How it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Quickly, with assertions.
    Debug,
    /// As users run it.
    Release,
}

impl Larder {
    /// Builds it.
    pub fn build(profile: Profile) -> Result<Larder, String> {
        let workspace = Workspace::load()?;
        let path = match profile {
            Profile::Debug => workspace.build_program("larder")?.into(),
            Profile::Release => {
                let build = ["build", "--quiet", "--release", "--package", "larder-cli"];
                process::run("cargo", &build)?;
                workspace.target.join("release").join("larder")
            }
        };
        Ok(Larder {
            path,
            transport: None,
        })
    }

    /// The same, whose mounts have their requests by `transport`.
    pub fn over(&self, transport: &'static str) -> Larder {
        Larder {
            transport: Some(transport),
            ..self.clone()
        }
    }

    /// Where it was built.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a verb and returns what it prints; an exit code other than 0 is an error.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        process::output(&self.path.to_string_lossy(), arguments)
    }

    /// Starts `larder mount` in the foreground, and returns once it serves.
    pub fn mount(&self, database: &Path, directory: &Path) -> Result<Mount, String> {
        let option = (self.transport).map(|transport| format!("transport={transport}"));
        let mut arguments = vec![OsStr::new("mount"), database.as_ref(), directory.as_ref()];
        if let Some(option) = &option {
            arguments.extend([OsStr::new("-o"), option.as_ref()]);
        }
        let mut served = Served::start(&self.path, &arguments, directory, Stdio::piped())?;
        // What is unmounted before it has said so is a mount that failed.
        served.wait_for_line()?;
        Ok(Mount {
            larder: self.clone(),
            served,
        })
    }
}

/// A mount of Larder that a child process serves. Dropped without [`Mount::unmount`], it is killed.
pub struct Mount {
    larder: Larder,
    served: Served,
}

impl Mount {
    /// The process that serves.
    pub fn process(&self) -> u32 {
        self.served.process()
    }

    /// Unmounts in the ordinary way and waits for the server to end. Whoever looks at the mount
    /// just now, the server itself when it has just begun to serve, keeps it busy for an instant.
    pub fn unmount(mut self) -> Result<(), String> {
        let directory = self.served.directory.to_string_lossy().into_owned();
        let started = Instant::now();
        while let Err(line) = self.larder.run(&["umount", &directory]) {
            if !line.contains("in use") || started.elapsed() > BUSY {
                return Err(line);
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.served.wait()
    }

    /// Kills the server with SIGKILL: who uses the mount meets errors, until [`Mount::kill`] takes
    /// it away.
    pub fn kill_server(&mut self) -> Result<(), String> {
        self.served.kill_server()
    }

    /// Kills the server with SIGKILL, and takes away the dead mount that it leaves.
    pub fn kill(mut self) -> Result<(), String> {
        self.served.end()
    }
}

/// A FUSE mount that a child process serves in the foreground. Dropped without [`Served::unmount`],
/// it is killed.
pub struct Served {
    program: String,
    child: Child,
    directory: PathBuf,
    /// The server was killed, and its mount is there.
    is_dead: bool,
}

impl Served {
    /// Starts `program`, which says to `stdout` what it says, and returns once something is mounted
    /// at `directory`.
    pub fn start(
        program: &Path,
        arguments: &[&OsStr],
        directory: &Path,
        stdout: Stdio,
    ) -> Result<Served, String> {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        let explain = |error| format!("{}: {error}", directory.display());
        let before = device(directory).map_err(explain)?;
        let program = program.to_string_lossy().into_owned();
        let child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(stdout)
            .spawn()
            .map_err(|error| format!("'{program}' does not run: {error}"))?;
        let mut served = Served {
            program,
            child,
            directory: directory.to_owned(),
            is_dead: false,
        };
        let started = Instant::now();
        while device(directory).map_err(explain)? == before {
            if let Some(status) = served.child.try_wait().map_err(explain)? {
                return Err(format!("'{}' ended at once: {status}", served.program));
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("'{}' does not serve", served.program));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(served)
    }

    /// Waits until it has said a line, to a pipe.
    fn wait_for_line(&mut self) -> Result<(), String> {
        let Some(stdout) = self.child.stdout.as_mut() else {
            return Err(format!("'{}' has no pipe", self.program));
        };
        let mut byte = [0];
        while byte != *b"\n" {
            stdout.read_exact(&mut byte).map_err(|error| {
                format!("'{}' does not say that it serves: {error}", self.program)
            })?;
        }
        Ok(())
    }

    /// The process that serves.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Unmounts and waits for the server to end.
    pub fn unmount(mut self) -> Result<(), String> {
        process::output("fusermount3", &["-u", &self.directory.to_string_lossy()])?;
        self.wait()
    }

    fn wait(&mut self) -> Result<(), String> {
        let status = self
            .child
            .wait()
            .map_err(|error| format!("waiting for the mount: {error}"))?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("'{}' ended with {status}", self.program)),
        }
    }

    fn kill_server(&mut self) -> Result<(), String> {
        let explain = |error| format!("killing the mount: {error}");
        if self.child.try_wait().map_err(explain)?.is_none() {
            self.child.kill().map_err(explain)?;
            self.child.wait().map_err(explain)?;
            self.is_dead = true;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.kill_server()?;
        if !std::mem::take(&mut self.is_dead) {
            return Ok(());
        }
        process::output(
            "fusermount3",
            &["-u", "-z", &self.directory.to_string_lossy()],
        )
        .map(drop)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(line) = self.end() {
            eprintln!("xtask: {line}");
        }
    }
}
