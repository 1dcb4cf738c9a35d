//! User columns of the past against a model.
//! files, and costing nothing where they are not changed (`TEMPORAL-4`, `TEMPORAL-5`).
use crate::common;

use crate::common::columns::*;
use crate::common::temporal::{Client, client, create, moment, query};
use crate::common::{assert_clean, kind, open, pattern};
use larder::{
    Database, ErrorKind, Moment, RenameMode, RestoreOptions, SqlSession, SqlValue, XattrMode,
};
use larder_testkit::Rng;
use std::collections::BTreeMap;

/// Of each path the inode, and what the columns have.
type Seen = BTreeMap<String, (SqlValue, BTreeMap<String, SqlValue>)>;

fn columns_of(db: &Database) -> Vec<String> {
    let sql = "SELECT name FROM pragma_table_info('main') WHERE name GLOB 'c[0-9]*' ORDER BY name";
    let names = query(db, sql).into_iter().map(|row| match &row[0] {
        SqlValue::Text(name) => name.clone(),
        other => panic!("{other:?}"),
    });
    names.collect()
}

fn seen(session: &mut SqlSession, columns: &[String]) -> Seen {
    let listed: String = columns.iter().map(|name| format!(", {name}")).collect();
    let sql = format!("SELECT path, ino{listed} FROM main JOIN main_path USING (ino)");
    let rows = session_rows(session, &sql).into_iter();
    rows.filter_map(|row| {
        let SqlValue::Text(path) = &row[0] else {
            panic!("{row:?}")
        };
        let values = columns.iter().cloned().zip(row[2..].iter().cloned());
        (path != "/moment").then(|| (path.clone(), (row[1].clone(), values.collect())))
    })
    .collect()
}

/// What was seen, by the columns that there are: those that came later were NULL.
fn by_columns(seen: &Seen, columns: &[String]) -> Seen {
    let mut seen = seen.clone();
    for (_, values) in seen.values_mut() {
        let mut all = BTreeMap::new();
        for name in columns {
            let value = values.get(name).cloned().unwrap_or(SqlValue::Null);
            all.insert(name.clone(), value);
        }
        *values = all;
    }
    seen
}

fn bytes(value: &SqlValue) -> Option<Vec<u8>> {
    match value {
        SqlValue::Null => None,
        SqlValue::Integer(number) => Some(number.to_string().into_bytes()),
        SqlValue::Text(text) => Some(text.clone().into_bytes()),
        SqlValue::Blob(bytes) => Some(bytes.clone()),
        other => panic!("{other:?}"),
    }
}

/// What a moment shows in all ways is what was seen then.
fn assert_shows(db: &Database, moment: &Moment, then: &Seen, what: &str) {
    let columns = columns_of(db);
    let then = by_columns(then, &columns);
    let mut session = db.sql().open_as_of(moment).unwrap();
    assert_eq!(seen(&mut session, &columns), then, "TEMPORAL-4: {what}");
    drop(session);
    let past = db.as_of(moment).unwrap();
    for (path, (_, values)) in &then {
        let node = past.nodes().resolve(path.as_bytes(), false).unwrap().node;
        for (name, value) in values {
            let found = past
                .attributes()
                .get(node, format!("user.column.{name}").as_bytes());
            match bytes(value) {
                Some(value) => assert_eq!(found.unwrap(), value, "{what}: {path} {name}"),
                None => assert_eq!(kind(found), ErrorKind::NoAttribute, "{what}: {path} {name}"),
            }
        }
    }
    let rows = db.sql().rows_as_of(&past, "main", None).unwrap();
    let named = rows.rows[0].columns[1..].to_vec();
    let mut by_inode: BTreeMap<String, Vec<SqlValue>> = BTreeMap::new();
    for row in rows.rows {
        by_inode.insert(format!("{:?}", row.values[0]), row.values[1..].to_vec());
    }
    for (path, (ino, values)) in &then {
        let named = (named.iter().cloned()).zip(by_inode[&format!("{ino:?}")].clone());
        let found: BTreeMap<String, SqlValue> = named
            .filter(|(name, _)| values.contains_key(name))
            .collect();
        assert_eq!(&found, values, "{what}: rows of {path}");
    }
}

fn all_paths(db: &Database) -> Vec<String> {
    let rows = query(
        db,
        "SELECT path FROM main_path WHERE path LIKE '/d%' ORDER BY path",
    );
    let paths = rows.into_iter().map(|row| match &row[0] {
        SqlValue::Text(path) => path.clone(),
        other => panic!("{other:?}"),
    });
    paths.collect()
}

fn some_path(rng: &mut Rng) -> String {
    let (directory, file) = (rng.below(3), rng.below(4));
    match rng.below(6) {
        0 => format!("/d{directory}"),
        1 => format!("/d{directory}/e"),
        2 => format!("/d{directory}/e/f{file}"),
        _ => format!("/d{directory}/f{file}"),
    }
}

/// One change of files, which may be refused.
fn change_files(db: &Database, rng: &mut Rng) -> Result<(), larder::Error> {
    let path = some_path(rng);
    let (parent, last) = db.nodes().resolve_parent(path.as_bytes())?;
    match rng.below(6) {
        0 | 1 => {
            if path.ends_with('e') || path.len() == 3 {
                let kind = larder::NewNode::Directory;
                db.nodes()
                    .create_node(parent, &last, kind, 0o755, common::OWNER)?;
            } else {
                db.files()
                    .write(path.as_bytes(), pattern(rng.below(9000) as usize, 1))?;
            }
        }
        2 => db.nodes().unlink(parent, &last)?,
        3 => db.nodes().remove_dir(parent, &last)?,
        4 => {
            let (to, other) = db.nodes().resolve_parent(some_path(rng).as_bytes())?;
            db.nodes()
                .rename(parent, &last, to, &other, RenameMode::Replace)?;
        }
        _ => {
            let node = db.nodes().resolve(path.as_bytes(), false)?.node;
            let (to, other) = db.nodes().resolve_parent(some_path(rng).as_bytes())?;
            db.nodes().link(node, to, &other)?;
        }
    }
    Ok(())
}

fn change_columns(db: &Database, other: &Client, rng: &mut Rng) {
    db.sync().unwrap();
    let (columns, paths) = (columns_of(db), all_paths(db));
    if columns.is_empty() || paths.is_empty() {
        return;
    }
    let (column, path) = (rng.pick(&columns).clone(), rng.pick(&paths).clone());
    let value = rng.below(5);
    let which = match rng.below(3) {
        0 => format!("{column} IS {value}"),
        _ => format!("ino IN (SELECT ino FROM main_path WHERE path = '{path}')"),
    };
    let sql = match rng.below(4) {
        0 => format!("UPDATE main SET {column} = NULL WHERE {which}"),
        1 => format!("UPDATE main SET {column} = 'x{value}', mode = mode WHERE {which}"),
        _ => format!("UPDATE main SET {column} = {value} WHERE {which}"),
    };
    match rng.below(5) {
        0 => other.run(&sql),
        1 => drop(db.transactions().run(|txn| {
            txn.sql(&sql, &[])?;
            let moved = path.replace("/f", "/g");
            let _may_fail = txn.files().write(moved.as_bytes(), b"in a transaction");
            Ok(())
        })),
        2 => {
            let node = db.nodes().resolve(path.as_bytes(), false).unwrap().node;
            let name = format!("user.column.{column}");
            let value = value.to_string();
            match rng.below(3) {
                0 => drop(db.attributes().remove(node, name.as_bytes())),
                _ => db
                    .attributes()
                    .set(node, name.as_bytes(), value.as_bytes(), XattrMode::Set)
                    .unwrap(),
            }
        }
        _ => set(db, &sql),
    }
}

#[test]
fn random_changes_read_as_the_model_says() {
    for seed in 1..=6 {
        let dir = tempfile::tempdir().unwrap();
        let mut db = create(dir.path());
        let other = client(dir.path());
        let mut rng = Rng::new(seed);
        other.run("ALTER TABLE main ADD COLUMN c0; ALTER TABLE main ADD COLUMN c1;");
        db.sql().track_table("main").unwrap();
        let mut columns_made = 2;
        let mut known: Vec<(Moment, Seen)> = Vec::new();
        for step in 0..150 {
            let what = format!("seed {seed}, step {step}");
            match rng.below(20) {
                0..=8 => drop(change_files(&db, &mut rng)),
                9..=15 => change_columns(&db, &other, &mut rng),
                16 => {
                    let add = format!("ALTER TABLE main ADD COLUMN c{columns_made}");
                    columns_made += 1;
                    match rng.below(2) {
                        0 => other.run(&add),
                        _ => set(&db, &add),
                    }
                }
                17 if rng.chance(40) => {
                    let columns = columns_of(&db);
                    if columns.len() > 1 {
                        let drop = format!("ALTER TABLE main DROP COLUMN {}", rng.pick(&columns));
                        set(&db, &drop);
                    }
                }
                18 if rng.chance(20) => {
                    db.close().unwrap();
                    db = open(dir.path());
                }
                _ if !known.is_empty() => {
                    let (moment, then) = rng.pick(&known).clone();
                    let columns = columns_of(&db);
                    let then = by_columns(&then, &columns);
                    let mut now = db.sql().open(true).unwrap();
                    let present = seen(&mut now, &columns);
                    drop(now);
                    if rng.chance(30) {
                        db.history().rollback(&moment, None, false).unwrap();
                        let is = seen(&mut db.sql().open(true).unwrap(), &columns);
                        assert_eq!(is, then, "ROLLBACK-2: {what}");
                        continue;
                    }
                    let roots: Vec<&String> = then.keys().filter(|path| path.len() == 3).collect();
                    let Some(root) = roots
                        .get(rng.below(3) as usize)
                        .map(|root| root.to_string())
                    else {
                        continue;
                    };
                    let past = db.as_of(&moment).unwrap();
                    let options = RestoreOptions {
                        is_exact: true,
                        ..RestoreOptions::default()
                    };
                    let done = db.history().restore(&past, Some(root.as_bytes()), &options);
                    drop(past);
                    done.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let is = seen(&mut db.sql().open(true).unwrap(), &columns);
                    let values = |seen: &Seen| -> BTreeMap<String, BTreeMap<String, SqlValue>> {
                        let below = seen.iter().filter(|(path, _)| path.starts_with(&root));
                        below
                            .map(|(path, (_, values))| (path.clone(), values.clone()))
                            .collect()
                    };
                    assert_eq!(
                        values(&is),
                        values(&then),
                        "CONTENT-12: {what}: {root}, before {present:?}"
                    );
                }
                _ => {}
            }
            if rng.chance(40) {
                let at = moment(&db, step);
                let columns = columns_of(&db);
                let now = seen(&mut db.sql().open(true).unwrap(), &columns);
                known.push((at, now));
            }
            if rng.chance(10) && !known.is_empty() {
                let (moment, then) = rng.pick(&known);
                assert_shows(&db, moment, then, &what);
            }
        }
        for (at, (moment, then)) in known.iter().enumerate() {
            assert_shows(&db, moment, then, &format!("seed {seed}, moment {at}"));
        }
        assert_clean(&db);
    }
}
