//! The two Cargo.lock files: what both workspaces use has the same versions in both.

use std::collections::{BTreeMap, BTreeSet};

/// Of one Cargo.lock: packages and their versions.
type Versions<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Every version that `theirs` has of a package in `ours` is one of ours; both are texts of
/// Cargo.lock files.
pub fn check_locks(ours: &str, theirs: &str, path: &str) -> Vec<String> {
    let (ours, theirs) = (versions(ours), versions(theirs));
    let differs = |(name, found): (&&str, &BTreeSet<&str>)| {
        let known = ours.get(name)?;
        let other = found.difference(known).next()?;
        let known: Vec<&str> = known.iter().copied().collect();
        Some(format!(
            "{path}: {name} is {other}, and {} in Cargo.lock; `cargo update --manifest-path … \
             {name} --precise …`",
            known.join(", ")
        ))
    };
    theirs.iter().filter_map(differs).collect()
}

fn versions(lock: &str) -> Versions<'_> {
    let mut found = Versions::new();
    let mut name = None;
    for line in lock.lines() {
        let value = |key: &str| line.strip_prefix(key)?.strip_suffix('"');
        name = value("name = \"").or(name);
        if let (Some(name), Some(version)) = (name, value("version = \"")) {
            found.entry(name).or_default().insert(version);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_of_the_same_package_are_found() {
        let lock = |packages: &[(&str, &str)]| -> String {
            let one = |(name, version): &(&str, &str)| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n")
            };
            format!(
                "version = 4\n\n{}",
                packages.iter().map(one).collect::<String>()
            )
        };
        let ours = lock(&[
            ("a", "1.0.0"),
            ("b", "1.0.0"),
            ("b", "2.0.0"),
            ("d", "1.0.0"),
        ]);
        let theirs = lock(&[("a", "1.0.1"), ("b", "2.0.0"), ("c", "9.0.0")]);
        let found = check_locks(&ours, &theirs, "sql/Cargo.lock");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("sql/Cargo.lock: a is 1.0.1, and 1.0.0 in"),
            "{found:?}"
        );
        assert!(check_locks(&ours, &ours, "x").is_empty());
    }
}
