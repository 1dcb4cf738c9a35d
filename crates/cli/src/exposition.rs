//! The numbers of a mount in the text format of Prometheus, version 0.0.4. Pure.

use larder::{FragReport, Gauges, SpaceReport};
use larder_fuse::{LATENCY_BOUNDS_NS, MetricsSnapshot, error_name, operation_name};
use std::fmt::{Display, Write};

/// Everything, one family after another.
pub(crate) fn expose(
    metrics: &MetricsSnapshot,
    open_handle_count: u64,
    gauges: &Gauges,
    space: &SpaceReport,
    frag: &FragReport,
) -> String {
    let mut out = Exposition::default();
    operations(&mut out, metrics);
    out.counter(
        "larder_read_bytes_total",
        "Content given to programs",
        metrics.read_bytes,
    );
    out.counter(
        "larder_written_bytes_total",
        "Content taken from programs",
        metrics.written_bytes,
    );
    for (name, help, value) in [
        (
            "larder_requests_in_flight",
            "Requests of the kernel being served",
            metrics.in_flight,
        ),
        (
            "larder_open_handles",
            "Files and directories that programs have open",
            open_handle_count,
        ),
        (
            "larder_resident_bytes",
            "Memory of the process",
            gauges.resident_bytes,
        ),
        (
            "larder_dirty_bytes",
            "Memory of content that waits to be written",
            gauges.dirty_bytes,
        ),
        (
            "larder_dirty_bytes_max",
            "Memory of content at which writers wait",
            gauges.dirty_bytes_max,
        ),
        (
            "larder_kept_bytes",
            "Memory of clean content that is kept",
            gauges.kept_bytes,
        ),
        (
            "larder_dirty_inodes",
            "Inodes with changes that wait for a commit",
            gauges.dirty_inode_count,
        ),
        (
            "larder_cached_inodes",
            "Inodes in memory",
            gauges.cached_inode_count,
        ),
        (
            "larder_cached_inode_bytes",
            "What inodes in memory keep of the catalog",
            gauges.cached_inode_bytes,
        ),
        (
            "larder_redo_bytes",
            "Small overwrites that wait to be written in place",
            gauges.redo_bytes,
        ),
        (
            "larder_reserved_bytes",
            "Space reserved for writes",
            gauges.reserved_bytes,
        ),
        (
            "larder_gather_candidates",
            "Objects that wait to be gathered into one piece",
            gauges.candidate_count,
        ),
        (
            "larder_compact_credit_bytes",
            "Bytes that compaction may move",
            gauges.compact_credit_bytes,
        ),
        (
            "larder_wal_bytes",
            "The write-ahead log of the catalog",
            gauges.wal_bytes,
        ),
        (
            "larder_capacity_bytes",
            "Content the database may hold",
            space.capacity_bytes,
        ),
        (
            "larder_segment_bytes",
            "Preallocated in segments",
            space.segment_bytes,
        ),
        (
            "larder_live_bytes",
            "Held by content that can be reached",
            space.live_bytes,
        ),
        (
            "larder_retired_bytes",
            "Held by content that waits to be reclaimed",
            space.retired_bytes,
        ),
        (
            "larder_spare_bytes",
            "Of the retired ones, those that history gives up when writes need them",
            space.spare_bytes,
        ),
        (
            "larder_free_bytes",
            "Free space, what is held back included",
            space.free_bytes,
        ),
        (
            "larder_available_bytes",
            "Free space that writes may take",
            space.available_bytes,
        ),
        (
            "larder_catalog_bytes",
            "The files of the catalog",
            space.catalog_bytes,
        ),
        ("larder_inodes", "Inodes", space.inode_count),
        (
            "larder_objects",
            "Objects that hold space",
            frag.object_count,
        ),
        (
            "larder_fragments",
            "Pieces that objects lie in",
            frag.fragment_count,
        ),
        (
            "larder_fragments_per_object_max",
            "Pieces of the worst object",
            frag.fragments_per_object_max,
        ),
        ("larder_holes", "Holes in the free space", frag.hole_count),
        (
            "larder_largest_hole_bytes",
            "The largest hole",
            frag.largest_hole_bytes,
        ),
    ] {
        out.family(name, "gauge", help);
        out.sample(name, "", value);
    }
    out.counter(
        "larder_commits_total",
        "Commits of the database, by all sessions",
        gauges.commit_seq,
    );
    out.counter(
        "larder_groups_total",
        "Groups committed by this mount",
        gauges.group_count,
    );
    out.counter(
        "larder_refused_operations_total",
        "Operations that constraints refused after they were answered",
        gauges.refused_count,
    );
    let family = "larder_refused_held";
    out.family(
        family,
        "gauge",
        "Of those, content in memory: the host has no space to keep it",
    );
    out.sample(family, "", gauges.refused_held_count);
    out.family("larder_storage_age", "gauge", "Bytes gone per byte live");
    out.sample("larder_storage_age", "", frag.storage_age);
    out.0
}

fn operations(out: &mut Exposition, metrics: &MetricsSnapshot) {
    let family = "larder_operation_seconds";
    out.family(
        family,
        "histogram",
        "Time from a request of the kernel to its reply",
    );
    for counts in &metrics.operations {
        let operation = operation_name(counts.operation);
        let bounds = LATENCY_BOUNDS_NS
            .iter()
            .map(|bound| seconds(*bound).to_string());
        let mut sum = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&counts.buckets) {
            sum += count;
            let labels = format!("operation=\"{operation}\",le=\"{bound}\"");
            out.sample(&format!("{family}_bucket"), &labels, sum);
        }
        let labels = format!("operation=\"{operation}\"");
        out.sample(
            &format!("{family}_sum"),
            &labels,
            seconds(counts.duration_ns),
        );
        out.sample(&format!("{family}_count"), &labels, counts.count);
    }
    let family = "larder_errors_total";
    out.family(
        family,
        "counter",
        "Requests that were answered with an error",
    );
    for counts in &metrics.operations {
        let operation = operation_name(counts.operation);
        for (error, count) in &counts.errors {
            let error = error_name(*error);
            let labels = format!("operation=\"{operation}\",errno=\"{error}\"");
            out.sample(family, &labels, count);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, "", value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// `labels` without braces; ours need no escapes.
    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        match labels {
            "" => self.line(format_args!("{name} {value}")),
            labels => self.line(format_args!("{name}{{{labels}}} {value}")),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let written = writeln!(self.0, "{line}");
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_fuse::OperationCounts;
    use std::collections::HashSet;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut buckets = vec![0; LATENCY_BOUNDS_NS.len() + 1];
        (buckets[0], buckets[3]) = (7, 2);
        let metrics = MetricsSnapshot {
            operations: vec![OperationCounts {
                operation: 15,
                count: 9,
                duration_ns: 1_500_000,
                buckets,
                errors: vec![(5, 1), (0, 1)],
            }],
            read_bytes: 4096,
            written_bytes: 0,
            in_flight: 1,
        };
        let mut frag = FragReport::default();
        frag.storage_age = 1.5;
        let text = expose(
            &metrics,
            3,
            &Gauges::default(),
            &SpaceReport::default(),
            &frag,
        );
        for line in [
            "larder_operation_seconds_bucket{operation=\"read\",le=\"0.000005\"} 7",
            "larder_operation_seconds_bucket{operation=\"read\",le=\"0.00005\"} 9",
            "larder_operation_seconds_bucket{operation=\"read\",le=\"+Inf\"} 9",
            "larder_operation_seconds_sum{operation=\"read\"} 0.0015",
            "larder_operation_seconds_count{operation=\"read\"} 9",
            "larder_errors_total{operation=\"read\",errno=\"EIO\"} 1",
            "larder_read_bytes_total 4096",
            "larder_open_handles 3",
            "larder_storage_age 1.5",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        // The rules of the format: a family is declared once, before its samples; no sample twice.
        let mut families = HashSet::new();
        let mut samples = HashSet::new();
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let name = declared.split(' ').next().unwrap();
                assert!(families.insert(name.to_owned()), "{name} twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert!(samples.insert(series.to_owned()), "{series} twice");
                value.parse::<f64>().unwrap();
                let name = series.split('{').next().unwrap();
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix))
                    .filter(|base| families.contains(*base))
                    .unwrap_or(name);
                assert!(families.contains(base), "{name} is not declared");
            }
        }
        assert!(text.ends_with('\n'));
    }
}
