//! `larder find` and `larder du`: walks over whole trees.

use crate::address::{DbAddress, join, last_name};
use crate::args::{DuArgs, FindArgs, KindLetter};
use crate::databases::with_databases;
use crate::error::{At, Failure, Result, each};
use crate::inside::{for_each_entry, resolve};
use crate::output::{Output, put_name};
use crate::units::show_size;
use larder::{Database, ErrorKind, FileKind, Metadata, NodeId};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

/// Something in a tree.
struct Visit<'a> {
    path: &'a [u8],
    node: NodeId,
    kind: FileKind,
}

/// Visits `start` and everything below, a directory before its contents, in the order of the
/// directories. Symbolic links are not followed. Memory: the directories that wait.
fn walk(
    database: &Database,
    start: &DbAddress,
    attr: &Metadata,
    mut visit: impl FnMut(Visit<'_>) -> Result<()>,
) -> Result<()> {
    visit(Visit {
        path: &start.path,
        node: attr.node,
        kind: attr.kind,
    })?;
    let mut stack = Vec::new();
    if attr.kind == FileKind::Directory {
        stack.push((start.path.clone(), attr.node));
    }
    while let Some((path, node)) = stack.pop() {
        let waiting = stack.len();
        let listed = for_each_entry(database, node, |entry| {
            let below = join(&path, entry.name.as_bytes());
            visit(Visit {
                path: &below,
                node: entry.node,
                kind: entry.kind,
            })?;
            if entry.kind == FileKind::Directory {
                stack.push((below, entry.node));
            }
            Ok(())
        });
        match listed {
            // The directory was removed since it was seen.
            Err(Failure::Larder(error)) if error.kind() == ErrorKind::NotFound => {}
            other => other.map_err(|failure| told_at(failure, start, &path))?,
        }
        stack[waiting..].reverse();
    }
    Ok(())
}

fn told_at(failure: Failure, start: &DbAddress, path: &[u8]) -> Failure {
    match failure {
        Failure::Larder(error) => Failure::Larder(error.context(start.with_path(path.to_vec()))),
        other => other,
    }
}

/// `larder find`.
pub(crate) fn find(args: &FindArgs, out: &mut Output) -> Result<()> {
    let kind = args.kind.map(kind_of);
    let pattern = args.name.as_ref().map(|name| name.as_bytes());
    with_databases("find", |databases| {
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            let attr = resolve(&database, &address, false)?;
            walk(&database, &address, &attr, |visit| {
                let name = last_name(visit.path).unwrap_or(b"/");
                let is_match = kind.is_none_or(|kind| kind == visit.kind)
                    && pattern.is_none_or(|pattern| larder::matches_glob(pattern, name));
                if is_match {
                    print_found(&address, &visit, args.print0, out)
                } else {
                    Ok(())
                }
            })
        });
        out.end_list()?;
        result
    })
}

fn kind_of(letter: KindLetter) -> FileKind {
    match letter {
        KindLetter::F => FileKind::File,
        KindLetter::D => FileKind::Directory,
        KindLetter::L => FileKind::Symlink,
        KindLetter::P => FileKind::Fifo,
        KindLetter::S => FileKind::Socket,
        KindLetter::C => FileKind::CharDevice,
        KindLetter::B => FileKind::BlockDevice,
    }
}

/// Prints an address that other verbs take.
fn print_found(start: &DbAddress, visit: &Visit<'_>, print0: bool, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", visit.path);
        object.insert("kind".into(), visit.kind.as_str().into());
        object.insert("store".into(), visit.node.store.0.into());
        object.insert("ino".into(), visit.node.ino.0.into());
        return out.item(&Value::Object(object).to_string());
    }
    let address = start.with_path(visit.path.to_vec()).to_bytes();
    if print0 {
        out.raw(&address)?;
        return out.raw(b"\0");
    }
    out.name_line(&address)
}

/// What a directory and everything below it takes.
struct Sum {
    path: Vec<u8>,
    node: NodeId,
    depth: usize,
    allocated_bytes: u64,
    size_bytes: u64,
}

/// `larder du`.
pub(crate) fn du(args: &DuArgs, out: &mut Output) -> Result<()> {
    with_databases("du", |databases| {
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            let attr = resolve(&database, &address, false)?;
            let sums = sum_up(&database, &address, &attr)?;
            let shown = if args.summarize {
                &sums[sums.len() - 1..]
            } else {
                &sums[..]
            };
            shown
                .iter()
                .try_for_each(|sum| print_sum(args, &address, sum, out))
        });
        out.end_list()?;
        result
    })
}

/// The sums of all directories, inner ones first; the last one is `start`. Every inode counts once,
/// where it is met first.
fn sum_up(database: &Database, start: &DbAddress, attr: &Metadata) -> Result<Vec<Sum>> {
    let mut sums: Vec<Sum> = Vec::new();
    // The directories from `start` down to where the walk is, as indices into `sums`.
    let mut open: Vec<usize> = Vec::new();
    let mut closed: Vec<usize> = Vec::new();
    let mut seen: HashSet<NodeId> = HashSet::new();
    let own = |attr: &Metadata| (attr.allocated_bytes, attr.size_bytes);

    let mut contents: Vec<(usize, NodeId)> = vec![(0, attr.node)];
    let (allocated_bytes, size_bytes) = own(attr);
    sums.push(Sum {
        path: start.path.clone(),
        node: attr.node,
        depth: 0,
        allocated_bytes,
        size_bytes,
    });
    if attr.kind != FileKind::Directory {
        return Ok(sums);
    }
    while let Some((index, node)) = contents.pop() {
        while open.len() > sums[index].depth {
            closed.extend(open.pop());
        }
        open.push(index);
        let (path, depth) = (sums[index].path.clone(), sums[index].depth);
        let first_new = contents.len();
        for_each_entry(database, node, |entry| {
            let below = join(&path, entry.name.as_bytes());
            let attr = match database.nodes().metadata(entry.node) {
                Ok(attr) => attr,
                // Removed since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error).at(|| start.with_path(below).to_string()),
            };
            let (allocated_bytes, size_bytes) = own(&attr);
            if attr.kind == FileKind::Directory {
                contents.push((sums.len(), attr.node));
                sums.push(Sum {
                    path: below,
                    node: attr.node,
                    depth: depth + 1,
                    allocated_bytes,
                    size_bytes,
                });
            } else if attr.nlink == 1 || seen.insert(attr.node) {
                // Sparse files of 8 EiB each may be there, on anybody's database.
                let sum = &mut sums[index];
                sum.allocated_bytes = sum.allocated_bytes.saturating_add(allocated_bytes);
                sum.size_bytes = sum.size_bytes.saturating_add(size_bytes);
            }
            Ok(())
        })
        .map_err(|failure| told_at(failure, start, &path))?;
        contents[first_new..].reverse();
    }
    closed.extend(open.into_iter().rev());
    Ok(add_up(sums, &closed))
}

/// Adds each directory to its parent, in an order that has children before parents.
fn add_up(sums: Vec<Sum>, order: &[usize]) -> Vec<Sum> {
    let mut slots: Vec<Option<Sum>> = sums.into_iter().map(Some).collect();
    let mut done: Vec<Sum> = Vec::with_capacity(order.len());
    // What is done and not yet added to a parent, by depth.
    let mut pending: Vec<(u64, u64)> = Vec::new();
    for &index in order {
        let Some(mut sum) = slots[index].take() else {
            unreachable!("each directory is closed once")
        };
        pending.resize(pending.len().max(sum.depth + 2), (0, 0));
        let (allocated_bytes, size_bytes) = std::mem::take(&mut pending[sum.depth + 1]);
        sum.allocated_bytes = sum.allocated_bytes.saturating_add(allocated_bytes);
        sum.size_bytes = sum.size_bytes.saturating_add(size_bytes);
        let (allocated_bytes, size_bytes) = &mut pending[sum.depth];
        *allocated_bytes = allocated_bytes.saturating_add(sum.allocated_bytes);
        *size_bytes = size_bytes.saturating_add(sum.size_bytes);
        done.push(sum);
    }
    done
}

fn print_sum(args: &DuArgs, start: &DbAddress, sum: &Sum, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", &sum.path);
        object.insert("store".into(), sum.node.store.0.into());
        object.insert("ino".into(), sum.node.ino.0.into());
        object.insert("allocated_bytes".into(), sum.allocated_bytes.into());
        object.insert("size_bytes".into(), sum.size_bytes.into());
        return out.item(&Value::Object(object).to_string());
    }
    let bytes = if args.apparent_size {
        sum.size_bytes
    } else {
        sum.allocated_bytes
    };
    out.raw(format!("{:>10}  ", show_size(bytes)).as_bytes())?;
    out.name_line(&start.with_path(sum.path.clone()).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(path: &str, depth: usize, bytes: u64) -> Sum {
        let (path, node) = (path.into(), NodeId::ROOT);
        Sum {
            path,
            node,
            depth,
            allocated_bytes: bytes,
            size_bytes: 2 * bytes,
        }
    }

    #[test]
    fn directories_hold_the_sums_of_those_below() {
        let sums = vec![
            sum("/", 0, 1),
            sum("/a", 1, 10),
            sum("/b", 1, 100),
            sum("/a/c", 2, 1000),
            sum("/a/d", 2, 5),
        ];
        let done = add_up(sums, &[3, 4, 1, 2, 0]);
        let shown: Vec<(&[u8], u64, u64)> = done
            .iter()
            .map(|sum| (&sum.path[..], sum.allocated_bytes, sum.size_bytes))
            .collect();
        assert_eq!(
            shown,
            [
                (&b"/a/c"[..], 1000, 2000),
                (b"/a/d", 5, 10),
                (b"/a", 1015, 2030),
                (b"/b", 100, 200),
                (b"/", 1116, 2232)
            ]
        );
    }
}
