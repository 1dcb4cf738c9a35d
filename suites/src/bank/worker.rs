//! A worker of the bank: a process of its own, which may be killed at any moment.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder::{
    Database, DatabaseOptions, Error, ErrorKind, Name, RenameMode, SqlValue, Transaction,
};
use larder_testkit::{Rng, Step};
use rusqlite::{Connection, TransactionBehavior};

use super::diary::{self, diary_at, note};

/// The verb of `xtask` that runs a worker.
pub const WORKER: &str = "bank-worker";

pub(super) const FOLDERS: u64 = 6;
pub(super) const DOCUMENTS: u64 = 24;

/// A list takes entries for so long, nanoseconds: then there is a new one, so that none grows long.
const LIST_NS: u64 = 2_000_000_000;

/// What holds at every moment, in one query: documents where their rows say, documents in all,
/// twice the moves less the entries of moves.
const BALANCE: &str = "SELECT \
    (SELECT count(*) FROM doc JOIN main_dirent AS d ON d.name = 'doc' || doc.id \
       JOIN main_dirent AS f ON f.ino = d.parent AND f.parent = 1 AND f.name = 'f' || doc.folder), \
    (SELECT count(*) FROM main_dirent WHERE name GLOB 'doc*'), \
    (SELECT 2 * sum(moves) FROM doc) - (SELECT count(*) FROM entry WHERE is_move)";

/// Nanoseconds since 1970: the clock that all processes share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn list_of(folder: u64) -> u64 {
    now() / LIST_NS * FOLDERS + folder
}

fn explain(error: Error) -> String {
    format!("{:?}: {error}", error.kind())
}

fn open(database: &Path) -> Result<Database, String> {
    let options = DatabaseOptions {
        label: "bank".into(),
        ..DatabaseOptions::default()
    };
    Database::open(database, options).map_err(explain)
}

/// Makes folders, documents and tables.
pub(super) fn found(path: &Path) -> Result<(), String> {
    let database = open(path)?;
    let mut sql = database.sql().open(false).map_err(explain)?;
    let tables = "CREATE TABLE doc (id INTEGER PRIMARY KEY, folder INTEGER NOT NULL, moves \
        INTEGER NOT NULL);
        CREATE TABLE entry (id INTEGER PRIMARY KEY, list INTEGER NOT NULL, value INTEGER NOT \
        NULL, is_move INTEGER NOT NULL);
        CREATE INDEX entry_list ON entry (list)";
    sql.execute(tables, &mut |_| Ok(())).map_err(explain)?;
    let all = database.transactions().run(|txn| {
        for folder in 0..FOLDERS {
            let name = Name::new(format!("f{folder}").as_bytes())
                .map_err(|_| Error::new(ErrorKind::InvalidInput, "a folder's name"))?;
            let caller = larder::Caller {
                uid: 0,
                gid: 0,
                umask: 0,
            };
            txn.nodes().create_node(
                larder::NodeId::ROOT,
                &name,
                larder::NewNode::Directory,
                0o755,
                caller,
            )?;
        }
        for id in 0..DOCUMENTS {
            let folder = id % FOLDERS;
            txn.files()
                .write(format!("/f{folder}/doc{id}").as_bytes(), b"0")?;
            let row = [
                SqlValue::Integer(id as i64),
                SqlValue::Integer(folder as i64),
            ];
            txn.sql("INSERT INTO doc VALUES (?1, ?2, 0)", &row)?;
        }
        Ok(())
    });
    all.map_err(explain)?;
    database.close().map_err(explain)
}

/// Runs a worker until it is killed.
pub fn work(arguments: &[&str]) -> Result<(), String> {
    let [kind, session, database, diary] = arguments else {
        return Err("bank-worker is started by bank".into());
    };
    let session: u64 = session
        .parse()
        .map_err(|_| "a session is a number".to_owned())?;
    let mut diary = diary_at(Path::new(diary))?;
    let mut rng = Rng::new(session);
    let path = Path::new(database);
    let outcome = match *kind {
        "api" => serve_by_api(path, session, &mut rng, &mut diary),
        "sql" => serve_by_sql(path, session, &mut rng, &mut diary),
        _ => look_by_api(path, &mut diary),
    };
    // Only a fault gets here.
    let line = outcome.err().unwrap_or_default();
    note(&mut diary, &format!("fault {}", line.replace('\n', " ")))?;
    Err(line)
}

fn number(value: &SqlValue) -> Result<u64, String> {
    match value {
        SqlValue::Integer(number) => Ok(*number as u64),
        other => Err(format!("a number is {other:?}")),
    }
}

/// An end that is no fault: the transaction met another one.
enum Stop {
    Conflict,
    Fault(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match error.kind() {
            ErrorKind::Conflict => Stop::Conflict,
            _ => Stop::Fault(explain(error)),
        }
    }
}

impl From<String> for Stop {
    fn from(line: String) -> Stop {
        Stop::Fault(line)
    }
}

fn serve_by_api(path: &Path, session: u64, rng: &mut Rng, diary: &mut File) -> Result<(), String> {
    let database = open(path)?;
    for serial in 0.. {
        let began = now();
        let value = (session << 32) + 2 * serial;
        let txn = database.transactions().begin().map_err(explain)?;
        let moved = transfer(&txn, value, rng);
        let steps = match moved {
            Ok(steps) => steps,
            Err(Stop::Conflict) => continue,
            Err(Stop::Fault(line)) => return Err(line),
        };
        note(diary, &diary::want(began, &steps))?;
        // Some change their mind.
        if rng.chance(10) {
            txn.abort();
            note(diary, &diary::end(now(), false))?;
            continue;
        }
        match txn.commit() {
            Ok(()) => note(diary, &diary::end(now(), true))?,
            Err(error) if error.kind() == ErrorKind::Conflict => {
                note(diary, &diary::end(now(), false))?;
            }
            Err(error) => return Err(explain(error)),
        }
    }
    Ok(())
}

fn read_list(txn: &Transaction, list: u64) -> Result<Step, Stop> {
    let found = txn.sql(
        "SELECT value FROM entry WHERE list = ?1 ORDER BY id",
        &[SqlValue::Integer(list as i64)],
    )?;
    let values = found.rows.iter().map(|row| number(&row.values[0]));
    Ok(Step::Read {
        list,
        values: values.collect::<Result<_, _>>()?,
    })
}

/// Moves a document, its row, and what the document says.
fn transfer(txn: &Transaction, value: u64, rng: &mut Rng) -> Result<Vec<Step>, Stop> {
    let id = rng.below(DOCUMENTS);
    let row = txn.sql(
        "SELECT folder, moves FROM doc WHERE id = ?1",
        &[SqlValue::Integer(id as i64)],
    )?;
    let values = &row
        .rows
        .first()
        .ok_or("a document has no row".to_owned())?
        .values;
    let (from, moves) = (number(&values[0])?, number(&values[1])?);
    let to = (from + 1 + rng.below(FOLDERS - 1)) % FOLDERS;
    let place = |folder: u64| format!("/f{folder}/doc{id}");
    let said = txn.files().read(place(from).as_bytes())?;
    if said != moves.to_string().as_bytes() {
        return Err(Stop::Fault(format!(
            "doc{id} says {said:?}, its row {moves}"
        )));
    }
    let folder = |number: u64| {
        Ok::<_, Error>(
            txn.nodes()
                .resolve(format!("/f{number}").as_bytes(), true)?
                .node,
        )
    };
    let name =
        Name::new(format!("doc{id}").as_bytes()).map_err(|_| "a document's name".to_owned())?;
    let mut steps = Vec::new();
    let (from_list, to_list) = (list_of(from), list_of(to));
    if rng.chance(70) {
        steps.push(read_list(txn, from_list)?);
    }
    txn.nodes().rename(
        folder(from)?,
        &name,
        folder(to)?,
        &name,
        RenameMode::NoReplace,
    )?;
    txn.files()
        .write(place(to).as_bytes(), (moves + 1).to_string().as_bytes())?;
    txn.sql(
        "UPDATE doc SET folder = ?2, moves = moves + 1 WHERE id = ?1",
        &[SqlValue::Integer(id as i64), SqlValue::Integer(to as i64)],
    )?;
    for (list, value) in [(from_list, value), (to_list, value + 1)] {
        txn.sql(
            "INSERT INTO entry (list, value, is_move) VALUES (?1, ?2, 1)",
            &[
                SqlValue::Integer(list as i64),
                SqlValue::Integer(value as i64),
            ],
        )?;
        steps.push(Step::Append { list, value });
    }
    if rng.chance(50) {
        steps.push(read_list(txn, to_list)?);
    }
    Ok(steps)
}

/// Looks at all rows and files in one snapshot.
fn look_by_api(path: &Path, diary: &mut File) -> Result<(), String> {
    let database = open(path)?;
    loop {
        let txn = database.transactions().begin().map_err(explain)?;
        match look(&txn) {
            Ok(()) => note(diary, "look")?,
            Err(Stop::Conflict) => {}
            Err(Stop::Fault(line)) => return Err(line),
        }
        txn.abort();
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn look(txn: &Transaction) -> Result<(), Stop> {
    let rows = txn.sql("SELECT id, folder, moves FROM doc", &[])?.rows;
    if rows.len() as u64 != DOCUMENTS {
        return Err(Stop::Fault(format!("{} rows of documents", rows.len())));
    }
    for row in rows {
        let [id, folder, moves] = [0, 1, 2].map(|index| number(&row.values[index]));
        let (id, folder, moves) = (id?, folder?, moves?);
        let said = txn.files().read(format!("/f{folder}/doc{id}").as_bytes())?;
        if said != moves.to_string().as_bytes() {
            return Err(Stop::Fault(format!(
                "doc{id} says {said:?}, its row {moves}"
            )));
        }
    }
    let mut count = 0;
    for folder in 0..FOLDERS {
        let node = txn
            .nodes()
            .resolve(format!("/f{folder}").as_bytes(), true)?
            .node;
        let entries = txn.nodes().read_dir(node, None, 10_000)?;
        count += (entries.iter())
            .filter(|entry| entry.name.as_bytes().starts_with(b"doc"))
            .count() as u64;
    }
    match count {
        DOCUMENTS => Ok(()),
        other => Err(Stop::Fault(format!("{other} documents in all folders"))),
    }
}

/// Plain SQL: no larder in this process, but for the file that both open.
fn serve_by_sql(path: &Path, session: u64, rng: &mut Rng, diary: &mut File) -> Result<(), String> {
    let fault = |error: rusqlite::Error| format!("plain SQL: {error}");
    let catalog = path.join("catalog.db");
    let mut connection = Connection::open(&catalog).map_err(fault)?;
    connection
        .busy_timeout(Duration::from_secs(30))
        .map_err(fault)?;
    for serial in 0.. {
        if rng.chance(20) {
            look_by_shell(&catalog)?;
            note(diary, "look")?;
            continue;
        }
        let began = now();
        let value = (session << 32) + serial;
        let (read, written) = (list_of(rng.below(FOLDERS)), list_of(rng.below(FOLDERS)));
        let txn = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(fault)?;
        let values = txn
            .prepare_cached("SELECT value FROM entry WHERE list = ?1 ORDER BY id")
            .and_then(|mut select| {
                let rows = select.query_map([read as i64], |row| row.get::<_, i64>(0))?;
                rows.collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(fault)?;
        let balance = txn.query_row(BALANCE, [], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?])
        });
        check_balance(balance.map_err(fault)?)?;
        txn.execute(
            "INSERT INTO entry (list, value, is_move) VALUES (?1, ?2, 0)",
            [written as i64, value as i64],
        )
        .map_err(fault)?;
        let steps = [
            Step::Read {
                list: read,
                values: values.into_iter().map(|value| value as u64).collect(),
            },
            Step::Append {
                list: written,
                value,
            },
        ];
        note(diary, &diary::want(began, &steps))?;
        txn.commit().map_err(fault)?;
        note(diary, &diary::end(now(), true))?;
        std::thread::sleep(Duration::from_millis(rng.below(20)));
    }
    Ok(())
}

fn check_balance(balance: [i64; 3]) -> Result<(), String> {
    match balance {
        [placed, all, 0] if placed == DOCUMENTS as i64 && all == placed => Ok(()),
        wrong => Err(format!(
            "[documents in place, documents, moves - entries] = {wrong:?}"
        )),
    }
}

/// The same by an unmodified `sqlite3`.
fn look_by_shell(catalog: &Path) -> Result<(), String> {
    let output = Command::new("sqlite3")
        .args(["-cmd", ".timeout 30000"])
        .arg(catalog)
        .arg(BALANCE)
        .output()
        .map_err(|error| format!("sqlite3 does not run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<i64> = text
        .trim()
        .split('|')
        .filter_map(|word| word.parse().ok())
        .collect();
    match <[i64; 3]>::try_from(numbers) {
        Ok(balance) => check_balance(balance),
        Err(_) => Err(format!(
            "sqlite3 says: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Reads all lists, when nobody is left.
pub(super) fn final_read(path: &Path, diary: &Path) -> Result<(), String> {
    let database = open(path)?;
    let mut diary = diary_at(diary)?;
    let began = now();
    let txn = database.transactions().begin().map_err(explain)?;
    let stop = |stop| match stop {
        Stop::Conflict => "a conflict with nobody".to_owned(),
        Stop::Fault(line) => line,
    };
    look(&txn).map_err(stop)?;
    let lists = txn
        .sql("SELECT DISTINCT list FROM entry", &[])
        .map_err(explain)?;
    let steps = lists.rows.iter().map(|row| {
        let list = number(&row.values[0])?;
        read_list(&txn, list).map_err(stop)
    });
    let steps: Vec<Step> = steps.collect::<Result<_, String>>()?;
    txn.abort();
    note(&mut diary, &diary::want(began, &steps))?;
    note(&mut diary, &diary::end(now(), true))?;
    database.close().map_err(explain)
}
