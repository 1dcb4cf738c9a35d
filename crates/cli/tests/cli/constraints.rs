//! Users' rules on a mount, met by programs that know nothing of them.

use crate::support::Place;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A database that is mounted.
struct Mount {
    place: Place,
    server: Child,
}

impl Mount {
    fn new() -> Mount {
        let place = Place::with_database();
        fs::create_dir(place.path("m")).unwrap();
        let mut server = place.command(&["mount", "a.larder", "m"]);
        let server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mount = Mount {
            server: server.unwrap(),
            place,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        let shown = format!(" {} ", mount.place.path("m").display());
        while !fs::read_to_string("/proc/mounts").unwrap().contains(&shown) {
            assert!(Instant::now() < deadline, "it is not mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
        mount
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path("m").join(name)
    }

    /// Ends it; what `larder umount` said, and what the server has logged.
    fn end(mut self) -> (Place, String, String) {
        let done = self.place.run(&["umount", "m"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(self.server.wait().unwrap().success(), "the server");
        let mut log = String::new();
        let stderr = self.server.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        (self.place, done.stderr, log)
    }
}

/// The `sqlite3` of somebody else, with a transaction open until it is told to go on.
pub struct Sql(Child);

impl Sql {
    pub fn open(catalog: &Path) -> Sql {
        let child = Command::new("sqlite3")
            .args(["-bail", "-cmd", ".timeout 20000"])
            .arg(catalog)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Sql(child.unwrap())
    }

    /// Runs statements to their end.
    pub fn run(&mut self, sql: &str) {
        let input = self.0.stdin.as_mut().unwrap();
        writeln!(input, "{sql}\nSELECT 'done';").unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "done\n", "{sql}");
    }

    pub fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

fn sql(place: &Place, text: &str) {
    let mut shell = Sql::open(&place.path("a.larder/catalog.db"));
    shell.run(text);
    shell.end();
}

type Act = fn(&Path) -> io::Result<()>;

/// Each on `file`, which has 2 bytes, and beside it.
const OPERATIONS: [(&str, Act); 8] = [
    ("create", |dir| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o400);
        options.open(dir.join("new")).map(drop)
    }),
    ("make a directory", |dir| fs::create_dir(dir.join("made"))),
    ("write", |dir| {
        let mut file = OpenOptions::new().append(true).open(dir.join("file"))?;
        file.write_all(&[7; 998])?;
        file.sync_all()
    }),
    ("rename", |dir| {
        fs::rename(dir.join("file"), dir.join("moved"))
    }),
    ("rename over", |dir| {
        fs::rename(dir.join("other"), dir.join("file"))
    }),
    ("unlink", |dir| fs::remove_file(dir.join("file"))),
    ("chmod", |dir| {
        fs::set_permissions(dir.join("file"), Permissions::from_mode(0o400))
    }),
    ("setxattr", |dir| {
        let done = Command::new("setfattr")
            .args(["-n", "user.a", "-v", "1"])
            .arg(dir.join("file"))
            .stderr(Stdio::piped())
            .output()?;
        match done.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(said.contains("Operation not permitted"), "{said}");
                Err(io::Error::from_raw_os_error(1))
            }
        }
    }),
];

/// A rule, and the operations that it refuses; `INO` is the file's.
const RULES: [(&str, &str, &[&str]); 4] = [
    (
        "RAISE",
        "CREATE TRIGGER t1 BEFORE INSERT ON main BEGIN SELECT RAISE(ABORT, 'no'); END; \
         CREATE TRIGGER t2 BEFORE UPDATE ON main WHEN old.ino > 1 BEGIN \
           SELECT RAISE(ABORT, 'no'); END; \
         CREATE TRIGGER t3 BEFORE DELETE ON main BEGIN SELECT RAISE(ABORT, 'no'); END;",
        &[
            "create",
            "make a directory",
            "write",
            "rename",
            "rename over",
            "unlink",
            "chmod",
            "setxattr",
        ],
    ),
    (
        "CHECK",
        "ALTER TABLE main ADD COLUMN c CHECK (size < 500 AND mode & 511 <> 256);",
        &["create", "write", "chmod"],
    ),
    (
        "UNIQUE",
        "CREATE UNIQUE INDEX u ON main (mode & 511) WHERE mode & 511 = 256; \
         CREATE UNIQUE INDEX v ON main (size) WHERE size = 1000;",
        &["create", "write", "chmod"],
    ),
    (
        "deferred key",
        "CREATE TABLE refers (ino INTEGER REFERENCES main (ino) DEFERRABLE INITIALLY DEFERRED); \
         INSERT INTO refers VALUES (INO);",
        &["unlink"],
    ),
];

#[test]
fn rules_refuse_what_programs_do_on_a_mount_and_nothing_else() {
    for (rule, text, refuses) in RULES {
        let mount = Mount::new();
        let dir = mount.place.path("m");
        fs::write(mount.file("file"), "12").unwrap();
        fs::write(mount.file("other"), "34").unwrap();
        // What a UNIQUE index has already.
        if rule == "UNIQUE" {
            fs::write(mount.file("taken"), [1; 1000]).unwrap();
            fs::set_permissions(mount.file("taken"), Permissions::from_mode(0o400)).unwrap();
        }
        File::open(&dir).unwrap().sync_all().unwrap();
        let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(mount.file("file")).unwrap());
        sql(&mount.place, &text.replace("INO", &ino.to_string()));
        // The mount notices it with its next commit at the latest.
        std::thread::sleep(Duration::from_millis(200));
        let seen = || {
            let mut all: Vec<String> = fs::read_dir(&dir)
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    let about = entry.metadata().unwrap();
                    let bytes = fs::read(entry.path()).unwrap();
                    format!(
                        "{:?} {:o} {bytes:?}",
                        entry.file_name(),
                        about.permissions().mode()
                    )
                })
                .collect();
            all.sort();
            all
        };
        for (what, act) in OPERATIONS {
            if !refuses.contains(&what) {
                continue;
            }
            let before = seen();
            let error = act(&dir).expect_err(&format!("{rule}: {what}"));
            assert_eq!(
                error.raw_os_error(),
                Some(libc_eperm()),
                "{rule}: {what}: {error}"
            );
            assert_eq!(seen(), before, "{rule}: {what}");
        }
        // Those that it accepts, in an order in which each finds its file.
        let order = [
            "make a directory",
            "write",
            "create",
            "chmod",
            "setxattr",
            "rename over",
        ];
        for (what, act) in OPERATIONS {
            if order.contains(&what) && !refuses.contains(&what) {
                act(&dir).unwrap_or_else(|error| panic!("{rule} refuses {what}: {error}"));
            }
        }
        let (place, said, log) = mount.end();
        assert!(log.contains("refused by a constraint: "), "{log}");
        assert!(log.contains(": /file\n"), "{rule}: {log}");
        assert_eq!(said, "", "{rule}");
        place.assert_clean("a.larder");
    }
}

fn libc_eperm() -> i32 {
    rustix::io::Errno::PERM.raw_os_error()
}

#[test]
fn what_is_refused_after_its_answer_is_told_and_the_mount_ends_well() {
    let mount = Mount::new();
    fs::write(mount.file("before"), "before").unwrap();
    File::open(mount.file("before"))
        .unwrap()
        .sync_all()
        .unwrap();
    let mut shell = Sql::open(&mount.place.path("a.larder/catalog.db"));
    // The rule is not to be seen until its transaction commits, and the mount commits after it.
    shell.run(
        "BEGIN IMMEDIATE; CREATE TRIGGER t BEFORE INSERT ON main \
         BEGIN SELECT RAISE(ABORT, 'no more files'); END;",
    );
    let mut open = File::create(mount.file("open")).unwrap();
    open.write_all(b"content of open").unwrap();
    fs::write(mount.file("closed"), "content of closed").unwrap();
    fs::write(mount.file("before"), "after").unwrap();
    shell.run("COMMIT;");
    shell.end();
    let error = open.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(open);
    assert_eq!(fs::read(mount.file("before")).unwrap(), b"after");
    assert!(!mount.file("open").exists() && !mount.file("closed").exists());
    for of in ["a.larder", "m"] {
        let status = mount.place.json(&["status", of]);
        assert_eq!(status["refused_count"], 2, "{status}");
        assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
        let at = status["sessions"][0]["mountpoint"].as_str().unwrap();
        assert_eq!(Path::new(at), mount.place.path("m").canonicalize().unwrap());
        assert!(
            status["sessions"][0]["engine_stopped"].is_null(),
            "{status}"
        );
    }
    let text = mount.place.ok(&["status", "a.larder"]);
    assert!(
        text.contains("2 changes wait") && text.contains("running"),
        "{text}"
    );
    let listed = mount.place.json(&["refused", "list", "a.larder"]);
    for (path, content) in [
        ("/open", "content of open"),
        ("/closed", "content of closed"),
    ] {
        let all = listed.as_array().unwrap();
        let one = all.iter().find(|one| one["path"] == path).unwrap();
        let id = one["id"].to_string();
        let kept = mount.place.ok(&["refused", "get", "a.larder", &id]);
        assert_eq!(kept, content);
    }
    let (place, said, log) = mount.end();
    for path in ["/open", "/closed"] {
        let line = log
            .lines()
            .find(|line| line.contains(&format!("main:{path} ")));
        assert!(
            line.is_some_and(|line| line.contains("no more files")),
            "{log}"
        );
    }
    assert!(
        said.contains("2 changes that constraints refused"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    place.assert_clean("a.larder");
    assert_eq!(
        place.json(&["status", "a.larder"])["sessions"],
        serde_json::json!([])
    );
}
