//! `larder lab advise`: measures a plan within a time, answers, and writes what Larder is told.
//!
//! * `CLI-27` Nothing of a database changes without `--apply`, and with it only where the advice is
//!   beyond noise, and nothing at all where it rests on times under load.

use crate::args::LabAdviseArgs;
use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::lab::analysis::read;
use crate::output::{Align, Output, Table};
use crate::report::tuning_pairs;
use larder::{Database, SqlValue, Tuning};
use larder_lab::advise::plan::plan;
use larder_lab::advise::settings::ObjectSizes;
use larder_lab::advise::{Advice, advise as advice_of};
use larder_lab::data::Data;
use larder_lab::run::{Request, memory_bytes};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files of a directory whose lengths are looked at, at most.
const FILES_MAX: usize = 200_000;

/// Runs a request into a directory, with images and places in another one, until a moment.
type Measure<'m> = &'m dyn Fn(&Request, &Path, &Path, Instant) -> Result<()>;

/// `larder lab advise`.
pub(crate) fn advise(args: &LabAdviseArgs, out: &mut Output, measure: Measure<'_>) -> Result<()> {
    let database = args.place.as_deref().filter(|place| is_database(place));
    if (args.apply || args.reset) && database.is_none() {
        let place = args.place.as_deref().unwrap_or(Path::new("")).display();
        return Err(Failure::Other(format!(
            "'{place}' is no database, so there is nothing to write settings to; name one \
             ('larder init' makes one)"
        )));
    }
    if let (true, Some(database)) = (args.reset, database) {
        return reset(database, out);
    }
    let runs = match &args.place {
        Some(place) if args.from.is_empty() => measure_plan(args, place, measure)?,
        _ => args.from.clone(),
    };
    let data = Data::new(read(&runs)?);
    let objects = match (database, &args.place) {
        (Some(database), _) => sizes_in_database(database)?,
        (None, Some(place)) => sizes_in_directory(place)?,
        (None, None) => Vec::new(),
    };
    let memory_bytes = memory_bytes().map_err(|error| Failure::Other(error.text))?;
    let objects = ObjectSizes::of(objects, memory_bytes);
    let advice = advice_of(&data, objects.as_ref());
    let applied = match database.filter(|_| args.apply) {
        Some(database) if advice.crowded_count == 0 => Some(apply(database, &advice.tuning)?),
        _ => None,
    };
    tell(&advice, applied.as_ref(), out)?;
    match applied {
        // CLI-27
        None if args.apply => Err(Failure::Other(format!(
            "nothing was applied: {} records were measured under load; measure again on a quiet \
             machine",
            advice.crowded_count
        ))),
        _ => Ok(()),
    }
}

fn is_database(place: &Path) -> bool {
    place.join("catalog.db").exists()
}

/// Runs all parts of the plan that this machine can; returns the directories of the runs.
fn measure_plan(args: &LabAdviseArgs, place: &Path, measure: Measure<'_>) -> Result<Vec<PathBuf>> {
    place.metadata().at(|| place.display().to_string())?;
    // A database is not touched: what is measured is the directory in which it lies. Another place
    // is named in the results as it was given.
    let place = match is_database(place) {
        false => place.to_owned(),
        true => {
            let found = place.canonicalize().at(|| place.display().to_string())?;
            found.parent().unwrap_or(&found).to_owned()
        }
    };
    let to = args
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from("lab-advise"));
    let (started, time) = (
        Instant::now(),
        Duration::from_nanos(args.time.unsigned_abs()),
    );
    let mut runs = Vec::new();
    for part in plan(&place).map_err(|error| Failure::Other(error.text))? {
        let run = to.join(part.name);
        let deadline = started + time.mul_f64(part.until_share);
        measure(&part.request, &run, &place, deadline)?;
        // What this machine cannot make was said; then there is no run.
        if run.join("run.json").exists() {
            runs.push(run);
        }
    }
    if runs.is_empty() {
        return Err(Failure::Other(
            "nothing could be measured; name runs with --from, or another place".to_owned(),
        ));
    }
    Ok(runs)
}

/// The lengths of all files of a database.
fn sizes_in_database(path: &Path) -> Result<Vec<u64>> {
    with_database(path, "lab advise", |database| {
        let mut bytes = Vec::new();
        for store in database.stores().list()? {
            if store.table != store.name {
                continue;
            }
            let sql = format!("SELECT size FROM \"{}\" WHERE kind = 'file'", store.name);
            database.sql().open(true)?.execute(&sql, &mut |row| {
                if let Some(SqlValue::Integer(size)) = row.values.first() {
                    bytes.push(size.unsigned_abs());
                }
                Ok(())
            })?;
        }
        Ok(bytes)
    })
}

/// The lengths of files below a directory, the first [`FILES_MAX`] that are met. What cannot be
/// read is passed over: they are a sample.
fn sizes_in_directory(place: &Path) -> Result<Vec<u64>> {
    let mut bytes = Vec::new();
    let mut directories = vec![place.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            match entry.metadata() {
                Ok(found) if found.is_dir() => directories.push(entry.path()),
                Ok(found) if found.is_file() => bytes.push(found.len()),
                _ => {}
            }
            if bytes.len() == FILES_MAX {
                return Ok(bytes);
            }
        }
    }
    Ok(bytes)
}

/// Writes what is beyond noise; what is not stays as it is (CLI-27). Returns what the database then
/// asks for.
fn apply(path: &Path, advised: &Tuning) -> Result<Tuning> {
    with_database(path, "lab advise", |database| {
        let before = database.maintenance().tuning()?;
        let tuning = Tuning {
            inline_bytes_max: advised.inline_bytes_max.or(before.inline_bytes_max),
            gather_bytes_max: advised.gather_bytes_max.or(before.gather_bytes_max),
        };
        set(database, &tuning)?;
        Ok(tuning)
    })
}

fn reset(path: &Path, out: &mut Output) -> Result<()> {
    let tuning = Tuning::default();
    with_database(path, "lab advise", |database| set(database, &tuning))?;
    if out.is_json() {
        return out.document(&json!({ "applied": json_of(&tuning) }));
    }
    tell_applied(&tuning, out)
}

fn set(database: &Database, tuning: &Tuning) -> Result<()> {
    database
        .maintenance()
        .set_tuning(tuning)
        .at(|| "cannot write the settings".to_owned())
}

fn json_of(tuning: &Tuning) -> Value {
    json!({
        "inline_bytes_max": tuning.inline_bytes_max,
        "gather_bytes_max": tuning.gather_bytes_max,
    })
}

fn tell_applied(tuning: &Tuning, out: &mut Output) -> Result<()> {
    let pairs = tuning_pairs(tuning).map(|(name, value)| format!("{name} {value}"));
    out.line(&format!(
        "the database now has: {}; sessions that are open obey when they are opened again",
        pairs.join(", ")
    ))
}

fn tell(advice: &Advice, applied: Option<&Tuning>, out: &mut Output) -> Result<()> {
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
        return out.document(&json!({
            "advice": advice.paragraph,
            "answers": answers,
            "settings": json_of(&advice.tuning),
            "applied": applied.map(json_of),
        }));
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
    match applied {
        Some(tuning) => tell_applied(tuning, out),
        None => Ok(()),
    }
}
