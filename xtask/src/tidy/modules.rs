//! Cycles between the modules of a crate, found by reading `crate::…` paths.
//!
//! A module is a file beside the crate's root, with the directory of the same name. What the root
//! re-exports counts as its own module, so `use crate::Error` is an edge to `error`. The methods of
//! one type may be told in several files: a file with an inherent `impl` of another module's type
//! counts as part of that module.

use std::collections::{BTreeMap, BTreeSet};

use super::files::declared_module;
use xtask::workspace::Source;

/// No module uses itself through others.
pub fn check_cycles(sources: &[Source], root: &str) -> Vec<String> {
    let graph = graph(sources, root);
    let mut found = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for module in graph.keys() {
        let mut road = Vec::new();
        if let Some(cycle) = find_cycle(&graph, module, &mut road, &mut done) {
            found.push(format!(
                "{root}: modules in a circle: {}",
                cycle.join(" → ")
            ));
        }
    }
    found
}

type Graph = BTreeMap<String, BTreeSet<String>>;

fn graph(sources: &[Source], root: &str) -> Graph {
    let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory);
    let Some(root_source) = sources.iter().find(|source| source.path == root) else {
        return Graph::new();
    };
    let root_code = root_source.code();
    let modules: Vec<String> = root_code
        .lines()
        .filter_map(|line| declared_module(line.trim()))
        .map(str::to_owned)
        .collect();
    let code_of = |module: &String| -> String {
        let (file, inside) = (
            format!("{directory}/{module}.rs"),
            format!("{directory}/{module}/"),
        );
        let own = sources
            .iter()
            .filter(|source| source.path == file || source.path.starts_with(&inside));
        own.map(|source| match source.path == file {
            // Seen from a file beside the root, `super` is the root.
            true => source.code().replace("super::", "crate::"),
            false => source.code(),
        })
        .collect()
    };
    let code: BTreeMap<String, String> = modules
        .iter()
        .map(|module| (module.clone(), code_of(module)))
        .collect();
    let exports = exports(&root_code, &code);
    let next: BTreeMap<&str, String> = code
        .keys()
        .map(|module| (module.as_str(), home(module, &code)))
        .collect();
    let homes: BTreeMap<&str, String> = next
        .keys()
        .map(|&module| (module, last_home(module, &next)))
        .collect();
    let mut graph = Graph::new();
    for (module, code) in &code {
        let from = &homes[module.as_str()];
        let names = crate_paths(code, "crate::");
        let used = names.iter().filter_map(|name| {
            homes
                .get(name.as_str())
                .or_else(|| homes.get(exports.get(name)?.as_str()))
        });
        let to: Vec<String> = used.filter(|to| *to != from).cloned().collect();
        graph.entry(from.clone()).or_default().extend(to);
    }
    graph
}

/// The module that `module` is part of: that of the type whose methods it holds, unless it declares
/// it, or itself.
fn home(module: &str, code: &BTreeMap<String, String>) -> String {
    let declares = |code: &str, name: &str| {
        code.lines().any(|line| {
            let mut words = line
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub ")
                .split_whitespace();
            matches!(words.next(), Some("struct" | "enum"))
                && words
                    .next()
                    .and_then(identifier)
                    .is_some_and(|found| found == name)
        })
    };
    let impls = code[module]
        .lines()
        .filter_map(|line| line.strip_prefix("impl "))
        .filter(|line| !line.contains(" for "));
    let mut foreign = impls
        .filter_map(identifier)
        .filter(|name| !declares(&code[module], name));
    let owner = foreign.find_map(|name| {
        let mut others = code.iter().filter(|(other, _)| *other != module);
        others
            .find(|(_, code)| declares(code, &name))
            .map(|(owner, _)| owner.clone())
    });
    owner.unwrap_or_else(|| module.to_owned())
}

/// The module that `module` is part of in the end: what it is part of may itself be part of
/// another.
fn last_home(module: &str, next: &BTreeMap<&str, String>) -> String {
    let mut seen = BTreeSet::new();
    let mut at = module;
    while let Some(further) = next.get(at).filter(|_| seen.insert(at)) {
        at = further;
    }
    at.to_owned()
}

/// Which module each name of the root comes from.
fn exports(root_code: &str, code: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for module in code.keys() {
        let prefix = format!("{module}::");
        for statement in root_code
            .split(';')
            .filter(|statement| statement.contains("use "))
        {
            let names = crate_paths(statement, &prefix);
            exports.extend(names.into_iter().map(|name| (name, module.clone())));
            if statement.trim_end().ends_with(&format!("{prefix}*")) {
                let names = declared_names(&code[module]);
                exports.extend(names.map(|name| (name, module.clone())));
            }
        }
    }
    exports
}

/// The names of the items that are declared `pub`.
fn declared_names(code: &str) -> impl Iterator<Item = String> {
    code.lines().filter_map(|line| {
        let mut words = line
            .strip_prefix("pub ")?
            .split_whitespace()
            .skip_while(|word| *word == "unsafe");
        let _kind = words.next()?;
        identifier(words.next()?)
    })
}

/// What follows each `prefix`: one name, or the first names inside braces.
fn crate_paths(code: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let is_whole = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            _ if !is_whole => {}
            Some(group) => names.extend(first_names(group)),
            None => names.extend(identifier(rest)),
        }
    }
    names
}

/// The first name of each part of `a::X, b::{Y, Z}, C}`.
fn first_names(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.extend(identifier(&std::mem::take(&mut part))),
            c => part.push(c),
        }
    }
    names.extend(identifier(&part));
    names
}

fn identifier(text: &str) -> Option<String> {
    let name: String = text
        .trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

fn find_cycle<'a>(
    graph: &'a Graph,
    module: &'a str,
    road: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(start) = road.iter().position(|step| *step == module) {
        return Some([&road[start..], &[module]].concat());
    }
    if !done.contains(module) {
        road.push(module);
        for next in graph.get(module).into_iter().flatten() {
            if let Some(cycle) = find_cycle(graph, next, road, done) {
                done.extend(road.iter());
                return Some(cycle);
            }
        }
        road.pop();
        done.insert(module);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(root: &str, modules: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![Source {
            path: "c/src/lib.rs".to_owned(),
            text: root.to_owned(),
        }];
        sources.extend(modules.iter().map(|(path, text)| Source {
            path: format!("c/src/{path}.rs"),
            text: text.to_string(),
        }));
        check_cycles(&sources, "c/src/lib.rs")
    }

    #[test]
    fn a_circle_is_found_through_paths_groups_and_exports() {
        let root = "mod a;\nmod b;\nmod c;\npub use c::{Error, Kind};\n";
        let found = cycles(
            root,
            &[
                ("a", "use crate::{c::Error, b::{X, Y}};"),
                ("b", "use super::a::Z;"),
                ("c", ""),
            ],
        );
        assert_eq!(found, ["c/src/lib.rs: modules in a circle: a → b → a"]);
        let found = cycles(
            root,
            &[
                ("a", "use crate::b;"),
                ("b/deep", "use crate::Error;"),
                ("c", "fn f() { crate::a::g() }"),
            ],
        );
        assert_eq!(found, ["c/src/lib.rs: modules in a circle: a → b → c → a"]);
        let glob = "mod a;\nmod b;\npub use a::*;\n";
        let found = cycles(
            glob,
            &[
                ("a", "use crate::b::X;\npub struct Thing<T>;\n"),
                ("b", "use crate::Thing;"),
            ],
        );
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn methods_of_one_type_may_be_told_in_several_files() {
        let root = "mod engine;\nmod commit;\nmod gather;\n";
        let engine = "use crate::commit::Group;\nuse crate::gather::Gather;\npub struct Engine;\n";
        let commit =
            "use crate::engine::Engine;\npub(crate) struct Group;\nimpl Group {}\nimpl Engine {}\n";
        let own = [("engine", engine), ("commit", commit), ("gather", "")];
        assert_eq!(cycles(root, &own), Vec::<String>::new());
        let back = [
            ("engine", engine),
            ("commit", commit),
            ("gather", "use crate::engine::Engine;"),
        ];
        assert_eq!(
            cycles(root, &back),
            ["c/src/lib.rs: modules in a circle: engine → gather → engine"]
        );
    }

    #[test]
    fn what_runs_down_passes() {
        let root = "mod a;\nmod b;\npub use a::A;\npub use b::B;\n";
        let a = "use crate::b::B;\nuse larder::a::b;\n//! crate::a\n";
        let b = "use std::fmt;\n// See crate::a.\n#[cfg(test)]\nmod tests { use crate::a::A; }";
        assert_eq!(cycles(root, &[("a", a), ("b", b)]), Vec::<String>::new());
    }
}
