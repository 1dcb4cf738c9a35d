//! `cargo xtask demo-import DIR`: a real tree goes in by `cp -a`, and comes out the same, also
//! after a remount; then SQL asks about it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::compare::Listing;
use xtask::mounts::{Larder, Profile};
use xtask::process;

/// The README's SQL: a column of one's own on every file.
const ADD_COLUMN: &str = "ALTER TABLE main ADD COLUMN topic TEXT";
const SET_COLUMN: &str = "UPDATE main SET topic = 'large' WHERE kind = 'file' AND size >= 100000";
const QUERY: &str =
    "SELECT topic, count(*), sum(size) FROM main WHERE kind = 'file' GROUP BY topic ORDER BY topic";
const ONE_PATH: &str =
    "SELECT p.path FROM main_path p JOIN main m USING (ino) WHERE m.topic = 'large' LIMIT 1";

/// Runs the demonstration; an error at the first step that does not hold.
pub fn run(directory: &str) -> Result<(), String> {
    let original = fs::canonicalize(directory).map_err(|error| format!("{directory}: {error}"))?;
    let larder = step("build larder", || Larder::build(Profile::Release))?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let demo = Demo {
        larder,
        database: scratch.path().join("demo.larder"),
        mountpoint: scratch.path().join("mount"),
        copy: scratch.path().join("mount/copy"),
        original,
    };
    fs::create_dir(&demo.mountpoint).map_err(|error| format!("the mountpoint: {error}"))?;
    demo.run()
}

struct Demo {
    larder: Larder,
    database: PathBuf,
    mountpoint: PathBuf,
    /// Where the copy lies while mounted.
    copy: PathBuf,
    original: PathBuf,
}

impl Demo {
    fn run(&self) -> Result<(), String> {
        let listing = step("read the original's attributes", || read(&self.original))?;
        let (names, files, bytes) = (
            listing.name_count(),
            listing.file_count(),
            listing.content_bytes(),
        );
        println!(
            "{}: {names} names, {files} files, {:.2} GB",
            self.original.display(),
            bytes as f64 / 1e9
        );

        let database = text(&self.database);
        step("larder init", || self.larder.run(&["init", &database]))?;
        let mount = step("larder mount", || {
            self.larder.mount(&self.database, &self.mountpoint)
        })?;
        step("cp -a onto the mount", || {
            process::run("cp", &["-a", &text(&self.original), &text(&self.copy)])
        })?;
        self.compare(&listing)?;
        step("larder umount", || mount.unmount())?;

        let mount = step("larder mount again", || {
            self.larder.mount(&self.database, &self.mountpoint)
        })?;
        self.compare(&listing)?;
        self.query(&listing)?;
        step("larder umount", || mount.unmount())?;
        let report = step("larder check --read", || {
            self.larder.run(&["check", "--read", &database])
        })?;
        println!("{}", report.trim_end());
        println!("demo-import: {files} files, {bytes} bytes: everything is the same");
        Ok(())
    }

    fn compare(&self, original: &Listing) -> Result<(), String> {
        let (from, to) = (text(&self.original), text(&self.copy));
        step("diff -r --no-dereference", || {
            process::run("diff", &["-r", "--no-dereference", &from, &to])
        })?;
        step("compare modes, owners, times, links, attributes", || {
            let found = original.differences(&read(&self.copy)?);
            match found.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "{} differences:\n{}",
                    found.len(),
                    found[..found.len().min(10)].join("\n")
                )),
            }
        })
    }

    /// An unmodified `sqlite3` adds a column while mounted, and the mount shows it.
    fn query(&self, original: &Listing) -> Result<(), String> {
        let catalog = text(&self.database.join("catalog.db"));
        let sqlite = |sql: &str| process::output("sqlite3", &[&catalog, sql]);
        step("sqlite3: ALTER TABLE main ADD COLUMN", || {
            sqlite(ADD_COLUMN)
        })?;
        step("sqlite3: UPDATE the new column", || sqlite(SET_COLUMN))?;
        let answer = step("larder sql", || {
            self.larder.run(&["sql", &text(&self.database), QUERY])
        })?;
        println!("{}", answer.trim_end());
        let counted = sqlite(
            "SELECT count(*) FROM main_dirent d JOIN main m USING (ino) WHERE m.kind = 'file'",
        )?;
        step("as many file names in SQL as in the original", || {
            match counted.trim() == original.file_count().to_string() {
                true => Ok(()),
                false => Err(format!(
                    "SQL counts {}, the original has {}",
                    counted.trim(),
                    original.file_count()
                )),
            }
        })?;
        let path = sqlite(ONE_PATH)?;
        if path.trim().is_empty() {
            println!("no file of 100 kB or more: nothing to show as an attribute");
            return Ok(());
        }
        let file = self.mountpoint.join(path.trim().trim_start_matches('/'));
        step("the mount shows the column as user.column.topic", || {
            let arguments = [
                "--absolute-names",
                "--only-values",
                "-n",
                "user.column.topic",
                &text(&file),
            ];
            match process::output("getfattr", &arguments)?.as_str() {
                "large" => Ok(()),
                other => Err(format!(
                    "{}: user.column.topic is '{other}'",
                    file.display()
                )),
            }
        })
    }
}

fn read(root: &Path) -> Result<Listing, String> {
    Listing::read(root).map_err(|error| format!("{}: {error}", root.display()))
}

/// Runs one step, and prints its name, its time and its verdict.
fn step<T>(name: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let started = Instant::now();
    let result = run();
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    println!(
        "{verdict:>6}  {:8.2} s  {name}",
        started.elapsed().as_secs_f64()
    );
    result.map_err(|line| format!("{name}: {line}"))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
