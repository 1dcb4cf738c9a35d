//! A figure: charts side by side and what is said of them, and what its lines are made of.

use crate::data::{Selection, system_name};
use crate::figures::chart::{self, Chart, Point, Series, Whose};
use crate::figures::svg::{Anchor, QUIET, Svg};
use crate::papers::Paper;
use crate::statistics::Estimate;

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it is, and what a paper found.
    pub paper: Paper,
    /// Whether it is a paper's figure, or one beside them.
    pub is_of_paper: bool,
    /// From left to right; none when there are no records.
    pub charts: Vec<Chart>,
    /// What is found here; empty without charts.
    pub here: String,
    /// Which of several values of a parameter is shown.
    pub shown: Vec<String>,
    /// Records behind it.
    pub record_count: usize,
    /// Those of them that were measured under load above the number of cores.
    pub crowded_count: usize,
}

/// Width of a chart without neighbours: it leaves room for the sentences beside it.
const ALONE: f64 = 800.0;

impl Figure {
    pub(super) fn new(
        paper: Paper,
        charts: Vec<Chart>,
        here: String,
        (used, shown): (&Selection<'_>, Vec<String>),
    ) -> Figure {
        let is_drawn = !charts.is_empty();
        let here = match used.is_repeated() {
            true => here,
            false => {
                here + " Measured once: how far a repetition would lie from this is not known."
            }
        };
        Figure {
            paper,
            is_of_paper: true,
            charts,
            here: if is_drawn { here } else { String::new() },
            shown,
            record_count: if is_drawn { used.len() } else { 0 },
            crowded_count: if is_drawn { used.crowded_count() } else { 0 },
        }
    }

    /// Whether it has records.
    pub fn is_drawn(&self) -> bool {
        !self.charts.is_empty()
    }

    /// The element for a page of this width: charts side by side, or below each other where it is
    /// narrow.
    pub fn element(&self, width: f64) -> String {
        let width = if self.charts.len() == 1 {
            width.min(ALONE)
        } else {
            width
        };
        let (svg, height) = self.draw(width);
        svg.element(width, height, self.paper.title)
    }

    /// A document that stands alone, with its title.
    pub fn document(&self) -> String {
        const WIDTH: f64 = 1180.0;
        const MARGIN: f64 = 24.0;
        let width = if self.charts.len() == 1 { ALONE } else { WIDTH };
        let (charts, height) = self.draw(width);
        let mut svg = Svg::default();
        svg.heading((MARGIN, 40.0), self.paper.title, 19.0);
        let source = self.paper.source;
        svg.text((MARGIN, 62.0), source, Anchor::Start, 12.0, QUIET);
        svg.put_at((MARGIN, 84.0), &charts);
        let style = dark_style("@media (prefers-color-scheme: dark)");
        svg.document(
            width + 2.0 * MARGIN,
            height + 84.0 + MARGIN,
            self.paper.title,
            &style,
        )
    }

    fn draw(&self, width: f64) -> (Svg, f64) {
        const GAP: f64 = 36.0;
        let columns = match (width < 700.0, self.charts.len()) {
            (true, _) => 1,
            (false, 4) => 2,
            (false, count) => count.clamp(1, 3),
        };
        let one = match columns {
            1 => width.min(ALONE),
            columns => (width - GAP * (columns - 1) as f64) / columns as f64,
        };
        let (mut svg, mut top) = (Svg::default(), 0.0);
        for line in self.charts.chunks(columns) {
            let mut highest: f64 = 0.0;
            for (index, chart) in line.iter().enumerate() {
                let (drawn, height) = chart::draw(chart, one);
                svg.put_at((index as f64 * (one + GAP), top), &drawn);
                highest = highest.max(height);
            }
            top += highest + 22.0;
        }
        (svg, (top - 22.0).max(0.0) + 4.0)
    }
}

/// The style sheet that turns drawings dark, under a condition.
pub fn dark_style(condition: &str) -> String {
    let mut rules = String::from(
        ".bg{fill:#14181b}.t1.f{fill:#e6eaed}.t2.f{fill:#a3adb5}\
         .g.s{stroke:#2b3238}.ax.s{stroke:#5f6a73}.pp.f{fill:#98a2aa}\
         .pp.s,.pp.h{stroke:#98a2aa}.h{fill:#14181b}",
    );
    for (class, _, dark) in chart::PALETTE {
        rules += &format!(
            ".{class}.f{{fill:{dark};stroke:{dark}}}text.{class}.f{{stroke:none}}\
             .{class}.s,.{class}.h{{stroke:{dark}}}"
        );
    }
    format!("{condition}{{{rules}}}")
}

/// A line of one system: the median of `selection` at each of `xs`.
pub(super) fn line<'a>(
    backend: &str,
    xs: &[f64],
    at: impl Fn(f64) -> Selection<'a>,
) -> Option<Series> {
    let point = |x: &f64| {
        let there = at(*x).backend(backend);
        Some(point(*x, there.median()?, there.crowded_count() > 0))
    };
    joined(backend, xs.iter().filter_map(point).collect())
}

/// A line of one system through estimates, of something that no load changes.
pub(super) fn line_of(
    backend: &str,
    xs: &[f64],
    at: impl Fn(f64) -> Option<Estimate>,
) -> Option<Series> {
    let points = xs.iter().filter_map(|x| Some(point(*x, at(*x)?, false)));
    joined(backend, points.collect())
}

fn joined(backend: &str, points: Vec<Point>) -> Option<Series> {
    (!points.is_empty()).then(|| Series {
        whose: Whose::System(backend.to_owned()),
        points,
    })
}

pub(super) fn point(x: f64, estimate: Estimate, is_crowded: bool) -> Point {
    let Estimate {
        value, low, high, ..
    } = estimate;
    Point {
        x,
        y: value,
        low,
        high,
        is_crowded,
    }
}

/// A place that a paper gives, with its range.
pub(super) fn paper_point(x: f64, low: f64, high: f64) -> Point {
    Point {
        x,
        y: (low + high) / 2.0,
        low,
        high,
        is_crowded: false,
    }
}

/// Who has the largest and who the least of something, in words; `said` writes a figure.
pub(super) fn extremes(
    values: &[(String, f64)],
    (most, least): (&str, &str),
    said: impl Fn(f64) -> String,
) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    match sorted.as_slice() {
        [] => String::new(),
        [(name, value)] => format!("only {} was measured: {}", system_name(name), said(*value)),
        [(first, high), .., (last, low)] if said(*high) == said(*low) => {
            format!(
                "{} to {} are alike: {}",
                system_name(first),
                system_name(last),
                said(*high)
            )
        }
        [(first, high), .., (last, low)] => format!(
            "{} {most} ({}), {} {least} ({})",
            system_name(first),
            said(*high),
            system_name(last),
            said(*low)
        ),
    }
}

/// The first value of each line.
pub(super) fn first_values(series: &[Series]) -> Vec<(String, f64)> {
    values_at(series, |points| points.first())
}

/// The last value of each line.
pub(super) fn last_values(series: &[Series]) -> Vec<(String, f64)> {
    values_at(series, |points| points.last())
}

fn values_at(series: &[Series], which: fn(&[Point]) -> Option<&Point>) -> Vec<(String, f64)> {
    let values = series.iter().filter_map(|series| match &series.whose {
        Whose::System(name) => Some((name.clone(), which(&series.points)?.y)),
        Whose::Paper(_) => None,
    });
    values.collect()
}

/// A sentence begins with a capital.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str() + "."
}
