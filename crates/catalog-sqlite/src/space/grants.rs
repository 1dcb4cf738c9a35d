//! Where a workspace may allocate, and whether a catalog is one's (`WORKSPACE-1`).

use crate::error::{At, Result};
use crate::space::extents;
use crate::types::codec::{rows, unsigned};
use larder_format::Extent;
use rusqlite::{Connection, OptionalExtension};

/// Where a workspace may allocate, by place; no two overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants(Vec<Extent>);

impl Grants {
    /// From extents in any order.
    pub fn new(mut extents: Vec<Extent>) -> Grants {
        extents.sort_unstable();
        Grants(extents)
    }

    /// All of them, by place.
    pub fn extents(&self) -> &[Extent] {
        &self.0
    }

    /// The parts of `extent`, by place, and whether each is granted. O(log grants + parts).
    pub fn parts(&self, extent: Extent) -> Vec<(Extent, bool)> {
        let mut parts = Vec::with_capacity(1);
        let mut at = extent.start_block;
        let first = self.0.partition_point(|grant| {
            (grant.segment, grant.end_block()) <= (extent.segment, extent.start_block)
        });
        let mut push = |from: u64, to: u64, is_granted: bool| {
            if from < to {
                parts.push((Extent::new(extent.segment, from, to - from), is_granted));
            }
        };
        for grant in self.0[first..]
            .iter()
            .take_while(|grant| grant.overlaps(&extent))
        {
            let start = grant.start_block.max(at);
            let end = grant.end_block().min(extent.end_block());
            push(at, start, false);
            push(start, end, true);
            at = end;
        }
        push(at, extent.end_block(), false);
        parts
    }

    /// Whether all of `extent` is granted.
    pub fn contain(&self, extent: Extent) -> bool {
        self.parts(extent).iter().all(|(_, is_granted)| *is_granted)
    }
}

/// What a catalog is: a workspace has a number and grants.
pub(crate) fn identify(connection: &Connection) -> Result<(Option<u64>, Grants)> {
    let id = connection
        .query_row(
            "SELECT value FROM larder_meta WHERE key = 'workspace'",
            [],
            |row| unsigned(row, 0),
        )
        .optional()
        .at("larder_meta")?;
    Ok((id, read_grants(connection)?))
}

/// The grants of a workspace, from its table.
pub(crate) fn read_grants(connection: &Connection) -> Result<Grants> {
    let extents = rows(
        connection,
        "SELECT segment, start_block, block_count FROM larder_grant",
        [],
        extents::extent,
    )
    .at("larder_grant")?;
    Ok(Grants::new(extents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::SegmentIndex;

    #[test]
    fn an_extent_is_cut_where_grants_end() {
        let at = |start, count| Extent::new(SegmentIndex(0), start, count);
        let grants = Grants::new(vec![at(20, 10), at(5, 5), at(30, 2)]);
        assert_eq!(
            grants.parts(at(0, 40)),
            [
                (at(0, 5), false),
                (at(5, 5), true),
                (at(10, 10), false),
                (at(20, 10), true),
                (at(30, 2), true),
                (at(32, 8), false)
            ]
        );
        assert_eq!(grants.parts(at(6, 2)), [(at(6, 2), true)]);
        assert!(grants.contain(at(25, 7)) && !grants.contain(at(4, 2)));
        let other = Extent::new(SegmentIndex(1), 20, 1);
        assert_eq!(grants.parts(other), [(other, false)]);
    }
}
