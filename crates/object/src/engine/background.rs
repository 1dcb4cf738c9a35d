//! What a session does beside its callers: it takes in what others commit, lets them reclaim, and
//! commits what is due.

use crate::engine::{Engine, EngineBackground, EngineRules, EngineSessions, Wishes};
use crate::host::lock;
use crate::space::defrag::compact_if_due;
use crate::space::grow::grow_ahead;
use crate::{Error, ErrorKind, Result};
use larder_space::format::CommitSeq;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// A group that nobody adds to for this part of the commit interval is committed (`COMMIT-5`): 14
/// ms, so that the commit too has ended 20 ms after the last change.
const IDLE_DIVISOR: u32 = 7;

/// How often the background looks for foreign commits and due groups: often enough for `COMMIT-5`.
const TICK: Duration = Duration::from_millis(15);

/// No sooner than so.
const TICK_MIN: Duration = Duration::from_millis(1);

/// The same in the process of a program that has loaded the extension: it only moves its pin and
/// reclaims, by commits.
const TICK_OF_EXTENSION: Duration = Duration::from_secs(1);

pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let weak = Arc::downgrade(engine);
    let thread = std::thread::Builder::new()
        .name("larder-commit".into())
        .spawn(move || background(&weak))
        .map_err(|error| crate::error::io_error("cannot start a thread".into(), error))?;
    *lock(&engine.background) = Some(thread);
    Ok(())
}

impl EngineBackground<'_> {
    pub(crate) fn stop(&self) {
        lock(&self.wishes.0).stop = true;
        self.wishes.1.notify_all();
        let thread = lock(&self.background).take();
        if let Some(thread) =
            thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the background thread panicked");
        }
    }

    /// Sleeps until the next tick, and says what was wished meanwhile.
    fn wait_for_tick(&self) -> Wishes {
        let pause = self.pause();
        let wishes = lock(&self.wishes.0);
        let is_idle = |wishes: &mut Wishes| !wishes.stop && !wishes.commit;
        let (mut wishes, _) = (self.wishes.1)
            .wait_timeout_while(wishes, pause, is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        Wishes {
            stop: wishes.stop,
            commit: std::mem::take(&mut wishes.commit),
        }
    }

    /// Has the background commit what there is, without waiting for it (`COMMIT-5`).
    pub(crate) fn wish_commit(&self) {
        lock(&self.wishes.0).commit = true;
        self.wishes.1.notify_all();
    }

    fn pause(&self) -> Duration {
        match self.session.options.is_extension {
            true => TICK_OF_EXTENSION,
            false => (self.idle_left()).map_or(TICK, |left| left.clamp(TICK_MIN, TICK)),
        }
    }

    /// How long until the open group has been idle for long enough to be committed (`COMMIT-5`);
    /// `None` while something is being changed, or there is no group.
    pub(crate) fn idle_left(&self) -> Option<Duration> {
        let since = self.writer_lock.idle_since()?;
        let is_any = self.is_running() && !lock(&self.group).is_empty();
        let idle = self.session.options.commit_interval / IDLE_DIVISOR;
        is_any.then(|| idle.saturating_sub(since.elapsed()))
    }
}

fn background(weak: &Weak<Engine>) {
    loop {
        let Some(engine) = weak.upgrade() else { return };
        let wishes = engine.background().wait_for_tick();
        if wishes.stop {
            return;
        }
        let tick = std::panic::AssertUnwindSafe(|| tick(&engine, wishes.commit));
        let why = match std::panic::catch_unwind(tick) {
            Ok(Ok(())) => continue,
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {
                tracing::warn!("background: {error}; trying again");
                continue;
            }
            Ok(Err(error)) => background_failure(&error),
            Err(_) => {
                "the background panicked, which is a defect; reopen the database, and report it"
                    .into()
            }
        };
        // Another thread's commit must end before the writer lock is abandoned.
        let _no_commit = engine.commit_lock.lock();
        engine.stop(why);
    }
}

fn tick(engine: &Arc<Engine>, is_commit_wished: bool) -> Result<()> {
    if engine.check_running().is_err() {
        return Ok(());
    }
    engine.sessions().notice_foreign()?;
    engine.sessions().advance_pin()?;
    if engine.session.free_killed_if_due() {
        engine.session.find_solitude();
    }
    if engine.session.options.is_extension {
        if let Err(error) = engine.client().reclaim_left() {
            tracing::warn!("space is not given back: {error}");
        }
        return Ok(()); // The rest is for those whose process it is.
    }
    engine.commits().commit_if_due(is_commit_wished)?;
    engine.access_times().write_access_times_if_due();
    if let Err(error) = engine.refusals().keep_held(false) {
        tracing::debug!("what was refused stays in memory: {error}");
    }
    if let Err(error) = engine.commits().checkpoint_if_wanted() {
        // Nothing is lost: the log is only longer than it should be.
        tracing::warn!("a checkpoint failed: {error}");
    }
    grow_ahead(engine);
    if engine.session.workspace.is_none() {
        compact_if_due(engine); // WORKSPACE-8
    }
    engine.sessions().shrink_cache();
    crate::view::buffers::rest();
    Ok(())
}

fn background_failure(error: &Error) -> String {
    format!(
        "the background commit failed and the outcome is unknown ({error}); close and reopen the \
         database"
    )
}

impl EngineSessions<'_> {
    /// The session serves this connection of the kernel.
    pub fn serves(&self, connection: u32) {
        self.session.liveness.serves(connection);
    }

    /// Runs when the writer lock was just taken: caches and free space must know what others
    /// committed.
    pub(crate) fn refresh_locked(&self) -> Result<()> {
        if let Some(private) = &self.private {
            return self.short_transaction().begin_to_write(private);
        }
        self.notice_foreign()?;
        lock(&self.group).has_others = self.catalog.sessions().rows()?.len() > 1
            || self
                .catalog
                .workspace()?
                .oldest_transaction_pin()?
                .is_some();
        let mut free = self.free_space();
        free.oldest_retired = None;
        if !free.is_loaded() {
            // Who only reads does not look.
            self.may_have_orphans.store(true, Ordering::SeqCst);
        }
        drop(free);
        self.space().sync_space()
    }

    /// What this process can still reach.
    fn own_pin(&self) -> CommitSeq {
        self.session.readers.oldest(&self.known_seq)
    }

    /// The newest commit whose retired extents nobody can reach any more (`SESSION-2`).
    pub(crate) fn reclaim_horizon(&self) -> Result<CommitSeq> {
        if self.writer_lock.is_held() && !lock(&self.group).has_others {
            return Ok(self.own_pin()); // SESSION-4
        }
        // The sessions are read after our own newest commit: a session born later pins at least it.
        let others = self.session.other_pins(&self.catalog)?;
        let kept = self.catalog.workspace()?.oldest_transaction_pin()?; // WORKSPACE-2
        let oldest = others.into_iter().map(|(_, pin)| pin).chain(kept).min();
        Ok(oldest.map_or_else(|| self.own_pin(), |pin| pin.min(self.own_pin())))
    }

    /// Lets other sessions reclaim what this one has stopped using; not at each tick, since that is
    /// a commit, and has everybody look at the catalog anew.
    fn advance_pin(&self) -> Result<()> {
        let pin = self.own_pin();
        let liveness = &self.session.liveness;
        if liveness.is_pin_due(pin) && self.catalog.sessions().rows()?.len() > 1 {
            self.catalog.sessions().set_pin(liveness.id, pin)?;
            liveness.note_pin(pin);
        }
        Ok(())
    }
}

impl EngineRules<'_> {
    /// Learns which stores have constraints of the user's.
    pub(crate) fn find_constraints(&self) -> Result<()> {
        let version = self.catalog.tables().schema_version()?;
        if self.schema_version.load(Ordering::SeqCst) == version {
            return Ok(());
        }
        let found = self.catalog.rules()?.constrained_stores()?;
        let has_any = self.catalog.rules()?.has_users_schema()?;
        self.has_users_schema.store(has_any, Ordering::SeqCst);
        *self
            .constrained
            .write()
            .unwrap_or_else(PoisonError::into_inner) = found;
        lock(&self.kept_orphans).forget();
        // A change in between is found by the next look.
        self.schema_version.store(version, Ordering::SeqCst);
        Ok(())
    }
}
