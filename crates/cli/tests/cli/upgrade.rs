//! `larder upgrade` of the golden database of format 1.

use crate::support::Place;
use std::fs;
use std::path::Path;

/// The golden database, as `old.larder`.
fn unpack(place: &Place) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/v1");
    let old = place.path("old.larder");
    fs::create_dir_all(old.join("segments")).unwrap();
    for file in ["catalog.db", "catalog.db-wal", "segments/00000.seg"] {
        fs::copy(golden.join(file), old.join(file)).unwrap();
    }
    let content = fs::read_to_string(golden.join("content.txt")).unwrap();
    let length = content.lines().next().unwrap().parse().unwrap();
    let segment = fs::File::options()
        .write(true)
        .open(old.join("segments/00000.seg"));
    segment.unwrap().set_len(length).unwrap();
}

#[test]
fn every_verb_names_the_command_that_converts_an_older_database() {
    let place = Place::new();
    unpack(&place);
    for arguments in [
        &["ls", "old.larder:/"][..],
        &["df", "old.larder"],
        &["sql", "old.larder", "SELECT 1"],
        &["check", "old.larder"],
        &["mount", "old.larder", "m"],
        &["cat", "old.larder@first:/docs/large"],
    ] {
        let told = place.run(arguments);
        assert_ne!(told.code, Some(0), "{arguments:?}");
        let line = told.stderr;
        assert!(
            line.contains("larder upgrade OLD NEW"),
            "{arguments:?}: {line}"
        );
    }
}

#[test]
fn an_older_database_is_converted_by_the_command_that_is_named() {
    let place = Place::new();
    unpack(&place);
    let told = place.ok(&["upgrade", "old.larder", "new.larder"]);
    assert!(
        told.contains("converted old.larder to new.larder"),
        "{told}"
    );
    place.assert_clean("new.larder");
    let large = place.run(&["cat", "new.larder:/docs/large"]);
    assert_eq!((large.code, large.stdout.len()), (Some(0), 2 << 20));
    let then = place.run(&["cat", "new.larder@first:/docs/large"]);
    assert_eq!((then.code, then.stdout.len()), (Some(0), 2 << 20));
    assert_ne!(then.stdout, large.stdout);
    place.fails(
        1,
        &["upgrade", "old.larder", "new.larder"],
        "is a database already",
    );
    place.fails(
        1,
        &["upgrade", "new.larder", "x.larder"],
        "of this format already",
    );
    place.fails(1, &["upgrade", "none.larder", "x.larder"], "none.larder");
    assert!(!place.path("x.larder").exists());
}
