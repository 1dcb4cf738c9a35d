//! No file of a crate uses itself through others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::imports::Graph;

/// The shortest circle of files, with the names that close it, and further ones of other files.
pub fn check_circles(graph: &Graph) -> Vec<String> {
    let mut roads: Vec<Vec<&str>> = graph
        .keys()
        .filter_map(|file| shortest_circle(graph, file))
        .collect();
    roads.sort_by_key(Vec::len);
    let mut found = Vec::new();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for road in roads {
        if road.iter().any(|file| told.contains(file)) {
            continue;
        }
        let steps: Vec<String> = road
            .windows(2)
            .map(|step| {
                let names: Vec<&str> = graph[step[0]][step[1]].iter().map(String::as_str).collect();
                format!("{} uses {} of {}", step[0], names.join(", "), step[1])
            })
            .collect();
        found.push(format!("files in a circle: {}", steps.join("; ")));
        told.extend(road);
    }
    found
}

/// The shortest road from a file back to it, if there is one.
fn shortest_circle<'a>(graph: &'a Graph, start: &'a str) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(at) = waiting.pop_front() {
        for next in graph.get(at)?.keys().map(String::as_str) {
            if next == start {
                let mut road = vec![start, at];
                while let Some(before) = came_from.get(road[road.len() - 1]) {
                    road.push(before);
                }
                road.reverse();
                return Some(road);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, at);
                waiting.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::imports::tests::graph_of;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check_circles(&graph_of(files))
    }

    #[test]
    fn a_circle_is_told_by_its_shortest_road_and_the_names_that_close_it() {
        let files = [
            ("lib", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use crate::{a::A, c::C}; pub struct B;"),
            ("c", "use crate::a::A; pub struct C;"),
        ];
        assert_eq!(
            found(&files),
            [
                "files in a circle: c/src/a.rs uses crate::b::B of c/src/b.rs; \
                 c/src/b.rs uses crate::a::A of c/src/a.rs"
            ]
        );
    }

    #[test]
    fn each_circle_is_a_finding_of_its_own() {
        let files = [
            ("lib", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use crate::{a::A, c::C}; pub struct B;"),
            ("c", "use crate::d::D; pub struct C;"),
            ("d", "use crate::c::C; pub struct D;"),
        ];
        assert_eq!(found(&files).len(), 2);
    }

    #[test]
    fn what_runs_down_passes() {
        let files = [
            ("lib", "mod a; mod b; mod c;"),
            ("a", "use crate::{b::B, c::C};"),
            ("b", "use crate::c::C; pub struct B;"),
            ("c", "pub struct C;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
