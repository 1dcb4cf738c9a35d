//! What a request asks of the thread that serves it, as far as it can be seen before.

use crate::opcode::Opcode;
use crate::request::Incoming;
use crate::wire;

/// A READ or WRITE of so much is large: caller and server copy at the same time, each on a CPU of
/// its own.
const LARGE_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// It is served from memory, sooner than another CPU could be woken for it.
    Small,
    /// The handler works for long, and may have other threads help it.
    Slow,
    /// Much content is copied, and more of it is to be expected.
    Large,
}

impl Weight {
    /// Of a request. FLUSH comes with each `close`, and its handlers wait for nothing as a rule.
    pub(super) fn of(incoming: &Incoming<'_>) -> Weight {
        match Opcode::from_number(incoming.header.opcode) {
            Some(Opcode::Read | Opcode::Write) if content_bytes(incoming) >= LARGE_BYTES => {
                Weight::Large
            }
            Some(
                Opcode::Fsync
                | Opcode::Fsyncdir
                | Opcode::Syncfs
                | Opcode::Fallocate
                | Opcode::CopyFileRange,
            ) => Weight::Slow,
            _ => Weight::Small,
        }
    }
}

/// What a READ or WRITE is about; one that cannot be decoded is about nothing.
fn content_bytes(incoming: &Incoming<'_>) -> usize {
    // The size is at the same place in both.
    const _: () = assert!(
        std::mem::offset_of!(wire::ReadIn, size) == std::mem::offset_of!(wire::WriteIn, size)
    );
    wire::take::<wire::ReadIn>(incoming.fixed()).map_or(0, |(read, _)| read.size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(opcode: Opcode, size: u32) -> Weight {
        let header = wire::InHeader {
            opcode: opcode as u32,
            ..wire::InHeader::default()
        };
        let fixed = wire::WriteIn {
            size,
            ..wire::WriteIn::default()
        };
        Weight::of(&Incoming::apart(header, wire::bytes_of(&fixed), &[]))
    }

    #[test]
    fn what_is_asked_for_says_how_much_work_it_is() {
        for opcode in [Opcode::Read, Opcode::Write] {
            assert_eq!(weight(opcode, 65_535), Weight::Small, "RING-6");
            assert_eq!(weight(opcode, 65_536), Weight::Large, "RING-6");
        }
        assert_eq!(weight(Opcode::Fsync, 0), Weight::Slow, "RING-6");
        for opcode in [Opcode::Lookup, Opcode::Create, Opcode::Flush] {
            assert_eq!(weight(opcode, 1 << 20), Weight::Small, "RING-6");
        }
        let short = Incoming::apart(wire::InHeader::default(), &[], &[]);
        assert_eq!(Weight::of(&short), Weight::Small, "PROTOCOL-1");
    }
}
