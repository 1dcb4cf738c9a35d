//! The names of backends on the command line.
//!
//! ```text
//! ext4  ext4-1k  xfs  btrfs  ntfs-64k  fat32  …
//!     files on a volume of that filesystem, its block behind the dash
//! sqlite  postgres  postgres-lo  larder  larder-mount
//!     on an ext4 volume; on another with sqlite@xfs, larder@btrfs-4k
//! dir:PATH  mount:PATH  sqlite:PATH  postgres:PATH  larder:PATH
//!     in a place that exists
//! postgres:URL  s3:URL
//!     on a server that runs; records name them postgres:server, postgres:server-2
//! +OPTION behind any of them
//!     +bare (files without rows), +page=64k, +rollback (SQLite), +inline=512, +gather=64M (Larder)
//! ```

use crate::backend::postgres::{identity, is_directory};
use crate::error::{Error, Result};
use crate::volume::Filesystem;
use larder::Tuning;
use std::collections::HashMap;
use std::path::PathBuf;

/// What stores the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// A file each; a row each in SQLite that says name and length, as the papers' file store.
    Files,
    /// A BLOB each in SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// A bucket of an S3-compatible store.
    S3,
    /// Larder by its API.
    Larder,
    /// Files on a mount of Larder.
    LarderMount,
}

/// Where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// On a volume that is made for it.
    Volume(Filesystem),
    /// In a directory that exists.
    Path(PathBuf),
    /// On a server that runs, at this address.
    Server(String),
}

/// A backend by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// As it was written.
    pub text: String,
    /// What records call it.
    pub name: String,
    /// What stores the objects.
    pub system: System,
    /// Where.
    pub place: Where,
    /// Files without rows.
    pub is_bare: bool,
    /// SQLite's page, bytes; `None`: its own choice, 4096.
    pub page_bytes: Option<u32>,
    /// SQLite with a rollback journal in place of the write-ahead log.
    pub is_rollback: bool,
    /// PostgreSQL's large objects in place of `bytea`.
    pub is_large_objects: bool,
    /// What a Larder database asks of the engine.
    pub tuning: Tuning,
}

/// What databases lie on, if nothing else is said.
const HOST: &str = "ext4";

impl Spec {
    /// Names of backends that need no path.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Filesystem::names().chain([
            "sqlite",
            "postgres",
            "postgres-lo",
            "larder",
            "larder-mount",
        ])
    }

    /// The backend that a text names.
    pub fn parse(text: &str) -> Result<Spec> {
        let mut parts = text.split('+');
        let whole = parts.next().unwrap_or_default();
        let unknown = || {
            let filesystems: Vec<&str> = Filesystem::names().collect();
            Error::failed(format!(
                "'{text}' is no backend; there are {} (with -BLOCK), sqlite, postgres, \
                 postgres-lo, larder, larder-mount \
                 (with @FILESYSTEM), and dir:PATH, mount:PATH, sqlite:PATH, postgres:PATH, \
                 postgres:URL, larder:PATH, s3:URL",
                filesystems.join(", ")
            ))
        };
        let (system, place, name) = match whole.split_once(':') {
            Some((kind, path)) if !path.is_empty() => {
                let system = match kind {
                    "dir" | "mount" => System::Files,
                    "sqlite" => System::Sqlite,
                    "postgres" | "postgres-lo" => System::Postgres,
                    "s3" => System::S3,
                    "larder" => System::Larder,
                    _ => return Err(unknown()),
                };
                let place = match system {
                    System::S3 => Where::Server(path.to_owned()),
                    System::Postgres if !is_directory(path) => Where::Server(path.to_owned()),
                    _ => Where::Path(path.into()),
                };
                // An address may hold a password: records name the kind of a server only.
                let name = match place {
                    Where::Server(_) => format!("{kind}:server"),
                    _ => whole.to_owned(),
                };
                (system, place, name)
            }
            Some(_) => return Err(unknown()),
            None => {
                let (kind, host) = whole.split_once('@').unwrap_or((whole, HOST));
                let system = match kind {
                    "sqlite" => System::Sqlite,
                    "postgres" | "postgres-lo" => System::Postgres,
                    "larder" => System::Larder,
                    "larder-mount" => System::LarderMount,
                    _ => System::Files,
                };
                let filesystem = match system {
                    System::Files => Filesystem::find(whole),
                    _ => Filesystem::find(host),
                };
                let filesystem = filesystem.ok_or_else(unknown)?;
                // The block stands among the parameters of a case.
                let name = match (system, whole.contains('@')) {
                    (System::Files, _) => filesystem.name().to_owned(),
                    (_, true) => format!("{kind}@{}", filesystem.name()),
                    (_, false) => kind.to_owned(),
                };
                (system, Where::Volume(filesystem), name)
            }
        };
        let mut spec = Spec {
            text: text.to_owned(),
            name,
            system,
            place,
            is_bare: false,
            page_bytes: None,
            is_rollback: false,
            is_large_objects: kind_of(whole) == "postgres-lo",
            tuning: Tuning::default(),
        };
        for option in parts {
            spec.set(option).ok_or_else(|| {
                Error::failed(format!(
                    "'{text}': '{option}' is no option of this backend; files have +bare, SQLite \
                     has +page=BYTES \
                     (a power of two, 512 to 64k) and +rollback, Larder has +inline=BYTES (0 to \
                     2k) and +gather=BYTES (1M or more)"
                ))
            })?;
            spec.name = format!("{}+{option}", spec.name);
        }
        Ok(spec)
    }

    /// Tells servers of one kind apart by a number behind the second and all further ones:
    /// addresses are not shown.
    pub fn number(specs: &mut [Spec]) {
        let mut counts: HashMap<String, u32> = HashMap::new();
        for spec in specs {
            if let Where::Server(_) = spec.place {
                let count = counts.entry(spec.name.clone()).or_default();
                *count += 1;
                if *count > 1 {
                    spec.name = format!("{}-{count}", spec.name);
                }
            }
        }
    }

    /// What the server at its address is known by, without a password; `None` without a server.
    pub fn server_identity(&self) -> Option<String> {
        match (&self.place, self.system) {
            (Where::Server(address), System::Postgres) => Some(identity(address)),
            (Where::Server(address), _) => Some(address.clone()),
            _ => None,
        }
    }

    /// As it was written, without the address of a server, which may hold a password.
    pub fn shown(&self) -> &str {
        match self.place {
            Where::Server(_) => &self.name,
            _ => &self.text,
        }
    }

    fn set(&mut self, option: &str) -> Option<()> {
        let has_files = matches!(self.system, System::Files | System::LarderMount);
        let is_larder = matches!(self.system, System::Larder | System::LarderMount);
        match option.split_once('=') {
            None if option == "bare" && has_files => self.is_bare = true,
            None if option == "rollback" && self.system == System::Sqlite => {
                self.is_rollback = true;
            }
            Some(("page", bytes)) if self.system == System::Sqlite => {
                let bytes = u32::try_from(bytes_of(bytes)?).ok()?;
                let is_possible = bytes.is_power_of_two() && (512..=65_536).contains(&bytes);
                self.page_bytes = Some(is_possible.then_some(bytes)?);
            }
            Some((what @ ("inline" | "gather"), bytes)) if is_larder => {
                let bytes = Some(bytes_of(bytes)?);
                match what {
                    "inline" => self.tuning.inline_bytes_max = bytes,
                    _ => self.tuning.gather_bytes_max = bytes,
                }
                self.tuning.check().ok()?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// `512`, `64k`, `8M`.
fn bytes_of(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn kind_of(whole: &str) -> &str {
    whole.split([':', '@']).next().unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let spec = Spec::parse("sqlite@xfs+page=64k+rollback").unwrap();
        assert_eq!(
            (spec.system, spec.page_bytes),
            (System::Sqlite, Some(65_536))
        );
        assert!(spec.is_rollback);
        assert_eq!(spec.place, Where::Volume(Filesystem::find("xfs").unwrap()));
        assert_eq!(spec.name, "sqlite@xfs+page=64k+rollback");
        let spec = Spec::parse("ext4-1k+bare").unwrap();
        assert_eq!((spec.system, spec.is_bare), (System::Files, true));
        let spec = Spec::parse("dir:/srv/x").unwrap();
        assert_eq!(spec.place, Where::Path("/srv/x".into()));
        let spec = Spec::parse("larder:/srv/x+inline=512+gather=8M").unwrap();
        assert_eq!(
            (spec.tuning.inline_bytes_max, spec.tuning.gather_bytes_max),
            (Some(512), Some(8 << 20))
        );
        for wrong in [
            "larder+inline=4k",
            "ext4+inline=512",
            "zfs",
            "",
            "dir:",
            "tape:/x",
            "sqlite@zfs",
            "ext4+page=4k",
            "sqlite+page=3",
        ] {
            let error = Spec::parse(wrong).unwrap_err();
            assert!(
                error.text.contains("there are") || error.text.contains("is no option"),
                "{wrong}"
            );
        }
    }
}
