//! Threads that are started by one that is bound to a CPU, as a mount binds those that serve small
//! requests of the kernel, are bound like it, and what should go on beside it does not.

use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Lets the calling thread run wherever this process may, that is where its first thread may, which
/// nobody binds but who means the process. Cost: two system calls.
pub fn leave_binding() {
    let freed = sched_getaffinity(Some(getpid())).and_then(|all| sched_setaffinity(None, &all));
    if let Err(error) = freed {
        tracing::debug!("a thread stays bound like the one that has started it: {error}");
    }
}
