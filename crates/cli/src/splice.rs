//! `larder splice`: bytes in the middle of a file, without the rest of it.

use crate::databases::with_databases;
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::units::parse_size;
use clap::{Args, ValueHint};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Read};

/// The most that is inserted at once.
const INSERT_BYTES_MAX: u64 = 1 << 30;

/// Put bytes into the middle of a file, or take some out; what is behind moves
#[derive(Debug, Args)]
#[command(after_help = "\
The rest of the file is neither read nor written. It is durable when this returns.
Example: larder splice films.larder:/cut.mov 4096 --delete 10M --insert intro.mov")]
pub(crate) struct SpliceArgs {
    /// File in a database
    pub(crate) address: OsString,
    /// Where, bytes from the start of the file; at most its size
    #[arg(value_name = "OFFSET", value_parser = parse_size)]
    pub(crate) offset: u64,
    /// How many bytes go from there on [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) delete: Option<u64>,
    /// Local file whose bytes come there, at most 1G; '-' is stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) insert: Option<OsString>,
}

/// `larder splice`.
pub(crate) fn splice(args: &SpliceArgs, out: &mut Output) -> Result<()> {
    if args.delete.is_none() && args.insert.is_none() {
        return Err(Failure::Other(
            "nothing is to be done; give --delete, --insert, or both".into(),
        ));
    }
    let bytes = match &args.insert {
        None => Vec::new(),
        Some(file) => read_insert(file)?,
    };
    let size_bytes = with_databases("splice", |databases| {
        let (database, address) = databases.address(&args.address)?;
        let shown = || address.to_string();
        let found = database.nodes().resolve(&address.path, true).at(shown)?;
        let file = database.nodes().open(found.node, true).at(shown)?;
        let deleted_bytes = args.delete.unwrap_or(0);
        file.replace_range(args.offset, deleted_bytes, &bytes)
            .at(shown)?;
        drop(file);
        let after = database.nodes().metadata(found.node).at(shown)?;
        databases.sync()?;
        Ok(after.size_bytes)
    })?;
    if out.is_json() {
        return out.document(&json!({ "size_bytes": size_bytes }));
    }
    Ok(())
}

fn read_insert(file: &OsString) -> Result<Vec<u8>> {
    let shown = || format!("cannot read '{}'", file.display());
    let mut bytes = Vec::new();
    let limit = INSERT_BYTES_MAX + 1;
    let read = match file == "-" {
        true => io::stdin().lock().take(limit).read_to_end(&mut bytes),
        false => {
            std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes))
        }
    };
    if read.at(shown)? as u64 > INSERT_BYTES_MAX {
        return Err(Failure::Other(format!(
            "'{}' has more than 1 GiB; insert it in parts, the last one first",
            file.display()
        )));
    }
    Ok(bytes)
}
