//! Segments: the only crate that touches data devices.
//!
//! # Words
//! *Segment*: one self-describing data file: two superblock copies, then data blocks of 4 KiB, all
//! of them preallocated. *Device*: the opened resource under a segment ([`Device`]). *Storage*:
//! where a database's segments live and are made ([`Storage`]). *Grow*: to write zeros behind the
//! last block, and only then to count them as blocks. *Shrink*: to count fewer blocks, and only
//! then to cut the device. *Poisoned*: a write or flush failed, so what the device holds is unknown
//! until the database is reopened.
//!
//! # Invariants
//! * `SEGMENT-1` Only `0..block_count` of a valid superblock is ever read or written as data; a
//!   device shorter than its superblock says is refused ([`SegmentError::Truncated`]).
//! * `SEGMENT-2` A block is counted only after its zeros are durable: a crash or a full host during
//!   growth leaves the old size, valid.
//! * `SEGMENT-3` Every block read is verified against the checksum the caller brings.
//! * `SEGMENT-4` After a failed write or flush every later write and flush fails: the kernel
//!   reports a lost page once, so a flush that succeeds after one that failed proves nothing.
//! * `SEGMENT-5` When growth returns, both superblock copies hold the new size: damage to either
//!   one later loses nothing.
//! * `SEGMENT-6` One session grows or shrinks a segment at a time ([`Device::lock`]), and it begins
//!   by reading what the others left.
//! * `SEGMENT-7` A device is cut only behind what both superblock copies durably count: a crash
//!   while a segment shrinks leaves the old size or the new one, valid.
//!
//! # Concurrency
//! Every method takes `&self`; reads and writes run in parallel, also while [`Segment::grow`] works
//! in the background; nobody uses what [`Segment::shrink`] cuts off. Flushes of one segment run one
//! after the other (`SEGMENT-4`). Lock order: growth, then flush; the count is a leaf. Two writes
//! to one block at once are the caller's bug.
//!
//! # Recovery
//! [`Segment::open`] takes the valid superblock copy of the highest generation. Bytes behind the
//! counted blocks are the remains of an interrupted growth; the next growth writes over them.

mod aligned;
mod binding;
mod convert;
mod device;
mod error;
mod file;
mod page_cache;
mod pages;
mod parallel;
mod queue;
mod read_places;
mod segment;

pub use aligned::AlignedBuf;
pub use binding::leave_binding;
pub use convert::convert_segments;
pub use device::{Device, Storage};
pub use error::SegmentError;
pub use file::{FileDevice, FileStorage};
pub use larder_directory as directory;
pub use larder_format as format;
pub use pages::{MappedBuf, PageBuf};
pub use queue::{BlockWrite, write_all};
pub use segment::Segment;
