//! What the owner of a database chose in place of the engine's defaults: rows of `larder_meta` that
//! need not be there.
//!
//! * `CATALOG-10` A choice is inside its bounds or it is not stored, and what is stored outside of
//!   them is damage. *Guard*: [`Tuning::check`] before each write and after each read.
//!
//! Versions that know nothing of a row pass over it, and content that they put inline is read by
//! all.

use larder_format::limits::{GATHER_BYTES_MAX, GATHER_BYTES_MIN, INLINE_BYTES_MAX};

/// What a database asks of the engine; `None`: the engine's own choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Content of at most this many bytes is kept in the catalog, 0 to [`INLINE_BYTES_MAX`]. What
    /// is inline already stays so until it is changed.
    pub inline_bytes_max: Option<u64>,
    /// Content that a session gathers in memory before writers wait, bytes, [`GATHER_BYTES_MIN`] to
    /// [`GATHER_BYTES_MAX`]. An object of up to a quarter of it is placed as a whole. A session
    /// takes at most an eighth of its machine's memory.
    pub gather_bytes_max: Option<u64>,
}

impl Tuning {
    /// What is wrong with it, with the remedy.
    pub fn check(&self) -> std::result::Result<(), String> {
        if let Some(bytes) = self
            .inline_bytes_max
            .filter(|&bytes| bytes > INLINE_BYTES_MAX)
        {
            return Err(format!(
                "content of {bytes} bytes does not fit into a row of the catalog; at most \
                 {INLINE_BYTES_MAX} are possible"
            ));
        }
        if let Some(bytes) = self
            .gather_bytes_max
            .filter(|bytes| !(GATHER_BYTES_MIN..=GATHER_BYTES_MAX).contains(bytes))
        {
            return Err(format!(
                "a gather of {bytes} bytes is out of bounds; {GATHER_BYTES_MIN} to \
                 {GATHER_BYTES_MAX} are possible"
            ));
        }
        Ok(())
    }
}
