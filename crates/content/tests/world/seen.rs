//! What people see of a tree, by the ways there are to look at it. What one way does not show is
//! left out of the comparison.

use larder::{Database, FileKind, Name, NodeId, Result, SqlSession, SqlValue};
use larder_testkit::{Entry, EntryKind, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Entries per listing: few, so that large directories take several.
const LISTING_MAX: usize = 7;

/// What there is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub entry: Entry,
    pub owner: (u32, u32),
    /// Of content, of anything, and of its making; nanoseconds since 1970.
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
}

/// By path, from the root of the tree, which is the empty one.
pub type Sight = BTreeMap<String, Seen>;

/// What a way to look shows, besides names, kinds, modes, owners, times, links and content.
#[derive(Debug, Clone, Copy)]
pub struct Shows {
    /// Inode numbers; else only which of them are equal.
    pub numbers: bool,
    /// Extended attributes and the targets of symbolic links.
    pub small: bool,
    /// The root itself.
    pub root: bool,
    /// `ctime` and when it was made.
    pub changes: bool,
    pub birth: bool,
}

/// The API shows everything.
pub const EVERYTHING: Shows = Shows {
    numbers: true,
    small: true,
    root: true,
    changes: true,
    birth: true,
};

/// What is left of a sight by a way that shows less.
pub fn as_shown(sight: &Sight, shows: Shows) -> Sight {
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let entries = sight
        .iter()
        .filter(|(path, _)| shows.root || !path.is_empty());
    let left = entries.map(|(path, seen)| {
        let mut seen = seen.clone();
        if !shows.numbers {
            let next = numbers.len() as u64;
            seen.entry.inode = *numbers.entry(seen.entry.inode).or_insert(next);
        }
        if !shows.small {
            seen.entry.xattrs.clear();
            if let EntryKind::Symlink(target) = &mut seen.entry.kind {
                target.clear();
            }
        }
        if !shows.changes {
            seen.ctime_ns = 0;
        }
        if !shows.birth {
            seen.btime_ns = 0;
        }
        (path.clone(), seen)
    });
    left.collect()
}

/// The first differences, for people; `None`: there are none.
pub fn find_difference(expected: &Sight, found: &Sight) -> Option<String> {
    if expected == found {
        return None;
    }
    let paths: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differing = paths
        .into_iter()
        .filter(|path| expected.get(*path) != found.get(*path));
    let lines = differing.take(6).map(|path| {
        format!(
            "'{path}':\n  expected {:?}\n  found    {:?}",
            expected.get(path),
            found.get(path)
        )
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// What is at `path` and below it, as if that were the root; number of names are those in there,
/// and inodes are numbered by their first paths.
pub fn below(sight: &Sight, path: &str) -> Sight {
    let inside = format!("{path}/");
    let all = sight
        .iter()
        .filter(|(other, _)| *other == path || other.starts_with(&inside));
    let mut found: Sight = all
        .map(|(other, seen)| {
            let mut seen = seen.clone();
            seen.entry.path = other[path.len()..].to_owned();
            (seen.entry.path.clone(), seen)
        })
        .collect();
    let mut names: HashMap<u64, u32> = HashMap::new();
    for seen in found.values() {
        *names.entry(seen.entry.inode).or_default() += 1;
    }
    for seen in found.values_mut() {
        if let EntryKind::File { nlink, .. } = &mut seen.entry.kind {
            *nlink = names[&seen.entry.inode];
        }
    }
    let shows = Shows {
        numbers: false,
        ..EVERYTHING
    };
    as_shown(&found, shows)
}

/// For the model.
pub fn tree(sight: &Sight) -> Tree {
    let named = sight.iter().filter(|(path, _)| !path.is_empty());
    Tree {
        entries: named.map(|(_, seen)| seen.entry.clone()).collect(),
    }
}

/// By the API: all below the directory `root` of a database of any moment.
pub fn see(database: &Database, root: &str) -> Result<Sight> {
    let mut sight = Sight::new();
    let node = database.nodes().resolve(root.as_bytes(), false)?.node;
    sight.insert(String::new(), seen(database, node, String::new())?);
    see_directory(database, node, "", &mut sight)?;
    Ok(sight)
}

fn see_directory(
    database: &Database,
    directory: NodeId,
    at: &str,
    sight: &mut Sight,
) -> Result<()> {
    let mut after: Option<Name> = None;
    loop {
        let listing = database
            .nodes()
            .read_dir(directory, after.as_ref(), LISTING_MAX)?;
        for entry in &listing {
            let path = format!("{at}/{}", entry.name);
            sight.insert(path.clone(), seen(database, entry.node, path.clone())?);
            if entry.kind == FileKind::Directory {
                see_directory(database, entry.node, &path, sight)?;
            }
        }
        if listing.len() < LISTING_MAX {
            return Ok(());
        }
        after = listing.last().map(|entry| entry.name.clone());
    }
}

fn seen(database: &Database, node: NodeId, path: String) -> Result<Seen> {
    let attr = database.nodes().metadata(node)?;
    let kind = match attr.kind {
        FileKind::Directory => EntryKind::Directory,
        FileKind::Symlink => EntryKind::Symlink(
            String::from_utf8_lossy(&database.nodes().read_link(node)?).into_owned(),
        ),
        FileKind::File => {
            let bytes = read(database, node, attr.size_bytes)?;
            EntryKind::File {
                nlink: attr.nlink,
                len_bytes: attr.size_bytes.max(bytes.len() as u64),
                content: Tree::hash_content(&bytes),
            }
        }
        kind => panic!("{path}: nobody makes a {}", kind.as_str()),
    };
    let mut xattrs = BTreeMap::new();
    for name in database.attributes().list(node)? {
        let value = database.attributes().get(node, &name)?;
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value);
    }
    Ok(Seen {
        entry: Entry {
            path,
            mode: attr.mode,
            inode: node.ino.0,
            kind,
            xattrs,
        },
        owner: (attr.uid, attr.gid),
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns,
        btime_ns: attr.btime_ns,
    })
}

/// The whole content, to its end and not beyond.
fn read(database: &Database, node: NodeId, size_bytes: u64) -> Result<Vec<u8>> {
    let handle = database.nodes().open(node, false)?;
    let mut bytes = vec![0; size_bytes as usize + 1];
    let mut len = 0;
    loop {
        match handle.read_at(len as u64, &mut bytes[len..])? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// By a mount, of any moment.
pub const ON_A_MOUNT: Shows = Shows {
    numbers: false,
    birth: false,
    ..EVERYTHING
};

/// All below the directory `root` of a mount.
#[allow(dead_code)] // Not every test that has this module mounts.
pub fn see_mount(root: &Path) -> io::Result<Sight> {
    let mut sight = Sight::new();
    see_host(root, "", &mut sight)?;
    Ok(sight)
}

fn see_host(root: &Path, path: &str, sight: &mut Sight) -> io::Result<()> {
    let at = root.join(path.trim_start_matches('/'));
    let metadata = fs::symlink_metadata(&at)?;
    let kind = if metadata.is_dir() {
        EntryKind::Directory
    } else if metadata.is_symlink() {
        EntryKind::Symlink(fs::read_link(&at)?.to_string_lossy().into_owned())
    } else {
        let bytes = fs::read(&at)?;
        EntryKind::File {
            nlink: metadata.nlink() as u32,
            len_bytes: metadata.len().max(bytes.len() as u64),
            content: Tree::hash_content(&bytes),
        }
    };
    let is_directory = kind == EntryKind::Directory;
    let ns = |seconds: i64, rest: i64| seconds * 1_000_000_000 + rest;
    let seen = Seen {
        entry: Entry {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
            inode: metadata.ino(),
            kind,
            xattrs: larder_testkit::read_xattrs(&at)?,
        },
        owner: (metadata.uid(), metadata.gid()),
        mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
        ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        btime_ns: 0,
    };
    sight.insert(path.to_owned(), seen);
    if is_directory {
        for entry in fs::read_dir(&at)? {
            let name = entry?.file_name();
            see_host(root, &format!("{path}/{}", name.to_string_lossy()), sight)?;
        }
    }
    Ok(())
}

/// By `files_as_of` and `content_as_of`.
pub const BY_FUNCTIONS: Shows = Shows {
    small: false,
    root: false,
    ..EVERYTHING
};

/// `moment`: as SQL has it, a number or a text in quotes.
pub fn see_functions(session: &mut SqlSession, moment: &str, root: &str) -> Result<Sight> {
    let sql = format!(
        "SELECT path, kind, mode, uid, gid, nlink, ino, mtime_ns, ctime_ns, btime_ns, size, '', \
         iif(kind = 'file', content_as_of({moment}, path), NULL) FROM files_as_of({moment}, \
         '{root}/**')"
    );
    see_rows(session, &sql, root, &BTreeMap::new())
}

/// By a session of the past.
pub const BY_SESSION: Shows = Shows {
    root: false,
    ..EVERYTHING
};

/// Of store `main` only: what is below the directory `root` of it.
pub fn see_session(session: &mut SqlSession, root: &str) -> Result<Sight> {
    let mut xattrs: BTreeMap<i64, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    session.execute("SELECT ino, name, value FROM main_xattr", &mut |row| {
        let [SqlValue::Integer(ino), name, SqlValue::Blob(value)] = &row.values[..] else {
            panic!("{row:?}")
        };
        let of_node = xattrs.entry(*ino).or_default();
        of_node.insert(text(name), value.clone());
        Ok(())
    })?;
    let sql = format!(
        "SELECT path, kind, mode, uid, gid, nlink, ino, mtime_ns, ctime_ns, btime_ns, size, \
         target, \
         iif(kind = 'file', content(ino), NULL) FROM main_path JOIN main USING (ino) \
         LEFT JOIN main_content USING (ino) WHERE path LIKE '{root}/%'"
    );
    see_rows(session, &sql, root, &xattrs)
}

fn see_rows(
    session: &mut SqlSession,
    sql: &str,
    root: &str,
    xattrs: &BTreeMap<i64, BTreeMap<String, Vec<u8>>>,
) -> Result<Sight> {
    let mut sight = Sight::new();
    session.execute(sql, &mut |row| {
        let values = &row.values;
        let number = |at: usize| match &values[at] {
            SqlValue::Integer(number) => *number,
            other => panic!("column {at}: {other:?}"),
        };
        let path = text(&values[0])[root.len()..].to_owned();
        let kind = match text(&values[1]).as_str() {
            "dir" => EntryKind::Directory,
            "symlink" => EntryKind::Symlink(text(&values[11])),
            "file" => {
                let SqlValue::Blob(bytes) = &values[12] else {
                    panic!("{path}: {:?}", values[12])
                };
                EntryKind::File {
                    nlink: number(5) as u32,
                    len_bytes: (number(10) as u64).max(bytes.len() as u64),
                    content: Tree::hash_content(bytes),
                }
            }
            other => panic!("{path}: nobody makes a {other}"),
        };
        let seen = Seen {
            entry: Entry {
                path: path.clone(),
                mode: number(2) as u32,
                inode: number(6) as u64,
                kind,
                xattrs: xattrs.get(&number(6)).cloned().unwrap_or_default(),
            },
            owner: (number(3) as u32, number(4) as u32),
            mtime_ns: number(7),
            ctime_ns: number(8),
            btime_ns: number(9),
        };
        sight.insert(path, seen);
        Ok(())
    })?;
    Ok(sight)
}

fn text(value: &SqlValue) -> String {
    match value {
        SqlValue::Text(text) => text.clone(),
        SqlValue::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    }
}
