//! Content that was refused and for which the host has no room: in memory until there is.
//!
//! ```text
//!  taken out ─▶ kept (refused_content) ─the host is full─▶ held ─there is room─▶ kept
//!                                                           └ the process ends: lost, it says so
//! ```
//!
//! A commit does not wait for that room: who deletes something to make room needs commits. Nor does
//! what is kept take the reserve of the host (`HOST-1`), which is for them.
//!
//! # Invariants
//! * `CONSTRAINT-6` What is refused and could not be kept is held, up to [`HELD_BYTES_MAX`], and
//!   kept as soon as that works. *Guard*: every tick tries again, and the end of the session, which
//!   may take the reserve; what is lost in the end is an error of that end, and in the log.

use crate::commit::refused_content::RefusedFile;
use crate::commit::{HeldRefusal, NewRefused};
use crate::engine::{EngineRefusals, lock};
use crate::view::node::Node;
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Content that is held at most, all together, bytes.
const HELD_BYTES_MAX: u64 = 64 << 20;

impl EngineRefusals<'_> {
    /// Keeps what was refused; `None`: the host has no room, and it is held (`CONSTRAINT-6`).
    pub(crate) fn keep_refused(
        &self,
        node: &Arc<Node>,
        why: &str,
        path: Vec<u8>,
        has_content: bool,
    ) -> Result<Option<RefusedFile>> {
        let size_bytes = match has_content {
            true => node.lock().row.size_bytes,
            false => 0,
        };
        let new = NewRefused {
            at_ns: self.now_ns(),
            store: node.store,
            ino: node.ino,
            why,
            path,
            size_bytes: has_content.then_some(size_bytes),
        };
        let mut read = |offset: u64, buffer: &mut [u8]| self.read(node, offset, buffer);
        let size_bytes = new.size_bytes.unwrap_or(0);
        let kept = (self.require_space_to_keep(size_bytes))
            .and_then(|()| self.add_refused(&new, &mut read));
        match kept {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                match self.hold_refused(&new, &mut read)? {
                    true => Ok(None),
                    false => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Holds something that could not be kept; `false` if it is too much.
    fn hold_refused(
        &self,
        new: &NewRefused<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<bool> {
        let mut all = lock(&self.refusals.held.all);
        let held: u64 = all.iter().map(|one| one.content.len() as u64).sum();
        let size_bytes = new.size_bytes.unwrap_or(0);
        if held.saturating_add(size_bytes) > HELD_BYTES_MAX {
            return Ok(false);
        }
        let mut content = vec![0; size_bytes as usize];
        let mut done = 0;
        while done < content.len() {
            match read(done as u64, &mut content[done..])? {
                0 => break,
                count => done += count,
            }
        }
        content.truncate(done);
        all.push(HeldRefusal {
            why: new.why.to_owned(),
            new: NewRefused {
                why: "",
                path: new.path.clone(),
                ..*new
            },
            content,
        });
        self.refusals.held.is_some.store(true, Ordering::SeqCst);
        Ok(true)
    }

    /// How many are held.
    pub(crate) fn held_count(&self) -> u64 {
        match self.refusals.held.is_some.load(Ordering::SeqCst) {
            true => lock(&self.refusals.held.all).len() as u64,
            false => 0,
        }
    }

    /// Keeps what is held, as far as there is room; in the end also in the reserve of the host.
    /// What has no room waits, and keeps nothing smaller waiting; the error is the first one's.
    pub(crate) fn keep_held(&self, is_end: bool) -> Result<()> {
        if !self.refusals.held.is_some.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut all = lock(&self.refusals.held.all);
        let mut outcome = Ok(());
        let mut index = 0;
        while let Some(held) = all.get(index) {
            match self.keep_one(held, is_end) {
                Ok(()) => drop(all.remove(index)),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    index += 1;
                }
            }
        }
        (self.refusals.held.is_some).store(!all.is_empty(), Ordering::SeqCst);
        outcome
    }

    fn keep_one(&self, held: &HeldRefusal, is_end: bool) -> Result<()> {
        if !is_end {
            self.require_space_to_keep(held.content.len() as u64)?;
        }
        let new = NewRefused {
            why: &held.why,
            path: held.new.path.clone(),
            ..held.new
        };
        let RefusedFile { id, .. } = self.add_refused(&new, &mut |offset, buffer| {
            let rest = &held.content[(offset as usize).min(held.content.len())..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })?;
        tracing::warn!(
            "what a constraint refused of {} is kept now: 'larder refused get DATABASE {id}'",
            String::from_utf8_lossy(&held.new.path)
        );
        Ok(())
    }

    /// The session ends: what is still held is lost, and the error says so.
    pub(crate) fn end_held(&self) -> Result<()> {
        let Err(error) = self.keep_held(true) else {
            return Ok(());
        };
        let all = std::mem::take(&mut *lock(&self.refusals.held.all));
        let paths: Vec<_> = (all.iter())
            .map(|held| String::from_utf8_lossy(&held.new.path))
            .collect();
        let why = format!(
            "what constraints refused of {} is lost: it was in memory, and the host has no room \
             to keep it",
            paths.join(", ")
        );
        tracing::error!("{why}: {error}");
        Err(Error::with_source(ErrorKind::NoSpace, why, error))
    }
}
