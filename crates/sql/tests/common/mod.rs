//! A database and clients that use it, for the tests of the extension.

#![allow(dead_code, missing_docs, reason = "each test uses a part")]
#![allow(
    clippy::unwrap_used,
    reason = "helpers outside of test functions are tests too"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory with a database `t.larder` in it, and the extension as `larder.so`.
pub struct Place(pub PathBuf);

impl Place {
    /// An empty directory with a database `t.larder` in it.
    pub fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("larder-sql-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        std::os::unix::fs::symlink(variable("LARDER_EXTENSION"), dir.join("larder.so")).unwrap();
        let place = Place(dir);
        place.larder(&["init", "t.larder"]);
        place
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    pub fn larder(&self, arguments: &[&str]) -> String {
        // It logs to stderr, also what is no failure.
        let output = self.run(&variable("LARDER"), arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the shell prints, with the extension loaded.
    pub fn shell(&self, sql: &str) -> String {
        told(self.try_shell(sql))
    }

    pub fn try_shell(&self, sql: &str) -> Output {
        let load = ".load ./larder";
        let timeout = ".timeout 30000";
        self.run(
            "sqlite3",
            &["-bail", "t.larder/catalog.db", timeout, load, sql],
        )
    }

    pub fn refused(&self, sql: &str) -> String {
        let output = self.try_shell(sql);
        assert!(!output.status.success(), "{sql}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub fn python(&self, script: &str) -> Command {
        // What waits for ever is killed.
        let begin = "import sqlite3, sys, os, time, signal\n\
             signal.alarm(90)\n\
             def refused(sql, *parts):\n\
             \x20   try: db.execute(sql).fetchall()\n\
             \x20   except sqlite3.Error as error:\n\
             \x20       assert all(part in str(error) for part in parts), error\n\
             \x20       return str(error)\n\
             \x20   raise AssertionError('not refused: ' + sql)\n\
             def ask(sql, *values):\n\
             \x20   return db.execute(sql, values).fetchone()[0]\n\
             db = sqlite3.connect('t.larder/catalog.db', isolation_level=None, timeout=30)\n\
             db.enable_load_extension(True)\n\
             db.execute(\"select load_extension('./larder')\")\n";
        // Not the first one on the path: many are built without extensions, Debian's is not.
        let mut python = Command::new("/usr/bin/python3");
        python
            .args(["-c", &format!("{begin}{script}")])
            .current_dir(&self.0);
        python
    }

    /// What a script prints that ends well.
    pub fn script(&self, script: &str) -> String {
        let output = self.python(script).output().unwrap();
        // It logs to stderr, also what is no failure.
        assert!(
            output.status.success(),
            "{:?}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn check(&self) {
        let said = self.larder(&["check", "t.larder", "--read"]);
        // Notes name the triggers of the tests' own.
        let mut findings = said.lines().filter(|line| !line.starts_with("note: "));
        assert!(
            findings
                .next()
                .is_some_and(|line| line.starts_with("clean")),
            "{said}"
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `cargo xtask test`"))
}

pub fn told(output: Output) -> String {
    // The shell tells of a connection that does not close, and ends well.
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "CLIENT-2: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}
