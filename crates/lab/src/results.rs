//! What a run leaves: a header, and records that are only ever appended.
//!
//! ```text
//! RUN/run.json       the header: what was asked, of which machine
//! RUN/records.jsonl  one record a line; the last line may be torn by a crash, and is then cut off
//! ```
//!
//! # Names in a case
//! Sizes are bytes, as decimal numbers: `object_bytes`, `volume_bytes`, `request_bytes`,
//! `block_bytes`, `page_bytes`. `sizes` is `constant`, `uniform` or `lognormal`. `occupancy` is a
//! share, as `0.9`. `writers` is the number of interleaved writers, of threads in `dbfs`. `cycle`
//! counts the repetitions of `dbfs`' steady state from 0. In `cluster`, `action` is `insert`,
//! `select` or `delete`, and `transactions` the number after which the time was taken: `100`, `500`
//! or `1000`. The machine has `processor`, `cores`, `memory`, `kernel`, `device`, and a version for
//! each system.
//!
//! # Invariants
//! * `RESULTS-1` A record that [`Appender::append`] acknowledged is read back, whatever crash
//!   follows.
//! * `RESULTS-2` What is not a whole record is only ever cut off at the end, and said; anywhere
//!   else it is an error.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Version of the format that this code writes.
pub const FORMAT: u32 = 1;

const HEADER: &str = "run.json";
const RECORDS: &str = "records.jsonl";

/// The header of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of this format.
    pub format: u32,
    /// Name of the run: the name of its directory.
    pub name: String,
    /// `age`, `break-even`, `dbfs`, `cluster`, `git`, `trace`, `volume` or `write-size`.
    pub experiment: String,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// The command line that repeats it.
    pub command: String,
    /// Parameters, by the names of their flags.
    pub parameters: BTreeMap<String, String>,
    /// What machine: processor, cores, memory, kernel, device, versions of the systems under test.
    pub machine: BTreeMap<String, String>,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// One figure that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// As in [`Header::experiment`].
    pub experiment: String,
    /// Which system: `ext4`, `xfs`, `ntfs`, `sqlite`, `postgres`, `postgres-lo`, `larder`,
    /// `larder-mount`, …
    pub backend: String,
    /// Parameters of the case: `object_bytes`, `sizes` (`constant`, `uniform`, `lognormal`),
    /// `occupancy`, `volume_bytes`, `request_bytes`, `writers`, `size_known`, `block_bytes`,
    /// `action`, …
    pub case: BTreeMap<String, String>,
    /// Repetition, from 0.
    pub round: u32,
    /// Storage age at which it was measured.
    pub age: f64,
    /// What: `read_mb_s`, `write_mb_s`, `read_ops_s`, `write_ops_s`, `read_p50_us`, `read_p99_us`,
    /// `read_max_us`, `write_p50_us`, …, `fragments_mean`, `fragments_p50`, `fragments_p99`,
    /// `fragments_max`, `fragments_fiemap_mean`, `layout_score`, `ios_per_object`,
    /// `free_pool_objects`, `write_amplification`, `space_amplification`, `modelled_read_mb_s.hdd`,
    /// `modelled_read_mb_s.hdd2005`, `modelled_read_mb_s.ssd`, `modelled_read_mb_s.cloud`,
    /// `seconds`, `hole_blocks_log2.N` (holes of 2^N to 2^(N+1) blocks), …
    pub measure: String,
    /// The figure, in the unit that the name of the measure says.
    pub value: f64,
    /// The machine's load average while it was measured: above the number of cores and of the
    /// case's own writers no time is to be trusted.
    pub load: f64,
}

/// A run that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// What was asked.
    pub header: Header,
    /// What was measured, in the order in which it was.
    pub records: Vec<Record>,
    /// Bytes at the end of the records that are no whole record: a crash tore them.
    pub torn_bytes: u64,
}

impl Results {
    /// Cores of the machine of the run, if its header says.
    pub fn cores(&self) -> Option<f64> {
        self.header.machine.get("cores")?.trim().parse().ok()
    }

    /// Whether a record is about time, and was measured while more was running than there are
    /// cores, beside the writers of the case itself.
    pub fn is_crowded(&self, record: &Record) -> bool {
        let own = record.number("writers").unwrap_or(1.0);
        record.is_of_time() && self.cores().is_some_and(|cores| record.load > cores + own)
    }
}

impl Record {
    /// Whether what is measured follows from how fast the device is. Modelled disks do not.
    pub fn is_of_time(&self) -> bool {
        let is_of = |what: &&str| self.measure.starts_with(what);
        let is_speed = ["read_", "warm_read_", "write_", "delete_"]
            .iter()
            .any(is_of)
            && ["_mb_s", "_ops_s", "_us"]
                .iter()
                .any(|unit| self.measure.ends_with(unit));
        is_speed || self.measure == "upkeep_seconds" || self.measure == "seconds"
    }

    /// A number of the case, e.g. `object_bytes`.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.case.get(name)?.trim().parse().ok()
    }

    /// A word of the case, e.g. `sizes`.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.case.get(name).map(String::as_str)
    }
}

/// Why a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is no run.
    #[error("{} is not a run of the laboratory (it has no {HEADER}); `larder lab run` makes \
        one", .0.display())]
    NotARun(PathBuf),
    /// There is a run already.
    #[error("{} holds a run already; resume it, or name another directory", .0.display())]
    Exists(PathBuf),
    /// A newer version wrote it.
    #[error("{} has format {found}, this version reads {FORMAT}; use the version of larder that \
        wrote it", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Something in it is no record.
    #[error("{} line {line} is damaged ({cause}); restore it from a copy, or delete that \
        line", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What the decoder says.
        cause: String,
    },
    /// A figure that is no number.
    #[error("{measure} of {backend} is {value}: not a figure; nothing was written")]
    NotANumber {
        /// Of the record.
        measure: String,
        /// Of the record.
        backend: String,
        /// Infinite, or not a number.
        value: f64,
    },
    /// The filesystem refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// Reads the run in the directory `run`. A torn end is left out and counted (RESULTS-2).
///
/// # Errors
/// [`Error::NotARun`], [`Error::Format`], [`Error::Damaged`], [`Error::Io`].
pub fn read(run: &Path) -> Result<Results, Error> {
    let path = run.join(HEADER);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Err(Error::NotARun(run.to_owned()));
        }
        Err(source) => return Err(Error::Io { path, source }),
    };
    let header = decode_header(&path, &text)?;
    let path = run.join(RECORDS);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        // The header is written first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(Error::Io { path, source }),
    };
    let (records, whole_bytes) = decode_records(&path, &bytes)?;
    Ok(Results {
        header,
        records,
        torn_bytes: (bytes.len() - whole_bytes) as u64,
    })
}

/// Adds to what the header says of the machine.
///
/// # Errors
/// As [`read`].
pub fn note_machine(run: &Path, (name, value): (String, String)) -> Result<(), Error> {
    let mut header = read(run)?.header;
    header.machine.insert(name, value);
    write_header(run, &header)
}

/// Removes a run that has no record.
///
/// # Errors
/// As [`read`].
pub fn remove_empty(run: &Path) -> Result<(), Error> {
    if !read(run)?.records.is_empty() {
        return Ok(());
    }
    // The records first: without a header there is no run.
    for name in [RECORDS, HEADER] {
        let path = run.join(name);
        fs::remove_file(&path).map_err(|source| Error::Io { path, source })?;
    }
    Ok(())
}

/// Writes the header, the old one or the new one whatever crash follows.
fn write_header(run: &Path, header: &Header) -> Result<(), Error> {
    let young = run.join("run.json.new");
    let write = || {
        let mut file = File::create(&young)?;
        file.write_all(serde_json::to_string_pretty(header)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&young, run.join(HEADER))
    };
    write().map_err(|source| Error::Io {
        path: young.clone(),
        source,
    })
}

fn decode_header(path: &Path, text: &str) -> Result<Header, Error> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let damaged = |error: serde_json::Error| Error::Damaged {
        path: path.to_owned(),
        line: error.line(),
        cause: error.to_string(),
    };
    // The version first: a newer header may have another shape.
    let found = serde_json::from_str::<Version>(text)
        .map_err(damaged)?
        .format;
    if found != FORMAT {
        return Err(Error::Format {
            path: path.to_owned(),
            found,
        });
    }
    serde_json::from_str(text).map_err(damaged)
}

/// The records, and how many bytes they take; what follows is torn.
fn decode_records(path: &Path, bytes: &[u8]) -> Result<(Vec<Record>, usize), Error> {
    let (mut records, mut at) = (Vec::new(), 0);
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_last = at + line.len() == bytes.len();
        match serde_json::from_slice(line) {
            Ok(record) if line.ends_with(b"\n") => records.push(record),
            Ok(_) => break,
            Err(_) if is_last => break,
            Err(error) => {
                return Err(Error::Damaged {
                    path: path.to_owned(),
                    line: index + 1,
                    cause: error.to_string(),
                });
            }
        }
        at += line.len();
    }
    Ok((records, at))
}

/// Appends records to a run, each durable before it is acknowledged.
#[derive(Debug)]
pub struct Appender {
    path: PathBuf,
    file: File,
}

impl Appender {
    /// Makes the directory `run` and writes the header.
    ///
    /// # Errors
    /// [`Error::Exists`] when the directory holds a run, [`Error::Io`].
    pub fn create(run: &Path, header: &Header) -> Result<Appender, Error> {
        let path = run.join(HEADER);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        if path.try_exists().map_err(at(&path))? {
            return Err(Error::Exists(run.to_owned()));
        }
        fs::create_dir_all(run).map_err(at(run))?;
        write_header(run, header)?;
        Appender::open(run)
    }

    /// Goes on with the run in the directory `run`: gives what it holds, and cuts off what a crash
    /// tore.
    ///
    /// # Errors
    /// As [`read`].
    pub fn resume(run: &Path) -> Result<(Appender, Results), Error> {
        let results = read(run)?;
        let appender = Appender::open(run)?;
        if results.torn_bytes > 0 {
            let cut = || {
                let length = appender.file.metadata()?.len();
                appender.file.set_len(length - results.torn_bytes)?;
                appender.file.sync_all()
            };
            cut().map_err(|source| Error::Io {
                path: appender.path.clone(),
                source,
            })?;
        }
        Ok((appender, results))
    }

    fn open(run: &Path) -> Result<Appender, Error> {
        let path = run.join(RECORDS);
        let open = || {
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            // The names of both files, and of the directory itself.
            File::open(run)?.sync_all()?;
            if let Some(parent) = run.canonicalize()?.parent() {
                File::open(parent)?.sync_all()?;
            }
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Appender { path, file }),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    /// Appends one record; when this returns, it is durable (RESULTS-1).
    ///
    /// # Errors
    /// [`Error::NotANumber`] for a figure that is infinite or no number, [`Error::Io`].
    pub fn append(&mut self, record: &Record) -> Result<(), Error> {
        for value in [record.value, record.age, record.load] {
            if !value.is_finite() {
                return Err(Error::NotANumber {
                    measure: record.measure.clone(),
                    backend: record.backend.clone(),
                    value,
                });
            }
        }
        let mut write = || {
            let mut line = serde_json::to_vec(record)?;
            line.push(b'\n');
            self.file.write_all(&line)?;
            self.file.sync_data()
        };
        write().map_err(|source| Error::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// All records of `runs` as CSV (RFC 4180): one line each, a column for each name of a case.
pub fn csv(runs: &[Results]) -> String {
    let mut names: Vec<&str> = runs
        .iter()
        .flat_map(|run| &run.records)
        .flat_map(|record| record.case.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    let before = ["run", "experiment", "backend"];
    let after = ["round", "age", "measure", "value", "load"];
    let title = before.iter().chain(&names).chain(&after);
    let mut text = line(title.map(|name| name.to_string()));
    for run in runs {
        for record in &run.records {
            let case = names.iter().map(|name| record.word(name).unwrap_or(""));
            let mut cells = vec![&*run.header.name, &record.experiment, &record.backend];
            cells.extend(case);
            let mut cells: Vec<String> = cells.into_iter().map(str::to_owned).collect();
            cells.extend([record.round.to_string(), record.age.to_string()]);
            cells.extend([
                record.measure.clone(),
                record.value.to_string(),
                record.load.to_string(),
            ]);
            text += &line(cells.into_iter());
        }
    }
    text
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            format: FORMAT,
            name: "first".to_owned(),
            experiment: "age".to_owned(),
            started: "2026-01-01T00:00:00Z".to_owned(),
            command: "larder lab run age".to_owned(),
            parameters: BTreeMap::new(),
            machine: BTreeMap::from([("cores".to_owned(), "2".to_owned())]),
            seed: 7,
        }
    }

    fn record(value: f64) -> Record {
        Record {
            experiment: "age".to_owned(),
            backend: "ext4, \"young\"".to_owned(),
            case: BTreeMap::from([("object_bytes".to_owned(), "1048576".to_owned())]),
            round: 0,
            age: 2.0,
            measure: "read_mb_s".to_owned(),
            value,
            load: 3.5,
        }
    }

    #[test]
    fn whatever_is_cut_off_what_was_acknowledged_is_read_back() {
        let scratch = tempfile::tempdir().unwrap();
        let run = scratch.path().join("deep/first");
        let mut appender = Appender::create(&run, &header()).unwrap();
        (0..3).for_each(|i| appender.append(&record(i.into())).unwrap());
        drop(appender);
        let whole = fs::read(run.join(RECORDS)).unwrap();
        let third = whole.len() / 3 * 2;
        for length in third..=whole.len() {
            // RESULTS-1, RESULTS-2: two are whole, the third is torn anywhere.
            fs::write(run.join(RECORDS), &whole[..length]).unwrap();
            let results = read(&run).unwrap();
            let expected = if length == whole.len() { 3 } else { 2 };
            assert_eq!(results.records.len(), expected, "{length}");
            let torn = if expected == 3 { 0 } else { length - third };
            assert_eq!(results.torn_bytes, torn as u64);
            let (mut appender, _) = Appender::resume(&run).unwrap();
            appender.append(&record(9.0)).unwrap();
            let results = read(&run).unwrap();
            assert_eq!(
                (results.records.len(), results.torn_bytes),
                (expected + 1, 0)
            );
            assert!(results.is_crowded(&results.records[0]));
            let layout = Record {
                measure: "fragments_mean".to_owned(),
                ..record(1.0)
            };
            assert!(!results.is_crowded(&layout));
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let run = scratch.path();
        let says = |error: Error, what: &str| assert!(error.to_string().contains(what), "{error}");
        says(read(run).unwrap_err(), "not a run of the laboratory");
        let mut appender = Appender::create(run, &header()).unwrap();
        says(
            Appender::create(run, &header()).unwrap_err(),
            "holds a run already",
        );
        says(
            appender.append(&record(f64::NAN)).unwrap_err(),
            "not a figure",
        );
        (0..2).for_each(|i| appender.append(&record(i.into())).unwrap());
        let text = fs::read_to_string(run.join(RECORDS)).unwrap();
        fs::write(run.join(RECORDS), text.replacen('{', "", 1)).unwrap();
        // RESULTS-2
        says(read(run).unwrap_err(), "line 1 is damaged");
        fs::write(run.join(HEADER), "{\"format\": 9}").unwrap();
        says(read(run).unwrap_err(), "has format 9, this version reads 1");
        fs::write(run.join(HEADER), "{").unwrap();
        says(read(run).unwrap_err(), "damaged");
    }

    #[test]
    fn csv_has_a_column_for_each_name_and_quotes_what_must_be() {
        let results = Results {
            header: header(),
            records: vec![record(1.5)],
            torn_bytes: 0,
        };
        assert_eq!(
            csv(&[results]),
            "run,experiment,backend,object_bytes,round,age,measure,value,load\r\n\
             first,age,\"ext4, \"\"young\"\"\",1048576,0,2,read_mb_s,1.5,3.5\r\n"
        );
    }
}
