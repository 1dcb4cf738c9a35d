//! The tables of \[DBFS\]: file size × concurrency, and the steady state.

use crate::data::{Data, Selection};
use crate::figures::age::axis;
use crate::figures::chart::{Chart, LineChart, Point, Series, Whose};
use crate::figures::figure::{Figure, extremes, last_values, line, paper_point, sentence};
use crate::figures::scale::{Spacing, Unit, say, say_bytes};
use crate::papers;

pub(super) fn figures(data: &Data) -> Vec<Figure> {
    let all = data.all().experiment("dbfs");
    vec![sizes(&all), steady(&all)]
}

/// The two directions, by their measure, their name, and their place in the papers' rows.
const DIRECTIONS: [(&str, &str, usize); 2] =
    [("write_mb_s", "writes", 0), ("read_mb_s", "reads", 1)];

fn sizes(all: &Selection<'_>) -> Figure {
    let table = all.filter(|record| !record.case.contains_key("cycle"));
    let both = table.filter(|record| {
        DIRECTIONS
            .iter()
            .any(|(measure, _, _)| *measure == record.measure)
    });
    let (used, shown) = both.narrow(&["object_bytes", "writers", "volume_bytes", "objects"]);
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for (measure, name, direction) in DIRECTIONS {
        let there = used.measure(measure);
        let files = there.numbers("object_bytes");
        let mut series: Vec<Series> = Vec::new();
        for backend in there.backends() {
            // At each size as many threads as were best, as in the paper.
            let best =
                |size: f64| best_writers(&there.backend(&backend).number("object_bytes", size));
            series.extend(line(&backend, &files, best));
        }
        let ends = last_values(&series);
        if let Some(largest) = files.last() {
            let mb_s = |value: f64| format!("{} MB/s", say(value, Unit::Plain));
            let ends = extremes(&ends, ("is fastest", "slowest"), mb_s);
            said.push(sentence(&format!(
                "{name} of {}: {ends}",
                say_bytes(*largest)
            )));
        }
        let one = papers::DBFS_TABLE
            .iter()
            .map(|(size, one, _)| (*size, one[direction]));
        series.push(paper_series("DBFS 2011", one));
        charts.push(Chart::Lines(LineChart {
            title: format!("{name}, with the best number of threads"),
            x: axis("file size", Unit::Bytes, Spacing::Log),
            y: axis("MB/s", Unit::Plain, Spacing::Log),
            series,
            marks: vec![],
        }));
    }
    let charts = if used.is_empty() { vec![] } else { charts };
    Figure::new(papers::DBFS_SIZES, charts, said.join(" "), (&used, shown))
}

fn paper_series(label: &str, values: impl Iterator<Item = (f64, f64)>) -> Series {
    Series {
        whose: Whose::Paper(label.to_owned()),
        points: values.map(|(x, y)| paper_point(x, y, y)).collect(),
    }
}

fn best_writers<'a>(there: &Selection<'a>) -> Selection<'a> {
    let writers = there.numbers("writers");
    let with = |count: f64| there.number("writers", count);
    let value = |count: f64| with(count).median().map_or(0.0, |median| median.value);
    let best = writers
        .into_iter()
        .max_by(|a, b| value(*a).total_cmp(&value(*b)));
    best.map_or(there.clone(), with)
}

fn steady(all: &Selection<'_>) -> Figure {
    let cycles = all.filter(|record| record.case.contains_key("cycle"));
    let both = cycles.filter(|record| {
        DIRECTIONS
            .iter()
            .any(|(measure, _, _)| *measure == record.measure)
    });
    let (used, shown) = both.narrow(&[
        "object_bytes",
        "cycle",
        "writers",
        "volume_bytes",
        "objects",
    ]);
    let numbers = used.numbers("cycle");
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for (measure, name, _) in DIRECTIONS {
        let there = used.measure(measure);
        for size in there.numbers("object_bytes") {
            let of_size = there.number("object_bytes", size);
            let backends = of_size.backends();
            let lines = backends.iter().filter_map(|backend| {
                let line = line(backend, &numbers, |cycle| of_size.number("cycle", cycle))?;
                let first = line.points.first()?.y;
                let share = |point: &Point| Point {
                    y: 100.0 * point.y / first,
                    low: 100.0 * point.low / first,
                    high: 100.0 * point.high / first,
                    ..*point
                };
                let points = line.points.iter().map(share).collect();
                Some(Series { points, ..line })
            });
            let mut series: Vec<Series> = lines.collect();
            let percent = |value: f64| say(value, Unit::Percent);
            let ends = extremes(&last_values(&series), ("keeps most", "least"), percent);
            said.push(sentence(&format!(
                "{name} of {}: {ends} of the first cycle",
                say_bytes(size)
            )));
            let last = numbers.last().copied().unwrap_or_default();
            let decay = papers::DBFS_DECAY.iter().map(|(size, lost)| {
                let label = format!("DBFS, {}", say_bytes(*size));
                paper_series(&label, [(last, 100.0 - lost)].into_iter())
            });
            series.extend(decay);
            charts.push(Chart::Lines(LineChart {
                title: format!("{name}, files of {}", say_bytes(size)),
                x: axis(
                    "cycle of writing, reading and removing all",
                    Unit::Plain,
                    Spacing::Linear,
                ),
                y: axis("MB/s, % of the first cycle", Unit::Percent, Spacing::Linear),
                series,
                marks: vec![],
            }));
        }
    }
    Figure::new(papers::DBFS_STEADY, charts, said.join(" "), (&used, shown))
}
