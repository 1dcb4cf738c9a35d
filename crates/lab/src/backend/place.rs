//! Where a backend puts things.

use crate::error::{Result, Said};
use std::path::{Path, PathBuf};

/// Where a backend puts things.
#[derive(Debug, Clone)]
pub struct Place {
    /// Content.
    pub data: PathBuf,
    /// Logs and metadata (`BACKEND-2`).
    pub log: PathBuf,
    /// Mount points of its own.
    pub mounts: PathBuf,
}

/// Bytes that the filesystem at `path` still has for everybody.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).said(|| path.display().to_string())?;
    Ok(stat.f_bavail * stat.f_frsize)
}
