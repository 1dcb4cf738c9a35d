//! The kernel's FUSE protocol, 7.31 to 7.45, and nothing of any filesystem.
//!
//! ```text
//!   kernel ── /dev/fuse ── workers ──┐                                ┌── Filesystem (a trait)
//!                                    ├── service: decode → method → encode
//!   kernel ── io_uring ─── rings ────┘
//!   kernel ←─ /dev/fuse ── Notifier, Backing
//! ```
//!
//! # Words
//! A *request* is what the kernel asks, its *unique* number names it, and its *reply* is what it
//! gets. A *session* serves one mount. A *transport* is how requests come and replies go; a
//! *worker* is a thread of one. A *call* is a request while a handler, a method of [`Filesystem`],
//! works on it; its *span* is what the filesystem keeps for it from before the handler until after
//! the reply.
//!
//! # Invariants
//! * `PROTOCOL-1` No bytes from the kernel, however short or odd, make the decoder panic or read
//!   beyond them. A request that it cannot understand is answered `EIO`, one that nobody serves
//!   `ENOSYS`.
//! * `PROTOCOL-2` The data of a WRITE and the buffer of a READ begin at a multiple of 4096 in
//!   memory.
//! * `PROTOCOL-3` An INTERRUPT marks the request that it is about, while a handler works on it, and
//!   no other; one that comes before the handler begins is asked for again until it has.
//! * `PROTOCOL-4` While there are slots, a request never waits for a handler to return. A handler
//!   that waits for the kernel ([`Reserved::wait`]) takes none. How far rings keep this is `RING-2`
//!   and `RING-3`.
//! * `PROTOCOL-5` After a handler has panicked no handler is called again: every request fails with
//!   `EIO` until the mount is gone. A panic beside a handler, in `begin`, `describe` or `end`,
//!   fails that request only.
//!
//! # Concurrency
//! Every worker has its own memory and, where the system permits it, its own queue in the kernel.
//! What they share is the filesystem and a few counters.

mod arguments;
mod buffers;
mod call;
mod detail;
mod device;
mod dispatch;
mod errno;
mod filesystem;
mod flags;
#[cfg(fuzzing)]
pub mod fuzzing;
mod in_flight;
pub mod memory;
mod mount;
mod notify;
mod opcode;
mod relief;
mod reply;
mod request;
mod rings;
mod service;
mod session;
mod stop;
mod support;
mod transport;
mod values;
mod wire;
mod workers;

pub use arguments::{
    CopyRange, Fallocate, GetAttr, GetStatx, Ioctl, LockRequest, Make, OpenFlags, Read, Release,
    Rename, SetAttr, SetXattr, Write,
};
pub use call::{Call, Outcome, Reserved};
pub use detail::Detail;
pub use device::{Backing, Device};
pub use errno::Errno;
pub use filesystem::Filesystem;
pub use flags::{FopenFlags, InitFlags};
pub use mount::{MountError, MountSettings, mount};
pub use notify::Notifier;
pub use opcode::Opcode;
pub use reply::{DirectoryPlusReply, DirectoryReply};
pub use request::{Extensions, Request, SecurityContext};
pub use session::{Negotiated, Session, SessionOptions};
pub use support::IoUringSupport;
pub use transport::TransportChoice;
pub use values::{
    Attr, AttrReply, Entry, FileType, HandleNumber, IoctlReply, Lock, LockOwner, NodeNumber,
    Opened, Statfs, StatxReply, TimeOrNow, Written,
};
