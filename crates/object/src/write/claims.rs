//! Claims: who may take memory for content, and who waits for it.
//!
//! # Words
//! *Gathered*: memory of dirty and kept content (`Engine::dirty_bytes`, `Engine::kept_bytes`).
//! *Claim*: memory that a change may take, held until what it took counts as gathered. *Bound*:
//! `Session::dirty_bytes_max`.
//!
//! # Invariants
//! * `CLAIM-1` Gathered memory and claims together are at most the bound, except for claims that
//!   were admitted with nothing left that a commit could write: one that is larger than the bound,
//!   and those of a caller that holds others meanwhile.
//!
//! # Concurrency
//! A claim is taken before any lock: who waits for it commits. Who waits is admitted before who
//! comes later, so that a large change is not starved by small ones.

use crate::Result;
use crate::engine::{EngineDelayedAllocation, lock};
use crate::view::gather;
use crate::write::Claims;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// After so many commits nothing is left that one more would write: others fill what becomes free.
const COMMITS_MAX: u32 = 16;
/// Claims of others that are not gathered yet are waited for so long: they are copying.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often who waits for them looks again.
const LOOK: Duration = Duration::from_micros(100);

/// Memory that a change may take.
pub(crate) struct Claim<'e> {
    claims: &'e Claims,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl<'e> EngineDelayedAllocation<'e> {
    /// Memory of content that is dirty or kept, bytes.
    pub(crate) fn gathered_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::SeqCst) + self.kept_bytes.load(Ordering::SeqCst)
    }

    /// Claims the memory for a change of `len_bytes` of content. Waits, and commits, while there is
    /// none (`CLAIM-1`).
    pub(crate) fn claim_memory(&self, len_bytes: u64) -> Result<Claim<'e>> {
        let bytes = gather::memory_bytes_max(len_bytes);
        let claims = &self.claims;
        if claims.waiting_count.load(Ordering::SeqCst) == 0
            && let Some(claim) = self.try_claim(bytes)
        {
            return Ok(claim);
        }
        claims.waiting_count.fetch_add(1, Ordering::SeqCst);
        let first = lock(&claims.first);
        let outcome = self.wait_for_claim(bytes);
        drop(first);
        claims.waiting_count.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn wait_for_claim(&self, bytes: u64) -> Result<Claim<'e>> {
        let mut since: Option<Instant> = None;
        let mut commit_count = 0;
        loop {
            if let Some(claim) = self.try_claim(bytes) {
                return Ok(claim);
            }
            if self.dirty_bytes.load(Ordering::SeqCst) > 0 && commit_count < COMMITS_MAX {
                self.commits().commit_now()?;
                commit_count += 1;
                continue;
            }
            // What is claimed is on its way to be gathered.
            let since = *since.get_or_insert_with(Instant::now);
            let is_claimed = self.claims.bytes.load(Ordering::SeqCst) > 0;
            if !is_claimed || since.elapsed() >= PATIENCE {
                self.claims.bytes.fetch_add(bytes, Ordering::SeqCst);
                return Ok(self.claim_of(bytes));
            }
            thread::sleep(LOOK);
        }
    }

    fn try_claim(&self, bytes: u64) -> Option<Claim<'e>> {
        let claimed = self.claims.bytes.fetch_add(bytes, Ordering::SeqCst);
        let claim = self.claim_of(bytes);
        let fits = self.gathered_bytes() + claimed + bytes <= self.session.dirty_bytes_max;
        fits.then_some(claim)
    }

    fn claim_of(&self, bytes: u64) -> Claim<'e> {
        Claim {
            claims: &self.engine.claims,
            bytes,
        }
    }
}
