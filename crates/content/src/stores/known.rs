//! The stores of a database, as this process knows them.

use crate::provider::StoreProvider;
use larder_object::StoreRow;
use larder_object::format::{Name, StoreId};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A store as `larder store list` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// Its id.
    pub store: StoreId,
    /// Its name; also the name of its table unless it shows another store's.
    pub name: String,
    /// `files`, `readonly`, or the name of a provider of your own.
    pub provider: String,
    /// Where it is mounted.
    pub mount: String,
    /// The name of the store whose table it shows.
    pub table: String,
}

/// A store with its provider and its place in the tree.
#[derive(Clone)]
pub(crate) struct MountedStore {
    pub(crate) row: StoreRow,
    /// `None`: this program does not have the provider.
    pub(crate) provider: Option<Arc<dyn StoreProvider>>,
    /// Where the mount hangs: the root of this store, under this name; `None` for `main`.
    pub(crate) place: Option<(StoreId, Name)>,
}

/// The stores of a database, as this process knows them.
#[derive(Default)]
pub(crate) struct KnownStores {
    pub(super) list: RwLock<Vec<MountedStore>>,
    /// How often others may have changed them, and of how many of these changes the list knows.
    pub(super) change_count: AtomicU64,
    pub(super) known_count: AtomicU64,
    pub(super) one_at_a_time: Mutex<()>,
}

impl KnownStores {
    pub(crate) fn set(&self, stores: Vec<MountedStore>) {
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = stores;
    }
}
