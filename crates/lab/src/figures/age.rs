//! The figures of \[FRAG\] and \[BLOB\]: what age does to objects.

use crate::break_even::{self, BreakEven};
use crate::data::{Data, Selection, is_file_store, is_row_store, system_name};
use crate::figures::chart::{Axis, Chart, LineChart, Mark, Series, Whose};
use crate::figures::figure::{Figure, extremes, last_values, line, paper_point, sentence};
use crate::figures::layout;
use crate::figures::scale::{Spacing, Unit, say, say_bytes};
use crate::papers::{self, KB, MB, Paper};
use crate::results::Record;

pub(super) fn figures(data: &Data) -> Vec<Figure> {
    let aging = data
        .all()
        .filter(|record| matches!(&*record.experiment, "age" | "break-even"));
    vec![
        read_after_load(&aging),
        read_aged(&aging),
        fragments(&aging, papers::FRAGMENTS_LARGE, |bytes| bytes > MB),
        fragments(&aging, papers::FRAGMENTS_SMALL, |bytes| bytes <= MB),
        write_between(&aging),
        size_distribution(&aging),
        free_pool(data),
        write_size(data),
    ]
}

fn joined(sentences: &[String]) -> String {
    let spaced = sentences.iter().map(|sentence| format!(" {sentence}"));
    spaced.collect()
}

fn mb_s(value: f64) -> String {
    format!("{} MB/s", say(value, Unit::Plain))
}

fn fragments_said(value: f64) -> String {
    say(value, Unit::Plain)
}

pub(super) fn axis(label: &str, unit: Unit, spacing: Spacing) -> Axis {
    Axis {
        label: label.to_owned(),
        unit,
        spacing,
    }
}

fn size_axis() -> Axis {
    axis("object size", Unit::Bytes, Spacing::Log)
}

pub(super) fn age_axis() -> Axis {
    axis("storage age", Unit::Plain, Spacing::Linear)
}

fn all_lines<'a>(
    used: &Selection<'a>,
    xs: &[f64],
    at: impl Fn(f64) -> Selection<'a>,
) -> Vec<Series> {
    let backends = used.backends();
    backends
        .iter()
        .filter_map(|backend| line(backend, xs, &at))
        .collect()
}

/// MB/s over object size at one age.
fn read_chart(used: &Selection<'_>, age: f64, mark: Option<Mark>) -> LineChart {
    let there = used.age(age);
    let sizes = there.numbers("object_bytes");
    LineChart {
        title: match age {
            0.0 => "just filled (age 0)".to_owned(),
            age => format!("storage age {age}"),
        },
        x: size_axis(),
        y: axis("reads, MB/s", Unit::Plain, Spacing::Log),
        series: all_lines(&there, &sizes, |size| there.number("object_bytes", size)),
        marks: mark.into_iter().collect(),
    }
}

fn read_after_load(aging: &Selection<'_>) -> Figure {
    let read = aging
        .measure("read_mb_s")
        .word_if_any("sizes", "uniform")
        .age(0.0);
    let (used, shown) = read.narrow(&["object_bytes", "volume_bytes"]);
    let mark = Mark {
        x: MB,
        label: "equal in 2006".to_owned(),
    };
    let chart = read_chart(&used, 0.0, Some(mark));
    let ends = last_values(&chart.series);
    let largest = used
        .numbers("object_bytes")
        .last()
        .copied()
        .unwrap_or_default();
    let mut here = sentence(&format!(
        "at {}, {}",
        say_bytes(largest),
        extremes(&ends, ("reads fastest", "slowest"), mb_s)
    ));
    here += &joined(&crossings(&used, 0.0, false));
    let charts = if used.is_empty() {
        vec![]
    } else {
        vec![Chart::Lines(chart)]
    };
    Figure::new(papers::READ_AFTER_LOAD, charts, here, (&used, shown))
}

/// Where rows and files break even at an age, one sentence for each system of rows; only what is
/// beyond noise, if `is_sure`.
pub(crate) fn crossings(used: &Selection<'_>, age: f64, is_sure: bool) -> Vec<String> {
    let backends = used.backends();
    let rows = backends.iter().filter(|name| is_row_store(name));
    rows.filter_map(|row| crossings_of(row, used, age, is_sure))
        .collect()
}

fn crossings_of(row: &str, used: &Selection<'_>, age: f64, is_sure: bool) -> Option<String> {
    let (mut below, mut above, mut always, mut never) = (vec![], vec![], vec![], vec![]);
    for file in used.backends().iter().filter(|name| is_file_store(name)) {
        let sizes = break_even::pairs(used.records(), (row, file), "read_mb_s", age);
        let name = system_name(file);
        match break_even::find(&sizes) {
            BreakEven::Crossing { interval, .. }
                if is_sure && !interval.is_some_and(|bounds| bounds.is_closed()) => {}
            BreakEven::Crossing {
                object_bytes,
                is_this_below,
                ..
            } => {
                let side = if is_this_below {
                    &mut below
                } else {
                    &mut above
                };
                side.push((object_bytes, name));
            }
            BreakEven::Apart { is_this_better } => {
                let side = if is_this_better {
                    &mut always
                } else {
                    &mut never
                };
                side.push((0.0, name));
            }
            BreakEven::Alike | BreakEven::TooFewSizes => {}
        }
    }
    let mut parts = Vec::new();
    for (word, files) in [("below", &mut below), ("above", &mut above)] {
        files.sort_by(|a: &(f64, String), b| a.0.total_cmp(&b.0));
        if let (Some(low), Some(high)) = (files.first(), files.last()) {
            let (low, high) = (say_bytes(low.0), say_bytes(high.0));
            let range = if low == high {
                low
            } else {
                format!("{low} to {high}")
            };
            parts.push(format!("{word} {range} than files on {}", names(files)));
        }
    }
    for (word, files) in [("at every size", &always), ("at no size", &never)] {
        if !files.is_empty() {
            parts.push(format!("{word} than files on {}", names(files)));
        }
    }
    let said = || {
        format!(
            "at age {age}, {} reads faster {}",
            system_name(row),
            parts.join("; ")
        )
    };
    (!parts.is_empty()).then(|| sentence(&said()))
}

fn names(files: &[(f64, String)]) -> String {
    let names: Vec<&str> = files.iter().map(|(_, name)| &**name).collect();
    names.join(", ")
}

fn read_aged(aging: &Selection<'_>) -> Figure {
    let read = aging.measure("read_mb_s").word_if_any("sizes", "uniform");
    let (used, shown) = read.narrow(&["object_bytes", "volume_bytes"]);
    let ages = first_middle_last(&used.ages());
    let mark = |age: f64| {
        let x = if age == 0.0 { MB } else { 256.0 * KB };
        let label = "equal in 2006".to_owned();
        [0.0, 4.0].contains(&age).then_some(Mark { x, label })
    };
    let charts: Vec<LineChart> = ages
        .iter()
        .map(|age| read_chart(&used, *age, mark(*age)))
        .collect();
    let mut here = String::new();
    if let (Some(first), Some(last)) = (charts.first(), charts.last()) {
        // How much of the first speed is left, over all sizes.
        let kept = last.series.iter().filter_map(|line| {
            let young = first
                .series
                .iter()
                .find(|young| young.whose == line.whose)?;
            let ratio = |point: &crate::figures::chart::Point| {
                let before = young.points.iter().find(|before| before.x == point.x)?;
                Some((point.y / before.y).ln())
            };
            let logs: Vec<f64> = line.points.iter().filter_map(ratio).collect();
            let Whose::System(name) = &line.whose else {
                return None;
            };
            (!logs.is_empty()).then(|| (name.clone(), 100.0 * crate::statistics::mean(&logs).exp()))
        });
        let kept: Vec<(String, f64)> = kept.collect();
        let percent = |value: f64| say(value, Unit::Percent);
        let oldest = ages.last().copied().unwrap_or_default();
        here = sentence(&format!(
            "at age {oldest}, over all sizes, {} of the speed of the full young store",
            extremes(&kept, ("kept most", "least"), percent)
        ));
        here += &joined(&crossings(&used, oldest, false));
    }
    // One age alone is the figure before.
    let charts = if ages.len() > 1 { charts } else { vec![] };
    let charts = charts.into_iter().map(Chart::Lines).collect();
    Figure::new(papers::READ_AGED, charts, here, (&used, shown))
}

/// The papers' ages 0, 2 and 4 if they are there, else the ends and the middle.
fn first_middle_last(ages: &[f64]) -> Vec<f64> {
    if [0.0, 2.0, 4.0].iter().all(|age| ages.contains(age)) {
        return vec![0.0, 2.0, 4.0];
    }
    let mut few: Vec<f64> = [0, ages.len() / 2, ages.len().saturating_sub(1)]
        .iter()
        .filter_map(|index| ages.get(*index).copied())
        .collect();
    few.dedup();
    few
}

fn fragments(aging: &Selection<'_>, paper: Paper, is_wanted: impl Fn(f64) -> bool) -> Figure {
    let sizes = aging
        .measure("fragments_mean")
        .word_if_any("sizes", "uniform");
    let wanted = sizes.filter(|record| record.number("object_bytes").is_some_and(&is_wanted));
    let (used, shown) = wanted.narrow(&["object_bytes", "volume_bytes"]);
    let sizes = used.numbers("object_bytes");
    let few = &sizes[sizes.len().saturating_sub(3)..];
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for size in few {
        let there = used.number("object_bytes", *size);
        let ages = there.ages();
        let mut series = all_lines(&there, &ages, |age| there.age(age));
        said.push(growth(&series, *size));
        if Some(size) == few.last() {
            let last = there.age(ages.last().copied().unwrap_or_default());
            said.extend(layout::filled(aging, &last));
            said.extend(layout::own_count(aging, &last));
            said.extend(layout::unseen(aging, &last));
        }
        if *size > MB {
            let papers = papers::FRAGMENTS_AT_10
                .iter()
                .map(|(name, low, high)| Series {
                    whose: Whose::Paper(name.to_string()),
                    points: vec![paper_point(10.0, *low, *high)],
                });
            series.extend(papers);
        } else if *size > 64.0 * KB {
            let requests = size / (64.0 * KB);
            let oldest = ages.last().copied().unwrap_or(1.0).max(1.0);
            series.push(Series {
                whose: Whose::Paper("one per 64 KB".to_owned()),
                points: [0.0, oldest]
                    .map(|age| paper_point(age, requests, requests))
                    .to_vec(),
            });
        }
        charts.push(Chart::Lines(LineChart {
            title: format!("objects of {}", say_bytes(*size)),
            x: age_axis(),
            y: axis("fragments per object, mean", Unit::Plain, Spacing::Log),
            series,
            marks: vec![],
        }));
    }
    Figure::new(paper, charts, said.join(" "), (&used, shown))
}

/// Who has the most fragments at the end, and who still grows.
fn growth(series: &[Series], size: f64) -> String {
    let oldest = series
        .iter()
        .filter_map(|line| line.points.last())
        .map(|point| point.x);
    let oldest = oldest.fold(0.0, f64::max);
    let said = extremes(
        &last_values(series),
        ("has most fragments", "fewest"),
        fragments_said,
    );
    // Beyond the bounds of both, where there are some.
    let grows = |line: &&Series| match line.points.as_slice() {
        [.., before, last] => last.low > 1.1 * before.high,
        _ => false,
    };
    let growing: Vec<String> = series
        .iter()
        .filter(grows)
        .map(|line| line.whose.label())
        .collect();
    let still = match growing.as_slice() {
        [] => "none grows by more than a tenth any more".to_owned(),
        names => format!("still growing by more than a tenth: {}", names.join(", ")),
    };
    sentence(&format!(
        "objects of {} at age {oldest}: {said}; {still}",
        say_bytes(size)
    ))
}

fn write_between(aging: &Selection<'_>) -> Figure {
    let write = aging.measure("write_mb_s").word_if_any("sizes", "uniform");
    let (used, shown) = write.narrow(&["object_bytes", "volume_bytes"]);
    let sizes = used.numbers("object_bytes");
    // The papers' 512 KB, and what is nearest to it.
    let mut few = sizes.clone();
    few.sort_by(|a, b| {
        (a / (512.0 * KB))
            .ln()
            .abs()
            .total_cmp(&(b / (512.0 * KB)).ln().abs())
    });
    few.truncate(3);
    few.sort_by(f64::total_cmp);
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for size in few {
        let there = used.number("object_bytes", size);
        let ages = there.ages();
        let mut series = all_lines(&there, &ages, |age| there.age(age));
        let ends = extremes(&last_values(&series), ("wrote fastest", "slowest"), mb_s);
        said.push(sentence(&format!(
            "objects of {} up to the last age: {ends}",
            say_bytes(size)
        )));
        if size == 512.0 * KB {
            series.extend(papers::WRITE_AT_0.iter().map(|(name, value)| Series {
                whose: Whose::Paper(name.to_string()),
                points: vec![paper_point(0.0, *value, *value)],
            }));
        }
        charts.push(Chart::Lines(LineChart {
            title: format!("objects of {}", say_bytes(size)),
            x: axis("written up to storage age", Unit::Plain, Spacing::Linear),
            y: axis("writes, MB/s", Unit::Plain, Spacing::Log),
            series,
            marks: vec![],
        }));
    }
    Figure::new(
        papers::WRITE_BETWEEN,
        charts,
        said.join(" "),
        (&used, shown),
    )
}

fn size_distribution(aging: &Selection<'_>) -> Figure {
    let all = aging.measure("fragments_mean");
    let kinds = all.words("sizes");
    let is_of_both = |size: &f64| {
        kinds.iter().all(|kind| {
            !all.word("sizes", kind)
                .number("object_bytes", *size)
                .is_empty()
        })
    };
    let size = all.numbers("object_bytes").into_iter().rfind(is_of_both);
    let (Some(size), true) = (size, kinds.len() > 1) else {
        return Figure::new(
            papers::SIZE_DISTRIBUTION,
            vec![],
            String::new(),
            (&all, vec![]),
        );
    };
    let (used, shown) = all
        .number("object_bytes", size)
        .narrow(&["sizes", "volume_bytes"]);
    let mut charts = Vec::new();
    let mut ends = Vec::new();
    for kind in &kinds {
        let there = used.word("sizes", kind);
        let ages = there.ages();
        let series = all_lines(&there, &ages, |age| there.age(age));
        ends.push(last_values(&series));
        charts.push(Chart::Lines(LineChart {
            title: format!("{kind} sizes, mean {}", say_bytes(size)),
            x: age_axis(),
            y: axis("fragments per object, mean", Unit::Plain, Spacing::Log),
            series,
            marks: vec![],
        }));
    }
    let said = kinds.iter().zip(&ends).map(|(kind, ends)| {
        let said = extremes(ends, ("has most fragments", "fewest"), fragments_said);
        sentence(&format!("with {kind} sizes, {said}"))
    });
    let oldest = used.ages().last().copied().unwrap_or_default();
    let here = said.chain(layout::filled(aging, &used.age(oldest)));
    let here = here.collect::<Vec<_>>().join(" ");
    Figure::new(papers::SIZE_DISTRIBUTION, charts, here, (&used, shown))
}

/// Free objects of a case, as they were measured at this age, or free bytes ÷ size of an object.
fn free_objects(record: &Record, measured: &Selection<'_>) -> Option<f64> {
    let same = |other: &Record| other.backend == record.backend && other.case == record.case;
    if let Some(median) = measured.filter(same).median() {
        return Some(median.value.round());
    }
    let volume = record.number("volume_bytes")?;
    let free = volume * (1.0 - record.number("occupancy")?);
    Some((free / record.number("object_bytes")?).round())
}

fn free_pool(data: &Data) -> Figure {
    let all = data.all().experiment("volume").measure("fragments_mean");
    let (used, shown) = all.narrow(&["object_bytes", "volume_bytes", "occupancy"]);
    let oldest = used.ages().last().copied().unwrap_or_default();
    let measured = data
        .all()
        .experiment("volume")
        .measure("free_pool_objects")
        .age(oldest);
    let pool_of = |record: &Record| free_objects(record, &measured).filter(|pool| *pool > 0.0);
    let used = used.age(oldest).filter(|record| pool_of(record).is_some());
    let mut pools: Vec<f64> = used.records().filter_map(pool_of).collect();
    pools.sort_by(f64::total_cmp);
    pools.dedup();
    let mut series = all_lines(&used, &pools, |pool| {
        used.filter(|record| pool_of(record) == Some(pool))
    });
    let smallest: Vec<(String, f64)> = series
        .iter()
        .filter_map(|line| match &line.whose {
            Whose::System(name) => {
                Some((name.clone(), line.points.first()?.y / line.points.last()?.y))
            }
            Whose::Paper(_) => None,
        })
        .collect();
    let here = match (pools.first(), pools.last()) {
        (Some(least), Some(most)) => sentence(&format!(
            "with {} free objects instead of {}, at age {oldest}, fragments per object are \
             multiplied: {}",
            say(*least, Unit::Plain),
            say(*most, Unit::Plain),
            extremes(&smallest, ("most", "least"), |factor| format!(
                "× {}",
                say(factor, Unit::Plain)
            ))
        )),
        _ => String::new(),
    };
    let points = papers::FRAGMENTS_HALF_FULL.iter();
    series.push(Series {
        whose: Whose::Paper("2006, half full".to_owned()),
        points: points
            .map(|(pool, low, high)| paper_point(*pool, *low, *high))
            .collect(),
    });
    let mark = |x: f64, label: &str| Mark {
        x,
        label: label.to_owned(),
    };
    let chart = LineChart {
        title: format!("storage age {oldest}"),
        x: axis("free objects on the volume", Unit::Plain, Spacing::Log),
        y: axis("fragments per object, mean", Unit::Plain, Spacing::Log),
        series,
        marks: vec![mark(40.0, "2006: 40 bad"), mark(400.0, "400: enough")],
    };
    let charts = if used.is_empty() {
        vec![]
    } else {
        vec![Chart::Lines(chart)]
    };
    Figure::new(papers::FREE_POOL, charts, here, (&used, shown))
}

fn write_size(data: &Data) -> Figure {
    let all = data
        .all()
        .experiment("write-size")
        .measure("fragments_mean");
    let (used, shown) = all.narrow(&["request_bytes", "volume_bytes"]);
    let oldest = used.ages().last().copied().unwrap_or_default();
    let used = used.age(oldest);
    let requests = used.numbers("request_bytes");
    let series = all_lines(&used, &requests, |bytes| {
        used.number("request_bytes", bytes)
    });
    let swing = series.iter().filter_map(|line| match &line.whose {
        Whose::System(name) => {
            let values = || line.points.iter().map(|point| point.y);
            Some((
                name.clone(),
                values().fold(0.0, f64::max) / values().fold(f64::INFINITY, f64::min),
            ))
        }
        Whose::Paper(_) => None,
    });
    let swing: Vec<(String, f64)> = swing.collect();
    let factor = |value: f64| format!("× {}", say(value, Unit::Plain));
    let differ = sentence(&format!(
        "between the best and the worst request size, at age {oldest}, fragments per object \
         differ: {}",
        extremes(&swing, ("most", "least"), factor)
    ));
    let here = [Some(differ), layout::filled(&data.all(), &used)];
    let here = here.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let chart = LineChart {
        title: format!("storage age {oldest}"),
        x: axis("size of a write request", Unit::Bytes, Spacing::Log),
        y: axis("fragments per object, mean", Unit::Plain, Spacing::Log),
        series,
        marks: vec![Mark {
            x: 64.0 * KB,
            label: "the papers' requests".to_owned(),
        }],
    };
    let charts = if used.is_empty() {
        vec![]
    } else {
        vec![Chart::Lines(chart)]
    };
    Figure::new(papers::WRITE_SIZE, charts, here, (&used, shown))
}
