//! Between the rooms of a crate dependencies run one way.
//!
//! A *room* is a directory beside the crate's root with the file of the same name, or a file there
//! alone. `rooms.txt` holds the imports that ran against the order before it was asked for: it may
//! only shrink, and a line that names none of them any more is a finding.

use std::collections::BTreeSet;

use super::imports::Graph;

/// Imports that still run against the order, one `user → used` a line.
pub const KNOWN: &str = include_str!("rooms.txt");

/// A directory of sources and its rooms, each of which uses only those before it.
pub type Order<'a> = (&'a str, &'a [&'a str]);

/// The rooms that have an order.
pub const ORDERS: [Order<'_>; 1] = [(
    "crates/object/src",
    &[
        "error", "host", "session", "view", "engine", "write", "history", "space", "commit", "txn",
        "report", "fuzzing",
    ],
)];

/// Every import between rooms that runs against `order`, and is not in `known`.
pub fn check_rooms(
    graph: &Graph,
    (directory, rooms): Order<'_>,
    known: &BTreeSet<(&str, &str)>,
) -> Vec<String> {
    let place = |file: &str| {
        let inside = file.strip_prefix(directory)?.strip_prefix('/')?;
        let room = inside.split('/').next()?.trim_end_matches(".rs");
        Some((rooms.iter().position(|one| *one == room), room.to_owned()))
    };
    let mut found = Vec::new();
    let mut upward = BTreeSet::new();
    for (user, uses) in graph {
        let Some((from, user_room)) = place(user).filter(|(_, room)| room != "lib") else {
            continue;
        };
        if from.is_none() {
            found.push(format!("{user}: rooms.rs has no place for this room"));
        }
        for (used, names) in uses {
            let Some((to, used_room)) = place(used).filter(|(to, _)| *to > from) else {
                continue;
            };
            upward.insert((user.as_str(), used.as_str()));
            if to.is_some() && !known.contains(&(user.as_str(), used.as_str())) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                found.push(format!(
                    "{user} uses {} of {used}: {user_room} comes before {used_room}",
                    names.join(", ")
                ));
            }
        }
    }
    let gone = known
        .iter()
        .filter(|(user, used)| user.starts_with(directory) && !upward.contains(&(user, used)));
    found.extend(gone.map(|(user, used)| {
        format!("rooms.txt: strike `{user} → {used}`, which runs with the order")
    }));
    found
}

/// `user → used` of each line of a list of imports.
pub fn parse_known(text: &str) -> BTreeSet<(&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(" → "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::imports::tests::graph_of;

    /// So many they were when they were first asked for; who strikes some writes it here.
    const KNOWN_MAX: usize = 25;
    const ORDER: Order<'_> = ("c/src", &["low", "high"]);
    const FILES: [(&str, &str); 4] = [
        ("lib", "mod low; mod high; pub use high::Top;"),
        ("low", "mod deep; pub struct Low;"),
        ("low/deep", "fn f(_: crate::high::Top, _: super::Low) {}"),
        ("high", "use crate::low::Low; pub struct Top;"),
    ];

    fn found(known: &str) -> Vec<String> {
        check_rooms(&graph_of(&FILES), ORDER, &parse_known(known))
    }

    #[test]
    fn an_import_from_a_lower_room_to_a_higher_one_is_found() {
        let upward =
            "c/src/low/deep.rs uses crate::high::Top of c/src/high.rs: low comes before high";
        assert_eq!(found(""), [upward]);
        assert_eq!(found("c/src/low/deep.rs → c/src/high.rs"), [""; 0]);
    }

    #[test]
    fn the_list_of_known_imports_may_only_shrink() {
        let known = "c/src/low/deep.rs → c/src/high.rs\nc/src/high.rs → c/src/low.rs";
        assert_eq!(
            found(known),
            ["rooms.txt: strike `c/src/high.rs → c/src/low.rs`, which runs with the order"]
        );
    }

    #[test]
    fn no_import_was_added_to_the_list() {
        let known = parse_known(KNOWN);
        assert_eq!(known.len(), KNOWN.lines().count());
        assert!(known.len() <= KNOWN_MAX, "{}", known.len());
    }

    #[test]
    fn a_room_without_a_place_is_found() {
        let files = [("lib", "mod low; mod odd;"), ("low", ""), ("odd", "")];
        let found = check_rooms(&graph_of(&files), ORDER, &BTreeSet::new());
        assert_eq!(found, ["c/src/odd.rs: rooms.rs has no place for this room"]);
    }
}
