//! The attendant of a mount: a process that sleeps until the server of the mount is killed.
//!
//! A thread of a killed server may be unable to end: it tells the kernel of a change, and waits
//! for a program that waits for the server. It has the device open, so the kernel does not end the
//! connection, and every program on the mount waits on. Whoever opens the database next ends that
//! (`SESSION-5`); where nobody does, the attendant does at once, by the same road.
//!
//! The kernel sends it a signal when the thread that started it has ended, whatever becomes of the
//! others; and it stays the child of the server until the last of them has. So it needs neither a
//! look now and then nor a number that could be another process's. It is this program anew, not a
//! fork, which would keep what the server has in memory; it is started before the server has a
//! database open.
//!
//! # Invariants
//! * `CLI-43` An attendant ends with its server, whatever ends that; it has nothing open of the
//!   database, the device, the terminal or the directory that its server was started in, and no
//!   signal that is meant for the server ends it before.

use crate::error::{At, Failure, Result};
use crate::log;
use crate::mount_log::open_log;
use larder::directory::DatabaseDir;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Under this name the program is an attendant.
const NAME: &str = "larder-attend";
/// Until the first look at a server that was killed: most end by themselves. From each to the next
/// it doubles.
const PAUSE: Duration = Duration::from_millis(50);
/// Up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The attendant of this process, which ends it when it is dropped.
pub(crate) struct Attendant(Child);

impl Attendant {
    /// Starts one for a server of the database in directory `database`. The calling thread must
    /// live as long as the server.
    pub(crate) fn start(database: &Path) -> io::Result<Attendant> {
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .arg(std::path::absolute(database)?)
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Attendant(child))
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        if let Err(error) = ended {
            tracing::warn!("the attendant of the mount is not ended: {error}");
        }
    }
}

/// Whether the program was started as one.
pub(crate) fn is_named(program: &OsStr) -> bool {
    program == NAME
}

/// The attendant itself; `arguments` without the program.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    match attend(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.exit_code())
        }
    }
}

fn attend(arguments: &[OsString]) -> Result<()> {
    let [server, database] = arguments else {
        return Err(Failure::Usage(
            "an attendant is started by a mount; call 'larder mount'".into(),
        ));
    };
    let number = server.to_str().and_then(|number| number.parse().ok());
    let Some(server) = number.and_then(Pid::from_raw) else {
        return Err(Failure::Usage("it takes the number of a process".into()));
    };
    let what = || "cannot wait for the server of a mount".to_owned();
    larder_fuse::leave_descriptors(None).at(what)?;
    setsid().at(what)?;
    // It was started as /proc/self/exe, which outlives the file.
    rustix::thread::set_name(c"larder-attend").at(what)?;
    // Those meant for the server and all that it has started.
    let mut signals = Signals::new([SIGUSR1, SIGINT, SIGTERM, SIGHUP]).at(what)?;
    set_parent_process_death_signal(Some(Signal::USR1)).at(what)?;
    let is_there = || getppid() == Some(server);
    // It may have ended before the kernel was asked to tell.
    if is_there() {
        signals.forever().find(|signal| *signal == SIGUSR1);
    }
    let (mut pause, mut is_logging) = (PAUSE, false);
    loop {
        std::thread::sleep(pause);
        if !is_there() {
            return Ok(());
        }
        if !std::mem::replace(&mut is_logging, true) {
            log_to(Path::new(database))?;
        }
        larder::free_killed(Path::new(database));
        pause = PAUSE_MAX.min(2 * pause);
    }
}

/// What is said from here on goes to the log of the mounts; where that cannot be written, nowhere.
fn log_to(database: &Path) -> Result<()> {
    let opened = DatabaseDir::open(database).and_then(|directory| open_log(&directory));
    if let Ok(log) = opened {
        rustix::stdio::dup2_stderr(log).at(|| "cannot write to the log".into())?;
    }
    log::start(tracing::Level::WARN)
}
