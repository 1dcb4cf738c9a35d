//! The test programs of the workspace: built by cargo, run as soon as they are built, as many at a
//! time as there are processors.
//!
//! cargo builds all programs, then runs one after the other. Many have one long test, beside which
//! all other processors idle. So here each module of a program runs its tests one by one in a
//! process of its own, beside other modules and before the compiler, which takes what they leave.
//! The examples in the documentation are built like the programs. Those of [`ALONE`] follow by
//! themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use xtask::process;

/// Packages whose tests look at the kernel's mounts, and at how fast they are answered.
const ALONE: [&str; 3] = ["larder-cli", "larder-fuse", "larder-fuse-protocol"];

/// What compiles while tests run: they have the processors first.
const COMPILER: [&str; 5] = ["nice", "-n", "10", "cargo", "test"];

/// Most of those tests wait for mounts, for locks, and for time to pass.
const THREADS_PER_PROCESSOR: usize = 2;

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// Of the package and the target, as `larder tests/clones.rs`.
    name: String,
    package: String,
    path: PathBuf,
    /// Where its package lies, which its tests run in.
    directory: PathBuf,
    /// It is an integration test: its modules share nothing.
    is_integration: bool,
    /// The tests to run, by their whole names; none: all.
    tests: Vec<String>,
}

/// Runs all test programs and the examples in the documentation; each line of what they print goes
/// to `on_line`. Says whether all ended well.
pub fn run(on_line: &(dyn Fn(&str) + Sync)) -> Result<bool, String> {
    run_built_by(&COMPILER, on_line)
}

fn run_built_by(compiler: &[&str], on_line: &(dyn Fn(&str) + Sync)) -> Result<bool, String> {
    let (built, together) = mpsc::channel();
    let mut examples = Vec::new();
    let outcome = std::thread::scope(|scope| {
        let builder = scope.spawn(|| {
            let alone = build(compiler, &mut |program| {
                split(program)?.into_iter().for_each(|part| {
                    // Refused only when nobody runs programs any more, which is told.
                    built.send(part).unwrap_or_default();
                });
                Ok(())
            })?;
            drop(built);
            on_line("     Building the examples in the documentation");
            let arguments = [&compiler[1..], &["--workspace", "--doc", "--no-fail-fast"]].concat();
            let note = &mut |line: &str| examples.push(line.to_owned());
            let is_well = process::run_streaming(compiler[0], &arguments, note)?;
            Ok::<_, String>((alone, is_well))
        });
        let is_well = run_all(together, processors(), on_line);
        let (alone, examples) = (builder.join()).map_err(|_| "a thread panicked".to_owned())??;
        Ok::<_, String>((alone, is_well? && examples))
    });
    examples.iter().for_each(|line| on_line(line));
    let (alone, mut is_well) = outcome?;
    is_well &= run_all(queue(alone), 1, on_line)?;
    Ok(is_well)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Programs that are built already.
fn queue(programs: Vec<Program>) -> Receiver<Program> {
    let (ready, queue) = mpsc::channel();
    programs.into_iter().for_each(|program| {
        ready.send(program).unwrap_or_default(); // The other end is here.
    });
    queue
}

/// Builds them all, hands over each as soon as it is built, and returns those of [`ALONE`].
fn build(
    compiler: &[&str],
    on_built: &mut dyn FnMut(Program) -> Result<(), String>,
) -> Result<Vec<Program>, String> {
    let how = [
        "--workspace",
        "--no-run",
        "--quiet",
        "--message-format=json-render-diagnostics",
    ];
    let mut alone = Vec::new();
    let mut outcome = Ok(());
    let mut note = |line: &str| -> Result<(), String> {
        match find_program(line).transpose()? {
            Some(program) if ALONE.contains(&program.package.as_str()) => alone.push(program),
            Some(program) => on_built(program)?,
            None => {}
        }
        Ok(())
    };
    let arguments = [&compiler[1..], &how].concat();
    let is_built = process::run_streaming(compiler[0], &arguments, &mut |line| {
        let noted = note(line);
        if outcome.is_ok() {
            outcome = noted;
        }
    })?;
    outcome?;
    match is_built {
        true => Ok(alone),
        false => Err("the tests do not compile".into()),
    }
}

/// The test program that a line of cargo's tells of.
fn find_program(line: &str) -> Option<Result<Program, String>> {
    let found: Value = match serde_json::from_str(line) {
        Ok(found) => found,
        Err(error) => return Some(Err(format!("a line of cargo's: {error}"))),
    };
    let is_test = found["profile"]["test"].as_bool() == Some(true);
    let path = found["executable"].as_str().filter(|_| is_test)?;
    let told = || {
        let manifest = Path::new(found["manifest_path"].as_str()?);
        let directory = manifest.parent()?;
        let source = Path::new(found["target"]["src_path"].as_str()?);
        let source = source.strip_prefix(directory).ok()?;
        // `path+file:///home/larder/crates/content#larder@0.1.0`, or `…/crates/xtask#0.1.0`.
        let (before, after) = found["package_id"].as_str()?.rsplit_once('#')?;
        let package = match after.split_once('@') {
            Some((name, _)) => name,
            None => before.rsplit('/').next()?,
        };
        Some(Program {
            name: format!("{package} {}", source.display()),
            package: package.into(),
            path: path.into(),
            directory: directory.into(),
            is_integration: found["target"]["kind"][0] == "test",
            tests: Vec::new(),
        })
    };
    Some(told().ok_or_else(|| format!("cargo does not say where the tests {path} are from")))
}

/// A program for each module of an integration test.
fn split(program: Program) -> Result<Vec<Program>, String> {
    if !program.is_integration {
        return Ok(vec![program]);
    }
    let path = program.path.display().to_string();
    let listed = process::output(&path, &["--list", "--format", "terse"])?;
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
    {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module).or_default().push(test.to_owned());
    }
    let part = |(module, tests): (&str, Vec<String>)| Program {
        name: format!("{} {module}", program.name),
        tests,
        ..program.clone()
    };
    Ok(modules.into_iter().map(part).collect())
}

/// Runs programs as they come, so many at a time: by themselves as cargo does. Whether all ended
/// well.
fn run_all(
    programs: Receiver<Program>,
    at_a_time: usize,
    on_line: &(dyn Fn(&str) + Sync),
) -> Result<bool, String> {
    let (programs, printing) = (Mutex::new(programs), Mutex::new(()));
    let work = || {
        let mut is_well = true;
        loop {
            let next = programs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok(program) = next else {
                return is_well; // There come no more.
            };
            let started = Instant::now();
            let mut command = Command::new(&program.path);
            if at_a_time > 1 {
                command.arg("--test-threads=1");
            } else {
                let threads = THREADS_PER_PROCESSOR * processors();
                command.env("RUST_TEST_THREADS", threads.to_string());
            }
            if !program.tests.is_empty() {
                command.arg("--exact").args(&program.tests);
            }
            // Where one does not end, it is the one that is running.
            on_line(&format!("     Running {}", program.name));
            let ran = command
                .current_dir(&program.directory)
                .env("CARGO_MANIFEST_DIR", &program.directory)
                .stdin(Stdio::null())
                .output();
            // One after the other, each as a whole.
            let _others_wait = printing.lock().unwrap_or_else(PoisonError::into_inner);
            let seconds = started.elapsed().as_secs_f64();
            on_line(&format!("\n     Ran {} in {seconds:.1} s", program.name));
            let why = match ran {
                Ok(output) => {
                    for text in [&output.stdout, &output.stderr] {
                        String::from_utf8_lossy(text).lines().for_each(on_line);
                    }
                    (!output.status.success()).then(|| output.status.to_string())
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                on_line(&format!("failed: {} ({why})", program.name));
                is_well = false;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        let mut is_well = true;
        for worker in workers {
            is_well &= worker.join().map_err(|_| "a thread panicked".to_owned())?;
        }
        Ok(is_well)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = concat!(
        r#"{"reason":"compiler-artifact","#,
        r#""package_id":"path+file:///w/crates/content#larder@0.1.0","#,
        r#""manifest_path":"/w/crates/content/Cargo.toml","#,
        r#""target":{"kind":["test"],"name":"clones","#,
        r#""src_path":"/w/crates/content/tests/clones.rs"},"#,
        r#""profile":{"test":true},"executable":"/w/target/debug/deps/clones-1"}"#,
    );

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let program = find_program(LINE).unwrap().unwrap();
        let expected = Program {
            name: "larder tests/clones.rs".into(),
            package: "larder".into(),
            path: "/w/target/debug/deps/clones-1".into(),
            directory: "/w/crates/content".into(),
            is_integration: true,
            tests: Vec::new(),
        };
        assert_eq!(program, expected);
        let unnamed = LINE.replace("crates/content#larder@0.1.0", "xtask#0.1.0");
        assert_eq!(find_program(&unnamed).unwrap().unwrap().package, "xtask");
        // A library is none, and what is not understood is told.
        assert_eq!(
            find_program(&LINE.replace(r#""test":true"#, r#""test":false"#)),
            None
        );
        assert!(
            find_program(&LINE.replace("manifest_path", "manifest"))
                .unwrap()
                .is_err()
        );
        assert!(find_program("no JSON").unwrap().is_err());
    }

    /// A script in the place of a program.
    fn script(dir: &Path, name: &str, text: &str) -> Program {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        Program {
            name: name.into(),
            package: name.into(),
            path,
            directory: dir.into(),
            is_integration: false,
            tests: Vec::new(),
        }
    }

    #[test]
    fn each_module_of_an_integration_test_runs_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let listing =
            "printf 'a::x: test\\nb::c::y: test\\na::z: test\\nw: test\\nm: benchmark\\n'";
        let whole = script(dir.path(), "p", listing);
        assert_eq!(split(whole.clone()), Ok(vec![whole.clone()]));
        let integration = Program {
            is_integration: true,
            ..whole
        };
        let parts: Vec<(String, Vec<String>)> = split(integration)
            .unwrap()
            .into_iter()
            .map(|part| (part.name, part.tests))
            .collect();
        let part = |name: &str, tests: &[&str]| {
            (
                name.to_owned(),
                tests.iter().map(|&test| test.to_owned()).collect(),
            )
        };
        let expected = [
            part("p ", &["w"]),
            part("p a", &["a::x", "a::z"]),
            part("p b", &["b::c::y"]),
        ];
        assert_eq!(parts, expected);
        let mut exact = script(dir.path(), "q", "test \"$1 $2\" = '--exact a::x'");
        exact.tests = vec!["a::x".into()];
        assert_eq!(run_all(queue(vec![exact]), 1, &|_| {}), Ok(true));
    }

    #[test]
    fn programs_run_while_others_are_compiled_and_what_does_not_compile_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let test = script(dir.path(), "built", "touch ran; echo it ran");
        let line = LINE
            .replace(r#"["test"]"#, r#"["lib"]"#)
            .replace("/w/target/debug/deps/clones-1", test.path.to_str().unwrap())
            .replace("/w/crates/content/", &format!("{}/", dir.path().display()));
        // It waits for what it has built, then it fails; or goes on to the examples.
        let compile = |end: &str| {
            format!(
                "cd {}; case $* in *--doc*) echo an example; exit;; esac; echo '{line}'; \
                 until [ -e ran ]; do sleep 0.01; done; rm ran; exit {end}",
                dir.path().display()
            )
        };
        for (end, outcome) in [
            ("1", Err("the tests do not compile".into())),
            ("0", Ok(true)),
        ] {
            let compiler = script(dir.path(), "compiler", &compile(end));
            let lines = Mutex::new(Vec::new());
            let on_line = |line: &str| lines.lock().unwrap().push(line.to_owned());
            let compiler = [compiler.path.to_str().unwrap(), "test"];
            assert_eq!(run_built_by(&compiler, &on_line), outcome);
            let lines = lines.into_inner().unwrap();
            assert!(lines.contains(&"it ran".to_owned()), "{lines:?}");
            assert_eq!(
                lines.contains(&"an example".to_owned()),
                end == "0",
                "{lines:?}"
            );
        }
    }

    #[test]
    fn what_programs_print_stays_together_and_a_failure_is_told() {
        let dir = tempfile::tempdir().unwrap();
        // Each waits for the other: they run at the same time.
        let meet = |mine: &str, other: &str| {
            format!(
                "touch {mine}; until [ -e {other} ]; do sleep 0.01; done; echo $1 1; sleep 0.05; \
                 echo $1 2"
            )
        };
        let programs = vec![
            script(dir.path(), "a", &meet("x", "y")),
            script(dir.path(), "b", &meet("y", "x")),
            script(dir.path(), "c", "pwd >&2; exit 3"),
        ];
        let lines = Mutex::new(Vec::new());
        let on_line = |line: &str| lines.lock().unwrap().push(line.to_owned());
        assert_eq!(run_all(queue(programs), 2, &on_line), Ok(false));
        let lines = lines.into_inner().unwrap();
        let printed: Vec<&str> = (lines.iter().map(String::as_str))
            .filter(|line| !line.trim_start().starts_with('R'))
            .collect();
        let pairs: Vec<&[&str]> = printed.chunks(2).collect();
        let of = |pair: [&'static str; 2]| pairs.iter().filter(|one| ***one == pair).count();
        assert_eq!(of(["--test-threads=1 1", "--test-threads=1 2"]), 2);
        let place = dir.path().canonicalize().unwrap();
        let failed = [place.to_str().unwrap(), "failed: c (exit status: 3)"];
        assert!(pairs.contains(&&failed[..]), "{pairs:?}");
        let well = vec![script(dir.path(), "d", "test $# = 0")];
        assert_eq!(run_all(queue(well), 1, &|_| {}), Ok(true));
        let absent = Program {
            path: dir.path().join("absent"),
            ..script(dir.path(), "e", "")
        };
        assert_eq!(run_all(queue(vec![absent]), 1, &|_| {}), Ok(false));
    }
}
