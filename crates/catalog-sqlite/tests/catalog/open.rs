//! Opening what is not a sound, writable catalog of this version.

use crate::common;

use crate::common::{create, init};
use larder_catalog_sqlite::format::{Extent, Ino, SegmentIndex};
use larder_catalog_sqlite::{CatalogError, CatalogOptions, ChangeSet, SqliteCatalog};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

fn refused(dir: &Path) -> CatalogError {
    SqliteCatalog::open(dir, &CatalogOptions::default()).expect_err("must be refused")
}

#[test]
fn what_is_missing_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(refused(dir.path()), CatalogError::NotFound { .. }));
    assert!(matches!(
        refused(&dir.path().join("none")),
        CatalogError::NotFound { .. }
    ));
    assert!(
        !dir.path().join("catalog.db").exists(),
        "opening creates nothing"
    );
    let nowhere = SqliteCatalog::create(
        &dir.path().join("none"),
        &CatalogOptions::default(),
        &init(),
    );
    assert!(matches!(nowhere, Err(CatalogError::NotFound { .. })));
}

#[test]
fn garbage_and_foreign_databases_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("catalog.db");
    for bytes in [&b"hello"[..], &[0xa5; 100_000], &b"SQLite format 3\0"[..]] {
        std::fs::write(&file, bytes).unwrap();
        let error = refused(dir.path());
        assert!(
            matches!(error, CatalogError::NotADatabase { .. }),
            "{error}"
        );
        let create =
            SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init()).unwrap_err();
        assert!(matches!(create, CatalogError::Exists { .. }), "{create}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    }
    std::fs::remove_file(&file).unwrap();
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute_batch("CREATE TABLE theirs(x)")
        .unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let error = refused(dir.path());
    assert!(error.to_string().contains("another program"), "{error}");
    let create =
        SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init()).unwrap_err();
    assert!(matches!(create, CatalogError::Exists { .. }), "{create}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(matches!(
        refused(dir.path()),
        CatalogError::NotADatabase { .. }
    ));
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let (dir, catalog) = create();
    drop(catalog);
    common::plain(dir.path())
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let error = refused(dir.path());
    assert_eq!(
        error.to_string(),
        format!(
            "written by a newer larder (format 99, this one knows \u{2264} {}); upgrade larder",
            larder_catalog_sqlite::SCHEMA_VERSION
        )
    );
    let version: i64 = common::plain(dir.path())
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    assert_eq!(version, 99);
}

#[test]
fn a_catalog_is_created_once() {
    let (dir, catalog) = create();
    catalog.commit(&common::new_file(2, "f")).unwrap();
    let again = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &init()).unwrap_err();
    assert!(matches!(again, CatalogError::Exists { .. }), "{again}");
    drop(catalog);
    assert!(
        !dir.path().join("catalog.db-wal").exists(),
        "the last one to close empties the log"
    );
    assert_eq!(common::open(dir.path()).tables().commit_seq().unwrap().0, 1);
}

#[test]
fn damage_is_told_by_check_or_refused() {
    let (dir, catalog) = create();
    for ino in 2..200 {
        catalog
            .commit(&common::new_file(
                ino,
                &format!("a long enough name for file {ino}"),
            ))
            .unwrap();
    }
    drop(catalog);
    let file = dir.path().join("catalog.db");
    let mut bytes = std::fs::read(&file).unwrap();
    let page_count = bytes.len() / 4096;
    for page in 2..page_count {
        bytes[page * 4096..page * 4096 + 64].fill(0x5a);
    }
    std::fs::write(&file, bytes).unwrap();
    match SqliteCatalog::open(dir.path(), &CatalogOptions::default())
        .and_then(|catalog| catalog.survey().check())
    {
        Ok(findings) => assert!(!findings.is_empty()),
        Err(error) => assert!(
            matches!(
                error,
                CatalogError::Corrupt { .. } | CatalogError::Damaged { .. }
            ),
            "{error}"
        ),
    }
}

#[test]
fn a_count_that_differs_from_the_extent_rows_is_told() {
    let (dir, catalog) = create();
    let extent = Extent::new(SegmentIndex(0), 8, 4);
    let changes = ChangeSet {
        allocated: vec![(extent, common::MAIN, Ino(2))],
        segments: vec![(SegmentIndex(0), 100)],
        ..ChangeSet::default()
    };
    catalog.commit(&changes).unwrap();
    let sound = catalog.survey().check().unwrap();
    common::plain(dir.path())
        .execute_batch(
            "UPDATE larder_guard_switch SET open = 1; UPDATE larder_ag SET used_blocks = 5;
             UPDATE larder_guard_switch SET open = 0",
        )
        .unwrap();
    let mut told = catalog.survey().check().unwrap();
    told.retain(|finding| !sound.contains(finding));
    assert_eq!(
        told,
        [
            "larder_ag: group 0 of segment 0 says 5 blocks in use, 0 of them retired, \
          and its rows have 4 and 0 (CATALOG-8)"
        ]
    );
}

#[test]
fn a_journal_mode_changed_by_a_shell_is_set_again() {
    let (dir, catalog) = create();
    drop(catalog);
    common::plain(dir.path())
        .pragma_update(None, "journal_mode", "DELETE")
        .unwrap();
    let _catalog = common::open(dir.path());
    let mode: String = common::plain(dir.path())
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
}

/// Permissions bind everybody but root, so root runs this very test again as nobody.
#[test]
fn a_read_only_database_is_told() {
    const DIR: &str = "LARDER_TEST_READ_ONLY";
    if let Some(dir) = std::env::var_os(DIR) {
        let error = refused(Path::new(&dir));
        assert!(matches!(error, CatalogError::ReadOnly { .. }), "{error}");
        let create = SqliteCatalog::create(
            &Path::new(&dir).join("empty"),
            &CatalogOptions::default(),
            &init(),
        )
        .unwrap_err();
        assert!(matches!(create, CatalogError::ReadOnly { .. }), "{create}");
        return;
    }
    let (dir, catalog) = create();
    drop(catalog);
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    // Nobody cannot enter every build directory: the program comes along.
    let program = dir.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
    };
    // First the file and the directory are read-only, then only the directory.
    for file_mode in [0o444, 0o666] {
        chmod(&dir.path().join("catalog.db"), file_mode);
        chmod(&empty, 0o555);
        chmod(dir.path(), 0o555);
        let mut again = std::process::Command::new(&program);
        again
            .args(["--exact", "open::a_read_only_database_is_told"])
            .env(DIR, dir.path())
            .current_dir("/");
        if std::fs::metadata("/proc/self")
            .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
        {
            again.uid(65_534).gid(65_534);
        }
        let output = again.output().unwrap();
        chmod(dir.path(), 0o755);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "mode {file_mode:o}: {text}"
        );
    }
}

/// A file size limit makes the write of the log fail inside COMMIT. The limit is the process's, so
/// the test runs again in one of its own, where the signal that comes with it is ignored.
#[test]
fn a_commit_that_fails_leaves_the_outcome_unknown() {
    const CHILD: &str = "LARDER_TEST_COMMIT_FAILS";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new("sh")
            .args([
                "-c",
                "trap '' XFSZ; exec \"$0\" --exact \
                 open::a_commit_that_fails_leaves_the_outcome_unknown",
            ])
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let (dir, catalog) = create();
    catalog.commit(&common::new_file(2, "f")).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let tight = rustix::process::Rlimit {
        current: Some(catalog.log().wal_bytes().unwrap()),
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, tight).unwrap();
    let failed = catalog.commit(&common::new_file(3, "g")).unwrap_err();
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    assert!(
        matches!(failed, CatalogError::CommitUnknown { .. }),
        "{failed}"
    );
    let stopped = catalog.commit(&common::new_file(4, "h")).unwrap_err();
    assert!(
        matches!(stopped, CatalogError::CommitUnknown { .. }),
        "CATALOG-5: {stopped}"
    );
    let stopped = catalog.sessions().begin((1, 0), "x", 0).unwrap_err();
    assert!(
        matches!(stopped, CatalogError::CommitUnknown { .. }),
        "CATALOG-5: {stopped}"
    );
    drop(catalog);
    let catalog = common::open(dir.path());
    assert!(catalog.tables().commit_seq().unwrap().0 >= 1, "CATALOG-7");
    assert_eq!(catalog.survey().check().unwrap(), Vec::<String>::new());
    let next = catalog
        .stores()
        .next_ino(larder_catalog_sqlite::format::StoreId::MAIN)
        .unwrap()
        .0;
    catalog.commit(&common::new_file(next, "h")).unwrap();
}
