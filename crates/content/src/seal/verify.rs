//! Verifying: the chain, and each state again, with the places where one differs (`SEAL-3`,
//! `SEAL-4`).

use crate::database::Database;
use crate::rooms::Snapshots;
use crate::seal::digest::{HINT_BYTES, name_hint};
use crate::seal::key::PublicKey;
use crate::seal::parts::{history_parts, own_stores, row_hint, store_part, table_part};
use crate::seal::tree::{DoneDirectory, TreeReader};
use crate::seal::{link_digest, message, state_digest};
use larder_object::format::{CommitSeq, FileKind, Ino, StoreId};
use larder_object::{
    Error, ErrorKind, Moment, Result, SealRow, SealedKind, SealedPart, SnapshotRow,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Findings of one seal that are told; the rest is counted.
const FINDINGS_MAX: usize = 100;

/// What to verify.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// The newest seal of this snapshot; `None`: all seals.
    pub snapshot: Option<String>,
    /// Each of these seals must be signed by the owner of this key.
    pub public_key: Option<PublicKey>,
    /// The chain must have this link: whoever wrote it down knows that nothing before was made
    /// anew.
    pub expected: Option<[u8; 32]>,
}

/// Something that is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyFinding {
    /// The path of a file, in the database; none: it is about no file.
    pub path: Option<Vec<u8>>,
    /// What is the matter.
    pub what: String,
}

/// How much of a seal could be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealState {
    /// All of the state was read again.
    Read,
    /// Its snapshot was destroyed: only the link is there.
    Destroyed,
}

/// A seal that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedSeal {
    /// The link.
    pub seal: SealRow,
    /// What could be compared.
    pub state: SealState,
    /// What differs, at most 100.
    pub findings: Vec<VerifyFinding>,
    /// Files whose content was read.
    pub file_count: u64,
    /// Content that was read, bytes.
    pub content_bytes: u64,
    /// Commits that it is of, the first and the last, whose rows were pruned since: their digests
    /// were not computed again.
    pub pruned: Option<(u64, u64)>,
    /// Stores of which it says nothing, by name: the snapshot does not show them, since their
    /// histories begin later.
    pub left_out: Vec<String>,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// What is wrong with the chain.
    pub chain: Vec<VerifyFinding>,
    /// The seals, oldest first.
    pub seals: Vec<VerifiedSeal>,
    /// The newest link of the chain, to be written down elsewhere.
    pub newest: Option<(u64, [u8; 32])>,
}

impl VerifyReport {
    /// Whether there is no finding.
    pub fn is_clean(&self) -> bool {
        self.chain.is_empty() && self.seals.iter().all(|seal| seal.findings.is_empty())
    }
}

fn finding(what: impl Into<String>) -> VerifyFinding {
    VerifyFinding {
        path: None,
        what: what.into(),
    }
}

impl Snapshots<'_> {
    /// Verifies seals: the links of the whole chain and their signatures, and what the snapshots
    /// show, against what was sealed. What differs is a finding, not an error. Cost: as the sealing
    /// of each. Errors: [`ErrorKind::NotFound`]: there is no seal of this snapshot, or none at all.
    pub fn verify(&self, options: &VerifyOptions) -> Result<VerifyReport> {
        let engine = self.database.whole()?;
        let all = engine.history().seals()?;
        let asked: Vec<&SealRow> = match &options.snapshot {
            None => all.iter().collect(),
            Some(name) => {
                let of_it = |seal: &&SealRow| seal.snapshot.eq_ignore_ascii_case(name);
                all.iter().rev().find(of_it).into_iter().collect()
            }
        };
        if asked.is_empty() {
            let what = match &options.snapshot {
                Some(name) => format!("snapshot '{name}' is not sealed"),
                None => "no snapshot is sealed".to_owned(),
            };
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{what}; 'larder snapshot seal' seals one"),
            ));
        }
        let mut chain = check_chain(&engine.history().database_id(), &all);
        if let Some(expected) = options.expected
            && !all.iter().any(|seal| seal.link == expected)
        {
            chain.push(finding(
                "the chain does not have the link that is expected: it was cut off, or made anew",
            ));
        }
        let snapshots = self.list()?;
        let mut seals = Vec::new();
        for seal in asked {
            let mut found = self.verify_seal(seal, &snapshots)?;
            if let Some(key) = options.public_key {
                let why = match seal.signature {
                    None => Some("it is not signed"),
                    Some((other, _)) if other != key.0 => Some("it is signed with another key"),
                    Some(_) => None,
                };
                found.findings.extend(why.map(finding));
            }
            seals.push(found);
        }
        Ok(VerifyReport {
            chain,
            seals,
            newest: all.last().map(|seal| (seal.number, seal.link)),
        })
    }

    fn verify_seal(&self, seal: &SealRow, snapshots: &[SnapshotRow]) -> Result<VerifiedSeal> {
        let mut verified = VerifiedSeal {
            seal: seal.clone(),
            state: SealState::Read,
            findings: Vec::new(),
            file_count: 0,
            content_bytes: 0,
            pruned: None,
            left_out: Vec::new(),
        };
        if seal.is_destroyed {
            verified.state = SealState::Destroyed;
            return Ok(verified);
        }
        let of_it = |row: &&SnapshotRow| row.name.eq_ignore_ascii_case(&seal.snapshot);
        let Some(snapshot) = snapshots.iter().find(of_it) else {
            let why = "its snapshot is gone, and was not destroyed by larder";
            verified.findings.push(finding(why));
            return Ok(verified);
        };
        if (snapshot.seq, snapshot.at_ns) != (seal.seq, seal.at_ns) {
            verified.findings.push(finding(format!(
                "its snapshot names commit {}, and it is of commit {}",
                snapshot.seq, seal.seq
            )));
            return Ok(verified);
        }
        let past = self
            .database
            .as_of(&Moment::Snapshot(snapshot.name.clone()))?;
        let mut work = Work {
            present: self.database,
            past: &past,
            seal: seal.number,
            parts: Vec::new(),
            findings: Findings::default(),
            verified: &mut verified,
        };
        work.compare_stores()?;
        work.compare_tables()?;
        work.compare_history()?;
        let (parts, mut findings) = (work.parts, work.findings);
        let is_proven = state_digest(&parts) == seal.state;
        match (is_proven, findings.list.is_empty()) {
            (true, true) | (false, false) => {}
            (true, false) => {
                findings = Findings::default();
                let why = "what it shows is as it was sealed, but 'larder_sealed', which says \
                    where differences are, was changed";
                findings.add(finding(why));
            }
            (false, true) => {
                let why = "its digest is not that of its parts: 'larder_seal' or 'larder_sealed' \
                    was changed";
                findings.add(finding(why));
            }
        }
        verified.findings = findings.end();
        Ok(verified)
    }
}

/// What is wrong with the links themselves (`SEAL-1`).
fn check_chain(database: &[u8; 16], all: &[SealRow]) -> Vec<VerifyFinding> {
    let mut found = Vec::new();
    let (mut number, mut previous) = (0, [0; 32]);
    for seal in all {
        let name = format!("link {} (snapshot '{}')", seal.number, seal.snapshot);
        if seal.number != number + 1 {
            found.push(finding(format!("{name} does not follow link {number}")));
        } else if seal.previous != previous {
            found.push(finding(format!(
                "{name} does not follow from the link before, which was changed"
            )));
        }
        if link_digest(database, seal) != seal.link {
            found.push(finding(format!(
                "{name} is not the digest of what it says: its row was changed"
            )));
        }
        if let Some((key, signature)) = &seal.signature
            && !PublicKey(*key).has_signed(&message(&seal.link), signature)
        {
            found.push(finding(format!("{name}: the signature is wrong")));
        }
        (number, previous) = (seal.number, seal.link);
    }
    found
}

/// Findings of one seal, of which only so many are kept.
#[derive(Default)]
struct Findings {
    list: Vec<VerifyFinding>,
    more: u64,
}

impl Findings {
    fn add(&mut self, one: VerifyFinding) {
        match self.list.len() < FINDINGS_MAX {
            true => self.list.push(one),
            false => self.more += 1,
        }
    }

    fn end(mut self) -> Vec<VerifyFinding> {
        if self.more > 0 {
            self.list.push(finding(format!("and {} more", self.more)));
        }
        self.list
    }
}

/// A seal under verification.
struct Work<'w> {
    present: &'w Database,
    past: &'w Database,
    seal: u64,
    /// The parts as they are now, in the order of the state.
    parts: Vec<SealedPart>,
    findings: Findings,
    verified: &'w mut VerifiedSeal,
}

impl Work<'_> {
    fn sealed(&self, kind: SealedKind) -> Result<Vec<SealedPart>> {
        let engine = self.present.shared.shown.engine()?;
        engine.history().sealed_parts(self.seal, kind)
    }

    fn compare_stores(&mut self) -> Result<()> {
        let sealed = self.sealed(SealedKind::Store)?;
        let mut there = BTreeSet::new();
        let own = own_stores(self.past)?;
        for (store, name) in own.left_out {
            let number = i64::from(store.0);
            if !sealed.iter().any(|one| one.store == number) {
                self.verified.left_out.push(name);
                continue;
            }
            there.insert(number);
            self.findings.add(finding(format!(
                "store '{name}' cannot be read as of then any more: its history begins later"
            )));
        }
        for (store, name) in own.shown {
            let mount = self.mount_of(store);
            let mut tree = TreeReader::new(self.past.shared.shown.past()?, store, true);
            let mut differing = HashSet::new();
            let (present, seal) = (self.present, self.seal);
            let findings = &mut self.findings;
            let found = tree.digest(&mut |tree, done| {
                let engine = present.shared.shown.engine()?;
                let known = engine
                    .history()
                    .sealed_directory(seal, store.0.into(), done.ino.0)?;
                if let Some(known) = known
                    && (known.digest, &known.hints) != (done.digest, &done.hints)
                {
                    locate(tree, &known, &done, &mount, &mut differing, findings)?;
                }
                Ok(())
            })?;
            self.verified.file_count += tree.file_count;
            self.verified.content_bytes += tree.content_bytes;
            for (path, why) in std::mem::take(&mut tree.damaged) {
                self.findings.add(VerifyFinding {
                    path: Some([&mount[..], &path].concat()),
                    what: format!("cannot be read: {why}"),
                });
            }
            let Some(found) = found else { continue };
            let part = store_part(store, &name, found);
            there.insert(part.store);
            match sealed.iter().find(|one| one.store == part.store) {
                None => self.findings.add(finding(format!(
                    "store '{name}' was not there when it was sealed"
                ))),
                Some(known) if known.name != part.name => self.findings.add(finding(format!(
                    "store '{name}' was sealed as '{}'",
                    known.name
                ))),
                Some(known) if known != &part && differing.is_empty() => {
                    self.findings.add(VerifyFinding {
                        path: Some(or_root(&mount)),
                        what: "its attributes differ".into(),
                    });
                }
                Some(_) => {}
            }
            self.parts.push(part);
        }
        for known in sealed.iter().filter(|one| !there.contains(&one.store)) {
            self.findings.add(finding(format!(
                "store '{}' is not there any more, and nothing of it",
                known.name
            )));
        }
        Ok(())
    }

    /// What stands before a path in a store.
    fn mount_of(&self, store: StoreId) -> Vec<u8> {
        let stores = self.past.read_stores();
        let found = stores.iter().find(|one| one.row.store == store);
        let mount = found.map_or("", |one| one.row.mount.as_str());
        mount.trim_end_matches('/').as_bytes().to_vec()
    }

    fn compare_tables(&mut self) -> Result<()> {
        let tables = self.present.sql().tracked_tables()?;
        for known in self.sealed(SealedKind::Table)? {
            let Some(table) = tables.iter().find(|one| one.id as u64 == known.number) else {
                self.findings.add(finding(format!(
                    "table '{}' is not tracked any more, so its rows of then are gone",
                    known.name
                )));
                continue;
            };
            let columns = Some(&known.columns[..]);
            let now = (known.number, table.name.as_str());
            let mut part = match table_part(self.present, self.past, now, columns) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let what = format!("{error}: it was sealed, and is not there any more");
                    self.findings.add(finding(what));
                    continue;
                }
                part => part?,
            };
            part.name = known.name.clone(); // It may have been renamed.
            if (part.digest, part.entry_count) != (known.digest, known.entry_count)
                || part.hints != known.hints
            {
                self.locate_row(&known, &part, &table.name)?;
            }
            self.parts.push(part);
        }
        Ok(())
    }

    /// Tells which rows of a table differ.
    fn locate_row(&mut self, known: &SealedPart, part: &SealedPart, table: &str) -> Result<()> {
        let mut rows: HashMap<[u8; 4], Vec<[u8; 4]>> = HashMap::new();
        for row in known.hints.chunks_exact(HINT_BYTES) {
            rows.entry(hint_at(row, 0))
                .or_default()
                .push(hint_at(row, 4));
        }
        let findings = &mut self.findings;
        let before = findings.list.len();
        let mut visit = |key: &[u8], row: &[u8]| {
            let row = row_hint(key, row);
            let what = match rows.get_mut(&hint_at(&row, 0)).and_then(Vec::pop) {
                Some(known) if known == hint_at(&row, 4) => return,
                Some(_) => "differs",
                None => "was not there",
            };
            findings.add(finding(format!(
                "table '{table}': row {} {what}",
                shown_key(key)
            )));
        };
        let past = self.past.shared.shown.view();
        let engine = self.present.shared.shown.engine()?;
        engine
            .history()
            .for_each_past_row(past, table, Some(&part.columns), &mut visit)?;
        let missing: usize = rows.values().map(Vec::len).sum();
        if missing > 0 {
            findings.add(finding(format!(
                "table '{table}': {missing} of the rows that were sealed are missing"
            )));
        }
        if findings.list.len() == before && findings.more == 0 {
            findings.add(finding(format!("table '{table}' differs")));
        }
        Ok(())
    }

    fn compare_history(&mut self) -> Result<()> {
        let sealed = self.sealed(SealedKind::History)?;
        let stores: BTreeSet<i64> = {
            let stores = self.present.read_stores();
            stores.iter().map(|one| one.row.store.0.into()).collect()
        };
        let mut ranges: BTreeMap<(CommitSeq, u64), Vec<SealedPart>> = BTreeMap::new();
        for part in sealed {
            ranges
                .entry((part.from, part.number))
                .or_default()
                .push(part);
        }
        for ((from, to), known) in ranges {
            let (found, begins) = history_parts(self.present, from, CommitSeq(to))?;
            if begins.all > from {
                let first = self.verified.pruned.map_or(from.0 + 1, |(first, _)| first);
                self.verified.pruned = Some((first, to));
                self.parts.extend(known);
                continue;
            }
            let mut found: BTreeMap<i64, SealedPart> =
                found.into_iter().map(|part| (part.store, part)).collect();
            for known in known {
                if begins.of(known.store) > from {
                    // Of this store alone.
                    let first = self.verified.pruned.map_or(from.0 + 1, |(first, _)| first);
                    self.verified.pruned = Some((first, to));
                    self.parts.push(known);
                    continue;
                }
                match found.remove(&known.store) {
                    Some(part) => {
                        if part != known {
                            self.add_history(&known, "differs");
                        }
                        self.parts.push(part);
                    }
                    // The history of a store ends with it, which is told of the store.
                    None if known.store >= 0 && !stores.contains(&known.store) => {
                        self.parts.push(known);
                    }
                    None => self.add_history(&known, "is missing"),
                }
            }
            for part in found.into_values() {
                self.add_history(&part, "was not there");
                self.parts.push(part);
            }
        }
        Ok(())
    }

    fn add_history(&mut self, part: &SealedPart, how: &str) {
        let of = match part.store {
            -1 => "the times of commits".to_owned(),
            -2 => "the history of tracked tables in commits".to_owned(),
            store => {
                let stores = self.present.read_stores();
                let found = stores
                    .iter()
                    .find(|one| i64::from(one.row.store.0) == store);
                let name = found.map_or_else(|| store.to_string(), |one| one.row.name.clone());
                format!("the history of store '{name}' in commits")
            }
        };
        self.findings.add(finding(format!(
            "{of} {} to {} {how}",
            part.from.0 + 1,
            part.number
        )));
    }
}

/// Tells what differs in a directory, but what was told of the directories in it.
fn locate(
    tree: &TreeReader,
    known: &SealedPart,
    done: &DoneDirectory,
    mount: &[u8],
    differing: &mut HashSet<Ino>,
    findings: &mut Findings,
) -> Result<()> {
    let mut entries: HashMap<[u8; 4], Vec<[u8; 8]>> = HashMap::new();
    for entry in known.hints.chunks_exact(HINT_BYTES) {
        let mut rest = [0; 8];
        rest.copy_from_slice(&entry[4..]);
        entries.entry(hint_at(entry, 0)).or_default().push(rest);
    }
    differing.insert(done.ino);
    let mut has_told = false;
    let now = tree.entries(done.ino)?;
    for ((name, kind, ino), hints) in now.iter().zip(done.hints.chunks_exact(HINT_BYTES)) {
        let was = entries
            .get_mut(&name_hint(name.as_bytes()))
            .and_then(Vec::pop);
        let differs = |at: usize| was.is_none_or(|was| was[at - 4..at] != hints[at..at + 4]);
        let is_below = *kind == FileKind::Directory && differing.contains(ino);
        let what = match was {
            None => "has a name that was not sealed",
            Some(_) if differs(4) && (!differs(8) || is_below) => "its attributes differ",
            Some(_) if differs(4) => "its attributes and its content differ",
            Some(_) if differs(8) && is_below => {
                has_told = true;
                continue;
            }
            Some(_) if differs(8) => "its content differs",
            Some(_) => continue,
        };
        has_told = true;
        findings.add(VerifyFinding {
            path: Some([mount, &done.path, b"/", name.as_bytes()].concat()),
            what: what.into(),
        });
    }
    let missing: usize = entries.values().map(Vec::len).sum();
    let what = match missing {
        0 if has_told => return Ok(()),
        0 => "differs".to_owned(),
        1 => "one of the names that were sealed in it is missing".to_owned(),
        _ => format!("{missing} of the names that were sealed in it are missing"),
    };
    findings.add(VerifyFinding {
        path: Some(or_root(&[mount, &done.path].concat())),
        what,
    });
    Ok(())
}

fn or_root(path: &[u8]) -> Vec<u8> {
    match path.is_empty() {
        true => b"/".to_vec(),
        false => path.to_vec(),
    }
}

fn hint_at(hints: &[u8], at: usize) -> [u8; 4] {
    std::array::from_fn(|index| hints.get(at + index).copied().unwrap_or(0))
}

/// A key, as its bytes say it: the column, the type, the length, the value.
fn shown_key(key: &[u8]) -> String {
    match key {
        [_, _, kind, _, _, _, _, _, _, _, _, value @ ..] => match (kind, value) {
            (1, value) => {
                let value = <[u8; 8]>::try_from(value).unwrap_or_default();
                i64::from_le_bytes(value).to_string()
            }
            (3, value) => format!("'{}'", String::from_utf8_lossy(value)),
            (_, value) => value.iter().map(|byte| format!("{byte:02x}")).collect(),
        },
        _ => "NULL".to_owned(),
    }
}
