//! A mount, a user of the library and an unmodified `sqlite3` that write within the same second.

use crate::common::{TestMount, database_path};
use larder::{Database, DatabaseOptions};
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SECONDS: u64 = 4;

#[test]
fn everybody_writes_within_each_second() {
    let mount = TestMount::new();
    let path = database_path(mount.directory());
    let catalog = path.join("catalog.db");
    let library = Database::open(&path, DatabaseOptions::default()).unwrap();
    let shell = |sql: &str| {
        let output = Command::new("sqlite3")
            .args(["-cmd", ".timeout 30000"])
            .arg(&catalog)
            .arg(sql)
            .output()
            .expect("these tests need sqlite3");
        assert!(
            output.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    shell("CREATE TABLE t(a); ALTER TABLE main ADD COLUMN note");
    fs::create_dir(mount.path("d")).unwrap();
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    while library.nodes().resolve(b"/d", true).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_over = AtomicBool::new(false);
    let [by_mount, by_library, by_shell] = [(); 3].map(|()| AtomicU64::new(0));
    let until_over = |count: &AtomicU64, work: &dyn Fn(u64)| {
        while !is_over.load(Ordering::SeqCst) {
            let index = count.load(Ordering::SeqCst);
            work(index);
            count.store(index + 1, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_over(&by_mount, &|index| {
                fs::write(mount.path(&format!("d/m{index}")), index.to_string()).unwrap();
            })
        });
        scope.spawn(|| {
            until_over(&by_library, &|index| {
                let name = format!("/d/l{index}");
                library
                    .files()
                    .write(name.as_bytes(), index.to_string().as_bytes())
                    .unwrap();
                library.sync().unwrap();
            })
        });
        scope.spawn(|| {
            until_over(&by_shell, &|index| {
                shell(&format!(
                    "INSERT INTO t VALUES ({index}); UPDATE main SET note = {index}"
                ));
            })
        });
        for second in 1..=SECONDS {
            let before =
                [&by_mount, &by_library, &by_shell].map(|count| count.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_secs(1));
            let after =
                [&by_mount, &by_library, &by_shell].map(|count| count.load(Ordering::SeqCst));
            let all_wrote = before
                .iter()
                .zip(after)
                .all(|(before, after)| after > *before);
            if !all_wrote {
                is_over.store(true, Ordering::SeqCst);
            }
            assert!(all_wrote, "second {second}: {before:?} to {after:?}");
        }
        is_over.store(true, Ordering::SeqCst);
    });
    library.sync().unwrap();
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    let expected = by_mount.load(Ordering::SeqCst) + by_library.load(Ordering::SeqCst);
    let count = shell("SELECT count(*) FROM main_dirent WHERE parent > 1; SELECT count(*) FROM t");
    let counts: Vec<u64> = count.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(counts, [expected, by_shell.load(Ordering::SeqCst)]);
    println!("mount, library, shell wrote {by_mount:?}, {by_library:?}, {by_shell:?} times");
}
