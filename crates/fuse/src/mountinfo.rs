//! Which mounts there are, read from `/proc/self/mountinfo`. Asks no mount of ours, so that one
//! whose server hangs or is dead can be found all the same.

use larder::{Error, ErrorKind};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The filesystem type of every Larder mount.
pub(crate) const LARDER_TYPE: &str = "fuse.larder";
/// What is behind the dot of it.
pub(crate) const LARDER_SUBTYPE: &str = "larder";

const TABLE_PATH: &str = "/proc/self/mountinfo";

/// A Larder mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// Its id in this mount namespace.
    pub id: u32,
    /// The absolute path of the database directory.
    pub source: PathBuf,
    /// The moment that it shows, in the words of who mounted it; `None`: the present.
    pub moment: Option<String>,
    /// Where it is mounted, without symbolic links.
    pub mountpoint: PathBuf,
    /// Major and minor number of the mount's `st_dev`; no two mounts have the same at once.
    pub device: (u32, u32),
}

impl MountInfo {
    /// What the table of mounts calls it: `DB`, or `DB@MOMENT`.
    pub fn name(&self) -> String {
        let source = self.source.display();
        match &self.moment {
            Some(moment) => format!("{source}@{moment}"),
            None => source.to_string(),
        }
    }

    /// Tells database and moment apart. A database may have an `@` in its name: what exists is a
    /// database.
    fn divide(&mut self) {
        let bytes = self.source.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else {
            return;
        };
        let Ok(moment) = std::str::from_utf8(&bytes[at + 1..]) else {
            return;
        };
        if moment.contains('/') || self.source.symlink_metadata().is_ok() {
            return;
        }
        let source = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
        (self.moment, self.source) = (Some(moment.to_owned()), source);
    }
}

/// The Larder mount at `dir`, if that is what is mounted there on top. Errors:
/// [`ErrorKind::NotFound`] when `dir` does not exist, [`ErrorKind::Io`]. Cost: reads the table of
/// all mounts.
pub fn find_mount(dir: &Path) -> Result<Option<MountInfo>, Error> {
    let found = find_any_mount(&resolve(dir)?)?;
    Ok(found
        .filter(|found| found.filesystem_type == LARDER_TYPE)
        .map(|found| found.info))
}

/// Whether a Larder database is mounted at `dir`. Errors and cost as [`find_mount`].
pub fn is_mounted(dir: &Path) -> Result<bool, Error> {
    Ok(find_mount(dir)?.is_some())
}

/// All mounts of the database in directory `database`, also of its past, the newest first.
pub fn find_all_mounts_of(database: &Path) -> Result<Vec<MountInfo>, Error> {
    let source = resolve(database)?;
    let mounts = newest_first()?.into_iter();
    Ok(mounts
        .filter(|mount| mount.filesystem_type == LARDER_TYPE && mount.info.source == source)
        .map(|mount| mount.info)
        .collect())
}

/// The mounts of the filesystem of `mount` in a table of mounts, and where it is one, `mount`
/// itself.
pub(crate) fn find_same(table: &Path, mount: &MountInfo) -> io::Result<Vec<MountInfo>> {
    let table = std::fs::read(table)?;
    let mut found = read_table(&table);
    found.retain(|other| {
        other.filesystem_type == LARDER_TYPE
            && (other.info.device, &other.info.source) == (mount.device, &mount.source)
    });
    Ok(found.into_iter().map(|found| found.info).collect())
}

/// Where the present of the database in directory `database` is mounted, the newest mount first.
pub fn find_mounts_of(database: &Path) -> Result<Vec<PathBuf>, Error> {
    let source = resolve(database)?;
    Ok(newest_first()?
        .into_iter()
        .filter(|mount| mount.filesystem_type == LARDER_TYPE)
        .filter(|mount| mount.info.source == source && mount.info.moment.is_none())
        .map(|mount| mount.info.mountpoint)
        .collect())
}

/// A mount of any filesystem.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AnyMount {
    pub(crate) info: MountInfo,
    pub(crate) filesystem_type: String,
}

/// The topmost mount at `mountpoint`, which is a result of [`resolve`].
pub(crate) fn find_any_mount(mountpoint: &Path) -> Result<Option<AnyMount>, Error> {
    // Later mounts lie on top of earlier ones.
    let mut mounts = newest_first()?.into_iter();
    Ok(mounts.find(|mount| mount.info.mountpoint == mountpoint))
}

/// All mounts that this process sees.
fn newest_first() -> Result<Vec<AnyMount>, Error> {
    let mut mounts = read_table(&read()?);
    mounts.reverse();
    Ok(mounts)
}

fn read() -> Result<Vec<u8>, Error> {
    std::fs::read(TABLE_PATH).map_err(|error| {
        Error::with_source(ErrorKind::Io, format!("cannot read {TABLE_PATH}"), error)
    })
}

fn read_table(table: &[u8]) -> Vec<AnyMount> {
    let lines = table.split(|&byte| byte == b'\n');
    let mut mounts: Vec<AnyMount> = lines.filter_map(parse).collect();
    for mount in &mut mounts {
        if mount.filesystem_type == LARDER_TYPE {
            mount.info.divide();
        }
    }
    mounts
}

/// The Larder mounts that `path` lies on or below, the deepest mountpoint first.
/// `path` is absolute; symbolic links in it are not followed.
pub(crate) fn mounts_above(path: &Path) -> Result<Vec<MountInfo>, Error> {
    let mut found = Vec::new();
    for place in path.ancestors() {
        let mount = find_any_mount(place)?;
        found.extend(
            mount
                .filter(|mount| mount.filesystem_type == LARDER_TYPE)
                .map(|mount| mount.info),
        );
    }
    Ok(found)
}

/// The mountpoints below the directory `place`, which is a result of [`resolve`], the newest first.
pub(crate) fn mounts_below(place: &Path) -> Result<Vec<PathBuf>, Error> {
    let all = newest_first()?
        .into_iter()
        .map(|mount| mount.info.mountpoint);
    Ok(all
        .filter(|other| other.starts_with(place) && other != place)
        .collect())
}

/// `dir` without symbolic links, also when a dead mount or one that keeps this user out is there.
pub(crate) fn resolve(dir: &Path) -> Result<PathBuf, Error> {
    let resolved = match dir.canonicalize() {
        // The last component cannot be examined, but the way to it can: a mount that is dead or
        // about to be, or another user's, which keeps even root out.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EACCES)
            ) =>
        {
            match (dir.parent(), dir.file_name()) {
                (Some(parent), Some(name)) => {
                    let parent = if parent.as_os_str().is_empty() {
                        Path::new(".")
                    } else {
                        parent
                    };
                    parent.canonicalize().map(|parent| parent.join(name))
                }
                _ => Err(error),
            }
        }
        other => other,
    };
    resolved.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            format!("there is no directory '{}'; create it first", dir.display()),
        ),
        _ => Error::with_source(
            ErrorKind::Io,
            format!("cannot examine '{}'", dir.display()),
            error,
        ),
    })
}

/// The options of the mount with that id, separated by commas; `None`: it is gone. Not those of the
/// filesystem.
pub(crate) fn find_options(id: u32) -> Result<Option<Vec<u8>>, Error> {
    let table = read()?;
    let id = id.to_string();
    let mut lines = table.split(|&byte| byte == b'\n').map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        (fields.next(), fields.nth(4))
    });
    let found = lines.find(|(first, _)| *first == Some(id.as_bytes()));
    Ok(found.and_then(|(_, options)| options).map(<[u8]>::to_vec))
}

/// One line: `id parent major:minor root mountpoint options… - type source super_options`
/// (proc_pid_mountinfo(5)). `None` for what is not such a line.
fn parse(line: &[u8]) -> Option<AnyMount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mountpoint = fields.nth(1)?;
    let mut tail = fields.skip_while(|&field| field != b"-").skip(1);
    let filesystem_type = tail.next()?;
    let source = tail.next()?;
    Some(AnyMount {
        info: MountInfo {
            id,
            source: unescape(source),
            moment: None,
            mountpoint: unescape(mountpoint),
            device: (major.parse().ok()?, minor.parse().ok()?),
        },
        filesystem_type: String::from_utf8_lossy(filesystem_type).into_owned(),
    })
}

/// For `cargo xtask fuzz`.
#[cfg(fuzzing)]
pub(crate) fn read_line(line: &[u8]) {
    if let Some(mount) = parse(line) {
        let _ = mount.info.name();
    }
}

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match after {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                beyond @ ..,
            ] if byte == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = beyond;
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = b"36 35 0:57 / /srv/my\\040photos rw,nosuid shared:1 master:2 - fuse.larder \
            /data/a\\134b.larder rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.filesystem_type, LARDER_TYPE);
        assert_eq!(mount.info.source, Path::new("/data/a\\b.larder"));
        assert_eq!(mount.info.mountpoint, Path::new("/srv/my photos"));
        assert_eq!((mount.info.id, mount.info.device), (36, (0, 57)));
        let plain = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw";
        assert_eq!(parse(plain).unwrap().filesystem_type, "ext4");
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:57 / /srv rw - fuse.larder"), None);
    }

    #[test]
    fn a_moment_is_told_from_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("a@b.larder");
        std::fs::create_dir(&database).unwrap();
        let read = |source: String| {
            let line = format!("36 35 0:57 / /mnt ro - fuse.larder {source} ro");
            let mut info = parse(line.as_bytes()).unwrap().info;
            info.divide();
            info
        };
        let present = read(database.display().to_string());
        assert_eq!((&present.source, &present.moment), (&database, &None));
        let past = read(format!("{}@2026-11-20\\04010:00", database.display()));
        assert_eq!(past.source, database);
        assert_eq!(past.moment.as_deref(), Some("2026-11-20 10:00"));
        let name = format!("{}@2026-11-20 10:00", database.display());
        assert_eq!(past.name(), name);
        let elsewhere = read("/no@such/a.larder".into());
        assert_eq!(elsewhere.moment, None, "that one is a directory's");
    }

    #[test]
    fn the_root_is_mounted_but_not_by_larder() {
        assert!(find_any_mount(Path::new("/")).unwrap().is_some());
        assert!(!is_mounted(Path::new("/")).unwrap());
        let missing = is_mounted(Path::new("/no/such/directory")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
