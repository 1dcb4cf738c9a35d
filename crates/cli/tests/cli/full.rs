//! A host filesystem that is full, then freed: whatever has filled it, what frees space works, and
//! the database mounts again (`HOST-1`).

use crate::support::Place;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What holds a database.
#[derive(Debug, Clone, Copy)]
enum Holder {
    Tmpfs,
    /// In a file, by a loop device.
    Ext4,
}

/// A database alone on a filesystem of its own.
struct Host {
    place: Place,
    server: Option<Child>,
}

impl Host {
    fn new(mib: u64, retention: &str) -> Host {
        Host::on(Holder::Tmpfs, mib, retention).unwrap()
    }

    /// `None`: there are no loop devices.
    fn on(holder: Holder, mib: u64, retention: &str) -> Option<Host> {
        let place = Place::new();
        for directory in ["h", "m"] {
            std::fs::create_dir(place.path(directory)).unwrap();
        }
        let (image, host) = (place.path("image"), place.path("h"));
        let mut mount = Command::new("mount");
        match holder {
            Holder::Tmpfs => mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]),
            Holder::Ext4 => {
                File::create(&image).unwrap().set_len(mib << 20).unwrap();
                let mut format = Command::new("mkfs.ext4");
                let made = format.args(["-q", "-m", "0"]).arg(&image).status();
                assert!(made.expect("mkfs.ext4 is needed: e2fsprogs").success());
                mount.args(["-o", "loop"]).arg(&image)
            }
        };
        let mounted = mount.arg(&host).output().unwrap();
        let said = String::from_utf8_lossy(&mounted.stderr);
        if said.contains("failed to setup loop device") {
            println!("not run: {said}");
            return None;
        }
        assert!(mounted.status.success(), "{said}");
        place.ok(&["init", "h/D", "--retention", retention]);
        Some(Host {
            place,
            server: None,
        })
    }

    fn mount(&mut self) {
        let mut server = self.place.command(&["mount", "h/D", "m"]);
        self.server = Some(server.stdout(Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read_to_string("/proc/mounts")
            .unwrap()
            .lines()
            .all(|line| !line.contains(&format!("{} ", self.place.path("m").display())))
        {
            assert!(Instant::now() < deadline, "it is not mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn unmount(&mut self) {
        self.place.ok(&["umount", "m"]);
        let ended = self.server.take().unwrap().wait().unwrap();
        assert!(ended.success());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path("m").join(name)
    }

    /// What was there is removed, durably; then all that looks after a database works, and it takes
    /// files again.
    fn free(&mut self) {
        for entry in std::fs::read_dir(self.place.path("m")).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => std::fs::remove_dir_all(path).unwrap(),
                false => std::fs::remove_file(path).unwrap(),
            }
        }
        File::open(self.place.path("m"))
            .unwrap()
            .sync_all()
            .unwrap();
        self.unmount();
        self.place.assert_clean("h/D");
        let pruned = self.place.run(&["prune", "h/D"]);
        assert!(
            pruned.code == Some(0) || pruned.stderr.contains("no history"),
            "{pruned:?}"
        );
        self.mount();
        std::fs::write(self.file("again"), "works").unwrap();
        assert_eq!(std::fs::read(self.file("again")).unwrap(), b"works");
        std::fs::remove_file(self.file("again")).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            self.place.run(&["umount", "m"]);
            server.wait().unwrap();
        }
        let host = self.place.path("h");
        Command::new("umount").arg("-l").arg(host).status().unwrap();
    }
}

fn is_full(error: &std::io::Error) -> bool {
    assert_eq!(error.raw_os_error(), Some(28), "{error}");
    true
}

/// Until there is no space.
fn fill_with_names(host: &Host) {
    for directory in 0..1000 {
        let directory = host.file(&format!("d{directory}"));
        if std::fs::create_dir(&directory).is_err_and(|error| is_full(&error)) {
            return;
        }
        for index in 0..500 {
            let name = format!("{}{index}", "x".repeat(230));
            if File::create(directory.join(name)).is_err_and(|error| is_full(&error)) {
                return;
            }
        }
    }
    panic!("it is not full");
}

fn fill_with_content(host: &Host) {
    let bytes = vec![7; 1 << 20];
    for index in 0..1000 {
        let written = File::create(host.file(&format!("f{index}")))
            .and_then(|mut file| (0..8).try_for_each(|_| file.write_all(&bytes)));
        if written.is_err_and(|error| is_full(&error)) {
            return;
        }
    }
    panic!("it is not full");
}

fn free_of_names(mut host: Host) {
    host.mount();
    for _ in 0..2 {
        fill_with_names(&host);
        let log = std::fs::metadata(host.place.path("h/D/catalog.db-wal")).unwrap();
        assert!(log.len() < 32 << 20, "HOST-2: {}", log.len());
        host.free();
    }
}

#[test]
fn a_host_that_is_full_of_names_is_freed() {
    free_of_names(Host::new(98, "1h"));
}

#[test]
#[ignore = "half a minute: cargo xtask soak"]
fn an_ext4_that_is_full_of_names_is_freed() {
    for mib in [98, 160] {
        if let Some(host) = Host::on(Holder::Ext4, mib, "1h") {
            free_of_names(host);
        }
    }
}

fn free_of_content(mut host: Host) {
    host.mount();
    for _ in 0..3 {
        fill_with_content(&host);
        host.free();
    }
}

#[test]
fn a_host_that_is_full_of_content_is_freed() {
    free_of_content(Host::new(160, "1h"));
}

#[test]
fn an_ext4_that_is_full_of_content_is_freed() {
    if let Some(host) = Host::on(Holder::Ext4, 160, "1h") {
        free_of_content(host);
    }
}

/// Less than the catalog is left of a large one.
#[test]
fn a_small_host_serves() {
    let mut host = Host::new(56, "1h");
    host.mount();
    for round in 0..3 {
        let bytes = vec![round; 4 << 20];
        std::fs::write(host.file("file"), &bytes).unwrap();
        assert_eq!(std::fs::read(host.file("file")).unwrap(), bytes);
    }
    fill_with_content(&host);
    host.free();
}

/// What is overwritten waits in the catalog's log, which has little room here: ENOSPC comes from a
/// write, never from fsync, and nothing waits for room.
#[test]
fn small_overwrites_fit_into_a_small_host() {
    let mut host = Host::new(160, "0s");
    host.mount();
    let blocks = 5_000;
    std::fs::write(host.file("large"), vec![1; blocks << 12]).unwrap();
    let file = File::options()
        .write(true)
        .open(host.file("large"))
        .unwrap();
    file.sync_all().unwrap();
    fill_with_content(&host);
    let began = Instant::now();
    for round in 0..2 {
        for block in 0..blocks {
            // 4,099 is prime: every block once, no two neighbours after one another.
            let at = (block * 4_099 % blocks) << 12;
            match file.write_all_at(&[round; 4096], at as u64) {
                Ok(()) => {}
                Err(error) => assert!(is_full(&error)),
            }
        }
        file.sync_all().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(60), "HOST-1");
    drop(file);
    host.free();
}

/// The catalog is half free, the host is full, and the log of the mount is new: to remove names
/// changes many pages, which the log must hold.
#[test]
fn scattered_names_are_removed_from_a_full_host() {
    let mut host = Host::new(200, "0s");
    host.mount();
    let names = |range: std::ops::Range<u64>| {
        range.map(|number| {
            format!(
                "{:016x}{}",
                number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                "x".repeat(200)
            )
        })
    };
    for name in names(0..60_000) {
        File::create(host.file(&name)).unwrap();
    }
    for name in names(0..30_000) {
        std::fs::remove_file(host.file(&name)).unwrap();
    }
    host.unmount();
    host.place.run(&["prune", "h/D"]);
    host.mount();
    fill_with_content(&host);
    host.unmount();
    host.mount();
    let began = Instant::now();
    for name in names(30_000..60_000) {
        std::fs::remove_file(host.file(&name)).unwrap();
    }
    host.free();
    assert!(began.elapsed() < Duration::from_secs(120), "HOST-1");
}

fn free_of_history(mut host: Host) {
    host.mount();
    let bytes = vec![9; 4 << 20];
    for round in 0..60 {
        std::fs::write(host.file(&format!("f{}", round % 3)), &bytes).unwrap();
    }
    host.free();
}

#[test]
fn history_fills_no_host() {
    free_of_history(Host::new(160, "1h"));
}

#[test]
fn history_fills_no_ext4() {
    if let Some(host) = Host::on(Holder::Ext4, 160, "1h") {
        free_of_history(host);
    }
}

fn free_of_a_transaction(mut host: Host) {
    host.place.write("local", 8 << 20);
    host.mount();
    for _ in 0..2 {
        let program = env!("CARGO_BIN_EXE_larder");
        let fill = format!("for i in $(seq 100); do {program} put local h/D:/t$i || exit 7; done");
        let done = host
            .place
            .run(&["txn", "run", "h/D", "--", "sh", "-c", &fill]);
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        assert!(done.stderr.contains("full"), "{}", done.stderr);
        assert_eq!(std::fs::read_dir(host.place.path("m")).unwrap().count(), 0);
        host.free();
    }
}

#[test]
fn a_long_transaction_that_fills_the_host_leaves_no_trace() {
    free_of_a_transaction(Host::new(160, "1h"));
}

#[test]
fn a_long_transaction_that_fills_an_ext4_leaves_no_trace() {
    if let Some(host) = Host::on(Holder::Ext4, 160, "1h") {
        free_of_a_transaction(host);
    }
}

/// Other programs take all that there is, and give it back.
#[test]
fn who_waits_for_the_host_goes_on_when_it_is_freed() {
    let mut host = Host::new(110, "1h");
    host.mount();
    std::fs::write(host.file("before"), "is there").unwrap();
    for _ in 0..3 {
        let mut filler = File::create(host.place.path("h/filler")).unwrap();
        let bytes = vec![1; 1 << 16];
        while filler.write_all(&bytes).is_ok() {}
        while filler.write_all(&[1; 64]).is_ok() {}
        // What a look found is true for so long.
        std::thread::sleep(Duration::from_millis(30));
        let refused = std::fs::write(host.file("new"), "x").unwrap_err();
        assert!(is_full(&refused));
        assert_eq!(std::fs::read(host.file("before")).unwrap(), b"is there");
        // Now: a child that another test forks has it open until it is another program.
        filler.set_len(0).unwrap();
        drop(filler);
        std::fs::remove_file(host.place.path("h/filler")).unwrap();
        std::fs::write(host.file("new"), "x").unwrap();
        host.free();
        std::fs::write(host.file("before"), "is there").unwrap();
    }
}

/// Other programs may take the last byte: then the database is read still, what changes it says why
/// it cannot, and a little room is enough to go on.
#[test]
fn a_host_without_a_byte_left_is_read_and_says_what_to_do() {
    let host = Host::new(98, "1h");
    let place = &host.place;
    place.write("file", 100_000);
    place.ok(&["put", "file", "h/D:/f"]);
    // Two connections that close at once may both leave the log to the other, and a reader that
    // removes it later frees its room.
    for _ in 0..100 {
        if !place.path("h/D/catalog.db-wal").exists() {
            break;
        }
        place.ok(&["ls", "h/D:/"]);
    }
    assert!(!place.path("h/D/catalog.db-wal").exists());
    let mut fill = File::create(place.path("h/fill")).unwrap();
    let mut length = 0;
    for bytes in [1 << 20, 4096] {
        while let Ok(()) = fill.write_all(&vec![7; bytes]) {
            length += bytes as u64;
        }
    }
    let told = "the filesystem that holds the catalog is full; free some space there";
    for _ in 0..2 {
        assert!(place.ok(&["ls", "h/D:/"]).contains('f'));
        for verb in ["check", "df", "log", "status"] {
            place.ok(&[verb, "h/D"]);
        }
        assert_eq!(place.run(&["cat", "h/D:/f"]).code, Some(0), "HOST-1");
        for refused in [
            &["rm", "h/D:/f"][..],
            &["prune", "h/D"],
            &["mount", "h/D", "m"],
        ] {
            place.fails(1, refused, told);
        }
    }
    fill.set_len(length - (4 << 20)).unwrap();
    place.ok(&["rm", "h/D:/f"]);
    place.ok(&["prune", "h/D"]);
    place.assert_clean("h/D");
}

/// Nobody knows what room such a filesystem has, and deleting something would not help.
#[test]
fn a_host_that_tells_no_size_is_named_and_what_is_there_is_read() {
    let place = Place::with_database();
    for directory in ["h", "m"] {
        std::fs::create_dir(place.path(directory)).unwrap();
    }
    let content = place.write("file", 100_000);
    place.ok(&["put", "file", "a.larder:/f"]);
    let host = place.path("h");
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-t", "ramfs", "none"]).arg(&host).status();
    assert!(mounted.unwrap().success());
    let mut copy = Command::new("cp");
    copy.args(["-a", "a.larder", "h/D"])
        .current_dir(place.path(""));
    assert!(copy.status().unwrap().success());
    let mut host = Host {
        place,
        server: None,
    };
    let told = "reports a size of 0 blocks, so that nobody knows what room it has; move the \
                database to one that tells";
    for refused in [
        &["init", "h/E"][..],
        &["put", "file", "h/D:/g"],
        &["mkdir", "h/D:/d"],
    ] {
        host.place.fails(1, refused, told);
    }
    host.place.ok(&["ls", "h/D:/"]);
    assert!(host.place.run(&["cat", "h/D:/f"]).stdout == content);
    for verb in ["df", "check", "log", "status"] {
        host.place.ok(&[verb, "h/D"]);
    }
    host.mount();
    assert!(std::fs::read(host.file("f")).unwrap() == content);
    assert!(is_full(&std::fs::write(host.file("g"), "x").unwrap_err()));
    let space = rustix::fs::statvfs(host.file("")).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 64 << 20);
    assert!(space.f_bfree < space.f_blocks);
    assert_eq!(space.f_bavail, 0, "nothing can be written");
    // What takes no room works.
    std::fs::remove_file(host.file("f")).unwrap();
    host.unmount();
    host.place.assert_clean("h/D");
}
