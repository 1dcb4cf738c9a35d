//! What a run leaves: a header, and records that are only ever appended.
//!
//! ```text
//! RUN/run.json       the header: what was asked, of which machine
//! RUN/records.jsonl  one record a line; the last line may be torn by a crash, and is then cut off
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// Which system: `ext4`, `xfs`, `ntfs`, `sqlite`, `postgres`, `postgres-lo`, `larder`, `larder-mount`, …
    pub backend: String,
    /// Parameters of the case: `object_bytes`, `sizes` (`constant`, `uniform`, `lognormal`),
    /// `occupancy`, `volume_bytes`, `request_bytes`, `writers`, `size_known`, `block_bytes`, `action`, …
    pub case: BTreeMap<String, String>,
    /// Repetition, from 0.
    pub round: u32,
    /// Storage age at which it was measured.
    pub age: f64,
    /// What: `read_mb_s`, `write_mb_s`, `read_ops_s`, `write_ops_s`, `read_p50_us`, `read_p99_us`,
    /// `read_max_us`, `write_p50_us`, …, `fragments_mean`, `fragments_p50`, `fragments_p99`,
    /// `fragments_max`, `fragments_fiemap_mean`, `layout_score`, `ios_per_object`, `free_pool_objects`, `write_amplification`,
    /// `space_amplification`, `modelled_read_mb_s.hdd`, `modelled_read_mb_s.hdd2005`,
    /// `modelled_read_mb_s.ssd`, `modelled_read_mb_s.cloud`, `seconds`, `hole_blocks_log2.N` (holes of
    /// 2^N to 2^(N+1) blocks), …
    pub measure: String,
    /// The figure, in the unit that the name of the measure says.
    pub value: f64,
    /// The machine's load average while it was measured: above the number of cores it is not to be trusted.
    pub load: f64,
}
