//! How a mount is set up: what the flags of `larder mount` and the option lists of mount(8) say, in
//! one form, and back into an option list for the background process.
//!
//! # Words
//! An *option list* is what follows `-o`: options separated by commas, the last one of a kind
//! counts.
//!
//! Settings has more than 20 fields: each is one option of a mount.
//!
//! # Invariants
//! * `CLI-16` Settings written as an option list and read again are the same settings, so that the
//!   background process is set up exactly as was asked for.
//! * `CLI-17` An option is obeyed, or known to be somebody else's business, or refused with its
//!   name.

use crate::units::{parse_mode, parse_time};
use larder_fuse::{
    AccessTimes, HistoryAccess, HistoryListing, IdMap, IdRange, Ids, MountOptions, TransportChoice,
};
use std::time::Duration;
use tracing::Level;

/// Options that mount(8), fstab(5) or systemd obey, and a mount helper passes over.
const PASSED_OVER: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "users",
    "nouser",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "async",
    "nolazytime",
    // Always on.
    "default_permissions",
    "nosub",
    "silent",
];

/// The same, with a value or as prefix.
const PASSED_OVER_PREFIXES: [&str; 6] = ["x-", "X-", "comment=", "user=", "helper=", "uhelper="];

/// What `history` may be.
const HISTORY: [(&str, HistoryListing); 3] = [
    ("show", HistoryListing::Shown),
    ("hide", HistoryListing::Hidden),
    ("off", HistoryListing::Off),
];

/// Who may use it, by the same option.
const HISTORY_ACCESS: [(&str, HistoryAccess); 3] = [
    ("both", HistoryAccess::Both),
    ("then", HistoryAccess::Then),
    ("root", HistoryAccess::Root),
];

/// How a mount is set up. `None`: as the default says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) read_only: bool,
    pub(crate) allow_other: bool,
    pub(crate) suid: bool,
    pub(crate) dev: bool,
    pub(crate) noexec: bool,
    pub(crate) access_times: Option<AccessTimes>,
    pub(crate) no_directory_times: bool,
    pub(crate) idmap: bool,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) umask: Option<u32>,
    pub(crate) file_mask: Option<u32>,
    pub(crate) directory_mask: Option<u32>,
    pub(crate) user_ranges: Vec<Range>,
    pub(crate) group_ranges: Vec<Range>,
    pub(crate) threads: Option<u16>,
    pub(crate) transport: Option<TransportChoice>,
    /// `Some(true)`: locks hold across mounts.
    pub(crate) shares_locks: Option<bool>,
    pub(crate) cache_ttl_ns: Option<i64>,
    pub(crate) metrics: Option<String>,
    pub(crate) log: Option<Level>,
    /// The moment to show; `None`: the present.
    pub(crate) as_of: Option<String>,
    pub(crate) history: Option<HistoryListing>,
    pub(crate) history_access: Option<HistoryAccess>,
}

/// `HOST:DB:COUNT` of a map of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) host: u32,
    pub(crate) database: u32,
    pub(crate) count: u32,
}

impl Settings {
    /// Adds what an option list says. The error names the option and says what to write.
    pub(crate) fn add_list(&mut self, list: &str) -> Result<(), String> {
        list.split(',')
            .map(str::trim)
            .filter(|option| !option.is_empty())
            .try_for_each(|option| self.add(option))
    }

    fn add(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("allow_other", None) => self.allow_other = true,
            ("suid", None) => self.suid = true,
            ("nosuid", None) => self.suid = false,
            ("dev", None) => self.dev = true,
            ("nodev", None) => self.dev = false,
            ("exec", None) => self.noexec = false,
            ("noexec", None) => self.noexec = true,
            ("noatime", None) => self.access_times = Some(AccessTimes::Never),
            ("atime" | "relatime" | "norelatime" | "nostrictatime", None) => {
                self.access_times = Some(AccessTimes::Relative);
            }
            ("strictatime", None) => self.access_times = Some(AccessTimes::Strict),
            ("nodiratime", None) => self.no_directory_times = true,
            ("diratime", None) => self.no_directory_times = false,
            ("idmap", None) => self.idmap = true,
            ("uid", Some(value)) => self.uid = Some(parse_id(option, value)?),
            ("gid", Some(value)) => self.gid = Some(parse_id(option, value)?),
            ("umask", Some(value)) => self.umask = Some(parse_mask(option, value)?),
            ("fmask", Some(value)) => self.file_mask = Some(parse_mask(option, value)?),
            ("dmask", Some(value)) => self.directory_mask = Some(parse_mask(option, value)?),
            ("map_uid", Some(value)) => self.user_ranges.push(parse_range(value)?),
            ("map_gid", Some(value)) => self.group_ranges.push(parse_range(value)?),
            ("threads", Some(value)) => self.threads = Some(parse_threads(value)?),
            ("transport", Some(value)) => self.transport = Some(parse_transport(value)?),
            ("locks", Some("shared")) => self.shares_locks = Some(true),
            ("locks", Some("local")) => self.shares_locks = Some(false),
            ("locks", Some(_)) => {
                return Err(format!(
                    "'{option}' says nothing; write locks=shared (across mounts) or locks=local"
                ));
            }
            ("cache_ttl", Some(value)) => self.cache_ttl_ns = Some(parse_time(value)?),
            ("metrics", Some(value)) => self.metrics = Some(value.to_owned()),
            ("log", Some(value)) => self.log = Some(parse_level(value)?),
            ("asof", Some(value)) => self.as_of = Some(parse_as_of(value)?),
            ("history", Some("none")) => self.history = Some(HistoryListing::Off),
            ("history", Some(value)) => match find_history_access(value) {
                Some(access) => self.history_access = Some(access),
                None => self.history = Some(parse_history(value)?),
            },
            _ if PASSED_OVER.contains(&option)
                || PASSED_OVER_PREFIXES
                    .iter()
                    .any(|prefix| option.starts_with(prefix)) => {}
            ("sync" | "dirsync" | "mand" | "lazytime" | "bind" | "move", None) => {
                return Err(format!(
                    "the option '{name}' is not supported; leave it out (fsync and O_SYNC always \
                     work)"
                ));
            }
            _ => {
                return Err(format!(
                    "unknown mount option '{option}'; 'larder mount --help' lists the options"
                ));
            }
        }
        Ok(())
    }

    /// The option list that says the same (`CLI-16`).
    pub(crate) fn to_list(&self) -> String {
        let mut list = vec![if self.read_only { "ro" } else { "rw" }.to_owned()];
        for (is_set, name) in [
            (self.allow_other, "allow_other"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (self.noexec, "noexec"),
            (self.no_directory_times, "nodiratime"),
            (self.idmap, "idmap"),
        ] {
            list.extend(is_set.then(|| name.to_owned()));
        }
        let times = self.access_times.map(|times| match times {
            AccessTimes::Never => "noatime",
            AccessTimes::Relative => "relatime",
            AccessTimes::Strict => "strictatime",
        });
        list.extend(times.map(str::to_owned));
        for (name, id) in [("uid", self.uid), ("gid", self.gid)] {
            list.extend(id.map(|id| format!("{name}={id}")));
        }
        for (name, mask) in [
            ("umask", self.umask),
            ("fmask", self.file_mask),
            ("dmask", self.directory_mask),
        ] {
            list.extend(mask.map(|mask| format!("{name}={mask:o}")));
        }
        for (name, ranges) in [
            ("map_uid", &self.user_ranges),
            ("map_gid", &self.group_ranges),
        ] {
            let show =
                |range: &Range| format!("{name}={}:{}:{}", range.host, range.database, range.count);
            list.extend(ranges.iter().map(show));
        }
        list.extend(self.threads.map(|threads| format!("threads={threads}")));
        list.extend(
            self.transport
                .map(|transport| format!("transport={}", transport.name())),
        );
        list.extend(self.shares_locks.map(|is_shared| {
            let how = if is_shared { "shared" } else { "local" };
            format!("locks={how}")
        }));
        list.extend(
            self.cache_ttl_ns
                .map(|ns| format!("cache_ttl={}ms", ns / 1_000_000)),
        );
        list.extend(self.metrics.as_ref().map(|at| format!("metrics={at}")));
        list.extend(self.log.map(|level| format!("log={level}").to_lowercase()));
        list.extend(self.as_of.as_ref().map(|moment| format!("asof={moment}")));
        let history = self.history.map(|listing| {
            let how = HISTORY.iter().find(|(_, found)| *found == listing);
            format!("history={}", how.map_or("hide", |(how, _)| how))
        });
        list.extend(history);
        let access = self
            .history_access
            .and_then(|access| HISTORY_ACCESS.iter().find(|(_, found)| *found == access));
        list.extend(access.map(|(who, _)| format!("history={who}")));
        list.join(",")
    }

    /// The options of the mount. [`larder::ErrorKind::InvalidInput`] when the maps of ids
    /// contradict one another, history is to be shown in the past, or `LARDER_TRANSPORT` names no
    /// transport.
    pub(crate) fn mount_options(&self) -> larder::Result<MountOptions> {
        let defaults = MountOptions::default();
        if self.as_of.is_some() && self.history == Some(HistoryListing::Shown) {
            return Err(larder::Error::new(
                larder::ErrorKind::InvalidInput,
                "a mount with 'asof' shows one moment and no others; leave 'history=show' out",
            ));
        }
        Ok(MountOptions {
            read_only: self.read_only,
            as_of: self.as_of.clone(),
            history: self.history.unwrap_or(defaults.history),
            history_access: self.history_access.unwrap_or(defaults.history_access),
            allow_other: self.allow_other || defaults.allow_other,
            suid: self.suid,
            dev: self.dev,
            exec: !self.noexec,
            access_times: self.access_times.unwrap_or(defaults.access_times),
            has_directory_times: !self.no_directory_times,
            allows_idmap: self.idmap,
            is_private: false,
            has_metrics: self.metrics.is_some(),
            shares_locks: self.shares_locks.unwrap_or(defaults.shares_locks),
            threads: self.threads.map_or(defaults.threads, usize::from),
            transport: match self.transport {
                Some(transport) => transport,
                None => transport_of_environment()?,
            },
            cache_ttl: self.cache_ttl_ns.map_or(defaults.cache_ttl, |ns| {
                Duration::from_nanos(ns.unsigned_abs())
            }),
            id_map: IdMap {
                users: ids("uid", self.uid, &self.user_ranges)?,
                groups: ids("gid", self.gid, &self.group_ranges)?,
                file_mask: self.file_mask.or(self.umask),
                directory_mask: self.directory_mask.or(self.umask),
            },
        })
    }
}

/// How requests of a mount come that was not told.
pub(crate) fn transport_of_environment() -> larder::Result<TransportChoice> {
    TransportChoice::from_environment()
        .map_err(|told| larder::Error::new(larder::ErrorKind::InvalidInput, told))
}

fn ids(name: &str, squash: Option<u32>, ranges: &[Range]) -> larder::Result<Ids> {
    match (squash, ranges) {
        (None, []) => Ok(Ids::Same),
        (Some(id), []) => Ok(Ids::Squash(id)),
        (Some(_), [_, ..]) => Err(larder::Error::new(
            larder::ErrorKind::InvalidInput,
            format!("'{name}' and 'map_{name}' exclude one another; give one of them"),
        )),
        (None, ranges) => Ids::ranges(
            ranges
                .iter()
                .map(|range| IdRange {
                    host: range.host,
                    database: range.database,
                    count: range.count,
                })
                .collect(),
        ),
    }
}

fn parse_id(option: &str, value: &str) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| format!("'{option}' is no id; write a number, as 'id -u' shows it"))
}

fn parse_mask(option: &str, value: &str) -> Result<u32, String> {
    parse_mode(value)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| format!("'{option}' is no mask; write it in octal, like 022"))
}

/// `HOST:DB` or `HOST:DB:COUNT`.
pub(crate) fn parse_range(value: &str) -> Result<Range, String> {
    let parts: Option<Vec<u32>> = value.split(':').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some(&[host, database]) => Ok(Range {
            host,
            database,
            count: 1,
        }),
        Some(&[host, database, count]) => Ok(Range {
            host,
            database,
            count,
        }),
        _ => Err(format!(
            "'{value}' is no map of ids; write HOST:DB or HOST:DB:COUNT, like 1000:501"
        )),
    }
}

fn parse_threads(value: &str) -> Result<u16, String> {
    value
        .parse()
        .ok()
        .filter(|count| (1..=1024).contains(count))
        .ok_or_else(|| format!("'threads={value}' is no count; write 1 to 1024"))
}

fn parse_transport(value: &str) -> Result<TransportChoice, String> {
    TransportChoice::from_name(value).ok_or_else(|| {
        format!(
            "'transport={value}' says nothing; write transport=device, transport=io_uring or \
             transport=auto"
        )
    })
}

/// What it means is asked of the database.
fn parse_as_of(value: &str) -> Result<String, String> {
    match value {
        "" => Err(
            "'asof=' names no moment; write asof=2026-11-20T10:00:00Z, asof=-1h, \
            asof=seq:1234, or the name \
                   of a snapshot"
                .into(),
        ),
        moment => Ok(moment.into()),
    }
}

fn find_history_access(value: &str) -> Option<HistoryAccess> {
    let found = HISTORY_ACCESS.iter().find(|(who, _)| *who == value);
    found.map(|(_, access)| *access)
}

fn parse_history(value: &str) -> Result<HistoryListing, String> {
    let found = HISTORY.iter().find(|(how, _)| *how == value);
    found.map(|(_, listing)| *listing).ok_or_else(|| {
        format!(
            "'history={value}' says nothing; write history=show, history=hide or history=none, \
             and history=both, \
             history=then or history=root for who may use it"
        )
    })
}

/// `error`, `warn`, `info`, `debug` or `trace`.
pub(crate) fn parse_level(value: &str) -> Result<Level, String> {
    match value {
        "error" => Ok(Level::ERROR),
        "warn" => Ok(Level::WARN),
        "info" => Ok(Level::INFO),
        "debug" => Ok(Level::DEBUG),
        "trace" => Ok(Level::TRACE),
        _ => Err(format!(
            "'{value}' is no level of the log; write error, warn, info, debug or trace"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_fuse::NewOwner;

    fn read(list: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        settings.add_list(list)?;
        Ok(settings)
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let full = "ro,allow_other,suid,dev,noexec,nodiratime,idmap,strictatime,uid=5,gid=6,\
                    umask=22,fmask=133,dmask=22,map_uid=1:2:3,map_uid=9:9:1,map_gid=0:7:1,\
                    threads=4,transport=auto,locks=local,cache_ttl=1500ms,\
                    metrics=[::1]:9,log=debug,asof=2026-11-20T10:00:00Z,history=off";
        let settings = read(full).unwrap();
        assert_eq!(settings.to_list(), full, "CLI-16");
        // Every setting alone, so that none leans on another.
        for option in full
            .split(',')
            .chain(["rw", "", "cache_ttl=0s", "log=error", "locks=shared"])
            .chain([
                "noatime",
                "relatime",
                "asof=-1h",
                "history=show",
                "history=hide",
                "transport=device",
                "transport=io_uring",
            ])
        {
            let settings = read(option).unwrap();
            assert_eq!(
                read(&settings.to_list()).unwrap(),
                settings,
                "CLI-16: {option}"
            );
        }
    }

    #[test]
    fn what_mount_passes_on_is_understood() {
        let passed = "rw,nosuid,nodev,noexec,relatime,_netdev,nofail,noauto,user=joe,\
                      x-systemd.automount,x-gvfs-show,comment=mine,defaults";
        let settings = read(passed).unwrap();
        assert_eq!(
            settings,
            Settings {
                noexec: true,
                access_times: Some(AccessTimes::Relative),
                ..Settings::default()
            }
        );
        assert!(
            read("ro,rw").is_ok_and(|settings| !settings.read_only),
            "the last one counts"
        );
    }

    #[test]
    fn nothing_unknown_is_taken() {
        for bad in [
            "noatim",
            "ro=1",
            "uid",
            "uid=joe",
            "uid=4294967295",
            "umask=9",
            "umask=1777",
            "threads=0",
            "cache_ttl=soon",
            "map_uid=1",
            "map_uid=1:2:3:4",
            "log=loud",
            "locks=none",
            "transport=uring",
            "asof=",
            "history=1",
            "sync",
            "allow_root",
            "xattr",
        ] {
            let error = read(&format!("rw,{bad}")).unwrap_err();
            assert!(
                error.contains(bad.split('=').next_back().unwrap()),
                "CLI-17: {error}"
            );
            assert!(error.contains("; "), "CLI-1: no remedy: {error}");
        }
    }

    #[test]
    fn ids_are_squashed_or_mapped() {
        let options = |list: &str| read(list).unwrap().mount_options();
        let made = options("uid=7,map_gid=1000:501,umask=077,dmask=022,ro,threads=3").unwrap();
        assert_eq!(made.id_map.users, Ids::Squash(7));
        assert_eq!(made.id_map.groups.new_owner(1000), NewOwner::Store(501));
        assert_eq!(
            (made.id_map.file_mask, made.id_map.directory_mask),
            (Some(0o77), Some(0o22))
        );
        assert!(made.read_only && !made.suid && !made.dev && made.exec && made.threads == 3);
        let past = options("rw,asof=-1h").unwrap();
        assert_eq!(past.as_of.as_deref(), Some("-1h"));
        for bad in [
            "asof=-1h,history=show",
            "uid=7,map_uid=1:2",
            "map_uid=1:2,map_uid=1:3",
            "map_gid=1:2:0",
        ] {
            let error = options(bad).unwrap_err();
            assert_eq!(error.kind(), larder::ErrorKind::InvalidInput, "{bad}");
        }
        let defaults = options("rw").unwrap();
        assert!(defaults.id_map.is_identity());
        assert_eq!(defaults.cache_ttl, MountOptions::default().cache_ttl);
        let by_ring = options("transport=io_uring").unwrap();
        assert_eq!(by_ring.transport, TransportChoice::IoUring);
    }
}
