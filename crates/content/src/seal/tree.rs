//! The digest of a store's tree: of each directory one, over the digests of what is in it.

use crate::copy::read_full;
use crate::files::FilesReader;
use crate::provider::StoreProvider;
use crate::seal::digest::{Digest, Hasher, hint, name_hint};
use crate::types::{DirEntry, Metadata, SeekTarget};
use larder_object::format::{FileKind, Ino, Name, StoreId};
use larder_object::{AlignedBuf, AsOf, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Entries that are read at once.
const PAGE: usize = 1000;
/// Content is taken in pieces of so many bytes; pieces of zeros are left out, whether they are
/// holes or not.
const PIECE_BYTES: usize = 64 << 10;
/// Content up to this length is read at once; more in steps of it, bytes.
const STEP_BYTES: usize = 4 << 20;
/// User columns, which are sealed with the tables that are tracked.
const COLUMN_PREFIX: &[u8] = b"user.column.";

/// What a file is, in two digests: so that it can be told what differs.
#[derive(Clone, Copy)]
pub(crate) struct NodeDigest {
    attributes: Digest,
    /// Of a directory: its entries.
    content: Digest,
}

impl NodeDigest {
    fn whole(&self) -> Digest {
        let mut hasher = Hasher::new("node");
        hasher.fixed(&self.attributes);
        hasher.fixed(&self.content);
        hasher.end()
    }
}

/// A directory whose entries are all known.
pub(crate) struct DoneDirectory {
    pub(crate) ino: Ino,
    /// In the store; the root's is empty.
    pub(crate) path: Vec<u8>,
    pub(crate) entry_count: u64,
    pub(crate) digest: Digest,
    /// Of each entry: of its name, its attributes, its content.
    pub(crate) hints: Vec<u8>,
}

/// Reads a tree.
pub(crate) struct TreeReader {
    provider: FilesReader<AsOf>,
    /// What has several names is read once. 100 bytes of memory each.
    linked: HashMap<Ino, NodeDigest>,
    buffer: AlignedBuf,
    /// Whether files that cannot be read are noted, instead of an error.
    is_lenient: bool,
    /// Those files, with their paths, and why.
    pub(crate) damaged: Vec<(Vec<u8>, String)>,
    pub(crate) file_count: u64,
    pub(crate) content_bytes: u64,
}

/// A directory under way.
struct Frame {
    attr: Metadata,
    /// In its parent.
    name: Vec<u8>,
    path: Vec<u8>,
    page: std::vec::IntoIter<(DirEntry, Metadata)>,
    last: Option<Name>,
    is_last_page: bool,
    hasher: Hasher,
    hints: Vec<u8>,
    entry_count: u64,
}

impl Frame {
    fn new(attr: Metadata, name: Vec<u8>, path: Vec<u8>) -> Frame {
        Frame {
            attr,
            name,
            path,
            page: Vec::new().into_iter(),
            last: None,
            is_last_page: false,
            hasher: Hasher::new("directory"),
            hints: Vec::new(),
            entry_count: 0,
        }
    }

    fn add(&mut self, name: &[u8], node: &NodeDigest) {
        self.hasher.bytes(name);
        self.hasher.fixed(&node.whole());
        self.hints.extend(name_hint(name));
        self.hints.extend(hint(&node.attributes));
        self.hints.extend(hint(&node.content));
        self.entry_count += 1;
    }
}

impl TreeReader {
    /// Of a store of a database of the past.
    pub(crate) fn new(past: &Arc<AsOf>, store: StoreId, is_lenient: bool) -> TreeReader {
        TreeReader {
            provider: FilesReader::new(Arc::clone(past), store, store),
            linked: HashMap::new(),
            buffer: AlignedBuf::with_capacity(0),
            is_lenient,
            damaged: Vec::new(),
            file_count: 0,
            content_bytes: 0,
        }
    }

    /// The digest of the whole tree, and how many entries the root has; `None`: the store was not
    /// there. Visits each directory after all below it. Memory: the names on the way down, and 12
    /// bytes for each of their entries.
    pub(crate) fn digest(
        &mut self,
        visit: &mut dyn FnMut(&TreeReader, DoneDirectory) -> Result<()>,
    ) -> Result<Option<(Digest, u64)>> {
        let root = match self.provider.metadata(Ino::ROOT) {
            Ok(root) => root,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut above: Vec<Frame> = Vec::new();
        let mut at = Frame::new(root, Vec::new(), Vec::new());
        loop {
            if let Some((entry, attr)) = self.next_entry(&mut at)? {
                let name = entry.name.as_bytes().to_vec();
                let path = [&at.path, &b"/"[..], &name].concat();
                if attr.kind == FileKind::Directory {
                    above.push(std::mem::replace(&mut at, Frame::new(attr, name, path)));
                } else {
                    let node = self.node(&attr, &path)?;
                    at.add(&name, &node);
                }
                continue;
            }
            let (attr, name, entry_count) = (at.attr, at.name, at.entry_count);
            let content = at.hasher.end();
            let node = NodeDigest {
                attributes: self.attributes(&attr)?,
                content,
            };
            let done = DoneDirectory {
                ino: attr.node.ino,
                path: at.path,
                entry_count,
                digest: content,
                hints: at.hints,
            };
            visit(self, done)?;
            match above.pop() {
                Some(mut parent) => {
                    parent.add(&name, &node);
                    at = parent;
                }
                None => return Ok(Some((node.whole(), entry_count))),
            }
        }
    }

    /// The entries of a directory, in the order of its digest.
    pub(crate) fn entries(&self, ino: Ino) -> Result<Vec<(Name, FileKind, Ino)>> {
        let mut found: Vec<(Name, FileKind, Ino)> = Vec::new();
        loop {
            let after = found.last().map(|(name, ..)| name.clone());
            let page = self.provider.read_dir(ino, after.as_ref(), PAGE)?;
            let is_last = page.len() < PAGE;
            let entries = page.into_iter();
            found.extend(entries.map(|entry| (entry.name, entry.kind, entry.node.ino)));
            if is_last {
                return Ok(found);
            }
        }
    }

    fn next_entry(&self, at: &mut Frame) -> Result<Option<(DirEntry, Metadata)>> {
        loop {
            if let Some(found) = at.page.next() {
                return Ok(Some(found));
            }
            if at.is_last_page {
                return Ok(None);
            }
            let ino = at.attr.node.ino;
            let page = self.provider.read_dir_plus(ino, at.last.as_ref(), PAGE)?;
            at.is_last_page = page.len() < PAGE;
            at.last = page.last().map(|(entry, _)| entry.name.clone());
            at.page = page.into_iter();
        }
    }

    fn node(&mut self, attr: &Metadata, path: &[u8]) -> Result<NodeDigest> {
        let ino = attr.node.ino;
        if let Some(known) = self.linked.get(&ino) {
            return Ok(*known);
        }
        self.file_count += 1;
        let content = match self.content(attr) {
            Err(error) if self.is_lenient && error.kind() == ErrorKind::Corrupt => {
                self.damaged.push((path.to_vec(), error.to_string()));
                [0; 32]
            }
            content => content?,
        };
        let node = NodeDigest {
            attributes: self.attributes(attr)?,
            content,
        };
        if attr.nlink > 1 {
            self.linked.insert(ino, node);
        }
        Ok(node)
    }

    /// All that a row of the store's table says but atime and blocks, and the extended attributes.
    fn attributes(&self, attr: &Metadata) -> Result<Digest> {
        let mut hasher = Hasher::new("attributes");
        hasher.number(attr.node.ino.0);
        hasher.bytes(attr.kind.as_str().as_bytes());
        for number in [attr.mode, attr.uid, attr.gid, attr.nlink] {
            hasher.number(number.into());
        }
        hasher.number(attr.size_bytes);
        for time_ns in [attr.mtime_ns, attr.ctime_ns, attr.btime_ns] {
            hasher.signed(time_ns);
        }
        // What only one kind of inode has is in one number.
        hasher.number(attr.rdev | u64::from(attr.flags.bits()));
        let ino = attr.node.ino;
        let mut values = BTreeMap::new();
        for name in self.provider.xattrs(ino)? {
            if !name.starts_with(COLUMN_PREFIX) {
                let value = self.provider.xattr(ino, &name)?;
                values.insert(name, value);
            }
        }
        hasher.number(values.len() as u64);
        for (name, value) in values {
            hasher.bytes(&name);
            hasher.bytes(&value);
        }
        Ok(hasher.end())
    }

    fn content(&mut self, attr: &Metadata) -> Result<Digest> {
        let ino = attr.node.ino;
        match attr.kind {
            FileKind::File => {}
            FileKind::Symlink => {
                let mut hasher = Hasher::new("target");
                hasher.bytes(&self.provider.read_link(ino)?);
                return Ok(hasher.end());
            }
            _ => return Ok([0; 32]),
        }
        let mut hasher = Hasher::new("content");
        hasher.number(attr.size_bytes);
        if attr.size_bytes <= STEP_BYTES as u64 {
            self.provider.read_whole(ino, &mut self.buffer)?;
            self.content_bytes += self.buffer.len() as u64;
            add_pieces(&mut hasher, 0, &self.buffer);
            return Ok(hasher.end());
        }
        let file = self.provider.open(ino, false)?;
        let mut step = AlignedBuf::zeroed(STEP_BYTES);
        let mut at = 0;
        while let Some(data) = file.seek(SeekTarget::Data, at)? {
            // Where a hole ends is no matter of the state: pieces begin where they always do.
            let start = data - data % PIECE_BYTES as u64;
            let read = read_full(&*file, start, &mut step)?;
            if read == 0 {
                break;
            }
            self.content_bytes += read as u64;
            add_pieces(&mut hasher, start, &step[..read]);
            at = start + read as u64;
        }
        Ok(hasher.end())
    }
}

/// Adds content from `offset` on, a multiple of a piece.
fn add_pieces(hasher: &mut Hasher, offset: u64, bytes: &[u8]) {
    let first = offset / PIECE_BYTES as u64;
    for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        if piece.iter().any(|&byte| byte != 0) {
            hasher.number(first + index as u64);
            hasher.bytes(piece);
        }
    }
}
