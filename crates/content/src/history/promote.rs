//! Putting a copy in the place of what it was made of.

use crate::database::Database;
use crate::transaction::TransactionOptions;
use crate::types::{NodeId, RenameMode};
use larder_object::format::{FileKind, Ino, StoreId};
use larder_object::{Error, ErrorKind, Result};

/// What `History::promote` does.
pub(super) fn promote(database: &Database, path: &[u8], other: &[u8]) -> Result<()> {
    database.whole()?;
    // With the writer lock: what is looked at is what is exchanged.
    let transaction = database.transactions().begin_with(&TransactionOptions {
        is_immediate: true,
        ..TransactionOptions::default()
    })?;
    transaction.reload_stores()?;
    exchange(&transaction, path, other)?;
    transaction.commit()
}

/// The same in a transaction that has the writer lock.
fn exchange(database: &Database, path: &[u8], other: &[u8]) -> Result<()> {
    let one_node = directory_at(database, path)?;
    let other_node = directory_at(database, other)?;
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
            let (parent, name) = database.nodes().resolve_parent(path)?;
            let (other_parent, other_name) = database.nodes().resolve_parent(other)?;
            let mode = RenameMode::Exchange;
            database
                .nodes()
                .rename(parent, &name, other_parent, &other_name, mode)
        }
        (true, true) => {
            require_exchangeable(database, (one_node.store, path), (other_node.store, other))?;
            database.enter(|engine| {
                engine
                    .namespace()
                    .exchange_mounts(one_node.store, other_node.store)
            })?;
            database.note_stores();
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

fn directory_at(database: &Database, path: &[u8]) -> Result<NodeId> {
    let attr = database.nodes().resolve(path, false)?;
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
    database: &Database,
    (one, path): (StoreId, &[u8]),
    (other, other_path): (StoreId, &[u8]),
) -> Result<()> {
    if one == StoreId::MAIN || other == StoreId::MAIN {
        let why = "cannot be exchanged: store 'main' is always mounted at '/'; exchange \
            directories in it";
        return Err(refused(path, other_path, why));
    }
    let stores = database.read_stores();
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
