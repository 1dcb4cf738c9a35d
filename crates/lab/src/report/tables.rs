//! The tables of the report, and its summary.

use crate::break_even::{self, BreakEven};
use crate::data::{Data, Selection, is_file_store, is_row_store, system_name};
use crate::figures::chart::{Chart, DotChart, LineChart, Whose};
use crate::figures::scale::{Unit, say, say_bytes, say_count};
use crate::figures::svg::escape;
use crate::figures::{self, Figure};
use crate::statistics;

/// What a reader should take with them, each computed from the records.
pub(super) fn in_short(data: &Data) -> Vec<String> {
    let mut points = Vec::new();
    points.extend(most_fragments(data));
    points.extend(break_evens(data));
    let all = data.all();
    let noise = statistics::noise_by_measure(all.records());
    if let Some(noise) = noise.get("read_mb_s").filter(|noise| noise.degrees > 0) {
        points.push(format!(
            "Noise: two single measurements of the same reading speed differ by up to a factor of \
             {}; smaller differences between systems say nothing.",
            say(noise.factor(), Unit::Plain)
        ));
    }
    if all.crowded_count() > 0 {
        points.push(format!(
            "{} of {} records were measured while more was running than the machine has cores. \
             They are hollow in the figures and not to be trusted.",
            say_count(all.crowded_count()),
            say_count(all.len())
        ));
    }
    for run in data.runs.iter().filter(|run| run.torn_bytes > 0) {
        points.push(format!(
            "The run {} ended in the middle of a record; {} bytes at its end were left out. \
             Resume it to complete it.",
            run.header.name, run.torn_bytes
        ));
    }
    points
}

fn most_fragments(data: &Data) -> Option<String> {
    let all = data
        .all()
        .experiment("age")
        .measure("fragments_mean")
        .word_if_any("sizes", "uniform");
    let size = all.numbers("object_bytes").into_iter().next_back()?;
    let (used, _) = all.number("object_bytes", size).narrow(&[]);
    let oldest = used.ages().into_iter().next_back()?;
    let used = used.age(oldest);
    let of_system = |name: String| Some((used.backend(&name).median()?.value, name));
    let mut values: Vec<(f64, String)> =
        used.backends().into_iter().filter_map(of_system).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ((least, best), (most, worst)) = (values.first()?, values.last()?);
    Some(format!(
        "At storage age {oldest}, an object of {} lies in {} fragments on {} and in {} on {}.",
        say_bytes(size),
        say(*least, Unit::Plain),
        system_name(best),
        say(*most, Unit::Plain),
        system_name(worst)
    ))
}

/// Only what is beyond noise.
fn break_evens(data: &Data) -> Vec<String> {
    let used = reads(data);
    let oldest = used.ages().into_iter().next_back();
    let said = oldest.map(|age| figures::crossings(&used, age, true));
    said.unwrap_or_default()
}

fn reads(data: &Data) -> Selection<'_> {
    let reads = data.all().measure("read_mb_s");
    let reads = reads.filter(|record| matches!(&*record.experiment, "age" | "break-even"));
    let reads = reads.word_if_any("sizes", "uniform");
    reads.narrow(&["object_bytes", "volume_bytes"]).0
}

/// Rows against files, and both against Larder.
fn pairs(backends: &[String]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for this in backends {
        for that in backends {
            let is_larder = that.starts_with("larder");
            let row = is_row_store(this) && (is_file_store(that) || is_larder);
            let file = is_file_store(this) && is_larder;
            if row || file {
                pairs.push((this.clone(), that.clone()));
            }
        }
    }
    pairs
}

/// The break-even sizes of all pairs at all ages.
pub(super) fn break_even(data: &Data) -> String {
    let used = reads(data);
    let ages = used.ages();
    let title = "<section class='figure' id='break-even'><h3>Break-even sizes</h3><p \
        class='source'>where the reading speeds of two systems cross, with the interval at 95 \
        %</p>";
    let mut rows = String::new();
    for (this, that) in pairs(&used.backends()) {
        let answer = |age: &f64| {
            let sizes = break_even::pairs(used.records(), (&this, &that), "read_mb_s", *age);
            let (first, second) = in_words(&break_even::find(&sizes), (&this, &that));
            let (first, second) = (escape(&first), escape(&second));
            format!("<td class='words'>{first}<br/><span class='quiet'>{second}</span></td>")
        };
        let answers: Vec<String> = ages.iter().map(answer).collect();
        let names = format!("{} and {}", system_name(&this), system_name(&that));
        rows += &format!("<tr>{}{}</tr>", cell(&names), answers.concat());
    }
    if rows.is_empty() {
        return format!(
            "{title}<p>A break-even size needs two systems of different kinds in the same run at \
             two or more object sizes: <code>larder lab run break-even</code>.</p></section>"
        );
    }
    let heads: String = ages
        .iter()
        .map(|age| format!("<th class='words'>age {age}</th>"))
        .collect();
    format!(
        "{title}<p>In 2006, files and rows were equal at 1 MB on a clean store and at 256 KB \
         after four overwrites. \
         An interval that is open at an end reaches beyond what was measured.</p>\
         <div class='scroll'><table><tr><th>between</th>{heads}</tr>{rows}</table></div></section>"
    )
}

/// An answer of the break-even finder: what matters, and a second line.
fn in_words(answer: &BreakEven, (this, that): (&str, &str)) -> (String, String) {
    let (this, that) = (system_name(this), system_name(that));
    let noise = || ("not told apart".to_owned(), "within noise".to_owned());
    match answer {
        BreakEven::Crossing {
            object_bytes,
            interval,
            is_this_below,
        } => {
            let below = if *is_this_below { this } else { that };
            let bounds = match interval.map(|bounds| (bounds.low, bounds.high)) {
                None => "(one round: no interval)".to_owned(),
                Some((None, None)) => return noise(),
                Some((Some(low), Some(high))) => {
                    format!("[{} to {}]", say_bytes(low), say_bytes(high))
                }
                Some((None, Some(high))) => format!("[at most {}]", say_bytes(high)),
                Some((Some(low), None)) => format!("[at least {}]", say_bytes(low)),
            };
            let size = say_bytes(*object_bytes);
            (format!("{size} {bounds}"), format!("{below} faster below"))
        }
        BreakEven::Apart { is_this_better } => {
            let better = if *is_this_better { this } else { that };
            (
                "no crossing".to_owned(),
                format!("{better} faster throughout"),
            )
        }
        BreakEven::Alike => noise(),
        BreakEven::TooFewSizes => (String::new(), "fewer than two sizes".to_owned()),
    }
}

/// The figures of a figure.
pub(super) fn of_figure(figure: &Figure) -> String {
    let tables: String = figure
        .charts
        .iter()
        .map(|chart| match chart {
            Chart::Lines(chart) => of_lines(chart),
            Chart::Dots(chart) => of_dots(chart),
        })
        .collect();
    let id = figure.paper.id;
    format!(
        "<details><summary>The numbers, and files</summary><div class='scroll'>{tables}</div>\
         <p class='shown'>Medians, with the interval of order statistics where there is more than \
         one round. \
         <code>figures/{id}.svg</code> <code>figures/{id}.png</code></p></details>"
    )
}

fn of_lines(chart: &LineChart) -> String {
    let mut xs: Vec<f64> = chart
        .series
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.x)
        .collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let heads: String = xs
        .iter()
        .map(|x| format!("<th>{}</th>", say(*x, chart.x.unit)))
        .collect();
    let mut rows = String::new();
    for line in &chart.series {
        let cells = xs
            .iter()
            .map(|x| match line.points.iter().find(|point| point.x == *x) {
                Some(point) => cell(&with_bounds(point.y, point.low, point.high, chart.y.unit)),
                None => "<td></td>".to_owned(),
            });
        let cells: String = cells.collect();
        let class = if matches!(line.whose, Whose::Paper(_)) {
            " class='paper'"
        } else {
            ""
        };
        rows += &format!("<tr{class}>{}{cells}</tr>", cell(&line.whose.label()));
    }
    let caption = escape(&format!("{}: {}", chart.title, chart.y.label));
    let along = escape(&chart.x.label);
    format!("<table><caption>{caption}</caption><tr><th>{along}</th>{heads}</tr>{rows}</table>")
}

fn of_dots(chart: &DotChart) -> String {
    let rows: String = chart
        .rows
        .iter()
        .map(|row| {
            let point = row.point;
            let value = with_bounds(point.y, point.low, point.high, chart.x.unit);
            let best = if row.is_best_of_paper {
                "best in the paper"
            } else {
                ""
            };
            format!(
                "<tr>{}{}{}</tr>",
                cell(&row.label),
                cell(&value),
                cell(best)
            )
        })
        .collect();
    let (caption, label) = (escape(&chart.title), escape(&chart.x.label));
    format!(
        "<table><caption>{caption}</caption><tr><th>filesystem and \
         block</th><th>{label}</th><th></th></tr>{rows}</table>"
    )
}

fn with_bounds(value: f64, low: f64, high: f64, unit: Unit) -> String {
    match high > low {
        true => format!(
            "{} [{} to {}]",
            say(value, unit),
            say(low, unit),
            say(high, unit)
        ),
        false => say(value, unit),
    }
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

/// The noise of each measure, and how the intervals are made.
pub(super) fn trust(data: &Data) -> String {
    let noise = statistics::noise_by_measure(data.all().records());
    let known = noise.iter().filter(|(_, noise)| noise.degrees > 0);
    let rows: String = known
        .map(|(measure, noise)| {
            let factor = format!("× {}", say(noise.factor(), Unit::Plain));
            let repeats = say(noise.degrees as f64, Unit::Plain);
            format!(
                "<tr>{}{}{}</tr>",
                cell(measure),
                cell(&factor),
                cell(&repeats)
            )
        })
        .collect();
    let table = match rows.is_empty() {
        true => "<p>Every case was measured once, so the noise of this machine is not known and \
            no difference can be called real. Measure more rounds.</p>"
            .to_owned(),
        false => format!(
            "<div class='scroll'><table><tr><th>measure</th><th>two single measurements differ by \
             up to</th><th>repetitions</th></tr>{rows}</table></div>"
        ),
    };
    format!(
        "<h2 id='trust'>How far to trust this</h2>\
         <p>The noise is how far repetitions of the same case lie from each other, 19 times of \
         20. A difference between two systems that is smaller says nothing.</p>{table}\
         <p style='margin-top:18px'>Points are medians; their bounds are order statistics at 95 \
         %, or the least and the greatest where there are fewer than six rounds. \
         A break-even size is where the mean logarithm of the ratio, straight between two \
         measured sizes, is 0; its interval holds every size at which it cannot be told from 0.</p>"
    )
}

/// Machine and parameters of each run.
pub(super) fn machines(data: &Data) -> String {
    let mut text = "<h2 id='machine'>Machine and parameters</h2>".to_owned();
    for run in &data.runs {
        let header = &run.header;
        let mut rows = vec![
            ("experiment".to_owned(), header.experiment.clone()),
            ("started".to_owned(), header.started.clone()),
            ("seed".to_owned(), header.seed.to_string()),
        ];
        rows.extend(header.machine.clone());
        rows.extend(
            header
                .parameters
                .iter()
                .map(|(name, value)| (format!("--{name}"), value.clone())),
        );
        let rows: String = rows
            .iter()
            .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)))
            .collect();
        text += &format!(
            "<h3>{}</h3><p>Again: <code>{}</code></p><dl>{rows}</dl>",
            escape(&header.name),
            escape(&header.command)
        );
    }
    text
}
