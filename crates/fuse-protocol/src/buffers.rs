//! The memory of one worker: for one request, and for its reply.
//!
//! ```text
//!             ┌ a multiple of 4096           ┌ a multiple of 4096
//!   requests: │     40  header · 40  WRITE ──┤ content …
//!   replies:  │                  16  header ─┤ body …
//! ```

use crate::wire;

/// What content is aligned to, bytes.
const ALIGN_BYTES: usize = 4096;
/// Where a request begins: the content of a WRITE is then aligned.
const REQUEST_AT: usize = ALIGN_BYTES - size_of::<wire::InHeader>() - size_of::<wire::WriteIn>();
/// Where a reply begins: its body is then aligned.
const REPLY_AT: usize = ALIGN_BYTES - size_of::<wire::OutHeader>();
/// The least that the kernel takes for the content of requests: extended attributes have 64 KiB.
pub(crate) const CONTENT_BYTES_MIN: usize = 128 << 10;

/// Memory that is made once and kept; pages that no request has used yet cost nothing.
#[derive(Debug)]
pub(crate) struct Buffers {
    requests: Aligned,
    replies: Aligned,
}

impl Buffers {
    /// For requests and replies with at most `content_bytes_max` of content.
    pub(crate) fn new(content_bytes_max: u32) -> Buffers {
        let content_bytes = (content_bytes_max as usize).max(CONTENT_BYTES_MIN);
        Buffers {
            requests: Aligned::new(ALIGN_BYTES + content_bytes),
            replies: Aligned::new(ALIGN_BYTES + content_bytes),
        }
    }

    /// Where a request is read to.
    pub(crate) fn request(&mut self) -> &mut [u8] {
        &mut self.requests.bytes()[REQUEST_AT..]
    }

    /// The request of `len_bytes` that was read, and the memory for the body of its reply.
    pub(crate) fn split(&mut self, len_bytes: usize) -> (&[u8], &mut [u8]) {
        let request = &self.requests.bytes()[REQUEST_AT..][..len_bytes];
        let body = &mut self.replies.bytes()[ALIGN_BYTES..];
        (request, body)
    }

    /// The whole reply to `unique`: with `error` (0 or negative) and `len_bytes` of the body.
    pub(crate) fn reply(&mut self, unique: u64, error: i32, len_bytes: usize) -> &[u8] {
        let bytes =
            &mut self.replies.bytes()[REPLY_AT..][..size_of::<wire::OutHeader>() + len_bytes];
        let header = wire::OutHeader {
            len: bytes.len() as u32,
            error,
            unique,
        };
        bytes[..size_of::<wire::OutHeader>()].copy_from_slice(wire::bytes_of(&header));
        bytes
    }
}

/// Memory that begins at a multiple of 4096.
#[derive(Debug)]
pub(crate) struct Aligned {
    raw: Vec<u8>,
    skip: usize,
}

impl Aligned {
    pub(crate) fn new(len_bytes: usize) -> Aligned {
        let raw = vec![0; len_bytes + ALIGN_BYTES];
        let skip = raw.as_ptr().align_offset(ALIGN_BYTES);
        Aligned { raw, skip }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let end = self.raw.len() - ALIGN_BYTES + self.skip;
        &mut self.raw[self.skip..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_aligned_both_ways() {
        let mut buffers = Buffers::new(1 << 20);
        let header = size_of::<wire::InHeader>() + size_of::<wire::WriteIn>();
        let request = buffers.request();
        assert_eq!(request.len(), header + (1 << 20));
        assert_eq!(request.as_ptr().addr() % ALIGN_BYTES, REQUEST_AT);
        assert_eq!(
            request[header..].as_ptr().addr() % ALIGN_BYTES,
            0,
            "PROTOCOL-2"
        );
        let (request, body) = buffers.split(100);
        assert_eq!((request.len(), body.len()), (100, 1 << 20));
        assert_eq!(body.as_ptr().addr() % ALIGN_BYTES, 0, "PROTOCOL-2");
        body[..3].copy_from_slice(b"abc");
        let reply = buffers.reply(7, 0, 3);
        let (header, rest) = wire::take::<wire::OutHeader>(reply).unwrap();
        assert_eq!((header.len, header.error, header.unique), (19, 0, 7));
        assert_eq!(rest, b"abc");
        let reply = buffers.reply(8, -libc::EIO, 0);
        assert_eq!(reply.len(), 16);
    }
}
