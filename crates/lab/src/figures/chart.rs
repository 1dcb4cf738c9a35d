//! Two kinds of chart: lines over a number, and dots beside names.
//!
//! Each system has a colour of the palette of Okabe and Ito, which people who see fewer colours can
//! tell apart, and a mark of its own shape. Lines are named where they end. What was measured under
//! load above the number of cores is hollow; what the papers measured is grey, hollow and dashed.

use crate::data::{kind, system_name};
use crate::figures::scale::{Scale, Spacing, Unit, say};
use crate::figures::svg::{AXIS, Anchor, GRID, Ink, PAPER, QUIET, STRONG, Svg, text_width};

/// An axis in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// What its figures are.
    pub unit: Unit,
    /// How they are spaced.
    pub spacing: Spacing,
}

/// One measured place of a line, or one dot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Along.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// The lower bound of `y`; equal to it when there is none.
    pub low: f64,
    /// The upper bound of `y`.
    pub high: f64,
    /// Measured under load above the number of cores.
    pub is_crowded: bool,
}

/// Whose figures a line shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Whose {
    /// A system's, by the name in the records.
    System(String),
    /// A paper's, by its label.
    Paper(String),
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Whose.
    pub whose: Whose,
    /// In the order in which they are joined.
    pub points: Vec<Point>,
}

/// A place along, which a paper or the text names.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What is written beside it.
    pub label: String,
}

/// Lines over a number.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Above it.
    pub title: String,
    /// Along.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Places along that are named.
    pub marks: Vec<Mark>,
}

/// One name and its dots.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What is written beside it.
    pub label: String,
    /// Whose colour it has.
    pub system: String,
    /// The dot; `y` along, `x` is not used.
    pub point: Point,
    /// Whether a paper names this row as its best.
    pub is_best_of_paper: bool,
}

/// Dots beside names.
#[derive(Debug, Clone, PartialEq)]
pub struct DotChart {
    /// Above it.
    pub title: String,
    /// Along.
    pub x: Axis,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub enum Chart {
    /// Lines over a number.
    Lines(LineChart),
    /// Dots beside names.
    Dots(DotChart),
}

/// Light and dark colours, by class `kN`: Okabe and Ito, yellow left out.
pub const PALETTE: [(&str, &str, &str); 8] = [
    ("k0", "#0072b2", "#5db4e8"),
    ("k1", "#d55e00", "#ff9149"),
    ("k2", "#00835f", "#35c79d"),
    ("k3", "#b0528a", "#e08fbe"),
    ("k4", "#b57a00", "#f0b93f"),
    ("k5", "#2f9bd6", "#9bd3f5"),
    ("k6", "#59626a", "#b4bdc5"),
    ("k7", "#7a4fb5", "#b99be6"),
];

/// Index into the palette and into the shapes.
fn style(system: &str) -> (usize, usize) {
    if kind(system) != system {
        // The colour of its kind, a shape of its own.
        let sum: usize = system.bytes().map(usize::from).sum();
        return (style(kind(system)).0, sum % 6);
    }
    match system {
        "ext4" => (0, 0),
        "larder" => (1, 1),
        "larder-mount" => (1, 2),
        "ntfs" => (2, 3),
        "postgres" => (3, 4),
        "postgres-lo" => (7, 4),
        "sqlite" => (4, 5),
        "xfs" => (5, 3),
        "ext2" => (6, 0),
        "ext3" => (7, 5),
        "btrfs" => (6, 3),
        "fat32" | "vfat" => (4, 2),
        other => {
            let sum: usize = other.bytes().map(usize::from).sum();
            (sum % PALETTE.len(), sum / PALETTE.len() % 6)
        }
    }
}

fn ink(system: &str) -> Ink<'static> {
    let (class, colour, _) = PALETTE[style(system).0];
    Ink { class, colour }
}

impl Whose {
    fn ink(&self) -> Ink<'static> {
        match self {
            Whose::System(name) => ink(name),
            Whose::Paper(_) => PAPER,
        }
    }

    /// For people.
    pub fn label(&self) -> String {
        match self {
            Whose::System(name) => system_name(name),
            Whose::Paper(label) => label.clone(),
        }
    }

    fn mark(&self, svg: &mut Svg, at: (f64, f64), is_hollow: bool, title: &str) {
        let (shape, is_hollow) = match self {
            Whose::System(name) => (style(name).1, is_hollow),
            Whose::Paper(_) => (3, true),
        };
        let (x, y) = at;
        let around = |places: &[(f64, f64)]| -> Vec<(f64, f64)> {
            places.iter().map(|(dx, dy)| (x + dx, y + dy)).collect()
        };
        let r = 3.6;
        let places: &[(f64, f64)] = match shape {
            0 => return svg.disc(at, r, self.ink(), is_hollow, title),
            1 => &[(-r, -r), (r, -r), (r, r), (-r, r)],
            2 => &[(0.0, -4.6), (4.4, 3.4), (-4.4, 3.4)],
            3 => &[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)],
            4 => &[(0.0, 4.6), (4.4, -3.4), (-4.4, -3.4)],
            _ => &[
                (-4.4, -1.6),
                (0.0, -4.8),
                (4.4, -1.6),
                (2.8, 3.8),
                (-2.8, 3.8),
            ],
        };
        svg.shape(&around(places), self.ink(), is_hollow, title);
    }
}

const TEXT: f64 = 12.0;
const TITLE: f64 = 13.5;
/// Where a browser has not our font, text is so much wider at most.
const SPARE: f64 = 1.18;
/// Where the plot begins, below title, label and the names of marks.
const TOP: f64 = 60.0;

/// Draws a chart of this width, and says how high it became.
pub fn draw(chart: &Chart, width: f64) -> (Svg, f64) {
    match chart {
        Chart::Lines(chart) => draw_lines(chart, width),
        Chart::Dots(chart) => draw_dots(chart, width),
    }
}

fn draw_lines(chart: &LineChart, width: f64) -> (Svg, f64) {
    let height = (width * 0.62).clamp(250.0, 360.0);
    let mut svg = Svg::default();
    svg.heading((0.0, 14.0), &chart.title, TITLE);
    svg.text((0.0, 32.0), &chart.y.label, Anchor::Start, TEXT, QUIET);
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let marks = chart.marks.iter().map(|mark| mark.x);
    let xs: Vec<f64> = points().map(|point| point.x).chain(marks).collect();
    let ys: Vec<f64> = points()
        .flat_map(|point| [point.low, point.y, point.high])
        .collect();
    let bottom = height - 40.0;
    let y = Scale::new(&ys, chart.y.spacing, chart.y.unit, (bottom, TOP));
    let y_ticks = y.ticks(6);
    let left = y_ticks
        .iter()
        .map(|(_, said)| text_width(said, TEXT) * SPARE)
        .fold(0.0, f64::max)
        + 8.0;
    let labels = chart
        .series
        .iter()
        .map(|series| text_width(&series.whose.label(), TEXT));
    let right = (labels.fold(0.0, f64::max) * SPARE + 16.0).min(width * 0.42);
    let x = Scale::new(
        &xs,
        chart.x.spacing,
        chart.x.unit,
        (left + 6.0, width - right),
    );
    for (value, said) in &y_ticks {
        let at = y.place(*value);
        svg.line((left, at), (width - right + 6.0, at), GRID, 1.0, "");
        svg.text((left - 6.0, at + 4.0), said, Anchor::End, TEXT, QUIET);
    }
    svg.line((left, bottom), (width - right + 6.0, bottom), AXIS, 1.0, "");
    let room = ((width - right - left) / 40.0) as usize;
    for (value, said) in x.ticks(room.max(2)) {
        let at = x.place(value);
        svg.line((at, bottom), (at, bottom + 4.0), AXIS, 1.0, "");
        svg.text((at, bottom + 18.0), &said, Anchor::Middle, TEXT, QUIET);
    }
    let middle = (left + width - right) / 2.0;
    svg.text(
        (middle, height - 4.0),
        &chart.x.label,
        Anchor::Middle,
        TEXT,
        QUIET,
    );
    for mark in &chart.marks {
        let at = x.place(mark.x);
        svg.line((at, TOP - 8.0), (at, bottom), PAPER, 1.0, "2 3");
        let is_left = at + text_width(&mark.label, 11.0) + 6.0 > width;
        let anchor = if is_left { Anchor::End } else { Anchor::Start };
        svg.text((at - 3.0, TOP - 12.0), &mark.label, anchor, 11.0, PAPER);
    }
    for series in &chart.series {
        draw_series(&mut svg, chart, series, &|point| (x.place(point.x), &y));
    }
    name_lines(&mut svg, chart, &x, &y, (TOP, bottom), width - right + 10.0);
    (svg, height)
}

fn draw_series<'a>(
    svg: &mut Svg,
    chart: &LineChart,
    series: &Series,
    place: &dyn Fn(&Point) -> (f64, &'a Scale),
) {
    let at = |point: &Point| {
        let (x, y) = place(point);
        (x, y.place(point.y))
    };
    let places: Vec<(f64, f64)> = series.points.iter().map(at).collect();
    let (ink, dash) = match series.whose {
        Whose::Paper(_) => (PAPER, "5 4"),
        Whose::System(ref name) if name == "larder-mount" => (series.whose.ink(), "7 3"),
        Whose::System(_) => (series.whose.ink(), ""),
    };
    if places.len() > 1 {
        svg.path(&places, ink, 1.9, dash);
    }
    for (point, place_of) in series.points.iter().zip(&places) {
        let (x, y) = place(point);
        if point.high > point.low {
            svg.line(
                (x, y.place(point.low)),
                (x, y.place(point.high)),
                ink,
                1.1,
                "",
            );
        }
        let said = |value: f64| say(value, chart.y.unit);
        let bounds = match point.high > point.low {
            true => format!(" [{} to {}]", said(point.low), said(point.high)),
            false => String::new(),
        };
        let crowded = if point.is_crowded {
            ", measured under load"
        } else {
            ""
        };
        let along = say(point.x, chart.x.unit);
        let title = format!(
            "{}; {}: {along}; {}: {}{bounds}{crowded}",
            series.whose.label(),
            chart.x.label,
            chart.y.label,
            said(point.y)
        );
        series.whose.mark(svg, *place_of, point.is_crowded, &title);
    }
}

/// Names each line where it ends, moved apart where ends are close.
fn name_lines(
    svg: &mut Svg,
    chart: &LineChart,
    x: &Scale,
    y: &Scale,
    (top, bottom): (f64, f64),
    left: f64,
) {
    const STEP: f64 = 15.0;
    let ends = chart
        .series
        .iter()
        .filter_map(|series| Some((series, series.points.last()?)));
    let mut ends: Vec<(&Series, f64, (f64, f64))> = ends
        .map(|(series, end)| (series, y.place(end.y), (x.place(end.x), y.place(end.y))))
        .collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut above = top - STEP;
    for end in &mut ends {
        end.1 = end.1.max(above + STEP);
        above = end.1;
    }
    let mut below = bottom - 2.0;
    for end in ends.iter_mut().rev() {
        end.1 = end.1.min(below);
        below = end.1 - STEP;
    }
    for (series, at, (end_x, end_y)) in ends {
        if (at - end_y).abs() > 3.0 || left - end_x > 16.0 {
            svg.line(
                (end_x + 6.0, end_y),
                (left - 2.0, at),
                series.whose.ink(),
                0.6,
                "1 2",
            );
        }
        svg.text(
            (left, at + 4.0),
            &series.whose.label(),
            Anchor::Start,
            TEXT,
            series.whose.ink(),
        );
    }
}

fn draw_dots(chart: &DotChart, width: f64) -> (Svg, f64) {
    const STEP: f64 = 21.0;
    let mut svg = Svg::default();
    svg.heading((0.0, 14.0), &chart.title, TITLE);
    let labels = chart.rows.iter().map(|row| text_width(&row.label, TEXT));
    let left = labels.fold(0.0, f64::max) * SPARE + 12.0;
    let (top, bottom) = (30.0, 30.0 + STEP * chart.rows.len() as f64);
    let points = chart.rows.iter().map(|row| row.point);
    let values: Vec<f64> = points
        .flat_map(|point| [point.low, point.y, point.high])
        .collect();
    let x = Scale::new(&values, chart.x.spacing, chart.x.unit, (left, width - 58.0));
    for (value, said) in x.ticks(4) {
        let at = x.place(value);
        svg.line((at, top), (at, bottom), GRID, 1.0, "");
        svg.text((at, bottom + 16.0), &said, Anchor::Middle, TEXT, QUIET);
    }
    svg.text(
        (left, bottom + 34.0),
        &chart.x.label,
        Anchor::Start,
        TEXT,
        QUIET,
    );
    for (index, row) in chart.rows.iter().enumerate() {
        let at = top + STEP * (index as f64 + 0.5);
        let (point, whose) = (row.point, Whose::System(row.system.clone()));
        svg.text(
            (left - 10.0, at + 4.0),
            &row.label,
            Anchor::End,
            TEXT,
            STRONG,
        );
        let place = (x.place(point.y), at);
        if row.is_best_of_paper {
            svg.disc(place, 8.0, PAPER, true, "the paper's best block size here");
        }
        if point.high > point.low {
            let (low, high) = (x.place(point.low), x.place(point.high));
            svg.line((low, at), (high, at), whose.ink(), 1.4, "");
        }
        let said = say(point.y, chart.x.unit);
        let title = format!("{}: {said} {}", row.label, chart.x.label);
        whose.mark(&mut svg, place, point.is_crowded, &title);
        let after = x.place(point.high).max(place.0 + 8.0) + 6.0;
        svg.text((after, at + 4.0), &said, Anchor::Start, 11.0, QUIET);
    }
    (svg, bottom + 42.0)
}
