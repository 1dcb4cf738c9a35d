//! `larder extension`: where the SQLite extension for other programs lies, and how they load it.
//!
//! # Invariants
//! * `CLI-34` A path is only printed of a file that is there.

use crate::error::{At, Failure, Result};
use crate::output::Output;
use clap::{Args, ValueHint};
use larder::directory::DatabaseDir;
use serde_json::json;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Overrides where it is looked for.
const VARIABLE: &str = "LARDER_EXTENSION";
const FILE: &str = "larder.so";

/// Show where the extension for other programs' SQLite lies, and how sqlite3 and Python load it
#[derive(Debug, Args)]
#[command(
    after_help = "With it, any SQLite reads and writes content in its own transactions. It is \
        looked for beside this program, and in
../lib/larder from there; LARDER_EXTENSION=FILE names another one. Example: larder extension \
photos.larder"
)]
pub(crate) struct ExtensionArgs {
    /// Database that the lines shall open
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: Option<PathBuf>,
}

/// `larder extension`.
pub(crate) fn extension(args: &ExtensionArgs, out: &mut Output) -> Result<()> {
    let program = std::env::current_exe().at(|| "cannot tell where this program lies".into())?;
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let path = find(named, &program)?;
    let catalog = match &args.db {
        None => PathBuf::from("DB/catalog.db"),
        Some(db) => find_catalog(db)?,
    };
    // SQLite adds the suffix of the platform, and finds the entry by the name of the file.
    let module = path.with_extension("");
    let lines = [
        shell_line(&catalog, &module),
        python_line(&catalog, &module),
    ];
    if out.is_json() {
        let [sqlite3, python] = &lines;
        return out.document(&json!({
            "path": path.to_string_lossy(),
            "sqlite3": sqlite3,
            "python": python,
        }));
    }
    out.line(&path.to_string_lossy())?;
    lines.iter().try_for_each(|line| out.line(line))
}

/// `CLI-34`
fn find(named: Option<PathBuf>, program: &Path) -> Result<PathBuf> {
    let is_named = named.is_some();
    let places = match named {
        Some(path) => vec![path],
        None => {
            let beside = program.parent().unwrap_or(Path::new("/"));
            let library = beside.parent().unwrap_or(Path::new("/"));
            vec![beside.join(FILE), library.join("lib/larder").join(FILE)]
        }
    };
    if let Some(path) = places.iter().find(|path| path.is_file()) {
        return path
            .canonicalize()
            .at(|| format!("cannot examine '{}'", path.display()));
    }
    let places: Vec<String> = (places.iter())
        .map(|path| format!("'{}'", path.display()))
        .collect();
    let remedy = match is_named {
        true => format!("correct {VARIABLE}, or unset it"),
        false => format!("build it with 'cargo xtask extension', or set {VARIABLE} to its path"),
    };
    Err(Failure::Other(format!(
        "the SQLite extension is not at {}; {remedy}",
        places.join(" or ")
    )))
}

fn find_catalog(db: &Path) -> Result<PathBuf> {
    let what = || format!("cannot examine '{}'", db.join("catalog.db").display());
    let directory = match DatabaseDir::open(db) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(error).at(what);
        }
        opened => opened.ok(),
    };
    let has_catalog = directory.map(|directory| directory.check_file("catalog.db"));
    match has_catalog.transpose().at(what)? {
        Some(true) => Ok(db.canonicalize().at(what)?.join("catalog.db")),
        _ => Err(Failure::Other(format!(
            "'{}' is no database; give the directory of one",
            db.display()
        ))),
    }
}

fn shell_line(catalog: &Path, module: &Path) -> String {
    let load = format!(".load {}", sqlite_word(&module.to_string_lossy()));
    format!(
        "sqlite3 -cmd {} {}",
        shell_word(&load),
        shell_word(&catalog.to_string_lossy())
    )
}

fn python_line(catalog: &Path, module: &Path) -> String {
    let text = |path: &Path| json!(path.to_string_lossy()).to_string();
    format!(
        "import sqlite3; db = sqlite3.connect({}); db.enable_load_extension(True); \
         db.load_extension({})",
        text(catalog),
        text(module)
    )
}

fn is_plain(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@%,:=".contains(letter);
    !text.is_empty() && text.chars().all(plain)
}

/// One word of the shell.
fn shell_word(text: &str) -> String {
    match is_plain(text) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// One word of a command of sqlite3: in double quotes it knows the escapes of C.
fn sqlite_word(text: &str) -> String {
    match is_plain(text) {
        true => text.to_owned(),
        false => format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_beside_the_program_or_in_the_library_or_where_it_is_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let program = root.join("bin/larder");
        for directory in ["bin", "lib/larder", "else where"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        let missing = find(None, &program).unwrap_err().line().unwrap();
        assert!(
            missing.contains("bin/larder.so") && missing.contains("lib/larder/larder.so"),
            "CLI-34: {missing}"
        );
        assert!(missing.contains("; build it with 'cargo xtask extension'"));
        for directory in ["else where", "lib/larder", "bin"] {
            let file = root.join(directory).join(FILE);
            let named = (directory == "else where").then(|| file.clone());
            let before = find(named.clone(), &program).ok();
            // Beside the program comes before the library.
            let in_library = root.join("lib/larder").join(FILE);
            let expected = (directory == "bin").then_some(in_library);
            assert_eq!(before, expected, "CLI-34");
            std::fs::write(&file, "").unwrap();
            assert_eq!(find(named, &program).unwrap(), file);
        }
        let wrong = find(Some(root.join("none.so")), &program).unwrap_err();
        assert!(wrong.line().unwrap().contains("correct LARDER_EXTENSION"));
    }

    #[test]
    fn lines_hold_paths_with_any_letters() {
        let (catalog, module) = (
            Path::new("/a b/it's.larder/catalog.db"),
            Path::new("/x \"y\"/larder"),
        );
        assert_eq!(
            shell_line(catalog, module),
            r#"sqlite3 -cmd '.load "/x \"y\"/larder"' '/a b/it'\''s.larder/catalog.db'"#
        );
        assert!(python_line(catalog, module).contains(r#"load_extension("/x \"y\"/larder")"#));
        assert_eq!(
            shell_line(Path::new("DB/catalog.db"), Path::new("/l/larder")),
            "sqlite3 -cmd '.load /l/larder' DB/catalog.db"
        );
    }
}
