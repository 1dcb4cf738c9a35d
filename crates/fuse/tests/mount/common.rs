//! A database in a temporary directory, mounted by this process.

use larder::{CreateOptions, Database, DatabaseOptions, Error, ErrorKind};
use larder_fuse::{HistoryAccess, MountOptions, Mounted, TransportChoice};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Detached when dropped, so that a failing test leaves no mount behind.
pub struct TestMount {
    mounted: Option<Mounted>,
    open: DatabaseOptions,
    directory: TempDir,
}

impl TestMount {
    /// A new database of 256 MiB, mounted.
    pub fn new() -> TestMount {
        TestMount::with_capacity(256 << 20)
    }

    /// A new database of so many bytes, mounted.
    pub fn with_capacity(capacity_bytes: u64) -> TestMount {
        TestMount::with(capacity_bytes, None, DatabaseOptions::default())
    }

    /// The same with a retention, nanoseconds, and opened in a way of its own.
    pub fn with(
        capacity_bytes: u64,
        retention_ns: Option<i64>,
        open: DatabaseOptions,
    ) -> TestMount {
        let directory = new_directory();
        let options = CreateOptions {
            capacity_bytes: Some(capacity_bytes),
            retention_ns,
            ..CreateOptions::default()
        };
        Database::create_with(&database_path(directory.path()), &options, &open.engine)
            .expect("a new database");
        let mut mount = TestMount {
            mounted: None,
            open,
            directory,
        };
        mount.mount(|_| {});
        mount
    }

    /// Mounts what was ended, with other options.
    pub fn mount(&mut self, change: impl FnOnce(&mut MountOptions)) {
        self.try_mount(change).expect("a mount");
    }

    /// The same, where it may fail; nothing is mounted then.
    pub fn try_mount(&mut self, change: impl FnOnce(&mut MountOptions)) -> Result<(), Error> {
        let database = database_path(self.directory.path());
        let database = Database::open(&database, self.open.clone()).expect("a database");
        let mounted = mount_at(database, &mountpoint(self.directory.path()), change)?;
        self.mounted = Some(mounted);
        Ok(())
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        mountpoint(self.directory.path())
    }

    /// A path below the mountpoint.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The directory that holds database and mountpoint.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The mount itself.
    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is mounted")
    }

    /// Unmounts, and waits until everything is closed.
    pub fn end(&mut self) {
        let mounted = self.mounted.take().expect("it is mounted");
        when_free(|| mounted.unmount()).expect("nothing is open");
        mounted.wait().expect("a clean end");
    }

    /// Waits for the end that somebody else has caused.
    pub fn wait(&mut self) {
        self.mounted
            .take()
            .expect("it is mounted")
            .wait()
            .expect("a clean end");
    }
}

/// A temporary directory that other users can enter, with an empty mountpoint in it.
pub fn new_directory() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    std::fs::create_dir(mountpoint(directory.path())).expect("it is empty");
    directory
}

/// With this, the test `life::serve_until_killed` is the server of another test, for the directory
/// that it names.
pub const SERVED_DIRECTORY: &str = "LARDER_TEST_SERVED_DIRECTORY";
/// And serves with so many threads.
pub const SERVED_THREADS: &str = "LARDER_TEST_SERVED_THREADS";

/// And commits when it is asked to, if this is set.
pub const SERVED_LAZILY: &str = "LARDER_TEST_SERVED_LAZILY";

/// Another process that has mounted the database in `directory`, and serves it with so many
/// threads; 0: the default. Who starts it detaches the mount and ends it.
pub fn serve(directory: &Path, threads: usize) -> Child {
    serve_with(directory, &[(SERVED_THREADS, &threads.to_string())])
}

/// The same with these variables in its environment.
pub fn serve_with(directory: &Path, variables: &[(&str, &str)]) -> Child {
    let mut server = Command::new(std::env::current_exe().expect("a test"))
        .args([
            "--exact",
            "life::serve_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(SERVED_DIRECTORY, directory)
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .expect("a server");
    let began = Instant::now();
    while !is_served(directory) {
        let ended = server.try_wait().expect("a child");
        assert!(ended.is_none() && began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// Whether somebody answers there: what a killed server has left is mounted, and does not.
fn is_served(directory: &Path) -> bool {
    let place = mountpoint(directory);
    larder_fuse::is_mounted(&place).expect("a table of mounts") && std::fs::read_dir(place).is_ok()
}

/// A new database that another process has mounted. A server that is in the process of those who
/// map its files can wait for itself: a page fault may hold what the server needs to get memory.
pub struct Elsewhere {
    server: Child,
    directory: TempDir,
}

impl Elsewhere {
    /// Served by so many threads; 0: the default.
    pub fn new(threads: usize) -> Elsewhere {
        let directory = new_directory();
        let options = CreateOptions {
            capacity_bytes: Some(256 << 20),
            ..CreateOptions::default()
        };
        Database::create(&database_path(directory.path()), &options).expect("a new database");
        let server = serve(directory.path(), threads);
        Elsewhere { server, directory }
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        mountpoint(self.directory.path())
    }

    /// A path below the mountpoint.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The directory that holds database and mountpoint.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        self.server.kill().expect("a child");
        self.server.wait().expect("a child");
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let detached = larder_fuse::detach(&self.root());
        // It may have ended by itself.
        let _killed = self.server.kill();
        let ended = self.server.wait();
        if !std::thread::panicking() {
            detached.expect("it is ours");
            ended.expect("a child");
        }
    }
}

/// Opens and mounts the database in `directory`.
pub fn mount_in(
    directory: &Path,
    change: impl FnOnce(&mut MountOptions),
) -> Result<Mounted, Error> {
    mount_opened(directory, DatabaseOptions::default(), change)
}

/// The same, opened in a way of its own.
pub fn mount_opened(
    directory: &Path,
    open: DatabaseOptions,
    change: impl FnOnce(&mut MountOptions),
) -> Result<Mounted, Error> {
    let database = Database::open(&database_path(directory), open).expect("a database");
    mount_at(database, &mountpoint(directory), change)
}

/// Mounts a database at a directory.
pub fn mount_at(
    database: Database,
    place: &Path,
    change: impl FnOnce(&mut MountOptions),
) -> Result<Mounted, Error> {
    let usable = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_ok()
        || Command::new("fusermount3").arg("-V").output().is_ok();
    assert!(
        usable,
        "these tests mount: they need /dev/fuse, and root or fusermount3 (package fuse3)"
    );
    let mut options = MountOptions {
        transport: TransportChoice::from_environment().expect("a transport"),
        ..MountOptions::default()
    };
    change(&mut options);
    larder_fuse::mount(database, place, &options)
}

/// Mounts a moment of the database of `mount` beside it, for whom `access` says.
pub fn mount_moment(
    mount: &TestMount,
    open: DatabaseOptions,
    moment: &str,
    access: HistoryAccess,
) -> (Mounted, PathBuf) {
    let place = mount.directory().join("then");
    if !place.exists() {
        std::fs::create_dir(&place).expect("a directory of ours");
    }
    let database = Database::open(&database_path(mount.directory()), open).expect("a database");
    let as_of = Some(moment.to_owned());
    let mounted = mount_at(database, &place, |options| {
        options.as_of = as_of;
        options.history_access = access;
    });
    (mounted.expect("a mount of a moment"), place)
}

/// Ends a mount that nobody uses.
pub fn end(mounted: Mounted) {
    when_free(|| mounted.unmount()).expect("nothing is open");
    mounted.wait().expect("a clean end");
}

/// Where the database of a test is.
pub fn database_path(directory: &Path) -> PathBuf {
    directory.join("test.larder")
}

/// Where a test mounts it.
pub fn mountpoint(directory: &Path) -> PathBuf {
    directory.join("mnt")
}

/// Repeats an unmount that finds the mount in use, for a while: a process that another test is just
/// starting holds all descriptors of this one between `fork` and `exec`.
pub fn when_free<T>(mut unmount: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        match unmount() {
            Err(error)
                if error.kind() == ErrorKind::Busy && began.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Runs a shell script that must succeed; `$1`… are `arguments`. Returns what it printed.
pub fn shell(script: &str, arguments: &[&Path]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("sh")
        .arg("-euc")
        .arg(script)
        .arg("sh")
        .args(arguments)
        .output()
        .expect("a shell");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{script}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// Bytes that do not repeat within a block.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// An ext4 of its own, in a file.
pub struct Ext4 {
    directory: tempfile::TempDir,
}

impl Ext4 {
    /// Mounted as root, with `relatime`.
    pub fn new() -> Ext4 {
        let directory = tempfile::tempdir().expect("a directory");
        shell(
            "truncate -s 16M \"$1/image\" && mkfs.ext4 -q \"$1/image\" && mkdir \"$1/ext4\" && \
             mount -o loop,relatime \"$1/image\" \"$1/ext4\"",
            &[directory.path()],
        );
        Ext4 { directory }
    }

    /// Where it is mounted.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("ext4")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(self.root()).status();
        assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}
