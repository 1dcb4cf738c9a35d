//! What once harmed, in every test run: something else in the place of a directory that verbs make,
//! list and clear, or of a file that they lock, make or append to. The sample of the corpus may
//! miss these; all other damages of files are met by hand.

use super::Corpus;
use super::damage::{Damage, FILES, Instead, Template};
use super::sandbox::{Who, is_root};
use super::verbs::{How, VERBS, Verb};

/// Directories, in whose targets files were removed, made and given away.
const DIRECTORIES: [&str; 7] = [
    "locks",
    "mounts",
    "trace",
    "transactions",
    "transactions/ID/sessions",
    "sessions",
    "refused",
];
/// Files, whose targets were made, locked and appended to, and which were waited for.
const LOCKED: [&str; 14] = [
    "turn.lock",
    "turn.queue",
    "sessions.lock",
    "sessions/99.lock",
    "locks/7",
    "mounts/0-9999.lock",
    "transactions/ID/owner.lock",
    "transactions/ID/seal.lock",
    "transactions/ID/sessions.lock",
    "transactions/ID/turn.lock",
    "transactions/ID/turn.queue",
    "refused/1",
    "refused/1.content",
    "mount.log",
];
const LINKS_AND_NODES: [Instead; 5] = [
    Instead::LinkToDirectory,
    Instead::LinkToFile,
    Instead::DanglingLink,
    Instead::Fifo,
    Instead::Socket,
];

/// One that checks, one that reads, one that writes, and one that does all of it for long.
const CHECKS: (How, &[&str]) = (How::Ends, &["check", "x.larder", "--read"]);
const READS: (How, &[&str]) = (How::Ends, &["ls", "-lR", "x.larder:/"]);
const WRITES: (How, &[&str]) = (How::Ends, &["put", "a", "x.larder:/new"]);
const MOUNTS: (How, &[&str]) = (How::Mounts, &["mount", "x.larder", "mnt"]);
const READS_INSIDE: (How, &[&str]) = (How::InTransaction, &["ls", "-lR", "x.larder:/"]);
const WRITES_INSIDE: (How, &[&str]) = (How::InTransaction, &["put", "a", "x.larder:/inside"]);

/// The verbs that meet a damage of this file: those that use it.
fn verbs(name: &str) -> Vec<&'static Verb> {
    let chosen: &[(How, &[&str])] = match name {
        "locks" | "mounts" | "trace" => &[CHECKS, READS, WRITES, MOUNTS],
        "locks/7" | "mounts/0-9999.lock" | "mount.log" => &[WRITES, MOUNTS],
        "refused/1" | "refused/1.content" => &[
            (How::Ends, &["refused", "list", "x.larder"]),
            (How::Ends, &["refused", "get", "x.larder", "1", "out"]),
            (How::Ends, &["refused", "drop", "x.larder", "1"]),
        ],
        name if name.starts_with("transactions/ID/") => &[READS, READS_INSIDE, WRITES_INSIDE],
        _ => &[CHECKS, READS, WRITES],
    };
    let find = |(how, words): &(How, &[&str])| {
        let is_it = |verb: &&Verb| verb.words == *words && verb.how == *how;
        VERBS.iter().find(is_it).unwrap()
    };
    chosen.iter().map(find).collect()
}

/// Nothing outside changes, none waits or panics, and one that is refused names the file.
fn meet(corpus: &mut Corpus, name: &'static str, kinds: &[Instead]) {
    // Who has most to lose: root, in a database of his own and in that of a stranger.
    let users = match is_root() {
        true => &[Who::Root, Who::RootOnUsers][..],
        false => &[Who::Root],
    };
    for (number, instead) in kinds.iter().enumerate() {
        let who = users[number % users.len()];
        let (damage, verbs) = (Damage::File(name, *instead), verbs(name));
        let ran = corpus.meet(&damage, verbs.iter().map(|verb| (*verb, who)));
        assert_eq!(ran.len(), verbs.len(), "{damage} did not come about");
        let path = format!("x.larder/{name}").replace("ID", &corpus.template.transaction);
        for (verb, ran) in verbs.iter().zip(ran) {
            // What checks lists it among its findings.
            if ran.code != Some(0) && !ran.stderr.contains(&path) && verb.words[0] != "check" {
                let told = format!("{damage}: {:?} names no {path}: {}", verb.words, ran.stderr);
                corpus.figures.wrong.push(told);
            }
        }
    }
}

#[test]
fn directories_that_are_links_or_nodes_lead_nowhere() {
    let mut corpus = Corpus::new();
    for name in DIRECTORIES {
        meet(&mut corpus, name, &LINKS_AND_NODES);
    }
    corpus.figures.assert_bounded();
}

#[test]
fn files_that_are_locked_or_made_are_no_links_or_nodes() {
    let mut corpus = Corpus::new();
    for name in LOCKED {
        let kinds = [Instead::LinkToFile, Instead::DanglingLink, Instead::Fifo];
        meet(&mut corpus, name, &kinds);
    }
    corpus.figures.assert_bounded();
}

/// A file that a database gets is one of the corpus, with a name for its number.
#[test]
fn the_corpus_has_every_file_of_a_database() {
    let template = Template::new();
    let database = template.directory().join("a.larder");
    let mut left = vec![database.clone()];
    let mut count = 0;
    while let Some(path) = left.pop() {
        let below = path.strip_prefix(&database).unwrap().to_str().unwrap();
        let id = format!("transactions/{}", template.transaction);
        let name = below.replace(&id, "transactions/ID");
        assert!(
            below.is_empty() || FILES.contains(&&*name),
            "{below} is not in the corpus"
        );
        count += 1;
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    assert!(count > 15, "{count}");
}
