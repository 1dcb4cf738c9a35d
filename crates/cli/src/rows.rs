//! Rows of an SQL result as an aligned table, as CSV, or as JSON.
//!
//! # Invariants
//! * `CLI-13` However many rows come, memory is bounded: a table measures its first
//!   [`MEASURED_ROWS_MAX`] rows, and what comes later is fitted in as far as it goes.
//! * `CLI-14` JSON keeps the order of columns, and integers exactly; a column name that comes twice
//!   gets a number: `size`, `size:2`. Bytes are hex. An infinite number is `1e999`.

use crate::error::Result;
use crate::output::{Align, Output, Table, hex};
use larder::{SqlRow, SqlValue};
use std::sync::Arc;

/// Rows that decide about the widths and alignments of a table.
const MEASURED_ROWS_MAX: usize = 1000;

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowFormat {
    Table,
    Csv,
    Json,
}

/// Prints rows as they come.
pub(crate) struct RowPrinter {
    format: RowFormat,
    /// Of the result that is being printed.
    columns: Option<Arc<[String]>>,
    /// Rows that wait until the widths are known.
    waiting: Vec<Vec<SqlValue>>,
    table: Option<Table>,
    /// Names of the columns as JSON keys.
    keys: Vec<String>,
}

impl RowPrinter {
    /// A printer that has printed nothing yet.
    pub(crate) fn new(format: RowFormat) -> RowPrinter {
        RowPrinter {
            format,
            columns: None,
            waiting: Vec::new(),
            table: None,
            keys: Vec::new(),
        }
    }

    /// Prints a row, or keeps it until enough have come.
    pub(crate) fn row(&mut self, row: SqlRow, out: &mut Output) -> Result<()> {
        if self.columns.as_ref() != Some(&row.columns) {
            self.begin(row.columns.clone(), out)?;
        }
        match self.format {
            RowFormat::Json => out.item(&json_row(&self.keys, &row.values)),
            RowFormat::Csv => out.raw(csv_line(row.values.iter().map(csv_text)).as_bytes()),
            RowFormat::Table => {
                self.waiting.push(row.values);
                if self.waiting.len() >= MEASURED_ROWS_MAX {
                    self.print_waiting(out)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Ends the results of a statement.
    pub(crate) fn end(&mut self, out: &mut Output) -> Result<()> {
        self.print_waiting(out)?;
        self.columns = None;
        out.end_list()
    }

    fn begin(&mut self, columns: Arc<[String]>, out: &mut Output) -> Result<()> {
        let is_first = self.columns.is_none();
        self.print_waiting(out)?;
        self.table = None;
        match self.format {
            RowFormat::Json => self.keys = json_keys(&columns),
            RowFormat::Csv => {
                out.raw(csv_line(columns.iter().map(|name| csv_field(name))).as_bytes())?
            }
            RowFormat::Table if !is_first => out.line("")?,
            RowFormat::Table => {}
        }
        self.columns = Some(columns);
        Ok(())
    }

    fn print_waiting(&mut self, out: &mut Output) -> Result<()> {
        let Some(columns) = self.columns.clone().filter(|_| !self.waiting.is_empty()) else {
            return Ok(());
        };
        let rows = std::mem::take(&mut self.waiting);
        let is_begun = self.table.is_some();
        let table = self.table.get_or_insert_with(|| {
            let mut table = Table::new(&aligns(columns.len(), &rows));
            table.row(columns.to_vec());
            table
        });
        rows.iter()
            .for_each(|values| table.row(values.iter().map(table_text).collect()));
        assert!(table.row_count() <= MEASURED_ROWS_MAX + 1, "CLI-13");
        let lines = table.take_lines();
        let header_count = usize::from(!is_begun);
        lines[..header_count]
            .iter()
            .try_for_each(|line| out.line(line))?;
        if !is_begun {
            out.line(&table.rule())?;
        }
        lines[header_count..]
            .iter()
            .try_for_each(|line| out.line(line))
    }
}

/// Columns with nothing but numbers are aligned to the right.
fn aligns(column_count: usize, rows: &[Vec<SqlValue>]) -> Vec<Align> {
    let is_number = |value: &SqlValue| {
        matches!(
            value,
            SqlValue::Integer(_) | SqlValue::Real(_) | SqlValue::Null
        )
    };
    (0..column_count)
        .map(|column| {
            if rows.iter().all(|row| is_number(&row[column])) {
                Align::Right
            } else {
                Align::Left
            }
        })
        .collect()
}

fn table_text(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => "NULL".into(),
        other => plain_text(other),
    }
}

fn csv_text(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => String::new(),
        // Told apart from NULL.
        SqlValue::Text(text) if text.is_empty() => "\"\"".into(),
        other => csv_field(&plain_text(other)),
    }
}

fn plain_text(value: &SqlValue) -> String {
    match value {
        SqlValue::Null => String::new(),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => real_text(*number),
        SqlValue::Text(text) => text.clone(),
        SqlValue::Blob(bytes) => hex(bytes),
    }
}

/// The shortest text that reads back as the same number, with a point, as SQLite writes it.
fn real_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 {
            "1e999".into()
        } else {
            "-1e999".into()
        };
    }
    format!("{number:?}")
}

/// RFC 4180: a field with a comma, quote or line break is quoted.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

fn csv_line(fields: impl Iterator<Item = String>) -> String {
    fields.collect::<Vec<_>>().join(",") + "\r\n"
}

fn json_keys(columns: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::with_capacity(columns.len());
    for (index, name) in columns.iter().enumerate() {
        let earlier_count = columns[..index]
            .iter()
            .filter(|other| *other == name)
            .count();
        let key = if earlier_count == 0 {
            name.clone()
        } else {
            format!("{name}:{}", earlier_count + 1)
        };
        keys.push(serde_json::Value::from(key).to_string());
    }
    keys
}

fn json_row(keys: &[String], values: &[SqlValue]) -> String {
    let value_text = |value: &SqlValue| match value {
        SqlValue::Null => "null".into(),
        SqlValue::Integer(number) => number.to_string(),
        SqlValue::Real(number) => real_text(*number),
        SqlValue::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        SqlValue::Blob(bytes) => format!("\"{}\"", hex(bytes)),
    };
    let fields: Vec<String> = keys
        .iter()
        .zip(values)
        .map(|(key, value)| format!("{key}:{}", value_text(value)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_exact() {
        let columns = ["n", "x", "n", "b"].map(String::from);
        let values = [
            SqlValue::Integer(i64::MAX),
            SqlValue::Text("a\"\n\u{1}".into()),
            SqlValue::Null,
            SqlValue::Blob(vec![0, 255]),
        ];
        let text = json_row(&json_keys(&columns), &values);
        assert_eq!(
            text, r#"{"n":9223372036854775807,"x":"a\"\n\u0001","n:2":null,"b":"00ff"}"#,
            "CLI-14"
        );
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["n"].as_i64(), Some(i64::MAX), "CLI-14");
        let reals = [
            SqlValue::Real(1.0),
            SqlValue::Real(0.1),
            SqlValue::Real(f64::NEG_INFINITY),
        ];
        let text = json_row(&json_keys(&["a", "b", "c"].map(String::from)), &reals);
        assert_eq!(text, r#"{"a":1.0,"b":0.1,"c":-1e999}"#, "CLI-14");
    }

    #[test]
    fn csv_follows_rfc_4180() {
        let values = [
            SqlValue::Text("a,b".into()),
            SqlValue::Text("say \"x\"\n".into()),
            SqlValue::Null,
            SqlValue::Text(String::new()),
            SqlValue::Real(2.5),
        ];
        let line = csv_line(values.iter().map(csv_text));
        assert_eq!(line, "\"a,b\",\"say \"\"x\"\"\n\",,\"\",2.5\r\n");
    }

    #[test]
    fn numbers_stand_to_the_right() {
        let rows = vec![
            vec![SqlValue::Integer(1), SqlValue::Text("x".into())],
            vec![SqlValue::Null, SqlValue::Integer(2)],
        ];
        assert_eq!(aligns(2, &rows), [Align::Right, Align::Left]);
    }
}
