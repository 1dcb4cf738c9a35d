//! The examples do what they say.

#[path = "../../examples/import.rs"]
#[allow(dead_code)]
mod import;
#[path = "../../examples/maildir.rs"]
#[allow(dead_code)]
mod maildir;
#[path = "../../examples/photos.rs"]
#[allow(dead_code)]
mod photos;
#[path = "../../examples/provider.rs"]
#[allow(dead_code)]
mod provider;

use larder::{CreateOptions, Database, DatabaseOptions, ErrorKind};

#[test]
fn photos_are_found_by_their_ratings() {
    let place = tempfile::tempdir().unwrap();
    let best = photos::run(&place.path().join("photos.larder")).unwrap();
    let told = [
        "/beach.jpg: 300000 bytes, 5 stars",
        "/hill.jpg: 300000 bytes, 4 stars",
    ];
    assert_eq!(best, told);
}

#[test]
fn mail_moves_with_its_row() {
    let place = tempfile::tempdir().unwrap();
    assert_eq!(
        maildir::run(&place.path().join("mail.larder")).unwrap(),
        (2, 1)
    );
}

#[test]
fn an_import_is_all_or_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (path, folder) = (place.path().join("db"), place.path().join("folder"));
    std::fs::create_dir(&folder).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(folder.join(name), name).unwrap();
    }
    Database::create(&path, &CreateOptions::default()).unwrap();
    assert_eq!(import::run(&path, &folder).unwrap(), 3);
    // A name that the database cannot take: nothing of the second import is there.
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    assert_eq!(database.files().read(b"/imported-b").unwrap(), b"b");
    let mut sql = database.sql().open(false).unwrap();
    let rule = "ALTER TABLE main ADD COLUMN rule INTEGER CHECK (size < 1000)";
    sql.execute(rule, &mut |_| Ok(())).unwrap();
    drop(sql);
    database.close().unwrap();
    std::fs::write(folder.join("d"), "d").unwrap();
    std::fs::write(folder.join("e"), [0; 2000]).unwrap();
    import::run(&path, &folder).unwrap_err();
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    let missing = database.nodes().resolve(b"/imported-d", true).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    database.close().unwrap();
}

#[test]
fn a_provider_of_ones_own_serves_a_store() {
    let place = tempfile::tempdir().unwrap();
    assert_eq!(provider::run(&place.path().join("db")).unwrap(), "144");
}

/// What a provider has to do at least is little.
#[test]
fn a_provider_takes_eighty_lines() {
    let text = include_str!("../../examples/provider.rs");
    assert!(text.lines().count() <= 80);
}
