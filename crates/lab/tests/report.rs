//! The report on made-up runs: every figure is drawn when its records exist and named when not,
//! what is written is well-formed and refers to nothing outside, and a browser has nothing to
//! complain about.

#![allow(clippy::unwrap_used)]

mod synthetic;

use larder_lab::results::Results;
use larder_lab::{data::Data, figures, report};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn everything() -> Vec<Results> {
    vec![
        synthetic::age(),
        synthetic::volume(),
        synthetic::write_size(),
        synthetic::dbfs(),
        synthetic::cluster(),
        synthetic::replay("git"),
        synthetic::replay("trace"),
    ]
}

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        fs::remove_dir_all(&path).unwrap();
    }
    path
}

fn parse(text: &str) -> roxmltree::Document<'_> {
    let at = |error| panic!("not well-formed: {error}");
    let text = text.strip_prefix("<!DOCTYPE html>\n").unwrap_or(text);
    roxmltree::Document::parse(text).unwrap_or_else(at)
}

#[test]
fn all_figures_are_drawn_and_written() {
    let to = scratch("report-all");
    let written = report::write(everything(), &to).unwrap();
    assert_eq!(written.missing, []);
    assert_eq!(written.drawn.len(), figures::all(&Data::new(vec![])).len());
    let page = fs::read_to_string(&written.page).unwrap();
    let document = parse(&page);
    for id in &written.drawn {
        // FIGURE-1, REPORT-2
        let section = document
            .descendants()
            .find(|node| node.attribute("id") == Some(id));
        let section = section.unwrap_or_else(|| panic!("{id} is not on the page"));
        let drawings = section
            .descendants()
            .filter(|node| node.tag_name().name() == "svg");
        assert_eq!(drawings.count(), 2, "{id}: one wide, one narrow");
        let sentences = section
            .descendants()
            .filter(|node| node.tag_name().name() == "h4");
        assert_eq!(sentences.count(), 3, "{id}");
        let svg = fs::read_to_string(to.join(format!("figures/{id}.svg"))).unwrap();
        parse(&svg);
        let png = fs::read(to.join(format!("figures/{id}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{id}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{id}");
    }
    let text = fs::read_to_string(to.join("figures.md")).unwrap();
    assert_eq!(text.matches("* **Here:** ").count(), written.drawn.len());
    assert!(!text.contains("Not measured"), "{text}");
    assert!(!page.contains("NaN") && !page.contains("inf "));
    assert!(
        fs::read_to_string(to.join("records.csv"))
            .unwrap()
            .lines()
            .count()
            > 1000
    );
}

#[test]
fn the_page_needs_nothing_else() {
    let figures = figures::all(&Data::new(everything()));
    let page = report::html(&Data::new(everything()), &figures);
    for node in parse(&page).descendants().filter(|node| node.is_element()) {
        // REPORT-1
        assert!(!["script", "img", "iframe", "object"].contains(&node.tag_name().name()));
        for name in ["href", "src"] {
            let target = node.attribute(name).unwrap_or("#");
            assert!(target.starts_with('#') || target == "data:,", "{target}");
        }
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
}

#[test]
fn what_has_no_records_is_named_with_its_command() {
    let to = scratch("report-some");
    let written = report::write(vec![synthetic::write_size()], &to).unwrap();
    assert_eq!(written.drawn, ["write-size"]);
    let page = fs::read_to_string(&written.page).unwrap();
    let missing: Vec<&str> = written.missing.iter().map(|(id, _)| *id).collect();
    for (id, command) in &written.missing {
        // FIGURE-1, REPORT-2
        let document = parse(&page);
        let item = document
            .descendants()
            .find(|node| node.attribute("id") == Some(id));
        let code = item.and_then(|item| {
            item.descendants()
                .find(|node| node.tag_name().name() == "code")
        });
        assert_eq!(code.and_then(|code| code.text()), Some(*command), "{id}");
    }
    assert!(missing.contains(&"cluster-select") && missing.contains(&"fragments-large"));
    let error = report::write(vec![], &to).unwrap_err();
    assert!(error.to_string().contains("larder lab run"), "{error}");
}

#[test]
fn sentences_follow_the_records() {
    let mut run = synthetic::age();
    let here = |run: &Results| {
        let figures = figures::all(&Data::new(vec![run.clone()]));
        let figure = figures
            .into_iter()
            .find(|figure| figure.paper.id == "fragments-large");
        figure.unwrap().here
    };
    assert!(
        here(&run).contains("SQLite has most fragments"),
        "{}",
        here(&run)
    );
    // The other way round.
    for record in &mut run.records {
        if record.measure == "fragments_mean" {
            record.value = if record.backend == "sqlite" {
                1.0
            } else {
                2.0 + record.value
            };
        }
    }
    assert!(here(&run).contains("SQLite fewest (1)"), "{}", here(&run));
}

fn figure_of(run: &Results, id: &str) -> figures::Figure {
    let mut figures = figures::all(&Data::new(vec![run.clone()])).into_iter();
    figures.find(|figure| figure.paper.id == id).unwrap()
}

#[test]
fn records_under_load_are_marked() {
    let run = synthetic::age();
    // NTFS at age 2, three rounds, six sizes; where things lie does not follow from load.
    assert_eq!(figure_of(&run, "write-between").crowded_count, 18);
    assert_eq!(figure_of(&run, "fragments-large").crowded_count, 0);
    let quiet = figures::all(&Data::new(vec![synthetic::cluster()]));
    assert!(quiet.iter().all(|figure| figure.crowded_count == 0));
}

#[test]
fn what_is_written_to_logs_counts() {
    let mut run = synthetic::age();
    let here = figure_of(&run, "amplification").here;
    assert!(here.contains("SQLite has most (3."), "without logs: {here}");
    let logs: Vec<_> = run
        .records
        .iter()
        .filter(|record| record.measure == "write_amplification" && record.backend == "postgres")
        .cloned()
        .collect();
    for mut record in logs {
        record.measure = "log_amplification".to_owned();
        // Its own round's: what is summed is not the medians.
        record.value = 10.0 - record.value;
        run.records.push(record);
    }
    let here = figure_of(&run, "amplification").here;
    assert!(here.contains("PostgreSQL has most (10)"), "{here}");
    assert!(
        here.contains("While the store was filled (age 0): "),
        "{here}"
    );
}

#[test]
fn one_round_is_nothing_real() {
    let run = synthetic::age();
    let id = "fragments-large";
    let once = "Measured once";
    assert!(!figure_of(&run, id).here.contains(once));
    let mut single = run.clone();
    single.records.retain(|record| record.round == 0);
    assert!(figure_of(&single, id).here.contains(once));
    // SQLite grows by less than its rounds differ.
    let mut noisy = run.clone();
    for record in &mut noisy.records {
        if record.measure == "fragments_mean" {
            let swing = f64::from(record.round) + 1.0;
            record.value = if record.age == 10.0 { 4.0 } else { 3.0 } * swing;
        }
    }
    let here = figure_of(&noisy, id).here;
    assert!(here.contains("none grows"), "{here}");
}

#[test]
fn counts_of_fragments_are_told_with_what_bears_on_them() {
    let mut run = synthetic::age();
    let here = figure_of(&run, "fragments-large").here;
    assert!(!here.contains("of the whole volume"), "{here}");
    let known: Vec<_> = run
        .records
        .iter()
        .filter(|record| record.measure == "fragments_mean")
        .cloned()
        .collect();
    for record in known {
        let volume_bytes = record.number("volume_bytes").unwrap();
        let of = |measure: &str, value: f64| synthetic::Record {
            measure: measure.to_owned(),
            value,
            ..record.clone()
        };
        let (share, seen) = match &*record.backend {
            "larder" => (0.75, 1.0),
            "sqlite" => (0.85, 0.992),
            _ => (0.8, 1.0),
        };
        run.records.push(of("live_bytes", share * volume_bytes));
        run.records.push(of("markers_found_share", seen));
        if record.backend == "larder" {
            run.records.push(of("fragments_own_mean", 1.0));
        }
    }
    let larder = |record: &&mut synthetic::Record| {
        record.backend == "larder" && record.measure == "fragments_mean"
    };
    run.records
        .iter_mut()
        .filter(larder)
        .for_each(|record| record.value = 1.02);
    let here = figure_of(&run, "fragments-large").here;
    for said in [
        "Objects fill, of the whole volume: SQLite 85 %, ext4 80 %",
        "Larder 75 %.",
        "Larder itself counts 1: the markers",
        "Of the markers were found: SQLite 99.2 %, all of the others",
    ] {
        assert!(here.contains(said), "{said}: {here}");
    }
}

#[test]
fn odd_records_do_not_break_the_page() {
    let mut run = synthetic::age();
    run.header.name = "<script>&\"'\u{1}".to_owned();
    for (index, record) in run.records.iter_mut().enumerate() {
        match index % 7 {
            0 => record.value = 0.0,
            1 => record.case.clear(),
            2 => record.backend = "<b>".to_owned(),
            3 => drop(
                record
                    .case
                    .insert("object_bytes".to_owned(), "many".to_owned()),
            ),
            4 => record.value = -1.0,
            5 => record.value = 1e300,
            _ => {}
        }
    }
    let data = Data::new(vec![run]);
    let figures = figures::all(&data);
    parse(&report::html(&data, &figures));
    figures
        .iter()
        .for_each(|figure| drop(parse(&figure.document())));
}

#[test]
fn a_browser_draws_it_without_a_complaint() {
    let to = scratch("report-browser");
    let page = report::write(everything(), &to).unwrap().page;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let browser = names
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok());
    let Some(browser) = browser else {
        println!("skipped: none of {names:?} is installed");
        return;
    };
    for width in [1280, 390] {
        let seen = browse(browser, &to, &page, width);
        let number = |name: &str| -> usize {
            let found = seen.split(' ').find_map(|word| word.strip_prefix(name));
            found
                .unwrap_or_else(|| panic!("{name} in {seen}"))
                .parse()
                .unwrap()
        };
        // REPORT-2: each figure once, as wide as the window, all of its text inside.
        assert_eq!(number("figures="), figures::all(&Data::new(vec![])).len());
        assert!(number("wide=") <= width, "at {width}: {seen}");
        assert_eq!(number("clipped="), 0, "at {width}: {seen}");
        assert!(number("high=") > 10 * width, "at {width}: {seen}");
    }
}

/// What a frame of this width sees of the page: a window is wider than a telephone, a frame need
/// not be.
fn browse(browser: &str, scratch: &Path, page: &Path, width: usize) -> String {
    let frame = scratch.join("frame.html");
    let script = "const d = this.contentDocument, all = [...d.querySelectorAll('section.figure \
        svg')]; \
        const seen = all.filter(one => one.getClientRects().length > 0); \
        const clipped = seen.flatMap(one => [...one.querySelectorAll('text')].filter(text => { \
            const a = one.getBoundingClientRect(), b = text.getBoundingClientRect(); \
            return b.right > a.right + 1 || b.left < a.left - 1; })); \
        document.title = 'seen figures=' + seen.length + ' wide=' + d.documentElement.scrollWidth \
            + ' high=' + d.documentElement.scrollHeight + ' clipped=' + clipped.length \
            + ' ' + clipped.map(text => text.textContent).join('|') + ' end';";
    let html = format!(
        "<body style='margin:0'><iframe style='border:0' width='{width}' height='900' \
         src='file://{}' onload=\"{script}\"></iframe>",
        page.display()
    );
    fs::write(&frame, html).unwrap();
    let shown = Command::new("timeout")
        .arg("120")
        .arg(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            scratch.join("profile").display()
        ))
        .arg(format!("file://{}", frame.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success(), "{said}");
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let dom = String::from_utf8_lossy(&shown.stdout).into_owned();
    let seen = dom.split_once("<title>seen ").expect("it was loaded").1;
    seen.split_once("</title>").unwrap().0.to_owned()
}
