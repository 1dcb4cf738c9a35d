//! What is kept of every operation: counters for `--metrics`, events for tracers.
//!
//! # Concurrency
//! A leaf: takes no lock of the mount but that of what is known, for the path of a traced node. A thread of
//! its own looks for tracers.

use crate::metrics::{Metrics, MetricsSnapshot};
use crate::trace::{TraceEvent, Tracers};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked for tracers: how long one waits for its greeting.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The watch over one mount.
pub(crate) struct Watch {
    metrics: Option<Metrics>,
    tracers: Tracers,
    open_handles: AtomicU64,
}

/// What may be asked of a mount while it is served, and after.
#[derive(Clone)]
pub struct Monitor {
    watch: Arc<Watch>,
}

impl Monitor {
    pub(crate) fn new(watch: Arc<Watch>) -> Monitor {
        Monitor { watch }
    }

    /// The counters; `None` unless the mount was made with `MountOptions::has_metrics`.
    pub fn metrics(&self) -> Option<MetricsSnapshot> {
        self.watch.metrics.as_ref().map(Metrics::snapshot)
    }

    /// Files and directories that programs have open.
    pub fn open_handle_count(&self) -> u64 {
        self.watch.open_handles.load(Ordering::Relaxed)
    }
}
