//! One entry of a queue: the memory in which requests come and replies go.
//!
//! ```text
//!   headers:  0  header of the request, then of the reply
//!           128  fixed structure of the request
//!           256  its number, and how much of the payload is used
//!           288  for the kernel: where headers and payload are
//!   payload: what has no fixed length, of the request, then of the reply; at a multiple of 4096
//! ```
//!
//! The reply to a request that uses the payload is made elsewhere, and copied: it is short.

use super::memory::Memory;
use crate::buffers::Aligned;
use crate::errno::Errno;
use crate::request::{Incoming, Malformed};
use crate::wire;
use std::ptr::NonNull;

/// Where the payload begins.
const PAYLOAD_AT: usize = 4096;
/// Where it is told where both are: a command that the kernel puts off reads it later.
const PARTS_AT: usize = wire::URING_HEADERS_BYTES;
const _: () = assert!(PARTS_AT + size_of::<[libc::iovec; 2]>() <= PAYLOAD_AT);
const _: () = assert!(PARTS_AT.is_multiple_of(align_of::<libc::iovec>()));

/// See the module.
#[derive(Debug)]
pub(super) struct Entry {
    memory: Memory,
}

/// A request that has come.
pub(super) struct Arrival<'e> {
    pub(super) incoming: Incoming<'e>,
    /// Where its reply goes.
    pub(super) reply: &'e mut [u8],
}

impl Entry {
    /// For requests and replies with at most so much content.
    pub(super) fn new(content_bytes: usize) -> Result<Entry, Errno> {
        let memory = Memory::new(PAYLOAD_AT + content_bytes)?;
        Ok(Entry { memory })
    }

    /// What the kernel is told of it: the headers and the payload. All three stay where they are
    /// for as long as the entry is there.
    pub(super) fn parts(&mut self) -> NonNull<[libc::iovec; 2]> {
        let (headers, payload) = self.split();
        let parts = [headers, payload].map(|part| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        });
        let place = NonNull::from(&mut self.memory.bytes()[PARTS_AT..]).cast();
        // SAFETY: there is room for it before the payload, and it is aligned: see above, and the
        // memory begins with a page.
        unsafe { place.write(parts) };
        place
    }

    fn split(&mut self) -> (&mut [u8], &mut [u8]) {
        let (headers, payload) = self.memory.bytes().split_at_mut(PAYLOAD_AT);
        (&mut headers[..wire::URING_HEADERS_BYTES], payload)
    }

    /// The request that is there. `replies` is for the reply, if the request uses the payload.
    pub(super) fn arrival<'e>(
        &'e mut self,
        replies: &'e mut Aligned,
    ) -> Result<Arrival<'e>, Malformed> {
        let (headers, payload) = self.split();
        match used(headers)?.payload_sz as usize {
            0 => Ok(Arrival {
                incoming: decode_entry(headers, &[])?,
                reply: payload,
            }),
            used_bytes => Ok(Arrival {
                incoming: decode_entry(headers, payload.get(..used_bytes).ok_or(Malformed)?)?,
                reply: replies.bytes(),
            }),
        }
    }

    /// Writes the reply: `error` (0 or negative), and `len_bytes` of the arrival's memory. Returns
    /// the name under which the kernel knows it.
    pub(super) fn put_reply(
        &mut self,
        replies: &mut Aligned,
        error: i32,
        len_bytes: usize,
    ) -> Result<u64, Malformed> {
        let (headers, payload) = self.split();
        let entry = used(headers)?;
        if entry.payload_sz > 0 {
            payload[..len_bytes].copy_from_slice(&replies.bytes()[..len_bytes]);
        }
        encode_reply(headers, &entry, error, len_bytes);
        Ok(entry.commit_id)
    }
}

/// What the headers say of the entry itself.
fn used(headers: &[u8]) -> Result<wire::UringEntInOut, Malformed> {
    let entry = headers.get(wire::URING_ENT_AT..).ok_or(Malformed)?;
    Ok(wire::take(entry).ok_or(Malformed)?.0)
}

/// The request in `headers`, whose fixed structure is there, and `payload`, all that it uses of it
/// (`PROTOCOL-1`).
pub(crate) fn decode_entry<'e>(
    headers: &'e [u8],
    payload: &'e [u8],
) -> Result<Incoming<'e>, Malformed> {
    let header = headers.get(wire::URING_IN_OUT_AT..).ok_or(Malformed)?;
    let (header, _) = wire::take::<wire::InHeader>(header).ok_or(Malformed)?;
    let apart_bytes = size_of::<wire::InHeader>() + payload.len();
    let fixed_bytes = (header.len as usize)
        .checked_sub(apart_bytes)
        .ok_or(Malformed)?;
    let fixed = headers.get(wire::URING_OP_IN_AT..wire::URING_ENT_AT);
    let fixed = fixed.and_then(|fixed| fixed.get(..fixed_bytes));
    Ok(Incoming::apart(header, fixed.ok_or(Malformed)?, payload))
}

/// Writes the headers of the reply to the request in `headers`.
fn encode_reply(headers: &mut [u8], entry: &wire::UringEntInOut, error: i32, len_bytes: usize) {
    let request = wire::take::<wire::InHeader>(&headers[wire::URING_IN_OUT_AT..]);
    let header = wire::OutHeader {
        len: (size_of::<wire::OutHeader>() + len_bytes) as u32,
        error,
        unique: request.map_or(0, |(request, _)| request.unique),
    };
    let entry = wire::UringEntInOut {
        payload_sz: len_bytes as u32,
        ..*entry
    };
    let mut put = |at: usize, bytes: &[u8]| headers[at..][..bytes.len()].copy_from_slice(bytes);
    put(wire::URING_IN_OUT_AT, wire::bytes_of(&header));
    put(wire::URING_ENT_AT, wire::bytes_of(&entry));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::Opcode;
    use crate::request::{Dialect, Operation, decode};

    fn headers(opcode: Opcode, fixed: &[u8], payload_bytes: usize) -> Vec<u8> {
        let mut headers = vec![0xff; wire::URING_HEADERS_BYTES];
        let header = wire::InHeader {
            len: (size_of::<wire::InHeader>() + fixed.len() + payload_bytes) as u32,
            opcode: opcode as u32,
            unique: 42,
            nodeid: 7,
            ..wire::InHeader::default()
        };
        let entry = wire::UringEntInOut {
            commit_id: 43,
            payload_sz: payload_bytes as u32,
            ..wire::UringEntInOut::default()
        };
        headers[..40].copy_from_slice(wire::bytes_of(&header));
        headers[128..][..fixed.len()].copy_from_slice(fixed);
        headers[256..].copy_from_slice(wire::bytes_of(&entry));
        headers
    }

    #[test]
    fn requests_are_taken_from_both_parts() {
        let fixed = wire::WriteIn {
            fh: 5,
            size: 3,
            ..wire::WriteIn::default()
        };
        let headers = headers(Opcode::Write, wire::bytes_of(&fixed), 3);
        let incoming = decode_entry(&headers, b"abc").unwrap();
        let (request, body) = incoming.request(Opcode::Write).unwrap();
        assert_eq!((request.unique, request.node.0), (42, 7));
        match decode(&request, body, Dialect::default()).unwrap() {
            Operation::Write(write) => assert_eq!((write.handle.0, write.data), (5, &b"abc"[..])),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_without_a_fixed_structure_is_all_payload() {
        let headers = headers(Opcode::Lookup, &[], 4);
        let incoming = decode_entry(&headers, b"abc\0").unwrap();
        let (request, body) = incoming.request(Opcode::Lookup).unwrap();
        let operation = decode(&request, body, Dialect::default()).unwrap();
        assert_eq!(operation, Operation::Lookup { name: b"abc" });
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let headers = headers(Opcode::Lookup, &[], 4);
        let decoded = |headers: &[u8], payload: &[u8]| decode_entry(headers, payload).is_ok();
        assert!(decoded(&headers, b"abc\0"));
        assert!(
            !decoded(&headers, b"abcde\0"),
            "PROTOCOL-1: more than it says"
        );
        let mut long = headers.clone();
        long[..4].copy_from_slice(&(40_u32 + 129 + 4).to_ne_bytes());
        assert!(
            !decoded(&long, b"abc\0"),
            "PROTOCOL-1: more than there is room"
        );
        for len in 0..wire::URING_HEADERS_BYTES {
            assert!(used(&headers[..len]).is_err(), "PROTOCOL-1");
        }
        assert!(!decoded(&headers[..39], b""), "PROTOCOL-1");
        let mut entry = Entry::new(4096).unwrap();
        let mut replies = Aligned::new(4096);
        let mut beyond = headers.clone();
        beyond[272..276].copy_from_slice(&4097_u32.to_ne_bytes());
        entry.split().0.copy_from_slice(&beyond);
        assert!(entry.arrival(&mut replies).is_err(), "PROTOCOL-1");
    }

    #[test]
    fn content_is_aligned_both_ways_and_a_reply_keeps_the_numbers_of_its_request() {
        let mut entry = Entry::new(1 << 20).unwrap();
        let mut replies = Aligned::new(8192);
        // SAFETY: it was just written.
        let [told, payload] = unsafe { entry.parts().read() };
        assert_eq!((told.iov_len, payload.iov_len), (288, 1 << 20));
        let own = entry.memory.bytes().as_ptr_range();
        let at = entry.parts().as_ptr().cast_const().cast::<u8>();
        assert!(own.contains(&at), "it is there as long as the entry is");
        for (put, room_bytes) in [
            (headers(Opcode::Readlink, &[], 0), 1 << 20),
            (headers(Opcode::Lookup, &[], 4), 8192),
        ] {
            entry.split().0.copy_from_slice(&put);
            let arrival = entry.arrival(&mut replies).unwrap();
            assert_eq!(arrival.reply.len(), room_bytes);
            assert_eq!(arrival.reply.as_ptr().addr() % 4096, 0, "PROTOCOL-2");
            arrival.reply[..3].copy_from_slice(b"abc");
            assert_eq!(entry.put_reply(&mut replies, 0, 3), Ok(43));
            let (told, payload) = entry.split();
            assert_eq!(payload.as_ptr().addr() % 4096, 0, "PROTOCOL-2");
            assert_eq!(payload[..3], *b"abc");
            let (header, _) = wire::take::<wire::OutHeader>(told).unwrap();
            assert_eq!((header.len, header.error, header.unique), (19, 0, 42));
            assert_eq!(used(told).unwrap().payload_sz, 3);
        }
        entry
            .split()
            .0
            .copy_from_slice(&headers(Opcode::Lookup, &[], 4));
        entry.put_reply(&mut replies, -libc::EIO, 0).unwrap();
        let (header, _) = wire::take::<wire::OutHeader>(entry.split().0).unwrap();
        assert_eq!((header.len, header.error), (16, -libc::EIO));
    }
}
