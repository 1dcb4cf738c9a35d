//! The figures of \[CLUSTER\]: PostgreSQL's statements over filesystem and block size.

use crate::data::{Data, Selection, system_name};
use crate::figures::age::axis;
use crate::figures::chart::{Chart, DotChart, Row};
use crate::figures::figure::{Figure, point, sentence};
use crate::figures::scale::{Spacing, Unit, say, say_bytes};
use crate::papers::{self, Paper};

pub(super) fn figures(data: &Data) -> Vec<Figure> {
    let all = data.all().experiment("cluster");
    vec![
        action(&all, "insert", papers::CLUSTER_INSERT),
        action(&all, "select", papers::CLUSTER_SELECT),
        action(&all, "delete", papers::CLUSTER_DELETE),
    ]
}

fn action(all: &Selection<'_>, name: &str, paper: Paper) -> Figure {
    let wanted = ["seconds", "device_kb_per_transaction"];
    let of_action = all
        .word("action", name)
        .filter(|record| wanted.contains(&&*record.measure));
    let (used, shown) =
        of_action.narrow(&["transactions", "block_bytes", "volume_bytes", "action"]);
    let (seconds, device) = (
        used.measure("seconds"),
        used.measure("device_kb_per_transaction"),
    );
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for count in seconds.numbers("transactions") {
        let rows = rows(&seconds.number("transactions", count), name);
        said = vec![ends(&rows, &format!("after {count} transactions"), "s")];
        charts.push(chart(
            format!("after {count} transactions"),
            "seconds",
            rows,
        ));
    }
    if charts.is_empty() && !seconds.is_empty() {
        let rows = rows(&seconds, name);
        said.push(ends(&rows, "in time", "s"));
        charts.push(chart("time".to_owned(), "seconds", rows));
    }
    if !device.is_empty() {
        let rows = rows(&device, name);
        said.push(ends(&rows, "by what reaches the device", "KB"));
        charts.push(chart(
            "written to the device".to_owned(),
            "KB per transaction",
            rows,
        ));
    }
    Figure::new(paper, charts, said.join(" "), (&used, shown))
}

fn chart(title: String, label: &str, rows: Vec<Row>) -> Chart {
    Chart::Dots(DotChart {
        title,
        x: axis(label, Unit::Plain, Spacing::Linear),
        rows,
    })
}

/// One row for each filesystem and block size.
fn rows(used: &Selection<'_>, action: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for backend in used.backends() {
        let of_system = used.backend(&backend);
        for block in of_system.numbers("block_bytes") {
            let there = of_system.number("block_bytes", block);
            let Some(median) = there.median() else {
                continue;
            };
            let is_best = papers::CLUSTER_BEST.contains(&(action, &backend, block));
            rows.push(Row {
                label: format!("{} {}", system_name(&backend), say_bytes(block)),
                system: backend.clone(),
                point: point(0.0, median, there.crowded_count() > 0),
                is_best_of_paper: is_best,
            });
        }
    }
    rows
}

fn ends(rows: &[Row], how: &str, unit: &str) -> String {
    let least = rows.iter().min_by(|a, b| a.point.y.total_cmp(&b.point.y));
    let most = rows.iter().max_by(|a, b| a.point.y.total_cmp(&b.point.y));
    let (Some(least), Some(most)) = (least, most) else {
        return String::new();
    };
    let said = |row: &Row| format!("{} ({} {unit})", row.label, say(row.point.y, Unit::Plain));
    let overlap = least.point.high >= most.point.low;
    let noise = if overlap {
        ", but their ranges overlap"
    } else {
        ""
    };
    sentence(&format!(
        "{how}, least: {}, most: {}{noise}",
        said(least),
        said(most)
    ))
}
