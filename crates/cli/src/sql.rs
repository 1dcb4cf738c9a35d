//! `larder sql`: one statement, a shell, or statements from stdin.

use crate::address::split_moment;
use crate::args::SqlArgs;
use crate::databases::{await_mounts, with_database};
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::rows::{RowFormat, RowPrinter};
use larder::{Error, ErrorKind, SqlSession, parse_moment};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

const HELP: &str = "\
Statements end with ';' and may have several lines. Ctrl-C forgets one, Ctrl-D leaves.
.tables          names of tables and views
.schema [NAME]   how they were made
.help            this text
.quit            leave";

const TABLES: &str = "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') \
                      AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";

/// `larder sql`.
pub(crate) fn sql(args: &SqlArgs, out: &mut Output) -> Result<()> {
    let format = match (out.is_json(), args.csv) {
        (true, _) => RowFormat::Json,
        (false, true) => RowFormat::Csv,
        (false, false) => RowFormat::Table,
    };
    let (db, moment) = match (split_moment(&args.db), &args.as_of) {
        (None, moment) => (args.db.clone(), moment.clone()),
        (Some((db, moment)), None) => (db, Some(moment)),
        (Some(_), Some(other)) => {
            return Err(Failure::Usage(format!(
                "'{}' and '--as-of={other}' are two moments; give one of them",
                args.db.display()
            )));
        }
    };
    let verb = match args.read_only || moment.is_some() {
        true => "sql --read-only",
        false => "sql",
    };
    let mut changed = None;
    let done = with_database(&db, verb, |database| {
        let session = match &moment {
            None => database.sql().open(args.read_only),
            Some(text) => parse_moment(text, database.now_ns())
                .and_then(|moment| database.sql().open_as_of(&moment)),
        };
        let mut console = Console {
            session: session.at(|| format!("cannot query '{}'", args.db.display()))?,
            format,
            refuses: match moment {
                Some(_) => Some("the past cannot be changed; ask without the moment"),
                None => (args.read_only)
                    .then_some("nothing can be changed with --read-only; leave the flag out"),
            },
            out,
        };
        let done = match &args.statement {
            Some(statement) => console.run(statement).map(drop),
            None if io::stdin().is_terminal() => {
                console.shell(&args.db.display().to_string(), database.path())
            }
            None => console.script(io::stdin().lock()),
        };
        if console.session.has_written() && !database.is_readonly() {
            changed = Some(database.path().to_owned());
        }
        done
    });
    if let Some(directory) = changed {
        await_mounts(&directory);
    }
    done
}

/// An SQL session with somewhere to print.
struct Console<'a> {
    session: SqlSession,
    format: RowFormat,
    /// What is said when a statement would change something.
    refuses: Option<&'static str>,
    out: &'a mut Output,
}

impl Console<'_> {
    /// Runs statements and prints all rows; returns the number of changed rows.
    fn run(&mut self, statements: &str) -> Result<u64> {
        let mut printer = RowPrinter::new(self.format);
        let changed_count = self.run_into(statements, &mut printer)?;
        printer.end(self.out)?;
        Ok(changed_count)
    }

    fn run_into(&mut self, statements: &str, printer: &mut RowPrinter) -> Result<u64> {
        // The session carries errors of its own kind only; what printing fails with waits here.
        let mut failure = None;
        let out = &mut *self.out;
        let done = self.session.execute(statements, &mut |row| {
            printer.row(row, out).map_err(|cause| {
                failure = Some(cause);
                Error::new(ErrorKind::Io, "stdout failed")
            })
        });
        match failure {
            Some(failure) => Err(failure),
            None => done.map_err(|error| match (error.kind(), self.refuses) {
                // The user asked for it: the remedy is not the one for a read-only directory.
                (ErrorKind::ReadOnly, Some(why)) => Failure::Other(why.into()),
                _ => mistake(error, statements),
            }),
        }
    }

    /// Statements from a file or pipe; the first failure ends it. With `--json`, all their rows are
    /// one array.
    fn script(&mut self, mut input: impl BufRead) -> Result<()> {
        let mut printer = RowPrinter::new(self.format);
        let mut statement = String::new();
        let mut first_line = 1;
        for line_number in 1.. {
            let is_end = input
                .read_line(&mut statement)
                .at(|| "cannot read stdin".into())?
                == 0;
            if statement.trim().is_empty() {
                statement.clear();
                first_line = line_number + 1;
            } else if is_end || SqlSession::is_complete(&statement) {
                self.run_into(&statement, &mut printer)
                    .map_err(|failure| match failure {
                        Failure::Sql { error, place } => Failure::Sql {
                            error: error
                                .context(format!("statement at line {first_line} of the input")),
                            place,
                        },
                        other => other,
                    })?;
                statement.clear();
                first_line = line_number + 1;
            }
            if is_end {
                break;
            }
        }
        printer.end(self.out)
    }

    /// Asks for statements until the user has enough. Failures are told and end nothing.
    fn shell(&mut self, database: &str, directory: &Path) -> Result<()> {
        let mut editor = DefaultEditor::new().map_err(terminal_failure)?;
        let history = history_path();
        if let Some(path) = history.as_ref().filter(|path| path.exists()) {
            editor.load_history(path).map_err(terminal_failure)?;
        }
        self.out
            .line(&format!("{database}: '.help' helps, Ctrl-D leaves"))?;
        let mut statement = String::new();
        loop {
            self.out.flush()?;
            let line = match editor.readline(if statement.is_empty() {
                "larder> "
            } else {
                "   ...> "
            }) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    statement.clear();
                    continue;
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(terminal_failure(error)),
            };
            if statement.is_empty() && line.trim_start().starts_with('.') {
                editor
                    .add_history_entry(line.trim())
                    .map_err(terminal_failure)?;
                match self.dot(line.trim()) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(failure) => self.tell(failure)?,
                }
                continue;
            }
            statement.push_str(&line);
            statement.push('\n');
            if statement.trim().is_empty() {
                statement.clear();
            } else if SqlSession::is_complete(&statement) {
                editor
                    .add_history_entry(statement.trim())
                    .map_err(terminal_failure)?;
                match self.run(&statement) {
                    Ok(0) => {}
                    Ok(count) if self.format == RowFormat::Table => {
                        self.out.line(&format!("rows changed: {count}"))?
                    }
                    Ok(_) => {}
                    Err(failure) => self.tell(failure)?,
                }
                // What the prompt acknowledges, every mount shows.
                if self.session.has_written() {
                    await_mounts(directory);
                }
                statement.clear();
            }
        }
        match history {
            Some(path) => save_history(&mut editor, &path),
            None => Ok(()),
        }
    }

    fn tell(&mut self, failure: Failure) -> Result<()> {
        if matches!(failure, Failure::Pipe) {
            return Err(failure);
        }
        self.out.flush()?;
        failure.tell();
        Ok(())
    }

    /// A command of the shell; `true` when it is to end.
    fn dot(&mut self, command: &str) -> Result<bool> {
        let mut words = command.split_whitespace();
        match (words.next(), words.next()) {
            (Some(".quit" | ".exit"), None) => return Ok(true),
            (Some(".help"), None) => self.out.lines(HELP)?,
            (Some(".tables"), None) => self.run(TABLES).map(drop)?,
            (Some(".schema"), name) => self.schema(name)?,
            _ => {
                return Err(Failure::Usage(format!(
                    "there is no '{command}'; '.help' lists what there is"
                )));
            }
        }
        Ok(false)
    }

    fn schema(&mut self, name: Option<&str>) -> Result<()> {
        let filter = name.map_or(String::new(), |name| {
            format!(" AND tbl_name = '{}'", name.replace('\'', "''"))
        });
        let query = format!(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL{filter} ORDER BY tbl_name, rowid"
        );
        let mut texts = Vec::new();
        self.session.execute(&query, &mut |row| {
            texts.extend(row.values.into_iter().map(|value| match value {
                larder::SqlValue::Text(text) => text,
                other => format!("{other:?}"),
            }));
            Ok(())
        })?;
        texts
            .iter()
            .try_for_each(|text| self.out.lines(&format!("{text};")))
    }
}

/// The failure of statements, with its place.
fn mistake(error: Error, statements: &str) -> Failure {
    let place = error
        .position()
        .and_then(|position| show_place(statements, position));
    Failure::Sql { error, place }
}

/// The line of a text that has column `column` of line `line`, both from 1, and a caret below it.
fn show_place(text: &str, (line, column): (usize, usize)) -> Option<String> {
    const INDENT: &str = "    ";
    const BEFORE: usize = 60;
    const AFTER: usize = 40;
    let line = text.lines().nth(line.checked_sub(1)?)?;
    let at = column.checked_sub(1)?;
    let first = at.saturating_sub(BEFORE);
    let mut shown = String::from(INDENT);
    let mut below = String::from(INDENT);
    for (index, character) in line.chars().enumerate().skip(first).take(BEFORE + AFTER) {
        // Whatever it is takes one place: tabs would shift the caret, other controls the terminal.
        let character = match character.is_control() {
            true => ' ',
            false => character,
        };
        shown.push(character);
        if index < at {
            let width = unicode_width::UnicodeWidthChar::width(character).unwrap_or(1);
            below.extend(std::iter::repeat_n(' ', width));
        }
    }
    Some(format!("{}\n{below}^", shown.trim_end()))
}

fn terminal_failure(error: ReadlineError) -> Failure {
    Failure::Other(format!(
        "the terminal or the history failed: {error}; give the statement as an argument"
    ))
}

/// `$XDG_STATE_HOME/larder/sql_history`; nothing without a home.
fn history_path() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("larder/sql_history"))
}

fn save_history(editor: &mut DefaultEditor, path: &std::path::Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).at(|| format!("cannot create '{}'", parent.display()))?;
    }
    editor.save_history(path).map_err(|error| {
        Failure::Other(format!(
            "cannot save the history in '{}': {error}",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_mistake_is_shown() {
        let shown = |text, position| show_place(text, position).unwrap();
        assert_eq!(
            shown("SELECT 1;\nSELECT\tx FROM y;", (2, 8)),
            "    SELECT x FROM y;\n           ^",
            "CLI-1"
        );
        assert_eq!(shown("日本 x", (1, 4)), "    日本 x\n         ^");
        assert_eq!(shown("ab", (1, 3)), "    ab\n      ^", "behind the end");
        let long = format!("{}x{}", "a".repeat(500), "b".repeat(500));
        let (line, caret) = shown(&long, (1, 501))
            .split_once('\n')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        assert_eq!(line.chars().nth(caret.len() - 1), Some('x'));
        assert!(line.len() <= 104);
        assert_eq!(show_place("a", (2, 1)), None);
    }
}
