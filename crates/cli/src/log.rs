//! The log of this process: one line per event on stderr, for people.
//!
//! # Words
//! A *line* is one event with its time and level. A *place* is the statement in the program that
//! logs it. A *window* is a span of time in which a place may write a few lines. A line that comes
//! when the few are written is *withheld*.
//!
//! # Invariants
//! * `CLI-15` A place writes at most [`WINDOW_LINES`] lines per [`WINDOW`]. No line is lost
//!   silently: at the end of the window the last one withheld is written, with the number of those
//!   before it.
//!
//! Where stderr is the journal of systemd, lines have a priority instead of time and level.
//!
//! # Concurrency
//! One lock, a leaf. A line goes out in one write, so that those of several threads do not mix. A
//! thread that ends windows lives only while something is withheld.

use crate::error::{Failure, Result};
use crate::units::show_time;
use crate::visible::visible;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that one place may write in a [`WINDOW`].
const WINDOW_LINES: u32 = 5;
/// How long what repeats is withheld.
const WINDOW: Duration = Duration::from_secs(10);

/// What remains of the log until the process ends.
static WITHHELD: OnceLock<Arc<Withheld>> = OnceLock::new();

/// Starts the log: events of `level` and graver ones go to stderr.
pub(crate) fn start(level: Level) -> Result<()> {
    let withheld = WITHHELD.get_or_init(Arc::default).clone();
    let log = Log {
        level,
        is_journal: is_journal(),
        withheld,
    };
    tracing::subscriber::set_global_default(log)
        .map_err(|error| Failure::Other(format!("cannot start the log: {error}")))
}

/// Writes what is withheld; for the end of the process.
pub(crate) fn finish() {
    if let Some(withheld) = WITHHELD.get() {
        write_lines(withheld.lock().places.end_all());
    }
}

struct Log {
    level: Level,
    is_journal: bool,
    withheld: Arc<Withheld>,
}

#[derive(Default)]
struct Withheld {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    places: Places<Identifier>,
    /// A thread waits for the windows to end.
    has_thread: bool,
}

impl Withheld {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let line = self.line(*metadata.level(), &visible(&text.0));
        let mut state = self.withheld.lock();
        let written = state
            .places
            .admit(metadata.callsite(), line, Instant::now());
        let needs_thread = state.places.has_withheld() && !state.has_thread;
        state.has_thread |= needs_thread;
        write_lines(written);
        drop(state);
        if needs_thread {
            self.end_windows();
        }
    }

    // Spans have no line of their own.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Log {
    fn line(&self, level: Level, text: &str) -> String {
        if self.is_journal {
            return format!("<{}>{text}\n", priority(level));
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let time = show_time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
        let time = time.trim_end_matches('Z');
        format!("{time}.{:03}Z {level:5} {text}\n", since.subsec_millis())
    }

    /// Ends windows until nothing is withheld. Where no thread can be started, the next line of the
    /// same place or the end of the process writes what was withheld.
    fn end_windows(&self) {
        let withheld = self.withheld.clone();
        let work = move || {
            loop {
                std::thread::sleep(WINDOW / 10);
                let mut state = withheld.lock();
                write_lines(state.places.end_old(Instant::now()));
                if !state.places.has_withheld() {
                    state.has_thread = false;
                    return;
                }
            }
        };
        let started = std::thread::Builder::new()
            .name("larder-log".into())
            .spawn(work);
        if started.is_err() {
            self.withheld.lock().has_thread = false;
        }
    }
}

/// Nobody can be told that the log cannot be written: a full disk must not end a mount.
fn write_lines(lines: Vec<String>) {
    let mut stderr = io::stderr().lock();
    for line in lines {
        let _nobody_listens = stderr.write_all(line.as_bytes());
    }
}

/// Whether stderr is the journal: systemd says which device and inode that is (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// The priority of syslog (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The message of an event, then its fields as `name=value`; line ends become spaces.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}").replace(['\n', '\r'], " ");
        let gap = if self.0.is_empty() { "" } else { " " };
        let result = match field.name() {
            "message" => {
                self.0.insert_str(0, &format!("{value}{gap}"));
                Ok(())
            }
            name => write!(self.0, "{gap}{name}={value}"),
        };
        debug_assert!(result.is_ok(), "a string takes everything");
    }
}

/// What each place has written and withheld (`CLI-15`). Pure: the caller has the clock.
struct Places<Key> {
    windows: HashMap<Key, Window>,
}

impl<Key> Default for Places<Key> {
    fn default() -> Places<Key> {
        Places {
            windows: HashMap::new(),
        }
    }
}

struct Window {
    began: Instant,
    written_count: u32,
    /// The newest line withheld, and how many there are with it.
    withheld: Option<(String, u64)>,
}

impl<Key: Eq + std::hash::Hash> Places<Key> {
    /// What is to be written when `key` logs `line`.
    fn admit(&mut self, key: Key, line: String, now: Instant) -> Vec<String> {
        let new = || Window {
            began: now,
            written_count: 0,
            withheld: None,
        };
        let window = self.windows.entry(key).or_insert_with(new);
        let mut lines = Vec::new();
        if now.duration_since(window.began) >= WINDOW {
            lines.extend(window.end());
            *window = new();
        }
        if window.written_count < WINDOW_LINES {
            window.written_count += 1;
            lines.push(line);
        } else {
            let count = window.withheld.as_ref().map_or(0, |(_, count)| *count);
            window.withheld = Some((line, count + 1));
        }
        lines
    }

    /// Ends the windows that are over.
    fn end_old(&mut self, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        self.windows.retain(|_, window| {
            let is_over = now.duration_since(window.began) >= WINDOW;
            if is_over {
                lines.extend(window.end());
            }
            !is_over
        });
        lines
    }

    /// Ends all windows.
    fn end_all(&mut self) -> Vec<String> {
        let mut windows = std::mem::take(&mut self.windows);
        windows.values_mut().filter_map(Window::end).collect()
    }

    fn has_withheld(&self) -> bool {
        self.windows
            .values()
            .any(|window| window.withheld.is_some())
    }
}

impl Window {
    fn end(&mut self) -> Option<String> {
        let (line, count) = self.withheld.take()?;
        let line = line.trim_end();
        Some(match count {
            1 => format!("{line}\n"),
            _ => format!("{line} (and {} more like it before)\n", count - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_counted_and_not_lost() {
        let mut places = Places::default();
        let began = Instant::now();
        let mut written = Vec::new();
        for number in 0..100 {
            written.extend(places.admit("full", format!("full {number}\n"), began));
        }
        assert_eq!(written.len() as u32, WINDOW_LINES, "CLI-15");
        assert_eq!(
            places.admit("other", "other\n".into(), began),
            ["other\n"],
            "CLI-15: one place silences no other"
        );
        assert!(places.has_withheld());
        assert!(places.end_old(began + WINDOW / 2).is_empty());
        assert_eq!(
            places.end_old(began + WINDOW),
            ["full 99 (and 94 more like it before)\n"],
            "CLI-15"
        );
        assert!(!places.has_withheld());
        let again = places.admit("full", "full again\n".into(), began + WINDOW);
        assert_eq!(again, ["full again\n"]);
    }

    #[test]
    fn the_next_window_begins_with_what_the_last_withheld() {
        let mut places = Places::default();
        let began = Instant::now();
        for number in 0..=WINDOW_LINES {
            places.admit(1, format!("{number}\n"), began);
        }
        assert_eq!(
            places.admit(1, "later\n".into(), began + WINDOW),
            ["5\n", "later\n"],
            "CLI-15"
        );
        places.admit(2, "x\n".into(), began);
        assert!(places.end_all().is_empty(), "CLI-15: all is written");
    }

    #[test]
    fn a_line_is_one_line() {
        let log = Log {
            level: Level::WARN,
            is_journal: false,
            withheld: Arc::default(),
        };
        let line = log.line(Level::WARN, "text");
        assert!(line.ends_with("Z WARN  text\n"), "{line}");
        assert_eq!(line.len(), "2026-11-21T15:03:04.123Z WARN  text\n".len());
        let journal = Log {
            is_journal: true,
            ..log
        };
        assert_eq!(journal.line(Level::ERROR, "text"), "<3>text\n");
    }
}
