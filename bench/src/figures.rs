//! Rates of several places that did the same work, ratios to the first of them, and what the work
//! cost.

use super::report::{Goal, Report, Samples};

/// What one place did in one turn.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Operations per second.
    pub rate: f64,
    /// CPU time per operation of the programs that asked for it, µs; `NaN` when it was not
    /// measured.
    pub client_us: f64,
    /// The same of the process that served it.
    pub server_us: f64,
}

impl Turn {
    /// Only a rate.
    pub fn of_rate(rate: f64) -> Turn {
        Turn {
            rate,
            client_us: f64::NAN,
            server_us: f64::NAN,
        }
    }
}

/// A table: the first place is the one that is measured, the others are what it is compared with.
pub struct Figures {
    unit: String,
    names: Vec<&'static str>,
    rows: Vec<Row>,
}

struct Row {
    what: String,
    goals: Vec<(&'static str, Goal)>,
    /// By place, then by round.
    turns: Vec<Vec<Turn>>,
}

impl Figures {
    /// An empty one; `unit` says what the rates are.
    pub fn new(unit: &str, names: Vec<&'static str>) -> Figures {
        Figures {
            unit: unit.to_owned(),
            names,
            rows: Vec::new(),
        }
    }

    /// Adds a column for something that is not a place; its number is that behind the last place.
    pub fn beside(&mut self, name: &'static str) {
        self.names.push(name);
    }

    /// Adds a line, with what the ratios to some of the others should be; returns its number.
    pub fn line(&mut self, what: &str, goals: &[(&'static str, Goal)]) -> usize {
        self.rows.push(Row {
            what: what.to_owned(),
            goals: goals.to_vec(),
            turns: vec![Vec::new(); self.names.len()],
        });
        self.rows.len() - 1
    }

    /// Adds a turn of a place to a line.
    pub fn add(&mut self, line: usize, place: usize, turn: Turn) {
        self.rows[line].turns[place].push(turn);
    }

    /// The rates of a place in a line, by round.
    pub fn rates(&self, line: usize, place: usize) -> Samples {
        rates(&self.rows[line].turns[place])
    }

    /// Writes the rates with their ratios, and what the work cost.
    pub fn print(&self, report: &mut Report) {
        let rivals = &self.names[1..];
        let mut header = vec![self.unit.clone()];
        header.extend(self.names.iter().map(|name| (*name).to_owned()));
        header.extend(rivals.iter().map(|name| format!("÷ {name}")));
        let mut lines = Vec::new();
        for row in &self.rows {
            let mut line = vec![row.what.clone()];
            line.extend(row.turns.iter().map(|turns| rate(&rates(turns))));
            for (name, turns) in rivals.iter().zip(&row.turns[1..]) {
                let ratio = rates(&row.turns[0]).over(&rates(turns));
                let goal = row.goals.iter().find(|(rival, _)| rival == name);
                line.push(match goal {
                    _ if turns.is_empty() => "–".to_owned(),
                    Some((_, goal)) => {
                        let text = ratio.text(2);
                        let what = format!("{} ÷ {name}", row.what);
                        format!("{text}; {}", report.judge(&what, ratio, *goal))
                    }
                    None => ratio.text(2),
                });
            }
            lines.push(line);
        }
        report.table(&header, &lines);
        self.print_costs(report);
    }

    fn print_costs(&self, report: &mut Report) {
        let mut header = vec!["CPU µs per operation, client + server".to_owned()];
        header.extend(self.names.iter().map(|name| (*name).to_owned()));
        let cost = |turns: &Vec<Turn>| {
            let median =
                |pick: fn(&Turn) -> f64| Samples(turns.iter().map(pick).collect()).median();
            let (client, server) = (median(|turn| turn.client_us), median(|turn| turn.server_us));
            match client.is_nan() {
                true => "–".to_owned(),
                false => format!("{} + {}", micros(client), micros(server)),
            }
        };
        let line = |row: &Row| {
            let costs = row.turns.iter().map(cost);
            [row.what.clone()].into_iter().chain(costs).collect()
        };
        report.table(&header, &self.rows.iter().map(line).collect::<Vec<_>>());
    }
}

fn rates(turns: &[Turn]) -> Samples {
    Samples(turns.iter().map(|turn| turn.rate).collect())
}

fn rate(samples: &Samples) -> String {
    samples.text(if samples.median() < 10.0 { 2 } else { 0 })
}

fn micros(micros: f64) -> String {
    format!("{micros:.*}", if micros < 10.0 { 1 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_rates_ratios_targets_and_costs() {
        let mut figures = Figures::new("files/s", vec!["ours", "a", "b", "limit"]);
        let first = figures.line(
            "create",
            &[("a", Goal::AtLeast(0.5)), ("b", Goal::AtLeast(2.0))],
        );
        for round in 0..3 {
            let turn = |rate| Turn {
                rate,
                client_us: 5.0,
                server_us: 20.0 + f64::from(round),
            };
            figures.add(first, 0, turn(100.0));
            figures.add(first, 1, turn(200.0));
            figures.add(first, 2, turn(100.0));
            figures.add(first, 3, Turn::of_rate(400.0));
        }
        figures.line("never", &[]);
        let mut report = Report::new("mount", "How.");
        figures.print(&mut report);
        let lines: Vec<&str> = report.text.lines().collect();
        assert_eq!(
            lines[2],
            "| files/s | ours | a | b | limit | ÷ a | ÷ b | ÷ limit |"
        );
        assert!(
            lines[4].contains(
                " | 0.50 [0.50–0.50]; ≥ 0.5: yes | 1.00 [1.00–1.00]; ≥ 2: **no** | 0.25 ["
            )
        );
        assert_eq!(lines[5], "| never | – | – | – | – | – | – | – |");
        assert_eq!(lines[9], "| create | 5.0 + 21 | 5.0 + 21 | 5.0 + 21 | – |");
        assert_eq!(report.verdicts.len(), 2);
        assert_eq!(report.verdicts[0].what, "create ÷ a");
    }
}
