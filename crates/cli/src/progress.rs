//! How far a copy is, for people.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A line on stderr that shows how a copy goes; nothing when that is no terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// `size_bytes` is what will be copied, if it is known.
    pub(crate) fn new(size_bytes: Option<u64>) -> Progress {
        let (bar, template) = match size_bytes {
            Some(size_bytes) => (
                ProgressBar::new(size_bytes),
                "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            ),
            None => (
                ProgressBar::new_spinner(),
                "{spinner} {bytes} {binary_bytes_per_sec}",
            ),
        };
        let Ok(style) = ProgressStyle::with_template(template) else {
            unreachable!("the templates are constant and correct")
        };
        let bar = bar.with_style(style);
        // A copy that is over at once shows nothing.
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// So many bytes more are done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Takes the line away while something is told.
    pub(crate) fn suspend(&self, tell: impl FnOnce()) {
        self.0.suspend(tell);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
