//! What is wrong with a database of the corpus, and how it comes about: each file × something else
//! in its place, each column of each table of ours × a wrong value, in the catalog and in that of a
//! transaction; schemas that run or lie; bytes that have changed.

use super::sandbox::{OUTSIDE, copy_tree, make_outside};
use crate::support::Place;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a database has, or had.
pub const FILES: [&str; 33] = [
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "catalog.db-journal",
    "segments",
    "segments/00000.seg",
    "segments/00001.seg",
    "sessions",
    "sessions.lock",
    "sessions/99.lock",
    "turn.lock",
    "turn.queue",
    "transactions",
    "transactions/ID",
    "transactions/ID/catalog.db",
    "transactions/ID/seal.lock",
    "transactions/ID/owner.lock",
    "transactions/ID/length",
    "transactions/ID/sessions",
    "transactions/ID/sessions.lock",
    "transactions/ID/turn.lock",
    "transactions/ID/turn.queue",
    "locks",
    "locks/7",
    "mounts",
    "mounts/0-9999.lock",
    "trace",
    "refused",
    "refused/1",
    "refused/1.content",
    "mount.log",
    "log.unsound",
    "catalog.db-wal-shared",
];

/// What stands in the place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    LinkToFile,
    LinkToDirectory,
    DanglingLink,
    HardLink,
    Fifo,
    Socket,
    Device,
    Directory,
    FullDirectory,
    Empty,
    Absurd,
    /// The file, with an absurd header.
    Header,
    /// It says that it has a TiB.
    Endless,
}

pub const INSTEAD: [Instead; 13] = [
    Instead::LinkToFile,
    Instead::LinkToDirectory,
    Instead::DanglingLink,
    Instead::HardLink,
    Instead::Fifo,
    Instead::Socket,
    Instead::Device,
    Instead::Directory,
    Instead::FullDirectory,
    Instead::Empty,
    Instead::Absurd,
    Instead::Header,
    Instead::Endless,
];

/// Wrong values, as SQL; `C` is the column, `F` the first column of its table.
const VALUES: [(&str, &str); 22] = [
    ("negative", "-1"),
    ("zero", "0"),
    ("huge", "9223372036854775807"),
    ("least", "-9223372036854775807 - 1"),
    ("beyond 32 bits", "4294967296"),
    ("nothing", "NULL"),
    ("text", "'x'"),
    ("empty", "''"),
    (
        "an unsafe name",
        "char(34) || char(10) || ';ATTACH ''outside/evil'' AS e;--'",
    ),
    ("a path", "'../../../outside'"),
    ("dots", "'..'"),
    ("a NUL", "'a' || char(0) || 'b'"),
    ("a float", "1e300"),
    ("bytes", "zeroblob(9)"),
    ("long bytes", "randomblob(1000000)"),
    ("its row's", "F"),
    ("the next row's", "F + 1"),
    ("one more", "C + 1"),
    (
        "flipped",
        "CAST(substr(C, 1, length(C) / 2) || x'ff' || substr(C, length(C) / 2 + 2) AS BLOB)",
    ),
    ("twice", "C || C"),
    ("cut", "substr(C, 1, length(C) - 1)"),
    ("text of bytes", "CAST(C AS TEXT)"),
];

/// A query without an end.
pub const ENDLESS: &str =
    "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c";

/// Schemas; `ENDLESS` is [`ENDLESS`].
const SCHEMAS: [&str; 16] = [
    "CREATE TRIGGER evil AFTER INSERT ON larder_session BEGIN ENDLESS; END",
    "CREATE TRIGGER evil AFTER INSERT ON main BEGIN ENDLESS; END",
    "CREATE TRIGGER evil AFTER UPDATE ON main BEGIN UPDATE main_content SET inline = x'68'; END",
    "CREATE TRIGGER evil BEFORE DELETE ON main BEGIN DELETE FROM larder_extent; END",
    "CREATE INDEX evil ON larder_meta (length(hex(value)))",
    "CREATE INDEX evil ON main (length(hex(zeroblob(rating))))",
    "CREATE VIEW evil AS ENDLESS; CREATE TRIGGER e2 INSTEAD OF INSERT ON evil BEGIN SELECT 1; END",
    "DROP TABLE larder_hold; CREATE VIEW larder_hold AS ENDLESS",
    "DROP VIEW main_path; CREATE VIEW main_path AS ENDLESS",
    "ALTER TABLE main ADD COLUMN g AS (length(hex(zeroblob(400000000)))) CHECK (g > 0)",
    "ALTER TABLE album ADD COLUMN g AS (length(hex(zeroblob(400000000))))",
    "CREATE TRIGGER evil AFTER UPDATE ON album BEGIN ENDLESS; END",
    "CREATE VIRTUAL TABLE evil USING fts5(x)",
    "INSERT INTO sqlite_schema VALUES ('view', 'harmless', 'harmless', 0, \
     'CREATE TRIGGER evil AFTER INSERT ON larder_session BEGIN SELECT 1; END')",
    "UPDATE sqlite_schema SET sql = CAST(x'435245415445205461626c6520ff' AS TEXT) WHERE name = \
     'album'",
    "UPDATE sqlite_schema SET rootpage = 2147483647 WHERE name = 'album'",
];

/// Files with bytes that change, and how often that is tried.
const FLIPPED: [&str; 5] = [
    "catalog.db",
    "catalog.db-wal",
    "segments/00000.seg",
    "transactions/ID/catalog.db",
    "catalog.db-shm",
];
const FLIP_COUNT: u64 = 40;

/// Something that is wrong.
#[derive(Debug, Clone)]
pub enum Damage {
    Nothing,
    File(&'static str, Instead),
    Value {
        catalog: &'static str,
        table: String,
        column: String,
        value: (&'static str, &'static str),
    },
    Schema(&'static str),
    Bytes(&'static str, u64),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::Nothing => write!(f, "nothing"),
            Damage::File(name, instead) => write!(f, "{name} is {instead:?}"),
            Damage::Value {
                catalog,
                table,
                column,
                value,
            } => write!(f, "{catalog}: {table}.{column} is {}", value.0),
            Damage::Schema(sql) => write!(f, "{sql}"),
            Damage::Bytes(name, seed) => write!(f, "bytes of {name} have changed, {seed}"),
        }
    }
}

/// A sound database that has something in every table it can, and its damaged copy.
pub struct Template {
    place: Place,
    /// The number of its transaction.
    pub transaction: String,
    /// Of its last commit.
    pub last: String,
}

const CATALOG: &str = "catalog.db";
const WORKSPACE: &str = "transactions/ID/catalog.db";

impl Template {
    pub fn new() -> Template {
        let place = full();
        place.ok(&["mkdir", "a.larder:/other"]);
        place.ok(&["snapshot", "create", "a.larder", "sealed"]);
        place.ok(&["snapshot", "seal", "a.larder", "sealed"]);
        place.ok(&["snapshot", "hold", "a.larder", "sealed", "kept"]);
        place.ok(&["put", "dir/sub/c", "a.larder:/last"]);
        let last = place.json(&["log", "a.larder:/last"]);
        let last = last[0]["seq"].to_string();
        let begun = place.json(&["txn", "begin", "a.larder"]);
        let workspace = begun["workspace"].as_str().unwrap().to_owned();
        for words in [
            &["put", "big", "a.larder:/in"][..],
            &["rm", "a.larder:/same"],
            &["sql", "a.larder", "INSERT INTO album VALUES (7, 7)"],
        ] {
            let done = place.command(words).env("LARDER_TXN", &workspace).output();
            let done = done.unwrap();
            assert!(done.status.success(), "{words:?}: {done:?}");
        }
        for name in ["locks", "mounts", "trace"] {
            let path = place.path("a.larder").join(name);
            fs::create_dir_all(path).unwrap();
        }
        let refused = place.path("a.larder/refused");
        fs::create_dir(&refused).unwrap();
        let about = "at_ns 1\nstore 0\nino 2\nsize 4\nwhy a rule of main\npath /kept";
        fs::write(refused.join("1"), about).unwrap();
        fs::write(refused.join("1.content"), "kept").unwrap();
        make_outside(&place.path(&OUTSIDE[1..]));
        Template {
            place,
            transaction: begun["transaction"].to_string(),
            last,
        }
    }

    /// The directory with what verbs read beside a database.
    pub fn directory(&self) -> PathBuf {
        self.place.path(".")
    }

    /// All there is that may be wrong.
    pub fn damages(&self) -> Vec<Damage> {
        let mut all = Vec::new();
        for name in FILES {
            all.extend(INSTEAD.map(|instead| Damage::File(name, instead)));
        }
        all.extend(SCHEMAS.map(Damage::Schema));
        for name in FLIPPED {
            all.extend((0..FLIP_COUNT).map(|seed| Damage::Bytes(name, seed)));
        }
        for catalog in [CATALOG, WORKSPACE] {
            for (table, column) in columns(&self.path("a.larder", catalog)) {
                all.extend(VALUES.map(|value| Damage::Value {
                    catalog,
                    table: table.clone(),
                    column: column.clone(),
                    value,
                }));
            }
        }
        all
    }

    fn path(&self, database: &str, name: &str) -> PathBuf {
        let name = name.replace("ID", &self.transaction);
        self.place.path(database).join(name)
    }

    /// A damaged copy; `None` where this machine, or SQLite, does not let it come about.
    pub fn damaged(&self, damage: &Damage) -> Option<PathBuf> {
        let copy = self.place.path("damaged");
        if copy.exists() {
            fs::remove_dir_all(&copy).unwrap();
        }
        copy_tree(&self.place.path("a.larder"), &copy);
        let is_made = match damage {
            Damage::Nothing => true,
            Damage::File(name, instead) => {
                let outside = self.place.path(&OUTSIDE[1..]);
                replace(&self.path("damaged", name), &outside, *instead)
            }
            Damage::Schema(sql) => {
                let owner = owner(&self.path("damaged", CATALOG));
                owner
                    .execute_batch(&sql.replace("ENDLESS", ENDLESS))
                    .unwrap();
                true
            }
            Damage::Value {
                catalog,
                table,
                column,
                value,
            } => spoil(&self.path("damaged", catalog), table, column, value.1),
            Damage::Bytes(name, seed) => {
                if name.ends_with("-wal") {
                    leave_log(&self.path("damaged", CATALOG));
                }
                flip(&self.path("damaged", name), *seed)
            }
        };
        is_made.then_some(copy)
    }
}

/// A place with a database `a.larder` that has something in every table it can.
pub fn full() -> Place {
    let place = Place::with_database();
    place.write("a", 100);
    place.write("big", 300_000);
    fs::create_dir_all(place.path("dir/sub")).unwrap();
    place.write("dir/sub/c", 5000);
    symlink("a", place.path("dir/link")).unwrap();
    for words in [
        &["sql", "a.larder", "ALTER TABLE main ADD COLUMN rating"][..],
        &[
            "sql",
            "a.larder",
            "CREATE TABLE album (id INTEGER PRIMARY KEY, n)",
        ],
        &["track", "a.larder", "album"],
        &["watch", "a.larder", "--enable", "--once"],
        &["put", "a", "a.larder:/a"],
        &["cp", "-r", "dir", "a.larder:/"],
        &["put", "big", "a.larder:/big"],
        &["snapshot", "create", "a.larder", "first"],
        &["store", "create", "a.larder", "side"],
        &["store", "create", "a.larder", "third"],
        &["put", "big", "a.larder:/side/big"],
        &["clone", "a.larder:/big", "a.larder:/same"],
        &["put", "dir/sub/c", "a.larder:/big"],
        &[
            "sql",
            "a.larder",
            "INSERT INTO album VALUES (1, 2); UPDATE album SET n = 3",
        ],
    ] {
        place.ok(words);
    }
    fs::create_dir(place.path("outside")).unwrap();
    fs::write(place.path("outside/kept"), "kept").unwrap();
    place
}

/// A connection of somebody who keeps to no rule.
pub fn owner(catalog: &Path) -> Connection {
    let owner = Connection::open(catalog).unwrap();
    let is_enabled = owner.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false);
    is_enabled.unwrap();
    let pragmas = "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF; PRAGMA \
        writable_schema = ON";
    owner.execute_batch(pragmas).unwrap();
    owner
}

/// Leaves a log with commits, as a session that was killed does.
fn leave_log(catalog: &Path) {
    let owner = owner(catalog);
    let kept = owner.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    kept.unwrap();
    for _ in 0..3 {
        owner.execute_batch("UPDATE album SET n = n + 1").unwrap();
    }
}

/// Our tables, with their columns.
fn columns(catalog: &Path) -> Vec<(String, String)> {
    let catalog = Connection::open(catalog).unwrap();
    let sql = "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name) AS c \
               WHERE t.schema = 'main' AND t.type = 'table' AND c.hidden = 0 \
               AND (t.name GLOB 'larder_*' OR t.name GLOB 'main*') ORDER BY 1, c.cid";
    let mut list = catalog.prepare(sql).unwrap();
    list.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

/// Gives a column of each row of a table, or of a row that is made for it, the value; `false`: it
/// takes none such.
fn spoil(catalog: &Path, table: &str, column: &str, value: &str) -> bool {
    let all = columns(catalog);
    let names = all.iter().filter(|(of, _)| of == table);
    let names: Vec<String> = names.map(|(_, name)| format!("\"{name}\"")).collect();
    let set_text = |text: &str| {
        let sql = "UPDATE sqlite_schema SET sql = ?2 WHERE type = 'table' AND name = ?1";
        owner(catalog).execute(sql, [table, text]).unwrap();
    };
    let of_table = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    let text: String = owner(catalog)
        .query_row(of_table, [table], |row| row.get(0))
        .unwrap();
    let lax = text.replace(") STRICT, ", ") ").replace(") STRICT", ")");
    let lax = lax.replace("IS NOT NULL", "IS NOTNULL");
    set_text(
        &lax.replace(" NOT NULL", "")
            .replace("IS NOTNULL", "IS NOT NULL"),
    );
    let changed = {
        let owner = owner(catalog);
        let ones = vec!["1"; names.len()].join(", ");
        let fill = format!(
            "INSERT OR IGNORE INTO \"{table}\" ({}) SELECT {ones} \
             WHERE NOT EXISTS (SELECT 1 FROM \"{table}\")",
            names.join(", ")
        );
        let filled = owner.execute_batch(&fill);
        filled.unwrap_or_else(|error| panic!("{table}: {error}: {lax}"));
        // Letters of their own: no value has another capital C or F that stands alone.
        let words = value.split_inclusive(|c: char| !c.is_alphanumeric());
        let value: String = words
            .map(|word| match word.chars().next() {
                Some('C') if word.trim_end_matches(|c: char| !c.is_alphanumeric()) == "C" => {
                    word.replacen('C', &format!("\"{column}\""), 1)
                }
                Some('F') if word.trim_end_matches(|c: char| !c.is_alphanumeric()) == "F" => {
                    word.replacen('F', &names[0], 1)
                }
                _ => word.to_owned(),
            })
            .collect();
        // A rowid takes no text, and a key nothing twice: those are no cases.
        let set = format!("UPDATE OR IGNORE \"{table}\" SET \"{column}\" = {value}");
        owner.execute(&set, []).unwrap_or(0)
    };
    set_text(&text);
    changed > 0
}

/// Bytes of a file change: a few, some of them near its beginning.
fn flip(path: &Path, seed: u64) -> bool {
    let mut state = seed;
    let mut random = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        return false; // It has none.
    };
    let length = file.metadata().unwrap().len();
    if length == 0 {
        return false;
    }
    let count = 1 + random() % 60;
    for number in 0..count {
        let range = match number % 3 {
            0 => length.min(200),
            1 => length.min(40_000),
            _ => length,
        };
        let at = random() % range;
        let byte = [random() as u8, 0xff, 0x7f, 0][(random() % 4) as usize];
        file.write_all_at(&[byte], at).unwrap();
    }
    true
}

/// Puts something else in the place of a file; `false`: this machine cannot.
pub fn replace(path: &Path, outside: &Path, instead: Instead) -> bool {
    let length = match path.symlink_metadata() {
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    if matches!(instead, Instead::Header | Instead::Endless) {
        if length == 0 {
            return false; // What is not there has no header.
        }
        let file = File::options().write(true).open(path).unwrap();
        match instead {
            Instead::Endless => file.set_len(1 << 40).unwrap(),
            _ => file
                .write_all_at(&vec![0xff; length.min(8192) as usize], 0)
                .unwrap(),
        }
        return true;
    }
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    let node = |kind: &[&str]| {
        let made = Command::new("mknod")
            .arg(path)
            .args(kind)
            .stderr(Stdio::null())
            .status();
        made.unwrap().success()
    };
    match instead {
        Instead::LinkToFile => symlink(outside.join("precious"), path).unwrap(),
        Instead::LinkToDirectory => symlink(outside, path).unwrap(),
        Instead::DanglingLink => symlink(outside.join("new"), path).unwrap(),
        Instead::HardLink => fs::hard_link(outside.join("precious"), path).unwrap(),
        Instead::Fifo => return node(&["p"]),
        Instead::Socket => {
            let (kind, mode) = (rustix::fs::FileType::Socket, rustix::fs::Mode::from(0o600));
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        }
        Instead::Device => return node(&["c", "1", "5"]), // /dev/zero
        Instead::Directory => fs::create_dir(path).unwrap(),
        Instead::FullDirectory => {
            fs::create_dir_all(path.join("5/6")).unwrap();
            fs::write(path.join("5/6/f"), "").unwrap();
            symlink(outside, path.join("link")).unwrap();
            symlink(outside.join("new"), path.join("7")).unwrap();
        }
        Instead::Empty => fs::write(path, "").unwrap(),
        Instead::Absurd => fs::write(path, [0xff; 8192]).unwrap(),
        Instead::Header | Instead::Endless => {}
    }
    true
}
