//! Verdicts of the same cases on both sides, and what they count.

use std::collections::BTreeMap;

use xtask::Tally;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As it must.
    Passed,
    /// Not as it must; the text says what was seen.
    Failed(String),
    /// It did not run.
    Skipped,
}

/// Verdicts by the name of the case.
pub type Verdicts = BTreeMap<String, Verdict>;

/// What `ours` counts where ext4 is the judge. Prints each failure, and what was not counted.
pub fn judge(ours: &Verdicts, ext4: &Verdicts) -> Tally {
    let (mut tally, mut skipped, mut not_ours) = (Tally::default(), 0, 0);
    for (name, verdict) in ours {
        match (verdict, ext4.get(name)) {
            (Verdict::Passed, _) => tally.passed += 1,
            (Verdict::Skipped, Some(Verdict::Skipped)) => skipped += 1,
            (Verdict::Failed(what), Some(Verdict::Failed(_))) => {
                not_ours += 1;
                println!("fails on ext4 too: {name}: {}", first_line(what));
            }
            (Verdict::Failed(what), _) => {
                tally.failed += 1;
                println!("failed: {name}: {what}");
            }
            (Verdict::Skipped, _) => {
                tally.failed += 1;
                println!("failed: {name}: skipped, but runs on ext4");
            }
        }
    }
    for name in ext4.keys().filter(|name| !ours.contains_key(*name)) {
        tally.failed += 1;
        println!("failed: {name}: runs on ext4 only");
    }
    println!(
        "{} cases: {} passed, {} failed; {skipped} skipped on both sides, {not_ours} failed on \
         both",
        ours.len(),
        tally.passed,
        tally.failed
    );
    tally
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

/// Cases that stand for themselves: counts them, and prints each with its verdict.
#[derive(Debug, Default)]
pub struct Cases {
    tally: Tally,
}

impl Cases {
    /// Runs a case. Returns whether it passed.
    pub fn run(&mut self, name: &str, case: impl FnOnce() -> Result<(), String>) -> bool {
        let started = std::time::Instant::now();
        let outcome = case();
        let seconds = started.elapsed().as_secs_f64();
        match &outcome {
            Ok(()) => {
                println!("    ok  {seconds:7.1} s  {name}");
                self.tally.passed += 1;
            }
            Err(line) => {
                println!("FAILED  {seconds:7.1} s  {name}\nfailed: {line}");
                self.tally.failed += 1;
            }
        }
        outcome.is_ok()
    }

    /// What was counted.
    pub fn tally(self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_is_the_judge() {
        let failed = || Verdict::Failed("so".to_owned());
        let verdicts = |list: &[(&str, Verdict)]| -> Verdicts {
            list.iter()
                .map(|(name, verdict)| ((*name).to_owned(), verdict.clone()))
                .collect()
        };
        let ours = verdicts(&[
            ("both pass", Verdict::Passed),
            ("better than ext4", Verdict::Passed),
            ("both fail", failed()),
            ("both skip", Verdict::Skipped),
            ("ours fails", failed()),
            ("ours skips", Verdict::Skipped),
            ("ours fails what ext4 skips", failed()),
        ]);
        let ext4 = verdicts(&[
            ("both pass", Verdict::Passed),
            ("better than ext4", failed()),
            ("both fail", failed()),
            ("both skip", Verdict::Skipped),
            ("ours fails", Verdict::Passed),
            ("ours skips", Verdict::Passed),
            ("ours fails what ext4 skips", Verdict::Skipped),
            ("ours lacks", Verdict::Passed),
        ]);
        assert_eq!(
            judge(&ours, &ext4),
            Tally {
                passed: 2,
                failed: 4
            }
        );
    }
}
