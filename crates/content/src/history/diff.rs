//! Where two states differ: two moments of a database, or two databases (`CONTENT-11`).

use crate::database::Database;
use crate::history::compare::{Differs, Pair, compare};
use crate::types::{Metadata, NodeId};
use larder_object::Result;
use larder_object::format::{FileKind, StoreId};
use std::collections::{BTreeMap, HashMap};

/// How a path differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiffEvent {
    /// Only the second state has it.
    Added,
    /// Only the first state has it.
    Removed,
    /// Both have it, under two paths: the same inode of one database.
    Renamed {
        /// The path in the first state.
        from: Vec<u8>,
    },
    /// Both have it.
    Changed,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiffChange {
    /// The path in the second state; of what was removed, in the first.
    pub path: Vec<u8>,
    /// How.
    pub event: DiffEvent,
    /// What it is in the first state.
    pub before: Option<Metadata>,
    /// What it is in the second state.
    pub after: Option<Metadata>,
    /// The permission bits differ.
    pub mode: bool,
    /// User or group differ.
    pub owner: bool,
    /// Extended attributes differ, access control lists among them; user columns do not count.
    pub xattrs: bool,
    /// User columns differ: of two moments of one database, where they are tracked since the
    /// earlier one.
    pub columns: bool,
    /// Content, target or device number differ.
    pub content: bool,
}

/// The differences of two states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DiffReport {
    /// By path.
    pub changes: Vec<DiffChange>,
    /// Content that was read to compare it, of both states, bytes.
    pub read_bytes: u64,
    /// Content that was not read, since nothing of it was written between the two, bytes.
    pub unread_bytes: u64,
}

/// Compares what `path_a` names in `a` with what `path_b` names in `b`, which may be of one
/// database at two moments: names, kinds, modes, owners, extended attributes, tracked user columns
/// and content, not times. A final symbolic link is not followed. Cost: both trees are listed,
/// about 2 µs per file; of one database only the content is read of which something was written in
/// between, up to the first byte that differs. Memory: the differences.
pub fn diff(a: (&Database, &[u8]), b: (&Database, &[u8])) -> Result<DiffReport> {
    diff_of(a, b, &|_| true)
}

/// The same, of the stores that are mounted below only of those that `is_meant` names.
pub(crate) fn diff_of(
    (a, path_a): (&Database, &[u8]),
    (b, path_b): (&Database, &[u8]),
    is_meant: &dyn Fn(StoreId) -> bool,
) -> Result<DiffReport> {
    for database in [a, b] {
        if database.history().shown().is_none() {
            database.sync()?;
        }
    }
    let roots = (
        a.nodes().resolve(path_a, false)?,
        b.nodes().resolve(path_b, false)?,
    );
    let is_one = a
        .shared
        .shown
        .view()
        .moment()
        .is_of_one_database(b.shared.shown.view());
    compare(a, b, |comparison| {
        let mut found: Vec<Pair> = Vec::new();
        let roots = (Some(roots.0), Some(roots.1));
        comparison.walk(roots, is_meant, &mut |pair| {
            if pair.a.is_none() || pair.b.is_none() || pair.differs.any() {
                found.push(pair);
            }
            Ok(())
        })?;
        let mut renames = Renames::default();
        if is_one {
            renames.find(&found);
        }
        let mut changes = Vec::new();
        for (index, pair) in found.iter().enumerate() {
            if renames.gone.contains(&index) {
                continue;
            }
            let (mut pair, mut event) = (pair.clone(), event_of(pair));
            if let Some((from, attr)) = renames.found.get(&pair.path) {
                if let Some(after) = &pair.b {
                    pair.differs = comparison.differences(attr, after)?;
                }
                pair.a = Some(attr.clone());
                event = match renames.is_by_parent(&pair.path, from) {
                    true if !pair.differs.any() => continue,
                    true => DiffEvent::Changed,
                    false => DiffEvent::Renamed {
                        from: joined(path_a, from),
                    },
                };
            }
            let root = match event {
                DiffEvent::Removed => path_a,
                _ => path_b,
            };
            changes.push(change(joined(root, &pair.path), event, pair));
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(DiffReport {
            changes,
            read_bytes: comparison.read_bytes,
            unread_bytes: comparison.unread_bytes,
        })
    })
}

fn event_of(pair: &Pair) -> DiffEvent {
    match (&pair.a, &pair.b) {
        (None, _) => DiffEvent::Added,
        (_, None) => DiffEvent::Removed,
        _ => DiffEvent::Changed,
    }
}

fn change(path: Vec<u8>, event: DiffEvent, pair: Pair) -> DiffChange {
    let Differs {
        mode,
        owner,
        xattrs,
        columns,
        content,
        ..
    } = pair.differs;
    DiffChange {
        path,
        event,
        before: pair.a,
        after: pair.b,
        mode,
        owner,
        xattrs,
        columns,
        content,
    }
}

impl DiffChange {
    /// Whether it is of another kind than before.
    pub fn has_other_kind(&self) -> bool {
        let kind = |attr: &Option<Metadata>| attr.as_ref().map(|attr| attr.kind);
        self.event == DiffEvent::Changed && kind(&self.before) != kind(&self.after)
    }
}

/// What has another path in the second state.
#[derive(Default)]
struct Renames {
    /// By the path there: the path before, and what it was.
    found: BTreeMap<Vec<u8>, (Vec<u8>, Metadata)>,
    /// The differences that are the other half of one.
    gone: std::collections::HashSet<usize>,
}

impl Renames {
    fn find(&mut self, found: &[Pair]) {
        let mut removed: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for (index, pair) in found.iter().enumerate().rev() {
            if let (Some(a), None) = (&pair.a, &pair.b) {
                removed.entry(a.node).or_default().push(index);
            }
        }
        for pair in found {
            let (None, Some(b)) = (&pair.a, &pair.b) else {
                continue;
            };
            let from = removed.get_mut(&b.node).and_then(Vec::pop);
            let Some(index) = from else { continue };
            if let Some(a) = &found[index].a {
                self.gone.insert(index);
                let from = (found[index].path.clone(), a.clone());
                self.found.insert(pair.path.clone(), from);
            }
        }
    }

    /// Whether a path is another only because its directory has another one.
    fn is_by_parent(&self, to: &[u8], from: &[u8]) -> bool {
        let split = |path: &[u8]| {
            let slash = path.iter().rposition(|&byte| byte == b'/')?;
            Some((path[..slash].to_vec(), path[slash + 1..].to_vec()))
        };
        let (Some((to, name)), Some((from, old_name))) = (split(to), split(from)) else {
            return false;
        };
        let parent = self.found.get(&to);
        name == old_name
            && parent.is_some_and(|(path, attr)| *path == from && attr.kind == FileKind::Directory)
    }
}

/// A path below a root, as it is told.
pub(crate) fn joined(root: &[u8], below: &[u8]) -> Vec<u8> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    match (root, below) {
        (b"", b"") => b"/".to_vec(),
        _ => [root, below].concat(),
    }
}
