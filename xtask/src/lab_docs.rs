//! `cargo xtask lab-docs`: the reproduction of the papers' figures in docs/lab, about half an hour on two idle cores.
//!
//! Runs `larder lab run` for each of [`RUNS`], each with the records in `runs/NAME`, and `larder lab report` over all of
//! them; then a browser, if there is one, takes pictures of the page at two widths and is asked for what it complains
//! about. Runs that are there are not made again: the verb goes on where it was interrupted; remove `runs/NAME` to
//! measure anew. What only measures layout has its volumes in memory, where it is fastest: where a system puts things
//! does not follow from how fast the device is. All that is about time is measured on the disk.

use crate::mounts::{Larder, Profile};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask lab-docs [--tiny] [--memory-only] [RUN…]";

/// Memory with a filesystem in it.
const MEMORY: &str = "/dev/shm";

/// Where volumes lie on the disk.
const DISK: &str = "target/lab-docs-volumes";

/// Those that are in every figure of \[FRAG\] and \[BLOB\].
const STORES: &str = "larder,larder-mount,ext4,xfs,ntfs,sqlite,postgres";

/// Filesystems and blocks of \[CLUSTER\]. PostgreSQL cannot work on FAT32 without a kernel that has it, which the run says.
const BLOCKS: &str = "ext2-1k,ext2-2k,ext2-4k,ext3-1k,ext3-2k,ext3-4k,ext4-1k,ext4-2k,ext4-4k,xfs-1k,xfs-4k,\
                      ntfs-512,ntfs-4k,ntfs-64k,fat32-512,fat32-8k";

/// A run: its arguments, and those that say how large it is, in earnest and to try the verb.
struct Run {
    name: &'static str,
    arguments: &'static str,
    backends: &'static str,
    full: &'static str,
    tiny: &'static str,
    /// Its volumes may lie in memory.
    is_layout_only: bool,
}

const RUNS: [Run; 7] = [
    Run {
        name: "age-small",
        arguments: "age --sizes uniform --occupancy 90 --warm",
        backends: STORES,
        full: "--objects 256K,1M --volume 420M --ages 0,2,4 --reads 200 --rounds 2",
        tiny: "--objects 16K,64K --volume 300M --occupancy 3 --ages 0,1 --reads 20",
        is_layout_only: false,
    },
    Run {
        name: "age-large",
        arguments: "age --sizes uniform --occupancy 90",
        backends: STORES,
        full: "--objects 2M --volume 820M --ages 0,2,4,6,8,10 --reads 50",
        tiny: "--objects 1100K --volume 450M --occupancy 5 --ages 0,1 --reads 5",
        is_layout_only: true,
    },
    Run {
        name: "sizes",
        arguments: "age --sizes constant,uniform --occupancy 90",
        backends: "larder,ext4,xfs,sqlite,postgres",
        full: "--objects 512K --volume 320M --ages 0,2,4 --reads 20",
        tiny: "--objects 32K --volume 300M --occupancy 3 --ages 0,1 --reads 5",
        is_layout_only: true,
    },
    Run {
        name: "volume",
        arguments: "volume",
        backends: "larder,ext4,xfs,ntfs,fat32,sqlite,postgres",
        full: "--objects 128K --volume 320M,640M --occupancy 50,90,97.5 --ages 0,2 --reads 20",
        tiny: "--objects 64K --volume 300M,320M --occupancy 2,5 --ages 0,1 --reads 5",
        is_layout_only: true,
    },
    Run {
        name: "write-size",
        arguments: "write-size",
        backends: "larder,ext4,xfs,ntfs,sqlite,postgres",
        full: "--objects 256K --volume 320M --request 16K,64K,256K --writers 4 --ages 0,2 --reads 20",
        tiny: "--objects 64K --volume 300M --occupancy 3 --request 16K,64K --ages 0,1 --reads 5",
        is_layout_only: true,
    },
    Run {
        name: "dbfs",
        arguments: "dbfs",
        backends: "larder,larder-mount,ext4,xfs",
        full: "--objects 10000,100000,1000000,10000000 --writers 1,8 --volume 512M --occupancy 40 --reads 500 --cycles 4",
        tiny: "--objects 10000,100000 --writers 1,8 --volume 300M --reads 20 --cycles 2",
        is_layout_only: false,
    },
    Run {
        name: "cluster",
        arguments: "cluster",
        backends: BLOCKS,
        full: "--volume 400M --transactions 20 --statements 1000 --rounds 2",
        tiny: "--volume 400M --transactions 2 --statements 50",
        is_layout_only: false,
    },
];

/// What the verb was asked for.
#[derive(Default)]
struct Asked {
    is_tiny: bool,
    is_memory_only: bool,
    names: Vec<String>,
}

/// The verb.
pub fn parse_and_run(arguments: &[&str]) -> Result<(), String> {
    let mut asked = Asked::default();
    for argument in arguments {
        match *argument {
            "--tiny" => asked.is_tiny = true,
            "--memory-only" => asked.is_memory_only = true,
            name if RUNS.iter().any(|run| run.name == name) => asked.names.push(name.to_owned()),
            other => return Err(format!("'{other}' is not understood; {USAGE}")),
        }
    }
    let larder = Larder::build(if asked.is_tiny {
        Profile::Debug
    } else {
        Profile::Release
    })?;
    let to = PathBuf::from(if asked.is_tiny {
        "target/lab-docs-tiny"
    } else {
        "docs/lab"
    });
    let program = larder.path().to_string_lossy().into_owned();
    let all = Instant::now();
    for run in RUNS.iter().filter(|run| asked.wants(run)) {
        let began = Instant::now();
        let words = run.words(&to, asked.is_tiny)?;
        println!("larder {}", words.join(" "));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        process::run(&program, &words)?;
        println!("{}: {:.0} s", run.name, began.elapsed().as_secs_f64());
    }
    if asked.names.is_empty() && !asked.is_memory_only {
        advise(&program, &to, asked.is_tiny)?;
    }
    println!("all runs: {:.0} s", all.elapsed().as_secs_f64());
    report(&program, &to)
}

/// What `larder lab advise` says about this machine, in advice.txt.
fn advise(program: &str, to: &Path, is_tiny: bool) -> Result<(), String> {
    let (runs, answer) = (to.join("advice"), to.join("advice.txt"));
    let runs = runs.to_string_lossy();
    let time = if is_tiny { "2s" } else { "3m" };
    let words = ["lab", "advise", DISK, "--out", &runs, "--time", time];
    println!("larder {}", words.join(" "));
    let said = process::output(program, &words)?;
    print!("{said}");
    fs::write(&answer, said).map_err(|error| format!("{}: {error}", answer.display()))
}

impl Asked {
    fn wants(&self, run: &Run) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| name == run.name);
        is_named && (run.is_layout_only || !self.is_memory_only)
    }
}

impl Run {
    fn words(&self, to: &Path, is_tiny: bool) -> Result<Vec<String>, String> {
        let own = if is_tiny { self.tiny } else { self.full };
        let disk = Path::new(DISK);
        let work = match self.is_layout_only && Path::new(MEMORY).is_dir() {
            true => Path::new(MEMORY).join("larder-lab-docs"),
            false => disk.to_owned(),
        };
        fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
        let out = to.join("runs").join(self.name);
        // What says how large the run is replaces what stands before.
        let mut words: Vec<String> = Vec::new();
        for word in self.arguments.split(' ').chain(own.split(' ')) {
            let at = words.iter().position(|known| known == word);
            if let Some(at) = at.filter(|_| word.starts_with("--")) {
                words.drain(at..at + 2);
            }
            words.push(word.to_owned());
        }
        if self.is_layout_only {
            words.push("--layout-only".to_owned());
        }
        let front = ["lab", "run"].map(str::to_owned);
        let back = [
            "--backends",
            self.backends,
            "--work",
            &work.to_string_lossy(),
            "--out",
            &out.to_string_lossy(),
        ]
        .map(str::to_owned);
        Ok(front.into_iter().chain(words).chain(back).collect())
    }
}

/// The report of all runs that are there, and its pictures.
fn report(program: &str, to: &Path) -> Result<(), String> {
    let folder = to.join("runs");
    let explain = |error| format!("{}: {error}", folder.display());
    let mut words = vec!["lab".to_owned(), "report".to_owned()];
    for run in &RUNS {
        let run = folder.join(run.name);
        if run.join("run.json").try_exists().map_err(explain)? {
            words.push(run.to_string_lossy().into_owned());
        }
    }
    words.extend(["--to".to_owned(), to.to_string_lossy().into_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    process::run(program, &words)?;
    // The records are in the runs, and drawings stay sharp.
    let doubled = fs::read_dir(to.join("figures"))
        .map_err(explain)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "png"))
        .chain([to.join("records.csv")]);
    for path in doubled {
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match process::is_installed("chromium") {
        true => pictures(to),
        false => {
            println!("there is no chromium here, so the pictures of the page are not made");
            Ok(())
        }
    }
}

/// The page in a browser at the width of a desk and of a telephone; what it complains about is an error.
fn pictures(to: &Path) -> Result<(), String> {
    let to = fs::canonicalize(to).map_err(|error| format!("{}: {error}", to.display()))?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    for (name, width, height) in [
        ("report-1280.png", 1280, 2600),
        ("report-phone.png", 390, 2600),
    ] {
        // A window is wider than a telephone, a frame need not be.
        let frame = scratch.path().join("frame.html");
        let page = format!(
            "<body style='margin:0'><iframe style='border:0' width='{width}' height='{height}' src='file://{}'></iframe>",
            to.join("report.html").display()
        );
        fs::write(&frame, page).map_err(|error| format!("{}: {error}", frame.display()))?;
        let picture = to.join(name);
        let output = std::process::Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([
                "--enable-logging=stderr",
                "--v=0",
                "--virtual-time-budget=5000",
            ])
            .arg(format!(
                "--user-data-dir={}",
                scratch.path().join("profile").display()
            ))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(format!("file://{}", frame.display()))
            .output()
            .map_err(|error| format!("'chromium' does not run: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let complaint = said.lines().find(|line| line.contains(":CONSOLE"));
        if let Some(line) = complaint {
            return Err(format!("the page makes the browser complain: {line}"));
        }
        if !output.status.success() || !picture.exists() {
            return Err(format!("'chromium' made no picture: {}", said.trim()));
        }
        println!("{}", picture.display());
    }
    Ok(())
}
