//! `rsync -aHAX --checksum` both ways: hard links, ACLs, extended attributes, devices, holes,
//! times.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use super::judge::Cases;
use super::run::shell;
use super::site::Site;
use crate::compare::Listing;
use xtask::Tally;

const PATIENCE: Duration = Duration::from_secs(300);

/// Everything that a tree on ext4 can hold.
const TREE: &str = r#"
mkdir -p "$1/deep/er/est" "$1/many" && cd "$1"
echo small > a; : > empty; head -c 3000000 /dev/urandom > deep/large
ln a hard; ln a deep/er/hard; ln deep/large many/large
ln -s ../a deep/link
ln -s nowhere dangling
ln -s "$(head -c 3000 /dev/zero | tr '\0' x)" long-target
mkfifo pipe; mknod null c 1 3; mknod disk b 8 1; chmod 640 null
truncate -s 80M holes; printf end | dd of=holes bs=1 seek=50000000 conv=notrunc status=none
fallocate -p -o 4096 -l 100000 deep/large
i=0; while [ $i -lt 300 ]; do echo $i > many/$i; i=$((i + 1)); done
echo x > "$(printf 'line\nbreak')"
echo x > "$(printf 'latin-\351')"
echo x > "$(head -c 255 /dev/zero | tr '\0' n)"
chmod 4751 a; chmod 2775 deep; chmod 1777 deep/er; chmod 0 empty
chown 1234:5678 deep/large; chown -h 12:34 dangling; chown 65534 many
setfattr -n user.one -v value a; setfattr -n user.empty a; setfattr -n trusted.two -v value deep
setfattr -n security.three -v value deep/large
setfattr -n user.long -v "$(head -c 2000 /dev/zero | tr '\0' v)" many/1
setfacl -m u:1234:rw,g:5678:r,m:rw a; setfacl -d -m u:1:rwx,g::rx deep; setfacl -m o::- many/2
touch -d '2001-02-03 04:05:06.789012345' deep/large; touch -h -d '1960-01-02 03:04:05.25' dangling
touch -d '2038-01-20 00:00:00.999999999' many/3; touch -d '1999-12-31 23:59:59' deep
"#;

/// What an incremental run has to find.
const CHANGE: &str = r#"
cd "$1"
echo more >> many/7; rm many/8; mv many/9 many/renamed; ln many/10 many/linked; chmod 600 many/11
setfacl -m u:99:r many/12
setfattr -n user.new -v x many/13
touch -d '2020-02-02 02:02:02.2' many/14
rm hard; ln -sf other deep/link; rm -r deep/er
"#;

/// Copies there and back, compares, changes, copies again.
pub fn run(site: &Site) -> Result<Tally, String> {
    let ext4 = site.ext4()?;
    let (original, back) = (ext4.path().join("original"), ext4.path().join("back"));
    let copy = site.mountpoint().join("copy");
    shell(TREE, &[&original], PATIENCE)?;
    drop(
        UnixListener::bind(original.join("socket"))
            .map_err(|error| format!("a socket: {error}"))?,
    );
    let mount = site.mount()?;
    let mut cases = Cases::default();
    cases.run("onto the mount", || rsync(&original, &copy));
    cases.run("the same", || compare(&original, &copy));
    cases.run("holes are kept", || {
        let blocks = shell("stat -c %b \"$1/holes\"", &[&copy], PATIENCE)?;
        match blocks.trim().parse() {
            Ok(0..=2048) => Ok(()),
            _ => Err(format!("holes takes {} sectors", blocks.trim())),
        }
    });
    cases.run("back to ext4", || rsync(&copy, &back));
    cases.run("the same again", || compare(&original, &back));
    shell(CHANGE, &[&original], PATIENCE)?;
    cases.run("changes onto the mount", || {
        rsync(&original, &copy)?;
        compare(&original, &copy)
    });
    shell(CHANGE_BACK, &[&copy], PATIENCE)?;
    cases.run("changes back to ext4", || {
        rsync(&copy, &back)?;
        compare(&copy, &back)
    });
    cases.run("unmount, check, mount", || site.finish(mount));
    let mount = site.mount()?;
    cases.run("the same after a remount", || compare(&back, &copy));
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

/// Made on the mount.
const CHANGE_BACK: &str = r#"
cd "$1"
echo more >> many/20; rm many/21; mv many/22 deep/moved; ln many/23 deep/linked; chmod 4755 many/24
setfacl -m u:98:rwx deep; setfattr -x user.one a; touch -d '2021-02-02 02:02:02.123456789' many/25
"#;

/// Times count to the nanosecond: by default rsync takes those of one second for the same.
fn rsync(from: &Path, to: &Path) -> Result<(), String> {
    let script =
        "rsync -aHAXS --modify-window=-1 --checksum --delete --numeric-ids \"$1/\" \"$2/\"";
    shell(script, &[from, to], PATIENCE).map(drop)
}

/// rsync finds nothing to do, and neither do our own eyes.
fn compare(original: &Path, copy: &Path) -> Result<(), String> {
    let script = "rsync -aHAXS --modify-window=-1 --checksum --delete --numeric-ids --dry-run \
        --itemize-changes \"$1/\" \"$2/\"";
    let found = shell(script, &[original, copy], PATIENCE)?;
    if !found.trim().is_empty() {
        return Err(format!("rsync would change:\n{found}"));
    }
    shell(
        "diff -r --no-dereference --exclude=pipe --exclude=socket --exclude=null --exclude=disk \
         \"$1\" \"$2\"",
        &[original, copy],
        PATIENCE,
    )?;
    for show in ["getfacl -nP", "getfattr -hd -m - -e hex"] {
        let script = format!("cd \"$1\" && find . -print0 | sort -z | xargs -0 {show}");
        let shown = |path: &Path| shell(&script, &[path], PATIENCE);
        let (here, there) = (shown(original)?, shown(copy)?);
        if here != there {
            let differs = here.lines().zip(there.lines()).find(|(a, b)| a != b);
            return Err(format!("'{show}' shows something else: {differs:?}"));
        }
    }
    let read =
        |path: &Path| Listing::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let differences = read(original)?.differences(&read(copy)?);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(differences.join("\n")),
    }
}
