//! Connections to SQLite, and what runs on them: one file opens them, and none runs a batch, so
//! that what `confine` sets holds for every statement of ours (`SAFE-2`, `SAFE-5`).

use xtask::workspace::Source;

/// What only some files may say, which ones, and what the others say instead.
const RULES: [(&str, &[&str], &str); 3] = [
    (
        concat!("Connection", "::open_in_memory"),
        &["crates/catalog-sqlite/src/conn/confine.rs"],
        "`confine::scratch`",
    ),
    (
        concat!("Connection", "::open"),
        &["crates/catalog-sqlite/src/conn/place.rs"],
        "`open::connect`",
    ),
    (
        concat!(".execute", "_batch("),
        &[],
        "`names::execute_one`, `execute_all` or `execute_template`",
    ),
];

/// They open no databases of others: what is measured, the simulator of crashes, and a suite's
/// client, which is meant to be a program like any other.
const EXEMPT: [&str; 4] = ["crates/lab/", "crates/testkit/", "bench/", "suites/"];

/// Lines outside tests that open a connection, or run a batch, where they must not.
pub fn check_connections(source: &Source) -> Vec<String> {
    if EXEMPT.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    let lines = source
        .lines()
        .filter(|line| !line.is_test && !line.is_comment());
    let breach = |line: xtask::workspace::Line<'_>| {
        let (what, files, instead) = RULES.iter().find(|(what, ..)| line.text.contains(what))?;
        let is_allowed = files.contains(&source.path.as_str());
        (!is_allowed).then(|| {
            format!(
                "{}:{}: `{what}`, which is not confined; use {instead}",
                source.path, line.number
            )
        })
    };
    lines.filter_map(breach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_file_opens_connections_and_none_runs_a_batch() {
        let found = |path: &str, text: &str| {
            let source = Source {
                path: path.to_owned(),
                text: format!("//! Header.\n{text}"),
            };
            check_connections(&source).len()
        };
        for (what, ..) in RULES {
            let text = format!("let a = {what}x);");
            assert_eq!(
                found("crates/catalog-sqlite/src/check.rs", &text),
                1,
                "{what}"
            );
            assert_eq!(found("crates/lab/src/x.rs", &text), 0, "{what}");
            assert_eq!(
                found("crates/catalog-sqlite/src/check.rs", &format!("// {text}")),
                0
            );
            let test = format!("#[cfg(test)]\nmod tests {{\n    {text}\n}}");
            assert_eq!(found("crates/catalog-sqlite/src/check.rs", &test), 0);
        }
        let opens = |path: &str, what: usize| found(path, &format!("{}(a)", RULES[what].0));
        assert_eq!(opens("crates/catalog-sqlite/src/conn/confine.rs", 0), 0);
        assert_eq!(opens("crates/catalog-sqlite/src/conn/confine.rs", 1), 1);
        assert_eq!(opens("crates/catalog-sqlite/src/conn/place.rs", 1), 0);
        assert_eq!(opens("crates/catalog-sqlite/src/conn/place.rs", 0), 1);
    }
}
