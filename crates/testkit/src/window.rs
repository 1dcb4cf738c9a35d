//! The window: what happened before a point in a log and is covered by no flush yet.

use std::collections::HashSet;

use crate::event::{Event, FileName};

/// Indices of the events that no flush covers yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Window(Vec<usize>);

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Takes event `index` in; calls `durable` for each event that it makes durable, in order.
    pub(crate) fn advance(
        &mut self,
        events: &[Event],
        index: usize,
        mut durable: impl FnMut(usize),
    ) {
        match &events[index] {
            Event::Flush { file, covers } => {
                self.settle(
                    |i| i < *covers && file_of(&events[i]) == Some(file),
                    durable,
                );
            }
            Event::SyncNames { directory } => self.settle_names(events, directory, durable),
            Event::Delete {
                file,
                durable: true,
            } => {
                self.0.retain(|&i| file_of(&events[i]) != Some(file));
                durable(index);
            }
            Event::Ack(_) => {}
            Event::Create { .. }
            | Event::Delete { .. }
            | Event::Write { .. }
            | Event::Truncate { .. } => {
                self.0.push(index);
            }
        }
    }

    fn settle(&mut self, is_durable: impl Fn(usize) -> bool, mut durable: impl FnMut(usize)) {
        self.0.retain(|&i| {
            if is_durable(i) {
                durable(i);
            }
            !is_durable(i)
        });
    }

    fn settle_names(&mut self, events: &[Event], directory: &str, durable: impl FnMut(usize)) {
        let is_name = |i: usize| {
            let (Event::Create { file } | Event::Delete { file, .. }) = &events[i] else {
                return false;
            };
            file.rsplit_once('/').map_or("", |(parent, _)| parent) == directory
        };
        // Writes to a file whose name is gone for good are gone with it.
        let last_delete = |file: Option<&FileName>| {
            let goes = |i: &&usize| match &events[**i] {
                Event::Delete { file: gone, .. } => Some(gone) == file,
                _ => false,
            };
            self.0
                .iter()
                .rev()
                .find(goes)
                .copied()
                .filter(|&i| is_name(i))
        };
        let dead: HashSet<usize> = self
            .0
            .iter()
            .copied()
            .filter(|&i| last_delete(file_of(&events[i])).is_some_and(|gone| i < gone))
            .collect();
        self.0.retain(|i| !dead.contains(i));
        self.settle(is_name, durable);
    }
}

/// Whether an event changes the medium, but at an unknown time after it.
pub(crate) fn is_volatile(event: &Event) -> bool {
    match event {
        Event::Create { .. } | Event::Write { .. } | Event::Truncate { .. } => true,
        Event::Delete { durable, .. } => !durable,
        Event::Flush { .. } | Event::SyncNames { .. } | Event::Ack(_) => false,
    }
}

/// The file that an event is about.
pub(crate) fn file_of(event: &Event) -> Option<&FileName> {
    match event {
        Event::Create { file }
        | Event::Delete { file, .. }
        | Event::Write { file, .. }
        | Event::Truncate { file, .. }
        | Event::Flush { file, .. } => Some(file),
        Event::SyncNames { .. } | Event::Ack(_) => None,
    }
}
