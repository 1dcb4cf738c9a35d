//! A session: one mount being served, from INIT to the end.

use crate::buffers::Buffers;
use crate::device::Device;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::flags::InitFlags;
use crate::in_flight::InFlight;
use crate::opcode::Opcode;
use crate::request::{Dialect, Incoming, decode_init};
use crate::rings::RingLimits;
use crate::service::Service;
use crate::transport::{Transport, TransportChoice};
use crate::wire;
use crate::workers::{Traffic, Workers};
use std::io;

/// Limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Workers that are always there, at least 1.
    pub workers: usize,
    /// Workers at most: more come when all are busy, a few of them stay, and the others go.
    pub workers_max: usize,
    /// Most content of a WRITE, and of a READ, bytes: at most 1 MiB unless the system allows more.
    pub content_bytes_max: u32,
    /// Reads ahead and other requests without a waiter that the kernel keeps in flight.
    pub background_max: u16,
    /// How requests come. Default: by `/dev/fuse`.
    pub transport: TransportChoice,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            workers: 4,
            workers_max: 256,
            content_bytes_max: 1 << 20,
            background_max: 64,
            transport: TransportChoice::default(),
        }
    }
}

/// What kernel and session have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version of the protocol that the kernel speaks; the major one is 7.
    pub kernel_minor: u32,
    /// What both sides do.
    pub flags: InitFlags,
}

/// A filesystem that is being served.
pub struct Session<F> {
    service: Service<F>,
    device: Device,
    negotiated: Negotiated,
    transport: Transport,
    options: SessionOptions,
}

impl<F: Filesystem> Session<F> {
    /// Takes INIT, which waits on a new mount, and answers it. Errors: of the device, `EPROTO` from
    /// a kernel older than 5.4 or for anything but INIT, and without io_uring where
    /// [`TransportChoice::IoUring`] asks for it.
    pub fn start(
        mut filesystem: F,
        device: Device,
        options: SessionOptions,
    ) -> io::Result<Session<F>> {
        let (negotiated, transport) = negotiate(&mut filesystem, &device, &options)?;
        tracing::debug!("negotiated {negotiated:?}");
        let dialect = Dialect {
            setxattr_ext: negotiated.flags.contains(InitFlags::SETXATTR_EXT),
        };
        let workers_max = options.workers_max.max(options.workers).max(1);
        // As many as are always there serve on while all the others wait for locks.
        let lock_wait_max = workers_max.saturating_sub(options.workers.max(1));
        let slot_max = match &transport {
            Transport::Device => workers_max,
            Transport::Rings(rings) => rings.slot_max(),
        };
        Ok(Session {
            service: Service::new(filesystem, dialect, InFlight::new(slot_max), lock_wait_max),
            device,
            negotiated,
            transport,
            options,
        })
    }

    /// What was agreed on.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// Serves until the mount has ended; then everything is answered, and the filesystem is
    /// dropped. Errors: of the device, after a handler has panicked, and `Unsupported` if the
    /// kernel does not take what [`TransportChoice::IoUring`] needs.
    pub fn run(self) -> io::Result<()> {
        serve(&self.service, &self.device, self.transport, &self.options)?;
        if self.service.is_broken() {
            return Err(io::Error::other("a handler has panicked; see the log"));
        }
        Ok(())
    }
}

fn serve<F: Filesystem>(
    service: &Service<F>,
    device: &Device,
    transport: Transport,
    options: &SessionOptions,
) -> io::Result<()> {
    match transport {
        Transport::Device => {
            tracing::info!("requests come by /dev/fuse");
            let (content_bytes_max, kept) = (options.content_bytes_max, options.workers.max(1));
            Workers::new(service, device, content_bytes_max, kept, Traffic::All).run()
        }
        Transport::Rings(rings) => rings.serve(service, device),
    }
}

fn ring_limits(options: &SessionOptions) -> RingLimits {
    let workers = options.workers.max(1);
    RingLimits {
        workers,
        workers_max: options.workers_max.max(workers),
        content_bytes_max: options.content_bytes_max,
        falls_back: options.transport != TransportChoice::IoUring,
    }
}

fn negotiate<F: Filesystem>(
    filesystem: &mut F,
    device: &Device,
    options: &SessionOptions,
) -> io::Result<(Negotiated, Transport)> {
    let mut buffers = Buffers::new(options.content_bytes_max);
    loop {
        let len_bytes = match device.read(buffers.request()) {
            Ok(len_bytes) => len_bytes,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let (bytes, _) = buffers.split(len_bytes);
        let init = Incoming::whole(bytes)
            .ok()
            .filter(|incoming| incoming.header.opcode == Opcode::Init as u32);
        let Some((header, init)) =
            init.and_then(|incoming| Some((incoming.header, decode_init(&incoming).ok()?)))
        else {
            return Err(Errno::EPROTO.into());
        };
        if init.major < wire::MAJOR || init.major == wire::MAJOR && init.minor < wire::MINOR_MIN {
            device.write(buffers.reply(header.unique, -Errno::EPROTO.code(), 0))?;
            return Err(io::Error::other(format!(
                "the kernel speaks FUSE {}.{}; 7.{} is needed (Linux 5.4)",
                init.major,
                init.minor,
                wire::MINOR_MIN
            )));
        }
        let (out, agreed) = match init.major {
            // A kernel of a later major version asks again in ours.
            later if later > wire::MAJOR => (version_only(), None),
            _ => {
                let offers = offers(&init);
                let limits = ring_limits(options);
                let transport = Transport::choose(options.transport, offers, limits)?;
                let (out, negotiated) = agree(filesystem, &init, options, transport.flags());
                (out, Some((negotiated, transport)))
            }
        };
        let (_, body) = buffers.split(0);
        let out = wire::bytes_of(&out);
        body[..out.len()].copy_from_slice(out);
        device.write(buffers.reply(header.unique, 0, out.len()))?;
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
    }
}

fn version_only() -> wire::InitOut {
    wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR,
        ..wire::InitOut::default()
    }
}

/// All that the kernel can do.
fn offers(init: &wire::InitIn) -> InitFlags {
    let low = InitFlags::from_bits(u64::from(init.flags));
    if low.contains(InitFlags::INIT_EXT) {
        InitFlags::from_bits(u64::from(init.flags2) << 32 | u64::from(init.flags))
    } else {
        low
    }
}

/// The answer to INIT. What is agreed on for the transport is not the filesystem's business.
fn agree<F: Filesystem>(
    filesystem: &mut F,
    init: &wire::InitIn,
    options: &SessionOptions,
    of_transport: InitFlags,
) -> (wire::InitOut, Negotiated) {
    let offers = offers(init);
    let always = InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::INIT_EXT;
    let of_filesystem = filesystem.init(offers).difference(InitFlags::OVER_IO_URING);
    let flags = (of_filesystem | always | of_transport) & offers;
    let page_bytes = rustix::param::page_size() as u32;
    let content_bytes = options.content_bytes_max.max(page_bytes);
    let out = wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR.min(init.minor),
        max_readahead: init.max_readahead,
        flags: flags.bits() as u32,
        flags2: (flags.bits() >> 32) as u32,
        max_background: options.background_max,
        congestion_threshold: options.background_max / 4 * 3,
        max_write: content_bytes,
        time_gran: 1,
        max_pages: content_bytes.div_ceil(page_bytes).min(u32::from(u16::MAX)) as u16,
        max_stack_depth: u32::from(flags.contains(InitFlags::PASSTHROUGH)),
        ..wire::InitOut::default()
    };
    let negotiated = Negotiated {
        kernel_minor: init.minor,
        flags,
    };
    (out, negotiated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryFilesystem;

    fn init(flags: InitFlags) -> wire::InitIn {
        wire::InitIn {
            major: 7,
            minor: 45,
            max_readahead: 1 << 17,
            flags: flags.bits() as u32,
            flags2: (flags.bits() >> 32) as u32,
            unused: [0; 11],
        }
    }

    #[test]
    fn only_what_is_offered_is_agreed_on() {
        let offers = InitFlags::MAX_PAGES | InitFlags::PARALLEL_DIROPS | InitFlags::INIT_EXT;
        let (out, negotiated) = agree(
            &mut MemoryFilesystem::default(),
            &init(offers | InitFlags::HAS_EXPIRE_ONLY),
            &SessionOptions::default(),
            InitFlags::NONE,
        );
        assert_eq!((out.major, out.minor, out.time_gran), (7, 45, 1));
        assert_eq!(u64::from(out.flags), offers.bits());
        assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
        assert_eq!((out.max_background, out.congestion_threshold), (64, 48));
        assert_eq!(negotiated.flags.intersection(offers), offers);
    }

    #[test]
    fn without_the_extension_there_are_32_flags() {
        let without = InitFlags::MAX_PAGES | InitFlags::DIRECT_IO_ALLOW_MMAP;
        let (out, negotiated) = agree(
            &mut MemoryFilesystem::default(),
            &init(without),
            &SessionOptions::default(),
            InitFlags::OVER_IO_URING,
        );
        assert_eq!(out.flags2, 0);
        assert_eq!(negotiated.flags, InitFlags::MAX_PAGES);
    }

    /// A mount over rings, or `None`, and says why.
    fn over_rings(
        place: &std::path::Path,
        transport: TransportChoice,
    ) -> Option<Session<MemoryFilesystem>> {
        let support = crate::IoUringSupport::detect();
        if support != crate::IoUringSupport::Enabled {
            let is_wanted = TransportChoice::from_environment() == Ok(TransportChoice::IoUring);
            assert!(!is_wanted, "LARDER_TRANSPORT asks for it: {support:?}");
            println!("not run over io_uring: {}", support.remedy());
            return None;
        }
        let place = place.canonicalize().unwrap();
        let device = crate::mount(&place, &crate::MountSettings::default()).unwrap();
        let options = SessionOptions {
            transport,
            ..SessionOptions::default()
        };
        let session = Session::start(MemoryFilesystem::default(), device, options).unwrap();
        let agreed = session.negotiated().flags;
        assert!(agreed.contains(InitFlags::OVER_IO_URING));
        Some(session)
    }

    fn is_gone(error: &io::Error) -> bool {
        let errors = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].map(Some);
        errors.contains(&error.raw_os_error())
    }

    fn unmount(place: &std::path::Path) {
        let detached = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
        let by_helper = || {
            let mut helper = std::process::Command::new("fusermount3");
            helper.arg("-uz").arg(place).status()
        };
        assert!(detached.is_ok() || by_helper().unwrap().success());
    }

    fn without_a_queue(mut session: Session<MemoryFilesystem>) -> Session<MemoryFilesystem> {
        match &mut session.transport {
            Transport::Rings(rings) => rings.empty_queue(0),
            Transport::Device => panic!("it was agreed on"),
        }
        session
    }

    #[test]
    fn rings_that_are_not_complete_give_way_to_the_device() {
        let directory = tempfile::tempdir().unwrap();
        let Some(session) = over_rings(directory.path(), TransportChoice::Auto) else {
            return;
        };
        let Session {
            service,
            device,
            transport,
            options,
            ..
        } = without_a_queue(session);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&service, &device, transport, &options));
            let path = directory.path().join("file");
            std::fs::write(&path, vec![7; 200_000]).unwrap();
            assert_eq!(std::fs::read(&path).unwrap().len(), 200_000, "RING-1");
            let free_count = std::iter::from_fn(|| service.in_flight.reserve()).count();
            unmount(directory.path());
            server.join().unwrap().unwrap();
            assert!(free_count < options.workers_max, "RING-1: {free_count}");
        });
    }

    #[test]
    fn rings_that_must_be_and_are_not_complete_end_the_session() {
        let directory = tempfile::tempdir().unwrap();
        let Some(session) = over_rings(directory.path(), TransportChoice::IoUring) else {
            return;
        };
        let error = without_a_queue(session).run().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "RING-1");
        let error = std::fs::metadata(directory.path().join("file")).unwrap_err();
        assert!(is_gone(&error), "RING-1: {error}");
        unmount(directory.path());
    }

    #[test]
    fn a_session_that_has_lost_a_queue_ends_with_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let Some(session) = over_rings(directory.path(), TransportChoice::IoUring) else {
            return;
        };
        let stop = match &session.transport {
            Transport::Rings(rings) => rings.stop(),
            Transport::Device => panic!("it was agreed on"),
        };
        let server = std::thread::spawn(move || session.run());
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        stop.fail(Errno::EFAULT);
        let error = server.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "RING-4, RING-5");
        // The last descriptor is gone, or about to go, and with it the connection.
        let error = std::fs::metadata(directory.path().join("other")).unwrap_err();
        assert!(is_gone(&error), "RING-4: {error}");
        unmount(directory.path());
    }
}
