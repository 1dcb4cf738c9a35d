//! Which processes use a mount, found in `/proc` without asking the filesystem: its server may be
//! the one that asks, or may be dead.
//!
//! An open file is recognised by the id of its mount (`fdinfo`), a mapped one by its device number,
//! a working directory, root or program by its path. Processes of other users are seen by root
//! only.

use crate::mountinfo::{MountInfo, find_same};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name, as `ps -o comm` shows it.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

/// What keeps a filesystem when one of its mounts is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remaining {
    /// It is mounted at another place too, as by `mount --bind`.
    Mounted(PathBuf),
    /// It is mounted in another mount namespace, the one of this process: a container's, or a
    /// service's of its own.
    Elsewhere(PathBuf, Holder),
    /// A process has something of it open, by a mount that was detached.
    Open(Holder),
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remaining::Mounted(place) => write!(f, "mounted at '{}' too", place.display()),
            Remaining::Elsewhere(place, holder) => write!(
                f,
                "mounted at '{}' in the mount namespace of {holder}",
                place.display()
            ),
            Remaining::Open(holder) => write!(f, "in use by {holder}"),
        }
    }
}

/// Where the filesystem of `mount` is mounted, in the namespaces of all processes, as far as this
/// user may see them. Cost: reads a table of mounts for each namespace.
pub fn find_mounted(mount: &MountInfo) -> Vec<Remaining> {
    let mut found: Vec<Remaining> = (find_same(Path::new("/proc/self/mountinfo"), mount))
        .unwrap_or_default()
        .into_iter()
        .map(|other| Remaining::Mounted(other.mountpoint))
        .collect();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    for pid in pids() {
        let is_new = namespace(&pid.to_string()).is_some_and(|namespace| seen.insert(namespace));
        if !is_new {
            continue;
        }
        let table = PathBuf::from(format!("/proc/{pid}/mountinfo"));
        let others = find_same(&table, mount).unwrap_or_default();
        found.extend(
            (others.into_iter()).map(|other| Remaining::Elsewhere(other.mountpoint, holder(pid))),
        );
    }
    found
}

/// The processes that have something open of a filesystem by any mount, also one that was detached.
/// Asks the filesystem nothing. Cost: looks at every open file of every process.
pub fn find_users(mount: &MountInfo) -> Vec<Remaining> {
    let is_there = |path: &Path| {
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
        found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == mount.device)
    };
    let uses = |pid: &u32| {
        let place = PathBuf::from(format!("/proc/{pid}"));
        let links = ["cwd", "root", "exe"].map(|link| place.join(link));
        let open = fs::read_dir(place.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut all = links.into_iter().chain(open.map(|entry| entry.path()));
        all.any(|path| is_there(&path))
    };
    let users = pids().into_iter().filter(uses);
    users.map(|pid| Remaining::Open(holder(pid))).collect()
}

fn pids() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

fn holder(pid: u32) -> Holder {
    let name = name_of(pid).unwrap_or_default();
    Holder { pid, name }
}

/// The processes that use `mount`, as far as this user may see them, by id. What cannot be looked
/// at, or ends meanwhile, is left out. Cost: reads several files of every process.
pub fn find_holders(mount: &MountInfo) -> Vec<Holder> {
    let pids = pids().into_iter();
    pids.filter(|&pid| holds(pid, mount)).map(holder).collect()
}

/// The name of a process; `None` when it is gone.
pub fn name_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

fn holds(pid: u32, mount: &MountInfo) -> bool {
    let place = Path::new("/proc").join(pid.to_string());
    let leads_there = |link: &str| {
        fs::read_link(place.join(link)).is_ok_and(|target| target.starts_with(&mount.mountpoint))
    };
    let has_open = || {
        let entries = fs::read_dir(place.join("fdinfo")).ok()?;
        let of_mount = |text: &str| {
            (text.lines())
                .filter_map(|line| line.strip_prefix("mnt_id:"))
                .any(|id| id.trim().parse() == Ok(mount.id))
        };
        let found = entries
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .any(|text| of_mount(&text));
        Some(found)
    };
    let has_mapped = || {
        let maps = fs::read(place.join("maps")).ok()?;
        let device = format!("{:02x}:{:02x}", mount.device.0, mount.device.1);
        let maps = String::from_utf8_lossy(&maps);
        // `address perms offset device inode path`
        Some(
            maps.lines()
                .any(|line| line.split(' ').nth(3) == Some(&device)),
        )
    };
    ["cwd", "root", "exe"].into_iter().any(leads_there)
        || has_open() == Some(true)
        || has_mapped() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::find_any_mount;

    #[test]
    fn this_process_holds_proc_while_it_has_a_file_of_it_open() {
        let mount = find_any_mount(Path::new("/proc")).unwrap().unwrap().info;
        let own = std::process::id();
        let held = || find_holders(&mount).iter().any(|holder| holder.pid == own);
        let file = fs::File::open("/proc/self/status").unwrap();
        assert!(held());
        drop(file);
        // Other tests may read /proc at any time, so only the positive answer is certain.
        let name = name_of(own).unwrap();
        assert_eq!(
            Holder {
                pid: 7,
                name: name.clone()
            }
            .to_string(),
            format!("{name} (7)")
        );
        assert_eq!(name_of(u32::MAX), None);
    }
}
