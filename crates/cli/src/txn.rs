//! `larder txn`: long transactions by hand. `txn_run` runs programs in one.

use crate::databases::await_mounts;
use crate::error::{At, Failure, Result, warn};
use crate::output::Output;
use crate::txn_args::{BeginArgs, ListArgs, OneArgs};
use larder::{Conflict, TRANSACTION_VARIABLE, TransactionInfo, TransactionOutcome};
use serde_json::{Value, json};
use std::path::Path;

/// `larder txn begin`.
pub(crate) fn begin(args: &BeginArgs, out: &mut Output) -> Result<()> {
    let (id, workspace) = larder::begin_detached(&args.db, &args.label)
        .at(|| format!("cannot begin a transaction on '{}'", args.db.display()))?;
    if out.is_json() {
        return out.document(&json!({
            "transaction": id,
            "workspace": workspace.to_string_lossy(),
        }));
    }
    out.line(&format!(
        "export {TRANSACTION_VARIABLE}={} # transaction {id}",
        shell_word(&workspace.to_string_lossy())
    ))
}

/// A word that a shell takes as it is.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// `larder txn status`.
pub(crate) fn status(args: &OneArgs, out: &mut Output) -> Result<()> {
    let id = number(args)?;
    let info = infos(&args.db)?.into_iter().find(|info| info.id == id);
    let info = info.ok_or_else(|| {
        Failure::Other(format!(
            "there is no open transaction {id}; 'larder txn list' lists them"
        ))
    })?;
    match out.is_json() {
        true => out.document(&document(&info)),
        false => out.line(&line(&info)),
    }
}

/// `larder txn list`.
pub(crate) fn list(args: &ListArgs, out: &mut Output) -> Result<()> {
    let infos = infos(&args.db)?;
    if out.is_json() {
        let all: Vec<Value> = infos.iter().map(document).collect();
        return out.document(&Value::Array(all));
    }
    infos.iter().try_for_each(|info| out.line(&line(info)))
}

fn infos(db: &Path) -> Result<Vec<TransactionInfo>> {
    larder::list_long(db).at(|| format!("cannot look at '{}'", db.display()))
}

fn document(info: &TransactionInfo) -> Value {
    json!({
        "transaction": info.id,
        "workspace": info.directory.to_string_lossy(),
        "label": info.label,
        "pid": info.pid,
        "begun_ns": info.begun_ns,
        "ends_with_its_process": info.is_bound,
        "in_use": info.is_open,
        "granted_bytes": info.granted_bytes,
    })
}

fn line(info: &TransactionInfo) -> String {
    let use_now = if info.is_open { "in use" } else { "not in use" };
    let kind = match info.is_bound {
        true => format!("runs in process {}", info.pid),
        false => "until commit or abort".into(),
    };
    format!(
        "{}  {}  begun {}  {kind}  {use_now}  {} bytes granted",
        info.id,
        info.label,
        crate::units::show_time(info.begun_ns),
        info.granted_bytes
    )
}

/// `larder txn commit`.
pub(crate) fn commit(args: &OneArgs, out: &mut Output) -> Result<()> {
    let id = number(args)?;
    let outcome = larder::commit_long(&args.db, id)
        .at(|| format!("cannot commit transaction {id} of '{}'", args.db.display()))?;
    await_mounts(&args.db);
    tell(&outcome, out)
}

/// `larder txn abort`.
pub(crate) fn abort(args: &OneArgs) -> Result<()> {
    let id = number(args)?;
    larder::abort_long(&args.db, id)
        .at(|| format!("cannot end transaction {id} of '{}'", args.db.display()))
}

/// Lists conflicts, which are a failure.
pub(crate) fn tell(outcome: &TransactionOutcome, out: &mut Output) -> Result<()> {
    let conflicts = match outcome {
        TransactionOutcome::Committed => &[][..],
        TransactionOutcome::Conflicts(conflicts) => conflicts,
    };
    if out.is_json() {
        let document = |conflict: &Conflict| json!({"what": conflict.what, "why": conflict.why});
        let all: Vec<Value> = conflicts.iter().map(document).collect();
        out.document(&json!({"committed": conflicts.is_empty(), "conflicts": all}))?;
    }
    if conflicts.is_empty() {
        return Ok(());
    }
    for conflict in conflicts {
        warn(&format!("conflict: {conflict}"));
    }
    Err(Failure::Told(1))
}

/// The transaction that is meant.
fn number(args: &OneArgs) -> Result<u64> {
    if let Some(id) = args.id {
        return Ok(id);
    }
    let workspace = larder::transaction_of(&args.db)?;
    let id = workspace.and_then(|workspace| workspace.file_name()?.to_str()?.parse().ok());
    id.ok_or_else(|| {
        Failure::Usage(format!(
            "{TRANSACTION_VARIABLE} names no transaction of '{}'; give its number, 'larder txn \
             list' lists them",
            args.db.display()
        ))
    })
}
