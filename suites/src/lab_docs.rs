//! `cargo xtask lab-docs`: the reproduction of the papers' figures in docs/lab, about 40 minutes on
//! two idle cores.
//!
//! Runs `larder lab run` for each of [`RUNS`], each with the records in `runs/NAME`, and
//! `larder lab report` over all of them; then a browser, if there is one, takes pictures of the
//! page at two widths and is asked for what it complains about. Runs that are there are not made
//! again: the verb goes on where it was interrupted; remove `runs/NAME` to measure anew. All that
//! is about time is measured first, one after the other, on the disk. What only measures layout has
//! its volumes in memory, where it is fastest, and as many runs at once as there are cores: where a
//! system puts things does not follow from how fast the device is, or how busy the machine.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use xtask::mounts::{Larder, Profile};
use xtask::process;

const USAGE: &str = "usage: cargo xtask lab-docs [--tiny] [--memory-only] [RUN…]";

/// Memory with a filesystem in it.
const MEMORY: &str = "/dev/shm";

/// Where volumes lie on the disk.
const DISK: &str = "target/lab-docs-volumes";

/// Those that are in every figure of \[FRAG\] and \[BLOB\].
const STORES: &str = "larder,larder-mount,ext4,xfs,ntfs,sqlite,postgres";

/// Filesystems and blocks of \[CLUSTER\]. PostgreSQL cannot work on FAT32 without a kernel that has
/// it, which the run says.
const BLOCKS: &str = "ext2-1k,ext2-2k,ext2-4k,ext3-1k,ext3-2k,ext3-4k,\
                      ext4-1k,ext4-2k,ext4-4k,xfs-4k,ntfs-512,ntfs-4k,ntfs-64k,fat32-512,fat32-8k";

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

/// What is common to runs about time.
const TIMED: Run = Run {
    name: "",
    arguments: "",
    backends: STORES,
    full: "",
    tiny: "",
    is_layout_only: false,
};

/// What is common to runs about layout alone.
const OF_LAYOUT: Run = Run {
    is_layout_only: true,
    ..TIMED
};

/// Those about time first, while the machine is still quiet. `age-small` is also where \[FRAG\]'s
/// uniform sizes are that `sizes` has beside it.
const RUNS: [Run; 8] = [
    Run {
        name: "age-small",
        arguments: "age --sizes uniform --occupancy 90 --warm",
        full: "--objects 256K,512K --volume 320M --ages 0,2,4 --reads 200 --rounds 2",
        tiny: "--objects 16K,64K --volume 300M --occupancy 3 --ages 0,1 --reads 20",
        ..TIMED
    },
    Run {
        name: "age-middle",
        arguments: "age --sizes uniform --occupancy 90 --warm",
        full: "--objects 1M --volume 544M --ages 0,2,4 --reads 200 --rounds 2",
        tiny: "--objects 128K --volume 300M --occupancy 3 --ages 0,1 --reads 20",
        ..TIMED
    },
    Run {
        name: "dbfs",
        arguments: "dbfs",
        backends: "larder,larder-mount,ext4,xfs",
        full: "--objects 10000,100000,1000000,10000000 --writers 1,8 --volume 320M --occupancy 30 \
            --reads 300 --cycles 3 --rounds 2",
        tiny: "--objects 10000,100000 --writers 1,8 --volume 300M --reads 20 --cycles 2",
        ..TIMED
    },
    Run {
        name: "cluster",
        arguments: "cluster",
        backends: BLOCKS,
        full: "--volume 400M --transactions 10 --statements 1000 --rounds 2",
        tiny: "--volume 400M --transactions 2 --statements 50",
        ..TIMED
    },
    Run {
        name: "age-large",
        arguments: "age --sizes uniform --occupancy 90",
        full: "--objects 2M --volume 980M --ages 0,2,4,6,8,10 --reads 50 --rounds 2",
        tiny: "--objects 1100K --volume 450M --occupancy 5 --ages 0,1 --reads 5",
        ..OF_LAYOUT
    },
    Run {
        name: "volume",
        arguments: "volume --sizes uniform",
        full: "--objects 512K --volume 320M,640M --occupancy 50,90 --ages 0,2 --reads 20",
        tiny: "--objects 64K --volume 300M,320M --occupancy 2,5 --ages 0,1 --reads 5",
        ..OF_LAYOUT
    },
    Run {
        name: "write-size",
        arguments: "write-size --occupancy 90",
        full: "--objects 256K --volume 320M --request 16K,64K,256K --writers 4 --ages 0,2 --reads \
            20",
        tiny: "--objects 64K --volume 300M --occupancy 3 --request 16K,64K --ages 0,1 --reads 5",
        ..OF_LAYOUT
    },
    Run {
        name: "sizes",
        arguments: "age --sizes constant --occupancy 90",
        full: "--objects 512K --volume 320M --ages 0,2,4 --reads 20",
        tiny: "--objects 64K --volume 300M --occupancy 3 --ages 0,1 --reads 5",
        ..OF_LAYOUT
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
    let measure = |run: &Run| -> Result<(), String> {
        let began = Instant::now();
        let words = run.words(&to, asked.is_tiny)?;
        println!("larder {}", words.join(" "));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        process::run(&program, &words)?;
        println!("{}: {:.0} s", run.name, began.elapsed().as_secs_f64());
        Ok(())
    };
    let wanted = RUNS.iter().filter(|run| asked.wants(run));
    let (of_layout, timed): (Vec<&Run>, Vec<&Run>) = wanted.partition(|run| run.is_layout_only);
    timed.into_iter().try_for_each(&measure)?;
    if asked.names.is_empty() && !asked.is_memory_only {
        advise(&program, &to, asked.is_tiny)?;
    }
    on_all_cores(&of_layout, &measure)?;
    println!("all runs: {:.0} s", all.elapsed().as_secs_f64());
    report(&program, &to)
}

/// Makes runs, as many at the same time as there are cores.
fn on_all_cores(
    runs: &[&Run],
    measure: &(impl Fn(&Run) -> Result<(), String> + Sync),
) -> Result<(), String> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            measure(run)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
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

/// The page in a browser at the width of a desk and of a telephone, from its beginning to its end;
/// what it complains about is an error.
fn pictures(to: &Path) -> Result<(), String> {
    let to = fs::canonicalize(to).map_err(|error| format!("{}: {error}", to.display()))?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    for (name, width) in [("report-1280.png", 1280), ("report-phone.png", 390)] {
        // A window is wider than a telephone, a frame need not be. It tells how high the page is.
        let frame = scratch.path().join("frame.html");
        let page = format!(
            "<body style='margin:0'><iframe style='border:0;display:block' width='{width}' \
             height='100' \
             src='file://{}' onload='const \
             height=this.contentDocument.documentElement.scrollHeight;\
             this.height=height;document.title=\"high \"+height'></iframe>",
            to.join("report.html").display()
        );
        fs::write(&frame, page).map_err(|error| format!("{}: {error}", frame.display()))?;
        let told = browse(scratch.path(), &frame, &["--dump-dom".to_owned()])?;
        let height: u32 = told
            .split_once("<title>high ")
            .and_then(|(_, rest)| rest.split_once('<')?.0.parse().ok())
            .ok_or("the browser does not say how high the page is")?;
        let picture = to.join(name);
        let shot = [
            format!("--window-size={width},{height}"),
            format!("--screenshot={}", picture.display()),
        ];
        browse(scratch.path(), &frame, &shot)?;
        println!("{}", picture.display());
    }
    Ok(())
}

/// What a browser prints that shows a page.
fn browse(scratch: &Path, page: &Path, arguments: &[String]) -> Result<String, String> {
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            // The frame may look into the page.
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=5000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("profile").display()
        ))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .map_err(|error| format!("'chromium' does not run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match said.lines().find(|line| line.contains(":CONSOLE")) {
        Some(line) => Err(format!("the page makes the browser complain: {line}")),
        None if !output.status.success() => {
            Err(format!("'chromium' made no picture: {}", said.trim()))
        }
        None => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}
