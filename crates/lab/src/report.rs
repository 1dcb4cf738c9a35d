//! The report: one page that needs no network, and the figures as files.
//!
//! ```text
//! DIR/report.html      the page: styles and drawings are inside
//! DIR/figures.md       the same figures and sentences for a document in Markdown
//! DIR/records.csv      all records
//! DIR/figures/ID.svg   each figure that has records
//! DIR/figures/ID.png   the same as a picture
//! ```
//!
//! * `REPORT-1` The page refers to nothing outside of itself.
//! * `REPORT-2` Every figure is on the page: drawn, or named as missing with the command that
//!   measures it.

mod tables;

use crate::data::{Data, system_name};
use crate::figures::scale::say_count;
use crate::figures::svg::escape;
use crate::figures::{self, Figure};
use crate::raster;
use crate::results;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const STYLE: &str = include_str!("report/report.css");

/// Widths, in units of the page, of charts beside each other and below each other.
const WIDE: f64 = 1180.0;
const NARROW: f64 = 358.0;

/// Why no report was written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to report.
    #[error("the runs hold no record; `larder lab run` measures")]
    NoRecords,
    /// The filesystem refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was written.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A figure has no picture.
    #[error("figure {id}: {source}")]
    Raster {
        /// Which.
        id: &'static str,
        /// Why.
        source: raster::Error,
    },
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// Figures that were drawn.
    pub drawn: Vec<&'static str>,
    /// Figures without records, and the command that would measure each.
    pub missing: Vec<(&'static str, &'static str)>,
}

/// Writes the report of `runs` into the directory `to`, which is made if it is not there.
///
/// # Errors
/// [`Error::NoRecords`], or what the filesystem says.
pub fn write(runs: Vec<results::Results>, to: &Path) -> Result<Written, Error> {
    if runs.iter().all(|run| run.records.is_empty()) {
        return Err(Error::NoRecords);
    }
    let put = |path: PathBuf, bytes: &[u8]| match fs::write(&path, bytes) {
        Ok(()) => Ok(path),
        Err(source) => Err(Error::Io { path, source }),
    };
    let folder = to.join("figures");
    fs::create_dir_all(&folder).map_err(|source| Error::Io {
        path: folder.clone(),
        source,
    })?;
    put(to.join("records.csv"), results::csv(&runs).as_bytes())?;
    let data = Data::new(runs);
    let figures = figures::all(&data);
    let (mut drawn, mut missing) = (Vec::new(), Vec::new());
    for figure in &figures {
        let id = figure.paper.id;
        if !figure.is_drawn() {
            missing.push((id, figure.paper.command));
            continue;
        }
        let document = figure.document();
        put(folder.join(format!("{id}.svg")), document.as_bytes())?;
        let picture = raster::png(&document).map_err(|source| Error::Raster { id, source })?;
        put(folder.join(format!("{id}.png")), &picture)?;
        drawn.push(id);
    }
    put(to.join("figures.md"), markdown(&figures).as_bytes())?;
    let page = put(to.join("report.html"), html(&data, &figures).as_bytes())?;
    Ok(Written {
        page,
        drawn,
        missing,
    })
}

/// The page.
pub fn html(data: &Data, figures: &[Figure]) -> String {
    let groups = [
        (
            "Files or rows: what age does",
            "Objects are put, replaced and deleted until bytes that once existed outweigh those \
             that live several times: \
             the storage age. These figures redraw Figures 1–6 of [FRAG] and 1–7 of [BLOB].",
            &figures[..age_count(figures)],
        ),
        (
            "Beside the papers",
            "What the papers did not show, and what decides on today's machines.",
            beside(figures),
        ),
        (
            "A filesystem in a database",
            "File size and concurrency, and a store that is emptied and filled again: Tables 1 \
             and 2 of [DBFS].",
            of_papers(figures, "dbfs-"),
        ),
        (
            "A database on filesystems",
            "PostgreSQL's statements on filesystems with different block sizes: Figures 3–10 of \
             [CLUSTER]. A ring marks the block size that the paper found best.",
            of_papers(figures, "cluster-"),
        ),
    ];
    let mut body = head(data, figures);
    body += "<main>";
    for (index, (title, lead, figures)) in groups.into_iter().enumerate() {
        let drawn: Vec<&Figure> = figures.iter().filter(|figure| figure.is_drawn()).collect();
        if drawn.is_empty() {
            continue;
        }
        body += &format!("<h2>{title}</h2><p class='lead'>{lead}</p>");
        drawn.iter().for_each(|figure| body += &section(figure));
        if index == 0 {
            body += &tables::break_even(data);
        }
    }
    body += &missing(figures);
    body += &tables::trust(data);
    body += &tables::machines(data);
    body += "</main><footer>Made by <code>larder lab report</code>. [FRAG] Sears, van Ingen: \
        Fragmentation in Large Object Repositories, CIDR 2007. \
             [BLOB] Sears, van Ingen, Gray: To BLOB or Not To BLOB, MSR-TR-2006-45. \
             [DBFS] Kunchithapadam, Zhang, Ganesh, Mukherjee: DBFS and SecureFiles, SIGMOD 2011. \
             [CLUSTER] Kramberger, Cafuta, Dodig: Dependencies of File System Cluster Size in \
             Correlation with Database Management System.</footer>";
    let dark = figures::dark_style("@media (prefers-color-scheme:dark)");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <link rel=\"icon\" href=\"data:,\"/><title>How storage ages here</title>\
         <style>{STYLE}{dark}</style></head><body>{body}</body></html>\n"
    )
}

/// Each figure with its three sentences.
fn markdown(figures: &[Figure]) -> String {
    let mut text = "# How storage ages here: the figures\n".to_owned();
    for figure in figures {
        let paper = figure.paper;
        text += &format!("\n## {}\n\n{}\n", paper.title, paper.source);
        if !figure.is_drawn() {
            text += &format!("\nNot measured: `{}` would.\n", paper.command);
            continue;
        }
        let there = match figure.is_of_paper {
            true => "The paper found",
            false => "What it is",
        };
        text += &format!(
            "\n![{}](figures/{}.svg)\n\n* **{there}:** {}\n* **Here:** {}\n* **Why they differ:** \
             {}\n",
            paper.title, paper.id, paper.found, figure.here, paper.differs
        );
        if !figure.shown.is_empty() {
            text += &format!("* **Shown:** {}.\n", figure.shown.join(", "));
        }
    }
    text
}

fn age_count(figures: &[Figure]) -> usize {
    let first = figures.iter().position(|figure| !figure.is_of_paper);
    first.unwrap_or(figures.len())
}

fn beside(figures: &[Figure]) -> &[Figure] {
    let first = age_count(figures);
    let count = figures[first..]
        .iter()
        .take_while(|figure| !figure.is_of_paper)
        .count();
    &figures[first..first + count]
}

fn of_papers<'a>(figures: &'a [Figure], prefix: &str) -> &'a [Figure] {
    let is_in = |figure: &Figure| figure.paper.id.starts_with(prefix);
    let first = figures.iter().position(is_in).unwrap_or(figures.len());
    let count = figures[first..]
        .iter()
        .take_while(|figure| is_in(figure))
        .count();
    &figures[first..first + count]
}

fn head(data: &Data, figures: &[Figure]) -> String {
    let names: Vec<String> = data
        .runs
        .iter()
        .map(|run| run.header.name.clone())
        .collect();
    let systems = data.all().backends();
    let systems: Vec<String> = systems.iter().map(|name| system_name(name)).collect();
    let records = say_count(data.all().len());
    let started = data
        .runs
        .iter()
        .map(|run| &*run.header.started)
        .min()
        .unwrap_or_default();
    let day = started.split('T').next().unwrap_or_default();
    let mut text = format!(
        "<header><h1>How storage ages here</h1><p class='lead'>{} measured on {}: {records} \
         records of {} ({}).</p>",
        escape(&systems.join(", ")),
        escape(day),
        if names.len() == 1 {
            "the run"
        } else {
            "the runs"
        },
        escape(&names.join(", ")),
    );
    let points = tables::in_short(data);
    if !points.is_empty() {
        let items: Vec<String> = points
            .iter()
            .map(|point| format!("<li>{}</li>", escape(point)))
            .collect();
        text += &format!(
            "<div class='short'><h3>In short</h3><ul>{}</ul></div>",
            items.concat()
        );
    }
    let links = figures
        .iter()
        .filter(|figure| figure.is_drawn())
        .map(|figure| {
            let (id, title) = (figure.paper.id, escape(figure.paper.title));
            format!("<a href='#{id}'>{title}</a> ")
        });
    let links: String = links.collect();
    text + &format!(
        "<nav>{links}<a href='#break-even'>Break-even sizes</a> <a href='#trust'>How far to trust \
         this</a> <a href='#machine'>Machine and parameters</a></nav></header>"
    )
}

fn section(figure: &Figure) -> String {
    let paper = &figure.paper;
    let badge = match figure.crowded_count {
        0 => String::new(),
        count => format!(
            "<p class='badge'>{count} of {} records were measured under load above the number of \
             cores (hollow marks)</p>",
            figure.record_count
        ),
    };
    let shape = if figure.charts.len() == 1 {
        "one"
    } else {
        "many"
    };
    let (there, why) = match figure.is_of_paper {
        true => ("What the paper found", "Why they may differ"),
        false => ("What it shows", "What to keep in mind"),
    };
    let shown = match figure.shown.is_empty() {
        true => String::new(),
        false => format!(
            "<p class='shown'>Of several, shown: {}.</p>",
            escape(&figure.shown.join(", "))
        ),
    };
    let three = [
        (there, paper.found, ""),
        ("What is found here", &*figure.here, " class='here'"),
        (why, paper.differs, ""),
    ];
    let three = three.map(|(title, text, class)| {
        format!("<div{class}><h4>{title}</h4><p>{}</p></div>", escape(text))
    });
    format!(
        "<section class='figure' id='{}'><h3>{}</h3><p class='source'>{}</p>{badge}\
         <div class='{shape}'><div class='wide'>{}</div><div class='narrow'>{}</div><div \
         class='three'>{}</div></div>{shown}{}</section>",
        paper.id,
        escape(paper.title),
        escape(paper.source),
        figure.element(WIDE),
        figure.element(NARROW),
        three.concat(),
        tables::of_figure(figure),
    )
}

fn missing(figures: &[Figure]) -> String {
    let missing = figures.iter().filter(|figure| !figure.is_drawn());
    let items: Vec<String> = missing
        .map(|figure| {
            let paper = &figure.paper;
            let (title, source) = (escape(paper.title), escape(paper.source));
            format!(
                "<li id='{}'>{title} <span class='source'>({source})</span>: <code>{}</code></li>",
                paper.id,
                escape(paper.command)
            )
        })
        .collect();
    match items.is_empty() {
        true => String::new(),
        false => format!(
            "<h2>Not in these runs</h2><p>No records were found for these figures. The command \
             beside each measures them; name its run together with these to see them here.</p><ul \
             class='missing'>{}</ul>",
            items.concat()
        ),
    }
}
