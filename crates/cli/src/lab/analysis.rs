//! `larder lab report`, `compare` and `advise`: runs are read, the crate of the laboratory answers.

use crate::args::{LabAdviseArgs, LabCompareArgs, LabReportArgs};
use crate::error::{At, Failure, Result, warn};
use crate::output::{Align, Output, Table};
use larder_lab::advise::{Advice, advise as advice_of};
use larder_lab::backend::Spec;
use larder_lab::compare::{self, Comparison};
use larder_lab::data::Data;
use larder_lab::results::{self, Results};
use larder_lab::run::{Experiment, Request};
use larder_lab::{figures, report};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Reads runs, and says what a crash tore off.
fn read(runs: &[PathBuf]) -> Result<Vec<Results>> {
    let mut read = Vec::new();
    for run in runs {
        let results = results::read(run).map_err(|error| Failure::Other(error.to_string()))?;
        if results.torn_bytes > 0 {
            warn(&format!(
                "{}: {} bytes at the end are no whole record and were left out; the command that made the run goes on with it",
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

/// `larder lab advise`; `measure` runs a request into a directory.
pub(crate) fn advise(
    args: &LabAdviseArgs,
    out: &mut Output,
    measure: &dyn Fn(&Request, &Path, &Path) -> Result<()>,
) -> Result<()> {
    let runs = match &args.place {
        None => args.from.clone(),
        Some(place) => {
            let place = place_to_measure(place)?;
            let to = args
                .out
                .clone()
                .unwrap_or_else(|| PathBuf::from("lab-advise"));
            let mut runs = Vec::new();
            for request in requests(&place)? {
                let run = to.join(request.experiment.name());
                measure(&request, &run, &place)?;
                // What this machine cannot make was said; then there is no run.
                if run.join("run.json").exists() {
                    runs.push(run);
                }
            }
            runs
        }
    };
    if runs.is_empty() {
        let text = "nothing could be measured; name runs with --from, or another place";
        return Err(Failure::Other(text.to_owned()));
    }
    tell(&advice_of(&Data::new(read(&runs)?)), out)
}

/// A database is not touched: what is measured is the directory in which it lies.
fn place_to_measure(place: &Path) -> Result<PathBuf> {
    let place = place.canonicalize().at(|| place.display().to_string())?;
    let parent = place.parent().filter(|_| place.join("catalog.db").exists());
    Ok(parent.unwrap_or(&place).to_owned())
}

/// What is measured: rows, files and Larder in the place itself; volumes that become full.
fn requests(place: &Path) -> Result<Vec<Request>> {
    const KIB: u64 = 1024;
    let failure = |error: larder_lab::error::Error| Failure::Other(error.text);
    let request = |experiment| Request::new(experiment).map_err(failure);
    let mut sizes = request(Experiment::BreakEven)?;
    let in_place = ["sqlite", "dir", "larder"].map(|kind| format!("{kind}:{}", place.display()));
    let specs = in_place
        .iter()
        .map(|text| Spec::parse(text).map_err(failure));
    sizes.backends = specs.collect::<Result<_>>()?;
    sizes.objects = [4, 16, 64, 256].map(|kib| kib * KIB).to_vec();
    sizes.volumes = vec![24 * KIB * KIB];
    sizes.reads_max = 500;
    sizes.rounds = 3;
    let mut volume = request(Experiment::Volume)?;
    let specs = ["ext4", "larder"].map(|text| Spec::parse(text).map_err(failure));
    volume.backends = specs.into_iter().collect::<Result<_>>()?;
    volume.reads_max = 100;
    volume.rounds = 2;
    Ok(vec![sizes, volume])
}

fn tell(advice: &Advice, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let answers: Vec<_> = advice
            .answers
            .iter()
            .map(|answer| {
                json!({
                    "question": answer.question,
                    "answer": answer.answer,
                    "ground": answer.ground,
                    "is_sure": answer.is_sure,
                })
            })
            .collect();
        return out.document(&json!({"advice": advice.paragraph, "answers": answers}));
    }
    out.line(&advice.paragraph)?;
    out.line("")?;
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Left]);
    table.row(
        ["QUESTION", "ANSWER", "MEASURED"]
            .map(str::to_owned)
            .to_vec(),
    );
    for answer in &advice.answers {
        table.row(vec![
            answer.question.clone(),
            answer.answer.clone(),
            answer.ground.clone(),
        ]);
    }
    for line in table.take_lines() {
        out.line(&line)?;
    }
    Ok(())
}
