//! Filesystems that mounts are compared with, served by this program: started again with a hidden
//! verb, it serves in the foreground until it is unmounted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use larder_fuse_protocol::memory::MemoryFilesystem;
use larder_fuse_protocol::{
    Device, Filesystem, MountSettings, Session, SessionOptions, TransportChoice, mount,
};

use super::passthrough::Passthrough;
use xtask::Outcome;

/// The hidden verb for a filesystem in memory: `serve-memory [--transport NAME] MOUNTPOINT`.
pub const SERVE_MEMORY: &str = "serve-memory";
/// The hidden verb for one that passes on: `serve-passthrough DIRECTORY MOUNTPOINT`.
pub const SERVE_PASSTHROUGH: &str = "serve-passthrough";

/// As a mount of Larder has them: what the kernel reads ahead, and threads.
const READAHEAD_KIB: u32 = 1024;
const WORKERS: usize = 16;

/// Serves an empty filesystem in memory.
pub fn serve_memory(mountpoint: &str, transport: Option<&str>) -> Outcome {
    let transport = match transport {
        Some(name) => TransportChoice::from_name(name).ok_or("no such transport")?,
        None => TransportChoice::from_environment()?,
    };
    let (device, mountpoint) = mounted(mountpoint, "memory")?;
    serve(MemoryFilesystem::default(), device, &mountpoint, transport)
}

/// Serves what is in `directory`.
pub fn serve_passthrough(directory: &str, mountpoint: &str) -> Outcome {
    let (device, mountpoint) = mounted(mountpoint, directory)?;
    let filesystem = Passthrough::new(Path::new(directory), device.clone());
    let transport = TransportChoice::from_environment()?;
    serve(filesystem, device, &mountpoint, transport)
}

fn mounted(mountpoint: &str, source: &str) -> Result<(Device, PathBuf), String> {
    let explain = |error: &dyn std::fmt::Display| format!("{mountpoint}: {error}");
    let path = fs::canonicalize(mountpoint).map_err(|error| explain(&error))?;
    let settings = MountSettings {
        subtype: "larder-bench".to_owned(),
        fsname: PathBuf::from(source),
        allow_other: rustix::process::geteuid().is_root(),
        ..MountSettings::default()
    };
    let device = mount(&path, &settings).map_err(|error| explain(&error))?;
    Ok((device, path))
}

fn serve<F: Filesystem>(
    filesystem: F,
    device: Device,
    mountpoint: &Path,
    transport: TransportChoice,
) -> Outcome {
    let explain = |error: std::io::Error| format!("{}: {error}", mountpoint.display());
    let options = SessionOptions {
        workers: WORKERS,
        transport,
        ..SessionOptions::default()
    };
    let session = Session::start(filesystem, device, options).map_err(explain)?;
    thread::scope(|scope| {
        // Asks the filesystem itself, so it must be served.
        scope.spawn(|| {
            if let Err(error) = raise_readahead(mountpoint) {
                eprintln!("xtask: no readahead: {error}");
            }
        });
        session.run().map_err(explain)
    })
}

fn raise_readahead(mountpoint: &Path) -> std::io::Result<()> {
    let device = fs::metadata(mountpoint)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    fs::write(file, READAHEAD_KIB.to_string())
}
