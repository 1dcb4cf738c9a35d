//! PostgreSQL with its cluster on the mount: initdb, pgbench, kill -9 of the mount under load,
//! recovery.
//!
//! pgbench logs each transaction that was committed. After recovery all of them must be in its
//! history table, its sums must agree, amcheck and the page checksums must find nothing.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::judge::Cases;
use super::run::{self, Started};
use super::site::Site;
use xtask::{Tally, install, process};

const PATIENCE: Duration = Duration::from_secs(300);
const USER: &str = "postgres";

/// The three sums that pgbench keeps equal, and the number of its transactions.
const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM \
    pgbench_history) \
    AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history) \
    AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history), \
    (SELECT count(*) FROM pgbench_history)";

/// Runs all steps; each is a case. One that fails ends the suite.
pub fn run(site: &Site) -> Result<Tally, String> {
    let (seconds, scale) = site.length.choose((5, 1), (60, 10));
    let cluster = Cluster::new(site)?;
    let mut cases = Cases::default();
    let mount = site.mount()?;
    let mut server = None;
    let prepared = cases.run("initdb", || {
        cluster.own(&cluster.data)?;
        let arguments = [
            "--data-checksums",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ];
        cluster.tool("initdb", &arguments).map(drop)
    }) && cases.run("start, create tables", || {
        server = Some(cluster.start()?);
        let scale = scale.to_string();
        cluster
            .client("pgbench", &["--initialize", "--quiet", "--scale", &scale])
            .map(drop)
    }) && cases.run(&format!("pgbench, {seconds} s"), || {
        let text = run::succeed(&mut cluster.load(seconds), PATIENCE)?;
        let tps = text.lines().filter(|line| line.starts_with("tps"));
        tps.for_each(|line| println!("        {line}"));
        Ok(())
    });
    let Some(running) = server.filter(|_| prepared) else {
        return Ok(cases.tally());
    };

    let mut mount = Some(mount);
    let killed = cases.run("kill -9 of the mount under load", || {
        let load = Started::new(&mut cluster.load(seconds))?;
        thread::sleep(Duration::from_millis(500 * seconds));
        mount.take().expect("mounted above").kill()?;
        // Nothing that it reads or writes is there any more.
        running.signal(Signal::QUIT)?;
        running.wait(PATIENCE)?;
        let load = load.wait(PATIENCE)?;
        match load.status.success() {
            true => Err(format!("pgbench noticed nothing:\n{}", load.tail(5))),
            false => site.check(),
        }
    });
    if !killed {
        return Ok(cases.tally());
    }

    let mount = site.mount()?;
    let mut server = None;
    let recovered = cases.run("recovery", || {
        let running = cluster.start()?;
        let log = running.text()?;
        server = Some(running);
        match log.contains("automatic recovery in progress") {
            true => Ok(()),
            false => Err(format!("PostgreSQL did not recover:\n{log}")),
        }
    });
    if let Some(running) = server.filter(|_| recovered) {
        cases.run(
            "every committed transaction is there, the sums agree",
            || {
                let answer = cluster.client("psql", &["-XAtc", SUMS])?;
                let committed = cluster.count_logged()?;
                println!(
                    "        {committed} transactions were committed; sums and history: {}",
                    answer.trim()
                );
                match answer.trim().split_once('|') {
                    Some(("t", count))
                        if count.parse().is_ok_and(|count: u64| count >= committed) =>
                    {
                        Ok(())
                    }
                    _ => Err(format!("{committed} were committed, SQL says {answer}")),
                }
            },
        );
        cases.run("amcheck", || {
            let arguments = [
                "--all",
                "--install-missing",
                "--heapallindexed",
                "--parent-check",
                "--rootdescend",
            ];
            cluster.client("pg_amcheck", &arguments).map(drop)
        });
        cases.run("vacuum, reindex, dump", || {
            cluster.client("vacuumdb", &["--all", "--full", "--quiet"])?;
            cluster.client("reindexdb", &["--quiet"])?;
            cluster
                .client("pg_dumpall", &["--no-sync", "--file=/dev/null"])
                .map(drop)
        });
        cases.run("stop", || {
            running.signal(Signal::INT)?;
            match running.wait(PATIENCE)? {
                finished if finished.status.success() => Ok(()),
                finished => Err(finished.tail(15)),
            }
        });
        cases.run("page checksums", || {
            cluster.tool("pg_checksums", &["--check"]).map(drop)
        });
    }
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

/// A cluster on the mount; its socket and pgbench's log lie beside.
struct Cluster {
    tools: PathBuf,
    data: PathBuf,
    runtime: PathBuf,
}

impl Cluster {
    fn new(site: &Site) -> Result<Cluster, String> {
        let cluster = Cluster {
            tools: install::find_postgres()?,
            data: site.mountpoint().join("cluster"),
            runtime: site.scratch().join("runtime"),
        };
        cluster.own(&cluster.runtime)?;
        Ok(cluster)
    }

    /// A new directory of the user that runs PostgreSQL.
    fn own(&self, directory: &Path) -> Result<(), String> {
        let explain = |error| format!("{}: {error}", directory.display());
        fs::create_dir(directory).map_err(explain)?;
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let id = |flag: &str| -> Result<u32, String> {
            let text = process::output("id", &[flag, USER])?;
            text.trim().parse().map_err(|_| format!("no user '{USER}'"))
        };
        chown(directory, Some(id("-u")?), Some(id("-g")?)).map_err(explain)
    }

    /// One of PostgreSQL's programs, as its user: it refuses to be root's.
    fn command(&self, name: &str) -> Command {
        let program = self.tools.join(name);
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("setpriv");
                command
                    .args([&format!("--reuid={USER}"), &format!("--regid={USER}")])
                    .arg("--clear-groups")
                    .arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .current_dir(&self.runtime)
            .env("PGHOST", &self.runtime)
            .env("PGUSER", USER)
            .env("PGDATABASE", "postgres");
        command
    }

    /// A program that works on the cluster's files.
    fn tool(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.command(name);
        command.arg("-D").arg(&self.data).args(arguments);
        run::succeed(&mut command, PATIENCE)
    }

    /// A program that talks to the server.
    fn client(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        run::succeed(self.command(name).args(arguments), PATIENCE)
    }

    /// Starts the server, and waits until it answers.
    fn start(&self) -> Result<Started, String> {
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.runtime)
            .args(["-c", "listen_addresses="]);
        let mut server = Started::new(&mut command)?;
        let started = Instant::now();
        while self.client("pg_isready", &["--quiet"]).is_err() {
            if server.has_ended()? || started.elapsed() > PATIENCE {
                return Err(format!("PostgreSQL does not start:\n{}", server.text()?));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// pgbench: 8 clients, a line for each transaction.
    fn load(&self, seconds: u64) -> Command {
        let mut command = self.command("pgbench");
        command
            .args(["--client=8", "--jobs=2", "--no-vacuum", "--log"])
            .arg(format!("--time={seconds}"));
        command
    }

    /// Transactions that pgbench has seen committed.
    fn count_logged(&self) -> Result<u64, String> {
        let explain = |error| format!("{}: {error}", self.runtime.display());
        let mut count = 0;
        for entry in fs::read_dir(&self.runtime).map_err(explain)? {
            let path = entry.map_err(explain)?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.starts_with("pgbench_log") {
                // A line that was cut short is no line.
                count += fs::read(&path)
                    .map_err(explain)?
                    .iter()
                    .filter(|byte| **byte == b'\n')
                    .count() as u64;
            }
        }
        Ok(count)
    }
}
