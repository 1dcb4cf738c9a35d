//! Opening `/dev/fuse` and mounting it.
//!
//! Done here and not by fuser for three reasons: the type must be `fuse.larder` also when root
//! mounts without a helper; the descriptor is needed for notifications of our own; and fuser
//! unmounts whatever is at the mountpoint when its session ends, even another mount (`FUSE-6`).

use crate::mountinfo::LARDER_TYPE;
use crate::options::MountOptions;
use larder::{Error, ErrorKind};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const DEVICE_PATH: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Mounts at `mountpoint` (absolute, without symbolic links) and returns the device of the mount,
/// on which INIT waits. Ordinary users go through `fusermount3`, which is setuid root.
pub(crate) fn mount_device(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, Error> {
    match mount_directly(source, mountpoint, options)? {
        Some(device) => Ok(device),
        None => mount_by_helper(source, mountpoint, options),
    }
}

/// Whether this process may open the device itself, and so clone it for each worker.
pub(crate) fn can_clone() -> bool {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE_PATH)
        .is_ok()
}

/// `None` when this process may not mount.
fn mount_directly(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, Error> {
    let fail = |what: &str, error: io::Error| {
        let context = format!("cannot mount at '{}': {what}", mountpoint.display());
        Error::with_source(ErrorKind::Io, context, error)
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let device: OwnedFd = match OpenOptions::new().read(true).write(true).open(DEVICE_PATH) {
        Ok(device) => device.into(),
        Err(error) => {
            return Err(fail(
                "/dev/fuse cannot be opened; load the kernel module 'fuse'",
                error,
            ));
        }
    };
    let mode = std::fs::metadata(mountpoint)
        .map_err(|error| fail("it cannot be examined", error))?
        .mode();
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data =
        CString::new(data).map_err(|error| fail("its options have a NUL byte", error.into()))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::RDONLY, options.read_only);
    match rustix::mount::mount(source, mountpoint, LARDER_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(rustix::io::Errno::PERM) => Ok(None),
        Err(error) => Err(fail("the kernel refuses", error.into())),
    }
}

fn mount_by_helper(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, Error> {
    let fail = |kind: ErrorKind, what: String| {
        Error::new(
            kind,
            format!("cannot mount at '{}': {what}", mountpoint.display()),
        )
    };
    let failed_io = |error: io::Error| fail(ErrorKind::Io, format!("{HELPER}: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(failed_io)?;
    // The helper sends the device through the socket that is its standard input.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(source, options))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => fail(
                ErrorKind::Unsupported,
                format!("'{HELPER}' is missing; install the package fuse3"),
            ),
            _ => failed_io(error),
        })?;
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(failed_io)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let remedy = helper_remedy(&said);
        return Err(fail(ErrorKind::NotPermitted, format!("{said}{remedy}")));
    }
    device.map_err(failed_io)?.ok_or_else(|| {
        fail(
            ErrorKind::Io,
            format!("{HELPER} succeeded but sent no descriptor"),
        )
    })
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
fn helper_options(source: &Path, options: &MountOptions) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut out = b"subtype=larder,default_permissions,nosuid,nodev".to_vec();
    if options.allow_other {
        out.extend(b",allow_other");
    }
    if !options.exec {
        out.extend(b",noexec");
    }
    out.extend(if options.read_only { b",ro" } else { b",rw" });
    out.extend(b",fsname=");
    for &byte in source.as_os_str().as_bytes() {
        if byte == b',' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    std::ffi::OsString::from_vec(out)
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

/// Lets the kernel read ahead `kib` KiB on this mount instead of its default of 128, so that large
/// sequential reads come in large requests. Only root may; without it reads are merely smaller.
pub(crate) fn raise_readahead(device: (u32, u32), kib: u32) {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", device.0, device.1);
    if let Err(error) = File::create(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, kib.to_string().as_bytes()))
    {
        tracing::debug!("{path}: {error}; reads ahead stay at the kernel's default");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_gets_the_source_escaped() {
        let options = MountOptions {
            allow_other: true,
            read_only: true,
            ..MountOptions::default()
        };
        let made = helper_options(Path::new("/a,b\\c.larder"), &options);
        let made = made.to_str().unwrap();
        assert!(
            made.ends_with(",allow_other,ro,fsname=/a\\,b\\\\c.larder"),
            "{made}"
        );
        let options = MountOptions {
            allow_other: false,
            read_only: false,
            ..options
        };
        let made = helper_options(Path::new("/a"), &options);
        assert_eq!(
            made,
            "subtype=larder,default_permissions,nosuid,nodev,rw,fsname=/a"
        );
    }

    #[test]
    fn a_socket_closed_without_a_descriptor_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }
}
