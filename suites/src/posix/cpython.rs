//! CPython's own tests of files, their temporary directory on the mount and on ext4: the same
//! results.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::judge::{Verdict, Verdicts, judge};
use super::run;
use super::site::Site;
use xtask::{Tally, process};

const PATIENCE: Duration = Duration::from_secs(900);

const TESTS: [&str; 9] = [
    "test_os",
    "test_shutil",
    "test_mmap",
    "test_tempfile",
    "test_posix",
    "test_fcntl",
    "test_zipfile",
    "test_sqlite3",
    "test_dbm",
];

/// Interpreters that may ship their tests; Debian's own leaves them out.
const INTERPRETERS: [&str; 5] = [
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
];

/// Runs the same tests on both sides, case by case.
pub fn run(site: &Site) -> Result<Tally, String> {
    let python = find_python()?;
    let mount = site.mount()?;
    let ours = verdicts(&python, &site.mountpoint(), site.scratch())?;
    let ext4 = site.ext4()?;
    let theirs = verdicts(&python, ext4.path(), site.scratch())?;
    let mut tally = judge(&ours, &theirs);
    site.finish(mount)?;
    tally.passed += 1;
    Ok(tally)
}

fn find_python() -> Result<String, String> {
    let has_tests = |python: &&str| {
        process::output(python, &["-c", "import test.test_os, test.test_sqlite3"]).is_ok()
    };
    let python = INTERPRETERS.into_iter().find(has_tests).ok_or(
        "no Python with its own tests on the search path: install one by pyenv, or apt-get \
         install libpython3-testsuite python3-full",
    )?;
    println!(
        "{python}: {}",
        process::output(python, &["--version"])?.trim()
    );
    Ok(python.to_owned())
}

fn verdicts(python: &str, directory: &Path, scratch: &Path) -> Result<Verdicts, String> {
    let temporary = directory.join("tmp");
    fs::create_dir(&temporary).map_err(|error| format!("{}: {error}", temporary.display()))?;
    let results = scratch.join("results.xml");
    let mut command = Command::new(python);
    command
        .current_dir(&temporary)
        .env("TMPDIR", &temporary)
        .args(["-m", "test", "-v", "-uall,-network,-urlfetch,-gui"])
        .arg(format!("--tempdir={}", temporary.display()))
        .arg(format!("--junit-xml={}", results.display()))
        .args(TESTS);
    let finished = run::finish(&mut command, PATIENCE)?;
    let text = fs::read_to_string(&results)
        .map_err(|error| format!("no results: {error}\n{}", finished.tail(20)))?;
    let verdicts = parse(&text);
    match verdicts.is_empty() {
        true => Err(format!("no results:\n{}", finished.tail(20))),
        false => Ok(verdicts),
    }
}

/// Reads `<testcase name="…" …>` with what is inside.
fn parse(xml: &str) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for part in xml.split("<testcase ").skip(1) {
        let (head, rest) = part.split_once('>').unwrap_or((part, ""));
        let Some(name) = attribute(head, "name") else {
            continue;
        };
        let body = match head.ends_with('/') {
            true => "",
            false => rest.split("</testcase>").next().unwrap_or_default(),
        };
        let verdict = if body.contains("<error") || body.contains("<failure") {
            let lines: Vec<&str> = body.lines().take(12).collect();
            Verdict::Failed(lines.join("\n"))
        } else if body.contains("<skipped") {
            Verdict::Skipped
        } else {
            Verdict::Passed
        };
        verdicts.insert(name.to_owned(), verdict);
    }
    verdicts
}

fn attribute<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let begin = head.find(&format!("{name}=\""))? + name.len() + 2;
    head[begin..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_results_are_read() {
        let xml = r#"<testsuites><testsuite><testcase name="test.a.A.one" status="run" time="0.1" />
<testcase name="test.a.A.two" status="run"><skipped>no</skipped></testcase>
<testcase name="test.a.A.three" status="run"><failure type="x">AssertionError
1 != 2</failure></testcase></testsuite></testsuites>"#;
        let verdicts = parse(xml);
        assert_eq!(verdicts["test.a.A.one"], Verdict::Passed);
        assert_eq!(verdicts["test.a.A.two"], Verdict::Skipped);
        assert!(
            matches!(&verdicts["test.a.A.three"], Verdict::Failed(text) if text.contains("1 != 2"))
        );
        assert_eq!(verdicts.len(), 3);
    }
}
