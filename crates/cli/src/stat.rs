//! `larder stat`, and attributes as text and as JSON.

use crate::args::StatArgs;
use crate::databases::with_databases;
use crate::error::{At, Result, each};
use crate::inside::resolve;
use crate::output::{Output, attr_json, hex, kind_words, put_name};
use crate::units::{show_size, show_time};
use larder::{Database, FileKind, Metadata};
use serde_json::{Map, Value};

/// `larder stat`.
pub(crate) fn stat(args: &StatArgs, out: &mut Output) -> Result<()> {
    with_databases("stat", |databases| {
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            let attr = resolve(&database, &address, args.dereference)?;
            let target = link_target(&database, &attr).at(|| address.to_string())?;
            let xattrs = xattrs(&database, &attr).at(|| address.to_string())?;
            if out.is_json() {
                let mut object = attr_json(&attr);
                put_name(&mut object, "path", &address.path);
                if let Some(target) = &target {
                    put_name(&mut object, "target", target);
                }
                object.insert("xattrs".into(), xattrs_json(&xattrs));
                return out.item(&Value::Object(object).to_string());
            }
            out.name_line(&titled(&address.to_bytes(), target.as_deref()))?;
            print_attr(&attr, out)?;
            xattrs.iter().try_for_each(|(name, value)| {
                out.name_line(&[b"  ", name.as_slice(), b" = ", value.as_slice()].concat())
            })
        });
        out.end_list()?;
        result
    })
}

/// The target if it is a symbolic link.
pub(crate) fn link_target(database: &Database, attr: &Metadata) -> larder::Result<Option<Vec<u8>>> {
    (attr.kind == FileKind::Symlink)
        .then(|| database.nodes().read_link(attr.node))
        .transpose()
}

/// `name` or `name -> target`.
pub(crate) fn titled(name: &[u8], target: Option<&[u8]>) -> Vec<u8> {
    match target {
        Some(target) => [name, b" -> ", target].concat(),
        None => name.to_vec(),
    }
}

/// Kind and permissions as `ls -l` shows them: `drwxr-xr-x`.
pub(crate) fn mode_text(kind: FileKind, mode: u32) -> String {
    let letter = match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(letter);
    for (shift, special, with_x, without_x) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn print_attr(attr: &Metadata, out: &mut Output) -> Result<()> {
    let Metadata {
        node,
        uid,
        gid,
        nlink,
        ..
    } = attr;
    let mode = mode_text(attr.kind, attr.mode);
    out.line(&format!(
        "  {} {mode} ({:04o})  store {}  inode {}",
        kind_words(attr.kind),
        attr.mode,
        node.store,
        node.ino
    ))?;
    let allocated = show_size(attr.allocated_bytes);
    out.line(&format!(
        "  {} bytes, {allocated} allocated  {nlink} names  uid {uid}  gid {gid}",
        attr.size_bytes
    ))?;
    for (name, ns) in [
        ("modified", attr.mtime_ns),
        ("changed ", attr.ctime_ns),
        ("accessed", attr.atime_ns),
        ("created ", attr.btime_ns),
    ] {
        out.line(&format!("  {name} {}", show_time(ns)))?;
    }
    Ok(())
}

fn xattrs(database: &Database, attr: &Metadata) -> larder::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = database.attributes().list(attr.node)?;
    names
        .into_iter()
        .map(|name| {
            database
                .attributes()
                .get(attr.node, &name)
                .map(|value| (name, value))
        })
        .collect()
}

fn xattrs_json(xattrs: &[(Vec<u8>, Vec<u8>)]) -> Value {
    let one = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let mut object = Map::new();
        put_name(&mut object, "name", name);
        object.insert("value_hex".into(), hex(value).into());
        if let Ok(text) = std::str::from_utf8(value) {
            object.insert("value".into(), text.into());
        }
        Value::Object(object)
    };
    xattrs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(mode_text(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode_text(FileKind::File, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_text(FileKind::File, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Symlink, 0o1000), "l--------T");
    }
}
