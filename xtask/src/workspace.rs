//! What cargo knows about the workspace, and its source files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process;

/// The workspace.
pub struct Workspace {
    /// Its root directory.
    pub root: PathBuf,
    /// Where cargo puts what it builds.
    pub target: PathBuf,
    /// Its packages.
    pub packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// The files its targets begin with.
    pub roots: Vec<PathBuf>,
    /// Other packages of the workspace that it depends on.
    pub uses: Vec<Edge>,
}

/// A dependency between packages of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The package that is used.
    pub to: String,
    /// Whether only tests use it.
    pub is_dev: bool,
}

/// A source file, read.
#[derive(Debug, Clone)]
pub struct Source {
    /// Relative to the root of the workspace.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// A line of a source file.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// From 1.
    pub number: usize,
    /// Without the line end.
    pub text: &'a str,
    /// Whether it belongs to tests: in a test target or in a file `…tests.rs`, or at or below
    /// `#[cfg(test)]`, which stands before the test module at the end of a file.
    pub is_test: bool,
}

impl Line<'_> {
    /// Whether it is nothing but a comment.
    pub fn is_comment(&self) -> bool {
        self.text.trim_start().starts_with("//")
    }
}

impl Source {
    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut is_test = self.is_test_target();
        self.text.lines().enumerate().map(move |(index, text)| {
            is_test |= text.trim() == "#[cfg(test)]";
            Line {
                number: index + 1,
                text,
                is_test,
            }
        })
    }

    /// The code of the program itself: neither comments nor tests.
    pub fn code(&self) -> String {
        let code = self
            .lines()
            .filter(|line| !line.is_test && !line.is_comment());
        code.flat_map(|line| [line.text, "\n"]).collect()
    }

    fn is_test_target(&self) -> bool {
        let is_test =
            |part: &str| matches!(part, "tests" | "benches") || part.ends_with("tests.rs");
        self.path.split('/').any(is_test)
    }
}

/// The manifest of the SQLite extension, from the root.
pub const EXTENSION: &str = "crates/sql/Cargo.toml";
/// Its versions of what it depends on.
pub const EXTENSION_LOCK: &str = "crates/sql/Cargo.lock";

fn ask(options: &[&str]) -> Result<Value, String> {
    let arguments = [&["metadata", "--no-deps", "--format-version", "1"], options].concat();
    let json = process::output("cargo", &arguments)?;
    serde_json::from_str(&json).map_err(|error| format!("cargo metadata: {error}"))
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> Result<Workspace, String> {
        let metadata = ask(&[])?;
        let path = |key: &str| PathBuf::from(text(&metadata[key]));
        Ok(Workspace {
            root: path("workspace_root"),
            target: path("target_directory"),
            packages: list(&metadata["packages"]).iter().map(package).collect(),
        })
    }

    /// The same with the package that is a workspace of its own ([`EXTENSION`]).
    pub fn load_all() -> Result<Workspace, String> {
        let mut workspace = Workspace::load()?;
        let manifest = workspace.root.join(EXTENSION).display().to_string();
        let metadata = ask(&["--manifest-path", &manifest])?;
        let packages = list(&metadata["packages"]);
        workspace.packages.extend(packages.iter().map(package));
        Ok(workspace)
    }

    /// Builds a program of the workspace, and says where it is. It has the features that it has in
    /// the tests, so that nothing is built twice.
    pub fn build_program(&self, name: &str) -> Result<String, String> {
        process::run("cargo", &["build", "--quiet", "--workspace", "--bin", name])?;
        Ok(self.target.join("debug").join(name).display().to_string())
    }

    /// All `.rs` files below the package's directory.
    pub fn sources(&self, package: &Package) -> Result<Vec<Source>, String> {
        let mut sources = Vec::new();
        self.collect(&package.directory, &mut sources)?;
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(sources)
    }

    fn collect(&self, directory: &Path, sources: &mut Vec<Source>) -> Result<(), String> {
        let explain = |error| format!("{}: {error}", directory.display());
        for entry in fs::read_dir(directory).map_err(explain)? {
            let path = entry.map_err(explain)?.path();
            if path.is_dir() {
                self.collect(&path, sources)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).map_err(explain)?;
                sources.push(Source {
                    path: self.relative(&path),
                    text,
                });
            }
        }
        Ok(())
    }

    /// The path as seen from the root.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .to_string_lossy()
            .into_owned()
    }
}

fn package(json: &Value) -> Package {
    let manifest = PathBuf::from(text(&json["manifest_path"]));
    // Dependencies inside the workspace, and only they, have a path.
    let inside = list(&json["dependencies"])
        .iter()
        .filter(|edge| edge["path"].is_string());
    Package {
        name: text(&json["name"]),
        directory: manifest.parent().unwrap_or(&manifest).to_owned(),
        roots: list(&json["targets"])
            .iter()
            .map(|target| text(&target["src_path"]).into())
            .collect(),
        uses: inside
            .map(|edge| Edge {
                to: text(&edge["name"]),
                is_dev: edge["kind"] == "dev",
            })
            .collect(),
    }
}

fn list(json: &Value) -> &[Value] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}
