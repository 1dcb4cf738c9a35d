//! Transactions of PostgreSQL, whose whole cluster is on the mount.

use super::bench::{Bench, figures};
use crate::cluster::Cluster;
use crate::cpu;
use crate::figures::Turn;
use crate::places::{PLAIN, close};
use crate::report::{Goal, Report};
use xtask::Outcome;

const CLIENTS: &str = "4";
/// The WAL of all rounds fits, so that no checkpoint falls into one of them.
const SETTINGS: &str = "max_wal_size = 4GB\ncheckpoint_timeout = 60min\n";
const GROWN_BYTES: u64 = 2 << 30;

/// Measures.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let mut places = bench.places(at.path(), GROWN_BYTES)?;
    let scale = bench.options().choose("2", "10", "10");
    let seconds = bench.options().choose("2", "5", "10");
    report.note(&format!(
        "**`pgbench`**: PostgreSQL's data, indexes and WAL on the place; scale {scale}, {CLIENTS} \
         clients, {seconds} s per \
         turn, a checkpoint before each. The client's CPU time is pgbench's and PostgreSQL's.",
    ));
    let mut clusters = Vec::new();
    for place in &places {
        let mut cluster = Cluster::create(&place.path("postgres"), SETTINGS)?;
        cluster.start()?;
        cluster.client("pgbench", &["-i", "-q", "-s", scale, "postgres"])?;
        clusters.push(cluster);
    }
    let mut figures = figures("transactions/s", &places);
    let line = figures.line("pgbench", &[(PLAIN, Goal::AtLeast(0.7))]);
    bench.alternate(&mut places, |index, place, _| {
        let cluster = &clusters[index];
        cluster.client("psql", &["-q", "-c", "CHECKPOINT", "postgres"])?;
        place.settle()?;
        let server = cluster.process()?;
        let before = cpu::seconds_of_tree(server)?;
        let (mut rate, mut count) = (0.0, 0.0);
        let turn = place.measure(|| {
            let run = [
                "-n", "-M", "prepared", "-c", CLIENTS, "-j", "2", "-T", seconds,
            ];
            let said = cluster.client("pgbench", &[&run[..], &["postgres"]].concat())?;
            rate = number_after(&said, "tps = ")?;
            count = number_after(&said, "number of transactions actually processed: ")?;
            Ok(count as u64)
        })?;
        let server_us = (cpu::seconds_of_tree(server)? - before) * 1e6 / count;
        let client_us = turn.client_us + server_us;
        figures.add(
            line,
            index,
            Turn {
                rate,
                client_us,
                ..turn
            },
        );
        Ok(())
    })?;
    figures.print(report);
    for mut cluster in clusters {
        cluster.stop()?;
    }
    close(places)
}

fn number_after(text: &str, label: &str) -> Result<f64, String> {
    let digits = |rest: &str| -> Option<f64> {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        rest[..end.unwrap_or(rest.len())].parse().ok()
    };
    text.split_once(label)
        .and_then(|(_, rest)| digits(rest))
        .ok_or(format!("pgbench does not say '{label}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_says_is_understood() {
        let said = "number of transactions actually processed: 10\nlatency average = 0.4 ms\ntps \
            = 2207.5 (without initial)\n";
        assert_eq!(number_after(said, "tps = ").unwrap(), 2207.5);
        assert_eq!(number_after(said, "actually processed: ").unwrap(), 10.0);
        assert!(number_after("tps = many", "tps = ").is_err());
    }
}
