//! `larder clone`, and what people get wrong about it.

use crate::support::Place;
use crate::time::{now, put, with_history};

fn live(place: &Place) -> i64 {
    place.json(&["df", "a.larder"])["live_bytes"]
        .as_i64()
        .unwrap()
}

#[test]
fn a_clone_is_made_at_once_and_changes_alone() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/t"]);
    put(&place, "/t/f", &"content ".repeat(100_000));
    put(&place, "/t/small", "small");
    let then = now(&place);
    let before = live(&place);
    let said = place.ok(&["clone", "a.larder:/t", "a.larder:/u"]);
    assert_eq!(
        said,
        "cloned to a.larder:/u: 2 files, 1 directories, 0 others; 781 KiB of content, 5 B of it \
         copied\n"
    );
    assert_eq!(live(&place), before);
    let df = place.json(&["df", "a.larder"]);
    assert_eq!(df["shared_bytes"].as_i64(), Some(before));
    assert!(place.ok(&["df", "a.larder"]).contains("shared"));
    put(&place, "/u/f", "other");
    assert_eq!(
        place.ok(&["cat", "a.larder:/t/small", "a.larder:/u/f"]),
        "smallother"
    );
    assert_eq!(
        place.ok(&["cat", "a.larder:/t/f"]),
        "content ".repeat(100_000)
    );
    place.ok(&["check", "a.larder", "--read"]);
    place.ok(&["rm", "-r", "a.larder:/t"]);
    // Of the past: shared with the history (SHARE-9).
    let from = format!("{then}:/t/f");
    let report = place.json(&["clone", &from, "a.larder:/back"]);
    assert_eq!(report["files"], 1);
    assert_eq!(report["copied_bytes"], 0);
    assert_eq!(
        place.ok(&["cat", "a.larder:/back"]),
        "content ".repeat(100_000)
    );
    place.ok(&["check", "a.larder", "--read"]);
}

#[test]
fn a_store_is_cloned_to_a_store() {
    let place = with_history();
    place.ok(&["store", "create", "a.larder", "one"]);
    put(&place, "/one/f", &"content ".repeat(100_000));
    let before = live(&place);
    let said = place.ok(&["clone", "a.larder:/one", "a.larder:/two"]);
    assert!(
        said.starts_with("cloned to store a.larder:/two: 1 files"),
        "{said}"
    );
    assert_eq!(live(&place), before);
    assert!(place.ok(&["store", "list", "a.larder"]).contains("two"));
}

#[test]
fn what_cannot_be_cloned_is_refused_in_one_line() {
    let place = with_history();
    place.ok(&["init", "b.larder", "--capacity", "64M"]);
    place.ok(&["mkdir", "a.larder:/d"]);
    put(&place, "/f", "content");
    let then = now(&place);
    for (code, from, to, why) in [
        (1, "a.larder:/f", "a.larder:/d", "exists"),
        (1, "a.larder:/no", "a.larder:/g", "no"),
        (1, "a.larder:/d", "a.larder:/d/e", "its own clone"),
        (2, "a.larder:/f", "b.larder:/f", "another database"),
        (2, "a.larder:/f", "plain", "local path"),
        (2, "a.larder:/f", &format!("{then}:/g"), "past"),
        (1, "c.larder:/f", "c.larder:/g", "c.larder"),
    ] {
        place.fails(code, &["clone", from, to], why);
    }
}
