//! What machine it is, for the header of a run.

use crate::error::{Error, Result, Said};
use crate::process;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Processor, cores, memory, kernel, the device below `work`, and the versions of the systems under
/// test.
pub fn describe(work: &Path) -> Result<BTreeMap<String, String>> {
    let read = |path: &str| fs::read_to_string(path).said(|| path.to_owned());
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_once(':'))
            .map_or_else(
                || "unknown".to_owned(),
                |(_, value)| value.trim().to_owned(),
            )
    };
    let cores = std::thread::available_parallelism()?;
    let mut machine = BTreeMap::from([
        (
            "processor".to_owned(),
            field(&read("/proc/cpuinfo")?, "model name"),
        ),
        ("cores".to_owned(), cores.to_string()),
        (
            "memory".to_owned(),
            field(&read("/proc/meminfo")?, "MemTotal"),
        ),
        (
            "kernel".to_owned(),
            read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        ),
        ("device".to_owned(), device_of(work)?),
        ("larder".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("sqlite".to_owned(), rusqlite::version().to_owned()),
    ]);
    if let Some(version) = crate::backend::postgres::version() {
        machine.insert("postgres".to_owned(), version);
    }
    for (name, program, argument) in [
        ("xfsprogs", "mkfs.xfs", "-V"),
        ("ntfs-3g", "ntfs-3g", "--version"),
        ("btrfs-progs", "mkfs.btrfs", "--version"),
    ] {
        let version = process::find(program).and_then(|path| process::version(&path, argument));
        if let Some(version) = version {
            machine.insert(name.to_owned(), version);
        }
    }
    Ok(machine)
}

/// Memory of the machine, bytes.
pub fn memory_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).said(|| path.to_owned())?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| Error::failed(format!("{path} does not say how much memory there is")))
}

/// What the directory lies on: the longest mount point that leads there.
fn device_of(directory: &Path) -> Result<String> {
    let directory = directory
        .canonicalize()
        .said(|| directory.display().to_string())?;
    let mounts = fs::read_to_string("/proc/self/mounts").said(|| "/proc/self/mounts".to_owned())?;
    let found = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (device, mountpoint) = (fields.next()?, fields.next()?);
            let kind = fields.next()?;
            let leads = directory.starts_with(mountpoint);
            leads.then(|| (mountpoint.len(), format!("{device} ({kind})")))
        })
        .max();
    Ok(found.map_or_else(|| "unknown".to_owned(), |(_, device)| device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_wherever_programs_say_them() {
        let machine = describe(Path::new("/")).unwrap();
        assert_eq!(machine.values().find(|value| value.is_empty()), None);
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("told");
        // As ntfs-3g does.
        fs::write(&program, "echo told 1.2 >&2").unwrap();
        let told = |argument: &str| process::version(Path::new("/bin/sh"), argument);
        assert_eq!(
            told(&program.to_string_lossy()),
            Some("told 1.2".to_owned())
        );
        assert_eq!(process::version(&scratch.path().join("no"), "-V"), None);
    }
}
