//! Opening `/dev/fuse` and mounting it.
//!
//! Root mounts directly, with any type, and so does everybody in a user namespace of his own. Other
//! users go through `fusermount3`, which is setuid root and sends the device through a socket.

use crate::device::{DEVICE_PATH, Device};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::{CString, OsString};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program that mounts for ordinary users.
const HELPER: &str = "fusermount3";

/// How a filesystem is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// The type in the table of mounts is `fuse.` and this.
    pub subtype: String,
    /// The source in the table of mounts.
    pub fsname: PathBuf,
    /// Other users than the one who mounts may use it. Those who are not root need
    /// `user_allow_other` in `/etc/fuse.conf` for that.
    pub allow_other: bool,
    /// The kernel refuses every change with `EROFS`.
    pub read_only: bool,
    /// Set-id bits count. Only root may ask for it.
    pub suid: bool,
    /// Device nodes work. Only root may ask for it.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// What the table of mounts says of times of access, which are the server's: `noatime`,
    /// `strictatime`, or without it `relatime`. Only root's mounts tell the last two apart.
    pub access_times: Option<bool>,
    /// The kernel checks permissions, by the attributes.
    pub default_permissions: bool,
    /// Most bytes of a READ; 0: as many as content at all.
    pub read_bytes_max: u32,
}

impl Default for MountSettings {
    /// `fuse.fuse`, from nowhere, for the one who mounts, with the kernel's permission checks.
    fn default() -> MountSettings {
        MountSettings {
            subtype: "fuse".into(),
            fsname: PathBuf::from("fuse"),
            allow_other: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            access_times: None,
            default_permissions: true,
            read_bytes_max: 0,
        }
    }
}

/// Why a filesystem could not be mounted.
#[derive(Debug)]
pub enum MountError {
    /// The system has no FUSE, or no `fusermount3` for those who are not root.
    Unsupported(String),
    /// Permission is lacking; `fusermount3` says which.
    NotPermitted(String),
    /// Something has failed.
    Io(&'static str, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Unsupported(what) | MountError::NotPermitted(what) => out.write_str(what),
            MountError::Io(what, error) => write!(out, "{what}: {error}"),
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MountError::Unsupported(_) | MountError::NotPermitted(_) => None,
            MountError::Io(_, error) => Some(error),
        }
    }
}

/// Mounts at `mountpoint` (absolute, without symbolic links) and returns the device of the mount,
/// on which INIT waits for [`crate::Session::start`].
pub fn mount(mountpoint: &Path, settings: &MountSettings) -> Result<Device, MountError> {
    let mounted = match mount_directly(mountpoint, settings)? {
        Some(device) => device,
        None => mount_by_helper(mountpoint, settings)?,
    };
    Ok(Device::new(mounted))
}

/// `None` when this process may not mount.
fn mount_directly(
    mountpoint: &Path,
    settings: &MountSettings,
) -> Result<Option<OwnedFd>, MountError> {
    let is_root = rustix::process::geteuid().is_root();
    let device: OwnedFd = match OpenOptions::new().read(true).write(true).open(DEVICE_PATH) {
        Ok(device) => device.into(),
        // The helper says what is wrong.
        Err(_) if !is_root => return Ok(None),
        Err(error) => {
            return Err(MountError::Unsupported(format!(
                "/dev/fuse cannot be opened ({error}); load the kernel module 'fuse'"
            )));
        }
    };
    let mode = std::fs::metadata(mountpoint)
        .map_err(|error| MountError::Io("it cannot be examined", error))?
        .mode();
    let data = direct_data(device.as_raw_fd(), mode, settings);
    let data = CString::new(data)
        .map_err(|error| MountError::Io("its options have a NUL byte", error.into()))?;
    let kind = format!("fuse.{}", settings.subtype);
    let mounted = rustix::mount::mount(
        &settings.fsname,
        mountpoint,
        kind.as_str(),
        direct_flags(settings),
        data.as_c_str(),
    );
    match mounted {
        Ok(()) => Ok(Some(device)),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(error) => Err(MountError::Io("the kernel refuses", error.into())),
    }
}

fn direct_data(device: i32, mode: u32, settings: &MountSettings) -> String {
    let mut data = format!(
        "fd={device},rootmode={mode:o},user_id={},group_id={}",
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if settings.default_permissions {
        data.push_str(",default_permissions");
    }
    if settings.allow_other {
        data.push_str(",allow_other");
    }
    if settings.read_bytes_max > 0 {
        data.push_str(&format!(",max_read={}", settings.read_bytes_max));
    }
    data
}

fn direct_flags(settings: &MountSettings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NOATIME, settings.access_times == Some(false));
    flags.set(MountFlags::STRICTATIME, settings.access_times == Some(true));
    flags
}

fn mount_by_helper(mountpoint: &Path, settings: &MountSettings) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::Io(HELPER, error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // The helper sends the device through the socket that is its standard input.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(settings))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                MountError::Unsupported(format!("'{HELPER}' is missing; install the package fuse3"))
            }
            _ => failed(error),
        })?;
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let remedy = helper_remedy(&said);
        return Err(MountError::NotPermitted(format!("{said}{remedy}")));
    }
    device
        .map_err(failed)?
        .ok_or_else(|| failed(io::Error::other("it succeeded but sent no descriptor")))
}

/// What to do about a refusal of the helper; empty when its own words say it.
fn helper_remedy(said: &str) -> &'static str {
    if said.contains("user_allow_other") {
        "; put the line 'user_allow_other' in there, as root, or mount without allow_other"
    } else if said.contains(DEVICE_PATH) {
        "; let users open it, as root: 'chmod 666 /dev/fuse'"
    } else if said.contains("no write access") {
        "; mount at a directory of your own"
    } else {
        ""
    }
}

/// The options of `fusermount3`; commas and backslashes in the source are escaped for it.
fn helper_options(settings: &MountSettings) -> OsString {
    let mut out = format!("subtype={}", settings.subtype).into_bytes();
    if settings.default_permissions {
        out.extend(b",default_permissions");
    }
    out.extend(if settings.suid {
        &b",suid"[..]
    } else {
        b",nosuid"
    });
    out.extend(if settings.dev {
        &b",dev"[..]
    } else {
        b",nodev"
    });
    if !settings.exec {
        out.extend(b",noexec");
    }
    if settings.access_times == Some(false) {
        out.extend(b",noatime");
    }
    if settings.allow_other {
        out.extend(b",allow_other");
    }
    if settings.read_bytes_max > 0 {
        out.extend(format!(",max_read={}", settings.read_bytes_max).into_bytes());
    }
    out.extend(if settings.read_only { b",ro" } else { b",rw" });
    out.extend(b",fsname=");
    for &byte in settings.fsname.as_os_str().as_bytes() {
        if byte == b',' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

/// The descriptor that comes through `socket`; `None` when it is closed without.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fsname: &str) -> MountSettings {
        MountSettings {
            subtype: "larder".into(),
            fsname: fsname.into(),
            ..MountSettings::default()
        }
    }

    #[test]
    fn the_helper_gets_the_source_escaped() {
        let made = helper_options(&MountSettings {
            allow_other: true,
            read_only: true,
            ..settings("/a,b\\c.larder")
        });
        let made = made.to_str().unwrap();
        assert!(
            made.ends_with(",allow_other,ro,fsname=/a\\,b\\\\c.larder"),
            "{made}"
        );
        assert_eq!(
            helper_options(&settings("/a")),
            "subtype=larder,default_permissions,nosuid,nodev,rw,fsname=/a"
        );
    }

    #[test]
    fn the_kernel_gets_every_setting() {
        let data = direct_data(
            7,
            0o40755,
            &MountSettings {
                allow_other: true,
                read_bytes_max: 65536,
                ..settings("/a")
            },
        );
        assert!(data.starts_with("fd=7,rootmode=40755,user_id="), "{data}");
        assert!(
            data.ends_with(",default_permissions,allow_other,max_read=65536"),
            "{data}"
        );
        let flags = direct_flags(&settings("/a"));
        assert_eq!(flags, MountFlags::NOSUID | MountFlags::NODEV);
        let trusted = MountSettings {
            suid: true,
            dev: true,
            exec: false,
            read_only: true,
            ..settings("/a")
        };
        assert_eq!(
            direct_flags(&trusted),
            MountFlags::RDONLY | MountFlags::NOEXEC
        );
        let asked = helper_options(&trusted);
        assert_eq!(
            asked,
            "subtype=larder,default_permissions,suid,dev,noexec,ro,fsname=/a"
        );
    }

    #[test]
    fn a_socket_closed_without_a_descriptor_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }
}
