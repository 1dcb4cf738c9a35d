//! Whether extent rows and maps agree on who holds which blocks (`SHARE-1`): no leak, no double
//! use.

use crate::Result;
use crate::engine::{Engine, EngineReport};
use larder_catalog::{ExtentRow, GRANTS, Held, SharedRow};
use larder_space::format::{Ino, SegmentIndex, StoreId};
use std::collections::VecDeque;

/// Rows read at a time.
const BATCH: usize = 10_000;

impl EngineReport<'_> {
    /// Compares all extent rows with `mapped`, what the maps name, by place. Returns the number of
    /// rows.
    pub(crate) fn check_holders(
        &self,
        mapped: Vec<Held>,
        findings: &mut Vec<String>,
    ) -> Result<u64> {
        let limits = self.segment_blocks();
        let mut sharers = Sharers {
            engine: self,
            after: None,
            waiting: VecDeque::new(),
        };
        let mut runs = mapped.into_iter().peekable();
        // What is left of runs that go on after the row that was looked at.
        let mut rest: Vec<Held> = Vec::new();
        let mut extent_count = 0;
        self.for_each_extent(|row| {
            extent_count += 1;
            let ExtentRow {
                extent, store, ino, ..
            } = row;
            if extent.end_block() > limits.get(&extent.segment).copied().unwrap_or(0) {
                findings.push(format!(
                    "{extent} of store {store} inode {ino} is beyond the end of its segment"
                ));
            }
            let mut inside: Vec<Held> = Vec::new();
            let mut found = std::mem::take(&mut rest);
            let end = (extent.segment, extent.end_block());
            while let Some(run) = runs.next_if(|(run, ..)| (run.segment, run.start_block) < end) {
                found.push(run);
            }
            for (run, store, ino) in found {
                let start = run.start_block.max(extent.start_block);
                let end = run.end_block().min(extent.end_block());
                // Whatever is mapped before this row is mapped without a row.
                if run.segment != extent.segment || start >= end || run.start_block < start {
                    findings.push(format!(
                        "{run} of store {store} inode {ino} has no extent row"
                    ));
                }
                if run.segment != extent.segment || start >= end {
                    continue;
                }
                inside.push((run.slice(start - run.start_block, end - start), store, ino));
                if run.end_block() > end {
                    let left = run.slice(end - run.start_block, run.end_block() - end);
                    rest.push((left, store, ino));
                }
            }
            let others = sharers.of(row)?;
            check_row(row, others, &inside, findings);
            Ok(())
        })?;
        for (run, store, ino) in rest.into_iter().chain(runs) {
            findings.push(format!(
                "{run} of store {store} inode {ino} has no extent row"
            ));
        }
        Ok(extent_count)
    }
}

/// Every holder of a live row names all of its blocks once, and nobody else names any.
fn check_row(
    row: &ExtentRow,
    sharers: Vec<(StoreId, Ino)>,
    inside: &[Held],
    findings: &mut Vec<String>,
) {
    if row.retired_seq.is_some() {
        findings.extend(inside.iter().map(|(run, store, ino)| {
            format!("{run} of store {store} inode {ino} is retired but mapped")
        }));
        return;
    }
    let mut holders = sharers;
    holders.insert(0, (row.store, row.ino));
    for (run, store, ino) in inside {
        if !holders.contains(&(*store, *ino)) {
            findings.push(format!(
                "{run} of store {store} inode {ino} is also used by store {} inode {}, and not \
                 shared (SHARE-1)",
                row.store, row.ino
            ));
        }
    }
    if row.store == GRANTS {
        return;
    }
    for (store, ino) in holders {
        let mut at = row.extent.start_block;
        let own = inside
            .iter()
            .filter(|held| (held.1, held.2) == (store, ino));
        for (run, ..) in own {
            if run.start_block > at {
                findings.push(leak(row.extent.segment, at, run.start_block, store, ino));
            } else if run.start_block < at {
                findings.push(format!(
                    "{run} of store {store} inode {ino} is also used by the same inode (SHARE-1)"
                ));
            }
            at = at.max(run.end_block());
        }
        if at < row.extent.end_block() {
            let end = row.extent.end_block();
            findings.push(leak(row.extent.segment, at, end, store, ino));
        }
    }
}

fn leak(segment: SegmentIndex, from: u64, to: u64, store: StoreId, ino: Ino) -> String {
    format!(
        "segment {segment} blocks {from}..{to} belong to store {store} inode {ino}, which does \
         not map them: leaked"
    )
}

/// The sharers, in the order of the rows.
struct Sharers<'e> {
    engine: &'e Engine,
    after: Option<SharedRow>,
    waiting: VecDeque<SharedRow>,
}

impl Sharers<'_> {
    /// Those of the next row; what belongs to no row is a finding of the catalog's.
    fn of(&mut self, row: &ExtentRow) -> Result<Vec<(StoreId, Ino)>> {
        let place = (row.extent.segment, row.extent.start_block);
        let mut found = Vec::new();
        if row.shared_count == 0 {
            return Ok(found);
        }
        loop {
            if self.waiting.is_empty() {
                let more = self.engine.catalog.space().sharers(self.after, BATCH)?;
                self.after = more.last().copied().or(self.after);
                self.waiting = more.into();
            }
            let next = self.waiting.front();
            let Some(next) = next.filter(|next| (next.segment, next.start_block) <= place) else {
                return Ok(found);
            };
            if (next.segment, next.start_block) == place {
                found.push((next.store, next.ino));
            }
            self.waiting.pop_front();
        }
    }
}
