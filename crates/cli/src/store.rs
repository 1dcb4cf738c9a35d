//! `larder init` and `larder store`: databases and stores come and go.

use crate::args::{InitArgs, SaveKeeps, StoreVerb};
use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::output::{Align, Output, Table};
use crate::units::show_size;
use larder::{CreateOptions, Database, Ino, NodeId, RETENTION_NS_DEFAULT, StoreInfo};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// `larder init`.
pub(crate) fn init(args: &InitArgs, out: &mut Output) -> Result<()> {
    let group = args.group.as_deref().map(find_group).transpose()?;
    create_database(&args.db, args.capacity, args.retention, group)?;
    if out.is_json() {
        return out.document(&json!({
            "database": args.db.to_string_lossy(),
            "capacity_bytes": args.capacity,
            "retention_ns": args.retention.unwrap_or(RETENTION_NS_DEFAULT),
        }));
    }
    let capacity = args
        .capacity
        .map_or("what the filesystem has".into(), show_size);
    out.line(&format!(
        "created {} (capacity: {capacity})",
        args.db.display()
    ))
}

/// Creates an empty database that belongs to the user of this process.
pub(crate) fn create_database(
    path: &Path,
    capacity_bytes: Option<u64>,
    retention_ns: Option<i64>,
    group: Option<u32>,
) -> Result<()> {
    let options = CreateOptions {
        capacity_bytes,
        retention_ns,
        root: None,
        group,
    };
    Database::create(path, &options).at(|| format!("cannot create '{}'", path.display()))
}

/// The number of a group of users, by its name or number.
fn find_group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = Command::new("getent").args(["group", "--", name]).output();
    let found =
        found.at(|| "cannot run getent, which knows groups; give the group's number".into())?;
    let line = String::from_utf8_lossy(&found.stdout).into_owned();
    let number = line
        .split(':')
        .nth(2)
        .and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        Failure::Other(format!(
            "there is no group '{name}'; 'getent group' lists them"
        ))
    })
}

/// `larder store …`.
pub(crate) fn store(verb: &StoreVerb, out: &mut Output) -> Result<()> {
    match verb {
        StoreVerb::Create {
            db,
            name,
            provider,
            mount,
            shows,
        } => with_database(db, "store create", |database| {
            let info = database
                .stores()
                .create(name, provider, mount.as_deref(), shows.as_deref())
                .at(|| format!("cannot create store '{name}'"))?;
            database.sync()?;
            tell(
                out,
                &info,
                &format!("created store {} at {}", info.name, info.mount),
            )
        }),
        StoreVerb::List { db } => with_database(db, "store list", |database| list(database, out)),
        StoreVerb::Destroy { db, name, dry_run } => {
            with_database(db, "store destroy", |database| {
                let info = find_store(database, name)?;
                if *dry_run {
                    let entries = database.nodes().read_dir(
                        NodeId {
                            store: info.store,
                            ino: Ino::ROOT,
                        },
                        None,
                        1,
                    )?;
                    let state = if entries.is_empty() {
                        "is empty"
                    } else {
                        "holds files"
                    };
                    return tell(
                        out,
                        &info,
                        &format!(
                            "would destroy store {} at {}, which {state}",
                            info.name, info.mount
                        ),
                    );
                }
                database
                    .stores()
                    .destroy(name)
                    .at(|| format!("cannot destroy store '{name}'"))?;
                database.sync()?;
                tell(out, &info, &format!("destroyed store {}", info.name))
            })
        }
        StoreVerb::Set {
            db,
            name,
            provider,
            mount,
            save_keeps,
        } => with_database(db, "store set", |database| {
            let failed = || format!("cannot change store '{name}'");
            if provider.is_some() || mount.is_some() {
                database
                    .stores()
                    .set(name, provider.as_deref(), mount.as_deref())
                    .at(failed)?;
            }
            if let Some(keeps) = save_keeps {
                let keeps = *keeps == SaveKeeps::Columns;
                database.stores().set_save_keeps(name, keeps).at(failed)?;
            }
            database.sync()?;
            let info = find_store(database, name)?;
            let keeps = save_keeps_word(database, name)?;
            if out.is_json() {
                let mut document = store_json(&info);
                document["save_keeps"] = json!(keeps);
                return out.document(&document);
            }
            let line = format!(
                "store {} is served by {} at {}; saved files keep {keeps}",
                info.name, info.provider, info.mount
            );
            out.line(&line)
        }),
    }
}

fn find_store(database: &Database, name: &str) -> Result<StoreInfo> {
    database
        .stores()
        .list()?
        .into_iter()
        .find(|info| info.name == name)
        .ok_or_else(|| {
            Failure::Other(format!(
                "there is no store '{name}'; 'larder store list' names them"
            ))
        })
}

fn tell(out: &mut Output, info: &StoreInfo, line: &str) -> Result<()> {
    if out.is_json() {
        out.document(&store_json(info))
    } else {
        out.line(line)
    }
}

/// What the saved files of a store keep, as `--save-keeps` has it.
fn save_keeps_word(database: &Database, name: &str) -> Result<&'static str> {
    Ok(match database.stores().save_keeps(name)? {
        true => "columns",
        false => "none",
    })
}

fn list(database: &Database, out: &mut Output) -> Result<()> {
    let stores = database.stores().list()?;
    if out.is_json() {
        for info in &stores {
            let mut document = store_json(info);
            document["save_keeps"] = json!(save_keeps_word(database, &info.name)?);
            out.item(&document.to_string())?;
        }
        return out.end_list();
    }
    let mut table = Table::new(&[Align::Left; 5]);
    table.row(
        ["STORE", "PROVIDER", "MOUNT", "TABLE", "SAVES KEEP"]
            .map(String::from)
            .to_vec(),
    );
    for info in &stores {
        table.row(vec![
            info.name.clone(),
            info.provider.clone(),
            info.mount.clone(),
            info.table.clone(),
            save_keeps_word(database, &info.name)?.to_owned(),
        ]);
    }
    table
        .take_lines()
        .iter()
        .try_for_each(|line| out.line(line))
}

fn store_json(info: &StoreInfo) -> Value {
    json!({
        "id": info.store.0,
        "name": info.name,
        "provider": info.provider,
        "mount": info.mount,
        "table": info.table,
    })
}
