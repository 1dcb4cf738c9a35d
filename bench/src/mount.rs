//! `bench mount`: what programs meet on the mount, beside the plain filesystem of the same disk,
//! beside JuiceFS, and beside what FUSE itself allows.
//!
//! Every side is a directory, and a process that serves it; Larder's is the released command. The
//! sides take turns, in another order each round; before another side has its turn everything is
//! durable. Beside the rates stands what an operation costs the processors: the programs that ask,
//! and the process that serves.

mod bench;
mod create;
mod pgbench;
mod random;
mod read;
mod stream;
mod tree;

use crate::report::Report;
use crate::setting::Setting;
use bench::Bench;
use xtask::Outcome;
use xtask::mounts::{Larder, Profile};

const ROUNDS: usize = 5;
type Part = fn(&Bench, &mut Report) -> Outcome;

/// The parts, in this order.
const PARTS: [(&str, Part); 7] = [
    ("create", create::run),
    ("sync", create::run_synced),
    ("read", read::run),
    ("tree", tree::run),
    ("stream", stream::run),
    ("random", random::run),
    ("pgbench", pgbench::run),
];

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let options = setting.options.clone();
    let bench = Bench {
        setting,
        larder: Larder::build(Profile::Release)?,
        rounds: options.rounds.unwrap_or(ROUNDS),
    };
    let mut report = Report::new(
        "mount",
        &format!(
            "{} {} rounds, in turns. (An ext4 that is mounted with `discard` and has no journal \
             tells the device of every \
             file that is removed, before the next one.) `larder mount` and every other server \
             are processes of their own, with the options \
             that users get. CPU time is that of the asking programs and of the serving process, \
             up to the moment when \
             everything is durable; threads of the kernel are not in it.",
            setting.machine()?,
            bench.rounds
        ),
    );
    let asked = options.part.as_deref().unwrap_or("");
    for (name, part) in PARTS.into_iter().filter(|(name, _)| name.contains(asked)) {
        let started = std::time::Instant::now();
        part(&bench, &mut report).map_err(|line| format!("{name}: {line}"))?;
        eprintln!(
            "bench mount: {name} took {:.0} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(report)
}
