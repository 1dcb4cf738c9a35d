//! What commands print: lines for people, or exactly one JSON document.
//!
//! # Invariants
//! * `CLI-5` With `--json` stdout holds exactly one JSON document (but see `CLI-26`): an object, or
//!   an array that is written element by element, one per line. An array that a failure cut short
//!   is not closed.
//! * `CLI-6` A name is printed in its bytes, but on a terminal, and in a table everywhere, as it is
//!   visible (`CLI-41`). In JSON a name that is not UTF-8 has its bytes beside it, in hex, under
//!   `KEY_hex`.

use crate::error::{Failure, Result};
use crate::visible::{visible, visible_bytes};
use larder::{FileKind, Metadata};
use serde_json::{Map, Value, json};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use unicode_width::UnicodeWidthStr;

/// Stdout of a command.
pub(crate) struct Output {
    out: BufWriter<Stdout>,
    is_json: bool,
    is_terminal: bool,
    /// Elements of the array so far; `None` before the first list.
    item_count: Option<u64>,
}

impl Output {
    /// Stdout, for people or for programs.
    pub(crate) fn new(is_json: bool) -> Output {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Output {
            out: BufWriter::with_capacity(1 << 16, stdout),
            is_json,
            is_terminal,
            item_count: None,
        }
    }

    /// Whether `--json` was given.
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    /// Writes bytes as they are: content of files, and what programs read.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(stdout_failure)
    }

    /// A line for people (`CLI-41`); not with `--json`.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        self.name_line(text.as_bytes())
    }

    /// Several lines for people (`CLI-41`).
    pub(crate) fn lines(&mut self, text: &str) -> Result<()> {
        text.lines().try_for_each(|line| self.line(line))
    }

    /// A line that has names or paths in it, in bytes (`CLI-6`).
    pub(crate) fn name_line(&mut self, name: &[u8]) -> Result<()> {
        let shown = self.shown(name);
        self.raw(&shown)?;
        self.raw(b"\n")
    }

    /// The bytes of a name as they may go out (`CLI-6`).
    pub(crate) fn shown(&self, name: &[u8]) -> Vec<u8> {
        if self.is_terminal {
            visible_bytes(name).into_bytes()
        } else {
            name.to_vec()
        }
    }

    /// The one document of a verb that answers one thing.
    pub(crate) fn document(&mut self, document: &Value) -> Result<()> {
        self.raw(document.to_string().as_bytes())?;
        self.raw(b"\n")
    }

    /// One more element of the list that a verb answers, as JSON text.
    pub(crate) fn item(&mut self, json: &str) -> Result<()> {
        let count = self.item_count.unwrap_or(0);
        self.raw(if count == 0 { b"[\n" } else { b",\n" })?;
        self.item_count = Some(count + 1);
        self.raw(json.as_bytes())
    }

    /// Ends the list, also an empty one; nothing without `--json`.
    pub(crate) fn end_list(&mut self) -> Result<()> {
        if !self.is_json {
            return Ok(());
        }
        match self.item_count.take() {
            None => self.raw(b"[]\n"),
            Some(_) => self.raw(b"\n]\n"),
        }
    }

    /// Hands everything to the reader. Must be called at the end: errors of the reader show here.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(stdout_failure)
    }
}

fn stdout_failure(source: io::Error) -> Failure {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::Pipe,
        _ => Failure::Io {
            what: "cannot write to stdout".into(),
            source,
        },
    }
}

/// Puts a name into a JSON object (`CLI-6`).
pub(crate) fn put_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => {
            object.insert(key.into(), text.into());
        }
        Err(_) => {
            object.insert(
                key.into(),
                String::from_utf8_lossy(name).into_owned().into(),
            );
            object.insert(format!("{key}_hex"), hex(name).into());
        }
    }
}

/// A kind of file, for people.
pub(crate) fn kind_words(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// Bytes in lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the cells of a column are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells, padded so that columns line up.
pub(crate) struct Table {
    aligns: Vec<Align>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without a header line.
    pub(crate) fn new(aligns: &[Align]) -> Table {
        Table {
            aligns: aligns.to_vec(),
            widths: vec![0; aligns.len()],
            rows: Vec::new(),
        }
    }

    /// Adds a row, which has as many cells as the table has columns. A cell does not break its
    /// line.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let cells: Vec<String> = cells.iter().map(|cell| visible(cell)).collect();
        assert_eq!(
            cells.len(),
            self.aligns.len(),
            "a row has one cell per column"
        );
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = cell.width().max(*width);
        }
        self.rows.push(cells);
    }

    /// The number of rows that wait to be printed.
    pub(crate) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Hands out the lines, two spaces between columns, none at the end. The widths stay, so that
    /// more rows line up with these.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.rows);
        rows.iter().map(|row| self.render(row)).collect()
    }

    /// A line of dashes below a header, as wide as each column is now.
    pub(crate) fn rule(&self) -> String {
        self.widths
            .iter()
            .map(|&width| "-".repeat(width.max(1)))
            .collect::<Vec<_>>()
            .join("  ")
    }

    fn render(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (index, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(self.widths[index].saturating_sub(cell.width()));
            let gap = if index == 0 { "" } else { "  " };
            line.push_str(gap);
            match self.aligns[index] {
                Align::Left => line.extend([cell.as_str(), &pad]),
                Align::Right => line.extend([pad.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The attributes as JSON: sizes in bytes, times in nanoseconds since 1970, mode in octal.
pub(crate) fn attr_json(attr: &Metadata) -> Map<String, Value> {
    let object = json!({
        "store": attr.node.store.0,
        "ino": attr.node.ino.0,
        "kind": attr.kind.as_str(),
        "mode": format!("{:04o}", attr.mode),
        "uid": attr.uid,
        "gid": attr.gid,
        "nlink": attr.nlink,
        "size_bytes": attr.size_bytes,
        "allocated_bytes": attr.allocated_bytes,
        "atime_ns": attr.atime_ns,
        "mtime_ns": attr.mtime_ns,
        "ctime_ns": attr.ctime_ns,
        "btime_ns": attr.btime_ns,
        "rdev": attr.rdev,
    });
    match object {
        Value::Object(object) => object,
        _ => unreachable!("an object was written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[Align::Left, Align::Right, Align::Left]);
        table.row(vec!["name".into(), "size".into(), "note".into()]);
        table.row(vec!["日本".into(), "7".into(), "é".into()]);
        assert_eq!(table.row_count(), 2);
        assert_eq!(table.take_lines(), ["name  size  note", "日本     7  é"]);
        assert_eq!(table.rule(), "----  ----  ----");
        table.row(vec!["x".into(), "12345".into(), String::new()]);
        assert_eq!(table.take_lines(), ["x     12345"], "no space at the end");
    }

    #[test]
    fn names_are_safe_and_kept() {
        let mut object = Map::new();
        put_name(&mut object, "name", b"a\xff");
        put_name(&mut object, "path", "/é".as_bytes());
        assert_eq!(object["name_hex"], "61ff", "CLI-6");
        assert_eq!(object["path"], "/é", "CLI-6");
        assert!(!object.contains_key("path_hex"), "CLI-6");
        let mut table = Table::new(&[Align::Left]);
        table.row(vec!["a\nb\t\u{7}".into()]);
        assert_eq!(table.take_lines(), ["a\\nb\\t\\x07"], "CLI-41");
    }
}
