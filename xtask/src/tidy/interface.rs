//! The listing of the public interface, so that a change of it is seen in review.
//!
//! It holds every name that the root of the public crate exports, whichever crate defines it, with
//! what belongs to it: fields, variants, functions. It is read from the sources as rustfmt leaves
//! them.

use std::collections::{BTreeMap, BTreeSet};

use xtask::workspace::Source;

/// The root of the public crate.
pub const ROOT: &str = "crates/content/src/lib.rs";
/// Where the listing lies.
pub const LISTING: &str = "crates/content/interface.txt";
/// Where what it exports may be defined, the first one first.
const CRATES: [&str; 9] = [
    "content",
    "object",
    "catalog",
    "catalog-sqlite",
    "catalog-types",
    "segment",
    "directory",
    "space",
    "format",
];
const KINDS: [&str; 8] = [
    "struct", "enum", "union", "trait", "fn", "const", "static", "type",
];

/// The listing of what `root` exports.
pub fn listing(sources: &[Source], root: &str) -> String {
    let names = sources
        .iter()
        .find(|source| source.path == root)
        .map(|source| exported(&source.code()))
        .unwrap_or_default();
    let mut items: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut methods: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for krate in CRATES {
        let directory = format!("crates/{krate}/src/");
        let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for source in sources
            .iter()
            .filter(|one| one.path.starts_with(&directory))
        {
            let code = source.code();
            for (item, inside) in top_items(&code) {
                if let Some(name) = defined(&item).and_then(|name| names.get(name)) {
                    let of = found.entry(name).or_default();
                    of.push(item.clone());
                    let is_open = item.starts_with("pub trait") || item.starts_with("pub enum");
                    let shown = |one: &&String| is_open || one.starts_with("pub ");
                    of.extend(inside.iter().filter(shown).map(|one| format!("    {one}")));
                } else if let Some(name) = implemented(&item).and_then(|name| names.get(name)) {
                    let public = inside.iter().filter(|one| one.starts_with("pub "));
                    let of = methods.entry(name).or_default();
                    of.extend(public.map(|one| format!("    {one}")));
                }
            }
        }
        for (name, lines) in found {
            items.entry(name).or_insert(lines);
        }
    }
    let mut listing = String::new();
    for name in &names {
        let lines = items.get(name.as_str());
        let of = methods.get(name.as_str());
        match lines {
            None => listing += &format!("{name}\n"),
            Some(lines) => {
                for line in lines.iter().chain(of.into_iter().flatten()) {
                    listing += &format!("{line}\n");
                }
            }
        }
    }
    listing
}

/// The names in the `pub use` of a root, and its public modules.
fn exported(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("pub use ") {
        let statement = code[at + "pub use ".len()..]
            .split(';')
            .next()
            .unwrap_or("");
        for part in statement.split([',', '{', '}']) {
            let name = part.rsplit(" as ").next().unwrap_or(part);
            let name = name.rsplit("::").next().unwrap_or(name).trim();
            let is_whole = !part.trim_end().ends_with("::") && !name.is_empty();
            names.extend((is_whole && name != "self").then(|| name.to_owned()));
        }
    }
    names
}

/// Each item that begins a line, without its body, and what begins in its body one level deeper.
fn top_items(code: &str) -> Vec<(String, Vec<String>)> {
    let mut items: Vec<(String, Vec<String>)> = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        let starts = text.starts_with(|c: char| c.is_alphabetic());
        if !starts || indent > 4 || (indent == 4 && items.is_empty()) {
            continue;
        }
        // A variant is told with its fields, everything else without its body.
        let is_variant = indent == 4 && items.last().is_some_and(|(of, _)| of.contains("enum "));
        let mut head = text.to_owned();
        while !is_complete(&head, is_variant) {
            let Some(next) = lines.next() else { break };
            head += " ";
            head += next.trim();
        }
        let head = tidied(&head);
        match indent {
            0 => items.push((head, Vec::new())),
            _ => {
                if let Some((_, inside)) = items.last_mut() {
                    inside.push(head);
                }
            }
        }
    }
    items
}

/// Whether an item, a field or a variant ends here, or its body begins.
fn is_complete(head: &str, is_variant: bool) -> bool {
    let depth = |open: char, close: char| {
        head.matches(open).count() as i64 - head.matches(close).count() as i64
    };
    let is_level = depth('(', ')') == 0 && depth('[', ']') == 0;
    let is_closed = !is_variant || depth('{', '}') == 0;
    is_level && is_closed && head.ends_with(['{', '}', ';', ','])
}

/// In one line, without its body.
fn tidied(head: &str) -> String {
    let head = head.strip_suffix("{}").unwrap_or(head);
    let head = head.trim_end_matches(['{', ';', ',']).trim_end();
    let head = head.split(" where ").next().unwrap_or(head);
    let words: Vec<&str> = head.split_whitespace().collect();
    words.join(" ").replace("( ", "(").replace(", )", ")")
}

/// `Name` in `pub struct Name<T>`.
fn defined(item: &str) -> Option<&str> {
    let mut words = item.strip_prefix("pub ")?.split_whitespace();
    let mut word = words.next()?;
    while matches!(word, "async" | "unsafe") || (word == "const" && item.contains(" fn ")) {
        word = words.next()?;
    }
    KINDS.contains(&word).then(|| identifier(words.next()?))?
}

/// `Name` in `impl<T> Name<T>`; not of traits.
fn implemented(item: &str) -> Option<&str> {
    let rest = item.strip_prefix("impl")?;
    if rest.contains(" for ") {
        return None;
    }
    let rest = match rest.strip_prefix('<') {
        Some(rest) => rest.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    identifier(rest)
}

fn identifier(text: &str) -> Option<&str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .next()
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_root_exports_is_listed_wherever_it_is_defined() {
        let source = |path: &str, text: &str| Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let sources = [
            source(
                ROOT,
                "mod a;\npub use a::{Door, open_all};\n\
                 pub use larder_object::{\n    Kind, Look,\n};",
            ),
            source(
                "crates/content/src/a.rs",
                "/// Doc.\npub struct Door {\n    /// Doc.\n    pub width: u64,\n\
                 \x20   hidden: u8,\n}\n\
                 impl Door {\n    /// Doc.\n    pub fn open(\n        &self,\n        far: bool,\n\
                 \x20   ) -> Result<()> {\n        let width = 1;\n    }\n    fn own(&self) {}\n}\n\
                 impl Drop for Door {\n    fn drop(&mut self) {}\n}\n\
                 pub fn open_all() {}\npub fn not_exported() {}\n\
                 #[cfg(test)]\nmod tests {\n    pub struct Kind;\n}\n",
            ),
            source(
                "crates/object/src/b.rs",
                "pub enum Kind {\n    File,\n    Link {\n        to: u64,\n    },\n}\n\
                 pub trait Look {\n    fn look(&self) -> bool;\n}\n",
            ),
        ];
        assert_eq!(
            listing(&sources, ROOT),
            "pub struct Door\n    pub width: u64\n    pub fn open(&self, far: bool) -> Result<()>\n\
             pub enum Kind\n    File\n    Link { to: u64, }\n\
             pub trait Look\n    fn look(&self) -> bool\npub fn open_all()\n"
        );
    }
}
