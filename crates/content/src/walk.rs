//! Everything whose path matches a pattern, found by walking down from the root.
//!
//! A pattern is an absolute path whose components are patterns of `glob`; the component `**` stands
//! for any number of directories, none too, and at the end for everything below. A component
//! without magic is looked up, so that directories beside the way are never read. Symbolic links
//! are entries like others; only components without magic follow them.

use crate::database::Database;
use crate::glob::matches;
use crate::path::split_path;
use crate::types::{DirEntry, Metadata, NodeId};
use larder_object::format::{FileKind, Name};
use larder_object::{Error, ErrorKind, Result};
use std::collections::VecDeque;

/// Entries that are read at once.
const PAGE: usize = 256;

/// The path of what was found, and what it is.
pub(crate) type Found = (Vec<u8>, Metadata);

/// A walk under way: an iterator over what matches, each path once.
pub(crate) struct Walk {
    database: Database,
    parts: Vec<Part>,
    /// The directories from the root down to where the walk is.
    levels: Vec<Level>,
    /// Found, and not yet told.
    ready: Option<Found>,
}

enum Part {
    /// A name.
    Literal(Vec<u8>),
    Pattern(Vec<u8>),
    /// `**`.
    Any,
}

/// A directory that is being read.
struct Level {
    node: NodeId,
    /// Without a `/` at its end.
    path: Vec<u8>,
    /// The parts that an entry may match, ascending.
    states: Vec<usize>,
    page: VecDeque<(DirEntry, Metadata)>,
    after: Option<Name>,
    is_last_page: bool,
}

impl Walk {
    /// Begins a walk. [`ErrorKind::InvalidInput`] for a pattern that is not absolute.
    pub(crate) fn begin(database: &Database, pattern: &[u8]) -> Result<Walk> {
        let mut parts: Vec<Part> = Vec::new();
        for part in split_path(pattern)? {
            let part = match part {
                b".." => {
                    let why = "a pattern has no '..'; write where it leads";
                    return Err(Error::new(ErrorKind::InvalidInput, why));
                }
                b"**" if matches!(parts.last(), Some(Part::Any)) => continue,
                b"**" => Part::Any,
                part if part.iter().any(|byte| b"*?[\\".contains(byte)) => {
                    Part::Pattern(part.to_vec())
                }
                part => Part::Literal(part.to_vec()),
            };
            parts.push(part);
        }
        let mut walk = Walk {
            database: database.clone(),
            parts,
            levels: Vec::new(),
            ready: None,
        };
        let root = database.nodes().metadata(NodeId::ROOT)?;
        match walk.parts.is_empty() {
            true => walk.ready = Some((b"/".to_vec(), root)),
            false => walk.enter(NodeId::ROOT, Vec::new(), vec![0])?,
        }
        Ok(walk)
    }

    /// Goes on in a directory whose entries may match the parts `states`.
    fn enter(&mut self, node: NodeId, path: Vec<u8>, mut states: Vec<usize>) -> Result<()> {
        for state in states.clone() {
            // `**` may stand for nothing, but not at the end.
            if matches!(self.parts[state], Part::Any) && state + 1 < self.parts.len() {
                states.push(state + 1);
            }
        }
        states.sort_unstable();
        states.dedup();
        let mut level = Level {
            node,
            path,
            states,
            page: VecDeque::new(),
            after: None,
            is_last_page: false,
        };
        if let [state] = level.states[..]
            && let Part::Literal(name) = &self.parts[state]
        {
            level.is_last_page = true;
            level.page = self
                .look_up(&level, name, state + 1 < self.parts.len())?
                .into_iter()
                .collect();
        }
        self.levels.push(level);
        Ok(())
    }

    /// The entry of a directory, as what it leads to if there is more to match.
    fn look_up(
        &self,
        level: &Level,
        name: &[u8],
        follow: bool,
    ) -> Result<Option<(DirEntry, Metadata)>> {
        let Ok(name) = Name::new(name) else {
            return Ok(None); // Longer than any.
        };
        let found = self
            .database
            .nodes()
            .lookup(level.node, &name)
            .and_then(|attr| match attr.kind {
                FileKind::Symlink if follow => {
                    let path = [&level.path, &b"/"[..], name.as_bytes()].concat();
                    self.database.nodes().resolve(&path, true)
                }
                _ => Ok(attr),
            });
        match found {
            Ok(attr) => {
                let entry = DirEntry {
                    name,
                    node: attr.node,
                    kind: attr.kind,
                };
                Ok(Some((entry, attr)))
            }
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::TooManySymlinks => {
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }

    /// The next entry of the innermost directory; `None` at its end.
    fn next_entry(&mut self) -> Result<Option<(DirEntry, Metadata)>> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(None);
        };
        if level.page.is_empty() && !level.is_last_page {
            let page =
                self.database
                    .nodes()
                    .read_dir_plus(level.node, level.after.as_ref(), PAGE)?;
            level.is_last_page = page.len() < PAGE;
            level.after = page.last().map(|(entry, _)| entry.name.clone());
            level.page = page.into();
        }
        Ok(level.page.pop_front())
    }

    fn find_next(&mut self) -> Result<Option<Found>> {
        while !self.levels.is_empty() {
            let Some((entry, attr)) = self.next_entry()? else {
                self.levels.pop();
                continue;
            };
            let Some(level) = self.levels.last() else {
                return Ok(None);
            };
            let mut next = Vec::new();
            for &state in &level.states {
                match &self.parts[state] {
                    Part::Any => {
                        next.push(state);
                        if state + 1 == self.parts.len() {
                            next.push(state + 1);
                        }
                    }
                    Part::Literal(name) if name == entry.name.as_bytes() => next.push(state + 1),
                    Part::Pattern(pattern) if matches(pattern, entry.name.as_bytes()) => {
                        next.push(state + 1);
                    }
                    Part::Literal(_) | Part::Pattern(_) => {}
                }
            }
            let path = [&level.path, &b"/"[..], entry.name.as_bytes()].concat();
            let is_found = next.contains(&self.parts.len());
            next.retain(|&state| state < self.parts.len());
            if attr.kind == FileKind::Directory && !next.is_empty() {
                self.enter(attr.node, path.clone(), next)?;
            }
            if is_found {
                return Ok(Some((path, attr)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Walk {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        if let Some(found) = self.ready.take() {
            return Some(Ok(found));
        }
        let found = self.find_next().transpose();
        if matches!(found, Some(Err(_))) {
            self.levels.clear();
        }
        found
    }
}
