//! `bench amplification`: bytes that go to the device per byte of content, logging included.
//!
//! Two accounts, both from above: the process's own (`write_bytes` of `/proc/PID/io`) counts direct
//! writes and pages dirtied, but a small write to a large folio of the page cache counts as the
//! whole folio; what all disks wrote (`/sys/block/*/stat`) holds the filesystem's journal and what
//! the neighbours wrote. The figure is the smaller one of each round. Content, write-ahead log,
//! checkpoints, superblocks and the removal of the objects are all in it.

use super::content;
use super::meters;
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate};
use super::sides::{Api, Host, Side, grow};
use xtask::Outcome;

const OBJECT_BYTES: usize = 1_000_000;

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(5);
    let count = setting.options.choose(64, 128, 512);
    let mut report = Report::new(
        "amplification",
        &format!(
            "{} {rounds} rounds, sides in turns; {count} new objects of 1 MB per round, then \
             removed. By the process: \
             write_bytes of /proc/self/io (a small write to a large folio counts as the folio); \
             by all disks: /sys/block/*/stat, \
             with whatever else the machine does. The figure is the smaller one of each round. \
             Logs, checkpoints and the removal are \
             counted; growth is not: the segments have grown before.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    let mut buffer = content::noise(5, OBJECT_BYTES);
    setting.watch_memory(OBJECT_BYTES)?;
    let sides: [Box<dyn Side>; 2] = [
        Box::new(Api::create(&place.path().join("api.larder"), None)?),
        Box::new(Host::create(&place.path().join("plain"))?),
    ];
    let names = ["API", "ext4"];
    grow(&*sides[0], (3 * count * OBJECT_BYTES) as u64)?;
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
        let both = process[0].0.iter().zip(&disks[0].0);
        let api = Samples(both.map(|(process, disk)| process.min(*disk)).collect());
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
