//! Which processes use a mount, found in `/proc` without asking the filesystem: its server may be the
//! one that asks, or may be dead.
//!
//! An open file is recognised by the id of its mount (`fdinfo`), a mapped one by its device number, a
//! working directory, root or program by its path. Processes of other users are seen by root only.

use crate::mountinfo::MountInfo;
use std::fs;
use std::path::Path;

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name, as `ps -o comm` shows it.
    pub name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

/// The processes that use `mount`, as far as this user may see them, by id. What cannot be looked at, or
/// ends meanwhile, is left out. Cost: reads several files of every process.
pub fn find_holders(mount: &MountInfo) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.into_iter()
        .filter(|&pid| holds(pid, mount))
        .map(|pid| Holder {
            pid,
            name: name_of(pid).unwrap_or_default(),
        })
        .collect()
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
