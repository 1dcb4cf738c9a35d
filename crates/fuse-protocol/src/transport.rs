//! How requests come: chosen once, before INIT is answered.

use crate::errno::Errno;
use crate::flags::InitFlags;
use crate::rings::{RingLimits, Rings};
use std::io;

const PARAMETER_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How requests shall come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// By io_uring if the kernel offers it and rings can be made, otherwise by `/dev/fuse`.
    Auto,
    /// By `/dev/fuse`.
    #[default]
    Device,
    /// By io_uring, or not at all.
    IoUring,
}

/// Whether the kernel hands over requests by io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUringSupport {
    /// It cannot: it is older than 6.14, or built without.
    Missing,
    /// It can, and root has not allowed it.
    Disabled,
    /// New mounts may have it.
    Enabled,
}

/// What people call them.
const NAMES: [(&str, TransportChoice); 3] = [
    ("auto", TransportChoice::Auto),
    ("device", TransportChoice::Device),
    ("io_uring", TransportChoice::IoUring),
];
/// The choice where nobody has made one: for suites that run over each.
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

    /// What the variable `LARDER_TRANSPORT` says, or else the default.
    pub fn from_environment() -> TransportChoice {
        let Ok(name) = std::env::var(VARIABLE) else {
            return TransportChoice::default();
        };
        TransportChoice::from_name(&name).unwrap_or_else(|| {
            tracing::warn!("{VARIABLE}={name} says nothing; write auto, device or io_uring");
            TransportChoice::default()
        })
    }
}

impl IoUringSupport {
    /// Of the running kernel.
    pub fn detect() -> IoUringSupport {
        match std::fs::read_to_string(PARAMETER_PATH) {
            Ok(text) => IoUringSupport::from_parameter(&text),
            Err(_) => IoUringSupport::Missing,
        }
    }

    fn from_parameter(text: &str) -> IoUringSupport {
        match text.trim() {
            "Y" | "1" => IoUringSupport::Enabled,
            _ => IoUringSupport::Disabled,
        }
    }

    /// What to do to have it; empty where nothing is to be done.
    pub fn remedy(self) -> &'static str {
        match self {
            IoUringSupport::Missing => "use Linux 6.14 or later, built with CONFIG_FUSE_IO_URING",
            IoUringSupport::Disabled => {
                "as root: 'echo 1 > /sys/module/fuse/parameters/enable_uring', or \
                 'fuse.enable_uring=1' on the kernel's command line"
            }
            IoUringSupport::Enabled => "",
        }
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
        let prepared = match offers.contains(InitFlags::OVER_IO_URING) {
            true => Rings::prepare(limits).map_err(cannot_make),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the kernel does not offer FUSE over io_uring; {}",
                    IoUringSupport::detect().remedy()
                ),
            )),
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

fn cannot_make(error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(
        error.kind(),
        format!(
            "no rings can be made: {error}; see kernel.io_uring_disabled (sysctl) and the limit of \
             open files"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_of_the_kernel_is_read() {
        for (text, support) in [
            ("Y\n", IoUringSupport::Enabled),
            ("1", IoUringSupport::Enabled),
            ("N\n", IoUringSupport::Disabled),
        ] {
            assert_eq!(IoUringSupport::from_parameter(text), support);
        }
        assert!(IoUringSupport::Disabled.remedy().contains("enable_uring"));
    }

    #[test]
    fn every_choice_has_a_name() {
        for (name, choice) in NAMES {
            assert_eq!(TransportChoice::from_name(name), Some(choice));
            assert_eq!(choice.name(), name);
        }
        assert_eq!(TransportChoice::from_name("uring"), None);
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
                assert_eq!(auto.flags(), offered);
            }
            Err(error) => println!("not run: {error}"),
        }
    }
}
