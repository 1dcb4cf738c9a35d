//! Content of any size for a transaction, without keeping others waiting.
//!
//! # Words
//! *Staged* content is a file without a name (`Nodes::create_anonymous`) that the session writes
//! and commits beside the transaction, which then only gives it its name. Who sees the name, sees
//! it by the transaction's commit; without that commit the file goes as any file without a name
//! does: with its handle, or, after a kill or a crash, when the next session looks.
//!
//! The handle is kept until the transaction has ended: to close it is a change of the session's,
//! which would wait for the writer lock that the transaction has. Before the transaction expects
//! the file it has no writer lock (nobody can take it meanwhile,
//! `EngineShortTransaction::begin_staging`), so what fails until then leaves nothing behind.

use crate::active_transaction::lock;
use crate::database::Database;
use crate::provider::FileHandle;
use crate::transaction::Transaction;
use crate::types::{Caller, Metadata};
use larder_object::format::FileKind;
use larder_object::{Error, ErrorKind, Result};
use std::io::Read;

/// Content up to this, bytes, is written in the transaction itself: a commit beside it would cost
/// more.
const STAGED_FROM: usize = 64 << 10;
/// How much is read at a time, bytes.
const BUFFER_BYTES: usize = 1 << 20;

impl Transaction {
    /// Makes a new file of everything that `content` gives and names it `path`, in place of a file
    /// that has the name, as a rename would: that one's inode and user columns are not kept (unlike
    /// [`crate::Files::write`]). Mode 0644, this process's owner.
    ///
    /// Content beyond 64 KiB is written and made durable first, beside the transaction, unless that
    /// has the writer lock already; so it is for the beginning of a transaction, before its first
    /// change. Only then is the writer lock taken. That content was committed meanwhile counts as
    /// somebody's commit: if rows were read by SQL before, [`ErrorKind::Conflict`] follows. Errors
    /// otherwise as [`crate::Files::write`], and [`ErrorKind::Io`] when `content` fails; none of
    /// them leaves anything, and the transaction goes on. Memory: 1 MiB.
    pub fn write_file(&self, path: &[u8], content: &mut dyn Read) -> Result<Metadata> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut filled = fill(&mut buffer[..STAGED_FROM + 1], content)?;
        let (view, active) = self.parts();
        let staging = match filled > STAGED_FROM {
            true => active.between(|| active.engine().short_transaction().begin_staging())?,
            false => None,
        };
        let is_staged = staging.is_some();
        let place: &Database = match is_staged {
            true => self.host(),
            false => view,
        };
        let (parent, name) = place.nodes().resolve_parent(path)?;
        let (attr, handle) =
            place
                .nodes()
                .create_anonymous(parent, 0o644, true, Caller::current())?;
        let mut offset = 0;
        while filled > 0 {
            handle.write_at(offset, &buffer[..filled])?;
            offset += filled as u64;
            filled = fill(&mut buffer, content)?;
        }
        let node = attr.node;
        if is_staged {
            handle.sync()?;
        }
        self.keep(handle);
        drop(staging);
        if is_staged {
            let table = view.table_of(node.store);
            active.enter(|| {
                active
                    .engine()
                    .short_transaction()
                    .expect_name(table, node.ino)
            })?;
        }
        let before = self.savepoint()?;
        let named = || {
            // In the transaction the name may lead elsewhere.
            let (parent, name) = match is_staged {
                true => view.nodes().resolve_parent(path)?,
                false => (parent, name.clone()),
            };
            match view.nodes().lookup(parent, &name) {
                Ok(found) if found.kind == FileKind::Directory => Err(Error::new(
                    ErrorKind::IsADirectory,
                    format!("'{name}' is a directory"),
                )),
                Ok(_) => view.nodes().unlink(parent, &name),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }?;
            view.nodes().link(node, parent, &name)
        };
        let outcome = named();
        if active.is_over() {
            return outcome;
        }
        if outcome.is_err() {
            self.roll_back_to(before)?;
        }
        self.release(before)?;
        outcome
    }
}

/// Reads until the buffer is full or nothing more comes; how many bytes.
fn fill(buffer: &mut [u8], content: &mut dyn Read) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                let why = "the content for the file could not be read";
                return Err(Error::with_source(ErrorKind::Io, why, error));
            }
        }
    }
    Ok(filled)
}

impl Transaction {
    /// Keeps a handle until the end of the transaction.
    fn keep(&self, handle: Box<dyn FileHandle>) {
        lock(self.staged()).push(handle);
    }
}
