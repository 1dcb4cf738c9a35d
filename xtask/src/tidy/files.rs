//! Dead files: sources that no `mod` reaches.

use std::collections::HashSet;

use xtask::workspace::Source;

/// Every source is a root or is named by a `mod` of a source that is reached.
pub fn check_reachable(sources: &[Source], roots: &[String]) -> Vec<String> {
    let mut reached: HashSet<String> = HashSet::new();
    let mut waiting: Vec<(String, bool)> = roots.iter().map(|root| (root.clone(), true)).collect();
    while let Some((path, is_root)) = waiting.pop() {
        let source = sources.iter().find(|source| source.path == path);
        if let Some(source) = source.filter(|_| reached.insert(path.clone())) {
            waiting.extend(
                children(source, is_root)
                    .into_iter()
                    .map(|child| (child, false)),
            );
        }
    }
    let dead = sources
        .iter()
        .filter(|source| !reached.contains(&source.path));
    dead.map(|source| format!("{}: no `mod` reaches this file", source.path))
        .collect()
}

/// Where the modules that a file declares may lie.
fn children(source: &Source, is_root: bool) -> Vec<String> {
    let (directory, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let inside = match is_root || stem == "mod" {
        true => directory.to_owned(),
        false => format!("{directory}/{stem}"),
    };
    let mut children = Vec::new();
    let mut path_attribute = None;
    for line in source.lines().filter(|line| !line.is_comment()) {
        let text = line.text.trim();
        if let Some(path) = text
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            path_attribute = Some(resolve(directory, path));
        } else if let Some(name) = declared_module(text) {
            children.push(format!("{inside}/{name}.rs"));
            children.push(format!("{inside}/{name}/mod.rs"));
            children.extend(path_attribute.take());
        }
    }
    children
}

/// `path` as seen from `directory`, without `..`.
fn resolve(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The name in `mod name;`, with any visibility.
pub fn declared_module(text: &str) -> Option<&str> {
    let declaration = match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => text,
    };
    declaration
        .trim_start()
        .strip_prefix("mod ")?
        .strip_suffix(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_dead_file_is_found() {
        let sources = [
            source(
                "c/src/lib.rs",
                "mod a;\npub(crate) mod b;\n#[path = \"../src/odd/place.rs\"]\nmod c;\n",
            ),
            source("c/src/a.rs", "mod deep;\n// mod dead;\n"),
            source("c/src/a/deep.rs", ""),
            source("c/src/b/mod.rs", "pub mod deeper;"),
            source("c/src/b/deeper.rs", ""),
            source("c/src/odd/place.rs", ""),
            source("c/src/a/dead.rs", ""),
            source("c/tests/whole.rs", "mod helper;"),
            source("c/tests/helper.rs", ""),
        ];
        let roots = ["c/src/lib.rs".to_owned(), "c/tests/whole.rs".to_owned()];
        assert_eq!(
            check_reachable(&sources, &roots),
            ["c/src/a/dead.rs: no `mod` reaches this file"]
        );
    }
}
