//! Child processes: without stdin, with their failures told in one line.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs `program` and hands each line that it prints to `on_line`, as it comes; stderr passes
/// through. `Ok` holds whether it ended with exit code 0.
pub fn run_streaming(
    program: &str,
    arguments: &[&str],
    on_line: &mut dyn FnMut(&str),
) -> Result<bool, String> {
    let explain = |error| format!("'{program}' does not run: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(explain)?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            on_line(&String::from_utf8_lossy(&line.map_err(explain)?));
        }
    }
    Ok(child.wait().map_err(explain)?.success())
}

/// Runs `program` with its output passed through; an exit code other than 0 is an error.
pub fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match run_streaming(program, arguments, &mut |line| println!("{line}"))? {
        true => Ok(()),
        false => Err(format!("'{program} {}' failed", arguments.join(" "))),
    }
}

/// Runs `program` and returns what it prints.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("'{program}' does not run: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "'{program} {}' failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Whether `program` is on the search path; a path stands for itself.
pub fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(program).is_file())
}
