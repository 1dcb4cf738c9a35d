//! git: clone, change, gc, fsck of a large repository on the mount; the work tree equals a clone
//! beside it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use larder_testkit::Rng;

use super::judge::Cases;
use super::run::shell;
use super::site::Site;
use xtask::Tally;

const PATIENCE: Duration = Duration::from_secs(1200);
const SEED: u64 = 7;
/// Commits of the repository.
const COMMITS: u64 = 40;
/// Files of one directory.
const FILES_PER_DIRECTORY: u64 = 50;

/// A change that both clones make; it must come out as the same tree.
const CHANGE: &str = r#"
cd "$1"
git switch -q -c changed
for file in $(git ls-files | awk 'NR % 37 == 0'); do echo changed >> "$file"; done
git ls-files | awk 'NR % 101 == 1' | xargs git rm -q --force
for file in $(git ls-files | awk 'NR % 211 == 2'); do git mv "$file" "$file.moved"; done
git -c user.name=t -c user.email=t@example.org commit -qam changed
git status --porcelain
git rev-parse 'HEAD^{tree}'
"#;

/// Runs all steps; each is a case.
pub fn run(site: &Site) -> Result<Tally, String> {
    let files = site.length.choose(800, 20_000);
    let source = site.scratch().join("source.git");
    generate(site, &source, files)?;
    let here = site.directory("clones")?.join("clone");
    let there = site.mountpoint().join("clone");
    let second = site.mountpoint().join("second");
    let mount = site.mount()?;
    shell("git clone -q \"$1\" \"$2\"", &[&source, &here], PATIENCE)?;

    let mut cases = Cases::default();
    let quietly = |script: &str, paths: &[&Path]| -> Result<(), String> {
        match shell(script, paths, PATIENCE)?.trim() {
            "" => Ok(()),
            said => Err(format!("'{script}' says: {said}")),
        }
    };
    let same = || {
        quietly(
            "diff -r --no-dereference --exclude=.git \"$1\" \"$2\"",
            &[&here, &there],
        )
    };
    let fsck = |path: &Path| {
        quietly(
            "git -C \"$1\" fsck --full --strict --no-progress --no-dangling",
            &[path],
        )
    };
    let status = |path: &Path| quietly("git -C \"$1\" status --porcelain", &[path]);
    let tree_of = |path: &Path| shell(CHANGE, &[path], PATIENCE);
    if cases.run(&format!("clone {files} files"), || {
        quietly("git clone -q --no-local \"$1\" \"$2\"", &[&source, &there])
    }) {
        cases.run("status", || status(&there));
        cases.run("the same work tree", same);
        cases.run("commit the same change", || {
            match (tree_of(&here)?, tree_of(&there)?) {
                (a, b) if a == b => Ok(()),
                (a, b) => Err(format!("trees differ: {a} {b}")),
            }
        });
        cases.run("fsck", || fsck(&there));
        cases.run("gc", || {
            quietly("git -C \"$1\" gc -q --prune=now", &[&there])
        });
        cases.run("fsck after gc", || fsck(&there));
        cases.run("clone on the mount, with hard links", || {
            quietly("git clone -q \"$1\" \"$2\"", &[&there, &second])?;
            fsck(&second)
        });
        cases.run("switch back and forth", || {
            let script = "git -C \"$1\" switch -q master && git -C \"$1\" switch -q changed";
            quietly(script, &[&there])?;
            status(&there)
        });
        cases.run("unmount, check, mount", || site.finish(mount));
        let mount = site.mount()?;
        cases.run("status after a remount", || status(&there));
        cases.run("fsck after a remount", || fsck(&there));
        cases.run("the same work tree after a remount", same);
        cases.run("clean afterwards", || site.finish(mount));
    }
    Ok(cases.tally())
}

/// A repository of `files` files in [`COMMITS`] commits.
fn generate(site: &Site, repository: &Path, files: u64) -> Result<(), String> {
    let stream = site.scratch().join("stream");
    let explain = |error| format!("{}: {error}", stream.display());
    let mut out = BufWriter::new(File::create(&stream).map_err(explain)?);
    write_stream(&mut out, files)
        .and_then(|()| out.flush())
        .map_err(explain)?;
    let script =
        "git init -q --bare -b master \"$1\" && git -C \"$1\" fast-import --quiet < \"$2\"";
    shell(script, &[repository, &stream], PATIENCE).map(drop)
}

/// Each commit adds its share of the files and changes some of the older ones.
fn write_stream(out: &mut dyn Write, files: u64) -> std::io::Result<()> {
    let mut rng = Rng::new(SEED);
    let mut written = 0;
    for commit in 0..COMMITS {
        writeln!(out, "commit refs/heads/master")?;
        writeln!(
            out,
            "committer t <t@example.org> {} +0000",
            1_700_000_000 + commit
        )?;
        writeln!(out, "data 6\ncommit")?;
        let end = files * (commit + 1) / COMMITS;
        let mut changed: Vec<u64> = (0..written / 50).map(|_| rng.below(written)).collect();
        changed.extend(written..end);
        written = end;
        for file in changed {
            let text = text(&mut rng);
            let directory = file / FILES_PER_DIRECTORY;
            writeln!(
                out,
                "M 100644 inline part-{}/directory-{directory}/file-{file}.txt",
                directory % 16
            )?;
            writeln!(out, "data {}\n{text}", text.len())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Mostly short, sometimes long; it compresses as text does.
fn text(rng: &mut Rng) -> String {
    let lines = 1 + rng.below(20) * rng.below(20);
    let mut text = String::new();
    for _ in 0..lines {
        for _ in 0..1 + rng.below(8) {
            text.push_str(&format!("{:x} ", rng.below(4096)));
        }
        text.push('\n');
    }
    text
}
