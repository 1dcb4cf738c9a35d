//! Volumes: filesystems on loop images, which nobody else sees and which nothing leaves behind.
//!
//! A volume is an image file, already without a name, behind a loop device with direct I/O, mounted
//! in a mount namespace of our own.
//!
//! * `VOLUME-1` Nothing of a volume outlives the process that made it, however that ends: the
//!   kernel takes the mounts with the namespace, the device with its last user, the image with the
//!   device. SIGKILL leaves empty directories, where the mount points were.
//! * `VOLUME-2` What is read after [`Volume::at_rest`] comes from the device: neither the
//!   filesystem nor the host has it in memory.
//!
//! A namespace belongs to a thread and to the threads and processes that it starts.

use crate::error::{Error, Kind, Result, Said};
use crate::process::{self, Server};
use rustix::fs::{Advice, FallocateFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the kernel reads ahead on every volume, KiB: its default for disks, which loop devices do
/// not have.
const READAHEAD_KIB: u32 = 128;

/// The kinds of filesystem that volumes can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilesystemKind {
    /// The second extended filesystem: no journal.
    Ext2,
    /// With a journal.
    Ext3,
    /// With extents and delayed allocation.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// NTFS, served by ntfs-3g.
    Ntfs,
    /// FAT32, served by fusefat where the kernel has no vfat.
    Fat32,
}

/// A filesystem to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filesystem {
    /// Which.
    pub kind: FilesystemKind,
    /// Its block (cluster), bytes; `None`: its own choice.
    pub block_bytes: Option<u64>,
}

/// How to make one: names, programs, packages.
struct Recipe {
    kind: FilesystemKind,
    name: &'static str,
    maker: &'static str,
    package: &'static str,
    arguments: &'static [&'static str],
    block_flag: &'static str,
}

/// The makers leave out what they would do later in the background, and leave the image allocated.
const RECIPES: [Recipe; 7] = [
    Recipe {
        kind: FilesystemKind::Ext2,
        name: "ext2",
        maker: "mkfs.ext2",
        package: "e2fsprogs",
        arguments: &["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0"],
        block_flag: "-b",
    },
    Recipe {
        kind: FilesystemKind::Ext3,
        name: "ext3",
        maker: "mkfs.ext3",
        package: "e2fsprogs",
        arguments: EXT_ARGUMENTS,
        block_flag: "-b",
    },
    Recipe {
        kind: FilesystemKind::Ext4,
        name: "ext4",
        maker: "mkfs.ext4",
        package: "e2fsprogs",
        arguments: EXT_ARGUMENTS,
        block_flag: "-b",
    },
    Recipe {
        kind: FilesystemKind::Xfs,
        name: "xfs",
        maker: "mkfs.xfs",
        package: "xfsprogs",
        arguments: &["-q", "-f", "-K"],
        block_flag: "-bsize=",
    },
    Recipe {
        kind: FilesystemKind::Btrfs,
        name: "btrfs",
        maker: "mkfs.btrfs",
        package: "btrfs-progs",
        arguments: &["-q", "-f", "-K"],
        block_flag: "-s",
    },
    Recipe {
        kind: FilesystemKind::Ntfs,
        name: "ntfs",
        maker: "mkntfs",
        package: "ntfs-3g",
        arguments: &["-Q", "-q", "-F"],
        block_flag: "-c",
    },
    Recipe {
        kind: FilesystemKind::Fat32,
        name: "fat32",
        maker: "mkfs.vfat",
        package: "dosfstools",
        arguments: &["-F", "32"],
        // In sectors of 512 bytes.
        block_flag: "-s",
    },
];

const EXT_ARGUMENTS: &[&str] = &[
    "-q",
    "-F",
    "-m",
    "0",
    "-E",
    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
];

impl Filesystem {
    /// The filesystem that a text like `ext4`, `ext4-1k` or `ntfs-512` names.
    pub fn find(text: &str) -> Option<Filesystem> {
        let (name, block) = match text.split_once('-') {
            None => (text, None),
            Some((name, block)) => {
                let digits = block.trim_end_matches(['k', 'K']);
                let unit = if digits.len() < block.len() { 1024 } else { 1 };
                (name, Some(digits.parse::<u64>().ok()?.checked_mul(unit)?))
            }
        };
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name)?;
        Some(Filesystem {
            kind: recipe.kind,
            block_bytes: block,
        })
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RECIPES.iter().map(|recipe| recipe.name)
    }

    /// Its name, without the block.
    pub fn name(&self) -> &'static str {
        self.recipe().name
    }

    fn recipe(&self) -> &'static Recipe {
        match RECIPES.iter().find(|recipe| recipe.kind == self.kind) {
            Some(recipe) => recipe,
            None => unreachable!("every kind has a recipe"),
        }
    }

    /// Whether this machine can make and mount it; if not, why not and what helps.
    pub fn check(&self) -> Result<()> {
        let recipe = self.recipe();
        process::require(recipe.maker, recipe.package)?;
        if self.kind == FilesystemKind::Ntfs {
            process::require("ntfs-3g", "ntfs-3g")?;
            return Ok(());
        }
        if self.kernel_has_it()? {
            return Ok(());
        }
        let kernel_name = self.kernel_name();
        let no_kernel =
            format!("the kernel of this machine has no {kernel_name}, and no module of that name");
        match self.kind {
            FilesystemKind::Fat32 => process::require("fusefat", "fusefat")
                .map(drop)
                .map_err(|error| Error::cannot(format!("{no_kernel}; {error}"))),
            _ => Err(Error::cannot(no_kernel)),
        }
    }

    /// Whether a volume of so many bytes can be made; if not, from which size on.
    pub fn check_size(&self, bytes: u64) -> Result<()> {
        const MIB: u64 = 1 << 20;
        let least = match self.kind {
            FilesystemKind::Ext2 | FilesystemKind::Ext3 | FilesystemKind::Ext4 => 8 * MIB,
            // mkfs.xfs refuses less.
            FilesystemKind::Xfs => 300 * MIB,
            FilesystemKind::Btrfs => 114 * MIB,
            FilesystemKind::Ntfs => 8 * MIB,
            // With fewer clusters it is no FAT32; two tables beside them.
            FilesystemKind::Fat32 => 65_600 * (self.block_bytes.unwrap_or(512) + 8),
        };
        if bytes >= least {
            return Ok(());
        }
        Err(Error::cannot(format!(
            "{} cannot be made on a volume of {} MiB; take --volume {}M or larger",
            self.name(),
            bytes >> 20,
            least.div_ceil(MIB)
        )))
    }

    /// Whether the kernel can mount it itself; tries to load its module.
    fn kernel_has_it(&self) -> Result<bool> {
        let kernel_name = self.kernel_name();
        let is_known = || -> Result<bool> {
            let known = fs::read_to_string("/proc/filesystems")?;
            Ok(known
                .lines()
                .any(|line| line.split_whitespace().last() == Some(kernel_name)))
        };
        if is_known()? {
            return Ok(true);
        }
        Ok(process::output("modprobe", &[OsStr::new(kernel_name)]).is_ok() && is_known()?)
    }

    /// The command that serves it on `device` at `mountpoint`, in the foreground; `None`: the
    /// kernel does.
    fn server(&self, device: &Path, mountpoint: &Path) -> Result<Option<Command>> {
        let (program, options) = match self.kind {
            FilesystemKind::Ntfs => ("ntfs-3g", "no_detach,noatime,permissions"),
            FilesystemKind::Fat32 if !self.kernel_has_it()? => ("fusefat", "rw+,allow_other"),
            _ => return Ok(None),
        };
        let mut command = Command::new(process::require(program, program)?);
        if program == "fusefat" {
            command.arg("-f");
        }
        command.arg("-o").arg(options).args([device, mountpoint]);
        Ok(Some(command))
    }

    /// Whether files on it have owners and permissions of their own.
    pub fn has_owners(&self) -> bool {
        self.kind != FilesystemKind::Fat32
    }

    fn kernel_name(&self) -> &'static str {
        match self.kind {
            FilesystemKind::Fat32 => "vfat",
            _ => self.name(),
        }
    }

    fn make(&self, device: &Path) -> Result<()> {
        let recipe = self.recipe();
        let mut arguments: Vec<String> = recipe.arguments.iter().map(ToString::to_string).collect();
        if let Some(bytes) = self.block_bytes {
            let value = match self.kind {
                FilesystemKind::Fat32 => bytes / 512,
                _ => bytes,
            };
            if recipe.block_flag.ends_with('=') {
                arguments.push(format!("{}{value}", recipe.block_flag));
            } else {
                arguments.extend([recipe.block_flag.to_owned(), value.to_string()]);
            }
        }
        let mut arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        arguments.push(device.as_ref());
        let program = process::require(recipe.maker, recipe.package)?;
        match process::output(&program, &arguments) {
            Err(error) => Err(Error::cannot(error.text)),
            Ok(_) => Ok(()),
        }
    }
}

/// A mount namespace of our own: nobody else sees what is mounted in it, or keeps it.
#[derive(Debug)]
pub struct PrivateMounts(());

impl PrivateMounts {
    /// Gives this thread a namespace. [`Kind::Cannot`] without the right to.
    pub fn enter() -> Result<PrivateMounts> {
        let refused = |errno: rustix::io::Errno| {
            Error::cannot(format!(
                "volumes need the right to mount ({errno}); run as root, or name places that \
                 exist: dir:PATH, \
                 sqlite:PATH, larder:PATH"
            ))
        };
        // SAFETY: only the mount namespace (and with it the working directory's sharing) of this
        // thread is unshared; no memory or descriptor is.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
            .map_err(refused)?;
        let own = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", own).map_err(refused)?;
        Ok(PrivateMounts(()))
    }
}

/// The image of a volume, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// The host gives it all its room before anything is measured.
    Allocated(u64),
    /// The host gives room as it is written.
    Sparse(u64),
}

/// A mounted volume.
#[derive(Debug)]
pub struct Volume {
    filesystem: Filesystem,
    mountpoint: PathBuf,
    device: PathBuf,
    is_mounted: bool,
    /// Serves the filesystem, where the kernel does not.
    server: Option<Server>,
    /// The device exists as long as somebody has it open.
    _device: File,
    image: File,
}

impl Volume {
    /// Makes a volume whose image lies in `directory`, mounted at the new directory `mountpoint`.
    pub fn make(
        _mounts: &PrivateMounts,
        filesystem: Filesystem,
        image: Image,
        directory: &Path,
        mountpoint: &Path,
    ) -> Result<Volume> {
        filesystem.check()?;
        let (Image::Allocated(bytes) | Image::Sparse(bytes)) = image;
        filesystem.check_size(bytes)?;
        let explain = || format!("a volume in '{}'", directory.display());
        let file = tempfile::NamedTempFile::new_in(directory).said(explain)?;
        match image {
            Image::Allocated(_) => {
                rustix::fs::fallocate(file.as_file(), FallocateFlags::empty(), 0, bytes)
            }
            Image::Sparse(_) => rustix::fs::ftruncate(file.as_file(), bytes),
        }
        .map_err(|errno| no_space(errno, bytes, directory))?;
        let device = attach(file.path())?;
        let opened = File::open(&device).said(|| device.display().to_string());
        // Now that we have it open, this only says that it goes with its last user (VOLUME-1).
        detach(&device)?;
        let opened = opened?;
        // Its name goes here; the device keeps the image.
        let image = file.into_file();
        filesystem.make(&device)?;
        fs::create_dir_all(mountpoint).said(|| mountpoint.display().to_string())?;
        let mut volume = Volume {
            filesystem,
            mountpoint: mountpoint.to_owned(),
            device,
            is_mounted: false,
            server: None,
            _device: opened,
            image,
        };
        let readahead = volume.sys("queue/read_ahead_kb");
        fs::write(&readahead, READAHEAD_KIB.to_string())
            .said(|| readahead.display().to_string())?;
        volume.mount()?;
        Ok(volume)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The device that holds it.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Its filesystem.
    pub fn filesystem(&self) -> Filesystem {
        self.filesystem
    }

    /// The counters of the device: `Documentation/block/stat.rst`.
    pub fn stat_file(&self) -> PathBuf {
        self.sys("stat")
    }

    /// Unmounts, so that everything is on the device and nothing in memory, calls `visit` with the
    /// device, and mounts again (`VOLUME-2`).
    pub fn at_rest<T>(&mut self, visit: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.unmount()?;
        self.forget()?;
        let visited = visit(&self.device)?;
        self.forget()?;
        self.mount()?;
        Ok(visited)
    }

    /// Drops what the kernel has of the device and of the image in memory.
    fn forget(&self) -> Result<()> {
        process::output(
            "blockdev",
            &[OsStr::new("--flushbufs"), self.device.as_ref()],
        )?;
        rustix::fs::fadvise(&self.image, 0, None, Advice::DontNeed)
            .said(|| "dropping the image from memory".to_owned())
    }

    fn mount(&mut self) -> Result<()> {
        if let Some(command) = self.filesystem.server(&self.device, &self.mountpoint)? {
            let device_of = |path: &Path| fs::metadata(path).map(|found| found.dev());
            let before = device_of(&self.mountpoint)?;
            let mut server = Server::start(command, Signal::TERM)?;
            let mountpoint = &self.mountpoint;
            server.wait_until(|| Ok(device_of(mountpoint)? != before))?;
            self.server = Some(server);
        } else {
            let arguments: [&OsStr; 6] = [
                "-t".as_ref(),
                self.filesystem.kernel_name().as_ref(),
                "-o".as_ref(),
                "noatime".as_ref(),
                self.device.as_ref(),
                self.mountpoint.as_ref(),
            ];
            process::output("mount", &arguments).map_err(|error| Error::cannot(error.text))?;
        }
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        unmount(&self.mountpoint)?;
        self.is_mounted = false;
        match self.server.take() {
            Some(server) => server.wait(),
            None => Ok(()),
        }
    }

    fn sys(&self, file: &str) -> PathBuf {
        let name = self.device.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join(file)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(errno) = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH)
        {
            tracing::warn!("unmounting '{}': {errno}", self.mountpoint.display());
        }
    }
}

/// Unmounts; waits a little for those who just looked.
pub fn unmount(mountpoint: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        match rustix::mount::unmount(mountpoint, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) if started.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            ended => return ended.said(|| format!("unmounting '{}'", mountpoint.display())),
        }
    }
}

/// A new loop device for an image.
fn attach(image: &Path) -> Result<PathBuf> {
    let arguments: [&OsStr; 4] = [
        "--find".as_ref(),
        "--show".as_ref(),
        "--direct-io=on".as_ref(),
        image.as_ref(),
    ];
    let printed = process::output("losetup", &arguments).map_err(|error| {
        Error::cannot(format!(
            "no loop device: {}; volumes need /dev/loop-control and root",
            error.text
        ))
    })?;
    Ok(PathBuf::from(printed.trim()))
}

fn detach(device: &Path) -> Result<()> {
    process::output("losetup", &[OsStr::new("--detach"), device.as_ref()]).map(drop)
}

fn no_space(errno: rustix::io::Errno, bytes: u64, directory: &Path) -> Error {
    let text = format!(
        "a volume of {} MiB does not fit in '{}': {errno}; name another place with --work, or a \
         smaller --volume",
        bytes >> 20,
        directory.display()
    );
    Error::new(Kind::Failed, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_image_takes_what_is_written() {
        const BYTES: u64 = 256 << 20;
        let scratch = tempfile::tempdir().unwrap();
        let mounts = match PrivateMounts::enter() {
            Ok(mounts) => mounts,
            Err(error) => {
                let may_mount =
                    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
                assert!(!may_mount, "{error}");
                return eprintln!("not tested: {error}");
            }
        };
        let held = |image, name: &str| {
            let filesystem = Filesystem::find("ext2").unwrap();
            let mountpoint = scratch.path().join(name);
            let volume =
                Volume::make(&mounts, filesystem, image, scratch.path(), &mountpoint).unwrap();
            volume.image.metadata().unwrap().blocks() * 512
        };
        assert!(held(Image::Allocated(BYTES), "a") >= BYTES);
        assert!(held(Image::Sparse(BYTES), "b") < BYTES / 8);
    }

    #[test]
    fn names_are_read() {
        let found = |text: &str| {
            Filesystem::find(text).map(|filesystem| (filesystem.kind, filesystem.block_bytes))
        };
        assert_eq!(found("ext4"), Some((FilesystemKind::Ext4, None)));
        assert_eq!(found("ext2-2k"), Some((FilesystemKind::Ext2, Some(2048))));
        assert_eq!(found("ntfs-512"), Some((FilesystemKind::Ntfs, Some(512))));
        assert_eq!(found("zfs"), None);
        assert_eq!(found("ext4-k"), None);
        for name in Filesystem::names() {
            assert_eq!(Filesystem::find(name).map(|found| found.name()), Some(name));
        }
    }
}
