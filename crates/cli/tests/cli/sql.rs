//! SQL over content by the real `larder`: alone, and beside a real mount.

use crate::mount::serve;
use crate::support::Place;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// SQLite reads nothing behind a NUL byte: the shell would look for the next statement for ever.
#[test]
fn a_text_with_a_nul_byte_is_refused() {
    let place = Place::with_database();
    for text in [
        &b"\0"[..],
        b"SELECT 1;\0 SELECT 2;",
        b"SELECT 1\0 FROM nothing",
    ] {
        let done = place.run_with(&["sql", "a.larder"], text);
        done.assert_failed(1, "NUL byte", "a NUL byte");
    }
}

#[test]
fn statements_read_and_write_files() {
    let place = Place::with_database();
    place.write("one", 10);
    place.ok(&["cp", "one", "a.larder:/"]);
    let query =
        "SELECT path, size, length(content(ino)) AS n, ino(path) = ino AS same FROM files('/*')";
    assert_eq!(
        place.json(&["sql", "a.larder", query]),
        json!([{ "path": "/one", "size": 10, "n": 10, "same": 1 }])
    );
    let write = "SELECT write_content(path || '.twice', content(path) || content(path)) AS n FROM \
        files('/*')";
    assert_eq!(
        place.json(&["sql", "a.larder", write]),
        json!([{ "n": 20 }])
    );
    let script = b"CREATE TABLE log (path, n);\nBEGIN;\nINSERT INTO log VALUES ('/a', \
        write_content('/a', 'abc'));\n\
        SELECT CAST(content('/a') AS TEXT) AS text FROM log;\nCOMMIT;\n\
        BEGIN;\nSELECT write_content('/b', 'b') AS n;\nROLLBACK;\n";
    let done = place.run_with(&["sql", "a.larder", "--json"], script);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let rows: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(rows, json!([{ "text": "abc" }, { "n": 1 }]));
    assert_eq!(
        place
            .ok(&["find", "a.larder:/", "--type", "f"])
            .lines()
            .count(),
        3
    );
    // A script that stops in a transaction leaves nothing of it.
    let done = place.run_with(
        &["sql", "a.larder"],
        b"BEGIN;\nSELECT write_content('/c', 'c');\nSELECT content('/');\n",
    );
    done.assert_failed(1, "content('/'): it is a dir", "a directory has no content");
    place.fails(1, &["stat", "a.larder:/c"], "does not exist");
    place.fails(
        1,
        &[
            "sql",
            "a.larder",
            "--read-only",
            "SELECT write_content('/c', 'c')",
        ],
        "--read-only",
    );
    place.fails(
        1,
        &["sql", "a.larder", "SELECT write_content('/none/c', 'c')"],
        "write_content('/none/c'): 'none' does not exist",
    );
    place.assert_clean("a.larder");
}

#[test]
fn sql_and_a_mount_see_each_others_files() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    let file = place.path("mnt/a.txt");
    fs::write(&file, "by the mount").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let read = "SELECT CAST(content('/a.txt') AS TEXT) AS text";
    assert_eq!(
        place.json(&["sql", "a.larder", read]),
        json!([{ "text": "by the mount" }])
    );
    // The kernel has it cached; what SQL writes is seen.
    assert_eq!(fs::read_to_string(&file).unwrap(), "by the mount");
    place.ok(&[
        "sql",
        "a.larder",
        "SELECT write_content('/a.txt', 'by SQL'), write_content('/b.txt', 'new')",
    ]);
    let begun = Instant::now();
    while fs::read_to_string(&file).unwrap() != "by SQL"
        || fs::read(place.path("mnt/b.txt")).is_err()
    {
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "a write by SQL is seen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // User columns, both ways, typed.
    place.ok(&[
        "sql",
        "a.larder",
        "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 1 AND 5)",
    ]);
    let set = |value: &[u8]| {
        rustix::fs::setxattr(
            &file,
            "user.column.rating",
            value,
            rustix::fs::XattrFlags::empty(),
        )
    };
    set(b"4").unwrap();
    assert_eq!(
        place.json(&[
            "sql",
            "a.larder",
            "SELECT rating, typeof(rating) AS type FROM main WHERE rating IS NOT NULL"
        ]),
        json!([{ "rating": 4, "type": "integer" }])
    );
    assert_eq!(set(b"9"), Err(rustix::io::Errno::INVAL));
    place.ok(&[
        "sql",
        "a.larder",
        "UPDATE main SET rating = 5 WHERE rating = 4",
    ]);
    let begun = Instant::now();
    loop {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&file, "user.column.rating", &mut value).unwrap();
        if &value[..length] == b"5" {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "a column changed by SQL is seen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // Keys between files and rows.
    place.ok(&[
        "sql",
        "a.larder",
        "CREATE TABLE album_photo (photo INTEGER REFERENCES main(ino) ON DELETE RESTRICT);
         CREATE TABLE note (file INTEGER REFERENCES main(ino) ON DELETE CASCADE, text);
         INSERT INTO album_photo SELECT ino('/a.txt');
         INSERT INTO note SELECT ino(path), 'about ' || path FROM files('/*')",
    ]);
    std::thread::sleep(Duration::from_millis(300)); // The mount looks every 20 ms.
    let refused = fs::remove_file(&file).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(rustix::io::Errno::PERM.raw_os_error())
    );
    fs::remove_file(place.path("mnt/b.txt")).unwrap();
    let begun = Instant::now();
    while place.json(&["sql", "a.larder", "SELECT text FROM note"])
        != json!([{ "text": "about /a.txt" }])
    {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "the row goes with the file"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    place.ok(&["umount", "mnt"]);
    let (code, log) = {
        let mut mount = mount;
        mount.end()
    };
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains("album_photo: FOREIGN KEY constraint failed: inode")
            && log.contains("is referenced by photo of 1 rows"),
        "the log names the constraint: {log}"
    );
    assert!(
        log.contains("CHECK constraint failed: rating BETWEEN 1 AND 5"),
        "{log}"
    );
    place.assert_clean("a.larder");
}

#[test]
fn a_statement_sees_the_past() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--retention", "1h"]);
    place.write("f", 10);
    place.ok(&["cp", "f", "a.larder:/"]);
    place.ok(&["snapshot", "create", "a.larder", "before"]);
    place.ok(&["sql", "a.larder", "CREATE TABLE docs (a)"]);
    place.ok(&["rm", "a.larder:/f"]);
    let query = "SELECT path, size, length(content(path)) AS n FROM main_path JOIN main USING \
        (ino) WHERE ino > 1";
    let was = json!([{ "path": "/f", "size": 10, "n": 10 }]);
    assert_eq!(place.json(&["sql", "a.larder", query]), json!([]));
    assert_eq!(
        place.json(&["sql", "--as-of", "before", "a.larder", query]),
        was
    );
    assert_eq!(place.json(&["sql", "a.larder@before", query]), was);
    let functions =
        "SELECT path, size, length(content_as_of('before', path)) AS n FROM files_as_of('before')";
    assert_eq!(place.json(&["sql", "a.larder", functions]), was);
    for (arguments, why) in [
        (
            &["--as-of", "nobody", "a.larder", query][..],
            "snapshot 'nobody'",
        ),
        (&["--as-of=-1y", "a.larder", query], "history begins"),
        (&["--as-of=-1x", "a.larder", query], "is no moment"),
        (
            &["--as-of", "before", "a.larder", "SELECT * FROM docs"],
            "'docs' cannot be read as of a moment",
        ),
        (
            &["--as-of", "before", "a.larder", "DELETE FROM docs"],
            "the past cannot be changed",
        ),
    ] {
        place.fails(1, &[&["sql"], arguments].concat(), why);
    }
    place.fails(
        2,
        &["sql", "--as-of=-1h", "a.larder@before", query],
        "two moments",
    );
}
