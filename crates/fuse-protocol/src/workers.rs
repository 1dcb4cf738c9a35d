//! The transport by `/dev/fuse`: workers that each read a request, serve it, and write the reply.
//!
//! Each worker has a clone of the device, with a queue of its own for the requests in work, where
//! the system permits it. Some workers are kept. When the last idle one gets a request, another is
//! hired, up to the number of slots (`PROTOCOL-4`); a worker goes when enough others are idle,
//! which are some more than are kept: one that is hired for each request costs a hundred times what
//! a request costs.
//!
//! Beside rings only FORGET and INTERRUPT come by the device, and few workers do.

use crate::buffers::Buffers;
use crate::device::Device;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::in_flight::RequestSlot;
use crate::opcode::Opcode;
use crate::relief::{Relief, Wait};
use crate::request::{Dialect, Incoming, Malformed, Operation, decode};
use crate::service::{Answer, Service};
use crate::stop::Stop;
use crate::wire;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope};

/// Idle workers beyond the kept ones that stay, for the next time that all are busy.
const SPARE_COUNT: usize = 8;

/// The same beside rings: each of them is woken for each FORGET.
const SPARE_COUNT_BESIDE: usize = 1;

/// What comes by the device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Traffic<'s> {
    /// Everything, until the mount has ended.
    All,
    /// What does not come by rings, until the mount has ended or they are over.
    BesideRings(&'s Stop),
}

/// All workers of a session.
pub(crate) struct Workers<'s, F> {
    service: &'s Service<F>,
    device: &'s Device,
    content_bytes_max: u32,
    kept: usize,
    traffic: Traffic<'s>,
    /// Workers that read, or are about to.
    idle: AtomicUsize,
    failed: Mutex<Option<Errno>>,
}

impl<'s, F: Filesystem> Workers<'s, F> {
    pub(crate) fn new(
        service: &'s Service<F>,
        device: &'s Device,
        content_bytes_max: u32,
        kept: usize,
        traffic: Traffic<'s>,
    ) -> Workers<'s, F> {
        Workers {
            service,
            device,
            content_bytes_max,
            kept,
            traffic,
            idle: AtomicUsize::new(0),
            failed: Mutex::new(None),
        }
    }

    /// Serves until the mount has ended.
    pub(crate) fn run(&self) -> io::Result<()> {
        std::thread::scope(|scope| {
            // Not who idles: all may have work by now, or the mount may have ended.
            let hired = (0..self.kept).filter(|_| self.hire(scope)).count();
            // Without a single worker there would be nobody to notice the end.
            match hired {
                0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                _ => Ok(()),
            }
        })?;
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// One more worker, if there is a slot and the system has a thread.
    fn hire<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> bool {
        let Some(slot) = self.service.in_flight.reserve() else {
            return false;
        };
        self.idle.fetch_add(1, Ordering::SeqCst);
        let hired = Builder::new()
            .name("fuse-worker".into())
            .spawn_scoped(scope, move || self.work(scope, slot));
        if let Err(error) = &hired {
            self.idle.fetch_sub(1, Ordering::SeqCst);
            self.service.in_flight.leave(slot);
            tracing::warn!("no thread for another worker: {error}; requests wait for each other");
        }
        hired.is_ok()
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, slot: usize) {
        let device = self.device.clone_queue().unwrap_or_else(|error| {
            tracing::debug!("the device cannot be cloned: {error}; this worker shares it");
            self.device.clone()
        });
        if let Traffic::BesideRings(_) = self.traffic
            && let Err(error) = device.set_nonblocking()
        {
            // It reads what is there, and may then wait although it is over.
            tracing::warn!("a worker waits for the device alone: {error}");
        }
        let own = self.service.in_flight.slot(slot);
        own.attach(&device);
        let hiring = Hiring {
            workers: self,
            scope,
        };
        let mut buffers = Buffers::new(self.content_bytes_max);
        loop {
            let len_bytes = match self.read(&device, buffers.request()) {
                Ok(Some(len_bytes)) => len_bytes,
                Ok(None) => break,
                // Interrupted, taken back while it was read, or taken by another worker.
                Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOENT) => continue,
                // Unmounted, or aborted.
                Err(Errno::ENODEV | Errno::ECONNABORTED) => break,
                Err(error) => {
                    *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
            };
            if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.hire(scope);
            }
            self.serve(&own, &hiring, &device, &mut buffers, len_bytes);
            if self.idle.fetch_add(1, Ordering::SeqCst) >= self.kept + self.spare_count() {
                break;
            }
        }
        self.idle.fetch_sub(1, Ordering::SeqCst);
        self.service.in_flight.leave(slot);
    }

    /// One request; `None`: it is over.
    fn read(&self, device: &Device, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        if let Traffic::BesideRings(stop) = self.traffic
            && !stop.wait_for(device.as_fd())?
        {
            return Ok(None);
        }
        device.read(buffer).map(Some)
    }

    fn spare_count(&self) -> usize {
        match self.traffic {
            Traffic::All => SPARE_COUNT,
            Traffic::BesideRings(_) => SPARE_COUNT_BESIDE,
        }
    }

    fn serve(
        &self,
        slot: &RequestSlot,
        relief: &dyn Relief,
        device: &Device,
        buffers: &mut Buffers,
        len_bytes: usize,
    ) {
        let (bytes, memory) = buffers.split(len_bytes);
        let incoming = match Incoming::whole(bytes) {
            Ok(incoming) => incoming,
            Err(Malformed) => {
                tracing::error!("a request of {len_bytes} bytes has another length in its header");
                if let Some((header, _)) = wire::take::<wire::InHeader>(bytes) {
                    send(device, buffers.reply(header.unique, -Errno::EIO.code(), 0));
                }
                return;
            }
        };
        let unique = incoming.header.unique;
        if incoming.header.opcode == Opcode::Interrupt as u32 {
            match (interrupted(&incoming), self.traffic) {
                (Err(Malformed), _) => tracing::error!("malformed: {:?}", incoming.header),
                (Ok(interrupted), Traffic::BesideRings(_)) => {
                    self.service.in_flight.interrupt_or_expect(interrupted);
                }
                (Ok(interrupted), Traffic::All) => {
                    if !self.service.in_flight.interrupt(interrupted) {
                        self.ask_again(buffers.reply(unique, -Errno::EAGAIN.code(), 0));
                    }
                }
            }
            return;
        }
        let work = self.service.work(slot, relief, &incoming, memory);
        let is_delivered = match work.answer {
            Answer::Silent => true,
            Answer::Error(error) => send(device, buffers.reply(unique, -error.code(), 0)),
            Answer::Data(len_bytes) => send(device, buffers.reply(unique, 0, len_bytes)),
        };
        self.service.finish(work, is_delivered);
    }

    /// Nobody works on the interrupted request yet, since the worker that has read it did not get
    /// further, or nobody does any more. `EAGAIN` asks the kernel to send the INTERRUPT again, if
    /// the request is still there. The kernel looks for it only in the queue of the device by which
    /// the answer comes, so all devices give it; all but one are told that they do not have it.
    fn ask_again(&self, reply: &[u8]) {
        for device in self.service.in_flight.devices() {
            send(&device, reply);
        }
        std::thread::yield_now();
    }
}

/// Whoever waits for the kernel has another worker hired, if none is idle.
struct Hiring<'w, 'scope, 'env, F> {
    workers: &'scope Workers<'w, F>,
    scope: &'scope Scope<'scope, 'env>,
}

impl<F: Filesystem> Relief for Hiring<'_, '_, '_, F> {
    fn reserve(&self, _: Wait) -> bool {
        true
    }

    fn begin(&self, wait: Wait) {
        if wait == Wait::Kernel && self.workers.idle.load(Ordering::SeqCst) == 0 {
            self.workers.hire(self.scope);
        }
    }

    fn end(&self, _: Wait) {}
}

/// The request that an INTERRUPT is about.
fn interrupted(incoming: &Incoming<'_>) -> Result<u64, Malformed> {
    let (request, body) = incoming.request(Opcode::Interrupt)?;
    match decode(&request, body, Dialect::default())? {
        Operation::Interrupt { unique } => Ok(unique & !wire::UNIQUE_RESEND),
        _ => Err(Malformed),
    }
}

/// Whether the kernel took it.
fn send(device: &Device, reply: &[u8]) -> bool {
    match device.write(reply) {
        Ok(()) => true,
        // The caller is gone, or the mount is.
        Err(Errno::ENOENT | Errno::ENODEV | Errno::ECONNABORTED | Errno::EPERM) => false,
        Err(error) => {
            tracing::error!("the kernel refuses a reply: {error}");
            false
        }
    }
}
