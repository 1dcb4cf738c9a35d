//! What the tests need beside cargo, and how it gets here: by the ordinary package clients.

use crate::Outcome;
use crate::process;

/// A program the tests call.
struct Tool {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const TOOLS: [Tool; 5] = [
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
        program: "git",
        package: "git",
        why: "clones onto a mount",
    },
];

/// The parts of the toolchain that the checks call: `(cargo subcommand, rustup component)`.
const COMPONENTS: [(&str, &str); 2] = [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")];

/// Installs what is missing and says what and why; without the right to, it says what to install.
pub fn run() -> Outcome {
    for (program, component) in COMPONENTS {
        if !process::is_installed(program) {
            println!("installing {component}: the test run checks the sources with it");
            process::run("rustup", &["component", "add", component])?;
        }
    }
    install_packages()?;
    match std::fs::metadata("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "/dev/fuse: {error}; mounts need it (as root: modprobe fuse)"
        )),
    }
}

fn install_packages() -> Outcome {
    let missing: Vec<&Tool> = TOOLS
        .iter()
        .filter(|tool| !process::is_installed(tool.program))
        .collect();
    if missing.is_empty() {
        println!(
            "all tools are here: {}",
            TOOLS.map(|tool| tool.program).join(", ")
        );
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
