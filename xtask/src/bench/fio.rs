//! What `fio` reaches with direct sequential I/O: the best of four ways to ask.

use std::path::Path;

use serde_json::Value;

use crate::process;

/// Block size and depth of the queue.
const WAYS: [(&str, &str); 4] = [("1M", "1"), ("1M", "4"), ("8M", "1"), ("8M", "4")];

/// The names of the files in a directory of its own.
pub struct Fio {
    file: String,
    bytes: u64,
}

impl Fio {
    /// A file of `bytes` in `directory`, written once, so that later writes neither allocate nor convert.
    pub fn create(directory: &Path, bytes: u64) -> Result<Fio, String> {
        if !process::is_installed("fio") {
            return Err("bench stream needs fio: apt-get install fio".to_owned());
        }
        let file = directory.join("fio.file").to_string_lossy().into_owned();
        let fio = Fio { file, bytes };
        fio.run("write", WAYS[3])?;
        Ok(fio)
    }

    /// MB/s (10⁶), writing up to and with the flush, or reading.
    pub fn best(&self, is_write: bool) -> Result<f64, String> {
        let what = if is_write { "write" } else { "read" };
        let mut best = 0.0;
        for way in WAYS {
            best = self.run(what, way)?.max(best);
        }
        Ok(best)
    }

    fn run(&self, what: &str, (block, depth): (&str, &str)) -> Result<f64, String> {
        let arguments = [
            "--name=sequential",
            "--output-format=json",
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
        let text = process::output("fio", &arguments)?;
        let json: Value = serde_json::from_str(&text).map_err(|error| format!("fio: {error}"))?;
        json["jobs"][0][what]["bw_bytes"]
            .as_f64()
            .map(|bytes| bytes / 1e6)
            .ok_or("fio says nothing about its bandwidth".to_owned())
    }
}
