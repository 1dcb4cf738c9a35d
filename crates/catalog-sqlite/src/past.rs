//! Reading the past: a catalog as it was at one commit. Its statements are those of the present,
//! with the same parameters, over the rows that were there then (`history`).
//!
//! It only reads; who opens it has pinned the commit ([`CatalogPast::pin_past`], `HISTORY-3`).

pub(crate) mod as_of;
pub(crate) mod as_of_views;
pub(crate) mod snapshots;

use crate::conn::meta::find_meta;
use crate::error::no_history;
use crate::error::{At, CatalogError, Result};
use crate::history::pre_images::{places_at, pre_image};
use crate::history::{find_moment, history_begins, newest_moment, search_moments};
use crate::open::{Purpose, open_within};
use crate::space::extents::extent;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::moment::{Moment, PastPin};
use crate::types::utc;
use crate::{CatalogPast, SqliteCatalog};
use larder_format::{CommitSeq, Extent, SessionId};
use rusqlite::{Connection, OptionalExtension};

impl CatalogPast<'_> {
    /// The newest whole commit at or before a moment, and its time. [`CatalogError::Invalid`]
    /// before the history begins, in the future, and where there is no history;
    /// [`CatalogError::NotFound`]: no such snapshot. `now_ns` is the present.
    pub fn resolve_moment(&self, moment: &Moment, now_ns: i64) -> Result<(CommitSeq, i64)> {
        self.catalog.read(|reader| resolve(reader, moment, now_ns))
    }

    /// Resolves a moment and pins it for a session: nothing that its state has is reclaimed until
    /// [`CatalogPast::unpin_past`], or the session's end. [`CatalogError::PastEnded`] after that.
    pub fn pin_past(&self, session: SessionId, moment: &Moment, now_ns: i64) -> Result<PastPin> {
        self.catalog.write(|txn| {
            let (seq, at_ns) = resolve(txn, moment, now_ns)?;
            let id = txn
                // Nobody would end the pin of a session that is over.
                .prepare_cached(
                    "INSERT INTO larder_as_of (session, seq) SELECT id, ?2 FROM larder_session \
                     WHERE id = ?1 \
                     RETURNING id",
                )
                .and_then(|mut insert| {
                    insert
                        .query_row([signed(session.0), signed(seq.0)], |row| row.get(0))
                        .optional()
                })
                .at("larder_as_of")?
                .ok_or(CatalogError::PastEnded)?;
            let asked_ns = match moment {
                Moment::At(asked_ns) => *asked_ns,
                Moment::Seq(_) | Moment::Snapshot(_) => i64::MIN,
            };
            Ok(PastPin {
                id,
                session,
                seq,
                at_ns,
                asked_ns,
            })
        })
    }

    /// Ends what [`CatalogPast::pin_past`] began; twice is no error.
    pub fn unpin_past(&self, pin: &PastPin) -> Result<()> {
        self.catalog.write(|txn| {
            txn.execute(
                "DELETE FROM larder_as_of WHERE id = ?1 AND session = ?2 AND seq = ?3",
                [pin.id, signed(pin.session.0), signed(pin.seq.0)],
            )
            .at("larder_as_of")
            .map(drop)
        })
    }

    /// What a catalog of the past has just read counts if its pin is still there: then nothing of
    /// it had gone (`HISTORY-3`). 2 µs.
    pub(crate) fn require_pinned(&self, reader: &Connection) -> Result<()> {
        let Some(pin) = &self.catalog.past_pin else {
            return Ok(());
        };
        let is_there = reader
            .prepare_cached(
                "SELECT 1 FROM larder_as_of WHERE id = ?1 AND session = ?2 AND seq = ?3",
            )
            .and_then(|mut find| find.exists([pin.id, signed(pin.session.0), signed(pin.seq.0)]))
            .at("larder_as_of")?;
        match is_there {
            true => Ok(()),
            false => Err(CatalogError::PastEnded),
        }
    }

    /// The targets of pre-images that a commit after `seq` wrote, and that commit (`HISTORY-4`).
    /// O(rows found).
    pub fn pre_images_after(&self, seq: CommitSeq) -> Result<Vec<(Extent, CommitSeq)>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, start_block, block_count, until_seq FROM larder_pre_image WHERE \
                 until_seq > ?1",
                [signed(seq.0)],
                |row| Ok((extent(row)?, CommitSeq(unsigned(row, 3)?))),
            )
            .at("larder_pre_image")
        })
    }

    /// This catalog as it was when `pin` was set on it, for reading. [`CatalogError::PastEnded`] of
    /// what is read after the pin's end.
    pub fn as_of(&self, pin: &PastPin) -> Result<SqliteCatalog> {
        let mut past = open_within(&self.catalog.place, &self.catalog.options, Purpose::Past)?;
        past.as_of = Some(pin.seq);
        past.past_pin = Some(*pin);
        Ok(past)
    }

    /// All pre-images, for `check`: target, copy, up to which commit.
    pub fn all_pre_images(&self) -> Result<Vec<(Extent, Extent, CommitSeq)>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, start_block, block_count, copy_segment, copy_block, until_seq \
                 FROM larder_pre_image \
                 ORDER BY segment, start_block, until_seq",
                [],
                pre_image,
            )
            .at("larder_pre_image")
        })
    }

    /// Where the content of parts of `blocks` is that this catalog of the past has to be asked for
    /// elsewhere: (part, place), by part (`HISTORY-4`, `HISTORY-5`). Nothing in a catalog of the
    /// present.
    pub fn pre_images(&self, blocks: &Extent) -> Result<Vec<(Extent, Extent)>> {
        match self.catalog.as_of {
            Some(seq) => self.places_at(blocks, seq),
            None => Ok(Vec::new()),
        }
    }

    /// Where the content is by now that parts of `blocks` had after commit `seq`, of the parts that
    /// do not have it any more: (part, place), by part. One look for each row that counts, and one
    /// for `blocks`.
    pub fn places_at(&self, blocks: &Extent, seq: CommitSeq) -> Result<Vec<(Extent, Extent)>> {
        self.catalog.read(|reader| places_at(reader, blocks, seq))
    }
}

pub(crate) fn resolve(
    reader: &Connection,
    moment: &Moment,
    now_ns: i64,
) -> Result<(CommitSeq, i64)> {
    let is_kept = find_meta(reader, "retention_ns")? > 0;
    let newest = CommitSeq(find_meta(reader, "commit_seq")? as u64);
    let (begins, begins_ns) = history_begins(reader)?;
    let too_old = |asked: String| {
        CatalogError::invalid(format!(
            "{asked} is before the history begins, at {} (commit {begins}); ask for that or later",
            utc::show(begins_ns)
        ))
    };
    if !is_kept {
        return Err(no_history());
    }
    match moment {
        Moment::At(at_ns) if *at_ns > now_ns => Err(CatalogError::invalid(format!(
            "{} is in the future; ask for a moment that has passed",
            utc::show(*at_ns)
        ))),
        Moment::At(at_ns) => find_moment(reader, *at_ns)?.ok_or_else(|| too_old(utc::show(*at_ns))),
        Moment::Seq(seq) if *seq > newest.0 => Err(CatalogError::invalid(format!(
            "commit {seq} is in the future, the newest is {newest}; ask for one that has happened"
        ))),
        Moment::Seq(seq) if *seq < begins.0 => Err(too_old(format!("commit {seq}"))),
        Moment::Seq(seq) => {
            // A number inside of a transaction means the whole commit before it.
            let (whole, _) = search_moments(reader, |found, _| found.0 <= *seq)?;
            Ok(whole.unwrap_or((begins, begins_ns)))
        }
        Moment::Snapshot(name) => reader
            .prepare_cached("SELECT seq, at_ns FROM larder_snapshot WHERE name = ?1")
            .and_then(|mut find| {
                find.query_row([name], |row| {
                    Ok((CommitSeq(row.get::<_, i64>(0)? as u64), row.get(1)?))
                })
                .optional()
            })
            .at("larder_snapshot")?
            .ok_or_else(|| {
                CatalogError::not_found(format!(
                    "snapshot '{name}' ('larder snapshot list' shows those there are)"
                ))
            }),
    }
}

/// The newest whole commit: what a snapshot is of.
pub(crate) fn present(connection: &Connection) -> Result<(CommitSeq, i64)> {
    if find_meta(connection, "retention_ns")? <= 0 {
        return Err(no_history());
    }
    match newest_moment(connection)? {
        Some(moment) => Ok(moment),
        None => history_begins(connection),
    }
}
