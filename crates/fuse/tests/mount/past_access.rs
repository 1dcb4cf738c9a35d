//! Who may use what the mount shows of the past.

use crate::common::{TestMount, shell};
use crate::past::{Clock, HOUR, names, snapshot};
use larder_fuse::HistoryAccess;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// What was 0644 and is 0600 now is closed then too, at once, and stays closed while somebody who
/// may has it open.
#[test]
fn what_was_readable_once_is_for_whom_it_is_now() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let clock = Clock::new();
    let mut mount = clock.mount(HOUR);
    let chmod = |mount: &TestMount, name: &str, mode: u32| {
        fs::set_permissions(mount.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["was", "gone", "given"] {
        fs::write(mount.path(name), name).unwrap();
        chmod(&mount, name, 0o644);
    }
    snapshot(&mut mount, &clock, "s");
    let script = "cd \"$1/.larder/snapshots/s\"; \
                  as() { setpriv --reuid 12345 --clear-groups --regid 12345 \"$@\"; }; \
                  for f in was gone given; do as cat $f 2>/dev/null || printf no; printf ' '; \
                  done; \
                  as ls .. 2>/dev/null || echo no";
    let seen = |mount: &TestMount| shell(script, &[&mount.root()]);
    assert_eq!(seen(&mount), "was gone given s\n");
    let open = File::open(mount.path(".larder/snapshots/s/was")).unwrap();
    chmod(&mount, "was", 0o600);
    fs::remove_file(mount.path("gone")).unwrap();
    std::os::unix::fs::chown(mount.path("given"), Some(12345), Some(12345)).unwrap();
    chmod(&mount, "given", 0o600);
    assert_eq!(seen(&mount), "no gone given s\n", "FUSE-13");
    chmod(&mount, "given", 0o200);
    assert_eq!(seen(&mount), "no gone no s\n", "FUSE-13");
    assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o600, "FUSE-13");
    drop(open);
    chmod(&mount, "", 0o700);
    let outside = "setpriv --reuid 12345 --clear-groups --regid 12345 ls \"$1/.larder/snapshots\" \
        2>&1 || true";
    assert!(
        shell(outside, &[&mount.root()]).contains("Permission denied"),
        "FUSE-13"
    );
    chmod(&mount, "", 0o755);
    mount.end();
    mount.mount(|options| options.history_access = HistoryAccess::Then);
    assert_eq!(seen(&mount), "was gone given s\n");
    mount.end();
    mount.mount(|options| options.history_access = HistoryAccess::Root);
    assert!(shell(outside, &[&mount.root()]).contains("Permission denied"));
    assert_eq!(names(mount.path(".larder/snapshots")), ["s"]);
}
