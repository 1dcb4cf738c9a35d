//! What a server of a mount that root has started gives up before it reads a database.
//!
//! # Invariants
//! * `CLI-42` A server that runs as root keeps [`NEEDED`] of its capabilities, in every thread and
//!   for good: what would give more back, an execve, cannot any longer. That of `txn run` has a
//!   thread besides that starts the program, and ends then; so until then it has all that its
//!   process was given, in one address space with a server that has opened the database. Others
//!   keep what they have: `fusermount3` mounts for them, by its set-uid bit.

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

/// Gives up all but [`NEEDED`] (`CLI-42`). Must be called while this process has one thread, since
/// others inherit from it; one that is there already keeps what it has.
pub(crate) fn give_up() -> Result<()> {
    give_up_all_but(NEEDED)
}

/// The same for a server that ends the programs of other users too.
pub(crate) fn give_up_but_kill() -> Result<()> {
    give_up_all_but(NEEDED.union(CapabilitySet::KILL))
}

fn give_up_all_but(needed: CapabilitySet) -> Result<()> {
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
                Ok(true) if !needed.contains(one) => {
                    remove_capability_from_bounding_set(one).at(what)?;
                }
                is_there => drop(is_there.at(what)?),
            }
        }
    }
    own.effective = own.effective.intersection(needed);
    own.permitted = own.permitted.intersection(needed);
    own.inheritable = CapabilitySet::empty();
    set_capabilities(None, own).at(what)?;
    set_no_new_privs(true).at(what)
}
