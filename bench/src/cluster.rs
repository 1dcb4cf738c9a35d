//! A private PostgreSQL cluster, on a Unix socket of its own.
//!
//! Debian's package is `postgresql`. As root it is installed when it is not there, and the server
//! runs as the package's user, because it refuses to run as root.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use xtask::Outcome;
use xtask::process;

const USER: &str = "postgres";

/// A cluster; its server is stopped when it is dropped.
pub struct Cluster {
    directory: PathBuf,
    /// Not in the cluster: the name of a socket may have 107 bytes.
    sockets: TempDir,
    tools: PathBuf,
    is_running: bool,
}

impl Cluster {
    /// Makes a cluster in `directory`, which is not there yet, with `settings` as in
    /// `postgresql.conf`.
    pub fn create(directory: &Path, settings: &str) -> Result<Cluster, String> {
        let explain = |error| format!("{}: {error}", directory.display());
        fs::create_dir(directory).map_err(explain)?;
        let cluster = Cluster {
            directory: directory.to_owned(),
            sockets: tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?,
            tools: tools()?,
            is_running: false,
        };
        if is_root() {
            for path in [&cluster.directory, cluster.sockets.path()] {
                chown(path, Some(user_id("-u")?), Some(user_id("-g")?)).map_err(explain)?;
            }
        }
        cluster.tool(
            "initdb",
            &[
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
            ],
        )?;
        let configuration = cluster.directory.join("postgresql.conf");
        let explain = |error| format!("{}: {error}", configuration.display());
        let mut text = fs::read_to_string(&configuration).map_err(explain)?;
        text.push_str("listen_addresses = ''\n");
        text.push_str(&format!(
            "unix_socket_directories = '{}'\n",
            cluster.sockets.path().display()
        ));
        text.push_str(settings);
        fs::write(&configuration, text).map_err(explain)?;
        Ok(cluster)
    }

    /// Starts the server.
    pub fn start(&mut self) -> Outcome {
        let log = self.directory.join("server.log");
        self.tool("pg_ctl", &["start", "-w", "-l", &log.to_string_lossy()])?;
        self.is_running = true;
        Ok(())
    }

    /// Stops it.
    pub fn stop(&mut self) -> Outcome {
        self.is_running = false;
        self.tool("pg_ctl", &["stop", "-w", "-m", "fast"])
    }

    /// The server's process.
    pub fn process(&self) -> Result<u32, String> {
        let file = self.directory.join("postmaster.pid");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let first = text.lines().next().and_then(|line| line.parse().ok());
        first.ok_or(format!("{} has no process", file.display()))
    }

    /// How a client connects.
    pub fn connection(&self) -> String {
        format!(
            "host={} user=postgres dbname=postgres",
            self.sockets.path().display()
        )
    }

    /// Runs one of PostgreSQL's client programs on this cluster, and returns what it prints.
    pub fn client(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let program = self.tools.join(name).to_string_lossy().into_owned();
        let host = self.sockets.path().to_string_lossy().into_owned();
        let mut all = vec!["-h", &host, "-U", "postgres"];
        all.extend(arguments);
        process::output(&program, &all)
    }

    /// Runs one of PostgreSQL's programs on the cluster's directory, as its user.
    fn tool(&self, name: &str, arguments: &[&str]) -> Outcome {
        let program = self.tools.join(name).to_string_lossy().into_owned();
        let directory = self.directory.to_string_lossy().into_owned();
        let mut all = vec![program.as_str(), "-D", &directory];
        all.extend(arguments);
        if is_root() {
            let user = format!("--reuid={USER}");
            let group = format!("--regid={USER}");
            let mut drop = vec![user.as_str(), group.as_str(), "--clear-groups"];
            drop.extend(all);
            return run_in(&directory, "setpriv", &drop);
        }
        run_in(&directory, all[0], &all[1..])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_running
            && let Err(line) = self.stop()
        {
            eprintln!("xtask: PostgreSQL is not stopped: {line}");
        }
    }
}

/// The directory of PostgreSQL's programs; installs them if this process may.
fn tools() -> Result<PathBuf, String> {
    if let Some(found) = find_tools() {
        return Ok(found);
    }
    if !is_root() {
        return Err("this measurement needs PostgreSQL: apt-get install postgresql".to_owned());
    }
    println!("bench: installing PostgreSQL (apt-get install postgresql)");
    process::run(
        "apt-get",
        &["install", "-y", "--no-install-recommends", "postgresql"],
    )?;
    find_tools().ok_or("apt-get installed no initdb".to_owned())
}

/// Debian keeps them by major version, outside of the search path.
fn find_tools() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let debian = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|directory| directory.join("initdb").is_file())
        .max();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    debian.or_else(|| std::env::split_paths(&paths).find(|path| path.join("initdb").is_file()))
}

fn user_id(flag: &str) -> Result<u32, String> {
    let text = process::output("id", &[flag, USER])?;
    text.trim().parse().map_err(|_| format!("no user '{USER}'"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a program with `directory` as its own: the server's user may not enter this process's. Its
/// output goes nowhere, because a server that it starts would keep a pipe open.
fn run_in(directory: &str, program: &str, arguments: &[&str]) -> Outcome {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("'{program}' does not run: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("'{program} {}' failed", arguments.join(" "))),
    }
}
