//! Random change sets for two catalogs that have the same rows: most fit what the one in memory
//! has, some do not.

use super::{INOS, PAGES};
use crate::common::{inode, name};
use larder_catalog::format::limits::AG_BLOCKS;
use larder_catalog::format::{CommitSeq, Extent, FileKind, Ino, Name, SegmentIndex};
use larder_catalog::format::{SessionId, StoreId};
use larder_catalog::{
    AttrMask, Catalog, ChangeSet, ContentRow, ExtentRow, Held, InodeChange, InodeRow, MapShare,
    RedoRow, RetentionHorizons, Save, Sharing, StoreRow,
};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeSet;

/// Extents lie on both sides of the border of a group.
const FIRST_BLOCK: u64 = AG_BLOCKS - 24;
const BLOCKS: u64 = 48;

pub(super) struct Dice(TestRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Dice(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.one_of(from))
    }

    pub(super) fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    pub(super) fn name(&mut self) -> Name {
        let alphabet: [&[u8]; 5] = [b"a", b"'", b"\xff", "\u{e9}".as_bytes(), b"\xc3"];
        let count = 1 + self.below(2);
        let bytes = (0..count).flat_map(|_| self.one_of(&alphabet)).copied();
        name(bytes.collect::<Vec<u8>>())
    }

    /// Most often one of these.
    pub(super) fn store(&mut self, stores: &[StoreId]) -> StoreId {
        match self.one_in(250) {
            true => StoreId(77),
            false => self.one_of(stores),
        }
    }

    pub(super) fn session(&mut self, sessions: &[SessionId]) -> SessionId {
        let found = self.pick(sessions).filter(|_| !self.one_in(10));
        found.unwrap_or(SessionId(99))
    }

    pub(super) fn ino(&mut self) -> Ino {
        match self.below(100) {
            0 => Ino(0),
            1..5 => Ino(self.below(300)),
            _ => Ino(2 + self.below(INOS - 4)),
        }
    }

    /// Any place, which may reach into the next group.
    pub(super) fn extent(&mut self) -> Extent {
        let segment = SegmentIndex(self.below(2) as u32);
        Extent::new(segment, FIRST_BLOCK + self.below(BLOCKS), 1 + self.below(9))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = self.one_of(&[1, 5, 63, 64, 200]);
        vec![self.below(3) as u8; count]
    }

    pub(super) fn changes(&mut self, memory: &Catalog) -> ChangeSet {
        let mut set = Making::new(self, memory);
        set.inodes();
        set.names();
        set.contents();
        set.pages();
        set.redo_rows();
        set.space();
        set.reclaim();
        set.sessions();
        set.changes
    }
}

/// A change set in the making.
struct Making<'m> {
    dice: &'m mut Dice,
    memory: &'m Catalog,
    stores: Vec<StoreRow>,
    changes: ChangeSet,
}

impl<'m> Making<'m> {
    fn new(dice: &'m mut Dice, memory: &'m Catalog) -> Making<'m> {
        let changes = ChangeSet {
            has_revived: dice.one_in(3),
            retired_bytes: dice.below(3) * 4096,
            ..ChangeSet::default()
        };
        Making {
            dice,
            memory,
            stores: memory.stores().rows().unwrap(),
            changes,
        }
    }

    fn store(&mut self) -> StoreId {
        let stores: Vec<StoreId> = self.stores.iter().map(|row| row.store).collect();
        self.dice.store(&stores)
    }

    fn owner(&self, store: StoreId) -> StoreId {
        let found = self.stores.iter().find(|row| row.store == store);
        found.map_or(store, |row| row.table_store)
    }

    fn live(&mut self, store: StoreId) -> Option<Ino> {
        let inodes = self
            .memory
            .survey()
            .inodes(store, Some(Ino::ROOT), 100)
            .unwrap_or_default();
        let inodes: Vec<Ino> = inodes.iter().map(|row| row.ino).collect();
        self.dice.pick(&inodes)
    }

    /// Most often one that is there.
    fn object(&mut self) -> (StoreId, Ino) {
        let store = self.store();
        let live = self.live(store).filter(|_| !self.dice.one_in(6));
        let any = self.dice.ino();
        (store, live.unwrap_or(any))
    }

    fn inodes(&mut self) {
        let mut touched = BTreeSet::new();
        for _ in 0..self.dice.below(5) {
            let store = self.store();
            let live = self.live(store);
            let any = self.dice.ino();
            let is_odd = self.dice.one_in(25);
            let change = match (self.dice.below(5), live) {
                (0, Some(ino)) => InodeChange::Delete(if is_odd { any } else { ino }),
                (1 | 2, Some(ino)) => self.update(if is_odd { any } else { ino }),
                _ => {
                    let is_there = self
                        .memory
                        .tables()
                        .inode(store, any)
                        .unwrap_or_default()
                        .is_some();
                    if is_there && !is_odd {
                        continue;
                    }
                    let kind = self.dice.one_of(&FileKind::ALL);
                    InodeChange::Insert(InodeRow {
                        mode: if self.dice.one_in(40) { 0o10000 } else { 0o644 },
                        nlink: self.dice.below(3) as u32,
                        ..inode(any.0, kind)
                    })
                }
            };
            let ino = match &change {
                InodeChange::Insert(row) | InodeChange::Update(row, _) => row.ino,
                InodeChange::Delete(ino) => *ino,
            };
            if touched.insert((self.owner(store), ino)) || is_odd {
                self.changes.inodes.push((store, change));
            }
        }
        for _ in 0..self.dice.below(6).saturating_sub(3) {
            let store = self.store();
            let (from, to) = (self.live(store), self.live(store));
            if let (Some(from), Some(to)) = (from, to) {
                let is_forced = self.dice.one_in(2);
                let save = Save {
                    store,
                    from,
                    to,
                    is_forced,
                };
                self.changes.saves.push(save);
            }
        }
        if self.dice.one_in(8) {
            let (store, ino) = self.object();
            let file_id = self.dice.below(INOS) as i64 - 2;
            self.changes.file_ids.push((store, ino, file_id));
        }
        if !self.changes.saves.is_empty() || !self.changes.file_ids.is_empty() {
            let is_gone = |change: &InodeChange| matches!(change, InodeChange::Delete(_));
            self.changes
                .inodes
                .sort_by_key(|(_, change)| is_gone(change)); // SAVE-2
        }
    }

    fn update(&mut self, ino: Ino) -> InodeChange {
        let n = self.dice.below(4000);
        let row = InodeRow {
            mode: n as u32,
            uid: 1,
            gid: n as u32,
            nlink: n as u32 % 4,
            size_bytes: if self.dice.one_in(60) { u64::MAX } else { n },
            block_count: n / 2,
            atime_ns: -1,
            mtime_ns: n as i64,
            ctime_ns: i64::MAX,
            rdev: n,
            ..inode(ino.0, FileKind::File)
        };
        let mut flag = || self.dice.one_in(2);
        let mask = AttrMask {
            mode: flag(),
            owner: flag(),
            nlink: flag(),
            size: flag(),
            atime: flag(),
            mtime: flag(),
            ctime: flag(),
            flags: flag(),
        };
        let is_empty = self.dice.one_in(10);
        InodeChange::Update(row, if is_empty { AttrMask::default() } else { mask })
    }

    fn names(&mut self) {
        let mut named = BTreeSet::new();
        for _ in 0..self.dice.below(5) {
            let (store, ino) = self.object();
            let parent = Ino(self.dice.below(50).clamp(1, 4));
            let parent = if self.dice.one_in(60) { Ino(0) } else { parent };
            let name = self.dice.name();
            if named.insert((self.owner(store), parent, name.clone())) {
                let ino = (!self.dice.one_in(3)).then_some(ino);
                self.changes.dirents.push((store, parent, name, ino));
            }
        }
        for _ in 0..self.dice.below(3) {
            let (store, ino) = self.object();
            let name = match self.dice.one_in(40) {
                true => Vec::new(),
                false => self.dice.name().as_bytes().to_vec(),
            };
            let value = (!self.dice.one_in(3)).then(|| self.dice.bytes());
            self.changes.xattrs.push((store, ino, name, value));
        }
    }

    fn contents(&mut self) {
        for _ in 0..self.dice.below(3) {
            let (store, ino) = self.object();
            let content = match self.dice.below(100) {
                0 => Some(ContentRow::Inline(vec![1; 2049])),
                1 => Some(ContentRow::Target(Vec::new())),
                2..40 => Some(ContentRow::Inline(self.dice.bytes())),
                40..75 => Some(ContentRow::Target(self.dice.bytes())),
                _ => None,
            };
            self.changes.contents.push((store, ino, content));
        }
    }

    fn pages(&mut self) {
        if self.dice.one_in(4) {
            let (store, ino) = self.object();
            let page = match self.dice.one_in(8) {
                true => u64::MAX,
                false => self.dice.below(PAGES),
            };
            self.changes.map_cuts.push((store, ino, page));
        }
        let mut written = BTreeSet::new();
        for _ in 0..self.dice.below(4) {
            let (store, ino) = self.object();
            let page = self.dice.below(PAGES);
            if !written.insert((self.owner(store), ino, page)) {
                continue;
            }
            let runs = (!self.dice.one_in(3)).then(|| self.dice.bytes());
            let runs = if self.dice.one_in(60) {
                Some(Vec::new())
            } else {
                runs
            };
            self.changes.map_pages.push((store, ino, page, runs));
            if self.dice.one_in(2) {
                self.share_page((store, ino, page));
            }
        }
        if self.dice.one_in(6) {
            let object = self.object();
            self.changes.piece_drops.push(object);
        }
        for _ in 0..self.dice.below(3) {
            let (store, ino) = self.object();
            let page = self.dice.below(PAGES);
            let entries = (!self.dice.one_in(3)).then(|| self.dice.bytes());
            self.changes.piece_pages.push((store, ino, page, entries));
        }
    }

    /// The last page of a map is that of another object.
    fn share_page(&mut self, (store, ino, page): (StoreId, Ino, u64)) {
        let (from_store, from_ino) = self.object();
        let from_page = self.dice.below(PAGES);
        let origin = self
            .memory
            .tables()
            .map_page(from_store, from_ino, from_page);
        if let (Ok(Some(runs)), Some(last)) = (origin, self.changes.map_pages.last_mut()) {
            last.3 = Some(runs);
        }
        self.changes.map_shares.push(MapShare {
            store,
            ino,
            page,
            from_store,
            from_ino,
            from_page,
        });
    }

    fn redo_rows(&mut self) {
        for _ in 0..self.dice.below(3) {
            let (store, ino) = self.object();
            let blocks: Vec<u64> = (0..1 + self.dice.below(3)).collect();
            let byte_count = match self.dice.one_in(30) {
                true => 4095,
                false => blocks.len() * 4096,
            };
            let bytes = (!self.dice.one_in(4)).then(|| vec![7; byte_count]);
            let seq = CommitSeq(0);
            self.changes
                .redo_rows
                .push((store, ino, RedoRow { seq, blocks, bytes }));
        }
        let objects = self.memory.maps().objects_with_redo_rows().unwrap();
        if let Some((store, ino)) = self.dice.pick(&objects).filter(|_| self.dice.one_in(2)) {
            let upto = CommitSeq(self.dice.below(self.seq() + 2));
            let settled = self.dice.one_in(2).then_some(1);
            self.changes.redo_applied.push((store, ino, upto, settled));
        }
    }

    fn seq(&self) -> u64 {
        self.memory.tables().commit_seq().unwrap().0
    }

    fn space(&mut self) {
        if self.dice.one_in(6) {
            let segment = SegmentIndex(self.dice.below(2) as u32);
            let block_count = FIRST_BLOCK + self.dice.below(2 * BLOCKS);
            self.changes.segments.push((segment, block_count));
        }
        for _ in 0..self.dice.below(4) {
            self.allocate();
        }
        let rows = self.memory.space().extents(None, usize::MAX).unwrap();
        let mut used: Vec<Extent> = Vec::new();
        for _ in 0..self.dice.below(5) {
            let Some(row) = self.dice.pick(&rows) else {
                break;
            };
            let place = self.part_of(&row, &rows);
            // What one change has cut and given away fits another one by chance only.
            if used.iter().any(|one| one.overlaps(&place)) && !self.dice.one_in(8) {
                continue;
            }
            used.push(place);
            let object = self.object();
            match (self.dice.below(2), row.retired_seq) {
                (0, None) => {
                    let holder = self.holder_of(&row);
                    let (store, ino) = if self.dice.one_in(20) { object } else { holder };
                    self.changes.retired.push((place, store, ino));
                }
                (_, retired) => self.share((place, object.0, object.1), retired),
            }
        }
    }

    fn allocate(&mut self) {
        let place = self.dice.extent();
        let is_odd = self.dice.one_in(25);
        let end = place.end_block().min((place.ag_index() + 1) * AG_BLOCKS);
        let is_free = |at: u64| {
            let block = Extent::new(place.segment, at, 1);
            let mut taken = self.changes.allocated.iter();
            !taken.any(|(taken, ..)| taken.overlaps(&block))
                && self
                    .memory
                    .space()
                    .extents_under(&block)
                    .unwrap()
                    .is_empty()
        };
        let count = (place.start_block..end)
            .take_while(|&at| is_free(at))
            .count() as u64;
        let (store, ino) = self.object();
        if is_odd {
            self.changes.allocated.push((place, store, ino));
        } else if count > 0 {
            let place = place.slice(0, count);
            let holder = self.neighbour(&place).filter(|_| !self.dice.one_in(4));
            let (store, ino) = holder.unwrap_or((store, Ino(2 + self.dice.below(3))));
            self.changes.allocated.push((place, store, ino));
        }
    }

    /// The holder of a row that touches `place`: joined where it may be.
    fn neighbour(&mut self, place: &Extent) -> Option<(StoreId, Ino)> {
        let rows = self.memory.space().extents(None, usize::MAX).unwrap();
        let touches =
            |row: &ExtentRow| row.extent.is_followed_by(place) || place.is_followed_by(&row.extent);
        let holders: Vec<_> = (rows.into_iter())
            .filter(touches)
            .map(|row| (row.store, row.ino))
            .collect();
        self.dice.pick(&holders)
    }

    /// Blocks of a row, and sometimes of the next one.
    fn part_of(&mut self, row: &ExtentRow, rows: &[ExtentRow]) -> Extent {
        let skip = self.dice.below(2) * self.dice.below(row.extent.block_count);
        let count = row.extent.block_count - skip;
        let part = match self.dice.one_in(2) {
            true => row.extent.slice(skip, count),
            false => row.extent.slice(skip, 1 + self.dice.below(count)),
        };
        let next = rows.iter().find(|next| part.is_followed_by(&next.extent));
        match next.filter(|_| self.dice.one_in(2)) {
            Some(next) => Extent {
                block_count: part.block_count + next.extent.block_count,
                ..part
            },
            None => part,
        }
    }

    fn holder_of(&mut self, row: &ExtentRow) -> (StoreId, Ino) {
        let place = (row.extent.segment, row.extent.start_block);
        let sharers = self
            .memory
            .space()
            .sharers(None, usize::MAX)
            .unwrap()
            .into_iter();
        let sharers = sharers.filter(|one| (one.segment, one.start_block) == place);
        let mut holders: Vec<_> = sharers.map(|one| (one.store, one.ino)).collect();
        holders.push((row.store, row.ino));
        self.dice.one_of(&holders)
    }

    fn share(&mut self, held: Held, retired: Option<CommitSeq>) {
        let as_of = match retired {
            Some(CommitSeq(seq)) => Some(CommitSeq(self.dice.below(seq + 1))),
            None => self.dice.one_in(3).then_some(CommitSeq(1)),
        };
        let count = self.changes.retired.len();
        self.changes.shared.push(Sharing {
            held,
            retired_before: if self.dice.one_in(60) {
                count + 1
            } else {
                count
            },
            as_of: as_of.filter(|_| !self.dice.one_in(20)),
        });
    }

    fn reclaim(&mut self) {
        let seq = self.seq();
        let mut at = || CommitSeq(self.dice.below(seq + 2));
        let horizon = match at().0 % 4 {
            0 => RetentionHorizons::even(at()),
            1 => RetentionHorizons::new(
                at(),
                at(),
                self.stores.iter().map(|row| (row.store, at())).collect(),
            ),
            2 => RetentionHorizons::of_one(self.stores[0].store, at()),
            _ => RetentionHorizons::default(),
        };
        self.changes.reclaim_horizon = self.dice.one_in(4).then_some(horizon);
        let mut rows = self.memory.space().extents(None, usize::MAX).unwrap();
        rows.retain(|row| row.retired_seq.is_some());
        if let Some(row) = self.dice.pick(&rows).filter(|_| self.dice.one_in(4)) {
            let CommitSeq(retired) = row.retired_seq.unwrap();
            let seq = match self.dice.one_in(4) {
                true => self.dice.below(retired + 2),
                false => retired,
            };
            let place = Extent {
                block_count: row.extent.block_count + self.dice.below(9),
                ..row.extent
            };
            self.changes.moved_away.push((place, CommitSeq(seq)));
        }
    }

    fn sessions(&mut self) {
        let rows = self.memory.sessions().rows().unwrap();
        let sessions: Vec<SessionId> = rows.iter().map(|row| row.session).collect();
        let orphans = self.memory.sessions().orphans().unwrap();
        if self.dice.one_in(3) {
            let (store, ino) = self.object();
            let is_orphan = orphans.iter().any(|one| (one.0, one.1) == (store, ino));
            if !is_orphan || self.dice.one_in(10) {
                self.changes.orphans_added.push((store, ino));
            }
        }
        if let Some((store, ino, _)) = self.dice.pick(&orphans) {
            let session = self.dice.session(&sessions);
            match self.dice.below(6) {
                0 => self.changes.orphans_removed.push((store, ino)),
                1 | 2 => self.changes.holders_added.push((store, ino, session)),
                3 => self.changes.holders_removed.push((store, ino, session)),
                _ => {}
            }
        }
        if self.dice.one_in(4) && !sessions.is_empty() {
            let seq = CommitSeq(self.dice.below(self.seq() + 1));
            self.changes.pin = Some((self.dice.session(&sessions), seq));
        }
    }
}
