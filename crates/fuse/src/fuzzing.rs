//! The decoders of this crate that `cargo xtask fuzz` calls. Only built by it.

use crate::flags;
use crate::idmap::{IdMap, IdRange, Ids};
use crate::mountinfo;
use crate::trace;

/// A line of the kernel's table of mounts, in which users choose names.
pub fn read_mount(line: &[u8]) {
    mountinfo::read_line(line);
}

/// What a mount writes into a tracer's pipe (`TRACE-1`), which its owner can write, too.
pub fn read_events(mut bytes: &[u8]) {
    while let Ok(Some(len_bytes)) = trace::read_message(bytes) {
        assert!(len_bytes > 0 && len_bytes <= bytes.len(), "TRACE-1");
        bytes = &bytes[len_bytes..];
    }
}

/// The name of a tracer's pipe.
pub fn read_tracer_name(name: &str) {
    trace::read_name(name);
}

/// Flags of an inode in the ioctls of chattr(1) (`FLAGS-1`).
pub fn read_flags(command: u32, data: &[u8]) {
    if let Ok(flags) = flags::decode(command, data) {
        let again = flags::decode(flags::SET[0], &flags.bits().to_le_bytes());
        assert_eq!(again.ok(), Some(flags), "FLAGS-1");
    }
}

/// An access control list under translated ids (`IDMAP-4`): what a program is shown and writes back
/// is what was there.
pub fn map_acl(ranges: &[(u32, u32, u32)], acl: &[u8], old: &[u8]) {
    let made = |(host, database, count): &(u32, u32, u32)| IdRange {
        host: *host,
        database: *database,
        count: *count,
    };
    let Ok(users) = Ids::ranges(ranges.iter().map(made).collect()) else {
        return;
    };
    let map = IdMap {
        groups: users.clone(),
        users,
        ..IdMap::default()
    };
    let shown = map.acl_to_host(acl);
    assert!(shown.len() <= acl.len(), "IDMAP-4");
    let stored = map.acl_to_database(&shown, &[]);
    let stored = stored.expect("IDMAP-4: what is shown has a place");
    assert_eq!(map.acl_to_host(&stored), shown, "IDMAP-4");
    if let Some(stored) = map.acl_to_database(acl, old) {
        assert!(stored.len() <= acl.len() + old.len(), "IDMAP-4");
        assert_eq!(map.acl_to_host(&stored), acl, "IDMAP-4");
    }
}
