//! The recorder: one ordered log for segment devices and catalog files together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::Event;

/// Where devices and files report what happens to them. Clones share one log.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    is_closed: bool,
}

impl Recorder {
    /// An empty log.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// Logs an event. The caller holds whatever keeps other writes to the same file away, so that
    /// the log has them in the order in which they took effect.
    pub fn push(&self, event: Event) {
        let mut log = self.log();
        if !log.is_closed {
            log.events.push(event);
        }
    }

    /// Number of events so far: what a flush that begins now will cover.
    pub fn position(&self) -> usize {
        self.log().events.len()
    }

    /// Notes that the code under test has just promised everything up to `mark`.
    pub fn ack(&self, mark: u64) {
        self.push(Event::Ack(mark));
    }

    /// Notes that the names in the database directory were synced by means that nobody records
    /// (`fsync` of the directory).
    pub fn sync_names(&self) {
        self.push(Event::SyncNames {
            directory: "".into(),
        });
    }

    /// Ends the log and returns it; what happens later is not recorded any more.
    pub fn finish(&self) -> Recording {
        let mut log = self.log();
        log.is_closed = true;
        Recording {
            events: std::mem::take(&mut log.events),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A finished log.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Recording {
    /// The same run on a medium that ignores flushes of the files that `ignored` chooses: the
    /// negative control. A test that stays green on it proves nothing.
    pub fn without_flushes(&self, ignored: impl Fn(&str) -> bool) -> Recording {
        let kept = |event: &Event| match event {
            // An empty flush, so that the positions that other flushes cover stay right.
            Event::Flush { file, .. } if ignored(file) => Event::Flush {
                file: file.clone(),
                covers: 0,
            },
            event => event.clone(),
        };
        Recording {
            events: self.events.iter().map(kept).collect(),
        }
    }
}
