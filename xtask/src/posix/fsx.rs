//! fsx 0.3.2, the registry's file system exerciser: random operations on one file, each read compared.
//!
//! Every operation that it has is enabled. Each seed has another shape of file.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::judge::Cases;
use super::run;
use super::site::Site;
use crate::{Tally, install};

const PATIENCE: Duration = Duration::from_secs(3600);

/// Of which file: longest file and longest operation, bytes.
struct Shape {
    seed: u64,
    file_bytes_max: u64,
    operation_bytes_max: u64,
}

const SHAPES: [Shape; 3] = [
    // Small enough to be rewritten whole, and large enough for holes.
    Shape {
        seed: 4001,
        file_bytes_max: 256 << 10,
        operation_bytes_max: 64 << 10,
    },
    // Operations longer than a request of the kernel's default.
    Shape {
        seed: 4002,
        file_bytes_max: 2 << 20,
        operation_bytes_max: 256 << 10,
    },
    // Tiny: content moves between the catalog and segments.
    Shape {
        seed: 4003,
        file_bytes_max: 24 << 10,
        operation_bytes_max: 6 << 10,
    },
];

/// Runs each seed.
pub fn run(site: &Site) -> Result<Tally, String> {
    let program = install::crate_program("fsx", "0.3.2", "exercises files at random")?;
    let (operations, shape_count) = site.length.choose((20_000, 1), (1_000_000, SHAPES.len()));
    let mount = site.mount()?;
    let mut cases = Cases::default();
    for shape in &SHAPES[..shape_count] {
        let name = format!("{operations} operations, seed {}", shape.seed);
        cases.run(&name, || {
            let configuration = site.scratch().join("fsx.toml");
            fs::write(&configuration, configuration_of(shape))
                .map_err(|error| format!("{}: {error}", configuration.display()))?;
            let artifacts = site.directory(&format!("artifacts-{}", shape.seed))?;
            let mut command = Command::new(&program);
            command
                .arg("-f")
                .arg(&configuration)
                .arg("-P")
                .arg(&artifacts)
                .args(["-N", &operations.to_string()])
                .args(["-S", &shape.seed.to_string()])
                .arg(site.mountpoint().join(format!("fsx-{}", shape.seed)));
            let text = run::succeed(&mut command, PATIENCE)?;
            match text.contains("All operations completed") {
                true => Ok(()),
                false => Err(format!("fsx says: {text}")),
            }
        });
    }
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

fn configuration_of(shape: &Shape) -> String {
    format!(
        "flen = {}

[opsize]
min = 0
max = {}
align = 1

[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2
punch_hole = 3
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
",
        shape.file_bytes_max, shape.operation_bytes_max
    )
}
