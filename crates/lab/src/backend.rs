//! Backends: stores of whole objects, made alike and measured alike.
//!
//! # Words
//! A *spec* is what the command line names (`ext4-1k`, `sqlite@xfs`, `dir:/srv/x`). A *ground* is
//! where a backend's bytes lie: a volume made for it, or a place that exists. A *subject* is a
//! backend on its ground.
//!
//! # Invariants
//! * `BACKEND-1` What [`Backend::put`] or [`Backend::delete`] confirmed survives a crash of the
//!   machine: old or new, whole.
//! * `BACKEND-2` The database's log, and the metadata of the file store, lie on a volume of their
//!   own: what is counted on the volume is content, and what is counted beside it is the rest.
//!   Larder's catalog lies with its content.
//! * `BACKEND-3` A subject on a place that exists makes a new directory there and removes it at the
//!   end.

pub mod directory;
pub mod ground;
pub mod larder;
pub mod place;
pub mod postgres;
pub mod s3;
pub mod spec;
pub mod sqlite;

use crate::error::Result;
use crate::measure::holes::Histogram;
use crate::measure::layout::Layout;
use crate::measure::markers::Pages;
use ::larder::AlignedBuf;
pub use ground::{Ground, Site, Subject};
pub use spec::Spec;

/// How an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The object exists, and is replaced by a *safe write*: nobody sees a part, and a crash leaves
    /// one of the two.
    pub is_replacing: bool,
    /// The program writes so many bytes at once, where the interface takes parts.
    pub request_bytes: usize,
    /// The backend is told the length first, where the interface lets it be told.
    pub is_size_known: bool,
}

/// A store of whole objects. Several threads may use it, each on objects of its own.
pub trait Backend: Send + Sync {
    /// Makes `content` the object `key`, durably (`BACKEND-1`).
    fn put(&self, key: u64, content: &[u8], how: &Put) -> Result<()>;

    /// Reads the whole object `key`.
    fn get(&self, key: u64, into: &mut AlignedBuf) -> Result<()>;

    /// Removes the object `key`, durably (`BACKEND-1`).
    fn delete(&self, key: u64) -> Result<()>;

    /// What its administrator would do now and then; called after every [`Backend::upkeep_bytes`]
    /// that were put or removed, and before a volume is called full.
    fn upkeep(&self) -> Result<()> {
        Ok(())
    }

    /// How often; `None`: never.
    fn upkeep_bytes(&self) -> Option<u64> {
        None
    }

    /// Lets go of everything, so that the volume can be unmounted. Only [`Backend::open`] may
    /// follow.
    fn close(&mut self) -> Result<()>;

    /// Removes what is left where the ground does not go with the subject, and closes.
    fn end(&mut self) -> Result<()> {
        self.close()
    }

    /// Opens what was closed.
    fn open(&mut self) -> Result<()>;

    /// Bytes of objects that it can take, as it says itself; `None`: what the filesystem says.
    fn available_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// What lies between the pages of an object.
    fn pages(&self) -> Pages {
        Pages::default()
    }

    /// The holes of its free space; `None`: it does not tell.
    fn holes(&self) -> Result<Option<Histogram>> {
        Ok(None)
    }

    /// Where the objects lie, as the backend or its filesystem tells, in their own addresses; with
    /// the name of the measure (`fragments_NAME_mean`). `None`: it does not tell.
    fn layouts(&self, _keys: &[u64]) -> Result<Option<(&'static str, Vec<Layout>)>> {
        Ok(None)
    }
}
