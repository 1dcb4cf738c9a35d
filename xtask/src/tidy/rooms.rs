//! Between the rooms of a crate dependencies run one way.
//!
//! A *room* is a directory beside the crate's root with the file of the same name, or a file there
//! alone. Where an order has both `room` and `room/`, the first is the room's own file, what is
//! remembered of the room, and the second the files in it, what is done with that.

use super::imports::Graph;

/// A directory of sources and its rooms, each of which uses only those before it.
pub type Order<'a> = (&'a str, &'a [&'a str]);

/// The rooms that have an order.
pub const ORDERS: [Order<'_>; 2] = [
    (
        "crates/catalog-sqlite/src",
        &[
            "error",
            "types",
            "conn",
            "authors",
            "space",
            "history",
            "schema",
            "temporal",
            "feed",
            "guards",
            "history/",
            "commit",
            "stores",
            "open",
            "past",
            "check",
            "user_sql",
            "workspace",
            "upgrade",
            "fuzzing",
        ],
    ),
    (
        "crates/object/src",
        &[
            "error", "host", "parts", "session", "view", "write", "space", "txn", "history",
            "commit", "engine", "write/", "history/", "space/", "commit/", "engine/", "txn/",
            "report", "upgrade", "fuzzing",
        ],
    ),
];

/// Every import between rooms that runs against `order`.
pub fn check_rooms(graph: &Graph, (directory, rooms): Order<'_>) -> Vec<String> {
    let find = |room: &str| rooms.iter().position(|one| *one == room);
    let place = |file: &str| {
        let inside = file.strip_prefix(directory)?.strip_prefix('/')?;
        let Some((room, _)) = inside.split_once('/') else {
            let room = inside.trim_end_matches(".rs");
            return Some((find(room), room.to_owned()));
        };
        let files = format!("{room}/");
        Some(match find(&files) {
            None => (find(room), room.to_owned()),
            found => (found, files),
        })
    };
    let mut found = Vec::new();
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
            if to.is_some() {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                found.push(format!(
                    "{user} uses {} of {used}: {user_room} comes before {used_room}",
                    names.join(", ")
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::imports::tests::graph_of;

    const ORDER: Order<'_> = ("c/src", &["low", "high"]);
    const FILES: [(&str, &str); 4] = [
        ("lib", "mod low; mod high; pub use high::Top;"),
        ("low", "mod deep; pub struct Low;"),
        ("low/deep", "fn f(_: crate::high::Top, _: super::Low) {}"),
        ("high", "use crate::low::Low; pub struct Top;"),
    ];

    #[test]
    fn an_import_from_a_lower_room_to_a_higher_one_is_found() {
        let upward =
            "c/src/low/deep.rs uses crate::high::Top of c/src/high.rs: low comes before high";
        assert_eq!(check_rooms(&graph_of(&FILES), ORDER), [upward]);
    }

    #[test]
    fn what_is_done_in_a_room_comes_after_what_is_remembered_of_it() {
        let order = ("c/src", &["low", "high", "low/"][..]);
        assert_eq!(check_rooms(&graph_of(&FILES), order), [""; 0]);
        let order = ("c/src", &["low/", "high", "low"][..]);
        let found = check_rooms(&graph_of(&FILES), order);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_room_without_a_place_is_found() {
        let files = [("lib", "mod low; mod odd;"), ("low", ""), ("odd", "")];
        let found = check_rooms(&graph_of(&files), ORDER);
        assert_eq!(found, ["c/src/odd.rs: rooms.rs has no place for this room"]);
    }
}
