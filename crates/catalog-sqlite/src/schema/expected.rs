//! The schema that this version makes, with which `audit` compares a catalog's.
//!
//! That of the newest format is a file, written by a test from the steps: to run them takes longer
//! than the rest of an open. Of an older format, which is met once, before its upgrade, the steps
//! make it in memory.

use crate::conn::confine::scratch;
use crate::error::{At, CatalogError, Result};
use crate::schema;
use crate::types::codec::rows;
use crate::types::names::shown;
use crate::types::sql_text::{Token, made, tokens};
use larder_format::StoreId;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Stands for the name of a store in what this version makes.
const NAME: &str = "larderstorename";
/// Stands for its number.
const ID: StoreId = StoreId(4_294_967_291);
const ID_TEXT: &str = "4294967291";
/// The newest format's, in parts that begin with [`PART`]: `format`, its number; `system` or
/// `store`, the kind, name and table of an object, and in the lines that follow its text; `column`,
/// the name, type, place in the key, and whether it is generated.
const NEWEST: &str = include_str!("expected.sql");
const PART: &str = "\n--@ ";

/// An object of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: Cow<'static, str>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) table: Cow<'static, str>,
    pub(crate) sql: Option<Cow<'static, str>>,
}

/// A column: name, type, place in the key, whether it is generated.
pub(crate) type Column = (String, String, i64, i64);

/// What this version makes in a catalog of one format. Names are in lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) system: HashMap<String, Object>,
    /// Of a store, whose name and number are in [`Object::of`].
    store: Vec<Object>,
    /// The engine's columns of its table.
    pub(crate) columns: Vec<Column>,
    /// How those that are generated are declared.
    pub(crate) generated: Vec<Vec<Token>>,
}

impl Object {
    /// Whether SQLite lets only one of the two have a name: triggers have names of their own.
    pub(crate) fn shares_names_with(&self, other: &Object) -> bool {
        (self.kind == "trigger") == (other.kind == "trigger")
    }

    /// What no two objects of a schema have in common: the name in lower case, and whether it is a
    /// trigger's.
    pub(crate) fn key(&self) -> (String, bool) {
        (self.name.to_ascii_lowercase(), self.kind == "trigger")
    }

    pub(crate) fn is_same(&self, other: &Object) -> bool {
        self.kind == other.kind
            && self.table.eq_ignore_ascii_case(&other.table)
            && self.sql == other.sql
    }

    /// The object of the store with this number and name.
    fn of(&self, id: &str, name: &str) -> Object {
        let named = |text: &str| text.replace(NAME, name).into();
        Object {
            kind: self.kind.clone(),
            name: named(&self.name),
            table: named(&self.table),
            sql: (self.sql.as_ref()).map(|sql| match sql.contains(ID_TEXT) {
                true => sql.replace(NAME, name).replace(ID_TEXT, id).into(),
                false => named(sql),
            }),
        }
    }
}

impl Expected {
    /// What is expected of a catalog of format `version`. Made once for each process and format.
    pub(crate) fn of(version: u32) -> Result<Arc<Expected>> {
        static MADE: Mutex<Vec<(u32, Arc<Expected>)>> = Mutex::new(Vec::new());
        let mut made = crate::lock(&MADE);
        if let Some((_, expected)) = made.iter().find(|(of, _)| *of == version) {
            return Ok(Arc::clone(expected));
        }
        let expected = match Expected::parse(NEWEST) {
            Some((of, newest)) if of == version => newest,
            Some(_) => Expected::make(version)?,
            None => {
                return Err(CatalogError::invalid(
                    "the schema that this build of larder expects cannot be read; build it anew",
                ));
            }
        };
        let expected = Arc::new(expected);
        made.push((version, Arc::clone(&expected)));
        Ok(expected)
    }

    /// The objects of a store with this number and name, which is a valid one.
    pub(crate) fn store(&self, id: StoreId, name: &str) -> impl Iterator<Item = Object> {
        let id = id.0.to_string();
        self.store.iter().map(move |object| object.of(&id, name))
    }

    /// The format that `text` is of, and what it says.
    fn parse(text: &'static str) -> Option<(u32, Expected)> {
        let mut expected = Expected::default();
        let mut parts = text.split(PART).skip(1);
        let version = parts.next()?.strip_prefix("format ")?.trim().parse().ok()?;
        for part in parts {
            let (head, sql) = part.split_once('\n').unwrap_or((part, ""));
            let mut words = head.split(' ');
            let what = words.next()?;
            let mut word = || words.next();
            if what == "column" {
                let (name, kind) = (word()?.into(), word()?.into());
                let column = (name, kind, word()?.parse().ok()?, word()?.parse().ok()?);
                expected.columns.push(column);
                continue;
            }
            let object = Object {
                kind: word()?.into(),
                name: word()?.into(),
                table: word()?.into(),
                sql: Some(sql.trim_end_matches('\n').into())
                    .filter(|sql: &Cow<'_, str>| !sql.is_empty()),
            };
            match what {
                "system" => {
                    let name = object.name.to_ascii_lowercase();
                    expected.system.insert(name, object);
                }
                "store" => expected.store.push(object),
                _ => return None,
            }
        }
        expected.generated = generated_of(&expected.store, &expected.columns);
        Some((version, expected))
    }

    /// By the steps, in memory.
    fn make(version: u32) -> Result<Expected> {
        let scratch = scratch()?;
        let format = match version > schema::ONE.newest() {
            true => schema::TWO.up_to(version),
            false => schema::ONE.up_to(version),
        };
        schema::apply(&scratch, &format, 0)?;
        let system: HashMap<String, Object> = read_objects(&scratch, &HashMap::new())?
            .into_iter()
            .map(|object| (object.name.to_ascii_lowercase(), object))
            .collect();
        if version == 0 {
            return Ok(Expected {
                system,
                ..Expected::default()
            });
        }
        schema::create_store_tables_of(&scratch, &format, ID, NAME)?;
        let mut store = read_objects(&scratch, &HashMap::new())?;
        store.retain(|object| !system.contains_key(&object.name.to_ascii_lowercase()));
        let columns = read_columns(&scratch, NAME)?;
        let generated = generated_of(&store, &columns);
        Ok(Expected {
            system,
            store,
            columns,
            generated,
        })
    }
}

/// Of parts of the schema: `(type, name)`.
type Objects = Vec<(String, String)>;

/// The triggers, views and tables that belong to the engine, for `check`: `(type, name)` of the
/// system tables and of the stores `names`.
pub(crate) fn expected_objects(names: &[String]) -> Result<Arc<Objects>> {
    // Whoever looks at the commits of others asks again and again.
    static LAST: Mutex<Option<(Vec<String>, Arc<Objects>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, objects)) = last.as_ref().filter(|(of, _)| of == names) {
        return Ok(Arc::clone(objects));
    }
    let expected = Expected::of(schema::SCHEMA_VERSION)?;
    let named = |object: &Object| (object.kind.to_string(), object.name.to_string());
    let of_stores = names
        .iter()
        .flat_map(|name| expected.store(StoreId::MAIN, name));
    let is_sqlites = |(_, name): &(String, String)| name.starts_with("sqlite_");
    let all = (expected.system.values().map(named)).chain(of_stores.map(|object| named(&object)));
    let objects: Arc<Objects> = Arc::new(all.filter(|object| !is_sqlites(object)).collect());
    *last = Some((names.to_vec(), Arc::clone(&objects)));
    Ok(objects)
}

pub(crate) fn refused(what: String) -> CatalogError {
    CatalogError::Refused { what }
}

/// The columns of a table, names in lower case, types in upper case.
pub(crate) fn read_columns(connection: &Connection, table: &str) -> Result<Vec<Column>> {
    let sql = "SELECT lower(name), upper(type), pk, hidden FROM pragma_table_xinfo(?1, 'main')";
    rows(connection, sql, [table], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })
    .at(table)
}

/// The schema, each row of which says what its text says; `known` are objects that do.
pub(crate) fn read_objects(
    connection: &Connection,
    known: &HashMap<String, Object>,
) -> Result<Vec<Object>> {
    let mut list = connection
        .prepare("SELECT type, name, tbl_name, sql FROM main.sqlite_schema")
        .at("sqlite_schema")?;
    let mut rows = list.query([]).at("sqlite_schema")?;
    let mut objects = Vec::new();
    while let Some(row) = rows.next().at("sqlite_schema")? {
        let object = Object {
            kind: text(row, 0)?.unwrap_or_default().into(),
            name: text(row, 1)?.unwrap_or_default().into(),
            table: text(row, 2)?.unwrap_or_default().into(),
            sql: text(row, 3)?.map(Cow::from),
        };
        let own = (known.get(&object.name.to_ascii_lowercase()))
            .filter(|own| own.shares_names_with(&object));
        let is_honest = match &object.sql {
            _ if own.is_some_and(|own| object.is_same(own)) => true,
            // An index that a constraint makes.
            None => object.kind == "index",
            Some(sql) => made(sql).is_some_and(|made| {
                made.kind == object.kind
                    && made.name.eq_ignore_ascii_case(&object.name)
                    && made
                        .table
                        .is_none_or(|table| table.eq_ignore_ascii_case(&object.table))
            }),
        };
        if !is_honest {
            return Err(refused(format!(
                "the schema's row of {} has the text of something else; restore the database from \
                 a copy",
                shown(&object.name)
            )));
        }
        objects.push(object);
    }
    Ok(objects)
}

fn text(row: &Row<'_>, index: usize) -> Result<Option<String>> {
    let unreadable =
        || refused("the schema has a row that is no text; restore the database from a copy".into());
    match row.get_ref(index).at("sqlite_schema")? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) if !bytes.contains(&0) => String::from_utf8(bytes.into())
            .map(Some)
            .map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

/// How the generated columns of a store's table are declared, from the name to the end of the
/// expression.
fn generated_of(store: &[Object], columns: &[(String, String, i64, i64)]) -> Vec<Vec<Token>> {
    let table = store.iter().find(|object| object.name == NAME);
    let sql = table
        .and_then(|object| object.sql.as_deref())
        .unwrap_or_default();
    let declared: Vec<Token> = tokens(sql).collect();
    let generated = columns.iter().filter(|(.., hidden)| *hidden != 0);
    let declaration = |(name, ..): &(String, String, i64, i64)| {
        let start = declared
            .iter()
            .position(|token| *token == Token::Word(name.clone()))?;
        let rest = &declared[start..];
        let mut depth = 0;
        let end = rest.iter().position(|token| {
            depth +=
                i32::from(*token == Token::Mark(b'(')) - i32::from(*token == Token::Mark(b')'));
            depth == 0 && *token == Token::Mark(b')')
        })?;
        Some(rest[..=end].to_vec())
    };
    generated.filter_map(declaration).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::SCHEMA_VERSION;
    use std::fmt::Write;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/schema/expected.sql");

    fn document(expected: &Expected) -> String {
        let mut text = "-- The schema of the newest format, word for word as SQLite keeps it: \
            `audit` compares catalogs \
                        with it.\n-- Written by the test `the_file_is_what_the_steps_make` from \
                        the steps; \
                        LARDER_WRITE_SCHEMA=1 writes it.\n"
            .to_owned();
        writeln!(text, "{PART}format {SCHEMA_VERSION}").unwrap();
        let mut system: Vec<&Object> = expected.system.values().collect();
        system.sort_by_key(|object| &object.name);
        let all = system.iter().map(|object| ("system", *object));
        for (what, object) in all.chain(expected.store.iter().map(|object| ("store", object))) {
            let (kind, name, table) = (&object.kind, &object.name, &object.table);
            writeln!(text, "{PART}{what} {kind} {name} {table}").unwrap();
            if let Some(sql) = &object.sql {
                writeln!(text, "{sql}").unwrap();
            }
        }
        for (name, kind, key, hidden) in &expected.columns {
            writeln!(text, "{PART}column {name} {kind} {key} {hidden}").unwrap();
        }
        text
    }

    /// `SAFE-3`. `LARDER_WRITE_SCHEMA=1 cargo test -p larder-catalog-sqlite expected` writes the
    /// file.
    #[test]
    fn the_file_is_what_the_steps_make() {
        let made = Expected::make(SCHEMA_VERSION).unwrap();
        let text = document(&made);
        if std::env::var_os("LARDER_WRITE_SCHEMA").is_some() {
            std::fs::write(PATH, text).unwrap();
            return;
        }
        let found = std::fs::read_to_string(PATH).unwrap();
        assert!(
            found == text,
            "src/schema/expected.sql is not what the steps make; LARDER_WRITE_SCHEMA=1 writes it"
        );
        let (version, parsed) = Expected::parse(NEWEST).unwrap();
        assert_eq!(version, SCHEMA_VERSION);
        assert_eq!(parsed, made);
    }

    /// An open of a catalog of the newest format does not run the steps.
    #[test]
    fn the_objects_of_a_store_bear_its_name_and_number() {
        let expected = Expected::of(SCHEMA_VERSION).unwrap();
        let scratch = Connection::open_in_memory().unwrap();
        schema::apply(&scratch, &schema::TWO, 0).unwrap();
        schema::create_store_tables(&scratch, StoreId(7), "Photos").unwrap();
        let mut found = read_objects(&scratch, &HashMap::new()).unwrap();
        found.retain(|object| {
            !expected
                .system
                .contains_key(&object.name.to_ascii_lowercase())
        });
        let own: Vec<Object> = expected.store(StoreId(7), "Photos").collect();
        assert_eq!(found, own);
    }
}
