//! Replaying what was done elsewhere: a trace file, or the history of a git repository.
//!
//! A trace is CSV: `op,key,size` with `put`, `get` or `delete`; a key is any text without a comma;
//! a size counts for puts, in bytes. A history is the changes of the files of each commit on the
//! main line, oldest first: names and lengths are the repository's, bytes are ours.

use crate::backend::Put;
use crate::error::{Error, Kind, Result, Said};
use crate::measure::latency::Latencies;
use crate::process;
use crate::workload::Work;
use crate::workload::population::{AtRest, Population, Step};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Something that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The object was written.
    Put {
        /// Which, counted by first appearance.
        key: u64,
        /// Its length.
        bytes: u64,
    },
    /// It was read.
    Get {
        /// Which.
        key: u64,
    },
    /// It was removed.
    Delete {
        /// Which.
        key: u64,
    },
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// In this order.
    pub ops: Vec<Op>,
    /// How often to look at the store at rest, the last time at the end.
    pub looks: u32,
    /// The volume, bytes.
    pub volume_bytes: u64,
    /// How programs write.
    pub put: Put,
    /// Objects that are read at each look, at most.
    pub reads_max: usize,
    /// Read once more without forgetting what is in memory.
    pub is_warm: bool,
}

impl Replay {
    /// Does it.
    pub fn run(&self, work: &mut Work<'_>) -> Result<()> {
        let mut population = Population::default();
        let usable_bytes = work.subject.available_bytes(self.volume_bytes)?;
        work.figure(0.0, "usable_bytes", usable_bytes as f64)?;
        let mut before = work.subject.ground().traffic()?;
        let mut reads = Latencies::default();
        let looks = self.looks.max(1) as usize;
        let mut looked = 0;
        for (index, op) in self.ops.iter().enumerate() {
            let outcome = match *op {
                Op::Put { key, bytes } => {
                    population.apply(work, &self.put, &[Step::Put { key, bytes }])
                }
                Op::Delete { key } => population.apply(work, &self.put, &[Step::Delete { key }]),
                Op::Get { key } => population
                    .read(work, &[key], 1)
                    .map(|read| reads.join(read)),
            };
            let is_full = population.tell_full(work, outcome)?;
            let done = index + 1;
            (work.on_progress)(done as f64 / self.ops.len() as f64);
            if !is_full && done * looks / self.ops.len() == looked {
                continue;
            }
            looked = done * looks / self.ops.len();
            let age = population.age().age();
            let figures = population.write_figures(work, &before, 1)?;
            work.figures(age, figures)?;
            work.figures(age, std::mem::take(&mut reads).measures("traced_read_", 1))?;
            let rest = AtRest {
                age,
                volume_bytes: self.volume_bytes,
                reads_max: self.reads_max,
                is_warm: self.is_warm,
            };
            population.measure_at_rest(work, &rest)?;
            before = work.subject.ground().traffic()?;
            if is_full {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Numbers for names, and what lives.
#[derive(Default)]
struct Names {
    keys: HashMap<String, u64>,
    is_live: Vec<bool>,
}

impl Names {
    fn key(&mut self, name: &str) -> u64 {
        if let Some(key) = self.keys.get(name) {
            return *key;
        }
        let key = self.is_live.len() as u64;
        self.keys.insert(name.to_owned(), key);
        self.is_live.push(false);
        key
    }

    /// `None` if what is read or removed is not there.
    fn op(&mut self, word: &str, name: &str, bytes: u64) -> Option<Op> {
        let key = self.key(name);
        let is_live = &mut self.is_live[key as usize];
        match word {
            "put" => {
                *is_live = true;
                Some(Op::Put { key, bytes })
            }
            "get" if *is_live => Some(Op::Get { key }),
            "delete" if *is_live => {
                *is_live = false;
                Some(Op::Delete { key })
            }
            _ => None,
        }
    }
}

/// The trace in a file.
pub fn read_trace(path: &Path) -> Result<Vec<Op>> {
    let text = fs::read_to_string(path).said(|| path.display().to_string())?;
    let mut names = Names::default();
    let mut ops = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || (index == 0 && line.replace(' ', "") == "op,key,size") {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let wrong = |what: &str| {
            Error::failed(format!(
                "'{}' line {}: {what}; a line reads put,KEY,BYTES or get,KEY or delete,KEY",
                path.display(),
                index + 1
            ))
        };
        let (word, name) = match fields[..] {
            [word, name] | [word, name, _] if !name.is_empty() => (word, name),
            _ => return Err(wrong("it has not two or three fields")),
        };
        let size = fields.get(2).filter(|size| !size.is_empty());
        let bytes = match (word, size) {
            ("put", None) => return Err(wrong("a put needs a size")),
            ("put", Some(size)) => size.parse().map_err(|_| wrong("the size is no number"))?,
            ("get" | "delete", _) => 0,
            _ => return Err(wrong(&format!("'{word}' is no operation"))),
        };
        let op = names.op(word, name, bytes);
        ops.push(op.ok_or_else(|| wrong(&format!("'{name}' was not put before")))?);
    }
    match ops.is_empty() {
        true => Err(Error::failed(format!(
            "'{}' holds no operation",
            path.display()
        ))),
        false => Ok(ops),
    }
}

/// The history of the repository at `path`: at most `commits` commits of the main line of what is
/// checked out.
pub fn read_history(path: &Path, commits: usize) -> Result<Vec<Op>> {
    let git = |arguments: &[&str]| {
        let mut all: Vec<&OsStr> = vec!["-C".as_ref(), path.as_ref()];
        all.extend(arguments.iter().map(OsStr::new));
        process::output("git", &all)
    };
    let listed = git(&["rev-list", "--first-parent", "--reverse", "HEAD"])?;
    let listed: Vec<&str> = listed.lines().collect();
    // Evenly spread over the whole history, first and last among them.
    let count = commits.clamp(1, listed.len().max(1));
    let chosen: Vec<&str> = (0..count)
        .filter_map(|index| {
            listed
                .get(index * (listed.len() - 1) / (count - 1).max(1))
                .copied()
        })
        .collect();
    let mut changes = Vec::new();
    let mut before = EMPTY_TREE;
    for commit in chosen {
        let told = git(&[
            "diff-tree",
            "-r",
            "--raw",
            "--no-renames",
            "--no-abbrev",
            before,
            commit,
        ])?;
        for line in told.lines() {
            // :MODE MODE OLD NEW STATUS<tab>PATH
            let Some((fields, name)) = line.split_once('\t') else {
                continue;
            };
            let fields: Vec<&str> = fields.split(' ').collect();
            if let [_, mode, _, new, status] = fields[..] {
                // Submodules and links are no objects.
                let is_file = mode.starts_with("100");
                if status == "D" || is_file {
                    changes.push((name.to_owned(), (status != "D").then(|| new.to_owned())));
                }
            }
        }
        before = commit;
    }
    let sizes = sizes_of(path, changes.iter().filter_map(|(_, blob)| blob.as_deref()))?;
    let mut names = Names::default();
    let mut ops = Vec::new();
    for (name, blob) in &changes {
        let bytes = blob.as_ref().and_then(|blob| sizes.get(blob));
        ops.extend(match (blob, bytes) {
            (None, _) => names.op("delete", name, 0),
            (Some(_), Some(bytes)) => names.op("put", name, *bytes),
            (Some(_), None) => None,
        });
    }
    match ops.is_empty() {
        true => Err(Error::new(
            Kind::Failed,
            format!(
                "the repository '{}' has no files in its history",
                path.display()
            ),
        )),
        false => Ok(ops),
    }
}

/// The tree without files, which every repository knows.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// The lengths of blobs.
fn sizes_of<'a>(path: &Path, blobs: impl Iterator<Item = &'a str>) -> Result<HashMap<String, u64>> {
    let mut asked = tempfile::tempfile()?;
    for blob in blobs {
        writeln!(asked, "{blob}")?;
    }
    let told = process::answer(
        "git",
        &[
            "-C".as_ref(),
            path.as_ref(),
            "cat-file".as_ref(),
            "--batch-check".as_ref(),
        ],
        asked,
    )?;
    let sizes = told.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (blob, kind, bytes) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "blob").then_some((blob.to_owned(), bytes.parse().ok()?))
    });
    Ok(sizes.collect())
}
