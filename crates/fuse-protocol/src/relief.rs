//! What a transport does for others while a handler waits for long.

/// What a handler waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A lock that a program holds, which may be for ever.
    Lock,
    /// The kernel, which may wait for other requests meanwhile (`PROTOCOL-4`).
    Kernel,
}

/// Has others served while a handler waits.
pub(crate) trait Relief {
    /// A handler is about to wait. `false`: it must not, since the requests that come meanwhile
    /// might be served by nobody.
    fn begin(&self, wait: Wait) -> bool;

    /// It has waited, after a `begin` that was `true`.
    fn end(&self, wait: Wait);
}

/// A handler waits until this is dropped.
pub(crate) struct Waiting<'r> {
    relief: &'r dyn Relief,
    wait: Wait,
}

impl<'r> Waiting<'r> {
    /// `None`: it would be served by nobody, see [`Relief::begin`].
    pub(crate) fn begin(relief: &'r dyn Relief, wait: Wait) -> Option<Waiting<'r>> {
        relief.begin(wait).then_some(Waiting { relief, wait })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.relief.end(self.wait);
    }
}

/// Nobody is relieved.
#[cfg(test)]
pub(crate) struct NoRelief;

#[cfg(test)]
impl Relief for NoRelief {
    fn begin(&self, _: Wait) -> bool {
        true
    }

    fn end(&self, _: Wait) {}
}
