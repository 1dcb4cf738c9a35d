//! fio with verification: each job writes with checksums and reads everything back.

use std::process::Command;
use std::time::Duration;

use super::judge::Cases;
use super::run;
use super::site::Site;
use xtask::Tally;

const PATIENCE: Duration = Duration::from_secs(600);

/// `(what, arguments)`; all of them verify CRC-32C and stop at the first difference.
const JOBS: [(&str, &str); 8] = [
    (
        "unaligned sizes and offsets, 4 jobs",
        "--ioengine=psync --rw=randrw --bsrange=512-128k --bs_unaligned --numjobs=4",
    ),
    (
        "unaligned, read back while writing",
        "--ioengine=psync --rw=randwrite --bsrange=512-128k --bs_unaligned --verify_backlog=64",
    ),
    (
        "shared memory maps",
        "--ioengine=mmap --rw=randrw --bsrange=4k-64k --numjobs=2",
    ),
    (
        "direct, one request at a time",
        "--ioengine=psync --direct=1 --rw=randrw --bsrange=4k-128k --blockalign=4k --numjobs=2",
    ),
    (
        "direct, 16 requests in flight",
        "--ioengine=libaio --direct=1 --iodepth=16 --rw=randwrite --bsrange=4k-128k \
         --blockalign=4k --numjobs=2",
    ),
    (
        "direct, by sectors",
        "--ioengine=psync --direct=1 --rw=randrw --bsrange=512-16k --blockalign=512",
    ),
    (
        "synced writes",
        "--ioengine=psync --rw=randwrite --bsrange=512-32k --bs_unaligned --fdatasync=16 \
         --sync=dsync",
    ),
    (
        "long sequential writes, 4 jobs",
        "--ioengine=psync --rw=write --bs=1m --numjobs=4",
    ),
];

/// Runs all jobs, and one over a remount.
pub fn run(site: &Site) -> Result<Tally, String> {
    let size = site.length.choose("4m", "96m");
    let mut cases = Cases::default();
    let mut mount = site.mount()?;
    for (index, (what, arguments)) in JOBS.iter().enumerate() {
        let name = format!("verify-{index}");
        cases.run(what, || {
            fio(
                site,
                &name,
                &format!("{arguments} --size={size} --do_verify=1"),
            )
        });
    }
    // With blocks of mixed sizes, fio does not find again what another run of it wrote.
    let blocks = format!("--ioengine=psync --bs=16k --numjobs=4 --size={size}");
    let written = cases.run("blocks of 16 KiB, 4 jobs: write", || {
        fio(
            site,
            "remount",
            &format!("{blocks} --rw=write --do_verify=1"),
        )
    });
    if written {
        mount.unmount()?;
        mount = site.mount()?;
        cases.run("blocks of 16 KiB, 4 jobs: read after a remount", || {
            fio(site, "remount", &format!("{blocks} --rw=randread"))
        });
    }
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

fn fio(site: &Site, name: &str, arguments: &str) -> Result<(), String> {
    let mut command = Command::new("fio");
    command
        .current_dir(site.scratch())
        .arg(format!("--name={name}"))
        .arg(format!("--directory={}", site.mountpoint().display()))
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--randseed=4",
            "--output-format=terse",
        ])
        .args(["--verify_state_save=0", "--fallocate=none"])
        .args(arguments.split(' '));
    run::succeed(&mut command, PATIENCE).map(drop)
}
