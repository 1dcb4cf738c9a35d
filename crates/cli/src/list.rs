//! `larder ls`.

use crate::address::{DbAddress, join};
use crate::args::LsArgs;
use crate::databases::with_databases;
use crate::error::{At, Result, each};
use crate::inside::{for_each_entry, resolve};
use crate::output::{Align, Output, Table, attr_json, put_name};
use crate::stat::{link_target, mode_text, titled};
use crate::units::show_time;
use larder::{Database, ErrorKind, FileKind, Metadata, NodeId};
use serde_json::Value;

/// One line of a listing.
struct Line {
    name: Vec<u8>,
    path: Vec<u8>,
    attr: Metadata,
    target: Option<Vec<u8>>,
}

/// `larder ls`: directories given are listed one after the other, sorted by name.
pub(crate) fn ls(args: &LsArgs, out: &mut Output) -> Result<()> {
    with_databases("ls", |databases| {
        let has_titles = args.addresses.len() > 1 || args.recursive;
        let mut is_first = true;
        let result = each(&args.addresses, |argument| {
            let (database, address) = databases.address(argument)?;
            // As ls(1): a link that is named is followed, unless its own attributes are asked for.
            let attr = resolve(&database, &address, !args.long && !args.directory)?;
            if attr.kind != FileKind::Directory || args.directory {
                let target = link_target(&database, &attr).at(|| address.to_string())?;
                let line = Line {
                    name: address.to_bytes(),
                    path: address.path.clone(),
                    attr,
                    target,
                };
                is_first = false;
                return print_lines(args, vec![line], out);
            }
            list(
                args,
                &database,
                address,
                attr.node,
                has_titles,
                &mut is_first,
                out,
            )
        });
        out.end_list()?;
        result
    })
}

/// Lists a directory, and with `-R` all below it, each with its path as a title. A stack instead of
/// recursion: trees may be deep.
fn list(
    args: &LsArgs,
    database: &Database,
    address: DbAddress,
    node: NodeId,
    has_titles: bool,
    is_first: &mut bool,
    out: &mut Output,
) -> Result<()> {
    let mut stack = vec![(address, node)];
    while let Some((address, node)) = stack.pop() {
        let lines = read_lines(args, database, &address, node, out.is_json())?;
        if has_titles && !out.is_json() {
            if !*is_first {
                out.line("")?;
            }
            out.name_line(&[&address.to_bytes(), &b":"[..]].concat())?;
        }
        *is_first = false;
        if args.recursive {
            let directories = lines
                .iter()
                .rev()
                .filter(|line| line.attr.kind == FileKind::Directory);
            stack.extend(
                directories.map(|line| (address.with_path(line.path.clone()), line.attr.node)),
            );
        }
        print_lines(args, lines, out)?;
    }
    Ok(())
}

fn read_lines(
    args: &LsArgs,
    database: &Database,
    address: &DbAddress,
    node: NodeId,
    is_json: bool,
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for_each_entry(database, node, |entry| {
        let name = entry.name.as_bytes().to_vec();
        let path = join(&address.path, &name);
        let show = || address.with_path(path.clone()).to_string();
        let attr = match database.nodes().listed_attr(&entry) {
            Ok(attr) => attr,
            // Removed since it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).at(show),
        };
        let is_wanted = args.long || is_json;
        let target = if is_wanted {
            link_target(database, &attr).at(show)?
        } else {
            None
        };
        lines.push(Line {
            name,
            path,
            attr,
            target,
        });
        Ok(())
    })?;
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(lines)
}

fn print_lines(args: &LsArgs, lines: Vec<Line>, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return lines
            .iter()
            .try_for_each(|line| out.item(&line_json(line).to_string()));
    }
    if !args.long {
        return lines.iter().try_for_each(|line| out.name_line(&line.name));
    }
    let mut table = Table::new(&[
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Left,
    ]);
    for Line { attr, .. } in &lines {
        table.row(vec![
            mode_text(attr.kind, attr.mode),
            attr.nlink.to_string(),
            attr.uid.to_string(),
            attr.gid.to_string(),
            attr.size_bytes.to_string(),
            show_time(attr.mtime_ns),
        ]);
    }
    for (attributes, line) in table.take_lines().iter().zip(&lines) {
        let name = titled(&line.name, line.target.as_deref());
        out.raw(attributes.as_bytes())?;
        out.raw(b"  ")?;
        out.name_line(&name)?;
    }
    Ok(())
}

fn line_json(line: &Line) -> Value {
    let mut object = attr_json(&line.attr);
    put_name(
        &mut object,
        "name",
        crate::address::last_name(&line.path).unwrap_or(b"/"),
    );
    put_name(&mut object, "path", &line.path);
    if let Some(target) = &line.target {
        put_name(&mut object, "target", target);
    }
    Value::Object(object)
}
