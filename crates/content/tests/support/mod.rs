//! A testkit tree on the Content API: scripts run on it and walks read it back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder::{
    AllocateMode, Caller, Database, DatabaseOptions, DefragOptions, EngineOptions, ErrorKind,
    FileHandle, FileKind, Name, NewNode, NodeId, RenameMode, Result, SetAttr, XattrMode,
};
use larder_testkit::{
    Disk, Entry, EntryKind, Op, Script, SimStorage, Tree, explain_difference, fill,
};

/// Handles kept open, so that some files are written through one handle over many operations, and
/// some are unlinked while they are open.
const HANDLES_MAX: usize = 6;
/// Entries per listing: few, so that large directories take several.
const LISTING_MAX: usize = 7;

/// An open database as a tree.
pub struct ContentTree {
    database: Database,
    /// The path of its root, without a slash at the end.
    root: String,
    /// The newest last.
    handles: Vec<(NodeId, Box<dyn FileHandle>)>,
}

impl ContentTree {
    pub fn new(database: Database) -> ContentTree {
        ContentTree::below(database, "")
    }

    /// What is below a directory, such as the root of a store.
    pub fn below(database: Database, root: &str) -> ContentTree {
        ContentTree {
            database,
            root: root.to_owned(),
            handles: Vec::new(),
        }
    }

    /// The path in the database.
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// What it is on.
    #[allow(dead_code)] // Not every test that has this module.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Lets all handles go and closes the database.
    pub fn close(self) -> Result<()> {
        drop(self.handles);
        self.database.close()
    }

    /// Does `op`.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        let database = &self.database;
        match op {
            Op::Create { path, mode } => self.create(path, NewNode::File, *mode),
            Op::Mkdir { path, mode } => self.create(path, NewNode::Directory, *mode),
            Op::Symlink { path, target } => {
                self.create(path, NewNode::Symlink(target.as_bytes()), 0o777)
            }
            Op::Rmdir { path } => {
                let (parent, name) = place(database, &self.at(path))?;
                database.nodes().remove_dir(parent, &name)
            }
            Op::Unlink { path } => {
                let (parent, name) = place(database, &self.at(path))?;
                database.nodes().unlink(parent, &name)
            }
            Op::Anonymous {
                path,
                mode,
                len,
                seed,
            } => {
                let (parent, name) = place(database, &self.at(path))?;
                let caller = Caller {
                    uid: 7,
                    gid: 8,
                    umask: 0,
                };
                let (attr, file) = database
                    .nodes()
                    .create_anonymous(parent, *mode, true, caller)?;
                file.write_at(0, &fill(*seed, *len))?;
                database.nodes().link(attr.node, parent, &name).map(drop)
            }
            Op::Link { from, to } => {
                let (parent, name) = place(database, &self.at(to))?;
                database
                    .nodes()
                    .link(self.node(from)?, parent, &name)
                    .map(drop)
            }
            Op::Rename { from, to } => self.rename(from, to, RenameMode::Replace),
            Op::Exchange { one, other } => self.rename(one, other, RenameMode::Exchange),
            Op::Write {
                path,
                offset,
                len,
                seed,
            } => self.handle(path)?.write_at(*offset, &fill(*seed, *len)),
            Op::Append { path, len, seed } => {
                self.handle(path)?.append(&fill(*seed, *len)).map(drop)
            }
            Op::Truncate { path, len } => self.handle(path)?.set_len(*len),
            Op::Punch { path, offset, len } => {
                self.handle(path)?
                    .allocate(AllocateMode::PunchHole, *offset, *len)
            }
            Op::Replace {
                path,
                offset,
                len,
                new_len,
                seed,
            } => {
                let (file, data) = (self.handle(path)?, fill(*seed, *new_len));
                match (len, new_len) {
                    (0, _) => file.insert_range(*offset, &data),
                    (_, 0) => file.delete_range(*offset, *len),
                    _ => file.replace_range(*offset, *len, &data),
                }
            }
            Op::Move {
                path,
                from,
                len,
                to,
            } => self.handle(path)?.move_range(*from, *len, *to),
            Op::SetXattr { path, name, value } => {
                database
                    .attributes()
                    .set(self.node(path)?, name.as_bytes(), value, XattrMode::Set)
            }
            Op::RemoveXattr { path, name } => database
                .attributes()
                .remove(self.node(path)?, name.as_bytes()),
            Op::Chmod { path, mode } => {
                let change = SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                };
                database
                    .nodes()
                    .set_attr(self.node(path)?, &change)
                    .map(drop)
            }
            Op::Sync { path } => self.handle(path)?.sync(),
            Op::SyncAll => database.sync(),
        }
    }

    /// Has everything moved to where it lies better, or as far forward as possible; returns bytes
    /// moved.
    #[allow(dead_code)] // Only the crash replay does it.
    pub fn move_content(&self, shrinks: bool) -> Result<u64> {
        if shrinks {
            return Ok(self
                .database
                .maintenance()
                .shrink(None, false, &mut |_, _| {})?
                .moved_bytes);
        }
        let options = DefragOptions::default();
        Ok(self
            .database
            .maintenance()
            .defrag(&[], &options, &mut |_| {})?
            .moved_bytes)
    }

    /// Small overwrites that wait for being written in place.
    #[allow(dead_code)] // Not every test that has this module.
    pub fn redo_bytes(&self) -> Result<u64> {
        Ok(self.database.maintenance().space()?.redo_bytes)
    }

    /// What content has taken.
    #[allow(dead_code)] // Not every test that has this module.
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(self.database.maintenance().space()?.live_bytes)
    }

    /// Reads everything.
    pub fn walk(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        let root = match self.root.as_str() {
            "" => NodeId::ROOT,
            root => self.database.nodes().resolve(root.as_bytes(), false)?.node,
        };
        self.walk_directory(root, "", &mut tree)?;
        Ok(tree)
    }

    /// What `check` finds when it reads all content.
    pub fn findings(&self) -> Result<Vec<String>> {
        Ok(self
            .database
            .maintenance()
            .check(true, &mut |_, _| {})?
            .findings)
    }

    fn create(&self, path: &str, new: NewNode<'_>, mode: u32) -> Result<()> {
        let (parent, name) = place(&self.database, &self.at(path))?;
        self.database
            .nodes()
            .create_node(
                parent,
                &name,
                new,
                mode,
                Caller {
                    uid: 7,
                    gid: 8,
                    umask: 0,
                },
            )
            .map(drop)
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let ((parent, name), (new_parent, new_name)) = (
            place(&self.database, &self.at(from))?,
            place(&self.database, &self.at(to))?,
        );
        self.database
            .nodes()
            .rename(parent, &name, new_parent, &new_name, mode)
    }

    fn node(&self, path: &str) -> Result<NodeId> {
        Ok(self
            .database
            .nodes()
            .resolve(self.at(path).as_bytes(), false)?
            .node)
    }

    fn handle(&mut self, path: &str) -> Result<&dyn FileHandle> {
        let node = self.node(path)?;
        let open = match self.handles.iter().position(|(open, _)| *open == node) {
            Some(index) => self.handles.remove(index),
            None => (node, self.database.nodes().open(node, true)?),
        };
        if self.handles.len() == HANDLES_MAX {
            self.handles.remove(0);
        }
        self.handles.push(open);
        let (_, handle) = self.handles.last().expect("pushed just now");
        Ok(&**handle)
    }

    fn walk_directory(&self, directory: NodeId, path: &str, tree: &mut Tree) -> Result<()> {
        let mut after: Option<Name> = None;
        loop {
            let listing = self
                .database
                .nodes()
                .read_dir(directory, after.as_ref(), LISTING_MAX)?;
            for entry in &listing {
                let path = format!("{path}/{}", entry.name);
                tree.entries.push(self.entry(entry.node, &path)?);
                if entry.kind == FileKind::Directory {
                    self.walk_directory(entry.node, &path, tree)?;
                }
            }
            if listing.len() < LISTING_MAX {
                return Ok(());
            }
            after = listing.last().map(|entry| entry.name.clone());
        }
    }

    fn entry(&self, node: NodeId, path: &str) -> Result<Entry> {
        let attr = self.database.nodes().metadata(node)?;
        let kind = match attr.kind {
            FileKind::Directory => EntryKind::Directory,
            FileKind::Symlink => EntryKind::Symlink(
                String::from_utf8_lossy(&self.database.nodes().read_link(node)?).into_owned(),
            ),
            FileKind::File => EntryKind::File {
                nlink: attr.nlink,
                len_bytes: attr.size_bytes,
                content: Tree::hash_content(&self.read(node, attr.size_bytes)?),
            },
            kind => panic!("{path}: no script makes a {}", kind.as_str()),
        };
        let mut xattrs = BTreeMap::new();
        for name in self.database.attributes().list(node)? {
            xattrs.insert(
                String::from_utf8_lossy(&name).into_owned(),
                self.database.attributes().get(node, &name)?,
            );
        }
        Ok(Entry {
            path: path.to_owned(),
            mode: attr.mode,
            inode: node.ino.0,
            kind,
            xattrs,
        })
    }

    /// The whole content, to its end and not beyond.
    fn read(&self, node: NodeId, size_bytes: u64) -> Result<Vec<u8>> {
        let handle = self.database.nodes().open(node, false)?;
        let mut bytes = vec![0; size_bytes as usize + 1];
        let mut len = 0;
        loop {
            match handle.read_at(len as u64, &mut bytes[len..])? {
                0 => break,
                read => len += read,
            }
        }
        if len as u64 != size_bytes {
            let line = format!("{len} bytes were read of a file of {size_bytes}");
            return Err(larder::Error::new(ErrorKind::Corrupt, line));
        }
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// Opens the database at `path` as a tree.
pub fn open(path: &Path, engine: EngineOptions) -> Result<ContentTree> {
    Ok(ContentTree::new(Database::open(
        path,
        DatabaseOptions {
            engine,
            ..DatabaseOptions::default()
        },
    )?))
}

/// What is wrong with a medium that must hold the first `promised` operations, if anything.
#[allow(dead_code)] // Only the crash replay asks.
pub fn find_fault(
    script: &Script,
    disk: &Disk,
    promised: usize,
    directory: &Path,
) -> Result<Option<String>> {
    disk.write_catalog(directory).unwrap();
    let storage = Arc::new(SimStorage::load(disk, None));
    let (mut least, mut most) = (promised, script.ops.len());
    // Twice, one time in four: what recovery leaves must be as good as what it found.
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let is_reopened = OPENED.fetch_add(1, Ordering::Relaxed).is_multiple_of(4);
    let attempts: &[&str] = match is_reopened {
        true => &["first", "second"],
        false => &["only"],
    };
    for attempt in attempts {
        let engine = EngineOptions {
            storage: Some(storage.clone()),
            has_background: false,
            ..EngineOptions::default()
        };
        let tree = open(directory, engine)?;
        if let Some(finding) = tree.findings()?.first() {
            return Ok(Some(format!("{attempt} open: check finds: {finding}")));
        }
        let walked = tree.walk()?;
        tree.close()?;
        let Some(prefix) = script.find_prefix(&walked, least, most) else {
            let older = script.find_prefix(&walked, 0, promised);
            let difference = explain_difference(&script.tree(least), &walked);
            return Ok(Some(format!(
                "{attempt} open: no prefix of {least}..={most} (an older one: {older:?}); against \
                 {least}:\n{difference}"
            )));
        };
        (least, most) = (prefix, prefix);
    }
    Ok(None)
}

/// A directory in memory where there is one: thousands of states are written to it.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

/// The directory that holds, or will hold, the last component of `path`, and that component.
fn place(database: &Database, path: &str) -> Result<(NodeId, Name)> {
    database.nodes().resolve_parent(path.as_bytes())
}
