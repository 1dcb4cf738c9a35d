//! fsx 0.3.2, the registry's file system exerciser: random operations on one file, each read
//! compared.
//!
//! Every operation that it has is enabled. Each seed has another shape of file. fsx 0.3.2 never
//! unmaps what it has read through a map, so that it slows down with the square of its operations,
//! and the kernel's limit of 65,530 maps would end it on any filesystem: it runs in legs, each a
//! process with a seed of its own.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::judge::Cases;
use super::run;
use super::site::Site;
use xtask::{Tally, install};

const PATIENCE: Duration = Duration::from_secs(3600);

/// Operations of one process.
const LEG: u64 = 20_000;

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
    let program = install::crate_program(install::FSX)?;
    let (legs, shape_count) = site.length.choose((1, 1), (50, SHAPES.len()));
    let mount = site.mount()?;
    let mut cases = Cases::default();
    for shape in &SHAPES[..shape_count] {
        let name = format!("{} operations, seed {}", legs * LEG, shape.seed);
        cases.run(&name, || {
            let directory = site.directory(&format!("fsx-{}", shape.seed))?;
            let configuration = directory.join("fsx.toml");
            fs::write(&configuration, configuration_of(shape))
                .map_err(|error| format!("{}: {error}", configuration.display()))?;
            let file = site.mountpoint().join(format!("fsx-{}", shape.seed));
            (0..legs).try_for_each(|leg| {
                let seed = shape.seed * 1000 + leg;
                let mut command = Command::new(&program);
                command
                    .arg("-f")
                    .arg(&configuration)
                    .arg("-P")
                    .arg(&directory)
                    .args(["-N", &LEG.to_string(), "-S", &seed.to_string()])
                    .arg(&file);
                let text = run::succeed(&mut command, PATIENCE)?;
                match text.contains("All operations completed") {
                    true => Ok(()),
                    false => Err(format!("leg {leg}, seed {seed}: fsx says: {text}")),
                }
            })
        });
    }
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

/// Operations have one byte at least: fsx takes the EINVAL that an empty fallocate gets on every
/// filesystem for a failure.
fn configuration_of(shape: &Shape) -> String {
    format!(
        "flen = {}

[opsize]
min = 1
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
