//! `larder defrag` and `larder shrink`: content moves, online.

use crate::args::{DefragArgs, ShrinkArgs};
use crate::databases::with_database;
use crate::error::{At, Result};
use crate::output::Output;
use crate::report::print_pairs;
use crate::units::show_size;
use crate::visible::visible;
use indicatif::{ProgressBar, ProgressStyle};
use larder::{DefragObject, DefragOptions, DefragReport, ShrinkReport};
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;

/// `larder defrag`.
pub(crate) fn defrag(args: &DefragArgs, out: &mut Output) -> Result<()> {
    let options = DefragOptions {
        is_dry: args.dry_run,
    };
    let mut told = Ok(());
    let mut objects = Vec::new();
    let is_json = out.is_json();
    let report = with_database(&args.db, "defrag", |database| {
        let mut below = Vec::new();
        for path in &args.paths {
            let found = database.nodes().resolve(path.as_bytes(), true);
            let attr = found.at(|| format!("cannot defrag '{}'", path.to_string_lossy()))?;
            below.push(attr.node);
        }
        Ok(database
            .maintenance()
            .defrag(&below, &options, &mut |object| {
                if is_json {
                    objects.push(object_json(object));
                } else if told.is_ok() {
                    told = out.line(&object_line(object));
                }
            })?)
    })?;
    told?;
    if is_json {
        return out.document(&defrag_json(&report, objects));
    }
    print_pairs(out, &defrag_pairs(&report))
}

fn object_line(object: &DefragObject) -> String {
    format!(
        "{}: {} -> {} fragments, {} moved",
        visible(&object.path),
        object.fragments_before,
        object.fragments_after,
        show_size(object.moved_bytes)
    )
}

fn object_json(object: &DefragObject) -> Value {
    json!({
        "store": object.store.0,
        "path": object.path,
        "fragments_before": object.fragments_before,
        "fragments_after": object.fragments_after,
        "moved_bytes": object.moved_bytes,
    })
}

fn defrag_json(report: &DefragReport, objects: Vec<Value>) -> Value {
    json!({
        "dry_run": report.is_dry,
        "object_count": report.object_count,
        "fragmented_count": report.fragmented_count,
        "healed_count": report.healed_count,
        "fragments_before": report.fragments_before,
        "fragments_after": report.fragments_after,
        "moved_bytes": report.moved_bytes,
        "join_bytes": report.join_bytes,
        "hole_score_before": report.hole_score_before,
        "hole_score_after": report.hole_score_after,
        "largest_hole_bytes_before": report.largest_hole_bytes_before,
        "largest_hole_bytes_after": report.largest_hole_bytes_after,
        "objects": objects,
    })
}

fn defrag_pairs(report: &DefragReport) -> Vec<(&'static str, String)> {
    let moved = if report.is_dry { "would move" } else { "moved" };
    vec![
        (
            "objects",
            format!(
                "{}, of them {} in several pieces",
                report.object_count, report.fragmented_count
            ),
        ),
        (
            "their fragments",
            format!("{} -> {}", report.fragments_before, report.fragments_after),
        ),
        (
            moved,
            format!(
                "{}, of that {} to join holes",
                show_size(report.moved_bytes),
                show_size(report.join_bytes)
            ),
        ),
        (
            "largest hole",
            format!(
                "{} -> {}",
                show_size(report.largest_hole_bytes_before),
                show_size(report.largest_hole_bytes_after)
            ),
        ),
    ]
}

/// `larder shrink`.
pub(crate) fn shrink(args: &ShrinkArgs, out: &mut Output) -> Result<()> {
    let bar = shrink_bar();
    let report = with_database(&args.db, "shrink", |database| {
        let shrunk = database.maintenance().shrink(
            args.to,
            args.dry_run,
            &mut |moved_bytes, total_bytes| {
                bar.set_length(total_bytes);
                bar.set_position(moved_bytes);
            },
        );
        shrunk.at(|| format!("cannot shrink '{}'", args.db.display()))
    });
    bar.finish_and_clear();
    let report = report?;
    if out.is_json() {
        return out.document(&shrink_json(&report));
    }
    out.line(&shrink_line(&report))
}

fn shrink_json(report: &ShrinkReport) -> Value {
    json!({
        "dry_run": report.is_dry,
        "segment_bytes_before": report.segment_bytes_before,
        "segment_bytes_after": report.segment_bytes_after,
        "moved_bytes": report.moved_bytes,
        "shared_bytes": report.shared_bytes,
    })
}

fn shrink_line(report: &ShrinkReport) -> String {
    let (verb, moved) = match report.is_dry {
        true => ("would shrink", "would be moved"),
        false => ("shrunk", "moved"),
    };
    let shared = match report.shared_bytes {
        0 => String::new(),
        bytes => format!(
            "; {} at the end are not moved, since clones share them: remove those clones, or copy \
             them ('larder cp -a')",
            show_size(bytes)
        ),
    };
    format!(
        "{verb} from {} to {}, {} {moved}{shared}",
        show_size(report.segment_bytes_before),
        show_size(report.segment_bytes_after),
        show_size(report.moved_bytes)
    )
}

/// A bar on stderr; draws nothing when that is no terminal.
fn shrink_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    match ProgressStyle::with_template("moving {bar:30} {bytes}/{total_bytes} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => unreachable!("the template is constant and correct"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_of_the_bar_is_correct() {
        shrink_bar();
    }
}
