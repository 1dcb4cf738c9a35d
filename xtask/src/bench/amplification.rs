//! `bench amplification`: bytes that go to the device per byte of content, logging included.
//!
//! The process's own account (`write_bytes` of `/proc/PID/io`: pages dirtied and direct writes) is the
//! figure, because others write to the same disk. It counts content, write-ahead log, checkpoints and
//! superblocks; the journal of the filesystem below is not in it. What all disks wrote meanwhile, by
//! whomever, stands beside it.

use super::content;
use super::meters;
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate};
use super::sides::{Api, Host, Side};
use crate::Outcome;

const OBJECT_BYTES: usize = 1_000_000;

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let count = setting.options.choose(64, 128, 512);
    let mut report = Report::new(
        "amplification",
        &format!(
            "{} {rounds} rounds, sides in turns; {count} new objects of 1 MB per round, then removed. Device bytes by the process: \
             write_bytes of /proc/self/io; by all disks: /sys/block/*/stat, with whatever else the machine does. The database's \
             segments have grown before; checkpoints and the removal of the round before are counted.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    let sides: [Box<dyn Side>; 2] = [
        Box::new(Api::create(&place.path().join("api.larder"), None)?),
        Box::new(Host::create(&place.path().join("plain"))?),
    ];
    let names = ["API", "ext4"];
    let mut buffer = content::noise(5, OBJECT_BYTES);
    for step in 0..3 {
        sides[0].make_directory(&format!("/grow-{step}"))?;
        put(&*sides[0], &format!("/grow-{step}"), count, 64, &mut buffer)?;
    }
    for step in 0..3 {
        sides[0].remove_directory(&format!("/grow-{step}"))?;
    }
    setting.watch_memory()?;
    let mut rows = Vec::new();
    for per_commit in [64, 1] {
        let mut process: [Samples; 2] = Default::default();
        let mut disks: [Samples; 2] = Default::default();
        alternate(rounds, 2, |round, index| {
            let side = &*sides[index];
            rustix::fs::sync();
            let disk_before = meters::disk_written_bytes()?;
            let before = meters::written_bytes(side.process())?;
            let directory = format!("/{per_commit}-{round}");
            side.make_directory(&directory)?;
            put(side, &directory, count, per_commit, &mut buffer)?;
            side.remove_directory(&directory)?;
            rustix::fs::sync();
            let user = (count * OBJECT_BYTES) as f64;
            let written = meters::written_bytes(side.process())? - before;
            let disk = meters::disk_written_bytes()? - disk_before;
            process[index].0.push(written as f64 / user);
            disks[index].0.push(disk as f64 / user);
            Ok(())
        })?;
        for index in 0..2 {
            rows.push(vec![
                format!("{}, {per_commit} per commit", names[index]),
                process[index].text(3),
                disks[index].text(3),
            ]);
        }
        let [api, _] = process;
        report.verdict(
            &format!("device ÷ user bytes, 1 MB, {per_commit} per commit"),
            api,
            Goal::AtMost(1.03),
        );
    }
    let header = ["device ÷ user bytes", "by the process", "by all disks"];
    report.table(&header.map(str::to_owned), &rows);
    setting.report_memory(&mut report)?;
    for side in sides {
        side.close()?;
    }
    Ok(report)
}

fn put(
    side: &dyn Side,
    directory: &str,
    count: usize,
    per_commit: usize,
    buffer: &mut [u8],
) -> Outcome {
    for index in 0..count {
        content::stamp(buffer, index as u64, 0);
        let path = format!("{directory}/{index}");
        match per_commit {
            1 => side.put_durably(&path, buffer)?,
            _ => side.put(&path, buffer)?,
        }
        if per_commit > 1 && (index + 1) % per_commit == 0 {
            side.sync()?;
        }
    }
    side.sync()
}
