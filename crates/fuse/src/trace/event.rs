//! Messages to bytes and back. Pure.
//!
//! ```text
//!  0  u16  length of the whole message      all little-endian
//!  2  u8   kind: 1 greeting, 2 event, 3 lost
//!  3  u8   0
//!  4  u32  process id of the server
//!  8       greeting: the mountpoint
//!          lost:     u64 count
//!          event:    the numbers of TraceEvent in their order, then two paths and a
//!           name, each with a u16 length
//! ```

/// Most bytes of a message: `PIPE_BUF` of Linux (`TRACE-2`).
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;
/// Most bytes of a path in a message; of a longer one the end is kept.
const PATH_BYTES_MAX: usize = 1300;

/// The numbers of an event with what stands before them, and its three lengths.
const EVENT_FIXED_BYTES: usize = 8 + 7 * 8 + 6;
const _: () = assert!(EVENT_FIXED_BYTES + 3 * PATH_BYTES_MAX <= MESSAGE_BYTES_MAX); // TRACE-2

const KIND_GREETING: u8 = 1;
const KIND_EVENT: u8 = 2;
const KIND_LOST: u8 = 3;

/// An operation that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceEvent {
    /// When it began, nanoseconds since 1970.
    pub at_ns: i64,
    /// From request to reply, nanoseconds.
    pub duration_ns: u64,
    /// The kernel's number of the operation.
    pub operation: u32,
    /// Error number; 0: none.
    pub error: u32,
    /// The node that it is about, as `stat` shows it; for names that of the directory.
    pub node: u64,
    /// Where in the file, bytes.
    pub offset: u64,
    /// How much: asked for, or for reads what was read, bytes.
    pub size: u64,
    /// The caller's user; `u32::MAX` where the kernel does not tell.
    pub uid: u32,
    /// The caller's thread.
    pub pid: u32,
    /// The path in the mount, as far as the kernel has told; empty: unknown.
    pub path: Vec<u8>,
    /// The second path, of renames and links; else empty.
    pub other_path: Vec<u8>,
    /// The extended attribute that it is about; else empty.
    pub attribute: Vec<u8>,
}

/// What comes through the pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceMessage {
    /// A mount has heard the tracer; events follow.
    Greeting {
        /// Process id of its server.
        server_pid: u32,
        /// Where it is mounted.
        mountpoint: Vec<u8>,
    },
    /// An operation.
    Event(TraceEvent),
    /// So many events found no room in the pipe.
    Lost {
        /// Process id of the server.
        server_pid: u32,
        /// How many since it said so last.
        count: u64,
    },
}

impl TraceMessage {
    /// The bytes, at most [`MESSAGE_BYTES_MAX`].
    pub(crate) fn encode(&self, server_pid: u32) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0];
        out.extend(server_pid.to_le_bytes());
        out[2] = match self {
            TraceMessage::Greeting { mountpoint, .. } => {
                out.extend(tail(mountpoint));
                KIND_GREETING
            }
            TraceMessage::Lost { count, .. } => {
                out.extend(count.to_le_bytes());
                KIND_LOST
            }
            TraceMessage::Event(event) => {
                encode_event(event, &mut out);
                KIND_EVENT
            }
        };
        let length = u16::try_from(out.len()).unwrap_or(u16::MAX);
        out[..2].copy_from_slice(&length.to_le_bytes());
        debug_assert!(out.len() <= MESSAGE_BYTES_MAX, "TRACE-2");
        out
    }

    /// The first message in `bytes` and its length; `None`: it is not all there. `Err`: no such
    /// thing.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(TraceMessage, usize)>, Malformed> {
        let Some(length) = bytes.first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        if !(8..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(Malformed);
        }
        let Some(message) = bytes.get(..length) else {
            return Ok(None);
        };
        let kind = message[2];
        let mut rest = Reader(&message[4..]);
        let server_pid = rest.u32()?;
        let message = match kind {
            KIND_GREETING => TraceMessage::Greeting {
                server_pid,
                mountpoint: rest.0.to_vec(),
            },
            KIND_LOST => TraceMessage::Lost {
                server_pid,
                count: rest.u64()?,
            },
            KIND_EVENT => TraceMessage::Event(decode_event(&mut rest)?),
            _ => return Err(Malformed),
        };
        Ok(Some((message, length)))
    }
}

/// For `cargo xtask fuzz`: the length of the first message, which encodes to itself.
#[cfg(fuzzing)]
pub(crate) fn read_message(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    Ok(TraceMessage::decode(bytes)?.map(|(_, length)| length))
}

/// What no server writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

fn encode_event(event: &TraceEvent, out: &mut Vec<u8>) {
    out.extend(event.at_ns.to_le_bytes());
    out.extend(event.duration_ns.to_le_bytes());
    out.extend(event.operation.to_le_bytes());
    out.extend(event.error.to_le_bytes());
    out.extend(event.node.to_le_bytes());
    out.extend(event.offset.to_le_bytes());
    out.extend(event.size.to_le_bytes());
    out.extend(event.uid.to_le_bytes());
    out.extend(event.pid.to_le_bytes());
    for path in [&event.path, &event.other_path, &event.attribute] {
        let path = tail(path);
        out.extend((path.len() as u16).to_le_bytes());
        out.extend(path);
    }
}

fn decode_event(rest: &mut Reader<'_>) -> Result<TraceEvent, Malformed> {
    Ok(TraceEvent {
        at_ns: rest.u64()? as i64,
        duration_ns: rest.u64()?,
        operation: rest.u32()?,
        error: rest.u32()?,
        node: rest.u64()?,
        offset: rest.u64()?,
        size: rest.u64()?,
        uid: rest.u32()?,
        pid: rest.u32()?,
        path: rest.path()?,
        other_path: rest.path()?,
        attribute: rest.path()?,
    })
}

fn tail(path: &[u8]) -> &[u8] {
    &path[path.len().saturating_sub(PATH_BYTES_MAX)..]
}

/// Takes from the front; never beyond the end (`TRACE-3`).
struct Reader<'r>(&'r [u8]);

impl<'r> Reader<'r> {
    fn take(&mut self, count: usize) -> Result<&'r [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn path(&mut self) -> Result<Vec<u8>, Malformed> {
        let length = self.u16()?;
        Ok(self.take(length.into())?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = TraceEvent> {
        let path = || proptest::collection::vec(any::<u8>(), 0..300);
        (any::<[u64; 5]>(), any::<[u32; 4]>(), path(), path(), path()).prop_map(
            |(wide, narrow, path, other_path, attribute)| TraceEvent {
                at_ns: wide[0] as i64,
                duration_ns: wide[1],
                operation: narrow[0],
                error: narrow[1],
                node: wide[2],
                offset: wide[3],
                size: wide[4],
                uid: narrow[2],
                pid: narrow[3],
                path,
                other_path,
                attribute,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            events in proptest::collection::vec(event(), 1..5),
            pid: u32,
            count: u64,
        ) {
            let mut sent = vec![TraceMessage::Greeting {
                server_pid: pid,
                mountpoint: b"/mnt".to_vec(),
            }];
            sent.extend(events.into_iter().map(TraceMessage::Event));
            sent.push(TraceMessage::Lost { server_pid: pid, count });
            let bytes: Vec<u8> = sent.iter().flat_map(|message| message.encode(pid)).collect();
            let mut at = 0;
            for message in &sent {
                let (read, length) = TraceMessage::decode(&bytes[at..]).unwrap().unwrap();
                prop_assert_eq!(&read, message);
                for cut in [at, at + 1, at + length - 1] {
                    prop_assert_eq!(TraceMessage::decode(&bytes[at..cut]), Ok(None));
                }
                at += length;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn odd_bytes_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0_u8..5,
        ) {
            let mut bytes = bytes;
            if let Some(at) = bytes.get_mut(2) {
                *at = kind;
            }
            for length in [bytes.len() as u16, 8, 20, 70] {
                if let Some(at) = bytes.get_mut(..2) {
                    at.copy_from_slice(&length.to_le_bytes());
                }
                if let Ok(Some((_, taken))) = TraceMessage::decode(&bytes) {
                    prop_assert!(taken <= bytes.len(), "TRACE-3");
                }
            }
        }
    }

    #[test]
    fn long_paths_keep_their_end_and_fit() {
        let long: Vec<u8> = (0..4095_u32).map(|at| b'a' + (at % 26) as u8).collect();
        let event = TraceEvent {
            path: long.clone(),
            other_path: long.clone(),
            attribute: vec![b'x'; 255],
            ..TraceEvent::default()
        };
        let bytes = TraceMessage::Event(event).encode(1);
        assert_eq!(
            bytes.len(),
            EVENT_FIXED_BYTES + 2 * PATH_BYTES_MAX + 255,
            "TRACE-2"
        );
        let Ok(Some((TraceMessage::Event(read), _))) = TraceMessage::decode(&bytes) else {
            panic!("it is an event")
        };
        assert!(long.ends_with(&read.path) && read.path.len() == PATH_BYTES_MAX);
        assert_eq!(
            TraceMessage::decode(&[7, 0, 0, 0, 0, 0, 0]),
            Err(Malformed),
            "TRACE-3"
        );
    }
}
