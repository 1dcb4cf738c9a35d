//! Company: which other sessions there are, as far as it matters to what this one may keep to
//! itself.
//!
//! A mount's kernel answers from its caches without asking. That is right as long as nobody but
//! this session changes anything. And what a session has changed may wait in its memory as long as
//! nobody else looks.
//!
//! # Words
//! A *follower* is a session with caches outside of it: a mount (`barrier`). A *writer* has said
//! that it may commit what others see: by its file `sessions/ID.writes`. A session has *company* of
//! writers, of followers, of both, or none.
//!
//! ```text
//!  newcomer:  begins, makes its file ──▶ asks all followers, waits ──▶ looks itself ──▶ may commit
//!  follower:                               looks: has company; its kernel drops names ──▶ answers
//! ```
//!
//! # Invariants
//! * `COMPANY-1` Before the first commit of a writer is acknowledged every follower that answers
//!   knows of it, and has had its kernel drop what it would have answered without asking. Only who
//!   is asked comes to know of a writer, so that it drops at that moment what its kernel has;
//!   anybody may find that there is none any more.
//! * `COMPANY-2` Of two sessions that begin at the same time one at least finds the other: each can
//!   be found before it looks.
//! * `COMPANY-4` Who does not answer is waited for no longer than [`HANDSHAKE_MAX`] and named. What
//!   reaches a server is answered as of now all the same (`FOREIGN-6`).
//!
//! # Who is none
//! A command acknowledges its commits by ending, when all mounts show them (`barrier`); so it does
//! not announce itself, and the caches of a mount stay beside it. SQL clients announce nothing.

use crate::Result;
use crate::error::io_error;
use crate::host::lock;
use crate::session::Session;
use crate::session::barrier::await_all;
use crate::session::liveness::{DOOR, bury_if_dead, is_dead, writer_file};
use crate::session::peers::{SESSIONS, free_killed_in};
use crate::session::writer_lock::open_lock;
use larder_catalog::Catalog;
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::{CommitSeq, SessionId};
use rustix::fs::{FlockOperation, flock};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a newcomer waits for a follower.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// How often the other sessions are looked at, whether they were killed and cannot end.
const LOOK_REST: Duration = Duration::from_secs(1);

/// Other sessions that live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Others {
    have_writers: bool,
    have_followers: bool,
}

impl Session {
    /// Whether another session may change something: nothing is then kept outside of this one
    /// without asking.
    pub fn has_writers_beside(&self) -> bool {
        self.company.has_writers.load(Ordering::SeqCst)
    }

    /// Whether another session shows what is committed: what takes something away is then committed
    /// at once.
    pub fn has_followers_beside(&self) -> bool {
        self.company.has_followers.load(Ordering::SeqCst)
    }

    /// Looks who is there, as a follower that is asked does, and says whether there are writers.
    pub fn look_for_company(&self) -> Result<bool> {
        let company = &self.company;
        let _one_at_a_time = lock(&company.look);
        let others = self.others()?;
        (company.has_writers).store(others.have_writers, Ordering::SeqCst);
        (company.has_followers).store(others.have_followers, Ordering::SeqCst);
        Ok(others.have_writers)
    }

    /// Finds that there is nobody any more.
    pub fn find_solitude(&self) {
        if !self.has_writers_beside() && !self.has_followers_beside() {
            return;
        }
        let company = &self.company;
        let _one_at_a_time = lock(&company.look);
        match self.others() {
            Ok(others) => {
                (company.has_writers).fetch_and(others.have_writers, Ordering::SeqCst);
                (company.has_followers).fetch_and(others.have_followers, Ordering::SeqCst);
            }
            Err(error) => tracing::debug!("it is not known who else is there: {error}"),
        }
    }

    fn others(&self) -> Result<Others> {
        find_others(&self.directory, self.liveness.id).map_err(|error| {
            let path = self.directory.join(SESSIONS);
            io_error(format!("cannot list {}", path.display()), error)
        })
    }

    /// Has all followers know that this session is there, if `is_writer` as one; without a lock
    /// that others wait for. Names those that do not answer.
    pub fn announce(&self, is_writer: bool) -> Result<()> {
        let id = self.liveness.id;
        let failed = |error| {
            let path = self.directory.join(writer_file(id));
            io_error(format!("cannot tell others by {}", path.display()), error)
        };
        if is_writer {
            (self.directory)
                .open_file(writer_file(id), Access::Make)
                .map_err(failed)?;
        }
        let deadline = Instant::now() + HANDSHAKE_MAX;
        let late = await_all(&self.directory, Some(id), deadline).map_err(failed)?;
        for name in &late {
            // COMPANY-4
            tracing::warn!(
                "{name} has not answered for {} s; until it goes on, programs there may see old \
                 names and attributes",
                HANDSHAKE_MAX.as_secs()
            );
        }
        Ok(())
    }

    /// Announces this session before its first change, unless it is a command's (`COMPANY-1`).
    pub fn announce_writer(&self) -> Result<()> {
        let company = &self.company;
        let is_silent = self.options.is_command || self.options.is_extension;
        if is_silent || company.is_announced.load(Ordering::SeqCst) {
            return Ok(());
        }
        let _one_at_a_time = lock(&company.announcing);
        if !company.is_announced.load(Ordering::SeqCst) {
            self.announce(true)?;
            company.is_announced.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Frees who waits for killed sessions, now and then; says whether it was time to look.
    /// Programs on another mount wait until somebody does.
    pub fn free_killed_if_due(&self) -> bool {
        let mut looked_at = lock(&self.liveness.looked_at);
        let is_due = looked_at.elapsed() >= LOOK_REST;
        if is_due {
            *looked_at = Instant::now();
            free_killed_in(&self.directory);
        }
        is_due
    }

    /// Other sessions that live, with their pins; the dead are buried on the way.
    pub fn other_pins(&self, catalog: &Catalog) -> Result<Vec<(SessionId, CommitSeq)>> {
        let mut pins = Vec::new();
        for row in catalog.sessions().rows()? {
            if row.session == self.liveness.id {
                continue;
            }
            let door = open_lock(&self.directory, DOOR)?;
            // A session is being born or buried: take it as alive.
            let is_alive = flock(&door, FlockOperation::NonBlockingLockExclusive).is_err()
                || bury_if_dead(&self.directory, catalog, row.session)?;
            if is_alive {
                pins.push((row.session, row.pin_seq));
            }
        }
        Ok(pins)
    }
}

fn find_others(database: &DatabaseDir, own: SessionId) -> std::io::Result<Others> {
    let mut others = Others::default();
    for name in database.open_dir(SESSIONS)?.names()? {
        let path = Path::new(&name);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let Some(id) = stem.and_then(|stem| stem.parse().ok()).map(SessionId) else {
            continue;
        };
        let kind = path.extension().and_then(|extension| extension.to_str());
        let is_writer = kind == Some("writes");
        if id != own && (is_writer || kind == Some("barrier")) && !is_dead(database, id) {
            others.have_writers |= is_writer;
            others.have_followers |= !is_writer;
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::liveness::{barrier_file, lock_file};

    #[test]
    fn the_living_are_company_by_what_they_are_and_the_dead_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        database.make_dir(SESSIONS).unwrap();
        let found = || find_others(&database, SessionId(1)).unwrap();
        let make = |name: String| database.open_file(name, Access::Make).unwrap();
        make(writer_file(SessionId(1)));
        make(writer_file(SessionId(2)));
        assert_eq!(
            found(),
            Others::default(),
            "COMPANY-2: nobody but itself and a dead one"
        );
        let living = make(lock_file(SessionId(3)));
        living.lock().unwrap();
        assert_eq!(found(), Others::default(), "it only reads");
        make(barrier_file(SessionId(3)));
        assert_eq!(
            (found().have_followers, found().have_writers),
            (true, false)
        );
        make(writer_file(SessionId(3)));
        assert_eq!((found().have_followers, found().have_writers), (true, true));
        drop(living);
        assert_eq!(found(), Others::default());
    }
}
