//! What programs carry out of the past into the present.

use crate::as_of::{Clock, HOUR, MINUTE, sync};
use crate::common::{TestMount, database_path, noise, shell};
use larder::Database;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// `cp -a` takes them along as any attribute (`TEMPORAL-4`).
#[test]
fn user_columns_are_in_the_past() {
    let clock = Clock::new();
    let mount = clock.mount(HOUR);
    let root = mount.root();
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    let add = "ALTER TABLE main ADD COLUMN rating INTEGER";
    database
        .sql()
        .open(false)
        .unwrap()
        .execute(add, &mut |_| Ok(()))
        .unwrap();
    database.sql().track_table("main").unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    let file = root.join("dir/file");
    fs::write(&file, "content").unwrap();
    let name = "user.column.rating";
    rustix::fs::setxattr(&file, name, b"4", XattrFlags::empty()).unwrap();
    sync(&mount);
    clock.pass(2 * MINUTE);
    fs::remove_file(&file).unwrap();
    fs::write(&file, "another").unwrap();
    sync(&mount);
    let read = |path: &Path| {
        let mut value = [0; 16];
        rustix::fs::getxattr(path, name, &mut value).map(|length| value[..length].to_vec())
    };
    let then = root.join(".larder/at/-1m/dir/file");
    assert_eq!(fs::read_to_string(&then).unwrap(), "content");
    assert_eq!(read(&then).unwrap(), b"4", "TEMPORAL-4");
    assert_eq!(read(&file), Err(Errno::NODATA));
    shell("cd \"$1\"; rm -r dir; cp -a .larder/at/-1m/dir .", &[&root]);
    assert_eq!(read(&file).unwrap(), b"4", "TEMPORAL-4");
}

#[test]
fn copies_out_of_the_past_share_with_the_history() {
    let mount = TestMount::new();
    let content = noise(4 << 20, 7);
    fs::write(mount.path("from"), &content).unwrap();
    let beside = larder::Database::open(&database_path(mount.directory()), Default::default());
    let beside = beside.unwrap();
    let used = || {
        sync(&mount);
        let stats = beside.maintenance().stats().unwrap(); // Of what is committed, noticed or not.
        stats.live_bytes + stats.retired_bytes
    };
    let before = used();
    beside.snapshots().create("s").unwrap();
    fs::remove_file(mount.path("from")).unwrap();
    shell(
        "cp --reflink=auto \"$1\" \"$2\"",
        &[&mount.path(".larder/snapshots/s/from"), &mount.path("back")],
    );
    assert_eq!(used(), before, "SHARE-9");
    assert!(fs::read(mount.path("back")).unwrap() == content);
    // Over what is there, which then was the same inode.
    let now = noise(4 << 20, 8);
    fs::write(mount.path("back"), &now).unwrap();
    used();
    beside.snapshots().create("now").unwrap();
    fs::write(mount.path("back"), &content).unwrap();
    let before = used();
    shell(
        "cp --reflink=auto \"$1\" \"$2\"",
        &[
            &mount.path(".larder/snapshots/now/back"),
            &mount.path("back"),
        ],
    );
    assert_eq!(used(), before, "SHARE-9");
    assert!(fs::read(mount.path("back")).unwrap() == now);
    beside.close().unwrap();
}
