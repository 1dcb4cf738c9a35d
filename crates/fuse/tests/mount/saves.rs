//! Programs that save a file on a mount: what users attached to it stays (`SAVE-1` to `SAVE-4`).

use crate::common::{TestMount, database_path, shell};
use larder::{Database, SqlValue};
use rustix::fs::XattrFlags;
use std::fs;
use std::path::Path;

const RATING: &str = "user.column.rating";

/// A mount with user columns, a table that refers to files in both ways, and another session that
/// asks.
struct Rated {
    mount: TestMount,
    database: Database,
}

impl Rated {
    fn new() -> Rated {
        let mount = TestMount::new();
        let database = Database::open(&database_path(mount.directory()), Default::default());
        let rated = Rated {
            mount,
            database: database.expect("another session"),
        };
        rated.ask("ALTER TABLE main ADD COLUMN rating INTEGER");
        rated.ask("CREATE UNIQUE INDEX file ON main (file_id)");
        rated.ask(
            "CREATE TABLE album (path TEXT, photo INTEGER REFERENCES main (ino) ON DELETE CASCADE, \
             file INTEGER REFERENCES main (file_id) ON DELETE CASCADE)",
        );
        rated
    }

    fn ask(&self, sql: &str) -> Vec<SqlValue> {
        let mut values = Vec::new();
        let mut session = self.database.sql().open(false).expect("a session");
        let done = session.execute(sql, &mut |row| {
            values.extend(row.values);
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
        values
    }

    fn sync(&self) {
        crate::as_of::sync(&self.mount);
    }

    /// A file with five stars, in an album.
    fn make(&self, name: &str) -> i64 {
        let path = self.mount.path(name);
        fs::write(&path, "first line\nsecond line\n").expect("a file");
        rustix::fs::setxattr(&path, RATING, b"5", XattrFlags::empty()).expect("a column");
        self.sync();
        self.ask(&format!(
            "INSERT INTO album SELECT path, ino, file_id FROM main JOIN main_path USING (ino) \
             WHERE path = '/{name}'"
        ));
        self.number("file_id", name)
    }

    fn number(&self, column: &str, name: &str) -> i64 {
        self.sync();
        let sql =
            format!("SELECT {column} FROM main JOIN main_path USING (ino) WHERE path = '/{name}'");
        match self.ask(&sql)[..] {
            [SqlValue::Integer(number)] => number,
            ref other => panic!("{sql}: {other:?}"),
        }
    }

    /// Its stars, whether it is the file `id`, and whether the album leads to it in both ways.
    fn state(&self, name: &str, id: i64) -> (Option<i64>, bool, bool) {
        self.sync();
        let mut value = [0; 16];
        let stars = rustix::fs::getxattr(self.mount.path(name), RATING, &mut value);
        let stars = stars.ok().map(|length| {
            let text = String::from_utf8_lossy(&value[..length]);
            text.parse().expect("a number")
        });
        let found = self.ask(&format!(
            "SELECT count(*) FROM album JOIN main ON main.ino = album.photo AND main.file_id = \
             album.file \
             JOIN main_path USING (ino) WHERE main_path.path = '/{name}'"
        ));
        let is_it = self.number("file_id", name) == id;
        (stars, is_it, found == [SqlValue::Integer(1)])
    }
}

const KEPT: (Option<i64>, bool, bool) = (Some(5), true, true);
const LOST: (Option<i64>, bool, bool) = (None, false, false);

fn run(rated: &Rated, name: &str, script: &str) {
    shell(script, &[&rated.mount.path(name), Path::new(name)]);
}

/// With real programs, as they are installed wherever the tests run.
#[test]
fn programs_save_and_nothing_is_lost() {
    let rated = Rated::new();
    let programs = [
        ("sed", "sed -i s/first/1st/ \"$1\""),
        (
            "python",
            "python3 -c 'import os, sys, tempfile
f = sys.argv[1]
d, t = tempfile.mkstemp(dir=os.path.dirname(f))
os.write(d, b\"new\"); os.fsync(d); os.close(d); os.replace(t, f)' \"$1\"",
        ),
        (
            "rsync",
            "s=$(mktemp); echo rsync > $s; rsync $s \"$1\"; rm $s",
        ),
        ("mv", "echo mv > \"$1.tmp\"; mv \"$1.tmp\" \"$1\""),
        (
            "install",
            "s=$(mktemp); echo x > $s; install -b -m 644 $s \"$1.new\"; mv \"$1.new\" \"$1\"; rm \
             $s",
        ),
        ("truncate", "echo written in place > \"$1\""),
        ("cp", "s=$(mktemp); echo cp > $s; cp $s \"$1\"; rm $s"),
    ];
    for (program, script) in programs {
        let id = rated.make(program);
        for _ in 0..2 {
            run(&rated, program, script);
            assert_eq!(rated.state(program, id), KEPT, "{program}");
        }
    }
    // These remove the file and make another one: no saves, and nobody says so afterwards.
    for (program, script) in [
        (
            "cp-remove",
            "s=$(mktemp); echo x > $s; cp --remove-destination $s \"$1\"; rm $s",
        ),
        ("rm", "rm \"$1\"; echo x > \"$1\""),
    ] {
        let id = rated.make(program);
        run(&rated, program, script);
        assert_eq!(rated.state(program, id), LOST, "{program}");
    }
    assert_clean(rated);
}

/// git writes what it checks out to the place of what it removed.
#[test]
fn git_checkout_makes_other_files() {
    let rated = Rated::new();
    let id = rated.make("f");
    let script = "cd \"$(dirname \"$1\")\"; export GIT_CONFIG_GLOBAL=/dev/null
        git init -q -b one .; git config user.email a@b; git config user.name a
        git add f; git commit -qm one; git checkout -qb two; echo two > f; git commit -qam two";
    run(&rated, "f", script);
    assert_eq!(rated.state("f", id), KEPT, "written in place");
    run(&rated, "f", "cd \"$(dirname \"$1\")\"; git checkout -q one");
    assert_eq!(
        rated.state("f", id),
        LOST,
        "git unlinks what it writes anew"
    );
    assert_clean(rated);
}

/// The exact calls of editors, which need not be installed.
#[test]
fn editors_save_and_nothing_is_lost() {
    let rated = Rated::new();
    let root = rated.mount.root();
    let write = |name: &str, text: &str| {
        use std::io::Write;
        let mut file = fs::File::create(root.join(name)).expect("a file");
        file.write_all(text.as_bytes()).expect("its content");
        file.sync_all().expect("a sync");
    };
    let rename = |from: &str, to: &str| {
        fs::rename(root.join(from), root.join(to)).expect("a rename");
    };
    let remove = |name: &str| fs::remove_file(root.join(name)).expect("a name");
    let vim_no = |f: &str| {
        // vim, backupcopy=no, and auto where it can: a probe, then the backup by rename.
        write("4913", "");
        remove("4913");
        rename(f, &format!("{f}~"));
        write(f, "vim");
        remove(&format!("{f}~"));
    };
    let vim_yes = |f: &str| {
        // backupcopy=yes, and nano, and LibreOffice beside its lock file: a copy aside, the file in
        // place.
        write(&format!("{f}~"), "old");
        write(f, "vim");
        remove(&format!("{f}~"));
    };
    let emacs = |f: &str| {
        write(&format!(".#{f}"), "lock");
        rename(f, &format!("{f}~"));
        write(f, "emacs");
        remove(&format!(".#{f}"));
    };
    let precious = |f: &str| {
        // emacs, file-precious-flag; GTK, Qt and LibreOffice rename what they wrote.
        write(&format!("{f}.tmp"), "emacs");
        rename(&format!("{f}.tmp"), f);
    };
    let by_three_names = |f: &str| {
        write(&format!("{f}.new"), "new");
        rename(f, &format!("{f}.old"));
        rename(&format!("{f}.new"), f);
        remove(&format!("{f}.old"));
    };
    type Editor<'e> = (&'e str, &'e dyn Fn(&str));
    let editors: [Editor<'_>; 5] = [
        ("vim-no", &vim_no),
        ("vim-yes", &vim_yes),
        ("emacs", &emacs),
        ("precious", &precious),
        ("three", &by_three_names),
    ];
    for (editor, save) in editors {
        let id = rated.make(editor);
        for _ in 0..3 {
            save(editor);
            assert_eq!(rated.state(editor, id), KEPT, "{editor}");
        }
    }
    // What was set aside under a name that is no backup's, and stays, is a file of its own.
    let id = rated.make("log");
    rename("log", "log.1");
    write("log", "new");
    assert_eq!(rated.state("log", id), LOST);
    assert_eq!(rated.number("rating", "log.1"), 5);
    assert_clean(rated);
}

/// The program is there; `cargo xtask test` installs it.
fn require(program: &str, package: &str) {
    let told = std::process::Command::new(program)
        .arg("--version")
        .output();
    assert!(
        told.is_ok_and(|told| told.status.success()),
        "{program} is needed: apt-get install {package}"
    );
}

#[test]
fn vim_saves_and_nothing_is_lost() {
    require("vim", "vim");
    let rated = Rated::new();
    for copy in ["no", "yes", "auto"] {
        let id = rated.make(copy);
        for _ in 0..2 {
            run(
                &rated,
                copy,
                "vim -u NONE -N -es -c \"set backupcopy=$2\" \
                 -c 'normal ggOanother line' -c wq \"$1\"",
            );
            assert_eq!(rated.state(copy, id), KEPT, "backupcopy={copy}");
        }
        let text = fs::read_to_string(rated.mount.path(copy)).expect("the file");
        assert!(text.starts_with("another line\nanother line\n"), "{text}");
    }
    assert_clean(rated);
}

#[test]
fn emacs_saves_and_nothing_is_lost() {
    require("emacs", "emacs-nox");
    let rated = Rated::new();
    for (how, setting) in [
        ("renamed", "backup-by-copying nil"),
        ("copied", "backup-by-copying t"),
        ("precious", "file-precious-flag t"),
        ("none", "make-backup-files nil"),
    ] {
        let id = rated.make(how);
        for _ in 0..2 {
            // It makes no backups of what is temporary, by itself.
            let script = format!(
                "emacs --batch -Q --eval '(progn (setq {setting} backup-enable-predicate (lambda \
                 (_) t)) (find-file (car command-line-args-left)) (insert \"another line\\n\") \
                 (save-buffer) (kill-emacs))' \"$1\" 2>/dev/null"
            );
            run(&rated, how, &script);
            assert_eq!(rated.state(how, id), KEPT, "emacs: {setting}");
        }
        let text = fs::read_to_string(rated.mount.path(how)).expect("the file");
        assert!(text.starts_with("another line\nanother line\n"), "{text}");
        let backup = rated.mount.path(&format!("{how}~"));
        assert_eq!(backup.exists(), how != "none", "emacs: {setting}");
    }
    assert_clean(rated);
}

/// On a terminal, where it shows the file before somebody types.
#[test]
fn nano_saves_and_nothing_is_lost() {
    require("nano", "nano");
    let rated = Rated::new();
    for (how, flags) in [("plain", "-I"), ("backup", "-IB")] {
        let id = rated.make(how);
        for _ in 0..2 {
            let script = format!(
                "d=$(mktemp -d); mkfifo $d/keys; \
                 TERM=xterm script -qefc \"nano {flags} '$1'\" $d/shown < $d/keys > $d/out & \
                 exec 3> $d/keys; n=0; \
                 until grep -q 'second line' $d/out || test $n = 400; do n=$((n+1)); sleep 0.05; \
                 done; printf 'typed \\017\\r\\030' >&3; wait; rm -r $d"
            );
            run(&rated, how, &script);
            assert_eq!(rated.state(how, id), KEPT, "nano {flags}");
        }
        let text = fs::read_to_string(rated.mount.path(how)).expect("the file");
        assert!(text.starts_with("typed typed first line\n"), "{text}");
    }
    assert_clean(rated);
}

/// A package of one version, from no index.
const MAKE_PACKAGE: &str = "
import sys, zipfile
v = sys.argv[1]
d = f'demo-{v}.dist-info'
files = {'demo.py': f'v = {v}\\n', 'package/__init__.py': f'v = {v}\\n',
    f'{d}/METADATA': f'Metadata-Version: 2.1\\nName: demo\\nVersion: {v}\\n',
    f'{d}/WHEEL': 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}
files[f'{d}/RECORD'] = ''.join(f'{name},,\\n' for name in [*files, f'{d}/RECORD'])
with zipfile.ZipFile(f'demo-{v}-py3-none-any.whl', 'w') as wheel:
    [wheel.writestr(*file) for file in files.items()]
";

/// pip sets directories aside, makes the files of a new version anew, and removes what it has set
/// aside: nothing tells that from a package that was removed and another one that was installed.
#[test]
fn pip_upgrades_make_other_files() {
    require("/usr/bin/pip3", "python3-pip");
    let rated = Rated::new();
    let packages = tempfile::tempdir().expect("a directory");
    fs::write(packages.path().join("make.py"), MAKE_PACKAGE).expect("a script");
    let (here, root) = (packages.path(), rated.mount.root());
    shell(
        "cd \"$1\"; for v in 1 2; do /usr/bin/python3 make.py $v; done",
        &[here],
    );
    shell("/usr/bin/python3 -m venv --without-pip \"$1/v\"", &[&root]);
    let install = |version: u32| {
        let script = format!(
            "cd \"$1\"; /usr/bin/pip3 --python \"$2/v/bin/python\" install -q --no-index \
             --no-cache-dir --no-compile --disable-pip-version-check \
             ./demo-{version}-py3-none-any.whl 1>&2; \
             \"$2/v/bin/python\" -B -c 'import demo, package; print(demo.v, package.v)'"
        );
        let shown = shell(&script, &[here, &root]);
        assert_eq!(shown, format!("{version} {version}\n"));
    };
    let find = |name: &str| {
        let script = "cd \"$1\"; find v -path \"*/site-packages/$2\"";
        let found = shell(script, &[&root, Path::new(name)]);
        found.trim().to_owned()
    };
    install(1);
    let files = ["demo.py", "package/__init__.py"].map(|name| {
        let name = find(name);
        let path = rated.mount.path(&name);
        rustix::fs::setxattr(path, RATING, b"5", XattrFlags::empty()).expect("a column");
        let id = rated.number("file_id", &name);
        (name, id)
    });
    install(2);
    for (name, id) in files {
        assert_eq!(rated.state(&name, id), LOST, "{name}");
    }
    assert_clean(rated);
}

fn assert_clean(rated: Rated) {
    let Rated {
        mut mount,
        database,
    } = rated;
    mount.end();
    let report = database
        .maintenance()
        .check(true, &mut |_, _| {})
        .expect("a check");
    assert_eq!(report.findings, Vec::<String>::new());
}
