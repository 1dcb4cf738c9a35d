//! What a server of a mount that root has started gives up before it reads a database.
//!
//! # Invariants
//! * `CLI-42` A server that runs as root keeps [`NEEDED`] of its capabilities, in every thread and
//!   for good: what would give more back, an execve, cannot any longer. Others keep what they have:
//!   `fusermount3` mounts for them, by its set-uid bit.

use crate::error::{At, Result};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Mounting and unmounting; the database of another user or group, and files in it that become
/// theirs; the names of the processes that use a mount.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SYS_PTRACE);

/// Gives up the rest (`CLI-42`). Must be called while this process has one thread: others inherit
/// from it.
pub(crate) fn give_up() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let what = || "cannot give up capabilities".to_owned();
    let mut own = capabilities(None).at(what)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        // Those that this kernel knows: beyond them it says so.
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            match capability_is_in_bounding_set(one) {
                Err(Errno::INVAL) => break,
                Ok(true) if !NEEDED.contains(one) => {
                    remove_capability_from_bounding_set(one).at(what)?;
                }
                is_there => drop(is_there.at(what)?),
            }
        }
    }
    own.effective = own.effective.intersection(NEEDED);
    own.permitted = own.permitted.intersection(NEEDED);
    own.inheritable = CapabilitySet::empty();
    set_capabilities(None, own).at(what)?;
    set_no_new_privs(true).at(what)
}
