//! Following what changes: [`Feed::changes`], and what others change.

use crate::database::Database;
use crate::rooms::{Feed, Nodes, Sessions, Sql};
use crate::types::NodeId;
use larder_object::{FeedBounds, FeedChange, Follower, ForeignObserver, Keeper, Result};
use std::collections::VecDeque;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How often [`Changes::wait`] looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

impl Sessions<'_> {
    /// Calls `observer` after another session or an SQL client has changed the database, within
    /// 100 ms of its commit. The engine's own caches are fresh by then.
    pub fn on_foreign_change(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.on_foreign_changes(Box::new(move |_| observer()));
    }

    /// The same, with what may have been changed.
    pub fn on_foreign_changes(&self, observer: ForeignObserver) {
        // A transaction sees none.
        if let Ok(engine) = self.database.whole() {
            engine.foreign().on_foreign_change(observer);
        }
    }

    /// From now on `keeper` is asked, as long as it lives, who knows inodes that lose their last
    /// name.
    pub fn set_keeper(&self, keeper: Weak<dyn Keeper>) {
        // A transaction has none.
        if let Ok(engine) = self.database.whole() {
            engine.orphans().set_keeper(keeper);
        }
    }

    /// The keeper does not know a node any more that it kept.
    pub fn let_go(&self, node: NodeId) {
        if let Ok(engine) = self.database.whole() {
            engine.orphans().let_go(node.store, node.ino);
        }
    }

    /// Takes in now what others have committed; observers have been told when it returns.
    pub fn catch_up(&self) -> Result<()> {
        self.database.whole()?.sessions().catch_up()
    }

    /// The same, but without a commit of anybody since the last look a few nanoseconds: before each
    /// answer that others may have changed.
    pub fn catch_up_if_moved(&self) -> Result<()> {
        self.database.whole()?.sessions().catch_up_if_moved()
    }

    /// A mount begins that answers commands already; `is_writer`: things may be changed by it.
    /// Other mounts know of it when this returns.
    pub fn join_company(&self, is_writer: bool) -> Result<()> {
        self.database.whole()?.sessions().join_company(is_writer)
    }

    /// Looks which other sessions there are, and says whether any may change something.
    pub fn look_for_company(&self) -> Result<bool> {
        self.database.whole()?.sessions().look_for_company()
    }

    /// Whether another session may change something: then nothing is to be answered from outside of
    /// this one.
    pub fn has_writers_beside(&self) -> bool {
        self.database
            .whole()
            .is_ok_and(|engine| engine.sessions().has_writers_beside())
    }

    /// Whether there are other mounts.
    pub fn has_followers_beside(&self) -> bool {
        self.database
            .whole()
            .is_ok_and(|engine| engine.sessions().has_followers_beside())
    }

    /// Has other mounts see what was done here before, if there are any; and with `gives_way` lets
    /// them change something.
    pub fn show_others(&self, gives_way: bool) -> Result<()> {
        self.database.whole()?.sessions().show_others(gives_way)
    }

    /// This process serves the connection of the kernel with this number: who finds that it was
    /// killed and cannot end aborts that ([`free_killed`](crate::free_killed)).
    pub fn serves(&self, connection: u32) {
        // A transaction is no session.
        if let Ok(engine) = self.database.whole() {
            engine.sessions().serves(connection);
        }
    }
}

impl Feed<'_> {
    /// Makes this session one that commands wait for when they end
    /// ([`await_followers`](crate::await_followers)); `name` tells people which one it is.
    pub fn follow(&self, name: &str) -> Result<Follower> {
        self.database.whole()?.sessions().follow(name)
    }

    /// Switches the change feed on or off, for the whole database; returns the position before the
    /// first change that it will tell. While it is on, each commit writes what it did; the last
    /// million changes and the last 24 hours are kept, whichever is less.
    pub fn set(&self, is_on: bool) -> Result<u64> {
        self.database.whole()?.history().set_feed(is_on)
    }

    /// What the feed has; all zero before it was ever switched on.
    pub fn bounds(&self) -> Result<FeedBounds> {
        self.database.whole()?.history().feed_bounds()
    }

    /// All changes that follow position `since`: an iterator that ends when there are no more yet,
    /// and goes on after [`Changes::wait`]. [`larder_object::ErrorKind::InvalidInput`] from the
    /// iterator when they are gone.
    pub fn changes(&self, since: u64) -> Changes {
        Changes {
            database: self.database.clone(),
            position: since,
            ahead: VecDeque::new(),
        }
    }
}

impl Sql<'_> {
    /// Has the feed tell each row of a table of your own that SQL inserts, updates or deletes, or
    /// no longer. The triggers are plain SQL: they work in every SQLite. Rows that
    /// `INSERT OR REPLACE` removes are told only with `PRAGMA recursive_triggers`.
    pub fn watch_table(&self, table: &str, is_watched: bool) -> Result<()> {
        self.database
            .whole()?
            .history()
            .watch_table(table, is_watched)
    }
}

impl Nodes<'_> {
    /// A path of a node as the newest commit has it, in bytes; `None` when it has no name there.
    pub fn path(&self, node: NodeId) -> Result<Option<Vec<u8>>> {
        let view = self.database.shared.shown.view();
        let below = view.lookup().committed_path(node.store, node.ino)?;
        let stores = self.database.read_stores();
        let mount = (stores.iter())
            .find(|store| store.row.store == node.store)
            .map_or("/", |store| store.row.mount.as_str());
        Ok(below.map(|below| {
            let mut path = mount.trim_end_matches('/').as_bytes().to_vec();
            path.extend(below);
            match path.is_empty() {
                true => b"/".to_vec(),
                false => path,
            }
        }))
    }
}

/// The changes of a database, in order, each exactly once. [`Changes::position`] of a change that
/// was dealt with, kept somewhere, resumes behind it.
pub struct Changes {
    database: Database,
    position: u64,
    /// Read already.
    ahead: VecDeque<FeedChange>,
}

impl Changes {
    /// The position of the change that was returned last.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits until there is a change, at most `timeout`; whether there is.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.has_more()? {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(LOOK_PAUSE));
        }
    }

    fn has_more(&mut self) -> Result<bool> {
        if self.ahead.is_empty() {
            self.ahead = self
                .database
                .whole()?
                .history()
                .feed_after(self.position)?
                .into();
        }
        Ok(!self.ahead.is_empty())
    }
}

impl Iterator for Changes {
    type Item = Result<FeedChange>;

    fn next(&mut self) -> Option<Result<FeedChange>> {
        match self.has_more() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        let change = self.ahead.pop_front()?;
        debug_assert_eq!(change.seq, self.position + 1, "FEED-1");
        self.position = change.seq;
        Some(Ok(change))
    }
}
