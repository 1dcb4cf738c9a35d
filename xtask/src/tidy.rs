//! `cargo xtask tidy`: the house rules that a machine can check.
//!
//! Every check is a function from plain data to findings, one line each; only this file reads the
//! workspace.

mod circles;
mod connections;
mod documents;
mod edges;
mod files;
mod imports;
mod interface;
mod invariants;
mod locks;
mod methods;
mod rooms;
mod text;
mod words;

use std::fs;

use xtask::Outcome;
use xtask::workspace::{EXTENSION_LOCK, Source, Workspace};

/// Writes the listing of the public interface.
pub fn write_interface() -> Outcome {
    let workspace = Workspace::load_all()?;
    let mut all: Vec<Source> = Vec::new();
    for package in &workspace.packages {
        all.extend(workspace.sources(package)?);
    }
    let listing = interface::listing(&all, interface::ROOT);
    fs::write(workspace.root.join(interface::LISTING), listing)
        .map_err(|error| format!("{}: {error}", interface::LISTING))
}

/// Runs all checks and prints what they find.
pub fn run() -> Outcome {
    let workspace = Workspace::load_all()?;
    let found = findings(&workspace)?;
    for finding in &found {
        println!("tidy: {finding}");
    }
    match found.len() {
        0 => {
            println!("tidy: {} packages, nothing found", workspace.packages.len());
            Ok(())
        }
        count => Err(format!("tidy found {count} things to mend")),
    }
}

fn findings(workspace: &Workspace) -> Result<Vec<String>, String> {
    let mut found = edges::check_edges(&workspace.packages);
    let mut all: Vec<Source> = Vec::new();
    let mut graph = imports::Graph::new();
    for package in &workspace.packages {
        let sources = workspace.sources(package)?;
        let roots: Vec<String> = package
            .roots
            .iter()
            .map(|root| workspace.relative(root))
            .collect();
        found.extend(files::check_reachable(&sources, &roots));
        for root in roots
            .iter()
            .filter(|root| root.ends_with("src/lib.rs") || root.ends_with("src/main.rs"))
        {
            graph.extend(imports::graph(&sources, root)?);
            found.extend(methods::check_methods(&sources, root)?);
        }
        let manifest = package.directory.join("Cargo.toml");
        let manifest_text = fs::read_to_string(&manifest)
            .map_err(|error| format!("{}: {error}", manifest.display()))?;
        found.extend(text::check_lints(
            &workspace.relative(&manifest),
            &manifest_text,
        ));
        all.extend(sources);
    }
    found.extend(circles::check_circles(&graph));
    for order in rooms::ORDERS {
        found.extend(rooms::check_rooms(&graph, order));
    }
    found.extend(all.iter().flat_map(text::check_source));
    found.extend(all.iter().flat_map(connections::check_connections));
    found.extend(words::check_words(&all, &words::RETIRED));
    found.extend(invariants::check_invariants(&all));
    let read = |name: &str| fs::read_to_string(workspace.root.join(name)).ok();
    found.extend(documents::check_documents(&read, &workspace.packages));
    if read(interface::LISTING) != Some(interface::listing(&all, interface::ROOT)) {
        found.push(format!(
            "{}: the public interface is another one; `cargo xtask tidy --interface` writes it",
            interface::LISTING
        ));
    }
    match (read("Cargo.lock"), read(EXTENSION_LOCK)) {
        (Some(ours), Some(theirs)) => {
            found.extend(locks::check_locks(&ours, &theirs, EXTENSION_LOCK));
        }
        _ => found.push(format!("Cargo.lock or {EXTENSION_LOCK} is missing")),
    }
    Ok(found)
}
