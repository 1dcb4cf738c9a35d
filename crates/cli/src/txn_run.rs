//! `larder txn run`: a program in a private mount namespace, in which a mount shows its own view.
//!
//! ```text
//!  namespace ─▶ begin ─▶ mount ─▶ CMD ─exit 0─▶ end the rest ─▶ unmount ─▶ commit ─▶ exit 0 or 1
//!                                  └ else, signal ─▶ end the rest ─▶ unmount ─▶ abort ─▶ its code
//! ```
//!
//! This process serves the mount. It enters the namespace while it has one thread: that is a rule
//! of the kernel for user namespaces, and so everything it starts is inside. An ordinary user gets
//! a user namespace too, with its own id mapped to itself; in there it may mount.
//!
//! # Invariants
//! * `CLI-25` Nothing is committed unless CMD has ended with 0, no signal asked this process to
//!   end, and nothing that CMD started is left.

use crate::cover::{cover, path_below};
use crate::databases::{await_mounts, open_database};
use crate::error::{At, Failure, Result, warn};
use crate::output::Output;
use crate::privileges;
use crate::settings::transport_of_environment;
use crate::txn::tell;
use crate::txn_args::RunArgs;
use larder::directory::DatabaseDir;
use larder::{DatabaseOptions, LongTransaction, TRANSACTION_VARIABLE};
use larder_fuse::{MountOptions, Mounted};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getegid, geteuid, kill_process, pidfd_open,
    pidfd_send_signal,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long what CMD has left running may take to end after SIGTERM, and CMD after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// The mountpoint in the workspace, where no other was named.
const VIEW: &str = "view";
const POLL: Duration = Duration::from_millis(10);
/// How long an unmount waits until nobody uses the mount, before it is detached.
const UNMOUNT_WAIT: Duration = Duration::from_secs(5);

/// `larder txn run`.
pub(crate) fn run(args: &RunArgs, out: &mut Output) -> Result<()> {
    let db = (args.db.canonicalize()).at(|| format!("cannot open '{}'", args.db.display()))?;
    let place = find_place(args, &db)?;
    enter_namespace()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .at(|| "cannot look after what the program starts".into())?;
    let starter = Starter::new();
    privileges::give_up_but_kill()?;
    let signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).at(|| "cannot listen to signals".into())?;
    let directory = DatabaseDir::open(&db).at(|| format!("cannot open '{}'", db.display()))?;
    let options = DatabaseOptions {
        label: format!("txn run {}", args.command[0].to_string_lossy()),
        ..DatabaseOptions::default()
    };
    let transaction = LongTransaction::begin(&db, options)
        .at(|| format!("cannot begin a transaction on '{}'", db.display()))?;
    let ended = in_transaction(args, &directory, &transaction, place, (starter, signals));
    let status = match ended {
        Ok(status) => status,
        Err(failure) => {
            if let Err(error) = transaction.abort() {
                warn(&format!("the transaction could not be aborted: {error}"));
            }
            return Err(failure);
        }
    };
    match status {
        Ended::Well => {
            let outcome = transaction.commit()?;
            await_mounts(&db);
            tell(&outcome, out)
        }
        Ended::Otherwise(code) => {
            transaction.abort()?;
            Err(Failure::Told(code))
        }
    }
}

/// How CMD has ended.
enum Ended {
    /// With 0, and nobody has asked for an end.
    Well,
    /// The exit code to pass on.
    Otherwise(u8),
}

/// Where the view is shown, and whether CMD starts there.
enum Place {
    At(PathBuf),
    Own,
}

fn find_place(args: &RunArgs, db: &Path) -> Result<Place> {
    if let Some(dir) = &args.mount {
        let dir = dir
            .canonicalize()
            .at(|| format!("cannot mount at '{}'", dir.display()))?;
        return Ok(Place::At(dir));
    }
    let mounted = larder_fuse::find_mounts_of(db)?;
    Ok(mounted.into_iter().next().map_or(Place::Own, Place::At))
}

/// Makes the mounts of this process its own. What others unmount goes here too, so that nobody
/// waits for us.
fn enter_namespace() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    let flags = match uid.is_root() {
        true => UnshareFlags::NEWNS,
        false => UnshareFlags::NEWNS | UnshareFlags::NEWUSER,
    };
    // SAFETY: the hazard of this call is CLONE_FILES, by which threads come to differ in their
    // descriptors; it is not among the flags.
    unsafe { unshare_unsafe(flags) }.map_err(|error| {
        Failure::Other(format!(
            "the system refuses a private mount namespace ({error}); allow user namespaces \
             (sysctl user.max_user_namespaces), or run this as root"
        ))
    })?;
    if !uid.is_root() {
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{0} {0} 1", uid.as_raw())),
            ("gid_map", format!("{0} {0} 1", gid.as_raw())),
        ];
        for (file, text) in maps {
            std::fs::write(format!("/proc/self/{file}"), text)
                .at(|| "cannot map the user into the namespace".into())?;
        }
    }
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .at(|| "cannot make the mounts private".into())
}

fn in_transaction(
    args: &RunArgs,
    db: &DatabaseDir,
    transaction: &LongTransaction,
    place: Place,
    (starter, signals): (Starter, Signals),
) -> Result<Ended> {
    let workspace = transaction.directory();
    let (dir, is_own) = match place {
        Place::At(dir) => (dir, false),
        Place::Own => {
            let dir = workspace.join(VIEW); // What is left after a kill goes with the workspace.
            make_view(db, &dir).at(|| format!("cannot create '{}'", dir.display()))?;
            (dir, true)
        }
    };
    let outcome = mount_view(&workspace, &dir).and_then(|mounted| {
        let view = View {
            db: db.clone(),
            workspace: workspace.clone(),
            dir: dir.clone(),
            is_own,
            program: args.command.clone(),
        };
        let ended = run_command(view, starter, signals);
        let closed = unmount_view(mounted);
        let ended = ended?;
        closed.map(|()| ended)
    });
    if is_own && let Err(error) = std::fs::remove_dir(&dir) {
        warn(&format!("cannot remove '{}': {error}", dir.display()));
    }
    outcome
}

/// Makes the mountpoint in the workspace, by the directory of the database.
fn make_view(db: &DatabaseDir, dir: &Path) -> std::io::Result<()> {
    let below = dir.strip_prefix(db.path());
    db.make_dir(below.map_err(std::io::Error::other)?).map(drop)
}

fn mount_view(workspace: &Path, dir: &Path) -> Result<Mounted> {
    let cannot = || format!("cannot show the transaction at '{}'", dir.display());
    // What is mounted there is seen by others only, from now on. In a user namespace it cannot be
    // taken away, and the view lies over it.
    while larder_fuse::find_mount(dir).at(cannot)?.is_some() {
        if unmount(dir, UnmountFlags::DETACH).is_err() {
            break;
        }
    }
    let options = MountOptions {
        is_private: true,
        transport: transport_of_environment().at(cannot)?,
        ..MountOptions::default()
    };
    let database = open_database(workspace, &format!("txn run at {}", dir.display()))?;
    larder_fuse::mount(database, dir, &options).at(cannot)
}

/// A program, and where it works.
struct View {
    db: DatabaseDir,
    workspace: PathBuf,
    dir: PathBuf,
    /// The program starts in it.
    is_own: bool,
    program: Vec<OsString>,
}

impl View {
    /// The program, before it is started; `at` says where paths of this process are for it.
    fn command(&self, at: impl Fn(&Path) -> PathBuf) -> Command {
        let mut command = Command::new(&self.program[0]);
        command
            .args(&self.program[1..])
            .env(TRANSACTION_VARIABLE, at(&self.workspace));
        if self.is_own {
            command.current_dir(at(&self.dir));
        } else if let Ok(here) = std::env::current_dir()
            && here.starts_with(&self.dir)
        {
            command.current_dir(here); // By its path: the view, not what lies under it.
        }
        command
    }

    /// Starts the program where the database is covered, or says that it is not.
    fn start(&self) -> std::io::Result<Child> {
        let below = |path: &Path| path_below(self.db.path(), path);
        match cover(&self.db, &below(&self.dir)) {
            Ok(()) => self.command(below).spawn(),
            Err(error) => {
                warn(&format!(
                    "'{}' cannot be covered ({error}); what the program does with it by its \
                     path is outside of the transaction",
                    self.db.path().display()
                ));
                self.command(Path::to_owned).spawn()
            }
        }
    }
}

/// The thread that starts the program: it has what this process was started with (`CLI-42`), and
/// the namespace that it enters is the program's, not the server's.
struct Starter {
    ask: Sender<View>,
    thread: JoinHandle<Option<std::io::Result<Child>>>,
}

impl Starter {
    fn new() -> Starter {
        let (ask, asked) = mpsc::channel::<View>();
        // Nobody asks where nothing can be mounted.
        let thread = std::thread::spawn(move || asked.recv().ok().map(|view| view.start()));
        Starter { ask, thread }
    }

    /// Starts the program, and ends the thread.
    fn start(self, view: View) -> Result<std::io::Result<Child>> {
        let panicked =
            || Failure::Other("the thread that starts the program panicked; report it".into());
        self.ask.send(view).map_err(|_| panicked())?;
        let started = self.thread.join().ok().flatten();
        started.ok_or_else(panicked)
    }
}

fn run_command(view: View, starter: Starter, signals: Signals) -> Result<Ended> {
    let name = view.program[0].to_string_lossy().into_owned();
    let child = starter.start(view)?.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            warn(&format!(
                "cannot run '{name}': there is no such program; check the name"
            ));
            Failure::Told(127)
        }
        _ => {
            warn(&format!(
                "cannot run '{name}': {error}; check its permissions"
            ));
            Failure::Told(126)
        }
    })?;
    wait_for(child, signals)
}

/// Waits for CMD, and ends what it has left running. A signal to this process is passed on, and
/// means that nothing is committed (`CLI-25`).
fn wait_for(mut child: Child, mut signals: Signals) -> Result<Ended> {
    let asked = Arc::new(AtomicI32::new(0));
    let handle = signals.handle();
    let listener = {
        let asked = asked.clone();
        // By its descriptor: its number may be somebody else's when it has ended.
        let opened = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let program = opened
            .at(|| "cannot watch the program".into())
            .inspect_err(|_| {
                // Not to be left running in a view that goes.
                if let Err(error) = child.kill().and_then(|()| child.wait()) {
                    warn(&format!("cannot end the program: {error}"));
                }
                if let Err(failure) = end_the_rest() {
                    warn(&failure.to_string());
                }
            })?;
        std::thread::spawn(move || {
            for signal in signals.forever() {
                asked.store(signal, Ordering::SeqCst);
                // By the terminal, CMD has it already. It may be gone by now.
                if signal != SIGINT {
                    let _gone = pidfd_send_signal(&program, Signal::TERM);
                }
            }
        })
    };
    let status = wait_until_asked(&mut child, &asked);
    let rest = end_the_rest();
    handle.close();
    if listener.join().is_err() {
        return Err(Failure::Other(
            "the thread that waits for signals panicked; report it".into(),
        ));
    }
    let status = status?;
    rest?;
    Ok(match asked.load(Ordering::SeqCst) {
        0 => code_of(status),
        signal => Ended::Otherwise(128 + signal as u8), // Below 32.
    })
}

/// Waits for CMD; ends it when it does not end soon after a signal.
fn wait_until_asked(child: &mut Child, asked: &AtomicI32) -> Result<ExitStatus> {
    let mut told = None;
    loop {
        let ended = child.try_wait();
        if let Some(status) = ended.at(|| "cannot wait for the program".into())? {
            return Ok(status);
        }
        if asked.load(Ordering::SeqCst) != 0 {
            let since: Instant = *told.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                child.kill().at(|| "cannot end the program".into())?;
            }
        }
        std::thread::sleep(POLL);
    }
}

fn code_of(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        (Some(code), _) => Ended::Otherwise(code as u8), // 0 to 255, by wait(2)
        (None, signal) => Ended::Otherwise(128 + signal.unwrap_or(0) as u8),
    }
}

/// Ends what CMD has started and left running: it works in a view that goes.
fn end_the_rest() -> Result<()> {
    let began = Instant::now();
    loop {
        // Those that have ended already are collected first.
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let left = children().at(|| "cannot look for what the program has left".into())?;
        if left.is_empty() {
            return Ok(());
        }
        let signal = match began.elapsed() > GRACE {
            true => Signal::KILL,
            false => Signal::TERM,
        };
        if began.elapsed() > 2 * GRACE {
            return Err(Failure::Other(
                "what the program has left running cannot be ended; nothing is committed".into(),
            ));
        }
        for pid in left {
            let _gone = kill_process(pid, signal);
        }
        std::thread::sleep(POLL * 5);
    }
}

/// The processes whose parent is this one, those that have lost theirs among them.
fn children() -> std::io::Result<Vec<Pid>> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name of the program is in parentheses and may have anything in it.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, parent) = (fields.next(), fields.next());
        if parent == Some(own.as_str()) && state != Some("Z") {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

fn unmount_view(mounted: Mounted) -> Result<()> {
    let began = Instant::now();
    while let Err(error) = mounted.unmount() {
        if began.elapsed() > UNMOUNT_WAIT {
            warn(&format!("{error}; detached"));
            mounted.unmounter().detach()?;
            break;
        }
        std::thread::sleep(POLL);
    }
    mounted
        .wait()
        .at(|| "the view did not end well; nothing is committed".into())
}
