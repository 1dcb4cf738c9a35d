//! Sealed snapshots: digests over all that a snapshot shows, in a chain, so that what was changed
//! behind it is found.
//!
//! # Words
//! A *seal* is a link of the chain: the digest of a state, the link before, and maybe a signature.
//! A *part* of a state is the tree of a store, the rows of a tracked table, or what some commits
//! superseded (`parts`). docs/decisions/0030-time.md says what a seal is evidence of, and for whom.
//!
//! # Invariants
//! * `SEAL-3` A seal verifies as long as nothing of what it is of was changed by other means than
//!   the engine's, or by the engine in a way that it says: moves, compaction, prune, restores, undo
//!   and reopening change nothing of a snapshot. *Guard*: a digest is of what is read through the
//!   snapshot, not of where it lies.
//! * `SEAL-4` Where a seal does not verify there is a finding, and the first one names a place
//!   where a difference is, as far as the parts that were kept tell. *Guard*: hints only locate;
//!   the digest above decides.

mod digest;
mod key;
mod parts;
mod tree;
mod verify;

pub use key::{PublicKey, SigningKey};
pub use verify::{SealState, VerifiedSeal, VerifyFinding, VerifyOptions, VerifyReport};

use crate::rooms::Snapshots;
use digest::{Digest, Hasher};
use larder_object::format::CommitSeq;
use larder_object::{Error, ErrorKind, Moment, Result, SealRow, SealedPart};
use parts::Parts;

/// What was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealReport {
    /// The link.
    pub seal: SealRow,
    /// Files whose content was read.
    pub file_count: u64,
    /// Content that was read, bytes; holes take none.
    pub content_bytes: u64,
    /// Stores that the seal says nothing of, by name: their histories begin after the moment of the
    /// snapshot.
    pub left_out: Vec<String>,
}

impl Snapshots<'_> {
    /// Seals a snapshot: reads all that it shows, and adds a link to the chain, signed if there is
    /// a key; durable when it returns. A snapshot can be sealed more than once. One of a moment
    /// that the history of some store does not reach shows nothing of that store, and its seal says
    /// nothing of it ([`SealReport::left_out`]). Cost: reads all its content, about 1 GB/s, and 50
    /// µs per file; 12 bytes for each file and about 100 for each directory in the catalog, and
    /// while they are written, in one transaction. Errors: [`ErrorKind::NotFound`]: no such
    /// snapshot; [`ErrorKind::Corrupt`]: some of it cannot be read.
    pub fn seal(&self, name: &str, key: Option<&SigningKey>) -> Result<SealReport> {
        let engine = self.database.whole()?;
        let snapshot = self.find(name)?;
        let past = self
            .database
            .as_of(&Moment::Snapshot(snapshot.name.clone()))?;
        let mut parts = Parts::read(self.database, &past)?;
        loop {
            let before = engine.history().seals()?;
            let newest = before.last();
            // Commits before an older seal's snapshot are its.
            let covered = before.iter().map(|seal| seal.seq).max();
            parts.read_history(self.database, covered.unwrap_or(CommitSeq(0)), snapshot.seq)?;
            let mut seal = SealRow {
                number: newest.map_or(1, |seal| seal.number + 1),
                snapshot: snapshot.name.clone(),
                seq: snapshot.seq,
                at_ns: snapshot.at_ns,
                sealed_ns: self.database.now_ns(),
                state: state_digest(&parts.list),
                previous: newest.map_or([0; 32], |seal| seal.link),
                link: [0; 32],
                signature: None,
                is_destroyed: false,
            };
            seal.link = link_digest(&engine.history().database_id(), &seal);
            seal.signature = key.map(|key| (key.public_key().0, key.sign(&message(&seal.link))));
            if engine.history().add_seal(&seal, &parts.all())? {
                return Ok(SealReport {
                    seal,
                    file_count: parts.file_count,
                    content_bytes: parts.content_bytes,
                    left_out: parts.left_out,
                });
            }
            // Somebody has sealed another one meanwhile.
        }
    }

    /// All seals, oldest first.
    pub fn seals(&self) -> Result<Vec<SealRow>> {
        self.database.whole()?.history().seals()
    }

    fn find(&self, name: &str) -> Result<larder_object::SnapshotRow> {
        let mut rows = self.list()?.into_iter();
        rows.find(|row| row.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "there is no snapshot '{name}'; 'larder snapshot list' names those there \
                         are"
                    ),
                )
            })
    }
}

/// Of all that a seal is of, in the order of the parts.
fn state_digest(parts: &[SealedPart]) -> Digest {
    let mut hasher = Hasher::new("state");
    hasher.number(parts.len() as u64);
    for part in parts {
        hasher.bytes(part.kind.as_str().as_bytes());
        hasher.signed(part.store);
        hasher.number(part.number);
        hasher.number(part.from.0);
        hasher.bytes(part.name.as_bytes());
        hasher.number(part.columns.len() as u64);
        for column in &part.columns {
            hasher.bytes(column.as_bytes());
        }
        hasher.number(part.entry_count);
        hasher.fixed(&part.digest);
    }
    hasher.end()
}

/// Of a link: all that its row says, and the link before.
fn link_digest(database: &[u8; 16], seal: &SealRow) -> Digest {
    let mut hasher = Hasher::new("seal");
    hasher.fixed(database);
    hasher.number(seal.number);
    hasher.fixed(&seal.previous);
    hasher.bytes(seal.snapshot.as_bytes());
    hasher.number(seal.seq.0);
    hasher.signed(seal.at_ns);
    hasher.signed(seal.sealed_ns);
    hasher.fixed(&seal.state);
    hasher.end()
}

/// What is signed: `larder seal 1`, a zero byte, and the link.
fn message(link: &Digest) -> Vec<u8> {
    [&b"larder seal 1\0"[..], link].concat()
}
