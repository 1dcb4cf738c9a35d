//! The life of a mount as its users know it: helpers of mount(8), fstab, ordinary users, signals,
//! service managers, the log. Needs `/dev/fuse`; those in a namespace of their own need root and
//! util-linux.

use crate::support::Place;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a script as root in a mount namespace of its own, so that nothing outlives it: /sbin has
/// the helpers, /etc/fstab is a file of the test, /dev/fuse is there for everybody. `$L` is the
/// command, `$D` the directory of `place`.
fn in_namespace(place: &Place, script: &str) -> String {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a mount namespace: it needs root"
    );
    let prepare = r#"
        set -eEu
        trap 'echo "failed at: $BASH_COMMAND" >&2; cat said >&2' ERR
        cd "$D"
        # /sbin as it is, and the helpers.
        sbin=$(readlink -f /sbin)
        mkdir sbin.was sbin.now; mount --bind "$sbin" sbin.was; cp -as "$D/sbin.was/." sbin.now/
        ln -s "$L" sbin.now/mount.fuse.larder; ln -s "$L" sbin.now/umount.fuse.larder
        mount --bind sbin.now "$sbin"
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        : > fstab; mount --bind fstab /etc/fstab
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "bash", "-c"])
        .arg(format!("{prepare}\n{script}"))
        .env("L", env!("CARGO_BIN_EXE_larder"))
        .env("D", place.path("a.larder").parent().unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{script}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// A place that other users may enter.
fn open_place() -> Place {
    let place = Place::with_database();
    fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    place
}

#[test]
fn mount_and_umount_know_the_type() {
    let place = open_place();
    let said = in_namespace(
        &place,
        r#"
        mount -t fuse.larder "$D/a.larder" mnt -o noexec,noatime,nofail,x-test=1,threads=2
        findmnt -n -o SOURCE,FSTYPE,OPTIONS mnt
        echo kept > mnt/f
        umount mnt
        # CLI-20: durable, and the server gone.
        [ -z "$(ls a.larder/mounts)" ]
        [ "$($L cat a.larder:/f)" = kept ]

        echo "$D/a.larder $D/mnt fuse.larder defaults,allow_other,_netdev 0 0" > fstab
        mount mnt; [ "$(cat mnt/f)" = kept ]
        findmnt -n -o SOURCE,FSTYPE,OPTIONS mnt
        mount -o remount,ro mnt
        code=0; echo lost 2> said > mnt/f || code=$?
        [ $code != 0 ]; grep -q "Read-only" said
        mount -o remount,rw mnt; echo kept > mnt/f
        code=0; mount.fuse.larder "$D/a.larder" sbin.now -o remount,ro 2> said || code=$?
        [ $code = 32 ]; grep -q "nothing of Larder" said
        mount -a
        [ "$(grep -c "$D/mnt fuse.larder" /proc/self/mounts)" = 1 ]
        exec 7< mnt/f
        code=0; umount mnt 2> said || code=$?
        [ $code = 32 ]; grep -q "in use by bash ($$); end them" said
        umount -l mnt
        exec 7<&-
        code=0; mount -t fuse.larder "$D/none.larder" mnt 2> said || code=$?
        [ $code = 32 ]; grep -q none.larder said
        code=0; mount -t fuse.larder "$D/a.larder" mnt -o bogus 2> said || code=$?
        [ $code = 1 ]; grep -q "unknown mount option 'bogus'" said
        code=0; mount.fuse.larder "$D/a.larder" 2> said || code=$?
        [ $code = 1 ]
        "#,
    );
    let database = place.path("a.larder").canonicalize().unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for (line, options) in lines.iter().zip(["rw,noexec,noatime,", "rw,relatime,"]) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[..2], [database.to_str().unwrap(), "fuse.larder"]);
        assert!(
            fields[2].starts_with(options) && fields[2].contains(",allow_other"),
            "{line}"
        );
    }
    place.assert_clean("a.larder");
    let log = fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    assert!(log.contains(" INFO  serving '"), "{log}");
    assert!(log.contains("everything is durable"), "{log}");
}

#[test]
fn an_ordinary_user_mounts_and_cleans_up() {
    let place = open_place();
    in_namespace(
        &place,
        r#"
        mkdir own; chown nobody own
        echo "$D/own/u.larder $D/own/tab fuse.larder user,noauto 0 0" > fstab
        cat > as_user.sh <<'EOS'
        set -eEu
        trap 'echo "failed at: $BASH_COMMAND" >&2; cat said >&2' ERR
        cd "$D/own"; mkdir tab
        serving() { grep -q "$D/own/$1 fuse.larder" /proc/self/mounts; }
        pid() { grep -o '"pid":[ ]*[0-9]*' "$1" | grep -o '[0-9]*$'; }
        $L --json mount --create --daemon u.larder m > made
        echo mine > m/f; sync m/f
        [ "$(stat -c %u m/f)" = "$(id -u)" ]
        exec 7< m/f
        code=0; $L umount m 2> said || code=$?
        exec 7<&-
        [ $code = 1 ]; grep -q "in use by" said
        # A killed server is cleaned up, at its place ...
        kill -9 "$(pid made)"; sleep 0.2
        ls m 2> said || true; grep -q "not connected" said
        $L --json mount --daemon u.larder m > made
        grep -q "detaching the dead mount" u.larder/mount.log
        [ "$(cat m/f)" = mine ]
        # ... and above the place of the next mount.
        kill -9 "$(pid made)"; sleep 0.2
        $L mount --create --daemon u.larder m/below 2> said
        serving m/below; if serving m; then false; fi
        [ "$(cat m/below/f)" = mine ]
        $L umount m/below
        code=0; $L mount --daemon --allow-other u.larder m 2> said || code=$?
        [ $code = 1 ]; grep -q "user_allow_other.*; put the line" said
        code=0; $L mount --daemon u.larder /usr 2> said || code=$?
        [ $code = 1 ]; grep -q "; mount at a directory of your own" said
        # fstab's `user`.
        mount "$D/own/tab"
        [ "$(cat tab/f)" = mine ]
        grep "$D/own/tab fuse.larder" /proc/self/mounts | grep -q nosuid,nodev,noexec
        $L umount tab
        # A reader of the database's directory, too, but for others it is closed.
        $L mount --daemon u.larder m
EOS
        setpriv --reuid=nobody --regid=nogroup --clear-groups bash as_user.sh
        ls own/m 2> said || true; grep -q "Permission denied" said
        umount own/m
        "#,
    );
    place.assert_clean("own/u.larder");
}

#[test]
fn no_umask_keeps_the_owner_out_or_lets_others_in() {
    let place = open_place();
    in_namespace(
        &place,
        r#"
        mkdir own; chown nobody own
        cat > as_user.sh <<'EOS'
        set -eEu
        trap 'echo "failed at: $BASH_COMMAND, umask $(umask)" >&2' ERR
        for mask in 0000 0477 0700 0777; do
            umask "$mask"; db="$D/own/$mask.larder"
            $L init "$db" > /dev/null
            printf x | $L put - "$db:/f"
            $L txn begin "$db" > /dev/null
            printf y | $L put - "$db:/g"
            [ "$($L cat "$db:/f" "$db:/g")" = xy ]
            $L txn list "$db" > /dev/null
            $L check "$db" > /dev/null
            [ -z "$(find "$db" -perm /077 -o -type d ! -perm 700 -o -type f ! -perm 600)" ]
        done
EOS
        setpriv --reuid=nobody --regid=nogroup --clear-groups bash as_user.sh
        # A group that its user is not in: nothing remains.
        code=0
        setpriv --reuid=nobody --regid=nogroup --clear-groups \
            "$L" init --group 0 own/shared.larder 2> said || code=$?
        [ $code = 1 ]; grep -q "you are no member of group 0; name one of yours" said
        [ ! -e own/shared.larder ]
        "#,
    );
}

/// A mount in the foreground.
struct Served {
    child: Child,
    mnt: std::path::PathBuf,
}

fn serve(place: &Place, flags: &[&str], change: impl FnOnce(&mut Command)) -> Served {
    let arguments = [&["mount", "--create"], flags, &["a.larder", "mnt"]].concat();
    let mut command = place.command(&arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    change(&mut command);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("serving"), "{line}");
    Served {
        child,
        mnt: place.path("mnt"),
    }
}

impl Served {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(&mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
        if is_mounted(&self.mnt) {
            rustix::mount::unmount(&self.mnt, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    larder_fuse::find_mount(path).unwrap().is_some()
}

#[test]
fn a_mount_in_use_ends_when_its_users_are_gone() {
    let place = Place::new();
    let mut mount = serve(&place, &[], |_| {});
    let mut user = Command::new("sleep")
        .arg("600")
        .current_dir(place.path("mnt"))
        .spawn()
        .unwrap();
    mount.signal(Signal::TERM);
    let mut stderr = std::io::BufReader::new(mount.child.stderr.take().unwrap());
    let mut said = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut said).unwrap();
    assert!(is_mounted(&place.path("mnt")), "CLI-19: it is in use");
    fs::write(place.path("mnt/late"), "served on").unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    let code = mount.child.wait().unwrap().code();
    assert_eq!(code, Some(0), "CLI-19: {said}");
    assert!(
        said.contains(&format!("in use by sleep ({})", user.id())),
        "{said}"
    );
    assert_eq!(place.ok(&["cat", "a.larder:/late"]), "served on");
    place.assert_clean("a.larder");
}

#[test]
fn what_was_done_before_a_refused_end_survives_a_kill() {
    let place = Place::new();
    let mut mount = serve(&place, &[], |_| {});
    let file = fs::File::create(place.path("mnt/held")).unwrap();
    fs::write(place.path("mnt/f"), "before").unwrap();
    mount.signal(Signal::INT);
    let mut stderr = BufReader::new(mount.child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("in use by"), "{said}");
    mount.signal(Signal::KILL);
    mount.child.wait().unwrap();
    drop(file);
    assert_eq!(place.ok(&["cat", "a.larder:/f"]), "before", "CLI-18");
    place.assert_clean("a.larder");
}

#[test]
fn a_lazy_umount_lets_nobody_new_in() {
    let place = Place::new();
    let mut mount = serve(&place, &[], |_| {});
    let file = fs::File::create(place.path("mnt/held")).unwrap();
    place.fails(1, &["umount", "mnt"], "in use by");
    place.ok(&["umount", "--lazy", "mnt"]);
    assert!(!is_mounted(&place.path("mnt")));
    assert!(mount.child.try_wait().unwrap().is_none(), "CLI-19");
    drop(file);
    assert_eq!(mount.end().0, Some(0));
    place.assert_clean("a.larder");
}

/// The history takes no such row, so the server can save nothing more.
#[test]
fn a_mount_whose_server_saves_nothing_more_is_detached_on_request() {
    let place = Place::with_database();
    place.write("a", 100);
    place.ok(&["put", "a", "a.larder:/a"]);
    let catalog = crate::hostile::damage::owner(&place.path("a.larder/catalog.db"));
    let spoiled = catalog.execute("UPDATE main_dirent SET since_seq = -7", []);
    assert!(spoiled.unwrap() > 0);
    drop(catalog);
    let mut mount = serve(&place, &[], |_| {});
    fs::rename(place.path("mnt/a"), place.path("mnt/b")).unwrap();
    fs::write(place.path("mnt/c"), "lost").unwrap_or_default(); // It may fail already.
    let remedy = "cannot be made durable; what its server's log says remedies it, or 'larder \
                  umount --lazy ";
    place.fails(1, &["umount", "mnt"], remedy);
    assert!(is_mounted(&place.path("mnt")));
    place.fails(
        1,
        &["umount", "--lazy", "mnt"],
        "is detached, but what was written cannot",
    );
    assert!(!is_mounted(&place.path("mnt")));
    let (code, said) = mount.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("larder: serving 'a.larder' failed: "),
        "{said}"
    );
    assert_eq!(place.ok(&["ls", "a.larder:/"]).trim(), "a");
}

#[test]
fn a_service_manager_hears_of_beginning_and_end() {
    let place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut heard = [0; 64];
        let length = socket.recv(&mut heard).unwrap();
        String::from_utf8_lossy(&heard[..length]).into_owned()
    };
    let address = place.path("notify");
    let mut mount = serve(&place, &[], |command| {
        command.env("NOTIFY_SOCKET", address);
    });
    assert_eq!(hear(), "READY=1");
    assert!(is_mounted(&place.path("mnt")));
    mount.signal(Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    let (code, log) = mount.end();
    assert_eq!(code, Some(0));
    assert!(
        log.contains("INFO  serving") && log.contains("everything is durable"),
        "{log}"
    );
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_happens() {
    let place = open_place();
    for (flags, cause) in [
        (&["-o", "bogus"][..], "unknown mount option 'bogus'"),
        (&["-o", "uid=me"], "'uid=me' is no id"),
        (&["--map-uid", "1"], "'1' is no map of ids"),
        (&["--log", "loud"], "'loud' is no level"),
        (&["--threads", "0"], "0"),
    ] {
        let arguments = [&["mount"], flags, &["a.larder", "mnt"]].concat();
        place.fails(2, &arguments, cause);
    }
    let arguments = ["mount", "-o", "uid=1,map_uid=1:2", "a.larder", "mnt"];
    place.fails(1, &arguments, "exclude one another");
    assert!(!is_mounted(&place.path("mnt")));
}

#[test]
fn the_log_has_the_level_that_was_asked_for() {
    let place = Place::new();
    for (level, lines) in [("error", 0), ("info", 3)] {
        let mut mount = serve(&place, &["--log", level], |_| {});
        mount.signal(Signal::TERM);
        let (code, said) = mount.end();
        assert_eq!((code, said.lines().count()), (Some(0), lines), "{said}");
        let names_transport = said.contains("requests come by ");
        assert_eq!(names_transport, level == "info", "{said}");
    }
}

#[test]
fn a_transport_that_the_environment_does_not_name_rightly_is_refused() {
    let place = Place::new();
    let mut command = place.command(&["mount", "--create", "a.larder", "mnt"]);
    let refused = command.env("LARDER_TRANSPORT", "uring").output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("LARDER_TRANSPORT=uring says nothing"),
        "{said}"
    );
}
