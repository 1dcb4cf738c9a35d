//! `mount -o remount,…`: the kernel changes its flags of a mount, and the server goes on as it is.
//!
//! A mount that was made read-only here refuses changes in the kernel. One that is served read-only
//! stays so: its server refuses them. Options of the server cannot be changed; mount(8) repeats
//! those that are in force.

use crate::error::{Failure, Result};
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;

/// `(option, flag, whether the option sets the flag)`; of contradicting options the last one
/// counts.
const FLAGS: [(&str, MountFlags, bool); 12] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
];

/// Whether the list of options asks for it.
pub(crate) fn is_asked(list: &str) -> bool {
    list.split(',').any(|option| option == "remount")
}

/// Gives the mount at `dir` the flags of the list. Before it becomes read-only, everything is
/// durable.
pub(crate) fn remount(dir: &Path, list: &str) -> Result<()> {
    if larder_fuse::find_mount(dir)?.is_none() {
        return Err(Failure::Other(format!(
            "nothing of Larder's is mounted at '{}', so nothing can be remounted",
            dir.display()
        )));
    }
    let flags = flags_of(list);
    if flags.contains(MountFlags::RDONLY) {
        larder_fuse::make_durable(dir)?;
    }
    mount_remount(dir, flags, c"").map_err(|errno| Failure::Io {
        what: format!("cannot remount '{}'", dir.display()),
        source: errno.into(),
    })
}

fn flags_of(list: &str) -> MountFlags {
    let mut flags = MountFlags::empty();
    for option in list.split(',') {
        if let Some((_, flag, is_set)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            flags.set(*flag, *is_set);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_option_counts() {
        assert!(is_asked("rw,remount") && !is_asked("rw,x-remount"));
        assert_eq!(
            flags_of("rw,nosuid,nodev,user_id=0,remount,ro"),
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV
        );
        assert_eq!(flags_of("ro,noexec,remount,rw,exec"), MountFlags::empty());
    }
}
