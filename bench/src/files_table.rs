//! The table of a measurement, in Markdown.

use std::time::Duration;

/// One side's median.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Time of a phase.
    pub duration: Duration,
    /// Files in it.
    pub files: usize,
    /// Bytes in it.
    pub bytes: u64,
}

/// One load, written or read.
#[derive(Debug, Clone)]
pub struct Row {
    /// E.g. `write 10 KB`.
    pub what: String,
    /// API, mount, plain.
    pub cells: [Cell; 3],
}

/// The whole table with its description below.
pub fn render(rows: &[Row], description: &str) -> String {
    let mut lines = vec![
        "| | API | mount | plain | API ÷ plain | mount ÷ plain |".to_owned(),
        "|---|---:|---:|---:|---:|---:|".to_owned(),
    ];
    for row in rows {
        let [api, mount, plain] = row.cells;
        let ratio = |cell: Cell| {
            format!(
                "{:.2}",
                plain.duration.as_secs_f64() / cell.duration.as_secs_f64()
            )
        };
        lines.push(format!(
            "| {} | {} | {} | {} | {} | {} |",
            row.what,
            speed(api),
            speed(mount),
            speed(plain),
            ratio(api),
            ratio(mount)
        ));
    }
    lines.push(String::new());
    lines.push(description.to_owned());
    lines.join("\n")
}

/// Files below this size count by number, too.
const SMALL_BYTES_MAX: u64 = 10_000_000;

/// Many small files count by number, few large ones by bytes; both are shown.
fn speed(cell: Cell) -> String {
    let seconds = cell.duration.as_secs_f64();
    let (mb, files) = (
        cell.bytes as f64 / 1e6 / seconds,
        cell.files as f64 / seconds,
    );
    match cell.bytes / (cell.files as u64) < SMALL_BYTES_MAX {
        true => format!("{mb:.0} MB/s, {files:.0} files/s"),
        false => format!("{mb:.0} MB/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_faster_than_plain() {
        let cell = |ms| Cell {
            duration: Duration::from_millis(ms),
            files: 100,
            bytes: 1_000_000,
        };
        let row = Row {
            what: "write 10 KB".to_owned(),
            cells: [cell(50), cell(200), cell(100)],
        };
        let text = render(&[row], "How.");
        let expected = "| write 10 KB | 20 MB/s, 2000 files/s | 5 MB/s, 500 files/s | 10 MB/s, \
            1000 files/s | 2.00 | 0.50 |";
        assert_eq!(text.lines().nth(2), Some(expected));
        assert!(text.ends_with("\n\nHow."));
    }
}
