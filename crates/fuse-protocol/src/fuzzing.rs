//! The decoder of requests, as `cargo xtask fuzz` calls it. Only built by it.

use crate::opcode::Opcode;
use crate::request::{Dialect, Incoming, decode, decode_init};

/// One request in one piece (`PROTOCOL-1`), in each form that was negotiated; whether it is one.
pub fn read_request(bytes: &[u8]) -> bool {
    let Ok(incoming) = Incoming::whole(bytes) else {
        return false;
    };
    let _ = decode_init(&incoming);
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
