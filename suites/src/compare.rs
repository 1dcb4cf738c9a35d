//! Two directory trees, compared in everything that `cp -a` keeps.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names of a tree, and what they stand for.
pub struct Listing {
    entries: BTreeMap<PathBuf, Metadata>,
    xattrs: BTreeMap<PathBuf, Vec<(OsString, Vec<u8>)>>,
}

impl Listing {
    /// Reads all attributes below `root`, and of `root` itself.
    pub fn read(root: &Path) -> io::Result<Listing> {
        let mut listing = Listing {
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
        };
        let mut waiting = vec![PathBuf::new()];
        while let Some(path) = waiting.pop() {
            // Joining an empty path would ask for a directory.
            let at = if path.as_os_str().is_empty() {
                root.to_owned()
            } else {
                root.join(&path)
            };
            let metadata = fs::symlink_metadata(&at)?;
            if metadata.is_dir() {
                for entry in fs::read_dir(&at)? {
                    waiting.push(path.join(entry?.file_name()));
                }
            }
            let xattrs = read_xattrs(&at)?;
            if !xattrs.is_empty() {
                listing.xattrs.insert(path.clone(), xattrs);
            }
            listing.entries.insert(path, metadata);
        }
        Ok(listing)
    }

    /// Number of regular files.
    pub fn file_count(&self) -> usize {
        self.entries
            .values()
            .filter(|metadata| metadata.is_file())
            .count()
    }

    /// Number of names.
    pub fn name_count(&self) -> usize {
        self.entries.len()
    }

    /// Their bytes; a file with several names counts once.
    pub fn content_bytes(&self) -> u64 {
        let files = self.entries.values().filter(|metadata| metadata.is_file());
        let sizes: HashMap<(u64, u64), u64> = files
            .map(|metadata| ((metadata.dev(), metadata.ino()), metadata.len()))
            .collect();
        sizes.values().sum()
    }

    /// The differences, one line each.
    pub fn differences(&self, other: &Listing) -> Vec<String> {
        let mut found = Vec::new();
        for (path, metadata) in &self.entries {
            match other.entries.get(path) {
                None => found.push(format!("missing: {}", path.display())),
                Some(copy) => found.extend(difference(path, metadata, copy)),
            }
        }
        let extra = other
            .entries
            .keys()
            .filter(|path| !self.entries.contains_key(*path));
        found.extend(extra.map(|path| format!("unexpected: {}", path.display())));
        found.extend(link_differences(&self.link_groups(), &other.link_groups()));
        if self.xattrs != other.xattrs {
            let differs = |path: &&PathBuf| self.xattrs.get(*path) != other.xattrs.get(*path);
            let paths = self
                .xattrs
                .keys()
                .chain(other.xattrs.keys())
                .filter(differs);
            found.extend(
                paths.map(|path| format!("extended attributes differ: {}", path.display())),
            );
        }
        found
    }

    /// For every name of a file that has several here: the first of them.
    fn link_groups(&self) -> BTreeMap<&Path, &Path> {
        let mut first: HashMap<(u64, u64), &Path> = HashMap::new();
        let mut groups = BTreeMap::new();
        for (path, metadata) in self
            .entries
            .iter()
            .filter(|(_, metadata)| !metadata.is_dir())
        {
            let leader = *first
                .entry((metadata.dev(), metadata.ino()))
                .or_insert(path);
            if leader != path {
                groups.insert(path.as_path(), leader);
            }
        }
        groups
    }
}

fn difference(path: &Path, original: &Metadata, copy: &Metadata) -> Option<String> {
    let mut what = Vec::new();
    let mut compare = |name: &str, a: String, b: String| {
        if a != b {
            what.push(format!("{name} {a} became {b}"));
        }
    };
    // The mode has the kind in it.
    compare(
        "mode",
        format!("{:o}", original.mode()),
        format!("{:o}", copy.mode()),
    );
    compare("owner", original.uid().to_string(), copy.uid().to_string());
    compare("group", original.gid().to_string(), copy.gid().to_string());
    compare("mtime", time(original), time(copy));
    if !original.is_dir() {
        compare("length", original.len().to_string(), copy.len().to_string());
    }
    let kind = original.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        compare(
            "device",
            original.rdev().to_string(),
            copy.rdev().to_string(),
        );
    }
    (!what.is_empty()).then(|| format!("{}: {}", path.display(), what.join(", ")))
}

fn time(metadata: &Metadata) -> String {
    format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec())
}

fn link_differences(
    original: &BTreeMap<&Path, &Path>,
    copy: &BTreeMap<&Path, &Path>,
) -> Vec<String> {
    let differs = |path: &&&Path| original.get(**path) != copy.get(**path);
    let mut paths: Vec<&&Path> = original.keys().chain(copy.keys()).filter(differs).collect();
    paths.dedup();
    paths
        .iter()
        .map(|path| format!("hard links differ: {}", path.display()))
        .collect()
}

/// The attributes in the name spaces that `cp -a` copies for everyone.
fn read_xattrs(path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    use std::os::unix::ffi::OsStringExt;
    let mut names = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut xattrs = Vec::new();
    for name in names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| name.starts_with(b"user."))
    {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        xattrs.push((OsString::from_vec(name.to_vec()), value));
    }
    xattrs.sort();
    Ok(xattrs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn every_kind_of_difference_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let (a, b) = (scratch.path().join("a"), scratch.path().join("b"));
        fs::create_dir_all(a.join("d")).unwrap();
        fs::write(a.join("f"), "text").unwrap();
        fs::hard_link(a.join("f"), a.join("d/g")).unwrap();
        symlink("f", a.join("l")).unwrap();
        let copy = || {
            let _ = fs::remove_dir_all(&b);
            xtask::process::run("cp", &["-a", a.to_str().unwrap(), b.to_str().unwrap()]).unwrap();
        };
        let original = Listing::read(&a).unwrap();
        let differences = || original.differences(&Listing::read(&b).unwrap());
        copy();
        assert_eq!(differences(), Vec::<String>::new());
        assert_eq!(
            (
                original.file_count(),
                original.content_bytes(),
                original.name_count()
            ),
            (2, 4, 5)
        );

        fs::set_permissions(b.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(
            differences().iter().any(|line| line.contains("mode 100")),
            "{:?}",
            differences()
        );
        copy();
        fs::write(b.join("d/g"), "text").unwrap();
        assert!(differences().iter().any(|line| line.contains("mtime")));
        copy();
        fs::remove_file(b.join("d/g")).unwrap();
        assert!(differences().contains(&"missing: d/g".to_owned()));
        xtask::process::run(
            "cp",
            &[
                "-a",
                b.join("f").to_str().unwrap(),
                b.join("d/g").to_str().unwrap(),
            ],
        )
        .unwrap();
        assert!(
            differences()
                .iter()
                .any(|line| line.starts_with("hard links differ"))
        );
        copy();
        fs::write(b.join("new"), "").unwrap();
        assert!(differences().contains(&"unexpected: new".to_owned()));
    }
}
