//! Figures beside the papers': other disks, amplification, the shape of free space.

use crate::data::{Data, Selection};
use crate::figures::age::{age_axis, axis};
use crate::figures::chart::{Chart, LineChart, Point, Series, Whose};
use crate::figures::figure::{
    Figure, extremes, first_values, last_values, line, line_of, sentence,
};
use crate::figures::scale::{Spacing, Unit, say, say_bytes};
use crate::model::DISKS;
use crate::papers::Paper;
use crate::results::Record;
use crate::statistics::{self, Estimate};
use std::collections::BTreeMap;

const DISK_MODEL: Paper = Paper {
    id: "modelled-disks",
    title: "The same layout on other disks: a model",
    source: "computed from the observed places of fragments, not measured",
    found: "Virtual disks hide seeks. Here the places of all fragments are laid on four disks \
        described by a few figures, and the time of reading is computed.",
    differs: "A model knows no queues, no caches and no zones of a platter; the order of the \
        systems and the trend over age are what it is good for.",
    command: "larder lab run age",
};

const AMPLIFICATION: Paper = Paper {
    id: "amplification",
    title: "What reaches the device, and what it occupies",
    source: "beside the papers",
    found: "Write amplification: bytes written to the device for each byte of an object, logs \
        included, those on a volume of their own too. Space amplification: bytes occupied for \
        each byte that lives.",
    differs: "Write-ahead logs and copies into place cost a second write; holes that are too \
        small for the next object cost space. While a store is filled (age 0) Larder's segments \
        grow, and growing writes zeros first, so that later writes in place need no log of the \
        filesystem.",
    command: "larder lab run age",
};

const HOLES: Paper = Paper {
    id: "holes",
    title: "The shape of free space",
    source: "beside the papers",
    found: "The free bytes of the aged volume by the length of the hole that they lie in. Free \
        space in long holes is what the next large object needs.",
    differs: "Filesystems that keep free space in large groups look ahead of those that take the \
        first hole.",
    command: "larder lab run age",
};

const REPLAY: Paper = Paper {
    id: "replay",
    title: "Aging by a history of one's own",
    source: "beside the papers",
    found: "What was done elsewhere, done again: the changes between the commits of a git \
        repository, or the operations of a trace. Storage age is the papers': bytes that went, \
        for each byte that lives.",
    differs: "A history has its own sizes and its own order: what is changed often is changed \
        again, where the papers chose at random.",
    command: "larder lab run git --repository DIR",
};

pub(super) fn figures(data: &Data) -> Vec<Figure> {
    let figures = [disks(data), amplification(data), holes(data), replay(data)];
    figures
        .map(|figure| Figure {
            is_of_paper: false,
            ..figure
        })
        .into()
}

/// The largest objects of the experiment, which show most.
fn largest<'a>(
    data: &'a Data,
    is_wanted: impl Fn(&str) -> bool,
) -> (Selection<'a>, Vec<String>, f64) {
    let all = data
        .all()
        .experiment("age")
        .filter(|record| is_wanted(&record.measure));
    let all = all.word_if_any("sizes", "uniform");
    let size = all
        .numbers("object_bytes")
        .last()
        .copied()
        .unwrap_or_default();
    let (used, shown) = all
        .number_if_any("object_bytes", size)
        .narrow(&["volume_bytes"]);
    (used, shown, size)
}

fn disks(data: &Data) -> Figure {
    let (used, shown, size) = largest(data, |measure| measure.starts_with("modelled_read_mb_s."));
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for disk in &DISKS {
        let there = used.measure(&format!("modelled_read_mb_s.{}", disk.id));
        let ages = there.ages();
        let backends = there.backends();
        let series: Vec<Series> = backends
            .iter()
            .filter_map(|backend| line(backend, &ages, |age| there.age(age)))
            .collect();
        if series.is_empty() {
            continue;
        }
        let mb_s = |value: f64| format!("{} MB/s", say(value, Unit::Plain));
        let ends = extremes(&last_values(&series), ("is fastest", "slowest"), mb_s);
        said.push(sentence(&format!("{}: {ends}", disk.name)));
        charts.push(Chart::Lines(LineChart {
            title: format!("{}, objects of {}", disk.name, say_bytes(size)),
            x: age_axis(),
            y: axis("reads, modelled MB/s", Unit::Plain, Spacing::Log),
            series,
            marks: vec![],
        }));
    }
    Figure::new(DISK_MODEL, charts, said.join(" "), (&used, shown))
}

/// What reached the volume, and what reached the volume of logs.
const WRITTEN: [&str; 2] = ["write_amplification", "log_amplification"];

/// The bytes written for each byte of an object, on both volumes together: of each case, then the
/// median.
fn written(there: &Selection<'_>) -> Option<Estimate> {
    let [data, logs] = WRITTEN.map(|measure| there.measure(measure));
    let sum = |record: &Record| {
        let same = |log: &Record| {
            (&log.backend, &log.case, log.round, log.age)
                == (&record.backend, &record.case, record.round, record.age)
        };
        record.value + logs.filter(same).values().iter().sum::<f64>()
    };
    let sums: Vec<f64> = data.records().map(sum).collect();
    statistics::median(&sums)
}

fn amplification(data: &Data) -> Figure {
    let kinds = [
        (
            WRITTEN[0],
            "bytes written to the device per byte of an object",
        ),
        ("space_amplification", "bytes occupied per byte that lives"),
    ];
    let (used, shown, size) = largest(data, |measure| {
        WRITTEN.contains(&measure) || kinds.iter().any(|(kind, _)| *kind == measure)
    });
    let mut charts = Vec::new();
    let mut said = Vec::new();
    for (measure, label) in kinds {
        let there = used.measure(measure);
        let ages = there.ages();
        let backends = there.backends();
        let series: Vec<Series> = backends
            .iter()
            .filter_map(|backend| match measure == WRITTEN[0] {
                true => line_of(backend, &ages, |age| {
                    written(&used.backend(backend).age(age))
                }),
                false => line(backend, &ages, |age| there.age(age)),
            })
            .collect();
        if series.is_empty() {
            continue;
        }
        let name = measure.replace('_', " ");
        let times = |value: f64| say(value, Unit::Plain);
        let most_and_least =
            |values: &[(String, f64)]| extremes(values, ("has most", "least"), times);
        let ends = most_and_least(&last_values(&series));
        said.push(sentence(&format!("{name} at the last age: {ends}")));
        if measure == WRITTEN[0] && ages.first() == Some(&0.0) {
            let first = most_and_least(&first_values(&series));
            said.push(sentence(&format!(
                "while the store was filled (age 0): {first}"
            )));
        }
        charts.push(Chart::Lines(LineChart {
            title: format!("{name}, objects of {}", say_bytes(size)),
            x: age_axis(),
            y: axis(label, Unit::Plain, Spacing::Linear),
            series,
            marks: vec![],
        }));
    }
    Figure::new(AMPLIFICATION, charts, said.join(" "), (&used, shown))
}

const HOLE: &str = "hole_blocks_log2.";

fn holes(data: &Data) -> Figure {
    let (used, shown, size) = largest(data, |measure| measure.starts_with(HOLE));
    let oldest = used.ages().last().copied().unwrap_or_default();
    let used = used.age(oldest);
    let mut series = Vec::new();
    for backend in used.backends() {
        let mut classes: BTreeMap<i32, Vec<f64>> = BTreeMap::new();
        for record in used.backend(&backend).records() {
            let class = record
                .measure
                .strip_prefix(HOLE)
                .and_then(|class| class.parse().ok());
            if let Some(class) = class {
                classes.entry(class).or_default().push(record.value);
            }
        }
        // A hole of the class has 1.5 × 2^N blocks of 4 KiB in the mean.
        let bytes = |class: i32| 1.5 * 2.0_f64.powi(class) * 4096.0;
        let held = |(class, counts): (&i32, &Vec<f64>)| {
            let count = statistics::median(counts).map_or(0.0, |median| median.value);
            (bytes(*class), count * bytes(*class))
        };
        let held: Vec<(f64, f64)> = classes.iter().map(held).collect();
        let total: f64 = held.iter().map(|(_, bytes)| bytes).sum();
        let is_crowded = used.backend(&backend).crowded_count() > 0;
        let point = |(x, bytes): &(f64, f64)| {
            let share = 100.0 * bytes / total.max(1.0);
            Point {
                x: *x,
                y: share,
                low: share,
                high: share,
                is_crowded,
            }
        };
        series.push(Series {
            whose: Whose::System(backend),
            points: held.iter().map(point).collect(),
        });
    }
    // Free bytes in holes that hold a whole object.
    let large = series.iter().filter_map(|line| match &line.whose {
        Whose::System(name) => {
            let fits = line.points.iter().filter(|point| point.x >= size);
            Some((name.clone(), fits.map(|point| point.y).sum()))
        }
        Whose::Paper(_) => None,
    });
    let large: Vec<(String, f64)> = large.collect();
    let percent = |value: f64| say(value, Unit::Percent);
    let here = sentence(&format!(
        "at age {oldest}, of the free bytes in holes that hold a whole object of {}, {}",
        say_bytes(size),
        extremes(&large, ("has most", "least"), percent)
    ));
    let chart = LineChart {
        title: format!("storage age {oldest}, objects of {}", say_bytes(size)),
        x: axis("length of the hole", Unit::Bytes, Spacing::Log),
        y: axis("% of the free bytes", Unit::Percent, Spacing::Linear),
        series,
        marks: vec![],
    };
    let charts = if used.is_empty() {
        vec![]
    } else {
        vec![Chart::Lines(chart)]
    };
    Figure::new(HOLES, charts, here, (&used, shown))
}

/// The experiments that replay something, and what people call that.
const REPLAYED: [(&str, &str); 2] = [("git", "a git history"), ("trace", "a trace")];

fn replay(data: &Data) -> Figure {
    let measures = [
        ("fragments_mean", "fragments per object, mean"),
        ("read_mb_s", "reads, MB/s"),
    ];
    let is_wanted = |record: &Record| {
        REPLAYED.iter().any(|(name, _)| *name == record.experiment)
            && measures
                .iter()
                .any(|(measure, _)| *measure == record.measure)
    };
    let (used, shown) = data
        .all()
        .filter(is_wanted)
        .narrow(&["operations", "volume_bytes"]);
    let (mut charts, mut said) = (Vec::new(), Vec::new());
    for (experiment, name) in REPLAYED {
        for (measure, label) in measures {
            let there = used.experiment(experiment).measure(measure);
            // Looks are at any age, close together.
            let mut ages: Vec<f64> = there.records().map(|record| record.age).collect();
            ages.sort_by(f64::total_cmp);
            ages.dedup();
            let at = |age: f64| there.filter(|record| record.age == age);
            let series: Vec<Series> = there
                .backends()
                .iter()
                .filter_map(|backend| line(backend, &ages, at))
                .collect();
            let Some(oldest) = ages.last().filter(|_| !series.is_empty()) else {
                continue;
            };
            let plain = |value: f64| say(value, Unit::Plain);
            let ends = extremes(&last_values(&series), ("most", "least"), plain);
            let oldest = plain(*oldest);
            said.push(sentence(&format!(
                "{name}, {label}, at age {oldest}: {ends}"
            )));
            charts.push(Chart::Lines(LineChart {
                title: name.to_owned(),
                x: age_axis(),
                y: axis(label, Unit::Plain, Spacing::Log),
                series,
                marks: vec![],
            }));
        }
    }
    Figure::new(REPLAY, charts, said.join(" "), (&used, shown))
}
