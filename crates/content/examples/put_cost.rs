//! What new small files cost, put and committed: `cargo run --release -p larder --example put_cost
//! [BYTES [PER_COMMIT [ROUNDS [DIR]]]]`.
//!
//! Each round writes 1,024 files of `BYTES` (4,096) into a new directory, `PER_COMMIT` (64) a
//! commit, in a database that keeps no history; the first round is not counted. Prints the medians
//! of the rounds: µs per file for the writes, and for the commits.

use larder::{Caller, CreateOptions, Database, DatabaseOptions, NewNode};
use std::error::Error;
use std::time::{Duration, Instant};

const FILES: usize = 1_024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise: usize| arguments.next().map_or(Ok(otherwise), |text| text.parse());
    let (bytes, per_commit, rounds) = (number(4_096)?, number(64)?, number(20)?);
    if bytes < 8 || per_commit == 0 || !FILES.is_multiple_of(per_commit) || rounds == 0 {
        return Err("BYTES is 8 or more, ROUNDS 1 or more, PER_COMMIT a divisor of 1,024".into());
    }
    let above = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let path = above.join(format!("larder-put-cost-{}", std::process::id()));
    let options = CreateOptions {
        retention_ns: Some(0),
        ..CreateOptions::default()
    };
    Database::create(&path, &options)?;
    let database = Database::open(&path, DatabaseOptions::default())?;
    let mut content = vec![7; bytes];
    let mut medians = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let directory = format!("/{round}");
        let (parent, name) = database.nodes().resolve_parent(directory.as_bytes())?;
        let kind = NewNode::Directory;
        (database.nodes()).create_node(parent, &name, kind, 0o755, Caller::current())?;
        database.sync()?;
        let mut spent = [Duration::ZERO; 2];
        for number in 0..FILES {
            let began = Instant::now();
            content[..8].copy_from_slice(&number.to_le_bytes());
            database
                .files()
                .write(format!("{directory}/{number}"), &content)?;
            let written = Instant::now();
            if (number + 1) % per_commit == 0 {
                database.sync()?;
            }
            spent[0] += written - began;
            spent[1] += written.elapsed();
        }
        if round > 0 {
            for (all, spent) in medians.iter_mut().zip(spent) {
                all.push(spent.as_secs_f64() * 1e6 / FILES as f64);
            }
        }
    }
    database.close()?;
    std::fs::remove_dir_all(&path)?;
    let [write, commit] = medians.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    println!("{bytes} bytes, {per_commit} per commit: write {write:.2} µs, commit {commit:.2} µs");
    Ok(())
}
