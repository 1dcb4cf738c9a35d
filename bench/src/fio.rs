//! What `fio` reaches: with direct sequential I/O, asked in four ways, and with small durable
//! writes.

use std::path::Path;

use serde_json::Value;

use super::report::Samples;
use xtask::process;

/// Block size and depth of the queue.
type Way = (&'static str, &'static str);

/// Small and large blocks, one after the other and several at once.
pub const ALL_WAYS: [Way; 4] = [("1M", "1"), ("1M", "4"), ("8M", "1"), ("8M", "4")];
/// Blocks as large as the largest request of FUSE.
pub const FUSE_WAYS: [Way; 2] = [("1M", "1"), ("1M", "4")];

/// One figure per round for each way.
pub struct Rates(Vec<(Way, Samples)>);

/// A file that was written before.
pub struct Fio {
    file: String,
    bytes: u64,
    ways: &'static [Way],
}

impl Fio {
    /// A file of `bytes` in `directory`, written once, so that later writes neither allocate nor
    /// convert.
    pub fn create(directory: &Path, bytes: u64, ways: &'static [Way]) -> Result<Fio, String> {
        check_installed()?;
        let file = directory.join("fio.file").to_string_lossy().into_owned();
        let fio = Fio { file, bytes, ways };
        fio.run("write", ALL_WAYS[3])?;
        Ok(fio)
    }

    /// Adds a round: writing up to and with the flush, or reading, MB/s (10⁶).
    pub fn measure(&self, is_write: bool, rates: &mut Rates) -> Result<(), String> {
        let what = if is_write { "write" } else { "read" };
        for (way, samples) in &mut rates.0 {
            samples.0.push(self.run(what, *way)?);
        }
        Ok(())
    }

    /// Nothing measured yet, of writing and of reading.
    pub fn no_rates(&self) -> [Rates; 2] {
        let none = || {
            Rates(
                self.ways
                    .iter()
                    .map(|way| (*way, Samples::default()))
                    .collect(),
            )
        };
        [none(), none()]
    }

    fn run(&self, what: &str, (block, depth): (&str, &str)) -> Result<f64, String> {
        let arguments = [
            "--name=sequential",
            "--ioengine=libaio",
            "--direct=1",
            "--end_fsync=1",
            "--overwrite=1",
            "--invalidate=0",
            &format!("--filename={}", self.file),
            &format!("--size={}", self.bytes),
            &format!("--rw={what}"),
            &format!("--bs={block}"),
            &format!("--iodepth={depth}"),
        ];
        Ok(run(&arguments, what, "bw_bytes")? / 1e6)
    }
}

/// Says what to install.
pub fn check_installed() -> Result<(), String> {
    match process::is_installed("fio") {
        true => Ok(()),
        false => Err("this measurement needs fio: apt-get install fio".to_owned()),
    }
}

/// Writes a file of `bytes` and makes it durable.
pub fn write_file(path: &Path, bytes: u64) -> Result<(), String> {
    let arguments = [
        "--name=write",
        "--ioengine=psync",
        "--end_fsync=1",
        "--rw=write",
        "--bs=1M",
        &format!("--filename={}", path.display()),
        &format!("--size={bytes}"),
    ];
    run(&arguments, "write", "bw_bytes").map(drop)
}

/// Writes 4 KiB at random places of a file of `bytes`, each made durable: writes per second.
pub fn random_synced_writes(
    path: &Path,
    bytes: u64,
    seconds: u32,
    seed: usize,
) -> Result<f64, String> {
    let arguments = [
        "--name=random",
        "--ioengine=psync",
        "--fsync=1",
        "--overwrite=1",
        "--invalidate=0",
        "--rw=randwrite",
        "--bs=4k",
        "--time_based",
        "--norandommap",
        &format!("--filename={}", path.display()),
        &format!("--size={bytes}"),
        &format!("--runtime={seconds}"),
        &format!("--randseed={seed}"),
    ];
    run(&arguments, "write", "iops")
}

/// One figure of one kind of work.
fn run(arguments: &[&str], what: &str, figure: &str) -> Result<f64, String> {
    let all = [&["--output-format=json"], arguments].concat();
    let text = process::output("fio", &all)?;
    let json: Value = serde_json::from_str(&text).map_err(|error| format!("fio: {error}"))?;
    json["jobs"][0][what][figure]
        .as_f64()
        .ok_or(format!("fio says nothing about '{figure}'"))
}

/// The way that is best over all rounds, and its name.
pub fn best(rates: &Rates) -> (String, Samples) {
    let best = rates
        .0
        .iter()
        .max_by(|a, b| a.1.median().total_cmp(&b.1.median()));
    let Some(((block, depth), samples)) = best else {
        return ("nothing".to_owned(), Samples::default());
    };
    (format!("bs={block}, iodepth={depth}"), samples.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_is_that_of_the_best_median() {
        let samples = [
            Samples(vec![1.0, 1.0, 9.0]),
            Samples(vec![2.0, 3.0, 2.0]),
            Samples(vec![1.0, 2.0, 1.0]),
            Samples(vec![0.0, 0.0, 1.0]),
        ];
        let rates = Rates(ALL_WAYS.into_iter().zip(samples.clone()).collect());
        let (way, found) = best(&rates);
        assert_eq!(way, "bs=1M, iodepth=4");
        assert_eq!(found, samples[1]);
    }
}
