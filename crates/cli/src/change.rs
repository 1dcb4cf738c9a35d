//! `larder rm`, `mkdir` and `ln`: names come and go.

use crate::address::{Address, DbAddress, join, last_name};
use crate::args::{LnArgs, MkdirArgs, RmArgs};
use crate::databases::with_databases;
use crate::error::{At, Failure, Result, each};
use crate::inside::{find, for_each_entry, resolve, umask};
use crate::output::{Output, put_name};
use larder::{
    Caller, Database, ErrorKind, FileKind, Ino, Metadata, Name, NewNode, NodeId, split_path,
};
use serde_json::{Map, json};
use std::os::unix::ffi::OsStrExt;

/// A name that is to be removed.
struct Doomed {
    parent: NodeId,
    name: Name,
    node: NodeId,
    kind: FileKind,
    path: Vec<u8>,
}

/// `larder rm`.
pub(crate) fn rm(args: &RmArgs, out: &mut Output) -> Result<()> {
    with_databases("rm", |databases| {
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            let attr = match find(&database, &address.path, false).at(|| address.to_string())? {
                Some(attr) => attr,
                None if args.force => return Ok(()),
                None => resolve(&database, &address, false)?,
            };
            let doomed = doom(args, &database, &address, &attr)?;
            remove(args, &database, &address, doomed, out)
        });
        out.end_list()?;
        result
    })
}

/// What an address dooms, if it may be removed at all.
fn doom(
    args: &RmArgs,
    database: &Database,
    address: &DbAddress,
    attr: &Metadata,
) -> Result<Doomed> {
    let (parent, name) = database
        .nodes()
        .resolve_parent(&address.path)
        .at(|| address.to_string())?;
    if attr.kind == FileKind::Directory && !args.recursive {
        return Err(Failure::Other(format!(
            "'{address}' is a directory; remove it with 'larder rm -r'"
        )));
    }
    // Before anything in it is removed.
    if attr.node.ino == Ino::ROOT {
        return Err(Failure::Other(format!(
            "'{address}' is the root of a store; remove what is in it, or use 'larder store \
             destroy'"
        )));
    }
    Ok(Doomed {
        parent,
        name,
        node: attr.node,
        kind: attr.kind,
        path: address.path.clone(),
    })
}

/// Removes a name and all below it, the contents of a directory before the directory. A stack
/// instead of recursion: trees may be deep.
fn remove(
    args: &RmArgs,
    database: &Database,
    address: &DbAddress,
    doomed: Doomed,
    out: &mut Output,
) -> Result<()> {
    // With a directory comes whether it has been emptied.
    let mut stack = vec![(doomed, false)];
    while let Some((doomed, is_emptied)) = stack.pop() {
        if doomed.kind == FileKind::Directory && !is_emptied {
            let (node, path) = (doomed.node, doomed.path.clone());
            stack.push((doomed, true));
            for_each_entry(database, node, |entry| {
                let path = join(&path, entry.name.as_bytes());
                let below = Doomed {
                    parent: node,
                    name: entry.name,
                    node: entry.node,
                    kind: entry.kind,
                    path,
                };
                if below.kind == FileKind::Directory {
                    stack.push((below, false));
                    return Ok(());
                }
                remove_one(args, database, address, &below, out)
            })?;
            continue;
        }
        remove_one(args, database, address, &doomed, out)?;
    }
    Ok(())
}

fn remove_one(
    args: &RmArgs,
    database: &Database,
    address: &DbAddress,
    doomed: &Doomed,
    out: &mut Output,
) -> Result<()> {
    let shown = address.with_path(doomed.path.clone());
    if !args.dry_run {
        let removed = match doomed.kind {
            FileKind::Directory => database.nodes().remove_dir(doomed.parent, &doomed.name),
            _ => database.nodes().unlink(doomed.parent, &doomed.name),
        };
        match removed {
            // Somebody else was faster.
            Err(error) if error.kind() == ErrorKind::NotFound && args.force => return Ok(()),
            other => other.at(|| shown.to_string())?,
        }
    }
    if out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", &doomed.path);
        object.insert("kind".into(), doomed.kind.as_str().into());
        object.insert("removed".into(), (!args.dry_run).into());
        return out.item(&serde_json::Value::Object(object).to_string());
    }
    if args.dry_run {
        out.name_line(&[&b"would remove "[..], &shown.to_bytes()].concat())
    } else {
        Ok(())
    }
}

/// `larder mkdir`.
pub(crate) fn mkdir(args: &MkdirArgs, out: &mut Output) -> Result<()> {
    let mask = umask();
    let mode = args.mode.unwrap_or(0o777 & !mask);
    with_databases("mkdir", |databases| {
        let mut created_count = 0;
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            if !args.parents {
                make(&database, &address, &address.path, mode)?;
                created_count += 1;
                return Ok(());
            }
            let parts = split_path(&address.path).at(|| address.to_string())?;
            let mut path = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                path = [&path, &b"/"[..], part].concat();
                // As mkdir(1): who makes a parent must be able to make what is in it.
                let mode = if index + 1 == parts.len() {
                    mode
                } else {
                    0o777 & !mask | 0o300
                };
                created_count += u64::from(make_missing(&database, &address, &path, mode)?);
            }
            Ok(())
        });
        if out.is_json() {
            out.document(&json!({ "created": created_count }))?;
        }
        result
    })
}

fn make(database: &Database, address: &DbAddress, path: &[u8], mode: u32) -> Result<()> {
    let shown = || address.with_path(path.to_vec()).to_string();
    let (parent, name) = database.nodes().resolve_parent(path).at(shown)?;
    database
        .nodes()
        .create_node(parent, &name, NewNode::Directory, mode, Caller::current())
        .at(shown)?;
    Ok(())
}

/// Makes a directory unless it is there; says whether it did.
fn make_missing(database: &Database, address: &DbAddress, path: &[u8], mode: u32) -> Result<bool> {
    let shown = address.with_path(path.to_vec());
    match find(database, path, true).at(|| shown.to_string())? {
        None => make(database, address, path, mode).map(|()| true),
        Some(attr) if attr.kind == FileKind::Directory => Ok(false),
        Some(_) => Err(Failure::Other(format!(
            "'{shown}' is not a directory; choose another path"
        ))),
    }
}

/// `larder ln`.
pub(crate) fn ln(args: &LnArgs, out: &mut Output) -> Result<()> {
    with_databases("ln", |databases| {
        let (database, link) = databases.address(&args.link)?;
        let target = match Address::parse(&args.target)? {
            Address::In(target) => {
                let what = || format!("cannot examine '{}'", target.database.display());
                let is_same = target.database.canonicalize().at(what)?
                    == link.database.canonicalize().at(what)?;
                if !is_same {
                    return Err(Failure::Usage(format!(
                        "a link cannot lead from '{link}' to another database; copy with 'larder \
                         cp'"
                    )));
                }
                target.path
            }
            Address::Local(_) if args.symbolic => args.target.as_bytes().to_vec(),
            Address::Local(path) => {
                return Err(Failure::Usage(format!(
                    "'{}' is a local path; name a file in the same database as DB:/path, or use -s",
                    path.display()
                )));
            }
        };
        let path = link_path(&database, &link, &target)?;
        make_link(args, &database, &link, &target, &path)?;
        if out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &path);
            put_name(&mut object, "target", &target);
            return out.document(&serde_json::Value::Object(object));
        }
        Ok(())
    })
}

/// The new name: `link` itself, or in it if it is a directory.
fn link_path(database: &Database, link: &DbAddress, target: &[u8]) -> Result<Vec<u8>> {
    match find(database, &link.path, true).at(|| link.to_string())? {
        Some(attr) if attr.kind == FileKind::Directory => {
            let name = last_name(target).ok_or_else(|| {
                Failure::Usage(format!(
                    "'{}' has no name of its own; name the link itself, not its directory",
                    String::from_utf8_lossy(target)
                ))
            })?;
            Ok(join(&link.path, name))
        }
        _ => Ok(link.path.clone()),
    }
}

fn make_link(
    args: &LnArgs,
    database: &Database,
    link: &DbAddress,
    target: &[u8],
    path: &[u8],
) -> Result<()> {
    let shown = || link.with_path(path.to_vec()).to_string();
    let (parent, name) = database.nodes().resolve_parent(path).at(shown)?;
    // Looked up first: a link that cannot be made must not cost what has the name.
    let node = if args.symbolic {
        None
    } else {
        Some(resolve(database, &link.with_path(target.to_vec()), false)?)
    };
    if args.force
        && let Some(old) = find(database, path, false).at(shown)?
    {
        if node.as_ref().is_some_and(|node| node.node == old.node) {
            return Err(Failure::Other(format!(
                "'{}' is that file already; nothing to do",
                shown()
            )));
        }
        database.nodes().unlink(parent, &name).at(shown)?;
    }
    match node {
        Some(node) => database.nodes().link(node.node, parent, &name).at(shown)?,
        None => database
            .nodes()
            .create_node(
                parent,
                &name,
                NewNode::Symlink(target),
                0o777,
                Caller::current(),
            )
            .at(shown)?,
    };
    Ok(())
}
