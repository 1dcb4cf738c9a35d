//! `cargo xtask kills`: two busy mounts of one database, of which one is killed, again and again.
//!
//! In each round programs rename, create, unlink, list and sync in one directory by both mounts.
//! One server gets SIGKILL; then `ls`, `put` and `check`, the other mount, a look at the dead one,
//! and a new mount in its place each have to answer within [`USABLE`]. In the end both mounts are
//! ended and `check --read` is clean.
//!
//! The load is in processes of its own: one that waits inside the kernel for a dead server cannot
//! be ended.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::Rng;

use xtask::mounts::{Larder, Profile};
use xtask::{Outcome, Tally};

/// The verb of a process of the load: `DIRECTORY SEED`.
pub const LOAD: &str = "kills-load";

/// What is promised after a kill.
const USABLE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
/// How long the load runs before a kill, milliseconds.
const CALM_MS: (u64, u64) = (300, 1500);
/// Programs on each mount.
const PROGRAMS: usize = 3;
/// Names in the directory.
const NAMES: u64 = 20;
const CONTENT_BYTES_MAX: u64 = 9000;
const SEED: u64 = 1;

/// Takes `[--rounds N] [--seed S]`.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (mut rounds, mut seed) = (100, SEED);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().and_then(|value| value.parse().ok());
        match (*flag, value) {
            ("--rounds", Some(value)) => rounds = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                return Err(format!(
                    "kills does not understand '{flag}' here; usage: kills [--rounds N] [--seed S]"
                ));
            }
        }
    }
    Tally::of(rounds, run(rounds, seed)).end()
}

/// Runs `rounds` kills; an error names the seed and the round.
pub fn run(rounds: u64, seed: u64) -> Result<(), String> {
    let larder = Larder::build(Profile::Debug)?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let site = Site {
        larder,
        database: scratch.path().join("kills.larder"),
        mountpoints: ["one", "two"].map(|name| scratch.path().join(name)),
    };
    let outcome = site.all(rounds, seed);
    outcome.map_err(|line| {
        // Left for a look.
        let kept = scratch.keep();
        format!(
            "seed {seed}: {line}\n(the database is left in {})",
            kept.display()
        )
    })
}

struct Site {
    larder: Larder,
    database: PathBuf,
    mountpoints: [PathBuf; 2],
}

impl Site {
    fn all(&self, rounds: u64, seed: u64) -> Result<(), String> {
        for mountpoint in &self.mountpoints {
            fs::create_dir(mountpoint).map_err(|error| format!("the mountpoint: {error}"))?;
        }
        let database = self.database.to_string_lossy();
        self.larder
            .run(&["init", &database, "--capacity", "256M"])?;
        let mut rng = Rng::new(seed);
        let mut servers = [self.serve(0)?, self.serve(1)?];
        fs::create_dir(self.directory(0)).map_err(|error| format!("mkdir: {error}"))?;
        fs::File::open(self.directory(0))
            .and_then(|directory| directory.sync_all())
            .map_err(|error| format!("sync: {error}"))?;
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            match self.round(round, &mut rng, &mut servers) {
                Ok(waited) => longest = longest.max(waited),
                Err(line) => {
                    // Nobody else ends them.
                    servers.iter_mut().try_for_each(Process::kill)?;
                    return Err(format!("round {round}: {line}"));
                }
            }
        }
        drop(servers);
        for mountpoint in &self.mountpoints {
            self.larder
                .run(&["umount", &mountpoint.to_string_lossy()])?;
        }
        self.larder.run(&["check", "--read", &database])?;
        println!(
            "kills: {rounds} rounds, seed {seed}, usable after {:.2} s at most, the end clean",
            longest.as_secs_f64()
        );
        Ok(())
    }

    /// The directory that both mounts work in, by one of them.
    fn directory(&self, mount: usize) -> PathBuf {
        self.mountpoints[mount].join("d")
    }

    /// Kills a server under load; returns how long somebody waited at most.
    fn round(
        &self,
        round: u64,
        rng: &mut Rng,
        servers: &mut [Process; 2],
    ) -> Result<Duration, String> {
        let load: Vec<Process> = (0..2 * PROGRAMS)
            .map(|program| self.load(program % 2, rng.bits()))
            .collect::<Result<_, String>>()?;
        thread::sleep(Duration::from_millis(
            CALM_MS.0 + rng.below(CALM_MS.1 - CALM_MS.0),
        ));
        for program in &load {
            program.require_alive()?;
        }
        let dead = (round % 2) as usize;
        servers[dead].kill()?;
        let killed = Instant::now();
        let larder = self.larder.path().to_string_lossy().into_owned();
        let database = self.database.to_string_lossy().into_owned();
        let (inside, new) = (format!("{database}:/d"), format!("{database}:/put"));
        let local = self.database.with_file_name("local");
        fs::write(&local, b"content").map_err(|error| format!("a local file: {error}"))?;
        let local = local.to_string_lossy();
        let (here, there) = (self.directory(1 - dead), self.directory(dead));
        let (here, there) = (here.to_string_lossy(), there.to_string_lossy());
        let beside = format!("{}/beside", self.mountpoints[1 - dead].display());
        // Whether it has to succeed: the dead mount has to answer, and what with is an error.
        let commands: [(bool, &[&str]); 6] = [
            (true, &[&larder, "ls", &inside]),
            (true, &[&larder, "put", &local, &new]),
            (true, &[&larder, "check", &database]),
            (true, &["ls", &here]),
            (true, &["touch", &beside]),
            (false, &["ls", &there]),
        ];
        let started: Vec<(String, bool, Process)> = (commands.iter())
            .map(|(must, words)| Ok((words.join(" "), *must, Process::start(words)?)))
            .collect::<Result<_, String>>()?;
        let mut longest = Duration::ZERO;
        for (words, must, mut process) in started {
            let (is_well, waited) = process.wait(&words)?;
            if must && !is_well {
                return Err(format!("'{words}' failed"));
            }
            longest = longest.max(waited);
        }
        servers[dead].wait("the killed server")?;
        servers[dead] = self.serve(dead)?;
        let usable = killed.elapsed();
        if usable > USABLE {
            return Err(format!("a new mount after {:.1} s", usable.as_secs_f64()));
        }
        drop(load);
        println!(
            "kills: round {round}: commands {:.2} s, a new mount after {:.2} s",
            longest.as_secs_f64(),
            usable.as_secs_f64()
        );
        Ok(longest.max(usable))
    }

    /// A server in a process of its own; it serves when this returns.
    fn serve(&self, mount: usize) -> Result<Process, String> {
        let mountpoint = self.mountpoints[mount].to_string_lossy();
        let words = ["mount", &self.database.to_string_lossy(), &mountpoint];
        let child = Command::new(self.larder.path())
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("a mount does not start: {error}"))?;
        let mut server = Process::of(child, false);
        let (sender, receiver) = std::sync::mpsc::channel();
        let stdout = server.child.stdout.take();
        thread::spawn(move || {
            use std::io::BufRead;
            let mut line = String::new();
            let read = stdout.map(|stdout| std::io::BufReader::new(stdout).read_line(&mut line));
            // Who asked may have given up.
            let _ = sender.send(matches!(read, Some(Ok(1..))));
        });
        match receiver.recv_timeout(USABLE) {
            Ok(true) => Ok(server),
            _ => {
                server.kill()?;
                Err(format!("a mount at {mountpoint} does not serve"))
            }
        }
    }

    fn load(&self, mount: usize, seed: u64) -> Result<Process, String> {
        let program = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
        let directory = self.directory(mount);
        let words = [
            &program.to_string_lossy(),
            LOAD,
            &directory.to_string_lossy(),
            &seed.to_string(),
        ];
        Process::start(&words)
    }
}

/// A child process. One that belongs to a round is killed when dropped, and waited for.
struct Process {
    child: Child,
    began: Instant,
    ends_with_round: bool,
}

impl Process {
    fn of(child: Child, ends_with_round: bool) -> Process {
        Process {
            child,
            began: Instant::now(),
            ends_with_round,
        }
    }

    fn start(words: &[&str]) -> Result<Process, String> {
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("'{}' does not run: {error}", words[0]))?;
        Ok(Process::of(child, true))
    }

    fn require_alive(&self) -> Result<(), String> {
        match fs::metadata(format!("/proc/{}/exe", self.child.id())) {
            Ok(_) => Ok(()),
            Err(_) => Err("a program of the load has ended before the kill".into()),
        }
    }

    fn kill(&mut self) -> Result<(), String> {
        (self.child.kill()).map_err(|error| format!("a process cannot be killed: {error}"))
    }

    /// Whether it ended with 0, and after how long.
    fn wait(&mut self, what: &str) -> Result<(bool, Duration), String> {
        let asked = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok((status.success(), self.began.elapsed())),
                Ok(None) if asked.elapsed() > USABLE => {
                    return Err(format!(
                        "'{what}' waits for more than {} s",
                        USABLE.as_secs()
                    ));
                }
                Ok(None) => thread::sleep(POLL),
                Err(error) => return Err(format!("'{what}': {error}")),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ends_with_round {
            // It may have ended; and one that cannot end was told of.
            let _ = self.child.kill();
            let _ = self.wait("a program of the load");
        }
    }
}

/// A program of the load: works in a directory until the mount is dead.
pub fn load(directory: &str, seed: &str) -> Result<(), String> {
    let seed = seed.parse().map_err(|_| format!("'{seed}' is no seed"))?;
    let mut rng = Rng::new(seed);
    let directory = Path::new(directory);
    loop {
        match step(directory, &mut rng) {
            Ok(()) => {}
            // Others remove and rename the same names.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::AlreadyExists
                        | ErrorKind::StaleNetworkFileHandle
                ) => {}
            Err(error) => return Err(format!("the load ends: {error}")),
        }
    }
}

fn step(directory: &Path, rng: &mut Rng) -> std::io::Result<()> {
    let mut name = || directory.join(format!("f{}", rng.below(NAMES)));
    let (one, other) = (name(), name());
    match rng.below(6) {
        0 => fs::write(one, vec![b'x'; rng.below(CONTENT_BYTES_MAX) as usize]),
        1 => fs::rename(one, other),
        2 => fs::remove_file(one),
        3 => fs::read_dir(directory)
            .and_then(|mut entries| entries.try_for_each(|entry| entry.map(drop))),
        4 => {
            let mut options = fs::File::options();
            let mut file = options.create(true).truncate(false).write(true).open(one)?;
            file.write_all(&[b'y'; 100])?;
            file.write_all_at(b"z", 50)?;
            file.sync_all()
        }
        _ => {
            for entry in fs::read_dir(directory)?.take(5) {
                fs::symlink_metadata(entry?.path())?;
            }
            Ok(())
        }
    }
}
