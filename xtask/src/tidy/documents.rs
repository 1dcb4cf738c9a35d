//! The documents of the house: that they are there, and that their edge table is the real one.

use std::collections::{BTreeMap, BTreeSet};

use xtask::workspace::Package;

const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/format.md",
    "docs/durability.md",
    "docs/glossary.md",
    "docs/performance.md",
    "docs/decisions/0001-crates.md",
];

/// The two commands that do all set-up on a fresh machine.
const COMMANDS: [&str; 2] = [
    "cargo run --release -- mount --create photos.larder ./photos",
    "cargo xtask test",
];

/// Checks all documents; `read` returns the text of a file of the workspace.
pub fn check_documents(read: &dyn Fn(&str) -> Option<String>, packages: &[Package]) -> Vec<String> {
    let missing = DOCUMENTS.iter().filter(|name| read(name).is_none());
    let mut found: Vec<String> = missing.map(|name| format!("{name} is missing")).collect();
    if let Some(readme) = read("README.md") {
        let absent = COMMANDS
            .iter()
            .filter(|command| !readme.contains(**command));
        found.extend(absent.map(|command| format!("README.md does not show `{command}`")));
    }
    if let Some(architecture) = read("ARCHITECTURE.md") {
        found.extend(check_edge_table(&architecture, packages));
    }
    found
}

/// The table `| crate | may use |` says what cargo says.
fn check_edge_table(architecture: &str, packages: &[Package]) -> Vec<String> {
    let Some(table) = edge_table(architecture) else {
        return vec!["ARCHITECTURE.md has no table `| crate | may use |`".to_owned()];
    };
    let real = packages.iter().map(|package| {
        let uses = package
            .uses
            .iter()
            .filter(|edge| !edge.is_dev)
            .map(|edge| short(&edge.to))
            .collect();
        (short(&package.name), uses)
    });
    let real: BTreeMap<String, BTreeSet<String>> = real.collect();
    let mut found = Vec::new();
    for (name, uses) in &real {
        let list = |uses: &BTreeSet<String>| uses.iter().cloned().collect::<Vec<_>>().join(", ");
        match table.get(name) {
            None => found.push(format!("ARCHITECTURE.md: the edge table lacks {name}")),
            Some(written) if written != uses => found.push(format!(
                "ARCHITECTURE.md: {name} uses [{}], the edge table says [{}]",
                list(uses),
                list(written)
            )),
            Some(_) => {}
        }
    }
    let unknown = table.keys().filter(|name| !real.contains_key(*name));
    found.extend(
        unknown.map(|name| format!("ARCHITECTURE.md: the edge table has {name}, cargo does not")),
    );
    found
}

fn edge_table(text: &str) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim()
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('`', ""))
            .collect()
    };
    let mut lines = text.lines();
    lines.find(|line| {
        line.trim_start().starts_with('|')
            && cells(line).starts_with(&["crate".into(), "may use".into()])
    })?;
    let rows = lines
        .skip(1)
        .take_while(|line| line.trim_start().starts_with('|'))
        .map(cells);
    let row = |row: Vec<String>| {
        let names = row
            .get(1)
            .map(String::as_str)
            .unwrap_or_default()
            .split(',')
            .map(str::trim);
        let uses = names
            .filter(|name| !matches!(*name, "" | "-" | "—"))
            .map(short)
            .collect();
        (short(&row[0]), uses)
    };
    Some(rows.map(row).collect())
}

/// Packages go by their directory in the documents: `larder-object` is `object`.
fn short(name: &str) -> String {
    match name {
        "larder" => "content".to_owned(),
        name => name.strip_prefix("larder-").unwrap_or(name).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::workspace::Edge;

    const TABLE: &str = "# A\n\n| crate | may use | what |\n|---|---|---|\n| `content` | `object` \
        | x |\n| object | — | y |\n\nText.";

    fn packages() -> [Package; 2] {
        let package = |name: &str, uses: Vec<Edge>| Package {
            name: name.to_owned(),
            directory: "".into(),
            roots: vec![],
            uses,
        };
        let dev = Edge {
            to: "larder-testkit".to_owned(),
            is_dev: true,
        };
        let down = Edge {
            to: "larder-object".to_owned(),
            is_dev: false,
        };
        [
            package("larder", vec![down, dev]),
            package("larder-object", vec![]),
        ]
    }

    #[test]
    fn the_edge_table_must_be_the_real_one() {
        assert_eq!(check_edge_table(TABLE, &packages()), Vec::<String>::new());
        let finds = |table: &str, count| {
            assert_eq!(check_edge_table(table, &packages()).len(), count, "{table}")
        };
        finds("no table", 1);
        finds(&TABLE.replace("| `object` |", "| object, format |"), 1);
        finds(&TABLE.replace("| object | — | y |\n", ""), 1);
        finds(
            &TABLE.replace("| object | — | y |", "| object | — |\n| lab | object |"),
            1,
        );
    }

    #[test]
    fn missing_documents_and_commands_are_found() {
        assert_eq!(check_documents(&|_| None, &[]).len(), DOCUMENTS.len());
        let all = |name: &str| {
            Some(if name == "README.md" {
                COMMANDS.join("\n")
            } else {
                TABLE.to_owned()
            })
        };
        assert_eq!(check_documents(&all, &packages()), Vec::<String>::new());
        let poor = |name: &str| {
            Some(
                if name == "README.md" {
                    "cargo test"
                } else {
                    TABLE
                }
                .to_owned(),
            )
        };
        assert_eq!(check_documents(&poor, &packages()).len(), COMMANDS.len());
    }
}
