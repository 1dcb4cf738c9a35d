//! `larder doctor`: what this machine offers to mounts, and what to do about what it lacks.

use crate::error::{Failure, Result};
use crate::output::Output;
use clap::Args;
use larder_fuse::IoUringSupport;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::path::Path;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// Has a directory for each connection where it is mounted; its root is then not that of sysfs.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
const IO_URING_DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Show what this machine offers to mounts, and what to do about what it lacks
#[derive(Debug, Args)]
#[command(
    after_help = "Needs no database, and changes nothing. Exit code 1: you cannot mount here.
Example: larder doctor"
)]
pub(crate) struct DoctorArgs;

/// How much depends on a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    /// Everything works without it.
    Better,
    /// Who asks cannot mount, and for root that means nobody.
    Needed,
}

impl Grade {
    fn name(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Better => "missing",
            Grade::Needed => "needed",
        }
    }
}

/// What was looked at, and what helps.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    about: &'static str,
    grade: Grade,
    found: String,
    /// Empty where nothing is to be done.
    remedy: String,
}

impl Finding {
    fn good(about: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            about,
            grade: Grade::Good,
            found: found.into(),
            remedy: String::new(),
        }
    }

    fn lacks(about: &'static str, grade: Grade, found: String, remedy: &str) -> Finding {
        Finding {
            about,
            grade,
            found,
            remedy: remedy.into(),
        }
    }
}

/// `larder doctor`.
pub(crate) fn doctor(out: &mut Output) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let permitted = fs::read_to_string(IO_URING_DISABLED).unwrap_or_default();
    let findings = [
        device(),
        helper(is_root),
        connections(),
        io_uring(IoUringSupport::detect(), permitted.trim()),
    ];
    if out.is_json() {
        let all: Vec<Value> = findings.iter().map(as_json).collect();
        out.document(&json!({ "findings": all }))?;
    } else {
        for finding in &findings {
            out.line(&as_line(finding))?;
        }
    }
    let needed = findings.iter().find(|one| one.grade == Grade::Needed);
    needed.map_or(Ok(()), |one| Err(Failure::Other(verdict(one, is_root))))
}

/// What a needed finding comes to.
fn verdict(Finding { found, remedy, .. }: &Finding, is_root: bool) -> String {
    // Of others a user sees nothing here.
    let who = match is_root {
        true => "nobody can",
        false => "you cannot",
    };
    format!("{who} mount here: {found}; {remedy}")
}

fn as_line(finding: &Finding) -> String {
    let Finding {
        about,
        grade,
        found,
        remedy,
    } = finding;
    let grade = grade.name();
    match remedy.as_str() {
        "" => format!("{grade:<8} {about:<12} {found}"),
        remedy => format!("{grade:<8} {about:<12} {found}; {remedy}"),
    }
}

fn as_json(finding: &Finding) -> Value {
    json!({
        "about": finding.about,
        "grade": finding.grade.name(),
        "found": finding.found,
        "remedy": finding.remedy,
    })
}

fn device() -> Finding {
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::good("fuse", format!("{DEVICE} can be opened")),
        Err(error) => Finding::lacks(
            "fuse",
            Grade::Needed,
            format!("{DEVICE} cannot be opened ({error})"),
            "as root: 'modprobe fuse', and 'chmod 666 /dev/fuse' for other users",
        ),
    }
}

fn helper(is_root: bool) -> Finding {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .map(|directory| directory.join(HELPER))
        .find(|path| path.is_file());
    match found {
        Some(path) => Finding::good("helper", format!("{} mounts for users", path.display())),
        None => Finding::lacks(
            "helper",
            // Root does without; users of this machine do not.
            match is_root {
                true => Grade::Better,
                false => Grade::Needed,
            },
            format!("there is no '{HELPER}', so only root can mount"),
            "install the package fuse3",
        ),
    }
}

fn connections() -> Finding {
    let device = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(Path::new(path)).map(|found| found.dev()).ok()
    };
    match (device(CONNECTIONS), device("/sys/fs/fuse")) {
        (Some(own), Some(parent)) if own != parent => {
            Finding::good("connections", "those of killed servers can be ended")
        }
        _ => Finding::lacks(
            "connections",
            Grade::Better,
            "programs may hang on a mount whose server was killed".into(),
            "as root: 'mount -t fusectl fusectl /sys/fs/fuse/connections'",
        ),
    }
}

/// `permitted`: what the kernel says of io_uring in general: 0 everybody may, 1 root and a group, 2
/// nobody.
fn io_uring(support: IoUringSupport, permitted: &str) -> Finding {
    let found = match support {
        IoUringSupport::Enabled => {
            return Finding::good(
                "io_uring",
                "new mounts with '-o transport=io_uring' get their requests by it",
            );
        }
        IoUringSupport::Missing => "the kernel cannot hand over requests by io_uring".into(),
        IoUringSupport::Refused(_) if permitted == "2" => "io_uring is forbidden".into(),
        IoUringSupport::Refused(_) if permitted == "1" => {
            "io_uring is for root and the group of kernel.io_uring_group".into()
        }
        IoUringSupport::Refused(error) => format!("this process gets no io_uring ({error:?})"),
        IoUringSupport::Faulty => "this version of the kernel may use memory that it has freed \
             when a mount is aborted whose requests come by io_uring (CVE-2025-68805), so \
             '-o transport=auto' does without"
            .into(),
        IoUringSupport::Disabled => {
            "the kernel could hand over requests by io_uring, and root has not allowed it".into()
        }
    };
    Finding::lacks("io_uring", Grade::Better, found, support.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_fuse::Errno;

    #[test]
    fn what_is_missing_has_a_remedy() {
        let line = |support, permitted| as_line(&io_uring(support, permitted));
        let enable = line(IoUringSupport::Disabled, "0");
        assert!(
            enable.contains("/sys/module/fuse/parameters/enable_uring")
                && enable.contains("fuse.enable_uring=1"),
            "{enable}"
        );
        assert!(line(IoUringSupport::Missing, "").contains("6.14"));
        let refused = IoUringSupport::Refused(Errno::EPERM);
        let forbidden = line(refused, "2");
        assert!(forbidden.contains("forbidden") && forbidden.contains("sysctl"));
        assert!(line(refused, "1").contains("io_uring_group"));
        assert!(line(refused, "0").contains("seccomp"));
        let faulty = line(IoUringSupport::Faulty, "0");
        assert!(faulty.contains("CVE-2025-68805") && faulty.contains("6.18.3"));
        let finding = io_uring(IoUringSupport::Enabled, "0");
        assert_eq!((finding.grade, finding.remedy.as_str()), (Grade::Good, ""));
    }

    #[test]
    fn whoever_cannot_mount_is_told_who() {
        let finding = Finding::lacks("fuse", Grade::Needed, "it is not there".into(), "load it");
        let told = |is_root| verdict(&finding, is_root);
        assert_eq!(
            told(true),
            "nobody can mount here: it is not there; load it"
        );
        assert_eq!(
            told(false),
            "you cannot mount here: it is not there; load it"
        );
    }

    #[test]
    fn a_line_ends_with_what_to_do() {
        let finding = Finding::lacks("fuse", Grade::Needed, "it is not there".into(), "load it");
        assert_eq!(
            as_line(&finding),
            "needed   fuse         it is not there; load it"
        );
        assert_eq!(
            as_line(&Finding::good("fuse", "it is")),
            "ok       fuse         it is"
        );
    }
}
