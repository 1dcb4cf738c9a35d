//! Listing directories: a page of the catalog's entries, with what is not committed yet merged in.
//!
//! # Invariants
//! * `SAFE-8` Directories whose entries are listed form a tree, whoever wrote the catalog: no
//!   directory has two names, and the root has none, so whoever walks down ends. *Guard*: asked at
//!   the beginning of each listing.

use crate::Result;
use crate::view::ViewLookup;
use crate::view::entries::Target;
use crate::view::node::Node;
use crate::view::node::require_directory;
use larder_catalog::{DirentRow, InodeRow, dirent_order};
use larder_space::format::Name;
use std::sync::Arc;

impl ViewLookup<'_> {
    /// At most `limit` entries after `after`, in catalog order. The caller holds the namespace
    /// lock.
    pub(crate) fn list(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirentRow>> {
        self.pages(
            dir,
            after,
            limit,
            |after, want| {
                self.catalog
                    .tables()
                    .dirents(dir.store, dir.ino, after, want)
            },
            |row| &row.name,
            |name, (ino, kind)| Ok(DirentRow { name, ino, kind }),
        )
    }

    /// The same with attributes. What was not in memory is remembered: who lists with attributes
    /// most often goes on with what is listed.
    pub(crate) fn list_with_rows(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, InodeRow)>> {
        let mut entries = self.pages(
            dir,
            after,
            limit,
            |after, want| {
                self.catalog
                    .tables()
                    .dirents_with_rows(dir.store, dir.ino, after, want)
            },
            |(name, _)| name,
            |name, (ino, _)| {
                let node = self.node(dir.store, ino)?;
                Ok((name, self.row(&node)?))
            },
        )?;
        for (name, row) in &mut entries {
            match self.cache.find(dir.store, row.ino) {
                // It may have changed since the last commit.
                Some(node) => *row = self.row(&node)?,
                None => {
                    let node = Node::new(dir.store, row.clone(), false);
                    self.cache.insert(Arc::new(node));
                }
            }
            self.cache.set_name(dir, name, Some(row.ino));
        }
        Ok(entries)
    }

    /// Pages of the catalog from `load`, with the entries that differ from it (`CACHE-1`).
    fn pages<T>(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
        load: impl Fn(Option<&Name>, usize) -> larder_catalog::Result<Vec<T>>,
        name_of: impl Fn(&T) -> &Name,
        make: impl Fn(Name, Target) -> Result<T>,
    ) -> Result<Vec<T>> {
        if after.is_none() {
            // SAFE-8: whoever walks a tree lists each directory from its beginning.
            self.catalog.tables().require_one_name(dir.store, dir.ino)?;
        }
        let mut entries = Vec::new();
        let mut from = after.cloned();
        while entries.len() < limit {
            let want = limit - entries.len();
            // These first: what a commit that ends meanwhile takes out of them is in the page.
            let (deltas, is_cut) = {
                let state = self.lock_node(dir)?;
                require_directory(&state)?;
                state.entries.after(from.as_ref(), want)
            };
            let mut page = load(from.as_ref(), want)?;
            // Beyond the end of a page that goes on, the other one may know more.
            let page_end = page.last().map(&name_of).filter(|_| page.len() == want);
            let deltas_end = deltas.last().map(|(name, _)| name).filter(|_| is_cut);
            let end = match (page_end, deltas_end) {
                (Some(one), Some(other)) if dirent_order(one, other).is_gt() => Some(other),
                (one, other) => one.or(other),
            };
            let end = end.cloned();
            let is_within = |name: &Name| {
                let end = end.as_ref();
                end.is_none_or(|end| dirent_order(name, end).is_le())
            };
            page.truncate(page.partition_point(|row| is_within(name_of(row))));
            let mut page = page.into_iter().peekable();
            for (name, delta) in deltas.into_iter().filter(|(name, _)| is_within(name)) {
                let is_before = |row: &T| dirent_order(name_of(row), &name).is_lt();
                while let Some(row) = page.next_if(is_before) {
                    entries.push(row);
                }
                page.next_if(|row| *name_of(row) == name);
                if let Some(target) = delta.target {
                    entries.push(make(name, target)?);
                }
            }
            entries.extend(page);
            if end.is_none() {
                break;
            }
            from = end;
        }
        entries.truncate(limit);
        Ok(entries)
    }
}
