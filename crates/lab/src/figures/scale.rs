//! Axes: from figures to places, ticks, and how figures are said.

/// What an axis measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes: 65536 is said as 64 KB, as in the papers.
    Bytes,
    /// Anything that is counted or has its unit in the label.
    Plain,
    /// Per cent.
    Percent,
}

/// How places follow from figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// By the logarithm; what is not above 0 has no place.
    Log,
    /// Evenly, from 0.
    Linear,
}

/// An axis: a range of figures on a range of places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    spacing: Spacing,
    unit: Unit,
}

impl Scale {
    /// An axis that holds all of `values`, between the places `from` and `to`.
    pub fn new(values: &[f64], spacing: Spacing, unit: Unit, (from, to): (f64, f64)) -> Scale {
        let usable = values.iter().copied().filter(|value| match spacing {
            Spacing::Log => value.is_finite() && *value > 0.0,
            Spacing::Linear => value.is_finite(),
        });
        let usable: Vec<f64> = usable.collect();
        let low = usable.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let high = usable.iter().copied().reduce(f64::max).unwrap_or(2.0);
        let (low, high) = match spacing {
            Spacing::Linear if high <= 0.0 => (low.min(0.0), 1.0),
            Spacing::Linear => (low.min(0.0), high * 1.04),
            // A factor of 1.6 at least, and some air.
            Spacing::Log => {
                let widen = (1.6 / (high / low)).max(1.0).sqrt() * 1.08;
                (low / widen, high * widen)
            }
        };
        Scale {
            low,
            high,
            from,
            to,
            spacing,
            unit,
        }
    }

    /// The place of a figure; figures outside get the place of the nearest end.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.spacing {
            Spacing::Log if value <= 0.0 => 0.0,
            Spacing::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Spacing::Linear => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Figures worth a line, with what is written beside it; at most about `count`.
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let ticks = match (self.spacing, self.unit) {
            (Spacing::Linear, _) => linear_ticks(self.low, self.high, count),
            (Spacing::Log, Unit::Bytes) => powers_of_two(self.low, self.high, count),
            (Spacing::Log, _) => decades(self.low, self.high, count),
        };
        let said = |value: f64| (value, say(value, self.unit));
        ticks.into_iter().map(said).collect()
    }
}

fn linear_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let rough = (high - low) / count.max(1) as f64;
    let power = 10.0_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

fn powers_of_two(low: f64, high: f64, count: usize) -> Vec<f64> {
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let every = ((last - first + 1).max(1) as usize)
        .div_ceil(count.max(1))
        .max(1);
    let every = if every > 2 {
        every.next_multiple_of(2)
    } else {
        every
    };
    (first..=last)
        .filter(|power| power.rem_euclid(every as i32) == 0)
        .map(|power| 2.0_f64.powi(power))
        .collect()
}

fn decades(low: f64, high: f64, count: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let ticks = |steps: &[f64], every: i32| -> Vec<f64> {
        (first..=last)
            .filter(|power| power.rem_euclid(every) == 0)
            .flat_map(|power| steps.iter().map(move |step| step * 10.0_f64.powi(power)))
            .filter(|value| (low..=high).contains(value))
            .collect()
    };
    let fine = [
        1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0,
    ];
    let steps: [&[f64]; 4] = [
        &fine,
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 3.0],
    ];
    let close = steps.iter().map(|steps| ticks(steps, 1));
    // A range has at most 617 decades.
    let wide = (1..=617).map(|every| ticks(&[1.0], every));
    let mut choices = close.chain(wide);
    choices
        .find(|choice| choice.len() <= count)
        .unwrap_or_default()
}

/// A figure in words: three significant digits, bytes in KB, MB, GB.
pub fn say(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => say_bytes(value),
        Unit::Percent => format!("{} %", significant(value)),
        Unit::Plain => significant(value),
    }
}

/// Bytes as the papers say them: a KB has 1024.
pub fn say_bytes(bytes: f64) -> String {
    let units = ["bytes", "KB", "MB", "GB", "TB"];
    let mut value = bytes;
    let mut index = 0;
    // 1023.9 KB would be said as 1020 KB.
    while value >= 1023.5 && index + 1 < units.len() {
        value /= 1024.0;
        index += 1;
    }
    format!("{} {}", significant(value), units[index])
}

/// A number of things, all its digits.
pub fn say_count(count: usize) -> String {
    grouped(count as f64)
}

fn significant(value: f64) -> String {
    if value == 0.0 {
        // The sum of nothing is -0.
        return "0".to_owned();
    }
    if !value.is_finite() {
        return format!("{value}");
    }
    let digits = (2 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = match value.abs() {
        large if large >= 1000.0 => {
            let power = 10.0_f64.powi(large.log10().floor() as i32 - 2);
            grouped((value / power).round() * power)
        }
        _ => format!("{value:.digits$}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// With a thin gap between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("−{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_said_with_their_units() {
        assert_eq!(say_bytes(65536.0), "64 KB");
        assert_eq!(say_bytes(262144.0 * 4.0 * 10.0), "10 MB");
        assert_eq!(say_bytes(512.0), "512 bytes");
        assert_eq!(say(1.5, Unit::Plain), "1.5");
        assert_eq!(say(0.1234, Unit::Plain), "0.123");
        assert_eq!(say(12345.0, Unit::Plain), "12\u{a0}300");
        assert_eq!(say(3.0, Unit::Percent), "3 %");
        assert_eq!(say(0.0, Unit::Plain), "0");
        let nothing: f64 = [0.0; 0].iter().sum();
        assert_eq!(say(nothing, Unit::Percent), "0 %");
    }

    #[test]
    fn ticks_are_few_and_inside() {
        for (low, high) in [(1.0, 1.3), (0.01, 3000.0), (1.0, 40.0), (1e-9, 1e9)] {
            let scale = Scale::new(&[low, high], Spacing::Log, Unit::Plain, (0.0, 100.0));
            let ticks = scale.ticks(6);
            assert!((1..=6).contains(&ticks.len()), "{low} {high}: {ticks:?}");
        }
        let scale = Scale::new(&[4096.0, 1e7], Spacing::Log, Unit::Bytes, (0.0, 100.0));
        let said: Vec<String> = scale.ticks(6).into_iter().map(|(_, said)| said).collect();
        assert_eq!(said, ["4 KB", "16 KB", "64 KB", "256 KB", "1 MB", "4 MB"]);
        let scale = Scale::new(&[0.0, 4.0], Spacing::Linear, Unit::Plain, (0.0, 100.0));
        let ticks: Vec<f64> = scale.ticks(4).into_iter().map(|(value, _)| value).collect();
        assert_eq!(ticks, [0.0, 2.0, 4.0]);
        assert_eq!(scale.place(0.0), 0.0);
    }
}
