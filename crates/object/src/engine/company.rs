//! What an engine does because others are there: `session::company` knows of them.

use crate::Result;
use crate::engine::EngineSessions;
use crate::error::io_error;
use crate::session::barrier::Follower;
use crate::session::liveness::barrier_file;

impl EngineSessions<'_> {
    /// Whether another session may change something: nothing is then kept outside of this one
    /// without asking.
    pub fn has_writers_beside(&self) -> bool {
        self.session.has_writers_beside()
    }

    /// Whether another session shows what is committed: what takes something away is then committed
    /// at once.
    pub fn has_followers_beside(&self) -> bool {
        self.session.has_followers_beside()
    }

    /// Looks who is there, as a follower that is asked does, and says whether there are writers.
    pub fn look_for_company(&self) -> Result<bool> {
        self.session.look_for_company()
    }

    /// Tells the followers that a mount begins, one that may write or not, and looks who is there;
    /// before the mount is served, and when this session is answering already: two of them may
    /// begin at the same time.
    pub fn join_company(&self, is_writer: bool) -> Result<()> {
        match is_writer {
            true => self.session.announce_writer()?,
            false => self.session.announce(false)?,
        }
        self.session.look_for_company().map(drop)
    }

    /// Makes this session a follower: commands wait for its answers from now on.
    pub fn follow(&self, name: &str) -> Result<Follower> {
        let session = self.session.liveness.id;
        Follower::new(&self.session.directory, session, name).map_err(|error| {
            let path = self.session.directory.join(barrier_file(session));
            io_error(format!("cannot create {}", path.display()), error)
        })
    }

    /// Makes visible to the mounts beside this one all that was done here before: before an unlock
    /// is answered, and after a name was taken away. Who unlocks `gives_way`: the next one wants to
    /// change something too. Alone: nothing.
    pub fn show_others(&self, gives_way: bool) -> Result<()> {
        if !self.session.has_followers_beside() || self.private.is_some() {
            return Ok(());
        }
        self.commits().sync_own()?;
        if gives_way && self.writer_lock.is_held() {
            self.commits().unlock_writer();
        }
        Ok(())
    }
}
