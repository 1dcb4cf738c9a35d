//! What tests stand on: a simulated device, a recording SQLite VFS, crash replay, and a model of a
//! file tree. Only ever a dev-dependency.
//!
//! # Words
//! *Recording*: one ordered log of what happened to segment devices and catalog files, with an
//! *ack* wherever the code under test had said "durable". *Point*: a place in the log where the
//! power fails. *Window*: what was written before the point and is covered by no flush of its file.
//! *State*: what such a failure may leave on the medium: everything flushed, and any part of the
//! window. *Script*: a generated list of operations with the digest of the tree after each.
//!
//! # Assumptions about the medium
//! A flush makes every write to its file that *ended before the flush began* durable. Unflushed
//! writes reach the medium in any order, wholly, not at all, or torn at 512 B or 4 KiB; bytes
//! outside a write never change (SQLite's "powersafe overwrite"). A name is durable after the first
//! flush of its file, or after a sync of its directory; names of one file change in order.
//!
//! # Invariants
//! * `TESTKIT-1` A state holds all that was flushed before its point and nothing from after it.
//! * `TESTKIT-2` Recording changes nothing: replaying the whole log gives the files that are there.
//! * `TESTKIT-3` The same recording, seed and budget give the same states.
//! * `TESTKIT-4` The model and a real filesystem agree after every operation of a script.

mod crash;
mod disk;
mod event;
mod history;
mod host;
mod image;
mod record;
mod rng;
mod script;
mod sim;
mod tree;
mod vfs;
mod window;

pub use crash::{CrashState, States};
pub use disk::Disk;
pub use event::{Event, FileName, Payload, SEGMENTS, segment_file};
pub use history::{Anomaly, End, Finding, Level, Step, Transaction, check_history};
pub use host::{HostTree, read_xattrs};
pub use image::Image;
pub use record::{Recorder, Recording};
pub use rng::Rng;
pub use script::{Generator, Mix, Script};
pub use sim::{Faults, SimDevice, SimStorage};
pub use tree::{Entry, EntryKind, Model, Op, Tree, digest, explain_difference, fill};
pub use vfs::{RecordingVfs, VfsFaults};
