//! What the SQL functions about files answer, and what they do.
//!
//! Reading is done at once, by the engine that serves the statement's transaction: it reads what
//! the statement reads. Writing waits until the statement has ended, since it must not change what
//! the statement still reads; then it is a `put` for each file (`CONTENT-8`).

mod as_of;

use crate::active_transaction::lock;
use crate::database::{Database, Shared};
use crate::stores::{KnownStores, MountedStore};
use crate::types::NodeId;
use crate::walk::Walk;
use as_of::Pasts;
use larder_object::format::{FileKind, Ino, Name, StoreId};
use larder_object::{
    Error, ErrorKind, FileRow, FileRows, Result, SqlFile, SqlFiles, SqlMoment, VALUE_BYTES_MAX,
};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of content that one statement may write: they are in memory until it ends.
const WRITTEN_BYTES_MAX: u64 = 1 << 30;

/// Answers the functions of one statement in a transaction.
pub(crate) struct StatementFiles {
    /// What the transaction sees.
    view: Arc<Shared>,
    /// The same without its transaction, which the statement has passed. Made when the first
    /// function asks. Or the past that the statement sees.
    inner: OnceLock<Database>,
    pasts: Pasts,
    state: Mutex<State>,
}

/// What a statement writes when it has ended.
struct Waiting {
    path: Vec<u8>,
    /// Offset and length of what `bytes` take the place of; `None`: of all.
    range: Option<(u64, u64)>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// To be written, in order.
    waiting: Vec<Waiting>,
    waiting_bytes: u64,
    /// The last failure: SQLite knows its text only.
    failure: Option<Error>,
}

impl StatementFiles {
    /// Answers for a statement of the transaction that `view` shows. `host`: the database beside
    /// the transaction, where other moments may be opened. `past`: what the statement sees of
    /// files, if it is not the transaction's.
    pub(crate) fn new(
        view: &Database,
        host: Option<&Database>,
        past: Option<&Database>,
    ) -> Arc<StatementFiles> {
        Arc::new(StatementFiles {
            view: Arc::clone(&view.shared),
            inner: past.map_or_else(OnceLock::new, |past| OnceLock::from(past.clone())),
            pasts: Pasts::new(host),
            state: Mutex::default(),
        })
    }

    /// The failure that ended the statement, if it came from here.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        lock(&self.state).failure.take()
    }

    /// Writes what waits.
    pub(crate) fn write(&self) -> Result<()> {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        waiting.iter().try_for_each(|one| {
            let named = |error: Error| {
                let path = String::from_utf8_lossy(&one.path);
                error.context(format!("write_content('{path}')"))
            };
            self.write_one(one).map_err(named)
        })
    }

    fn write_one(&self, one: &Waiting) -> Result<()> {
        let database = self.database();
        let Some((offset, len_bytes)) = one.range else {
            return database.files().write(&one.path, &one.bytes).map(drop);
        };
        let node = database.nodes().resolve(&one.path, true)?.node;
        let file = database.nodes().open(node, true)?;
        file.replace_range(offset, len_bytes, &one.bytes)
    }

    /// Forgets what was taken last.
    pub(crate) fn forget_last(&self) {
        let mut state = lock(&self.state);
        if let Some(last) = state.waiting.pop() {
            state.waiting_bytes -= last.bytes.len() as u64;
        }
    }

    /// Removes names of files: of directories last, the innermost first if they are as old as they
    /// are deep.
    pub(crate) fn remove(&self, names: Vec<(StoreId, Ino, Name)>) -> Result<()> {
        let database = self.database();
        let mut directories = Vec::new();
        for (store, parent, name) in names {
            let parent = NodeId { store, ino: parent };
            let attr = database.nodes().lookup(parent, &name)?;
            match attr.kind {
                FileKind::Directory => directories.push((attr.node.ino, parent, name)),
                _ => database.nodes().unlink(parent, &name)?,
            }
        }
        directories.sort_unstable_by_key(|(ino, ..)| std::cmp::Reverse(*ino));
        for (_, parent, name) in directories {
            database.nodes().remove_dir(parent, &name)?;
        }
        Ok(())
    }

    fn database(&self) -> &Database {
        self.inner.get_or_init(|| {
            let view = Database {
                shared: Arc::clone(&self.view),
            };
            let shared = Shared {
                shown: self.view.shown.inside(),
                factories: Arc::clone(&self.view.factories),
                stores: KnownStores::default(),
                pool: Arc::default(),
            };
            let stores = view.read_stores();
            let mine = stores.iter().map(|store| MountedStore {
                row: store.row.clone(),
                provider: shared.make_provider(&store.row, store.provider.as_ref()),
                place: store.place.clone(),
            });
            let mine = mine.collect();
            shared.stores.set(mine);
            Database {
                shared: Arc::new(shared),
            }
        })
    }

    /// Keeps a failure; returns its text.
    fn note(&self, error: Error) -> String {
        let text = error.to_string();
        lock(&self.state).failure = Some(error);
        text
    }

    fn told<T>(&self, name: &str, done: Result<T>) -> std::result::Result<T, String> {
        done.map_err(|error| self.note(error.context(name)))
    }

    fn past(&self, moment: SqlMoment<'_>) -> Result<Database> {
        self.pasts.find(moment)
    }

    /// The rows of `files` in a database.
    fn rows(
        self: Arc<Self>,
        name: &'static str,
        database: &Database,
        pattern: &[u8],
    ) -> std::result::Result<FileRows, String> {
        let walk = self.told(name, Walk::begin(database, pattern))?;
        let names: Vec<(StoreId, String)> = (database.read_stores().iter())
            .map(|store| (store.row.store, store.row.name.clone()))
            .collect();
        Ok(Box::new(walk.map(move |found| {
            let (path, attr) = self.told(name, found)?;
            let store = names.iter().find(|(store, _)| *store == attr.node.store);
            Ok(FileRow {
                path,
                store: store.map(|(_, name)| name.clone()).unwrap_or_default(),
                ino: attr.node.ino.0,
                kind: attr.kind,
                size_bytes: attr.size_bytes,
                mode: attr.mode,
                uid: attr.uid,
                gid: attr.gid,
                nlink: attr.nlink,
                mtime_ns: attr.mtime_ns,
                ctime_ns: attr.ctime_ns,
                btime_ns: attr.btime_ns,
            })
        })))
    }
}

fn find(database: &Database, file: SqlFile<'_>) -> Result<Option<NodeId>> {
    let found = match file {
        SqlFile::Ino(ino) => database.nodes().metadata(NodeId {
            store: StoreId::MAIN,
            ino: Ino(ino),
        }),
        SqlFile::Path(path) => database.nodes().resolve(path, true),
    };
    absent_is_none(found.map(|attr| attr.node))
}

fn read(
    database: &Database,
    file: SqlFile<'_>,
    range: Option<(u64, u64)>,
) -> Result<Option<Vec<u8>>> {
    let Some(node) = find(database, file)? else {
        return Ok(None);
    };
    let attr = database.nodes().metadata(node)?;
    if attr.kind != FileKind::File {
        let kind = match attr.kind {
            FileKind::Directory => ErrorKind::IsADirectory,
            _ => ErrorKind::InvalidInput,
        };
        let why = format!(
            "it is a {}, and only regular files have content",
            attr.kind.as_str()
        );
        return Err(Error::new(kind, why));
    }
    let (offset, length) = range.unwrap_or((0, u64::MAX));
    let length = attr.size_bytes.saturating_sub(offset).min(length);
    if length > VALUE_BYTES_MAX {
        let why = format!(
            "{length} bytes are more than the {VALUE_BYTES_MAX} that an SQL value can have; read \
             parts: content(file, offset, length)"
        );
        return Err(Error::new(ErrorKind::TooBig, why));
    }
    let mut bytes = vec![0; length as usize];
    if bytes.is_empty() {
        return Ok(Some(bytes));
    }
    let handle = database.nodes().open(node, false)?;
    let mut done = 0;
    while done < bytes.len() {
        match handle.read_at(offset + done as u64, &mut bytes[done..])? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    Ok(Some(bytes))
}

impl StatementFiles {
    fn find_path(&self, ino: u64, store: Option<&str>) -> Result<Option<Vec<u8>>> {
        let store = match store {
            None => StoreId::MAIN,
            Some(name) => {
                let stores = self.database().read_stores();
                let named = stores
                    .iter()
                    .find(|one| one.row.name.eq_ignore_ascii_case(name));
                let named = named.ok_or_else(|| {
                    let why = format!("there is no store '{name}'; larder_store lists them");
                    Error::new(ErrorKind::NotFound, why)
                })?;
                named.row.store
            }
        };
        let node = NodeId {
            store,
            ino: Ino(ino),
        };
        match absent_is_none(self.database().nodes().metadata(node))? {
            Some(_) => self.database().nodes().path(node),
            None => Ok(None),
        }
    }

    fn take(&self, path: &[u8], range: Option<(u64, u64)>, bytes: &[u8]) -> Result<()> {
        // What is wrong with the path is found here, where the row is known.
        let (parent, name) = self.database().nodes().resolve_parent(path)?;
        match absent_is_none(self.database().nodes().lookup(parent, &name))? {
            None if range.is_some() => {
                let why = "there is no such file; write_content(path, bytes) makes one";
                return Err(Error::new(ErrorKind::NotFound, why));
            }
            Some(attr) if attr.kind == FileKind::File => {
                self.require_inside(path, range, attr.size_bytes)?;
            }
            Some(attr) => {
                let why = format!(
                    "it is a {}, and only regular files have content",
                    attr.kind.as_str()
                );
                return Err(Error::new(ErrorKind::InvalidInput, why));
            }
            None => {}
        }
        let stores = self.database().read_stores();
        let store = stores.iter().find(|store| store.row.store == parent.store);
        if store.is_some_and(|store| store.row.provider == "readonly") {
            let why = "the store is read-only; write to another one";
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        drop(stores);
        let mut state = lock(&self.state);
        state.waiting_bytes += bytes.len() as u64;
        if state.waiting_bytes > WRITTEN_BYTES_MAX {
            let why = format!(
                "one statement writes at most {WRITTEN_BYTES_MAX} bytes; divide it into several \
                 between BEGIN and COMMIT"
            );
            return Err(Error::new(ErrorKind::TooBig, why));
        }
        state.waiting.push(Waiting {
            path: path.to_vec(),
            range,
            bytes: bytes.to_vec(),
        });
        Ok(())
    }
}

impl StatementFiles {
    /// Refuses a range beyond the end of a file that nothing of this statement changes before.
    fn require_inside(&self, path: &[u8], range: Option<(u64, u64)>, size: u64) -> Result<()> {
        let is_first = !lock(&self.state).waiting.iter().any(|one| one.path == path);
        let end = range.map(|(offset, len_bytes)| offset.saturating_add(len_bytes));
        match end.filter(|end| is_first && *end > size) {
            None => Ok(()),
            Some(end) => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the part ends at byte {end}, and the file has {size} bytes"),
            )),
        }
    }
}

fn absent_is_none<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn shown(name: &str, file: SqlFile<'_>) -> String {
    match file {
        SqlFile::Ino(ino) => format!("{name}({ino})"),
        SqlFile::Path(path) => format!("{name}('{}')", String::from_utf8_lossy(path)),
    }
}

impl SqlFiles for StatementFiles {
    fn content(
        &self,
        file: SqlFile<'_>,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<Option<Vec<u8>>, String> {
        let read = read(self.database(), file, range);
        read.map_err(|error| self.note(error.context(shown("content", file))))
    }

    fn content_as_of(
        &self,
        moment: SqlMoment<'_>,
        file: SqlFile<'_>,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<Option<Vec<u8>>, String> {
        let past = self.past(moment);
        let read = past.and_then(|past| read(&past, file, range));
        read.map_err(|error| self.note(error.context(shown("content_as_of", file))))
    }

    fn files_as_of(
        self: Arc<Self>,
        moment: SqlMoment<'_>,
        pattern: &[u8],
    ) -> std::result::Result<FileRows, String> {
        const NAME: &str = "files_as_of";
        let past = self.told(NAME, self.past(moment))?;
        self.rows(NAME, &past, pattern)
    }

    fn write_content(
        &self,
        path: &[u8],
        range: Option<(u64, u64)>,
        bytes: &[u8],
    ) -> std::result::Result<(), String> {
        let taken = self.take(path, range, bytes);
        taken.map_err(|error| self.note(error.context(shown("write_content", SqlFile::Path(path)))))
    }

    fn path(&self, ino: u64, store: Option<&str>) -> std::result::Result<Option<Vec<u8>>, String> {
        self.told("path", self.find_path(ino, store))
    }

    fn ino(&self, path: &[u8]) -> std::result::Result<Option<u64>, String> {
        let found = find(self.database(), SqlFile::Path(path));
        let found = found.map(|node| node.map(|node| node.ino.0));
        found.map_err(|error| self.note(error.context(shown("ino", SqlFile::Path(path)))))
    }

    fn now_ns(&self) -> i64 {
        self.view.shown.view().now_ns()
    }

    fn files(self: Arc<Self>, pattern: &[u8]) -> std::result::Result<FileRows, String> {
        let database = self.database().clone();
        self.rows("files", &database, pattern)
    }
}
