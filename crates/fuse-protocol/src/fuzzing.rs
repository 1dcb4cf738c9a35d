//! The decoder of requests, as `cargo xtask fuzz` calls it. Only built by it.

use crate::opcode::Opcode;
use crate::request::{Dialect, Incoming, decode, decode_init};
use crate::rings::decode_entry;
use crate::wire;

/// The same bytes as an entry of a ring: its headers, and then all that they use of the payload.
pub fn read_entry(bytes: &[u8]) -> bool {
    let headers_bytes = wire::URING_HEADERS_BYTES.min(bytes.len());
    let (headers, payload) = bytes.split_at(headers_bytes);
    match decode_entry(headers, payload) {
        Ok(incoming) => is_request(&incoming),
        Err(_) => false,
    }
}

/// One request in one piece (`PROTOCOL-1`), in each form that was negotiated; whether it is one.
pub fn read_request(bytes: &[u8]) -> bool {
    let Ok(incoming) = Incoming::whole(bytes) else {
        return false;
    };
    let _ = decode_init(&incoming);
    is_request(&incoming)
}

fn is_request(incoming: &Incoming<'_>) -> bool {
    let Some(opcode) = Opcode::from_number(incoming.header.opcode) else {
        return false;
    };
    let mut is_one = false;
    for setxattr_ext in [false, true] {
        let Ok((request, body)) = incoming.request(opcode) else {
            return false;
        };
        if let Ok(operation) = decode(&request, body, Dialect { setxattr_ext }) {
            let _ = operation.detail();
            is_one = true;
        }
    }
    is_one
}
