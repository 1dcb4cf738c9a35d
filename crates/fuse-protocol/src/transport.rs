//! How requests come: chosen once, before INIT is answered.

use crate::errno::Errno;
use crate::flags::InitFlags;
use crate::rings::{RingLimits, Rings};
use crate::support::{IoUringSupport, kernel_is_faulty};
use std::io;

/// How requests shall come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// By io_uring if the kernel offers it, rings can be made, and it is not
    /// [`IoUringSupport::Faulty`]; otherwise by `/dev/fuse`.
    Auto,
    /// By `/dev/fuse`.
    #[default]
    Device,
    /// By io_uring, or not at all.
    IoUring,
}

/// What people call them.
const NAMES: [(&str, TransportChoice); 3] = [
    ("auto", TransportChoice::Auto),
    ("device", TransportChoice::Device),
    ("io_uring", TransportChoice::IoUring),
];
/// See [`TransportChoice::from_environment`].
const VARIABLE: &str = "LARDER_TRANSPORT";

impl TransportChoice {
    /// By its name: `auto`, `device` or `io_uring`.
    pub fn from_name(name: &str) -> Option<TransportChoice> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, choice)| *choice)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(_, choice)| *choice == self);
        found.map_or("", |(name, _)| name)
    }

    /// What the variable `LARDER_TRANSPORT` says, for programs that obey it: so suites run over
    /// each. Without it the default. Errors: it says nothing that is known.
    pub fn from_environment() -> Result<TransportChoice, String> {
        match std::env::var_os(VARIABLE) {
            None => Ok(TransportChoice::default()),
            Some(value) => TransportChoice::from_variable(&value.to_string_lossy()),
        }
    }

    fn from_variable(value: &str) -> Result<TransportChoice, String> {
        TransportChoice::from_name(value).ok_or_else(|| {
            format!("{VARIABLE}={value} says nothing; write auto, device or io_uring")
        })
    }
}

/// How the requests of a session come.
#[derive(Debug)]
pub(crate) enum Transport {
    Device,
    Rings(Box<Rings>),
}

impl Transport {
    /// By what the kernel `offers`. An error: io_uring was asked for and cannot be had.
    pub(crate) fn choose(
        choice: TransportChoice,
        offers: InitFlags,
        limits: RingLimits,
    ) -> io::Result<Transport> {
        if choice == TransportChoice::Device {
            return Ok(Transport::Device);
        }
        let is_offered = offers.contains(InitFlags::OVER_IO_URING);
        let prepared = match (is_offered, kernel_is_faulty()) {
            (false, _) => Err(unsupported(
                "the kernel does not offer FUSE over io_uring",
                IoUringSupport::detect(),
            )),
            (true, true) if choice == TransportChoice::Auto => Err(unsupported(
                "the kernel has a fault",
                IoUringSupport::Faulty,
            )),
            (true, is_faulty) => {
                if is_faulty {
                    let remedy = IoUringSupport::Faulty.remedy();
                    tracing::warn!("an abort of this mount may harm the kernel; {remedy}");
                }
                Rings::prepare(limits).map_err(cannot_make)
            }
        };
        match prepared {
            Ok(rings) => Ok(Transport::Rings(Box::new(rings))),
            Err(error) if choice == TransportChoice::IoUring => Err(error),
            Err(error) => {
                tracing::info!("requests do not come by io_uring: {error}");
                Ok(Transport::Device)
            }
        }
    }

    /// What is agreed on in INIT for it.
    pub(crate) fn flags(&self) -> InitFlags {
        match self {
            Transport::Device => InitFlags::NONE,
            Transport::Rings(_) => InitFlags::OVER_IO_URING,
        }
    }
}

fn unsupported(found: &str, support: IoUringSupport) -> io::Error {
    let remedy = support.remedy();
    io::Error::new(io::ErrorKind::Unsupported, format!("{found}; {remedy}"))
}

fn cannot_make(error: Errno) -> io::Error {
    let found = format!("no rings can be made: {}", io::Error::from(error));
    unsupported(&found, IoUringSupport::Refused(error))
}

/// For tests: this process is permitted no io_uring.
#[cfg(test)]
pub(crate) fn is_refused(support: IoUringSupport) -> bool {
    let is_wanted = TransportChoice::from_environment() == Ok(TransportChoice::IoUring);
    let is_permitted = match support {
        IoUringSupport::Refused(error) => ![Errno::EPERM, Errno::ENOSYS].contains(&error),
        _ => true,
    };
    assert!(is_permitted || !is_wanted, "LARDER_TRANSPORT asks for it");
    !is_permitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_has_a_name() {
        for (name, choice) in NAMES {
            assert_eq!(TransportChoice::from_name(name), Some(choice));
            assert_eq!(choice.name(), name);
        }
        assert_eq!(TransportChoice::from_name("uring"), None);
        let device = TransportChoice::from_variable("device");
        assert_eq!(device, Ok(TransportChoice::default()));
        assert!(TransportChoice::from_variable("uring").is_err());
    }

    #[test]
    fn rings_are_chosen_where_they_are_offered_and_refused_where_they_must_be() {
        let limits = RingLimits {
            workers: 1,
            workers_max: 8,
            content_bytes_max: 4096,
            falls_back: true,
        };
        let choose = |choice, offers| Transport::choose(choice, offers, limits);
        let offered = InitFlags::OVER_IO_URING;
        for offers in [offered, InitFlags::NONE] {
            let device = choose(TransportChoice::Device, offers).unwrap();
            assert!(matches!(device, Transport::Device));
            assert_eq!(device.flags(), InitFlags::NONE);
        }
        let auto = choose(TransportChoice::Auto, InitFlags::NONE).unwrap();
        assert!(matches!(auto, Transport::Device));
        let refused = choose(TransportChoice::IoUring, InitFlags::NONE).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        match choose(TransportChoice::IoUring, offered) {
            Ok(rings) => {
                assert_eq!(rings.flags(), offered);
                let auto = choose(TransportChoice::Auto, offered).unwrap();
                assert_eq!(auto.flags() == offered, !kernel_is_faulty());
            }
            Err(error) => {
                let support = IoUringSupport::detect();
                assert!(is_refused(support), "{error}, but {support:?}");
                println!("not run: {error}");
            }
        }
    }
}
