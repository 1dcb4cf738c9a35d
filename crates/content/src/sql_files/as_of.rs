//! The moments that one SQL statement reads files of (`files_as_of`, `content_as_of`).
//!
//! They are opened beside the statement's transaction, and opening one writes to the catalog: a
//! transaction that writes keeps everybody from that, and one that has read and writes later would
//! meet it as a conflict. So other moments are read only where nothing can be written.

use crate::active_transaction::lock;
use crate::as_of::parse_moment;
use crate::database::Database;
use larder_object::{Error, ErrorKind, Moment, Result, SqlMoment};
use std::sync::Mutex;

/// Moments that a statement has open at a time.
const OPEN_COUNT_MAX: usize = 8;

/// What one statement reads of the past.
pub(super) struct Pasts {
    host: Option<Database>,
    /// The statement's present, nanoseconds since 1970: a distance in time is from here in all of
    /// it.
    now_ns: i64,
    /// The one that was used last is at the end.
    open: Mutex<Vec<(Moment, Database)>>,
}

impl Pasts {
    /// For a statement beside whose transaction is `host`; `None`: it may open no moments.
    pub(super) fn new(host: Option<&Database>) -> Pasts {
        Pasts {
            now_ns: host.map_or(0, Database::now_ns),
            host: host.cloned(),
            open: Mutex::default(),
        }
    }

    /// The database at a moment. [`ErrorKind::Unsupported`] where something may be written. Cost:
    /// [`Database::as_of`] when the statement has not asked for it lately.
    pub(super) fn find(&self, moment: SqlMoment<'_>) -> Result<Database> {
        let Some(host) = &self.host else {
            let why = "the past is not read in a transaction or statement that may write; read it \
                by a SELECT of its own";
            return Err(Error::new(ErrorKind::Unsupported, why));
        };
        let moment = match moment {
            SqlMoment::Text(text) => parse_moment(text, self.now_ns)?,
            SqlMoment::At(at_ns) => Moment::At(at_ns),
        };
        let mut open = lock(&self.open);
        if let Some(at) = open.iter().position(|(known, _)| *known == moment) {
            let found = open.remove(at);
            let past = found.1.clone();
            open.push(found);
            return Ok(past);
        }
        let past = host.as_of(&moment)?;
        if open.len() == OPEN_COUNT_MAX {
            open.remove(0);
        }
        open.push((moment, past.clone()));
        Ok(past)
    }
}
