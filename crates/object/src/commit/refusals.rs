//! What an engine knows of what the user's rules have refused after it was answered.

use larder_space::format::{Ino, StoreId};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What an engine knows of refusals.
#[derive(Default)]
pub(crate) struct Refusals {
    /// Operations that were taken out.
    pub count: AtomicU64,
    /// Of those, what neither a sync nor a close has reported.
    pub unreported: AtomicU64,
    /// What the host has no room for.
    pub held: AllHeld,
}

/// What is held. A leaf lock.
#[derive(Default)]
pub(crate) struct AllHeld {
    /// There is something: a look costs nothing.
    pub(super) is_some: AtomicBool,
    pub(super) all: Mutex<Vec<Held>>,
}

/// Something that was refused, with its content.
pub(super) struct Held {
    pub(super) why: String,
    pub(super) new: NewRefused<'static>,
    pub(super) content: Vec<u8>,
}

/// What is to be kept.
#[derive(Clone)]
pub(crate) struct NewRefused<'r> {
    pub at_ns: i64,
    pub store: StoreId,
    pub ino: Ino,
    pub why: &'r str,
    pub path: Vec<u8>,
    pub size_bytes: Option<u64>,
}
