//! Inodes without a name that nobody has open any more: the commit deletes them.

use crate::commit::KeptOrphans;
use crate::engine::{EngineOrphans, lock};
use crate::view::extent_map::{ExtentMap, MapSource};
use crate::{ErrorKind, Result};
use larder_catalog::{ChangeSet, InodeChange};
use larder_space::format::{CommitSeq, Ino, SessionId, StoreId};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// So many go with one commit (`TIME-9`).
const ORPHANS_MAX: usize = 2048;
/// Read at a time.
const PAGE_ROWS: usize = 4096;
/// A rule that has refused an orphan is asked about it again after so long, and each time after
/// twice as long, up to the second.
const RULE_REST: Duration = Duration::from_millis(100);
const RULE_REST_MAX: Duration = Duration::from_secs(60);

impl KeptOrphans {
    /// The rules are others now.
    pub(crate) fn forget(&mut self) {
        self.by.clear();
    }
}

impl EngineOrphans<'_> {
    /// Inodes that lost their name while another session had them open, and are closed by now.
    /// Whether there are more.
    pub(super) fn collect_lost_orphans(
        &self,
        horizon: CommitSeq,
        set: &mut ChangeSet,
    ) -> Result<bool> {
        let removed: HashSet<(StoreId, Ino)> = set.orphans_removed.iter().copied().collect();
        let (mut left, mut has_more) = (ORPHANS_MAX, false);
        self.each_lost_orphan(horizon, |store, ino| {
            if left == 0 {
                has_more = true;
                return Ok(ControlFlow::Break(()));
            }
            if removed.contains(&(store, ino)) {
                return Ok(ControlFlow::Continue(()));
            }
            // Cached, whoever looks: nobody may find it anew and move what goes here.
            let extents = match self.lookup().node(store, ino) {
                Ok(node) => {
                    let mut state = node.lock();
                    if state.is_deleted
                        || state.in_group
                        || state.is_committing
                        || state.open_count > 0
                    {
                        return Ok(ControlFlow::Continue(()));
                    }
                    state.is_deleted = true;
                    self.delayed_allocation().drop_kept(&mut state.content);
                    state.content.map.extents(self.maps().map_source(&node))?
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Err(_) => {
                    let source = MapSource {
                        catalog: &self.catalog,
                        store,
                        ino,
                    };
                    ExtentMap::default().extents(source)?
                }
            };
            self.commits().retire_into(set, (store, ino), extents);
            set.inodes.push((store, InodeChange::Delete(ino)));
            set.orphans_removed.push((store, ino));
            left -= 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(has_more)
    }

    /// Whether there is any (of those that rules keep: that may go now).
    pub(crate) fn has_lost_orphans(&self, horizon: CommitSeq) -> Result<bool> {
        let mut is_any = false;
        self.each_lost_orphan(horizon, |_, _| {
            is_any = true;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(is_any)
    }

    /// Orphans that nobody holds, that every session knows to be without a name, and that no rule
    /// keeps; until `take` breaks. O(those before).
    fn each_lost_orphan(
        &self,
        horizon: CommitSeq,
        mut take: impl FnMut(StoreId, Ino) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut page = self.catalog.sessions().orphans_after(None, PAGE_ROWS)?;
        if page.is_empty() {
            return Ok(());
        }
        let alive: HashSet<SessionId> = self
            .session
            .other_pins(&self.catalog)?
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        let is_alive =
            |holder: &SessionId| *holder == self.session.liveness.id || alive.contains(holder);
        let holders = self.catalog.sessions().holders()?.into_iter();
        let held: HashSet<(StoreId, Ino)> = holders
            .filter(|(.., holder)| is_alive(holder))
            .map(|(store, ino, _)| (store, ino))
            .collect();
        loop {
            for &(store, ino, seq) in &page {
                let is_lost = seq <= horizon && !held.contains(&(store, ino));
                if is_lost && !self.is_kept_by_rule(store, ino) && take(store, ino)?.is_break() {
                    return Ok(());
                }
            }
            let Some(&(store, ino, _)) = page.last() else {
                return Ok(());
            };
            page = self
                .catalog
                .sessions()
                .orphans_after(Some((store, ino)), PAGE_ROWS)?;
        }
    }

    /// Whether something of the user's refuses that this orphan goes; then it stays until that
    /// does. It is asked now and then: each time would be all of them at each step.
    fn is_kept_by_rule(&self, store: StoreId, ino: Ino) -> bool {
        if !self.rules().is_constrained(store) {
            return false;
        }
        let now = Instant::now();
        let known = lock(&self.kept_orphans).by.get(&(store, ino)).copied();
        let rest = match known {
            Some((until, _)) if now < until => return true,
            Some((_, rest)) => RULE_REST_MAX.min(2 * rest),
            None => RULE_REST,
        };
        let tried = (self.catalog.rules())
            .and_then(|rules| rules.try_inode(store, &InodeChange::Delete(ino)));
        let mut kept = lock(&self.kept_orphans);
        kept.tried += 1;
        let Err(refused) = tried else {
            kept.by.remove(&(store, ino));
            return false;
        };
        tracing::debug!("inode {ino} of store {store} stays: {refused}");
        kept.by.insert((store, ino), (now + rest, rest));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::{EngineOptions, InitOptions};
    use larder_catalog::InodeRow;
    use larder_space::format::{FileKind, Name};
    use std::path::Path;
    use std::process::Command;

    const FILES: u64 = 200;

    /// By a connection that knows nothing of Larder.
    fn plain(path: &Path, sql: &str) {
        let output = Command::new("sqlite3")
            .args(["-cmd", ".timeout 20000"])
            .arg(path.join("catalog.db"))
            .arg(sql)
            .output()
            .expect("the sqlite3 shell is needed; install it");
        assert!(output.status.success(), "{sql}: {output:?}");
    }

    fn tried(engine: &Engine) -> u64 {
        std::mem::take(&mut lock(&engine.kept_orphans).tried)
    }

    /// However many commits there are, a rule is asked about each orphan once, and then now and
    /// then; and once more when it is another one.
    #[test]
    fn a_rule_is_asked_as_often_as_there_are_orphans() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = EngineOptions {
            has_background: false,
            ..EngineOptions::default()
        };
        let init = InitOptions {
            capacity_bytes: Some(64 << 20),
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(&path, &init, &options).unwrap();
        plain(
            &path,
            "CREATE TABLE wish (a); \
             CREATE TRIGGER keeps BEFORE DELETE ON main WHEN (SELECT count(*) FROM wish) > 0 \
             BEGIN SELECT RAISE(ABORT, 'kept'); END",
        );
        let engine = Engine::open(&path, "one", &options).unwrap();
        // While others are there, what loses its last name is left to a later commit.
        let other = Engine::open(&path, "other", &options).unwrap();
        let root = engine.lookup().node(StoreId::MAIN, Ino::ROOT).unwrap();
        let row = InodeRow {
            kind: FileKind::File,
            nlink: 1,
            ..engine.lookup().row(&root).unwrap()
        };
        let name = |number: u64| Name::new(format!("f{number}").as_bytes()).unwrap();
        let guard = engine.namespace().write_guard().unwrap();
        let nodes: Vec<_> = (0..FILES)
            .map(|number| {
                let node = guard.insert(StoreId::MAIN, row.clone(), None).unwrap();
                let target = Some((node.ino, FileKind::File));
                guard.set_entry(&root, &name(number), target).unwrap();
                node
            })
            .collect();
        guard.commit().unwrap();
        engine.commits().sync().unwrap();
        let guard = engine.namespace().write_guard().unwrap();
        for (number, node) in nodes.iter().enumerate() {
            guard.drop_name(node).unwrap();
            guard.set_entry(&root, &name(number as u64), None).unwrap();
        }
        guard.commit().unwrap();
        drop(nodes);
        engine.commits().sync().unwrap();
        assert_eq!(
            engine.catalog.sessions().orphans().unwrap().len() as u64,
            FILES
        );
        other.close().unwrap();
        plain(&path, "INSERT INTO wish VALUES (1)");

        let began = Instant::now();
        tried(&engine);
        for _ in 0..30 {
            let guard = engine.namespace().write_guard().unwrap();
            guard.set_entry(&root, &name(FILES), None).unwrap();
            guard.commit().unwrap();
            engine.commits().commit_now().unwrap();
        }
        assert_eq!(
            engine.catalog.sessions().orphans().unwrap().len() as u64,
            FILES
        );
        // After rests of 1, 2, 4, ... of them.
        let rests = began.elapsed().div_duration_f64(RULE_REST) + 1.0;
        let most = FILES * (1 + rests.log2().ceil() as u64);
        let found = tried(&engine);
        assert!(
            (FILES..=most).contains(&found),
            "{found} for {FILES}, in 30 commits"
        );

        engine.commits().unlock_writer();
        plain(
            &path,
            "DROP TRIGGER keeps; \
             CREATE TRIGGER allows BEFORE DELETE ON main WHEN old.size > 9 \
             BEGIN SELECT RAISE(ABORT, 'kept'); END",
        );
        engine.compaction().settle().unwrap();
        assert!(!engine.catalog.sessions().has_orphans().unwrap());
        let found = tried(&engine);
        assert!((FILES..FILES + 9).contains(&found), "{found} for {FILES}");
        drop(root);
        engine.close().unwrap();
    }
}
