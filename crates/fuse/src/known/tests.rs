//! What is known, by itself.

use super::*;
use crate::convert::past_node;
use larder::Ino;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROOT: NodeNumber = NodeNumber::ROOT;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn look(known: &Known) -> (Vec<u64>, Vec<(u64, String)>) {
    let Snapshot { nodes, entries, .. } = known.advance();
    let mut nodes: Vec<u64> = nodes.iter().map(|node| node.0).collect();
    let mut entries: Vec<(u64, String)> = entries
        .iter()
        .map(|entry| (entry.0.0, entry.1.to_string()))
        .collect();
    nodes.sort_unstable();
    entries.sort_unstable();
    (nodes, entries)
}

#[test]
fn paths_follow_renames_and_end_with_what_is_forgotten() {
    let known = Known::default();
    let (dir, file) = (NodeNumber(2), NodeNumber(3));
    known.add(ROOT, &name("d"), dir);
    known.add(dir, &name("f"), file);
    let path = |node| {
        known
            .path(node)
            .map(|path| String::from_utf8(path).unwrap())
    };
    assert_eq!(path(ROOT).as_deref(), Some(""));
    assert_eq!(path(file).as_deref(), Some("/d/f"));
    known.rename((ROOT, &name("d")), (ROOT, &name("e")));
    assert_eq!(path(file).as_deref(), Some("/e/f"));
    known.remove(dir, &name("f"));
    assert_eq!(path(file), None);
    // A circle cannot last, but it must not hang anybody.
    known.add(dir, &name("f"), file);
    known.rename((ROOT, &name("e")), (file, &name("e")));
    assert_eq!(path(file), None);
}

#[test]
fn the_root_is_known_and_the_rest_until_forgotten() {
    let known = Known::default();
    assert_eq!(look(&known), (vec![1], vec![]), "FUSE-1");
    known.add(ROOT, &name("a"), NodeNumber(7));
    known.add(ROOT, &name("b"), NodeNumber(7));
    let both = vec![(1, "a".to_owned()), (1, "b".to_owned())];
    assert_eq!(look(&known), (vec![1, 7], both.clone()), "FUSE-1");
    known.forget(NodeNumber(7), 1);
    assert_eq!(
        look(&known),
        (vec![1, 7], both),
        "FUSE-1: one lookup is left"
    );
    known.forget(NodeNumber(7), 1);
    assert_eq!(look(&known), (vec![1], vec![]));
    known.forget(NodeNumber(7), 1);
    assert_eq!(look(&known), (vec![1], vec![]));
}

#[test]
fn entries_follow_renames() {
    let known = Known::default();
    known.add(ROOT, &name("a"), NodeNumber(7));
    known.add(ROOT, &name("b"), NodeNumber(8));
    known.rename((ROOT, &name("a")), (NodeNumber(9), &name("c")));
    assert_eq!(look(&known).1, [(1, "b".into()), (9, "c".into())], "FUSE-1");
    known.rename((NodeNumber(9), &name("c")), (ROOT, &name("b")));
    assert_eq!(look(&known), (vec![1, 7, 8], vec![(1, "b".into())]));
    known.forget(NodeNumber(8), 1);
    assert_eq!(look(&known), (vec![1, 7], vec![(1, "b".into())]), "FUSE-1");
    known.forget(NodeNumber(7), 1);
    assert_eq!(look(&known), (vec![1], vec![]));
}

#[test]
fn entries_follow_exchanges_and_removals() {
    let known = Known::default();
    known.add(ROOT, &name("a"), NodeNumber(7));
    known.exchange((ROOT, &name("a")), (ROOT, &name("unknown")));
    assert_eq!(look(&known).1, [(1, "unknown".into())], "FUSE-1");
    known.add(ROOT, &name("b"), NodeNumber(8));
    known.exchange((ROOT, &name("unknown")), (ROOT, &name("b")));
    known.forget(NodeNumber(8), 1);
    assert_eq!(look(&known), (vec![1, 7], vec![(1, "b".into())]), "FUSE-1");
    known.remove(ROOT, &name("b"));
    assert_eq!(look(&known), (vec![1, 7], vec![]));
}

#[test]
fn absent_names_are_known_until_they_are_made_or_told() {
    let known = Known::default();
    let older = known.ticket();
    assert!(known.add_absent(&older, ROOT, &name("a")));
    assert!(known.add_absent(&older, ROOT, &name("b")));
    known.give_back(older);
    known.add(ROOT, &name("b"), NodeNumber(7));
    let names = || look(&known).1;
    assert_eq!(names(), [(1, "a".into()), (1, "b".into())], "FUSE-1");
    assert_eq!(names(), [(1, "b".into())]);
}

#[test]
fn late_replies_are_told_again_and_listings_once() {
    let known = Known::default();
    known.add_looked_up(ROOT, &name("a"), NodeNumber(7));
    known.add(ROOT, &name("a"), NodeNumber(7));
    known.note_listed(ROOT);
    let first = known.advance();
    assert_eq!(first.late, Late::default(), "the kernel had nothing yet");
    assert_eq!(first.listed, [ROOT], "FUSE-1");
    known.add_looked_up(ROOT, &name("a"), NodeNumber(7));
    known.note_set(NodeNumber(8));
    known.add_nameless(NodeNumber(9));
    known.note_listed(NodeNumber(7));
    known.forget(NodeNumber(7), 3);
    let second = known.advance();
    let late = Late {
        nodes: vec![NodeNumber(8), NodeNumber(9)],
        entries: vec![Arc::new((ROOT, name("a")))],
    };
    assert_eq!(second.late, late, "FUSE-1");
    assert_eq!(second.listed, [], "it is forgotten");
    for _ in 0..LATE_COUNT_MAX {
        known.note_set(NodeNumber(8));
    }
    known.add(ROOT, &name("b"), NodeNumber(10));
    let all = known.advance();
    assert_eq!(
        (&all.late.nodes, &all.late.entries),
        (&all.nodes, &all.entries),
        "FUSE-1"
    );
    // As if time had passed.
    known.lock().forget_late(Instant::now() + 2 * LATE_AGE_MAX);
    known.lock().late_lost = None;
    assert_eq!(known.advance().late, Late::default());
}

#[test]
fn a_change_of_some_nodes_is_told_of_these() {
    let known = Known::default();
    let (dir, file, other) = (NodeNumber(2), NodeNumber(3), NodeNumber(4));
    known.add(ROOT, &name("d"), dir);
    known.add(dir, &name("f"), file);
    known.add(ROOT, &name("o"), other);
    let ticket = known.ticket();
    for (parent, text) in [(dir, "n"), (ROOT, "n"), (other, "n")] {
        assert!(known.add_absent(&ticket, parent, &name(text)));
    }
    known.give_back(ticket);
    known.note_listed(dir);
    known.note_listed(other);
    known.note_set(file);
    known.note_set(other);
    known.add_looked_up(ROOT, &name("o"), other);
    known.add_looked_up(dir, &name("f"), file);
    let told = |changed: &[NodeNumber]| {
        let mut told = known.advance_some(&changed.iter().copied().collect());
        told.nodes.sort_unstable();
        told.entries.sort_unstable();
        told.listed.sort_unstable();
        told
    };
    let entry = |parent, text: &str| -> Entry { Arc::new((parent, name(text))) };
    let first = told(&[dir, NodeNumber(99)]);
    assert_eq!(first.nodes, [dir], "FUSE-1: nobody knows the other one");
    assert_eq!(first.entries, [entry(dir, "f"), entry(dir, "n")], "FUSE-1");
    assert_eq!(first.listed, [ROOT, dir], "FUSE-1: one may be on its way");
    let late = Late {
        nodes: vec![],
        entries: vec![entry(dir, "f")],
    };
    assert_eq!(first.late, late, "FUSE-1");
    let second = told(&[file]);
    assert_eq!(
        (second.nodes, second.entries),
        (vec![file], vec![]),
        "FUSE-1"
    );
    assert_eq!(second.listed, [dir], "FUSE-1");
    let late = Late {
        nodes: vec![file],
        entries: vec![entry(dir, "f")],
    };
    assert_eq!(second.late, late, "FUSE-1: its attributes");
    // What was not told is known still, and then it is not.
    let third = told(&[ROOT, other]);
    let both = [entry(ROOT, "d"), entry(ROOT, "n"), entry(ROOT, "o")];
    assert_eq!(third.entries[..3], both, "FUSE-1");
    assert_eq!(third.entries[3..], [entry(other, "n")], "FUSE-1");
    assert_eq!(third.listed, [ROOT, other], "FUSE-1");
    let fourth = told(&[ROOT, other, dir]);
    let present = [entry(ROOT, "d"), entry(ROOT, "o"), entry(dir, "f")];
    assert_eq!(fourth.entries, present, "FUSE-1: absent ones were told");
    known.forget(file, 2);
    known.remove(ROOT, &name("o"));
    assert_eq!(told(&[ROOT, dir]).entries, [entry(ROOT, "d")], "FUSE-1");
    known.forget(dir, 1);
    assert_eq!(told(&[ROOT, dir]).entries, []);
    assert!(!known.leads_to_past());
}

#[test]
fn changes_are_not_told_to_the_past_but_to_what_leads_there() {
    let known = Known::default();
    let number = |slot| node_number(past_node(slot, Ino(7))).unwrap();
    known.add(number(0), &name("snapshot"), number(3));
    known.add(number(3), &name("a"), number(4));
    known.add(ROOT, &name("b"), NodeNumber(7));
    // Nor what is absent there, listed, or looked up again.
    let ticket = known.ticket();
    assert!(known.add_absent(&ticket, number(3), &name("absent")));
    known.give_back(ticket);
    known.add_looked_up(number(3), &name("a"), number(4));
    known.add_nameless(number(4));
    known.note_listed(number(3));
    known.note_listed(number(0));
    known.add_looked_up(number(0), &name("snapshot"), number(3));
    let snapshot = known.advance();
    assert_eq!(snapshot.listed, [number(0)], "FUSE-1");
    let late = Late {
        nodes: vec![],
        entries: vec![Arc::new((number(0), name("snapshot")))],
    };
    assert_eq!(snapshot.late, late, "FUSE-1");
    let mut nodes = snapshot.nodes;
    nodes.sort_unstable();
    assert_eq!(nodes, [ROOT, NodeNumber(7)], "FUSE-1");
    let mut entries: Vec<NodeNumber> = snapshot.entries.iter().map(|entry| entry.0).collect();
    entries.sort_unstable();
    assert_eq!(entries, [ROOT, number(0)], "FUSE-1");
    assert_eq!(known.slots(), HashSet::from([3, 4]));
    let at = node_number(Directory::At.node()).unwrap();
    known.add(at, &name("-1h"), number(3));
    assert!(known.leads_to_past());
    let some = known.advance_some(&HashSet::new());
    let parents: Vec<NodeNumber> = some.entries.iter().map(|entry| entry.0).collect();
    assert_eq!((some.nodes, parents), (vec![], vec![at]), "FUSE-1");
}

#[test]
fn absent_names_are_bounded() {
    let known = Known::default();
    let ticket = known.ticket();
    let add = |index: usize| known.add_absent(&ticket, ROOT, &name(&index.to_string()));
    assert!((0..ABSENT_COUNT_MAX / 2).all(add));
    assert!(!add(ABSENT_COUNT_MAX));
    known.give_back(ticket);
    let gone = known.advance_absent();
    let counts = (gone.nodes.len(), gone.entries.len());
    assert_eq!(counts, (0, ABSENT_COUNT_MAX / 2), "FUSE-1");
    let ticket = known.ticket();
    assert!(known.add_absent(&ticket, ROOT, &name("again")));
    known.give_back(ticket);
}

#[test]
fn an_advance_waits_for_older_tickets_only() {
    let known = Known::default();
    let older = known.ticket();
    let replied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let advance = scope.spawn(|| {
            let snapshot = known.advance();
            assert!(replied.load(Ordering::SeqCst), "FUSE-1");
            snapshot
        });
        while known.lock().epoch == older.epoch {
            std::thread::yield_now();
        }
        let newer = known.ticket();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!advance.is_finished(), "FUSE-1");
        known.add(ROOT, &name("a"), NodeNumber(7));
        assert!(known.add_absent(&newer, ROOT, &name("b")));
        replied.store(true, Ordering::SeqCst);
        known.give_back(older);
        let snapshot = advance.join().expect("no panic");
        assert_eq!(snapshot.nodes, [ROOT, NodeNumber(7)], "FUSE-1");
        known.give_back(newer);
        assert_eq!(
            look(&known).1,
            [(1, "a".into()), (1, "b".into())],
            "FUSE-1: the reply of the newer ticket was not out"
        );
        assert_eq!(look(&known).1, [(1, "a".into())]);
    });
}
