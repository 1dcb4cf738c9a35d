//! The transport by io_uring.

use crate::buffers::Aligned;
use crate::device::Device;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::request::Incoming;
use crate::ring::{Headers, Ring};
use crate::service::{Answer, Service};
use crate::wire;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, Scope};

pub(crate) struct RingWorkers<'s, F> {
    service: &'s Service<F>,
    device: &'s Device,
    content_bytes_max: u32,
    kept: usize,
    most: usize,
    queues: Vec<Queue>,
}

#[derive(Default)]
struct Queue {
    idle: AtomicUsize,
    count: AtomicUsize,
}

impl<'s, F: Filesystem> RingWorkers<'s, F> {
    pub(crate) fn new(
        service: &'s Service<F>,
        device: &'s Device,
        content_bytes_max: u32,
        queue_count: u16,
        (kept, most): (usize, usize),
    ) -> RingWorkers<'s, F> {
        RingWorkers {
            service,
            device,
            content_bytes_max,
            kept,
            most,
            queues: (0..queue_count).map(|_| Queue::default()).collect(),
        }
    }

    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        for queue in 0..self.queues.len() as u16 {
            for _ in 0..self.kept {
                self.hire(scope, queue);
            }
        }
    }

    fn hire<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, number: u16) {
        let queue = &self.queues[usize::from(number)];
        if queue.count.fetch_add(1, Ordering::SeqCst) >= self.most {
            queue.count.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let Some(seat) = self.service.seats.reserve() else {
            return;
        };
        queue.idle.fetch_add(1, Ordering::SeqCst);
        let hired = Builder::new()
            .name("fuse-ring".into())
            .spawn_scoped(scope, move || {
                if let Err(error) = self.work(scope, number, seat) {
                    tracing::error!("ring {number}: {error}");
                }
                self.service.seats.leave(seat);
            });
        if let Err(error) = hired {
            tracing::warn!("no thread for another worker: {error}; requests wait for each other");
        }
    }

    fn work<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        number: u16,
        seat: usize,
    ) -> Result<(), Errno> {
        if std::env::var_os("RING_PIN").is_some() {
            let mut set = rustix::thread::CpuSet::new();
            set.set(usize::from(number));
            rustix::thread::sched_setaffinity(None, &set)?;
        }
        let queue = &self.queues[usize::from(number)];
        self.service.seats.seat(seat).sit(self.device);
        let content_bytes = (self.content_bytes_max as usize).max(128 << 10);
        let mut ring = Ring::new()?;
        let mut headers = Headers::new();
        let mut payload = Aligned::new(content_bytes);
        let mut replies = Aligned::new(content_bytes);
        let vectors = [
            libc::iovec {
                iov_base: std::ptr::from_mut(&mut *headers).cast(),
                iov_len: size_of::<Headers>(),
            },
            libc::iovec {
                iov_base: payload.bytes().as_mut_ptr().cast(),
                iov_len: content_bytes,
            },
        ];
        ring.register(self.device, number, &vectors)?;
        loop {
            match ring.wait()? {
                0 => {}
                error if error == -libc::ENOTCONN || error == -libc::ECONNABORTED => return Ok(()),
                error => return Err(rustix::io::Errno::from_raw_os_error(-error).into()),
            }
            if queue.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.hire(scope, number);
            }
            let headers = &mut *headers;
            let (header, _) = wire::take::<wire::InHeader>(&headers.in_out).ok_or(Errno::EIO)?;
            let payload_bytes = headers.payload_bytes as usize;
            let fixed_bytes =
                (header.len as usize).saturating_sub(size_of::<wire::InHeader>() + payload_bytes);
            let fixed = headers.fixed.get(..fixed_bytes).ok_or(Errno::EIO)?;
            let work = if payload_bytes == 0 {
                let incoming = Incoming::parts(header, fixed, &[]);
                let seat = self.service.seats.seat(seat);
                self.service.work(seat, &incoming, payload.bytes())
            } else {
                let request = payload.bytes().get(..payload_bytes).ok_or(Errno::EIO)?;
                let incoming = Incoming::parts(header, fixed, request);
                let seat = self.service.seats.seat(seat);
                let work = self.service.work(seat, &incoming, replies.bytes());
                if let Answer::Data(len_bytes) = work.answer {
                    payload.bytes()[..len_bytes].copy_from_slice(&replies.bytes()[..len_bytes]);
                }
                work
            };
            let (error, len_bytes) = match work.answer {
                Answer::Silent => (0, 0),
                Answer::Error(error) => (-error.code(), 0),
                Answer::Data(len_bytes) => (0, len_bytes),
            };
            headers.put(&wire::OutHeader {
                len: (size_of::<wire::OutHeader>() + len_bytes) as u32,
                error,
                unique: header.unique,
            });
            headers.payload_bytes = len_bytes as u32;
            queue.idle.fetch_add(1, Ordering::SeqCst);
            ring.commit(self.device, number, headers.commit_id)?;
            self.service.finish(work, true);
        }
    }
}
