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
    /// A handler may have to wait, and has changed nothing yet. `false`: it must not, since the
    /// requests that come meanwhile might be served by nobody.
    fn reserve(&self, wait: Wait) -> bool;

    /// It waits from now on, after a `reserve` that was `true`.
    fn begin(&self, wait: Wait);

    /// It will not wait any more, or never did, after a `reserve` that was `true`.
    fn end(&self, wait: Wait);
}

/// A handler may wait until this is dropped.
pub(crate) struct Waiting<'r> {
    relief: &'r dyn Relief,
    wait: Wait,
}

impl<'r> Waiting<'r> {
    /// `None`: it must not, see [`Relief::reserve`].
    pub(crate) fn reserve(relief: &'r dyn Relief, wait: Wait) -> Option<Waiting<'r>> {
        // Not `then_some`: what is dropped ends a wait.
        relief.reserve(wait).then(|| Waiting { relief, wait })
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
    fn reserve(&self, _: Wait) -> bool {
        true
    }

    fn begin(&self, _: Wait) {}

    fn end(&self, _: Wait) {}
}
