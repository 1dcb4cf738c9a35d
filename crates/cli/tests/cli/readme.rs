//! The README, command by command: what it tells to type works, and prints what it shows.

use crate::mount::Foreground;
use crate::support::Place;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Where somebody types what the README says.
struct Reader {
    place: Place,
    text: String,
    commands: usize,
}

impl Reader {
    fn new() -> Reader {
        let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let place = Place::new();
        fs::create_dir_all(place.path("target/release")).unwrap();
        let larder = place.path("target/release/larder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_larder"), &larder).unwrap();
        Reader {
            place,
            text: fs::read_to_string(readme).unwrap(),
            commands: 0,
        }
    }

    /// What is between two headings.
    fn section(&self, from: &str, to: &str) -> String {
        let section = self.text.split(from).nth(1).unwrap();
        let section = section.split(to).next().unwrap();
        assert!(section.len() < self.text.len() / 2, "README.md: {from}");
        section.to_owned()
    }

    /// Runs one block as a shell would; what it printed.
    fn run(&mut self, script: &str) -> String {
        let path = format!(
            "{}:{}",
            self.place.path("target/release").display(),
            std::env::var("PATH").unwrap()
        );
        let done = Command::new("sh")
            .args(["-e", "-c", script])
            .current_dir(self.place.path(""))
            .env("HOME", self.place.path(""))
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(done.status.success(), "README.md: {script}{done:?}");
        self.commands += script.lines().count();
        String::from_utf8(done.stdout).unwrap()
    }
}

/// The fenced blocks of a section: language and text.
fn blocks(section: &str) -> Vec<(String, String)> {
    let inside = section.split("```").skip(1).step_by(2);
    inside
        .map(|block| {
            let (language, text) = block.split_once('\n').unwrap();
            (language.to_owned(), text.to_owned())
        })
        .collect()
}

/// Numbers of commits and moments are another day's.
fn without_moments(text: &str) -> String {
    let line = |line: &str| match line.split_once(" as of commit ") {
        Some((what, rest)) => format!("{what} as of {}", rest.split_once(": ").unwrap().1),
        None => line.to_owned(),
    };
    let lines: Vec<String> = text.trim_end().lines().map(line).collect();
    lines.join("\n")
}

/// Mounts, and follows "Five minutes" to its end.
fn five_minutes(reader: &mut Reader) {
    let place = &reader.place;
    fs::create_dir_all(place.path("Pictures")).unwrap();
    place.write("Pictures/a.jpg", 300_000);
    place.write("Pictures/b.jpg", 50_000);
    let said = (reader.text.lines())
        .find(|line| line.starts_with("cargo run --release -- "))
        .unwrap();
    let words: Vec<&str> = said.split(' ').skip(4).collect();
    fs::create_dir(place.path("photos")).unwrap();
    let mount = Foreground::start(place, &words, "photos");
    let mut shown = mount.status_line().trim().to_owned();
    let section = reader.section("\n## Five minutes\n", "\n### A mistake");
    for (language, text) in blocks(&section) {
        match language.as_str() {
            "sh" => shown = reader.run(&text),
            "text" => assert_eq!(shown.trim_end(), text.trim_end(), "README.md"),
            other => panic!("README.md: a block of {other}"),
        }
    }
    drop(mount);
}

#[test]
fn the_readme_is_true() {
    let mut reader = Reader::new();
    five_minutes(&mut reader);
    assert!(reader.commands > 10, "README.md: {}", reader.commands);
}

#[test]
fn the_way_back_of_the_readme_is_true() {
    let mut reader = Reader::new();
    five_minutes(&mut reader);
    let section = reader.section("\n### A mistake", "\n### Transactions");
    let blocks = blocks(&section);
    let languages: Vec<&str> = blocks
        .iter()
        .map(|(language, _)| language.as_str())
        .collect();
    assert_eq!(languages, ["sh", "sh", "text"]);
    reader.run(&blocks[0].1);
    let told = "2026-11-20T10:30:00Z";
    let moment = reader.run("sleep 1; date -u +%Y-%m-%dT%H:%M:%SZ; sleep 1");
    assert!(blocks[1].1.matches(told).count() == 3, "README.md");
    reader.run("larder rm -r photos.larder:/2026; larder sql photos.larder 'DELETE FROM album'");
    let mut shown = String::new();
    for line in blocks[1].1.lines() {
        shown = reader.run(&line.replace(told, moment.trim()));
        if line.starts_with("larder ls") {
            assert_eq!(shown, "a.jpg\nb.jpg\n");
        }
        if line.starts_with("larder rows") {
            assert!(shown.contains("The sea"), "{shown}");
        }
    }
    assert_eq!(
        without_moments(&shown),
        without_moments(&blocks[2].1),
        "README.md"
    );
    let rated = "larder sql photos.larder 'SELECT title, rating FROM album JOIN main_path USING \
                 (path) JOIN main USING (ino)' --csv";
    assert!(reader.run(rated).contains("The sea,"), "README.md");
    // The verbs that it names in passing, with its arguments but for numbers of commits.
    assert!(section.contains("`larder log photos.larder:/2026/a.jpg`"));
    let log = reader.run("larder log photos.larder:/2026/a.jpg --json");
    let log: serde_json::Value = serde_json::from_str(&log).unwrap();
    assert!(section.contains("`larder undo photos.larder 42`"));
    reader.run("larder mkdir photos.larder:/other");
    let newest = reader.run("larder log photos.larder --json");
    let newest: serde_json::Value = serde_json::from_str(&newest).unwrap();
    assert_ne!(newest[0]["seq"], log[0]["seq"]);
    reader.run(&format!("larder undo photos.larder {}", newest[0]["seq"]));
    assert!(section.contains("`larder rollback photos.larder -1h`"));
    reader.run("larder rollback photos.larder -1s --dry-run");
    assert!(section.contains("`larder retention photos.larder 30d`"));
    reader.run("larder retention photos.larder 30d");
    reader.run("larder check photos.larder --read");
}

#[test]
fn a_program_in_a_transaction_of_the_readme_is_true() {
    let mut reader = Reader::new();
    let section = reader.section("\n### Transactions", "\n## Is it for you?");
    let blocks = blocks(&section);
    let languages: Vec<&str> = blocks
        .iter()
        .map(|(language, _)| language.as_str())
        .collect();
    assert_eq!(languages, ["rust", "sh"]);
    let tools = reader.place.path("opt/tools");
    fs::create_dir_all(&tools).unwrap();
    assert!(blocks[1].1.contains("--mount /opt/tools -- make install"));
    let script = blocks[1].1.replace("/opt/tools", tools.to_str().unwrap());
    reader.place.ok(&["init", "tools.larder"]);
    reader
        .place
        .ok(&["sql", "tools.larder", "CREATE TABLE journal (what TEXT)"]);
    let make = reader.place.path("target/release/make");
    let ways = [("exit 0", true), ("exit 3", false), ("exit 0", true)];
    for (round, (end, is_kept)) in ways.into_iter().enumerate() {
        // Instead of a program that is built: it installs a file, and writes a row as the text
        // says.
        let installs = format!(
            "#!/bin/sh -e\ntest \"$1\" = install\necho {round} > {tools}/tool{round}\n\
             larder sql tools.larder \"INSERT INTO journal VALUES ('tool{round}')\"\n\
             test ! -e tools.larder/catalog.db\n{end}\n",
            tools = tools.display()
        );
        fs::write(&make, installs).unwrap();
        fs::set_permissions(&make, fs::Permissions::from_mode(0o755)).unwrap();
        if is_kept {
            reader.run(&script);
        } else {
            reader.run(&format!("! {script}"));
        }
        let there = reader.place.ok(&["ls", "tools.larder:/"]);
        assert_eq!(there.contains(&format!("tool{round}")), is_kept, "{there}");
        let rows = reader
            .place
            .ok(&["sql", "tools.larder", "SELECT what FROM journal"]);
        assert_eq!(rows.contains(&format!("tool{round}")), is_kept, "{rows}");
    }
    assert_eq!(fs::read_dir(&tools).unwrap().count(), 0, "it is unmounted");
    reader.place.assert_clean("tools.larder");
}
