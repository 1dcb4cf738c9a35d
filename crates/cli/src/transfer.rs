//! `larder cp`, `mv`, `put`, `get` and `cat`: content moves between databases and local files.
//!
//! A move within one store is a rename. Any other is a copy of everything (`CLI-12`), made durable
//! (`CLI-8`), and only then the removal of exactly what was copied.

use crate::address::{Address, join, last_name, split_moment};
use crate::args::{CatArgs, CpArgs, GetArgs, MvArgs, PutArgs};
use crate::copy::{Copied, Copy, CopyCount, CopyMode, descend, remove_again};
use crate::databases::{Databases, with_databases};
use crate::error::{At, Failure, Result, each};
use crate::inside::{Inside, resolve, umask};
use crate::local::Local;
use crate::output::{Output, kind_words};
use crate::progress::Progress;
use crate::side::{Content, REQUEST_BYTES, SELF, Side, Spot};
use larder::{Database, ErrorKind, FileKind, RenameMode};
use rustix::process::{Resource, Rlimit};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// One end of a copy: a side and a path there.
struct End {
    side: Box<dyn Side>,
    path: Vec<u8>,
    /// The database and its directory; `None` for the local filesystem.
    database: Option<(PathBuf, Database)>,
}

impl End {
    fn is_same_side(&self, other: &End) -> bool {
        match (&self.database, &other.database) {
            (Some((path, _)), Some((other, _))) => path == other,
            (None, None) => true,
            _ => false,
        }
    }

    fn show(&self) -> String {
        self.side.show(&self.path)
    }

    fn start(&self, follow: bool) -> Result<Spot> {
        self.side.start(&self.path, follow)
    }
}

fn end(databases: &mut Databases, argument: &OsStr) -> Result<End> {
    match Address::parse(argument)? {
        Address::Local(path) => Ok(End {
            side: Box::new(Local),
            path: path.into_os_string().into_vec(),
            database: None,
        }),
        Address::In(address) => {
            let database = databases.open(&address.database)?;
            let path = address.path.clone();
            let what = || format!("cannot examine '{}'", address.database.display());
            let directory = match split_moment(&address.database) {
                None => address.database.canonicalize().at(what)?,
                // Another side than the present: nothing there is ever the same file.
                Some(_) => address.database.clone(),
            };
            let side = Box::new(Inside {
                database: database.clone(),
                address,
            });
            Ok(End {
                side,
                path,
                database: Some((directory, database)),
            })
        }
    }
}

/// `larder cp`.
pub(crate) fn cp(args: &CpArgs, out: &mut Output) -> Result<()> {
    let mode = CopyMode {
        is_recursive: args.recursive || args.archive,
        is_archive: args.archive,
        is_strict: false,
        umask: umask(),
        is_root: rustix::process::geteuid().is_root(),
    };
    with_databases("cp", |databases| {
        let (sources, to) = ends(databases, &args.paths, "cp")?;
        let progress = Progress::new(None);
        let mut count = CopyCount::default();
        let result = each(sources, |source| {
            let from = end(databases, source)?;
            let target = target_in(&to, &from, !mode.is_recursive)?;
            let mut copy = Copy::new(from.is_same_side(&to), mode, &progress);
            let result = copy.run(&from.start(!mode.is_recursive)?, &target.spot);
            count = add(count, copy.count());
            result
        });
        drop(progress);
        // Also what a copy that failed halfway has made is durable.
        databases.sync()?;
        tell_count(out, count)?;
        result
    })
}

/// `larder mv`.
pub(crate) fn mv(args: &MvArgs, out: &mut Output) -> Result<()> {
    with_databases("mv", |databases| {
        let (sources, to) = ends(databases, &args.paths, "mv")?;
        let progress = Progress::new(None);
        let mut count = CopyCount::default();
        let result = each(sources, |source| {
            let from = end(databases, source)?;
            let target = target_in(&to, &from, false)?;
            let is_renamed = rename(&from, &to, &target.path, args.no_replace)?;
            if !is_renamed {
                count = add(
                    count,
                    copy_and_remove(&from, &to, &target.spot, args.no_replace, &progress)?,
                );
            }
            Ok(())
        });
        drop(progress);
        databases.sync()?;
        tell_count(out, count)?;
        result
    })
}

/// Renames within a database; `false` when that is not possible because the two are apart.
fn rename(from: &End, to: &End, target: &[u8], no_replace: bool) -> Result<bool> {
    let Some((_, database)) = from.database.as_ref().filter(|_| from.is_same_side(to)) else {
        return Ok(false);
    };
    let mode = if no_replace {
        RenameMode::NoReplace
    } else {
        RenameMode::Replace
    };
    let what = || {
        format!(
            "cannot move '{}' to '{}'",
            from.show(),
            to.side.show(target)
        )
    };
    let (parent, name) = database.nodes().resolve_parent(&from.path).at(what)?;
    let (new_parent, new_name) = database.nodes().resolve_parent(target).at(what)?;
    match database
        .nodes()
        .rename(parent, &name, new_parent, &new_name, mode)
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::CrossStore => Ok(false),
        Err(error) => Err(error).at(what),
    }
}

fn copy_and_remove(
    from: &End,
    to: &End,
    target: &Spot,
    no_replace: bool,
    progress: &Progress,
) -> Result<CopyCount> {
    if no_replace && target.find()?.is_some() {
        return Err(Failure::Other(format!(
            "'{}' exists; remove it first",
            target.show()
        )));
    }
    let mode = CopyMode {
        is_recursive: true,
        is_archive: true,
        is_strict: true,
        umask: umask(),
        is_root: rustix::process::geteuid().is_root(),
    };
    let source = from.start(false)?;
    let mut copy = Copy::new(from.is_same_side(to), mode, progress).recording();
    copy.run(&source, target)?;
    target.folder.sync()?;
    for copied in copy.copied() {
        remove_copied(&source, copied)?;
    }
    Ok(copy.count())
}

/// Removes an original, unless it is no longer what was copied.
fn remove_copied(source: &Spot, (names, copied): &Copied) -> Result<()> {
    let spot = descend(source, names)?;
    let Some(now) = spot.find()? else {
        return Ok(());
    };
    let is_same = now.is(copied)
        && (copied.kind == FileKind::Directory
            || now.size_bytes == copied.size_bytes && now.mtime_ns == copied.mtime_ns);
    if !is_same {
        return Err(Failure::Other(format!(
            "'{}' was changed while it was moved and stays; move it again",
            spot.show()
        )));
    }
    match copied.kind {
        FileKind::Directory => spot.folder.remove_dir(&spot.name),
        _ => spot.folder.unlink(&spot.name),
    }
}

/// The sources and the destination of a command line; at least one of them is in a database.
fn ends<'a>(
    databases: &mut Databases,
    paths: &'a [OsString],
    verb: &str,
) -> Result<(&'a [OsString], End)> {
    let Some((to, sources)) = paths.split_last() else {
        unreachable!("the command line has at least two paths");
    };
    let mut is_local = true;
    for path in paths {
        is_local &= matches!(Address::parse(path)?, Address::Local(_));
    }
    allow_deep_trees();
    if is_local {
        return Err(Failure::Usage(format!(
            "none of the paths is in a database; write one as DB:/path, or use {verb}(1) for \
             local files"
        )));
    }
    let to = end(databases, to)?;
    if sources.len() > 1 && !is_directory(&to, true)? {
        return Err(no_directory(&to));
    }
    Ok((sources, to))
}

/// A copy holds two descriptors per directory that it is in: as many as the system lets us have.
/// Where it does not, a tree that is too deep is told as one.
fn allow_deep_trees() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the number of open files stays limited: {error}");
    }
}

/// Where something goes.
struct Target {
    spot: Spot,
    /// The same as a path.
    path: Vec<u8>,
}

/// Where `from` goes: into the directory `to`, or to that very name, of which a symbolic link is
/// followed if `follow`. Nobody has named what is in a directory, so a link in there is never
/// followed (`CLI-40`).
fn target_in(to: &End, from: &End, follow: bool) -> Result<Target> {
    if let Some(folder) = to.side.folder(&to.path)? {
        let (name, path) = match last_name(&from.path) {
            Some(name) => (name, join(&to.path, name)),
            // The root, `.` and `..` have no name: their contents go into the directory.
            None => (SELF, to.path.clone()),
        };
        let name = name.to_vec();
        let spot = Spot { folder, name };
        return Ok(Target { spot, path });
    }
    if to.path.last() == Some(&b'/') && !is_directory(from, false)? {
        return Err(no_directory(to));
    }
    let (spot, path) = (to.start(follow)?, to.path.clone());
    Ok(Target { spot, path })
}

fn is_directory(end: &End, follow: bool) -> Result<bool> {
    let found = end.side.find(&end.path, follow)?;
    Ok(found.is_some_and(|found| found.kind == FileKind::Directory))
}

fn no_directory(to: &End) -> Failure {
    Failure::Other(format!(
        "there is no directory '{}'; make it with mkdir first",
        to.show()
    ))
}

/// `larder put`.
pub(crate) fn put(args: &PutArgs, out: &mut Output) -> Result<()> {
    Address::parse_in_database(&args.address)?;
    with_databases("put", |databases| {
        let to = end(databases, &args.address)?;
        let count = if args.file == "-" {
            put_stdin(&to)?
        } else {
            let path = args.file.as_bytes().to_vec();
            one_file(
                &End {
                    side: Box::new(Local),
                    path,
                    database: None,
                },
                &to,
            )?
        };
        databases.sync()?;
        tell_count(out, count)
    })
}

/// `larder get`.
pub(crate) fn get(args: &GetArgs, out: &mut Output) -> Result<()> {
    Address::parse_in_database(&args.address)?;
    with_databases("get", |databases| {
        if args.file == "-" {
            return print_content(databases, &args.address, out);
        }
        let from = end(databases, &args.address)?;
        let path = args.file.as_bytes().to_vec();
        let count = one_file(
            &from,
            &End {
                side: Box::new(Local),
                path,
                database: None,
            },
        )?;
        tell_count(out, count)
    })
}

/// Copies one regular file with its mode, as far as the umask lets.
fn one_file(from: &End, to: &End) -> Result<CopyCount> {
    let target = target_in(to, from, true)?;
    let size_bytes = from
        .side
        .find(&from.path, true)?
        .map(|found| found.size_bytes);
    let progress = Progress::new(size_bytes);
    let mode = CopyMode {
        is_recursive: false,
        is_archive: false,
        is_strict: false,
        umask: umask(),
        is_root: false,
    };
    let mut copy = Copy::new(from.is_same_side(to), mode, &progress);
    copy.run(&from.start(true)?, &target.spot)?;
    Ok(copy.count())
}

/// Writes stdin to a file; its length is not known before the end.
fn put_stdin(to: &End) -> Result<CopyCount> {
    let target = to.start(true)?;
    let existing = target.find()?;
    let file = match &existing {
        Some(found) if found.kind == FileKind::File => {
            target.folder.overwrite(&target.name, found)?
        }
        Some(_) => {
            return Err(Failure::Other(format!(
                "'{}' is not a regular file; name a file",
                to.show()
            )));
        }
        None => target.folder.create_file(&target.name, 0o666 & !umask())?,
    };
    let progress = Progress::new(None);
    match stream(&mut io::stdin().lock(), &*file, &progress) {
        Ok(bytes) => Ok(CopyCount {
            files: 1,
            bytes,
            ..CopyCount::default()
        }),
        Err(failure) => {
            // Whole or gone (CLI-10).
            if existing.is_none()
                && let Err(left) = remove_again(&target, &*file)
            {
                left.tell();
            }
            Err(failure)
        }
    }
}

fn stream(input: &mut dyn Read, file: &dyn Content, progress: &Progress) -> Result<u64> {
    let mut buffer = Vec::with_capacity(REQUEST_BYTES);
    let mut offset = 0;
    loop {
        buffer.clear();
        let count = Read::take(&mut *input, REQUEST_BYTES as u64)
            .read_to_end(&mut buffer)
            .at(|| "cannot read stdin".into())?;
        if count == 0 {
            return Ok(offset);
        }
        file.write_at(offset, &buffer)?;
        offset += count as u64;
        progress.advance(count as u64);
    }
}

/// `larder cat`.
pub(crate) fn cat(args: &CatArgs, out: &mut Output) -> Result<()> {
    with_databases("cat", |databases| {
        each(&args.addresses, |address| {
            print_content(databases, address, out)
        })
    })
}

fn print_content(databases: &mut Databases, argument: &OsStr, out: &mut Output) -> Result<()> {
    let (database, address) = databases.address(argument)?;
    let attr = resolve(&database, &address, true)?;
    if attr.kind != FileKind::File {
        let kind = kind_words(attr.kind);
        return Err(Failure::Other(format!(
            "'{address}' is a {kind}, not a regular file; name a file"
        )));
    }
    let file = database
        .nodes()
        .open(attr.node, false)
        .at(|| address.to_string())?;
    let mut buffer = vec![0; REQUEST_BYTES];
    let mut offset = 0;
    loop {
        let count = file
            .read_at(offset, &mut buffer)
            .at(|| address.to_string())?;
        if count == 0 {
            return Ok(());
        }
        out.raw(&buffer[..count])?;
        offset += count as u64;
    }
}

fn add(one: CopyCount, other: CopyCount) -> CopyCount {
    CopyCount {
        files: one.files + other.files,
        directories: one.directories + other.directories,
        others: one.others + other.others,
        bytes: one.bytes + other.bytes,
    }
}

/// Success is silent, as that of `cp`; programs get numbers.
fn tell_count(out: &mut Output, count: CopyCount) -> Result<()> {
    if !out.is_json() {
        return Ok(());
    }
    out.document(&json!({
        "files": count.files,
        "directories": count.directories,
        "others": count.others,
        "bytes": count.bytes,
    }))
}
