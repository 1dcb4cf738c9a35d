//! How a mount ends when its process is asked to: by Ctrl-C, by a service manager, by a closed
//! terminal.
//!
//! ```text
//! serving ── signal ──▶ leaving ── nobody uses it ──▶ (unmounted, durable, exit 0)
//!                          │ a second signal; or, asked by SIGTERM or SIGHUP, after GRACE
//!                          ▼
//!                       detached ── the last user lets go ──▶ (durable, exit 0)
//! ```
//!
//! # Invariants
//! * `CLI-18` Before a mount that is in use is left or detached, everything done through it so far
//!   is made durable. So killing the server afterwards takes at most what came later and was not
//!   synced.
//! * `CLI-19` A mount in use is never ended under its users: leaving it means that it serves on
//!   until they are gone, or, detached, that nobody new gets in.

use crate::error::{At, Result, warn};
use crate::service;
use larder_fuse::Unmounter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a mount in use is waited for, when a program and not a person has asked for its end.
/// Below the 90 s after which systemd kills.
const GRACE: Duration = Duration::from_secs(10);
/// Time until the first look at whether its users are gone; from each to the next it doubles.
const RETRY: Duration = Duration::from_millis(250);
/// Up to this.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often a signal is looked for meanwhile.
const LISTEN: Duration = Duration::from_millis(250);

/// The signals that end a mount. From now on they wait for [`serve`] instead of killing this
/// process.
pub(crate) fn listen() -> Result<Signals> {
    Signals::new([SIGINT, SIGTERM, SIGHUP]).at(|| "cannot listen to signals".into())
}

/// Ends the mount at `mountpoint` when a signal asks for it, from a thread that lives as long as
/// the process.
pub(crate) fn end_on_signals(
    mut signals: Signals,
    unmounter: Unmounter,
    mountpoint: &Path,
) -> Result<()> {
    let mountpoint = mountpoint.to_owned();
    let work = move || {
        let mut state = State::Serving;
        loop {
            let asked: Vec<i32> = match state {
                State::Leaving { .. } => {
                    std::thread::sleep(LISTEN);
                    signals.pending().collect()
                }
                State::Serving | State::Detached => signals.wait().collect(),
            };
            let act = state.next(&asked, Instant::now());
            if !obey(act, &unmounter, &mountpoint) {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("larder-signals".into())
        .spawn(work)
        .at(|| "cannot start a thread".into())?;
    Ok(())
}

/// Does it; `false` when there is nothing left to do.
fn obey(act: Act, unmounter: &Unmounter, mountpoint: &Path) -> bool {
    match act {
        Act::Nothing => true,
        Act::Leave => {
            service::tell("STOPPING=1");
            match unmounter.unmount() {
                Ok(()) => false,
                Err(error) => {
                    make_durable(mountpoint);
                    warn(&format!(
                        "{error}; still serving until they are gone, the next signal detaches the \
                         mount"
                    ));
                    true
                }
            }
        }
        // What else can go wrong was told at the first try.
        Act::Retry => !unmounter.try_unmount().unwrap_or(false),
        Act::Detach => {
            make_durable(mountpoint);
            match unmounter.detach() {
                Ok(()) => warn("detached; ends when the last program lets go of the mount"),
                Err(error) => warn(&error.to_string()),
            }
            true
        }
    }
}

/// `CLI-18`. A mount that nobody can sync has said why in the log.
fn make_durable(mountpoint: &Path) {
    if let Err(error) = larder_fuse::make_durable(mountpoint) {
        warn(&error.to_string());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    /// Somebody uses it; `until`: then it is detached. At `retry` it is tried again, and then after
    /// `wait`.
    Leaving {
        until: Option<Instant>,
        retry: Instant,
        wait: Duration,
    },
    Detached,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    /// Unmount; say who is in the way.
    Leave,
    /// Unmount, silently.
    Retry,
    Detach,
}

impl State {
    /// What to do now that these signals have come.
    fn next(&mut self, asked: &[i32], now: Instant) -> Act {
        let (next, act) = match *self {
            State::Serving if asked.is_empty() => (State::Serving, Act::Nothing),
            State::Serving => {
                let by_person = asked.iter().all(|signal| *signal == SIGINT);
                let until = (!by_person).then(|| now + GRACE);
                let leaving = State::Leaving {
                    until,
                    retry: now + RETRY,
                    wait: RETRY,
                };
                (leaving, Act::Leave)
            }
            State::Leaving { until, retry, wait } => {
                if !asked.is_empty() || until.is_some_and(|until| now >= until) {
                    (State::Detached, Act::Detach)
                } else if now < retry {
                    (*self, Act::Nothing)
                } else {
                    let wait = (2 * wait).min(RETRY_MAX);
                    let retry = now + wait;
                    (State::Leaving { until, retry, wait }, Act::Retry)
                }
            }
            State::Detached => (State::Detached, Act::Nothing),
        };
        *self = next;
        act
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_decides_and_a_program_gets_an_end() {
        let began = Instant::now();
        let run = |signals: &[(&[i32], Duration)]| -> Vec<Act> {
            let mut state = State::Serving;
            (signals.iter())
                .map(|(asked, after)| state.next(asked, began + *after))
                .collect()
        };
        let (soon, late) = (GRACE / 2, GRACE * 100);
        let zero = Duration::ZERO;
        assert_eq!(
            run(&[
                (&[], zero),
                (&[SIGINT], zero),
                (&[], late),
                (&[SIGINT], late),
                (&[SIGTERM], late)
            ]),
            [
                Act::Nothing,
                Act::Leave,
                Act::Retry,
                Act::Detach,
                Act::Nothing
            ],
            "CLI-19: Ctrl-C alone never detaches"
        );
        assert_eq!(
            run(&[(&[SIGTERM], zero), (&[], soon), (&[], GRACE), (&[], late)]),
            [Act::Leave, Act::Retry, Act::Detach, Act::Nothing],
            "CLI-19"
        );
        assert_eq!(
            run(&[(&[SIGHUP], zero), (&[SIGTERM], soon)]),
            [Act::Leave, Act::Detach],
            "the second signal"
        );
    }

    #[test]
    fn looks_at_whether_users_are_gone_become_rare() {
        let began = Instant::now();
        let mut state = State::Serving;
        assert_eq!(state.next(&[SIGINT], began), Act::Leave);
        let ticks = (1..=400).map(|tick| state.next(&[], began + tick * LISTEN));
        let retry_count = ticks.filter(|act| *act == Act::Retry).count();
        assert_eq!(retry_count, 3 + (100 - 2) / 2, "in 100 s");
    }
}
