//! What is kept of every operation: counters for `--metrics`, events for tracers.
//!
//! # Concurrency
//! A leaf: takes no lock of the mount but that of what is known, for the paths of a traced
//! operation. A thread of its own looks for tracers. While nobody counts and nobody traces, an
//! operation costs two relaxed loads (`TRACE-4`).

use crate::known::Known;
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::trace::{TraceEvent, Tracers};
use larder::directory::DatabaseDir;
use larder::{Error, ErrorKind};
use larder_fuse_protocol::{Detail, Errno, NodeNumber, Opcode, Outcome, Request};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is looked for tracers, and so how long one waits for its greeting.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The watch over one mount.
pub(crate) struct Watch {
    metrics: Option<Metrics>,
    tracers: Tracers,
    open_handles: AtomicU64,
}

/// An operation under watch, from its request to its reply.
#[derive(Debug)]
pub(crate) struct Watched {
    began: Instant,
    /// Only while somebody traces it. What the caller does next may rename what it is about, so
    /// this is made before the handler.
    event: Option<Box<TraceEvent>>,
}

impl Watch {
    /// Over the mount of `database` at `mountpoint`.
    pub(crate) fn new(database: &DatabaseDir, mountpoint: &Path, has_metrics: bool) -> Watch {
        Watch {
            metrics: has_metrics.then(Metrics::default),
            tracers: Tracers::new(database, mountpoint),
            open_handles: AtomicU64::new(0),
        }
    }

    /// A request begins; `None`: nobody wants to know.
    pub(crate) fn begin(
        &self,
        request: &Request,
        detail: &Detail<'_>,
        known: &Known,
    ) -> Option<Watched> {
        let is_traced = self.tracers.wants(request.opcode as u32);
        if let Some(metrics) = &self.metrics {
            metrics.begin();
        } else if !is_traced {
            return None;
        }
        Some(Watched {
            began: Instant::now(),
            event: is_traced.then(|| Box::new(event(request, detail, known))),
        })
    }

    /// It has ended.
    pub(crate) fn end(&self, watched: Watched, request: &Request, outcome: &Outcome) {
        let elapsed = watched.began.elapsed();
        let duration_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let error = outcome.error.map(|error| error.code().unsigned_abs());
        let read_bytes = match request.opcode {
            Opcode::Read => outcome.reply_bytes as u64,
            _ => 0,
        };
        if let Some(metrics) = &self.metrics {
            metrics.end(request.opcode as u32, duration_ns, error);
            let written_bytes = match error {
                None => outcome.written_bytes as u64,
                Some(_) => 0,
            };
            metrics.count_bytes(read_bytes, written_bytes);
            self.count_handles(request.opcode, outcome);
        }
        if let Some(mut event) = watched.event {
            event.duration_ns = duration_ns;
            event.error = error.unwrap_or(0);
            if request.opcode == Opcode::Read && error.is_none() {
                event.size = read_bytes;
            }
            self.tracers.tell(*event);
        }
    }

    fn count_handles(&self, opcode: Opcode, outcome: &Outcome) {
        let is_made = outcome.error.is_none() && outcome.is_delivered;
        match opcode {
            Opcode::Open | Opcode::Opendir | Opcode::Create | Opcode::Tmpfile if is_made => {
                self.open_handles.fetch_add(1, Ordering::Relaxed);
            }
            Opcode::Release | Opcode::Releasedir => {
                self.open_handles.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// All of it that is known before the handler.
fn event(request: &Request, detail: &Detail<'_>, known: &Known) -> TraceEvent {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let path = |node: NodeNumber, name: &[u8]| {
        // Of an unknown directory the name is all there is to tell.
        let mut path = known.path(node).unwrap_or_default();
        if !name.is_empty() || node == NodeNumber::ROOT {
            path.push(b'/');
            path.extend(name);
        }
        path
    };
    let other = detail.other.map(|(node, name)| path(node, name));
    TraceEvent {
        at_ns: i64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX),
        duration_ns: 0,
        operation: request.opcode as u32,
        error: 0,
        node: request.node.0,
        offset: detail.offset,
        size: detail.size_bytes,
        uid: request.uid,
        pid: request.pid,
        path: path(request.node, detail.name),
        other_path: other.unwrap_or_default(),
        attribute: detail.attribute.to_vec(),
    }
}

/// The thread that looks for tracers; dropping this ends it.
pub(crate) struct Lookout {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    /// Begins to look, and calls `also` each time. [`ErrorKind::Io`] when there can be no thread.
    pub(crate) fn start(
        watch: Arc<Watch>,
        also: impl Fn() + Send + 'static,
    ) -> Result<Lookout, Error> {
        let (stop, stopped) = channel();
        let work = move || {
            while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watch.tracers.look();
                also();
            }
            // What was lost last is still told.
            watch.tracers.look();
            watch.tracers.leave();
        };
        let thread = std::thread::Builder::new()
            .name("larder-trace".into())
            .spawn(work)
            .map_err(|error| {
                Error::with_source(ErrorKind::Io, "cannot start a thread".to_owned(), error)
            })?;
        Ok(Lookout {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(_panic)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that looks for tracers has panicked");
        }
    }
}

/// What may be asked of a mount while it is served, and after.
#[derive(Clone)]
pub struct Monitor {
    watch: Arc<Watch>,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

impl Monitor {
    pub(crate) fn new(watch: Arc<Watch>) -> Monitor {
        Monitor { watch }
    }

    /// The counters; `None` unless the mount was made with `MountOptions::has_metrics`.
    pub fn metrics(&self) -> Option<MetricsSnapshot> {
        self.watch.metrics.as_ref().map(Metrics::snapshot)
    }

    /// Files and directories that programs have open; 0 without metrics.
    pub fn open_handle_count(&self) -> u64 {
        self.watch.open_handles.load(Ordering::Relaxed)
    }
}

/// The name of an operation by the kernel's number, like `lookup`.
pub fn operation_name(number: u32) -> &'static str {
    Opcode::from_number(number).map_or("unknown", Opcode::name)
}

/// The kernel's number of the operation with this name.
pub fn operation_number(name: &str) -> Option<u32> {
    let found = Opcode::ALL.iter().find(|opcode| opcode.name() == name)?;
    Some(*found as u32)
}

/// The name of an error number, like `ENOENT`; of one without a name here, the number.
pub fn error_name(number: u32) -> String {
    let errno = i32::try_from(number).map(Errno::from_code);
    match errno.map(Errno::name) {
        Ok(Some(name)) if number > 0 => name.to_owned(),
        _ => number.to_string(),
    }
}
