//! Locks across two mounts of one database, each served by a process of its own, taken by processes
//! of their own.

#![allow(clippy::unwrap_used)] // Helpers of tests.

use crate::common::{TestMount, database_path, mount_at, shell};
use larder::{Database, DatabaseOptions};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// With this, [`serve`] is the server of another test's second mount.
const SERVED: &str = "LARDER_TEST_LOCKS_SERVED";
/// With this, [`act`] locks the file that it names, as another test says.
const LOCKED: &str = "LARDER_TEST_LOCKED_FILE";
/// Begins a line that an actor answers.
const ANSWER: &str = "answer: ";

/// A test of this binary as a process of its own.
pub(crate) fn process(test: &str, variable: &str, value: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(variable, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Two mounts of one database; the second has a server of its own.
pub(crate) struct Two {
    server: Child,
    second: PathBuf,
    first: TestMount,
}

impl Two {
    pub(crate) fn new() -> Two {
        let first = TestMount::new();
        fs::write(first.path("f"), "").unwrap();
        File::open(first.path("f")).unwrap().sync_all().unwrap();
        let second = first.directory().join("second");
        fs::create_dir(&second).unwrap();
        let server = process("locks::serve", SERVED, first.directory())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while !second.join("f").exists() {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "it does not serve"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Two {
            server,
            second,
            first,
        }
    }

    /// Both mounts.
    pub(crate) fn roots(&self) -> [PathBuf; 2] {
        [self.first.root(), self.second.clone()]
    }

    fn file(&self) -> PathBuf {
        self.first.path("f")
    }

    fn other_file(&self) -> PathBuf {
        self.second.join("f")
    }

    fn lock_files(&self) -> usize {
        let database = database_path(self.first.directory());
        fs::read_dir(database.join("locks")).unwrap().count()
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        // Ends the server's wait for its input.
        drop(self.server.stdin.take());
        self.server.wait().unwrap();
    }
}

#[test]
fn serve() {
    let Some(directory) = std::env::var_os(SERVED).map(PathBuf::from) else {
        return;
    };
    let path = database_path(&directory);
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    let mounted = mount_at(database, &directory.join("second"), |_| {}).unwrap();
    std::io::stdin().lines().for_each(drop);
    mounted.unmounter().detach().unwrap();
    mounted.wait().unwrap();
}

/// A process with one descriptor of a file.
struct Actor {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    fn new(file: &Path) -> Actor {
        let mut process = process("locks::act", LOCKED, file).spawn().unwrap();
        Actor {
            orders: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some(at) = line.find(ANSWER) {
                return line[at + ANSWER.len()..].trim().to_owned();
            }
        }
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It is done, or was killed already.
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }
}

/// Obeys orders: `COMMAND KIND START LEN`, where COMMAND is `set`, `wait`, `get`, `flock`,
/// `flockwait`; or `open`, `close` (of a second descriptor), `time COUNT`.
#[test]
fn act() {
    let Some(path) = std::env::var_os(LOCKED) else {
        return;
    };
    // Without SA_RESTART: a signal ends a wait.
    // SAFETY: the handler does nothing; the structure is plain data, for which zero is valid.
    unsafe {
        extern "C" fn nothing(_: i32) {}
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let open = || File::options().read(true).write(true).open(&path).unwrap();
    let file = open();
    let mut second = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
        let answer = match words[0] {
            "open" => {
                second = Some(open());
                "ok".into()
            }
            "close" => {
                drop(second.take());
                "ok".into()
            }
            // A signal to the process might go to another thread. SAFETY: it has no preconditions.
            "thread" => unsafe { libc::gettid() }.to_string(),
            "time" => {
                let count = number(1) as u32;
                let began = Instant::now();
                for _ in 0..count {
                    record(&file, libc::F_SETLK, "w", 0, 1);
                    record(&file, libc::F_SETLK, "u", 0, 1);
                }
                format!("{}", began.elapsed().as_nanos() / u128::from(count))
            }
            "flock" => whole(&file, words[1], libc::LOCK_NB),
            "flockwait" => whole(&file, words[1], 0),
            command => {
                let command = match command {
                    "set" => libc::F_SETLK,
                    "wait" => libc::F_SETLKW,
                    "get" => libc::F_GETLK,
                    other => panic!("{other}"),
                };
                record(&file, command, words[1], number(2), number(3))
            }
        };
        writeln!(std::io::stdout(), "{ANSWER}{answer}").unwrap();
    }
}

fn outcome(returned: i32) -> String {
    match returned {
        0 => "ok".into(),
        _ => match std::io::Error::last_os_error().raw_os_error().unwrap() {
            libc::EAGAIN | libc::EACCES => "taken".into(),
            libc::EINTR => "interrupted".into(),
            libc::EDEADLK => "deadlock".into(),
            other => format!("errno {other}"),
        },
    }
}

pub(crate) fn record(file: &File, command: i32, kind: &str, start: i64, len: i64) -> String {
    let l_type = match kind {
        "r" => libc::F_RDLCK,
        "w" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    // SAFETY: `flock` is plain data, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (l_type as _, start, len);
    // SAFETY: the descriptor is open, and the pointer is to a `flock` that outlives the call.
    let returned = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) };
    if command != libc::F_GETLK || returned != 0 {
        return outcome(returned);
    }
    match i32::from(lock.l_type) {
        libc::F_UNLCK => "free".into(),
        kind => {
            let kind = if kind == libc::F_WRLCK { "w" } else { "r" };
            format!("{kind} {} {} by {}", lock.l_start, lock.l_len, lock.l_pid)
        }
    }
}

fn whole(file: &File, kind: &str, flags: i32) -> String {
    let operation = match kind {
        "r" => libc::LOCK_SH,
        "w" => libc::LOCK_EX,
        _ => libc::LOCK_UN,
    };
    // SAFETY: the descriptor is open.
    outcome(unsafe { libc::flock(file.as_raw_fd(), operation | flags) })
}

#[test]
fn bytes_are_locked_on_both_mounts() {
    let two = Two::new();
    let (mut one, mut other) = (Actor::new(&two.file()), Actor::new(&two.other_file()));
    let mut third = Actor::new(&two.file());
    assert_eq!(one.ask("set w 10 10"), "ok");
    for actor in [&mut other, &mut third] {
        assert_eq!(actor.ask("set r 19 5"), "taken", "LOCK-1");
        assert_eq!(actor.ask("set r 20 5"), "ok");
        assert_eq!(actor.ask("get w 0 0"), format!("w 10 10 by {}", one.pid()));
    }
    assert_eq!(third.ask("set u 0 0"), "ok");
    assert_eq!(
        one.ask("get w 20 0"),
        format!("r 20 5 by {}", other.pid()),
        "foreign"
    );
    // Downgrade, sharing, upgrade.
    assert_eq!(one.ask("set r 10 10"), "ok");
    assert_eq!(other.ask("set r 0 0"), "ok");
    assert_eq!(one.ask("set w 10 10"), "taken");
    assert_eq!(other.ask("set u 0 0"), "ok");
    assert_eq!(one.ask("set w 10 10"), "ok");
    // Any descriptor that the process closes drops its locks.
    assert_eq!(other.ask("set w 15 1"), "taken");
    assert_eq!(
        (one.ask("open").as_str(), one.ask("close").as_str()),
        ("ok", "ok")
    );
    assert_eq!(other.ask("set w 15 1"), "ok", "LOCK-4");
    // And so does kill -9.
    other.kill();
    assert_eq!(third.ask("set w 0 0"), "ok", "LOCK-4");
    drop((one, third));
    let began = Instant::now();
    while two.lock_files() > 0 {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "LOCK-2: a file is left"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn flock_holds_on_both_mounts() {
    let two = Two::new();
    let (mut one, mut other) = (Actor::new(&two.file()), Actor::new(&two.other_file()));
    assert_eq!(one.ask("flock r"), "ok");
    assert_eq!(other.ask("flock r"), "ok");
    assert_eq!(other.ask("set w 0 0"), "ok", "the other kind of lock");
    assert_eq!(other.ask("flock w"), "taken");
    assert_eq!(
        one.ask("flock w"),
        "ok",
        "the failed upgrade has given up the other"
    );
    assert_eq!(other.ask("flock r"), "taken");
    // Shells. The kernel tells the end by a close a moment after it, which waits do not mind.
    one.kill();
    let script = r#"for round in 1 2 3 4 5 6 7 8 9 10; do
        flock -w 5 "$1" true; flock -w 5 -s "$1" flock -w 5 -s "$2" true
        flock -w 5 "$1" sh -c '! flock -n "$0" true' "$2"
    done"#;
    shell(script, &[&two.file(), &two.other_file()]);
}

#[test]
fn waits_end_by_unlock_by_death_and_by_a_signal() {
    let two = Two::new();
    for command in ["wait w 5 5", "flockwait w"] {
        let lock = command
            .replacen("wait", "", 1)
            .trim()
            .replacen("w 5", "set w 5", 1);
        let unlock = lock.replacen(" w", " u", 1);
        for file in [two.file(), two.other_file()] {
            let (mut holder, mut waiter) = (Actor::new(&two.file()), Actor::new(&file));
            let thread: i32 = holder.ask("thread").parse().unwrap();
            assert_eq!(holder.ask(&lock), "ok");
            waiter.order(command);
            std::thread::sleep(Duration::from_millis(50));
            let began = Instant::now();
            assert_eq!(holder.ask(&unlock), "ok");
            assert_eq!(waiter.answer(), "ok", "LOCK-5");
            assert!(began.elapsed() < Duration::from_secs(30), "LOCK-5");
            // The other way round, ended by a signal, and then by death.
            holder.order(command);
            std::thread::sleep(Duration::from_millis(50));
            // SAFETY: the process is ours and not yet waited for.
            unsafe { libc::syscall(libc::SYS_tgkill, holder.pid(), thread, libc::SIGUSR1) };
            assert_eq!(holder.answer(), "interrupted", "LOCK-5");
            holder.order(command);
            std::thread::sleep(Duration::from_millis(50));
            waiter.kill();
            assert_eq!(holder.answer(), "ok", "LOCK-4");
        }
    }
    // Killed while it waits: nothing of it stays.
    let (mut holder, mut waiter) = (Actor::new(&two.file()), Actor::new(&two.file()));
    assert_eq!(holder.ask("set w 0 0"), "ok");
    waiter.order("wait w 0 0");
    std::thread::sleep(Duration::from_millis(50));
    waiter.kill();
    assert_eq!(holder.ask("set u 0 0"), "ok");
    assert_eq!(
        Actor::new(&two.other_file()).ask("set w 0 0"),
        "ok",
        "LOCK-5"
    );
}

#[test]
fn processes_on_one_mount_are_told_of_a_deadlock() {
    let two = Two::new();
    let (mut one, mut other) = (Actor::new(&two.file()), Actor::new(&two.file()));
    assert_eq!(one.ask("set w 1 1"), "ok");
    assert_eq!(other.ask("set w 2 1"), "ok");
    one.order("wait w 2 1");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(other.ask("wait w 1 1"), "deadlock", "LOCK-5");
    assert_eq!(other.ask("set u 0 0"), "ok");
    assert_eq!(one.answer(), "ok");
}

#[test]
fn many_waiters_leave_workers_for_others() {
    let two = Two::new();
    let mut holder = Actor::new(&two.file());
    assert_eq!(holder.ask("set w 0 0"), "ok");
    let mut waiters: Vec<Actor> = (0..24).map(|_| Actor::new(&two.file())).collect();
    for waiter in &mut waiters {
        waiter.order("wait w 0 0");
    }
    std::thread::sleep(Duration::from_millis(100));
    fs::write(two.first.path("g"), "served").unwrap();
    assert_eq!(fs::read(two.first.path("g")).unwrap(), b"served");
    holder.kill();
    for mut waiter in waiters {
        // Each gets it when the one before is killed; in what order they come is not said.
        waiter.order("set u 0 0");
    }
}

/// With one session a lock and an unlock commit nothing (`company` commits at each unlock).
#[test]
fn a_lock_of_one_session_costs_no_commit() {
    let mount = TestMount::new();
    fs::write(mount.path("f"), "").unwrap();
    let file = File::options().write(true).open(mount.path("f")).unwrap();
    file.sync_all().unwrap();
    let commits = || -> u64 {
        let ask =
            "sqlite3 \"$1/catalog.db\" \"SELECT value FROM larder_meta WHERE key = 'commit_seq'\"";
        let database = database_path(mount.directory());
        shell(ask, &[&database]).trim().parse().unwrap()
    };
    let before = commits();
    for round in 0..1000_u64 {
        assert_eq!(record(&file, libc::F_SETLK, "w", 0, 1), "ok");
        file.write_all_at(&round.to_le_bytes(), 0).unwrap();
        assert_eq!(record(&file, libc::F_SETLK, "u", 0, 1), "ok");
    }
    let made = commits() - before;
    // Those of the background, which are fewer than one for two locks however slow the machine is.
    assert!(made < 500, "{made} commits in 1,000 locks");
}

/// What a lock and its unlock cost.
#[test]
#[ignore = "a measurement: cargo test -p larder-fuse --test mount cost_of -- --ignored --nocapture"]
fn cost_of_a_lock() {
    let two = Two::new();
    let plain = two.first.directory().join("plain");
    fs::write(&plain, "").unwrap();
    let mut lines = Vec::new();
    let mut time = |what: &str, file: &Path| {
        let mut actor = Actor::new(file);
        let times: Vec<u64> = (0..5)
            .map(|_| actor.ask("time 5000").parse().unwrap())
            .collect();
        lines.push(format!(
            "{what}: lock and unlock {} ns",
            times.iter().min().unwrap()
        ));
    };
    time("host", &plain);
    time("shared", &two.file());
    let mut local = TestMount::new();
    local.end();
    local.mount(|options| options.shares_locks = false);
    fs::write(local.path("f"), "").unwrap();
    time("local", &local.path("f"));
    // What a close costs that is told.
    for (what, path) in [("shared", two.file()), ("local", local.path("f"))] {
        for (mode, is_write) in [("read only", false), ("read and write", true)] {
            let best = (0..5).map(|_| {
                let began = Instant::now();
                for _ in 0..5000 {
                    drop(
                        File::options()
                            .read(true)
                            .write(is_write)
                            .open(&path)
                            .unwrap(),
                    );
                }
                began.elapsed().as_nanos() / 5000
            });
            lines.push(format!(
                "{what}: open {mode} and close {} ns",
                best.min().unwrap()
            ));
        }
    }
    println!("{}", lines.join("\n"));
    local.end();
}
