//! What ends a command: one line for people, and an exit code.
//!
//! # Words
//! A *failure* is what a verb returns when it cannot do what was asked. Its line reads
//! `larder: <context>: <cause>; <remedy>`.
//!
//! # Invariants
//! * `CLI-1` A failure is told in exactly one line on stderr and with an exit code that is not 0: 2
//!   for wrong usage, 124 when others were waited for in vain, 1 for the rest. A mistake in SQL is
//!   followed by two indented lines: the line of the statement that it is in, and a caret below the
//!   place. A reader that went away (broken pipe) ends the command without a word.

use crate::visible::visible;
use larder::ErrorKind;
use std::io;

/// `Result` with [`Failure`].
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Exit code of a command that a signal `SIGPIPE` would have ended (128 + 13), as shells show it.
const EXIT_PIPE: u8 = 141;

/// Exit code of a command that has waited for another session as long as it was to, as that of
/// timeout(1).
pub(crate) const EXIT_TIMED_OUT: u8 = 124;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line makes no sense; the text says what to write instead.
    #[error("{0}")]
    Usage(String),
    /// The database refused.
    #[error(transparent)]
    Larder(#[from] larder::Error),
    /// A statement is wrong.
    #[error("{error}")]
    Sql {
        /// What the database says.
        error: larder::Error,
        /// Where: the line of the statement and a caret below it, if that is known.
        place: Option<String>,
    },
    /// The host refused: a local file, a terminal, a process.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to what.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else; the text has cause and remedy.
    #[error("{0}")]
    Other(String),
    /// Others were waited for in vain; the text says for whom, and what to do.
    #[error("{0}")]
    TimedOut(String),
    /// Everything has been told already; only the exit code remains.
    #[error("told already")]
    Told(u8),
    /// The reader of stdout went away.
    #[error("broken pipe")]
    Pipe,
}

impl Failure {
    /// The exit code of a process that ends with this.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::TimedOut(_) => EXIT_TIMED_OUT,
            Failure::Larder(error) if error.kind() == ErrorKind::TimedOut => EXIT_TIMED_OUT,
            Failure::Larder(_) | Failure::Sql { .. } | Failure::Io { .. } | Failure::Other(_) => 1,
            Failure::Told(code) => *code,
            Failure::Pipe => EXIT_PIPE,
        }
    }

    /// The line for stderr, without `larder: ` and line end; `None` when there is nothing to tell.
    pub(crate) fn line(&self) -> Option<String> {
        let (text, remedy) = match self {
            Failure::Told(_) | Failure::Pipe => return None,
            Failure::Usage(text) | Failure::Other(text) | Failure::TimedOut(text) => {
                (text.clone(), "")
            }
            Failure::Larder(error) | Failure::Sql { error, .. } => {
                (error.to_string(), remedy_of(error.kind()))
            }
            Failure::Io { source, .. } => (self.to_string(), remedy_of_io(source.kind())),
        };
        let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.contains(';') && !remedy.is_empty() {
            line = format!("{line}; {remedy}");
        }
        Some(line)
    }

    /// Tells the failure on stderr (`CLI-1`).
    pub(crate) fn tell(&self) {
        if let Some(line) = self.line() {
            warn(&line);
        }
        if let Failure::Sql {
            place: Some(place), ..
        } = self
        {
            // The line of the statement, and the caret below it.
            place.lines().for_each(eprintln_lossless);
        }
    }
}

/// Says something on stderr that is no failure: a warning, or what a command waits for.
pub(crate) fn warn(text: &str) {
    eprintln_lossless(&format!("larder: {text}"));
}

/// One line, as it is visible (`CLI-41`). `eprintln!` panics when stderr is closed; where nobody
/// listens, nothing can be told.
fn eprintln_lossless(line: &str) {
    use io::Write;
    let _nobody_listens = writeln!(io::stderr().lock(), "{}", visible(line));
}

/// Adds what was being done to a failure from below.
pub(crate) trait At<T> {
    /// `what` is evaluated only on failure.
    fn at(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> At<T> for larder::Result<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::Larder(error.context(what())))
    }
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Failure::Io {
            what: what(),
            source,
        })
    }
}

impl<T> At<T> for rustix::io::Result<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Failure::Io {
            what: what(),
            source: errno.into(),
        })
    }
}

/// Does `step` for every operand, tells the failures of single ones, and goes on. The result says
/// whether all went well.
pub(crate) fn each<T>(operands: &[T], mut step: impl FnMut(&T) -> Result<()>) -> Result<()> {
    let mut worst_code = 0;
    for operand in operands {
        match step(operand) {
            Ok(()) => {}
            Err(Failure::Pipe) => return Err(Failure::Pipe),
            Err(failure) => {
                failure.tell();
                worst_code = failure.exit_code().max(worst_code);
            }
        }
    }
    if worst_code == 0 {
        Ok(())
    } else {
        Err(Failure::Told(worst_code))
    }
}

/// What to do when the message itself does not say it.
fn remedy_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "check the spelling with 'larder ls'",
        ErrorKind::Exists => "remove it first or choose another name",
        ErrorKind::NotADirectory => "name a directory",
        ErrorKind::IsADirectory => "name a file, or use -r",
        ErrorKind::NotEmpty => "empty it first or use 'larder rm -r'",
        ErrorKind::InvalidInput => "see --help",
        ErrorKind::NameTooLong => "shorten it",
        ErrorKind::TooManyLinks => "make a copy instead",
        ErrorKind::TooManySymlinks => "look for a cycle of symbolic links",
        ErrorKind::FileTooLarge => "split the file",
        ErrorKind::NoAttribute => "",
        ErrorKind::TooBig => "shorten the value",
        ErrorKind::NoSpace => "delete something, or make a database with a larger --capacity",
        ErrorKind::ReadOnly => "write to a place that is not read-only",
        ErrorKind::NotPermitted => "",
        ErrorKind::Unsupported => "",
        ErrorKind::CrossStore => "copy it and remove the original",
        ErrorKind::Busy => "try again later",
        ErrorKind::TimedOut => "try again later, or with a longer --timeout",
        ErrorKind::Conflict => "run it again",
        ErrorKind::Corrupt => "restore it from a copy; 'larder check --read' lists all damage",
        ErrorKind::Io => "look at the device and the system's log",
        ErrorKind::Stopped => "run the command again",
        ErrorKind::NotADatabase => "make one with 'larder init'",
        ErrorKind::NewerFormat => "upgrade larder",
        ErrorKind::OlderFormat => "convert it with 'larder upgrade OLD NEW'",
        ErrorKind::Sql => "correct the statement",
    }
}

fn remedy_of_io(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check the permissions, or run as the owner",
        io::ErrorKind::AlreadyExists => "remove it first or choose another name",
        io::ErrorKind::NotADirectory => "a part of the path is a file; check the path",
        io::ErrorKind::IsADirectory => "name a file, or use 'larder cp -r'",
        io::ErrorKind::StorageFull => "free some space",
        io::ErrorKind::ReadOnlyFilesystem => "choose a place that can be written",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_a_remedy() {
        let told = Failure::Larder(larder::Error::new(
            ErrorKind::NotFound,
            "a:/b: no\nsuch entry",
        ));
        assert_eq!(
            told.line().unwrap(),
            "a:/b: no such entry; check the spelling with 'larder ls'"
        );
        let own = Failure::Larder(larder::Error::new(
            ErrorKind::NotFound,
            "no store; look again",
        ));
        assert_eq!(
            own.line().unwrap(),
            "no store; look again",
            "CLI-1: one remedy is enough"
        );
        let host: Result<()> =
            Err(io::Error::from(io::ErrorKind::NotFound)).at(|| "cannot read 'x'".into());
        let line = host.unwrap_err().line().unwrap();
        assert!(
            line.starts_with("cannot read 'x': ") && line.ends_with("; check the path"),
            "{line}"
        );
    }

    #[test]
    fn exit_codes_tell_usage_from_failure() {
        assert_eq!(Failure::Usage("x".into()).exit_code(), 2, "CLI-1");
        assert_eq!(Failure::Told(1).exit_code(), 1, "CLI-1");
        assert_eq!(Failure::Pipe.line(), None, "CLI-1");
    }

    #[test]
    fn the_rest_is_done_after_one_operand_failed() {
        let mut done = Vec::new();
        let result = each(&[1, 2, 3], |&n| {
            done.push(n);
            if n == 2 {
                Err(Failure::Usage("no".into()))
            } else {
                Ok(())
            }
        });
        assert!(
            matches!(result, Err(Failure::Told(2))),
            "CLI-1: the worst code counts"
        );
        assert_eq!(done, [1, 2, 3]);
    }
}
