//! What was damaged on disk, or is not a database at all: each a clear error that names cause and
//! remedy, and no harm to what is whole.

use larder::{
    Caller, CreateOptions, Database, DatabaseOptions, Error, ErrorKind, FileHandle,
    LongTransaction, Name, NewNode, NodeId,
};
use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const OWNER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
/// Where the blocks of a segment begin.
const DATA_OFFSET_BYTES: u64 = 1 << 20;

struct Victim {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Victim {
    /// A database with three files of 100 KB, closed.
    fn new() -> Victim {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.larder");
        Database::create(&path, &CreateOptions::default()).unwrap();
        let db = open(&path).unwrap();
        for index in 0..3u8 {
            let name = Name::new(format!("f{index}").as_bytes()).unwrap();
            let node = db
                .nodes()
                .create_node(NodeId::ROOT, &name, NewNode::File, 0o644, OWNER)
                .unwrap()
                .node;
            db.nodes()
                .open(node, true)
                .unwrap()
                .write_at(0, &[index + 1; 100_000])
                .unwrap();
        }
        db.close().unwrap();
        Victim { _dir: dir, path }
    }

    fn segment(&self) -> File {
        FileOptions::new()
            .read(true)
            .write(true)
            .open(self.path.join("segments/00000.seg"))
            .unwrap()
    }

    fn sql(&self, text: &str) {
        let status = std::process::Command::new("sqlite3")
            .arg(self.path.join("catalog.db"))
            .arg(text)
            .status();
        assert!(
            status
                .expect("the sqlite3 shell is needed; install it")
                .success(),
            "{text}"
        );
    }

    fn refusal(&self) -> Error {
        match open(&self.path) {
            Ok(_) => panic!("it opened"),
            Err(error) => error,
        }
    }
}

fn open(path: &Path) -> larder::Result<Database> {
    Database::open(path, DatabaseOptions::default())
}

fn open_file(db: &Database, path: &str) -> Box<dyn FileHandle> {
    db.nodes()
        .open(
            db.nodes().resolve(path.as_bytes(), true).unwrap().node,
            false,
        )
        .unwrap()
}

fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "'{word}' is missing: {line}");
    }
}

#[test]
fn what_is_no_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = open(&dir.path().join("none")).map(drop).unwrap_err();
    assert_says(&missing, ErrorKind::NotFound, &["none"]);
    let plain = open(dir.path()).map(drop).unwrap_err();
    assert!(
        matches!(plain.kind(), ErrorKind::NotADatabase | ErrorKind::NotFound),
        "{plain}"
    );
    std::fs::write(
        dir.path().join("catalog.db"),
        "not SQLite at all, but long enough to look like a file",
    )
    .unwrap();
    let garbage = open(dir.path()).map(drop).unwrap_err();
    assert_says(&garbage, ErrorKind::NotADatabase, &["catalog.db"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let into_file = Database::create(&file, &CreateOptions::default()).unwrap_err();
    assert_says(&into_file, ErrorKind::Exists, &["file"]);
    let small = CreateOptions {
        capacity_bytes: Some(1 << 20),
        ..CreateOptions::default()
    };
    let refused = Database::create(&dir.path().join("small"), &small).unwrap_err();
    assert_says(&refused, ErrorKind::InvalidInput, &["16M"]);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let victim = Victim::new();
    let version = larder_object::SCHEMA_VERSION;
    victim.sql("PRAGMA user_version = 99");
    assert_says(
        &victim.refusal(),
        ErrorKind::NewerFormat,
        &["99", "upgrade"],
    );
    victim.sql(&format!("PRAGMA user_version = {version}"));
    assert!(open(&victim.path).is_ok());
}

#[test]
fn one_torn_superblock_is_survived_and_two_are_named() {
    let victim = Victim::new();
    let segment = victim.segment();
    let mut copies = [0; 8192];
    segment.read_exact_at(&mut copies, 0).unwrap();
    segment.write_all_at(&[0xaa; 512], 100).unwrap();
    let db = open(&victim.path).unwrap();
    let findings = db
        .maintenance()
        .check(true, &mut |_, _| {})
        .unwrap()
        .findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("superblock"), "{findings:?}");
    db.close().unwrap();
    segment.write_all_at(&[0xaa; 512], 4096 + 100).unwrap();
    assert_says(
        &victim.refusal(),
        ErrorKind::Corrupt,
        &["segment 0", "superblock", "backup"],
    );
    segment.write_all_at(&copies, 0).unwrap();
    assert!(open(&victim.path).is_ok());
}

#[test]
fn a_truncated_segment_is_refused() {
    let victim = Victim::new();
    let segment = victim.segment();
    let len = segment.metadata().unwrap().len();
    segment.set_len(DATA_OFFSET_BYTES + 4096).unwrap();
    assert_says(
        &victim.refusal(),
        ErrorKind::Corrupt,
        &["segment 0", "truncated", "restore"],
    );
    assert!(len > DATA_OFFSET_BYTES + 4096);
}

#[test]
fn a_missing_segment_is_refused() {
    let victim = Victim::new();
    std::fs::remove_file(victim.path.join("segments/00000.seg")).unwrap();
    assert_says(
        &victim.refusal(),
        ErrorKind::NotFound,
        &["segment 0", "restore"],
    );
}

#[test]
fn a_flipped_bit_is_an_error_that_names_segment_and_block_and_harms_no_other_file() {
    let victim = Victim::new();
    let segment = victim.segment();
    // Find the second file's bytes: the only ones that are 2.
    let mut block = [0; 4096];
    let index = (0..10_000u64)
        .find(|index| {
            segment
                .read_exact_at(&mut block, DATA_OFFSET_BYTES + index * 4096)
                .unwrap();
            block == [2; 4096]
        })
        .unwrap();
    segment
        .write_all_at(&[3], DATA_OFFSET_BYTES + index * 4096 + 17)
        .unwrap();
    let db = open(&victim.path).unwrap();
    let mut bytes = vec![0; 100_000];
    let damaged = open_file(&db, "/f1").read_at(0, &mut bytes).unwrap_err();
    assert_says(
        &damaged,
        ErrorKind::Corrupt,
        &["segment 0", &format!("block {index}")],
    );
    for (path, byte) in [("/f0", 1), ("/f2", 3)] {
        assert_eq!(
            open_file(&db, path).read_at(0, &mut bytes).unwrap(),
            100_000
        );
        assert!(bytes.iter().all(|&found| found == byte), "{path}");
    }
    let findings = db
        .maintenance()
        .check(true, &mut |_, _| {})
        .unwrap()
        .findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].contains("/f1") && findings[0].contains(&format!("block {index}")),
        "{findings:?}"
    );
    assert!(
        db.maintenance()
            .check(false, &mut |_, _| {})
            .unwrap()
            .findings
            .is_empty(),
        "the structure is whole"
    );
}

#[test]
fn a_damaged_map_page_harms_one_file() {
    let victim = Victim::new();
    // What a stray write into the catalog's file would do; the guard refuses it through SQL, so
    // the guard switch is opened for it.
    victim.sql(
        "UPDATE larder_guard_switch SET open = 1; \
         UPDATE main_map SET runs = x'0102030405' WHERE ino = (SELECT ino FROM main_dirent WHERE \
         name = 'f1'); \
         UPDATE larder_guard_switch SET open = 0",
    );
    let db = open(&victim.path).unwrap();
    let mut bytes = vec![0; 100_000];
    let damaged = open_file(&db, "/f1").read_at(0, &mut bytes).unwrap_err();
    assert_says(&damaged, ErrorKind::Corrupt, &["map page 0", "restore"]);
    assert_eq!(
        open_file(&db, "/f0").read_at(0, &mut bytes).unwrap(),
        100_000
    );
    let findings = db
        .maintenance()
        .check(false, &mut |_, _| {})
        .unwrap()
        .findings;
    assert!(
        findings
            .iter()
            .any(|finding| finding.contains("map page 0")),
        "{findings:?}"
    );
}

#[test]
fn a_leak_and_a_double_use_are_found() {
    let victim = Victim::new();
    victim.sql(
        "UPDATE larder_guard_switch SET open = 1; \
         INSERT INTO larder_extent (segment, start_block, block_count, store, ino) VALUES (0, \
         9000, 5, 0, 2); \
         UPDATE main_map SET runs = (SELECT runs FROM main_map AS other WHERE other.ino <> \
         main_map.ino LIMIT 1) \
           WHERE ino = (SELECT ino FROM main_dirent WHERE name = 'f1'); \
         UPDATE larder_guard_switch SET open = 0",
    );
    let db = open(&victim.path).unwrap();
    let findings = db
        .maintenance()
        .check(false, &mut |_, _| {})
        .unwrap()
        .findings;
    assert!(
        findings.iter().any(|finding| finding.contains("leaked")),
        "{findings:?}"
    );
    assert!(
        findings
            .iter()
            .any(|finding| finding.contains("also used by")),
        "{findings:?}"
    );
}

/// Where the parent's rows contradict each other a long transaction gets no space, and an error.
#[test]
fn a_grant_from_a_damaged_catalog_is_an_error() {
    let victim = Victim::new();
    victim.sql(
        "UPDATE larder_guard_switch SET open = 1; \
         INSERT INTO larder_extent (segment, start_block, block_count, store, ino) \
           SELECT segment, start_block + 1, 3, store, ino FROM larder_extent \
           WHERE block_count > 4 LIMIT 1; \
         UPDATE larder_guard_switch SET open = 0",
    );
    let txn = LongTransaction::begin(&victim.path, DatabaseOptions::default()).unwrap();
    let view = txn.database().unwrap();
    let refused = view
        .files()
        .write(b"/new", [5; 300_000])
        .and_then(|_| view.sync());
    assert_says(&refused.unwrap_err(), ErrorKind::Corrupt, &["larder check"]);
    txn.abort().unwrap();
    let db = open(&victim.path).unwrap();
    let mut bytes = vec![0; 100_000];
    let read = open_file(&db, "/f0").read_at(0, &mut bytes).unwrap();
    assert_eq!((read, bytes[99_999]), (100_000, 1));
}

#[test]
fn a_damaged_list_of_pieces_is_found() {
    for (damage, found) in [
        (
            "UPDATE larder_piece SET entries = x'0102030405'",
            "piece page",
        ),
        ("DELETE FROM larder_piece WHERE page = 0", "has no root"),
        ("DELETE FROM larder_piece WHERE page = 1", "PIECE-3"),
        (
            "UPDATE main SET size = size + 1 WHERE size > 300000",
            "PIECE-3",
        ),
        ("DELETE FROM larder_piece", "not part of the object"),
        (
            "UPDATE larder_piece SET entries = (SELECT entries FROM larder_piece WHERE page = 1) \
             WHERE page = 2",
            "PIECE-1",
        ),
        (
            "INSERT INTO larder_piece (store, ino, page, entries) SELECT store, ino, 99, entries \
             FROM larder_piece WHERE page = 1",
            "page 99 is in no list",
        ),
    ] {
        let victim = Victim::new();
        let db = open(&victim.path).unwrap();
        let node = db.nodes().resolve(b"/f1", true).unwrap().node;
        let file = db.nodes().open(node, true).unwrap();
        file.write_at(0, &[7; 400_000]).unwrap();
        // Pieces of a hole and of data in turns, until one page is not enough.
        for at in 0..130 {
            file.insert_hole(at * 8200 + 4100, 4100).unwrap();
            file.append(&[8; 9000]).unwrap();
        }
        drop(file);
        db.close().unwrap();
        victim.sql(&format!(
            "UPDATE larder_guard_switch SET open = 1; {damage}; UPDATE larder_guard_switch SET \
            open = 0"
        ));
        let db = open(&victim.path).unwrap();
        let findings = db
            .maintenance()
            .check(false, &mut |_, _| {})
            .unwrap()
            .findings;
        assert!(
            findings.iter().any(|finding| finding.contains(found)),
            "{damage}: {findings:?}"
        );
    }
}

#[test]
fn names_and_paths_are_refused_with_their_rule() {
    let victim = Victim::new();
    let db = open(&victim.path).unwrap();
    for (name, kind) in [
        (&b"a/b"[..], "'/'"),
        (b"a\0b", "NUL"),
        (b"", "empty"),
        (b"..", "reserved"),
        (&[b'x'; 256], "255"),
    ] {
        let error = Name::new(name).unwrap_err().to_string();
        assert!(error.contains(kind), "{error}");
    }
    let long = [b"/".as_slice(), &[b'x'; 5000]].concat();
    assert_says(
        &db.nodes().resolve(&long, true).unwrap_err(),
        ErrorKind::NameTooLong,
        &["4095"],
    );
    let long_name = [b"/".as_slice(), &[b'x'; 300]].concat();
    assert_says(
        &db.nodes().resolve(&long_name, true).unwrap_err(),
        ErrorKind::NameTooLong,
        &["255"],
    );
    assert_says(
        &db.stores().destroy("nobody").unwrap_err(),
        ErrorKind::NotFound,
        &["nobody", "store list"],
    );
}
