//! Seals, for those above: the chain, and the rows that digests are made of.

use crate::engine::EngineHistory;
use crate::view::View;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{Beginnings, KeptRow, SealRow, SealedKind, SealedPart};
use larder_space::format::CommitSeq;

impl EngineHistory<'_> {
    /// What tells this database from all others.
    pub fn database_id(&self) -> [u8; 16] {
        self.session.info.database_id
    }

    /// All links of the chain, oldest first.
    pub fn seals(&self) -> Result<Vec<SealRow>> {
        Ok(self.catalog.history()?.seals()?)
    }

    /// Adds a link, durably; `false`: another one came before it. [`ErrorKind::NotFound`]: its
    /// snapshot is gone.
    pub fn add_seal(&self, seal: &SealRow, parts: &[SealedPart]) -> Result<bool> {
        self.require_writable()?;
        let _edit = self.edit()?;
        self.commits().commit_now()?;
        Ok(self.catalog.history()?.add_seal(seal, parts)?)
    }

    /// The parts of a seal, of one kind.
    pub fn sealed_parts(&self, seal: u64, kind: SealedKind) -> Result<Vec<SealedPart>> {
        Ok(self.catalog.history()?.sealed_parts(seal, kind)?)
    }

    /// What was sealed of a directory.
    pub fn sealed_directory(
        &self,
        seal: u64,
        store: i64,
        number: u64,
    ) -> Result<Option<SealedPart>> {
        Ok(self
            .catalog
            .history()?
            .sealed_directory(seal, store, number)?)
    }

    /// Visits what the history has of the commits after `after`, up to `upto`; returns where it
    /// begins.
    pub fn for_each_kept(
        &self,
        after: CommitSeq,
        upto: CommitSeq,
        visit: &mut dyn FnMut(KeptRow<'_>),
    ) -> Result<Beginnings> {
        Ok(self.catalog.history()?.for_each_kept(after, upto, visit)?)
    }

    /// Visits the rows of a temporal table as `past` shows them: the bytes of the key, and those of
    /// `columns`; without them of all. Returns the columns.
    pub fn for_each_past_row(
        &self,
        past: &View,
        table: &str,
        columns: Option<&[String]>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Vec<String>> {
        if !past.moment().is_of_one_database(self) {
            let why = "rows are read as of another moment of the same database";
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        let rows = self.past_rows(past, table)?;
        let columns = columns.unwrap_or(&rows.columns);
        self.catalog
            .history()?
            .for_each_past_row(&rows, columns, visit)?;
        Ok(columns.to_vec())
    }
}
