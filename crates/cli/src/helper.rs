//! The helpers that mount(8) and umount(8) call for the type `fuse.larder`: this program under the
//! names `mount.fuse.larder` (or `mount.larder`) and `umount.fuse.larder` (or `umount.larder`), in
//! /sbin.
//!
//! # Invariants
//! * `CLI-20` The mount helper returns 0 only when the mount serves, and the umount helper only
//!   when everything is durable and the server has ended, or said to live on in other mounts. Else
//!   the exit code is that of mount(8): 1 for a wrong call, 32 for a mount that failed; and one
//!   line says why (`CLI-1`).

use crate::background;
use crate::error::{Failure, Result};
use crate::log;
use crate::remount;
use crate::serve::Request;
use crate::settings::Settings;
use crate::umount::{UMOUNT_WAIT, end_mount};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tracing::Level;

/// mount(8): incorrect invocation or permissions.
const EXIT_USAGE: u8 = 1;
/// mount(8): mount failure.
const EXIT_FAILED: u8 = 32;

/// A name under which this program is a helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Helper {
    Mount,
    Umount,
}

impl Helper {
    /// The helper that the path of a program names.
    pub(crate) fn named(program: &OsStr) -> Option<Helper> {
        match std::path::Path::new(program).file_name()?.to_str()? {
            "mount.fuse.larder" | "mount.larder" => Some(Helper::Mount),
            "umount.fuse.larder" | "umount.larder" => Some(Helper::Umount),
            _ => None,
        }
    }

    /// Does what mount(8) or umount(8) asks for; `arguments` without the program.
    pub(crate) fn run(self, arguments: Vec<OsString>) -> ExitCode {
        let done = log::start(Level::WARN).and_then(|()| match self {
            Helper::Mount => run_mount(arguments),
            Helper::Umount => run_umount(arguments),
        });
        log::finish();
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.tell();
                ExitCode::from(match failure {
                    Failure::Usage(_) => EXIT_USAGE,
                    _ => EXIT_FAILED,
                })
            }
        }
    }
}

fn run_mount(arguments: Vec<OsString>) -> Result<()> {
    let call = Call::parse(arguments, "sfnvrwilh", "otN")?;
    let [db, dir] = call.operands.as_slice() else {
        return Err(Failure::Usage(
            "a mount helper takes a database and a directory; call 'mount -t fuse.larder DB DIR'"
                .into(),
        ));
    };
    let mut settings = Settings::default();
    // What mount(8) calls the defaults, unless the list says otherwise; but only for root's
    // databases: whoever may write a database could make a set-uid file or a device node with it.
    // Users get neither: then fusermount3 mounts.
    let is_roots = std::fs::metadata(db).is_ok_and(|metadata| metadata.uid() == 0);
    (settings.suid, settings.dev) = (is_roots, is_roots);
    for (letter, value) in &call.values {
        match (letter, value.to_str()) {
            ('o', Some(list)) if remount::is_asked(list) => {
                return remount::remount(dir.as_ref(), list);
            }
            ('o', Some(list)) => settings.add_list(list).map_err(Failure::Usage)?,
            ('o', None) => {
                return Err(Failure::Usage(
                    "mount options are text; write them in UTF-8".into(),
                ));
            }
            // The type is ours, and the namespace is one that mount(8) has entered.
            _ => {}
        }
    }
    settings.read_only |= call.has('r');
    if call.has('f') {
        return Ok(());
    }
    let request = Request::new(PathBuf::from(db), PathBuf::from(dir), settings)?;
    let (mount, pid) = background::start(&request)?;
    if call.has('v') {
        crate::error::warn(&format!(
            "'{}' is served at '{}' by process {pid}",
            mount.name(),
            mount.mountpoint.display()
        ));
    }
    Ok(())
}

fn run_umount(arguments: Vec<OsString>) -> Result<()> {
    let call = Call::parse(arguments, "nlfvr", "tN")?;
    let [dir] = call.operands.as_slice() else {
        return Err(Failure::Usage(
            "an umount helper takes a directory; call 'umount DIR'".into(),
        ));
    };
    let dir = PathBuf::from(dir);
    if call.has('l') {
        return Ok(larder_fuse::detach(&dir)?);
    }
    let mount = larder_fuse::find_mount(&dir)?;
    end_mount(&dir, mount.as_ref(), Instant::now() + UMOUNT_WAIT)
}

/// A command line in the manner of mount(8): operands, single letters, and letters with a value.
#[derive(Debug, Default)]
struct Call {
    operands: Vec<OsString>,
    flags: Vec<char>,
    values: Vec<(char, OsString)>,
}

impl Call {
    /// `flags` and `valued` are the letters that there are.
    fn parse(arguments: Vec<OsString>, flags: &str, valued: &str) -> Result<Call> {
        let mut call = Call::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let letters = match argument.to_str().and_then(|text| text.strip_prefix('-')) {
                Some(letters) if !letters.is_empty() => letters.to_owned(),
                _ => {
                    call.operands.push(argument);
                    continue;
                }
            };
            let mut rest = letters.chars();
            while let Some(letter) = rest.next() {
                if flags.contains(letter) {
                    call.flags.push(letter);
                } else if valued.contains(letter) {
                    let value = match rest.as_str() {
                        "" => arguments.next().ok_or_else(|| {
                            Failure::Usage(format!("-{letter} lacks its value; see mount(8)"))
                        })?,
                        value => value.into(),
                    };
                    call.values.push((letter, value));
                    break;
                } else {
                    return Err(Failure::Usage(format!(
                        "unknown flag -{letter} for a helper of mount; see mount(8)"
                    )));
                }
            }
        }
        Ok(call)
    }

    fn has(&self, flag: char) -> bool {
        self.flags.contains(&flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_makes_the_helper() {
        let named = |name: &str| Helper::named(OsStr::new(name));
        assert_eq!(named("/sbin/mount.fuse.larder"), Some(Helper::Mount));
        assert_eq!(named("mount.larder"), Some(Helper::Mount));
        assert_eq!(named("/usr/sbin/umount.fuse.larder"), Some(Helper::Umount));
        assert_eq!(named("/usr/bin/larder"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn calls_are_read_as_mount_makes_them() {
        let call = |line: &str| {
            let arguments = line.split(' ').map(OsString::from).collect();
            Call::parse(arguments, "sfnvr", "ot")
        };
        let made = call("/db /mnt -n -v -o rw,noatime -t fuse.larder").unwrap();
        assert_eq!(made.operands, ["/db", "/mnt"]);
        assert!(made.has('n') && made.has('v') && !made.has('f'));
        assert_eq!(
            made.values,
            [('o', "rw,noatime".into()), ('t', "fuse.larder".into())]
        );
        let made = call("-sfoX /db").unwrap();
        assert!(made.has('s') && made.has('f') && made.operands == ["/db"]);
        assert_eq!(made.values, [('o', OsString::from("X"))]);
        for bad in ["-x", "/db -o", "--help"] {
            assert!(matches!(call(bad), Err(Failure::Usage(_))), "CLI-20: {bad}");
        }
    }
}
