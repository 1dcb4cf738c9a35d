//! What is remembered of the retentions of stores.
use crate::common;

use larder_catalog_sqlite::format::{CommitSeq, StoreId};
use larder_catalog_sqlite::{Retention, RetentionHorizons, SqliteCatalog};

const HOUR_NS: i64 = 3_600_000_000_000;

fn keep(is_guaranteed: bool) -> Option<Retention> {
    Some(Retention {
        retention_ns: HOUR_NS,
        is_guaranteed,
    })
}

fn make(catalog: &SqliteCatalog, name: &str) -> StoreId {
    let made = catalog
        .stores()
        .create(name, "files", &format!("/{name}"), None, 9, 0, 0, 0);
    made.unwrap().store
}

/// A guarantee takes back what was given up of what it is for. What others gave up goes on
/// (`TIME-6`).
#[test]
fn a_guarantee_takes_back_only_what_it_is_for() {
    let (_dir, catalog) = common::create();
    let [a, b] = ["a", "b"].map(|name| make(&catalog, name));
    let given_up = || {
        let cuts = catalog
            .retention()
            .history_horizon(2_000)
            .unwrap()
            .retained();
        [a, b, StoreId::MAIN].map(|store| cuts.of(store).0)
    };
    catalog
        .retention()
        .set_retention(Some(b), keep(false), 1_500)
        .unwrap();
    catalog
        .retention()
        .give_up_history(&RetentionHorizons::even(CommitSeq(30)))
        .unwrap();
    catalog
        .retention()
        .give_up_history(&RetentionHorizons::of_one(b, CommitSeq(40)))
        .unwrap();
    assert_eq!(given_up(), [30, 40, 30]);
    catalog
        .retention()
        .set_retention(Some(a), keep(true), 1_500)
        .unwrap();
    let [of_a, of_b, of_main] = given_up();
    assert!(of_a < 30, "{of_a}");
    assert_eq!([of_b, of_main], [40, 30], "TIME-6");
    // That of the database is not for a store with a retention of its own.
    catalog
        .retention()
        .set_retention(None, keep(true), 1_500)
        .unwrap();
    let [of_a, of_b, of_main] = given_up();
    assert!(of_a < 30 && of_main < 30, "{of_a}, {of_main}");
    assert_eq!(of_b, 40, "TIME-6");
    catalog
        .retention()
        .set_retention(Some(b), keep(true), 1_500)
        .unwrap();
    assert!(given_up()[1] < 30);
}

/// What destroyed stores have left says nothing about the stores that there are.
#[test]
fn what_goes_of_destroyed_stores_hides_no_change() {
    let (dir, catalog) = common::create();
    catalog.commit(&common::new_file(100, "one")).unwrap();
    let mark = catalog.foreign().look_at_changes(None, 100).unwrap().mark;
    catalog.commit(&common::new_file(101, "two")).unwrap();
    common::plain(dir.path())
        .execute_batch(
            "UPDATE larder_guard_switch SET open = 1; \
             INSERT INTO larder_meta (key, value) SELECT 'history_begins_seq:gone', value FROM \
             larder_meta \
             WHERE key = 'commit_seq'; UPDATE larder_guard_switch SET open = 0",
        )
        .unwrap();
    let look = catalog
        .foreign()
        .look_at_changes(mark.as_ref(), 100)
        .unwrap();
    assert!(look.changed.is_some(), "FOREIGN-1: {look:?}");
}
