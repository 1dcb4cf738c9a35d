//! `larder lab report` and `compare`: runs are read, the crate of the laboratory answers.

use crate::args::{LabCompareArgs, LabReportArgs};
use crate::error::{Failure, Result, warn};
use crate::output::{Align, Output, Table};
use larder_lab::compare::{self, Comparison};
use larder_lab::results::{self, Results};
use larder_lab::{figures, report};
use serde_json::json;
use std::path::PathBuf;

/// Reads runs, and says what a crash tore off.
pub(super) fn read(runs: &[PathBuf]) -> Result<Vec<Results>> {
    let mut read = Vec::new();
    for run in runs {
        let results = results::read(run).map_err(|error| Failure::Other(error.to_string()))?;
        if results.torn_bytes > 0 {
            warn(&format!(
                "{}: {} bytes at the end are no whole record and were left out; the command that \
                 made the run goes on with it",
                run.display(),
                results.torn_bytes
            ));
        }
        read.push(results);
    }
    Ok(read)
}

/// `larder lab report`.
pub(crate) fn report(args: &LabReportArgs, out: &mut Output) -> Result<()> {
    let runs = read(&args.runs)?;
    let to = match (&args.to, args.runs.as_slice()) {
        (Some(to), _) => to.clone(),
        (None, [run]) => run.join("report"),
        (None, _) => PathBuf::from("lab-report"),
    };
    let written = report::write(runs, &to).map_err(|error| Failure::Other(error.to_string()))?;
    if out.is_json() {
        let missing: Vec<_> = written
            .missing
            .iter()
            .map(|(id, command)| json!({"figure": id, "command": command}))
            .collect();
        return out.document(&json!({
            "page": written.page.to_string_lossy(),
            "figures": written.drawn,
            "missing": missing,
        }));
    }
    let count = written.drawn.len();
    out.line(&format!(
        "{} with {count} figures, also as SVG and PNG",
        written.page.display()
    ))?;
    let mut commands: Vec<&str> = written
        .missing
        .iter()
        .map(|(_, command)| *command)
        .collect();
    commands.sort_unstable();
    commands.dedup();
    for command in commands {
        let ids = written
            .missing
            .iter()
            .filter(|(_, other)| *other == command);
        let ids: Vec<&str> = ids.map(|(id, _)| *id).collect();
        out.line(&format!(
            "  not in these runs: {} ({command})",
            ids.join(", ")
        ))?;
    }
    Ok(())
}

/// `larder lab compare`.
pub(crate) fn compare(args: &LabCompareArgs, out: &mut Output) -> Result<()> {
    let first = read(std::slice::from_ref(&args.first))?;
    let second = read(std::slice::from_ref(&args.second))?;
    let comparison = compare::compare(&first[0], &second[0], args.all);
    if out.is_json() {
        return out.document(&json_of(&comparison));
    }
    for (name, a, b) in &comparison.differing {
        out.line(&format!("{name}: {a} in A, {b} in B"))?;
    }
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Left,
    ]);
    let title = ["SYSTEM", "CASE", "AGE", "MEASURE", "A", "B", "RATIO", ""];
    table.row(title.map(str::to_owned).to_vec());
    let said = |value: f64| figures::scale::say(value, figures::scale::Unit::Plain);
    for line in &comparison.lines {
        table.row(vec![
            line.system.clone(),
            line.case.clone(),
            said(line.age),
            line.measure.clone(),
            said(line.first),
            said(line.second),
            line.ratio_said(),
            line.verdict.said().to_owned(),
        ]);
    }
    if !comparison.lines.is_empty() {
        for line in table.take_lines() {
            out.line(&line)?;
        }
    }
    out.line(&comparison.in_short())
}

fn json_of(comparison: &Comparison) -> serde_json::Value {
    let lines: Vec<_> = comparison
        .lines
        .iter()
        .map(|line| {
            json!({
                "system": line.system,
                "case": line.case,
                "age": line.age,
                "measure": line.measure,
                "a": line.first,
                "b": line.second,
                "ratio": line.ratio.value,
                "low": line.ratio.low,
                "high": line.ratio.high,
                "confidence": line.ratio.confidence,
                "verdict": line.verdict.said(),
            })
        })
        .collect();
    let differing: Vec<_> = comparison
        .differing
        .iter()
        .map(|(name, a, b)| json!({"name": name, "a": a, "b": b}))
        .collect();
    json!({"summary": comparison.in_short(), "differing": differing, "figures": lines})
}
