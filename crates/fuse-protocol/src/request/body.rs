//! What is left of a request while it is decoded.

use crate::wire::{self, Wire};

/// A request that does not have the form which the protocol gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What is left of a request while it is decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'r> {
    pub(super) fixed: &'r [u8],
    pub(super) apart: Option<&'r [u8]>,
}

impl<'r> Body<'r> {
    pub(super) fn fixed<T: Wire>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = wire::take(self.fixed).ok_or(Malformed)?;
        self.fixed = rest;
        Ok(value)
    }

    pub(super) fn rest(&mut self) -> &mut &'r [u8] {
        self.apart.as_mut().unwrap_or(&mut self.fixed)
    }

    /// A name: not empty, ends with a NUL byte, which is not part of it.
    pub(super) fn name(&mut self) -> Result<&'r [u8], Malformed> {
        let rest = self.rest();
        let end = rest.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        if end == 0 {
            return Err(Malformed);
        }
        let name = &rest[..end];
        *rest = &rest[end + 1..];
        Ok(name)
    }

    pub(super) fn data(&mut self, len_bytes: u32) -> Result<&'r [u8], Malformed> {
        let rest = self.rest();
        let (data, left) = rest.split_at_checked(len_bytes as usize).ok_or(Malformed)?;
        *rest = left;
        Ok(data)
    }

    pub(super) fn cut_tail(&mut self, len_bytes: usize) -> Result<&'r [u8], Malformed> {
        let rest = self.rest();
        let at = rest.len().checked_sub(len_bytes).ok_or(Malformed)?;
        let (left, tail) = rest.split_at(at);
        *rest = left;
        Ok(tail)
    }
}
