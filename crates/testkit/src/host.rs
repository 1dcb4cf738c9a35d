//! Operations and walks on a directory of the host: a mount, or any filesystem to compare with.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, XattrFlags};

use crate::tree::{Entry, EntryKind, Op, Tree, fill};

/// A directory in which scripts run.
#[derive(Debug, Clone)]
pub struct HostTree {
    root: PathBuf,
}

impl HostTree {
    /// The tree under `root`, which exists.
    pub fn new(root: impl Into<PathBuf>) -> HostTree {
        HostTree { root: root.into() }
    }

    /// Does `op` with the system calls that an ordinary program would use. The process's umask must
    /// leave the owner's bits and those of mode 0755 alone.
    pub fn apply(&self, op: &Op) -> io::Result<()> {
        match op {
            Op::Create { path, mode } => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(*mode)
                .open(self.at(path))
                .map(drop),
            Op::Anonymous {
                path,
                mode,
                len,
                seed,
            } => {
                let place = self.at(path);
                let parent = place.parent().unwrap_or(Path::new("/"));
                let mode = rustix::fs::Mode::from_raw_mode(*mode);
                let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
                let file = File::from(rustix::fs::open(parent, flags, mode)?);
                file.write_all_at(&fill(*seed, *len), 0)?;
                let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                Ok(rustix::fs::linkat(CWD, unnamed, CWD, place, follow)?)
            }
            Op::Mkdir { path, mode } => Ok(rustix::fs::mkdir(
                self.at(path),
                rustix::fs::Mode::from_raw_mode(*mode),
            )?),
            Op::Rmdir { path } => fs::remove_dir(self.at(path)),
            Op::Symlink { path, target } => std::os::unix::fs::symlink(target, self.at(path)),
            Op::Link { from, to } => fs::hard_link(self.at(from), self.at(to)),
            Op::Unlink { path } => fs::remove_file(self.at(path)),
            Op::Rename { from, to } => fs::rename(self.at(from), self.at(to)),
            Op::Exchange { one, other } => Ok(rustix::fs::renameat_with(
                CWD,
                self.at(one),
                CWD,
                self.at(other),
                RenameFlags::EXCHANGE,
            )?),
            Op::Write {
                path,
                offset,
                len,
                seed,
            } => self
                .writable(path)?
                .write_all_at(&fill(*seed, *len), *offset),
            Op::Append { path, len, seed } => {
                let mut file = OpenOptions::new().append(true).open(self.at(path))?;
                io::Write::write_all(&mut file, &fill(*seed, *len))
            }
            Op::Truncate { path, len } => self.writable(path)?.set_len(*len),
            Op::Punch { path, offset, len } => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(
                    self.writable(path)?,
                    flags,
                    *offset,
                    *len,
                )?)
            }
            Op::Replace { .. } | Op::Move { .. } => Err(io::ErrorKind::Unsupported.into()),
            Op::SetXattr { path, name, value } => Ok(rustix::fs::lsetxattr(
                self.at(path),
                name.as_str(),
                value,
                XattrFlags::empty(),
            )?),
            Op::RemoveXattr { path, name } => {
                Ok(rustix::fs::lremovexattr(self.at(path), name.as_str())?)
            }
            Op::Chmod { path, mode } => {
                fs::set_permissions(self.at(path), fs::Permissions::from_mode(*mode))
            }
            Op::Sync { path } => File::open(self.at(path))?.sync_all(),
            Op::SyncAll => {
                // The kernel does not hand syncfs on to a mount in user space, but the fsync of a
                // directory it does.
                let root = File::open(&self.root)?;
                rustix::fs::syncfs(&root)?;
                root.sync_all()
            }
        }
    }

    /// Reads everything.
    pub fn walk(&self) -> io::Result<Tree> {
        let mut tree = Tree::default();
        self.walk_directory("", &mut tree)?;
        Ok(tree)
    }

    fn walk_directory(&self, directory: &str, tree: &mut Tree) -> io::Result<()> {
        for entry in fs::read_dir(self.at(directory))? {
            let name = entry?.file_name();
            let path = format!("{directory}/{}", name.to_string_lossy());
            let entry = self.entry(&path)?;
            let is_directory = entry.kind == EntryKind::Directory;
            tree.entries.push(entry);
            if is_directory {
                self.walk_directory(&path, tree)?;
            }
        }
        Ok(())
    }

    fn entry(&self, path: &str) -> io::Result<Entry> {
        let at = self.at(path);
        let metadata = fs::symlink_metadata(&at)?;
        let kind = if metadata.is_dir() {
            EntryKind::Directory
        } else if metadata.is_symlink() {
            EntryKind::Symlink(fs::read_link(&at)?.to_string_lossy().into_owned())
        } else {
            let bytes = fs::read(&at)?;
            if bytes.len() as u64 != metadata.len() {
                return Err(io::Error::other(format!(
                    "{path}: {} bytes read of {}",
                    bytes.len(),
                    metadata.len()
                )));
            }
            let nlink = metadata.nlink() as u32;
            EntryKind::File {
                nlink,
                len_bytes: metadata.len(),
                content: Tree::hash_content(&bytes),
            }
        };
        let xattrs = read_xattrs(&at)?;
        Ok(Entry {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
            inode: metadata.ino(),
            kind,
            xattrs,
        })
    }

    fn writable(&self, path: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.at(path))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// The extended attributes of what `path` names, of users' namespace.
pub fn read_xattrs(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let names = list_xattrs(path)?.into_iter();
    names
        .map(|name| read_xattr(path, &name).map(|value| (name, value)))
        .collect()
}

fn list_xattrs(path: &Path) -> io::Result<Vec<String>> {
    let mut buffer = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut buffer[..])?;
    let names = buffer[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    // Security modules add their own.
    Ok(names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| name.starts_with("user."))
        .collect())
}

fn read_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Mix, Script};
    use crate::tree::{Model, digest, explain_difference};

    /// `TESTKIT-4`.
    #[test]
    fn the_model_agrees_with_a_real_filesystem() {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        for seed in 0..4 {
            let directory = tempfile::tempdir().unwrap();
            let host = HostTree::new(directory.path());
            let mix = Mix {
                entries_max: 60,
                file_bytes_max: 100_000,
                write_bytes_max: 30_000,
                sync_percent: 0,
                overwrite_percent: 0,
                fragment_percent: 0,
            };
            let script = Script::generate(seed, 400, mix);
            for (index, op) in script.ops.iter().enumerate() {
                host.apply(op)
                    .unwrap_or_else(|error| panic!("seed {seed}, {index}: {op:?}: {error}"));
                let tree = host.walk().unwrap();
                let found = script.find_prefix(&tree, index + 1, index + 1);
                assert!(
                    found.is_some(),
                    "seed {seed}, {index}: {op:?}: {}",
                    explain_difference(&script.tree(index + 1), &tree)
                );
            }
            let op = Op::Anonymous {
                path: "/named".into(),
                mode: 0o640,
                len: 5000,
                seed,
            };
            host.apply(&op).unwrap();
            let mut model = Model::new();
            script.ops.iter().for_each(|op| model.apply(op));
            model.apply(&op);
            assert_eq!(digest(&host.walk().unwrap()), digest(&model.tree()));
        }
    }
}
