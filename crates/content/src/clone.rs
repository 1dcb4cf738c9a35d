//! Clones: files and trees that share their content with what they were made from.
//!
//! # Invariants
//! * `CLONE-1` A clone is made as a whole or not at all. From then on neither side sees what is
//!   written to the other.
//!
//! What a clone has: names, kinds, modes, owners, times of access and modification, extended
//! attributes, hard links among what is cloned, content; and within one store the user columns (of
//! the past: where it is tracked since then), but those that a unique index is about. Those that
//! refer to what is cloned refer to the clone. Another store has columns of its own, a new one
//! none.

use crate::database::Database;
use crate::history::{ColumnsPair, Giving, Materializer, give_columns};
use crate::rooms::Files;
use crate::transaction::{Transaction, TransactionOptions};
use crate::types::{Metadata, NodeId};
use larder_object::format::{FileKind, Ino, Name, StoreId};
use larder_object::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::time::Duration;

/// How long a clone may keep others waiting: half of one is of no use.
const WRITER_LOCK_MAX: Duration = Duration::from_secs(24 * 3600);
/// Entries of a directory that are read at a time.
const PAGE: usize = 1000;

/// How something is cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloneOptions {
    /// It gets no user columns, also where it could have them: a constraint may refuse those of the
    /// past.
    pub without_columns: bool,
}

/// What a clone was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CloneReport {
    /// Regular files.
    pub file_count: u64,
    /// Directories, the root of the clone among them.
    pub directory_count: u64,
    /// Symbolic links, further names of files, and the rest.
    pub other_count: u64,
    /// Length of all files, bytes.
    pub content_bytes: u64,
    /// What of it had to be copied, bytes: files of a few KiB, what had just been written, and of
    /// the past what lay in small overwrites.
    pub copied_bytes: u64,
    /// A store was made.
    pub is_store: bool,
}

impl Files<'_> {
    /// Makes `to`, which must not exist, a clone of what `from` names (a symbolic link itself, not
    /// its target), durably: a file, or a directory with all it holds. Content is shared, until one
    /// side changes it. A store's root cloned to a name in the root directory becomes a store of
    /// that name. With `past`, another moment of this database, it is the clone of what was there
    /// then, and shares that with the history. One transaction, which keeps the writer lock
    /// meanwhile.
    ///
    /// Errors: [`ErrorKind::NotFound`]: no `from`; [`ErrorKind::Exists`]: `to` is there;
    /// [`ErrorKind::InvalidInput`]: `to` lies in `from`, or `past` is of another database;
    /// [`ErrorKind::Unsupported`] in a long transaction; [`ErrorKind::Sql`]: a constraint of the
    /// user's refuses the user columns. None leaves anything changed. Cost: about 0.1 ms for a
    /// file, whose map is read; some 200 bytes of the catalog, and 14 more for each 8 MiB of
    /// content.
    pub fn clone_path(
        &self,
        past: Option<&Database>,
        from: &[u8],
        to: &[u8],
    ) -> Result<CloneReport> {
        self.clone_path_with(past, from, to, &CloneOptions::default())
    }

    /// The same with options.
    pub fn clone_path_with(
        &self,
        past: Option<&Database>,
        from: &[u8],
        to: &[u8],
        options: &CloneOptions,
    ) -> Result<CloneReport> {
        if let Some(past) = past {
            let is_one = past
                .shared
                .shown
                .view()
                .moment()
                .is_of_one_database(self.database.shared.shown.view());
            if past.history().shown().is_none() || !is_one {
                let why = "what is cloned is this database or another moment of it; use 'larder \
                    cp' between databases";
                return Err(Error::new(ErrorKind::InvalidInput, why));
            }
        }
        let engine = self.database.whole()?;
        if self.database.transactions().long_id().is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "nothing is cloned in a long transaction; clone outside of it, or copy ('larder \
                 cp')",
            ));
        }
        // Before the transaction, which cannot: what is in place can be shared.
        engine.sharing().settle_content()?;
        let transaction = self
            .database
            .transactions()
            .begin_with(&TransactionOptions {
                is_immediate: true,
                writer_lock_max: WRITER_LOCK_MAX,
            })?;
        let report = clone_here(&transaction, past, from, to, options)?;
        transaction.commit()?;
        Ok(report)
    }
}

fn clone_here(
    transaction: &Transaction,
    past: Option<&Database>,
    from: &[u8],
    to: &[u8],
    options: &CloneOptions,
) -> Result<CloneReport> {
    let view: &Database = transaction;
    let source = past.unwrap_or(view);
    let was = source.nodes().resolve(from, false)?;
    let shown = String::from_utf8_lossy(to);
    match view.nodes().resolve(to, false) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(_) => {
            let why = format!("'{shown}' exists; give a name that is free, or remove it first");
            return Err(Error::new(ErrorKind::Exists, why));
        }
    }
    let (parent, name) = view.nodes().resolve_parent(to)?;
    if was.kind == FileKind::Directory
        && past.is_none()
        && view.files().lies_in(parent, was.node)?
    {
        let why = format!(
            "'{shown}' lies in '{}', which cannot hold its own clone; choose a place outside",
            String::from_utf8_lossy(from)
        );
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mut cloner = Cloner {
        source,
        view,
        materializer: Materializer::new(source, view),
        linked: HashMap::new(),
        made: Vec::new(),
        report: CloneReport::default(),
    };
    let is_store = was.node.ino == Ino::ROOT && was.node.store != StoreId::MAIN;
    match is_store && parent == NodeId::ROOT {
        true => cloner.store(&was, &name)?,
        false => cloner.place((parent, &name), &was)?,
    }
    if !options.without_columns {
        let pairs = cloner.made.iter().map(|&(was, is)| ColumnsPair {
            was,
            is: Some(is),
            is_new: true,
        });
        let pairs: Vec<ColumnsPair> = pairs.collect();
        give_columns(transaction, source, &pairs, &cloner.made, Giving::Cloned)
            .map_err(|error| error.context("--no-columns leaves them out"))?;
    }
    cloner.report.copied_bytes = cloner.materializer.copied_bytes();
    Ok(cloner.report)
}

impl Files<'_> {
    /// Whether a directory is `above`, or lies in it.
    fn lies_in(&self, directory: NodeId, above: NodeId) -> Result<bool> {
        let mut at = directory;
        while at != above {
            let parent = self.database.nodes().parent(at)?;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Ok(true)
    }
}

struct Cloner<'d> {
    source: &'d Database,
    view: &'d Database,
    materializer: Materializer<'d>,
    /// What files with several names became.
    linked: HashMap<NodeId, NodeId>,
    /// All files, and what they became.
    made: Vec<(NodeId, NodeId)>,
    report: CloneReport,
}

impl Cloner<'_> {
    /// A store of that name with all that is in the root `was` of another one.
    fn store(&mut self, was: &Metadata, name: &Name) -> Result<()> {
        let stores = self.source.stores().list()?;
        let origin = stores.iter().find(|info| info.store == was.node.store);
        let provider = origin.map_or("files", |info| &info.provider);
        if provider != "files" {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a store of provider '{provider}' is a view; clone the store that it shows"
                ),
            ));
        }
        let made = self
            .view
            .stores()
            .create(&name.to_string(), provider, None, None)?;
        let root = NodeId {
            store: made.store,
            ino: Ino::ROOT,
        };
        self.report.is_store = true;
        self.report.directory_count += 1;
        self.fill(vec![(root, was.clone())])
    }

    /// Makes `was` anew under a name, with all that is in it.
    fn place(&mut self, (parent, name): (NodeId, &Name), was: &Metadata) -> Result<()> {
        let node = self.make(parent, name, was)?;
        match was.kind {
            FileKind::Directory => self.fill(vec![(node, was.clone())]),
            _ => Ok(()),
        }
    }

    /// Fills directories that were just made, from what they are the clones of.
    fn fill(&mut self, mut waiting: Vec<(NodeId, Metadata)>) -> Result<()> {
        let mut filled = Vec::new();
        while let Some((node, was)) = waiting.pop() {
            let mut after: Option<Name> = None;
            loop {
                let page = self
                    .source
                    .nodes()
                    .read_dir_plus(was.node, after.as_ref(), PAGE)?;
                let is_last = page.len() < PAGE;
                after = page.last().map(|(entry, _)| entry.name.clone());
                for (entry, attr) in page {
                    if attr.node.store != was.node.store {
                        continue; // A store that is mounted there.
                    }
                    let made = self.make(node, &entry.name, &attr)?;
                    if attr.kind == FileKind::Directory {
                        waiting.push((made, attr));
                    }
                }
                if is_last {
                    break;
                }
            }
            filled.push((node, was));
        }
        // Last, and the inner ones first: what was made in a directory has moved its times.
        for (node, was) in filled.iter().rev() {
            self.materializer.set_attributes(was, *node)?;
        }
        Ok(())
    }

    fn make(&mut self, parent: NodeId, name: &Name, was: &Metadata) -> Result<NodeId> {
        let is_linked = was.kind != FileKind::Directory && was.nlink > 1;
        if let Some(made) = self.linked.get(&was.node).filter(|_| is_linked) {
            self.report.other_count += 1;
            return Ok(self.view.nodes().link(*made, parent, name)?.node);
        }
        let node = self.materializer.make(parent, name, was)?;
        self.made.push((was.node, node));
        match was.kind {
            FileKind::File => {
                self.report.file_count += 1;
                self.report.content_bytes =
                    self.report.content_bytes.saturating_add(was.size_bytes);
            }
            FileKind::Directory => self.report.directory_count += 1,
            _ => self.report.other_count += 1,
        }
        if is_linked {
            self.linked.insert(was.node, node);
        }
        if was.kind != FileKind::Directory {
            self.materializer.set_attributes(was, node)?;
        }
        Ok(node)
    }
}
