//! What the tests need beside cargo, and how it gets here: by the ordinary package clients.

use std::path::PathBuf;

use crate::Outcome;
use crate::process;
use crate::workspace::Workspace;

/// A program the tests call.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// Its name, or its path where it is not on every search path.
    pub program: &'static str,
    /// The Debian package that holds it.
    pub package: &'static str,
    /// What it is for.
    pub why: &'static str,
}

const TOOLS: [Tool; 17] = [
    Tool {
        program: "fusermount3",
        package: "fuse3",
        why: "mounts",
    },
    Tool {
        program: "sqlite3",
        package: "sqlite3",
        why: "an unmodified SQL shell beside a mount",
    },
    Tool {
        program: "rsync",
        package: "rsync",
        why: "copies trees onto a mount",
    },
    Tool {
        program: "getfattr",
        package: "attr",
        why: "compares extended attributes",
    },
    Tool {
        program: "setfacl",
        package: "acl",
        why: "sets access control lists",
    },
    Tool {
        program: "/usr/bin/python3",
        package: "python3",
        why: "loads the SQLite extension",
    },
    Tool {
        program: "git",
        package: "git",
        why: "clones onto a mount",
    },
    Tool {
        program: "vim",
        package: "vim",
        why: "saves files on a mount",
    },
    Tool {
        program: "emacs",
        package: "emacs-nox",
        why: "saves files on a mount",
    },
    Tool {
        program: "nano",
        package: "nano",
        why: "saves files on a mount",
    },
    Tool {
        program: "/usr/bin/pip3",
        package: "python3-pip",
        why: "upgrades packages on a mount",
    },
    Tool {
        program: "/usr/sbin/mkfs.xfs",
        package: "xfsprogs",
        why: "makes volumes of the laboratory",
    },
    Tool {
        program: "/usr/sbin/mkfs.btrfs",
        package: "btrfs-progs",
        why: "makes volumes of the laboratory",
    },
    Tool {
        program: "ntfs-3g",
        package: "ntfs-3g",
        why: "serves volumes of the laboratory",
    },
    Tool {
        program: "/usr/sbin/mkfs.vfat",
        package: "dosfstools",
        why: "makes volumes of the laboratory",
    },
    Tool {
        program: "fusefat",
        package: "fusefat",
        why: "serves volumes of the laboratory",
    },
    Tool {
        program: "chromium",
        package: "chromium",
        why: "shows the page of the laboratory",
    },
];

/// The parts of the toolchain that the checks call: `(cargo subcommand, rustup component)`.
const COMPONENTS: [(&str, &str); 2] = [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")];

/// Adds the parts of the toolchain that are missing, and says why.
pub fn components() -> Outcome {
    for (program, component) in COMPONENTS {
        if !process::is_installed(program) {
            println!("installing {component}: the test run checks the sources with it");
            process::run("rustup", &["component", "add", component])?;
        }
    }
    Ok(())
}

/// Installs the programs that are missing and says what and why; without the right to, it says what
/// to install.
pub fn run() -> Outcome {
    packages(&TOOLS)?;
    // The laboratory's tests run a private server.
    find_postgres()?;
    match std::fs::metadata("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "/dev/fuse: {error}; mounts need it (as root: modprobe fuse)"
        )),
    }
}

/// Installs those that are missing, and says what and why.
pub fn packages(tools: &[Tool]) -> Outcome {
    let missing: Vec<&Tool> = tools
        .iter()
        .filter(|tool| !process::is_installed(tool.program))
        .collect();
    if missing.is_empty() {
        let here: Vec<&str> = tools.iter().map(|tool| tool.program).collect();
        if !here.is_empty() {
            println!("all tools are here: {}", here.join(", "));
        }
        return Ok(());
    }
    for tool in &missing {
        println!("needed: {} ({})", tool.package, tool.why);
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if !rustix::process::geteuid().is_root() || !process::is_installed("apt-get") {
        return Err(format!(
            "install first, as root: apt-get install {}",
            packages.join(" ")
        ));
    }
    process::run("apt-get", &["update", "-qq"])?;
    let install = [
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
    ];
    process::run("env", &[&install[..], &packages].concat())
}

/// A program from crates.io.
#[derive(Debug, Clone, Copy)]
pub struct CrateProgram {
    /// Of the crate and of its program.
    pub name: &'static str,
    /// The one that is wanted, whole.
    pub version: &'static str,
    /// What it is for, as is told who waits for it.
    pub why: &'static str,
}

/// Judges a mount call by call.
pub const PJDFSTEST: CrateProgram = CrateProgram {
    name: "pjdfstest",
    version: "0.2.2",
    why: "checks POSIX call by call",
};
/// Judges a mount by what random operations leave.
pub const FSX: CrateProgram = CrateProgram {
    name: "fsx",
    version: "0.3.2",
    why: "exercises files at random",
};

/// A program from crates.io: the one on the search path, or one that is installed below the
/// workspace's target directory; whoever works beside it has the processors first. Returns its
/// path.
pub fn crate_program(wanted: CrateProgram) -> Result<PathBuf, String> {
    let CrateProgram { name, version, why } = wanted;
    let root = Workspace::load()?.target.join("tools");
    let own = root.join("bin").join(name);
    let wanted = format!("{name} {version}");
    // Some verbs of cargo tell their version only as cargo calls them.
    let as_verb = name.strip_prefix("cargo-");
    let is_wanted = |program: &str| {
        let tells = |arguments: &[&str]| {
            process::output(program, arguments).is_ok_and(|text| text.trim() == wanted)
        };
        tells(&["--version"]) || as_verb.is_some_and(|verb| tells(&[verb, "--version"]))
    };
    if is_wanted(&own.to_string_lossy()) {
        return Ok(own);
    }
    if is_wanted(name) {
        return Ok(PathBuf::from(name));
    }
    println!(
        "installing {wanted} from crates.io into {}: {why}",
        root.display()
    );
    let root = root.to_string_lossy();
    let install = [
        "-n",
        "10",
        "cargo",
        "install",
        name,
        "--version",
        version,
        "--locked",
        "--quiet",
        "--root",
        &root,
    ];
    process::run("nice", &install)?;
    Ok(own)
}

/// The directory of PostgreSQL's programs, the newest version's. Debian keeps them by major
/// version, outside of the search path. Installs them where they are missing.
pub fn find_postgres() -> Result<PathBuf, String> {
    if let Some(found) = postgres_directory() {
        return Ok(found);
    }
    packages(&[Tool {
        program: "initdb",
        package: "postgresql",
        why: "a database server",
    }])?;
    postgres_directory().ok_or("apt-get installed no initdb".to_owned())
}

fn postgres_directory() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let debian = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|directory| directory.join("initdb").is_file())
        .max();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    debian.or_else(|| std::env::split_paths(&paths).find(|path| path.join("initdb").is_file()))
}
