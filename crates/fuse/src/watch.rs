//! What is kept of every operation: counters for `--metrics`, events for tracers.
//!
//! # Concurrency
//! A leaf: takes no lock of the mount but that of what is known, for the paths of a traced operation. A
//! thread of its own looks for tracers. While nobody counts and nobody traces, an operation costs two
//! relaxed loads (`TRACE-4`).

use crate::known::Known;
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::trace::{TraceEvent, Tracers};
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
    /// Only while somebody traces.
    about: Option<Box<About>>,
}

/// What an event tells of the arguments.
#[derive(Debug)]
struct About {
    name: Vec<u8>,
    /// Directory and name of a second path.
    other: Option<(NodeNumber, Vec<u8>)>,
    attribute: Vec<u8>,
    offset: u64,
    size: u64,
}

impl Watch {
    /// Over the mount of `database` at `mountpoint`.
    pub(crate) fn new(database: &Path, mountpoint: &Path, has_metrics: bool) -> Watch {
        Watch {
            metrics: has_metrics.then(Metrics::default),
            tracers: Tracers::new(database, mountpoint),
            open_handles: AtomicU64::new(0),
        }
    }

    /// A request begins; `None`: nobody wants to know.
    pub(crate) fn begin(&self, detail: &Detail<'_>) -> Option<Watched> {
        let is_traced = self.tracers.is_any();
        if let Some(metrics) = &self.metrics {
            metrics.begin();
        } else if !is_traced {
            return None;
        }
        let about = || {
            Box::new(About {
                name: detail.name.to_vec(),
                other: detail.other.map(|(node, name)| (node, name.to_vec())),
                attribute: detail.attribute.to_vec(),
                offset: detail.offset,
                size: detail.size_bytes,
            })
        };
        Some(Watched {
            began: Instant::now(),
            about: is_traced.then(about),
        })
    }

    /// It has ended.
    pub(crate) fn end(
        &self,
        watched: Watched,
        request: &Request,
        outcome: &Outcome,
        known: &Known,
    ) {
        let elapsed = watched.began.elapsed();
        let duration_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let number = request.opcode as u32;
        let error = outcome.error.map(|error| error.code().unsigned_abs());
        if let Some(metrics) = &self.metrics {
            metrics.end(number, duration_ns, error);
            let read = if request.opcode == Opcode::Read {
                outcome.reply_bytes as u64
            } else {
                0
            };
            let written = if error.is_none() {
                outcome.written_bytes as u64
            } else {
                0
            };
            metrics.count_bytes(read, written);
            self.count_handles(request.opcode, outcome);
        }
        if let Some(about) = watched.about {
            self.tracers.tell(number, duration_ns, || {
                event(*about, request, outcome, elapsed, known)
            });
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

fn event(
    about: About,
    request: &Request,
    outcome: &Outcome,
    elapsed: Duration,
    known: &Known,
) -> TraceEvent {
    let began = SystemTime::now() - elapsed;
    let at_ns = began
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let path = |node: NodeNumber, name: &[u8]| {
        let mut path = known.path(node).unwrap_or_default();
        if !name.is_empty() {
            // Of an unknown directory the name is all there is to tell.
            path.push(b'/');
            path.extend(name);
        } else if node == NodeNumber::ROOT {
            path.push(b'/');
        }
        path
    };
    let size = match request.opcode {
        Opcode::Read => outcome.reply_bytes as u64,
        _ => about.size,
    };
    TraceEvent {
        at_ns: i64::try_from(at_ns).unwrap_or(i64::MAX),
        duration_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        operation: request.opcode as u32,
        error: outcome.error.map_or(0, |error| error.code().unsigned_abs()),
        node: request.node.0,
        offset: about.offset,
        size,
        uid: request.uid,
        pid: request.pid,
        path: path(request.node, &about.name),
        other_path: about
            .other
            .map(|(node, name)| path(node, &name))
            .unwrap_or_default(),
        attribute: about.attribute,
    }
}

/// The thread that looks for tracers; dropping this ends it.
pub(crate) struct Lookout {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    /// Begins to look. [`ErrorKind::Io`] when there can be no thread.
    pub(crate) fn start(watch: Arc<Watch>) -> Result<Lookout, Error> {
        let (stop, stopped) = channel();
        let work = move || {
            while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watch.tracers.look();
            }
            // What was lost last is still told.
            watch.tracers.look();
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
