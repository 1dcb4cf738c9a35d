//! A view of the past: the road of reading over a catalog as of one commit, and nothing else.
//!
//! # Invariants
//! * `PAST-1` Nothing can be changed through it. *Guard*: its type, and its connections cannot
//!   write.
//! * `PAST-2` What it reads is not reclaimed while it is open. *Guard*: its pin in the catalog
//!   (`HISTORY-3`). Each read of the catalog looks whether the pin is still there: the end of the
//!   host's session ends it, and then reads fail.
//!
//! # Why no read meets a block that was written over
//! The pre-image of a target is durable before the target is written over (`PREIMAGE-1`). A read
//! asks for pre-images, then reads, and the checksums are those of its moment. If it finds other
//! bytes, somebody has written between the two: it asks again, and finds the pre-image. The same
//! holds for content that was moved: its pre-image is durable before its old place is free
//! (`HISTORY-5`). Where the answer is the one of the last time, other bytes are damage.

use crate::Result;
use crate::engine::{Engine, EnginePast};
use crate::view::read::DeviceRead;
use crate::view::{Shown, View, ViewMoment};
use larder_catalog::{Moment, PastPin};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Checksum, CommitSeq, Extent, MapPage};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A view of the database at a moment of its past. It can do what a [`View`] can: nothing changes
/// anything.
pub struct AsOf {
    view: View,
    host: Arc<Engine>,
    pin: PastPin,
}

impl Deref for AsOf {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl Drop for AsOf {
    fn drop(&mut self) {
        if let Err(error) = self.host.past().end_past(&self.pin) {
            tracing::error!("closing a view of the past: {error}");
        }
    }
}

impl AsOf {
    /// The present that it is beside.
    pub fn present(&self) -> &Arc<Engine> {
        &self.host
    }
}

/// Shows the database at a moment. Cost: one commit without content, and opening the catalog
/// and the segments, about 3 ms. Errors: [`crate::ErrorKind::InvalidInput`] before the history
/// begins, in the future, and without history; [`crate::ErrorKind::NotFound`]: no such
/// snapshot.
pub fn open_as_of(engine: &Arc<Engine>, moment: &Moment) -> Result<AsOf> {
    engine.check_running()?;
    // What ended before in this process is part of its past.
    engine.commits().sync_own()?;
    if matches!(moment, Moment::At(_)) {
        engine.past().sync_unsequenced_changes()?;
    }
    let pin =
        (engine.catalog.past()?).pin_past(engine.session.liveness.id, moment, engine.now_ns())?;
    match engine.past().show_pinned(&pin) {
        Ok(view) => Ok(AsOf {
            view,
            host: Arc::clone(engine),
            pin,
        }),
        Err(error) => {
            engine.past().end_past(&pin)?;
            Err(error)
        }
    }
}

impl EnginePast<'_> {
    fn show_pinned(&self, pin: &PastPin) -> Result<View> {
        let catalog = self.catalog.past()?.as_of(pin)?.into();
        let session = Arc::clone(&self.session);
        let view = View::new(session, catalog, Shown::Past(*pin), pin.seq);
        view.look_at_segments()?;
        view.may_have_pieces.store(true, Ordering::SeqCst);
        Ok(view)
    }

    /// Lets go what was kept for a view of the past. The end of the session ends its pins too.
    fn end_past(&self, pin: &PastPin) -> Result<()> {
        if self.is_running() {
            self.catalog.past()?.unpin_past(pin)?;
            self.expiry().look_anew();
        }
        Ok(())
    }

    /// The newest whole commit at or before a moment, and its time, nanoseconds since 1970; what
    /// ended before in this process counts. Errors as of [`crate::open_as_of`].
    pub fn resolve_moment(&self, moment: &Moment) -> Result<(CommitSeq, i64)> {
        self.check_running()?;
        // A snapshot was committed when it was made.
        if !matches!(moment, Moment::Snapshot(_)) {
            self.commits().sync_own()?;
        }
        // A time means the commit that it means when it is opened.
        if matches!(moment, Moment::At(_)) {
            self.sync_unsequenced_changes()?;
        }
        Ok(self.catalog.past()?.resolve_moment(moment, self.now_ns())?)
    }

    /// Every block that a superseded map names, and every pre-image, is held by an extent row
    /// (`HISTORY-3`).
    pub(crate) fn check_history(&self, findings: &mut Vec<String>) -> Result<()> {
        const BATCH: usize = 256;
        let mut held: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        self.report().for_each_extent(|row| {
            let extent = &row.extent;
            held.insert((extent.segment.0, extent.start_block), extent.end_block());
            Ok(())
        })?;
        let is_held = |extent: &Extent| {
            let mut at = extent.start_block;
            while at < extent.end_block() {
                let before = held.range(..=(extent.segment.0, at)).next_back();
                match before {
                    Some((&(segment, _), &end)) if segment == extent.segment.0 && end > at => {
                        at = end
                    }
                    _ => return false,
                }
            }
            true
        };
        let mut after = 0;
        loop {
            let maps = self.catalog.history()?.superseded_maps(after, BATCH)?;
            for map in &maps {
                after = map.row;
                let what = format!(
                    "store {} inode {} map page {}, until commit {}",
                    map.store, map.ino, map.page, map.until
                );
                match MapPage::decode(&map.runs) {
                    Err(error) => findings.push(format!("{what}: {error}")),
                    Ok(page) => {
                        // As its last reader sees it.
                        let at = CommitSeq(map.until.0.saturating_sub(1));
                        for run in page.runs() {
                            let lost = self
                                .moment()
                                .places_of(&run.extent, at)?
                                .into_iter()
                                .find(|part| !is_held(part));
                            findings.extend(lost.map(|part| {
                                format!(
                                    "{what}: {} has no extent row at {part} (HISTORY-3)",
                                    run.extent
                                )
                            }));
                        }
                    }
                }
            }
            if maps.len() < BATCH {
                break;
            }
        }
        for (target, copy, until) in self.catalog.past()?.all_pre_images()? {
            let places = self.moment().places_of(&copy, until)?;
            if let Some(lost) = places.iter().find(|part| !is_held(part)) {
                findings.push(format!(
                    "{copy}, the copy of {target} until commit {until}, has no extent row at \
                     {lost} (HISTORY-4)"
                ));
            }
        }
        Ok(())
    }
}

impl ViewMoment<'_> {
    /// What has been read of the past by other ways than this engine's counts if this is no error:
    /// its moment is still kept (`HISTORY-3`). 5 µs.
    pub fn require_shown(&self) -> Result<()> {
        Ok(self.catalog.retention()?.retentions().map(drop)?)
    }

    fn past_pin(&self) -> Option<&PastPin> {
        match &self.moment {
            Shown::Present | Shown::Snapshot(_) => None,
            Shown::Past(pin) => Some(pin),
        }
    }

    /// Whether it shows a moment of the past.
    pub(crate) fn is_past(&self) -> bool {
        self.past_pin().is_some()
    }

    /// The commit that is shown, and its time, nanoseconds since 1970; `None` in a view of the
    /// present.
    pub fn shows(&self) -> Option<(CommitSeq, i64)> {
        self.past_pin().map(|pin| (pin.seq, pin.at_ns))
    }

    /// The commit that is shown, and the time that was asked for; none: before all times.
    pub fn asked_ns(&self) -> Option<(CommitSeq, i64)> {
        self.past_pin().map(|pin| (pin.seq, pin.asked_ns))
    }

    /// Reads blocks as they were (`PAST-2`, `HISTORY-4`).
    pub(crate) fn read_past(
        &self,
        read: &DeviceRead,
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        let mut pre_images = self.catalog.past()?.pre_images(&read.extent)?;
        let mut has_asked_again = false;
        while let Err(error) = self.read_pre_images(read, &pre_images, checksums, target) {
            // It may lie in a part of the segments that is younger than this view.
            self.look_at_segments()?;
            let now = self.catalog.past()?.pre_images(&read.extent)?;
            if has_asked_again && now == pre_images {
                return Err(error);
            }
            (pre_images, has_asked_again) = (now, true);
        }
        Ok(())
    }

    /// All the places where the content of `blocks` after commit `seq` is by now.
    pub(crate) fn places_of(&self, blocks: &Extent, seq: CommitSeq) -> Result<Vec<Extent>> {
        let mut places = Vec::new();
        let mut at = 0;
        for (part, place) in self.catalog.past()?.places_at(blocks, seq)? {
            let start = part.start_block - blocks.start_block;
            if at < start {
                places.push(blocks.slice(at, start - at));
            }
            places.push(place);
            at = start + part.block_count;
        }
        if at < blocks.block_count {
            places.push(blocks.slice(at, blocks.block_count - at));
        }
        Ok(places)
    }

    fn read_pre_images(
        &self,
        read: &DeviceRead,
        pre_images: &[(Extent, Extent)],
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        let known = self.segment_blocks();
        let is_known = |copy: &Extent| known.get(&copy.segment) >= Some(&copy.end_block());
        if !pre_images.iter().all(|(_, copy)| is_known(copy)) {
            // Copies lie where segments have grown since this view was opened.
            self.look_at_segments()?;
        }
        let count = read.extent.block_count;
        let mut at = 0;
        for (part, copy) in pre_images {
            let start = part.start_block - read.extent.start_block;
            self.read_part(read, (at, start), read.extent, checksums, target)?;
            // As if the whole extent lay where the copy is: only its part is read.
            let end = start + part.block_count;
            self.read_blocks(read, (start, end), *copy, checksums, target)?;
            at = end;
        }
        self.read_part(read, (at, count), read.extent, checksums, target)
    }

    fn read_part(
        &self,
        read: &DeviceRead,
        (from, to): (u64, u64),
        extent: Extent,
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        match from < to {
            true => self.read_blocks(
                read,
                (from, to),
                extent.slice(from, to - from),
                checksums,
                target,
            ),
            false => Ok(()),
        }
    }

    /// Reads blocks `from..to` of a read from `place`.
    fn read_blocks(
        &self,
        read: &DeviceRead,
        (from, to): (u64, u64),
        place: Extent,
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        let (from, to) = (from as usize, to as usize);
        let start = (from * BLOCK).max(read.skip) - read.skip;
        let end = (to * BLOCK).min(read.skip + read.len) - read.skip;
        let part = DeviceRead {
            at: 0,
            len: end - start,
            extent: place,
            skip: if from == 0 { read.skip } else { 0 },
            checksum_index: 0,
        };
        self.maps()
            .read_device(&part, &checksums[from..to], &mut target[start..end])
    }
}
