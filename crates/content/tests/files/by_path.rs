//! Files by their paths, as `std::fs` has them.

use crate::common::*;
use larder::{ErrorKind, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

#[test]
fn a_file_is_read_written_and_sought_as_those_of_std() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let on_host = dir.path().join("host");
    let mut ours = db
        .files()
        .options()
        .read(true)
        .write(true)
        .create_new(true)
        .open("/f")
        .unwrap();
    let mut theirs = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&on_host)
        .unwrap();
    let (mut one, mut other) = ([0; 7], [0; 7]);
    for round in 0..200_i64 {
        let to = match round % 4 {
            0 => SeekFrom::Start(round.unsigned_abs() * 37 % 5000),
            1 => SeekFrom::End(-(round % 11)),
            2 => SeekFrom::Current(round % 13 - 6),
            _ => SeekFrom::End(round % 100),
        };
        let (to_ours, to_theirs) = (ours.seek(to), theirs.seek(to));
        assert_eq!(to_ours.ok(), to_theirs.ok(), "{round}: {to:?}");
        if round % 3 == 0 {
            let data = pattern(round.unsigned_abs() as usize % 300, 1);
            ours.write_all(&data).unwrap();
            theirs.write_all(&data).unwrap();
        }
        let (read_ours, read_theirs) = (ours.read(&mut one), theirs.read(&mut other));
        assert_eq!(read_ours.unwrap(), read_theirs.unwrap(), "{round}");
        assert_eq!(one, other, "{round}");
    }
    ours.sync_all().unwrap();
    let host = std::fs::read(on_host).unwrap();
    assert_eq!(db.files().read("/f").unwrap(), host);
    assert_eq!(ours.metadata().unwrap().size_bytes, host.len() as u64);
    ours.set_len(3).unwrap();
    assert_eq!(db.files().read("/f").unwrap(), host[..3]);
}

#[test]
fn options_mean_what_they_mean_in_std() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let host = dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    let files = db.files();
    files.create_dir("/host").unwrap();
    for round in 0..64_u32 {
        let has = |bit: u32| round & (1 << bit) != 0;
        for name in ["there", "new", "directory", "link", "dangling"] {
            let path = host.join(name);
            for old in ["there", "new", "link", "dangling", "target"] {
                // It need not be there.
                let _ = std::fs::remove_file(host.join(old));
                let _ = files.remove_file(format!("/host/{old}"));
            }
            std::fs::write(host.join("there"), "old").unwrap();
            std::os::unix::fs::symlink("there", host.join("link")).unwrap();
            std::os::unix::fs::symlink("nowhere", host.join("dangling")).unwrap();
            std::fs::create_dir_all(host.join("directory")).unwrap();
            files.write("/host/there", "old").unwrap();
            files.symlink("there", "/host/link").unwrap();
            files.symlink("nowhere", "/host/dangling").unwrap();
            files.create_dir_all("/host/directory").unwrap();
            let _ = std::fs::remove_file(host.join("nowhere"));
            let _ = files.remove_file("/host/nowhere");

            let mut theirs = std::fs::File::options();
            theirs
                .read(has(0))
                .write(has(1))
                .append(has(2))
                .truncate(has(3))
                .create(has(4))
                .create_new(has(5));
            let ours = files
                .options()
                .read(has(0))
                .write(has(1))
                .append(has(2))
                .truncate(has(3))
                .create(has(4))
                .create_new(has(5));
            let what = format!("{theirs:?} of {name}");
            let (ours, theirs) = (ours.open(format!("/host/{name}")), theirs.open(&path));
            match (ours, theirs) {
                (Ok(mut ours), Ok(mut theirs)) => {
                    let wrote = (ours.write(b"xy").ok(), theirs.write(b"xy").ok());
                    assert_eq!(wrote.0, wrote.1, "{what}");
                    let mut all = (Vec::new(), Vec::new());
                    let read = (
                        ours.read_to_end(&mut all.0).ok(),
                        theirs.read_to_end(&mut all.1).ok(),
                    );
                    assert_eq!((read.0, &all.0), (read.1, &all.1), "{what}");
                    let content = files.read(format!("/host/{name}")).unwrap();
                    assert_eq!(content, std::fs::read(&path).unwrap(), "{what}");
                }
                // A directory can be opened for reading there, and read by nobody.
                (Err(error), Ok(mut theirs)) => {
                    assert_eq!(error.kind(), ErrorKind::IsADirectory, "{what}");
                    assert!(theirs.read(&mut [0]).is_err(), "{what}");
                }
                (Err(ours), Err(theirs)) => {
                    let ours = std::io::Error::from(ours);
                    assert_eq!(ours.kind(), theirs.kind(), "{what}: {ours}");
                }
                (Ok(_), Err(error)) => panic!("{what}: {error}"),
            }
        }
    }
}

#[test]
fn paths_name_what_is_made_moved_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let files = db.files();
    files.create_dir_all("/a/b/c").unwrap();
    files.create_dir_all("/a/b/c").unwrap();
    files.write("/a/b/f", "one").unwrap();
    let through_a_file = files.create_dir_all("/a/b/f/g").unwrap_err();
    assert_eq!(through_a_file.kind(), ErrorKind::NotADirectory);
    let onto_a_file = files.create_dir_all("/a/b/f").unwrap_err();
    assert_eq!(onto_a_file.kind(), ErrorKind::NotADirectory);
    files.hard_link("/a/b/f", "/a/linked").unwrap();
    assert_eq!(files.metadata("/a/linked").unwrap().nlink, 2);
    files.symlink("b/f", "/a/sym").unwrap();
    assert_eq!(files.read_link("/a/sym").unwrap(), b"b/f");
    assert!(files.symlink_metadata("/a/sym").unwrap().is_symlink());
    assert!(files.metadata("/a/sym").unwrap().is_file());
    files.rename("/a/linked", "/a/b/moved").unwrap();
    assert_eq!(files.read("/a/b/moved").unwrap(), b"one");
    files.remove_file("/a/b/f").unwrap();
    assert_eq!(
        files.remove_dir("/a/b").unwrap_err().kind(),
        ErrorKind::NotEmpty
    );
    files.remove_file("/a/b/moved").unwrap();
    files.remove_dir("/a/b/c").unwrap();
    files.remove_dir("/a/b").unwrap();
    let left: Vec<_> = (files.read_dir("/a").unwrap())
        .map(|entry| entry.unwrap().name.to_string())
        .collect();
    assert_eq!(left, ["sym"]);
}

#[test]
fn a_directory_of_many_pages_is_listed_once() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let files = db.files();
    files.create_dir("/many").unwrap();
    for count in 0..1000 {
        files.write(format!("/many/{count:04}"), "").unwrap();
    }
    // What is told goes meanwhile.
    let mut told = Vec::new();
    for entry in files.read_dir("/many").unwrap() {
        let name = entry.unwrap().name;
        files
            .remove_file([b"/many/", name.as_bytes()].concat())
            .unwrap();
        told.push(name.to_string());
    }
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 1000);
    assert!(files.read_dir("/many").unwrap().next().is_none());
    let no_directory = files.read_dir("/many/0001").err().unwrap();
    assert_eq!(no_directory.kind(), ErrorKind::NotFound);
}

#[test]
fn an_open_file_outlives_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let before = SystemTime::now() - Duration::from_secs(60);
    let mut file: File = db.files().create("/f").unwrap();
    file.write_all(b"still here").unwrap();
    db.files().remove_file("/f").unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.nlink, metadata.size_bytes), (0, 10));
    assert!(metadata.modified() > before);
    let mut read = [0; 10];
    assert_eq!(file.handle().read_at(0, &mut read).unwrap(), 10);
    assert_eq!(&read, b"still here");
}

/// A file that is saved by a rename has the name at any moment: whoever opens it finds the old one
/// or the new one.
#[test]
fn a_file_that_is_replaced_again_and_again_is_always_found() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let files = db.files();
    files.write("/f", "content").unwrap();
    files.symlink("f", "/link").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3000 {
                files.write("/new", "content").unwrap();
                files.rename("/new", "/f").unwrap();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        while !is_over.load(Ordering::SeqCst) {
            for path in ["/f", "/link"] {
                let mut content = String::new();
                let mut file = files.open(path).unwrap();
                file.read_to_string(&mut content).unwrap();
                assert_eq!(content, "content");
                assert_eq!(files.read(path).unwrap(), b"content");
                assert_eq!(files.metadata(path).unwrap().size_bytes, 7);
                let mut options = files.options();
                options = options.read(true).write(true).create(true);
                assert_eq!(
                    options.open(path).unwrap().metadata().unwrap().size_bytes,
                    7
                );
            }
        }
    });
}
