//! Which package may use which: the house plan, as a table.

use xtask::workspace::Package;

/// The edges of the house. Dependencies run strictly down.
const EDGES: [(&str, &[&str]); 18] = [
    ("larder-cli", &["larder", "larder-fuse", "larder-lab"]),
    ("larder-lab", &["larder"]),
    ("larder-sql", &["larder"]),
    ("larder-fuse", &["larder", "larder-fuse-protocol"]),
    ("larder-fuse-protocol", &[]),
    ("larder", &["larder-object"]),
    (
        "larder-object",
        &["larder-catalog", "larder-segment", "larder-space"],
    ),
    (
        "larder-catalog",
        &[
            "larder-catalog-sqlite",
            "larder-catalog-types",
            "larder-directory",
            "larder-format",
        ],
    ),
    (
        "larder-catalog-sqlite",
        &[
            "larder-catalog-types",
            "larder-directory",
            "larder-format",
            "larder-format-one",
        ],
    ),
    ("larder-catalog-types", &["larder-format"]),
    (
        "larder-segment",
        &["larder-directory", "larder-format", "larder-format-one"],
    ),
    ("larder-directory", &[]),
    ("larder-space", &["larder-format"]),
    ("larder-format-one", &["larder-format"]),
    ("larder-format", &[]),
    ("xtask", &[]),
    ("larder-suites", &["larder", TESTKIT, "xtask"]),
    (
        "larder-bench",
        &["larder", "larder-fuse-protocol", TESTKIT, "xtask"],
    ),
];

const TESTKIT: &str = "larder-testkit";

/// What the testkit may use, as far as it needs to: anything below content.
const BELOW_CONTENT: [&str; 6] = [
    "larder-object",
    "larder-catalog",
    "larder-segment",
    "larder-space",
    "larder-format",
    "larder-directory",
];

/// Every package has exactly its edges; tests may use the testkit beside.
pub fn check_edges(packages: &[Package]) -> Vec<String> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<String> {
    let name = package.name.as_str();
    let planned = EDGES
        .iter()
        .find(|(from, _)| *from == name)
        .map(|(_, to)| *to);
    let Some(allowed) = planned.or((name == TESTKIT).then_some(&BELOW_CONTENT[..])) else {
        return vec![format!(
            "{name} has no place in the house; add it to xtask/src/tidy/edges.rs"
        )];
    };
    let wrong = package
        .uses
        .iter()
        .filter(|edge| !(allowed.contains(&edge.to.as_str()) || edge.is_dev && edge.to == TESTKIT));
    let mut found: Vec<String> = wrong
        .map(|edge| format!("{name} must not use {}; see the edge table", edge.to))
        .collect();
    let is_used = |to: &str| {
        package
            .uses
            .iter()
            .any(|edge| !edge.is_dev && edge.to == to)
    };
    if planned.is_some() {
        let unused = allowed.iter().filter(|to| !is_used(to));
        found.extend(unused.map(|to| format!("{name} is planned to use {to} and does not")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::workspace::Edge;

    fn package(name: &str, uses: &[&str]) -> Package {
        let edge = |to: &&str| match to.strip_prefix("dev:") {
            Some(to) => Edge {
                to: to.to_owned(),
                is_dev: true,
            },
            None => Edge {
                to: to.to_string(),
                is_dev: false,
            },
        };
        let uses = uses.iter().map(edge).collect();
        Package {
            name: name.to_owned(),
            directory: "".into(),
            roots: vec![],
            uses,
        }
    }

    #[test]
    fn planned_edges_pass() {
        let planned = [
            package("larder-fuse", &["larder", "larder-fuse-protocol"]),
            package(
                "larder-object",
                &[
                    "larder-catalog",
                    "larder-segment",
                    "larder-space",
                    "dev:larder-testkit",
                ],
            ),
            package("larder-testkit", &["larder-segment"]),
        ];
        assert_eq!(check_edges(&planned), Vec::<String>::new());
    }

    #[test]
    fn every_other_edge_is_found() {
        let wrong = |name, uses: &[&str]| check_edges(&[package(name, uses)]).len();
        let beside = &["larder", "larder-fuse-protocol", "larder-object"];
        assert_eq!(wrong("larder-fuse", beside), 1);
        let sqlite = &[
            "larder-catalog-types",
            "larder-directory",
            "larder-format",
            "larder-format-one",
        ];
        for more in ["larder-segment", "dev:larder-segment"] {
            let uses = [&sqlite[..], &[more]].concat();
            assert_eq!(wrong("larder-catalog-sqlite", &uses), 1, "{more}");
        }
        let object = ["larder-catalog", "larder-segment", "larder-space"];
        let beside = [&object[..], &["larder-catalog-sqlite"]].concat();
        assert_eq!(wrong("larder-object", &beside), 1, "INTERFACE-3");
        assert_eq!(wrong("larder", &["larder-object", "larder-testkit"]), 1);
        assert_eq!(wrong("larder-testkit", &["larder"]), 1);
        assert_eq!(
            wrong("larder-cli", &["larder", "larder-fuse"]),
            1,
            "a planned edge is missing"
        );
        assert_eq!(wrong("larder-lab", &[]), 1, "an unknown package");
    }
}
