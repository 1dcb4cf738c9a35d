//! `larder df`, `frag` and `check`: how a database is doing.

use crate::args::{CheckArgs, DfArgs, FragArgs};
use crate::databases::{with_database, with_untrusted_database};
use crate::error::{At, Failure, Result, warn};
use crate::output::{Align, Output, Table};
use crate::retention::{history_json, history_summary};
use crate::units::{percent, show_size};
use crate::visible::visible;
use indicatif::{ProgressBar, ProgressStyle};
use larder::directory::DatabaseDir;
use larder::limits::INLINE_BYTES_MAX;
use larder::{
    CheckReport, Database, FragReport, SpaceReport, Trust, Tuning, find_damage,
    gather_bytes_default,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// `larder df`.
pub(crate) fn df(args: &DfArgs, out: &mut Output) -> Result<()> {
    let (report, tuning, history, stats) = with_database(&args.db, "df", |database| {
        let stats = database.maintenance().stats()?;
        let parts = (
            database.maintenance().space()?,
            database.maintenance().tuning()?,
            database.history().report()?,
        );
        Ok((parts.0, parts.1, parts.2, stats))
    })?;
    let (shared, pages) = (stats.shared_bytes, stats.map_page_bytes);
    if out.is_json() {
        let mut document = space_json(&report, &tuning);
        document["history"] = history_json(&history);
        document["shared_bytes"] = shared.into();
        document["map_page_bytes"] = pages.into();
        return out.document(&document);
    }
    let mut pairs = space_pairs(&report);
    pairs.push(("history", history_summary(&history)));
    if shared > 0 {
        let shown = format!(
            "{} (what clones would take more if they shared nothing)",
            show_size(shared)
        );
        pairs.push(("shared", shown));
    }
    if pages > 0 {
        let shown = format!(
            "{} of the catalog, pages of maps that clones have, or had, together",
            show_size(pages)
        );
        pairs.push(("map pages", shown));
    }
    pairs.extend(tuning_pairs(&tuning));
    print_pairs(out, &pairs)
}

/// What the database asks of the engine, or what the engine does if it asks for nothing.
pub(crate) fn tuning_pairs(tuning: &Tuning) -> [(&'static str, String); 2] {
    let said = |chosen: Option<u64>, default: u64| match chosen {
        Some(bytes) => format!("{} (set for this database)", show_size(bytes)),
        None => format!("{} (default)", show_size(default)),
    };
    [
        (
            "inline",
            format!("up to {}", said(tuning.inline_bytes_max, INLINE_BYTES_MAX)),
        ),
        (
            "gather",
            said(tuning.gather_bytes_max, gather_bytes_default()),
        ),
    ]
}

fn space_json(report: &SpaceReport, tuning: &Tuning) -> Value {
    json!({
        "capacity_bytes": report.capacity_bytes,
        "segment_bytes": report.segment_bytes,
        "live_bytes": report.live_bytes,
        "retired_bytes": report.retired_bytes,
        "spare_bytes": report.spare_bytes,
        "used_bytes": report.used_bytes(),
        "free_bytes": report.free_bytes,
        "available_bytes": report.available_bytes,
        "catalog_bytes": report.catalog_bytes,
        "inode_count": report.inode_count,
        "inline_bytes_max": tuning.inline_bytes_max.unwrap_or(INLINE_BYTES_MAX),
        "gather_bytes_max": tuning.gather_bytes_max.unwrap_or_else(gather_bytes_default),
    })
}

fn space_pairs(report: &SpaceReport) -> Vec<(&'static str, String)> {
    // As df(1) has it.
    let used = report.used_bytes();
    let usable = used.saturating_add(report.available_bytes);
    let gives_way = match report.spare_bytes {
        0 => String::new(),
        spare => format!("; {} of it gives way to new content", show_size(spare)),
    };
    vec![
        ("capacity", show_size(report.capacity_bytes)),
        ("live", show_size(report.live_bytes)),
        (
            "retired",
            format!(
                "{} (replaced or deleted, not reclaimed yet{gives_way})",
                show_size(report.retired_bytes)
            ),
        ),
        ("free", show_size(report.free_bytes)),
        (
            "available",
            format!(
                "{} (free and given way, less what is held back)",
                show_size(report.available_bytes)
            ),
        ),
        ("in use", format!("{} %", percent(used, usable))),
        ("segments", show_size(report.segment_bytes)),
        ("catalog", show_size(report.catalog_bytes)),
        ("inodes", report.inode_count.to_string()),
    ]
}

/// `larder frag`.
pub(crate) fn frag(args: &FragArgs, out: &mut Output) -> Result<()> {
    if args.map {
        return crate::map::draw(&args.db, out);
    }
    let report = with_database(&args.db, "frag", |database| {
        Ok(database.maintenance().frag()?)
    })?;
    if out.is_json() {
        return out.document(&frag_json(&report));
    }
    print_pairs(out, &frag_pairs(&report))?;
    let mut table = Table::new(&[Align::Right, Align::Right, Align::Right, Align::Right]);
    let header = ["objects of", "count", "mean", "most"];
    table.row(header.map(str::to_owned).to_vec());
    for class in &report.size_classes {
        table.row(vec![
            format!("  {} or more", show_size(class.lower_bytes)),
            class.object_count.to_string(),
            format!(
                "{:.3}",
                class.fragment_count as f64 / class.object_count as f64
            ),
            class.fragments_max.to_string(),
        ]);
    }
    let lines = table.take_lines();
    lines.iter().try_for_each(|line| out.line(line))?;
    let mut table = Table::new(&[Align::Right, Align::Right]);
    for (lower_bytes, count) in &report.hole_histogram {
        table.row(vec![
            format!("  holes of {} or more", show_size(*lower_bytes)),
            count.to_string(),
        ]);
    }
    table
        .take_lines()
        .iter()
        .try_for_each(|line| out.line(line))
}

fn frag_json(report: &FragReport) -> Value {
    let worst = report
        .worst
        .as_ref()
        .map(|(store, path)| json!({ "store": store.0, "path": path }));
    let histogram: Vec<Value> = report
        .hole_histogram
        .iter()
        .map(|(lower_bytes, count)| json!({ "lower_bytes": lower_bytes, "count": count }))
        .collect();
    let classes: Vec<Value> = report
        .size_classes
        .iter()
        .map(|class| {
            json!({
                "lower_bytes": class.lower_bytes,
                "object_count": class.object_count,
                "fragment_count": class.fragment_count,
                "fragments_max": class.fragments_max,
            })
        })
        .collect();
    json!({
        "object_count": report.object_count,
        "fragment_count": report.fragment_count,
        "fragments_per_object_mean": report.fragments_per_object_mean,
        "fragments_per_object_p50": report.fragments_per_object_p50,
        "fragments_per_object_p99": report.fragments_per_object_p99,
        "fragments_per_object_max": report.fragments_per_object_max,
        "worst": worst,
        "storage_age": report.storage_age,
        "size_classes": classes,
        "hole_count": report.hole_count,
        "hole_bytes": report.hole_bytes,
        "hole_score": report.hole_score,
        "free_pool_objects": report.free_pool_objects,
        "largest_hole_bytes": report.largest_hole_bytes,
        "hole_histogram": histogram,
    })
}

fn frag_pairs(report: &FragReport) -> Vec<(&'static str, String)> {
    let worst = report
        .worst
        .as_ref()
        .map_or(String::new(), |(_, path)| format!(" ({path})"));
    vec![
        ("objects", report.object_count.to_string()),
        ("fragments", report.fragment_count.to_string()),
        (
            "per object, mean",
            format!("{:.3}", report.fragments_per_object_mean),
        ),
        (
            "per object, median",
            report.fragments_per_object_p50.to_string(),
        ),
        (
            "per object, 99th percentile",
            report.fragments_per_object_p99.to_string(),
        ),
        (
            "per object, most",
            format!("{}{worst}", report.fragments_per_object_max),
        ),
        ("storage age", format!("{:.2}", report.storage_age)),
        ("holes", report.hole_count.to_string()),
        ("largest hole", show_size(report.largest_hole_bytes)),
        (
            "free in segments",
            format!(
                "{} ({:.1} objects of mean size)",
                show_size(report.hole_bytes),
                report.free_pool_objects
            ),
        ),
    ]
}

/// `larder check`.
pub(crate) fn check(args: &CheckArgs, out: &mut Output) -> Result<()> {
    let mended = match args.fix_modes {
        true => mend_modes(&args.db)?,
        false => Vec::new(),
    };
    let bar = check_bar();
    let mut found = None;
    let look = |database: &Database| {
        found = Some(
            database
                .maintenance()
                .check(args.read, &mut |done_bytes, total_bytes| {
                    bar.set_length(total_bytes);
                    bar.set_position(done_bytes);
                })?,
        );
        Ok(())
    };
    let ended = match args.untrusted {
        true => with_untrusted_database(&args.db, "check", look),
        false => with_database(&args.db, "check", look),
    };
    bar.finish_and_clear();
    let report = match (found, ended) {
        (Some(report), Ok(())) => report,
        // What is damaged may be needed to close it.
        (Some(report), Err(_)) if !report.findings.is_empty() => report,
        (None, Err(Failure::Larder(error))) if error.is_of_catalog() => {
            // It cannot be opened: the catalog alone is looked at.
            let trust = match args.untrusted {
                true => Trust::Nobody,
                false => Trust::of_environment(),
            };
            let findings = find_damage(&args.db, trust)?;
            if findings.is_empty() {
                return Err(error.into());
            }
            let mut report = CheckReport::default();
            report.findings = findings;
            report
        }
        (_, Err(failure)) => return Err(failure),
        (None, Ok(())) => unreachable!("a check that ends well has a report"),
    };
    let open = find_open_to_others(&args.db)?;
    print_check(&report, (&mended, &open), out)?;
    if report.findings.is_empty() {
        Ok(())
    } else {
        Err(Failure::Told(1))
    }
}

fn mend_modes(db: &Path) -> Result<Vec<PathBuf>> {
    let mended = DatabaseDir::open(db).and_then(|directory| directory.mend_modes());
    mended.at(|| format!("cannot change the modes of '{}'", db.display()))
}

fn find_open_to_others(db: &Path) -> Result<Vec<PathBuf>> {
    let found = DatabaseDir::open(db).and_then(|directory| directory.open_to_others());
    found.at(|| format!("cannot examine '{}'", db.display()))
}

fn paths(found: &[PathBuf]) -> Vec<String> {
    let texts = found.iter().map(|path| path.to_string_lossy().into_owned());
    texts.collect()
}

fn print_check(
    report: &CheckReport,
    (mended, open): (&[PathBuf], &[PathBuf]),
    out: &mut Output,
) -> Result<()> {
    if out.is_json() {
        return out.document(&json!({
            "clean": report.findings.is_empty(),
            "findings": report.findings,
            "notes": report.notes,
            "inode_count": report.inode_count,
            "extent_count": report.extent_count,
            "verified_bytes": report.verified_bytes,
            "modes_mended": paths(mended),
            "open_to_others": paths(open),
        }));
    }
    if !mended.is_empty() {
        out.line(&format!(
            "modes of {} files and directories mended",
            mended.len()
        ))?;
    }
    if let Some(first) = open.first() {
        let more = match open.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more in the database"),
        };
        warn(&format!(
            "warning: other users may read or use '{}'{more}, and so what is in the database \
             whatever modes the mount shows; 'larder check --fix-modes' takes that from them",
            first.display()
        ));
    }
    for finding in &report.findings {
        out.line(&visible(finding))?;
    }
    for note in &report.notes {
        out.line(&format!("note: the user's {}", visible(note)))?;
    }
    if report.findings.is_empty() {
        let looked_at = format!(
            "{} inodes, {} extents",
            report.inode_count, report.extent_count
        );
        out.line(&format!(
            "clean: {looked_at}, {} read and verified",
            show_size(report.verified_bytes)
        ))?;
    }
    Ok(())
}

/// A bar on stderr; draws nothing when that is no terminal.
fn check_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    match ProgressStyle::with_template("checking {bar:30} {bytes}/{total_bytes} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => unreachable!("the template is constant and correct"),
    }
}

pub(crate) fn print_pairs(out: &mut Output, pairs: &[(&str, String)]) -> Result<()> {
    let mut table = Table::new(&[Align::Left, Align::Left]);
    for (name, value) in pairs {
        table.row(vec![(*name).to_owned(), value.clone()]);
    }
    table
        .take_lines()
        .iter()
        .try_for_each(|line| out.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_others_build_on_are_there() {
        let mut report = FragReport::default();
        report.fragments_per_object_mean = 1.0;
        let json = frag_json(&report);
        for key in [
            "fragments_per_object_mean",
            "fragments_per_object_p99",
            "fragments_per_object_max",
            "storage_age",
        ] {
            assert!(json[key].is_number(), "{key}");
        }
    }

    #[test]
    fn a_full_database_reads_full() {
        let mut report = SpaceReport::default();
        report.capacity_bytes = 100;
        report.live_bytes = 90;
        report.retired_bytes = 10;
        assert!(space_pairs(&report).contains(&("in use", "100 %".into())));
    }

    #[test]
    fn the_template_of_the_bar_is_correct() {
        check_bar();
    }
}
