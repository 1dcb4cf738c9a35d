//! `cargo xtask bench [VERB]`: measures, with both sides of every ratio in one run.
//!
//! Each verb is a file here and says what it measures. The API side runs in this process, which is
//! therefore built with optimisation. What a verb finds is printed, and written into a document
//! between the markers of the verb.

mod age;
mod amplification;
mod bare;
mod blob_store;
mod blobs;
mod blobs_postgres;
mod blobs_sqlite;
mod cluster;
mod content;
mod cpu;
mod dbfs;
mod disk;
mod figures;
mod files;
mod files_table;
mod fio;
mod get;
mod load;
mod meters;
mod mount;
mod passthrough;
mod places;
mod population;
mod put;
mod report;
mod setting;
mod sides;
mod snapshots;
mod steady;
mod stream;
mod txn;
mod yardsticks;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use report::Report;
use setting::{Options, Setting};
use txn::{COUNT, WRITE, count, write};
use xtask::Outcome;
use xtask::process;
use xtask::workspace::Workspace;
use yardsticks::{SERVE_MEMORY, SERVE_PASSTHROUGH, serve_memory, serve_passthrough};

const SUMMARY_HEAD: &str = "\
| verb | figure | median [min–max] | target |
|---|---|---:|---:|
";

type Verb = fn(&mut Setting) -> Result<Report, String>;

/// The verbs that `bench engine` runs, in this order.
const VERBS: [(&str, Verb); 7] = [
    ("age", age::run),
    ("amplification", amplification::run),
    ("put", put::run),
    ("get", get::run),
    ("stream", stream::run),
    ("blobs", blobs::run),
    ("steady", steady::run),
];

/// The others.
const MORE_VERBS: [(&str, Verb); 5] = [
    ("files", files::run),
    ("txn", txn::run),
    ("mount", mount::run),
    ("dbfs", dbfs::run),
    ("snapshots", snapshots::run),
];

/// What `bench` understands.
const USAGE: &str = "\
usage: cargo xtask bench [VERB] [FLAGS]

  (no verb)      files through the API, the mount and on the plain filesystem
  engine         all of the verbs below, with moderate sizes, and a summary
  age            fragments, reads and writes of an aging database, API and mount
  amplification  bytes to the device per byte of content
  put            small durable objects, beside the plain filesystem
  get            objects of 10 KB and 1 MB, warm and cold, beside the plain filesystem
  stream         large objects, beside what fio reaches
  blobs          beside SQLite and PostgreSQL
  steady         whether the last rounds are as fast as the first
  mount          programs on the mount, beside the plain filesystem, JuiceFS and what FUSE allows
  txn            transactions of a row and a file, beside SQLite alone and beside a safe write \
  and a row
  snapshots      ten thousand snapshots of a store: making them, reading beside them, listing one
  dbfs           the table of the DBFS paper: the device's limit, the plain filesystem, the mount

  --quick            at most a minute (mount, dbfs: three)
  --moderate         the sizes of `engine`
  --write DOCUMENT   also write into the document, between the markers of the verb
  --rounds N         how often each side has its turn
  --volume SIZE      age: capacity of the database, e.g. 4G
  --full PERCENT     age: how full it is (90)
  --sizes NAME       age: only size distributions whose name contains this
  --side SIDE        age: only `api` or `mount`
  --part NAME        mount: only parts whose name contains this: create, sync, read, tree, \
  stream, random, pgbench
  --juicefs PATH     mount: a built `juicefs` command; without it JuiceFS is not measured
  --processes N      txn: only small transactions of N processes, beside one process
  --abort            txn: only what others feel of a transaction that writes 5 GB and fails, and \
  what it leaves
  --stub             mount: every part also on a filesystem that answers from memory
  --rings            mount: create, sync, read and stream also with requests by io_uring";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [COUNT, database, transactions] => count(database, transactions),
        [WRITE, directory, bytes, code] => write(directory, bytes, code, None),
        [SERVE_MEMORY, mountpoint] => serve_memory(mountpoint, None),
        [SERVE_MEMORY, "--transport", name, mountpoint] => serve_memory(mountpoint, Some(name)),
        [SERVE_PASSTHROUGH, directory, mountpoint] => serve_passthrough(directory, mountpoint),
        ref rest => run(rest),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("larder-bench: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what the arguments after `bench` ask for.
fn run(arguments: &[&str]) -> Outcome {
    if matches!(arguments, ["help" | "--help" | "-h"]) {
        println!("{USAGE}");
        return Ok(());
    }
    let (verb, options, document) = parse(arguments)?;
    if cfg!(debug_assertions) {
        return Err("built without optimisation; run `cargo xtask bench`".into());
    }
    let place = Workspace::load()?.target.join("bench");
    if verb == "engine" {
        return run_all(arguments, document);
    }
    let known = VERBS
        .into_iter()
        .chain(MORE_VERBS)
        .find(|(name, _)| *name == verb);
    let (verb, run) = known.ok_or(format!("bench has no verb '{verb}'\n{USAGE}"))?;
    let report = measure(verb, run, &place, options)?;
    println!("{SUMMARY_HEAD}{}", report::summary(&report));
    match document {
        Some(document) => write_between_markers(document, verb, &report.text),
        None => Ok(()),
    }
}

/// Runs every verb in a process of its own, so that none sees the memory of another, and one that
/// fails does not keep the others from being measured.
fn run_all(arguments: &[&str], document: Option<&str>) -> Outcome {
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let (mut lines, mut failed) = (Vec::new(), Vec::new());
    for (verb, _) in VERBS {
        let mut forward = vec![verb, "--moderate"];
        forward.extend(&arguments[1..]);
        let start = format!("| {verb} | ");
        let ended = process::run_streaming(&program.to_string_lossy(), &forward, &mut |line| {
            println!("{line}");
            if line.starts_with(&start) {
                lines.push(line.to_owned());
            }
        })?;
        if !ended {
            failed.push(verb);
        }
    }
    let met = lines
        .iter()
        .filter(|line| line.ends_with(": yes |"))
        .count();
    let summary = format!(
        "{SUMMARY_HEAD}{}\n\n{met} of {} targets met.",
        lines.join("\n"),
        lines.len()
    );
    println!("## bench engine\n\n{summary}");
    if let Some(document) = document {
        write_between_markers(document, "engine", &summary)?;
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("not measured: {}", failed.join(", "))),
    }
}

fn measure(
    name: &'static str,
    verb: Verb,
    place: &std::path::Path,
    options: Options,
) -> Result<Report, String> {
    let started = Instant::now();
    let mut report = verb(&mut Setting::new(place, options)?)?;
    report.note(&format!(
        "The run took {:.0} s.",
        started.elapsed().as_secs_f64()
    ));
    println!("## bench {name}\n\n{}", report.text);
    Ok(report)
}

/// Verb, options, document.
fn parse<'a>(arguments: &[&'a str]) -> Result<(&'a str, Options, Option<&'a str>), String> {
    let mut options = Options::default();
    let (mut verb, mut document) = ("files", None);
    let mut rest = arguments.iter().copied();
    if let Some(first) = arguments.first().filter(|first| !first.starts_with("--")) {
        verb = first;
        rest.next();
    }
    while let Some(flag) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{flag} needs a value\n{USAGE}"));
        match flag {
            "--quick" => options.is_quick = true,
            "--moderate" => options.is_moderate = true,
            "--write" => document = Some(value()?),
            "--rounds" => options.rounds = Some(number(value()?)?.max(1) as usize),
            "--volume" => options.volume_bytes = Some(number(value()?)?),
            "--full" => options.full_percent = Some(number(value()?)?.min(99)),
            "--sizes" => options.sizes = Some(value()?.to_owned()),
            "--part" => options.part = Some(value()?.to_owned()),
            "--juicefs" => options.juicefs = Some(value()?.to_owned()),
            "--processes" => options.processes = Some(number(value()?)?.max(1)),
            "--abort" => options.is_abort = true,
            "--stub" => options.is_stub = true,
            "--rings" => options.has_rings = true,
            "--side" => options.side = Some(value()?.to_owned()),
            _ => return Err(format!("bench does not know '{flag}'\n{USAGE}")),
        }
    }
    Ok((verb, options, document))
}

/// A number, with `K`, `M`, `G` for powers of 1024.
fn number(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or(format!("'{text}' is not a number like 10 or 4G\n{USAGE}"))
}

fn write_between_markers(path: &str, verb: &str, text: &str) -> Outcome {
    let begin = format!("<!-- bench:{verb}:begin -->");
    let end = format!("<!-- bench:{verb}:end -->");
    let document = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let parts = document
        .split_once(&begin)
        .and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1)));
    let Some((head, tail)) = parts else {
        return Err(format!("{path} has no '{begin}' … '{end}'"));
    };
    let document = format!("{head}{begin}\n{}\n{end}{tail}", text.trim_end());
    fs::write(path, document).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let markers = |verb: &str, text: &str| {
            format!("<!-- bench:{verb}:begin -->{text}<!-- bench:{verb}:end -->")
        };
        let (get, old) = (markers("get", "kept"), markers("put", "old"));
        fs::write(path, format!("a\n{get}\n{old}\nb\n")).unwrap();
        write_between_markers(path, "put", "new\n").unwrap();
        let new = markers("put", "\nnew\n");
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            format!("a\n{get}\n{new}\nb\n")
        );
        assert!(write_between_markers(path, "stream", "new").is_err());
    }

    #[test]
    fn a_verb_and_its_flags_are_understood() {
        let (verb, options, document) =
            parse(&["age", "--volume", "4G", "--full", "97", "--write", "a.md"]).unwrap();
        assert_eq!((verb, document), ("age", Some("a.md")));
        assert_eq!(
            (options.volume_bytes, options.full_percent),
            (Some(4 << 30), Some(97))
        );
        assert_eq!(parse(&["--quick"]).unwrap().0, "files");
        assert!(parse(&["put", "--rounds"]).is_err());
        assert!(parse(&["put", "--rounds", "many"]).is_err());
        assert!(parse(&["put", "--slow"]).is_err());
    }
}
