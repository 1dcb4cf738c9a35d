//! Servers that are killed or stopped while others wait, and unmounting what others hold. Needs
//! root.

use crate::mount::{Foreground, PATIENCE, serve};
use crate::support::{Killed, Place};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is promised to be usable again after a kill.
const USABLE: Duration = Duration::from_secs(10);

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of the thread of that name.
fn thread_state(pid: u32, name: &str) -> Option<char> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut stats = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let stat = stats.find(|stat| stat.contains(&format!("({name})")))?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Who has a mount.
#[derive(Clone, Copy)]
enum By {
    Root,
    /// An ordinary user, by `fusermount3`.
    Nobody,
}

impl By {
    /// The command as this user's.
    fn command(self, command: Command) -> Command {
        match self {
            By::Root => command,
            By::Nobody => {
                let mut theirs = Command::new("setpriv");
                theirs
                    .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
                    .arg(command.get_program())
                    .args(command.get_args())
                    .envs(
                        command
                            .get_envs()
                            .filter_map(|(key, value)| Some((key, value?))),
                    )
                    .stdin(Stdio::null());
                if let Some(directory) = command.get_current_dir() {
                    theirs.current_dir(directory);
                }
                theirs
            }
        }
    }

    /// A script of theirs, by whose end they are inside of `directory`.
    fn script(self, directory: &Path, script: &str) -> Command {
        let mut command = Command::new("sh");
        let script = format!("cd \"$1\" && {script}");
        command.args(["-euc", &script, "sh"]).arg(directory);
        self.command(command)
    }

    /// A program that removes a name.
    fn unlink(self, directory: &Path, name: &str) -> Killed {
        Killed::spawn(
            self.script(directory, &format!("exec unlink {name}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )
    }
}

/// A process that has the writer lock, as a session does.
fn take_writer_lock(place: &Place) -> Killed {
    use std::io::Read;
    let mut holder = Killed::spawn(
        Command::new("flock")
            .args(["a.larder/turn.lock", "sh", "-c", "echo; read _"])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut line = [0];
    holder
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    holder
}

/// The process that frees who waits for the server `pid` when that is killed.
fn find_attendant(pid: u32) -> Option<Pid> {
    let begin = format!("larder-attend\0{pid}\0");
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.find(|process| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        command.starts_with(begin.as_bytes())
    })?;
    Pid::from_raw(found.file_name().to_str()?.parse().ok()?)
}

/// A mount whose thread that tells the kernel waits there for programs that wait for the mount.
struct Stuck {
    mount: Foreground,
    holder: Killed,
    waiting: [Killed; 2],
}

impl Stuck {
    fn new(place: &Place) -> Stuck {
        Stuck::of(By::Root, place)
    }

    fn of(by: By, place: &Place) -> Stuck {
        let command = place.command(&["mount", "--create", "a.larder", "mnt"]);
        let mount = Foreground::run(&mut by.command(command), &place.path("mnt"));
        let pid = mount.child.id();
        let inside = place.path("mnt/d");
        let script = "mkdir d; cd d; for name in a b f; do printf x > $name; done; sync .";
        let made = by.script(&place.path("mnt"), script).status().unwrap();
        assert!(made.success());

        // One program has the directory's lock in the kernel, while its request waits for the
        // writer lock; one waits for the directory, and so does, behind it, the thread that tells
        // the kernel of what the SQL client changed.
        let holder = take_writer_lock(place);
        let waiting = [by.unlink(&inside, "a"), by.unlink(&inside, "b")];
        wait_until("both wait", || {
            let waits = |child: &Killed| thread_state(child.id(), "unlink") == Some('D');
            waiting.iter().any(waits)
        });
        let altered = Command::new("sqlite3")
            .args(["-cmd", ".timeout 5000"])
            .arg(place.path("a.larder/catalog.db"))
            .arg("ALTER TABLE main ADD COLUMN note")
            .status();
        assert!(altered.unwrap().success());
        wait_until("the notification waits", || {
            thread_state(pid, "larder-notify") == Some('D')
        });
        Stuck {
            mount,
            holder,
            waiting,
        }
    }

    /// All that wait have got errors, and everything is usable.
    fn end(mut self, place: &Place) {
        for waits in &mut self.waiting {
            assert!(!waits.wait().unwrap().success(), "it gets an error");
        }
        assert_eq!(self.mount.end().0, None, "killed");
        place.ok(&["umount", "mnt"]);
        place.assert_clean("a.larder");
        place.assert_closed("a.larder");
    }
}

#[test]
fn a_killed_server_lets_go_of_its_locks_and_of_who_waits_for_it() {
    let place = Place::new();
    let mut stuck = Stuck::new(&place);
    let pid = stuck.mount.child.id();
    // Whoever looks next does what it would do.
    kill_process(find_attendant(pid).unwrap(), Signal::KILL).unwrap();

    let killed = Instant::now();
    stuck.mount.child.kill().unwrap();
    // Nobody has looked yet: this is the kernel's doing alone.
    let lock = fs::read_dir(place.path("a.larder/sessions"))
        .unwrap()
        .next();
    let lock = fs::File::open(lock.unwrap().unwrap().path()).unwrap();
    wait_until("FUSE-12: the session's lock", || lock.try_lock().is_ok());
    lock.unlock().unwrap();
    assert_eq!(
        thread_state(pid, "larder-notify"),
        Some('D'),
        "it waits still"
    );
    stuck.holder.kill().unwrap();
    stuck.holder.wait().unwrap();

    let listed = place.run(&["ls", "a.larder:/d"]);
    assert_eq!(
        (listed.code, listed.stdout.as_slice()),
        (Some(0), &b"a\nb\nf\n"[..])
    );
    let told = format!("(process {pid}) was killed, but could not end");
    assert!(listed.stderr.contains(&told), "{}", listed.stderr);
    stuck.end(&place);
    assert!(killed.elapsed() < USABLE, "{:?}", killed.elapsed());
}

#[test]
fn programs_of_a_killed_mount_end_though_nobody_looks() {
    assert_ends_unseen(By::Root, &Place::new());
}

/// Whether this is in a namespace where ordinary users may mount, and see connections, as any with
/// systemd has them; if not, runs the test again in one.
pub fn is_for_everybody(test: &str) -> bool {
    const INSIDE: &str = "LARDER_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let place = Place::new();
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    assert!(has_helper, "this test needs fusermount3 (package fuse3)");
    // He may use the command wherever it was built, and the device whatever the place allows.
    let (own, command) = (place.path(""), place.path("larder"));
    fs::copy(place.command::<&str>(&[]).get_program(), &command).unwrap();
    for shared in [&own, &command] {
        fs::set_permissions(shared, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = "mkdir dev; mount -t tmpfs -o dev none dev; mknod dev/fuse c 10 229; \
                  chmod 666 dev/fuse; mount --bind dev/fuse /dev/fuse; \
                  mountpoint -q /sys/fs/fuse/connections || \
                  mount -t fusectl none /sys/fs/fuse/connections; \
                  exec \"$1\" --exact \"$2\"";
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-euc"])
        .args([script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .env("LARDER_TEST_COMMAND", &command)
        .current_dir(&own)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("1 passed"), "{said}");
    false
}

/// The mount of somebody who is not root: he may end its connection where the system shows them.
#[test]
fn programs_of_an_ordinary_users_killed_mount_end_though_nobody_looks() {
    let name = "kills::programs_of_an_ordinary_users_killed_mount_end_though_nobody_looks";
    if is_for_everybody(name) {
        let place = Place::new();
        let own = place.path("");
        std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert_ends_unseen(By::Nobody, &place);
    }
}

fn assert_ends_unseen(by: By, place: &Place) {
    let mut stuck = Stuck::of(by, place);
    let pid = stuck.mount.child.id();
    wait_until("CLI-43: an attendant", || find_attendant(pid).is_some());
    let killed = Instant::now();
    stuck.mount.child.kill().unwrap();
    for waits in &mut stuck.waiting {
        let ended = loop {
            match waits.try_wait().unwrap() {
                Some(ended) => break ended,
                None => assert!(killed.elapsed() < PATIENCE, "CLI-43: it waits"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(!ended.success(), "CLI-43: it gets an error");
    }
    wait_until("CLI-43: it ends", || find_attendant(pid).is_none());
    let log = fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    let told = format!("(process {pid}) was killed, but could not end");
    assert_eq!(log.matches(&told).count(), 1, "CLI-43: {log}");
    stuck.holder.kill().unwrap();
    stuck.holder.wait().unwrap();
    stuck.end(place);
}

#[test]
fn an_attendant_has_nothing_open_and_ends_with_its_server() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let pid = mount.child.id();
    wait_until("CLI-43: an attendant", || find_attendant(pid).is_some());
    let attendant = find_attendant(pid).expect("CLI-43");
    let of = format!("/proc/{}", attendant.as_raw_nonzero());
    // It has begun to listen when it has a session of its own.
    let session = |process: &str| {
        let stat = fs::read_to_string(format!("{process}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        fields.split_ascii_whitespace().nth(3).unwrap().to_owned()
    };
    wait_until("CLI-43: a session of its own", || {
        session(&of) != session(&format!("/proc/{pid}"))
    });
    let listens = || {
        let status = fs::read_to_string(format!("{of}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("SigCgt:"));
        let signals = line.unwrap().trim_start_matches("SigCgt:").trim();
        u64::from_str_radix(signals, 16).unwrap() & (1 << (Signal::HUP.as_raw() - 1)) != 0
    };
    wait_until("CLI-43: it listens", listens);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(attendant, signal).unwrap();
    }
    assert_eq!(fs::read_link(format!("{of}/cwd")).unwrap(), Path::new("/"));
    for open in fs::read_dir(format!("{of}/fd")).unwrap().flatten() {
        let to = fs::read_link(open.path()).unwrap();
        let is_own = to.starts_with("/dev/null") || to.to_string_lossy().starts_with("socket:");
        assert!(is_own, "CLI-43: {}", to.display());
    }
    assert_eq!(find_attendant(pid), Some(attendant), "CLI-43: it stays");
    place.ok(&["umount", "mnt"]);
    assert_eq!(find_attendant(pid), None, "CLI-43");
    assert_eq!(mount.end(), (Some(0), String::new()));

    // A server that ends by a kill, and whom nobody waits for.
    let mut mount = serve(&place, &[]);
    let pid = mount.child.id();
    wait_until("CLI-43: an attendant", || find_attendant(pid).is_some());
    mount.child.kill().unwrap();
    assert_eq!(mount.end().0, None);
    wait_until("CLI-43: it ends", || find_attendant(pid).is_none());
    place.ok(&["umount", "mnt"]);
}

#[test]
fn a_stopped_mount_is_named_and_never_robbed() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let pid = mount.child.id();
    let signal = |signal| kill_process(Pid::from_child(&mount.child), signal).unwrap();
    // It has the writer lock from a change to its commit: it is stopped at such a moment.
    let mut refused = None;
    for round in 0..100 {
        fs::write(place.path(&format!("mnt/f{round}")), "x").unwrap();
        signal(Signal::STOP);
        let done = place.run(&["ls", "a.larder:/", "--timeout", "3"]);
        if done.code != Some(0) {
            refused = Some(done);
            break;
        }
        signal(Signal::CONT);
    }
    let refused = refused.expect("a moment with the writer lock");
    assert_eq!(refused.code, Some(124), "CLI-1: {}", refused.stderr);
    let mountpoint = place.path("mnt").canonicalize().unwrap();
    let named = format!("process {pid} ('");
    let session = format!("'mount {}' since 20", mountpoint.display());
    let lines: Vec<&str> = refused.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", refused.stderr);
    for (line, about) in lines.iter().zip(["waiting for 2 s", "waited for 3 s"]) {
        let words = [about, &named, "larder mount", &session, "which is stopped"];
        let is_said = |word: &&str| line.contains(*word);
        assert!(words.iter().all(is_said), "SESSION-6: {line}");
    }
    if std::env::var("LARDER_TRANSPORT").is_ok_and(|transport| transport == "io_uring") {
        println!("not run over io_uring: who asks a stopped server ends when that goes on");
    } else {
        let umount = place.run(&["umount", "mnt", "--timeout", "1"]);
        assert_eq!(umount.code, Some(124), "{}", umount.stderr);
        assert!(umount.stderr.contains(&named), "{}", umount.stderr);
    }
    signal(Signal::CONT);
    wait_until("it goes on", || {
        place.run(&["ls", "a.larder:/"]).code == Some(0)
    });
    // The first one may still be under way.
    place.run(&["umount", "mnt"]);
    assert_eq!(mount.end(), (Some(0), String::new()));
    place.assert_clean("a.larder");
}

#[test]
fn an_unmount_says_what_keeps_the_filesystem() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::create_dir(place.path("bound")).unwrap();
    let bind = |script: &str| {
        let done = Command::new("sh")
            .args(["-ec", script])
            .current_dir(place.path(""))
            .status();
        assert!(done.unwrap().success(), "{script}");
    };
    bind("mount --bind mnt bound");
    fs::write(place.path("mnt/f"), "kept").unwrap();
    let began = Instant::now();
    let done = place.run(&["umount", "mnt"]);
    assert_eq!(done.code, Some(0), "CLI-35: {}", done.stderr);
    let bound = place.path("bound").canonicalize().unwrap();
    let told = format!("its filesystem is mounted at '{}' too", bound.display());
    assert!(done.stderr.contains(&told), "CLI-35: {}", done.stderr);
    assert!(began.elapsed() < USABLE, "CLI-35: {:?}", began.elapsed());
    assert_eq!(fs::read(place.path("bound/f")).unwrap(), b"kept");
    assert!(mount.child.try_wait().unwrap().is_none(), "it is served on");
    place.run(&["umount", "bound"]);
    assert_eq!(mount.end(), (Some(0), String::new()));

    let mut mount = serve(&place, &[]);
    let script = "echo; read _";
    let mut copy = Killed::spawn(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    std::io::Read::read_exact(copy.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let done = place.run(&["umount", "mnt"]);
    assert_eq!(done.code, Some(0), "CLI-35: {}", done.stderr);
    let told = format!("in the mount namespace of sh ({})", copy.id());
    assert!(done.stderr.contains(&told), "CLI-35: {}", done.stderr);
    drop(copy.stdin.take());
    copy.wait().unwrap();
    assert_eq!(mount.end(), (Some(0), String::new()));
    place.assert_clean("a.larder");
}

#[test]
fn a_database_is_unmounted_as_a_directory_is() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::create_dir(place.path("second")).unwrap();
    place.ok(&["mount", "--daemon", "a.larder", "second"]);
    let held = fs::File::create(place.path("second/open")).unwrap();
    place.fails(1, &["umount", "a.larder"], "in use by");
    assert_eq!(
        mount.end(),
        (Some(0), String::new()),
        "the other one has ended"
    );
    drop(held);
    let ended = place.json(&["umount", "a.larder"]);
    let mountpoint = place.path("second").canonicalize().unwrap();
    assert_eq!(ended.as_array().unwrap().len(), 1);
    assert_eq!(ended[0]["mountpoint"], mountpoint.to_str().unwrap());
    place.fails(1, &["umount", "a.larder"], "nothing is mounted");
    place.assert_closed("a.larder");
}

#[test]
fn a_stopped_mount_delays_a_new_one_for_two_seconds() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let signal = |signal| kill_process(Pid::from_child(&mount.child), signal).unwrap();
    fs::write(place.path("mnt/f"), "old").unwrap();
    fs::File::open(place.path("mnt/f"))
        .unwrap()
        .sync_all()
        .unwrap();
    // It has given the writer lock back by then.
    std::thread::sleep(Duration::from_secs(1));
    signal(Signal::STOP);
    fs::create_dir(place.path("second")).unwrap();
    let began = Instant::now();
    let done = place.run(&["mount", "--daemon", "a.larder", "second"]);
    let took = began.elapsed();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(took > Duration::from_millis(1900), "COMPANY-4: {took:?}");
    assert!(took < Duration::from_secs(8), "COMPANY-4: {took:?}");
    let log = fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    let named = format!("(process {}) has not answered for 2 s", mount.child.id());
    assert!(log.contains(&named), "COMPANY-4: {log}");
    fs::write(place.path("next"), "new").unwrap();
    let done = place.run(&["cp", "next", "a.larder:/f"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    signal(Signal::CONT);
    // What reaches its server is answered as of now.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(place.path("mnt/f"))
        .unwrap();
    std::io::Write::write_all(&mut file, b"mine").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(
        fs::read_to_string(place.path("second/f")).unwrap(),
        "newmine",
        "COMPANY-5"
    );
    for name in ["second", "mnt"] {
        wait_until("unmounted", || place.run(&["umount", name]).code == Some(0));
    }
    assert_eq!(mount.end().0, Some(0));
    place.assert_clean("a.larder");
}

/// Programs that keep a lock of a database, and the verbs that wait for it.
const KEEPERS: [(&str, &str, &str); 6] = [
    ("a transaction", "db.execute('BEGIN IMMEDIATE')", "cp"),
    ("a transaction", "db.execute('BEGIN IMMEDIATE')", "ls"),
    // Who may only read the file can do this, too.
    (
        "a lock for reading where SQLite has that for writing",
        "f = open(shm, 'rb'); fcntl.lockf(f, fcntl.LOCK_SH, 1, 120)",
        "cp",
    ),
    (
        "the door to the sessions",
        "f = open('a.larder/sessions.lock'); fcntl.flock(f, fcntl.LOCK_EX)",
        "cp",
    ),
    (
        "the queue of the writer lock",
        "f = open('a.larder/turn.queue'); fcntl.flock(f, fcntl.LOCK_EX)",
        "cp",
    ),
    (
        "the writer lock",
        "f = open('a.larder/turn.lock'); fcntl.flock(f, fcntl.LOCK_EX)",
        "cp",
    ),
];

#[test]
fn who_keeps_a_lock_of_a_database_is_named_and_waited_for_as_long_as_was_told() {
    std::thread::scope(|scope| {
        for keeper in KEEPERS {
            scope.spawn(move || require_named(keeper));
        }
    });
}

fn require_named((what, keeps, verb): (&str, &str, &str)) {
    use std::io::Read;
    let place = Place::new();
    place.ok(&["init", "a.larder"]);
    fs::write(place.path("f"), "x").unwrap();
    place.ok(&["cp", "f", "a.larder:/f"]);
    let script = format!(
        "import fcntl, sqlite3, sys; shm = 'a.larder/catalog.db-shm'\n\
         db = sqlite3.connect('a.larder/catalog.db', isolation_level=None)\n\
         db.execute('SELECT * FROM larder_meta').fetchall()\n{keeps}\n\
         print(flush=True); sys.stdin.read()"
    );
    let mut keeper = Killed::spawn(
        Command::new("python3")
            .args(["-c", &script])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    (keeper.stdout.as_mut().unwrap())
        .read_exact(&mut [0])
        .unwrap();
    let arguments: &[&str] = match verb {
        "ls" => &["ls", "a.larder:/", "--timeout", "6"],
        _ => &["cp", "f", "a.larder:/g", "--timeout", "6"],
    };
    let began = Instant::now();
    let done = place.run(arguments);
    let told = format!("{what}, {verb}: {}", done.stderr);
    assert_eq!(done.code, Some(124), "WAIT-1: {told}");
    assert!(began.elapsed() < PATIENCE, "WAIT-1: {told}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    let named = format!("held by process {} ('", keeper.id());
    assert_eq!(lines.len(), 2, "WAIT-1: {told}");
    for (line, about) in lines.iter().zip(["waiting for ", "waited for "]) {
        let words = [about, &named, " -c ", ", which began 20"];
        assert!(
            words.iter().all(|word| line.contains(word)),
            "WAIT-1: {told}"
        );
    }
    drop(keeper.stdin.take());
    keeper.wait().unwrap();
    place.ok(arguments);
    place.assert_clean("a.larder");
}

/// Takes the locks for readers in SQLite's shared memory, and says so.
const KEEP_READERS_OUT: &str = "import fcntl, os, sys
fd = os.open('a.larder/catalog.db-shm', os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 5, 123)
print(flush=True)
sys.stdin.readline()";

#[test]
fn who_keeps_readers_out_is_waited_for_and_named_and_stops_no_mount() {
    use std::io::Read;
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let mnt = place.path("mnt");
    fs::write(mnt.join("f"), "x").unwrap();
    fs::File::open(mnt.join("f")).unwrap().sync_all().unwrap();
    let mut holder = Killed::spawn(
        Command::new("python3")
            .args(["-c", KEEP_READERS_OUT])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let out = holder.stdout.as_mut().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let began = Instant::now();
    let done = place.run(&["--timeout", "3s", "ls", "a.larder:/"]);
    let (took, held_by) = (began.elapsed(), format!("held by process {}", holder.id()));
    assert_eq!(done.code, Some(124), "WAIT-1: {}", done.stderr);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", done.stderr);
    for (line, about) in lines.iter().zip(["waiting for 2 s", "waited for 3 s"]) {
        assert!(
            line.contains(about) && line.contains(&held_by),
            "WAIT-1: {line}"
        );
    }
    assert!(
        (Duration::from_secs(2)..Duration::from_secs(6)).contains(&took),
        "WAIT-1: {took:?}"
    );
    // Nor does a program on the mount get an error, when it ends before long.
    let writes = std::thread::spawn({
        let path = mnt.join("g");
        move || fs::write(&path, "y").and_then(|()| fs::File::open(path)?.sync_all())
    });
    while began.elapsed() < Duration::from_secs(12) {
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(holder);
    writes.join().unwrap().unwrap();
    // On a busy machine the two wait for the mount as well, and say so.
    let listed = place.run(&["ls", "a.larder:/"]);
    assert_eq!((listed.code, &listed.stdout[..]), (Some(0), &b"f\ng\n"[..]));
    assert_eq!(place.run(&["umount", "mnt"]).code, Some(0));
    let (code, told) = mount.end();
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.lines().all(|line| line.contains(&held_by)),
        "WAIT-1: {told}"
    );
    place.assert_clean("a.larder");
}
