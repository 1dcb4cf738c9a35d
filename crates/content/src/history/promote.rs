//! Putting a copy in the place of what it was made of.

use crate::rooms::History;
use crate::transaction::TransactionOptions;
use crate::types::{NodeId, RenameMode};
use larder_object::format::{FileKind, Ino, StoreId};
use larder_object::{Error, ErrorKind, Result};

impl History<'_> {
    /// Exchanges the places of two directories of one store, or of two stores, durably, in one
    /// commit: what `path` named is at `other` from then on, and the other way round. Inode numbers
    /// stay with what they number, and names of stores and of their tables too, since they stand
    /// for the rows.
    ///
    /// Errors: [`ErrorKind::NotADirectory`]; [`ErrorKind::CrossStore`] for directories of two
    /// stores; [`ErrorKind::InvalidInput`] for a store and a directory, for `main`, which is always
    /// at `/`, for one that lies in the other, and for twice the same; [`ErrorKind::Busy`] when
    /// other stores are mounted in one of them.
    pub fn promote(&self, path: &[u8], other: &[u8]) -> Result<()> {
        self.database.whole()?;
        // With the writer lock: what is looked at is what is exchanged.
        let transaction = self
            .database
            .transactions()
            .begin_with(&TransactionOptions {
                is_immediate: true,
                ..TransactionOptions::default()
            })?;
        transaction.reload_stores()?;
        transaction.history().exchange(path, other)?;
        transaction.commit()
    }

    /// The same in a transaction that has the writer lock.
    fn exchange(&self, path: &[u8], other: &[u8]) -> Result<()> {
        let one_node = self.directory_at(path)?;
        let other_node = self.directory_at(other)?;
        if one_node == other_node {
            return Err(refused(path, other, "are one directory; name two"));
        }
        match (one_node.ino == Ino::ROOT, other_node.ino == Ino::ROOT) {
            (false, false) if one_node.store != other_node.store => Err(Error::new(
                ErrorKind::CrossStore,
                told(
                    path,
                    other,
                    "are in two stores; copy one of them with 'larder cp -a' first",
                ),
            )),
            (false, false) => {
                let (parent, name) = self.database.nodes().resolve_parent(path)?;
                let (other_parent, other_name) = self.database.nodes().resolve_parent(other)?;
                let mode = RenameMode::Exchange;
                self.database
                    .nodes()
                    .rename(parent, &name, other_parent, &other_name, mode)
            }
            (true, true) => {
                self.require_exchangeable((one_node.store, path), (other_node.store, other))?;
                self.database.enter(|engine| {
                    engine
                        .namespace()
                        .exchange_mounts(one_node.store, other_node.store)
                })?;
                self.database.note_stores();
                Ok(())
            }
            _ => Err(refused(
                path,
                other,
                "are a store and a directory; promote exchanges two of a kind, 'larder store set \
                 --mount' moves a store",
            )),
        }
    }

    fn directory_at(&self, path: &[u8]) -> Result<NodeId> {
        let attr = self.database.nodes().resolve(path, false)?;
        match attr.kind {
            FileKind::Directory => Ok(attr.node),
            _ => Err(Error::new(
                ErrorKind::NotADirectory,
                format!(
                    "'{}' is not a directory; promote exchanges directories or stores",
                    String::from_utf8_lossy(path)
                ),
            )),
        }
    }

    fn require_exchangeable(
        &self,
        (one, path): (StoreId, &[u8]),
        (other, other_path): (StoreId, &[u8]),
    ) -> Result<()> {
        if one == StoreId::MAIN || other == StoreId::MAIN {
            let why = "cannot be exchanged: store 'main' is always mounted at '/'; exchange \
                directories in it";
            return Err(refused(path, other_path, why));
        }
        let stores = self.database.read_stores();
        let host = stores.iter().find(|store| {
            let place = store.place.as_ref().map(|(host, _)| *host);
            place == Some(one) || place == Some(other)
        });
        match host {
            None => Ok(()),
            Some(inner) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "store '{}' is mounted in one of them; move it with 'larder store set \
                     --mount' first",
                    inner.row.name
                ),
            )),
        }
    }
}

fn refused(path: &[u8], other: &[u8], why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, told(path, other, why))
}

fn told(path: &[u8], other: &[u8], why: &str) -> String {
    let (path, other) = (
        String::from_utf8_lossy(path),
        String::from_utf8_lossy(other),
    );
    format!("'{path}' and '{other}' {why}")
}
