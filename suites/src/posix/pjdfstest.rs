//! pjdfstest 0.2.2, the Rust rewrite: every feature that Linux has, as root, on the mount and on
//! ext4.
//!
//! What pjdfstest calls features but Linux has not: `chflags` and its flags, NFSv4 ACLs.
//!
//! * The tests of read-only filesystems remount what they run on. They run in a process of their
//!   own: other tests leave files open for writing, which keeps ext4 from being remounted.
//! * `mount -o remount` calls `/sbin/mount.fuse.larder`. The tests see it there, whether it is
//!   installed or not: a mount namespace of their own shows the built command under that name.
//! * glibc does not know the link count limit of a FUSE filesystem: see `link_max.c`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::judge::{Verdict, Verdicts, judge};
use super::run;
use super::site::Site;
use xtask::{Tally, install};

const PATIENCE: Duration = Duration::from_secs(300);

/// Hard links that an inode may have: docs/format.md, section 2.
const LINK_MAX: &str = "65000";

/// The tests that remount.
const REMOUNTING: &str = "erofs";

const LINK_MAX_SOURCE: &str = include_str!("link_max.c");

/// Runs it on both sides.
pub fn run(site: &Site) -> Result<Tally, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("pjdfstest needs root: it acts as several users".to_owned());
    }
    let pjdfstest = Pjdfstest::new(site)?;
    let mount = site.mount()?;
    let ours = pjdfstest.verdicts(&site.mountpoint(), Some(LINK_MAX))?;
    let ext4 = site.ext4()?;
    let theirs = pjdfstest.verdicts(ext4.path(), None)?;
    let mut tally = judge(&ours, &theirs);
    // Nothing may fail here, whatever ext4 does.
    let failed = ours
        .values()
        .filter(|verdict| matches!(verdict, Verdict::Failed(_)));
    tally.failed = tally.failed.max(failed.count() as u64);
    site.finish(mount)?;
    Ok(tally)
}

/// The program, and what it is given.
struct Pjdfstest {
    program: PathBuf,
    scratch: PathBuf,
    /// Another filesystem, for links and renames that must not cross.
    secondary: PathBuf,
}

impl Pjdfstest {
    fn new(site: &Site) -> Result<Pjdfstest, String> {
        let program = install::crate_program(install::PJDFSTEST)?;
        let pjdfstest = Pjdfstest {
            program,
            scratch: site.scratch().to_owned(),
            secondary: site.directory("secondary")?,
        };
        let helpers = site.directory("helpers")?;
        symlink(site.larder.path(), helpers.join("mount.fuse.larder"))
            .map_err(|error| format!("the mount helper: {error}"))?;
        let source = pjdfstest.scratch.join("link_max.c");
        fs::write(&source, LINK_MAX_SOURCE).map_err(|error| format!("link_max.c: {error}"))?;
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]);
        compile.args([&pjdfstest.scratch.join("link_max.so"), &source]);
        run::succeed(&mut compile, PATIENCE)?;
        Ok(pjdfstest)
    }

    /// All tests in `directory`, in two processes.
    fn verdicts(&self, directory: &Path, link_max: Option<&str>) -> Result<Verdicts, String> {
        let mut verdicts = self.run(directory, link_max, false)?;
        for (name, verdict) in self.run(directory, link_max, true)? {
            // What remounts was skipped by the process that may not.
            let before = verdicts.insert(name.clone(), verdict);
            if before != Some(Verdict::Skipped) {
                return Err(format!("{name} ran twice"));
            }
        }
        Ok(verdicts)
    }

    fn run(
        &self,
        directory: &Path,
        link_max: Option<&str>,
        may_remount: bool,
    ) -> Result<Verdicts, String> {
        let configuration = self.scratch.join("pjdfstest.toml");
        fs::write(&configuration, self.configuration(may_remount)?)
            .map_err(|error| format!("{}: {error}", configuration.display()))?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-euc"])
            .arg(
                "mount -t overlay overlay -o \"lowerdir=$1:/usr/sbin\" /usr/sbin; shift; \
                 exec \"$@\"",
            )
            .arg("sh")
            .arg(self.scratch.join("helpers"))
            .arg("env");
        if let Some(limit) = link_max {
            let library = self.scratch.join("link_max.so");
            command.arg(format!("LD_PRELOAD={}", library.display()));
            command.arg(format!("LARDER_LINK_MAX={limit}"));
        }
        command
            .arg(&self.program)
            .arg("--configuration-file")
            .arg(&configuration)
            .arg("--path")
            .arg(directory)
            .arg("--secondary-fs")
            .arg(&self.secondary);
        if may_remount {
            command.arg(REMOUNTING);
        }
        let finished = run::finish(&mut command, PATIENCE)?;
        let verdicts = parse(&finished.text);
        match finished.text.contains("Summary: ") && !verdicts.is_empty() {
            true => Ok(verdicts),
            false => Err(format!(
                "pjdfstest did not end well:\n{}",
                finished.tail(15)
            )),
        }
    }

    fn configuration(&self, may_remount: bool) -> Result<String, String> {
        let nobody = group_of("nobody")?;
        let daemon = group_of("daemon")?;
        Ok(format!(
            r#"[features]
posix_fallocate = {{}}
rename_ctime = {{}}
stat_st_birthtime = {{}}
utime_now = {{}}
utimensat = {{}}

[settings]
naptime = 0.02
allow_remount = {may_remount}

[dummy_auth]
entries = [["nobody", "{nobody}"], ["daemon", "{daemon}"]]
"#
        ))
    }
}

fn group_of(user: &str) -> Result<String, String> {
    Ok(xtask::process::output("id", &["-gn", user])?
        .trim()
        .to_owned())
}

/// Reads lines like `chmod::eperm   ok`, and what follows `FAILED`.
fn parse(text: &str) -> Verdicts {
    let text = without_colours(text);
    let mut verdicts = Verdicts::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let verdict = match word {
            _ if line.starts_with(char::is_whitespace) => continue,
            "ok" => Verdict::Passed,
            "skipped" => Verdict::Skipped,
            "FAILED" => {
                let detail: Vec<&str> = std::iter::from_fn(|| {
                    lines.next_if(|line| !line.is_empty() && !line.starts_with("Backtrace"))
                })
                .take(6)
                .collect();
                Verdict::Failed(detail.join("\n"))
            }
            _ => continue,
        };
        verdicts.insert(name.to_owned(), verdict);
    }
    verdicts
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |sum, part| {
        sum + part.split_once('m').map_or(part, |(_, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_read() {
        let text = "\u{1b}[34mchmod::eperm\u{1b}[0m      \u{1b}[32mok\u{1b}[0m\n\
            link::max  skipped\n\tCannot get value\n\
            open::x::y  FAILED\n\tassertion failed\n  left: 1\n\nBacktrace:\n   8: \
            _start\n\nSummary: 1 failed\n";
        let verdicts = parse(text);
        assert_eq!(verdicts.len(), 3);
        assert_eq!(verdicts["chmod::eperm"], Verdict::Passed);
        assert_eq!(verdicts["link::max"], Verdict::Skipped);
        assert_eq!(
            verdicts["open::x::y"],
            Verdict::Failed("\tassertion failed\n  left: 1".to_owned())
        );
    }
}
