//! The transport by io_uring (Linux 6.14, `FUSE_OVER_IO_URING`), beside which FORGET and INTERRUPT
//! come by `/dev/fuse`.
//!
//! # Words
//! The kernel has a *queue* for each CPU that there may be, and gives a request to the queue of the
//! CPU on which its caller runs. An *entry* of a queue is memory for one request and its reply. The
//! reply and the wish for the next request are one command, so an entry can never be given back.
//! Who gives the command, by an io_uring of his own, has the entry from then on: a *worker* one, so
//! that a slow handler holds up its entry alone, and the *relay* of a queue all those that no
//! worker has yet, its *reserve*. A *wait* is a handler that waits for long, see [`relief`].
//!
//! ```text
//!   prepare (before INIT is answered) ── relay: register ──→ reserve
//!                                                               │ a request: relay hires a worker
//!           ┌────────── the next request was waiting ─────────┐ │
//!           ↓                                                 │ ↓
//!         taken ── handler ──→ answered ── worker: commit ────┴─→ idle ── a request ──→ taken
//!
//!   all: the mount has ended, or the session is over ──→ gone     an error ──→ the session is over
//! ```
//!
//! [`relief`]: crate::relief
//!
//! # Invariants
//! * `RING-1` No mount hangs for its rings: they are made before INIT is answered, and if a queue
//!   gets no entry all the same, the kernel is told by a command that it refuses. Everything then
//!   comes by the device, by as many workers as without rings, or, where that was not asked for,
//!   the session ends with an error.
//! * `RING-2` All entries of a queue are registered at the start, and one of them does not wait. So
//!   a request for which no entry was idle is taken when the next one is answered; an entry that
//!   registers later would not take it. A wait that would break this is refused (`ENOLCK`, for the
//!   kernel `EAGAIN`); those for locks leave some more to others.
//! * `RING-3` While a queue has entries in reserve, no request waits for a handler to return
//!   (`PROTOCOL-4`). Workers are hired when they are first needed, and stay until the end.
//! * `RING-4` An entry that is lost ends the session with an error, and so does a thread that
//!   panics: no request waits for nobody.
//! * `RING-5` All threads end when the mount has ended, is aborted, or the session is over. Of a
//!   server that is killed nothing is left when its descriptors are closed.
//! * `RING-6` A thread is bound to the CPU of its queue while it serves small requests: caller and
//!   server share a cache, and no other CPU has to be woken. Large and slow ones are served where
//!   the scheduler likes, beside their caller, from before the handler on. Where binding is not
//!   permitted nothing is bound.
//!
//! # Memory
//! Of each entry a page and the largest content (1 MiB), as address space; what was used of it
//! counts, until the end. The kernel takes the entry first that was answered last, so few are used.
//! At most: requests that were ever served at once, by 1.1 MiB.
//!
//! # Limits
//! A thread that a handler starts is bound like the one that starts it, whatever the request: it
//! has to leave the binding itself.
//!
//! A signal is told to the server if its caller's request has been handed over (`FR_SENT`), or is
//! taken back if it still waits for an entry (`FR_PENDING`, signals that kill). Between the two,
//! while the thread of the entry is on its way to copy it, the kernel tells nobody, and never does
//! later: a caller that waits for a lock then cannot even be killed until the lock is free. It is a
//! gap of microseconds, and as long as a server is stopped (`SIGSTOP`) or gets no CPU: nobody who
//! asks it meanwhile can be killed. A signal that does not kill is also lost while the request
//! waits for an entry; with entries in reserve none waits there.

mod cpus;
mod descriptors;
mod entry;
mod memory;
mod queue;
mod ring;
mod weight;

use crate::buffers::{Aligned, CONTENT_BYTES_MIN};
use crate::device::Device;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::in_flight::RequestSlot;
use crate::relief::{Relief, Wait};
use crate::request::Malformed;
use crate::service::{Answer, Service};
use crate::stop::Stop;
use crate::workers::{Traffic, Workers};
use cpus::Binding;
use entry::Entry;
#[cfg(fuzzing)]
pub(crate) use entry::decode_entry;
use queue::Queue;
use ring::{Event, Ring};
use rustix::thread::CpuSet;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};
use weight::Weight;

/// Entries of one queue, at least and at most, and of all queues. Writers that have pages dropped
/// wait for the kernel, each with an entry, until others have read: more than workers ever are.
const ENTRIES_MIN: usize = 512;
const ENTRIES_MAX: usize = 1024;
const ENTRIES_OF_ALL: usize = 16_384;
/// Of one queue where there are very many.
const ENTRIES_LEAST: usize = 16;
/// Workers of the device that are always there.
const WORKERS_BESIDE: usize = 1;

/// Rings that are made, before the kernel is told.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Of each queue the relay's ring, and the entries.
    first: Vec<(Ring, Vec<Entry>)>,
    /// What says that they do not serve.
    refusal: Ring,
    stop: Arc<Stop>,
    limits: RingLimits,
}

/// Limits of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingLimits {
    /// Of the device, if rings do not serve.
    pub(crate) workers: usize,
    pub(crate) workers_max: usize,
    pub(crate) content_bytes_max: u32,
    /// Everything comes by the device if rings do not serve; without it the session ends.
    pub(crate) falls_back: bool,
}

impl RingLimits {
    fn entry_count(&self, queue_count: usize) -> usize {
        let share = (ENTRIES_OF_ALL / queue_count.max(1)).max(ENTRIES_LEAST);
        let wanted = self.workers_max.clamp(ENTRIES_MIN, ENTRIES_MAX);
        wanted.min(share)
    }

    fn content_bytes(&self) -> usize {
        // The kernel wants room for whole pages.
        let content_bytes = (self.content_bytes_max as usize).max(CONTENT_BYTES_MIN);
        content_bytes.next_multiple_of(rustix::param::page_size())
    }
}

impl Rings {
    /// Makes all that the rings of a mount need, but workers. Errors: the system permits no
    /// io_uring, or has no descriptors or memory for it.
    pub(crate) fn prepare(limits: RingLimits) -> Result<Rings, Errno> {
        let queue_count = cpus::queue_count().ok_or(Errno::ENODEV)?;
        let entry_count = limits.entry_count(usize::from(queue_count));
        descriptors::allow_more(entry_count * usize::from(queue_count));
        let queue = || -> Result<(Ring, Vec<Entry>), Errno> {
            let ring = Ring::new(entry_count as u32)?;
            let entries = (0..entry_count).map(|_| Entry::new(limits.content_bytes()));
            Ok((ring, entries.collect::<Result<_, _>>()?))
        };
        Ok(Rings {
            first: (0..queue_count)
                .map(|_| queue())
                .collect::<Result<_, _>>()?,
            refusal: Ring::new(1)?,
            stop: Arc::new(Stop::new()?),
            limits,
        })
    }

    /// Requests in work at most: of the device, and one of each relay and of each entry.
    pub(crate) fn slot_max(&self) -> usize {
        let of_rings = self.first.iter().map(|(_, entries)| entries.len() + 1);
        self.limits.workers_max + of_rings.sum::<usize>()
    }

    /// Serves until the mount has ended. Errors: see `RING-1` and `RING-4`.
    pub(crate) fn serve<F: Filesystem>(
        self,
        service: &Service<F>,
        device: &Device,
    ) -> io::Result<()> {
        let Rings {
            first,
            refusal,
            stop,
            limits,
        } = self;
        let crew = Crew {
            service,
            device,
            stop: &stop,
            queues: first.iter().map(|_| Queue::default()).collect(),
            cpus: cpus::usable(),
        };
        let stop = &*stop;
        std::thread::scope(|scope| {
            let (traffic, kept) = if crew.start(scope, first) {
                tracing::info!("requests come by io_uring");
                (Traffic::BesideRings(stop), WORKERS_BESIDE)
            } else {
                stop.set();
                refuse(refusal, device)?; // RING-1
                if !limits.falls_back {
                    return Err(incomplete());
                }
                tracing::warn!("io_uring cannot be used; requests come by /dev/fuse");
                service.in_flight.limit(limits.workers_max);
                (Traffic::All, limits.workers)
            };
            let content_bytes_max = limits.content_bytes_max;
            let served = Workers::new(service, device, content_bytes_max, kept, traffic).run();
            stop.set();
            served
        })?;
        stop.error().map_or(Ok(()), |error| Err(error.into()))
    }

    /// As if the system had no thread for it.
    #[cfg(test)]
    pub(crate) fn empty_queue(&mut self, number: usize) {
        self.first[number].1.clear();
    }

    /// What ends the session.
    #[cfg(test)]
    pub(crate) fn stop(&self) -> Arc<Stop> {
        self.stop.clone()
    }
}

/// Whether this process gets what each thread of rings needs.
pub(crate) fn probe() -> Result<(), Errno> {
    Ring::new(1).map(drop)
}

/// Has the kernel give up the rings of a mount of which a queue has no entry. It does before it
/// says that it takes no such entry.
fn refuse(mut ring: Ring, device: &Device) -> Result<(), Errno> {
    ring.enable()?;
    ring.register_nothing(device, 0)?;
    ring.refusal(0).map(drop).ok_or(Errno::EPROTO)
}

fn incomplete() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "requests cannot come by io_uring: a CPU's queue got no entry, see the log; \
         'transport=auto' takes /dev/fuse then",
    )
}

/// The error of a command; `None`: the mount has ended.
fn error_of(result: i32) -> Option<Errno> {
    match Errno::from_code(-result) {
        Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ENODEV | Errno::ECANCELED => None,
        error => Some(error),
    }
}

/// All threads of the rings of a session.
struct Crew<'s, F> {
    service: &'s Service<F>,
    device: &'s Device,
    stop: &'s Stop,
    queues: Vec<Queue>,
    /// What may be used of them.
    cpus: Option<CpuSet>,
}

impl<'s, F: Filesystem> Crew<'s, F> {
    /// Starts the relays. `false`: a queue has no entry.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        first: Vec<(Ring, Vec<Entry>)>,
    ) -> bool {
        let (started, starts) = channel();
        let queue_count = first.len();
        for (number, (ring, entries)) in (0..).zip(first) {
            let started = started.clone();
            let relay = Builder::new()
                .name("fuse-relay".into())
                .spawn_scoped(scope, move || {
                    let _guard = self.stop.guard();
                    self.relay(scope, number, (ring, entries), started);
                });
            if let Err(error) = relay {
                tracing::warn!("no thread for queue {number}: {error}");
            }
        }
        drop(started);
        // All are waited for, so that none registers after a refusal.
        starts.iter().filter(|is_started| *is_started).count() == queue_count
    }

    /// Gives a queue its entries, and those that get a request to workers.
    fn relay<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        number: u16,
        (mut ring, entries): (Ring, Vec<Entry>),
        started: Sender<bool>,
    ) {
        let mut binding = Binding::new(number, self.cpus);
        binding.bind();
        let (mut reserve, registered) = self.register(number, &mut ring, entries);
        if let Err(error) = registered {
            tracing::warn!("the kernel takes no more entries of queue {number}: {error}");
        }
        self.queues[usize::from(number)].begin(reserve.len());
        // Nobody listens any more: the session is over.
        let _ = started.send(!reserve.is_empty());
        drop(started);
        if let Err(error) = self.pass_on(scope, number, (&mut ring, &mut binding), &mut reserve) {
            self.lose(number, error);
        }
        self.let_go(ring, reserve);
    }

    /// Those entries that the kernel has taken, and why it has not taken the others.
    fn register(
        &self,
        number: u16,
        ring: &mut Ring,
        mut entries: Vec<Entry>,
    ) -> (Vec<Option<Entry>>, Result<(), Errno>) {
        let mut count = 0;
        let mut register_all = || -> Result<(), Errno> {
            ring.enable()?;
            ring.watch(self.stop)?;
            for entry in &mut entries {
                self.register_one(ring, (number, count), entry)?;
                count += 1;
            }
            Ok(())
        };
        let registered = register_all();
        entries.truncate(count as usize);
        (entries.into_iter().map(Some).collect(), registered)
    }

    /// Errors: of the kernel, which takes an entry at once or not at all. It would say `EAGAIN`
    /// before INIT is answered, but that was done in the `write` of the answer (the kernel's
    /// `fuse_dev_do_write` ends in `process_init_reply`), before there was a session.
    fn register_one(
        &self,
        ring: &mut Ring,
        place: (u16, u32),
        entry: &mut Entry,
    ) -> Result<(), Errno> {
        // SAFETY: they stay until `let_go`, after the last ring that had the entry is gone, and are
        // used by the thread that has it, after its request has come.
        unsafe { ring.register(self.device, place, entry.parts()) }?;
        ring.refusal(place.1).map_or(Ok(()), Err)
    }

    /// Until the end. Errors: an entry is lost.
    fn pass_on<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        number: u16,
        (ring, binding): (&mut Ring, &mut Binding),
        reserve: &mut [Option<Entry>],
    ) -> Result<(), Errno> {
        while let Event::Command { name, result } = ring.wait()? {
            let Some(place) = reserve.get_mut(name as usize) else {
                continue; // The entry that was not taken.
            };
            if result < 0 {
                return error_of(result).map_or(Ok(()), Err);
            }
            let entry = place.take().ok_or(Errno::EPROTO)?;
            if let Err((mut entry, error)) = self.hire(scope, number, entry) {
                tracing::warn!("no worker for queue {number}: {error}; its requests wait");
                let answered = self.stand_in((number, name), (ring, binding), &mut entry);
                *place = Some(entry);
                answered?;
            }
        }
        Ok(())
    }

    /// A worker for an entry that has a request; the entry comes back if there can be none.
    fn hire<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        number: u16,
        entry: Entry,
    ) -> Result<(), (Entry, io::Error)> {
        let ring = match Ring::new(1) {
            Ok(ring) => ring,
            Err(error) => return Err((entry, error.into())),
        };
        let Some(slot) = self.service.in_flight.reserve() else {
            return Err((entry, io::Error::other("all slots are taken")));
        };
        // By way of this, since a closure that is not run is dropped.
        let handed = Arc::new(Mutex::new(Some(entry)));
        let take = |handed: &Mutex<Option<Entry>>| {
            let mut handed = handed.lock().unwrap_or_else(PoisonError::into_inner);
            handed.take()
        };
        let theirs = handed.clone();
        let hired = Builder::new()
            .name("fuse-ring".into())
            .spawn_scoped(scope, move || {
                let _guard = self.stop.guard();
                if let Some(entry) = take(&theirs) {
                    self.work(number, slot, ring, entry);
                }
                self.service.in_flight.leave(slot);
            });
        match hired {
            Ok(_) => Ok(()),
            Err(error) => {
                self.service.in_flight.leave(slot);
                match take(&handed) {
                    Some(entry) => Err((entry, error)),
                    None => Ok(()),
                }
            }
        }
    }

    /// Serves a request for which there is no worker. Nothing else of the reserve is served
    /// meanwhile: the handler must not wait for a lock, nor for the kernel, which may itself wait
    /// for a request that is in the reserve.
    fn stand_in(
        &self,
        (number, name): (u16, u32),
        (ring, binding): (&mut Ring, &mut Binding),
        entry: &mut Entry,
    ) -> Result<(), Errno> {
        let standing = Standing {
            queue: &self.queues[usize::from(number)],
            may_wait: false,
        };
        let slot = RequestSlot::default();
        let mut replies = Aligned::new(CONTENT_BYTES_MIN);
        let memory = (entry, &mut replies, binding);
        self.answer(&standing, &slot, (number, name), ring, memory)
    }

    fn work(&self, number: u16, slot: usize, mut ring: Ring, mut entry: Entry) {
        let slot = self.service.in_flight.slot(slot);
        slot.attach(self.device);
        if let Err(error) = self.serve(number, &slot, &mut ring, &mut entry) {
            self.lose(number, error);
        }
        self.let_go(ring, vec![Some(entry)]);
    }

    /// Serves the request that is in `entry`, and all others that come to it.
    fn serve(
        &self,
        number: u16,
        slot: &RequestSlot,
        ring: &mut Ring,
        entry: &mut Entry,
    ) -> Result<(), Errno> {
        ring.enable()?;
        ring.watch(self.stop)?;
        // This thread is bound as the relay is, which has started it.
        let mut binding = Binding::new(number, self.cpus);
        binding.bind();
        let standing = Standing {
            queue: &self.queues[usize::from(number)],
            may_wait: true,
        };
        let mut replies = Aligned::new(CONTENT_BYTES_MIN);
        loop {
            let memory = (&mut *entry, &mut replies, &mut binding);
            self.answer(&standing, slot, (number, 0), ring, memory)?;
            match ring.wait()? {
                Event::Stopped => return Ok(()),
                Event::Command { result, .. } if result < 0 => {
                    return error_of(result).map_or(Ok(()), Err);
                }
                Event::Command { .. } => {}
            }
        }
    }

    /// Has the request in `entry` served, and hands over the reply: the entry is then that of
    /// `ring`. Errors: the kernel did not take the command.
    fn answer(
        &self,
        standing: &Standing<'_>,
        slot: &RequestSlot,
        place: (u16, u32),
        ring: &mut Ring,
        (entry, replies, binding): (&mut Entry, &mut Aligned, &mut Binding),
    ) -> Result<(), Errno> {
        let work = match entry.arrival(replies) {
            Ok(arrival) => {
                let incoming = &arrival.incoming;
                binding.before(Weight::of(incoming)); // RING-6
                Some((self.service).work(slot, standing, incoming, arrival.reply))
            }
            Err(Malformed) => {
                tracing::error!("a request whose lengths contradict each other");
                None
            }
        };
        let (error, len_bytes) = match work.as_ref().map(|work| work.answer) {
            None => (-Errno::EIO.code(), 0),
            Some(Answer::Silent) => (0, 0),
            Some(Answer::Error(error)) => (-error.code(), 0),
            Some(Answer::Data(len_bytes)) => (0, len_bytes),
        };
        let committed = match entry.put_reply(replies, error, len_bytes) {
            Ok(commit_id) => ring.commit(self.device, place, commit_id),
            Err(Malformed) => Err(Errno::EPROTO),
        };
        if let Some(work) = work {
            let is_taken = committed.is_ok() && ring.refusal(place.1).is_none();
            self.service.finish(work, is_taken);
        }
        committed
    }

    /// An entry is lost, unless the mount has ended and the kernel was quicker (`RING-4`).
    fn lose(&self, number: u16, error: Errno) {
        if self.device.is_connected() {
            tracing::error!("an entry of queue {number} is lost: {error}; the mount ends");
            self.stop.fail(error);
        }
    }

    /// Entries that nobody serves any more.
    fn let_go(&self, ring: Ring, entries: Vec<Option<Entry>>) {
        drop(ring);
        if self.device.is_connected() {
            // The kernel may still have something for them, until the device is closed.
            std::mem::forget(entries);
        }
    }
}

/// Where a handler runs.
struct Standing<'q> {
    queue: &'q Queue,
    may_wait: bool,
}

impl Relief for Standing<'_> {
    fn reserve(&self, wait: Wait) -> bool {
        self.may_wait && self.queue.begin_wait(wait)
    }

    fn begin(&self, _: Wait) {}

    fn end(&self, _: Wait) {
        self.queue.end_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlight;
    use crate::memory::MemoryFilesystem;
    use crate::request::Dialect;
    use crate::support::IoUringSupport;
    use crate::transport::is_refused;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::fd::OwnedFd;

    fn limits(workers_max: usize) -> RingLimits {
        RingLimits {
            workers: 1,
            workers_max,
            content_bytes_max: 4096,
            falls_back: true,
        }
    }

    #[test]
    fn queues_have_as_many_entries_as_the_device_would_have_workers_or_more() {
        assert_eq!(limits(700).entry_count(2), 700, "RING-3");
        assert_eq!(limits(8).entry_count(2), 512, "RING-2");
        assert_eq!(limits(9999).entry_count(2), 1024);
        assert_eq!(limits(256).entry_count(128), 128);
        assert_eq!(limits(256).entry_count(4096), 16, "RING-2");
    }

    #[test]
    fn who_stands_in_does_not_wait() {
        let queue = Queue::default();
        queue.begin(16);
        for wait in [Wait::Lock, Wait::Kernel] {
            let reserve = |may_wait| {
                let queue = &queue;
                Standing { queue, may_wait }.reserve(wait)
            };
            assert!(!reserve(false), "RING-2");
            assert!(reserve(true));
        }
    }

    /// The kernel takes no entry for a file that is no device.
    #[test]
    fn rings_that_get_no_entry_are_not_up() {
        let before = getrlimit(Resource::Nofile);
        let current = before.maximum.map_or(1000, |most| most.min(1000));
        let low = Rlimit {
            current: Some(current),
            ..before
        };
        setrlimit(Resource::Nofile, low).unwrap();
        if is_refused(IoUringSupport::detect()) {
            println!("not run: this process is permitted no io_uring");
            return;
        }
        let rings = Rings::prepare(limits(16)).unwrap();
        let now = getrlimit(Resource::Nofile);
        let wanted = current + 512 * rings.first.len() as u64;
        assert!(now.current >= Some(wanted) || now.current == now.maximum);
        assert_eq!(rings.slot_max(), 16 + 513 * rings.first.len());
        let file = tempfile::tempfile().unwrap();
        let device = Device::from(OwnedFd::from(file));
        let filesystem = MemoryFilesystem::default();
        let service = Service::new(filesystem, Dialect::default(), InFlight::new(99), 1);
        let crew = Crew {
            service: &service,
            device: &device,
            stop: &rings.stop,
            queues: rings.first.iter().map(|_| Queue::default()).collect(),
            cpus: cpus::usable(),
        };
        std::thread::scope(|scope| {
            let is_up = crew.start(scope, rings.first);
            rings.stop.set();
            assert!(!is_up, "RING-1");
        });
        refuse(rings.refusal, &device).unwrap();
    }
}
