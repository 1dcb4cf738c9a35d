//! Two mounts of one database: locks, stale names, working directories, programs.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::shell;
use crate::locks::{Two, process, record};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// How a file is locked.
#[derive(Debug, Clone, Copy)]
enum By {
    OpenFile,
    Whole,
}

impl By {
    fn set(self, file: &File, kind: i32) {
        let fd = file.as_raw_fd();
        // SAFETY: `flock` is plain data, for which zero is valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_len) = (kind as _, 8);
        let whole = if kind == libc::F_UNLCK {
            libc::LOCK_UN
        } else {
            libc::LOCK_EX
        };
        // SAFETY: the descriptor is open, and the pointer is to a `flock` that outlives the call.
        let set = || unsafe {
            match self {
                By::OpenFile => libc::fcntl(fd, libc::F_OFD_SETLKW, &mut lock),
                By::Whole => libc::flock(fd, whole),
            }
        };
        let mut set = set;
        assert_eq!(set(), 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn what_is_counted_under_a_lock_on_two_mounts_is_all_there() {
    const EACH: u64 = 60;
    let two = Two::new();
    for by in [By::OpenFile, By::Whole] {
        let name = format!("{by:?}");
        let files = two.roots().map(|root| root.join(&name));
        fs::write(&files[0], "0").unwrap();
        sync(&files[0]);
        std::thread::scope(|scope| {
            for path in [&files[0], &files[1], &files[0], &files[1]] {
                scope.spawn(move || {
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .open(path)
                        .unwrap();
                    for _ in 0..EACH {
                        by.set(&file, libc::F_WRLCK);
                        let mut bytes = [0; 20];
                        let len = file.read_at(&mut bytes, 0).unwrap();
                        let count: u64 =
                            std::str::from_utf8(&bytes[..len]).unwrap().parse().unwrap();
                        file.write_all_at((count + 1).to_string().as_bytes(), 0)
                            .unwrap();
                        by.set(&file, libc::F_UNLCK);
                    }
                });
            }
        });
        for path in &files {
            let expected = (4 * EACH).to_string();
            assert_eq!(
                fs::read_to_string(path).unwrap(),
                expected,
                "COMPANY-6 {by:?}"
            );
        }
    }
}

/// With this, [`count`] counts in the file that it names.
const COUNTED: &str = "LARDER_TEST_COUNTED_FILE";
const COUNTED_EACH: u64 = 60;

/// A process of the next test.
#[test]
fn count() {
    let Some(path) = std::env::var_os(COUNTED) else {
        return;
    };
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap();
    // All begin when the others are there.
    io::stdin().lines().for_each(drop);
    for _ in 0..COUNTED_EACH {
        assert_eq!(record(&file, libc::F_SETLKW, "w", 0, 8), "ok");
        let mut bytes = [0; 20];
        let len = file.read_at(&mut bytes, 0).unwrap();
        let count: u64 = std::str::from_utf8(&bytes[..len]).unwrap().parse().unwrap();
        file.write_all_at((count + 1).to_string().as_bytes(), 0)
            .unwrap();
        assert_eq!(record(&file, libc::F_SETLK, "u", 0, 8), "ok");
    }
}

#[test]
fn what_processes_count_under_posix_locks_on_two_mounts_is_all_there() {
    let two = Two::new();
    let files = two.roots().map(|root| root.join("counter"));
    fs::write(&files[0], "0").unwrap();
    sync(&files[0]);
    let mut processes = [&files[0], &files[1], &files[0], &files[1]]
        .map(|file| process("company::count", COUNTED, file).spawn().unwrap());
    for process in &mut processes {
        drop(process.stdin.take());
    }
    for process in processes {
        let done = process.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    for path in &files {
        let found = fs::read_to_string(path).unwrap();
        assert_eq!(found, (4 * COUNTED_EACH).to_string(), "COMPANY-6");
    }
}

/// A file that somebody writes or renames over all the time is opened on another mount.
#[test]
fn a_busy_file_is_opened_on_another_mount_without_an_error() {
    const TIME: Duration = Duration::from_secs(2);
    let two = Two::new();
    let [one, other] = two.roots();
    fs::write(one.join("f"), "0").unwrap();
    sync(&one);
    type Change<'c> = &'c (dyn Fn(&Path) + Sync);
    let changes: [Change<'_>; 2] = [
        &|root| {
            let file = OpenOptions::new().append(true).open(root.join("f"));
            let mut file = file.unwrap();
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
        },
        &|root| {
            fs::write(root.join("new"), "x").unwrap();
            fs::rename(root.join("new"), root.join("f")).unwrap();
        },
    ];
    for (index, change) in changes.iter().enumerate() {
        let end = Instant::now() + TIME;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < end {
                    change(&one);
                }
            });
            for thread in 0..2 {
                let path = other.join("f");
                let linked = other.join("linked");
                scope.spawn(move || {
                    let mut opened = OpenOptions::new();
                    opened.append(true).create(true);
                    let mut count = 0;
                    while Instant::now() < end {
                        count += 1;
                        let done = |what: &str, result: io::Result<()>| {
                            result.unwrap_or_else(|e| {
                                panic!("COMPANY-5 change {index}: {what} {count}: {e}")
                            });
                        };
                        done("open", opened.open(&path).map(drop));
                        done("read", File::open(&path).map(drop));
                        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
                        // SAFETY: `name` ends with a NUL and lives as long as the call.
                        let cut = unsafe { libc::truncate(name.as_ptr(), 1) };
                        assert_eq!(cut, 0, "COMPANY-5 change {index}: truncate {count}");
                        // Of a file that is renamed over meanwhile no system makes a link (ENOENT).
                        // One thread alone: the kernel counts links down by itself, and with two
                        // it may take a file to have none left.
                        if index == 0 && thread == 0 {
                            done("link", fs::hard_link(&path, &linked));
                            done("unlink", fs::remove_file(&linked));
                        }
                    }
                });
            }
        });
    }
}

/// A name that is removed and made again all the time is opened on another mount by who would also
/// make it; with `O_EXCL` by whoever finds it gone.
#[test]
fn a_name_that_comes_and_goes_is_opened_or_made() {
    const TIME: Duration = Duration::from_secs(3);
    let two = Two::new();
    let [one, other] = two.roots();
    let end = Instant::now() + TIME;
    std::thread::scope(|scope| {
        let path = one.join("f");
        scope.spawn(move || {
            while Instant::now() < end {
                fs::write(&path, "once").unwrap();
                fs::remove_file(&path).unwrap();
            }
        });
        for _ in 0..2 {
            let path = other.join("f");
            scope.spawn(move || {
                for count in 0.. {
                    if Instant::now() >= end {
                        assert!(count > 0, "none was opened");
                        return;
                    }
                    let mut options = OpenOptions::new();
                    options.read(true).write(true);
                    match count % 3 {
                        0 => drop(options.create(true)),
                        1 => drop(options.create(true).truncate(true)),
                        _ => drop(options.create_new(true)),
                    }
                    match options.open(&path) {
                        Ok(file) => file.write_all_at(b"there", 0).unwrap(),
                        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                            assert_eq!(count % 3, 2, "COMPANY-8: {count}: EEXIST");
                        }
                        Err(error) => panic!("COMPANY-8: open {count}: {error}"),
                    }
                }
            });
        }
    });
}

#[test]
fn what_a_lock_protects_may_be_another_file() {
    let two = Two::new();
    let [one, other] = two.roots();
    let (lock, other_lock) = (one.join("f"), other.join("f"));
    fs::write(one.join("data"), "old").unwrap();
    sync(&one);
    let reader = File::open(other.join("data")).unwrap();
    let read = || {
        let mut bytes = [0; 8];
        let len = reader.read_at(&mut bytes, 0).unwrap();
        bytes[..len].to_vec()
    };
    for round in 0..20 {
        let text = format!("new {round}");
        let [mine, theirs] = [&lock, &other_lock].map(|path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        });
        read();
        By::Whole.set(&mine, libc::F_WRLCK);
        fs::write(one.join("data"), &text).unwrap();
        By::Whole.set(&mine, libc::F_UNLCK);
        By::Whole.set(&theirs, libc::F_WRLCK);
        assert_eq!(read(), text.as_bytes(), "COMPANY-6");
    }
}

#[test]
fn what_is_appended_by_a_name_is_in_the_file_that_has_it() {
    let two = Two::new();
    let [one, other] = two.roots();
    for round in 0..40 {
        let name = format!("f{round}");
        fs::write(one.join(&name), "old\n").unwrap();
        sync(&one);
        // Known there by name, attributes and content.
        assert_eq!(fs::read_to_string(other.join(&name)).unwrap(), "old\n");
        fs::write(one.join("next"), "new\n").unwrap();
        fs::rename(one.join("next"), one.join(&name)).unwrap();
        if round % 2 == 0 {
            sync(&one); // In company the rename is there without it (COMPANY-7).
        }
        let mut file = OpenOptions::new()
            .append(true)
            .open(other.join(&name))
            .unwrap();
        file.write_all(b"mine\n").unwrap();
        file.sync_all().unwrap();
        for root in [&one, &other] {
            let found = fs::read_to_string(root.join(&name)).unwrap();
            assert_eq!(found, "new\nmine\n", "COMPANY-5, round {round}");
        }
    }
}

#[test]
fn what_is_removed_here_is_gone_there_and_can_be_made_anew() {
    let two = Two::new();
    let [one, other] = two.roots();
    for round in 0..20 {
        let [here, there] = match round % 2 {
            0 => [&one, &other],
            _ => [&other, &one],
        };
        fs::create_dir(here.join("d")).unwrap();
        fs::write(here.join("d/f"), "x").unwrap();
        sync(here);
        assert_eq!(fs::read(there.join("d/f")).unwrap(), b"x", "FOREIGN-6");
        fs::remove_file(here.join("d/f")).unwrap();
        assert!(!there.join("d/f").exists(), "COMPANY-7");
        fs::remove_dir(here.join("d")).unwrap();
        assert!(!there.join("d").exists(), "COMPANY-7");
        fs::write(there.join("d"), "a file now").unwrap();
        sync(there);
        assert_eq!(fs::read(here.join("d")).unwrap(), b"a file now");
        fs::remove_file(here.join("d")).unwrap();
    }
}

/// A shell whose working directory is there; it answers what it sees.
fn walker(directory: &Path) -> (std::process::Child, impl FnMut() -> String + use<>) {
    let script = "cd \"$1\"; while read line; do echo \"$(pwd -P) $(cat keep) $(ls)\" 2>&1; done";
    let mut shell = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = shell.stdin.take().unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let ask = move || {
        writeln!(input, "?").unwrap();
        let mut answer = lines.next().unwrap().unwrap();
        while answer.matches(' ').count() < 2 {
            answer = answer + " " + &lines.next().unwrap().unwrap();
        }
        answer
    };
    (shell, ask)
}

#[test]
fn working_directories_and_mounts_inside_survive_what_others_commit() {
    let two = Two::new();
    let [one, other] = two.roots();
    fs::create_dir_all(other.join("a/work")).unwrap();
    fs::create_dir_all(other.join("a/bound")).unwrap();
    fs::write(other.join("a/work/keep"), "kept").unwrap();
    fs::write(other.join("f"), "f").unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("in"), "outside").unwrap();
    sync(&other);
    let bound = other.join("a/bound");
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        shell("mount --bind \"$1\" \"$2\"", &[outside.path(), &bound]);
    }
    let (mut walker, mut ask) = walker(&other.join("a/work"));
    type Change<'c> = &'c dyn Fn(&Path);
    let changes: [Change<'_>; 8] = [
        &|root| fs::write(root.join("a/new"), "x").unwrap(),
        &|root| fs::rename(root.join("a/new"), root.join("f")).unwrap(),
        &|root| fs::create_dir(root.join("a/side")).unwrap(),
        &|root| fs::remove_dir(root.join("a/side")).unwrap(),
        &|root| {
            drop(shell(
                "chmod 750 \"$1/a/work\" \"$1/a/bound\" \"$1/a\"",
                &[root],
            ))
        },
        &|root| drop(shell("touch \"$1/a/work\" \"$1/a/bound\"", &[root])),
        &|root| fs::write(root.join("a/bound/below"), "hidden").unwrap(),
        &|root| fs::remove_file(root.join("a/bound/below")).unwrap(),
    ];
    let expected = format!("{} kept keep", other.join("a/work").display());
    for round in 0..3 {
        for (index, change) in changes.iter().enumerate() {
            change(&one);
            sync(&one);
            assert_eq!(ask(), expected, "round {round}, change {index}");
            if is_root {
                let inside = fs::read_to_string(bound.join("in"));
                assert_eq!(inside.unwrap(), "outside", "round {round}, change {index}");
            }
        }
    }
    drop(ask);
    walker.wait().unwrap();
    if is_root {
        shell("umount \"$1\"", &[&bound]);
    }
}

#[test]
fn a_working_directory_goes_along_when_another_mount_renames_above_it() {
    let two = Two::new();
    let [one, other] = two.roots();
    fs::create_dir_all(other.join("a/b/work")).unwrap();
    fs::create_dir(other.join("side")).unwrap();
    fs::write(other.join("a/b/work/keep"), "old").unwrap();
    sync(&other);
    let (mut walker, mut ask) = walker(&other.join("a/b/work"));
    let current = PathBuf::from(format!("/proc/{}/cwd", walker.id()));
    let number = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let work = number(&other.join("a/b/work"));
    let rename = |from: &str, to: &str| fs::rename(one.join(from), one.join(to)).unwrap();
    let replace = |directory: &str, text: &str| {
        fs::write(one.join("new"), text).unwrap();
        rename("new", &format!("{directory}/keep"));
    };
    // A name that it had becomes another's.
    let again = || fs::create_dir_all(one.join("a/b/work")).unwrap();
    type Change<'c> = &'c dyn Fn();
    let changes: [(Change<'_>, &str, &str); 8] = [
        (&|| (), "a/b/work", "old"),
        (&|| rename("a", "moved"), "moved/b/work", "old"),
        (&|| replace("moved/b/work", "2nd"), "moved/b/work", "2nd"),
        (&again, "moved/b/work", "2nd"),
        (&|| rename("moved/b", "side/c"), "side/c/work", "2nd"),
        (&|| replace("side/c/work", "3rd"), "side/c/work", "3rd"),
        (&|| rename("side", "a/b/side"), "a/b/side/c/work", "3rd"),
        (&|| rename("a/b/side/c/work", "at"), "at", "3rd"),
    ];
    for (index, (change, path, text)) in changes.iter().enumerate() {
        change();
        sync(&one);
        // What is in it is there at once; its path, when somebody has looked it up.
        let answer = ask();
        let (at, seen) = answer.split_once(' ').unwrap();
        assert!(
            Path::new(at).starts_with(&other),
            "change {index}: {answer}"
        );
        assert_eq!(seen, format!("{text} keep"), "change {index}");
        assert_eq!(number(&current), work, "change {index}");
        assert_eq!(number(&other.join(path)), work, "change {index}");
        let expected = format!("{} {text} keep", other.join(path).display());
        assert_eq!(ask(), expected, "change {index}");
    }
    drop(ask);
    walker.wait().unwrap();
}

#[test]
fn a_shared_memory_of_sqlite_is_opened_on_one_mount_only() {
    let two = Two::new();
    let [one, other] = two.roots();
    let path = other.join("x.db");
    let sql = |root: &Path, text: &str| {
        let mut sqlite = Command::new("sqlite3");
        sqlite.arg(root.join("x.db")).arg(text).output().unwrap()
    };
    let made = sql(
        &one,
        "PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)",
    );
    assert!(made.status.success());
    sync(&one);
    let mut open = Command::new("sqlite3")
        .arg(one.join("x.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = open.stdin.take().unwrap();
    writeln!(input, "INSERT INTO t VALUES (2); SELECT count(*) FROM t;").unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(open.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    sync(&one);
    let refused = sql(&other, "INSERT INTO t VALUES (3)");
    assert!(!refused.status.success(), "SHM-1");
    let direct = File::open(path.with_file_name("x.db-shm")).unwrap_err();
    assert_eq!(direct.raw_os_error(), Some(libc::EBUSY), "SHM-1");
    drop(input);
    open.wait().unwrap();
    let allowed = sql(&other, "INSERT INTO t VALUES (3); SELECT count(*) FROM t");
    assert_eq!(
        String::from_utf8_lossy(&allowed.stdout),
        "3\n",
        "{allowed:?}"
    );
}

#[test]
fn sqlite_with_a_rollback_journal_loses_nothing_on_two_mounts() {
    const EACH: usize = 25;
    let two = Two::new();
    let roots = two.roots();
    shell("sqlite3 \"$1/x.db\" 'CREATE TABLE t(a)'", &[&roots[0]]);
    std::thread::scope(|scope| {
        for root in [&roots[0], &roots[1], &roots[0], &roots[1]] {
            scope.spawn(move || {
                let insert = "BEGIN IMMEDIATE; INSERT INTO t SELECT count(*) FROM t; COMMIT;\n";
                let script = format!(
                    "sqlite3 -bail -cmd '.timeout 60000' \"$1/x.db\" <<'E'\n{}E\n",
                    insert.repeat(EACH)
                );
                shell(&script, &[root]);
            });
        }
    });
    for root in &roots {
        let found = shell(
            "sqlite3 -cmd '.timeout 60000' \"$1/x.db\" \
             'SELECT count(*), count(DISTINCT a), max(a) FROM t; PRAGMA integrity_check'",
            &[root],
        );
        let count = 4 * EACH;
        assert_eq!(found, format!("{count}|{count}|{}\nok\n", count - 1));
    }
}

#[test]
fn mail_that_is_delivered_on_one_mount_is_read_on_the_other() {
    const COUNT: usize = 60;
    let two = Two::new();
    let [one, other] = two.roots();
    for name in ["tmp", "new", "cur"] {
        fs::create_dir(one.join(name)).unwrap();
    }
    sync(&one);
    let text = |index: usize| format!("letter {index}\n").repeat(20 + index);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..COUNT {
                let (draft, letter) = (one.join(format!("tmp/{index}")), format!("new/{index}"));
                fs::write(&draft, text(index)).unwrap();
                sync(&draft);
                fs::rename(draft, one.join(letter)).unwrap();
            }
        });
        let began = Instant::now();
        let mut read = 0;
        while read < COUNT {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{read} letters came"
            );
            for entry in fs::read_dir(other.join("new")).unwrap() {
                let from = entry.unwrap().path();
                let name = from.file_name().unwrap().to_string_lossy().into_owned();
                let to: PathBuf = other.join("cur").join(&name);
                fs::rename(from, &to).unwrap();
                let found = fs::read_to_string(to).unwrap();
                assert_eq!(found, text(name.parse().unwrap()), "letter {name}");
                read += 1;
            }
        }
    });
    assert_eq!(fs::read_dir(one.join("cur")).unwrap().count(), COUNT);
    assert_eq!(fs::read_dir(one.join("new")).unwrap().count(), 0);
}

#[test]
fn git_works_on_one_repository_by_two_mounts() {
    let two = Two::new();
    let roots = two.roots();
    let git = |root: &Path, script: &str| {
        let start = "export GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent; cd \"$1/r\"; git() { \
            command git \
                     -c user.name=a -c user.email=a@b -c gc.auto=0 -c safe.directory='*' \"$@\"; \
                     }; ";
        shell(&format!("{start}{script}"), &[root])
    };
    fs::create_dir(roots[0].join("r")).unwrap();
    git(
        &roots[0],
        "git init -q -b main .; echo 0 > n; git add n; git commit -qm 0",
    );
    for round in 1..=6 {
        let root = &roots[round % 2];
        git(
            root,
            &format!("git status --porcelain; echo {round} > n; git commit -qam {round}"),
        );
    }
    for root in &roots {
        let log = git(
            root,
            "git fsck --strict 2>&1; git status --porcelain; git log --format=%s",
        );
        let subjects: Vec<&str> = log.lines().filter(|line| line.len() == 1).collect();
        assert_eq!(subjects, ["6", "5", "4", "3", "2", "1", "0"], "{log}");
    }
}

/// Median of the time of one call, in microseconds.
fn time(count: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut times: Vec<f64> = (0..5)
        .map(|round| {
            let began = Instant::now();
            (0..count).for_each(|index| call(round * count + index));
            began.elapsed().as_secs_f64() * 1e6 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[2]
}

fn costs(what: &str, root: &Path) {
    let directory = root.join(what.replace(' ', "-"));
    fs::create_dir(&directory).unwrap();
    let (file, lock) = (directory.join("file"), directory.join("lock"));
    fs::write(&file, [7; 1000]).unwrap();
    fs::write(&lock, "0").unwrap();
    sync(&directory);
    let locked = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&lock)
        .unwrap();
    let name = |index: usize| directory.join(format!("n{index}"));
    let stat = time(2000, |_| assert!(fs::symlink_metadata(&file).is_ok()));
    let open = time(1000, |_| drop(File::open(&file).unwrap()));
    let bare = time(1000, |_| {
        By::OpenFile.set(&locked, libc::F_WRLCK);
        By::OpenFile.set(&locked, libc::F_UNLCK);
    });
    let written = time(50, |index| {
        By::OpenFile.set(&locked, libc::F_WRLCK);
        locked
            .write_all_at(format!("{index:06}").as_bytes(), 0)
            .unwrap();
        By::OpenFile.set(&locked, libc::F_UNLCK);
    });
    let create = time(100, |index| drop(File::create(name(index)).unwrap()));
    let unlink = time(50, |index| fs::remove_file(name(index)).unwrap());
    println!(
        "| {what} | {stat:.1} | {open:.1} | {bare:.1} | {written:.0} | {create:.0} | {unlink:.0} |"
    );
}

#[test]
#[ignore = "a measurement: cargo test -p larder-fuse --test mount cost_of -- --ignored --nocapture"]
fn cost_of_company() {
    println!("µs | stat | open + close | lock + unlock | the same with a write | create | unlink");
    let alone = crate::common::TestMount::new();
    costs("one session", &alone.root());
    drop(alone);
    let two = Two::new();
    let [one, other] = two.roots();
    costs("a second one idle", &one);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0.. {
                if is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
                fs::write(other.join(format!("w{}", index % 100)), [1; 3000]).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        costs("a second one busy", &one);
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
}
