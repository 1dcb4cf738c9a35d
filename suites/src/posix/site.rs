//! Where a suite works: a scratch directory with a database, its mountpoint, and ext4 beside it.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use xtask::mounts::{Larder, Mount};
use xtask::process;

/// Sparse: it takes what is written.
const EXT4_BYTES: u64 = 16 << 30;

/// Everything that one suite needs. Dropped, it is gone from the disk.
pub struct Site {
    /// The command.
    pub larder: Larder,
    /// How long to run.
    pub length: Length,
    has_database: Cell<bool>,
    scratch: tempfile::TempDir,
}

impl Site {
    /// An empty scratch directory; the database is made by the first [`Site::mount`].
    pub fn new(larder: Larder, length: Length) -> Result<Site, String> {
        let scratch =
            tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        // Other users have to come through.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))
            .map_err(|error| format!("{}: {error}", scratch.path().display()))?;
        let site = Site {
            larder,
            length,
            has_database: Cell::new(false),
            scratch,
        };
        site.directory("mount")?;
        Ok(site)
    }

    /// The scratch directory, on the host's filesystem.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A new empty directory in the scratch directory.
    pub fn directory(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.scratch().join(name);
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// Where the database is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.scratch().join("mount")
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.scratch().join("suite.larder")
    }

    /// Mounts the database; makes it, when it is not there.
    pub fn mount(&self) -> Result<Mount, String> {
        if !self.has_database.replace(true) {
            self.larder
                .run(&["init", &self.database().to_string_lossy()])?;
        }
        self.larder.mount(&self.database(), &self.mountpoint())
    }

    /// Unmounts, and proves that the database is sound.
    pub fn finish(&self, mount: Mount) -> Result<(), String> {
        mount.unmount()?;
        self.check()
    }

    /// `larder check --read`: nothing found.
    pub fn check(&self) -> Result<(), String> {
        self.larder
            .run(&["check", "--read", &self.database().to_string_lossy()])
            .map(drop)
    }

    /// A new ext4 filesystem in the scratch directory, for root only.
    pub fn ext4(&self) -> Result<Ext4, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("comparing with ext4 needs root, which may mount it".to_owned());
        }
        let image = self.scratch().join("ext4.image");
        fs::File::create(&image)
            .and_then(|file| file.set_len(EXT4_BYTES))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        let image = image.to_string_lossy().into_owned();
        process::output("/usr/sbin/mkfs.ext4", &["-q", "-F", &image])?;
        let directory = self.directory("ext4")?;
        process::output(
            "mount",
            &["-o", "loop,nodev", &image, &directory.to_string_lossy()],
        )?;
        Ok(Ext4 { directory })
    }
}

/// A mounted ext4 filesystem. Dropped, it is unmounted.
pub struct Ext4 {
    directory: PathBuf,
}

impl Ext4 {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let directory = self.directory.to_string_lossy();
        if let Err(line) = process::output("umount", &["-l", &directory]) {
            eprintln!("xtask: {line}");
        }
    }
}

/// How long the suites take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Seconds each, for the test run.
    Quick,
    /// What the documents promise.
    Full,
}

impl Length {
    /// The first value for a quick run, the other for a full one.
    pub fn choose<T>(self, quick: T, full: T) -> T {
        match self {
            Length::Quick => quick,
            Length::Full => full,
        }
    }
}
