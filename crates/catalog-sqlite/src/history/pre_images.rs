//! Pre-images: where content lies that blocks held until a commit.
//!
//! # Words
//! A *pre-image* is a row of `larder_pre_image`. Its *target* is the blocks that held the content
//! for commits before `until_seq`; its *copy* is where the content lies since. Two kinds of
//! commits write one:
//! * the commit before an apply, of the targets of redo rows, which the apply then writes over
//!   (`HISTORY-4`): the copy is a new extent;
//! * a commit that moves content (`HISTORY-5`): the target is the old place, and the copy the new
//!   one.
//!
//! A copy may be the target of a later pre-image: rows are followed from copy to copy.

use crate::error::{At, Result};
use crate::history::PRE_IMAGE_BLOCKS_MAX;
use crate::space::extents::extent;
use crate::types::codec::{rows, signed, unsigned};
use larder_format::{CommitSeq, Extent, SegmentIndex};
use rusqlite::{Connection, Row, params};

/// Where the content is by now that parts of `blocks` had after commit `seq`
/// ([`CatalogPast::places_at`](crate::CatalogPast::places_at)).
pub(crate) fn places_at(
    reader: &Connection,
    blocks: &Extent,
    seq: CommitSeq,
) -> Result<Vec<(Extent, Extent)>> {
    let mut found = Vec::new();
    // What is looked for, what of `blocks` it is, and as of when.
    let mut wanted = vec![(*blocks, *blocks, seq)];
    while let Some((place, part, seq)) = wanted.pop() {
        let mut rest = vec![place];
        for (target, copy, until) in pre_images_over(reader, &place, seq)? {
            let mut left = Vec::new();
            for piece in rest.drain(..) {
                if !piece.overlaps(&target) {
                    left.push(piece);
                    continue;
                }
                let start = piece.start_block.max(target.start_block);
                let end = piece.end_block().min(target.end_block());
                let count = end - start;
                wanted.push((
                    copy.slice(start - target.start_block, count),
                    part.slice(start - place.start_block, count),
                    until,
                ));
                if piece.start_block < start {
                    left.push(piece.slice(0, start - piece.start_block));
                }
                if end < piece.end_block() {
                    left.push(piece.slice(end - piece.start_block, piece.end_block() - end));
                }
            }
            rest = left;
        }
        // Of `blocks` itself, what is where it was needs no mention.
        if place != part {
            let part_of = |piece: Extent| {
                part.slice(piece.start_block - place.start_block, piece.block_count)
            };
            found.extend(rest.into_iter().map(|piece| (part_of(piece), piece)));
        }
    }
    found.sort_unstable();
    let mut parts: Vec<(Extent, Extent)> = Vec::with_capacity(found.len());
    for part in found {
        match parts.last_mut() {
            Some(last) if last.0.is_followed_by(&part.0) && last.1.is_followed_by(&part.1) => {
                last.0.block_count += part.0.block_count;
                last.1.block_count += part.1.block_count;
            }
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// The pre-images whose targets share blocks with `place` and that count for commit `seq`, the one
/// that counts first first.
fn pre_images_over(
    reader: &Connection,
    place: &Extent,
    seq: CommitSeq,
) -> Result<Vec<(Extent, Extent, CommitSeq)>> {
    rows(
        reader,
        "SELECT segment, start_block, block_count, copy_segment, copy_block, until_seq FROM \
         larder_pre_image \
         WHERE segment = ?1 AND start_block > ?2 - ?5 AND start_block < ?3 \
           AND start_block + block_count > ?2 AND until_seq > ?4 ORDER BY until_seq",
        params![
            place.segment.0,
            signed(place.start_block),
            signed(place.end_block()),
            signed(seq.0),
            signed(PRE_IMAGE_BLOCKS_MAX)
        ],
        pre_image,
    )
    .at("larder_pre_image")
}

/// A row of `larder_pre_image`: target, copy, up to which commit.
pub(crate) fn pre_image(row: &Row<'_>) -> rusqlite::Result<(Extent, Extent, CommitSeq)> {
    let target = extent(row)?;
    let copy = Extent::new(
        SegmentIndex(row.get(3)?),
        unsigned(row, 4)?,
        target.block_count,
    );
    Ok((target, copy, CommitSeq(unsigned(row, 5)?)))
}
