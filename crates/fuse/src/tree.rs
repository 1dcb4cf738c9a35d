//! What a mount shows: a database, of the present or as of a moment, and on the first its history
//! below `.larder`.
//!
//! Each call of the Content API that the bridge makes goes by here, to the database or to a view of
//! its past. What is below `.larder`, and that name in the root, cannot be changed (`FUSE-11`), and
//! nothing is moved or linked into it or out of it. A file or directory of the user's own with that
//! name in the root is shown instead.

use crate::convert::slot_of;
use crate::handles::Held;
use crate::history::{Directory, History, NAME, limit, read_dir};
use crate::options::{HistoryAccess, HistoryListing, MountOptions};
use larder::{
    AccessRule, Caller, Database, DirEntry, Error, ErrorKind, FileHandle, FileKind, InodeFlags,
    Keeper, Metadata, Name, NewNode, NodeId, RenameMode, SetAttr, SpaceReport, XattrMode,
};
use larder_fuse_protocol::NodeNumber;
use std::sync::{Arc, Weak};

/// An open file.
type File = Box<dyn FileHandle>;

/// What one mount shows.
pub(crate) struct Tree {
    /// What is at the root.
    database: Database,
    /// The same, or of what it is the past: it knows how full the segments are.
    present: Database,
    /// The two are the same.
    is_present: bool,
    /// `None`: there is no `.larder`.
    history: Option<Arc<History>>,
    is_listed: bool,
    /// Who may use what is past.
    access: HistoryAccess,
}

/// Where a node is.
enum Place<'t> {
    Database,
    /// In one of the directories that lead to moments.
    Directory(&'t Arc<History>, Directory),
    /// In a moment.
    Past(crate::history::Inside),
}

impl Tree {
    /// A mount of `past`, or else of `present`.
    pub(crate) fn new(present: Database, past: Option<Database>, options: &MountOptions) -> Tree {
        let (listing, access) = (options.history, options.history_access);
        let has_history =
            past.is_none() && listing != HistoryListing::Off && present.history().is_kept();
        Tree {
            history: has_history.then(|| Arc::new(History::new(present.clone(), access))),
            is_present: past.is_none(),
            database: past.unwrap_or_else(|| present.clone()),
            present,
            is_listed: listing == HistoryListing::Shown,
            access,
        }
    }

    /// What is below `.larder`, if there can be one.
    pub(crate) fn history(&self) -> Option<Arc<History>> {
        self.history.clone()
    }

    /// Whether the user has something of that name in the root, so that history cannot be shown
    /// there.
    pub(crate) fn is_hidden_by_user(&self) -> Result<bool, Error> {
        let name = Name::new(NAME).map_err(|_| read_only())?;
        match (
            &self.history,
            self.database.nodes().lookup(NodeId::ROOT, &name),
        ) {
            (None, _) => Ok(false),
            (Some(_), Ok(_)) => Ok(true),
            (Some(_), Err(error)) if error.kind() == ErrorKind::NotFound => Ok(false),
            (Some(_), Err(error)) => Err(error),
        }
    }

    /// Attributes of what `database` shows, within what is allowed of the past (`FUSE-13`).
    pub(crate) fn limited(&self, attr: Metadata) -> Result<Metadata, Error> {
        limit(self.access, &self.present, &self.database, attr)
    }

    /// Whether what the kernel gets of a node changes with the present (`FUSE-13`), of which it is
    /// told only by the present's nodes. What leads to moments is as the root is now.
    pub(crate) fn follows_present(&self, node: NodeId) -> bool {
        let is_past =
            || slot_of(node).is_some() || self.database.sessions().present_node(node).is_some();
        slot_of(node) == Some(0) || self.access == HistoryAccess::Both && is_past()
    }

    /// The commit that a node is shown as of; 0: it is of the present, or leads to the past.
    pub(crate) fn moment_of(&self, node: NodeId) -> u64 {
        let moment = match slot_of(node) {
            None => self.database.history().shown().map(|(seq, _)| seq),
            Some(slot) => (self.history.as_ref()).and_then(|history| history.moment_of(slot)),
        };
        moment.unwrap_or(0)
    }

    fn place(&self, node: NodeId) -> Result<Place<'_>, Error> {
        match (slot_of(node), &self.history) {
            (None, _) => Ok(Place::Database),
            (Some(0), Some(history)) => Ok(Place::Directory(history, history.directory(node)?)),
            (Some(_), Some(history)) => Ok(Place::Past(history.enter(node)?)),
            (Some(_), None) => Err(Error::new(ErrorKind::NotFound, "no such node")),
        }
    }

    /// `FUSE-11`, for a change of node `node`.
    fn require_present(&self, node: NodeId) -> Result<(), Error> {
        match slot_of(node) {
            None => Ok(()),
            Some(_) => Err(read_only()),
        }
    }

    /// The same for a change of a name.
    fn require_free(&self, parent: NodeId, name: &Name) -> Result<(), Error> {
        self.require_present(parent)?;
        let may_be_history = parent == NodeId::ROOT && name.as_bytes() == NAME;
        match may_be_history && self.history.is_some() && !self.is_hidden_by_user()? {
            true => Err(read_only()),
            false => Ok(()),
        }
    }

    // ---- names ----------------------------------------------------------------------------

    pub(crate) fn lookup(&self, parent: NodeId, name: &Name) -> Result<Metadata, Error> {
        match self.place(parent)? {
            Place::Directory(history, directory) => history.lookup(directory, name),
            Place::Past(inside) => inside.lookup(name),
            Place::Database => match (self.database.nodes().lookup(parent, name), &self.history) {
                (Err(error), Some(history))
                    if error.kind() == ErrorKind::NotFound
                        && parent == NodeId::ROOT
                        && name.as_bytes() == NAME =>
                {
                    history.directory_attr(Directory::Top)
                }
                (found, _) => found.and_then(|attr| self.limited(attr)),
            },
        }
    }

    pub(crate) fn parent(&self, node: NodeId) -> Result<NodeId, Error> {
        match self.place(node)? {
            Place::Database => self.database.nodes().parent(node),
            Place::Directory(_, Directory::Top) => Ok(NodeId::ROOT),
            Place::Directory(..) => Ok(Directory::Top.node()),
            Place::Past(inside) => inside.parent(),
        }
    }

    /// Entries of a directory, as [`Database::read_dir`]; history, where it is listed, comes last
    /// in the root. `and_attr`: their attributes come into memory by the same scan.
    pub(crate) fn read_dir(
        &self,
        node: NodeId,
        after: Option<&Name>,
        limit: usize,
        and_attr: bool,
    ) -> Result<Vec<DirEntry>, Error> {
        match self.place(node)? {
            Place::Directory(history, directory) => history.read_dir(directory, after, limit),
            Place::Past(inside) => inside.read_dir(after, limit, and_attr),
            Place::Database => {
                let listed = self.history_after(node, after)?;
                if matches!(listed, Some(Listed::Was)) {
                    return Ok(Vec::new());
                }
                let mut entries = read_dir(&self.database, node, after, limit, and_attr)?;
                if let Some(Listed::Comes(entry)) = listed
                    && entries.len() < limit
                {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }
    }

    /// Whether history is listed in directory `node`, and before or behind `after`.
    fn history_after(&self, node: NodeId, after: Option<&Name>) -> Result<Option<Listed>, Error> {
        if !self.is_listed
            || node != NodeId::ROOT
            || self.history.is_none()
            || self.is_hidden_by_user()?
        {
            return Ok(None);
        }
        if after.is_some_and(|after| after.as_bytes() == NAME) {
            return Ok(Some(Listed::Was));
        }
        let name = Name::new(NAME).map_err(|_| read_only())?;
        Ok(Some(Listed::Comes(DirEntry {
            name,
            node: Directory::Top.node(),
            kind: FileKind::Directory,
        })))
    }

    pub(crate) fn create_node(
        &self,
        parent: NodeId,
        name: &Name,
        new: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<Metadata, Error> {
        self.require_free(parent, name)?;
        self.database
            .nodes()
            .create_node(parent, name, new, mode, caller)
    }

    pub(crate) fn create_anonymous(
        &self,
        parent: NodeId,
        mode: u32,
        is_linkable: bool,
        caller: Caller,
    ) -> Result<(Metadata, File), Error> {
        self.require_present(parent)?;
        self.database
            .nodes()
            .create_anonymous(parent, mode, is_linkable, caller)
    }

    pub(crate) fn create_file(
        &self,
        parent: NodeId,
        name: &Name,
        mode: u32,
        caller: Caller,
        write: bool,
    ) -> Result<(Metadata, File), Error> {
        self.require_free(parent, name)?;
        self.database
            .nodes()
            .create_file(parent, name, mode, caller, write)
    }

    pub(crate) fn link(
        &self,
        node: NodeId,
        parent: NodeId,
        name: &Name,
    ) -> Result<Metadata, Error> {
        require_one_moment(node, parent)?;
        self.require_free(parent, name)?;
        self.database.nodes().link(node, parent, name)
    }

    pub(crate) fn unlink(&self, parent: NodeId, name: &Name) -> Result<(), Error> {
        self.require_free(parent, name)?;
        self.database.nodes().unlink(parent, name)
    }

    pub(crate) fn remove_dir(&self, parent: NodeId, name: &Name) -> Result<(), Error> {
        self.require_free(parent, name)?;
        self.database.nodes().remove_dir(parent, name)
    }

    pub(crate) fn rename(
        &self,
        parent: NodeId,
        name: &Name,
        new_parent: NodeId,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<(), Error> {
        require_one_moment(parent, new_parent)?;
        self.require_free(parent, name)?;
        self.require_free(new_parent, new_name)?;
        self.database
            .nodes()
            .rename(parent, name, new_parent, new_name, mode)
    }

    pub(crate) fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        match self.place(node)? {
            Place::Database => self.database.nodes().read_link(node),
            Place::Directory(..) => Err(not_a_file()),
            Place::Past(inside) => inside.read_link(),
        }
    }

    // ---- attributes and content -------------------------------------------------------------

    pub(crate) fn attr(&self, node: NodeId) -> Result<Metadata, Error> {
        match self.place(node)? {
            Place::Database => self.limited(self.database.nodes().metadata(node)?),
            Place::Directory(history, directory) => history.directory_attr(directory),
            Place::Past(inside) => inside.attr(),
        }
    }

    pub(crate) fn set_attr(&self, node: NodeId, change: &SetAttr) -> Result<Metadata, Error> {
        self.require_present(node)?;
        self.database.nodes().set_attr(node, change)
    }

    pub(crate) fn set_flags(&self, node: NodeId, flags: InodeFlags) -> Result<(), Error> {
        self.require_present(node)?;
        self.database.attributes().set_flags(node, flags)
    }

    /// Of the present only.
    pub(crate) fn note_access(&self, node: NodeId, rule: AccessRule) -> Result<bool, Error> {
        self.require_present(node)?;
        self.database.attributes().note_access(node, rule)
    }

    pub(crate) fn xattrs(&self, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
        match self.place(node)? {
            Place::Database => self.database.attributes().list(node),
            Place::Directory(..) => Ok(Vec::new()),
            Place::Past(inside) => inside.xattrs(),
        }
    }

    pub(crate) fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Error> {
        match self.place(node)? {
            Place::Database => self.database.attributes().get(node, name),
            Place::Directory(..) => Err(Error::new(ErrorKind::NoAttribute, "it has none")),
            Place::Past(inside) => inside.xattr(name),
        }
    }

    pub(crate) fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        self.require_present(node)?;
        self.database.attributes().set(node, name, value, mode)
    }

    pub(crate) fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Error> {
        self.require_present(node)?;
        self.database.attributes().remove(node, name)
    }

    pub(crate) fn open_file(&self, node: NodeId, write: bool) -> Result<File, Error> {
        if write {
            self.require_present(node)?;
        }
        match self.place(node)? {
            Place::Database => self.database.nodes().open(node, write),
            Place::Directory(..) => Err(not_a_file()),
            Place::Past(inside) => inside.open_file(),
        }
    }

    /// What has to stay open for as long as a directory is (`FUSE-10`).
    pub(crate) fn hold(&self, directory: NodeId) -> Result<Held, Error> {
        match self.place(directory)? {
            Place::Database | Place::Directory(..) => Ok(None),
            Place::Past(inside) => Ok(Some(inside.hold())),
        }
    }

    /// Under which number locks of programs are kept: numbers of the past are of this mount only.
    pub(crate) fn lock_number(&self, number: NodeNumber) -> Result<NodeNumber, Error> {
        match self.place(crate::convert::node_of(number))? {
            Place::Database | Place::Directory(..) => Ok(number),
            Place::Past(inside) => Ok(NodeNumber(inside.lock_number())),
        }
    }

    /// From now on nodes that `keeper` knows live on (`FUSE-19`).
    pub(crate) fn keep_for<K: Keeper + 'static>(&self, keeper: &Arc<K>) {
        if self.is_present {
            let keeper: Weak<K> = Arc::downgrade(keeper);
            self.present.sessions().set_keeper(keeper);
        }
    }

    /// A node that was kept is not known any more.
    pub(crate) fn let_go(&self, node: NodeId) {
        self.present.sessions().let_go(node);
    }

    // ---- all of it --------------------------------------------------------------------------

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.database.sync()
    }

    // ---- others ---------------------------------------------------------------------------

    pub(crate) fn catch_up_if_moved(&self) -> Result<(), Error> {
        self.present.sessions().catch_up_if_moved()
    }

    pub(crate) fn has_writers_beside(&self) -> bool {
        self.present.sessions().has_writers_beside()
    }

    pub(crate) fn has_followers_beside(&self) -> bool {
        self.present.sessions().has_followers_beside()
    }

    pub(crate) fn show_others(&self, gives_way: bool) -> Result<(), Error> {
        self.present.sessions().show_others(gives_way)
    }

    pub(crate) fn space(&self) -> Result<SpaceReport, Error> {
        self.present.maintenance().space()
    }
}

/// Where the entry of history is in the listing of the root.
enum Listed {
    /// It was the last one.
    Was,
    /// It follows all others.
    Comes(DirEntry),
}

/// `FUSE-11`, for two nodes of which one gets a name beside the other.
fn require_one_moment(node: NodeId, other: NodeId) -> Result<(), Error> {
    match slot_of(node) == slot_of(other) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::CrossStore,
            "nothing is moved between moments; copy instead",
        )),
    }
}

fn read_only() -> Error {
    Error::new(
        ErrorKind::ReadOnly,
        "the past cannot be changed; write to the present, outside of '.larder'",
    )
}

fn not_a_file() -> Error {
    Error::new(ErrorKind::IsADirectory, "it is a directory")
}
