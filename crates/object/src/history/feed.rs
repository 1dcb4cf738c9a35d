//! The change feed, for those above.

use crate::Result;
use crate::engine::EngineHistory;
use crate::view::ViewLookup;
use larder_catalog::{FeedBounds, FeedChange};
use larder_space::format::limits::PATH_BYTES_MAX;
use larder_space::format::{Ino, Name, StoreId};

/// Rows of the feed that are read at a time.
const ROWS_MAX: u32 = 256;

impl EngineHistory<'_> {
    /// What the feed has.
    pub fn feed_bounds(&self) -> Result<FeedBounds> {
        Ok(self.catalog.feed()?.bounds()?)
    }

    /// Switches the feed on or off; the position before what it tells next.
    pub fn set_feed(&self, is_on: bool) -> Result<u64> {
        self.require_writable()?;
        Ok(self.catalog.feed()?.set(is_on)?)
    }

    /// Has the feed tell what plain SQL does to the rows of a user's table, or no longer.
    pub fn watch_table(&self, table: &str, is_watched: bool) -> Result<()> {
        self.require_writable()?;
        Ok(self.catalog.feed()?.watch_table(table, is_watched)?)
    }

    /// The next changes behind position `since`, in order; none when there are no more yet.
    pub fn feed_after(&self, since: u64) -> Result<Vec<FeedChange>> {
        Ok(self.catalog.feed()?.after(since, ROWS_MAX)?)
    }
}

impl ViewLookup<'_> {
    /// A path of an inode as the newest commit has it, from the root of its store, in bytes; `None`
    /// when it has no name, or one of its directories has none.
    pub fn committed_path(&self, store: StoreId, ino: Ino) -> Result<Option<Vec<u8>>> {
        let mut names: Vec<Name> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let parent = self.catalog.tables().parents(store, at)?.into_iter().next();
            let Some((parent, name)) = parent.filter(|_| names.len() <= PATH_BYTES_MAX) else {
                return Ok(None);
            };
            names.push(name);
            at = parent;
        }
        let parts = names.iter().rev();
        Ok(Some(
            parts
                .flat_map(|name| [b"/", name.as_bytes()].concat())
                .collect(),
        ))
    }
}
