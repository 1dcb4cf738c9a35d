//! `larder refused`: what a constraint of the database refused after it was answered.

use crate::error::{At, Result};
use crate::output::{Output, put_name};
use crate::units::{show_size, show_time};
use clap::{Subcommand, ValueHint};
use larder::{RefusedFile, drop_refused, list_refused, open_refused};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What to do with it.
#[derive(Debug, Subcommand)]
pub(crate) enum RefusedVerb {
    /// List what was refused and not decided about: when, what it was, and which constraint
    #[command(after_help = "Example: larder refused list photos.larder")]
    List {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
    },
    /// Write the content of one of them to a new file, or to the output
    #[command(
        after_help = "It stays until it is dropped. To put it where it was: mend the rows or the \
            constraint, then
'larder put' or 'larder cp' the file.
Example: larder refused get photos.larder 3 rescued.jpg"
    )]
    Get {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Its number, as listed
        id: u64,
        /// Where it goes; nothing may be there [default: the output]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Forget some of them, with their content
    #[command(after_help = "Example: larder refused drop photos.larder 3 4")]
    Drop {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Their numbers, as listed
        #[arg(required = true)]
        ids: Vec<u64>,
    },
}

/// `larder refused …`.
pub(crate) fn refused(verb: &RefusedVerb, out: &mut Output) -> Result<()> {
    match verb {
        RefusedVerb::List { db } => {
            let all =
                list_refused(db).at(|| format!("cannot list what {} refused", db.display()))?;
            for one in &all {
                match out.is_json() {
                    true => out.item(&as_json(one).to_string())?,
                    false => {
                        let mut line = as_line(one).into_bytes();
                        line.extend(out.shown(&one.path));
                        out.name_line(&line)?;
                    }
                }
            }
            out.end_list()
        }
        RefusedVerb::Get { db, id, file } => {
            let what = || format!("cannot get refused operation {id} of {}", db.display());
            let mut content = open_refused(db, *id).at(what)?;
            let mut buffer = vec![0; 1 << 20];
            let mut target = match file {
                Some(file) => Some(
                    File::create_new(file).at(|| format!("cannot create {}", file.display()))?,
                ),
                None => None,
            };
            loop {
                let count = content.read(&mut buffer).at(what)?;
                match &mut target {
                    _ if count == 0 => break,
                    Some(target) => target.write_all(&buffer[..count]).at(what)?,
                    None => out.raw(&buffer[..count])?,
                }
            }
            target.map_or(Ok(()), |target| target.sync_all().at(what))
        }
        RefusedVerb::Drop { db, ids } => {
            let one = |id: &u64| {
                drop_refused(db, *id)
                    .at(|| format!("cannot drop refused operation {id} of {}", db.display()))
            };
            crate::error::each(ids, one)
        }
    }
}

fn as_line(one: &RefusedFile) -> String {
    let size = one.size_bytes.map_or("-".into(), show_size);
    format!(
        "{:>4}  {}  {size:>10}  {}  ",
        one.id,
        show_time(one.at_ns),
        one.why
    )
}

fn as_json(one: &RefusedFile) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    object.insert("id".into(), json!(one.id));
    object.insert("at_ns".into(), json!(one.at_ns));
    object.insert("store".into(), json!(one.store.0));
    object.insert("ino".into(), json!(one.ino.0));
    object.insert("constraint".into(), json!(one.why));
    object.insert("size_bytes".into(), json!(one.size_bytes));
    put_name(
        &mut object,
        "path",
        std::ffi::OsStr::from_bytes(&one.path).as_bytes(),
    );
    object.into()
}
