//! What a verb of `bench` prints: comparisons, targets, notes, in Markdown.
//!
//! A *comparison* holds one figure per round of each side, taken in turns. Its ratio is the median
//! of the ratios of the rounds, so that what the machine does in one round meets both sides of it.

/// One figure per round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The middle one; `NaN` when there is none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[count / 2],
            count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
        }
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Round by round, divided by `other`.
    pub fn over(&self, other: &Samples) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Median and noise: `1.23 [0.90–1.40]`.
    pub fn text(&self, decimals: usize) -> String {
        match self.0.len() {
            0 => "–".to_owned(),
            1 => format!("{:.decimals$}", self.0[0]),
            _ => format!(
                "{:.decimals$} [{:.decimals$}–{:.decimals$}]",
                self.median(),
                self.min(),
                self.max()
            ),
        }
    }
}

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Goal {
    /// Whether `figure` is as it should be.
    pub fn is_met(self, figure: f64) -> bool {
        match self {
            Goal::AtLeast(bound) => figure >= bound,
            Goal::AtMost(bound) => figure <= bound,
        }
    }

    /// E.g. `≥ 5: no`.
    pub fn judge(self, figure: f64) -> String {
        let (sign, bound) = match self {
            Goal::AtLeast(bound) => ('≥', bound),
            Goal::AtMost(bound) => ('≤', bound),
        };
        let verdict = if self.is_met(figure) { "yes" } else { "**no**" };
        format!("{sign} {bound}: {verdict}")
    }
}

/// A figure with its target: a line of the summary.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// What the figure says.
    pub what: String,
    /// One figure per round.
    pub figure: Samples,
    /// What the median should be.
    pub goal: Goal,
}

/// How fast several sides did the same work; larger is better.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// E.g. `put 10 KB, 64 per commit`.
    pub what: String,
    /// The measured side.
    pub ours: Samples,
    /// What it is compared with; with several, the fastest of each round.
    pub rivals: Vec<(&'static str, Samples)>,
    /// What the hardware gives to a bare program that does the same I/O.
    pub limits: Vec<(&'static str, Samples)>,
    /// What ours ÷ rival should be.
    pub goal: Option<Goal>,
}

impl Comparison {
    /// Ours ÷ the fastest rival, round by round.
    pub fn ratio(&self) -> Samples {
        let fastest = |round: usize| {
            let figures = self.rivals.iter().filter_map(|(_, all)| all.0.get(round));
            figures.copied().fold(f64::NAN, f64::max)
        };
        let rival = Samples((0..self.ours.0.len()).map(fastest).collect());
        self.ours.over(&rival)
    }
}

/// What one verb found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The verb.
    pub verb: &'static str,
    /// Tables and notes, ready to print.
    pub text: String,
    /// Figures with targets.
    pub verdicts: Vec<Verdict>,
}

impl Report {
    /// An empty one, which begins with what was measured how.
    pub fn new(verb: &'static str, parameters: &str) -> Report {
        Report {
            verb,
            text: format!("{parameters}\n"),
            verdicts: Vec::new(),
        }
    }

    /// Adds a table of comparisons that all have the same rivals and limits; `unit` names the
    /// rates.
    pub fn compare(&mut self, ours: &str, unit: &str, comparisons: &[Comparison]) {
        let Some(first) = comparisons.first() else {
            return;
        };
        let names = first.rivals.iter().chain(&first.limits);
        let mut header = vec![unit.to_owned(), ours.to_owned()];
        header.extend(names.map(|(name, _)| (*name).to_owned()));
        header.push("ratio".to_owned());
        header.extend(first.limits.iter().map(|(name, _)| format!("{name} ratio")));
        header.push("target".to_owned());
        let mut rows = Vec::new();
        for comparison in comparisons {
            let ratio = comparison.ratio();
            let mut row = vec![comparison.what.clone(), rate(&comparison.ours)];
            let others = comparison.rivals.iter().chain(&comparison.limits);
            row.extend(others.map(|(_, samples)| rate(samples)));
            row.push(ratio.text(2));
            for (_, limit) in &comparison.limits {
                let mut bare = comparison.clone();
                bare.ours = limit.clone();
                row.push(bare.ratio().text(2));
            }
            row.push(comparison.goal.map_or(String::new(), |goal| {
                self.judge(&comparison.what, ratio, goal)
            }));
            rows.push(row);
        }
        self.table(&header, &rows);
    }

    /// Adds a table; every column but the first is aligned to the right.
    pub fn table(&mut self, header: &[String], rows: &[Vec<String>]) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        self.text.push('\n');
        self.text.push_str(&line(header));
        self.text
            .push_str(&format!("|---|{}\n", "---:|".repeat(header.len() - 1)));
        for row in rows {
            self.text.push_str(&line(row));
        }
    }

    /// Adds a figure with its target to the summary, and says it in a line of its own.
    pub fn verdict(&mut self, what: &str, figure: Samples, goal: Goal) {
        let figure_text = figure.text(3);
        let target = self.judge(what, figure, goal);
        self.note(&format!("{what}: {figure_text}; {target}."));
    }

    /// Adds a figure with its target to the summary; the answer belongs beside the figure in a
    /// table.
    pub fn judge(&mut self, what: &str, figure: Samples, goal: Goal) -> String {
        let target = goal.judge(figure.median());
        self.verdicts.push(Verdict {
            what: what.to_owned(),
            figure,
            goal,
        });
        target
    }

    /// Adds a sentence.
    pub fn note(&mut self, line: &str) {
        self.text.push_str(&format!("\n{line}\n"));
    }
}

/// All targets of a verb, a line of a table for each.
pub fn summary(report: &Report) -> String {
    let line = |verdict: &Verdict| {
        let target = verdict.goal.judge(verdict.figure.median());
        format!(
            "| {} | {} | {} | {target} |\n",
            report.verb,
            verdict.what,
            verdict.figure.text(3)
        )
    };
    report.verdicts.iter().map(line).collect()
}

fn rate(samples: &Samples) -> String {
    samples.text(if samples.median() < 10.0 { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(goal: Option<Goal>) -> Comparison {
        Comparison {
            what: "put 10 KB".to_owned(),
            ours: Samples(vec![200.0, 400.0, 300.0]),
            rivals: vec![
                ("a", Samples(vec![100.0, 100.0, 50.0])),
                ("b", Samples(vec![50.0, 50.0, 100.0])),
            ],
            limits: vec![("bare", Samples(vec![400.0, 400.0, 400.0]))],
            goal,
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_against_the_fastest_rival() {
        assert_eq!(comparison(None).ratio(), Samples(vec![2.0, 4.0, 3.0]));
        assert_eq!(comparison(None).ratio().text(2), "3.00 [2.00–4.00]");
        assert_eq!(Samples(vec![4.0, 1.0, 3.0, 2.0]).median(), 2.5);
        assert_eq!(Samples::default().text(2), "–");
    }

    #[test]
    fn a_target_stands_beside_its_figure() {
        let mut report = Report::new("put", "How.");
        report.compare(
            "API",
            "MB/s",
            &[
                comparison(Some(Goal::AtLeast(5.0))),
                comparison(Some(Goal::AtLeast(3.0))),
            ],
        );
        let lines: Vec<&str> = report.text.lines().collect();
        assert_eq!(
            lines[2],
            "| MB/s | API | a | b | bare | ratio | bare ratio | target |"
        );
        assert!(lines[4].ends_with(" | 3.00 [2.00–4.00] | 4.00 [4.00–4.00] | ≥ 5: **no** |"));
        assert!(lines[5].ends_with("≥ 3: yes |"));
        let summary = summary(&report);
        assert!(summary.starts_with("| put | put 10 KB | 3.000 [2.000–4.000] | ≥ 5: **no** |\n"));
        assert!(summary.ends_with("| ≥ 3: yes |\n"));
    }

    #[test]
    fn nothing_measured_meets_no_target() {
        assert!(!Goal::AtLeast(1.0).is_met(Samples::default().median()));
        assert!(!Goal::AtMost(1.0).is_met(Samples::default().median()));
    }
}
