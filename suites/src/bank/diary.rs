//! The diary of a worker: what it wants, before it asks, and what it was told.
//!
//! ```text
//! want BEGAN a LIST VALUE r LIST VALUE,VALUE …
//! end ENDED committed|aborted
//! look           a look at everything, which was right
//! fault TEXT     something was wrong
//! ```

use std::fs::File;
use std::io::Write;
use std::path::Path;

use larder_testkit::{End, Step, Transaction};

/// What a diary says.
pub(super) struct Diary {
    pub(super) transactions: Vec<Transaction>,
    pub(super) reads: u64,
}

/// The line of a transaction before its commit.
pub(super) fn want(began: u64, steps: &[Step]) -> String {
    let mut line = format!("want {began}");
    for step in steps {
        match step {
            Step::Append { list, value } => line += &format!(" a {list} {value}"),
            Step::Read { list, values } => {
                let values: Vec<String> = values.iter().map(u64::to_string).collect();
                line += &format!(" r {list} {},", values.join(","));
            }
        }
    }
    line
}

/// The line after it.
pub(super) fn end(ended: u64, is_committed: bool) -> String {
    format!(
        "end {ended} {}",
        if is_committed { "committed" } else { "aborted" }
    )
}

/// Reads a diary; a fault in it is an error.
pub(super) fn read(text: &str) -> Result<Diary, String> {
    let mut diary = Diary {
        transactions: Vec::new(),
        reads: 0,
    };
    let complete = text.rfind('\n').map_or("", |at| &text[..at]);
    for line in complete.lines() {
        let bad = || format!("not a line of a diary: {line}");
        let mut words = line.split(' ');
        let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).ok_or_else(bad);
        match words.next() {
            Some("look") => diary.reads += 1,
            Some("fault") => return Err(line.to_owned()),
            Some("want") => {
                let began = number(words.next())?;
                let mut steps = Vec::new();
                while let Some(kind) = words.next() {
                    let list = number(words.next())?;
                    let rest = words.next().ok_or_else(bad)?;
                    steps.push(match kind {
                        "a" => Step::Append {
                            list,
                            value: number(Some(rest))?,
                        },
                        _ => Step::Read {
                            list,
                            values: (rest.split(',').filter(|word| !word.is_empty()))
                                .map(|word| number(Some(word)))
                                .collect::<Result<_, _>>()?,
                        },
                    });
                }
                diary.transactions.push(Transaction {
                    began,
                    ended: u64::MAX,
                    end: End::Unknown,
                    steps,
                });
            }
            Some("end") => {
                let transaction = diary.transactions.last_mut().ok_or_else(bad)?;
                transaction.ended = number(words.next())?;
                transaction.end = match words.next() {
                    Some("committed") => End::Committed,
                    _ => End::Aborted,
                };
            }
            _ => return Err(bad()),
        }
    }
    Ok(diary)
}

/// Appends one line to a diary, in one write.
pub(super) fn note(diary: &mut File, line: &str) -> Result<(), String> {
    (diary.write_all(format!("{line}\n").as_bytes())).map_err(|error| format!("a diary: {error}"))
}

/// Opens a diary, which is appended to.
pub(super) fn diary_at(path: &Path) -> Result<File, String> {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| format!("{}: {error}", path.display()))
}
